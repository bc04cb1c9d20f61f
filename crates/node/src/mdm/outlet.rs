//! What the MDM sends once it is committed: answers, map pages, welcomes. And what it sends after
//! the log failed.

use super::intake::Input;
use super::{Link, Mdm, Peer, Pull, Stop};
use crate::link::send_answer;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base::{DeviceId, LinkId, MapVersion, Mutant, Time, VolumeId, mutant};
use mdm::group::Doubt;
use mdm::state::Device;
use prost::Message;
use seam::{Buf, Effects, Head, Note};
use wire::control::{AdminError, AdminReply, Intent, MapPage, Refusal};
use wire::{HANDSHAKE_VERSION, PeerLink, message};

/// A frame that waits to be sent.
pub(super) struct Answer {
    /// The refusal that ends the link, sent in place of the frame.
    pub refusal: Option<Refusal>,
    pub link: LinkId,
    /// The order that it answers, if there is one.
    pub order: Option<u64>,
    /// How far that order's change is.
    pub progress: Progress,
    /// It leaves when this question to the consensus is answered; `u64::MAX`: not asked yet.
    pub question: u64,
    /// It leaves when this removed MDM no longer counts: until then the others may need it.
    pub gone: Option<u64>,
    /// It leaves when no device can serve any more what was forbidden.
    pub fence: Option<Fence>,
    pub head: Head,
    pub body: Buf,
}

impl Answer {
    /// Returns a frame that only waits until everything before it is committed.
    pub(super) fn frame(link: LinkId, head: Head, body: Buf) -> Answer {
        Answer {
            refusal: None,
            link,
            order: None,
            progress: Progress::None,
            question: 0,
            gone: None,
            fence: None,
            head,
            body,
        }
    }

    /// Everything that it rests on is committed, so this MDM still led then.
    pub(super) fn committed(&mut self) {
        self.question = 0;
        if self.progress == Progress::Proposed {
            self.progress = Progress::Committed;
        }
    }
}

/// How far the change is that an order makes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// It makes none: it is a question, or everything was as it wants it already.
    None,
    /// The change is proposed.
    Proposed,
    /// The change is committed.
    Committed,
}

/// Clients of a volume have fewer rights from now on. Every device that serves the volume has to
/// know. A former primary that may not know that it is replaced may hold leases from them, which
/// have to run out first (rule R3).
pub(super) struct Fence {
    pub volume: VolumeId,
    /// The map version with the change.
    pub map: MapVersion,
    /// After this time the answer names a device that has not confirmed.
    pub until: Time,
    /// Since when all devices that grant leases know.
    pub known: Option<Time>,
}

/// The pages of the last map request: most requests come from the same version, at the same time.
#[derive(Default)]
pub(super) struct Pages {
    have: MapVersion,
    version: MapVersion,
    bodies: Vec<Buf>,
    /// The version that the driver was told last.
    noted: MapVersion,
}

impl Mdm {
    /// Sends what waited for commitment, if everything is committed.
    pub(super) fn let_out(&mut self, now: Time, out: &mut Effects) {
        self.fence_due = None;
        if self.failed.is_some() || !self.may_let_out() {
            return;
        }
        if !self.ready {
            if self.state.cluster.0 == 0 {
                return;
            }
            self.begin(now, out);
            self.settle_hellos(now, out);
        }
        let news = self.pages.noted != self.state.version;
        if news {
            self.pages.noted = self.state.version;
            out.note(Note::Map { version: self.state.version });
            let unserved = self.state.count_unserved();
            if core::mem::replace(&mut self.unserved, unserved) != unserved {
                out.note(Note::Unserved { lost: unserved.0, away: unserved.1 });
            }
        }
        let known = self.questions.1;
        self.look_at_fences(now);
        let consensus = self.consensus.as_ref();
        let counts = |id| consensus.is_some_and(|c| c.counts(id));
        let there = |a: &Answer| a.gone.is_some_and(counts);
        let fenced = |a: &Answer| a.fence.as_ref().is_none_or(|f| now >= self.fenced_at(f));
        let due: Vec<bool> =
            self.answers.iter().map(|a| a.question <= known && !there(a) && fenced(a)).collect();
        let mut due = due.into_iter();
        let due = self.answers.extract_if(.., |_| due.next().unwrap_or(false));
        for answer in due.collect::<Vec<Answer>>() {
            let unknown = answer.fence.as_ref().filter(|f| f.known.is_none());
            let late = unknown.and_then(|f| self.unfenced(f));
            if let (Some(device), Some(op)) = (late, answer.order) {
                self.answer_late(answer.link, op, device, out);
                continue;
            }
            match &answer.refusal {
                _ if !self.links.contains_key(&answer.link) => {}
                Some(why) => self.refuse(answer.link, why, out),
                None => out.send(answer.link, answer.head, answer.body),
            }
        }
        let (version, open) = (self.state.version, self.state.recovery.open);
        let due = |p: &Pull| !p.wait || p.have < version && !open;
        let pulls: Vec<(LinkId, Pull)> = self
            .links
            .iter_mut()
            .filter_map(|(link, l)| Some((*link, l.parked.take_if(|p| due(p))?)))
            .collect();
        for (link, pull) in pulls {
            if open {
                Mdm::empty_page(self.peer_link(link), pull.op, out);
                continue;
            }
            self.send_pages(link, pull, out);
        }
        if news {
            self.tell_volumes(out);
        }
        if self.proposed().is_none() {
            self.hand_over();
        }
    }

    /// Sends clients the volumes that are new to them. Clients ask for a map when they need one,
    /// and may not be able to then: an NBD client attaches a new volume even without an MDM.
    fn tell_volumes(&mut self, out: &mut Effects) {
        let newest = self.state.volumes.values().map(|v| v.changed_at).max();
        let (Some(newest), false) = (newest, self.state.recovery.open) else { return };
        let behind = |l: &Link| matches!(l.peer, Peer::Sdc(..)) && l.have.0 > 0 && l.have < newest;
        let pull = |l: &Link| Pull { have: l.have, op: 0, wait: false };
        let links: Vec<(LinkId, Pull)> =
            self.links.iter().filter(|(_, l)| behind(l)).map(|(id, l)| (*id, pull(l))).collect();
        for (link, pull) in links {
            self.send_pages(link, pull, out);
        }
    }

    /// Records for each fence whether all devices know by now.
    fn look_at_fences(&mut self, now: Time) {
        if let Some(map) = self.older.awaited()
            && self.is_everywhere(map)
        {
            self.older.known_to_all(now);
        }
        let mut answers = core::mem::take(&mut self.answers);
        for fence in answers.iter_mut().filter_map(|a| a.fence.as_mut()) {
            if fence.known.is_none() && self.unfenced(fence).is_none() {
                fence.known = Some(now);
            }
        }
        self.answers = answers;
        let fences = self.answers.iter().filter_map(|a| a.fence.as_ref());
        self.fence_due = fences.map(|f| self.fenced_at(f)).filter(|at| *at > now).min();
    }

    /// Returns when no process of a device serves by an older map any more, or when the answer says
    /// that one may.
    fn fenced_at(&self, fence: &Fence) -> Time {
        let Some(known) = fence.known else { return fence.until };
        if mutant::on(Mutant::UnmapBlindly) {
            return known;
        }
        let grace = self.config.limits.grace;
        let latest = known + grace;
        if !self.is_everywhere(fence.map) {
            return latest;
        }
        if mutant::on(Mutant::NewerConfirms) {
            return known;
        }
        self.older.ended_at(grace).map_or(latest, |at| at.clamp(known, latest))
    }

    /// Returns true if every device has a map of this version, or is dead.
    fn is_everywhere(&self, map: MapVersion) -> bool {
        // A removed device ends as soon as it hears of its removal.
        let there = |(id, d): &(&DeviceId, &Device)| {
            d.intent != Intent::Removed || self.devices.contains_key(id)
        };
        let mut there = self.state.devices.iter().filter(there).map(|(id, _)| *id);
        there.all(|device| self.has_map(device, map))
    }

    /// Returns true if the device has a map of this version, or is dead.
    fn has_map(&self, device: DeviceId, map: MapVersion) -> bool {
        let link = self.devices.get(&device).and_then(|s| self.links.get(&s.link));
        let dead = self.state.devices.get(&device).is_none_or(|d| d.dead);
        dead || link.is_some_and(|l| l.have >= map)
    }

    /// Returns a device that may serve by an older map, or grant leases by it: it is in sync in a
    /// group of the volume. For a group in doubt it may be any device.
    fn unfenced(&self, fence: &Fence) -> Option<DeviceId> {
        if mutant::on(Mutant::UnmapBlindly) {
            return None;
        }
        let volume = self.state.volumes.get(&fence.volume)?;
        let groups = || volume.slots.iter().filter_map(|g| self.state.groups.get(g));
        let doubt = groups().any(|g| g.doubt != Doubt::None);
        let any = |d: &Device| doubt && d.intent != Intent::Removed;
        let all = self.state.devices.iter().filter(|(_, d)| any(d)).map(|(id, _)| *id);
        let mut serve = groups().flat_map(|g| g.in_sync.iter().copied()).chain(all);
        serve.find(|device| !self.has_map(*device, fence.map))
    }

    fn answer_late(&self, link: LinkId, op: u64, device: DeviceId, out: &mut Effects) {
        if !self.links.contains_key(&link) {
            return;
        }
        let server = self.state.devices.get(&device).and_then(|d| self.state.servers.get(&d.sds));
        let server = server.map_or("?", |s| &s.name);
        let text = format!(
            "it is done, but {device} of server `{server}` has not confirmed it: until it hears from an MDM, or is \
             stopped, it may serve those that were unmapped. Ask again when `gabion status` shows it as up"
        );
        self.answer_error(link, op, AdminError::Unconfirmed, text, out);
    }

    fn answer_error(
        &self,
        link: LinkId,
        op: u64,
        error: AdminError,
        text: String,
        out: &mut Effects,
    ) {
        let (error, applied, term) = (error as i32, self.state.index, self.term());
        let reply = AdminReply { error, text, applied, term, ..AdminReply::default() };
        send_answer(self.peer_link(link), message::AdminReply { op }, &reply, out);
    }

    /// Answers the hellos that wait, if there is an answer by now.
    pub(super) fn settle_hellos(&mut self, _: Time, out: &mut Effects) {
        let waiting: Vec<_> =
            self.links.iter_mut().filter_map(|(link, l)| Some((*link, l.hello.take()?))).collect();
        for (link, hello) in waiting {
            if let Err(why) = self.hello(link, hello, out) {
                self.refuse(link, &why, out);
            }
        }
    }

    fn send_pages(&mut self, link: LinkId, pull: Pull, out: &mut Effects) {
        // The map of a device counts for fences, so only the device itself reports it.
        let client = self.links.get_mut(&link).filter(|l| matches!(l.peer, Peer::Sdc(..)));
        if let Some(client) = client {
            client.have = self.state.version;
        }
        let pages = &mut self.pages;
        if (pages.have, pages.version) != (pull.have, self.state.version) || pages.bodies.is_empty()
        {
            let mut list = self.state.pages_since(pull.have);
            if list.is_empty() {
                list.push(self.state.page_without_news());
            }
            (pages.have, pages.version) = (pull.have, self.state.version);
            pages.bodies = list.iter().map(|page| encode(page, out)).collect();
        }
        let link =
            PeerLink::new(link, self.links.get(&link).map_or(HANDSHAKE_VERSION, |l| l.version));
        let page = message::MapPage { op: pull.op, map: self.state.version };
        for body in &pages.bodies {
            out.send(link.id, link.frame(page, body), body.clone());
        }
    }

    /// Stops this MDM: nothing changes any more. If other MDMs vote, they continue without it. One
    /// that was only added to the list, and does not vote, can't.
    pub(super) fn fail(&mut self, why: String, out: &mut Effects) {
        if self.failed.is_some() {
            return;
        }
        self.take_back();
        let alone = self.consensus.as_ref().is_none_or(|c| c.is_only_voter());
        self.answer_orders(&why, alone, out);
        self.failed = Some(Stop { why, alone });
        if !alone {
            self.resign(out);
        }
        self.consensus = None;
        self.revived.clear();
        self.settle_hellos(Time::ZERO, out);
    }

    /// Answers the orders whose change is proposed or committed. If no other MDM can lead, it also
    /// answers all others with the reason why this one stops; otherwise these are left to the
    /// refusal, which sends their peers to the new leader.
    fn answer_orders(&mut self, why: &str, alone: bool, out: &mut Effects) {
        let unsure = match alone {
            true => format!("{why}. After that it may have done this: look before you repeat it"),
            // They may have the order already.
            false => format!(
                "{why}. If another MDM leads now, it may have done this: look before you repeat it"
            ),
        };
        let waiting = core::mem::take(&mut self.answers);
        for answer in waiting.into_iter().filter(|a| self.links.contains_key(&a.link)) {
            let (link, Some(op)) = (answer.link, answer.order) else { continue };
            match answer.progress {
                Progress::None if alone => {
                    self.answer_error(link, op, AdminError::Log, why.into(), out);
                }
                Progress::None => {}
                Progress::Proposed => {
                    self.answer_error(link, op, AdminError::Log, unsure.clone(), out);
                }
                Progress::Committed if answer.fence.is_none() && answer.gone.is_none() => {
                    out.send(link, answer.head, answer.body);
                }
                Progress::Committed => {
                    let text = format!(
                        "it is done, but not every process that has to know has confirmed it, and this MDM \
                         has stopped: {why}"
                    );
                    self.answer_error(link, op, AdminError::Unconfirmed, text, out);
                }
            }
        }
        for input in core::mem::take(&mut self.inputs) {
            if let Input::Order(link, op, _) = input
                && alone
                && self.links.contains_key(&link)
            {
                self.answer_error(link, op, AdminError::Log, why.into(), out);
            }
        }
    }
}

fn encode(page: &MapPage, out: &mut Effects) -> Buf {
    let mut body = out.alloc(page.encoded_len());
    page.encode(&mut body.as_mut()).expect("the buffer has the encoded length");
    body
}

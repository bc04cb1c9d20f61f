//! What leaves the MDM once it is committed: answers, map pages, welcomes. And what leaves it when the
//! log has failed.

use super::intake::Input;
use super::{Mdm, Pull};
use crate::links::send_control;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base::{DeviceId, LinkId, MapVersion, Mutant, Time, VolumeId, mutant};
use mdm::group::Group;
use prost::Message;
use seam::{Buf, Effects, Head, Note};
use wire::control::{AdminError, AdminReply, MapPage, Refusal};
use wire::{Header, Kind, frame};

/// A frame that waits.
pub(super) struct Answer {
    /// The link is refused, and not answered.
    pub refusal: Option<Refusal>,
    pub link: LinkId,
    /// The order that it answers, if it is one.
    pub order: Option<u64>,
    /// It leaves when this question is answered; `u64::MAX`: it was not asked yet.
    pub question: u64,
    /// It leaves when this MDM is out of the consensus: until then the others may need it.
    pub gone: Option<u64>,
    /// It leaves when nobody can serve what was forbidden any more.
    pub fence: Option<Fence>,
    pub head: Head,
    pub body: Buf,
}

impl Answer {
    /// A frame that needs nothing but that what was done before is committed.
    pub fn frame(link: LinkId, head: Head, body: Buf) -> Answer {
        Answer {
            refusal: None,
            link,
            order: None,
            question: 0,
            gone: None,
            fence: None,
            head,
            body,
        }
    }
}

/// A volume's clients may do less from now on: every device that serves it has to know.
pub(super) struct Fence {
    pub volume: VolumeId,
    /// The map that says so.
    pub map: MapVersion,
    /// After this time the answer says who has not confirmed.
    pub until: Time,
}

/// The pages of the last pull: most pullers have the same map and ask at the same time.
#[derive(Default)]
pub(super) struct Pages {
    have: MapVersion,
    version: MapVersion,
    bodies: Vec<Buf>,
    /// The version that was told to the driver.
    noted: MapVersion,
}

impl Mdm {
    /// If everything is committed, sends what waited for that.
    pub(super) fn let_out(&mut self, now: Time, out: &mut Effects) {
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
        if self.pages.noted != self.state.version {
            self.pages.noted = self.state.version;
            out.note(Note::Map { version: self.state.version });
        }
        let known = self.questions.1;
        let consensus = self.consensus.as_ref();
        let counts = |id| consensus.is_some_and(|c| c.counts(id));
        let there = |a: &Answer| a.gone.is_some_and(counts);
        let fenced = |a: &Answer| {
            a.fence.as_ref().is_none_or(|f| now >= f.until || self.unfenced(f).is_none())
        };
        let due: Vec<bool> =
            self.answers.iter().map(|a| a.question <= known && !there(a) && fenced(a)).collect();
        let mut due = due.into_iter();
        let due = self.answers.extract_if(.., |_| due.next().unwrap_or(false));
        for answer in due.collect::<Vec<Answer>>() {
            let late = answer.fence.as_ref().and_then(|f| self.unfenced(f));
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
        let version = self.state.version;
        let due = |p: &Pull| !p.wait || p.have < version;
        let pulls: Vec<(LinkId, Pull)> = self
            .links
            .iter_mut()
            .filter_map(|(link, l)| Some((*link, l.parked.take_if(|p| due(p))?)))
            .collect();
        for (link, pull) in pulls {
            self.send_pages(link, pull, out);
        }
        if self.proposed().is_none() {
            self.hand_over();
        }
    }

    /// A device that may still serve by an older map: it leads a group of the volume, or has the last copy and
    /// is not known to be dead. Who led before needs those for what it does, and they refuse it.
    fn unfenced(&self, fence: &Fence) -> Option<DeviceId> {
        if mutant::on(Mutant::UnmapBlindly) {
            return None;
        }
        let volume = self.state.volumes.get(&fence.volume)?;
        let knows = |device: &DeviceId| {
            let link = self.devices.get(device).and_then(|s| self.links.get(&s.link));
            let dead = self.state.devices.get(device).is_none_or(|d| d.dead);
            dead || link.is_some_and(|l| l.have >= fence.map)
        };
        let groups = volume.slots.iter().filter_map(|g| self.state.groups.get(g));
        let serve = |g: &'_ Group| match g.primary {
            Some(primary) => Vec::from([primary]),
            None => g.in_sync.clone(),
        };
        groups.flat_map(serve).find(|device| !knows(device))
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
        let reply = AdminReply {
            error: AdminError::Unconfirmed as i32,
            text,
            applied: self.state.index,
            term: self.term(),
            ..AdminReply::default()
        };
        let mut header = Header::new(Kind::AdminReply);
        header.op = op.into();
        send_control(link, header, &reply, out);
    }

    /// Answers the hellos that came before there was an answer, if there is one now.
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
        for body in &pages.bodies {
            let mut header = Header::new(Kind::MapPage);
            header.op = pull.op.into();
            header.map = self.state.version.0.into();
            out.send(link, frame(header, body), body.clone());
        }
    }

    /// This MDM can't go on: nothing changes any more. If there are others, they do.
    pub(super) fn fail(&mut self, why: String, out: &mut Effects) {
        self.failed = Some(why.clone());
        self.consensus = None;
        if self.state.members.list.len() > 1 {
            self.resign(out);
        }
        let waiting = self.answers.drain(..).filter_map(|a| Some((a.link, a.order?)));
        let mut orders: Vec<(LinkId, u64)> = waiting.collect();
        for input in self.inputs.drain(..) {
            if let Input::Order(link, op, _) = input {
                orders.push((link, op));
            }
        }
        let error = AdminError::Log as i32;
        let reply = AdminReply { error, text: why.clone(), ..AdminReply::default() };
        for (link, op) in orders.into_iter().filter(|(link, _)| self.links.contains_key(link)) {
            let mut header = Header::new(Kind::AdminReply);
            header.op = op.into();
            send_control(link, header, &reply, out);
        }
        self.revived.clear();
        self.settle_hellos(Time::ZERO, out);
    }
}

fn encode(page: &MapPage, out: &mut Effects) -> Buf {
    let mut body = out.alloc(page.encoded_len());
    page.encode(&mut body.as_mut()).expect("the buffer has the encoded length");
    body
}

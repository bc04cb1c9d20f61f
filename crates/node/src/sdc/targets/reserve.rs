//! Reservations: the changes that hosts ask the MDM for, the access of each host, and the end of
//! requests whose host has lost access.
//!
//! Invariants:
//! - One change of each volume is under way, of [`UNDER_WAY`] volumes at most. It keeps its number,
//!   and is sent again until it is answered, so it is done once.
//! - A host hears of its change when the map of this client has it: from then on this client does
//!   nothing that the change forbids.
//! - Requests that a host may no longer make end before any request gets the generation of the new
//!   map. Otherwise they would get past the fence (rule R8). Writes that the host began before it
//!   lost the right to write end, too, even if the same map gives the right back.

use super::{Session, Sessions, Waiting};
use crate::link::send_control;
use crate::mapview::{MapView, Reserved as Changed};
use crate::sdc::{Origin, Sdc};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::time::Duration;
use base::{LinkId, MapVersion, Time, VolumeId};
use mdm::reserve::{change_info, host_info, result};
use seam::{BlockError, BlockKind, Effects};
use target::reserve::{self, Access, Change, Identity, Notice, Refusal, Table};
use target::{Asked, Question, ident};
use wire::PeerLink;
use wire::control::{Reserve, ReserveOutcome, Reserved};

/// An unanswered change is sent again after this time.
const AGAIN: Duration = Duration::from_secs(1);

/// Most volumes with a change under way. An MDM accepts 16 inputs of a link at a time.
pub(super) const UNDER_WAY: usize = 8;

/// A change that a host asks for.
#[derive(Debug)]
struct Asking {
    link: LinkId,
    tag: u64,
    who: Identity,
    change: Change,
    since: Time,
}

/// The requested changes of one volume. The first one is under way, or waits for its turn.
#[derive(Debug, Default)]
struct Queue {
    list: VecDeque<Asking>,
    /// The number of the first one; 0 while it waits for its turn.
    number: u64,
    /// The time of the last transmission; `None` if there was no link.
    sent: Option<Time>,
    /// Its result, and the version of the map that contains it.
    outcome: Option<(ReserveOutcome, MapVersion)>,
}

/// An answer that a session gets.
#[derive(Debug)]
enum Answer {
    /// The change is confirmed, or refused.
    Changed(Result<(), Refusal>),
    /// These are the reservations of the volume.
    Table(Table),
    /// This gateway serves the host.
    Activated,
    /// The MDM does not answer.
    Nobody,
}

/// A command that waits for a fresh map, to report the reservations of a volume.
#[derive(Debug)]
struct Reporting {
    link: LinkId,
    tag: u64,
    volume: VolumeId,
    since: Time,
}

/// The hosts' requests to the MDM.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    /// The number of the last change.
    number: u64,
    queues: BTreeMap<VolumeId, Queue>,
    reports: Vec<Reporting>,
    /// Answers that the sessions have not got, with the link and the tag of the command.
    answers: VecDeque<(LinkId, u64, Answer)>,
    /// True if any volume may have a reservation.
    any: bool,
}

/// The owner's side of a call of [`Reservations`].
struct Post<'a> {
    now: Time,
    /// The link to the MDM, if there is one.
    mdm: Option<PeerLink>,
    out: &'a mut Effects,
}

impl Queue {
    /// Sends the change that is under way, if there is a link.
    fn send(&mut self, volume: VolumeId, post: &mut Post<'_>) {
        self.sent = post.mdm.map(|_| post.now);
        let (Some(asking), Some(link)) = (self.list.front(), post.mdm) else { return };
        let (who, change) = (host_info(&asking.who), change_info(&asking.change));
        let reserve = Reserve { volume: volume.0, number: self.number, who, change };
        send_control(link, &reserve, post.out);
    }
}

impl Reservations {
    fn ask(&mut self, volume: VolumeId, asking: Asking, post: &mut Post<'_>) {
        let queue = self.queues.entry(volume).or_default();
        queue.list.push_back(asking);
        if queue.list.len() == 1 {
            self.begin(volume, post);
        }
    }

    /// Queues the first change of a volume, if there is one. Then begins queued changes, the oldest
    /// first, as far as [`UNDER_WAY`] allows.
    fn begin(&mut self, volume: VolumeId, post: &mut Post<'_>) {
        let Some(queue) = self.queues.get_mut(&volume) else { return };
        match queue.list.is_empty() {
            true => drop(self.queues.remove(&volume)),
            false => (queue.number, queue.sent, queue.outcome) = (0, None, None),
        }
        let busy = self.under_way();
        let waits = |(id, queue): (&VolumeId, &Queue)| {
            let first = queue.list.front().filter(|_| queue.number == 0)?;
            Some((first.since, *id))
        };
        let mut next: Vec<(Time, VolumeId)> = self.queues.iter().filter_map(waits).collect();
        next.sort_unstable();
        for (_, id) in next.into_iter().take(UNDER_WAY.saturating_sub(busy)) {
            let Some(queue) = self.queues.get_mut(&id) else { continue };
            assert!(queue.number == 0, "one change of a volume is under way");
            self.number += 1;
            queue.number = self.number;
            queue.send(id, post);
        }
    }

    /// Takes an answer of the MDM. Returns the version of the map that must arrive first.
    fn answered(&mut self, m: &Reserved) -> Option<MapVersion> {
        let queue = self.queues.get_mut(&VolumeId(m.volume))?;
        // An answer to a change that nobody waits for any more. No change has the number 0.
        if m.number == 0 || queue.number != m.number {
            return None;
        }
        queue.outcome = Some((m.outcome(), MapVersion(m.map)));
        Some(MapVersion(m.map))
    }

    /// Answers the changes that a map of this version contains, and begins the next ones.
    fn pass_on(&mut self, version: MapVersion, post: &mut Post<'_>) {
        let known = |(id, q): (&VolumeId, &Queue)| {
            q.outcome.and_then(|(outcome, map)| (map <= version).then_some((*id, outcome)))
        };
        let known: Vec<_> = self.queues.iter().filter_map(known).collect();
        for (id, outcome) in known {
            let front = self.queues.get_mut(&id).and_then(|q| q.list.pop_front());
            if let Some(Asking { link, tag, .. }) = front {
                let answer = result(outcome).map_or(Answer::Nobody, Answer::Changed);
                self.answers.push_back((link, tag, answer));
            }
            self.begin(id, post);
        }
    }

    /// Removes what `over` accepts, and returns the link and the tag of each.
    fn remove(
        &mut self,
        over: impl Fn(LinkId, u64, Time) -> bool,
        post: &mut Post<'_>,
    ) -> Vec<(LinkId, u64)> {
        let mut removed = Vec::new();
        let ids: Vec<VolumeId> = self.queues.keys().copied().collect();
        for id in ids {
            let Some(queue) = self.queues.get_mut(&id) else { continue };
            let before = queue.list.front().map(|first| (first.link, first.tag));
            queue.list.retain(|a| {
                let over = over(a.link, a.tag, a.since);
                removed.extend(over.then_some((a.link, a.tag)));
                !over
            });
            if queue.list.front().map(|first| (first.link, first.tag)) != before {
                self.begin(id, post);
            }
        }
        self.reports.retain(|&Reporting { link, tag, since, .. }| {
            let over = over(link, tag, since);
            removed.extend(over.then_some((link, tag)));
            !over
        });
        removed
    }

    /// Sends unanswered changes again.
    fn send_again(&mut self, after: Duration, post: &mut Post<'_>) {
        let now = post.now;
        for (id, queue) in &mut self.queues {
            let due = queue.sent.is_none_or(|sent| now.since(sent) >= after);
            if due && queue.number > 0 && queue.outcome.is_none() {
                queue.send(*id, post);
            }
        }
    }

    /// Returns the host whose change of this volume is under way, if such a change may end its own
    /// registration or a reservation.
    fn asker(&self, volume: VolumeId) -> Option<Identity> {
        let first = self.queues.get(&volume)?.list.front()?;
        match first.change {
            Change::Register { new: 1.., .. }
            | Change::RegisterNvme { .. }
            | Change::ReplaceNvme { new: 1.., .. }
            | Change::Reserve { .. } => None,
            _ => Some(first.who.clone()),
        }
    }

    /// Returns the number of changes that are under way.
    pub(super) fn under_way(&self) -> usize {
        self.queues.values().filter(|queue| queue.number > 0).count()
    }

    /// Returns the number of commands that wait for a change, or for a report.
    pub(super) fn asking(&self) -> usize {
        self.queues.values().map(|queue| queue.list.len()).sum::<usize>() + self.reports.len()
    }

    /// Returns true while sessions have not got their answers.
    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Returns when [`Sessions::reserve_tick`] has something to do.
    pub(super) fn wake_at(&self, patience: Duration) -> Option<Time> {
        let again = self.queues.values().filter(|q| q.outcome.is_none());
        let again = again.filter_map(|q| Some(q.sent? + AGAIN)).min();
        let asked = self.queues.values().flat_map(|q| &q.list).map(|a| a.since);
        let late = asked.chain(self.reports.iter().map(|report| report.since)).min();
        Time::earliest(again, late.map(|since| since + patience))
    }
}

impl Sessions {
    /// Returns the identity under which the host of a session registers; `None` for an NBD client,
    /// which can't register.
    fn identity(&self, link: LinkId) -> Option<Identity> {
        if let Some(host) = self.nvme.host_id(link) {
            return Some(Identity::Nvme { host });
        }
        let nexus = self.iscsi.nexus(link)?;
        let (name, isid) = (nexus.initiator.clone(), nexus.isid);
        Some(Identity::Scsi { name, isid, port: ident::port(self.number.unwrap_or(0)) })
    }

    /// Returns what the host of a session may do with its volume.
    pub(super) fn access(&self, link: LinkId, table: &Table) -> Access {
        self.identity(link).map_or(table.access_of_strangers(), |who| table.access(&who))
    }

    /// Calls [`Reservations`]. `mdm`: the link to the MDM, if there is one.
    fn reservations<R>(
        &mut self,
        (now, mdm): (Time, Option<PeerLink>),
        out: &mut Effects,
        call: impl FnOnce(&mut Reservations, &mut Post<'_>) -> R,
    ) -> R {
        call(&mut self.reserve, &mut Post { now, mdm, out })
    }

    /// Tells a session that this gateway serves its host.
    pub(super) fn answer_activated(&mut self, link: LinkId, tag: u64) {
        self.reserve.answers.push_back((link, tag, Answer::Activated));
    }

    /// Tells a session that there was no answer in time.
    pub(super) fn answer_nobody(&mut self, link: LinkId, tag: u64) {
        self.reserve.answers.push_back((link, tag, Answer::Nobody));
    }

    /// Asks the MDM a host's question. Returns true if the answer needs a fresh map.
    pub(super) fn reserve_ask(
        &mut self,
        at: (Time, Option<PeerLink>),
        (link, tag, volume): (LinkId, u64, VolumeId),
        question: Question,
        out: &mut Effects,
    ) -> bool {
        let since = at.0;
        match (question, self.identity(link)) {
            (Question::Report, _) => {
                self.reserve.reports.push(Reporting { link, tag, volume, since });
                return true;
            }
            (Question::Reserve(change), Some(who)) => {
                let asking = Asking { link, tag, who, change, since };
                self.reservations(at, out, |all, post| all.ask(volume, asking, post));
            }
            (Question::Reserve(_), None) => self.answer_nobody(link, tag),
            (Question::Activate, _) => self.seats_activate((link, tag, volume), since),
        }
        false
    }

    /// Takes the MDM's answer to a change. `here`: the version of this client's map. Returns the
    /// version that the answer has to wait for.
    pub(in crate::sdc) fn reserve_answer(
        &mut self,
        at: (Time, Option<PeerLink>),
        m: &Reserved,
        here: MapVersion,
        out: &mut Effects,
    ) -> Option<MapVersion> {
        let needed = self.reserve.answered(m)?;
        self.reservations(at, out, |all, post| all.pass_on(here, post));
        Some(needed)
    }

    /// Sends all changes under way on a new link to an MDM.
    pub(in crate::sdc) fn reserve_again(
        &mut self,
        at: (Time, Option<PeerLink>),
        out: &mut Effects,
    ) {
        self.reservations(at, out, |all, post| all.send_again(Duration::ZERO, post));
    }

    /// Does the work that is due.
    pub(super) fn reserve_tick(
        &mut self,
        at: (Time, Option<PeerLink>),
        patience: Duration,
        out: &mut Effects,
    ) {
        let late = |_: LinkId, _: u64, since: Time| at.0.since(since) >= patience;
        let late = self.reservations(at, out, |all, post| {
            let late = all.remove(late, post);
            all.send_again(AGAIN, post);
            late
        });
        let late = late.into_iter().map(|(link, tag)| (link, tag, Answer::Nobody));
        self.reserve.answers.extend(late);
    }

    /// Forgets the questions of one command, or of all commands of a host.
    pub(super) fn reserve_forget(
        &mut self,
        at: (Time, Option<PeerLink>),
        (link, tag): (LinkId, Option<u64>),
        out: &mut Effects,
    ) {
        let same = |of: u64| tag.is_none_or(|tag| tag as u32 == of as u32);
        let over = |of: LinkId, other: u64, _: Time| of == link && same(other);
        self.seats_forget(|of, other| over(of, other, at.0));
        self.reservations(at, out, |all, post| all.remove(over, post));
    }

    /// Reports reservations from a fresh map.
    pub(in crate::sdc) fn reserve_refreshed(&mut self, map: &MapView) {
        for Reporting { link, tag, volume, .. } in core::mem::take(&mut self.reserve.reports) {
            let host = self.host(link);
            let volume = map.volumes.get(&volume).filter(|v| map.host_grant(v, host).is_some());
            let table = volume.map(|volume| volume.reservations.clone());
            let answer = table.map_or(Answer::Nobody, Answer::Table);
            self.reserve.answers.push_back((link, tag, answer));
        }
    }

    /// Returns true if a reservation forbids this request of a program.
    #[inline]
    pub(in crate::sdc) fn reserve_forbids(
        &self,
        map: &MapView,
        volume: VolumeId,
        kind: BlockKind,
    ) -> bool {
        self.reserve.any && {
            let table = map.volumes.get(&volume).map(|v| &v.reservations);
            table.is_some_and(|table| !Access::of(kind).is_within(table.access_of_strangers()))
        }
    }

    /// Returns the sessions of a volume and those of NVMe hosts, in the order of their links.
    fn links_of(&self, volume: VolumeId) -> Vec<LinkId> {
        let here = self.permissions.iter().filter(|(_, (of, _))| *of == volume);
        let mut links: Vec<LinkId> = here.map(|(link, _)| *link).collect();
        links.extend(self.nvme_links());
        links.sort_unstable();
        links
    }
}

impl Sdc {
    /// Applies the reservations of a new map: sets the access of sessions, and ends requests that
    /// are no longer allowed. Called before the client core gets the map.
    pub(in crate::sdc) fn reserve_fence(
        &mut self,
        now: Time,
        changed: &[Changed],
        out: &mut Effects,
    ) {
        for Changed { volume: id, before, generation } in changed {
            let Some(volume) = self.map.volumes.get(id) else { continue };
            let after = volume.reservations.clone();
            self.targets.reserve.any |= after.reserved.is_some();
            let asker = self.targets.reserve.asker(*id);
            let mut lost: BTreeMap<LinkId, Access> = BTreeMap::new();
            for link in self.targets.links_of(*id) {
                let (old, new) =
                    (self.targets.access(link, before), self.targets.access(link, &after));
                let who = self.targets.identity(link);
                let since = who.as_ref().map_or(after.since, |who| after.since(who));
                let left = goes_on(new, since, *generation);
                let registered = |table: &Table| who.as_ref().and_then(|w| table.find(w)).is_some();
                let notice = if left != new && registered(before) && registered(&after) {
                    // It is registered again, or may write again: what it had begun has ended.
                    Some(Notice::RegistrationsPreempted)
                } else {
                    let told = who.filter(|who| asker.as_ref() != Some(who));
                    told.and_then(|who| reserve::notice(before, &after, &who))
                };
                self.target_session(now, link, out, |session, _, out, actions| match session {
                    Session::Nbd(nbd) => nbd.session.set_access(new),
                    Session::Iscsi(iscsi) => {
                        iscsi.session.reserved(left, notice, out.pool(), actions);
                        if left != new {
                            iscsi.session.reserved(new, None, out.pool(), actions);
                        }
                    }
                    Session::Nvme(nvme) => {
                        let pool = out.pool();
                        nvme.session.reserved(*id, left, pool, actions);
                        if let Some(notice) = notice {
                            nvme.session.notify(*id, notice, pool, actions);
                        }
                    }
                });
                if !old.is_within(left) {
                    lost.insert(link, left);
                }
            }
            let strangers = goes_on(after.access_of_strangers(), after.since, *generation);
            end_requests(self, now, *id, &lost, strangers, out);
        }
        let (version, at) = (self.map.version, (now, self.mdm.link()));
        self.targets.reservations(at, out, |all, post| all.pass_on(version, post));
    }
}

/// Gives sessions the answers to their questions.
pub(super) fn give_answers(sdc: &mut Sdc, now: Time, out: &mut Effects) {
    while let Some((link, tag, answer)) = sdc.targets.reserve.answers.pop_front() {
        let asked = match &answer {
            Answer::Changed(result) => Asked::Reserved(*result),
            Answer::Table(table) => Asked::Table(table),
            Answer::Activated => Asked::Activated,
            Answer::Nobody => Asked::Nobody,
        };
        sdc.target_session(now, link, out, |session, _, out, actions| match session {
            Session::Iscsi(iscsi) => iscsi.session.asked(tag, asked, out.pool(), actions),
            Session::Nvme(nvme) => nvme.session.asked(tag, asked, out.pool(), actions),
            Session::Nbd(_) => {} // it asks nothing
        });
    }
}

/// Returns the access of the requests that a host has made up to this generation. `new`: its access
/// now. `since`: the generation at which it lost the right to write last.
fn goes_on(new: Access, since: u32, generation: u32) -> Access {
    let broken = since > generation && !mutant::on(Mutant::RenewPreempted);
    Access { write: new.write && !broken, ..new }
}

/// Ends the requests to a volume that hosts have lost the access for, and those of programs.
fn end_requests(
    sdc: &mut Sdc,
    now: Time,
    id: VolumeId,
    lost: &BTreeMap<LinkId, Access>,
    strangers: Access,
    out: &mut Effects,
) {
    if mutant::on(Mutant::RenewReserved) {
        return;
    }
    let over = |link: &LinkId, kind: BlockKind| {
        lost.get(link).is_some_and(|left| !Access::of(kind).is_within(*left))
    };
    let waits = |w: &Waiting| w.request.volume == id && over(&w.link, w.request.kind);
    sdc.targets_end(now, waits, BlockError::Reserved, out);
    let ends = |origin: Origin| match origin {
        Origin::Program { arrival, .. } => {
            arrival.volume == id && !Access::of(arrival.kind).is_within(strangers)
        }
        Origin::Target { link, arrival, .. } => arrival.volume == id && over(&link, arrival.kind),
    };
    sdc.client(now, out, |client, turn| client.end(ends, BlockError::Reserved, turn));
}

#[cfg(test)]
#[test]
fn an_answer_without_a_number_is_to_no_change() {
    let mut all = Reservations::default();
    all.queues.insert(VolumeId(1), Queue::default());
    assert_eq!(all.answered(&Reserved { volume: 1, ..Reserved::default() }), None);
}

//! Where operations are sent, and when they are sent again.
//!
//! Code that frees an operation makes it `Loose` and puts it into a list. `work` then finds a place
//! for each operation in the list. So nothing here recurses, however many operations one lost link
//! or one new map frees.

use super::device::Device;
use super::op::{self, Place};
use super::request::WINDOW;
use super::{Action, Client, Hangup, Leader, Op, Topology, Turn};
use base::mutant::{self, Mutant};
use base::{DeviceId, MapVersion, Time};
use seam::{BlockError, BlockKind, Buf, ClientWrite};
use wire::message::Request;

impl<T: Copy> Client<T> {
    /// Starts as many operations of the request as may be in flight, or answers it.
    pub(super) fn proceed<M: Topology>(&mut self, key: u64, turn: &mut Turn<'_, M, T>) {
        loop {
            let extra = self.ops.len().saturating_sub(self.requests.len());
            let Some(request) = self.requests.get_mut(key) else { return };
            if request.is_over() {
                return self.answer(key, turn);
            }
            let crowded = request.live >= WINDOW || extra >= self.extra;
            let all = request.next == request.request.len || request.error.is_some();
            if all || (crowded && request.live > 0) {
                return;
            }
            let piece = request.piece();
            let Some(group) = turn.map.group_of(request.unit_key(piece)) else {
                request.error = Some(BlockError::NoSuchVolume);
                continue;
            };
            let kind = request.request.kind;
            let mut op = Op::new(kind, key, turn.now);
            (op.group, op.offset) = (group, request.next);
            (op.unit, op.at, op.len) = (piece.unit, piece.at, piece.len);
            op.cost = match kind {
                BlockKind::Read | BlockKind::Write => piece.len,
                BlockKind::CompareWrite => 2 * piece.len,
                BlockKind::Zero { .. } | BlockKind::Extents | BlockKind::Flush => 0,
            };
            request.next += piece.len;
            request.live += 1;
            self.ops.insert(op);
            self.look_later(turn.now);
        }
    }

    /// Schedules a `sweep`.
    pub(super) fn look_later(&mut self, now: Time) {
        if self.sweep_at.is_none() {
            self.sweep_at = Some(now + self.stuck_after);
        }
    }

    fn answer<M>(&mut self, key: u64, turn: &mut Turn<'_, M, T>) {
        let Some(request) = self.requests.remove(key) else { return };
        if request.request.kind.brings_data() {
            self.held.ends();
        }
        if !request.answered {
            let (origin, result) = request.result();
            turn.out.push(Action::Done { origin, result });
        }
    }

    /// Ends an operation, and also the request if this was its last one.
    pub(super) fn finish<M: Topology>(
        &mut self,
        key: u64,
        result: Result<Buf, BlockError>,
        turn: &mut Turn<'_, M, T>,
    ) {
        self.free(key);
        let Some(op) = self.remove(key) else { return };
        let Some(request) = self.requests.get_mut(op.request) else { return };
        assert!(request.live > 0, "a request counts its operations");
        request.live -= 1;
        match result {
            Ok(body) => request.gather(&op, body, turn.pool),
            Err(error) if request.error.is_none() => {
                request.error = Some(error);
                if request.live > 0 {
                    self.drop_unsent(|key| key == op.request);
                }
            }
            Err(_) => {}
        }
        self.proceed(op.request, turn);
    }

    fn remove(&mut self, key: u64) -> Option<Op> {
        let op = self.ops.remove(key)?;
        self.held.forget(&op);
        Some(op)
    }

    /// Drops the operations of requests that are over, except those that a device works on.
    pub(super) fn drop_unsent(&mut self, over: impl Fn(u64) -> bool) {
        let unsent = |op: &Op| !matches!(op.place, Place::Sent(_)) && over(op.request);
        for key in self.ops.keys(unsent) {
            let Some(op) = self.remove(key) else { continue };
            if let Some(request) = self.requests.get_mut(op.request) {
                assert!(request.live > 0, "a request counts its operations");
                request.live -= 1;
            }
        }
    }

    /// Takes an operation from its place, and returns its credit.
    pub(super) fn free(&mut self, key: u64) {
        let Some(op) = self.ops.get_mut(key) else { return };
        if let Place::Sent(device) = core::mem::replace(&mut op.place, Place::Loose) {
            self.devices.get_mut(device).expect("it was sent there").give(op.cost);
        }
    }

    /// Finds a place for every operation that is `Loose`.
    pub(super) fn work<M: Topology>(&mut self, turn: &mut Turn<'_, M, T>) {
        while let Some(key) = self.ops.next_loose() {
            self.route(key, turn);
        }
    }

    fn route<M: Topology>(&mut self, key: u64, turn: &mut Turn<'_, M, T>) {
        let Some(op) = self.ops.get(key) else { return };
        if op.place != Place::Loose {
            return;
        }
        if let Some(error) = self.requests.get(op.request).and_then(|r| r.error) {
            return self.finish(key, Err(error), turn);
        }
        let (device, epoch) = match self.routes.leader(op.group, turn.map) {
            Leader::At(device, epoch) => (device, epoch),
            Leader::Lost => return self.lose(key, turn),
            Leader::Nobody => {
                self.need_map(MapVersion(turn.map.version().0 + 1), turn);
                return self.ops.wait(key, Time::NEVER);
            }
        };
        if let Some((at, session)) = op.ghost
            && at == device
        {
            self.end_ghost(at, session, turn);
        }
        let Some(op) = self.ops.get_mut(key) else { return };
        (op.place, op.epoch, op.doubt) = (Place::Queued(device), epoch, None);
        let seq = op.seq;
        let there = self.devices.get_or_insert_with(device, Device::default);
        there.enqueue(key, seq, &self.ops);
        if there.wants_dial() {
            turn.out.push(Action::Dial { device });
        }
        self.pump(device, turn);
    }

    /// Ends an operation on a group whose data is lost.
    #[cold]
    fn lose<M: Topology>(&mut self, key: u64, turn: &mut Turn<'_, M, T>) {
        self.met_loss = true;
        self.finish(key, Err(BlockError::Lost), turn);
    }

    /// Sends operations that wait for the device, as far as its credit allows.
    pub(super) fn pump<M: Topology>(&mut self, device: DeviceId, turn: &mut Turn<'_, M, T>) {
        loop {
            let there = self.devices.get_mut(device);
            let Some(key) = there.and_then(|d| d.next(device, &self.ops)) else { return };
            self.send(key, device, turn);
        }
    }

    fn send<M: Topology>(&mut self, key: u64, device: DeviceId, turn: &mut Turn<'_, M, T>) {
        let (sdc, incarnation) = self.me.expect("a link needs an identity");
        let op = self.ops.get_mut(key).expect("it was queued");
        let request =
            self.requests.get_mut(op.request).expect("operations end before their request");
        let first = op.seq == 0;
        if first {
            op.seq = self.numbers.assign();
        }
        op.place = Place::Sent(device);
        let (seq, writes, group, epoch) = (op.seq, op.writes, op.group, op.epoch);
        let (range, generation) = (op.range(&request.request), request.generation);
        let kind = request.request.kind;
        let body = match kind {
            BlockKind::Write => {
                request.request.body.slice(op.offset as usize..(op.offset + op.len) as usize)
            }
            BlockKind::CompareWrite => request.request.body.clone(),
            _ => Buf::EMPTY,
        };
        let last = op.offset + op.len == request.request.len && !request.answered;
        if mutant::on(Mutant::AckBeforeReply) && writes && first && last {
            turn.out.push(request.answer_early(Ok(Buf::EMPTY)));
        }
        self.retried += u32::from(!first);
        let new = (first && (writes || mutant::on(Mutant::ReadsHoldFloor))).then_some(key);
        let floor = self.numbers.floor(group, seq, new, &self.ops);
        let client = ClientWrite { sdc, incarnation, seq, floor };
        let map = turn.map.version();
        let request = Request { op: key, group, epoch, range, client, map, generation };
        let io = op::io(kind, request, !first);
        turn.out.push(Action::Send { device, io, body });
    }

    pub(super) fn need_map<M: Topology>(&self, version: MapVersion, turn: &mut Turn<'_, M, T>) {
        if version > turn.map.version() {
            turn.out.push(Action::NeedMap { version });
        }
    }

    /// Ends the device's session: frees the operations that were sent in it, then those that waited
    /// for it.
    pub(super) fn session_over<M: Topology>(
        &mut self,
        device: DeviceId,
        turn: &mut Turn<'_, M, T>,
    ) {
        let Some(there) = self.devices.get_mut(device) else { return };
        let queue = there.link_down();
        let mut keys = self.ops.keys(|op| op.place == Place::Sent(device));
        let waits =
            |key: &u64| self.ops.get(*key).is_some_and(|op| op.place == Place::Queued(device));
        keys.extend(queue.into_iter().filter(waits));
        for key in &keys {
            self.set_free(*key);
        }
        if !keys.is_empty() {
            // If the device is dead, the next map shows it.
            self.need_map(MapVersion(turn.map.version().0 + 1), turn);
        }
    }

    fn set_free(&mut self, key: u64) {
        self.free(key);
        self.ops.set_loose(key);
    }

    /// Ends the device's session from this side.
    pub(super) fn hang_up<M: Topology>(
        &mut self,
        device: DeviceId,
        why: Hangup,
        turn: &mut Turn<'_, M, T>,
    ) {
        turn.out.push(Action::Hangup { device, why });
        self.session_over(device, turn);
    }

    /// Ends the session in which a write that was given up may still be executed, if it still runs.
    fn end_ghost<M: Topology>(
        &mut self,
        device: DeviceId,
        session: u64,
        turn: &mut Turn<'_, M, T>,
    ) {
        if self.devices.get(device).is_some_and(|d| d.is_in(session)) {
            self.hang_up(device, Hangup::Unanswered, turn);
        }
    }

    /// Checks an operation against a new map.
    pub(super) fn review<M: Topology>(&mut self, key: u64, turn: &mut Turn<'_, M, T>) {
        let Some(op) = self.ops.get(key) else { return };
        let Some(request) = self.requests.get(op.request) else { return };
        // A request under an ended permission is not sent under a later one (R8). After a recovery
        // of the MDMs, a permission that goes on may have a lower generation than the lost ones
        // told. (One that begins after the recovery has a higher one than these.)
        let usable = turn.map.volume(request.request.volume);
        let blind = mutant::on(Mutant::RenewEnded);
        let usable = usable.filter(|v| v.since <= request.generation || blind);
        let Some(usable) = usable else {
            return self.finish(key, Err(BlockError::NoSuchVolume), turn);
        };
        // Its permission goes on, perhaps under a higher generation: servers have refused what they
        // had not begun. It keeps its number, so nothing is done twice.
        self.requests.get_mut(op.request).expect("just seen").generation = usable.generation;
        let leader = self.routes.leader(op.group, turn.map);
        let Place::Sent(device) = op.place else { return self.set_free(key) };
        let op = self.ops.get_mut(key).expect("just seen");
        match leader {
            Leader::Lost => self.lose(key, turn),
            Leader::At(at, epoch) if at == device => {
                if Some(epoch.0) == op.epoch.0.checked_add(1) {
                    op.epoch = epoch; // the device stayed the primary, and continues
                } else if epoch > op.epoch && op.doubt.is_none() {
                    op.doubt = Some(turn.now);
                }
            }
            Leader::At(..) => self.abandon(key, device, turn),
            // The primary will answer it if it comes back.
            Leader::Nobody => self.need_map(MapVersion(turn.map.version().0 + 1), turn),
        }
    }

    /// Gives up an operation that was sent to a device that is not the primary of its group any
    /// more.
    fn abandon<M: Topology>(&mut self, key: u64, device: DeviceId, turn: &mut Turn<'_, M, T>) {
        let session = self.devices.get(device).expect("it was sent there").session();
        let op = self.ops.get_mut(key).expect("just seen");
        let older = if op.writes { op.ghost.replace((device, session)) } else { None };
        self.set_free(key);
        if let Some((at, of)) = older
            && (at, of) != (device, session)
        {
            self.end_ghost(at, of, turn);
        }
    }

    /// Looks now and then for operations that are stuck, doubtful, late or orphaned.
    pub(super) fn sweep<M: Topology>(&mut self, turn: &mut Turn<'_, M, T>) {
        let old = |since: Time| turn.now.since(since) >= self.stuck_after;
        self.stuck = self.ops.iter().any(|(_, op)| old(op.since));
        for key in self.ops.keys(|op| op.doubt.is_some_and(old)) {
            let Some(op) = self.ops.get(key) else { continue };
            match op.place {
                Place::Sent(_) if !op.writes => self.set_free(key),
                Place::Sent(device) => self.hang_up(device, Hangup::Unanswered, turn),
                _ => {}
            }
        }
        self.end_late(turn);
        self.end_orphans(turn);
        let timed = || self.requests.iter().any(|(_, request)| request.until < Time::NEVER);
        let more = !self.ops.is_empty() || timed();
        self.sweep_at = more.then(|| turn.now + self.stuck_after / 2);
    }
}

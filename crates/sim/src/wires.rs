//! Life and death of connections in the world. The fault model is in [`crate::net`].

use crate::inbox::{Item, ProcState, Stranger};
use crate::net::{Cargo, Conn, End, EndState, Lane, Piece};
use crate::weather::hit;
use crate::world::{Dial, ProcId, What, World};
use base::{LinkId, Time};
use seam::{Buf, DialError, DialId, DownReason, Effects, FrameError, Head, Note, Port, Strangers};
use std::net::SocketAddr;
use std::time::Duration;
use wire::message::{CompareWrite, Io, Replicate, SyncStart, Write};
use wire::{Header, Kind};

/// Time-out of a dial.
const DIAL_TIME: Duration = Duration::from_secs(2);
/// Bytes that the kernels on both sides hold beyond the limit of the sender's own queue.
const KERNEL: u64 = 1 << 20;

impl World {
    /// Blocks or opens the path from one host to another, in this direction only.
    pub fn set_blocked(&mut self, from: ProcId, to: ProcId, blocked: bool) {
        if self.paths.is_blocked(from, to) == blocked {
            return;
        }
        self.paths.set_blocked(from, to, blocked);
        let (a, b) = (self.procs[from.0].name.clone(), self.procs[to.0].name.clone());
        self.trace
            .line(self.now, &a, || format!("{} to {b}", if blocked { "blocked" } else { "open" }));
        if !blocked {
            self.unstall_path(from, to);
        }
    }

    /// Holds back everything that travels from one host to another until this time.
    pub fn clog(&mut self, from: ProcId, to: ProcId, until: Time) {
        self.paths.clog(from, to, until);
    }

    /// Opens all paths, and ends delays and refusals.
    pub fn heal(&mut self) {
        let n = self.procs.len();
        for process in &mut self.procs {
            (process.slow, process.broken, process.refuses_until) = Default::default();
        }
        for from in 0..n {
            for to in 0..n {
                self.set_blocked(ProcId(from), ProcId(to), false);
            }
        }
        self.paths.unclog_all();
        self.let_go();
    }

    /// Lets everything arrive that was held back by a path that is clear now.
    fn let_go(&mut self) {
        for index in 0..self.conns.len() {
            let Some(conn) = &self.conns[index] else { continue };
            let held = |l: &Lane| l.armed && l.is_late(self.now);
            for lane in (0..2).filter(|lane| held(&conn.lanes[*lane])) {
                self.queue.push(self.now, What::Arrive { conn: index as u32, lane: lane as u8 });
            }
        }
    }

    /// Delays each frame from and to this process, and each operation of its disks, by
    /// this much from now on.
    pub fn slow_down(&mut self, id: ProcId, net: Duration, disk: Duration) {
        self.procs[id.0].slow = (net, disk);
    }

    /// Lets each operation of this process's disks fail from now on.
    pub fn break_disks(&mut self, id: ProcId) {
        self.procs[id.0].broken = true;
    }

    /// Returns how many frames with writes reached this process, from clients and from primaries.
    pub fn writes_asked(&self, id: ProcId) -> u32 {
        self.procs[id.0].writes_asked
    }

    /// Returns how many frames carried or announced resync copies to this process.
    pub fn copies_asked(&self, id: ProcId) -> u32 {
        self.procs[id.0].copies_asked
    }

    /// Returns true when the present process has got a registration of the other present process. A
    /// server reports to an MDM that recovers before it registers.
    pub fn has_registered(&self, from: ProcId, at: ProcId) -> bool {
        self.procs[at.0].registered.contains(&(from, self.life(from), self.life(at)))
    }

    /// Returns true when such a frame reached this process in any of its incarnations.
    pub fn took_copies(&self, id: ProcId) -> bool {
        self.copies_asked(id) > 0
    }

    /// Returns true when all paths are open and not clogged, and between these processes nothing is
    /// late, no connection is half gone, and none is about to break.
    pub fn flows(&self, among: &[ProcId]) -> bool {
        let of_these = |c: &&Conn| !c.forged && c.ends.iter().all(|e| among.contains(&e.proc));
        let fine = |c: &Conn| {
            c.ends.iter().all(|e| e.state != EndState::Gone)
                && c.lanes.iter().all(|l| !l.is_late(self.now) && !l.is_ending())
        };
        self.paths.are_clear(self.now)
            && self.conns.iter().flatten().map(|c| &**c).filter(of_these).all(fine)
    }

    /// Lets the host of this process refuse dials until this time, as a firewall does. Existing
    /// connections stay.
    pub fn refuse_dials(&mut self, id: ProcId, until: Time) {
        self.procs[id.0].refuses_until = until;
    }

    /// Returns true if the host refuses dials for at least this long.
    pub fn refuses_for(&self, id: ProcId, time: Duration) -> bool {
        self.procs[id.0].refuses_until >= self.now + time
    }

    /// Breaks every connection between two hosts.
    pub fn reset(&mut self, a: ProcId, b: ProcId) {
        for index in 0..self.conns.len() {
            let hit = self.conns[index].as_ref().is_some_and(|c| {
                let ends = [c.ends[0].proc, c.ends[1].proc];
                ends == [a, b] || ends == [b, a]
            });
            if hit {
                self.break_conn(index as u32);
            }
        }
    }

    pub(crate) fn travel(&mut self) -> Time {
        self.now + self.weather.net(&mut self.net_prng)
    }

    // ---- dialling

    pub(crate) fn dial(&mut self, from: ProcId, dial: DialId, to: SocketAddr, port: Port) {
        let (address, to) = (to, self.addresses.get(&to).copied());
        let life = self.procs[from.0].life;
        let at = self.travel();
        self.queue.push(
            at,
            What::Syn(Box::new(Dial { from, life, dial, to, address, port, since: self.now })),
        );
    }

    pub(crate) fn syn(&mut self, dial: Box<Dial>) {
        let Some(to) = dial.to else { return self.fail_dial(*dial, DialError::Unreachable) };
        if self.procs[dial.from.0].life != dial.life {
            return;
        }
        if self.paths.is_blocked(dial.from, to) || self.procs[to.0].host_down {
            // TCP tries once more after one second.
            if self.now < dial.since + DIAL_TIME / 2 {
                let at = (dial.since + Duration::from_millis(1001)).max(self.now);
                self.queue.push(at, What::Syn(dial));
            } else {
                self.fail_dial(*dial, DialError::Unreachable);
            }
            return;
        }
        let at = self.travel();
        let host = &self.procs[to.0];
        if host.state == ProcState::Dead || self.now < host.refuses_until {
            self.queue.push(at, What::Refused(dial));
            return;
        }
        let index = self.conns.len() as u32;
        let life = self.procs[to.0].life;
        let ends = [End::new(dial.from, dial.life, Some(dial.dial)), End::new(to, life, None)];
        let mut conn = Conn {
            port: dial.port,
            ends,
            lanes: [Lane::default(), Lane::default()],
            forged: false,
            at: Some(dial.address),
        };
        conn.lanes[1].push(at, Cargo::Up);
        self.conns.push(Some(Box::new(conn)));
        self.arm(index, 1);
        self.queue.push(dial.since + DIAL_TIME, What::DialTimeout { conn: index });
    }

    pub(crate) fn refused(&mut self, dial: Dial) {
        let to = dial.to.expect("a host refused");
        if self.paths.is_blocked(to, dial.from) {
            return self.fail_dial(dial, DialError::Unreachable);
        }
        if self.procs[dial.from.0].life == dial.life {
            self.deliver(dial.from, Item::DialFailed { dial: dial.dial, why: DialError::Refused });
        }
    }

    fn fail_dial(&mut self, dial: Dial, why: DialError) {
        let at = (dial.since + DIAL_TIME).max(self.now);
        self.queue
            .push(at, What::DialFailed { proc: dial.from, life: dial.life, dial: dial.dial, why });
    }

    /// Fails a dial that reached its host, if no answer came back within two seconds.
    pub(crate) fn dial_timeout(&mut self, index: u32) {
        let Some(conn) = &mut self.conns[index as usize] else { return };
        let end = &mut conn.ends[0];
        if end.state != EndState::Waiting {
            return;
        }
        end.state = EndState::Gone;
        let (proc, life, dial) = (end.proc, end.life, end.dial.expect("end 0 dialled"));
        if self.procs[proc.0].life == life {
            self.deliver(proc, Item::DialFailed { dial, why: DialError::Unreachable });
        }
        self.conns[index as usize] = None; // the other side never learned of it
    }

    // ---- what travels

    pub(crate) fn arm(&mut self, index: u32, lane: usize) {
        let Some(conn) = &mut self.conns[index as usize] else { return };
        let l = &mut conn.lanes[lane];
        if let (false, Some(front)) = (l.armed, l.pieces.front()) {
            l.armed = true;
            let at = front.at.max(self.now);
            self.queue.push(at, What::Arrive { conn: index, lane: lane as u8 });
        }
    }

    pub(crate) fn push_cargo(&mut self, index: u32, lane: usize, at: Time, cargo: Cargo) {
        if let Some(conn) = &mut self.conns[index as usize] {
            conn.lanes[lane].push(at, cargo);
            self.arm(index, lane);
        }
    }

    /// Returns the connection and side of a link, while its end is up.
    fn link(&self, id: ProcId, link: LinkId) -> Option<(u32, usize)> {
        let &(index, side) = self.procs[id.0].links.get(&link)?;
        let end = &self.conns[index as usize].as_ref()?.ends[side as usize];
        (end.state == EndState::Up(link)).then_some((index, side as usize))
    }

    /// Returns the id that the process at the other end uses for this link, while both ends are up.
    pub(crate) fn far_end(&self, id: ProcId, link: LinkId) -> Option<LinkId> {
        let (index, side) = self.link(id, link)?;
        match self.conns[index as usize].as_ref()?.ends[1 - side].state {
            EndState::Up(link) => Some(link),
            EndState::Waiting | EndState::Gone => None,
        }
    }

    /// Copies what judges need from a frame.
    fn look_at(&mut self, from: ProcId, head: &Head, body: &Buf) {
        if head.as_slice().len() != wire::header::HEADER {
            return;
        }
        let header = wire::parse(head.as_slice());
        match header.kind() {
            Some(Kind::MapPage) if self.tap.contains(&from) => {
                self.tapped.push((*head, body.clone()));
            }
            Some(Kind::Write) => {
                if let Ok(Write { request, .. }) = Write::try_from(header) {
                    self.writes.sent(&request, body);
                }
            }
            Some(Kind::CompareWrite) => {
                if let Ok(CompareWrite { request, .. }) = CompareWrite::try_from(header) {
                    self.writes.sent(&request, &body[body.len() / 2..]);
                }
            }
            _ => {}
        }
    }

    fn note_arrival(&mut self, head: &Head) {
        if let Some(Ok(io)) = header(head).and_then(Io::of)
            && io.body_len() > 0
        {
            let request = io.request();
            self.writes.arrived(request.group, request.client);
        }
    }

    pub(crate) fn send(&mut self, id: ProcId, link: LinkId, head: Head, body: Buf) {
        self.look_at(id, &head, &body);
        let Some((index, side)) = self.link(id, link) else { return };
        let ends = self.conns[index as usize].as_ref().map(|c| [0, 1].map(|i| c.ends[i].proc));
        let longer = |id: ProcId| self.procs[id.0].slow.0;
        let longer: Duration = ends.into_iter().flatten().map(longer).sum();
        let at = self.travel() + longer;
        let bytes = (head.as_slice().len() + body.len()) as u64;
        let [frames, all] = &mut self.sent[id.0];
        (*frames, *all) = (*frames + 1, *all + bytes);
        self.overhear(ends.map_or(id, |ends| ends[1 - side]), &head, &body);
        let port = self.conns[index as usize].as_ref().map(|conn| conn.port);
        let (head, body) = self.damage(port, head, body);
        let conn = self.conns[index as usize].as_mut().expect("the link is up");
        let lane = &mut conn.lanes[side];
        let queued = lane.bytes + bytes;
        if queued > self.procs[id.0].link_queue + KERNEL {
            self.notes.push((id, Note::Stuck { link, queued, peer: None }));
            self.break_conn(index);
            self.end_down(index, side, DownReason::Stuck);
            return;
        }
        lane.bytes += bytes;
        lane.push(at, Cargo::Data { head, body });
        self.arm(index, side);
        if hit(&mut self.net_prng, self.weather.reset_ppm) {
            self.break_conn(index);
        }
    }

    /// Sends a frame that may overtake others: it takes the place of a random whole frame that has
    /// not arrived, or its own.
    pub(crate) fn send_first(&mut self, id: ProcId, link: LinkId, head: Head) {
        self.send(id, link, head, Buf::EMPTY);
        let Some((index, side)) = self.link(id, link) else { return };
        let lane = &mut self.conns[index as usize].as_mut().expect("the link is up").lanes[side];
        let whole =
            |p: &Piece| matches!(&p.cargo, Cargo::Data { head, .. } if !head.as_slice().is_empty());
        // The first piece may be about to arrive.
        let free = lane.pieces.iter().skip(1).rev().skip(1).take_while(|p| whole(p)).count() as u64;
        let ahead = self.net_prng.below(free + 1) as usize;
        if ahead > 0 && lane.pieces.back().is_some_and(whole) {
            let last = lane.pieces.len() - 1;
            let cargo = lane.pieces.pop_back().expect("just looked at").cargo;
            let at = lane.pieces[last - ahead].at;
            lane.pieces.insert(last - ahead, Piece { at, cargo });
        }
    }

    /// Flips a bit now and then, but only one that a checksum covers.
    fn damage(&mut self, port: Option<Port>, head: Head, body: Buf) -> (Head, Buf) {
        if !hit(&mut self.net_prng, self.weather.flip_ppm)
            || port != Some(Port::Ours)
            || head.as_slice().len() != wire::header::HEADER
        {
            return (head, body);
        }
        let flip = |bytes: &mut [u8], bit: u64| bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        let guarded = wire::parse(head.as_slice()).is_summed();
        if guarded && !body.is_empty() && self.net_prng.chance(0.8) {
            let mut damaged = seam::BufPool::new(0).copy(&body);
            flip(damaged.as_mut(), self.net_prng.below(body.len() as u64 * 8));
            return (head, damaged);
        }
        let mut bytes = head.as_slice().to_vec();
        flip(&mut bytes, self.net_prng.below(head.as_slice().len() as u64 * 8));
        (Head::new(&bytes), body)
    }

    pub(crate) fn arrive(&mut self, index: u32, lane: usize) {
        let Some(conn) = &mut self.conns[index as usize] else { return };
        conn.lanes[lane].armed = false;
        let (from, to) = (conn.ends[lane].proc, conn.ends[1 - lane].proc);
        let Some(front) = conn.lanes[lane].pieces.front() else { return };
        if front.at > self.now {
            return self.arm(index, lane);
        }
        let receiver = &conn.ends[1 - lane];
        let (gone, silent, reading) =
            (receiver.state == EndState::Gone, receiver.silent, receiver.reading);
        if gone && !silent {
            conn.lanes[lane].pieces.clear();
            return;
        }
        if self.paths.is_blocked(from, to) || gone {
            return self.stall(index, lane);
        }
        let open_at = self.paths.clogged_until(from, to);
        let conn = self.conns[index as usize].as_mut().expect("still there");
        if open_at > self.now {
            conn.lanes[lane].armed = true;
            return self.queue.push(open_at, What::Arrive { conn: index, lane: lane as u8 });
        }
        if !reading {
            return self.arrive_unread(index, lane);
        }
        let piece = conn.lanes[lane].pieces.pop_front().expect("looked at above");
        match piece.cargo {
            Cargo::Up => self.up(index, 1 - lane),
            Cargo::Data { head, body } => self.data(index, lane, head, body),
            Cargo::Down(why) => self.end_down(index, 1 - lane, why),
        }
        self.arm(index, lane);
    }

    /// Keeps arriving pieces on the lane until the node reads again. Only the end of the connection
    /// is reported at once.
    fn arrive_unread(&mut self, index: u32, lane: usize) {
        let pieces = &mut self.conns[index as usize].as_mut().expect("still there").lanes[lane];
        let Some(&Piece { at, cargo: Cargo::Down(why) }) = pieces.pieces.back() else { return };
        if at > self.now {
            pieces.armed = true;
            return self.queue.push(at, What::Arrive { conn: index, lane: lane as u8 });
        }
        pieces.pieces.clear();
        self.end_down(index, 1 - lane, why);
    }

    fn up(&mut self, index: u32, side: usize) {
        let conn = self.conns[index as usize].as_mut().expect("still there");
        let at = conn.at.filter(|_| side == 1);
        // Each connection of a process comes from a port of its own.
        let host = conn.ends[0].proc.0 as u8;
        let from = at.map(|_| SocketAddr::from(([10, 9, 9, host], index as u16)));
        let (end, port) = (&mut conn.ends[side], conn.port);
        let proc = &mut self.procs[end.proc.0];
        if proc.life != end.life {
            return self.end_down(index, side, DownReason::Closed);
        }
        let link = LinkId(proc.next_link);
        proc.next_link += 1;
        proc.links.insert(link, (index, side as u8));
        end.state = EndState::Up(link);
        end.framer = Some(proc.actor.as_mut().expect("it runs").framer(port));
        let (id, dial) = (end.proc, end.dial);
        if side == 0 {
            let at = self.travel();
            self.push_cargo(index, 0, at, Cargo::Up);
        }
        if side == 1
            && let Some(bounds) = self.procs[id.0].actor.as_ref().expect("it runs").strangers(port)
        {
            self.take_stranger(id, link, bounds);
        }
        self.deliver(id, Item::LinkUp { link, port, dial, at, from });
    }

    /// Counts a new incoming link as a stranger's. If there are too many of these,
    /// the oldest is closed.
    fn take_stranger(&mut self, id: ProcId, link: LinkId, bounds: Strangers) {
        let strangers = &mut self.procs[id.0].strangers;
        if strangers.len() >= bounds.most as usize
            && let Some(oldest) = strangers.pop_front()
        {
            self.notes.push((id, Note::Crowded));
            self.close_stranger(id, oldest.link);
        }
        let (life, patience) = (self.procs[id.0].life, bounds.patience);
        let stranger = Stranger { link, body: bounds.body as usize, spoke: false };
        self.procs[id.0].strangers.push_back(stranger);
        let what = What::Hello { proc: id, life, link, patience };
        self.queue.push(self.now + patience, what);
    }

    fn close_stranger(&mut self, id: ProcId, link: LinkId) {
        let Some((index, side)) = self.link(id, link) else { return };
        self.end_down(index, side, DownReason::Stranger);
        let at = self.travel();
        self.push_cargo(index, side, at, Cargo::Down(DownReason::Closed));
    }

    /// Closes a stranger's link, if its time to send a first frame is over.
    pub(crate) fn hello_due(&mut self, id: ProcId, link: LinkId, patience: Duration) {
        let proc = &mut self.procs[id.0];
        let silent = |s: &Stranger| s.link == link && !s.spoke;
        if !proc.strangers.iter().any(silent) {
            return;
        }
        if proc.state == ProcState::Paused {
            // When it resumes, it looks at arrived frames before it looks at the time.
            let what = What::Hello { proc: id, life: proc.life, link, patience };
            return self.queue.push(self.now + patience, what);
        }
        self.notes.push((id, Note::Silent { link }));
        self.close_stranger(id, link);
    }

    fn data(&mut self, index: u32, lane: usize, head: Head, body: Buf) {
        let split = hit(&mut self.net_prng, self.weather.split_ppm);
        let conn = self.conns[index as usize].as_mut().expect("still there");
        let end = &mut conn.ends[1 - lane];
        let EndState::Up(link) = end.state else { return };
        let id = end.proc;
        let from = Some(conn.ends[lane].proc).filter(|_| !conn.forged);
        let end = &mut conn.ends[1 - lane];
        let framer = end.framer.as_deref_mut().expect("an end that is up has a framer");
        let assembler = &mut conn.lanes[lane].assembler;
        let out: &Effects = &self.procs[id.0].out;
        let mut frames = Vec::new();
        let mut result = Ok(());
        if split {
            let mut bytes = [head.as_slice(), &body].concat();
            while !bytes.is_empty() && result.is_ok() {
                let some = self.net_prng.range(1, bytes.len().min(200) as u64) as usize;
                let some = if self.net_prng.chance(0.5) { some } else { bytes.len() };
                let rest = bytes.split_off(some);
                result = assembler.bytes(framer, &bytes, out.pool(), &mut frames);
                bytes = rest;
            }
        } else {
            result = assembler.piece(framer, &head, &body, out.pool(), &mut frames);
        }
        let announced = assembler.announced();
        if let Some(stranger) = self.procs[id.0].strangers.iter_mut().find(|s| s.link == link) {
            let short = |(_, body): &(Head, Buf)| body.len() <= stranger.body;
            let kept = frames.iter().take_while(|f| short(f)).count();
            if kept < frames.len() || announced > stranger.body {
                result = Err(FrameError::TooLong);
            }
            frames.truncate(kept);
            stranger.spoke |= kept > 0;
        }
        if result.is_ok() {
            self.longest_body = self.longest_body.max(announced);
        }
        for (head, body) in frames {
            self.procs[id.0].copies_asked += u32::from(is_copy(&head));
            self.procs[id.0].writes_asked += u32::from(is_write(&head));
            self.note_arrival(&head);
            if let Some(from) = from.filter(|_| is_registration(&head)) {
                let (theirs, ours) = (self.life(from), self.life(id));
                self.procs[id.0].registered.insert((from, theirs, ours));
            }
            let bytes = (head.as_slice().len() + body.len()) as u64;
            self.deliver(
                id,
                Item::Frame { link, head, body, conn: index, lane: lane as u8, bytes },
            );
        }
        if let Err(why) = result {
            let name = self.procs[id.0].name.clone();
            self.trace.line(self.now, &name, || format!("{link} garbage: {why}"));
            // A stranger may use any version: that is no fault between two releases.
            let forged = self.conns[index as usize].as_ref().is_some_and(|conn| conn.forged);
            if !forged || why != FrameError::Version {
                self.notes.push((id, Note::Garbage { link, why }));
            }
            self.end_down(index, 1 - lane, DownReason::Garbage);
            let at = self.travel();
            self.push_cargo(index, 1 - lane, at, Cargo::Down(DownReason::Closed));
        }
    }

    // ---- waiting

    fn stall(&mut self, index: u32, lane: usize) {
        let conn = self.conns[index as usize].as_mut().expect("still there");
        let l = &mut conn.lanes[lane];
        if l.timing || conn.ends[lane].state == EndState::Gone {
            return;
        }
        l.timing = true;
        l.stall += 1;
        let wait = u64::from(self.weather.tcp_ms.max(1));
        let at = self.now + Duration::from_millis(self.net_prng.range(wait, 3 * wait));
        self.queue.push(at, What::Expire { conn: index, lane: lane as u8, stall: l.stall });
    }

    /// Ends the sender's side, when TCP has waited long enough for an acknowledgement.
    pub(crate) fn expire(&mut self, index: u32, lane: usize, stall: u32) {
        let Some(conn) = &mut self.conns[index as usize] else { return };
        let l = &mut conn.lanes[lane];
        if !l.timing || l.stall != stall {
            return;
        }
        l.timing = false;
        l.pieces.clear();
        self.end_down(index, lane, DownReason::Broken);
        let at = self.travel();
        self.push_cargo(index, lane, at, Cargo::Down(DownReason::Broken));
    }

    pub(crate) fn unstall(&mut self, index: u32, lane: usize) {
        if let Some(conn) = &mut self.conns[index as usize] {
            conn.lanes[lane].timing = false;
        }
        self.arm(index, lane);
    }

    /// Lets TCP try again at its next retransmission, as the path is open again.
    fn unstall_path(&mut self, from: ProcId, to: ProcId) {
        for index in 0..self.conns.len() {
            let Some(conn) = &self.conns[index] else { continue };
            for lane in 0..2 {
                if (conn.ends[lane].proc, conn.ends[1 - lane].proc) == (from, to)
                    && !conn.lanes[lane].pieces.is_empty()
                    && !conn.lanes[lane].armed
                {
                    let at = self.now + Duration::from_micros(self.net_prng.range(1, 300_000));
                    self.queue.push(at, What::Unstall { conn: index as u32, lane: lane as u8 });
                }
            }
        }
    }

    pub(crate) fn set_reading(&mut self, id: ProcId, link: LinkId, reading: bool) {
        let Some((index, side)) = self.link(id, link) else { return };
        self.conns[index as usize].as_mut().expect("the link is up").ends[side].reading = reading;
        if reading {
            self.arm(index, 1 - side);
        }
    }

    pub(crate) fn set_mode(&mut self, id: ProcId, link: LinkId, mode: u32) {
        let Some((index, side)) = self.link(id, link) else { return };
        let end = &mut self.conns[index as usize].as_mut().expect("the link is up").ends[side];
        end.framer.as_mut().expect("a link that is up has one").set_mode(mode);
    }

    // ---- ends

    /// Ends one side of a connection. The node learns of it, if it knew the link.
    pub(crate) fn end_down(&mut self, index: u32, side: usize, why: DownReason) {
        let Some(conn) = &mut self.conns[index as usize] else { return };
        let end = &mut conn.ends[side];
        let was = std::mem::replace(&mut end.state, EndState::Gone);
        let (id, life, dial) = (end.proc, end.life, end.dial);
        if self.procs[id.0].life == life {
            if let EndState::Up(link) = was {
                self.procs[id.0].strangers.retain(|s| s.link != link);
            }
            match (was, dial) {
                (EndState::Up(link), _) => self.deliver(id, Item::LinkDown { link, why }),
                // The connection broke before the answer to the dial came.
                (EndState::Waiting, Some(dial)) => {
                    self.deliver(id, Item::DialFailed { dial, why: DialError::Unreachable });
                }
                _ => {}
            }
        }
        self.free(index);
    }

    /// Drops a connection that neither side knows any more.
    fn free(&mut self, index: u32) {
        let over = self.conns[index as usize]
            .as_ref()
            .is_some_and(|c| c.ends.iter().all(|e| e.state == EndState::Gone && !e.silent));
        if over {
            self.conns[index as usize] = None;
        }
    }

    pub(crate) fn close(&mut self, id: ProcId, link: LinkId) {
        let found = self.link(id, link);
        self.procs[id.0].links.remove(&link);
        self.procs[id.0].strangers.retain(|s| s.link != link);
        let Some((index, side)) = found else { return };
        let at = self.travel();
        let conn = self.conns[index as usize].as_mut().expect("the link is up");
        conn.ends[side].state = EndState::Gone;
        conn.lanes[1 - side].pieces.clear();
        self.push_cargo(index, side, at, Cargo::Down(DownReason::Closed));
        self.free(index);
    }

    /// Breaks a connection: both sides still get a part of what was sent, and notice the break at
    /// different times.
    fn break_conn(&mut self, index: u32) {
        for lane in 0..2 {
            let notice = Duration::from_micros(match self.net_prng.below(3) {
                0 => 0,
                1 => self.net_prng.below(5_000),
                _ => self.net_prng.below(600_000),
            });
            let at = self.travel() + notice;
            let Some(conn) = &mut self.conns[index as usize] else { return };
            let l = &mut conn.lanes[lane];
            if l.is_ending() {
                continue;
            }
            let keep = self.net_prng.below(l.pieces.len() as u64 + 1) as usize;
            l.truncate(keep);
            self.push_cargo(index, lane, at, Cargo::Down(DownReason::Broken));
        }
    }

    /// Ends the connections of a dead process. Its kernel still sends the data that it
    /// holds, or a part of it.
    pub(crate) fn drop_links(&mut self, id: ProcId, power: bool) {
        self.procs[id.0].links.clear();
        for index in 0..self.conns.len() as u32 {
            let Some(conn) = &mut self.conns[index as usize] else { continue };
            let Some(side) =
                (0..2).find(|s| conn.ends[*s].proc == id && conn.ends[*s].state != EndState::Gone)
            else {
                continue;
            };
            conn.ends[side].state = EndState::Gone;
            conn.ends[side].silent = power;
            conn.lanes[1 - side].pieces.retain(|p| matches!(p.cargo, Cargo::Down(_)));
            let l = &mut conn.lanes[side];
            if power || self.net_prng.chance(0.4) {
                let keep = self.net_prng.below(l.pieces.len() as u64 + 1) as usize;
                l.truncate(keep);
            }
            if !power {
                let at = self.travel();
                self.push_cargo(index, side, at, Cargo::Down(DownReason::Closed));
            }
            self.free(index);
        }
    }

    /// Resets the old connections of a host that has power again: it knows nothing of them, and
    /// says so when asked.
    pub(crate) fn host_is_back(&mut self, id: ProcId) {
        for index in 0..self.conns.len() as u32 {
            let Some(conn) = &mut self.conns[index as usize] else { continue };
            let Some(side) = (0..2).find(|s| conn.ends[*s].proc == id && conn.ends[*s].silent)
            else {
                continue;
            };
            conn.ends[side].silent = false;
            conn.lanes[1 - side].pieces.clear();
            conn.lanes[1 - side].timing = false;
            let at = self.travel() + Duration::from_micros(self.net_prng.below(500_000));
            self.push_cargo(index, side, at, Cargo::Down(DownReason::Broken));
            self.free(index);
        }
    }
}

/// Returns true for a part of a resync copy, and for the start of a join, after which the primary
/// sends its dirty blocks.
fn is_copy(head: &Head) -> bool {
    header(head).is_some_and(|h| {
        Replicate::try_from(h).is_ok_and(|m| m.copy)
            || SyncStart::try_from(h).is_ok_and(|m| m.joiner)
    })
}

fn is_write(head: &Head) -> bool {
    let kind = header(head).and_then(|h| h.kind());
    matches!(kind, Some(Kind::Write | Kind::CompareWrite | Kind::Replicate))
}

fn is_registration(head: &Head) -> bool {
    header(head).and_then(|h| h.kind()) == Some(Kind::Register)
}

/// Returns the header of a frame between Gabion's processes; `None` for other frames.
fn header(head: &Head) -> Option<&Header> {
    let head = head.as_slice();
    (head.len() == wire::header::HEADER).then(|| wire::parse(head))
}

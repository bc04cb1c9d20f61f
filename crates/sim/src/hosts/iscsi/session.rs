//! One session of a host in full feature phase: its numbers, and its commands with their data.
//!
//! Invariants: no command is sent beyond the target's window. A target that breaks the protocol is
//! reported: one that answers what nobody asked, that reads or asks for other data than it must, or
//! that says of a command both that it is done and that it was aborted.

use super::pdu::{Command, NO_TAG, Pdu, Status, be32, from_target, number};
use crate::hosts::{Seen, Told};
use std::collections::{BTreeMap, VecDeque};

/// First tag of requests that abort a command.
const ABORTS: u32 = 1 << 31;

/// A command that was sent.
#[derive(Debug)]
struct Task {
    cmd_sn: u32,
    data: Vec<u8>,
    read: Vec<u8>,
    /// Bytes of `read` that are there.
    came: usize,
}

/// The consequence of an event.
#[derive(Debug)]
pub(super) enum Step {
    /// Send a PDU.
    Send(Pdu),
    /// Tell the owner.
    Tell(Seen),
    /// Close the connection, as the target has asked for.
    Leave,
}

/// The state of a session.
#[derive(Debug)]
pub(super) struct Session {
    cmd_sn: u32,
    /// The last number that the target takes.
    last: u32,
    stat_sn: u32,
    /// Most bytes of one PDU to the target.
    segment: usize,
    /// Most bytes that come with a command.
    first: usize,
    tasks: BTreeMap<u32, Task>,
    /// Commands that wait for the window.
    waiting: VecDeque<Command>,
    /// The request that aborts a command, and that command.
    aborting: Option<(u32, u32)>,
    aborts: u32,
}

impl Session {
    /// Creates the session from the answer to the login.
    pub(super) fn new(bhs: &[u8], text: &[u8]) -> Session {
        let segment = number(text, "MaxRecvDataSegmentLength").unwrap_or(8192);
        let burst = number(text, "FirstBurstLength").unwrap_or(65536);
        let mut session = Session {
            cmd_sn: 1,
            last: 0,
            stat_sn: 0,
            segment,
            first: burst.min(segment),
            tasks: BTreeMap::new(),
            waiting: VecDeque::new(),
            aborting: None,
            aborts: 0,
        };
        session.numbers(bhs);
        session
    }

    /// Returns the ids of all commands that are not answered.
    pub(super) fn unanswered(&self) -> Vec<u32> {
        self.tasks.keys().copied().chain(self.waiting.iter().map(|command| command.id)).collect()
    }

    /// Takes the numbers of a PDU.
    fn numbers(&mut self, bhs: &[u8]) {
        let ping = bhs[0] == from_target::NOP && be32(bhs, 16) == NO_TAG;
        let counts = bhs[0] != from_target::R2T && !ping;
        self.stat_sn = be32(bhs, 24).wrapping_add(u32::from(counts));
        self.last = be32(bhs, 32);
    }

    /// Sends a command, when the window allows.
    pub(super) fn command(&mut self, command: Command, out: &mut Vec<Step>) {
        self.waiting.push_back(command);
        self.send_waiting(out);
    }

    fn send_waiting(&mut self, out: &mut Vec<Step>) {
        while self.last.wrapping_sub(self.cmd_sn) < 1 << 31 {
            let Some(Command { id, cdb, reads, data }) = self.waiting.pop_front() else { return };
            let flag = |wanted, bit| if wanted { bit } else { 0 };
            let flags = 0x80 | flag(reads > 0, 0x40) | flag(!data.is_empty(), 0x20);
            let first = &data[..data.len().min(self.first)];
            let expected = reads.max(data.len() as u32);
            let pdu = Pdu::new(0x01, flags, id).u32(20, expected).u32(24, self.cmd_sn);
            out.push(Step::Send(pdu.u32(28, self.stat_sn).put(32, &cdb).with(first)));
            let read = vec![0; reads as usize];
            self.tasks.insert(id, Task { cmd_sn: self.cmd_sn, data, read, came: 0 });
            self.cmd_sn = self.cmd_sn.wrapping_add(1);
        }
    }

    /// Asks the target to abort the oldest command that it has.
    pub(super) fn abort(&mut self, out: &mut Vec<Step>) {
        let oldest = self.tasks.iter().min_by_key(|(_, task)| task.cmd_sn);
        let (Some((id, task)), None) = (oldest, self.aborting) else { return };
        let tag = ABORTS + self.aborts;
        let pdu = Pdu::new(0x42, 0x81, tag).u32(20, *id).u32(24, self.cmd_sn);
        out.push(Step::Send(pdu.u32(28, self.stat_sn).u32(32, task.cmd_sn)));
        self.aborting = Some((tag, *id));
        self.aborts += 1;
    }

    /// Handles a PDU of the target.
    pub(super) fn pdu(&mut self, bhs: &[u8], data: &[u8], out: &mut Vec<Step>) {
        let (tag, transfer) = (be32(bhs, 16), be32(bhs, 20));
        let wrong = match bhs[0] {
            from_target::NOP => {
                if transfer != NO_TAG {
                    let pdu = Pdu::new(0x40, 0x80, NO_TAG).u32(20, transfer);
                    out.push(Step::Send(pdu.u32(24, self.cmd_sn).u32(28, self.stat_sn)));
                }
                None
            }
            from_target::DATA => self.data(tag, bhs, data, out),
            from_target::R2T => self.asked(tag, bhs, out),
            from_target::RESPONSE => self.answered(tag, bhs, Status::of(bhs, data), out),
            from_target::MANAGED => self.managed(tag, bhs[2], out),
            from_target::ASYNC => {
                out.push(Step::Leave);
                None
            }
            opcode => Some(format!("a PDU with opcode {opcode:#x} and reason {:#x}", bhs[2])),
        };
        if let Some(wrong) = wrong {
            return out.push(Step::Tell(Seen::Wrong(wrong)));
        }
        // Data without a status has no number.
        if bhs[0] != from_target::DATA || bhs[1] & 1 != 0 {
            self.numbers(bhs);
        }
        self.send_waiting(out);
    }

    fn data(&mut self, tag: u32, bhs: &[u8], data: &[u8], out: &mut Vec<Step>) -> Option<String> {
        let at = be32(bhs, 40) as usize;
        let Some(task) = self.tasks.get_mut(&tag) else {
            return Some(format!("data of {tag:#x}, which nobody reads"));
        };
        let Some(place) = task.read.get_mut(at..at + data.len()).filter(|_| at == task.came) else {
            return Some(format!("data of {tag:#x} at {at}, and {} bytes came", task.came));
        };
        place.copy_from_slice(data);
        task.came += data.len();
        match bhs[1] & 1 {
            0 => None,
            _ => self.answered(tag, bhs, Status::of(bhs, &[]), out),
        }
    }

    /// Sends the data that the target asks for.
    fn asked(&mut self, tag: u32, bhs: &[u8], out: &mut Vec<Step>) -> Option<String> {
        let (at, len) = (be32(bhs, 40) as usize, be32(bhs, 44) as usize);
        let data = self.tasks.get(&tag).and_then(|task| task.data.get(at..at + len));
        let Some(data) = data.filter(|data| !data.is_empty()) else {
            return Some(format!("wants {len} bytes of {tag:#x} at {at}, which are not there"));
        };
        let parts = data.chunks(self.segment);
        let last = parts.len() - 1;
        for (number, part) in parts.enumerate() {
            let flags = if number == last { 0x80 } else { 0 };
            let pdu = Pdu::new(0x05, flags, tag).put(20, &bhs[20..24]).u32(28, self.stat_sn);
            let offset = (at + number * self.segment) as u32;
            out.push(Step::Send(pdu.u32(36, number as u32).u32(40, offset).with(part)));
        }
        None
    }

    fn answered(
        &mut self,
        tag: u32,
        bhs: &[u8],
        status: Status,
        out: &mut Vec<Step>,
    ) -> Option<String> {
        let Some(task) = self.tasks.remove(&tag) else {
            return Some(format!("answers {tag:#x}, which nobody asked"));
        };
        let residual = bhs[1] & 0x06 != 0;
        if bhs[0] == from_target::RESPONSE && bhs[2] != 0 {
            return Some(format!("response {:#x} to {tag:#x}", bhs[2]));
        }
        if status.is_good() && (residual || task.came != task.read.len()) {
            return Some(format!("{tag:#x} is done with {} bytes of data", task.came));
        }
        match status.told(task.read) {
            Told::Strange(text) => Some(format!("{text} as the answer to {tag:#x}")),
            told => {
                out.push(Step::Tell(Seen::Answered(tag, told)));
                None
            }
        }
    }

    /// Handles the answer to the request that aborts a command.
    fn managed(&mut self, tag: u32, response: u8, out: &mut Vec<Step>) -> Option<String> {
        let Some((_, command)) = self.aborting.take_if(|(request, _)| *request == tag) else {
            return Some(format!("{tag:#x} has aborted nothing"));
        };
        match (response, self.tasks.remove(&command)) {
            (0, Some(_)) => {
                out.push(Step::Tell(Seen::Aborted(command)));
                None
            }
            (1, None) => None,
            (_, task) => {
                let state = if task.is_some() { "unanswered" } else { "answered" };
                Some(format!("{response} to the abortion of {command:#x}, which is {state}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session whose target takes these many commands and 16 bytes per PDU.
    fn session(window: u32) -> Session {
        let mut bhs = [0; 48];
        bhs[32..36].copy_from_slice(&window.to_be_bytes());
        Session::new(&bhs, b"MaxRecvDataSegmentLength=16\0FirstBurstLength=64\0")
    }

    fn write(id: u32) -> Command {
        Command::write(id, 8, 1, vec![7; 40])
    }

    /// Sends a PDU of the target, and returns what the host sends and what its owner is told.
    fn on(s: &mut Session, pdu: Pdu) -> (Vec<Pdu>, Vec<Seen>) {
        let mut out = Vec::new();
        let last = s.last;
        let pdu = if pdu.bhs[32..36] == [0; 4] { pdu.u32(32, last) } else { pdu };
        s.pdu(&pdu.bhs, &pdu.data, &mut out);
        let (mut sent, mut told) = (Vec::new(), Vec::new());
        for step in out {
            match step {
                Step::Send(pdu) => sent.push(pdu),
                Step::Tell(seen) => told.push(seen),
                Step::Leave => panic!("nobody has asked for that"),
            }
        }
        (sent, told)
    }

    fn ask(s: &mut Session, command: Command) -> usize {
        let mut out = Vec::new();
        s.command(command, &mut out);
        out.len()
    }

    fn done(id: u32) -> Pdu {
        Pdu::new(from_target::RESPONSE, 0x80, id)
    }

    #[test]
    fn commands_wait_for_the_window_and_data_comes_when_it_is_asked_for() {
        let mut s = session(2);
        assert_eq!([1, 2, 3].map(|id| ask(&mut s, write(id))), [1, 1, 0]);
        assert_eq!(s.unanswered(), [1, 2, 3]);
        let r2t = Pdu::new(from_target::R2T, 0x80, 1).u32(20, 9).u32(40, 16).u32(44, 24);
        let (sent, _) = on(&mut s, r2t);
        let parts = sent.iter().map(|p| (p.bhs[1], be32(&p.bhs, 40), p.data.len()));
        assert_eq!(parts.collect::<Vec<_>>(), [(0, 16, 16), (0x80, 32, 8)]);
        let (sent, told) = on(&mut s, done(1).u32(32, 3));
        assert_eq!((sent.len(), told.len(), s.unanswered()), (1, 1, vec![2, 3]));
        let (_, told) = on(&mut s, done(1));
        assert!(matches!(&told[..], [Seen::Wrong(_)]), "answered twice: {told:?}");
    }

    #[test]
    fn a_command_is_done_or_aborted_and_never_both() {
        let managed = |tag, response| Pdu::new(from_target::MANAGED, 0x80, tag).put(2, &[response]);
        for (answered, response, fine) in
            [(false, 0, true), (true, 1, true), (true, 0, false), (false, 1, false)]
        {
            let mut s = session(4);
            ask(&mut s, write(1));
            let mut out = Vec::new();
            s.abort(&mut out);
            assert_eq!(out.len(), 1);
            s.abort(&mut out);
            assert_eq!(out.len(), 1, "one at a time");
            if answered {
                on(&mut s, done(1));
            }
            let (_, told) = on(&mut s, managed(ABORTS, response));
            assert_eq!(!matches!(&told[..], [Seen::Wrong(_)]), fine, "{told:?}");
        }
    }

    #[test]
    fn a_read_is_done_when_all_of_its_data_has_come_in_order() {
        let data = |flags, at: u32| Pdu::new(from_target::DATA, flags, 1).u32(40, at);
        for (second, fine) in [(256, true), (0, false), (300, false)] {
            let mut s = session(4);
            ask(&mut s, Command::read(1, 0, 1));
            assert!(on(&mut s, data(0, 0).with(&[1; 256])).1.is_empty());
            let (_, told) = on(&mut s, data(0x81, second).with(&[2; 256]));
            match &told[..] {
                [Seen::Answered(1, Told::Done(data))] if fine => assert_eq!(data.len(), 512),
                [Seen::Wrong(_)] if !fine => {}
                other => panic!("{other:?}"),
            }
        }
        let mut s = session(4);
        ask(&mut s, Command::read(1, 0, 1));
        assert!(matches!(&on(&mut s, done(1)).1[..], [Seen::Wrong(_)]), "nothing came");
    }
}

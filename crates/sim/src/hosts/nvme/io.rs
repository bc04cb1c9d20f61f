//! The I/O queue of a controller: its commands with their data, and their answers.
//!
//! Invariants: no more commands are outstanding than the queue has entries, less one. Two fused
//! commands follow each other, the first one has an even id, and the second one has the next id. A
//! target that breaks the protocol is reported: one that answers what nobody asked, that reads or
//! asks for other data than it must, that reports a wrong head of the queue, or that carries out
//! only one of two fused commands.

use super::pdu::{Part, Pdu, from_target, le16, le32};
use super::status::Status;
use crate::hosts::{Command, Seen, Told, What};
use base::VolumeId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Flag of a data PDU: it is the last one of its command.
const LAST: u8 = 1 << 2;
/// Flag of a data PDU: the command is done, and no answer follows.
pub(super) const SUCCESS: u8 = 1 << 3;

/// A command that was sent.
#[derive(Debug)]
struct Task {
    /// The owner's name of it.
    id: u32,
    fused: bool,
    data: Vec<u8>,
    read: Vec<u8>,
    /// Bytes of `read` that are there.
    came: usize,
}

/// What the controller has told about its queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Entries of a queue.
    pub(super) entries: u16,
    /// The target reports the head of a queue.
    pub(super) flow: bool,
    /// Most bytes of data that come with a command.
    pub(super) capsule: usize,
}

/// The queue.
#[derive(Debug)]
pub(super) struct Io {
    volume: VolumeId,
    shape: Shape,
    /// Most bytes of one data PDU.
    segment: usize,
    head: u16,
    cid: u16,
    tasks: BTreeMap<u16, Task>,
    /// Commands that wait for an entry.
    waiting: VecDeque<Command>,
    /// The status of a fused command whose partner is not answered yet, by its id.
    halves: BTreeMap<u16, Status>,
}

impl Io {
    /// Creates the queue. The target takes data PDUs of up to `segment` bytes.
    pub(super) fn new(volume: VolumeId, shape: Shape, segment: usize) -> Io {
        Io {
            volume,
            shape,
            segment,
            head: 1, // Connect was the first command
            cid: 0,
            tasks: BTreeMap::new(),
            waiting: VecDeque::new(),
            halves: BTreeMap::new(),
        }
    }

    /// Returns the ids of all commands that are not answered.
    pub(super) fn unanswered(&self) -> Vec<u32> {
        let sent: BTreeSet<u32> = self.tasks.values().map(|task| task.id).collect();
        sent.into_iter().chain(self.waiting.iter().map(|command| command.id)).collect()
    }

    /// Returns the id of the oldest command in the queue.
    pub(super) fn oldest(&self) -> Option<u16> {
        self.tasks.iter().min_by_key(|(_, task)| task.id).map(|(cid, _)| *cid)
    }

    /// Sends a command, when there is room.
    pub(super) fn command(&mut self, command: Command, out: &mut Vec<Pdu>) {
        self.waiting.push_back(command);
        self.send_waiting(out);
    }

    fn send_waiting(&mut self, out: &mut Vec<Pdu>) {
        while let Some(command) = self.waiting.front() {
            let needed = command.what.commands();
            if self.tasks.len() + needed >= usize::from(self.shape.entries) {
                return;
            }
            let Some(command) = self.waiting.pop_front() else { return };
            let id = command.id;
            // A host may let the target ask for data that a capsule has room for. It does not do
            // that with a list of holes: the target may skip holes while it waits for the list.
            let asks = id.is_multiple_of(3) && !matches!(command.what, What::Zero { .. });
            let room = if asks { 0 } else { self.shape.capsule };
            for (cid, part) in (self.cid..).zip(Part::all_of(self.volume, command)) {
                let Part { entry, data, reads } = part;
                let carried = !data.is_empty() && data.len() <= room;
                out.push(match carried {
                    true => Pdu::capsule(entry.in_capsule(), cid, data.clone()),
                    false => Pdu::capsule(entry, cid, Vec::new()),
                });
                let (read, data) = (vec![0; reads], if carried { Vec::new() } else { data });
                self.tasks.insert(cid, Task { id, fused: needed > 1, data, read, came: 0 });
            }
            self.cid = self.cid.wrapping_add(2);
        }
    }

    /// Handles a PDU of the target.
    pub(super) fn pdu(&mut self, head: &[u8], data: &[u8], out: &mut Vec<Pdu>) -> Option<Seen> {
        let seen = match head[0] {
            from_target::DATA => self.data(head, data),
            from_target::R2T => self.asked(head, out),
            from_target::RESPONSE => self.response(head),
            kind => Err(format!("a PDU of type {kind:#x} on an I/O queue: {head:x?}")),
        };
        self.send_waiting(out);
        seen.unwrap_or_else(|wrong| Some(Seen::Wrong(wrong)))
    }

    fn data(&mut self, head: &[u8], data: &[u8]) -> Result<Option<Seen>, String> {
        let (cid, at) = (le16(head, 8), le32(head, 12) as usize);
        let Some(task) = self.tasks.get_mut(&cid) else {
            return Err(format!("data of {cid:#x}, which nobody reads"));
        };
        let place = task.read.get_mut(at..at + data.len());
        let Some(place) =
            place.filter(|_| at == task.came && le32(head, 16) as usize == data.len())
        else {
            return Err(format!("data of {cid:#x} at {at}, and {} bytes came", task.came));
        };
        place.copy_from_slice(data);
        task.came += data.len();
        if (head[1] & LAST != 0) != (task.came == task.read.len()) {
            return Err(format!("the last data of {cid:#x} ends at {}", task.came));
        }
        match (head[1] & SUCCESS != 0, self.shape.flow) {
            (false, _) => Ok(None),
            (true, false) => self.answered(cid, Status(0)),
            (true, true) => Err(format!("success of {cid:#x} without a head of the queue")),
        }
    }

    /// Sends the data that the target asks for.
    fn asked(&mut self, head: &[u8], out: &mut Vec<Pdu>) -> Result<Option<Seen>, String> {
        let (cid, at, len) = (le16(head, 8), le32(head, 12) as usize, le32(head, 16) as usize);
        let data = self.tasks.get(&cid).and_then(|task| task.data.get(at..at + len));
        let Some(data) = data.filter(|data| !data.is_empty()) else {
            return Err(format!("wants {len} bytes of {cid:#x} at {at}, which are not there"));
        };
        for (number, part) in data.chunks(self.segment).enumerate() {
            let from = number * self.segment;
            let last = from + part.len() == len;
            out.push(Pdu::data(head, (at + from) as u32, part, last));
        }
        Ok(None)
    }

    fn response(&mut self, head: &[u8]) -> Result<Option<Seen>, String> {
        let (reported, cid) = (le16(head, 16), le16(head, 20));
        self.head = (self.head + 1) % self.shape.entries;
        let expected = if self.shape.flow { self.head } else { u16::MAX };
        if reported != expected || le16(head, 18) != 1 {
            return Err(format!("a head of {reported} in place of {expected}: {head:x?}"));
        }
        self.answered(cid, Status::of(head))
    }

    fn answered(&mut self, cid: u16, status: Status) -> Result<Option<Seen>, String> {
        let Some(task) = self.tasks.remove(&cid) else {
            return Err(format!("answers {cid:#x}, which nobody asked"));
        };
        if status.is_success() && task.came != task.read.len() {
            return Err(format!("{cid:#x} is done with {} bytes of data", task.came));
        }
        let told = if !task.fused {
            status.told(task.read)
        } else if let Some(other) = self.halves.remove(&(cid ^ 1)) {
            let both = if cid.is_multiple_of(2) { [status, other] } else { [other, status] };
            Status::of_both(both)
        } else {
            self.halves.insert(cid, status);
            return Ok(None);
        };
        match told {
            Told::Strange(text) => Err(format!("{text} as the answer to {cid:#x}")),
            told => Ok(Some(Seen::Answered(task.id, told))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::SECTOR;

    /// A queue of four entries, whose target takes 1024 bytes with a command and in a data PDU.
    fn queue(flow: bool) -> Io {
        Io::new(VolumeId(7), Shape { entries: 4, flow, capsule: 1024 }, 1024)
    }

    /// Sends a command about two sectors. Returns how many PDUs went out.
    fn ask(io: &mut Io, id: u32, what: What) -> usize {
        let len = match what {
            What::Write => 2 * SECTOR,
            What::Swap => 4 * SECTOR,
            What::Read | What::Zero { .. } | What::Reserve(_) => 0,
        };
        let mut out = Vec::new();
        let data = (0..len).map(|i| i as u8).collect();
        io.command(Command { id, what, sector: 8, sectors: 2, data }, &mut out);
        out.len()
    }

    /// A PDU of the target about this command.
    fn pdu(kind: u8, flags: u8, cid: u16) -> Vec<u8> {
        let mut head = vec![0; 24];
        (head[0], head[1], head[2]) = (kind, flags, 24);
        head[8..10].copy_from_slice(&cid.to_le_bytes());
        head
    }

    fn answer(cid: u16, head: u16, status: u16) -> Vec<u8> {
        let mut pdu = pdu(from_target::RESPONSE, 0, 0);
        for (at, value) in [(16, head), (18, 1), (20, cid), (22, status << 1)] {
            pdu[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        pdu
    }

    /// A PDU that moves these many bytes, or asks for them.
    fn moves(kind: u8, flags: u8, (cid, at, len): (u16, u32, u32)) -> Vec<u8> {
        let mut pdu = pdu(kind, flags, cid);
        pdu[12..16].copy_from_slice(&at.to_le_bytes());
        pdu[16..20].copy_from_slice(&len.to_le_bytes());
        pdu
    }

    fn on(io: &mut Io, head: &[u8], data: &[u8]) -> (Option<Seen>, Vec<Pdu>) {
        let mut out = Vec::new();
        (io.pdu(head, data, &mut out), out)
    }

    #[test]
    fn commands_wait_for_entries_and_heads_of_the_queue_are_checked() {
        let mut io = queue(true);
        let sent = [4, 5, 7].map(|id| ask(&mut io, id, What::Write));
        assert_eq!((sent, ask(&mut io, 8, What::Swap)), ([1, 1, 1], 0));
        assert_eq!((io.unanswered(), io.oldest()), (vec![4, 5, 7, 8], Some(0)));
        let (seen, out) = on(&mut io, &answer(2, 2, 0), &[]);
        assert!(matches!(seen, Some(Seen::Answered(5, Told::Done(_)))) && out.is_empty());
        let (_, out) = on(&mut io, &answer(0, 3, 0), &[]);
        assert_eq!(out.len(), 2, "two fused commands have room now");
        let (seen, _) = on(&mut io, &answer(4, 3, 0), &[]);
        assert!(matches!(seen, Some(Seen::Wrong(_))), "the same head again");
    }

    #[test]
    fn data_goes_out_when_it_is_asked_for() {
        let mut io = queue(true);
        io.segment = 700;
        assert_eq!(ask(&mut io, 3, What::Write), 1);
        let (seen, out) = on(&mut io, &moves(from_target::R2T, 0, (0, 0, 1024)), &[]);
        let parts = out.iter().map(|pdu| (le32(&pdu.head, 12), pdu.data.len(), pdu.head[1]));
        assert!(seen.is_none());
        assert_eq!(parts.collect::<Vec<_>>(), [(0, 700, 0), (700, 324, 4)]);
        let (seen, _) = on(&mut io, &moves(from_target::R2T, 0, (0, 512, 1024)), &[]);
        assert!(matches!(seen, Some(Seen::Wrong(_))), "more than there is: {seen:?}");
    }

    #[test]
    fn a_read_is_done_when_all_of_its_data_has_come() {
        let data = |flags, at, len| moves(from_target::DATA, flags, (0, at, len));
        let mut io = queue(false);
        ask(&mut io, 1, What::Read);
        assert!(on(&mut io, &data(0, 0, 512), &[1; 512]).0.is_none());
        let (seen, _) = on(&mut io, &data(LAST | SUCCESS, 512, 512), &[2; 512]);
        let Some(Seen::Answered(1, Told::Done(read))) = seen else { panic!("{seen:?}") };
        assert_eq!((read[511], read[512], io.unanswered()), (1, 2, Vec::new()));
        for flags in [LAST, LAST | SUCCESS] {
            let mut io = queue(true);
            ask(&mut io, 1, What::Read);
            let (seen, _) = on(&mut io, &data(flags, 0, 512), &[1; 512]);
            assert!(matches!(seen, Some(Seen::Wrong(_))), "it ends too early: {seen:?}");
        }
    }

    #[test]
    fn two_fused_commands_are_one() {
        for (first, second) in [(0x4285, 0x009), (0, 0), (0, 0x009)] {
            let mut io = queue(true);
            assert_eq!(ask(&mut io, 1, What::Swap), 2);
            assert!(on(&mut io, &answer(0, 2, first), &[]).0.is_none());
            assert_eq!(io.unanswered(), [1]);
            let (seen, _) = on(&mut io, &answer(1, 3, second), &[]);
            match seen {
                Some(Seen::Answered(1, Told::Differs(None))) => assert_eq!(first, 0x4285),
                Some(Seen::Answered(1, Told::Done(_))) => assert_eq!((first, second), (0, 0)),
                Some(Seen::Wrong(_)) => assert_eq!((first, second), (0, 0x009)),
                other => panic!("{other:?}"),
            }
        }
    }
}

//! The role that gives space of its device back.

use super::Role;
use crate::contract::probe::Stage;
use crate::effect::Effect;
use crate::event::{DiskError, Event};
use crate::{Buf, DiskId, DiskOp};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;

/// Slots in use at once. They are neighbours on the device.
const DEPTH: u32 = 16;
/// Size of a slot, in bytes. Its middle is given back, all but an edge at either side.
const SLOT: u64 = 64 << 10;
const EDGE: u64 = SLOT / 4;
const DISK: DiskId = DiskId(0);

/// Fills slots and gives their middle back; then it reads them, and writes most of them again.
/// Or it only reads what an earlier run has left.
pub(in crate::contract) struct Puncher {
    slots: u32,
    only_read: bool,
    begun: u32,
    ended: u32,
    next_op: u64,
    running: BTreeMap<DiskOp, (Step, u32)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Fill,
    Punch,
    Flush,
    /// The middle is a hole.
    ReadHole,
    Again,
    ReadAgain,
    Beyond,
    Uneven,
}

impl Puncher {
    pub(in crate::contract) fn new(slots: u32, only_read: bool) -> Puncher {
        Puncher { slots, only_read, begun: 0, ended: 0, next_op: 5000, running: BTreeMap::new() }
    }

    /// True for slots whose hole stays.
    fn stays(slot: u32) -> bool {
        slot.is_multiple_of(3)
    }

    fn content(step: Step, slot: u32, i: usize) -> u8 {
        let again = matches!(step, Step::Again | Step::ReadAgain);
        (slot as usize * 7 + i / 5 + 2 * usize::from(again)) as u8 | 1
    }

    fn act(&mut self, step: Step, slot: u32, stage: &mut Stage<'_>) {
        let op = DiskOp(self.next_op);
        self.next_op += 1;
        self.running.insert(op, (step, slot));
        let (disk, at) = (DISK, u64::from(slot) * SLOT);
        let effect = match step {
            Step::Fill | Step::Again => {
                let mut body = stage.out.alloc(SLOT as usize);
                let bytes = body.as_mut().iter_mut().enumerate();
                bytes.for_each(|(i, b)| *b = Puncher::content(step, slot, i));
                Effect::Write { op, disk, at, body, durable: slot.is_multiple_of(2) }
            }
            Step::Punch => Effect::Punch { op, disk, at: at + EDGE, len: SLOT - 2 * EDGE },
            Step::Flush => Effect::Flush { op, disk },
            Step::ReadHole | Step::ReadAgain => Effect::Read { op, disk, at, len: SLOT as u32 },
            Step::Beyond => {
                let size = stage.place.disk_bytes.unwrap_or_default();
                Effect::Punch { op, disk, at: size - EDGE, len: 2 * EDGE }
            }
            Step::Uneven => {
                Effect::Punch { op, disk, at: u64::from(stage.place.disk_block) / 2, len: EDGE }
            }
        };
        stage.out.push(effect);
    }

    fn fill(&mut self, stage: &mut Stage<'_>) {
        while self.begun < self.slots && self.begun - self.ended < DEPTH {
            let first = match (self.only_read, Puncher::stays(self.begun)) {
                (false, _) => Step::Fill,
                (true, true) => Step::ReadHole,
                (true, false) => Step::ReadAgain,
            };
            self.act(first, self.begun, stage);
            self.begun += 1;
        }
    }

    /// Checks the data of a read.
    fn check(step: Step, slot: u32, data: &Buf, stage: &mut Stage<'_>) {
        let hole = EDGE as usize..(SLOT - EDGE) as usize;
        let is_hole = |i: usize| step == Step::ReadHole && stage.place.punches && hole.contains(&i);
        let right = |i: usize| if is_hole(i) { 0 } else { Puncher::content(step, slot, i) };
        let wrong = data.iter().enumerate().find(|(i, b)| **b != right(*i));
        let ok = wrong.is_none() && data.len() as u64 == SLOT;
        stage.check(ok, || format!("{step:?} {slot}: {} bytes, {wrong:?}", data.len()));
    }
}

impl Role for Puncher {
    fn start(&mut self, stage: &mut Stage<'_>) {
        if stage.place.disk_bytes.is_some() {
            self.act(Step::Beyond, 0, stage);
        }
        if stage.place.disk_block > 1 {
            self.act(Step::Uneven, 0, stage);
        }
        self.fill(stage);
    }

    fn on(&mut self, event: Event<'_>, stage: &mut Stage<'_>) {
        let Event::DiskDone { op, result } = event else {
            return stage.check(false, || format!("unexpected: {event:?}"));
        };
        let Some((step, slot)) = self.running.remove(&op) else { return };
        let error = result.as_ref().err().copied();
        let wanted = match step {
            Step::Beyond | Step::Uneven => Some(DiskError::OutOfRange),
            Step::Punch if !stage.place.punches => Some(DiskError::Unsupported),
            _ => None,
        };
        stage.check(error == wanted, || format!("{step:?} {slot}: {error:?}"));
        match (step, result) {
            (Step::Fill, _) => self.act(Step::Punch, slot, stage),
            (Step::Punch, _) => self.act(Step::ReadHole, slot, stage),
            (Step::ReadHole, Ok(data)) => {
                Puncher::check(step, slot, &data, stage);
                match (self.only_read, Puncher::stays(slot)) {
                    (true, _) => self.ended += 1,
                    (false, true) => self.act(Step::Flush, slot, stage),
                    (false, false) => self.act(Step::Again, slot, stage),
                }
            }
            (Step::Again, _) => self.act(Step::Flush, slot, stage),
            (Step::Flush, _) if Puncher::stays(slot) => self.ended += 1,
            (Step::Flush, _) => self.act(Step::ReadAgain, slot, stage),
            (Step::ReadAgain, Ok(data)) => {
                Puncher::check(step, slot, &data, stage);
                self.ended += 1;
            }
            (Step::ReadHole | Step::ReadAgain | Step::Beyond | Step::Uneven, _) => {}
        }
        self.fill(stage);
    }

    fn is_done(&self) -> bool {
        self.ended == self.slots && self.running.is_empty()
    }

    fn status(&self) -> String {
        format!("{} of {} slots, {} operations open", self.ended, self.slots, self.running.len())
    }
}

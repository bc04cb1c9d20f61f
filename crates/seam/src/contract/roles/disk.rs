//! The role that uses a device.

use super::Role;
use crate::contract::probe::Stage;
use crate::effect::Effect;
use crate::event::{DiskError, Event};
use crate::{Buf, DiskId, DiskOp};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;

/// Operations in flight at once.
const DEPTH: u32 = 32;
/// Size of a slot of the device, in bytes. Each slot is written once.
const SLOT: u64 = 256 << 10;
const DISK: DiskId = DiskId(0);

/// Writes slots, each followed by a flush and a read; or only reads the slots of an earlier run.
pub(in crate::contract) struct Writer {
    slots: u32,
    only_read: bool,
    begun: u32,
    ended: u32,
    next_op: u64,
    running: BTreeMap<DiskOp, (Step, u32)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Blank,
    Write,
    Flush,
    Read,
    Beyond,
    Uneven,
}

impl Writer {
    pub(in crate::contract) fn new(slots: u32, only_read: bool) -> Writer {
        Writer { slots, only_read, begun: 0, ended: 0, next_op: 1000, running: BTreeMap::new() }
    }

    /// Returns the length of a slot's data in bytes. Some are odd if the device allows that.
    fn len(slot: u32, stage: &Stage<'_>) -> usize {
        let len = [512usize, 4096, 4097, 1, 65536, 12288, 200_000, 131_072][slot as usize % 8];
        len.next_multiple_of(stage.place.disk_block as usize)
    }

    /// Returns the offset of a slot. The order on the device differs from the order in time.
    fn at(slot: u32) -> u64 {
        u64::from(slot * 83 % 256) * SLOT + u64::from(slot % 2) * 4096
    }

    fn content(slot: u32, i: usize) -> u8 {
        (slot as usize * 5 + i / 3 + 1) as u8
    }

    fn act(&mut self, step: Step, slot: u32, stage: &mut Stage<'_>) {
        let op = DiskOp(self.next_op);
        self.next_op += 1;
        self.running.insert(op, (step, slot));
        let (at, len) = (Writer::at(slot), Writer::len(slot, stage));
        let effect = match step {
            Step::Blank | Step::Read => Effect::Read { op, disk: DISK, at, len: len as u32 },
            Step::Write => {
                let mut body = stage.out.alloc(len);
                let bytes = body.as_mut().iter_mut().enumerate();
                bytes.for_each(|(i, b)| *b = Writer::content(slot, i));
                Effect::Write { op, disk: DISK, at, body, durable: slot.is_multiple_of(3) }
            }
            Step::Flush => Effect::Flush { op, disk: DISK },
            Step::Beyond => {
                let at = stage.place.disk_bytes.map_or(0, |size| size - 1);
                Effect::Read { op, disk: DISK, at, len: 2 }
            }
            Step::Uneven => {
                let body = stage.out.alloc(stage.place.disk_block as usize);
                let at = u64::from(stage.place.disk_block) / 2;
                Effect::Write { op, disk: DISK, at, body, durable: false }
            }
        };
        stage.out.push(effect);
    }

    fn fill(&mut self, stage: &mut Stage<'_>) {
        while self.begun < self.slots && self.begun - self.ended < DEPTH {
            let first = if self.only_read { Step::Read } else { Step::Blank };
            self.act(first, self.begun, stage);
            self.begun += 1;
        }
    }

    fn check(step: Step, slot: u32, result: &Result<Buf, DiskError>, stage: &mut Stage<'_>) {
        let want =
            if matches!(step, Step::Blank | Step::Read) { Writer::len(slot, stage) } else { 0 };
        match result {
            Ok(data) => {
                let right =
                    |i: usize| if step == Step::Blank { 0 } else { Writer::content(slot, i) };
                let wrong = data.iter().enumerate().find(|(i, b)| **b != right(*i));
                stage
                    .check(data.len() == want, || format!("{step:?} {slot}: {} bytes", data.len()));
                stage.check(wrong.is_none(), || format!("{step:?} {slot}: wrong at {wrong:?}"));
            }
            Err(e) => stage.check(false, || format!("{step:?} {slot}: {e:?}")),
        }
    }
}

impl Role for Writer {
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
        if matches!(step, Step::Beyond | Step::Uneven) {
            let e = result.err();
            return stage.check(e == Some(DiskError::OutOfRange), || format!("{step:?}: {e:?}"));
        }
        Writer::check(step, slot, &result, stage);
        match step {
            Step::Blank => self.act(Step::Write, slot, stage),
            Step::Write => self.act(Step::Flush, slot, stage),
            Step::Flush => self.act(Step::Read, slot, stage),
            Step::Read | Step::Beyond | Step::Uneven => {
                self.ended += 1;
                self.fill(stage);
            }
        }
    }

    fn is_done(&self) -> bool {
        self.ended == self.slots && self.running.is_empty()
    }

    fn status(&self) -> String {
        format!("{} of {} slots, {} operations open", self.ended, self.slots, self.running.len())
    }
}

//! Formatting a device. The superblocks are written last, so an unfinished format leaves no device.

use super::error::MountError;
use super::layout::{Layout, PAGE};
use super::superblock::{CheckpointHead, Content, CopyState, Identity, look};
use alloc::vec::Vec;
use base::crc::crc32c;
use base::level;
use seam::{Buf, DiskError, DiskId, DiskOp, Effect, Effects};

/// State of a format after an operation has completed.
#[derive(Debug, PartialEq, Eq)]
pub enum Formatting {
    /// There is more to do.
    Running,
    /// The device can be mounted.
    Done,
    /// The device can't be formatted, or an operation failed.
    Failed(MountError),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Look,
    Erase,
    Root,
    Superblocks,
}

/// Number of the first checkpoint.
const FIRST: u64 = 2;
const PIECE: u64 = 1 << 20;

/// A format in progress.
#[derive(Debug)]
pub struct Format {
    disk: DiskId,
    bytes: u64,
    content: Content,
    force: bool,
    step: Step,
    busy: u32,
    next_op: u64,
    copies: [(DiskOp, Buf); 4],
    flushing: bool,
}

impl Format {
    /// Prepares the format of a device of `bytes` with this identity. A device that is formatted
    /// already is left alone, unless `force` is set. Fails with [`MountError::TooSmall`].
    pub fn new(
        disk: DiskId,
        bytes: u64,
        identity: Identity,
        force: bool,
    ) -> Result<Format, MountError> {
        let layout = Layout::new(bytes)?;
        let root = alloc::vec![0; layout.root_len()];
        let root_crc = crc32c(&root);
        let anchor = CheckpointHead {
            sequence: FIRST,
            root_crc,
            records_crc: crc32c(&[]),
            ..CheckpointHead::default()
        };
        let content = Content { identity, layout, anchor, level: level::FIRST };
        let copies = core::array::from_fn(|i| (DiskOp(i as u64), Buf::EMPTY));
        let (step, next_op) = (Step::Look, 0);
        Ok(Format { disk, bytes, content, force, step, busy: 0, next_op, copies, flushing: false })
    }

    /// Emits the first operations.
    pub fn start(&mut self, out: &mut Effects) {
        for at in Layout::superblocks(self.bytes) {
            let op = self.op();
            out.push(Effect::Read { op, disk: self.disk, at, len: PAGE as u32 });
        }
    }

    /// Takes a completed operation, and emits the next ones.
    pub fn disk_done(
        &mut self,
        op: DiskOp,
        result: Result<Buf, DiskError>,
        out: &mut Effects,
    ) -> Formatting {
        assert!(self.busy > 0, "each operation ends once");
        self.busy -= 1;
        match result {
            Ok(data) if self.step == Step::Look => self.copies[op.0 as usize].1 = data,
            Ok(_) => {}
            Err(error) => {
                let what = "the device, while it was formatted";
                return Formatting::Failed(MountError::Device { what, error });
            }
        }
        if self.busy > 0 {
            return Formatting::Running;
        }
        if self.step == Step::Look {
            let mut copies = self.copies.iter();
            let formatted = copies.any(|(_, page)| look(page) != CopyState::Nothing);
            if formatted && !self.force {
                return Formatting::Failed(MountError::InUse);
            }
            return self.write_step(Step::Erase, out);
        }
        if !self.flushing {
            self.flushing = true;
            let op = self.op();
            out.push(Effect::Flush { op, disk: self.disk });
            return Formatting::Running;
        }
        self.flushing = false;
        match self.step {
            Step::Look | Step::Erase => self.write_step(Step::Root, out),
            Step::Root => self.write_step(Step::Superblocks, out),
            Step::Superblocks => Formatting::Done,
        }
    }

    fn op(&mut self) -> DiskOp {
        self.busy += 1;
        self.next_op += 1;
        DiskOp(self.next_op - 1)
    }

    fn write_step(&mut self, step: Step, out: &mut Effects) -> Formatting {
        self.step = step;
        let mut writes: Vec<(u64, Buf)> = Vec::new();
        match step {
            Step::Look => {}
            Step::Erase | Step::Superblocks => {
                let mut page = out.pool().zeroed(PAGE as usize);
                if step == Step::Superblocks {
                    self.content.encode(page.as_mut());
                }
                writes.extend(Layout::superblocks(self.bytes).map(|at| (at, page.clone())));
            }
            Step::Root => {
                let area = self.content.layout.root[(FIRST & 1) as usize];
                let pieces = (0..area.len).step_by(PIECE as usize);
                let zeros = out.pool().zeroed(PIECE.min(area.len) as usize);
                writes
                    .extend(pieces.map(|i| {
                        (area.at + i, zeros.slice(0..(area.len - i).min(PIECE) as usize))
                    }));
            }
        }
        for (at, body) in writes {
            let op = self.op();
            out.push(Effect::Write { op, disk: self.disk, at, body, durable: false });
        }
        Formatting::Running
    }
}

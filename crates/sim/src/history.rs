//! What the clients asked, what they were told, and in which order.

use crate::check::register::Value;
use crate::plan::IoKind;
use base::{MapVersion, Time, VolumeId};
use seam::BlockError;
use std::fmt;

/// A sector about which an operation says nothing.
pub const SILENT: Value = Value::MAX;

/// An answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Its place in the order of everything that clients saw.
    pub moment: u64,
    /// When.
    pub at: Time,
    /// What.
    pub result: Result<(), BlockError>,
}

/// One operation of the workload. Its index plus one is the value that it writes.
#[derive(Clone, Debug)]
pub struct Record {
    /// By which client.
    pub client: u8,
    /// In which life of the client.
    pub life: u32,
    /// On which volume.
    pub volume: VolumeId,
    /// What.
    pub kind: IoKind,
    /// From this sector.
    pub sector: u32,
    /// So many.
    pub sectors: u32,
    /// When, in the order of everything that clients saw.
    pub invoked: u64,
    /// When.
    pub at: Time,
    /// When, by its client's clock.
    pub clock: Time,
    /// The answer.
    pub answer: Option<Answer>,
    /// What a read saw, sector by sector.
    pub seen: Vec<Value>,
    /// The version of its client's map, if that had the volume, mapped to the client and large enough.
    pub knew: Option<MapVersion>,
    /// When its client could not use the volume any more, for sure: what was not done by then never is.
    pub cut: Option<u64>,
    /// It was asked over an NBD connection that is gone: no answer will come. Or its volume was deleted before the answer,
    /// and is there again after a recovery: nothing is promised of what it saw.
    pub left: bool,
    /// When its client knew that, for sure: it comes before whatever is asked there later.
    pub gone: Option<u64>,
}

impl Record {
    /// True when the client was told that it is done.
    pub fn is_ok(&self) -> bool {
        self.answer.is_some_and(|a| a.result.is_ok())
    }

    /// True for what changes sectors.
    pub fn is_write(&self) -> bool {
        matches!(self.kind, IoKind::Write | IoKind::Zero | IoKind::Discard)
    }

    /// True when the answer says that nothing was even tried.
    pub fn is_refused(&self) -> bool {
        use BlockError::{Busy, Misaligned, OutOfRange, TooBig};
        let refused = |a: Answer| matches!(a.result, Err(Busy | Misaligned | OutOfRange | TooBig));
        self.answer.is_some_and(refused)
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "sdc{} life {} {:?} {} sectors {}+{} from {:?}",
            self.client, self.life, self.kind, self.volume, self.sector, self.sectors, self.at
        )?;
        match self.answer {
            None => write!(f, ", never answered"),
            Some(a) => write!(f, " to {:?}: {:?}", a.at, a.result),
        }
    }
}

/// All operations of a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// In the order in which they were asked.
    pub ops: Vec<Record>,
    moment: u64,
}

impl History {
    /// The next moment.
    pub fn tick(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// The operation that wrote this value.
    pub fn writer(&self, value: Value) -> Option<&Record> {
        self.ops.get((value as usize).checked_sub(1)?)
    }
}

//! The history of a run: requests of clients, their answers, and the order of both.

use crate::check::errors::User;
use crate::check::register::Value;
use crate::plan::IoKind;
use base::{MapVersion, SECTOR, Time, VolumeId};
use seam::BlockError;
use std::fmt;
use std::ops::Range;

/// Value of a sector that an operation did not reveal.
pub const SILENT: Value = Value::MAX;

/// The answer to an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Its position in the order of all requests and answers.
    pub moment: u64,
    /// Virtual time.
    pub at: Time,
    /// Success, or the error.
    pub result: Result<(), BlockError>,
}

/// One operation of the workload. Its index plus one is the value that it writes.
#[derive(Clone, Debug)]
pub struct Record {
    /// The client.
    pub client: u8,
    /// The client's incarnation, as counted by the world.
    pub life: u32,
    /// The volume.
    pub volume: VolumeId,
    /// Kind of operation.
    pub kind: IoKind,
    /// First sector.
    pub sector: u32,
    /// Number of sectors.
    pub sectors: u32,
    /// Position of the request in the order of all requests and answers.
    pub invoked: u64,
    /// Virtual time of the request.
    pub at: Time,
    /// The same time on the client's clock.
    pub clock: Time,
    /// The answer.
    pub answer: Option<Answer>,
    /// Values that a read returned, by sector.
    pub seen: Vec<Value>,
    /// Values that a compare-and-write expected, by sector.
    pub expected: Vec<Value>,
    /// Version of the client's map, if the volume was in it, mapped to the client and large enough.
    pub knew: Option<MapVersion>,
    /// The moment from which the client or the host surely could not use the volume, or from which
    /// the path surely was no more: its host had excluded it, or an order had moved the host to its
    /// other gateway. If the operation was not done by then, it never is.
    pub cut: Option<u64>,
    /// The operation was sent over a connection of a host that is gone, or its host has aborted it,
    /// so no answer will come. Or its volume was deleted before the answer and is back after a
    /// recovery, so a read of it may return anything.
    pub left: bool,
    /// The moment at which the client surely knew that the host's connection is gone, at which it
    /// had confirmed the abortion, or at which the program was killed: the operation takes effect
    /// before any later request to the same place. An error says nothing about its effect then.
    pub gone: Option<u64>,
    /// The host that has sent it, by its number in the plan.
    pub host: Option<u8>,
    /// When it was sent, its gateway knew that the volume is not mapped to the host.
    pub barred: bool,
}

impl Record {
    /// Returns an operation of client 0 in life 0 that has no answer yet. The client's clock is
    /// right.
    pub fn asked(
        volume: VolumeId,
        kind: IoKind,
        sectors: Range<u32>,
        invoked: u64,
        at: Time,
    ) -> Record {
        Record {
            client: 0,
            life: 0,
            volume,
            kind,
            sector: sectors.start,
            sectors: sectors.end - sectors.start,
            invoked,
            at,
            clock: at,
            answer: None,
            seen: Vec::new(),
            expected: Vec::new(),
            cut: None,
            knew: None,
            left: false,
            gone: None,
            host: None,
            barred: false,
        }
    }

    /// Returns the client, and the host that has sent the operation, if it was a host. The volume
    /// has to be mapped to both.
    pub fn users(&self) -> impl Iterator<Item = User> + use<> {
        [Some(User::Client(self.client)), self.host.map(User::Host)].into_iter().flatten()
    }

    /// Returns true when the client was told that the operation is done.
    pub fn is_ok(&self) -> bool {
        self.answer.is_some_and(|a| a.result.is_ok())
    }

    /// Returns true for operations that change sectors.
    pub fn is_write(&self) -> bool {
        self.stamps() || matches!(self.kind, IoKind::Zero | IoKind::Discard)
    }

    /// Returns true for operations that write a stamp to each sector.
    pub fn stamps(&self) -> bool {
        matches!(self.kind, IoKind::Write | IoKind::Swap)
    }

    /// Returns the sector that a compare-and-write has found to differ.
    pub fn miscompared(&self) -> Option<u32> {
        match self.answer?.result {
            Err(BlockError::Miscompare(at)) => Some(self.sector + at / SECTOR),
            _ => None,
        }
    }

    /// Returns true when the answer says that nothing was tried.
    pub fn is_refused(&self) -> bool {
        use BlockError::{Busy, Misaligned, OutOfRange, TooBig};
        let refused = |a: Answer| matches!(a.result, Err(Busy | Misaligned | OutOfRange | TooBig));
        self.gone.is_none() && self.answer.is_some_and(refused)
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
    /// In the order of the requests.
    pub ops: Vec<Record>,
    moment: u64,
}

impl History {
    /// Returns the next position in the order of requests and answers.
    pub fn tick(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// Returns what is known of each of these sectors: what the operation that was answered last
    /// left or saw.
    pub fn known(&self, volume: VolumeId, sectors: Range<u32>) -> Vec<Value> {
        let mut known = vec![(0, 0); sectors.len()];
        for (index, op) in self.ops.iter().enumerate() {
            let Some(answer) = op.answer.filter(|a| a.result.is_ok() && op.volume == volume) else {
                continue;
            };
            let common = sectors.start.max(op.sector)..sectors.end.min(op.sector + op.sectors);
            for sector in common {
                let value = match op.kind {
                    IoKind::Write | IoKind::Swap => Some(index as u32 + 1),
                    IoKind::Zero | IoKind::Discard => Some(0),
                    IoKind::Read => op.seen.get((sector - op.sector) as usize).copied(),
                    IoKind::Extents => None,
                };
                let known = &mut known[(sector - sectors.start) as usize];
                *known = value.map_or(*known, |value| (answer.moment, value).max(*known));
            }
        }
        known.into_iter().map(|(_, value)| value).collect()
    }

    /// Returns the operation that wrote this value.
    pub fn writer(&self, value: Value) -> Option<&Record> {
        self.ops.get((value as usize).checked_sub(1)?)
    }
}

//! Dataset Management with "deallocate": frees the space of ranges (base 6.7).
//!
//! Invariants: nothing is freed if any range exceeds the namespace. At most [`AT_ONCE`] requests of
//! a command are under way, each of at most 64 MiB. The command is a hint: if it takes too long, it
//! skips the remaining ranges and reports success.

use super::io::within;
use super::proto::*;
use super::queue::Queue;
use super::ranges::{RANGE, Ranges, range};
use super::status::Status;
use super::subsystem::Namespace;
use super::table::Work;
use super::wire::Turn;
use crate::Action;
use seam::{BlockKind, BlockRequest, Buf};

/// Most requests of one command at once.
const AT_ONCE: u32 = 8;

impl Queue {
    /// Begins to free the ranges of a command.
    pub(crate) fn deallocate(
        &mut self,
        handle: u32,
        namespace: &Namespace,
        list: Buf,
        turn: &mut Turn<'_>,
    ) {
        let entries = list.chunks_exact(RANGE as usize).map(range);
        let outside = |(first, len)| within(namespace, first, len / u64::from(BLOCK)).is_err();
        if entries.clone().any(outside) {
            return self.end(handle, Status::OUT_OF_RANGE, turn);
        }
        if let Some(task) = self.table.get(handle) {
            task.work = Work::Deallocate(Ranges::new(namespace.volume, list));
        }
        self.deallocate_more(handle, turn);
    }

    /// Begins the next requests, or answers the command.
    pub(crate) fn deallocate_more(&mut self, handle: u32, turn: &mut Turn<'_>) {
        let (now, patience) = (self.now, self.patience());
        let Some(task) = self.table.get(handle) else { return };
        let Work::Deallocate(ranges) = &mut task.work else { return };
        let late = |since, now: base::Time| now.since(since) * 2 >= patience;
        if task.failed.is_some() || task.since.zip(now).is_some_and(|(since, now)| late(since, now))
        {
            ranges.stop();
        }
        while task.pieces < AT_ONCE
            && let Some((number, at, len)) = ranges.take()
        {
            task.pieces += 1;
            let tag = u64::from(number) << 32 | u64::from(handle); // each has one of its own
            let (volume, kind) = (ranges.volume(), BlockKind::Zero { hole: true });
            let request = BlockRequest { volume, kind, at, len, body: Buf::EMPTY };
            turn.ask(Action::Request { tag, request });
        }
        self.advance(handle, turn);
    }
}

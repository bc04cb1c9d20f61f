//! The operations of a shard on files.
//!
//! Invariant: the kernel works on at most [`FILES`] operations. The others wait in the order in
//! which they came.

use super::Ready;
use crate::disk::FileOp;
use crate::sys::{FileCall, Sys};
use crate::table::Table;
use seam::{Buf, DiskError};
use std::collections::VecDeque;

/// File operations in flight at the same time. The kernel would hand operations beyond a device's
/// queue depth to its worker threads, which costs more than waiting here.
const FILES: usize = 128;

pub(super) struct Files {
    /// All operations, with the seats of their nodes.
    pub(super) table: Table<(u32, FileOp)>,
    /// Operations that the kernel works on, and those that wait for their turn.
    started: usize,
    waiting: VecDeque<u32>,
}

type Finished = Result<Buf, DiskError>;

impl Files {
    pub(super) fn new() -> Files {
        Files { table: Table::new(), started: 0, waiting: VecDeque::new() }
    }

    /// Adds an operation, and starts it if there is room.
    pub(super) fn add<S: Sys>(
        &mut self,
        sys: &mut S,
        seat: u32,
        file: FileOp,
        ready: &mut VecDeque<(u32, Ready)>,
    ) {
        let index = self.table.insert((seat, file));
        self.waiting.push_back(index);
        self.start(sys, ready);
    }

    /// Handles a completion. Returns the operation and its result if it has ended.
    pub(super) fn done<S: Sys>(
        &mut self,
        sys: &mut S,
        index: u32,
        result: i32,
        ready: &mut VecDeque<(u32, Ready)>,
    ) -> Option<(u32, FileOp, Finished)> {
        let result = self.ended(sys, index, result)?;
        let (seat, file) = self.table.remove(index)?;
        self.started -= 1;
        self.start(sys, ready);
        Some((seat, file, result))
    }

    /// Starts operations that wait, as far as there is room.
    fn start<S: Sys>(&mut self, sys: &mut S, ready: &mut VecDeque<(u32, Ready)>) {
        while self.started < FILES
            && let Some(index) = self.waiting.pop_front()
        {
            self.started += 1;
            let begun = self.work(sys, index);
            let Some(result) = begun.and_then(|r| self.ended(sys, index, r)) else { continue };
            self.started -= 1;
            if let Some((seat, file)) = self.table.remove(index) {
                ready.push_back((seat, Ready::DiskDone(file.op, result)));
            }
        }
    }

    /// Continues an operation until it ends or has to wait; returns its result if it ends.
    fn ended<S: Sys>(&mut self, sys: &mut S, index: u32, mut result: i32) -> Option<Finished> {
        loop {
            if let Some(ended) = self.table.get_mut(index)?.1.completed(result) {
                return Some(ended);
            }
            result = self.work(sys, index)?;
        }
    }

    /// Starts or continues an operation; returns its result if it is known at once.
    fn work<S: Sys>(&mut self, sys: &mut S, index: u32) -> Option<i32> {
        let (_, file) = self.table.get_mut(index)?;
        let (fd, call): (_, FileCall) = (file.fd, file.call());
        // SAFETY: the memory is the operation's own buffer; the operation stays in the table until
        // it completes, and its buffer is not accessed meanwhile.
        unsafe { sys.file(index, fd, call) }
    }
}

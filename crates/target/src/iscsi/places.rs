//! Counts the places that a session's commands take in the owner's table of requests. All sessions
//! share that table.
//!
//! Invariants:
//! - Data of writes takes at most `Limits::iscsi_requests` places: a command whose data would need
//!   more fails, and its host repeats it. Every other command takes at most one.
//! - While writes wait for space, new ones begin only below `Limits::iscsi_waiting` places. Reads
//!   and commands that free space are not held back.

use base::Limits;

/// The count of one session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    used: u32,
    most: u32,
    /// Commands that wait for space.
    full: u32,
    most_full: u32,
}

impl Places {
    /// Creates the count of a session without commands.
    pub(crate) fn new(limits: &Limits) -> Places {
        Places { used: 0, most: limits.iscsi_requests, full: 0, most_full: limits.iscsi_waiting }
    }

    /// Returns true if there is room for a request.
    pub(crate) fn has_room(&self) -> bool {
        self.used < self.most
    }

    /// Returns true if a command that writes may begin.
    pub(crate) fn admits_write(&self) -> bool {
        self.has_room() && (self.full == 0 || self.used < self.most_full)
    }

    /// Takes a place.
    pub(crate) fn take(&mut self) {
        self.used += 1;
    }

    /// Gives places back.
    pub(crate) fn give_back(&mut self, places: u32) {
        self.used -= places;
    }

    /// Counts a command that waits for space.
    pub(crate) fn waits(&mut self) {
        self.full += 1;
    }

    /// Counts the end of its wait.
    pub(crate) fn ended(&mut self) {
        self.full -= 1;
    }

    /// Returns the number of places that are taken.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_leave_room_while_there_is_no_space() {
        let limits = Limits { iscsi_requests: 4, iscsi_waiting: 2, ..Limits::SHIPPED };
        let mut places = Places::new(&limits);
        (0..3).for_each(|_| places.take());
        assert!(places.admits_write());
        places.waits();
        assert!(!places.admits_write() && places.has_room());
        places.give_back(2);
        assert!(places.admits_write());
        places.ended();
        (0..3).for_each(|_| places.take());
        assert!(!places.admits_write() && !places.has_room());
    }
}

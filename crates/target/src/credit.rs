//! Bounds the data in flight of a session: data requested from its host, and data being read from
//! volumes.
//!
//! Invariants:
//! - The data in flight is within the limit. The one exception is a single larger request that
//!   began while nothing was in flight, so that a command that needs more than the limit still
//!   proceeds.
//! - Credit that is given back was taken before.

/// The credit of an iSCSI session or an NVMe queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credit {
    solicited: u64,
    most_solicited: u64,
    read: u64,
    most_read: u64,
}

impl Credit {
    /// Creates credit for this many bytes from the host, and this many bytes of reads.
    pub(crate) fn new(most_solicited: u64, most_read: u64) -> Credit {
        Credit { solicited: 0, most_solicited, read: 0, most_read }
    }

    fn take(used: &mut u64, len: u32, most: u64) -> bool {
        let fits = *used == 0 || *used + u64::from(len) <= most;
        if fits {
            *used += u64::from(len);
        }
        fits
    }

    /// Takes credit for `len` bytes from the host, if there is enough.
    pub(crate) fn ask(&mut self, len: u32) -> bool {
        Credit::take(&mut self.solicited, len, self.most_solicited)
    }

    /// Gives it back.
    pub(crate) fn give_back(&mut self, len: u32) {
        self.solicited -= u64::from(len);
    }

    /// Takes credit to read `len` bytes, if there is enough.
    pub(crate) fn read(&mut self, len: u32) -> bool {
        Credit::take(&mut self.read, len, self.most_read)
    }

    /// Gives it back.
    pub(crate) fn read_done(&mut self, len: u32) {
        self.read -= u64::from(len);
    }

    /// Returns the bytes that were requested and are not processed yet, and those that are being
    /// read.
    pub(crate) fn used(&self) -> (u64, u64) {
        (self.solicited, self.read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_the_host_and_reads_have_limits_of_their_own() {
        let mut credit = Credit::new(100, 200);
        assert!(credit.ask(60) && !credit.ask(41) && credit.ask(40) && !credit.ask(1));
        assert!(credit.read(160) && !credit.read(41) && credit.read(40) && !credit.read(1));
        assert_eq!(credit.used(), (100, 200));
        credit.give_back(60);
        assert!(credit.ask(60) && !credit.read(1));
        credit.read_done(160);
        assert!(credit.read(160) && !credit.ask(1));
        assert_eq!(credit.used(), (100, 200));
    }

    #[test]
    fn one_command_may_need_more_than_the_limit() {
        let mut credit = Credit::new(100, 200);
        assert!(credit.ask(101) && !credit.ask(1));
        assert!(credit.read(u32::MAX) && !credit.read(1));
        credit.give_back(101);
        credit.read_done(u32::MAX);
        assert_eq!(credit.used(), (0, 0));
        assert!(credit.ask(1) && !credit.ask(100) && credit.read(1) && !credit.read(200));
    }
}

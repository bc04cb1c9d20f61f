//! What a queue may ask for at once, from its host and from volumes.
//!
//! Invariant: what is given back was taken.

/// What a queue may ask for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credit {
    solicited: u64,
    read: u64,
    most: u64,
}

impl Credit {
    /// Creates the credit of a queue: so many bytes in each direction.
    pub(crate) fn new(most: u32) -> Credit {
        Credit { solicited: 0, read: 0, most: most.into() }
    }

    fn take(used: &mut u64, len: u32, most: u64) -> bool {
        let fits = *used == 0 || *used + u64::from(len) <= most;
        if fits {
            *used += u64::from(len);
        }
        fits
    }

    /// Takes credit to ask the host for `len` bytes, if there is enough.
    pub(crate) fn ask(&mut self, len: u32) -> bool {
        Credit::take(&mut self.solicited, len, self.most)
    }

    /// Gives it back.
    pub(crate) fn give_back(&mut self, len: u32) {
        self.solicited -= u64::from(len);
    }

    /// Takes credit to read `len` bytes, if there is enough.
    pub(crate) fn read(&mut self, len: u32) -> bool {
        Credit::take(&mut self.read, len, self.most)
    }

    /// Gives it back.
    pub(crate) fn read_done(&mut self, len: u32) {
        self.read -= u64::from(len);
    }

    /// Returns the bytes that were asked for and are not done, and those that are being read.
    pub(crate) fn used(&self) -> (u64, u64) {
        (self.solicited, self.read)
    }
}

//! A device's access to a guest's memory.

/// A range of a guest's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// Its first address.
    pub at: u64,
    /// Its length in bytes.
    pub len: u32,
}

/// A guest's memory: regions of addresses, which the guest may change at any moment. No call
/// reaches beyond one region.
pub trait Memory {
    /// Returns the bytes from this address to the end of its region: 0 if no region has it.
    fn left(&self, at: u64) -> u64;

    /// Returns true if all of this range, which is not empty, lies in one region.
    fn has(&self, at: u64, len: u64) -> bool {
        (1..=self.left(at)).contains(&len)
    }

    /// Copies bytes out. Returns false if the range does not lie in one region.
    #[must_use]
    fn read(&self, at: u64, to: &mut [u8]) -> bool;

    /// Copies bytes in. Returns false if the range does not lie in one region.
    #[must_use]
    fn write(&self, at: u64, from: &[u8]) -> bool;

    /// Reads a number (little endian) atomically, with acquire ordering. `None` if it is in no
    /// region, or if its address is odd.
    fn load(&self, at: u64) -> Option<u16>;

    /// Writes a number (little endian) atomically, with release ordering. Returns false if it is in
    /// no region, or if its address is odd.
    #[must_use]
    fn store(&self, at: u64, value: u16) -> bool;
}

//! Orders for the kernel's user-space block driver, one at a time.
//!
//! Invariant: the kernel may use `data` from an order until its completion, so it is not touched in
//! between. It is never freed while an order is under way: some kernels don't end every order.

use super::abi;
use crate::error::RtError;
use crate::link::Pinned;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Bytes that an order reads or fills.
pub(super) type Data = [u8; abi::INFO];

/// How long the kernel may take for an order. It may notice the end of a server only when a request
/// is 30 s old.
const PATIENCE: Duration = Duration::from_secs(45);

/// The driver's control file, and a ring for orders.
pub(super) struct Control {
    ring: ManuallyDrop<IoUring<squeue::Entry128, cqueue::Entry>>,
    data: ManuallyDrop<Pinned<Data>>,
    file: OwnedFd,
    busy: bool,
}

impl Control {
    pub(super) fn open() -> Result<Control, RtError> {
        let file = super::open("/dev/ublk-control")?;
        let ring = IoUring::builder().build(4).map_err(RtError::system("io_uring_setup"))?;
        let data = Pinned::new([0; abi::INFO]);
        let (ring, data) = (ManuallyDrop::new(ring), ManuallyDrop::new(data));
        Ok(Control { ring, data, file, busy: false })
    }

    /// Begins an order for a device. `data` is what it reads; after the order, [`Control::data`] is
    /// what it has filled.
    ///
    /// # Errors
    /// Another order is under way, or the kernel takes none.
    pub(super) fn begin(
        &mut self,
        order: u32,
        device: u32,
        data: &[u8],
        value: u64,
    ) -> io::Result<()> {
        if self.busy {
            return Err(io::Error::other("an earlier order has not ended"));
        }
        let at = self.data.as_ptr();
        if !data.is_empty() {
            // SAFETY: no order is under way, so nothing else uses the memory.
            let bytes = unsafe { &mut *at };
            bytes[..data.len()].copy_from_slice(data);
        }
        let len = data.len() as u16;
        let address = if len > 0 { at.expose_provenance() as u64 } else { 0 };
        let bytes = abi::order(device, (address, len), value);
        let entry = opcode::UringCmd80::new(Fd(self.file.as_raw_fd()), order).cmd(bytes).build();
        // SAFETY: `data` stays in place and untouched until the completion.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| io::ErrorKind::WouldBlock)?;
        self.busy = true;
        self.ring.submit()?;
        Ok(())
    }

    /// Returns the result of the order, if it has ended.
    pub(super) fn ended(&mut self) -> Option<io::Result<()>> {
        let result = self.ring.completion().next()?.result();
        self.busy = false;
        Some(match result {
            0.. => Ok(()),
            error => Err(io::Error::from_raw_os_error(-error)),
        })
    }

    /// Executes an order.
    pub(super) fn call(
        &mut self,
        order: u32,
        device: u32,
        data: &[u8],
        value: u64,
    ) -> io::Result<()> {
        self.begin(order, device, data, value)?;
        let time = Timespec::new().sec(PATIENCE.as_secs());
        loop {
            if let Some(result) = self.ended() {
                return result;
            }
            match self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time)) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // An order that has no end keeps this ring busy for ever.
                Err(e) if e.raw_os_error() == Some(libc::ETIME) => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Returns what the last order has filled.
    pub(super) fn data(&self) -> &Data {
        assert!(!self.busy, "no order is under way");
        // SAFETY: the kernel does not use it any more.
        unsafe { &*self.data.as_ptr() }
    }

    /// Readable when an order has ended.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring's descriptor lives as long as the ring.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if self.busy {
            return; // the kernel still uses both
        }
        // SAFETY: each is dropped once, here.
        unsafe {
            ManuallyDrop::drop(&mut self.ring);
            ManuallyDrop::drop(&mut self.data);
        }
    }
}

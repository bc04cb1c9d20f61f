//! A disk of the kernel's user-space block driver (ublk, Linux 6.5 or later), with one queue.
//!
//! The kernel describes its requests in memory that it shares with this process. A command in an
//! io_uring waits for each one, and answers the request before. The data is copied by system calls,
//! straight between the kernel's pages and buffers of this process.
//!
//! If this process ends without [`Ublk::remove`], the disk stays. Its requests wait until another
//! process has adopted the device ([`Ublk::adopt`]), and that one gets them all again.
//!
//! Source: `Documentation/block/ublk.rst` of Linux.

mod abi;
mod control;

pub use abi::{UblkDisk, UblkOp, UblkRequest};

use crate::error::RtError;
use control::Control;
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// How long the kernel may take to notice that the former server of a device has ended: up to 30 s,
/// if all requests were under way.
const ENDING: Duration = Duration::from_secs(45);
/// How long the file of a new device may take to appear.
const APPEARING: Duration = Duration::from_secs(5);

/// A device that this process serves.
pub struct Ublk {
    number: u32,
    features: u64,
    control: Control,
    queue: Option<Queue>,
}

/// The requests of a device.
struct Queue {
    ring: IoUring,
    /// The shared descriptions, by the number of the request.
    descriptions: NonNull<u8>,
    bytes: usize,
    file: OwnedFd,
    /// Commands that wait in the kernel.
    waiting: u16,
}

/// Opens a file for reading and writing.
fn open(path: &str) -> Result<OwnedFd, RtError> {
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|why| RtError::Open { path: path.into(), source: why.into() })
}

impl Ublk {
    /// Makes a device without a disk.
    ///
    /// # Errors
    /// The driver is missing or too old, or memory is short.
    pub fn add(disk: &UblkDisk) -> Result<Ublk, RtError> {
        let (mut control, features) = opened()?;
        let added = control.call(abi::ADD, u32::MAX, &abi::info(disk, features), 0);
        added.map_err(RtError::system("the order to make a device"))?;
        let number = abi::read_info(control.data()).number;
        let set = control.call(abi::SET_PARAMS, number, &abi::params(disk), 0);
        let ublk = Ublk { number, features, control, queue: None };
        if let Err(why) = set {
            // The reason says more than a failure to remove the device.
            let _ = ublk.remove();
            return Err(RtError::system("the order to set a disk's properties")(why));
        }
        Ok(ublk)
    }

    /// Begins to start the disk: [`Ublk::ended`] tells when it is there. The kernel reads from the
    /// disk before that.
    ///
    /// # Errors
    /// Memory is short, or the kernel takes no order.
    pub fn start(&mut self) -> Result<(), RtError> {
        self.queue = Some(Queue::open(self.number)?);
        self.order(abi::START, std::process::id().into(), "the order to start a disk")
    }

    /// Takes over a device whose server has ended. [`Ublk::ended`] tells when it goes on.
    ///
    /// # Errors
    /// There is no such device, or its server has not ended.
    pub fn adopt(number: u32) -> Result<Ublk, RtError> {
        let (control, features) = opened()?;
        let mut ublk = Ublk { number, features, control, queue: None };
        let until = Instant::now() + ENDING;
        // The kernel needs a moment to notice that the former server has ended.
        while let Err(why) = ublk.control.call(abi::RECOVER, number, &[], 0) {
            if why.raw_os_error() != Some(libc::EBUSY) || Instant::now() > until {
                return Err(RtError::system("the order to take over a device")(why));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        ublk.queue = Some(Queue::open(number)?);
        ublk.order(abi::RECOVERED, std::process::id().into(), "the order to go on with a disk")?;
        Ok(ublk)
    }

    /// Returns the number of the device with this mark, if there is one, and whether it has a disk.
    ///
    /// # Errors
    /// The driver is missing or too old.
    pub fn find(mark: u64) -> Result<Option<(u32, bool)>, RtError> {
        let (mut control, _) = opened()?;
        let entries = std::fs::read_dir("/sys/class/ublk-char").into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name());
        let numbers = names.filter_map(|name| name.to_str()?.strip_prefix("ublkc")?.parse().ok());
        let mut all = numbers.filter_map(|number| info_of(&mut control, number));
        Ok(all.find(|info| info.mark == mark).map(|info| (info.number, info.started)))
    }

    /// Ends the disk of a device that no process serves, if it has this mark. Its requests fail.
    ///
    /// # Errors
    /// The kernel does not end it.
    pub fn stop_orphan(number: u32, mark: u64) -> Result<(), RtError> {
        let (mut control, _) = opened()?;
        if !is_marked(&mut control, number, mark) {
            return Ok(());
        }
        let stopped = control.call(abi::STOP, number, &[], 0);
        stopped.map_err(RtError::system("the order to stop a disk"))
    }

    /// Removes a device that no process serves, if it has this mark. Nobody uses its disk.
    ///
    /// # Errors
    /// The kernel does not remove it, or the disk is in use.
    pub fn remove_orphan(number: u32, mark: u64) -> Result<(), RtError> {
        Ublk::stop_orphan(number, mark)?;
        let (mut control, _) = opened()?;
        match is_marked(&mut control, number, mark) {
            true => delete(&mut control, number),
            false => Ok(()),
        }
    }

    /// Returns the number of the device: its disk is `/dev/ublkbN`.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Begins to end the disk: [`Ublk::ended`] tells when it is gone. Its requests are served until
    /// then.
    ///
    /// # Errors
    /// The kernel takes no order.
    pub fn stop(&mut self) -> Result<(), RtError> {
        self.order(abi::STOP, 0, "the order to stop a disk")
    }

    /// Sets the size of the disk, in bytes. Returns false if the kernel can't (before Linux 6.16).
    ///
    /// # Errors
    /// The kernel takes no order.
    pub fn resize(&mut self, size: u64) -> Result<bool, RtError> {
        if self.features & abi::UPDATES_SIZE == 0 {
            return Ok(false);
        }
        self.order(abi::UPDATE_SIZE, size / abi::SECTOR, "the order to resize a disk")?;
        Ok(true)
    }

    fn order(&mut self, order: u32, value: u64, what: &'static str) -> Result<(), RtError> {
        self.control.begin(order, self.number, &[], value).map_err(RtError::system(what))
    }

    /// Returns the result of the order that was begun, if it has ended.
    pub fn ended(&mut self) -> Option<io::Result<()>> {
        self.control.ended()
    }

    /// Appends the requests that have arrived. Returns false when no more will come.
    ///
    /// # Errors
    /// The kernel reports a failure of the device.
    pub fn requests(&mut self, to: &mut Vec<UblkRequest>) -> Result<bool, RtError> {
        let Some(queue) = &mut self.queue else { return Ok(false) };
        queue.requests(to).map_err(RtError::system("a command for a disk's requests"))
    }

    /// Copies the data of a write. Its buffer is as long as the request.
    ///
    /// # Errors
    /// The kernel does not have the request any more.
    pub fn take(&self, tag: u16, to: &mut [u8]) -> io::Result<()> {
        let at = abi::data_at(tag);
        exactly(to.len(), |from| rustix::io::pread(self.file()?, &mut to[from..], at + from as u64))
    }

    /// Copies the data of a read into the request.
    ///
    /// # Errors
    /// The kernel does not have the request any more.
    pub fn give(&self, tag: u16, data: &[u8]) -> io::Result<()> {
        let at = abi::data_at(tag);
        exactly(data.len(), |from| {
            rustix::io::pwrite(self.file()?, &data[from..], at + from as u64)
        })
    }

    fn file(&self) -> rustix::io::Result<&OwnedFd> {
        self.queue.as_ref().map(|queue| &queue.file).ok_or(rustix::io::Errno::NODEV)
    }

    /// Answers a request, with its length in bytes or with an error. [`Ublk::submit`] sends it.
    ///
    /// # Panics
    /// If the request was answered before.
    pub fn answer(&mut self, tag: u16, result: Result<u32, rustix::io::Errno>) {
        let result = match result {
            Ok(bytes) => bytes.cast_signed(),
            Err(why) => -why.raw_os_error(),
        };
        if let Some(queue) = &mut self.queue {
            queue.push(abi::COMMIT, tag, result);
        }
    }

    /// Sends the answers.
    ///
    /// # Errors
    /// The kernel takes no commands.
    pub fn submit(&mut self) -> Result<(), RtError> {
        self.queue.as_mut().map_or(Ok(()), Queue::submit)
    }

    /// Readable when requests have arrived.
    pub fn requests_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the ring's descriptor lives as long as the ring.
        self.queue.as_ref().map(|queue| unsafe { BorrowedFd::borrow_raw(queue.ring.as_raw_fd()) })
    }

    /// Readable when the order that was begun has ended.
    pub fn order_fd(&self) -> BorrowedFd<'_> {
        self.control.fd()
    }

    /// Removes a device whose disk has ended, or never started.
    ///
    /// # Errors
    /// The kernel does not remove it.
    pub fn remove(mut self) -> Result<(), RtError> {
        self.queue = None;
        // An earlier order may not have ended.
        delete(&mut Control::open()?, self.number)
    }
}

/// Opens the control file, and returns it with the features of the driver.
fn opened() -> Result<(Control, u64), RtError> {
    let mut control = Control::open()?;
    let asked = control.call(abi::GET_FEATURES, u32::MAX, &[0; 8], 0);
    let features = u64::from_ne_bytes(*control.data().first_chunk().expect("it is long enough"));
    match asked {
        Ok(()) if features & abi::NEEDED == abi::NEEDED => Ok((control, features)),
        Err(why) if !is_unknown(&why) => {
            Err(RtError::system("the order that asks for the features of ublk")(why))
        }
        // Before Linux 6.5, the order is unknown, or is about a device that does not exist.
        _ => Err(RtError::OldUblk),
    }
}

/// Returns true for the errors by which an older driver refuses an order that it does not know.
fn is_unknown(why: &io::Error) -> bool {
    matches!(why.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENODEV | libc::EINVAL))
}

/// Returns the description of a device. `None`: there is no such device.
fn info_of(control: &mut Control, number: u32) -> Option<abi::Info> {
    control.call(abi::GET_INFO, number, &[0; abi::INFO], 0).ok()?;
    Some(abi::read_info(control.data()))
}

fn is_marked(control: &mut Control, number: u32, mark: u64) -> bool {
    info_of(control, number).is_some_and(|info| info.mark == mark)
}

fn delete(control: &mut Control, number: u32) -> Result<(), RtError> {
    control.call(abi::DELETE, number, &[], 0).map_err(RtError::system("the order to remove a disk"))
}

/// Repeats a system call that may copy less than it was asked for.
fn exactly(len: usize, mut call: impl FnMut(usize) -> rustix::io::Result<usize>) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        match call(done) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => done += bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(why) => return Err(why.into()),
        }
    }
    Ok(())
}

impl Queue {
    /// Opens the file of a device, and begins to wait for requests.
    fn open(number: u32) -> Result<Queue, RtError> {
        let path = format!("/dev/ublkc{number}");
        let until = Instant::now() + APPEARING;
        let file = loop {
            match open(&path) {
                // devtmpfs or udev makes it.
                Err(RtError::Open { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && Instant::now() < until => {}
                opened => break opened?,
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let depth = usize::from(abi::DEPTH);
        let bytes = (depth * abi::DESCRIPTION).next_multiple_of(rustix::param::page_size());
        let (rights, flags) = (ProtFlags::READ, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: the kernel chooses the address, so nothing that is mapped is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, rights, flags, &file, 0) };
        let start = start.map_err(|why| RtError::system("mmap")(why.into()))?;
        let descriptions = NonNull::new(start.cast()).expect("a mapping is not at address 0");
        // A ring without deferred work: this thread waits in `poll`.
        let ring =
            IoUring::new(u32::from(abi::DEPTH)).map_err(RtError::system("io_uring_setup"))?;
        let mut queue = Queue { ring, descriptions, bytes, file, waiting: 0 };
        (0..abi::DEPTH).for_each(|tag| queue.push(abi::FETCH, tag, 0));
        queue.submit()?;
        Ok(queue)
    }

    fn push(&mut self, command: u32, tag: u16, result: i32) {
        let fd = Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd16::new(fd, command).cmd(abi::command(tag, result)).build();
        assert!(self.waiting < abi::DEPTH, "each request is answered once");
        self.waiting += 1;
        // SAFETY: the command names no memory.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(tag.into())) };
        pushed.expect("the ring has room for a command of each request");
    }

    fn submit(&mut self) -> Result<(), RtError> {
        let queue = self.ring.submission();
        let (idle, len) = (queue.is_empty(), queue.cq_overflow());
        drop(queue);
        if idle && !len {
            return Ok(());
        }
        match self.ring.submit() {
            Ok(_) => Ok(()),
            // The rest goes with the next call.
            Err(e)
                if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) =>
            {
                Ok(())
            }
            Err(e) => Err(RtError::system("io_uring_enter")(e)),
        }
    }

    fn requests(&mut self, to: &mut Vec<UblkRequest>) -> io::Result<bool> {
        let mut failed = None;
        let mut ready = [0; abi::DEPTH as usize];
        let mut count = 0;
        for done in self.ring.completion() {
            self.waiting -= 1;
            match done.result() {
                0 => {
                    ready[count] = done.user_data() as u16;
                    count += 1;
                }
                error if error == -libc::ENODEV => {} // the disk has ended
                error => failed = Some(io::Error::from_raw_os_error(-error)),
            }
        }
        for tag in &ready[..count] {
            to.push(abi::request(*tag, &self.description(*tag)));
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(self.waiting > 0 || count > 0),
        }
    }

    fn description(&self, tag: u16) -> [u8; abi::DESCRIPTION] {
        let at = usize::from(tag) * abi::DESCRIPTION;
        assert!(at + abi::DESCRIPTION <= self.bytes, "the kernel numbers requests below the depth");
        // SAFETY: the range is mapped for as long as `self` lives. The kernel wrote it before the
        // completion of the command, and does not change it before the answer.
        unsafe { self.descriptions.add(at).cast::<[u8; abi::DESCRIPTION]>().read_volatile() }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference to it outlives the value.
        let _ = unsafe { munmap(self.descriptions.as_ptr().cast(), self.bytes) };
    }
}

//! One device without a shard: the caller starts operations and waits for them to end.
//!
//! It serves tools that look at a device offline, and tests and benchmarks of code that runs on
//! one. It carries out the device effects of a core with the same code as a shard. It has no links
//! and no timers.
//!
//! Invariant: as in a shard, the memory of an operation stays allocated until the kernel is done
//! with it, even when the drive is dropped.

use crate::config::{Backend, DiskSpec};
use crate::device::Device;
use crate::disk::{self, Act, Begun, Disk, FileOp, Zeros};
use crate::error::RtError;
use crate::probe;
use crate::shadow::Shadow;
use crate::signal::Waker;
use crate::sys::{
    Done, Sys, Token,
    epoll::Epoll,
    uring::{Uring, Waits},
};
use crate::table::Table;
use seam::{Buf, BufPool, DiskError, DiskOp, Effect, Effects};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

/// A completed operation and its result.
pub type Ended = (DiskOp, Result<Buf, DiskError>);

/// How long a dropped drive waits for the kernel to complete everything.
const LAST_WAIT: Duration = Duration::from_secs(10);

#[allow(clippy::large_enum_variant)] // There is one per drive, and it is not moved around.
enum Engine {
    Uring(Uring),
    Plain(Epoll),
}

/// Makes the same call on either engine.
macro_rules! on {
    ($engine:expr, $sys:ident => $call:expr) => {
        match $engine {
            Engine::Uring($sys) => $call,
            Engine::Plain($sys) => $call,
        }
    };
}

/// An open device. It stays on the thread that opened it.
pub struct OfflineDevice {
    engine: Engine,
    /// The engine watches it; no thread wakes a drive.
    _waker: Waker,
    disk: Disk,
    pool: BufPool,
    zeros: Zeros,
    files: Table<FileOp>,
    running: usize,
    ready: VecDeque<Ended>,
    done: Vec<Done>,
    /// `Some`: the device is not modified.
    shadow: Option<Shadow>,
}

impl OfflineDevice {
    /// Opens a device for exclusive use by this process.
    pub fn open(spec: &DiskSpec, backend: Backend) -> Result<OfflineDevice, RtError> {
        OfflineDevice::new(Disk::open(spec)?, backend, None)
    }

    /// Opens a file or block device that must not change, and that no process writes to. The device
    /// is opened for reading only. Writes are kept in memory, reads see them, and flushes do
    /// nothing.
    pub fn read_only(path: &Path) -> Result<OfflineDevice, RtError> {
        let disk = Disk::File(Device::read_only(path)?);
        OfflineDevice::new(disk, Backend::Auto, Some(Shadow::default()))
    }

    fn new(disk: Disk, backend: Backend, shadow: Option<Shadow>) -> Result<OfflineDevice, RtError> {
        let waker = Waker::new()?;
        let engine = match probe::choose(backend)?.backend {
            Backend::Epoll => {
                let sys = Epoll::new(waker.as_fd()).map_err(RtError::system("epoll_create"))?;
                Engine::Plain(sys)
            }
            Backend::Auto | Backend::Uring => Engine::Uring(
                Uring::new(waker.as_fd(), Waits::InRing)
                    .map_err(|e| RtError::NoUring { why: e.to_string() })?,
            ),
        };
        Ok(OfflineDevice {
            engine,
            _waker: waker,
            disk,
            pool: BufPool::new(16 << 20),
            zeros: Zeros::default(),
            files: Table::new(),
            running: 0,
            ready: VecDeque::new(),
            done: Vec::new(),
            shadow,
        })
    }

    /// Returns the size of the device in bytes, as it was when it was opened.
    pub fn bytes(&self) -> u64 {
        self.disk.bytes()
    }

    /// Returns one line for the user if the device uses the page cache, with the reason.
    pub fn notice(&self) -> Option<&str> {
        self.disk.notice()
    }

    /// Returns the pool that buffers come from.
    pub fn pool(&self) -> &BufPool {
        &self.pool
    }

    /// Starts the device operations among the effects that a core emitted. Other effects are
    /// dropped. The device id is ignored, because a drive has one device.
    pub fn begin_all(&mut self, out: &mut Effects) {
        for effect in out.drain() {
            match effect {
                Effect::Read { op, at, len, .. } => self.begin(op, Act::Read { at, len }),
                Effect::Write { op, at, body, durable, .. } => {
                    self.begin(op, Act::Write { at, body, durable });
                }
                Effect::Flush { op, .. } => self.begin(op, Act::Flush),
                Effect::Punch { op, at, len, .. } => self.begin(op, Act::Punch { at, len }),
                _ => {}
            }
        }
    }

    fn begin(&mut self, op: DiskOp, act: Act) {
        let begun = match (act, &mut self.shadow) {
            (Act::Write { at, body, .. }, Some(shadow)) => {
                Begun::Ended(match self.disk.has(at, body.len()) {
                    true => {
                        shadow.write(at, &body);
                        Ok(Buf::EMPTY)
                    }
                    false => Err(DiskError::OutOfRange),
                })
            }
            (Act::Flush, Some(_)) => Begun::Ended(Ok(Buf::EMPTY)),
            (Act::Punch { .. }, Some(_)) => Begun::Ended(Err(DiskError::Unsupported)),
            (act, _) => disk::begin(&mut self.disk, op, act, &self.pool, &mut self.zeros),
        };
        match begun {
            Begun::Ended(result) => self.ready.push_back((op, result)),
            Begun::File(file) => {
                let index = self.files.insert(file);
                self.running += 1;
                self.go_on(index, None);
            }
        }
    }

    /// Continues an operation until it ends or has to wait; `result` is the kernel's last answer to
    /// it.
    fn go_on(&mut self, index: u32, mut result: Option<i32>) {
        loop {
            let Some(file) = self.files.get_mut(index) else { return };
            if let Some(ended) = result.and_then(|r| file.completed(r)) {
                let (op, at) = (file.op, file.at);
                self.files.remove(index);
                self.running -= 1;
                let ended = ended.map(|data| self.covered(at, data));
                return self.ready.push_back((op, ended));
            }
            let (fd, call) = (file.fd, file.call());
            // SAFETY: the memory is the operation's own buffer; the operation stays in `files`
            // until it completes, and its buffer is not accessed meanwhile.
            result = on!(&mut self.engine, sys => unsafe { sys.file(index, fd, call) });
            if result.is_none() {
                return;
            }
        }
    }

    fn covered(&self, at: u64, mut data: Buf) -> Buf {
        if let Some(shadow) = &self.shadow {
            shadow.cover(at, data.as_mut());
        }
        data
    }

    /// Waits for an operation to end and returns it. `None`: no operation is in flight.
    pub fn wait(&mut self) -> Result<Option<Ended>, RtError> {
        while self.ready.is_empty() && self.running > 0 {
            self.reap(None)?;
        }
        Ok(self.ready.pop_front())
    }

    /// Returns an operation that has ended, if there is one. Submits those that were started.
    pub fn poll(&mut self) -> Result<Option<Ended>, RtError> {
        if self.ready.is_empty() && self.running > 0 {
            self.reap(Some(Duration::ZERO))?;
        }
        Ok(self.ready.pop_front())
    }

    fn reap(&mut self, at_most: Option<Duration>) -> Result<(), RtError> {
        let mut done = std::mem::take(&mut self.done);
        on!(&mut self.engine, sys => sys.wait(at_most, &mut done))
            .map_err(RtError::system("waiting for I/O"))?;
        for d in done.drain(..) {
            if let Token::Disk(index) = d.token {
                self.go_on(index, Some(d.result));
            }
        }
        self.done = done;
        Ok(())
    }
}

impl Drop for OfflineDevice {
    fn drop(&mut self) {
        on!(&mut self.engine, sys => sys.cancel_all());
        let until = crate::clock::now() + LAST_WAIT;
        let mut left = true;
        while left && crate::clock::now() < until {
            let pause = Some(Duration::from_millis(100));
            left = on!(&mut self.engine, sys => {
                sys.in_flight() > 0 && sys.wait(pause, &mut self.done).is_ok()
            });
            self.done.clear();
        }
        if on!(&self.engine, sys => sys.in_flight()) > 0 {
            let _ = ManuallyDrop::new(std::mem::replace(&mut self.files, Table::new()));
        }
    }
}

//! The public entry: bind a shard, then run a node on it.

use crate::config::{Backend, Config, ListenAddr};
use crate::disk::Disk;
use crate::error::RtError;
use crate::mailbox::{Desk, Mailbox};
use crate::net;
use crate::probe::{self, Choice};
use crate::shard::{self, Parts};
use crate::signal::{Stop, Waker};
use crate::sys::{Sys, epoll::Epoll, uring::Uring};
use base::{Prng, Time};
use seam::{BufPool, DiskId, Effects, Node, Note};
use std::os::fd::AsFd;
use std::sync::Arc;

/// A shard that has its addresses and devices, and waits for a node to run.
///
/// It listens already: who dials it meanwhile waits until it runs. It may be moved to the thread
/// that runs it. Dropped without having run, it frees everything.
pub struct Shard {
    parts: Parts,
    choice: Choice,
    mailbox: Mailbox,
    addrs: Vec<ListenAddr>,
    pin: Option<usize>,
    pool_bytes: usize,
    seed: u64,
}

impl Shard {
    /// Listens, opens the devices, and chooses the backend. Also raises this process's limit on
    /// open files to what it may have.
    pub fn bind(config: Config) -> Result<Shard, RtError> {
        net::raise_open_files();
        let choice = probe::choose(config.backend)?;
        let waker = Arc::new(Waker::new()?);
        let mut listeners = Vec::new();
        for l in &config.listeners {
            listeners.push((l.port, net::listen(&l.at)?));
        }
        let disks = config.disks.iter().map(Disk::open).collect::<Result<Vec<_>, _>>()?;
        let mailbox = Mailbox::new(waker.clone());
        let desk = Desk::new(mailbox.clone());
        Ok(Shard {
            addrs: listeners.iter().map(|(_, l)| l.at.clone()).collect(),
            parts: Parts {
                waker,
                listeners,
                disks,
                desk,
                spin: config.spin,
                link_queue: config.link_queue,
            },
            choice,
            mailbox,
            pin: config.pin,
            pool_bytes: config.pool_bytes,
            seed: config.seed,
        })
    }

    /// Where it listens, in the configuration's order, with the real ports.
    pub fn addrs(&self) -> &[ListenAddr] {
        &self.addrs
    }

    /// The backend that was chosen: never [`Backend::Auto`].
    pub fn backend(&self) -> Backend {
        self.choice.backend
    }

    /// Why [`Backend::Auto`] did not choose io_uring: one line for the log.
    pub fn notice(&self) -> Option<&str> {
        self.choice.notice.as_deref()
    }

    /// The size of a device; of a file, its present size. `None`: there is no such device.
    pub fn disk_bytes(&self, disk: DiskId) -> Option<u64> {
        self.parts.disks.get(disk.0 as usize).map(Disk::bytes)
    }

    /// The way for other threads to send requests to the node. It ends with the shard.
    pub fn mailbox(&self) -> Mailbox {
        self.mailbox.clone()
    }

    /// Runs the node on this thread until `stop`. `on_note` gets what the node reports; it is called
    /// within the loop, so it must be quick.
    ///
    /// On return all links are closed; what was queued and did not go out at once is lost. So it is
    /// when the node panics: then, too, no memory is freed that the kernel may write to.
    pub fn run<N: Node>(
        self,
        node: &mut N,
        stop: &Stop,
        on_note: impl FnMut(Time, Note),
    ) -> Result<(), RtError> {
        if let Some(core) = self.pin {
            pin(core)?;
        }
        let out = Effects::new(BufPool::new(self.pool_bytes), Prng::new(self.seed), None);
        let waker = self.parts.waker.clone();
        stop.add(&waker);
        match self.choice.backend {
            Backend::Epoll => {
                let sys = Epoll::new(waker.as_fd()).map_err(RtError::system("epoll_create"))?;
                run_on(sys, self.parts, out, node, stop, on_note)
            }
            Backend::Auto | Backend::Uring => {
                // It was tried at `bind`; what may have gone since is memory.
                let sys = Uring::new(waker.as_fd())
                    .map_err(|e| RtError::NoUring { why: e.to_string() })?;
                run_on(sys, self.parts, out, node, stop, on_note)
            }
        }
    }
}

fn run_on<N: Node, S: Sys>(
    sys: S,
    parts: Parts,
    out: Effects,
    node: &mut N,
    stop: &Stop,
    on_note: impl FnMut(Time, Note),
) -> Result<(), RtError> {
    shard::Shard::new(sys, parts, out, node, on_note).run(stop)
}

fn pin(core: usize) -> Result<(), RtError> {
    let fail = |source| RtError::Pin { core, source };
    if core >= rustix::thread::CpuSet::MAX_CPU {
        return Err(fail(std::io::ErrorKind::InvalidInput.into()));
    }
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).map_err(|e| fail(e.into()))
}

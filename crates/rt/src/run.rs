//! The public entry point: binds a shard, then runs its nodes.

use crate::config::{Backend, Config, ListenAddr, Listener};
use crate::disk::Disk;
use crate::error::RtError;
use crate::net;
use crate::probe::{self, Choice};
use crate::reactor::{Engine, Reactor};
use crate::shard::{self, NodeResources, Parts};
use crate::signal::{Stop, Waker};
use crate::sys::{
    epoll::Epoll,
    uring::{Uring, Waits},
};
use base::{Prng, Time};
use seam::{BufPool, DiskId, Effects, Node, Note, Port};
use std::os::fd::AsFd;
use std::sync::Arc;

/// A shard with open addresses and devices, before its nodes run.
///
/// It already listens; connections made now wait until it runs. It may be moved to the thread that
/// runs it. Dropping it before it has run frees everything.
pub struct Shard {
    parts: Parts,
    choice: Choice,
    notice: Option<String>,
    pin: Option<usize>,
    pool_bytes: usize,
    seed: u64,
}

impl Shard {
    /// Listens, opens the devices, and chooses the backend. Also raises this process's soft limit
    /// on open files to its hard limit.
    pub fn bind(config: Config) -> Result<Shard, RtError> {
        net::raise_open_files();
        let choice = probe::choose(config.backend)?;
        let waker = Arc::new(Waker::new()?);
        let mut seats = Vec::new();
        for seat in &config.seats {
            let local = |l: &Listener| config.local && l.port == Port::Ours;
            let listen = |l: &Listener| Ok((l.port, net::listen(&l.at, local(l))?));
            let listeners =
                seat.listeners.iter().map(listen).collect::<Result<Vec<_>, RtError>>()?;
            let disks = seat.disks.iter().map(Disk::open).collect::<Result<Vec<_>, _>>()?;
            seats.push(NodeResources { listeners, disks });
        }
        let disks = seats.iter().flat_map(|s| &s.disks).filter_map(Disk::notice);
        let notices: Vec<&str> = choice.notice.as_deref().into_iter().chain(disks).collect();
        let notice = (!notices.is_empty()).then(|| notices.join("; "));
        Ok(Shard {
            notice,
            parts: Parts {
                waker,
                seats,
                spin: config.spin,
                link_queue: config.link_queue,
                local: config.local,
            },
            choice,
            pin: config.pin,
            pool_bytes: config.pool_bytes,
            seed: config.seed,
        })
    }

    /// Returns the addresses at which this seat's node listens, in the order of the configuration
    /// and with the actual ports.
    pub fn addrs(&self, seat: usize) -> Vec<ListenAddr> {
        self.parts.seats[seat].listeners.iter().map(|(_, l)| l.at.clone()).collect()
    }

    /// Returns the chosen backend, never [`Backend::Auto`].
    pub fn backend(&self) -> Backend {
        self.choice.backend
    }

    /// Returns one line for the log with what the user should know: why [`Backend::Auto`] did not
    /// choose io_uring, and which devices use the page cache.
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// Returns the size of a seat's device; for a growing file, its present size. `None`: there is
    /// no such device.
    pub fn disk_bytes(&self, seat: usize, disk: DiskId) -> Option<u64> {
        self.parts.seats.get(seat)?.disks.get(disk.0 as usize).map(Disk::bytes)
    }

    /// Runs the nodes, one per seat, on this thread until `stop`. `on_note` receives their notes
    /// with the index of the seat. It is called within the loop, so it must return quickly.
    ///
    /// On return all links are closed; queued data that could not be sent at once is lost. The same
    /// holds when a node panics, and even then no memory is freed that the kernel may still write
    /// to.
    ///
    /// # Panics
    /// When the number of nodes differs from the number of seats.
    pub fn run<N: Node>(
        self,
        nodes: Vec<N>,
        stop: &Stop,
        on_note: impl FnMut(usize, Time, Note),
    ) -> Result<(), RtError> {
        stop.add(&self.parts.waker);
        match self.engine(nodes, on_note, Waits::InRing)? {
            Engine::Uring(mut shard) => shard.run(stop),
            Engine::Epoll(mut shard) => shard.run(stop),
        }
    }

    /// Returns a [`Reactor`], whose loop the caller drives: for a program that waits for its own
    /// requests anyway and does not want another thread in between. Panics as [`Shard::run`] does.
    pub fn start<N: Node, T: FnMut(usize, Time, Note)>(
        self,
        nodes: Vec<N>,
        on_note: T,
    ) -> Result<Reactor<N, T>, RtError> {
        Reactor::start(self.engine(nodes, on_note, Waits::InPoll)?)
    }

    fn engine<N: Node, T: FnMut(usize, Time, Note)>(
        self,
        nodes: Vec<N>,
        on_note: T,
        waits: Waits,
    ) -> Result<Engine<N, T>, RtError> {
        if let Some(core) = self.pin {
            pin(core)?;
        }
        let out = Effects::new(BufPool::new(self.pool_bytes), Prng::new(self.seed), None)
            .with_secrets(random);
        let waker = self.parts.waker.clone();
        Ok(match self.choice.backend {
            Backend::Epoll => {
                let sys = Epoll::new(waker.as_fd()).map_err(RtError::system("epoll_create"))?;
                Engine::Epoll(shard::Shard::new(sys, self.parts, out, nodes, on_note))
            }
            Backend::Auto | Backend::Uring => {
                // `bind` has tried it; what may be missing by now is memory.
                let sys = Uring::new(waker.as_fd(), waits)
                    .map_err(|e| RtError::NoUring { why: e.to_string() })?;
                Engine::Uring(shard::Shard::new(sys, self.parts, out, nodes, on_note))
            }
        })
    }
}

/// Fills a buffer with random bytes of the kernel. Panics if the kernel has none: a guess in their
/// place would be no secret. Every kernel that starts processes has some.
fn random(bytes: &mut [u8]) {
    let mut at = 0;
    while at < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[at..], rustix::rand::GetRandomFlags::empty()) {
            Ok(got) => at += got,
            Err(rustix::io::Errno::INTR) => {}
            Err(why) => panic!("the kernel gives no random numbers: {why}"),
        }
    }
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

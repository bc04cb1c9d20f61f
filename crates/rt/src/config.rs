//! The configuration of a shard: plain data, checked when the shard is bound.

use base::Limits;
use seam::Port;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// How the shard talks to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Backend {
    /// io_uring where the kernel allows it, else epoll; [`crate::Shard::notice`] gives the reason.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// epoll, `sendmsg` and `recvmsg`; files are read and written synchronously.
    Epoll,
}

impl FromStr for Backend {
    type Err = String;
    fn from_str(s: &str) -> Result<Backend, String> {
        match s {
            "auto" => Ok(Backend::Auto),
            "uring" | "io_uring" | "io-uring" => Ok(Backend::Uring),
            "epoll" => Ok(Backend::Epoll),
            _ => Err(format!("no backend {s:?}: choose auto, uring or epoll")),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Auto => "auto",
            Backend::Uring => "uring",
            Backend::Epoll => "epoll",
        })
    }
}

/// Where to listen.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ListenAddr {
    /// A TCP address; port 0 lets the kernel choose.
    Tcp(SocketAddr),
    /// A unix socket. A socket file left by a dead process is replaced.
    Unix(PathBuf),
}

impl ListenAddr {
    /// Returns the TCP address, if it is one.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            ListenAddr::Tcp(at) => Some(*at),
            ListenAddr::Unix(_) => None,
        }
    }
}

impl From<SocketAddr> for ListenAddr {
    fn from(at: SocketAddr) -> ListenAddr {
        ListenAddr::Tcp(at)
    }
}

impl FromStr for ListenAddr {
    type Err = String;
    /// Parses `ip:port`, `[ip6]:port`, or a path: `unix:PATH`, or anything with a slash.
    fn from_str(s: &str) -> Result<ListenAddr, String> {
        if let Some(path) = s.strip_prefix("unix:") {
            return Ok(ListenAddr::Unix(path.into()));
        }
        if s.contains('/') {
            return Ok(ListenAddr::Unix(s.into()));
        }
        s.parse()
            .map(ListenAddr::Tcp)
            .map_err(|_| format!("{s:?} is no address: write ip:port (0.0.0.0:7000), or unix:PATH"))
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddr::Tcp(at) => at.fmt(f),
            ListenAddr::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// An address at which a shard accepts links.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    /// The protocol spoken at this address.
    pub port: Port,
    /// The address.
    pub at: ListenAddr,
}

/// One device of a shard; its index in the configuration is its [`seam::DiskId`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskSpec {
    /// Memory of this many bytes. Pages are allocated on first write, and lost with the process.
    Ram(u64),
    /// A device that discards writes and reads as zeros: this many bytes, up to 2^63.
    Null(u64),
    /// A file without a fixed end, for logs. It is created if it does not exist, grows when it is
    /// written beyond its end, and reads as zeros there. It takes any range and uses the page
    /// cache. It is locked, so only one process can use it at a time.
    Growing {
        /// Its path.
        path: PathBuf,
    },
    /// A file used as a device: it has a fixed size and takes ranges of whole 4 KiB blocks. It uses
    /// direct I/O where the file system allows it; otherwise [`crate::Shard::notice`] says so. It
    /// is locked, and never truncated.
    File {
        /// Its path.
        path: PathBuf,
        /// Size in bytes for a sparse file, if the file is missing or empty. `None`: it must exist.
        size: Option<u64>,
        /// Each write is durable when it completes, without a flush.
        write_through: bool,
    },
    /// A block device, with the same rules for ranges as a file. A device that is mounted, in use
    /// by another program, or read-only is refused.
    Block {
        /// Its path.
        path: PathBuf,
        /// Each write is durable when it completes, without a flush.
        write_through: bool,
    },
}

impl DiskSpec {
    /// Returns a file device that needs flushes. It gets `size` bytes if it has to be created.
    pub fn file(path: impl Into<PathBuf>, size: Option<u64>) -> DiskSpec {
        DiskSpec::File { path: path.into(), size, write_through: false }
    }

    /// Returns a block device that needs flushes.
    pub fn block(path: impl Into<PathBuf>) -> DiskSpec {
        DiskSpec::Block { path: path.into(), write_through: false }
    }
}

/// The listeners and devices of one node of a shard.
#[derive(Clone, Debug, Default)]
pub struct Seat {
    /// The addresses at which the node accepts links.
    pub listeners: Vec<Listener>,
    /// The devices.
    pub disks: Vec<DiskSpec>,
}

/// The configuration of a shard.
#[derive(Clone, Debug)]
pub struct Config {
    /// How to talk to the kernel.
    pub backend: Backend,
    /// One per node; usually there is one.
    pub seats: Vec<Seat>,
    /// The processor core that the shard's thread is pinned to.
    pub pin: Option<usize>,
    /// How long to poll after the last event before sleeping. A wake-up costs more than 20 us, so
    /// this decides the latency of a client that waits for each answer. Zero: sleep at once. While
    /// polling finds nothing, the shard polls for less time or not at all.
    pub spin: Duration,
    /// Bytes of free buffers that the shard keeps for reuse.
    pub pool_bytes: usize,
    /// Bytes that may be queued on one link before the link is closed as stuck.
    pub link_queue: u64,
    /// Uses unix sockets instead of TCP to reach processes on the same host that also set this.
    /// Addresses remain TCP addresses, and TCP is the fallback.
    pub local: bool,
    /// Seeds the nodes' random numbers. Give each process and shard its own.
    pub seed: u64,
}

impl Config {
    /// Returns the configuration of one node with these listeners and devices, and defaults
    /// otherwise.
    pub fn of(listeners: Vec<Listener>, disks: Vec<DiskSpec>) -> Config {
        Config { seats: vec![Seat { listeners, disks }], ..Config::default() }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            backend: Backend::Auto,
            seats: vec![Seat::default()],
            pin: None,
            spin: Duration::from_micros(30),
            pool_bytes: 64 << 20,
            link_queue: Limits::SHIPPED.link_queue,
            local: true,
            seed: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_backends_parse_as_they_print() {
        for s in ["127.0.0.1:7000", "[::1]:0", "unix:/run/gabion.sock"] {
            assert_eq!(s.parse::<ListenAddr>().unwrap().to_string(), s);
        }
        assert_eq!("./a".parse(), Ok(ListenAddr::Unix("./a".into())));
        assert!("localhost".parse::<ListenAddr>().is_err());
        for b in [Backend::Auto, Backend::Uring, Backend::Epoll] {
            assert_eq!(b.to_string().parse(), Ok(b));
        }
    }
}

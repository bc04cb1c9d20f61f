//! What a shard is made of: plain data, checked when the shard is bound.

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
    /// io_uring where the kernel allows it, else epoll; [`crate::Shard::notice`] tells why.
    #[default]
    Auto,
    /// io_uring or nothing.
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
    /// A unix socket. A file that is left over from a dead process is replaced.
    Unix(PathBuf),
}

impl ListenAddr {
    /// The TCP address, if it is one.
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
    /// `ip:port`, `[ip6]:port`, or a path: `unix:PATH`, or anything with a slash.
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

/// One address that a shard accepts links at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    /// The protocol spoken there.
    pub port: Port,
    /// Where.
    pub at: ListenAddr,
}

/// One device of a shard; its index in the configuration is its [`seam::DiskId`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskSpec {
    /// Memory of this many bytes. It grows as it is written, and is gone with the process.
    Ram(u64),
    /// Swallows writes and reads as zeros: this many bytes, up to 2^63.
    Null(u64),
    /// A file without an end, for logs: made when it is not there, it grows when it is written beyond its
    /// end, and reads as zeros there. Takes any range, and goes through the page cache. It is locked: one
    /// process at a time.
    Growing {
        /// Its path.
        path: PathBuf,
    },
    /// A file as a device: it has an end, and takes ranges of whole blocks of 4 KiB. Past the page cache
    /// where the file system allows it, else [`crate::Shard::notice`] says so. It is locked, and never
    /// truncated.
    File {
        /// Its path.
        path: PathBuf,
        /// How many bytes it gets, sparse, if it is not there or is empty. `None`: it must be there.
        size: Option<u64>,
        /// Each write is durable when it ends, without a flush.
        write_through: bool,
    },
    /// A block device: ranges as with a file. Refused when it is mounted, used otherwise, or read-only.
    Block {
        /// Its path.
        path: PathBuf,
        /// Each write is durable when it ends, without a flush.
        write_through: bool,
    },
}

impl DiskSpec {
    /// A file as a device that needs flushes; of `size` bytes, if it has to be made.
    pub fn file(path: impl Into<PathBuf>, size: Option<u64>) -> DiskSpec {
        DiskSpec::File { path: path.into(), size, write_through: false }
    }

    /// A block device that needs flushes.
    pub fn block(path: impl Into<PathBuf>) -> DiskSpec {
        DiskSpec::Block { path: path.into(), write_through: false }
    }
}

/// What one node of a shard has for itself.
#[derive(Clone, Debug, Default)]
pub struct Seat {
    /// Where to accept links.
    pub listeners: Vec<Listener>,
    /// The devices.
    pub disks: Vec<DiskSpec>,
}

/// What a shard is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// How to talk to the kernel.
    pub backend: Backend,
    /// One per node: mostly there is one.
    pub seats: Vec<Seat>,
    /// The processor core to stay on.
    pub pin: Option<usize>,
    /// How long to poll after the last event before sleeping. A wake-up costs more than 20 us, so
    /// this decides the latency of a client that waits for each answer. Zero: sleep at once. The
    /// shard polls for shorter, or not at all, while polling finds nothing.
    pub spin: Duration,
    /// Bytes of free buffers that the shard keeps for reuse.
    pub pool_bytes: usize,
    /// Bytes that may wait to be sent on one link before the link is given up as stuck.
    pub link_queue: u64,
    /// Talk past TCP, by unix sockets, with processes of the same host that do so too. Addresses stay
    /// TCP addresses, and TCP is what is used whenever the other way is not there.
    pub local: bool,
    /// Seeds the node's random numbers. Give each process and shard its own.
    pub seed: u64,
}

impl Config {
    /// For one node, with its listeners and devices; the rest as by default.
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

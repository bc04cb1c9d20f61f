//! The driver that runs nodes on real sockets, devices and clocks.
//!
//! A [`Shard`] is one thread with one reactor (io_uring, or epoll where io_uring is forbidden) that
//! runs one or more [`seam::Node`]s. It takes no lock and allocates nothing per I/O in steady
//! state; other threads reach it only through [`Stop`]. [`seam::contract`] lists what a driver
//! promises to a node, and tests it. An [`OfflineDevice`] is a single device without a shard, for
//! tools. A [`HeldName`] is the name that a process gives its client. A [`SharedMemory`] is memory
//! that this process shares with others, and a [`Listening`] is a socket beside those of a shard. A
//! [`Ublk`] is a disk of the kernel that this process serves.
//!
//! ```no_run
//! # fn run<N: seam::Node>(mut node: N) -> Result<(), rt::RtError> {
//! let at = "127.0.0.1:0".parse().expect("an address");
//! let listeners = vec![rt::Listener { port: seam::Port::Ours, at }];
//! let shard = rt::Shard::bind(rt::Config::of(listeners, vec![rt::DiskSpec::Ram(1 << 30)]))?;
//! println!("listening on {}", shard.addrs(0)[0]);
//! let stop = rt::Stop::new();
//! shard.run(vec![&mut node], &stop, |_, at, note| println!("{at:?} {note:?}"))
//! # }
//! ```
//!
//! **Architecture invariant:** nothing here knows a protocol, a replica or the content of a volume.

mod clock;
mod config;
mod device;
mod dial;
mod disk;
mod drive;
mod error;
mod link;
mod name;
mod net;
mod probe;
mod reactor;
mod run;
mod shadow;
mod shard;
mod shared;
mod signal;
mod sys;
mod table;
mod ublk;

pub use clock::now;
pub use config::{Backend, Config, DiskSpec, ListenAddr, Listener, Seat};
pub use drive::{Ended, OfflineDevice};
pub use error::RtError;
pub use name::HeldName;
pub use net::Listening;
pub use reactor::Reactor;
pub use run::Shard;
pub use shared::SharedMemory;
pub use signal::Stop;
pub use ublk::{Ublk, UblkDisk, UblkOp, UblkRequest};

//! The driver that runs nodes on real sockets, devices and clocks.
//!
//! A [`Shard`] is one thread, one ring (io_uring, or epoll where that is forbidden) and one
//! [`seam::Node`], or several that share it. It takes no lock and allocates nothing per I/O in steady state; other threads
//! reach it through [`Stop`] only. What it promises to the node is written down, and
//! tested, in [`seam::contract`]. A [`Drive`] is one device without all that, for tools; a [`HeldName`] is what
//! a process calls its client.
//!
//! ```no_run
//! # fn run<N: seam::Node>(mut node: N) -> Result<(), rt::RtError> {
//! let at = "127.0.0.1:0".parse().expect("an address");
//! let listeners = vec![rt::Listener { port: seam::Port::Peer, at }];
//! let shard = rt::Shard::bind(rt::Config::of(listeners, vec![rt::DiskSpec::Ram(1 << 30)]))?;
//! println!("listening on {}", shard.addrs(0)[0]);
//! let stop = rt::Stop::new();
//! shard.run(vec![&mut node], &stop, |_, at, note| println!("{at:?} {note:?}"))
//! # }
//! ```
//!
//! **Architecture invariant:** nothing here knows a protocol, a replica or a volume's content.

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
mod signal;
mod sys;
mod table;

pub use clock::now;
pub use config::{Backend, Config, DiskSpec, ListenAddr, Listener, Seat};
pub use drive::{Drive, Ended};
pub use error::RtError;
pub use name::HeldName;
pub use reactor::Reactor;
pub use run::Shard;
pub use signal::Stop;

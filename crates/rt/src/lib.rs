//! The driver that runs nodes on real sockets, devices and clocks.
//!
//! A [`Shard`] is one thread, one ring (io_uring, or epoll where that is forbidden) and one
//! [`seam::Node`]. It takes no lock and allocates nothing per I/O in steady state; other threads
//! reach it through [`Stop`] and [`Mailbox`] only. What it promises to the node is written down, and
//! tested, in [`seam::contract`].
//!
//! ```no_run
//! # fn run<N: seam::Node>(mut node: N) -> Result<(), rt::RtError> {
//! let shard = rt::Shard::bind(rt::Config {
//!     listeners: vec![rt::Listener {
//!         port: seam::Port::Peer,
//!         at: "127.0.0.1:0".parse().expect("an address"),
//!     }],
//!     disks: vec![rt::DiskSpec::Ram(1 << 30)],
//!     ..rt::Config::default()
//! })?;
//! println!("listening on {}", shard.addrs()[0]);
//! let stop = rt::Stop::new();
//! shard.run(&mut node, &stop, |at, note| println!("{at:?} {note:?}"))
//! # }
//! ```
//!
//! **Architecture invariant:** nothing here knows a protocol, a replica or a volume's content.

mod clock;
mod config;
mod dial;
mod disk;
mod error;
mod link;
mod mailbox;
mod net;
mod probe;
mod run;
mod shard;
mod signal;
mod sys;
mod table;

pub use clock::now;
pub use config::{Backend, Config, DiskSpec, ListenAddr, Listener};
pub use error::RtError;
pub use mailbox::{Bytes, Client, Closed, Mailbox, RawBytes, Reply, Request, SubmitError};
pub use run::Shard;
pub use signal::Stop;

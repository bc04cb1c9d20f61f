//! The replication protocol: primary, secondary, settle, resync, client sessions.
//!
//! `docs/internals/protocol.md` says what these machines do and why it is safe. They know neither
//! connections nor disk formats: whoever owns a [`Mirror`] tells it which link belongs to whom, and
//! gives it a [`seam::Journal`].
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod arrival;
pub mod client;
mod dirty;
mod discard;
mod evidence;
mod executed;
mod full;
mod gap;
mod lease;
mod load;
mod lock;
mod marks;
mod mirror;
mod op;
mod pace;
mod primary;
mod repair;
mod replica;
mod scrub;
mod secondary;
mod standing;
mod stopwatch;
mod sync;
mod volumes;
mod watch;
mod window;

pub use dirty::Dirty;
pub use evidence::Evidence;
pub use executed::ExecutedList;
pub use gap::Gaps;
pub use lease::{Fate, Leases};
pub use lock::{Locks, Range};
pub use marks::Grown;
pub use mirror::{GroupView, Mirror, Stats};
pub use replica::GroupConfig;
pub use scrub::ScrubStats;
pub use secondary::GAP;
pub use standing::Standing;
pub use volumes::Volumes;

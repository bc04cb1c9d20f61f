//! The layout for devices that outlive their process: files and block devices.
//!
//! A sans-I/O core like the one for memory, with a log: [`Durable`] implements [`seam::Journal`].
//! [`Format`] makes a device, [`Mount`] opens it. What lies where, and why a crash at any byte loses
//! nothing that was acknowledged, is drawn and argued in `docs/internals/on-disk.md`.
//!
//! Invariants: a job ends only when a crash can't undo it; what is read was compared with its checksum;
//! a block that was never written, or was zeroed, reads as zeros; a slot belongs to one unit at most;
//! after a mount the state is a prefix of the log without records that nobody was told of.
//!
//! Not done here: order between overlapping jobs (the caller's range locks), retries, repair (the
//! caller has the other copy), and anything about a cluster.

mod bits;
mod checkpoint;
mod commit;
mod destage;
mod fetch;
pub mod format;
mod formatter;
pub(crate) mod groups;
mod job;
pub mod layout;
mod log;
mod mount;
mod overlay;
mod read;
pub(crate) mod record;
mod replay;
mod search;
mod store;
mod sums;
mod superblock;
pub mod survey;
mod unitmap;
mod write;

pub use formatter::{Format, Formatting};
pub use mount::{Expected, Mount, MountError, Mounting};
pub use store::{Durability, Durable, Stats, Tuning};
pub use superblock::{Anchor, Content, Identity, LogStart};

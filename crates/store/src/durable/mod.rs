//! The layout for devices that outlive their process: files and block devices.
//!
//! Like the layout for memory, this is a sans-I/O core, but it has a log. [`Durable`] implements
//! [`seam::UnitStore`], [`Format`] formats a device, and [`Mount`] opens it.
//! `docs/internals/on-disk.md` draws what lies where, and argues why a crash at any byte loses
//! nothing that was acknowledged.
//!
//! Invariants: a job completes only when a crash can't undo it; data that is read has been compared
//! with its checksum; a block that was never written, or was zeroed, reads as zeros; a slot belongs
//! to at most one unit; after a mount, the state is a prefix of the log, without records that were
//! never acknowledged.
//!
//! Not done here: ordering of overlapping jobs (the caller's range locks do that), retries, repair
//! (the caller has the other copy), and anything about a cluster.

mod bits;
mod checkpoint;
mod commit;
mod destage;
mod error;
mod fetch;
mod flushes;
pub mod format;
mod formatter;
mod give_back;
pub(crate) mod groups;
mod holes;
mod job;
mod jobs;
pub mod layout;
mod log;
mod mount;
mod ops;
mod overlay;
mod pages;
mod placement;
mod read;
pub(crate) mod record;
mod replay;
mod search;
mod slots;
mod stats;
mod store;
mod sums;
mod superblock;
pub mod survey;
mod tuning;
mod unit_index;
mod unitmap;
mod write;

pub use error::MountError;
pub use formatter::{Format, Formatting};
pub use mount::{Expected, Mount, Mounting};
pub use stats::Stats;
pub use store::Durable;
pub use superblock::{CheckpointHead, Content, Identity, LogStart};
pub use tuning::{Durability, Tuning};

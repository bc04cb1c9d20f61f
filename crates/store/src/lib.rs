//! What a device holds: units, which of their blocks are valid, and free space.
//!
//! A sans-I/O core: it implements [`seam::Media`]: jobs emit device effects, whose ends finish them. It knows
//! no cluster; a group is only the name of a set of units that are listed and wiped together.
//!
//! Invariants: a block that was never written, or was zeroed, reads as zeros, whatever the slot held
//! before; a slot belongs to at most one unit; a unit keeps its slot while an operation on it runs, and
//! gives it back when no block is valid and no operation runs.
//!
//! This is the layout for memory: metadata lives in this process alone. Not done here: order between
//! overlapping operations (the caller's range locks), and anything durable.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod space;
mod store;

pub use space::Space;
pub use store::Store;

//! What a device holds: units, which of their blocks are valid, and free space.
//!
//! A sans-I/O core: it implements [`seam::Journal`]: jobs emit device effects, whose ends finish them. It knows
//! no cluster; a group is only the name of a set of units that are listed and wiped together.
//!
//! Invariants: a block that was never written, or was zeroed, reads as zeros, whatever the slot held
//! before; a slot belongs to at most one unit; a unit keeps its slot while an operation on it runs, and
//! gives it back when no block is valid and no operation runs.
//!
//! [`Memory`] is the layout for memory: metadata lives in this process alone. [`durable`] is the one for
//! files and block devices. Not done here: order between overlapping operations (the caller's range
//! locks).
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod durable;
mod lost;
mod memory;
mod space;

pub use memory::Memory;
pub use space::Space;

//! The content of a device: units, their valid blocks, and free space.
//!
//! This crate is a sans-I/O core that implements [`seam::UnitStore`]: a job emits device
//! operations, and their completions complete the job. The crate knows nothing about clusters. To
//! it, a group is only the name of a set of units that are listed and wiped together.
//!
//! Invariants: a block that was never written, or was zeroed, reads as zeros, whatever its slot
//! held before; a slot belongs to at most one unit; a unit keeps its slot while an operation on it
//! runs, and gives the slot back when no block is valid and no operation runs. No job touches
//! a block that another one changes: the caller's range locks see to that, and a store stops at a
//! job that breaks it.
//!
//! [`Memory`] is the layout for memory devices: its metadata lives in this process only.
//! [`durable`] is the layout for files and block devices.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod durable;
mod lost;
mod memory;
mod space;
mod units;

pub use memory::Memory;
pub use space::Space;

//! A whole cluster in one thread, for counting instructions: the shipped nodes, and a driver that is as
//! thin as one can be.
//!
//! `benches/instructions.rs` counts, `cargo xtask gate` compares with the committed baseline.
//!
//! Invariants:
//! - Counts are the same in every run: no clock (time stands still while something is counted), no random
//!   source, no thread, no map with random order.
//! - A frame's bytes are not copied on the way: what sockets cost is not counted here.
//!
//! Not done here: faults, delays, lost links (the simulator does that), and real I/O (`cargo xtask bench`).
#![forbid(unsafe_code)]

mod cluster;
mod disk;
mod place;

pub use cluster::{Cluster, OPERATIONS, Who};
pub use place::Place;

//! Counts instructions. It has a whole cluster in one thread, which consists of the shipped nodes
//! and a minimal driver, and the sessions of hosts, each without a cluster (`host.rs`).
//!
//! `main.rs` has what is counted; `cargo xtask gate` compares the counts with the committed
//! baseline.
//!
//! Invariants:
//! - Counts are the same in every run: no clock (time stands still while something is counted), no
//!   random source, no thread, no map with random order.
//! - The driver does not copy frames: the cost of sockets is not counted.
//!
//! Not done here: faults, delays, lost links (the simulator has them), and real I/O (`cargo xtask
//! bench`).
#![forbid(unsafe_code)]

mod cluster;
mod disk;
mod host;
mod place;

pub use cluster::{Cluster, OPERATIONS, Who};
pub use host::{Host, Iscsi, Nbd, Nvme, Protocol, Turn};
pub use place::Place;

//! The driver that runs nodes in virtual time under faults, and judges them.
//!
//! The nodes are the shipped ones, in one thread: the same seed gives the same run, bit for bit.
//! The simulator does not cover kernels, threads, real clients or speed
//! (`docs/internals/simulator.md`).

#![forbid(unsafe_code)]

mod act;
pub mod actor;
mod addresses;
pub mod admin;
mod answers;
mod batch;
pub mod campaign;
pub mod check;
pub mod clock;
pub mod disk;
mod doubles;
pub mod forge;
mod held_out;
pub mod history;
mod host_link;
pub mod hosts;
mod inbox;
pub mod lies;
mod live;
pub mod marks;
pub mod mutants;
pub mod nbd;
mod net;
mod overlong;
pub mod panics;
pub mod plan;
mod programs;
mod queue;
mod relief;
mod replaced;
mod rescue;
mod roles;
pub mod run;
pub mod scale;
pub mod shrink;
pub mod stage;
pub mod stamp;
pub mod tamper;
pub mod trace;
mod twins;
pub mod weather;
mod wires;
pub mod world;

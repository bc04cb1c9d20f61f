//! The driver that runs nodes in virtual time under faults, and judges them.

pub mod actor;
pub mod check;
pub mod clock;
pub mod disk;
mod inbox;
mod net;
pub mod plan;
mod queue;
pub mod trace;
pub mod weather;
mod wires;
pub mod world;

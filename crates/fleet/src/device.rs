//! The devices of servers: their list, changes to it, and whether a device can be trusted.

pub mod grow;
mod medium;
pub mod probe;
pub mod roster;
mod scratch;
pub mod scrub;
mod verdict;

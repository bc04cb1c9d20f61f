//! A simulated device, a store on it, a model of what it has to hold, and crashes.
#![allow(dead_code, unused_imports)]

mod changes;
pub mod disk;
pub mod lives;
pub mod model;
pub mod world;

pub use disk::{Disk, Fate};
pub use world::{Crash, World};

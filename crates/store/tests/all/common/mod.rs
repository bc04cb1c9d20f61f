//! A simulated device, a store on it, a model of what it has to hold, and crashes.

mod changes;
pub(crate) mod disk;
pub(crate) mod lives;
pub(crate) mod model;
pub(crate) mod world;

pub(crate) use disk::{Disk, Fate};
pub(crate) use world::{Crash, World};

//! Basic types that every crate uses: ids, units, time, histograms, random numbers, checksums,
//! limits.
//!
//! Nothing here knows about a cluster, a protocol or a driver. Everything is `no_std` except
//! [`crc`]: its library selects the processor's fastest instructions at run time, which requires
//! `std`. It is twice as fast per 4 KiB as a portable table (`docs/design/0001-foundations.md`).
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod blocks;
pub mod crc;
pub mod histogram;
pub mod idmap;
pub mod ids;
pub mod level;
pub mod limits;
pub mod map;
pub mod mutant;
pub mod name;
pub mod policy;
pub mod prng;
pub mod slab;
pub mod time;
pub mod units;

pub use blocks::BlockSet;
pub use histogram::Histogram;
pub use idmap::IdMap;
pub use ids::*;
pub use level::Dialect;
pub use limits::Limits;
pub use map::Map;
pub use mutant::Mutant;
pub use policy::Policy;
pub use prng::Prng;
pub use slab::Slab;
pub use time::{Duration, Time};
pub use units::*;

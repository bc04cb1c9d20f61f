//! Tests of the driver on real sockets, files and devices.

mod common;
mod contract;
mod device;
mod shard;

//! Tests of the virtio disk.

mod inflight;
mod properties;
mod queue;
mod requests;
mod rig;

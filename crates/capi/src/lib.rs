//! `libgabion`: volumes of a cluster for programs in C, or in anything that speaks its ABI.
//!
//! The library has no thread of its own. A data client (the same [`node::sdc::Sdc`] that serves NBD)
//! and its reactor run inside the caller's calls: a request is handed to the node where it is made,
//! goes out with the next `gabion_poll`, and its answer is taken from the socket by a later one. So
//! no I/O crosses a thread; data is copied once, between the caller's memory and a pooled buffer.
//!
//! `include/gabion.h` is generated from the comments here; what a user should know is told in
//! `docs/reference/libgabion.md`.
//!
//! Invariants:
//! - Nothing that the caller passes is trusted where it can be checked; what fails says why in words.
//! - A context is used by the thread that has opened it, in the process that has opened it; whatever
//!   else comes is refused before the context is looked at ([`guard`]).
//! - No panic leaves the library: the context is out of order from then on, and says so.
//!
//! | file | what |
//! |---|---|
//! | `cluster` | the functions on a cluster: open, poll, close |
//! | `volume` | the functions on a volume: open, the five requests |
//! | `context` | what is behind a cluster's handle |
//! | `guard` | whether a call may go on |
//! | `failure` | error numbers, and their words |
//! | `address`, `name` | where the MDMs are, and what we are called there |

mod address;
mod cluster;
mod context;
mod failure;
mod guard;
mod name;
mod volume;

pub use cluster::*;
pub use failure::{gabion_last_error, gabion_strerror};
pub use volume::*;

use std::ffi::{c_char, c_void};

/// The ABI that this header describes. It changes when a program that was built with an older header
/// would not work any more; then the library's file is called otherwise, too (`libgabion.so.ABI`).
pub const GABION_ABI: u32 = 0;

/// The version of the library that this header belongs to: major, minor, patch, two digits each.
pub const GABION_VERSION: u32 = 100;

/// For `gabion_write` and `gabion_write_zeroes`: the data is durable when the request completes.
/// Gabion's writes always are, so this changes nothing; it is there to be passed on.
pub const GABION_FUA: u32 = 1;

/// For `gabion_write_zeroes`: keep the range allocated, so that a later write can't run out of space.
pub const GABION_NO_HOLE: u32 = 2;

/// Choose io_uring where the kernel allows it, else epoll.
pub const GABION_BACKEND_AUTO: u32 = 0;
/// Use io_uring, or fail.
pub const GABION_BACKEND_URING: u32 = 1;
/// Use epoll.
pub const GABION_BACKEND_EPOLL: u32 = 2;

/// How `gabion_cluster_open` does its work. Set it up with `GABION_OPTIONS_INIT`; a field that is 0
/// means the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct gabion_options {
    /// `sizeof(struct gabion_options)`. A newer library may know more fields.
    pub struct_size: usize,
    /// The client's name in `gabion status`, 1 to 64 bytes. Two clients of a cluster must not have the
    /// same one: the newer one ends the older. Default: `HOST-lib-N`, with the first N that is free
    /// on this host.
    pub name: *const c_char,
    /// How long opening a cluster or a volume may take. Default: 10 seconds.
    pub timeout_ms: u32,
    /// How many requests may be outstanding, at most 16384. Default: 1024.
    pub queue_depth: u32,
    /// One of `GABION_BACKEND_*`.
    pub backend: u32,
    /// Must be 0.
    pub flags: u32,
}

/// A request that has ended.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct gabion_completion {
    /// What the request was started with.
    pub user: *mut c_void,
    /// Bytes read, written, zeroed or discarded (0 for a flush), or a negative errno:
    /// `gabion_strerror` has words for it.
    pub result: i64,
}

/// What a volume is like.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(non_camel_case_types)]
pub struct gabion_volume_info {
    /// Bytes. A volume may grow while it is open.
    pub size: u64,
    /// Offsets and lengths are multiples of this many bytes.
    pub sector: u32,
    /// Requests are cheapest in multiples of this many bytes.
    pub block: u32,
    /// The longest read or write, in bytes. Discards and zeroes may have up to 4 GiB less a sector.
    pub max_transfer: u32,
    /// 0.
    pub reserved: u32,
}

/// The library's version, as `GABION_VERSION` was when it was built.
#[unsafe(no_mangle)]
pub extern "C" fn gabion_version() -> u32 {
    GABION_VERSION
}

/// The library's ABI. A program that loads the library itself compares it with `GABION_ABI`; for the
/// others, the loader has compared it.
#[unsafe(no_mangle)]
pub extern "C" fn gabion_abi() -> u32 {
    GABION_ABI
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_version_is_the_packages() {
        let part = |s: &str| s.parse::<u32>().unwrap();
        let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
        let patch = env!("CARGO_PKG_VERSION_PATCH");
        let number = part(major) * 10_000 + part(minor) * 100 + part(patch);
        assert_eq!(super::GABION_VERSION, number);
    }
}

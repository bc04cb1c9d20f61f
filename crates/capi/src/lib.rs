//! `libgabion`: volumes of a cluster for programs in C, or in any language that can call C.
//!
//! The library has no threads. A data client (the same [`node::sdc::Sdc`] that serves NBD) and its
//! reactor run inside the caller's calls: a request is passed to the node at once, is sent with the
//! next `gabion_poll`, and a later one takes its answer from the socket. So no I/O crosses threads.
//! Data is copied once, between the caller's memory and a pooled buffer.
//!
//! `include/gabion.h` is generated from these comments; users read `docs/reference/libgabion.md`.
//!
//! Invariants:
//! - The library checks everything that the caller passes, as far as it can be checked. Every
//!   failure has a message.
//! - Only the thread that opened a context uses it, in the process that opened it. [`guard`]
//!   refuses other calls before they touch the context.
//! - No panic leaves the library. After a panic the context refuses all further calls.
//!
//! | file | content |
//! |---|---|
//! | `cluster` | the functions of a cluster: open, poll, close |
//! | `volume` | the functions of a volume: open, the five requests |
//! | `context` | the state behind a cluster's handle |
//! | `handle` | the handles that callers hold |
//! | `guard` | the checks before each call |
//! | `failure`, `message` | error numbers and messages |
//! | `address`, `name` | addresses of the MDMs, and the client's name |

mod address;
mod cluster;
mod context;
mod failure;
mod guard;
mod handle;
mod message;
mod name;
mod volume;

pub use cluster::*;
pub use handle::{gabion_cluster, gabion_volume};
pub use message::{gabion_last_error, gabion_strerror};
pub use volume::*;

use std::ffi::{c_char, c_void};

/// The ABI that this header describes. It changes when programs that were built with an older
/// header would stop working. The name of the library's file changes with it (`libgabion.so.ABI`).
pub const GABION_ABI: u32 = 0;

/// The version of the library that this header belongs to: major, minor, patch, two digits each.
pub const GABION_VERSION: u32 = 100;

/// For `gabion_write` and `gabion_write_zeroes`: the data is durable when the request completes.
/// All writes of Gabion are, so the flag changes nothing. It exists for callers that pass it on.
pub const GABION_FUA: u32 = 1;

/// For `gabion_write_zeroes`: keep the range allocated, so that later writes find space.
pub const GABION_NO_HOLE: u32 = 2;

/// Choose io_uring where the kernel allows it, else epoll.
pub const GABION_BACKEND_AUTO: u32 = 0;
/// Use io_uring, or fail.
pub const GABION_BACKEND_URING: u32 = 1;
/// Use epoll.
pub const GABION_BACKEND_EPOLL: u32 = 2;

/// Options for `gabion_cluster_open`. Initialise them with `GABION_OPTIONS_INIT`; a field that is 0
/// has its default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct gabion_options {
    /// `sizeof(struct gabion_options)`. Newer libraries may have more fields.
    pub struct_size: usize,
    /// The client's name in `gabion status`, 1 to 64 bytes. Two clients of a cluster must not have
    /// the same name: the newer one ends the older. Default: `HOST-lib-N`, with the first N that is
    /// free on this host.
    pub name: *const c_char,
    /// Time limit for opening a cluster or a volume, in milliseconds. Default: 10 seconds.
    pub timeout_ms: u32,
    /// Most requests that may be outstanding, at most 16384. Default: 1024.
    pub queue_depth: u32,
    /// One of `GABION_BACKEND_*`.
    pub backend: u32,
    /// Must be 0.
    pub flags: u32,
}

/// A completed request.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct gabion_completion {
    /// The `user` argument of the request.
    pub user: *mut c_void,
    /// Bytes read, written, zeroed or discarded (0 for a flush), or a negative errno for
    /// `gabion_strerror`.
    pub result: i64,
}

/// Properties of a volume.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(non_camel_case_types)]
pub struct gabion_volume_info {
    /// Size in bytes. A volume may grow while it is open.
    pub size: u64,
    /// Offsets and lengths are multiples of this many bytes.
    pub sector: u32,
    /// Requests are most efficient in multiples of this many bytes.
    pub block: u32,
    /// Longest read or write, in bytes. Discards and zeroing: up to 4 GiB less one sector.
    pub max_transfer: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Returns the version of the library: the value of `GABION_VERSION` when it was built.
#[unsafe(no_mangle)]
pub extern "C" fn gabion_version() -> u32 {
    GABION_VERSION
}

/// Returns the library's ABI. A program that loads the library itself compares it with
/// `GABION_ABI`; for other programs the loader has compared it already.
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

//! Volumes on this machine: as files (`gabion mount`), and as block devices with file systems on
//! them (`gabion attach`, `gabion detach`).
//!
//! | file | content |
//! |---|---|
//! | `fuse` | the kernel's interface for file systems |
//! | `client` | a data client that makes requests of its own |
//! | `folder`, `request`, `serve`, `mount` | the files of a mount, their I/O, and the command |
//! | `safety` | what keeps the serving process from waiting for itself |
//! | `ways` | the ways to a block device, and why one can't be taken |
//! | `block`, `content`, `holders` | devices and mounts; what a volume holds; who uses something |
//! | `record` | what is attached |
//! | `attach`, `detach`, `list`, `persist` | the commands |
//!
//! A volume is attached by a process of its own, `gabion mount`, which runs until `detach`. The
//! kernel's loop driver makes the file in it a block device.
#![forbid(unsafe_code)]

mod attach;
mod block;
mod client;
mod content;
mod detach;
mod folder;
mod fuse;
mod holders;
mod list;
mod mount;
mod persist;
mod record;
mod request;
mod safety;
mod serve;
mod ways;

pub use attach::{AttachArgs, run as attach};
pub use detach::{DetachArgs, run as detach};
pub use mount::{MountArgs, run as mount};

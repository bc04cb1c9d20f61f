//! Volumes on this machine: as files (`gabion mount`), as block devices with file systems on them
//! (`gabion attach`, `gabion detach`), and as disks of virtual machines (`gabion vhost`).
//!
//! | file | content |
//! |---|---|
//! | `fuse` | the kernel's interface for file systems |
//! | `client` | a data client that makes requests of its own |
//! | `folder`, `request`, `serve`, `mount` | the files of a mount, their I/O, and the command |
//! | `safety` | keeps the serving process from waiting for itself |
//! | `ways` | the methods of attachment, and why one can't be used |
//! | `block`, `content`, `holders` | devices and mounts; a volume's content; users of a device |
//! | `record` | the attached volumes |
//! | `attach`, `detach`, `list`, `persist` | the commands |
//! | `vhost` | disks of virtual machines |
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
mod vhost;
mod ways;

pub use attach::{AttachArgs, run as attach};
pub use detach::{DetachArgs, run as detach};
pub use mount::{MountArgs, run as mount};
pub use vhost::{VhostArgs, run as vhost};

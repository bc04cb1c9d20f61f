//! Volumes on this machine: as files (`gabion mount`), as block devices with file systems on them
//! (`gabion attach`, `gabion detach`), and as disks of virtual machines (`gabion vhost`).
//!
//! | file | content |
//! |---|---|
//! | `fuse` | the kernel's interface for file systems |
//! | `client` | a data client that makes requests of its own |
//! | `folder`, `request`, `serve`, `mount` | the files of a mount, their I/O, and the command |
//! | `ways` | the methods of attachment, and why one can't be used |
//! | `local` | where data clients of this machine serve a volume |
//! | `nbd`, `nvme` | devices of the kernel's NBD and NVMe/TCP clients |
//! | `ublk` | disks of the kernel's user-space block driver |
//! | `keys` | the keys with which this host and a data client authenticate by NVMe/TCP |
//! | `serving` | starts the process that serves a volume, or keeps it connected |
//! | `signals` | the signals that end such a process |
//! | `block`, `content`, `holders` | devices and mounts; a volume's content; users of a device |
//! | `record` | the attached volumes |
//! | `attach`, `detach`, `list`, `persist` | the commands |
//! | `vhost` | disks of virtual machines |
//!
//! With NVMe and NBD, the kernel sends requests to the data client of this machine. With ublk and
//! FUSE, a process of its own serves the volume, `gabion ublk` or `gabion mount`, which is a data
//! client. The kernel's loop driver makes a file of FUSE a block device.
#![forbid(unsafe_code)]

mod attach;
mod block;
mod client;
mod content;
mod detach;
mod folder;
mod fuse;
mod holders;
mod keys;
mod list;
mod local;
mod mount;
mod nbd;
mod nvme;
mod persist;
mod record;
mod request;
mod serve;
mod serving;
mod signals;
mod ublk;
mod vhost;
mod ways;

pub use attach::{AttachArgs, run as attach};
pub use detach::{DetachArgs, run as detach};
pub use mount::{MountArgs, run as mount};
pub use nbd::keep::{NbdArgs, run as nbd};
pub use ublk::{UblkArgs, run as ublk};
pub use vhost::{VhostArgs, run as vhost};

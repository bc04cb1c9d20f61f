//! Why a device can't be mounted or formatted, in words for the operator.

use base::{ClusterId, DeviceId};
use seam::DiskError;
use thiserror::Error;

/// Why a device can't be mounted or formatted, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MountError {
    /// It is too small to hold anything.
    #[error("the device has {bytes} bytes: use one of at least {needed}")]
    TooSmall {
        /// Its size in bytes.
        bytes: u64,
        /// The smallest size in bytes.
        needed: u64,
    },
    /// It holds nothing of ours, or its format was not finished.
    #[error("the device is not formatted, or formatting was not finished: add it as a new device")]
    Unformatted,
    /// It is formatted already.
    #[error(
        "the device holds data of a cluster: import it, or force the format, which destroys it"
    )]
    InUse,
    /// It belongs to another cluster.
    #[error("the device belongs to {found}, this is {wanted}: use it there, or format it")]
    OtherCluster {
        /// The cluster that it belongs to.
        found: ClusterId,
        /// The cluster that mounts it.
        wanted: ClusterId,
    },
    /// It is another device of this cluster.
    #[error("the device is {found}, not {wanted}: were devices swapped? Correct the paths")]
    OtherDevice {
        /// Its id.
        found: DeviceId,
        /// The id that was expected.
        wanted: DeviceId,
    },
    /// A newer build wrote it.
    #[error("the device has format {format}: update this server")]
    Newer {
        /// Its format.
        format: u32,
    },
    /// It is of a cluster of a higher level.
    #[error(
        "the device is of a cluster of level {level}, and this build knows levels up to {known}: \
         update this server"
    )]
    Level {
        /// The level of the device.
        level: u32,
        /// The highest level that this build knows.
        known: u32,
    },
    /// A newer build wrote it, with features that this build doesn't know.
    #[error("the device uses unknown features ({unknown:#x}): update this server")]
    Features {
        /// The unknown features.
        unknown: u64,
    },
    /// It has become smaller.
    #[error("the device had {was} bytes and has {is}: give it back its size, or replace it")]
    Shrunk {
        /// Its size when it was formatted or grew, in bytes.
        was: u64,
        /// Its present size in bytes.
        is: u64,
    },
    /// Metadata that is needed to find the data does not match its checksum.
    #[error("{what} of the device is damaged (at byte {at}): replace it, and let it be rebuilt")]
    Damaged {
        /// The damaged metadata.
        what: &'static str,
        /// Its place in bytes.
        at: u64,
    },
    /// It has data of more pairs of group and volume than a map takes: 2^28 or more.
    #[error(
        "the device has data of too many volumes and groups: replace it, and let it be rebuilt"
    )]
    TooManyOwners,
    /// It failed a read, a write or a flush.
    #[error("{what} failed ({error:?}): check the device")]
    Device {
        /// The step of the mount.
        what: &'static str,
        /// The error.
        error: DiskError,
    },
}

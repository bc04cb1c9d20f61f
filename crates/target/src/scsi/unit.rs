//! The properties of a volume that a host is told. The owner of a session derives them from the
//! cluster map.

use alloc::string::String;
use alloc::vec::Vec;
use base::{ClusterId, VolumeId};
use core::fmt;

/// The sizes of logical and physical blocks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Format {
    /// 512 bytes for both, as the oldest hosts expect. The 4 KiB blocks below are not reported.
    Native512,
    /// Logical blocks of 512 bytes, physical blocks of 4 KiB.
    #[default]
    Emulated512,
    /// 4 KiB for both.
    Native4k,
}

/// Text that is not the name of a [`Format`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownFormat;

impl fmt::Display for UnknownFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such size of sectors: write 512n, 512e or 4kn")
    }
}

impl core::error::Error for UnknownFormat {}

impl core::str::FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Format, UnknownFormat> {
        const ALL: [Format; 3] = [Format::Native512, Format::Emulated512, Format::Native4k];
        ALL.into_iter().find(|format| format.name() == name).ok_or(UnknownFormat)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Format {
    /// Returns its name, as disk vendors write it.
    fn name(self) -> &'static str {
        match self {
            Format::Native512 => "512n",
            Format::Emulated512 => "512e",
            Format::Native4k => "4kn",
        }
    }

    /// Returns the bytes of a logical block.
    pub fn block(self) -> u32 {
        match self {
            Format::Native512 | Format::Emulated512 => 512,
            Format::Native4k => 4096,
        }
    }

    /// Returns the exponent of "logical blocks per physical block".
    pub(super) fn exponent(self) -> u8 {
        if self == Format::Emulated512 { 3 } else { 0 }
    }

    /// Returns the logical blocks in a block of the store.
    pub(super) fn per_block(self) -> u32 {
        base::BLOCK / self.block()
    }
}

/// The asymmetric access (ALUA) state of the path that a session uses (SPC-4 5.15.2).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Path {
    /// Active/optimized: this gateway serves the host.
    #[default]
    Optimized,
    /// Standby: another gateway serves the host.
    Standby,
}

/// The port group of another gateway that serves the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortGroup {
    /// Its number, which is also the relative port of its only port: the gateway's number + 1.
    pub port: u16,
    /// The state of the path through that gateway, for the host of this session.
    pub path: Path,
}

/// A logical unit, as one host sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unit {
    /// The cluster.
    pub cluster: ClusterId,
    /// The volume.
    pub volume: VolumeId,
    /// Size of the volume in bytes. A last part that does not fill a block is not exported.
    pub size: u64,
    /// True if the host may only read.
    pub read_only: bool,
    /// The block sizes.
    pub format: Format,
    /// The most bytes of one read or write.
    pub transfer: u32,
    /// The iSCSI name of the target.
    pub target: String,
    /// Target portal group, relative port and port group: the gateway's number + 1.
    pub port: u16,
    /// The state of this path.
    pub path: Path,
    /// The port groups of all other gateways, in the order of their numbers. They are never more
    /// than 126.
    pub others: Vec<PortGroup>,
    /// True if the owner can do [`super::Step::Reserve`], [`super::Step::Report`] and
    /// [`super::Step::Activate`].
    pub asks: bool,
}

impl Unit {
    /// Returns the number of logical blocks.
    pub fn blocks(&self) -> u64 {
        self.size >> self.format.block().trailing_zeros()
    }

    /// Returns the most blocks that one UNMAP frees: 512 MiB.
    pub(super) fn unmap_max(&self) -> u32 {
        (512 << 20) / self.format.block()
    }

    /// Returns the most blocks of one WRITE SAME: 16 MiB.
    pub(super) fn same_max(&self) -> u32 {
        (16 << 20) / self.format.block()
    }
}

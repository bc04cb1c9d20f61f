//! Fixed-size records in the bodies of resync frames.

use base::{BlockSet, Incarnation, SdcId, UnitKey, VolumeId};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Some blocks of one unit: 40 bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct UnitBlocks {
    /// The volume.
    pub volume: U32,
    /// The unit in the volume.
    pub unit: U32,
    /// One bit per block.
    pub blocks: [U64; 4],
}

impl UnitBlocks {
    /// Creates the record of these blocks.
    pub fn new(unit: UnitKey, blocks: BlockSet) -> UnitBlocks {
        UnitBlocks {
            volume: unit.volume.0.into(),
            unit: unit.index.into(),
            blocks: blocks.0.map(U64::new),
        }
    }

    /// Returns the unit.
    pub fn key(&self) -> UnitKey {
        UnitKey { volume: VolumeId(self.volume.get()), index: self.unit.get() }
    }

    /// Returns the blocks.
    pub fn set(&self) -> BlockSet {
        BlockSet(self.blocks.map(U64::get))
    }
}

/// Blocks of one unit that include a client's write (rule R8): 64 bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Executed {
    /// The client.
    pub sdc: U32,
    /// Zero.
    pub reserved: U32,
    /// The client's incarnation.
    pub incarnation: U64,
    /// The client's number for the operation.
    pub seq: U64,
    /// The blocks.
    pub blocks: UnitBlocks,
}

impl Executed {
    /// Creates the record of this operation.
    pub fn new(
        sdc: SdcId,
        incarnation: Incarnation,
        seq: u64,
        unit: UnitKey,
        blocks: BlockSet,
    ) -> Executed {
        Executed {
            sdc: sdc.0.into(),
            reserved: 0.into(),
            incarnation: incarnation.0.into(),
            seq: seq.into(),
            blocks: UnitBlocks::new(unit, blocks),
        }
    }

    /// Returns the client.
    pub fn sdc(&self) -> SdcId {
        SdcId(self.sdc.get())
    }

    /// Returns the unit.
    pub fn key(&self) -> UnitKey {
        self.blocks.key()
    }

    /// Returns the blocks.
    pub fn set(&self) -> BlockSet {
        self.blocks.set()
    }
}

/// Returns the records of a body; `None` if its length is not a multiple of the record size.
pub fn read<T: FromBytes + Immutable + KnownLayout + Unaligned>(body: &[u8]) -> Option<&[T]> {
    <[T]>::ref_from_bytes(body).ok()
}

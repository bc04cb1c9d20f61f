//! Newtypes for every identity. Ids and generations are never reused (rule R9).

use core::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }
    };
}

id!(
    /// A cluster ("system" in ScaleIO's words); drawn at random when it is made. 0 = not known yet.
    ClusterId(u64), "cluster"
);
id!(
    /// A data server (SDS): one process on one host; a fault unit, unless it belongs to a fault set.
    SdsId(u32), "sds"
);
id!(
    /// A data client (SDC): one process on one host.
    SdcId(u32), "sdc"
);
id!(
    /// A device, or one slice of a large one: what one shard serves, and what replicas live on.
    /// It keeps its id when it moves to another server. Ids start at 1; 0 = none.
    DeviceId(u32), "dev"
);
id!(
    /// A volume; starts at 1, never reused; 0 = none.
    VolumeId(u32), "vol"
);
id!(
    /// A protection domain: servers that keep each other's copies; starts at 1, never reused.
    DomainId(u32), "domain"
);
id!(
    /// A fault set: servers of one domain that share their fate; starts at 1, never reused.
    FaultSetId(u32), "faultset"
);
id!(
    /// A storage pool: devices of one domain; starts at 1, never reused.
    PoolId(u32), "pool"
);
id!(
    /// A placement group: the units that share one replica set and one epoch.
    GroupId(u32), "g"
);
id!(
    /// The number of a group's configuration; rises by one with every change (rule R4).
    Epoch(u64), "e"
);
id!(
    /// A write's number in its group and epoch; (epoch, lsn) is the write's stamp. The first is 1.
    Lsn(u64), "lsn"
);
id!(
    /// One life of a process, numbered by the MDM; a later life has a higher number. 0 = not named yet.
    Incarnation(u64), "inc"
);
id!(
    /// The version of the cluster map: the log index of the last command that changed it.
    MapVersion(u64), "map"
);
id!(
    /// A connection, named by the driver, never reused in the life of a process.
    LinkId(u64), "link"
);

/// An id that is given out one after the other.
pub trait Id: Copy + Eq {
    /// Its number.
    fn number(self) -> u32;
}

impl Id for GroupId {
    #[inline]
    fn number(self) -> u32 {
        self.0
    }
}

impl Id for DeviceId {
    #[inline]
    fn number(self) -> u32 {
        self.0
    }
}

impl Epoch {
    /// The epoch after this one.
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

impl Lsn {
    /// The number after this one.
    pub fn next(self) -> Lsn {
        Lsn(self.0 + 1)
    }
}

/// A unit of a volume: 1 MiB at `index * UNIT`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct UnitKey {
    /// The volume that the unit belongs to.
    pub volume: VolumeId,
    /// Which MiB of the volume, from 0.
    pub index: u32,
}

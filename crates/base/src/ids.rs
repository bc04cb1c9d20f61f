//! A newtype for each kind of id and number. Ids and generations are never reused (rule R9).

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
    /// A cluster ("system" in ScaleIO's terms). Drawn at random when the cluster is created; 0 =
    /// not known yet.
    ClusterId(u64), "cluster"
);
id!(
    /// A data server (SDS): one process on one host. A fault unit, unless it is in a fault set.
    SdsId(u32), "sds"
);
id!(
    /// A data client (SDC): one process on one host.
    SdcId(u32), "sdc"
);
id!(
    /// A device, or one slice of a large one: one shard serves it, and replicas belong to it. It
    /// keeps its id when it moves to another server. Ids start at 1; 0 = none.
    DeviceId(u32), "dev"
);
id!(
    /// A volume. Ids start at 1 and are never reused; 0 = none.
    VolumeId(u32), "vol"
);
id!(
    /// A protection domain: servers that mirror each other. Ids start at 1 and are never reused.
    DomainId(u32), "domain"
);
id!(
    /// A fault set: servers of one domain that fail together. Ids start at 1 and are never reused.
    FaultSetId(u32), "faultset"
);
id!(
    /// A storage pool: devices of one domain. Ids start at 1 and are never reused.
    PoolId(u32), "pool"
);
id!(
    /// A placement group: the units that share one set of replicas and one epoch.
    GroupId(u32), "g"
);
id!(
    /// The number of a group's configuration. It rises by one with every change (rule R4).
    Epoch(u64), "e"
);
id!(
    /// A write's sequence number in its group and epoch, from 1. (epoch, lsn) identifies a write.
    Lsn(u64), "lsn"
);
id!(
    /// The number of one start of a process. The MDM assigns it, and each later start gets a higher
    /// one. 0 = not assigned yet.
    Incarnation(u64), "inc"
);
id!(
    /// The version of the cluster map: the log index of the last command that changed it.
    MapVersion(u64), "map"
);
id!(
    /// A connection. The driver assigns the number and never reuses it while the process runs.
    LinkId(u64), "link"
);

/// An id that is assigned in ascending order.
pub trait Id: Copy + Eq {
    /// Returns the number of the id.
    fn number(self) -> u32;
}

impl Id for u32 {
    #[inline]
    fn number(self) -> u32 {
        self
    }
}

impl Id for VolumeId {
    #[inline]
    fn number(self) -> u32 {
        self.0
    }
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
    /// Returns the next epoch.
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

impl Lsn {
    /// Returns the next sequence number.
    pub fn next(self) -> Lsn {
        Lsn(self.0 + 1)
    }
}

/// A unit of a volume: 1 MiB at `index * UNIT`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct UnitKey {
    /// The volume of the unit.
    pub volume: VolumeId,
    /// Index of the MiB in the volume, from 0.
    pub index: u32,
}

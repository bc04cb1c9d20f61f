//! The reservations of a volume: registered hosts, the holder, and the access of each host.
//!
//! Invariants: no two registrants cover the same host. A reservation for one registrant has exactly
//! one holder. A reservation for all registrants has at least one registrant, and none of them is
//! marked. Without a reservation nobody is marked.

use crate::ident::ISCSI_NAME_MAX;
use alloc::string::String;
use alloc::vec::Vec;
use seam::BlockKind;

/// The type of a reservation (SPC-4 6.14.3.4). NVMe has the same six under other numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Only the holder writes.
    WriteExclusive,
    /// Only the holder reads and writes.
    ExclusiveAccess,
    /// Only registrants write.
    WriteExclusiveRegistrants,
    /// Only registrants read and write.
    ExclusiveAccessRegistrants,
    /// Only registrants write, and all of them hold the reservation.
    WriteExclusiveAll,
    /// Only registrants read and write, and all of them hold the reservation.
    ExclusiveAccessAll,
}

impl Kind {
    /// All types, in the order of their numbers.
    pub const ALL: [Kind; 6] = [
        Kind::WriteExclusive,
        Kind::ExclusiveAccess,
        Kind::WriteExclusiveRegistrants,
        Kind::ExclusiveAccessRegistrants,
        Kind::WriteExclusiveAll,
        Kind::ExclusiveAccessAll,
    ];

    /// Returns the number that SCSI gives it.
    pub fn scsi(self) -> u8 {
        match self {
            Kind::WriteExclusive => 1,
            Kind::ExclusiveAccess => 3,
            Kind::WriteExclusiveRegistrants => 5,
            Kind::ExclusiveAccessRegistrants => 6,
            Kind::WriteExclusiveAll => 7,
            Kind::ExclusiveAccessAll => 8,
        }
    }

    /// Returns the type with this number of SCSI.
    pub fn from_scsi(number: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.scsi() == number)
    }

    /// Returns the number that NVMe gives it.
    pub fn nvme(self) -> u8 {
        1 + Kind::ALL.iter().position(|kind| *kind == self).expect("all types are listed") as u8
    }

    /// Returns the type with this number of NVMe.
    pub fn from_nvme(number: u8) -> Option<Kind> {
        Kind::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// Returns true if all registrants hold the reservation.
    pub fn is_held_by_all(self) -> bool {
        matches!(self, Kind::WriteExclusiveAll | Kind::ExclusiveAccessAll)
    }

    /// Returns true if registrants have the access of the holder.
    pub fn admits_registrants(self) -> bool {
        !matches!(self, Kind::WriteExclusive | Kind::ExclusiveAccess)
    }

    /// Returns true if others may read.
    pub fn admits_readers(self) -> bool {
        use Kind::*;
        matches!(self, WriteExclusive | WriteExclusiveRegistrants | WriteExclusiveAll)
    }
}

/// A party that registers: the I_T nexus of SCSI, the host of NVMe.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Identity {
    /// An iSCSI initiator port, and the port of the target that it uses.
    Scsi {
        /// The initiator's name.
        name: String,
        /// Its session id, which makes it a port.
        isid: [u8; 6],
        /// The group of target ports; 0 stands for all of them (ALL_TG_PT).
        port: u16,
    },
    /// An NVMe host identifier.
    Nvme {
        /// The identifier.
        host: [u8; 16],
    },
}

impl Identity {
    /// Returns true if a registration of this identity is one of `other`, too.
    pub fn covers(&self, other: &Identity) -> bool {
        let (Identity::Scsi { name, isid, port: 0 }, Identity::Scsi { name: n, isid: i, .. }) =
            (self, other)
        else {
            return self == other;
        };
        name == n && isid == i
    }

    /// Returns true if one host can be of both identities.
    fn meets(&self, other: &Identity) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// Returns true if a host can have this identity.
    pub fn is_sound(&self) -> bool {
        match self {
            Identity::Scsi { name, .. } => (1..=ISCSI_NAME_MAX).contains(&name.len()),
            Identity::Nvme { .. } => true,
        }
    }

    /// Returns the same initiator at all ports of the target.
    pub(super) fn at_all_ports(&self) -> Identity {
        match self {
            Identity::Scsi { name, isid, .. } => {
                Identity::Scsi { name: name.clone(), isid: *isid, port: 0 }
            }
            Identity::Nvme { .. } => self.clone(),
        }
    }
}

/// One registration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registrant {
    /// Its key.
    pub key: u64,
    /// Its identity.
    pub who: Identity,
    /// True if it is the only holder of the reservation.
    pub holds: bool,
    /// See [`Table::since`].
    pub since: u32,
}

/// The access of a host to the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// It may read.
    pub read: bool,
    /// It may write.
    pub write: bool,
}

impl Access {
    /// Reading and writing.
    pub const FULL: Access = Access { read: true, write: true };

    /// Returns what a request of this kind needs.
    #[inline]
    pub fn of(kind: BlockKind) -> Access {
        match kind {
            BlockKind::Read | BlockKind::Extents => Access { read: true, write: false },
            BlockKind::Write | BlockKind::Zero { .. } => Access { read: false, write: true },
            BlockKind::CompareWrite => Access::FULL,
            BlockKind::Flush => Access { read: false, write: false },
        }
    }

    /// Returns true if `other` allows everything that this does.
    pub fn is_within(self, other: Access) -> bool {
        self.read <= other.read && self.write <= other.write
    }
}

/// The registrations and the reservation of one volume. Empty for nearly all volumes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Table {
    /// PRgeneration: the number of changes to registrations.
    pub generation: u32,
    /// The type of the reservation; `None` if there is none.
    pub reserved: Option<Kind>,
    /// The registrants; the one that registered last is the last.
    pub registrants: Vec<Registrant>,
    /// The generation of the volume at which hosts without a registration last lost the right to
    /// write; 0: never. [`Registrant::since`] is the same for a registrant. Requests that a host
    /// began under an earlier generation have to end, even if the host may write again.
    pub since: u32,
}

impl Table {
    /// Returns true if changes can lead to this table, with at most `most` registrants.
    pub fn is_sound(&self, most: usize) -> bool {
        let all = || self.registrants.iter();
        let holders = match self.reserved {
            None => 0..=0,
            Some(kind) if kind.is_held_by_all() => 0..=0,
            Some(_) => 1..=1,
        };
        let twice = |i: usize| all().take(i).any(|r| r.who.meets(&self.registrants[i].who));
        self.registrants.len() <= most
            && all().all(|r| r.key != 0 && r.who.is_sound())
            && !(0..self.registrants.len()).any(twice)
            && holders.contains(&all().filter(|r| r.holds).count())
            && !(self.reserved.is_some() && self.registrants.is_empty())
    }

    /// Returns the index of the registrant that covers `who`.
    pub fn find(&self, who: &Identity) -> Option<usize> {
        self.registrants.iter().position(|r| r.who.covers(who))
    }

    /// Returns true if the registrant with this index holds the reservation.
    pub fn holds(&self, index: usize) -> bool {
        let all = self.reserved.is_some_and(Kind::is_held_by_all);
        all || self.registrants[index].holds
    }

    /// Returns the generation of the volume at which `who` last lost the right to write; 0: never.
    pub fn since(&self, who: &Identity) -> u32 {
        self.find(who).map_or(self.since, |index| self.registrants[index].since)
    }

    /// Returns what a host without a registration may do: clients of NBD, for example.
    pub fn access_of_strangers(&self) -> Access {
        match self.reserved {
            None => Access::FULL,
            Some(kind) => Access { read: kind.admits_readers(), write: false },
        }
    }

    /// Returns what `who` may do.
    pub fn access(&self, who: &Identity) -> Access {
        let Some(kind) = self.reserved else { return Access::FULL };
        match self.find(who) {
            Some(index) if kind.admits_registrants() || self.holds(index) => Access::FULL,
            _ => self.access_of_strangers(),
        }
    }
}

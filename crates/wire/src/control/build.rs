//! A process's description of its build, and the cluster's level.

use super::{DeviceInfo, GroupInfo, MapPage, MappingInfo, Report, ReservationInfo, VolumeInfo};
use crate::control::{Access, Ask, DeviceKind, Intent, Media, ObjectKind};
use alloc::string::String;
use base::{Dialect, level};
use prost::Message;

/// A build. Absent in messages of builds that knew no levels: they know the first one.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BuildInfo {
    /// The release, for people.
    #[prost(string, tag = "1")]
    pub release: String,
    /// The highest level of a cluster that it can belong to.
    #[prost(uint32, tag = "2")]
    pub level_max: u32,
    /// The oldest protocol version that it speaks.
    #[prost(uint32, tag = "3")]
    pub version_min: u32,
    /// The newest protocol version that it speaks.
    #[prost(uint32, tag = "4")]
    pub version_max: u32,
}

impl BuildInfo {
    /// Returns the description of this build.
    pub fn of(dialect: &Dialect) -> BuildInfo {
        BuildInfo {
            release: dialect.release.into(),
            level_max: dialect.level_max,
            version_min: dialect.wire_min.into(),
            version_max: dialect.wire_max.into(),
        }
    }

    /// Returns the highest level that the build with this description knows. A build without one
    /// knows the first level.
    pub fn level(said: Option<&BuildInfo>) -> u32 {
        said.map_or(level::FIRST, |build| build.level_max.max(level::FIRST))
    }
}

/// Orders that the cluster's level rises.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SetLevelRequest {
    /// The level.
    #[prost(uint32, tag = "1")]
    pub level: u32,
    /// Names of MDMs and servers that are down and are not waited for. They are refused until they
    /// are updated.
    #[prost(string, repeated, tag = "2")]
    pub without: alloc::vec::Vec<String>,
}

/// The level of a map page or of a snapshot. Decoding skips all other fields.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
struct LevelOnly {
    #[prost(uint32, tag = "90")]
    level: u32,
}

/// Returns the level of an encoded [`MapPage`] or snapshot: the field with tag 90 of both, for
/// ever. Whatever else a newer build writes is skipped.
pub fn level_of(bytes: &[u8]) -> Result<u32, prost::DecodeError> {
    LevelOnly::decode(bytes).map(|only| only.level.max(level::FIRST))
}

/// A value of an enumeration that this build does not know, where it has a meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownValue {
    /// The enumeration.
    pub of: &'static str,
    /// The value.
    pub value: i32,
}

impl core::fmt::Display for UnknownValue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {}", self.of, self.value)
    }
}

/// Returns an error unless this build knows the value.
pub fn known<T: TryFrom<i32>>(of: &'static str, value: i32) -> Result<(), UnknownValue> {
    T::try_from(value).map(drop).map_err(|_| UnknownValue { of, value })
}

impl MappingInfo {
    /// Returns an error if a grant has an access that this build does not know.
    pub fn check(&self) -> Result<(), UnknownValue> {
        let mut grants = self.all.iter().chain(&self.sdcs);
        grants.try_for_each(|grant| known::<Access>("Access", grant.access))
    }
}

impl DeviceInfo {
    /// Returns an error if its kind or its intent is one that this build does not know.
    pub fn check(&self) -> Result<(), UnknownValue> {
        known::<DeviceKind>("DeviceKind", self.kind)?;
        known::<Intent>("Intent", self.intent)
    }
}

impl GroupInfo {
    /// Returns an error if its doubt is one that this build does not know.
    pub fn check(&self) -> Result<(), UnknownValue> {
        let value = i32::try_from(self.doubt).unwrap_or(i32::MAX);
        let known = level::of_value("Doubt", value).is_some();
        known.then_some(()).ok_or(UnknownValue { of: "Doubt", value })
    }
}

impl VolumeInfo {
    /// Returns an error if a grant has an access that this build does not know, or its reservation
    /// a type.
    pub fn check(&self) -> Result<(), UnknownValue> {
        self.mapping.iter().try_for_each(MappingInfo::check)?;
        self.reservations.iter().try_for_each(ReservationInfo::check)
    }
}

impl MapPage {
    /// Returns an error if a device, a group or a volume has a value that this build does not know:
    /// it must not be taken for another one.
    pub fn check(&self) -> Result<(), UnknownValue> {
        self.devices.iter().try_for_each(DeviceInfo::check)?;
        self.groups.iter().try_for_each(GroupInfo::check)?;
        self.volumes.iter().try_for_each(VolumeInfo::check)
    }
}

impl Report {
    /// Returns an error if a group or a volume of the reported map has a value that this build does
    /// not know. The value would get into the log.
    pub fn check(&self) -> Result<(), UnknownValue> {
        self.groups.iter().filter_map(|g| g.config.as_ref()).try_for_each(GroupInfo::check)?;
        self.volumes.iter().try_for_each(VolumeInfo::check)
    }
}

impl Ask {
    /// Returns an error if it has a value that this build does not know.
    pub fn check(&self) -> Result<(), UnknownValue> {
        let kind = |kind: i32| known::<ObjectKind>("ObjectKind", kind);
        match self {
            Ask::Map(m) => m.to.iter().try_for_each(|to| known::<Access>("Access", to.access)),
            Ask::Rename(m) => kind(m.kind),
            Ask::RemoveObject(m) => kind(m.kind),
            Ask::CreateObject(m) => kind(m.kind).and(known::<Media>("Media", m.media)),
            Ask::SetPool(m) => m.media.map_or(Ok(()), |media| known::<Media>("Media", media)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use crate::control::{GroupReport, ReservationKind, ReserveAction, ReserveOutcome, Role};

    #[test]
    fn every_kind_and_every_value_has_a_level() {
        for code in 0..=u8::MAX {
            let known = Kind::from_code(code).is_some();
            assert_eq!(level::of_kind(code).is_some(), known, "kind {code}");
        }
        fn compare<T: TryFrom<i32>>(of: &str, unknown: &[i32]) {
            for value in (-1..100).filter(|v| !unknown.contains(v)) {
                let known = T::try_from(value).is_ok();
                assert_eq!(level::of_value(of, value).is_some(), known, "{of} {value}");
            }
        }
        compare::<Role>("Role", &[0]);
        compare::<DeviceKind>("DeviceKind", &[0]);
        compare::<Intent>("Intent", &[]);
        compare::<Access>("Access", &[]);
        compare::<ObjectKind>("ObjectKind", &[0]);
        compare::<Media>("Media", &[]);
        compare::<ReservationKind>("ReservationKind", &[]);
        compare::<ReserveAction>("ReserveAction", &[0]);
        compare::<ReserveOutcome>("ReserveOutcome", &[0, 6]);
    }

    #[test]
    fn the_level_of_a_page_is_read_before_all_else() {
        let mut page = MapPage { level: 7, version: 9, ..MapPage::default() }.encode_to_vec();
        assert_eq!(level_of(&page), Ok(7));
        // A field of a later build, and one whose type it has changed.
        page.extend([0xfa, 0x3f, 2, 1, 2]);
        page.extend([0x25, 1, 2, 3, 4]);
        assert_eq!(level_of(&page), Ok(7));
        assert!(MapPage::decode(&page[..]).is_err(), "this build can't read the rest");
        assert_eq!(level_of(&MapPage::default().encode_to_vec()), Ok(1), "of before levels");
    }

    #[test]
    fn values_of_a_later_build_are_not_taken_for_others() {
        let device = |kind, intent| DeviceInfo { kind, intent, ..DeviceInfo::default() };
        let page = |device| MapPage { devices: [device].into(), ..MapPage::default() };
        assert_eq!(page(device(3, 5)).check(), Ok(()));
        let unknown = |of, value| Err(UnknownValue { of, value });
        assert_eq!(page(device(3, 6)).check(), unknown("Intent", 6));
        assert_eq!(page(device(4, 0)).check(), unknown("DeviceKind", 4));
        let mut mapping = MappingInfo { all: Some(Default::default()), ..Default::default() };
        mapping.all.as_mut().unwrap().access = 2;
        let reservations = Some(ReservationInfo { kind: 7, ..ReservationInfo::default() });
        let reserved = VolumeInfo { reservations, ..VolumeInfo::default() };
        assert_eq!(reserved.check(), unknown("ReservationKind", 7));
        let volume = VolumeInfo { mapping: Some(mapping), ..VolumeInfo::default() };
        let page = MapPage { volumes: [volume.clone()].into(), ..MapPage::default() };
        assert_eq!(page.check(), unknown("Access", 2));
        let group = |doubt| GroupInfo { doubt, ..GroupInfo::default() };
        let page = |doubt| MapPage { groups: [group(doubt)].into(), ..MapPage::default() };
        assert_eq!(page(2).check(), Ok(()));
        assert_eq!(page(3).check(), unknown("Doubt", 3));
        assert_eq!(page(u32::MAX).check(), unknown("Doubt", i32::MAX));
        // A report has groups and volumes of a map.
        let report = Report { volumes: [volume].into(), ..Report::default() };
        assert_eq!(report.check(), unknown("Access", 2));
        let told = GroupReport { config: Some(group(3)), ..GroupReport::default() };
        let report = Report { groups: [told].into(), ..Report::default() };
        assert_eq!(report.check(), unknown("Doubt", 3));
    }
}

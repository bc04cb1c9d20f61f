//! A process's description of its build, and the cluster's level.

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

/// Returns the level of an encoded [`super::MapPage`] or snapshot: the field with tag 90 of both,
/// for ever. Whatever else a newer build writes is skipped.
pub fn level_of(bytes: &[u8]) -> Result<u32, prost::DecodeError> {
    LevelOnly::decode(bytes).map(|only| only.level.max(level::FIRST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use crate::control::{
        Access, DeviceKind, Intent, MapPage, Media, ObjectKind, ReservationKind, ReserveAction,
        ReserveOutcome, Role,
    };

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
}

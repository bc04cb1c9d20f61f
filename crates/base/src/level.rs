//! The identity of this build, and the features of each level of a cluster.
//!
//! A *release* is for people. A *protocol version* belongs to a link: it defines the meaning of the
//! frames on the link. A *level* belongs to a cluster: it defines what may be logged, sent, or
//! written to a device. [`LEVELS`] is the only table of levels. Tests of the crates that define
//! commands, frames, fields and features compare their definitions with this table, so that every
//! new one gets a level. A function that uses a feature of a later level asserts that the cluster
//! has that level. `docs/design/0008-versions.md` says what a release must never do.

/// The capabilities of a build. This is part of the configuration and not a global, so that a test
/// or the simulator can run two builds side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dialect {
    /// The release, for people.
    pub release: &'static str,
    /// The oldest protocol version that it speaks.
    pub wire_min: u16,
    /// The newest protocol version that it speaks.
    pub wire_max: u16,
    /// The highest level of a cluster that it can belong to.
    pub level_max: u32,
}

/// The level of every new cluster, and of clusters of builds from before there were levels.
pub const FIRST: u32 = 1;
/// The highest level of a cluster that this release can belong to. The table may already contain
/// the next level, which is under development.
pub const LEVEL: u32 = 1;

/// The additions of one level. Numbers are those of the formats: tags of commands, codes of kinds,
/// bits of features.
#[derive(Debug)]
pub struct Level {
    /// The level.
    pub number: u32,
    /// Tags of commands in the MDMs' log.
    pub commands: &'static [u32],
    /// Codes of frame kinds.
    pub kinds: &'static [u8],
    /// Values of enumerations with a meaning in the log, the map or a registration.
    pub values: &'static [(&'static str, &'static [i32])],
    /// Fields with a meaning, as `MESSAGE.FIELD`. Those of the first level are not listed.
    pub fields: &'static [&'static str],
    /// Feature bits of devices.
    pub features: u64,
}

/// Everything that has a level, by level.
pub const LEVELS: &[Level] = &[
    Level {
        number: FIRST,
        commands: &[
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 31, 40, 41, 50, 51, 52, 53, 54, 55, 56, 60, 80,
            81, 90,
        ],
        kinds: &[
            1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22, 23, 24, 25, 26, 27, 28, 30,
            31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 50,
        ],
        values: &[
            ("Role", &[1, 2, 3, 4]),
            ("DeviceKind", &[1, 2, 3]),
            ("Intent", &[0, 1, 2, 3, 4, 5]),
            ("Access", &[0, 1]),
            ("ObjectKind", &[1, 2, 3, 4, 5, 6, 7]),
            ("Media", &[0, 1, 2]),
            ("ReservationKind", &[0, 1, 2, 3, 4, 5, 6]),
            ("ReserveAction", &[1, 2, 3, 4, 5, 6, 7]),
            ("ReserveOutcome", &[1, 2, 3, 4, 5]),
            ("Doubt", &[0, 1, 2]),
            ("EntryKind", &[0, 1, 2]),
            ("MessageKind", &[3, 4, 5, 6, 7, 8, 9, 13, 14, 15, 16, 17, 18]),
        ],
        fields: &[],
        features: 1,
    },
    Level {
        number: 2,
        commands: &[],
        kinds: &[],
        values: &[],
        fields: &["DeviceUp.release"],
        features: 0,
    },
];

/// Returns the level that a command of the MDMs' log needs; `None`: this build does not know it.
pub fn of_command(tag: u32) -> Option<u32> {
    find(|l| l.commands.contains(&tag))
}

/// Returns the level that a frame of this kind needs.
pub fn of_kind(code: u8) -> Option<u32> {
    find(|l| l.kinds.contains(&code))
}

/// Returns the level that a value of an enumeration needs.
pub fn of_value(enumeration: &str, value: i32) -> Option<u32> {
    find(|l| l.values.iter().any(|(of, all)| *of == enumeration && all.contains(&value)))
}

/// Returns the level that a field of a message needs.
pub fn of_field(field: &str) -> u32 {
    find(|l| l.fields.contains(&field)).unwrap_or(FIRST)
}

/// Returns all features that a device may have in a cluster of this level.
pub fn features(level: u32) -> u64 {
    LEVELS.iter().filter(|l| l.number <= level).fold(0, |all, l| all | l.features)
}

/// Returns the level that these features of a device need together.
pub fn of_features(features: u64) -> Option<u32> {
    let known = self::features(u32::MAX);
    let highest = LEVELS.iter().filter(|l| l.features & features != 0).map(|l| l.number).max();
    (features & !known == 0).then_some(highest.unwrap_or(FIRST))
}

fn find(has: impl Fn(&Level) -> bool) -> Option<u32> {
    LEVELS.iter().find(|l| has(l)).map(|l| l.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_follow_each_other_and_nothing_has_two() {
        assert!(LEVELS.iter().zip(FIRST..).all(|(level, number)| level.number == number));
        assert!(LEVEL <= LEVELS.len() as u32 && LEVEL + 1 >= LEVELS.len() as u32);
        for l in LEVELS {
            assert!(l.commands.iter().all(|tag| of_command(*tag) == Some(l.number)));
            assert!(l.kinds.iter().all(|code| of_kind(*code) == Some(l.number)));
            assert!(l.fields.iter().all(|field| of_field(field) == l.number));
        }
        let both = LEVELS.iter().fold((0, 0), |(or, sum), l| (or | l.features, sum + l.features));
        assert_eq!(both.0, both.1, "each feature belongs to one level");
    }

    #[test]
    fn what_is_not_in_the_table_has_no_level() {
        assert_eq!((of_command(110), of_kind(200), of_features(1 << 40)), (None, None, None));
        assert_eq!((of_value("Intent", 5), of_value("Intent", 6)), (Some(1), None));
        assert_eq!((of_features(0), of_features(1)), (Some(1), Some(1)));
        assert_eq!((features(0), features(1)), (0, 1));
        assert_eq!((of_field("DeviceUp.release"), of_field("DeviceUp.name")), (2, 1));
    }
}

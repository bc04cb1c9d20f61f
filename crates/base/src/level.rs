//! Which build this is: its release, the protocol versions that it speaks, and its highest level.
//!
//! A *release* is for people. A *protocol version* belongs to a link: it says what the frames on it
//! mean. A *level* belongs to a cluster: it says what may be logged, sent, or written to a device.
//! `docs/design/0008-versions.md` says what a release must never do.

/// What a build can do. A value of the configuration and not a global, so that a test or the
/// simulator can run two builds beside each other.
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

/// The highest level that this build knows.
pub const LEVEL: u32 = 1;

//! Judges from a device's claims and from measurements whether it can be trusted. A pure function.
//!
//! Measurements can't tell whether a cache that the device calls safe is safe, or whether a quick
//! flush is quick because the cache keeps its data without power. Only cutting the power can.
//! Measurements can tell that a flush is quicker than the medium could be.

use super::medium::{Cache, Kind, Medium};
use base::{Mutant, mutant};
use serde::Serialize;

/// The quickest tenth, in microseconds, because a busy machine makes any operation slow.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Timings {
    /// A flush after one write of 4 KiB.
    pub flush_us: f64,
    /// A write of 4 KiB, without the flush.
    pub write_us: f64,
}

/// How much a device can be trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// Nothing speaks against it.
    Sound,
    /// It may be as good as it claims, or not: measurements can't tell.
    Doubtful,
    /// Its claims can't be true.
    Lying,
    /// It was not measured.
    Unknown,
}

/// The judgement of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Verdict {
    pub trust: Trust,
    pub why: String,
}

impl Verdict {
    /// Returns true if the device must not be used without `--force`.
    pub fn is_refused(&self) -> bool {
        self.trust == Trust::Lying && !mutant::on(Mutant::TrustLiars)
    }
}

/// A platter takes at least 4 ms per turn, and on average half a turn until the place of a write is
/// under the head. So no real flush is quicker than this.
const TURN_US: f64 = 1000.0;
/// No command travels to a device and back in less time.
const COMMAND_US: f64 = 3.0;
/// Flash needs about this time to program a page.
const PROGRAM_US: f64 = 150.0;

/// Judges a device. `timings` is `None` if it could not be written to.
pub(crate) fn judge(medium: &Medium, timings: Option<Timings>) -> Verdict {
    let verdict = |trust, why: String| Verdict { trust, why };
    if medium.kind == Kind::Memory {
        let why = "it is memory: nothing on it survives a power loss".into();
        return verdict(Trust::Lying, why);
    }
    let Some(t) = timings else {
        let why = "it was not written to, so nothing is known of its flushes".into();
        return verdict(Trust::Unknown, why);
    };
    let quick = t.write_us + t.flush_us;
    match (medium.cache, medium.kind) {
        (Some(Cache::WriteBack), Kind::Rotating) if t.flush_us < TURN_US => verdict(
            Trust::Lying,
            format!(
                "it has platters and a volatile cache, and flushes in {:.0} us, which is less than \
                 a part of a turn; if a controller's battery keeps its cache, use --force",
                t.flush_us
            ),
        ),
        (Some(Cache::WriteThrough), Kind::Rotating) if quick < TURN_US => verdict(
            Trust::Doubtful,
            format!(
                "it has platters and says that it has no volatile cache, and writes in {quick:.0} \
                 us: that takes a controller whose cache is kept by a battery. Make sure there is \
                 one"
            ),
        ),
        (Some(Cache::WriteThrough), _) => verdict(
            Trust::Sound,
            "it says that it has no volatile cache, so it needs no flush. Whether that is true \
             shows only when the power is cut"
                .into(),
        ),
        _ if t.flush_us < COMMAND_US => verdict(
            Trust::Lying,
            format!("it flushes in {:.1} us: no device answers in that time", t.flush_us),
        ),
        _ if t.flush_us < PROGRAM_US => verdict(
            Trust::Doubtful,
            format!(
                "it has a volatile cache, as far as is known, and flushes in {:.0} us, in which no \
                 flash takes in a page: either its cache is kept when the power fails (as in \
                 drives for servers), or flushes are ignored, by it or by the host of a virtual \
                 disk. Only a power cut shows which",
                t.flush_us
            ),
        ),
        _ => verdict(Trust::Sound, "its flushes take as long as they must".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn medium(kind: Kind, cache: Option<Cache>) -> Medium {
        Medium {
            name: None,
            kind,
            cache,
            fua: None,
            logical_block: None,
            physical_block: None,
            atomic_write: None,
        }
    }

    fn trust(kind: Kind, cache: Option<Cache>, flush_us: f64) -> Trust {
        let t = Timings { flush_us, write_us: 20.0 };
        judge(&medium(kind, cache), Some(t)).trust
    }

    #[test]
    fn plausible_and_impossible_results_are_distinguished() {
        let (back, through) = (Some(Cache::WriteBack), Some(Cache::WriteThrough));
        for (kind, cache, flush_us, expected) in [
            // A rotating disk, one that ignores flushes, one behind a battery, one without a cache.
            (Kind::Rotating, back, 8000.0, Trust::Sound),
            (Kind::Rotating, back, 60.0, Trust::Lying),
            (Kind::Rotating, through, 60.0, Trust::Doubtful),
            (Kind::Rotating, through, 8000.0, Trust::Sound),
            // Flash: a desktop drive, a server drive, one that ignores flushes, one with no cache.
            (Kind::Solid, back, 900.0, Trust::Sound),
            (Kind::Solid, back, 32.0, Trust::Doubtful),
            (Kind::Solid, back, 1.0, Trust::Lying),
            (Kind::Solid, through, 5.0, Trust::Sound),
            // A virtual disk hides the medium under it; a file system may hide its device.
            (Kind::Virtual, back, 2000.0, Trust::Sound),
            (Kind::Virtual, back, 15.0, Trust::Doubtful),
            (Kind::Unknown, None, 900.0, Trust::Sound),
            (Kind::Unknown, None, 30.0, Trust::Doubtful),
            (Kind::Memory, back, 900.0, Trust::Lying),
        ] {
            assert_eq!(trust(kind, cache, flush_us), expected, "{kind:?} {cache:?} {flush_us}");
        }
        let unmeasured = judge(&medium(Kind::Solid, back), None);
        assert_eq!((unmeasured.trust, unmeasured.is_refused()), (Trust::Unknown, false));
        assert!(judge(&medium(Kind::Memory, None), None).is_refused());
    }
}

//! What ExaForge Labs published about ScaleIO 1.2 in 2013: three virtual machines with a SATA disk
//! each.
//!
//! The publication names no disk. All parts of what the disks allow assume disks of 120 MB/s. The
//! 56 GB of the text lay on the cluster; what moved is about a third of it. The author's own rate
//! for the removal and for the return is about 48 MB/s.

/// Assumed speed of the disks, in bytes per second: a SATA disk of 2013.
const DISK: f64 = 120e6;
/// The author's rate for what a removal and a return move, in bytes per second.
const MOVED: f64 = 48e6;
/// Bytes on the cluster, in both copies.
const STORED: f64 = 56e9;
/// The part of each figure at which the author rates three such drives without the software.
const RATED: f64 = 0.6;

/// A phase, and what was published about it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Published {
    /// The name of the phase, also for `report.json`.
    pub name: &'static str,
    /// The statement's id; empty if there is none.
    pub id: &'static str,
    /// The figure in words.
    pub said: &'static str,
    /// Seconds of a phase that ends by itself.
    pub seconds: Option<f64>,
    /// Bytes per second at the disks, and the number of disks that took part.
    rate: Option<(f64, f64)>,
    /// The figure that the author rates three such drives at, with its unit.
    rated: Option<(f64, &'static str)>,
}

const fn phase(name: &'static str, id: &'static str, said: &'static str) -> Published {
    Published { name, id, said, seconds: None, rate: None, rated: None }
}

pub(crate) const READ: Published = Published {
    rate: Some((125e6, 3.0)),
    rated: Some((125.0, "MB/s")),
    ..phase("read 1 MiB", "004-13", "125 MB/s")
};
pub(crate) const WRITE: Published = Published {
    // Two copies of each byte.
    rate: Some((2.0 * 45e6, 3.0)),
    rated: Some((45.0, "MB/s")),
    ..phase("write 1 MiB", "004-14", "45 MB/s")
};
pub(crate) const MIXED: Published = Published {
    rated: Some((385.0, "IOPS")),
    ..phase("8 KiB half and half", "004-15", "385 IOPS at 18 to 20 ms")
};
pub(crate) const REMOVE: Published = Published {
    seconds: Some(404.0),
    rate: Some((MOVED, 2.0)),
    ..phase("remove node3", "004-20", "6 min 44 s, about 48 MB/s")
};
pub(crate) const RETURN: Published = Published {
    seconds: Some(578.0),
    rate: Some((MOVED, 1.0)),
    ..phase("node3 comes back empty", "004-22", "9 min 38 s, about 48 MB/s")
};
pub(crate) const KILL: Published = Published {
    seconds: Some(420.0),
    rate: Some((54e6, 2.0)),
    ..phase("kill node2 under load", "004-26", "about 7 min, 54 MB/s at its peak")
};
pub(crate) const BACK: Published =
    phase("node2 comes back", "004-28", "a rebalance like that of a new host");
pub(crate) const CABLE: Published = phase("pull node1's cable", "", "-");

/// All phases, in their order.
pub(crate) const ALL: [Published; 8] = [READ, WRITE, MIXED, REMOVE, RETURN, KILL, BACK, CABLE];

impl Published {
    /// Returns the part of what their disks allowed.
    pub(crate) fn ratio(&self) -> Option<f64> {
        self.rate.map(|(rate, disks)| rate / (disks * DISK))
    }

    /// Returns what the author rates three such drives at.
    pub(crate) fn rated(&self) -> Option<String> {
        self.rated.map(|(figure, unit)| format!("{:.0} {unit}", figure * RATED))
    }

    /// Returns the seconds that a move would take at their size and disks, if it reached this part
    /// of what the disks allow.
    pub(crate) fn seconds_at(&self, ratio: f64) -> Option<f64> {
        let (_, disks) = self.rate.filter(|(rate, _)| *rate == MOVED)?;
        (ratio > 0.0).then(|| STORED / 3.0 / (ratio * disks * DISK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_of_what_was_stored_fits_the_published_times() {
        // 46 MB/s for the removal, where the author says about 48.
        assert_eq!((STORED / 3.0 / REMOVE.seconds.unwrap() / 1e6).round(), 46.0);
        let hundredths = |p: Published| (p.ratio().unwrap() * 100.0).round() / 100.0;
        assert_eq!((hundredths(READ), hundredths(WRITE)), (0.35, 0.25));
        assert_eq!((hundredths(REMOVE), hundredths(RETURN)), (0.2, 0.4));
        assert_eq!(hundredths(KILL), 0.23);
        assert_eq!((MIXED.ratio(), CABLE.ratio()), (None, None));
    }

    #[test]
    fn three_such_drives_are_rated_at_less() {
        let rated = [READ, WRITE, MIXED].map(|p| p.rated().unwrap());
        assert_eq!(rated, ["75 MB/s", "27 MB/s", "231 IOPS"]);
        assert_eq!(REMOVE.rated(), None);
    }

    #[test]
    fn arithmetic_takes_their_size_and_disks() {
        assert_eq!(REMOVE.seconds_at(0.2).unwrap().round(), 389.0);
        assert_eq!((KILL.seconds_at(0.5), REMOVE.seconds_at(0.0)), (None, None));
    }
}

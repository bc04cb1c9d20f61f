//! Judges recoveries: a group waits for the operator only while nobody can tell which replica has
//! every acknowledged write.
//!
//! When all devices have reported what they remember, those that were sealed in the last epoch in
//! which any device took part have everything (`mdm::recovery` has the argument). A group with such
//! copies has to continue without the operator. An in-sync replica that remembers nothing may have
//! been emptied after it continued alone: then nobody can tell.

/// A device's records of a group.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// The device.
    pub device: u32,
    /// The last epoch in which the device took part.
    pub acted: u64,
    /// The device was a joiner in that epoch.
    pub joiner: bool,
    /// The last epoch in which the device was sealed.
    pub base: u64,
}

/// Highest number of in-sync copies of a group: two, and one more during a move.
const MOST: usize = 3;

/// Returns true when it is known which replicas have every acknowledged write. `copies` are those
/// of all devices of the cluster; `in_sync` are the devices of the newest known configurations.
pub fn is_known(copies: &[Copy], in_sync: &[u32]) -> bool {
    let last = copies.iter().map(|c| c.acted).max().unwrap_or(0);
    let sealed = |c: &&Copy| c.acted == last && c.base == last && !c.joiner;
    let whole = copies.iter().filter(sealed).count();
    let remembers = |d: &u32| copies.iter().any(|c| c.device == *d && c.acted > 0);
    last > 0 && (1..=MOST).contains(&whole) && in_sync.iter().all(remembers)
}

/// Returns true when this device took part in the last epoch in which any device did, with a full
/// copy: no other device has more.
pub fn is_newest(copies: &[Copy], device: u32) -> bool {
    let last = copies.iter().map(|c| c.acted).max().unwrap_or(0);
    let newest = |c: &Copy| c.device == device && c.acted == last && c.base > 0 && !c.joiner;
    copies.iter().any(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Copy = Copy { device: 1, acted: 4, joiner: false, base: 4 };
    const SOLO: Copy = Copy { device: 2, acted: 7, joiner: false, base: 7 };

    #[test]
    fn a_replica_that_continued_alone_has_everything() {
        assert!(is_known(&[OLD, SOLO], &[1, 2]));
        assert!(is_known(&[OLD, SOLO], &[1]), "the newest configuration is older than what it did");
    }

    #[test]
    fn the_newest_copy_is_unknown_if_the_last_epoch_was_not_sealed_or_a_replica_forgot() {
        let unsealed = Copy { acted: 8, ..SOLO };
        assert!(!is_known(&[OLD, unsealed], &[1, 2]));
        assert!(!is_known(&[SOLO], &[1, 2]), "the other one remembers nothing");
        let emptied = Copy { acted: 0, base: 0, ..OLD };
        assert!(!is_known(&[emptied, SOLO], &[1, 2]));
        let cut_off = Copy { joiner: true, ..SOLO };
        assert!(!is_known(&[OLD, cut_off], &[1, 2]), "its leader may have gone on without it");
        assert!(!is_known(&[], &[]));
    }

    #[test]
    fn the_last_whole_replica_has_writes_that_no_other_has() {
        assert!(is_newest(&[OLD, SOLO], 2) && !is_newest(&[OLD, SOLO], 1));
        let mate = Copy { device: 3, base: 4, ..SOLO };
        assert!(is_newest(&[OLD, SOLO, mate], 3), "it was not equal yet, and had all before");
        for less in [Copy { joiner: true, ..mate }, Copy { base: 0, ..mate }] {
            assert!(!is_newest(&[OLD, SOLO, less], 3), "{less:?}");
        }
        assert!(!is_newest(&[OLD, SOLO], 9) && !is_newest(&[], 9), "it remembers nothing");
    }
}

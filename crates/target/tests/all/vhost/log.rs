//! Tests of the log of written pages.

use proptest::prelude::*;
use std::collections::BTreeSet;
use target::vhost::log::{bytes, marks};

fn all(at: u64, len: u64, log: u64) -> Vec<(u64, u8)> {
    marks(at, len, log).collect()
}

#[test]
fn each_written_page_has_its_bit() {
    for (at, len, expected) in [
        (0, 1, &[(0, 0b1)][..]),
        (4095, 1, &[(0, 0b1)]),
        (4095, 2, &[(0, 0b11)]),
        (4096, 4096, &[(0, 0b10)]),
        (7 * 4096, 4096, &[(0, 0x80)]),
        (7 * 4096, 4097, &[(0, 0x80), (1, 1)]),
        (5 * 4096 + 7, 20 * 4096, &[(0, 0xe0), (1, 0xff), (2, 0xff), (3, 0b11)]),
        (3 * 4096, 0, &[]),
    ] {
        assert_eq!(all(at, len, 100), expected, "{len} at {at:#x}");
    }
}

#[test]
fn no_mark_is_beyond_the_log() {
    assert_eq!(all(15 * 4096, 2 * 4096, 2), [(1, 0x80)], "the second page has no bit");
    assert_eq!(all(16 * 4096, 4096, 2), []);
    assert_eq!(all(0, 1, 0), []);
    assert_eq!(all(u64::MAX, u64::MAX, 2), []);
    assert_eq!(all(0, u64::MAX, 2), [(0, 0xff), (1, 0xff)]);
}

#[test]
fn a_log_of_a_memory_has_a_bit_for_its_last_page_and_none_to_spare() {
    for (last, len) in [(0, 1), (8 * 4096 - 1, 1), (8 * 4096, 2), (u64::MAX, 1 << 49)] {
        assert_eq!(bytes(last), len);
        assert_eq!(all(last, 1, len).len(), 1);
        assert_eq!(all(last, 1, len - 1), []);
    }
}

proptest! {
    #[test]
    fn marks_are_those_of_the_pages_one_by_one(
        at in prop_oneof![0u64..400_000, u64::MAX - 100_000..u64::MAX],
        len in 0u64..400_000,
        log in 0u64..16,
    ) {
        let bit = |page: u64| (page / 8, page % 8);
        let last = at.saturating_add(len.saturating_sub(1)) / 4096;
        let pages = if len == 0 { 0..=0 } else { at / 4096..=last };
        let naive: BTreeSet<_> =
            pages.filter(|_| len > 0).map(bit).filter(|(byte, _)| *byte < log).collect();
        let found = marks(at, len, log).flat_map(|(byte, bits)| {
            (0..8).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| (byte, bit))
        });
        prop_assert_eq!(found.collect::<BTreeSet<_>>(), naive);
    }
}

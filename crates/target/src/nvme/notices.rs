//! What a host is told about its reservations: the log of notifications, and the feature that masks
//! them (base 5.14.1, 5.21.1).
//!
//! Invariants: a read returns the oldest notice that was not read. Each notice has the next number,
//! so the host sees whether any is missing. At most [`MOST`] are kept, the newest ones.

use crate::reserve::Notice;
use alloc::collections::{BTreeMap, VecDeque};

/// The most notices that are kept until the host reads them.
const MOST: usize = 256;
/// Bytes of the log page.
pub(crate) const PAGE: usize = 64;
/// The bits of the feature: registration preempted, reservation released, reservation preempted.
pub(crate) const MASKS: u32 = 0x0e;

/// The notices of a controller.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    /// Those that were not read, the oldest first: number, type, namespace.
    unread: VecDeque<(u64, u8, u32)>,
    /// The number of the newest one.
    count: u64,
    /// The masked types, by namespace; none is 0.
    masks: BTreeMap<u32, u32>,
}

/// Returns the type of the log page. The bit of a type in the feature has the same number.
fn number(notice: Notice) -> u8 {
    match notice {
        Notice::RegistrationsPreempted => 1,
        Notice::ReservationsReleased => 2,
        Notice::ReservationsPreempted => 3,
    }
}

impl Notices {
    /// Adds a notice. Returns false if the host does not want to know.
    pub(crate) fn add(&mut self, namespace: u32, notice: Notice) -> bool {
        let kind = number(notice);
        if self.mask(namespace) >> kind & 1 != 0 {
            return false;
        }
        if self.unread.len() >= MOST {
            self.unread.pop_front();
        }
        self.count = self.count.wrapping_add(1).max(1);
        self.unread.push_back((self.count, kind, namespace));
        true
    }

    /// Returns the log page: the oldest notice, or an empty page.
    pub(crate) fn page(&self) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        if let Some((count, kind, namespace)) = self.unread.front() {
            page[..8].copy_from_slice(&count.to_le_bytes());
            page[8] = *kind;
            page[9] = (self.unread.len() - 1).min(255) as u8; // there are more
            page[12..16].copy_from_slice(&namespace.to_le_bytes());
        }
        page
    }

    /// Removes the oldest notice, which was read. Returns true if there are more.
    pub(crate) fn read(&mut self) -> bool {
        self.unread.pop_front();
        !self.unread.is_empty()
    }

    /// Returns the masked types of a namespace.
    pub(crate) fn mask(&self, namespace: u32) -> u32 {
        self.masks.get(&namespace).copied().unwrap_or(0)
    }

    /// Sets the masked types of a namespace. The caller limits the number of namespaces.
    pub(crate) fn set_mask(&mut self, namespace: u32, mask: u32) {
        match mask {
            0 => drop(self.masks.remove(&namespace)),
            _ => drop(self.masks.insert(namespace, mask)),
        }
    }

    /// Forgets the masks of namespaces that `stays` does not accept.
    pub(crate) fn retain(&mut self, stays: impl Fn(u32) -> bool) {
        self.masks.retain(|namespace, _| stays(*namespace));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(notices: &Notices) -> (u8, u8, u8) {
        let page = notices.page();
        (page[0], page[8], page[9])
    }

    #[test]
    fn the_newest_notices_are_kept_and_the_host_sees_what_is_missing() {
        let mut notices = Notices::default();
        assert_eq!(notices.page(), [0; PAGE]);
        assert!((0..300).all(|_| notices.add(7, Notice::ReservationsReleased)));
        assert_eq!(numbers(&notices), (45, 2, 255), "the first 44 are gone");
        assert!(notices.read());
        assert_eq!(numbers(&notices), (46, 2, 254));
        assert_eq!((0..255).filter(|_| notices.read()).count(), 254);
        assert_eq!(notices.page(), [0; PAGE]);
        assert!(!notices.read());
        notices.count = u64::MAX;
        assert!(notices.add(7, Notice::RegistrationsPreempted));
        assert_eq!(numbers(&notices), (1, 1, 0), "0 means an empty page");
    }

    #[test]
    fn masks_are_those_of_a_namespace() {
        let mut notices = Notices::default();
        notices.set_mask(7, 1 << 2 | 1 << 3);
        assert!(!notices.add(7, Notice::ReservationsReleased));
        assert!(!notices.add(7, Notice::ReservationsPreempted));
        assert!(notices.add(7, Notice::RegistrationsPreempted));
        assert!(notices.add(8, Notice::ReservationsReleased));
        notices.retain(|namespace| namespace == 8);
        assert_eq!((notices.mask(7), notices.masks.len()), (0, 0));
        notices.set_mask(8, 2);
        notices.set_mask(8, 0);
        assert!(notices.masks.is_empty());
    }
}

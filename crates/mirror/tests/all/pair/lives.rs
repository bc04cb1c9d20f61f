//! Processes that stood still or were started again: what that says about the leases of others.

use base::{DeviceId, Incarnation, Limits, MapVersion, Time};
use mirror::{Leases, PeerState};

/// The address may have moved to another host, and the earlier process may go on at the old
/// one.
#[test]
pub(crate) fn a_newer_life_at_the_same_address_is_no_proof_that_the_older_one_is_dead() {
    let ms = |n: u64| Time(n * 1_000_000);
    let state = |life, dead| PeerState { incarnation: Incarnation(life), dead };
    // This process has run for a while: grants of its earlier incarnations don't count any
    // more.
    let mut leases = Leases::new(ms(0), &Limits::SHIPPED);
    let (peer, map) = (DeviceId(2), MapVersion(2));
    leases.grant(ms(10_000), peer, Incarnation(1), MapVersion(1));
    let promised = leases.promised(peer);
    let over = |now, state| leases.is_over(ms(now), peer, map, Some(state), promised);
    assert!(!over(10_001, state(1, false)) && !over(10_001, state(2, false)));
    assert!(!over(10_001, state(2, true)), "that is the death of another one");
    assert!(over(10_001, state(1, true)));
    let end = 10_000 + Limits::SHIPPED.grace.as_millis() as u64;
    assert!(!over(end - 1, state(2, false)) && over(end, state(2, false)));
}

#[test]
pub(crate) fn a_primary_that_stood_still_accuses_nobody_with_its_first_breath() {
    let ms = |n: u64| Time(n * 1_000_000);
    let peer = DeviceId(2);
    let mut leases = Leases::new(ms(0), &Limits::SHIPPED);
    leases.need(ms(1), &[peer].into());
    let silent = |leases: &Leases, n| leases.silent(ms(n)).count();
    leases.due(ms(400), |_| {});
    leases.granted(ms(401), peer, ms(400), MapVersion(1), MapVersion(1));
    // It stands still for ten seconds. The grants of that time have not been read yet.
    assert_eq!(silent(&leases, 10_400), 0);
    leases.due(ms(10_400), |_| {});
    assert_eq!(silent(&leases, 10_400), 0);
    // A device that answers nothing from then on is silent.
    (10_800..12_400).step_by(400).for_each(|n| leases.due(ms(n), |_| {}));
    assert_eq!((silent(&leases, 12_400), silent(&leases, 12_401)), (0, 1));
}

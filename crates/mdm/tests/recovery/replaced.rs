//! A device was replaced since the backup was made, and comes back while the one that replaced it is away.

use super::*;
use mdm::controller::Registration::{self, Superseded};

/// What replaced dev1 after the backup.
const NEWER: u64 = 99;

/// The process has a map that says what is on these devices.
fn knows(word: Word, devices: &[(u32, u64)]) -> Word {
    let mut word = running(word);
    let info = |(device, store): &(u32, u64)| StoreInfo { device: *device, store: *store };
    let devices = devices.iter().map(info).collect();
    assert!(word.add(Report { version: 1, devices, ..Report::default() }));
    word
}

/// dev2 was in sync with the newer dev1 in epoch 3.
fn partner() -> Word {
    knows(word(3, 3, Some(config(3, &[1, 2]))), &[(1, NEWER), (2, 12)])
}

#[test]
fn an_older_disk_does_not_stand_for_the_one_that_replaced_it() {
    for partner in [partner(), knows(word(4, 3, Some(config(3, &[1, 2]))), &[(1, NEWER)])] {
        let mut state = recovered(Durable);
        let told = words(vec![(1, word(1, 1, None)), (2, partner)]);
        settle(&mut state, &told, false);
        assert!(state.recovery.open && group(&state, 1).doubt == Doubt::Reports);
        assert_eq!(waits_for(&state, &told), [1], "the newer disk may come");
        assert_eq!(state.recovery_status(&told, false).unwrap().older, [1]);
        // A person doesn't wait for it. Then dev2 starts again, and nobody tells of it any more.
        let end = close(&state, &told, false);
        assert_eq!(state.apply(state.index + 1, &end), Outcome::Changed);
        state.check().unwrap();
        let told = words(vec![(1, word(1, 1, None)), (2, word(4, 4, None))]);
        settle(&mut state, &told, false);
        assert_ne!(group(&state, 1).doubt, Doubt::None);
    }
}

#[test]
fn the_newer_disk_ends_the_waiting() {
    let mut state = recovered(Durable);
    let newer = control::Register { store: NEWER, nonce: 98, ..life(1, "sds1", 0) };
    let Registration::New(_, up) = state.register(&newer, false, Some(&word(3, 3, None))) else {
        panic!("it is not taken in");
    };
    assert_eq!(state.apply(state.index + 1, &up), Outcome::Changed);
    let told = words(vec![(1, word(3, 3, None)), (2, partner())]);
    settle(&mut state, &told, false);
    assert!(!state.recovery.open);
    let found = group(&state, 1);
    assert_eq!((found.doubt, &found.in_sync[..]), (Doubt::None, &[DeviceId(1), DeviceId(2)][..]));
}

#[test]
fn a_map_that_knows_what_is_there_holds_nothing_up() {
    let mut state = recovered(Durable);
    let partner = knows(word(3, 3, Some(config(3, &[1, 2]))), &[(1, 11), (2, 12)]);
    settle(&mut state, &words(vec![(1, word(3, 3, None)), (2, partner)]), false);
    assert!(!state.recovery.open && group(&state, 1).doubt == Doubt::None);
}

/// Nobody has told the state that group 3 is there. dev2 led it in epoch 4, with dev1 in sync, of which it says what is on
/// it; dev1 remembers nothing of the group.
fn told_of_a_blank(store: u64) -> State {
    let mut state = recovered(Durable);
    let made = GroupInfo { id: 3, ..config(4, &[2, 1]) };
    let group_3 = GroupReport { group: 3, acted: 4, base: 4, config: Some(made), joiner: false };
    let mut partner = knows(Word::default(), &[(1, store)]);
    let groups = vec![group_3];
    assert!(partner.add(Report { version: 1, groups, next_volume: 2, ..Report::default() }));
    let told = words(vec![(1, Word::default()), (2, partner)]);
    settle(&mut state, &told, false);
    assert!(!state.recovery.open, "{:?}", state.recovery_status(&told, false));
    state
}

#[test]
fn a_disk_that_is_empty_is_waited_for_no_longer_and_proves_nothing() {
    let state = told_of_a_blank(NEWER);
    assert_eq!(group(&state, 3).doubt, Doubt::Reports, "dev1 may have been alone, and emptied");
}

/// It was down when the group was formed, and was up again for too short a time to hear of it.
#[test]
fn a_disk_that_nobody_replaced_and_that_remembers_nothing_never_took_part() {
    let state = told_of_a_blank(11);
    let found = group(&state, 3);
    assert_eq!((found.doubt, &found.in_sync[..]), (Doubt::None, &[DeviceId(2), DeviceId(1)][..]));
}

#[test]
fn a_process_that_was_superseded_before_the_loss_does_not_come_back() {
    let state = recovered(Durable);
    let comes = |state: &State, nonce: u64, incarnation: u64| {
        let process = control::Register { nonce, store: 11, ..life(1, "sds1", incarnation) };
        state.register(&process, false, None)
    };
    let mut state = state;
    let Registration::New(_, newer) = comes(&state, 72, 42) else { panic!("it is not taken in") };
    assert_eq!(state.apply(state.index + 1, &newer), Outcome::Changed);
    assert!(matches!(comes(&state, 71, 41), Superseded(_)), "42 came after it");
    let Registration::New(_, third) = comes(&state, 73, 0) else { panic!("it is not taken in") };
    assert_eq!(state.apply(state.index + 1, &third), Outcome::Changed);
    assert!(matches!(comes(&state, 71, 41), Superseded(_)));
}

#[test]
fn the_newer_of_two_processes_takes_its_place_whatever_the_order_in_which_both_come() {
    let mut state = recovered(Durable);
    let process = |nonce: u64, incarnation: u64| control::Register {
        nonce,
        store: 11,
        ..life(1, "sds1", incarnation)
    };
    let first = state.register(&process(71, 41), false, None);
    let Registration::New(_, first) = first else { panic!("it is not taken in: {first:?}") };
    assert_eq!(state.apply(state.index + 1, &first), Outcome::Changed);
    // Its connection was there before the one on which the other one has registered.
    let newer = state.register(&process(72, 42), true, None);
    assert!(matches!(newer, Registration::New(..)), "{newer:?}");
    let unnamed = state.register(&process(73, 0), true, None);
    assert!(matches!(unnamed, Superseded(_)), "{unnamed:?}");
}

/// The one that goes on had proposed a life for it; its proposal was not decided, and the others gave it a later one.
#[test]
fn a_process_keeps_the_life_that_the_lost_ones_gave_it() {
    let mut state = recovered(Durable);
    let same = state.devices[&DeviceId(1)].nonce;
    let process = |incarnation: u64| control::Register {
        nonce: same,
        store: 11,
        ..life(1, "sds1", incarnation)
    };
    let known = state.devices[&DeviceId(1)].incarnation.0;
    let Registration::New(DeviceId(1), up) = state.register(&process(known + 5), false, None)
    else {
        panic!("its life is not taken over")
    };
    assert_eq!(state.apply(state.index + 1, &up), Outcome::Changed);
    state.check().unwrap();
    assert_eq!(state.devices[&DeviceId(1)].incarnation.0, known + 5);
    let again = state.register(&process(known + 5), false, None);
    assert_eq!(again, Registration::Known(DeviceId(1)));
}

//! A device registers with another content than the state has there: while the recovery is open, or
//! after an operator has ended it.

use super::*;
use mdm::controller::Registration::{self, New, WrongDevice};
use mdm::observed::Observed;

/// dev1 did not come until an operator ended the recovery, so its groups are in doubt.
fn ended() -> State {
    let mut state = recovered(Durable);
    state.apply(state.index + 1, &down(1, 1, true));
    settle(&mut state, &reports(vec![(2, report(1, 1, None))]), false);
    finish(&mut state);
    assert_eq!(group(&state, 1).doubt, Doubt::Reports);
    state
}

/// Returns the registration of dev1 after it was emptied, or exchanged, after the backup.
fn other() -> control::Register {
    control::Register { store: 99, nonce: 99, ..life(1, "sds1", 0) }
}

fn comes(state: &State, told: &[(u32, u64)]) -> Registration<DeviceId> {
    state.register(&other(), false, Some(&took_part(told)))
}

#[test]
fn a_late_device_with_the_only_copy_of_a_group_in_doubt_is_accepted_and_can_be_chosen() {
    let mut state = ended();
    // It was filled again since the backup, and continued alone in epoch 6.
    let registration = comes(&state, &[(1, 6)]);
    let New(DeviceId(1), command) = registration else { panic!("{registration:?}") };
    assert_eq!(state.apply(state.index + 1, &command), Outcome::Changed);
    state.check().unwrap();
    let told = reports(vec![(1, report(6, 6, None)), (2, report(1, 1, None))]);
    settle(&mut state, &told, false);
    assert_eq!(group(&state, 1).doubt, Doubt::Gone, "what was there before may have had more");
    let damage = state.damage("v", &Observed::default(), &told).unwrap();
    let group = damage.groups.iter().find(|g| g.group == 1).unwrap();
    assert_eq!(group.stale, [1, 2], "dev1 has the newest copy: {damage:?}");
}

#[test]
fn a_late_device_without_groups_in_doubt_is_refused() {
    let mut state = ended();
    for told in [&[][..], &[(1, 0)], &[(7, 0)]] {
        assert!(matches!(comes(&state, told), WrongDevice(_)), "{told:?}");
    }
    for id in [1, 2] {
        state.groups.get_mut(&GroupId(id)).unwrap().epoch = Epoch(9);
    }
    assert!(matches!(comes(&state, &[(1, 8), (2, 8)]), WrongDevice(_)), "it was replaced before");
    for id in [1, 2] {
        state.groups.get_mut(&GroupId(id)).unwrap().doubt = Doubt::None;
    }
    assert!(matches!(comes(&state, &[(1, 50)]), WrongDevice(_)), "no group is in doubt");
}

#[test]
fn a_late_device_that_would_replace_a_counted_copy_is_refused() {
    let told = [(1, 6)];
    let mut state = ended();
    assert!(matches!(comes(&state, &told), New(..)));
    let two = state.groups.get_mut(&GroupId(2)).unwrap();
    assert!(two.in_sync.contains(&DeviceId(1)));
    two.doubt = Doubt::None;
    assert!(matches!(comes(&state, &told), WrongDevice(_)), "group 2 has its copy there");
    let mut state = ended();
    state.devices.get_mut(&DeviceId(1)).unwrap().up = true;
    assert!(matches!(comes(&state, &told), WrongDevice(_)), "dev1 is up");
}

/// dev1 was emptied after the backup, and has nothing. But its process has run since then, with a
/// map that knows its incarnation.
#[test]
fn a_device_added_after_the_backup_is_accepted_and_shows_when_it_was_emptied() {
    let named = control::Register { incarnation: 40, ..other() };
    let mut state = recovered(Durable);
    let empty = running(report(0, 0, Some(config(6, &[2]))));
    assert!(matches!(state.register(&other(), false, None), WrongDevice(_)));
    let registration = state.register(&named, false, Some(&empty));
    let New(DeviceId(1), command) = registration else { panic!("{registration:?}") };
    assert_eq!(state.apply(state.index + 1, &command), Outcome::Changed);
    let told = reports(vec![(1, empty), (2, running(report(6, 6, Some(config(6, &[2])))))]);
    settle(&mut state, &told, false);
    let found = group(&state, 1);
    assert_eq!((found.doubt, &found.in_sync[..]), (Doubt::None, &[DeviceId(2)][..]));
    // An incarnation that is not later, or that was not given yet, proves nothing.
    let state = recovered(Durable);
    for incarnation in [1, state.next_incarnation.0, u64::MAX] {
        let other = control::Register { incarnation, ..other() };
        assert!(matches!(state.register(&other, false, None), WrongDevice(_)), "{incarnation}");
    }
}

#[test]
fn a_device_added_after_the_backup_is_accepted_after_the_recovery() {
    let named = control::Register { incarnation: 40, ..other() };
    let mut state = ended();
    assert!(matches!(state.register(&named, false, None), New(..)));
    state.devices.get_mut(&DeviceId(1)).unwrap().up = true;
    assert!(matches!(state.register(&named, false, None), WrongDevice(_)), "dev1 is up");
    // Without a recovery no decision is lost.
    let state = pair(Durable);
    let named = control::Register { acted: 0, incarnation: 2, ..named };
    assert!(matches!(state.register(&named, false, None), WrongDevice(_)));
}

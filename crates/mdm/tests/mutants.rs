//! Each of the MDM's own mutants does something.
//!
//! A mutant is switched on for the whole process, so this test has to run alone: `cargo test -p
//! gabion-mdm --features mutants --test mutants -- --exact every_mutant_is_caught`.

#[path = "all/again.rs"]
#[allow(dead_code)] // Some of its tests are used here.
mod again;
#[path = "all/balance.rs"]
mod balance;
#[path = "all/common.rs"]
#[allow(dead_code)] // A part of it is used here.
mod common;
#[path = "all/damage.rs"]
#[allow(dead_code)] // One of its tests is used here.
mod damage;
#[path = "all/hosts.rs"]
#[allow(dead_code)] // One of its tests is used here.
mod hosts;
#[path = "all/reserve.rs"]
#[allow(dead_code)] // One of its tests is used here.
mod reserve;
#[path = "all/seats.rs"]
#[allow(dead_code)] // One of its tests is used here.
mod seats;

use base::mutant::{Mutant, choose};
use base::{DeviceId, Incarnation, Limits, SdsId, Time};
use common::{admit, down, join, pair, reshape, short, suspect, up};
use mdm::command::{AcceptLoss, DeviceUp, Reconcile, Shape};
use mdm::detector::Detector;
use mdm::members::Member;
use mdm::recovery::{DeviceReport, DeviceReports};
use mdm::{Command, State};
use wire::control::DeviceKind::{self, Durable, Ram};
use wire::control::{GroupReport, Report, StoreInfo};

type Short = (u64, u32, Vec<u32>, Vec<u32>, bool);

fn run(mutant: Option<Mutant>, kind: DeviceKind, commands: &[Command]) -> Short {
    let mut state = pair(kind);
    choose(mutant);
    for command in commands {
        state.apply(state.index + 1, command);
    }
    choose(None);
    short(&state, 1)
}

/// A second device of the first server.
fn twin() -> Command {
    let Command::DeviceUp(c) = up(3, 3, 13, Durable) else { unreachable!() };
    Command::DeviceUp(DeviceUp { sds: 1, name: "sds1".into(), shard: 1, ..c })
}

#[test]
fn every_mutant_is_caught() {
    mutants_break_the_rule_that_they_are_named_for();
    mutants_forget_what_a_lost_mdm_told();
    who_weighs_nothing_or_moves_twice_is_noticed();
    notices(Mutant::ReserveAgain, reserve::a_change_that_comes_again_is_done_once);
    notices(Mutant::MoveUnfenced, seats::a_move_raises_the_generation_and_the_first_seat_does_not);
    notices(
        Mutant::MoveUnfenced,
        seats::after_a_recovery_no_seat_is_known_and_each_new_one_is_fenced,
    );
    notices(
        Mutant::KeepSeats,
        hosts::hosts_that_lose_access_lose_their_seat_behind_a_generation_and_others_keep_theirs,
    );
    notices(Mutant::ErrorsAsZeros, damage::lost_data_is_an_error_or_zeros_as_the_order_says);
    notices(
        Mutant::ForgetDoubts,
        again::a_map_that_named_the_last_replica_counts_after_the_recovery,
    );
    notices(Mutant::ForgetDoubts, again::the_last_epoch_counts_after_its_device_is_gone);
    notices(Mutant::ForgetDisks, again::a_disk_that_one_server_named_is_waited_for_after_a_restart);
    notices(Mutant::NameOlderDisk, again::a_map_names_the_content_that_groups_wait_for);
    notices(Mutant::RemoveWitness, again::a_device_that_a_group_in_doubt_may_need_is_not_removed);
    assert_eq!(dead_by_a_refusal(None), 5);
    assert_eq!(dead_by_a_refusal(Some(Mutant::BelieveAddress)), 6);
}

fn mutants_break_the_rule_that_they_are_named_for() {
    let mut next = pair(Durable);
    next.level = 2;
    choose(Some(Mutant::AnySnapshot));
    assert!(State::read(&next.to_bytes(), 1).is_ok(), "the level of a snapshot is not checked");
    choose(None);
    assert!(State::read(&next.to_bytes(), 1).is_err());
    let stale = [suspect(1, 1, 2), join(1, 1, 2), suspect(1, 1, 2), join(1, 1, 2), admit(1, 3, 2)];
    let cases = [
        (
            Mutant::PromoteAny,
            Durable,
            vec![suspect(1, 1, 2), down(1, 1, true)],
            (3, 2, vec![2], vec![], false),
        ),
        (Mutant::NoCompareAndSwap, Durable, stale.to_vec(), (6, 1, vec![1, 2], vec![], false)),
        (
            Mutant::ReviveEmpty,
            Ram,
            vec![suspect(1, 1, 2), up(1, 3, 99, Ram)],
            (3, 1, vec![1], vec![], false),
        ),
        (
            Mutant::ReviveEmpty,
            Ram,
            vec![suspect(1, 1, 2), down(1, 1, true)],
            (3, 0, vec![1], vec![], false),
        ),
        (
            Mutant::ResumeSameEpoch,
            Durable,
            vec![up(1, 3, 11, Durable)],
            (1, 1, vec![1, 2], vec![], false),
        ),
        (
            Mutant::MoveBlindly,
            Durable,
            vec![up(3, 3, 13, Durable), reshape(1, 7, &[3, 2, 1], 1)],
            (2, 2, vec![2, 1], vec![], false),
        ),
        (
            Mutant::DropEarly,
            Durable,
            vec![up(3, 3, 13, Durable), reshape(1, 1, &[1, 3, 2], 2), reshape(1, 2, &[1, 3], 0)],
            (3, 1, vec![1], vec![], false),
        ),
        (
            Mutant::AdmitUncopied,
            Durable,
            vec![up(3, 3, 13, Durable), reshape(1, 1, &[1, 3, 2], 2)],
            (2, 1, vec![1, 3, 2], vec![], false),
        ),
        (Mutant::OneFaultUnit, Durable, vec![twin(), reshape(1, 1, &[1, 3, 2], 2)], {
            (2, 1, vec![1, 2], vec![], false)
        }),
        // The group came back before the decision did.
        (
            Mutant::AcceptServed,
            Durable,
            vec![up(3, 3, 13, Durable), accept(1, 1, &[3, 1])],
            (2, 3, vec![3], vec![], false),
        ),
    ];
    for (mutant, kind, commands, want) in cases {
        assert_eq!(run(Some(mutant), kind, &commands), want, "{mutant:?}");
        assert_ne!(run(None, kind, &commands), want, "{mutant:?} changes nothing");
    }
}

/// The operator's decision that a group starts again with these replicas.
fn accept(group: u32, epoch: u64, replicas: &[u32]) -> Command {
    let shape = Shape { group, epoch, replicas: replicas.to_vec(), ..Shape::default() };
    Command::AcceptLoss(AcceptLoss { volumes: vec![1], groups: vec![shape], ..Default::default() })
}

/// Returns the incarnation that a refused dial proves dead. The dial asked about incarnation 5. The
/// device was started as 6 meanwhile, at another address.
fn dead_by_a_refusal(mutant: Option<Mutant>) -> u64 {
    choose(mutant);
    let (device, server) = (DeviceId(1), SdsId(1));
    let mut detector = Detector::new(&Limits::SHIPPED);
    detector.watch(Time(1), device, server, Incarnation(5));
    assert!(detector.probe(device, 7));
    detector.watch(Time(2), device, server, Incarnation(6));
    let verdict = detector.refused(Time(3), 7).expect("it is a proof");
    choose(None);
    verdict.incarnation.0
}

/// Returns the devices that a second recovery waits for. The first one left groups in doubt. Then
/// the disk of dev1 was replaced, and only the map of dev2 tells that. dev2 restarts if `restart`.
fn waits_for(mutant: Option<Mutant>, restart: bool) -> Vec<u32> {
    choose(mutant);
    let mut state = pair(Durable);
    let recover = |state: &mut State| {
        let me = Member { name: "m".into(), address: "10.0.0.9:1".into(), tie_breaker: false };
        state.recover(&state.clone(), 1, me, "me", 6000);
    };
    recover(&mut state);
    let end = Command::Reconcile(Reconcile { close: true, ..Reconcile::default() });
    state.apply(state.index + 1, &end);
    let version = state.version.0 + 1;
    recover(&mut state);
    let mut told = DeviceReports::new();
    let group = GroupReport { group: 1, acted: 1, base: 1, ..GroupReport::default() };
    let own = Report { groups: vec![group], ..Report::default() };
    let devices = vec![StoreInfo { device: 1, store: 99, awaited: 0 }];
    let mut reports = vec![(1, own.clone()), (2, Report { version, devices, ..own.clone() })];
    reports.extend(restart.then_some((2, own)));
    for (device, part) in reports {
        let mut report = DeviceReport::default();
        assert!(report.add(part));
        state.heed(&mut told, DeviceId(device), report);
    }
    let waits = state.recovery_status(&told, false).unwrap().waits_for;
    choose(None);
    waits
}

fn mutants_forget_what_a_lost_mdm_told() {
    assert_eq!(waits_for(None, true), [1]);
    assert_eq!(waits_for(None, false), [1]);
    assert_eq!(waits_for(Some(Mutant::ForgetMaps), true), [0; 0]);
    assert_eq!(waits_for(Some(Mutant::ForgetMaps), false), [1]);
    assert_eq!(waits_for(Some(Mutant::DoubtHidesDisks), false), [0; 0]);
}

/// Checks that a test passes, and fails with this mutant.
fn notices(mutant: Mutant, test: fn()) {
    test();
    choose(Some(mutant));
    let caught = std::panic::catch_unwind(test).is_err();
    choose(None);
    assert!(caught, "nobody notices {mutant:?}");
}

fn who_weighs_nothing_or_moves_twice_is_noticed() {
    for (mutant, what) in [(Mutant::LevelByNumber, "bytes"), (Mutant::HouseAnywhere, "copied")] {
        choose(Some(mutant));
        let caught = (0..8).find_map(|seed| balance::play(seed).err());
        choose(None);
        assert!(caught.as_ref().is_some_and(|c| c.contains(what)), "{mutant:?}: {caught:?}");
    }
}

//! Each of the MDM's own mutants does something (`cargo test -p gabion-mdm --features mutants`).
//! One test: the switch is one for the process.
#![cfg(feature = "mutants")]

mod common;

use base::mutant::{Mutant, choose};
use common::{admit, down, join, pair, reshape, short, suspect, up};
use mdm::command::DeviceUp;
use mdm::{Command, State};
use wire::control::DeviceKind::{self, Durable, Ram};

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
    ];
    for (mutant, kind, commands, want) in cases {
        assert_eq!(run(Some(mutant), kind, &commands), want, "{mutant:?}");
        assert_ne!(run(None, kind, &commands), want, "{mutant:?} changes nothing");
    }
}

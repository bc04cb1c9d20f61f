//! Mutants that random plans meet too rarely to be hunted: the plan with which they were found catches them.

use base::mutant::Mutant;
use sim::mutants::{Found, hunt};

/// One test: the switch is one for the process.
#[test]
fn rare_mutants_are_caught_by_their_plans() {
    let all = [
        Mutant::PartAtOnce,
        Mutant::NoWriteOver,
        Mutant::ReuseGeneration,
        Mutant::BelieveFlush,
        Mutant::OldLife,
        Mutant::CloseUnheard,
        Mutant::IgnoreActed,
        Mutant::StayStuck,
        Mutant::ForgetMapping,
        Mutant::DropUnknown,
        Mutant::SettleLost,
        Mutant::ForgetSilently,
        Mutant::ForgetEverywhere,
        Mutant::KeepLeave,
        Mutant::OneLife,
        Mutant::OldDisk,
        Mutant::ForgetDisks,
        Mutant::EarlierLife,
    ];
    for mutant in all {
        let caught = hunt(mutant, 0, 0, 1).caught;
        assert!(matches!(caught, Some((Found::Plan(_), _))), "{mutant:?}: {caught:?}");
    }
}

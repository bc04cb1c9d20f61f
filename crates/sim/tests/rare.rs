//! Mutants that random plans meet too rarely for a hunt: each is caught by the plan
//! that first found it.

use base::mutant::Mutant;
use sim::mutants::{Found, hunt};

/// One test only, as the mutant applies to the whole process.
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
        Mutant::ForgetLevel,
        Mutant::HoldForEver,
        Mutant::OrphansLive,
        Mutant::NoCompareAndSwap,
        Mutant::MdmVoteUnwritten,
        Mutant::StallInTurn,
        Mutant::MdmStaleAnswer,
        Mutant::NoSession,
        Mutant::AnyCluster,
    ];
    for mutant in all {
        let caught = hunt(mutant, 0, 0, 1).caught;
        assert!(matches!(caught, Some((Found::Plan(_), _))), "{mutant:?}: {caught:?}");
    }
}

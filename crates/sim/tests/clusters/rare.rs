//! Mutants that random plans meet too rarely for a hunt: each is caught by the plan
//! that first found it.

use crate::common::alone;
use base::Mutant;
use sim::mutants::{Found, hunt};

#[test]
fn rare_mutants_are_caught_by_their_plans() {
    let _alone = alone();
    let all = [
        Mutant::DropAtOnce,
        Mutant::NoWriteOver,
        Mutant::ReuseGeneration,
        Mutant::BelieveFlush,
        Mutant::OldIncarnation,
        Mutant::CloseUnheard,
        Mutant::BelieveDoubtful,
        Mutant::IgnoreActed,
        Mutant::IgnoreReports,
        Mutant::ForgetMapping,
        Mutant::DropUnknown,
        Mutant::SettleLost,
        Mutant::ForgetSilently,
        Mutant::ForgetEverywhere,
        Mutant::KeepPermission,
        Mutant::OneIncarnation,
        Mutant::OldDisk,
        Mutant::EarlierLife,
        Mutant::ForgetLevel,
        Mutant::QuarantineForever,
        Mutant::OrphansLive,
        Mutant::QueuesLive,
        Mutant::KeepSeats,
        Mutant::ServeStrangers,
        Mutant::MoveUnfenced,
        Mutant::ReserveBlindly,
        Mutant::NoCompareAndSwap,
        Mutant::MdmVoteUnwritten,
        Mutant::StallInTurn,
        Mutant::MdmStaleAnswer,
        Mutant::NoSession,
        Mutant::AnyCluster,
        Mutant::TakeCopy,
        Mutant::ForgetBrokenPath,
        Mutant::LevelBlindly,
        Mutant::EndlessList,
        Mutant::LossAsZeros,
        Mutant::NoRestartGrace,
    ];
    for mutant in all {
        let caught = hunt(mutant, 0, 0, 1).caught;
        assert!(matches!(caught, Some((Found::Plan(_), _))), "{mutant:?}: {caught:?}");
    }
}

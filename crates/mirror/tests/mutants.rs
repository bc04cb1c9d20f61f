//! Removes rules whose absence no plan of the simulator meets: a test of this crate must notice
//! each.
//!
//! A mutant is switched on for the whole process, so this test has to run alone: `cargo test -p
//! gabion-mirror --features mutants --test mutants -- --exact every_mutant_is_caught`.

#[path = "all/client/mod.rs"]
mod client;
#[path = "all/pair/mod.rs"]
mod pair;

use base::Mutant;
use base::mutant::choose;
use client::replies;
use pair::{compare, executed, lives, stall, trio, window};
use std::panic::catch_unwind;

/// Returns the test that must fail with this mutant.
fn test_of(mutant: Mutant) -> fn() {
    match mutant {
        Mutant::MendUnmarked => trio::a_settle_that_repairs_its_leader_marks_what_others_may_lack,
        Mutant::AnswerAtOnce => {
            window::a_joiner_takes_no_more_before_it_has_written_what_it_was_sent
        }
        Mutant::AnswerInSeal => {
            stall::a_joiner_that_stalled_in_its_seals_is_sent_nothing_before_they_are_durable
        }
        Mutant::RetryWhole => {
            executed::a_retry_writes_nothing_over_what_was_done_between_its_missing_parts
        }
        Mutant::NewerIsDead => {
            lives::a_newer_life_at_the_same_address_is_no_proof_that_the_older_one_is_dead
        }
        Mutant::ForgetPause => {
            lives::a_primary_that_stood_still_accuses_nobody_with_its_first_breath
        }
        Mutant::SealOneByOne => trio::a_settle_of_three_of_which_one_falls_silent_loses_nothing,
        Mutant::IgnoreThird => trio::what_two_of_three_cannot_read_comes_from_the_third,
        Mutant::RenewEnded => {
            replies::a_leave_that_ended_takes_its_requests_with_it_and_readers_write_nothing
        }
        Mutant::ReadsHoldFloor => replies::a_read_that_waits_does_not_hold_the_floor_back,
        Mutant::CompareUnlocked => compare::of_two_that_expect_the_same_one_writes,
        Mutant::CompareUnleased => compare::a_primary_without_leases_compares_nothing,
        Mutant::CompareAgain => compare::what_was_executed_is_not_compared_again,
        Mutant::CompareOnce => compare::what_was_not_executed_is_compared_again,
        other => panic!("{other:?} has no test here"),
    }
}

#[test]
fn every_mutant_is_caught() {
    for mutant in Mutant::MIRROR {
        let test = test_of(*mutant);
        test();
        choose(Some(*mutant));
        let caught = catch_unwind(test).is_err();
        choose(None);
        assert!(caught, "nobody notices {mutant:?}");
    }
}

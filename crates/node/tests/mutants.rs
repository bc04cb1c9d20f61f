//! Removes each rule that belongs to the roles: a test of this crate must notice.
//!
//! A mutant is switched on for the whole process, so this test has to run alone: `cargo test -p
//! gabion-node --features mutants --test mutants -- --exact every_mutant_is_caught`.

#[path = "all/mdm/mod.rs"]
mod mdm;
#[path = "all/sdc/mod.rs"]
mod sdc;
#[path = "all/sds/mod.rs"]
mod sds;

use base::mutant::{Mutant, choose};
use mdm::{clients, contacts};
use sdc::links;
use sds::{malformed, recovering, refusing, wrong_mdms};

// Long: the tests that catch the mutants.
#[test]
fn every_mutant_is_caught() {
    let tests: &[(Mutant, fn())] = &[
        (Mutant::AnyHeader, malformed::a_malformed_header_ends_the_link_of_any_peer),
        (
            Mutant::NewerConfirms,
            clients::what_a_newer_process_confirms_does_not_count_for_the_older_one,
        ),
        (Mutant::KeepContacts, contacts::a_removed_mdm_that_campaigns_is_refused_and_ends),
        (
            Mutant::KeepContacts,
            contacts::an_empty_mdm_forgets_those_that_no_call_and_no_welcome_names,
        ),
        (
            Mutant::AwaitDial,
            contacts::an_mdm_that_is_called_by_another_id_while_it_dials_dials_again,
        ),
        (
            Mutant::KeepRefusal,
            refusing::a_server_that_no_longer_refuses_is_not_reported_as_refusing,
        ),
        (
            Mutant::IgnoreSuccessor,
            links::whose_name_a_newer_process_has_ends_its_io_when_the_mdm_says_so,
        ),
        (Mutant::FollowSetBack, wrong_mdms::an_mdm_that_was_set_back_is_not_followed),
        (
            Mutant::ReserveBlindly,
            mdm::reservations::what_takes_access_is_answered_when_all_who_lead_know_of_it,
        ),
        (
            Mutant::RenewReserved,
            sdc::reservations::nothing_of_a_host_that_was_shut_out_comes_later_and_others_notice_nothing,
        ),
        (
            Mutant::RenewReserved,
            sdc::nvme_reservations::nothing_of_an_nvme_host_that_was_shut_out_comes_later,
        ),
        (
            Mutant::RenewPreempted,
            sdc::reservations::nothing_of_a_host_that_was_shut_out_and_let_in_again_unseen_comes_later,
        ),
        (
            Mutant::RenewPreempted,
            sdc::nvme_reservations::nothing_of_an_nvme_host_that_was_let_in_again_unseen_comes_later,
        ),
        (
            Mutant::TakeEarlier,
            recovering::who_has_reported_takes_no_map_of_an_earlier_recovery,
        ),
        (
            Mutant::SeatBlindly,
            mdm::seats::a_seat_is_confirmed_when_all_who_lead_know_of_it,
        ),
        (
            Mutant::ServeUnseated,
            sdc::seats::a_request_waits_until_the_seat_is_confirmed,
        ),
        (
            Mutant::RenewUnseated,
            sdc::seats::nothing_of_a_host_whose_seat_left_comes_later_and_others_notice_nothing,
        ),
        (
            Mutant::RenewUnseated,
            sdc::seats::a_seat_that_left_and_came_back_unseen_is_confirmed_again,
        ),
        (
            Mutant::ServeStrangers,
            sdc::hosts::a_host_that_loses_access_is_cut_off_before_its_commands_get_the_new_generation,
        ),
    ];
    let mut tested: Vec<Mutant> = tests.iter().map(|(mutant, _)| *mutant).collect();
    tested.dedup();
    assert_eq!(tested, Mutant::NODE, "each has its test");
    for (mutant, test) in tests {
        test();
        choose(Some(*mutant));
        let caught = std::panic::catch_unwind(test);
        choose(None);
        assert!(caught.is_err(), "nobody notices {mutant:?}");
    }
}

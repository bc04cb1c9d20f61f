//! Removes each rule that belongs to the roles: a test of this crate must notice.
//!
//! A mutant is switched on for the whole process, so this test has to run alone: `cargo test -p
//! gabion-node --features mutants --test mutants -- --exact every_mutant_is_caught`.

#[path = "all/mdm/mod.rs"]
mod mdm;
#[path = "all/sds/mod.rs"]
mod sds;

use base::mutant::{Mutant, choose};

#[test]
fn every_mutant_is_caught() {
    let tests: &[(Mutant, fn())] = &[
        (Mutant::AnyHeader, sds::malformed::a_malformed_header_ends_the_link_of_any_peer),
        (
            Mutant::NewerConfirms,
            mdm::clients::what_a_newer_process_confirms_does_not_count_for_the_older_one,
        ),
    ];
    assert!(tests.iter().map(|(mutant, _)| mutant).eq(Mutant::NODE), "each has its test");
    for (mutant, test) in tests {
        test();
        choose(Some(*mutant));
        let caught = std::panic::catch_unwind(test);
        choose(None);
        assert!(caught.is_err(), "nobody notices {mutant:?}");
    }
}

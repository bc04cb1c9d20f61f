//! Removes each rule that belongs to the roles: a test of this crate must notice.
//!
//! A mutant is switched on for the whole process, so this test has to run alone: `cargo test -p
//! gabion-node --features mutants --test mutants -- --exact every_mutant_is_caught`.

#[path = "all/sds/mod.rs"]
mod sds;

use base::mutant::{Mutant, choose};
use sds::malformed::a_malformed_header_ends_the_link_of_any_peer;

#[test]
fn every_mutant_is_caught() {
    for mutant in Mutant::NODE {
        a_malformed_header_ends_the_link_of_any_peer();
        choose(Some(*mutant));
        let caught = std::panic::catch_unwind(a_malformed_header_ends_the_link_of_any_peer);
        choose(None);
        assert!(caught.is_err(), "nobody notices {mutant:?}");
    }
}

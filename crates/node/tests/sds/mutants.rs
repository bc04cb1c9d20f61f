//! Switches off one rule after the other, and runs the test that has to notice. A mutant is
//! switched on for the whole process, so this test has to run alone: `cargo test -p gabion-node
//! --features mutants --test sds -- --exact mutants::every_mutant_is_caught`.

use super::{malformed, refusing};
use base::mutant::{Mutant, choose};

#[test]
fn every_mutant_is_caught() {
    for mutant in Mutant::NODE_SDS {
        let test = match mutant {
            Mutant::AnyHeader => malformed::a_malformed_header_ends_the_link_of_any_peer,
            Mutant::KeepRefusal => {
                refusing::a_server_that_no_longer_refuses_is_not_reported_as_refusing
            }
            other => panic!("no test is for {other:?}"),
        };
        test();
        choose(Some(*mutant));
        let caught = std::panic::catch_unwind(test);
        choose(None);
        assert!(caught.is_err(), "nobody notices {mutant:?}");
    }
}

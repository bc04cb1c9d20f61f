//! Switches off one rule after the other, and runs the test that has to notice. A mutant is
//! switched on for the whole process, so this test has to run alone: `cargo test -p gabion-node
//! --features mutants --test mdm -- --exact mutants::every_mutant_is_caught`.

use super::contacts;
use base::mutant::{Mutant, choose};

#[test]
fn every_mutant_is_caught() {
    for mutant in Mutant::NODE_MDM {
        let tests: &[fn()] = match mutant {
            Mutant::KeepContacts => &[
                contacts::a_removed_mdm_that_campaigns_is_refused_and_ends,
                contacts::an_empty_mdm_forgets_those_that_no_call_and_no_welcome_names,
            ],
            Mutant::AwaitDial => {
                &[contacts::an_mdm_that_is_called_by_another_id_while_it_dials_dials_again]
            }
            other => panic!("no test is for {other:?}"),
        };
        for test in tests {
            test();
            choose(Some(*mutant));
            let caught = std::panic::catch_unwind(test);
            choose(None);
            assert!(caught.is_err(), "nobody notices {mutant:?}");
        }
    }
}

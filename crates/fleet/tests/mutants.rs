//! Removes the refusal of devices that can't keep data, and checks that a test notices.
//!
//! A mutant is switched on for the whole process, so this test has to run alone: `cargo test -p
//! gabion-fleet --features mutants --test mutants`.

use base::mutant::{Mutant, choose};
use fleet::device::probe;
use std::path::PathBuf;

/// Memory that looks like a file system, on every Linux.
const MEMORY: &str = "/dev/shm";

/// Returns true if a file in memory would be taken as a device.
fn is_taken(path: &std::path::Path) -> bool {
    !probe::probe(path, false).unwrap().verdict.is_refused()
}

#[test]
fn every_mutant_is_caught() {
    let path = PathBuf::from(MEMORY).join(format!("gabion-probe-{}", std::process::id()));
    assert!(!is_taken(&path), "memory keeps nothing when the power fails");
    choose(Some(Mutant::TrustLiars));
    let caught = is_taken(&path);
    choose(None);
    assert!(caught, "nobody notices TrustLiars");
}

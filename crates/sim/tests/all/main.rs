//! Tests of the simulator without mutants.

mod contract;
mod determinism;
mod plans;

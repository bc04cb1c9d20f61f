//! Properties of simulated clusters, and proofs that the simulator notices a missing rule.
//!
//! A mutant is switched on for the whole process. So these tests are a binary of their own, and run
//! one at a time ([`common::alone`]).

mod clocks;
mod common;
mod cut_off;
mod heard;
mod hung;
#[cfg(feature = "mutants")]
mod rare;
mod scale;
mod stops;

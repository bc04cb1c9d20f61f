//! Published experiments, re-enacted on one machine: `gabion bench esg` and `gabion demo`.
//!
//! `esg` repeats ESG Lab's test of ScaleIO (2015), and `exaforge` one of ExaForge Labs (2013). Each
//! writes a report with the published figures next to its own.
//!
//! This crate measures with `bench`. It has no load and no counters of its own.
#![forbid(unsafe_code)]

#[macro_use(println)]
extern crate fleet;

pub mod esg;
pub mod exaforge;

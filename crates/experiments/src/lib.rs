//! Published experiments, re-enacted on one machine: `gabion experiment`.
//!
//! `esg` repeats ESG Lab's test of ScaleIO (2015), and `exaforge` one of ExaForge Labs (2013). Each
//! writes a report with the published figures next to its own, and a verdict for each claim.
//!
//! This crate measures with `bench`. It has no load and no counters of its own.
#![forbid(unsafe_code)]

#[macro_use(println, eprintln)]
extern crate fleet;

pub mod all;
pub mod command;
pub mod esg;
pub mod exaforge;
mod log;
mod musts;
pub mod options;
mod plan;
mod report;

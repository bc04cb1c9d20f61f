//! The three roles (MDM, SDS, SDC), each composed of machines from other crates.
//!
//! Control flow across machines happens only in the `Node::on` of a role. The machines return
//! values and never call back.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod backup;
pub mod link;
pub mod mapview;
pub mod mdm;
pub mod refusals;
pub mod sdc;
pub mod sds;

pub use wire::DIALECT;

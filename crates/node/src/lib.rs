//! The three roles, composed from the cores. `Node::on` of a role is the only place with control
//! flow across machines; the machines return values and never call back.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod backup;
pub mod finder;
pub mod links;
pub mod mapview;
pub mod mdm;
pub mod sdc;
pub mod sds;

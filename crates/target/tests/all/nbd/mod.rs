//! Tests of the NBD session from the outside, as a client sees it.

mod flow;
mod negotiation;
mod properties;
mod requests;
mod rig;

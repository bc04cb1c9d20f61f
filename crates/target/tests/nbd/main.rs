//! The NBD session, tested from outside as a client would see it.

mod flow;
mod negotiation;
mod properties;
mod requests;
mod rig;

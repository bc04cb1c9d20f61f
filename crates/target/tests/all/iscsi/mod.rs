//! Tests of the iSCSI session from the outside, as an initiator sees it.

mod data;
mod discovery;
mod framing;
mod initiator;
mod login;
mod manage;
mod order;
mod places;
mod properties;
mod rig;

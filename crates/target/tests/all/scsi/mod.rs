//! Tests of the SCSI command set, of reservations and of identifiers from the outside.

mod about;
mod data;
mod fields;
mod ident;
mod order;
mod persist;
mod properties;
mod reserve;
mod rig;
mod sense;

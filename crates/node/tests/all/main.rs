//! Tests of the roles as nodes, one folder per role.

mod mdm;
mod sdc;
mod sds;

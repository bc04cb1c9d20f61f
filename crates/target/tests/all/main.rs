//! Tests of the sessions and of the SCSI command set from the outside.

mod iscsi;
mod nbd;
mod nvme;
mod scsi;
mod shared;

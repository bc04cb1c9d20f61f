//! Tests of the sessions, of the SCSI command set and of the virtio disk from the outside.

mod iscsi;
mod nbd;
mod nvme;
mod scsi;
mod shared;
mod vhost;
mod virtio;

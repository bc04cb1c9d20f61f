//! The SDC as a node: links, registration, maps, NBD and iSCSI, against a fake MDM and fake
//! servers.

mod cluster;
mod iscsi;
mod iscsi_host;
pub(crate) mod links;
mod nbd;
mod nbd_client;
mod orphans;
mod versions;

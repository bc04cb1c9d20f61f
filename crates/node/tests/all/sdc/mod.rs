//! The SDC as a node: links, registration, maps, NBD and iSCSI, against a fake MDM and fake
//! servers.

mod cluster;
mod counters;
mod iscsi;
mod iscsi_host;
mod links;
mod nbd;
mod nbd_client;
mod orphans;
mod versions;

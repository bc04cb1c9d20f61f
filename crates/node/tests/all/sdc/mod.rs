//! The SDC as a node: links, registration, maps, block clients, against a fake MDM and fake
//! servers.

mod activate;
mod cluster;
mod counters;
mod gateway;
pub(crate) mod hosts;
mod iscsi;
mod iscsi_host;
pub(crate) mod links;
mod nbd;
mod nbd_client;
mod nvme;
mod nvme_auth;
mod nvme_host;
pub(crate) mod nvme_reservations;
mod orphans;
pub(crate) mod reservations;
pub(crate) mod seats;
pub(crate) mod seats_play;
mod versions;

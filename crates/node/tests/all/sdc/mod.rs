//! The SDC as a node: links, registration, maps and NBD, against a fake MDM and fake servers.

mod cluster;
mod links;
mod nbd;
mod nbd_client;
mod orphans;
mod versions;

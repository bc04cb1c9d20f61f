//! Tests of the NVMe/TCP session from the outside, as a host sees it.

mod about;
mod auth;
mod auth_host;
mod connect;
mod data;
mod events;
mod framing;
mod fused;
mod host;
mod io;
mod properties;
mod reserve;
mod rig;

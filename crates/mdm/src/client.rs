//! Clients in the state.

use alloc::string::String;
use alloc::vec::Vec;
use base::{Incarnation, MapVersion};

/// A client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sdc {
    /// The name that its processes give. It never changes.
    pub own: String,
    /// Its name, for people.
    pub name: String,
    /// The incarnation of its process.
    pub incarnation: Incarnation,
    /// The number that the process drew at its start.
    pub nonce: u64,
    /// Nonces of earlier processes, the latest last.
    pub past: Vec<u64>,
    /// The process id, for people.
    pub pid: u32,
    /// The addresses of its targets, for people.
    pub uris: Vec<String>,
    /// Its number as a gateway; `None` if no hosts connect to it.
    pub gateway: Option<u8>,
    /// The map version that changed it last.
    pub changed_at: MapVersion,
}

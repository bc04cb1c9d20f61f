//! Names of servers and clients.

/// The most bytes of the name of a server or client.
pub const PEER_NAME_MAX: usize = 64;

/// Returns true if a server or client can have this name.
pub fn is_peer_name(name: &str) -> bool {
    (1..=PEER_NAME_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
}

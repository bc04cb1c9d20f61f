//! Names for the clients of this host: `HOST-lib-1` and the like.
//!
//! A cluster keeps a row for each name for ever, and a newer client ends an older one of the same name.
//! So names are used again, but never by two at a time: each holds an abstract unix socket, which the
//! kernel gives free with the process, however it ends. (Two containers of one host name don't see
//! each other's sockets: name their clients by hand.)

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::{fs, io};

/// Of the host's name: a cluster takes 64 bytes for a client's.
const HOST: usize = 40;

/// A name, taken for as long as this lives.
#[derive(Debug)]
pub struct HeldName {
    /// The name.
    pub text: String,
    _socket: UnixDatagram,
}

impl HeldName {
    /// How many with the same mark there can be on one host.
    pub const MOST: u32 = 4096;

    /// The host's name, this mark, and the first number that nobody holds; `None`: all are held.
    pub fn first_free(mark: &str) -> io::Result<Option<HeldName>> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host: String = host.trim().chars().filter(char::is_ascii_graphic).take(HOST).collect();
        let host = if host.is_empty() { "host".to_owned() } else { host };
        for n in 1..=HeldName::MOST {
            let text = format!("{host}{mark}{n}");
            let at = SocketAddr::from_abstract_name(format!("gabion/{text}"))?;
            match UnixDatagram::bind_addr(&at) {
                Ok(socket) => return Ok(Some(HeldName { text, _socket: socket })),
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_held_by_one_and_used_again() {
        let first_free = || HeldName::first_free("-test-").unwrap().unwrap();
        let (a, b) = (first_free(), first_free());
        assert_ne!(a.text, b.text);
        drop(a);
        // Another process may be quicker, but only with a name that is free.
        let again = first_free();
        assert!(again.text != b.text && again.text.contains("-test-") && again.text.len() <= 64);
    }
}

//! Names for the clients of this host, such as `HOST-lib-1`.
//!
//! A cluster keeps a row for each client name forever, and a new client replaces an older one of
//! the same name. So names are reused, but never by two clients at a time: each client holds an
//! abstract unix socket, which the kernel frees when the process ends, however it ends. (Two
//! containers with the same host name don't see each other's sockets: give their clients names by
//! hand.)

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::{fs, io};

/// Bytes taken from the host name: a cluster accepts client names of up to 64 bytes.
const HOST: usize = 40;

/// A name that is reserved as long as this value lives.
#[derive(Debug)]
pub struct HeldName {
    /// The name.
    pub text: String,
    _socket: UnixDatagram,
}

impl HeldName {
    /// The highest number of names with the same mark on one host.
    pub const MOST: u32 = 4096;

    /// Reserves the host name followed by `mark` and the lowest free number. `None`: all are in
    /// use.
    pub fn first_free(mark: &str) -> io::Result<Option<HeldName>> {
        for n in 1..=HeldName::MOST {
            if let Some(held) = HeldName::of_host(&format!("{mark}{n}"))? {
                return Ok(Some(held));
            }
        }
        Ok(None)
    }

    /// Reserves the host name followed by `mark`, which has at most 24 bytes. `None`: it is in use.
    pub fn of_host(mark: &str) -> io::Result<Option<HeldName>> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host: String = host.trim().chars().filter(char::is_ascii_graphic).take(HOST).collect();
        let host = if host.is_empty() { "host".to_owned() } else { host };
        HeldName::of(format!("{host}{mark}"))
    }

    /// Reserves this name. `None`: it is in use on this host.
    pub fn of(text: String) -> io::Result<Option<HeldName>> {
        let at = SocketAddr::from_abstract_name(format!("gabion/{text}"))?;
        match UnixDatagram::bind_addr(&at) {
            Ok(socket) => Ok(Some(HeldName { text, _socket: socket })),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(e) => Err(e),
        }
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
        // Another process may take a name first, but only one that is free.
        let again = first_free();
        assert!(again.text != b.text && again.text.contains("-test-") && again.text.len() <= 64);
    }

    #[test]
    fn a_name_without_a_number_is_held_by_one() {
        let mark = format!("-t{}", std::process::id());
        let held = HeldName::of_host(&mark).unwrap().unwrap();
        assert!(held.text.ends_with(&mark) && HeldName::of_host(&mark).unwrap().is_none());
        drop(held);
        assert!(HeldName::of_host(&mark).unwrap().is_some());
    }
}

//! What a loading client is called: `HOST-bench-N`, with the first N that nobody on this host uses.
//!
//! The MDM keeps a row for each name for ever, and a newer client ends an older one of the same name.
//! So names are used again, but never by two at a time: each is held by an abstract unix socket, which
//! the kernel gives free with the process, however it ends.

use anyhow::{Context, Result, bail};
use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Loading clients on one host.
const MOST: u32 = 4096;
/// Of the host's name: a client's has at most 64 bytes.
const HOST: usize = 40;

/// What tells such a name from others.
const MARK: &str = "-bench-";

/// A name, taken for as long as this lives.
#[derive(Debug)]
pub struct Name {
    /// The name.
    pub text: String,
    _held: UnixDatagram,
}

/// True when a client is called so because it loads.
pub fn is_load(name: &str) -> bool {
    name.contains(MARK)
}

impl Name {
    /// The first one that is free.
    pub fn first_free() -> Result<Name> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host: String = host.trim().chars().filter(char::is_ascii_graphic).take(HOST).collect();
        let host = if host.is_empty() { "host".to_owned() } else { host };
        for n in 1..=MOST {
            let text = format!("{host}{MARK}{n}");
            let at = SocketAddr::from_abstract_name(format!("gabion/{text}"))?;
            match UnixDatagram::bind_addr(&at) {
                Ok(socket) => return Ok(Name { text, _held: socket }),
                Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {}
                Err(e) => return Err(e).context("can't take a client name"),
            }
        }
        bail!("{MOST} loads run on this host already: end some")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_held_by_one_and_used_again() {
        let (a, b) = (Name::first_free().unwrap(), Name::first_free().unwrap());
        assert_ne!(a.text, b.text);
        drop(a);
        // Another process may be quicker, but only with a name that is free.
        let again = Name::first_free().unwrap();
        assert!(again.text != b.text && is_load(&again.text) && again.text.len() <= 64);
    }
}

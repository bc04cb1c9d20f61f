//! What a client is called when its program doesn't say: `HOST-lib-N`.
//!
//! The MDM keeps a row for each name for ever, and a newer client ends an older one of the same name.
//! So names are used again, but never by two at a time: each holds an abstract unix socket, which the
//! kernel gives free with the process, however it ends. (Two containers of one host name don't see
//! each other's sockets: name their clients by hand.)

use crate::failure::Failure;
use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// As the MDM has it.
const LONGEST: usize = 64;
/// Contexts on one host.
const MOST: u32 = 4096;

/// A name, taken for as long as this lives.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) text: String,
    _held: Option<UnixDatagram>,
}

/// The caller's choice.
pub(crate) fn given(text: &str) -> Result<Name, Failure> {
    if text.is_empty() || text.len() > LONGEST || text.chars().any(char::is_control) {
        return Err(Failure::invalid(format!(
            "`{text}` can't be a client's name: use 1 to {LONGEST} bytes, none of them a control \
             character"
        )));
    }
    Ok(Name { text: text.to_owned(), _held: None })
}

/// The first name that is free.
pub(crate) fn first_free() -> Result<Name, Failure> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(char::is_ascii_graphic).take(40).collect();
    let host = if host.is_empty() { "host".to_owned() } else { host };
    let failed = |e: std::io::Error| {
        let code = e.raw_os_error().unwrap_or(libc::EIO);
        Failure::new(
            code,
            format!("can't take a client name: {e}; choose one in gabion_options.name"),
        )
    };
    for n in 1..=MOST {
        let text = format!("{host}-lib-{n}");
        let at = SocketAddr::from_abstract_name(format!("gabion/{text}")).map_err(failed)?;
        match UnixDatagram::bind_addr(&at) {
            Ok(socket) => return Ok(Name { text, _held: Some(socket) }),
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {}
            Err(e) => return Err(failed(e)),
        }
    }
    Err(Failure::new(libc::EBUSY, format!("{MOST} clients on this host are too many: close some")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_held_by_one_and_used_again() {
        let (a, b) = (first_free().unwrap(), first_free().unwrap());
        assert_ne!(a.text, b.text);
        let text = a.text.clone();
        drop(a);
        // Another process may be quicker, but only with a name that is free.
        let again = first_free().unwrap();
        assert_ne!(again.text, b.text);
        assert!(again.text.len() <= LONGEST && text.contains("-lib-"));
    }

    #[test]
    fn names_that_the_mdm_refuses_are_refused_here() {
        assert_eq!(given("backup").unwrap().text, "backup");
        for bad in ["", "a\nb", &"x".repeat(65)] {
            assert_eq!(given(bad).unwrap_err().code, libc::EINVAL, "{bad:?}");
        }
    }
}

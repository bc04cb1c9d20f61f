//! The name of a client: the caller's choice, or `HOST-lib-N`.

use crate::failure::Failure;
use base::name::{PEER_NAME_MAX, is_peer_name};
use rt::HeldName;

/// A name that is reserved on this host as long as this value exists, unless the caller chose it.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) text: String,
    _held: Option<HeldName>,
}

/// Checks the caller's choice.
pub(crate) fn given(text: &str) -> Result<Name, Failure> {
    if !is_peer_name(text) {
        return Err(Failure::invalid(format!(
            "`{text}` can't be a client's name: use 1 to {PEER_NAME_MAX} bytes, none of them a \
             control character"
        )));
    }
    Ok(Name { text: text.to_owned(), _held: None })
}

/// Reserves the first free name.
pub(crate) fn first_free() -> Result<Name, Failure> {
    let held = HeldName::first_free("-lib-").map_err(|e| {
        let code = e.raw_os_error().unwrap_or(libc::EIO);
        let why = format!("can't take a client name: {e}; choose one in gabion_options.name");
        Failure::new(code, why)
    })?;
    let held = held.ok_or_else(|| {
        let most = HeldName::MOST;
        Failure::new(libc::EBUSY, format!("{most} clients on this host are too many: close some"))
    })?;
    Ok(Name { text: held.text.clone(), _held: Some(held) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_mdm_refuses_are_refused_here() {
        assert_eq!(given("backup").unwrap().text, "backup");
        for bad in ["", "a\nb", &"x".repeat(65)] {
            assert_eq!(given(bad).unwrap_err().code, libc::EINVAL, "{bad:?}");
        }
    }
}

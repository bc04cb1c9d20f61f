//! The name of a loading client: `HOST-bench-N`, with the lowest N that is free on this host.

use anyhow::{Context, Result};
use rt::HeldName;

/// The part of the name that identifies loading clients.
const MARK: &str = "-bench-";

/// Reserves the first free name.
pub(crate) fn first_free() -> Result<HeldName> {
    let name = HeldName::first_free(MARK).context("can't take a client name")?;
    name.with_context(|| format!("{} loads run on this host already: end some", HeldName::MOST))
}

/// Returns true if the name is that of a loading client.
pub(crate) fn is_load(name: &str) -> bool {
    name.contains(MARK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_known_by_its_name() {
        assert!(is_load(&first_free().unwrap().text) && !is_load("host-lib-1"));
    }
}

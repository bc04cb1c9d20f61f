//! What a loading client is called: `HOST-bench-N`, with the first N that nobody on this host uses.

use anyhow::{Context, Result};
use rt::HeldName;

/// What tells such a name from others.
const MARK: &str = "-bench-";

/// The first name that is free.
pub fn first_free() -> Result<HeldName> {
    let name = HeldName::first_free(MARK).context("can't take a client name")?;
    name.with_context(|| format!("{} loads run on this host already: end some", HeldName::MOST))
}

/// True when a client is called so because it loads.
pub fn is_load(name: &str) -> bool {
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

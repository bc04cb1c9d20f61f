//! `gabion down`: stops the cluster that `up` started, also after `up` itself is gone.

use admin::exit::Exit;
use anyhow::Result;
use fleet::target::Target;
use fleet::up;

/// Runs `gabion down`.
pub(crate) fn run(target: &Target) -> Result<Exit> {
    let dir = target.local()?;
    let _lock = dir.lock()?;
    if up::stop_all(&dir)? == 0 {
        println!("No process of the cluster in {} runs.", dir.root().display());
    }
    Ok(Exit::Ok)
}

//! The signals that end a process.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::os::unix::net::UnixStream;

/// Returns a socket that gets one byte for each of these signals from now on.
pub(crate) fn stop() -> Result<UnixStream> {
    let (stop, signals) = UnixStream::pair().context("can't make a pair of sockets")?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, signals.try_clone()?)
            .context("can't handle signals")?;
    }
    Ok(stop)
}

//! The harness of the black-box tests: real clusters, real clients, real faults.
//!
//! It uses Gabion only as a user does: the binary, its JSON output, NBD, signals and documented
//! bytes. It links no crate of the product, so it shares no mistake with it. Nothing here sleeps to
//! "give it time": it waits for conditions, with a limit. It ends processes by recorded pid only.
#![forbid(unsafe_code)]

pub mod attached;
pub mod bytes;
pub mod cluster;
pub mod extra;
pub mod failing;
pub mod fio;
pub mod folder;
pub mod guest;
pub mod ledger;
pub mod machine;
pub mod monitor;
pub mod nbd;
pub mod probe;
pub mod replicas;
pub mod rot;
pub mod run;
pub mod spaces;
pub mod vhost;
pub mod wire;

pub use attached::Attached;
pub use cluster::{Cluster, Options};
pub use extra::Extra;
pub use failing::Failing;
pub use fio::Fio;
pub use folder::{Folder, case};
pub use run::{Ran, gabion, shell, tool};
pub use spaces::Spaces;

use anyhow::{Context, Result, bail, ensure};
use std::io::Write;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Waits until `condition` returns a value; `what` names the condition in the error message.
pub fn wait<T>(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        let outcome = condition();
        match outcome {
            Ok(Some(value)) => return Ok(value),
            _ if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            Ok(None) => bail!("not true within {limit:?}: {what}"),
            Err(error) => return Err(error.context(format!("not true within {limit:?}: {what}"))),
        }
    }
}

/// Returns a number from the environment, for the long form of a test.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Reports that a test is left out, because this machine lacks or forbids a thing that it needs.
/// `cargo xtask test` lists these reports at its end. Returns an error if the environment has
/// `GABION_ALL=1`.
pub fn leave_out(why: &str) -> Result<()> {
    // Bypass the capture of output. Start a new line: that of the test's name may be incomplete.
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let _ = writeln!(std::io::stdout(), "\nLEFT OUT: {test}: {why}");
    ensure!(setting("GABION_ALL", 0) == 0, "GABION_ALL is set, and this was left out: {why}");
    Ok(())
}

/// Returns the kind of the next fault after `count` faults: each kind once, then random ones.
pub fn next_fault<T: Copy>(kinds: &[T], count: u64, random: &mut bytes::Random) -> T {
    let chance = random.below(kinds.len() as u64);
    *kinds.get(count as usize).unwrap_or(&kinds[chance as usize])
}

/// Returns a duration in seconds, for limits.
pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// One MiB.
pub const MIB: u64 = 1 << 20;

/// Returns a port that is not in use, below those that the kernel uses for outgoing connections. No
/// two tests of this process get the same one.
pub fn free_port() -> Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(9999);
    let next = || NEXT.fetch_sub(1, Ordering::Relaxed);
    std::iter::repeat_with(next)
        .take_while(|port| *port >= 9000)
        .find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .context("a free port")
}

//! `gabion device grow`: makes a running server use more of a file or block device.
//!
//! The server closes that one device cleanly, opens it again and uses its new size; meanwhile
//! groups with a copy on it go on with the other copy. The server decides how much it uses. This
//! command refuses in advance what the server would refuse, before anything is changed.

use super::roster::{self, Found, Server};
use crate::progress::Line;
use crate::target::Target;
use admin::exit::Exit;
use admin::report::UpDown;
use anyhow::{Context, Result, bail};
use daemon::content;
use daemon::size::Size;
use daemon::spec::DeviceSpec;
use std::time::{Duration, Instant};

/// How long to wait for the end of a resync.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

/// Runs `gabion device grow`.
pub fn run(
    target: &Target,
    server: &Server,
    id: u32,
    size: Option<Size>,
    force: bool,
) -> Result<Exit> {
    let mut found = server.find(target)?;
    let report = found.target.report()?;
    let before = roster::device(&report, &found.config.name, id)?.clone();
    if before.state != UpDown::Up {
        bail!("dev{id} is down: bring it up first (`gabion device list`), then it can grow");
    }
    let at = found.place(&before)?;
    let sizes = Sizes::of(&found.config.device[at].spec, size)?;
    if !force {
        await_others(&found, id)?;
    }
    roster::number(&mut found.config);
    if let DeviceSpec::File(path, configured) = &mut found.config.device[at].spec {
        content::enlarge(path, sizes.to)?;
        *configured = Some(Size(sizes.to));
    }
    found.change()?;
    let grown = |d: &admin::report::Device| {
        d.state == UpDown::Up && d.capacity_bytes > before.capacity_bytes
    };
    let after = found.wait_for(before.shard, "has not grown", true, grown)?;
    println!(
        "dev{id} of {} has grown: {} -> {}, with room for {} of data ({} before).",
        found.config.name,
        Size(sizes.from),
        Size(sizes.to),
        Size(after.capacity_bytes),
        Size(before.capacity_bytes)
    );
    Ok(Exit::Ok)
}

/// The bytes of a device that are used, before and after.
struct Sizes {
    from: u64,
    to: u64,
}

impl Sizes {
    /// Refuses a size that would change nothing, or is impossible.
    fn of(spec: &DeviceSpec, size: Option<Size>) -> Result<Sizes> {
        let (path, to) = match (spec, size) {
            (DeviceSpec::Ram(_) | DeviceSpec::Null(_), _) => {
                bail!("{spec} is memory: only files and block devices grow")
            }
            (DeviceSpec::Block(path), Some(_)) => bail!(
                "{0} has the size that the kernel reports: enlarge it there (as with `lvextend`), \
                 then leave out the size here",
                path.display()
            ),
            (DeviceSpec::File(path, _) | DeviceSpec::Block(path), size) => {
                let now = content::bytes(path)?;
                let to = size.map_or(now, |size| size.0);
                if to < now {
                    bail!(
                        "{} has {}, and a device can't become smaller: name more than that",
                        path.display(),
                        Size(now)
                    );
                }
                (path, to)
            }
        };
        let used = content::superblock(path)?.with_context(|| {
            format!("{}: its superblocks can't be read, so it can't grow", path.display())
        })?;
        let from = used.layout.size;
        if let Err(why) = used.layout.grown(to) {
            bail!(
                "{} of {} are used, and with {} it would stay so: {}",
                Size(from),
                path.display(),
                Size(to),
                why.why()
            );
        }
        Ok(Sizes { from, to })
    }
}

/// Waits for a resync while this device has the only good copy of something, which could not be
/// used while the device is opened again.
fn await_others(found: &Found, id: u32) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let line = Line::new("growing");
    loop {
        let report = found.target.report()?;
        let last = roster::device(&report, &found.config.name, id)?.last_copies;
        if last == 0 {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!(
                "dev{id} has the only good copy of {last} groups: their I/O would wait while it is \
                 opened again. Bring the other copies back (`gabion status`), or insist with \
                 --force"
            );
        }
        line.say(&format!("waits for the resync of {}", Size(report.resync.remaining_bytes)));
        std::thread::sleep(POLL);
    }
}

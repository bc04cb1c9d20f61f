//! The loss of MDMs for good: backups, the restoration of one, and the recovery of the cluster by a
//! surviving MDM.

use crate::decision::{Question, now, who};
use admin::Admin;
use admin::exit::{Exit, coded};
use admin::report::{summary, when};
use anyhow::{Context, Result, bail};
use base::level::LEVEL;
use daemon::config::{self, MdmConfig};
use daemon::files;
use daemon::size::Size;
use fleet::target::Target;
use node::backup::{Backup, pack};
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use wire::control::{RecoverMdm, Welcome};

const POLL: Duration = Duration::from_millis(100);
/// Time that servers get to report.
const REPORTS: Duration = Duration::from_secs(30);

/// Runs `gabion mdm backup`.
pub(crate) fn backup(target: &Target, file: &Path) -> Result<()> {
    let state = target.connect()?.backup()?;
    let bytes = pack(&state, now());
    let read = Backup::from_bytes(&bytes, LEVEL).map_err(|what| {
        anyhow::anyhow!("the backup that the MDM sent is unusable ({what}): nothing was written")
    })?;
    let context = || format!("can't write {}", file.display());
    let mut to = files::create(file).with_context(context)?;
    to.write_all(&bytes).and_then(|()| to.sync_all()).with_context(context)?;
    files::settle(file).with_context(context)?;
    println!(
        "{}: {} volumes, {} devices, {}. Keep it on another host, and make one after each change \
         of volumes or devices.",
        file.display(),
        read.volumes.len(),
        read.devices,
        Size(bytes.len() as u64)
    );
    Ok(())
}

/// Runs `gabion mdm recover`.
pub(crate) fn recover(target: &Target, yes: bool) -> Result<Exit> {
    let survivors = survivors(target.mdms()?);
    let newest = survivors.into_iter().max_by_key(|(_, welcome)| (welcome.last_term, welcome.last));
    let Some((mut admin, Welcome { last, .. })) = newest else {
        let text = "no MDM answers. Start one whose log is whole, or restore a backup: `gabion mdm \
                    restore`";
        return Err(coded(Exit::Unreachable, text));
    };
    let at = admin.mdm();
    if !yes {
        let warning = format!(
            "The MDM at {at} is to go on alone. Its log ends at entry {last}.\n\
             - What the others decided after that is known only as far as servers can tell it.\n\
             - The others are given up for good: stop them, and remove their logs before you add \
             them again.\n"
        );
        let unasked = "going on without most MDMs is a decision";
        let refused = "nothing was done";
        Question { warning: &warning, word: "recover", unasked, refused }.ask()?;
    }
    admin.recover_mdm(RecoverMdm { by: who(), at: now(), ..RecoverMdm::default() })?;
    println!("The MDM at {at} goes on alone, and asks the servers what they know.");
    if let Ok(dir) = target.local()
        && !dir.live()?.iter().any(|(name, _)| name.starts_with("sds"))
    {
        println!("None of them runs: `gabion up{}` starts them.", target.dir_option());
        return Ok(Exit::Ok);
    }
    wait_closed(at)
}

/// Returns all MDMs that answer, of these addresses and of those that an answering MDM names.
fn survivors(mut addresses: Vec<SocketAddr>) -> Vec<(Admin, Welcome)> {
    let mut found = Vec::new();
    let mut next = 0;
    while let Some(at) = addresses.get(next).copied() {
        next += 1;
        let Ok((admin, welcome)) = Admin::direct(at) else { continue };
        let named = welcome.mdms.iter().filter_map(|m| m.address.parse().ok());
        let new: Vec<SocketAddr> = named.filter(|at| !addresses.contains(at)).collect();
        addresses.extend(new);
        found.push((admin, welcome));
    }
    found
}

/// Runs `gabion mdm recover --finish`.
pub(crate) fn finish(target: &Target, yes: bool) -> Result<Exit> {
    let mut admin = target.connect()?;
    let at = admin.mdm();
    let info = admin.status()?;
    let open = info.recovery.as_ref().filter(|r| r.open);
    if let Some(recovery) = open.filter(|_| !yes) {
        let warning = format!(
            "{}\nThe recovery would end now. Decisions of the lost MDMs that only a missing device \
             knows are lost. Groups of which only such a device can tell are not served until it \
             comes, or until they are given up.\n",
            summary(&info, recovery)
        );
        let unasked = "ending a recovery without what is missing is a decision";
        let refused = "nothing was done";
        Question { warning: &warning, word: "finish", unasked, refused }.ask()?;
    }
    let order = RecoverMdm { by: who(), at: now(), finish: true, ..RecoverMdm::default() };
    admin.recover_mdm(order)?;
    wait_closed(at)
}

/// Runs `gabion mdm recover --delete-volumes`.
pub(crate) fn delete(target: &Target, ids: &[u32], yes: bool) -> Result<()> {
    let mut admin = target.connect()?;
    let list = listed(ids);
    if !yes {
        let warning = format!(
            "Devices hold data of volumes that the MDM does not know (ids {list}). It is deleted \
             on all of them, also on those that come later. A newer backup of the MDMs may know \
             these volumes.\n"
        );
        let unasked = "deleting volumes is a decision";
        let refused = "nothing was deleted";
        Question { warning: &warning, word: "delete", unasked, refused }.ask()?;
    }
    let order = RecoverMdm { by: who(), at: now(), delete: ids.to_vec(), ..RecoverMdm::default() };
    admin.recover_mdm(order)?;
    println!("Servers delete what they hold of these volumes: {list}.");
    Ok(())
}

fn listed(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn wait_closed(at: SocketAddr) -> Result<Exit> {
    let start = Instant::now();
    loop {
        let info = Admin::connect(at).and_then(|mut admin| admin.status());
        let status = info.as_ref().ok().and_then(|info| info.recovery.clone());
        let waits = status.as_ref().is_none_or(|s| s.open);
        if let (Ok(info), Some(status), false) = (&info, &status, waits) {
            println!("{}", summary(info, status));
            return Ok(if status.doubtful > 0 { Exit::Unserved } else { Exit::Ok });
        }
        if start.elapsed() > REPORTS {
            let (info, Some(status)) = (info?, status) else {
                bail!("the MDM at {at} does not recover")
            };
            bail!("{}", summary(&info, &status));
        }
        std::thread::sleep(POLL);
    }
}

/// Runs `gabion mdm restore`.
pub(crate) fn restore(
    target: &Target,
    file: &Path,
    config: Option<&Path>,
    yes: bool,
) -> Result<()> {
    let bytes = fs::read(file).with_context(|| format!("can't read {}", file.display()))?;
    let backup = Backup::from_bytes(&bytes, LEVEL)
        .map_err(|what| anyhow::anyhow!("{}: {what}", file.display()))?;
    let config: MdmConfig = match config {
        Some(file) => config::read(file)?,
        None => config::read(&target.local()?.config_file("mdm"))?,
    };
    let empty = |path: &Path| fs::metadata(path).map_or(true, |m| m.len() == 0);
    if !empty(&config.log) {
        bail!(
            "there is a log at {}. If it is not needed any more, move it away; if it is whole, \
             start its MDM, and use `gabion mdm recover` should the others be lost",
            config.log.display()
        );
    }
    if !yes {
        let warning = format!(
            "The backup of {} has {} volumes and {} devices. The log of MDM {} is made of it.\n\
             - All other MDMs of this cluster are given up for good: make sure that none runs, and \
             remove their logs.\n\
             - What was decided since then is known only as far as servers can tell it.\n",
            when(backup.made_at),
            backup.volumes.len(),
            backup.devices,
            config.name
        );
        let unasked = "restoring a backup is a decision";
        let refused = "nothing was done";
        Question { warning: &warning, word: "restore", unasked, refused }.ask()?;
    }
    let address = config.advertise.unwrap_or(config.listen);
    let writes = backup.log(&config.name, address, &who(), now());
    write_log(&config.log, &writes)
        .with_context(|| format!("can't write {}", config.log.display()))?;
    println!(
        "{} is written. Start this MDM: it asks the servers what they know, and hands out the map \
         when they have answered. `gabion status` shows which ones it waits for; `gabion mdm add` \
         makes the MDMs three again.",
        config.log.display()
    );
    Ok(())
}

/// Writes the log under another name first, so that a partial file is never taken for a log.
fn write_log(path: &Path, writes: &[(u64, Vec<u8>)]) -> Result<()> {
    if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
        files::make_folder(folder)?;
    }
    let part = path.with_extension("restoring");
    files::remove(&part)?;
    let file = files::create(&part)?;
    for (at, data) in writes {
        file.write_all_at(data, *at)?;
    }
    file.sync_all()?;
    files::rename(&part, path)?;
    Ok(())
}

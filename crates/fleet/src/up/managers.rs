//! The MDMs of an existing cluster: which of them have their logs, and what to do about the others.
//!
//! Invariant: where a log is gone, no MDM begins another cluster in its place.

use crate::cluster::{self, MAX_MDMS};
use crate::salvage;
use crate::statedir::StateDir;
use crate::target::Target;
use admin::Admin;
use anyhow::{Result, anyhow, bail};
use daemon::config::{self, MdmConfig};
use std::net::SocketAddr;
use wire::control::{MdmInfo, MdmStatus};

/// Returns the names of all MDMs whose logs are in the directory.
pub(crate) fn with_log(dir: &StateDir) -> Vec<String> {
    let all = (0..MAX_MDMS).map(cluster::mdm);
    all.filter(|name| dir.mdm_log(name).exists()).collect()
}

/// Returns those of the first `mdms` MDMs whose logs are missing.
pub(crate) fn without_log(dir: &StateDir, mdms: u32) -> Vec<String> {
    let all = (0..mdms).map(cluster::mdm);
    all.filter(|name| !dir.mdm_log(name).exists()).collect()
}

/// Returns true if this MDM waits to be added to a cluster when its log is empty. All but the first
/// one do. The first one does if its cluster existed before.
pub(crate) fn joins(
    dir: &StateDir,
    again: bool,
    name: &str,
    kept: Option<&MdmConfig>,
) -> Result<bool> {
    if name != "mdm" || again && !dir.mdm_log(name).exists() {
        return Ok(true);
    }
    Ok(again && (kept.is_some_and(|kept| kept.join) || salvage::has_devices(dir)?))
}

/// Refuses to start another cluster where the first MDM's log is gone and something else is left:
/// devices, or another MDM's log.
pub(crate) fn refuse_without_log(dir: &StateDir, target: &Target) -> Result<()> {
    let first = dir.mdm_log("mdm");
    if first.exists() {
        return Ok(());
    }
    let (place, option) = (dir.root().display(), target.dir_option());
    let others = with_log(dir);
    if !others.is_empty() {
        bail!(
            "mdm.log is gone from {place}, and other MDMs of its cluster have their logs: {}. \
             Nothing else is left of that cluster. To begin another one, choose another --dir, or \
             remove these logs",
            files(dir, &others)
        );
    }
    if salvage::has_devices(dir)? {
        bail!(
            "mdm.log is gone from {place}, and the devices of its cluster are there: without it \
             nobody knows where the data lies, and another cluster would begin here. Put the file \
             back, or make it from a backup: `gabion mdm restore FILE{option}`, and then `gabion \
             up{option}`. To start again without that data, choose another --dir, or remove \
             {place}/devices"
        );
    }
    Ok(())
}

fn files(dir: &StateDir, names: &[String]) -> String {
    let file = |name: &String| dir.mdm_log(name).display().to_string();
    names.iter().map(file).collect::<Vec<_>>().join(", ")
}

fn listens(dir: &StateDir, name: &str) -> Result<SocketAddr> {
    Ok(config::read::<MdmConfig>(&dir.config_file(name))?.listen)
}

/// Returns why none of the running MDMs can lead, if that is certain: of the MDMs that the newest
/// log names, half or more are gone. `lost` have no log, `ended` no process. Returns `None` while a
/// running MDM has not answered.
pub(crate) fn none_can_lead(
    dir: &StateDir,
    target: &Target,
    running: &[&String],
    lost: &[String],
    ended: &[&String],
) -> Result<Option<anyhow::Error>> {
    let (mut welcomes, mut lost) = (Vec::new(), lost.to_vec());
    let mut whole: Vec<&str> = Vec::new();
    for name in running {
        match Admin::direct(listens(dir, name)?) {
            Ok((_, welcome)) => {
                welcomes.push(welcome);
                whole.push(name);
            }
            // Its log exists but is empty.
            Err(error) if Admin::is_of_none(&error) => lost.push((*name).clone()),
            Err(_) => return Ok(None),
        }
    }
    let Some(newest) = welcomes.into_iter().max_by_key(|w| (w.last_term, w.last)) else {
        return Ok(Some(restore(dir, target, &lost)));
    };
    let gone = lost.iter().chain(ended.iter().copied()).map(|name| listens(dir, name));
    let gone: Vec<SocketAddr> = gone.collect::<Result<_>>()?;
    let is_gone = |at: &str| at.parse().is_ok_and(|at| gone.contains(&at));
    let left = newest.mdms.iter().filter(|m| !is_gone(&m.address)).count();
    let enough = newest.mdms.is_empty() || 2 * left > newest.mdms.len();
    Ok((!enough).then(|| recover(dir, target, &whole, &lost, ended)))
}

/// Says what to do when no log has any content.
fn restore(dir: &StateDir, target: &Target, lost: &[String]) -> anyhow::Error {
    let option = target.dir_option();
    anyhow!(
        "the logs of all MDMs are gone from {}, or are empty: {}. Nothing runs. Put them back, or \
         remove what is left of them and make one from a backup: `gabion mdm restore \
         FILE{option}`, and then `gabion up{option}`",
        dir.root().display(),
        files(dir, lost)
    )
}

/// Says what to do when too few MDMs are left.
fn recover(
    dir: &StateDir,
    target: &Target,
    whole: &[&str],
    lost: &[String],
    ended: &[&String],
) -> anyhow::Error {
    let option = target.dir_option();
    let mut text = String::new();
    if !lost.is_empty() {
        text += &format!("these logs of MDMs are gone, or are empty: {}. ", files(dir, lost));
    }
    for name in ended {
        text += &format!("{name} has ended. {}\n", cluster::last_words(dir, name));
    }
    text += &format!(
        "Only {} of the cluster's MDMs can run: too few for one to lead. Nothing runs now. If the \
         others were only moved away, put their logs back. If they are lost for good, these \
         commands go on without them, and no acknowledged write is lost (docs/operate/managers.md \
         says what may be):",
        whole.join(", ")
    );
    for name in whole {
        text += &format!("\n  gabion mdm start {name}{option}");
    }
    anyhow!("{text}\n  gabion mdm recover{option}\n  gabion up{option}")
}

/// Returns a message for each MDM that does not run because its log is gone.
pub(crate) fn left_out(
    dir: &StateDir,
    target: &Target,
    lost: &[String],
    members: &[MdmStatus],
) -> Result<Vec<String>> {
    let members: Vec<&MdmInfo> = members.iter().filter_map(|m| m.info.as_ref()).collect();
    let line = |name: &String| {
        let at = listens(dir, name)?;
        Ok(format!(
            "{name} is left out, as its log {} is gone; the others serve. {}",
            dir.mdm_log(name).display(),
            how_to_add(target, name, at, &members)
        ))
    };
    lost.iter().map(line).collect()
}

/// Says how this MDM comes back with an empty log. `members` are the MDMs that the cluster knows.
fn how_to_add(target: &Target, name: &str, at: SocketAddr, members: &[&MdmInfo]) -> String {
    let option = target.dir_option();
    let own = members.iter().find(|m| m.address.parse() == Ok(at));
    let remove = own.map(|m| format!("gabion mdm remove {}{option} && ", m.name));
    let tie = own.is_some_and(|m| m.tie_breaker);
    let tie = if tie { " --tie-breaker" } else { "" };
    format!(
        "To have it again: {}gabion mdm start {name}{option} && \
         gabion mdm add {name} {at}{tie}{option}",
        remove.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(id: u32, tie_breaker: bool) -> MdmInfo {
        let (name, address) = (format!("m{id}"), format!("127.0.0.1:{id}"));
        MdmInfo { id, name, address, tie_breaker }
    }

    #[test]
    fn an_mdm_without_a_log_comes_back_by_the_commands_that_the_cluster_takes() {
        let target = Target { dir: "d".into(), mdm: Vec::new() };
        let [one, two, tie] = [info(1, false), info(2, false), info(3, true)];
        let at = |id: &MdmInfo| id.address.parse().unwrap();
        let add = "gabion mdm start x --dir d && gabion mdm add x 127.0.0.1:";
        let all = [&one, &two, &tie];
        let said = how_to_add(&target, "x", at(&one), &all);
        assert!(
            said.ends_with(&format!("gabion mdm remove m1 --dir d && {add}1 --dir d")),
            "{said}"
        );
        // After a recovery the cluster does not know it any more.
        let said = how_to_add(&target, "x", at(&one), &[&two]);
        assert!(said.ends_with(&format!("again: {add}1 --dir d")), "{said}");
        let said = how_to_add(&target, "x", at(&tie), &all);
        let back = format!("gabion mdm remove m3 --dir d && {add}3 --tie-breaker --dir d");
        assert!(said.ends_with(&back), "{said}");
        let (third, other) = (info(4, false), info(5, true));
        let five = [&one, &two, &third, &tie, &other];
        let said = how_to_add(&target, "x", at(&tie), &five);
        assert!(said.ends_with("x 127.0.0.1:3 --tie-breaker --dir d"), "{said}");
    }

    #[test]
    fn an_mdm_whose_log_was_there_begins_no_other_cluster() {
        let root = std::env::temp_dir().join(format!("gabion-joins-{}", std::process::id()));
        let dir = StateDir::create(&root).unwrap();
        let joins = |again, name, kept: Option<&MdmConfig>| joins(&dir, again, name, kept).unwrap();
        assert!(joins(false, "mdm2", None));
        assert!(!joins(false, "mdm", None), "it begins the cluster");
        assert!(joins(true, "mdm", None), "its log is gone");
        daemon::files::write(&dir.mdm_log("mdm"), "").unwrap();
        assert!(!joins(true, "mdm", None), "a power cut came with its very first start");
        let text = "listen = \"127.0.0.1:1\"\nlog = \"l\"\njoin = true\n";
        daemon::files::write(&dir.config_file("mdm"), text).unwrap();
        let kept = config::read(&dir.config_file("mdm")).unwrap();
        assert!(joins(true, "mdm", Some(&kept)), "it was started with an empty log");
        assert!(!joins(false, "mdm", Some(&kept)), "another cluster is wanted");
        std::fs::remove_dir_all(dir.root()).unwrap();
    }
}

//! Salvage of a cluster's directory after a power cut has emptied files that `up` wrote.
//!
//! Builds before November 2026 did not flush these files. They did flush the devices and the MDMs'
//! logs, and only these matter: everything else is made again from their names and sizes, and from
//! the files that are intact.

use crate::cluster;
use crate::statedir::StateDir;
use anyhow::{Result, bail};
use daemon::config::MdmConfig;
use daemon::config::{self, SdcConfig, SdsConfig};
use daemon::content::{self, Content};
use daemon::files;
use daemon::size::Size;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Returns the configuration files that are empty.
pub(crate) fn emptied(dir: &StateDir) -> Result<Vec<PathBuf>> {
    let configs = dir.configured()?.into_iter().map(|name| dir.config_file(&name));
    let all = std::iter::once(dir.cluster_file()).chain(configs);
    Ok(all.filter(|file| files::is_emptied(file)).collect())
}

/// Returns the number of MDMs with logs in the directory, counting those missing in between.
pub(crate) fn mdms(dir: &StateDir) -> u32 {
    let there = |i: &u32| dir.mdm_log(&cluster::mdm(*i)).exists();
    (0..cluster::MAX_MDMS).filter(there).max().map_or(0, |last| last + 1)
}

/// Returns the number of servers with devices or configurations in the directory.
pub(crate) fn servers(dir: &StateDir) -> Result<u32> {
    let number = |name: &str| name.strip_prefix("sds")?.parse::<u32>().ok();
    let devices = file_names(dir)?;
    let devices = devices.iter().filter_map(|name| number(name.split_once('.')?.0));
    let configs: Vec<u32> = dir.configured()?.iter().filter_map(|name| number(name)).collect();
    Ok(devices.chain(configs).max().unwrap_or(0))
}

/// Returns the shards and sizes of a server's devices in the directory.
pub(crate) fn devices(dir: &StateDir, name: &str) -> Result<Vec<(u32, Size)>> {
    let shard = |file: &String| file.strip_prefix(name)?.strip_prefix('.')?.parse().ok();
    let mut found = Vec::new();
    for shard in file_names(dir)?.iter().filter_map(shard) {
        found.push((shard, Size(content::bytes(&dir.device_file(name, shard))?)));
    }
    found.sort_unstable_by_key(|(shard, _)| *shard);
    Ok(found)
}

/// Returns true when a file in the directory's `devices` holds a device of a cluster.
pub(crate) fn has_devices(dir: &StateDir) -> Result<bool> {
    for name in file_names(dir)? {
        let path = dir.root().join("devices").join(name);
        if matches!(content::of(&path), Ok(Content::Device { .. })) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns true when a server has a device, in any place, that survives its process.
pub(crate) fn names_devices(dir: &StateDir) -> Result<bool> {
    let files = dir.configured()?.into_iter().map(|name| dir.config_file(&name));
    let servers = files.filter_map(|file| config::read::<SdsConfig>(&file).ok());
    Ok(servers.flat_map(|server| server.device).any(|device| device.spec.path().is_some()))
}

fn file_names(dir: &StateDir) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir.root().join("devices"))?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Returns where an MDM listened, from its own file, or from that of a server or client, which
/// names all MDMs in their order.
pub(crate) fn listened(dir: &StateDir, index: u32) -> Result<Option<SocketAddr>> {
    let own = config::read::<MdmConfig>(&dir.config_file(&cluster::mdm(index)));
    if let Ok(own) = own {
        return Ok(Some(own.listen));
    }
    for name in dir.configured()? {
        let file = dir.config_file(&name);
        let server = config::read::<SdsConfig>(&file).map(|server| server.mdm);
        let named = server.or_else(|_| config::read::<SdcConfig>(&file).map(|client| client.mdm));
        if let Some(at) = named.ok().and_then(|all| all.get(index as usize).copied()) {
            return Ok(Some(at));
        }
    }
    if index == 0 && mdms(dir) < 2 {
        return Ok(None);
    }
    bail!(
        "a power cut has emptied the files in {}, and with them the addresses at which the MDMs \
         look for each other. Find the last lines with `listens on` in {} and in the logs of the \
         other MDMs, write their addresses into the MDMs' files, as in `name = \"{}\"`, `listen = \
         \"127.0.0.1:7001\"`, `log = \"{}\"`, and start it again",
        dir.root().join("config").display(),
        dir.output_file(&cluster::mdm(index)).display(),
        cluster::mdm(index),
        dir.mdm_log(&cluster::mdm(index)).display()
    )
}

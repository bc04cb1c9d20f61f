//! Volumes as namespaces of the kernel's NVMe/TCP client: `attach --via nvme`.
//!
//! One connection (an NVMe *controller*) shows all volumes that the data client may use. So all
//! volumes of a cluster that are attached in this way share it. A connection that somebody else has
//! made is used, too, and stays.

use crate::block;
use crate::keys::Keys;
use crate::local::{self, Served};
use crate::record::Place;
use anyhow::{Context, Result, bail};
use daemon::files;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The kernel's file for new connections.
const FABRICS: &str = "/dev/nvme-fabrics";
/// The kernel's list of its own names.
const SYMBOLS: &str = "/proc/kallsyms";
/// The folder of all connections.
const CONTROLLERS: &str = "/sys/class/nvme";
/// The files by which nvme-cli names this host.
const HOST: [(&str, &str); 2] = [("hostnqn", "/etc/nvme/hostnqn"), ("hostid", "/etc/nvme/hostid")];
/// The lock that commands hold while they make or end a connection.
const LOCK: &str = "/run/gabion/nvme.lock";
/// How long the kernel may take to find the volume.
const PATIENCE: Duration = Duration::from_secs(15);

/// A connection that a volume uses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Connection {
    /// The kernel's name of it, such as `nvme0`.
    pub(crate) controller: String,
    /// It was made by `attach`, and ends with the last volume that uses it.
    pub(crate) ours: bool,
    /// The UUID of the volume.
    pub(crate) uuid: String,
}

/// A connection, as the kernel describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Controller {
    name: String,
    subsystem: String,
    address: String,
}

impl Controller {
    /// Returns true if it leads to this address. The kernel writes
    /// `traddr=127.0.0.1,trsvcid=4420`, and possibly more.
    fn is_at(&self, at: SocketAddr) -> bool {
        let has = |key: &str, value: String| {
            let mut fields = self.address.split(',').filter_map(|field| field.split_once('='));
            fields.any(|(k, v)| k == key && v == value)
        };
        has("traddr", at.ip().to_string()) && has("trsvcid", at.port().to_string())
    }
}

/// Returns the connections of this machine.
fn controllers() -> Vec<Controller> {
    let Ok(entries) = fs::read_dir(CONTROLLERS) else { return Vec::new() };
    let read = |entry: fs::DirEntry| {
        let text = |file: &str| fs::read_to_string(entry.path().join(file)).ok();
        Some(Controller {
            name: entry.file_name().to_str()?.to_owned(),
            subsystem: text("subsysnqn")?.trim().to_owned(),
            address: text("address")?.trim().to_owned(),
        })
    };
    entries.flatten().filter_map(read).collect()
}

/// Takes the lock, until the file is closed.
fn lock() -> Result<File> {
    let file = files::lock(Path::new(LOCK)).with_context(|| format!("can't open {LOCK}"))?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive).context("can't lock it")?;
    Ok(file)
}

/// Returns the options of a new connection. `host`: the options that name this host. They contain
/// the keys, so they must not be shown.
fn options(at: SocketAddr, subsystem: &str, host: &[(&str, String)], keys: &Keys) -> String {
    let mut text = format!(
        "transport=tcp,traddr={},trsvcid={},nqn={subsystem},nr_io_queues=2,ctrl_loss_tmo=-1,\
         reconnect_delay=1",
        at.ip(),
        at.port()
    );
    host.iter().for_each(|(key, value)| text += &format!(",{key}={value}"));
    keys.append_to(&mut text);
    text
}

/// Returns the options that name this host, if both files are there. Otherwise the kernel chooses
/// names.
fn host() -> Vec<(&'static str, String)> {
    let read = |(key, file): (&'static str, &str)| {
        Some((key, fs::read_to_string(file).ok()?.trim().to_owned()))
    };
    let both: Option<Vec<_>> = HOST.into_iter().map(read).collect();
    both.filter(|all| all.iter().all(|(_, value)| !value.is_empty())).unwrap_or_default()
}

/// Makes a connection, and returns its name.
fn connect(at: SocketAddr, subsystem: &str, keys: &Keys) -> Result<String> {
    let file = File::options().read(true).write(true).open(FABRICS);
    let mut file = file.with_context(|| format!("can't open {FABRICS}"))?;
    if let Err(why) = file.write_all(options(at, subsystem, &host(), keys).as_bytes()) {
        bail!("the kernel can't connect to {at} by NVMe/TCP: {why}. {}", keys.advice());
    }
    let mut told = String::new();
    file.read_to_string(&mut told).context("the kernel does not tell what it has made")?;
    let number = told.trim().split(',').find_map(|field| field.strip_prefix("instance="));
    Ok(format!("nvme{}", number.context("the kernel does not name the connection")?))
}

/// Returns the connection to the cluster, and true if it is new.
fn connected(served: &Served, keys: &Keys) -> Result<(String, bool)> {
    let portals = local::need(&served.nvme, "NVMe/TCP", "nvme")?;
    let mine = |c: &Controller| c.subsystem == served.subsystem;
    let there: Vec<Controller> = controllers().into_iter().filter(mine).collect();
    if let Some(here) = there.iter().find(|c| portals.iter().any(|at| c.is_at(*at))) {
        keys.need_same(&Path::new(CONTROLLERS).join(&here.name))?;
        return Ok((here.name.clone(), false));
    }
    if let Some(other) = there.first() {
        // The kernel would combine both to one device, and two data clients do not order the writes
        // of one host.
        bail!(
            "this machine is connected to another data client ({}, {}): disconnect that first",
            other.name,
            other.address
        );
    }
    let mut why = Vec::new();
    for at in portals {
        match connect(*at, &served.subsystem, keys) {
            Ok(name) => return Ok((name, true)),
            Err(error) => why.push(format!("{error:#}")),
        }
    }
    bail!("{}", why.join("; "))
}

/// Makes a volume a device. Returns the device, and the connection.
pub(crate) fn attach(served: &Served, keys: &Keys) -> Result<(PathBuf, Connection)> {
    if !keys.is_empty() {
        // Kernels before 5.17 list no options, and have no authentication.
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
        keys.need_kernel(&read(FABRICS), &read(SYMBOLS))?;
    }
    let _lock = lock()?;
    let (controller, new) = connected(served, keys)?;
    let mut connection = Connection { controller, ours: new, uuid: served.uuid.clone() };
    let mut found = None;
    block::wait(PATIENCE, || {
        found = device(&served.uuid);
        found.is_some()
    });
    let Some(found) = found else {
        if new {
            end(&connection.controller)?;
        }
        bail!(
            "the data client (SDC) of this machine does not show the volume: `gabion volume map` \
             lets it use the volume"
        );
    };
    connection.ours |= others(&connection, None)?.iter().any(|other| other.ours);
    Ok((found, connection))
}

/// Returns the device of the volume with this UUID.
pub(crate) fn device(uuid: &str) -> Option<PathBuf> {
    let wanted = format!("uuid.{uuid}");
    fs::read_dir("/sys/block").ok()?.flatten().find_map(|entry| {
        let id = fs::read_to_string(entry.path().join("wwid")).ok()?;
        // Each path to a volume is listed, too, but has no device.
        let device = Path::new("/dev").join(entry.file_name());
        (id.trim() == wanted && device.exists()).then_some(device)
    })
}

/// Returns the records of this connection at the other attached volumes: empty if none of them uses
/// it.
fn others(connection: &Connection, but: Option<&str>) -> Result<Vec<Connection>> {
    let mut found = Vec::new();
    for place in Place::all()? {
        let theirs = place.record()?.and_then(|record| record.connection);
        if but != Some(place.name.as_str())
            && let Some(theirs) = theirs.filter(|c| c.controller == connection.controller)
        {
            found.push(theirs);
        }
    }
    Ok(found)
}

/// Ends the connection of a volume, unless others use it.
pub(crate) fn detach(place: &Place, connection: &Connection) -> Result<()> {
    let _lock = lock()?;
    if !connection.ours || !others(connection, Some(&place.name))?.is_empty() {
        return Ok(());
    }
    end(&connection.controller)
}

/// Ends a connection.
fn end(controller: &str) -> Result<()> {
    let file = Path::new(CONTROLLERS).join(controller).join("delete_controller");
    match block::set(&file, "1") {
        Err(why) if Errno::from_io_error(&why) != Some(Errno::NOENT) => {
            Err(why).with_context(|| format!("the kernel does not end {controller}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_never_gives_up_and_names_its_host() {
        let at = "127.0.0.1:4420".parse().unwrap();
        let host = [("hostnqn", "nqn.h".into()), ("hostid", "1".into())];
        let told = options(at, "nqn.x", &host, &Keys::default());
        assert_eq!(
            told,
            "transport=tcp,traddr=127.0.0.1,trsvcid=4420,nqn=nqn.x,nr_io_queues=2,\
             ctrl_loss_tmo=-1,reconnect_delay=1,hostnqn=nqn.h,hostid=1"
        );
    }

    #[test]
    fn a_connection_is_known_by_its_address() {
        let with = |address: &str| Controller {
            name: "nvme0".into(),
            subsystem: "nqn.x".into(),
            address: address.into(),
        };
        let at: SocketAddr = "127.0.0.1:4420".parse().unwrap();
        assert!(with("traddr=127.0.0.1,trsvcid=4420").is_at(at));
        assert!(with("traddr=127.0.0.1,trsvcid=4420,src_addr=127.0.0.1").is_at(at));
        assert!(!with("traddr=127.0.0.1,trsvcid=4421").is_at(at));
        assert!(!with("traddr=10.0.0.1,trsvcid=4420,src_addr=127.0.0.1").is_at(at));
        assert!(!with("0000:00:1f.0").is_at(at));
    }
}

//! The volumes attached to this machine: a folder for each one in [`ROOT`], which a reboot empties.
//!
//! | file | content |
//! |---|---|
//! | `volume` | the id of the cluster, and that of the volume, which a new name does not change |
//! | `volumes/NAME` | the volume as a file, as long as it is served (FUSE) |
//! | `pid` | the process that serves it (FUSE, ublk), or keeps it connected (NBD) |
//! | `ublk` | the device of the kernel's user-space block driver |
//! | `log` | the output of that process |
//! | `attached.toml` | the [`Record`], as soon as the device exists |
//!
//! Invariant: the command that creates the folder owns the attachment, and ends if another folder
//! has the same volume. So two commands can't attach one volume, even if it was renamed in between.

use crate::nvme::Connection;
use admin::exit::{Exit, coded};
use anyhow::{Context, Result, bail};
use daemon::files;
use daemon::process::Process;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The parent of the folders.
const ROOT: &str = "/run/gabion/attach";
/// The folder of links to the devices, which have the volumes' names.
const DEVICES: &str = "/dev/gabion";

/// A volume that is attached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The method of attachment.
    pub(crate) via: String,
    /// The kernel's name of the block device, such as `/dev/loop3`.
    pub(crate) device: PathBuf,
    /// The device is read-only.
    pub(crate) read_only: bool,
    /// The connection that it uses, with NVMe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) connection: Option<Connection>,
}

/// The folder of one volume.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The volume's name.
    pub(crate) name: String,
    folder: PathBuf,
}

impl Place {
    fn of(name: &str) -> Place {
        Place { name: name.to_owned(), folder: Path::new(ROOT).join(name) }
    }

    /// Takes the folder of a volume that is not attached. `volume` has the ids of the cluster and
    /// the volume.
    pub(crate) fn take(name: &str, volume: &str) -> Result<Place> {
        let place = Place::of(name);
        let made = files::make_folder(Path::new(ROOT))
            .and_then(|()| files::make_new_folder(&place.folder))
            .and_then(|()| files::write_for_this_boot(&place.folder.join("volume"), volume))
            .and_then(|()| files::make_folder(&place.folder.join("volumes")));
        match made {
            Ok(()) => place.only_one_of(volume),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                let text = match place.record()? {
                    Some(record) => format!(
                        "{name} is attached already, as {} ({}): `gabion attach --list` shows it, \
                         `gabion detach {name}` ends that",
                        place.link().display(),
                        record.device.display()
                    ),
                    None => format!(
                        "{name} is being attached, or an attempt was cut off: if no other command \
                         runs, `gabion detach {name}` cleans up"
                    ),
                };
                Err(coded(Exit::InUse, text))
            }
            Err(e) => Err(e).with_context(|| format!("can't make {}", place.folder.display())),
        }
    }

    /// Gives the folder up if another one has the same volume, which has got a new name since.
    fn only_one_of(self, volume: &str) -> Result<Place> {
        let has_it = |other: &Place| {
            let is = fs::read_to_string(other.folder.join("volume"));
            other.name != self.name && is.is_ok_and(|is| is == volume)
        };
        let Some(other) = Place::all()?.into_iter().find(has_it) else { return Ok(self) };
        self.remove()?;
        let (name, former) = (&self.name, &other.name);
        let text = format!(
            "{name} is attached already, under its former name {former}: `gabion attach --list` \
             shows it, `gabion detach {former}` ends that"
        );
        Err(coded(Exit::InUse, text))
    }

    /// Returns the folder of a volume that is attached, or whose `attach` was interrupted.
    pub(crate) fn find(name: &str) -> Result<Place> {
        let place = Place::of(name);
        if !place.folder.is_dir() {
            bail!("{name} is not attached here: `gabion attach --list` shows what is");
        }
        Ok(place)
    }

    /// Returns the folders of all volumes, by name.
    pub(crate) fn all() -> Result<Vec<Place>> {
        let entries = match fs::read_dir(ROOT) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e).with_context(|| format!("can't read {ROOT}")),
        };
        let mut names = Vec::new();
        for entry in entries {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names.iter().map(|name| Place::of(name)).collect())
    }

    /// Returns the record, if the device was made.
    pub(crate) fn record(&self) -> Result<Option<Record>> {
        let file = self.folder.join("attached.toml");
        match file.exists() {
            true => daemon::config::read(&file).map(Some),
            false => Ok(None),
        }
    }

    /// Writes the record, and gives the device the volume's name.
    pub(crate) fn keep(&self, record: &Record) -> Result<()> {
        daemon::config::write(&self.folder.join("attached.toml"), record)?;
        let link = self.link();
        let made = files::make_folder(Path::new(DEVICES)).and_then(|()| {
            files::remove(&link)?;
            std::os::unix::fs::symlink(&record.device, &link)
        });
        made.with_context(|| format!("can't make {}", link.display()))
    }

    /// Returns the path at which the device has the volume's name.
    pub(crate) fn link(&self) -> PathBuf {
        Path::new(DEVICES).join(&self.name)
    }

    /// Returns the folder over which the volume is mounted as a file.
    pub(crate) fn volumes(&self) -> PathBuf {
        self.folder.join("volumes")
    }

    /// Returns the volume as a file.
    pub(crate) fn file(&self) -> PathBuf {
        self.volumes().join(&self.name)
    }

    /// Returns the file of the serving process's id.
    pub(crate) fn pid_file(&self) -> PathBuf {
        self.folder.join("pid")
    }

    /// Returns the file of the number that the kernel's user-space block driver gave the device.
    pub(crate) fn ublk_file(&self) -> PathBuf {
        self.folder.join("ublk")
    }

    /// Returns the serving process's log.
    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Returns the process that serves the volume, if it runs.
    pub(crate) fn process(&self) -> Option<Process> {
        Process::read(&self.pid_file()).filter(Process::is_alive)
    }

    /// Removes the device's name and the folder.
    pub(crate) fn remove(&self) -> Result<()> {
        files::remove(&self.link()).or_else(|e| match e.kind() {
            ErrorKind::NotFound => Ok(()), // the folder of names was never made
            _ => Err(e),
        })?;
        fs::remove_dir_all(&self.folder)
            .with_context(|| format!("can't remove {}", self.folder.display()))
    }
}

//! `gabion attach --list`: what is attached to this machine.

use crate::block;
use crate::record::Place;
use crate::ways::Via;
use anyhow::Result;
use fleet::println;
use fleet::table::table;
use serde::Serialize;
use std::path::PathBuf;

/// A volume that is attached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Attached {
    /// Its name.
    pub(crate) volume: String,
    /// The device under the volume's name.
    pub(crate) link: PathBuf,
    /// The device under the kernel's name.
    pub(crate) device: PathBuf,
    /// How it is attached.
    pub(crate) via: String,
    /// It is read-only.
    pub(crate) read_only: bool,
    /// The process that serves it or keeps it connected; `None` if it has died, or none is needed.
    pub(crate) pid: Option<u32>,
    /// Its mounts.
    pub(crate) mounted: Vec<Mounted>,
}

/// A mount of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Mounted {
    /// The folder.
    pub(crate) at: PathBuf,
    /// The file system.
    pub(crate) fs: String,
}

impl Attached {
    /// Returns the state of a volume. `None`: it is not attached, or its `attach` was interrupted.
    pub(crate) fn of(place: &Place) -> Result<Option<Attached>> {
        let Some(record) = place.record()? else { return Ok(None) };
        let mounts = block::mounts_of(&record.device)?.into_iter();
        Ok(Some(Attached {
            volume: place.name.clone(),
            link: place.link(),
            via: record.via,
            read_only: record.read_only,
            pid: place.process().map(|process| process.pid),
            mounted: mounts.map(|mount| Mounted { at: mount.at, fs: mount.fs }).collect(),
            device: record.device,
        }))
    }
}

/// Describes the process that serves a volume.
fn served_by(one: &Attached) -> String {
    match one.pid {
        Some(pid) => format!("pid {pid}"),
        None if one.via == Via::Nvme.name() => "the kernel".into(),
        None if one.via == Via::Ublk.name() => "nobody: `gabion attach`".into(),
        None => "nobody: `gabion detach`".into(),
    }
}

/// Prints what is attached.
pub(crate) fn print(json: bool) -> Result<()> {
    let mut all = Vec::new();
    for place in Place::all()? {
        all.extend(Attached::of(&place)?);
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(());
    }
    if all.is_empty() {
        println!("No volume is attached to this machine.");
        return Ok(());
    }
    let mut rows = table(&["volume", "device", "kernel name", "via", "mounted at", "served by"]);
    for one in &all {
        let mounts = one.mounted.iter().map(|m| format!("{} ({})", m.at.display(), m.fs));
        let mounts: Vec<String> = mounts.collect();
        rows.add_row([
            one.volume.clone(),
            one.link.display().to_string(),
            one.device.display().to_string(),
            one.via.clone(),
            mounts.join(", "),
            served_by(one),
        ]);
    }
    println!("{rows}");
    Ok(())
}

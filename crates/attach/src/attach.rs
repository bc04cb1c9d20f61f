//! `gabion attach`: makes a volume a block device of this machine, and optionally mounts it.

use crate::content::{self, Content, Fs, Step};
use crate::keys::{KeyArgs, Keys};
use crate::list::{self, Attached};
use crate::local::{self, Served};
use crate::persist::{self, Lasting};
use crate::record::{Place, Record};
use crate::ways::{self, NotTaken, Via, Wanted};
use crate::{block, detach, nbd, nvme, serving, ublk};
use admin::exit::{Exit, coded};
use anyhow::{Context, Result, bail};
use clap::Args;
use daemon::{files, spec};
use fleet::target::Target;
use fleet::{eprintln, println};
use serde::Serialize;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Options of `gabion attach`.
#[derive(Args, Debug)]
#[command(after_help = "\
The device is /dev/gabion/VOLUME. A file system is made only on a blank volume; an existing one \
is used as it is. This command needs root.

Examples:
  gabion attach vol1                              a block device
  gabion attach vol1 --fs ext4 --at /mnt/vol1     a mounted file system, made if vol1 is blank
  gabion attach vol1 --at /mnt/vol1 --persist     again at each start of this machine
  gabion attach --list
  gabion detach vol1")]
pub struct AttachArgs {
    /// The volume's name
    #[arg(required_unless_present = "list", value_parser = spec::volume_name)]
    volume: Option<String>,
    /// Make this file system if the volume is blank, and expect it if it isn't
    #[arg(long, value_enum, value_name = "KIND")]
    fs: Option<Fs>,
    /// Mount it at this folder, which is created if it is missing
    #[arg(long, value_name = "DIR")]
    at: Option<PathBuf>,
    /// Attach it with this method [default: the best one that works here]
    #[arg(long, value_enum)]
    via: Option<Via>,
    /// Attach it again at each boot of this machine, with a systemd unit
    #[arg(long)]
    persist: bool,
    /// With --fs: destroy what the volume holds, if that isn't this file system
    #[arg(long, requires = "fs")]
    yes: bool,
    /// The client's name, where volumes are mapped by name. Without --via, and for nvme and nbd:
    /// the data client of this machine that serves it [default: any]. With --via fuse and ublk: the
    /// one that is made, which no running client has [default: HOST-mount-N, HOST-ublk-VOLUME]
    #[arg(long, value_name = "SDC", value_parser = spec::peer_name)]
    client: Option<String>,
    #[command(flatten)]
    keys: KeyArgs,
    /// List the volumes that are attached to this machine
    #[arg(long, conflicts_with_all = ["volume", "fs", "at", "via", "persist", "client",
        "nvme_secret", "nvme_ctrl_secret"])]
    list: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// With --persist: the folder that systemd's files are below
    #[arg(long, hide = true, default_value = "/")]
    root: PathBuf,
}

/// What `attach --json` prints.
#[derive(Serialize)]
struct Done<'a> {
    #[serde(flatten)]
    attached: &'a Attached,
    not_taken: Vec<Reason<'a>>,
}

#[derive(Serialize)]
struct Reason<'a> {
    via: &'static str,
    why: &'a str,
}

/// Runs `gabion attach`.
pub fn run(target: &Target, args: &AttachArgs) -> Result<Exit> {
    if args.list {
        list::print(args.json)?;
        return Ok(Exit::Ok);
    }
    let name = args.volume.as_deref().context("a volume's name")?;
    if [".", ".."].contains(&name) {
        bail!("a volume called `{name}` can't be a file: rename it with `gabion volume rename`");
    }
    let via = args.keys.via(args.via)?;
    block::need_root("attach")?;
    if let Some(place) = serve_again(target, args, name)? {
        let attached = Attached::of(&place)?.context("it was attached before")?;
        print(args, &attached, &[])?;
        check_again(args, &attached)?;
        return Ok(Exit::Ok);
    }
    let keys = args.keys.read()?;
    let at = args.at.as_deref().map(mount_point).transpose()?;
    let place = Place::take(name, &local::ids(target, name)?)?;
    let mut new = New { target, args, via, keys: &keys, place: &place, served: None };
    let made = new.open().and_then(|(record, not_taken)| {
        new.mount(&record, at.as_deref())?;
        Ok((record, not_taken))
    });
    let (record, not_taken) = match made {
        Ok(made) => made,
        Err(error) => {
            if let Err(left) = detach::take_down(&place) {
                eprintln!("warning: a part is left; `gabion detach {name}` removes it: {left:#}");
            }
            return Err(error);
        }
    };
    let attached = Attached::of(&place)?.context("it was attached a moment ago")?;
    let lasting = match args.persist {
        true => {
            let lasting = Lasting {
                volume: name,
                mdm: mdms(target)?,
                via: &record.via,
                client: args.client.as_deref(),
                keys: keys.words().collect(),
                at: at.as_deref(),
            };
            Some(persist::install(&args.root, &lasting)?)
        }
        false => None,
    };
    print(args, &attached, &not_taken)?;
    if !args.json {
        lasting.iter().for_each(|line| println!("{line}"));
    }
    Ok(Exit::Ok)
}

/// Prints the result.
fn print(args: &AttachArgs, attached: &Attached, not_taken: &[NotTaken]) -> Result<()> {
    if args.json {
        let not_taken = not_taken.iter().map(|n| Reason { via: n.via.name(), why: &n.why });
        let done = Done { attached, not_taken: not_taken.collect() };
        println!("{}", serde_json::to_string_pretty(&done)?);
    } else {
        println!("{}", told(attached, not_taken));
    }
    Ok(())
}

/// Returns an error if a volume that is served again is not attached as the command asks for.
fn check_again(args: &AttachArgs, attached: &Attached) -> Result<()> {
    let name = &attached.volume;
    let there = |at: &PathBuf| {
        let at = at.canonicalize().unwrap_or_else(|_| at.clone());
        attached.mounted.iter().any(|mount| mount.at == at)
    };
    if args.at.as_ref().is_some_and(|at| !there(at)) {
        let text = format!("{name} is served again, but not mounted there: `gabion detach {name}`");
        return Err(coded(Exit::InUse, format!("{text}, and attach it again")));
    }
    if args.persist && !persist::is_lasting(&args.root, name) {
        let text = format!("{name} is served again, but not at each boot: `gabion detach {name}`");
        return Err(coded(Exit::InUse, format!("{text}, and attach it again")));
    }
    Ok(())
}

/// Starts the process of a volume again that is attached by ublk, if the process has died. Its disk
/// has waited, and goes on.
fn serve_again(target: &Target, args: &AttachArgs, name: &str) -> Result<Option<Place>> {
    let Ok(place) = Place::find(name) else { return Ok(None) };
    let record = place.record()?.filter(|record| record.via == Via::Ublk.name());
    let Some(record) = record.filter(|_| place.process().is_none()) else { return Ok(None) };
    let device = ublk::attach(&place, &mdms(target)?, args.client.as_deref())?;
    place.keep(&Record { device, ..record })?;
    Ok(Some(place))
}

/// Creates the mount point, and returns its full path.
fn mount_point(at: &Path) -> Result<PathBuf> {
    files::make_folder(at).with_context(|| format!("can't make the folder {}", at.display()))?;
    let at = at.canonicalize().with_context(|| format!("can't find {}", at.display()))?;
    match block::mounts()?.iter().rev().find(|mount| mount.at == at) {
        Some(mount) => Err(coded(
            Exit::InUse,
            format!(
                "{} is mounted over {} already: choose another folder with --at",
                mount.source,
                at.display()
            ),
        )),
        None => Ok(at),
    }
}

/// A volume that is being attached.
struct New<'a> {
    target: &'a Target,
    args: &'a AttachArgs,
    /// The only method to try; by default, the best one that works.
    via: Option<Via>,
    keys: &'a Keys,
    place: &'a Place,
    /// Where data clients of this machine serve it, once that was asked.
    served: Option<Served>,
}

impl New<'_> {
    /// Makes a device with the best method that works.
    fn open(&mut self) -> Result<(Record, Vec<NotTaken>)> {
        let wanted = match (self.via, self.args.client.as_deref()) {
            (Some(via), _) => Wanted::Via(via),
            (None, Some(client)) => Wanted::Through(client),
            (None, None) => Wanted::Best,
        };
        let (record, not_taken) = ways::take(wanted, |via| {
            self.open_by(via).inspect_err(|_| {
                if let Err(left) = detach::undo(self.place) {
                    eprintln!("warning: a part of the attempt by {} is left: {left:#}", via.name());
                }
            })
        })?;
        self.place.keep(&record)?;
        Ok((record, not_taken))
    }

    fn open_by(&mut self, via: Via) -> Result<Record> {
        let (mut connection, mut read_only, keys) = (None, None, self.keys);
        let device = match via {
            Via::Ublk => {
                let client = self.args.client.as_deref();
                ublk::attach(self.place, &mdms(self.target)?, client)?
            }
            Via::Nvme => {
                let (device, made) = nvme::attach(self.served()?, keys)?;
                connection = Some(made);
                device
            }
            Via::Nbd => nbd::attach(self.place, self.served()?)?,
            Via::Fuse => {
                self.mount_file()?;
                let file = self.place.file();
                let rights = fs::metadata(&file).context("the volume's file")?.permissions();
                read_only = Some(rights.readonly());
                block::make_loop(&file, rights.readonly())?
            }
        };
        let read_only = read_only.unwrap_or_else(|| block::is_read_only(&device));
        Ok(Record { via: via.name().to_owned(), device, read_only, connection })
    }

    /// Returns where data clients of this machine serve the volume.
    fn served(&mut self) -> Result<&Served> {
        if self.served.is_none() {
            let client = self.args.client.as_deref();
            self.served = Some(local::find(self.target, &self.place.name, client)?);
        }
        self.served.as_ref().context("it was asked for just now")
    }

    /// Starts the process that serves the volume as a file.
    fn mount_file(&self) -> Result<()> {
        let (volumes, mdm) = (self.place.volumes(), mdms(self.target)?);
        let volumes = volumes.to_str().context("a folder's path is text")?;
        let mut all = vec!["mount", volumes, "--volume", &self.place.name, "--mdm", &mdm];
        all.extend(self.args.client.iter().flat_map(|client| ["--client", client]));
        serving::start(self.place, &all, || self.place.file().exists())
    }

    /// Makes the file system, if that was asked for, and mounts it.
    fn mount(&self, record: &Record, at: Option<&Path>) -> Result<()> {
        let args = self.args;
        let step = match (args.fs, at) {
            (None, None) => Step::Leave,
            (fs, at) => {
                let content = self.content(record)?;
                content::decide(&self.place.name, content, fs, at.is_some(), args.yes)?
            }
        };
        let device = &record.device;
        let fs = match step {
            Step::Leave => return Ok(()),
            Step::Make { .. } if record.read_only => bail!(
                "{} is mapped to this client for reading only: no file system can be made",
                self.place.name
            ),
            Step::Make { fs, over } => {
                block::make_fs(device, fs, over)?;
                fs.name()
            }
            Step::Use(fs) => fs,
        };
        at.map_or(Ok(()), |at| block::mount(device, fs, at, record.read_only))
    }

    /// Detects the content of the volume.
    fn content(&self, record: &Record) -> Result<Content> {
        let open = |path: &Path| {
            File::open(path).with_context(|| format!("can't open {}", path.display()))
        };
        if record.via == Via::Fuse.name() {
            return content::look_with_holes(&open(&self.place.file())?);
        }
        let device = open(&record.device)?;
        // A block device does not tell which ranges hold data.
        match self.served.as_ref().and_then(nbd::allocation) {
            Some(mut allocation) => content::look(&device, |from| allocation.first_data(from)),
            None => content::look(&device, |from| Ok(Some(from))),
        }
    }
}

fn mdms(target: &Target) -> Result<String> {
    let all: Vec<String> = target.mdms()?.iter().map(ToString::to_string).collect();
    Ok(all.join(","))
}

/// Describes the result, for people.
fn told(attached: &Attached, not_taken: &[NotTaken]) -> String {
    let mut text = format!(
        "{} is {} ({})",
        attached.volume,
        attached.link.display(),
        attached.device.display()
    );
    for mount in &attached.mounted {
        text += &format!(", {} at {}", mount.fs, mount.at.display());
    }
    text += match attached.read_only {
        true => ". It is read-only.",
        false => ".",
    };
    text += &format!("\nAttached by {}", attached.via);
    for (i, not) in not_taken.iter().enumerate() {
        let before = if i == 0 { ". Not used: " } else { "; " };
        text += &format!("{before}{}: {}", not.via.name(), not.why);
    }
    text + "."
}

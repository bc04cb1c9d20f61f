//! `gabion attach`: makes a volume a block device of this machine, and optionally mounts it.

use crate::content::{self, Fs, Step};
use crate::list::{self, Attached};
use crate::persist::{self, Lasting};
use crate::record::{Place, Record};
use crate::ways::{self, NotTaken, Via};
use crate::{block, detach};
use admin::exit::{Exit, coded};
use anyhow::{Context, Result, bail};
use clap::Args;
use daemon::{files, spec};
use fleet::target::Target;
use fleet::{eprintln, println};
use serde::Serialize;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the serving process may take until it serves the volume.
const PATIENCE: Duration = Duration::from_secs(60);

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
    /// The client's name, where volumes are mapped by name [default: HOST-mount-N]
    #[arg(long, value_name = "SDC")]
    client: Option<String>,
    /// List the volumes that are attached to this machine
    #[arg(long, conflicts_with_all = ["volume", "fs", "at", "via", "persist", "client"])]
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
    block::need_root("attach")?;
    let (via, not_taken) = ways::choose(args.via)?;
    let at = args.at.as_deref().map(mount_point).transpose()?;
    let place = Place::take(name)?;
    if let Err(error) = make(target, args, &place, via, at.as_deref()) {
        if let Err(left) = detach::take_down(&place) {
            eprintln!("warning: a part is left; `gabion detach {name}` removes it: {left:#}");
        }
        return Err(error);
    }
    let attached = Attached::of(&place)?.context("it was attached a moment ago")?;
    let lasting = match args.persist {
        true => Some(persist::install(&args.root, &lasting(target, args, name, at.as_deref())?)?),
        false => None,
    };
    if args.json {
        let not_taken = not_taken.iter().map(|n| Reason { via: n.via.name(), why: &n.why });
        let done = Done { attached: &attached, not_taken: not_taken.collect() };
        println!("{}", serde_json::to_string_pretty(&done)?);
    } else {
        println!("{}", told(&attached, &not_taken));
        lasting.iter().for_each(|line| println!("{line}"));
    }
    Ok(Exit::Ok)
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

/// Makes the device, and mounts it.
fn make(
    target: &Target,
    args: &AttachArgs,
    place: &Place,
    via: Via,
    at: Option<&Path>,
) -> Result<()> {
    serve(target, args, place)?;
    let file = place.file();
    let read_only = fs::metadata(&file).context("the volume's file")?.permissions().readonly();
    let step = match (args.fs, at) {
        (None, None) => Step::Leave,
        (fs, at) => {
            let content = content::look(&File::open(&file).context("can't open the volume")?)?;
            content::decide(&place.name, content, fs, at.is_some(), args.yes)?
        }
    };
    if read_only && matches!(step, Step::Make { .. }) {
        bail!(
            "{} is mapped to this client for reading only: no file system can be made",
            place.name
        );
    }
    let device = block::make_loop(&file, read_only)?;
    let record = Record { via: via.name().to_owned(), device, read_only };
    place.keep(&record)?;
    let device = &record.device;
    let fs = match step {
        Step::Leave => return Ok(()),
        Step::Make { fs, over } => {
            block::make_fs(device, fs, over)?;
            fs.name()
        }
        Step::Use(fs) => fs,
    };
    at.map_or(Ok(()), |at| block::mount(device, fs, at, read_only))
}

/// Starts the process that serves the volume. Returns when the volume's file exists.
fn serve(target: &Target, args: &AttachArgs, place: &Place) -> Result<()> {
    let log = files::log(&place.log()).context("can't make a log")?;
    let mut command = Command::new(std::env::current_exe().context("this binary can't be found")?);
    command.arg("mount").arg(place.volumes()).args(["--volume", &place.name]);
    command.args(["--mdm", &mdms(target)?]).arg("--pid-file").arg(place.pid_file());
    command.args(args.client.iter().flat_map(|client| ["--client", client]));
    command.current_dir("/").stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut child = command.process_group(0).spawn().context("can't start `gabion mount`")?;
    match wait(place, &mut child) {
        Ok(()) => Ok(()),
        Err(error) => {
            // An error means that the process has ended already.
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

fn wait(place: &Place, child: &mut Child) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while place.process().is_none() || !place.file().exists() {
        if child.try_wait().context("the serving process")?.is_some() {
            let log = fs::read_to_string(place.log()).unwrap_or_default();
            let last = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
            bail!("{}", last.strip_prefix("error: ").unwrap_or(last));
        }
        if Instant::now() > until {
            bail!(
                "{} was not served within {PATIENCE:?}: `gabion status` shows the cluster's state",
                place.name
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn mdms(target: &Target) -> Result<String> {
    let all: Vec<String> = target.mdms()?.iter().map(ToString::to_string).collect();
    Ok(all.join(","))
}

/// Describes the attachment for the next start of the machine.
fn lasting<'a>(
    target: &Target,
    args: &'a AttachArgs,
    name: &'a str,
    at: Option<&'a Path>,
) -> Result<Lasting<'a>> {
    Ok(Lasting {
        volume: name,
        mdm: mdms(target)?,
        via: args.via.map(Via::name),
        client: args.client.as_deref(),
        at,
    })
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

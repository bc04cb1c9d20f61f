//! `gabion volume create|list|show|resize|map|unmap|move-path|reservations|rename|delete`.

use crate::damage;
use crate::decision::Question;
use crate::reservations;
use crate::show::{self, Answer, Object};
use crate::status;
use admin::exit::Exit;
use admin::report;
use admin::report::{Report, Volume};
use anyhow::Result;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use daemon::size::Size;
use daemon::spec;
use fleet::lines;
use fleet::target::Target;
use wire::control::{
    Access, Ask, CreateVolume, MapRequest, MapTo, MapToHost, MovePath, ObjectKind, SeatStatus,
    UnmapRequest, VolumeStatus,
};

/// Subcommands of `gabion volume`.
#[derive(Subcommand, Debug)]
pub(crate) enum VolumeCommand {
    /// Create a volume; it takes space only as it is written, unless it is thick
    #[command(after_help = "\
Examples:
  gabion volume create db1 20GiB
  gabion volume create db2 20GiB --map web1 --map backup:read-only
  gabion volume create db3 20GiB --thick --pool fast
  gabion volume create db4 20GiB --host iqn.1993-08.org.debian:01:3f5bc2a1d7e")]
    Create {
        /// 1 to 31 of the characters a-z A-Z 0-9 - _ . ; it does not begin with -
        #[arg(value_parser = spec::new_volume_name)]
        name: String,
        /// Its size, as in 20GiB; rounded up to 1 MiB
        #[arg(value_parser = spec::volume_size)]
        size: Size,
        #[command(flatten)]
        kind: Kind,
        /// Map it only to this SDC; can be repeated; by default it is mapped to all
        #[arg(long = "map", value_name = "SDC[:read-only]", value_parser = map_to)]
        map: Vec<MapTo>,
        /// Don't map it to any SDC yet
        #[arg(long, conflicts_with = "map")]
        unmapped: bool,
        /// Map it only to this iSCSI or NVMe host; can be repeated; by default it is mapped to all
        #[arg(long = "host", value_name = "NAME[:read-only]", value_parser = map_to_host)]
        hosts: Vec<MapToHost>,
        #[command(flatten)]
        answer: Answer,
    },
    /// List the volumes
    #[command(after_help = "Example:\n  gabion volume list --json | jq -r '.[].nbd_uris[0]'")]
    List {
        /// Print a JSON array, with the fields of `volumes` in docs/reference/status.md
        #[arg(long)]
        json: bool,
    },
    /// Show one volume
    #[command(after_help = "Example:\n  gabion volume show db1")]
    Show {
        /// Its name
        name: String,
        /// Print one JSON object, with the fields of `volumes` in docs/reference/status.md
        #[arg(long)]
        json: bool,
    },
    /// Grow a volume while it is in use; NBD clients see the new size when they connect again
    #[command(after_help = "Example:\n  gabion volume resize db1 40GiB")]
    Resize {
        /// Its name
        name: String,
        /// Its new size, not less than the present one; rounded up to 1 MiB
        #[arg(value_parser = spec::volume_size)]
        size: Size,
        #[command(flatten)]
        answer: Answer,
    },
    /// Let SDCs or hosts use a volume, in addition to those that already may
    #[command(after_help = "\
A volume is mapped to all SDCs, or to those that are named; and to all hosts, or to those that are \
named. A host uses it by iSCSI or NVMe/TCP through an SDC, so both have to be mapped. Those that \
may only read from now on, or may not use it any more (--only), are cut off before this command \
ends.

Examples:
  gabion volume map db1 --sdc web1 --only                 to web1 alone
  gabion volume map db1 --sdc backup --access read-only   and to backup, for reading
  gabion volume map db1 --all                             to all SDCs again
  gabion volume map db1 --host iqn.1993-08.org.debian:01:3f5bc2a1d7e --only
  gabion volume map db1 --all-hosts                       to all hosts again")]
    Map {
        /// Its name
        name: String,
        #[command(flatten)]
        whom: Whom,
        /// Map it to all iSCSI and NVMe hosts
        #[arg(long, conflicts_with = "host", group = "Whom")]
        all_hosts: bool,
        /// What they may do
        #[arg(long, default_value = "read-write")]
        access: Mode,
        /// With --sdc: unmap it from all other SDCs; with --host: from all other hosts
        #[arg(long)]
        only: bool,
        #[command(flatten)]
        answer: Answer,
    },
    /// Stop SDCs or hosts from using a volume
    #[command(after_help = "\
When this command has ended, nothing that an unmapped SDC or host sends takes effect any more. If a \
server that may serve it does not confirm that, the command fails and names the server.

Examples:
  gabion volume unmap db1 --sdc web1
  gabion volume unmap db1 --host iqn.1993-08.org.debian:01:3f5bc2a1d7e
  gabion volume unmap db1 --all                           from all SDCs")]
    Unmap {
        /// Its name
        name: String,
        #[command(flatten)]
        whom: Whom,
        #[command(flatten)]
        answer: Answer,
    },
    /// Serve hosts of a volume through another SDC
    #[command(after_help = "\
One SDC serves a host of a volume: `gabion volume show` names it. This command moves hosts to \
another SDC, to which they are connected. When it has ended, nothing that they have sent through \
the former one takes effect any more. Commands under way are repeated by the hosts.

Examples:
  gabion volume move-path db1 --to sdc2                   all hosts
  gabion volume move-path db1 --to sdc2 --host iqn.1993-08.org.debian:01:3f5bc2a1d7e")]
    MovePath {
        /// Its name
        name: String,
        /// The SDC
        #[arg(long, value_name = "SDC")]
        to: String,
        /// Move this host only; can be repeated
        #[arg(long, value_name = "NAME")]
        host: Vec<String>,
        #[command(flatten)]
        answer: Answer,
    },
    /// Show which hosts are registered with a volume (persistent reservations), or end that
    #[command(after_help = "\
A host that is registered can shut others out, and stays registered when it is gone. Other hosts \
then get reservation conflicts. Cluster software clears them itself; --clear does it if that is gone.

Examples:
  gabion volume reservations db1
  gabion volume reservations db1 --clear")]
    Reservations {
        /// Its name
        name: String,
        /// Print JSON, as `volumes[].reservations` in docs/reference/status.md
        #[arg(long, conflicts_with = "clear")]
        json: bool,
        /// End the reservation and all registrations
        #[arg(long)]
        clear: bool,
        /// With --clear: don't ask
        #[arg(long, requires = "clear")]
        yes: bool,
    },
    /// Rename a volume; clients that have it attached keep it
    #[command(after_help = "Example:\n  gabion volume rename db1 db1-old")]
    Rename {
        /// Its name
        name: String,
        /// Its new name
        #[arg(value_parser = spec::new_volume_name)]
        to: String,
        #[command(flatten)]
        answer: Answer,
    },
    /// Show which bytes of a volume can't be read or written, and why
    #[command(after_help = "\
Examples:
  gabion volume damage db1
  gabion volume damage db1 --json | jq '.ranges[] | select(.why == \"lost\")'

Exit code 4 when there are any; 3 while MDMs are recovered and it is not known yet.")]
    Damage {
        /// Its name
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Serve volumes again without lost data: it reads as zeros or errors, and can be written
    #[command(group(ArgGroup::new("how").required(true)), after_help = "\
Examples:
  gabion volume accept-loss db1 --read-as zeros
  gabion volume accept-loss db1 --read-as errors  each block is an error until it is written whole
  gabion volume accept-loss db1 --use-stale     where the device with the last writes won't come
                                                back, go on with an older copy: what only that
                                                device had is given up

Volumes share groups: volumes that lose data in the same groups are named together. Afterwards \
check the file systems. The order is recorded: `gabion volume damage` shows who gave it, and \
when.")]
    AcceptLoss {
        /// Their names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// How lost data reads from then on
        #[arg(long, value_enum, group = "how")]
        read_as: Option<ReadAs>,
        /// Go on with older copies of data that waits for a device that won't come back
        #[arg(long, group = "how")]
        use_stale: bool,
        /// Don't ask
        #[arg(long)]
        yes: bool,
    },
    /// Delete a volume and all its data
    #[command(
        alias = "remove",
        after_help = "\
Refused while it is mapped to SDCs by name, or attached anywhere: unmap it first, or use --unmap.

Example:
  gabion volume delete db1 --yes"
    )]
    Delete {
        /// Its name
        name: String,
        /// Don't ask; needed without a terminal
        #[arg(long)]
        yes: bool,
        /// Delete it even if it is mapped to SDCs by name, or attached anywhere
        #[arg(long)]
        unmap: bool,
        #[command(flatten)]
        answer: Answer,
    },
}

/// Options of a new volume.
#[derive(Args, Clone, Debug)]
pub(crate) struct Kind {
    /// Reserve space for all of it; refused if the pool has too little
    #[arg(long, conflicts_with = "thin")]
    thick: bool,
    /// Take space as it is written (the default)
    #[arg(long)]
    thin: bool,
    /// Its storage pool; needed where there are several
    #[arg(long, value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: String,
}

/// The SDCs and hosts that an order is about.
#[derive(Args, Clone, Debug)]
#[group(id = "Whom", required = true, multiple = true)]
pub(crate) struct Whom {
    /// This SDC; can be repeated
    #[arg(long, value_name = "SDC", conflicts_with = "all")]
    sdc: Vec<String>,
    /// All SDCs
    #[arg(long)]
    all: bool,
    /// This iSCSI or NVMe host (its IQN or NQN); can be repeated
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
}

/// The access of an SDC or a host.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum Mode {
    /// Read and write
    ReadWrite,
    /// Read only
    ReadOnly,
}

impl Mode {
    fn access(self) -> i32 {
        match self {
            Mode::ReadWrite => Access::ReadWrite as i32,
            Mode::ReadOnly => Access::ReadOnly as i32,
        }
    }
}

/// Parses `NAME`, `NAME:read-only` or `NAME:read-write`.
fn name_and_access(text: &str) -> Result<(String, i32), String> {
    let (name, mode) = match text.rsplit_once(':') {
        Some((name, mode)) if mode.starts_with("read-") => (name, mode),
        _ => (text, "read-write"),
    };
    let mode = Mode::from_str(mode, false)
        .map_err(|_| format!("`{mode}` is no access: write read-write or read-only"))?;
    Ok((name.to_owned(), mode.access()))
}

fn map_to(text: &str) -> Result<MapTo, String> {
    let (sdc, access) = name_and_access(text)?;
    if sdc.is_empty() {
        return Err("name an SDC, as in web1 or web1:read-only".into());
    }
    Ok(MapTo { sdc, access })
}

fn map_to_host(text: &str) -> Result<MapToHost, String> {
    let (host, access) = name_and_access(text)?;
    if host.is_empty() {
        return Err("name a host by its IQN or NQN".into());
    }
    Ok(MapToHost { host, access })
}

/// Returns a note if the volumes of a pool may become larger than the pool.
fn overcommitted(report: &Report, pool: &str) -> Option<String> {
    let pool = report.storage_pools.iter().find(|p| p.name == pool)?;
    let volumes = report.volumes.iter().filter(|v| v.storage_pool == pool.name);
    let wanted: u64 = volumes.map(|v| v.size_bytes.saturating_mul(2)).sum();
    let spare = 100 - u64::from(pool.spare_percent).min(100);
    let room = pool.capacity_bytes / 100 * spare;
    (wanted > room).then(|| {
        format!(
            "Note: the volumes of pool {} may take {} with both copies, and it has {} beside its \
             spare. When it is full, writes wait: `gabion device add` gives it more space.",
            pool.name,
            Size(wanted),
            Size(room)
        )
    })
}

/// How lost data reads after the loss is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReadAs {
    /// As zeros, like space that was never written; this also ends errors of an earlier order
    Zeros,
    /// As errors, until it is written: no program takes it for data
    Errors,
}

/// Runs `gabion volume`.
// Long: one match over all subcommands.
pub(crate) fn run(target: &Target, command: &VolumeCommand) -> Result<Exit> {
    match command {
        VolumeCommand::Create { name, size, kind, map, unmapped, hosts, answer } => {
            let made = target.connect()?.make_volume(CreateVolume {
                name: name.clone(),
                size: size.0,
                thick: kind.thick,
                pool: kind.pool.clone(),
                to: map.clone(),
                unmapped: *unmapped,
                hosts: hosts.clone(),
            })?;
            let report = target.report()?;
            let mut text = format!("Volume {} of {} is created.", made.name, Size(made.size));
            overcommitted(&report, &made.pool).iter().for_each(|line| text += &format!("\n{line}"));
            if let Some(uri) = report.volumes.iter().find(|v| v.name == *name).and_then(uri) {
                text += &format!("\nAttach it as {uri}");
            }
            answer.print(target, Object::Volume(name), &text)?;
        }
        VolumeCommand::List { json } => {
            let report = target.report()?;
            if *json {
                println!("{}", serde_json::to_string_pretty(&report.volumes)?);
            } else {
                println!("{}", status::volumes(&report));
            }
        }
        VolumeCommand::Show { name, json } => show::show(target, Object::Volume(name), *json)?,
        VolumeCommand::Resize { name, size, answer } => {
            let grown = target.connect()?.resize_volume(name, size.0)?;
            let text = format!("Volume {} has {} now.", grown.name, Size(grown.size));
            answer.print(target, Object::Volume(name), &text)?;
        }
        VolumeCommand::Map { name, whom, all_hosts, access, only, answer } => {
            let access = access.access();
            let all = whom.all.then(String::new);
            let sdcs = whom.sdc.iter().cloned().chain(all);
            let to = sdcs.map(|sdc| MapTo { sdc, access }).collect();
            let hosts = whom.host.iter().cloned().chain(all_hosts.then(String::new));
            let hosts = hosts.map(|host| MapToHost { host, access }).collect();
            let ask = Ask::Map(MapRequest { volume: name.clone(), to, only: *only, hosts });
            let text = mapping(&target.connect()?.map_volume(ask)?);
            answer.print(target, Object::Volume(name), &text)?;
        }
        VolumeCommand::Unmap { name, whom: Whom { sdc, all, host }, answer } => {
            let (volume, sdcs, hosts) = (name.clone(), sdc.clone(), host.clone());
            let ask = Ask::Unmap(UnmapRequest { volume, sdcs, all: *all, hosts });
            let text = mapping(&target.connect()?.map_volume(ask)?);
            answer.print(target, Object::Volume(name), &text)?;
        }
        VolumeCommand::MovePath { name, to, host, answer } => {
            let (volume, hosts, to) = (name.clone(), host.clone(), to.clone());
            let moved =
                target.connect()?.map_volume(Ask::MovePath(MovePath { volume, hosts, to }))?;
            answer.print(target, Object::Volume(name), &paths(&moved))?;
        }
        VolumeCommand::Reservations { name, clear: true, yes, .. } => {
            reservations::clear(target, name, *yes)?;
        }
        VolumeCommand::Reservations { name, json, .. } => reservations::show(target, name, *json)?,
        VolumeCommand::Rename { name, to, answer } => {
            target.connect()?.rename(ObjectKind::Volume, name, to)?;
            let text = format!("Volume {name} is called {to} now.");
            answer.print(target, Object::Volume(to), &text)?;
        }
        VolumeCommand::Damage { name, json } => return damage::show(target, name, *json),
        VolumeCommand::AcceptLoss { names, read_as, use_stale: _, yes } => {
            damage::accept(target, names, *read_as, *yes)?;
        }
        VolumeCommand::Delete { name, yes, unmap, answer } => {
            if !yes {
                confirm(name)?;
            }
            target.connect()?.delete_volume(name, *unmap)?;
            answer.print_removed(Object::Volume(name), &format!("Volume {name} is deleted."));
        }
    }
    Ok(Exit::Ok)
}

fn mapping(volume: &VolumeStatus) -> String {
    let mapped: Vec<_> = volume.mapped.iter().map(report::mapped).collect();
    let hosts: Vec<_> = volume.hosts.iter().map(report::mapped_host).collect();
    let hosts = lines::mapped_hosts(&hosts)
        .map_or_else(String::new, |hosts| format!("; of the hosts, to {hosts}"));
    format!("Volume {} is mapped to {}{hosts}.", volume.name, lines::mapping(&mapped))
}

/// Tells which SDC serves which host of a volume.
fn paths(volume: &VolumeStatus) -> String {
    let seat = |seat: &SeatStatus| format!("{} serves {}", seat.gateway, seat.host);
    let seats: Vec<String> = volume.seats.iter().map(seat).collect();
    match seats.is_empty() {
        true => format!("Volume {} has no hosts that an SDC serves.", volume.name),
        false => format!("Volume {}: {}.", volume.name, seats.join(", ")),
    }
}

fn uri(volume: &Volume) -> Option<&String> {
    volume.nbd_uris.first()
}

fn confirm(name: &str) -> Result<()> {
    let warning = format!("This destroys all data of {name}.\n");
    let unasked = format!("deleting {name} destroys its data");
    let refused = format!("{name} was not deleted");
    Question { warning: &warning, word: name, unasked: &unasked, refused: &refused }.ask()
}

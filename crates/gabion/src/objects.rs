//! `gabion domain|fault-set|pool create|list|show|rename|remove`, `gabion pool set`,
//! `gabion system rename|level`.

use crate::show::{self, Answer, Object};
use admin::exit::Exit;
use admin::report::{Pool, Report};
use anyhow::{Result, bail};
use clap::Subcommand;
use daemon::size::Size;
use fleet::pool::Settings;
use fleet::table::{right, table};
use fleet::target::Target;
use serde::Serialize;
use std::collections::BTreeMap;
use wire::control::{Ask, ObjectKind, RemoveObject, SetLevelRequest};

/// Subcommands of `gabion domain`.
#[derive(Subcommand, Debug)]
pub(crate) enum DomainCommand {
    /// Create a protection domain: servers that keep each other's copies
    #[command(after_help = "Example:\n  gabion domain create east")]
    Create {
        /// Its name
        name: String,
        #[command(flatten)]
        answer: Answer,
    },
    #[command(flatten)]
    Other(Common),
}

/// Subcommands of `gabion fault-set`.
#[derive(Subcommand, Debug)]
pub(crate) enum FaultSetCommand {
    /// Create a fault set: servers that fail together, such as those of one rack; two copies never
    /// share one
    #[command(after_help = "\
A server is in the fault set that its configuration names when the server first registers.

Example:
  gabion fault-set create rack1")]
    Create {
        /// Its name
        name: String,
        /// Its protection domain; needed where there are several
        #[arg(long, default_value = "", hide_default_value = true)]
        domain: String,
        #[command(flatten)]
        answer: Answer,
    },
    #[command(flatten)]
    Other(Common),
}

/// Subcommands of `gabion pool`.
#[derive(Subcommand, Debug)]
pub(crate) enum PoolCommand {
    /// Create a storage pool: devices of one protection domain, on which volumes lie
    #[command(after_help = "\
A device is in the pool that its server's configuration (or `gabion device add --pool`) names when \
the device first registers.

Example:
  gabion pool create fast --media ssd --spare 20")]
    Create {
        /// Its name
        name: String,
        /// Its protection domain; needed where there are several
        #[arg(long, default_value = "", hide_default_value = true)]
        domain: String,
        #[command(flatten)]
        settings: Settings,
        #[command(flatten)]
        answer: Answer,
    },
    /// Change settings of a storage pool; copies that are being made follow at once
    #[command(after_help = "\
How copies give way to applications (--rebuild: copies that replace a lost one; --rebalance: those \
that only move):
  unlimited             they don't
  concurrent:N          N copies at a time per device, whatever applications do
  favour:TIMES:FLOOR    while applications do I/O: one at a time, and then a rest TIMES as long as
                        a copy takes
  latency:BOUND:FLOOR   while applications do I/O: two at a time, with rests that keep the latency
                        of applications within BOUND: 20ms, 500us, or 200% of what requests take
                        without copies
FLOOR: what is copied whatever applications do: bytes per second and device, or the time in which \
a whole device is copied (10m to 7d); 2MiB by default.

Examples:
  gabion pool set fast --spare 34
  gabion pool set fast --rebuild concurrent:8 --rebalance latency:150%:4MiB
  gabion pool set fast --new-devices wait")]
    Set {
        /// Its name
        name: String,
        #[command(flatten)]
        settings: Settings,
        #[command(flatten)]
        answer: Answer,
    },
    #[command(flatten)]
    Other(Common),
}

/// Subcommands of `gabion system`.
#[derive(Subcommand, Debug)]
pub(crate) enum SystemCommand {
    /// Name the cluster
    #[command(after_help = "Example:\n  gabion system rename lab")]
    Rename {
        /// Its new name
        to: String,
        #[command(flatten)]
        answer: Answer,
    },
    /// Show the cluster's level, or raise it, which can't be undone
    #[command(after_help = "\
Examples:
  gabion system level                    the level, and the highest one that each process knows
  gabion system level 2                  from now on: features and formats of level 2
  gabion system level 2 --without sds7   don't wait for a server or an MDM that is down

Every MDM, every server and every client that is up has to know the new level. Whoever is excluded \
is refused until it is updated. docs/design/0008-versions.md tells what a level is.")]
    Level {
        /// The new level
        level: Option<u32>,
        /// Go without this MDM or server, which is down
        #[arg(long, value_name = "NAME", requires = "level")]
        without: Vec<String>,
        #[command(flatten)]
        answer: Answer,
    },
}

/// Subcommands that all kinds of objects have.
#[derive(Subcommand, Debug)]
pub(crate) enum Common {
    /// List them
    #[command(after_help = "\
Examples:
  gabion domain list
  gabion fault-set list
  gabion pool list --json")]
    List {
        /// Print a JSON array, with the fields in docs/reference/status.md
        #[arg(long)]
        json: bool,
    },
    /// Show one, with everything that is known of it
    #[command(after_help = "\
Examples:
  gabion domain show east
  gabion fault-set show rack1
  gabion pool show fast --json")]
    Show {
        /// Its name
        name: String,
        /// Print one JSON object, with the fields in docs/reference/status.md
        #[arg(long)]
        json: bool,
    },
    /// Rename one
    #[command(after_help = "\
Examples:
  gabion domain rename east west
  gabion fault-set rename rack1 rack7
  gabion pool rename fast gold")]
    Rename {
        /// Its name
        name: String,
        /// Its new name
        to: String,
        #[command(flatten)]
        answer: Answer,
    },
    /// Remove an empty one
    #[command(after_help = "\
Examples:
  gabion domain remove east
  gabion fault-set remove rack1
  gabion pool remove fast")]
    Remove {
        /// Its name
        name: String,
        #[command(flatten)]
        answer: Answer,
    },
}

/// Runs `gabion domain`.
pub(crate) fn domain(target: &Target, command: &DomainCommand) -> Result<Exit> {
    match command {
        DomainCommand::Create { name, answer } => {
            let order = Settings::default().create(ObjectKind::Domain, name, "");
            create(target, order, Object::Domain(name), *answer)
        }
        DomainCommand::Other(common) => other(target, ObjectKind::Domain, common),
    }
}

/// Runs `gabion fault-set`.
pub(crate) fn fault_set(target: &Target, command: &FaultSetCommand) -> Result<Exit> {
    match command {
        FaultSetCommand::Create { name, domain, answer } => {
            let order = Settings::default().create(ObjectKind::FaultSet, name, domain);
            create(target, order, Object::FaultSet(name), *answer)
        }
        FaultSetCommand::Other(common) => other(target, ObjectKind::FaultSet, common),
    }
}

/// Runs `gabion pool`.
pub(crate) fn pool(target: &Target, command: &PoolCommand) -> Result<Exit> {
    match command {
        PoolCommand::Create { name, domain, settings, answer } => {
            let order = settings.create(ObjectKind::Pool, name, domain);
            create(target, order, Object::Pool(name), *answer)
        }
        PoolCommand::Set { name, settings, answer } => {
            if settings.is_empty() {
                bail!(
                    "say what to set: --spare PERCENT, --media TYPE, --rebuild POLICY, --rebalance \
                     POLICY, --new-devices join|wait"
                );
            }
            target.connect()?.order(settings.set(name))?;
            answer.print(target, Object::Pool(name), &format!("{name} is set."))?;
            Ok(Exit::Ok)
        }
        PoolCommand::Other(common) => other(target, ObjectKind::Pool, common),
    }
}

/// Runs `gabion system`.
pub(crate) fn system(target: &Target, command: &SystemCommand) -> Result<Exit> {
    match command {
        SystemCommand::Rename { to, answer } => {
            target.connect()?.rename(ObjectKind::System, "", to)?;
            let text = format!("The cluster is called {to} now.");
            answer.print(target, Object::System, &text)?;
        }
        SystemCommand::Level { level: Some(level), without, answer } => {
            let (level, without) = (*level, without.clone());
            target.connect()?.order(Ask::SetLevel(SetLevelRequest { level, without }))?;
            let text = format!("The cluster has level {level} now.");
            answer.print(target, Object::System, &text)?;
        }
        SystemCommand::Level { level: None, answer, .. } => {
            let text = levels(&target.report()?);
            answer.print(target, Object::System, text.trim_end())?;
        }
    }
    Ok(Exit::Ok)
}

/// Formats the cluster's level, and the release, levels and protocol versions of each process.
fn levels(report: &Report) -> String {
    let mdm = report.mdm.iter().map(|m| (&m.build, "MDM", &m.name));
    let sds = report.sds.iter().map(|s| (&s.build, "SDS", &s.name));
    let sdc = report.sdc.iter().map(|s| (&s.build, "SDC", &s.name));
    let mut t = table(&["role", "name", "release", "levels", "protocol"]);
    for (build, role, name) in mdm.chain(sds).chain(sdc) {
        let mut row = vec![role.to_owned(), name.clone()];
        row.extend(match build {
            Some(b) => [
                b.release.clone(),
                format!("up to {}", b.level_max),
                format!("{} to {}", b.wire_min, b.wire_max),
            ],
            None => ["unknown", "-", "-"].map(str::to_owned),
        });
        t.add_row(row);
    }
    format!("The cluster has level {}.\n\n{t}\n", report.level)
}

fn create(target: &Target, order: Ask, object: Object<'_>, answer: Answer) -> Result<Exit> {
    target.connect()?.order(order)?;
    answer.print(target, object, &format!("{} is created.", object.name()))?;
    Ok(Exit::Ok)
}

fn other(target: &Target, kind: ObjectKind, common: &Common) -> Result<Exit> {
    match common {
        Common::List { json } => {
            let report = target.report()?;
            match (kind, json) {
                (ObjectKind::Domain, true) => print_json(&report.protection_domains)?,
                (ObjectKind::FaultSet, true) => print_json(&report.fault_sets)?,
                (_, true) => print_json(&report.storage_pools)?,
                (_, false) => println!("{}", list(&report, kind)),
            }
        }
        Common::Show { name, json } => show::show(target, object(kind, name), *json)?,
        Common::Rename { name, to, answer } => {
            target.connect()?.rename(kind, name, to)?;
            answer.print(target, object(kind, to), &format!("{name} is called {to} now."))?;
        }
        Common::Remove { name, answer } => {
            let removed = object(kind, name);
            let (kind, name) = (kind as i32, name.clone());
            target
                .connect()?
                .order(Ask::RemoveObject(RemoveObject { kind, name: name.clone() }))?;
            answer.print_removed(removed, &format!("{name} is removed."));
        }
    }
    Ok(Exit::Ok)
}

/// Returns the domain, fault set or pool of this name.
fn object(kind: ObjectKind, name: &str) -> Object<'_> {
    match kind {
        ObjectKind::Domain => Object::Domain(name),
        ObjectKind::FaultSet => Object::FaultSet(name),
        _ => Object::Pool(name),
    }
}

fn print_json(list: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(list)?);
    Ok(())
}

fn list(report: &Report, kind: ObjectKind) -> String {
    let head: &[&str] = match kind {
        ObjectKind::Domain => &["domain", "sds", "devices", "volumes", "used", "of"],
        ObjectKind::FaultSet => &["fault set", "domain", "sds", "devices", "used", "of"],
        _ => &[
            "pool",
            "domain",
            "media",
            "rebuild",
            "rebalance",
            "spare",
            "devices",
            "volumes",
            "used",
            "reserved",
            "of",
        ],
    };
    let mut t = table(head);
    let numbers = match kind {
        ObjectKind::Domain => 1..6,
        ObjectKind::FaultSet => 2..6,
        _ => 5..11,
    };
    right(&mut t, &numbers.collect::<Vec<usize>>());
    let size = |bytes: u64| Size(bytes).to_string();
    match kind {
        ObjectKind::Domain => {
            for d in &report.protection_domains {
                let counts = [d.sds, d.devices, d.volumes].map(|n| n.to_string());
                let [sds, devices, volumes] = counts;
                let (used, of) = (size(d.used_bytes), size(d.capacity_bytes));
                t.add_row([d.name.clone(), sds, devices, volumes, used, of]);
            }
        }
        ObjectKind::FaultSet => {
            for f in &report.fault_sets {
                let [sds, devices] = [f.sds, f.devices].map(|n| n.to_string());
                let (name, domain) = (f.name.clone(), f.protection_domain.clone());
                t.add_row([name, domain, sds, devices, size(f.used_bytes), size(f.capacity_bytes)]);
            }
        }
        _ => {
            for p in &report.storage_pools {
                t.add_row([
                    p.name.clone(),
                    p.protection_domain.clone(),
                    p.media_type.to_owned(),
                    p.rebuild_policy.clone(),
                    p.rebalance_policy.clone(),
                    format!("{} %", p.spare_percent),
                    p.devices.to_string(),
                    p.volumes.to_string(),
                    size(p.used_bytes),
                    size(p.reserved_bytes),
                    size(p.capacity_bytes),
                ]);
            }
        }
    }
    let mut page = t.to_string();
    if kind == ObjectKind::Pool {
        report.storage_pools.iter().filter_map(|p| short_spare(report, p)).for_each(|s| page += &s);
    }
    page
}

/// Warns about a pool whose spare is smaller than its share on its largest fault unit.
fn short_spare(report: &Report, pool: &Pool) -> Option<String> {
    let mut units: BTreeMap<&str, u64> = BTreeMap::new();
    for sds in &report.sds {
        let unit = sds.fault_set.as_deref().unwrap_or(&sds.name);
        for device in sds.devices.iter().filter(|d| d.storage_pool == pool.name) {
            *units.entry(unit).or_default() += device.capacity_bytes;
        }
    }
    let (unit, most) = units.iter().max_by_key(|(_, bytes)| **bytes)?;
    let part = 100 * most / units.values().sum::<u64>().max(1);
    let enough = part + 1;
    let (name, spare) = (&pool.name, pool.spare_percent);
    // With two units there is no third one on which lost copies could be rebuilt.
    (units.len() > 2 && u64::from(spare) < enough && enough <= 90).then(|| {
        format!(
            "\n`{name}` keeps {spare} % of its devices for lost copies, and `{unit}` has {part} % \
             of it: a full pool could not rebuild what `{unit}` holds. `gabion pool set {name} \
             --spare {enough}` keeps enough."
        )
    })
}

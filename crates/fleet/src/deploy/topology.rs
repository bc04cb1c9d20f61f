//! The hosts of a cluster and their roles, from a TOML or CSV file, or from answers to questions.

use super::objects::{self, PoolPlan};
use anyhow::{Context, Result, bail};
use daemon::config::NbdAddress;
use daemon::spec::{DeviceSpec, VolumeSpec};
use daemon::written;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The port of an MDM.
pub const MDM_PORT: u16 = 7001;
/// The port of a server's first device; the others follow.
pub const SDS_PORT: u16 = 7072;

/// The output of `--example`.
pub const EXAMPLE: &str = r#"# gabion deploy cluster.toml

# The user for SSH; keys, jump hosts and the like are those of the configuration of `ssh`.
user = "root"
# Volumes to create when everything runs; leave it out to create them later.
volumes = ["db:20GiB"]
# When a server is away for longer, its copies are rebuilt on the others. By default, 60.
# rebuild_after_seconds = 60
# A device that restarts too often is held out for this time at first; 0: never. By default, 5.
# quarantine_seconds = 5
# A request of a client that is not answered in this time ends with an I/O error. By default, never.
# io_timeout_seconds = 30

[[host]]
name = "node1"
address = "192.168.1.11"
# This host runs an MDM: 1, 3 or 5 hosts do, and any minority of them may fail.
mdm = "manager"
# This host serves volumes over NBD, at a unix socket and at this address.
sdc = "127.0.0.1:10809"
# The same over iSCSI.
# iscsi = "192.168.1.11:3260"
# The file on this machine with the secrets of iSCSI hosts, which is copied to the host. It has mode
# 0600; its path begins at the folder of this file.
# iscsi_secrets = "iscsi-secrets.toml"
# The same over NVMe/TCP, and the file with the keys of NVMe hosts.
# nvme = "192.168.1.11:4420"
# nvme_secrets = "nvme-secrets.toml"
# Where this host itself attaches volumes (`gabion attach`): locks the memory of the process that
# serves them, and exempts it from the OOM killer.
# protect_memory = true
# The devices of this host: whole disks, or files that are created.
devices = ["block:/dev/sdb", "file:/var/lib/gabion/disk0:100GiB"]

[[host]]
name = "node2"
address = "192.168.1.12"
mdm = "manager"
devices = ["block:/dev/sdb"]

[[host]]
name = "node3"
address = "192.168.1.13"
# This MDM votes, and leads only while no manager can: a small host without devices will do.
mdm = "tie-breaker"
# Its rack. If hosts name racks, the two copies of anything lie in two of them.
# fault_set = "rack1"
# The storage pool of its devices, and its protection domain; by default, both are `default`.
# A volume lies in one pool; servers of two domains keep no copies for each other. A device or a
# volume may name a pool of its own:
#   devices = ["block:/dev/sdb", { spec = "block:/dev/nvme0n1", pool = "fast" }]
#   volumes = [{ spec = "db:20GiB", pool = "fast" }]
# pool = "bulk"
# domain = "east"
# ssh_port = 22
# All files go below this folder, by default /; if it is another one, systemd is not used.
# root = "/opt/gabion"
devices = ["block:/dev/sdb"]

# The settings of a pool that hosts name; each line may be left out (`gabion pool set --help`).
# [[pool]]
# name = "fast"
# media = "ssd"
# spare_percent = 34
# rebuild = "latency:20ms"
# rebalance = "favour:10:4MiB"
"#;

/// The columns of a table.
const COLUMNS: [&str; 8] =
    ["name", "address", "mdm", "domain", "fault_set", "pool", "sdc", "devices"];

/// A whole cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// The user for SSH.
    #[serde(default = "root")]
    pub user: String,
    /// Volumes to create.
    #[serde(default)]
    pub volumes: Vec<InPool<VolumeSpec>>,
    /// How long a server may be away before its copies are rebuilt on others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuild_after_seconds: Option<u32>,
    /// The first quarantine of a device that restarts too often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine_seconds: Option<u32>,
    /// How long a request of a client may remain unanswered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_timeout_seconds: Option<NonZeroU32>,
    /// The hosts.
    #[serde(rename = "host")]
    pub hosts: Vec<Host>,
    /// Settings of pools that hosts name.
    #[serde(default, rename = "pool", skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolPlan>,
}

/// One host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The name of its server and its client in the cluster.
    pub name: String,
    /// The address where others reach it; `--local` assigns one.
    #[serde(default = "nowhere")]
    pub address: IpAddr,
    /// The port of its sshd; by default, 22.
    #[serde(default = "ssh_port")]
    pub ssh_port: u16,
    /// The folder below which its files lie; by default, `/`.
    #[serde(default = "slash")]
    pub root: PathBuf,
    /// The role of its MDM, if it has one. In a file, `true` is a manager, and `false` means none.
    #[serde(default, deserialize_with = "mdm_role", skip_serializing_if = "Option::is_none")]
    pub mdm: Option<MdmRole>,
    /// The rack or other cause of failure that it shares; two copies never lie in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault_set: Option<String>,
    /// Its protection domain; by default, `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The storage pool of its devices that name none; by default, `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// It serves volumes over NBD, also at this address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sdc: Option<SocketAddr>,
    /// It serves volumes over iSCSI at this address, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iscsi: Option<SocketAddr>,
    /// The file of this machine with the secrets of its iSCSI hosts ([`daemon::secrets`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iscsi_secrets: Option<PathBuf>,
    /// It serves volumes over NVMe/TCP at this address, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme: Option<SocketAddr>,
    /// The file of this machine with the keys of its NVMe hosts ([`daemon::secrets`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme_secrets: Option<PathBuf>,
    /// Its client is protected from a lack of memory ([`daemon::safety`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub protect_memory: bool,
    /// The devices of its server; a host without devices runs none.
    #[serde(default)]
    pub devices: Vec<InPool<DeviceSpec>>,
}

/// The role of a metadata manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MdmRole {
    /// It votes and may lead.
    Manager,
    /// It votes, and leads only while no manager can.
    TieBreaker,
}

impl MdmRole {
    /// Parses the word in a file; `None` means no MDM.
    fn of_word(word: &str) -> Result<Option<MdmRole>> {
        match word {
            "manager" | "yes" | "true" => Ok(Some(MdmRole::Manager)),
            "tie-breaker" => Ok(Some(MdmRole::TieBreaker)),
            "no" | "false" => Ok(None),
            odd => bail!("mdm is `manager` or `tie-breaker`, not `{odd}`"),
        }
    }
}

fn mdm_role<'de, D: Deserializer<'de>>(from: D) -> Result<Option<MdmRole>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Said {
        Flag(bool),
        Word(String),
    }
    match Said::deserialize(from)? {
        Said::Flag(flag) => Ok(flag.then_some(MdmRole::Manager)),
        Said::Word(word) => MdmRole::of_word(&word).map_err(D::Error::custom),
    }
}

/// A value that is one string in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Text<T>(pub T);

impl<T: Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Text<T>, D::Error> {
        String::deserialize(from)?.parse().map(Text).map_err(D::Error::custom)
    }
}

/// A device or a volume, and the storage pool that it names. In a file it is `"db:20GiB"`, or
/// `{ spec = "db:20GiB", pool = "fast" }`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InPool<T> {
    /// The device or the volume.
    pub spec: T,
    /// Its storage pool, if the file names one.
    pub pool: Option<String>,
}

impl<T> From<T> for InPool<T> {
    fn from(spec: T) -> InPool<T> {
        InPool { spec, pool: None }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Long {
    spec: String,
    pool: String,
}

impl<T: Display> Serialize for InPool<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.pool {
            None => to.collect_str(&self.spec),
            Some(pool) => Long { spec: self.spec.to_string(), pool: pool.clone() }.serialize(to),
        }
    }
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for InPool<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<InPool<T>, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "write \"SPEC\", or { spec = \"SPEC\", pool = \"POOL\" }")]
        enum Said {
            Short(String),
            Long(Long),
        }
        let (spec, pool) = match Said::deserialize(from)? {
            Said::Short(spec) => (spec, None),
            Said::Long(long) => (long.spec, Some(long.pool)),
        };
        Ok(InPool { spec: spec.parse().map_err(D::Error::custom)?, pool })
    }
}

fn root() -> String {
    "root".into()
}

fn slash() -> PathBuf {
    "/".into()
}

fn ssh_port() -> u16 {
    22
}

fn nowhere() -> IpAddr {
    IpAddr::from([0, 0, 0, 0])
}

impl Host {
    /// Makes a host with this name and address, without any role.
    pub fn new(name: &str, address: IpAddr) -> Host {
        let (ssh_port, root) = (ssh_port(), slash());
        Host {
            name: name.to_owned(),
            address,
            ssh_port,
            root,
            mdm: None,
            fault_set: None,
            domain: None,
            pool: None,
            sdc: None,
            iscsi: None,
            iscsi_secrets: None,
            nvme: None,
            nvme_secrets: None,
            protect_memory: false,
            devices: Vec::new(),
        }
    }

    /// Checks that what its client is to do goes together.
    fn check_sdc(&self) -> Result<()> {
        let served = [("iscsi", self.iscsi.is_some()), ("nvme", self.nvme.is_some())];
        for (key, has) in served.into_iter().chain([("protect_memory", self.protect_memory)]) {
            if has && self.sdc.is_none() {
                bail!("{} has `{key}` and no `sdc`, which needs it: give it both", self.name);
            }
        }
        let secrets = [self.iscsi_secrets.is_some(), self.nvme_secrets.is_some()];
        for ((key, serves), secrets) in served.into_iter().zip(secrets) {
            if secrets && !serves {
                bail!(
                    "{} has `{key}_secrets` and no `{key}`, so no host could use them: give it both",
                    self.name
                );
            }
        }
        Ok(())
    }

    /// Returns the path of a file or folder of the host.
    pub fn path(&self, below_root: &str) -> PathBuf {
        self.root.join(below_root)
    }

    /// Returns true if its MDM leads only while no manager can.
    pub fn is_tie_breaker(&self) -> bool {
        self.mdm == Some(MdmRole::TieBreaker)
    }

    /// Returns the address of its MDM.
    pub fn mdm_at(&self) -> SocketAddr {
        SocketAddr::new(self.address, MDM_PORT)
    }

    /// Returns the address of one of its devices.
    pub fn sds_at(&self, shard: usize) -> SocketAddr {
        SocketAddr::new(self.address, SDS_PORT + shard as u16)
    }

    /// Returns the addresses where it serves volumes.
    pub fn nbd_at(&self) -> Vec<NbdAddress> {
        let socket = rt::ListenAddr::Unix(self.path("run/gabion/nbd.sock"));
        let tcp = self.sdc.map(rt::ListenAddr::from);
        [Some(socket), tcp].into_iter().flatten().map(NbdAddress).collect()
    }
}

impl Topology {
    /// Reads a file. If its name ends in `.csv`, it is a table.
    pub fn read(file: &Path) -> Result<Topology> {
        let text =
            fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
        let is_table = file.extension().is_some_and(|e| e == "csv");
        let of_toml = || -> Result<Topology> {
            let (topology, skipped) = written::parse(&text)?;
            skipped.iter().for_each(|s| eprintln!("warning: {}: {s}", file.display()));
            Ok(topology)
        };
        let read = if is_table { Topology::of_table(&text) } else { of_toml() };
        let mut topology = read.with_context(|| {
            format!("{} is not a topology (`gabion deploy --example` prints one)", file.display())
        })?;
        let folder = std::path::absolute(file)?;
        topology.find_secrets(folder.parent().unwrap_or(Path::new("/")));
        Ok(topology)
    }

    /// Makes the paths of files with secrets full. They begin at the topology's folder.
    fn find_secrets(&mut self, folder: &Path) {
        let files = self.hosts.iter_mut().flat_map(|h| [&mut h.iscsi_secrets, &mut h.nvme_secrets]);
        files.flatten().for_each(|file| *file = folder.join(&file));
    }

    /// Parses a table with these columns, in any order and number. Spaces separate the devices.
    fn of_table(text: &str) -> Result<Topology> {
        let mut lines = (1..).zip(text.lines()).filter(|(_, l)| {
            let line = l.trim();
            !line.is_empty() && !line.starts_with('#')
        });
        let (_, titles) = lines.next().context("it is empty")?;
        let titles: Vec<&str> = titles.split(',').map(str::trim).collect();
        if let Some(odd) = titles.iter().find(|t| !COLUMNS.contains(t)) {
            bail!("there is no column `{odd}`: use {}", COLUMNS.join(", "));
        }
        let host = |(number, line): (u32, &str)| {
            let cells: Vec<&str> = line.split(',').map(str::trim).collect();
            let cell = |title: &str| {
                let place = titles.iter().position(|t| *t == title)?;
                cells.get(place).copied().filter(|c| !c.is_empty())
            };
            Host::of_cells(cell).with_context(|| format!("line {number}"))
        };
        let hosts = lines.map(host).collect::<Result<_>>()?;
        Ok(Topology { user: root(), hosts, ..Topology::default() })
    }

    /// Checks the topology before any host is asked. With `local`, addresses are assigned later.
    pub fn check(&self, local: bool) -> Result<()> {
        let mut names = BTreeSet::new();
        let mut addresses = BTreeSet::new();
        for host in &self.hosts {
            let name = &host.name;
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if name.is_empty() || name.len() > 31 || !name.chars().all(plain) {
                bail!(
                    "`{name}` is no name for a host: use 1 to 31 letters, digits, `-`, `_` and `.`"
                );
            }
            if !names.insert(name) {
                bail!("two hosts are called {name}: data would be mistaken for another one's");
            }
            if !local && host.address.is_unspecified() {
                bail!("{name} has no address");
            }
            if !local && !addresses.insert(host.address) {
                bail!("two hosts have the address {}", host.address);
            }
            let paths: BTreeSet<_> = host.devices.iter().filter_map(|d| d.spec.path()).collect();
            if paths.len() != host.devices.iter().filter(|d| d.spec.path().is_some()).count() {
                bail!("{name} names a device twice");
            }
            if let Some(relative) = paths.iter().find(|p| p.is_relative()) {
                bail!("{name}: {} has to begin with a slash", relative.display());
            }
        }
        self.check_mdms()?;
        if self.servers().count() < 2 {
            bail!(
                "two copies need devices on two hosts: give `devices` to at least two, better three"
            );
        }
        objects::check(self)?;
        if !self.hosts.iter().any(|h| h.sdc.is_some()) && !self.volumes.is_empty() {
            bail!("no host has `sdc`, so no process would serve the volumes");
        }
        self.hosts.iter().try_for_each(Host::check_sdc)
    }

    /// Checks that the number and roles of the MDMs make sense.
    fn check_mdms(&self) -> Result<()> {
        let tie_breakers = self.mdms().filter(|h| h.is_tie_breaker()).count();
        let managers = self.mdms().count() - tie_breakers;
        let s = |n: usize| if n == 1 { "" } else { "s" };
        match (managers, tie_breakers) {
            (0, 0) => bail!(
                "no host has an MDM: give one `mdm = \"manager\"`, or better three: two managers \
                 and a tie-breaker"
            ),
            (0, _) => bail!(
                "all MDMs are tie-breakers, which lead only while no manager can: make the first \
                 ones `mdm = \"manager\"`"
            ),
            (m, t) if m + t > 5 => bail!("{} MDMs are too many: 1, 3 or 5 hosts have one", m + t),
            (m, t) if (m + t).is_multiple_of(2) => bail!(
                "{} MDMs bear the loss of no more than {} would: leave one out, or add one, \
                 perhaps a tie-breaker",
                m + t,
                m + t - 1
            ),
            (m, t) if t >= m => bail!(
                "{m} manager{} and {t} tie-breaker{}: with {} lost, a tie-breaker would lead for \
                 good. Make more of them managers than tie-breakers",
                s(m),
                s(t),
                if m == 1 { "the one" } else { "the managers" },
            ),
            _ => Ok(()),
        }
    }

    /// Returns the hosts with a metadata manager.
    pub fn mdms(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter().filter(|h| h.mdm.is_some())
    }

    /// Returns the addresses of the MDMs.
    pub fn mdms_at(&self) -> Vec<SocketAddr> {
        self.mdms().map(Host::mdm_at).collect()
    }

    /// Returns the manager that begins the cluster and adds the others. A checked topology has one.
    pub fn founder(&self) -> Result<&Host> {
        self.mdms().find(|h| !h.is_tie_breaker()).context("no host is a manager")
    }

    /// Returns the hosts with a data server.
    pub fn servers(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter().filter(|h| !h.devices.is_empty())
    }
}

impl Host {
    fn of_cells<'a>(cell: impl Fn(&str) -> Option<&'a str>) -> Result<Host> {
        let address = cell("address").map_or(Ok(nowhere()), str::parse).context("its address")?;
        let mut host = Host::new(cell("name").context("a host needs a name")?, address);
        host.mdm = cell("mdm").map_or(Ok(None), MdmRole::of_word)?;
        let word = |title| cell(title).map(str::to_owned);
        (host.domain, host.fault_set, host.pool) =
            (word("domain"), word("fault_set"), word("pool"));
        host.sdc = cell("sdc").map(str::parse).transpose().context("sdc is IP:PORT")?;
        for device in cell("devices").unwrap_or_default().split_whitespace() {
            let spec: DeviceSpec = device.parse().map_err(anyhow::Error::msg)?;
            host.devices.push(spec.into());
        }
        Ok(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of each release so far. They are never changed; a release adds its own.
    #[test]
    fn the_files_of_every_release_are_read() {
        let text = include_str!("../../tests/golden/0.1.0/topology.toml");
        let topology = written::parse::<Topology>(text).unwrap();
        assert_eq!((topology.0.hosts.len(), topology.0.pools.len(), &topology.1), (2, 1, &None));
        // What this release writes of it has the same content.
        assert_eq!(written::parse(&written::text(&topology.0).unwrap()).unwrap(), topology);
    }

    #[test]
    fn the_example_is_a_topology_and_survives_being_written() {
        let example: Topology = toml::from_str(EXAMPLE).unwrap();
        example.check(false).unwrap();
        assert_eq!((example.hosts.len(), example.servers().count()), (3, 3));
        assert_eq!(toml::from_str(&toml::to_string(&example).unwrap()), Ok(example));
        // Also with all settings that are commented out.
        let setting = |l: &str| l.contains(" = ") && !l.contains("  ") || l == "# [[pool]]";
        let rest = |l: &'static str| l.strip_prefix("# ").filter(|_| setting(l)).unwrap_or(l);
        let whole = EXAMPLE.lines().map(rest).collect::<Vec<_>>().join("\n");
        let whole: Topology = toml::from_str(&whole).unwrap();
        assert_eq!((whole.pools.len(), whole.quarantine_seconds), (1, Some(5)));
        assert!(whole.hosts[2].domain.is_some() && whole.hosts[2].pool.is_some());
        let first = &whole.hosts[0];
        assert!(first.iscsi_secrets.is_some() && first.nvme_secrets.is_some());
        assert!(first.protect_memory);
        assert_eq!(toml::from_str(&toml::to_string(&whole).unwrap()), Ok(whole));
    }

    #[test]
    fn files_with_secrets_are_found_from_the_folder_of_the_topology() {
        let mut topology: Topology = toml::from_str(EXAMPLE).unwrap();
        topology.hosts[0].iscsi_secrets = Some("a.toml".into());
        topology.hosts[1].nvme_secrets = Some("/etc/b.toml".into());
        topology.find_secrets(Path::new("/home/admin"));
        let found = |n: usize| {
            let host = &topology.hosts[n];
            host.iscsi_secrets.as_ref().or(host.nvme_secrets.as_ref())
        };
        assert_eq!(found(0), Some(&PathBuf::from("/home/admin/a.toml")));
        assert_eq!(found(1), Some(&PathBuf::from("/etc/b.toml")));
        assert_eq!(found(2), None);
    }

    #[test]
    fn a_table_is_a_topology_too() {
        let table = "name, address, mdm, fault_set, sdc, devices\n\
                     # racks\n\
                     a,10.0.0.1,yes,rack1,,block:/dev/sdb file:/d:1GiB\n\
                     b,10.0.0.2,,rack2,127.0.0.1:10809,block:/dev/sdb\n";
        let topology = Topology::of_table(table).unwrap();
        topology.check(false).unwrap();
        assert_eq!(topology.hosts[0].devices.len(), 2);
        assert!(topology.hosts[0].mdm.is_some() && topology.hosts[1].sdc.is_some());
        let one = Topology::of_table(&table.replace("rack2", "rack1")).unwrap();
        assert!(one.check(false).unwrap_err().to_string().contains("fault sets"));
        assert!(Topology::of_table(&table.replace("yes", "perhaps")).is_err());
        assert!(Topology::of_table(&table.replace("mdm", "mmd")).is_err());
    }

    #[test]
    fn managers_outnumber_tie_breakers_and_all_are_an_odd_number() {
        let check = |roles: &[&str]| {
            let row =
                |(n, role): (usize, &&str)| format!("h{n},10.0.0.{n},{role},block:/dev/sdb\n");
            let rows: String = roles.iter().enumerate().map(row).collect();
            let topology =
                Topology::of_table(&format!("name,address,mdm,devices\n{rows}")).unwrap();
            topology.check(false).map_err(|why| why.to_string())
        };
        let (m, t) = ("manager", "tie-breaker");
        for fine in [&[m, "", ""][..], &[m, m, t], &[t, m, m], &[m, m, m], &[m, m, m, t, t]] {
            assert_eq!(check(fine), Ok(()), "{fine:?}");
        }
        for (wrong, word) in [
            (&["", "", ""][..], "no host has an MDM"),
            (&[t, t, t], "all MDMs are tie-breakers"),
            (&[m, t, t], "1 manager and 2 tie-breakers"),
            (&[m, m, t, t], "4 MDMs"),
            (&[m; 7], "too many"),
        ] {
            let said = check(wrong).unwrap_err();
            assert!(said.contains(word), "{said}");
        }
    }

    #[test]
    fn mistakes_are_reported_before_any_host_is_contacted() {
        let wrong = |from: &str, to: &str, word: &str| {
            let topology: Topology = toml::from_str(&EXAMPLE.replace(from, to)).unwrap();
            let said = topology.check(false).unwrap_err().to_string();
            assert!(said.contains(word), "{said}");
        };
        wrong("node2", "node1", "called node1");
        wrong("192.168.1.12", "192.168.1.11", "address 192.168.1.11");
        wrong("mdm = \"manager\"", "mdm = \"tie-breaker\"", "all MDMs are tie-breakers");
        wrong("mdm = \"tie-breaker\"", "mdm = false", "2 MDMs bear the loss of no more than 1");
        wrong("name = \"node2\"", "name = \"node 2\"", "no name for a host");
        wrong("devices = [\"block:/dev/sdb\"]", "devices = []", "two hosts");
        wrong("sdc = \"127.0.0.1:10809\"", "", "serve the volumes");
        let tie_breaker = "mdm = \"tie-breaker\"";
        for key in ["iscsi", "nvme"] {
            wrong(tie_breaker, &format!("{tie_breaker}\n{key} = \"127.0.0.1:3260\""), "no `sdc`");
            let secrets = format!("{tie_breaker}\n{key}_secrets = \"file\"");
            wrong(tie_breaker, &secrets, &format!("`{key}_secrets` and no `{key}`"));
        }
        let protected = format!("{tie_breaker}\nprotect_memory = true");
        wrong(tie_breaker, &protected, "`protect_memory` and no `sdc`");
        wrong("/var/lib/gabion/disk0", "disk0", "slash");
    }
}

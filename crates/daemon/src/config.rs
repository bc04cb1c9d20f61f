//! The configuration files of `mdm run`, `sds run` and `sdc run`.

use crate::files;
use crate::spec::{self, DeviceSpec};
use crate::written;
use anyhow::{Context, Result};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fs;
use std::io::{Write, stderr};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A metadata manager.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MdmConfig {
    /// Its name in the cluster; by default, `mdm`.
    #[serde(default = "mdm_name")]
    pub name: String,
    /// Where it listens.
    pub listen: SocketAddr,
    /// The address that others dial, if it is not `listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertise: Option<SocketAddr>,
    /// Its log: the cluster's configuration and map.
    pub log: PathBuf,
    /// With an empty log: wait until a cluster adds it (`gabion mdm add`), instead of starting one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub join: bool,
    /// How it talks to the kernel.
    #[serde(default)]
    pub backend: Backend,
    /// Use TCP also with processes of this host; by default, they use unix sockets.
    #[serde(default)]
    pub tcp_only: bool,
    /// Microseconds to poll before sleeping: saves latency, costs CPU time. By default, 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spin_us: Option<u32>,
    /// Where to write its pid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_file: Option<PathBuf>,
    /// Seconds that a device is away before its copies are rebuilt on others. By default, 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuild_after_seconds: Option<u32>,
    /// Seconds of the first quarantine of a device that restarts often; 0: never. By default, 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine_seconds: Option<u32>,
}

fn mdm_name() -> String {
    "mdm".to_owned()
}

/// A data server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SdsConfig {
    /// Its name in the cluster.
    #[serde(deserialize_with = "peer_name")]
    pub name: String,
    /// The MDMs.
    pub mdm: Vec<SocketAddr>,
    /// How it talks to the kernel.
    #[serde(default)]
    pub backend: Backend,
    /// Use TCP also with processes of this host; by default, they use unix sockets.
    #[serde(default)]
    pub tcp_only: bool,
    /// Microseconds to poll before sleeping: saves latency, costs CPU time. By default, 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spin_us: Option<u32>,
    /// Where to write its pid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_file: Option<PathBuf>,
    /// Its protection domain when it first registers; by default, the only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Its fault set when it first registers; by default, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault_set: Option<String>,
    /// Its devices. Each one is served by a thread of its own.
    pub device: Vec<DeviceConfig>,
}

/// One device of a data server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// Identifies the device within this server; by default, its place in the list, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
    /// `file:PATH:SIZE`, `block:PATH`, `ram:SIZE` or `null:SIZE`.
    pub spec: DeviceSpec,
    /// Its storage pool when it first registers; by default, the only one of the server's domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// If it is empty, it takes the place of the previous device, whose data is given up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace: bool,
    /// Where this device's thread listens.
    pub listen: SocketAddr,
    /// The address that others dial, if it is not `listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertise: Option<SocketAddr>,
    /// The processor core to pin the thread to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<usize>,
}

/// A data client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SdcConfig {
    /// Its name in the cluster.
    #[serde(deserialize_with = "peer_name")]
    pub name: String,
    /// The MDMs.
    pub mdm: Vec<SocketAddr>,
    /// Where it serves NBD: `unix:PATH` or `IP:PORT`.
    pub nbd: Vec<NbdAddress>,
    /// Where it serves iSCSI: `IP:PORT`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub iscsi: Vec<SocketAddr>,
    /// The file with the secrets of iSCSI hosts ([`crate::secrets`]); by default, hosts need none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iscsi_secrets: Option<PathBuf>,
    /// The sizes of sectors that iSCSI hosts see: `512n`, `512e` or `4kn`; by default, 512e.
    #[serde(default, skip_serializing_if = "Sectors::is_default")]
    pub iscsi_sectors: Sectors,
    /// Where it serves NVMe/TCP: `IP:PORT`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nvme: Vec<SocketAddr>,
    /// The file with the keys of NVMe hosts ([`crate::secrets`]); by default, hosts need none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme_secrets: Option<PathBuf>,
    /// How it talks to the kernel.
    #[serde(default)]
    pub backend: Backend,
    /// Use TCP also with processes of this host; by default, they use unix sockets.
    #[serde(default)]
    pub tcp_only: bool,
    /// Microseconds to poll before sleeping: saves latency, costs CPU time. By default, 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spin_us: Option<u32>,
    /// Where to write its pid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_file: Option<PathBuf>,
    /// Seconds after which an unanswered request ends with an error, at least 1; by default, never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_timeout_seconds: Option<std::num::NonZeroU32>,
    /// The processor core to pin the thread to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<usize>,
    /// Protect the process from a lack of memory ([`crate::safety`]), because its own machine has
    /// attached volumes of it.
    #[serde(default)]
    pub protect_memory: bool,
}

/// The output of `mdm run --example-config`.
pub const MDM_EXAMPLE: &str = r#"# gabion mdm run --config /etc/gabion/mdm.toml

# The MDM's name, unique among the MDMs of its cluster.
name = "mdm1"
# Where other MDMs, data servers, data clients and the command line reach it.
listen = "192.168.1.10:7001"
# The first MDM begins a cluster. Others wait until `gabion mdm add` takes them into it.
join = false
# The cluster's configuration and map. Keep it on a disk that survives.
log = "/var/lib/gabion/mdm.log"
# auto, uring or epoll
backend = "auto"
# Processes of one host talk to each other over unix sockets. true: over TCP, too.
tcp_only = false
# Microseconds to poll for more work before sleeping: saves latency, costs processor time.
# spin_us = 30
# pid_file = "/run/gabion/mdm.pid"
# Seconds that a device is away before its copies are rebuilt on others.
# rebuild_after_seconds = 60
# Seconds for which a device that restarts again and again is held out, the first time; each further
# time doubles them. 0: never.
# quarantine_seconds = 5
"#;

/// The output of `sds run --example-config`.
pub const SDS_EXAMPLE: &str = r#"# gabion sds run --config /etc/gabion/sds.toml

# The server's name, unique in the cluster.
name = "sds1"
mdm = ["192.168.1.10:7001"]
# auto, uring or epoll
backend = "auto"
# Processes of one host talk to each other over unix sockets. true: over TCP, too.
tcp_only = false
# Microseconds to poll for more work before sleeping: saves latency, costs processor time.
# spin_us = 30
# pid_file = "/run/gabion/sds1.pid"
# Where the server belongs when it comes for the first time (`gabion domain list`,
# `gabion fault-set list`).
# domain = "default"
# fault_set = "rack1"

# One section per device. Each device gets a thread. After a change, SIGHUP makes the process start
# the devices that are new, stop those that are gone, and use the whole of those that have grown
# (`gabion device add`, `remove` and `grow` do this).
[[device]]
# Identifies the device within this server.
shard = 0
# file:PATH:SIZE (a sparse file, created when it is not there and enlarged when it is smaller),
# block:PATH (a disk that `gabion device add` has formatted), ram:SIZE (empty after the process has
# died) or null:SIZE (keeps no data: for measuring)
spec = "file:/var/lib/gabion/disk0:100GiB"
# Its storage pool when it comes for the first time (`gabion pool list`).
# pool = "default"
# What clients and other servers dial. When it is 0.0.0.0, set `advertise` to the real address.
listen = "192.168.1.11:7072"
# advertise = "192.168.1.11:7072"
# The processor core that the thread is pinned to.
# pin = 0
"#;

/// The output of `sdc run --example-config`.
pub const SDC_EXAMPLE: &str = r#"# gabion sdc run --config /etc/gabion/sdc.toml

# The client's name, unique in the cluster.
name = "sdc1"
mdm = ["192.168.1.10:7001"]
# Where volumes are served over NBD, one export per volume: unix:PATH or IP:PORT.
nbd = ["unix:/run/gabion/nbd.sock", "127.0.0.1:10809"]
# Where volumes are served over iSCSI, one target per volume. By default, nowhere.
# iscsi = ["192.168.1.12:3260"]
# The secrets of iSCSI hosts (CHAP). The file has mode 0600:
#   host = { user = "db1", secret = "at least 12 bytes" }     # for hosts without one of their own
#   target = { user = "gabion", secret = "another secret" }   # for hosts that ask for it
#   [hosts]
#   "iqn.1993-08.org.debian:01:db2" = { user = "db2", secret = "one of its own" }
# iscsi_secrets = "/etc/gabion/iscsi-secrets.toml"
# The sizes of sectors that hosts see: 512n (512 bytes, and nothing is said of larger blocks), 512e
# (512 bytes, eight to a physical block) or 4kn (4 KiB). A volume with data keeps the size with
# which the data was written: partitions and file systems count in sectors.
# iscsi_sectors = "512e"
# Where volumes are served over NVMe/TCP, one namespace per volume. By default, nowhere.
# nvme = ["192.168.1.12:4420"]
# The keys of NVMe hosts (DH-HMAC-CHAP), as `nvme gen-dhchap-key` prints them. The file has mode
# 0600:
#   host = "DHHC-1:01:..."      # for hosts without one of their own
#   target = "DHHC-1:01:..."    # for hosts that ask for it
#   [hosts]
#   "nqn.2014-08.org.nvmexpress:uuid:db2" = "DHHC-1:01:..."
# nvme_secrets = "/etc/gabion/nvme-secrets.toml"
# auto, uring or epoll
backend = "auto"
# Processes of one host talk to each other over unix sockets. true: over TCP, too.
tcp_only = false
# Microseconds to poll for more work before sleeping: saves latency, costs processor time.
# spin_us = 30
# Seconds after which an unanswered request ends with an I/O error; by default, never.
# io_timeout_seconds = 30
# pid_file = "/run/gabion/sdc1.pid"
# pin = 0
# true where this machine attaches volumes of this client (`gabion attach`): locks the process's
# memory, and exempts it from the OOM killer. It needs root.
protect_memory = false
"#;

impl SdsConfig {
    /// Iterates over the devices with their shard numbers.
    pub fn shards(&self) -> impl Iterator<Item = (u32, &DeviceConfig)> {
        self.device.iter().zip(0..).map(|(device, place)| (device.shard.unwrap_or(place), device))
    }
}

/// Returns how long a shard polls: the configured time or the default.
pub fn spin(spin_us: Option<u32>) -> Duration {
    spin_us.map_or(rt::Config::default().spin, |us| Duration::from_micros(us.into()))
}

/// Reads a role's configuration. Keys of a newer release are left out with a warning ([`written`]).
pub fn read<T: DeserializeOwned>(file: &Path) -> Result<T> {
    let text =
        fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
    if files::is_emptied(file) {
        return Err(files::emptied(file).into());
    }
    let (config, skipped) = written::parse(&text).with_context(|| {
        format!(
            "{} is not a configuration of this role (--example-config prints one)",
            file.display()
        )
    })?;
    if let Some(skipped) = skipped {
        let _ = writeln!(stderr(), "warning: {}: {skipped}", file.display());
    }
    Ok(config)
}

/// Writes a role's configuration.
pub fn write(file: &Path, config: &impl Serialize) -> Result<()> {
    files::write(file, written::text(config)?)
        .with_context(|| format!("can't write {}", file.display()))
}

/// Reads the name of a server or client. The MDM refuses other names, again and again.
fn peer_name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    spec::peer_name(&String::deserialize(from)?).map_err(D::Error::custom)
}

/// Sizes of sectors as text in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sectors(pub node::sdc::Format);

impl Sectors {
    fn is_default(&self) -> bool {
        *self == Sectors::default()
    }
}

impl std::str::FromStr for Sectors {
    type Err = <node::sdc::Format as std::str::FromStr>::Err;

    fn from_str(text: &str) -> Result<Sectors, Self::Err> {
        text.parse().map(Sectors)
    }
}

/// [`rt::Backend`] as text in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Backend(pub rt::Backend);

/// [`rt::ListenAddr`] as text in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NbdAddress(pub rt::ListenAddr);

impl NbdAddress {
    /// Returns the NBD URI of this address, without an export name.
    pub fn uri(&self) -> String {
        match &self.0 {
            rt::ListenAddr::Unix(path) => format!("nbd+unix:///?socket={}", percent(path)),
            rt::ListenAddr::Tcp(at) => format!("nbd://{}/", reached(at)),
        }
    }
}

/// Returns the URI of an address where iSCSI is served, without a target.
pub fn iscsi_uri(at: &SocketAddr) -> String {
    format!("iscsi://{}", reached(at))
}

/// Returns the URI of an address where NVMe/TCP is served.
pub fn nvme_uri(at: &SocketAddr) -> String {
    format!("nvme-tcp://{}", reached(at))
}

/// Returns how others reach an address: by the name of this host, if it is that of all interfaces.
fn reached(at: &SocketAddr) -> String {
    if !at.ip().is_unspecified() {
        return at.to_string();
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname");
    let host = host.unwrap_or_else(|_| "localhost".into());
    format!("{}:{}", host.trim(), at.port())
}

/// Percent-encodes the bytes that a URI's query can't contain literally.
fn percent(path: &Path) -> String {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"/-_.~".contains(b);
    path.as_os_str()
        .as_encoded_bytes()
        .iter()
        .map(|b| if plain(b) { char::from(*b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

macro_rules! as_text {
    ($name:ident) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                String::deserialize(from)?.parse().map($name).map_err(D::Error::custom)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(&self.0)
            }
        }
    };
}

as_text!(Backend);
as_text!(NbdAddress);
as_text!(Sectors);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_are_configurations_and_typos_are_not() {
        let mdm: MdmConfig = toml::from_str(MDM_EXAMPLE).unwrap();
        let sds: SdsConfig = toml::from_str(SDS_EXAMPLE).unwrap();
        let sdc: SdcConfig = toml::from_str(SDC_EXAMPLE).unwrap();
        assert_eq!((sds.device.len(), sdc.nbd.len()), (1, 2));
        assert_eq!(toml::from_str(&toml::to_string(&mdm).unwrap()), Ok(mdm));
        assert_eq!(toml::from_str(&toml::to_string(&sds).unwrap()), Ok(sds));
        assert_eq!(toml::from_str(&toml::to_string(&sdc).unwrap()), Ok(sdc));
        assert!(toml::from_str::<MdmConfig>(&format!("{MDM_EXAMPLE}\nlitsen = 3\n")).is_err());
        assert!(toml::from_str::<MdmConfig>(&MDM_EXAMPLE.replace("auto", "aoto")).is_err());
    }

    #[test]
    fn a_name_that_the_mdm_refuses_is_refused_when_the_file_is_read() {
        let long = "x".repeat(65);
        for bad in ["", "a\\u001b[31m", "a\\nb", &long] {
            let sds = SDS_EXAMPLE.replace("\"sds1\"", &format!("\"{bad}\""));
            let sdc = SDC_EXAMPLE.replace("\"sdc1\"", &format!("\"{bad}\""));
            let sds = toml::from_str::<SdsConfig>(&sds).unwrap_err().to_string();
            let sdc = toml::from_str::<SdcConfig>(&sdc).unwrap_err().to_string();
            for error in [sds, sdc] {
                assert!(error.contains("can't be the name of a server or client"), "{error}");
                assert!(!error.contains('\u{1b}'), "{error:?}");
            }
        }
        let most = SDC_EXAMPLE.replace("sdc1", &"x".repeat(64));
        assert_eq!(toml::from_str::<SdcConfig>(&most).unwrap().name.len(), 64);
    }

    #[test]
    fn sectors_have_their_names_and_others_are_refused() {
        let with = |sectors: &str| format!("{SDC_EXAMPLE}iscsi_sectors = \"{sectors}\"\n");
        for sectors in ["512n", "512e", "4kn"] {
            let config: SdcConfig = toml::from_str(&with(sectors)).unwrap();
            assert_eq!(config.iscsi_sectors.0.to_string(), sectors);
            assert_eq!(toml::from_str(&toml::to_string(&config).unwrap()), Ok(config));
        }
        let error = toml::from_str::<SdcConfig>(&with("4096")).unwrap_err().to_string();
        assert!(error.contains("512n, 512e or 4kn"), "{error}");
    }

    #[test]
    fn uris_name_the_address() {
        let at = |text: &str| NbdAddress(text.parse().unwrap()).uri();
        assert_eq!(at("unix:/tmp/a b/nbd.sock"), "nbd+unix:///?socket=/tmp/a%20b/nbd.sock");
        assert_eq!(at("127.0.0.1:10809"), "nbd://127.0.0.1:10809/");
        assert_eq!(iscsi_uri(&"10.0.0.1:3260".parse().unwrap()), "iscsi://10.0.0.1:3260");
        assert_eq!(nvme_uri(&"10.0.0.1:4420".parse().unwrap()), "nvme-tcp://10.0.0.1:4420");
        assert!(!iscsi_uri(&"0.0.0.0:3260".parse().unwrap()).contains("0.0.0.0"));
    }
}

//! The roles of a host: their configurations, and how to start them.

use super::check::Findings;
use super::host::{Remote, Way, flush_above};
use super::secrets;
use super::topology::{Host, InPool, Topology};
use anyhow::{Context, Result};
use daemon::config::{DeviceConfig, MdmConfig, SdcConfig, SdsConfig};
use daemon::secrets::Kind;
use daemon::spec::DeviceSpec;
use serde::Serialize;
use std::path::PathBuf;

/// A process to keep running on a host.
pub(crate) struct Role {
    /// `mdm`, `sds` or `sdc`.
    pub name: &'static str,
    /// Its configuration.
    config: String,
}

/// Returns the roles of a host.
///
/// With `founding` there is no cluster yet, and the first manager begins one. Otherwise an MDM
/// without a log waits to be added, so that it does not begin another cluster in place of this one.
pub(crate) fn of(host: &Host, topology: &Topology, founding: bool) -> Result<Vec<Role>> {
    let mdm = topology.mdms_at();
    let begins = founding && topology.founder()?.name == host.name;
    let pid = |role: &str| Some(host.path(&format!("run/gabion/{role}.pid")));
    let mut roles = Vec::new();
    if host.mdm.is_some() {
        let config = MdmConfig {
            name: host.name.clone(),
            listen: host.mdm_at(),
            advertise: None,
            join: !begins,
            log: host.path("var/lib/gabion/mdm.log"),
            backend: Default::default(),
            tcp_only: false,
            spin_us: None,
            rebuild_after_seconds: topology.rebuild_after_seconds,
            quarantine_seconds: topology.quarantine_seconds,
            pid_file: pid("mdm"),
        };
        roles.push(role("mdm", &config)?);
    }
    if !host.devices.is_empty() {
        let named = topology.names_pools();
        let device = |(shard, device): (usize, &InPool<DeviceSpec>)| DeviceConfig {
            pool: named.then(|| host.pool_of(device).to_owned()),
            shard: Some(shard as u32),
            spec: device.spec.clone(),
            replace: false,
            listen: host.sds_at(shard),
            advertise: None,
            pin: None,
        };
        let config = SdsConfig {
            domain: named.then(|| host.domain().to_owned()),
            fault_set: host.fault_set.clone(),
            name: host.name.clone(),
            mdm: mdm.clone(),
            backend: Default::default(),
            tcp_only: false,
            spin_us: None,
            pid_file: pid("sds"),
            device: host.devices.iter().enumerate().map(device).collect(),
        };
        roles.push(role("sds", &config)?);
    }
    if host.sdc.is_some() {
        let config = SdcConfig {
            name: host.name.clone(),
            mdm,
            nbd: host.nbd_at(),
            iscsi: host.iscsi.into_iter().collect(),
            iscsi_secrets: secrets::there(host, Kind::Iscsi),
            iscsi_sectors: Default::default(),
            nvme: host.nvme.into_iter().collect(),
            nvme_secrets: secrets::there(host, Kind::Nvme),
            backend: Default::default(),
            tcp_only: false,
            spin_us: None,
            pid_file: pid("sdc"),
            io_timeout_seconds: topology.io_timeout_seconds,
            pin: None,
            protect_memory: host.protect_memory,
        };
        roles.push(role("sdc", &config)?);
    }
    Ok(roles)
}

fn role(name: &'static str, config: &impl Serialize) -> Result<Role> {
    let text = daemon::written::text(config)?;
    Ok(Role { name, config: format!("# Written by `gabion deploy`.\n{text}") })
}

/// Returns the path of the binary on the host.
pub(crate) fn binary(remote: &Remote<'_>) -> Result<PathBuf> {
    match remote.way {
        Way::Ssh { .. } => Ok(remote.host.path("usr/local/bin/gabion")),
        Way::Namespace { .. } => std::env::current_exe().context("this binary has no path"),
    }
}

/// Copies this binary to the host, unless it is there already.
pub(crate) fn install(remote: &Remote<'_>) -> Result<()> {
    let there = binary(remote)?;
    if matches!(remote.way, Way::Namespace { .. }) {
        return Ok(());
    }
    let this = std::fs::read(std::env::current_exe()?).context("can't read this binary")?;
    let sum = base::crc::crc32c(&this);
    let mark = remote.host.path("usr/local/bin/.gabion.crc32c");
    let known = remote.run(&format!("cat '{}' 2>/dev/null || true", mark.display()))?;
    if known.trim() != format!("{sum:08x}") {
        remote.put(&there, &this, 0o755)?;
        remote.put(&mark, format!("{sum:08x}\n").as_bytes(), 0o644)?;
    }
    let said = remote.run(&format!("'{}' --version", there.display()))?;
    anyhow::ensure!(
        said.starts_with("gabion "),
        "{}: {} does not run",
        remote.host.name,
        there.display()
    );
    Ok(())
}

impl Role {
    /// Writes its configuration, and returns the path.
    pub(crate) fn configure(&self, remote: &Remote<'_>) -> Result<PathBuf> {
        let file = remote.host.path(&format!("etc/gabion/{}.toml", self.name));
        remote.put(&file, self.config.as_bytes(), 0o644)?;
        Ok(file)
    }

    /// Writes its configuration and starts it, as a service where there is systemd.
    pub(crate) fn start(&self, remote: &Remote<'_>, findings: &Findings) -> Result<()> {
        let (host, file) = (remote.host, self.configure(remote)?);
        let (binary, name) = (binary(remote)?, self.name);
        let command = format!("{} {name} run --config {}", binary.display(), file.display());
        let (run, state) = (host.path("run/gabion"), host.path("var/lib/gabion"));
        let mut folders = format!("mkdir -p '{}' '{}'\n", run.display(), state.display());
        folders += &format!("{}\n", flush_above(&state));
        for file in host.devices.iter().filter_map(|d| d.spec.path().filter(|_| name == "sds")) {
            let folder = file.parent().unwrap_or(file);
            folders += &format!("mkdir -p '{}'\n{}\n", folder.display(), flush_above(folder));
        }
        let whole = host.root.as_os_str() == "/" && matches!(remote.way, Way::Ssh { .. });
        if findings.systemd && whole {
            let unit = format!("/etc/systemd/system/gabion-{name}.service");
            remote.put(unit.as_ref(), unit_file(name, &command).as_bytes(), 0o644)?;
            let start = format!("systemctl daemon-reload\nsystemctl enable --now gabion-{name}\n");
            return remote.run(&(folders + &start)).map(drop);
        }
        let log = host.path(&format!("var/log/gabion/{name}.log"));
        let start = format!(
            "mkdir -p '{}'\nulimit -n 65536 2>/dev/null || true\n\
             setsid nohup {command} </dev/null >>'{}' 2>&1 &\n",
            log.parent().unwrap_or(&log).display(),
            log.display()
        );
        remote.run(&(folders + &start)).map(drop)
    }
}

/// Returns the last log line of a role on a host.
pub(crate) fn last_words(remote: &Remote<'_>, role: &str) -> String {
    let log = remote.host.path(&format!("var/log/gabion/{role}.log"));
    let tell = format!(
        "if [ -f '{0}' ]; then tail -n 1 '{0}'; \
         else journalctl -q -n 1 -o cat -u gabion-{role}; fi",
        log.display()
    );
    let said = remote.run(&tell).map(|said| said.trim().to_owned());
    said.unwrap_or_else(|why| format!("its log can't be read: {why:#}"))
}

fn unit_file(role: &str, command: &str) -> String {
    format!(
        "# Written by `gabion deploy`.\n\
         [Unit]\nDescription=Gabion {role}\n\
         After=network-online.target\nWants=network-online.target\n\n\
         [Service]\nExecStart={command}\nExecReload=/bin/kill -HUP $MAINPID\n\
         Restart=always\nRestartSec=1\n\
         RuntimeDirectory=gabion\nRuntimeDirectoryPreserve=yes\nStateDirectory=gabion\n\
         LimitNOFILE=65536\nLimitMEMLOCK=infinity\nOOMScoreAdjust=-900\n\n\
         [Install]\nWantedBy=multi-user.target\n"
    )
}

#[cfg(test)]
mod tests {
    use super::super::topology::EXAMPLE;
    use super::*;

    /// Returns which of the MDMs wait to be added.
    fn waiting(topology: &Topology, founding: bool) -> Vec<bool> {
        let all = topology.mdms().map(|host| of(host, topology, founding).unwrap());
        let mdm = all.map(|roles| roles.into_iter().find(|r| r.name == "mdm").unwrap());
        let read = |text: &str| daemon::written::parse::<MdmConfig>(text).unwrap().0;
        mdm.map(|role| read(&role.config).join).collect()
    }

    #[test]
    fn the_first_manager_begins_a_cluster_once() {
        let three: Topology = toml::from_str(EXAMPLE).unwrap();
        assert_eq!(waiting(&three, true), [false, true, true]);
        assert_eq!(waiting(&three, false), [true; 3]);
        let mut one = three;
        one.hosts[1..].iter_mut().for_each(|host| host.mdm = None);
        assert_eq!(waiting(&one, true), [false]);
        assert_eq!(waiting(&one, false), [true], "its log may be lost");
    }

    #[test]
    fn a_client_reads_its_secrets_on_its_own_host() {
        let mut topology: Topology = toml::from_str(EXAMPLE).unwrap();
        let client = |topology: &Topology| {
            let roles = of(&topology.hosts[0], topology, true).unwrap();
            let sdc = roles.into_iter().find(|r| r.name == "sdc").unwrap();
            daemon::written::parse::<SdcConfig>(&sdc.config).unwrap().0
        };
        let without = client(&topology);
        assert_eq!((without.iscsi_secrets, without.nvme_secrets), (None, None));
        assert!(!without.protect_memory);
        let host = &mut topology.hosts[0];
        (host.iscsi_secrets, host.protect_memory) = (Some("/home/admin/a.toml".into()), true);
        (host.nvme_secrets, host.root) = (Some("/home/admin/b.toml".into()), "/opt".into());
        let with = client(&topology);
        let there = |name: &str| Some(PathBuf::from("/opt/etc/gabion").join(name));
        assert_eq!(with.iscsi_secrets, there("iscsi-secrets.toml"));
        assert_eq!(with.nvme_secrets, there("nvme-secrets.toml"));
        assert!(with.protect_memory);
    }
}

//! The protection domains, fault sets and storage pools of a topology: those that its hosts name.

use super::topology::{Host, InPool, Text, Topology};
use crate::pool::{MediaType, Settings};
use anyhow::{Result, bail};
use base::Policy;
use daemon::spec::VolumeSpec;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use wire::control::{Ask, ObjectKind, ObjectStatus};

/// The name of the domain and of the pool that every cluster has from the start.
const DEFAULT: &str = "default";

/// The settings of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolPlan {
    pub name: String,
    /// The medium of its devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media: Option<MediaType>,
    /// Percentage of it that is reserved for rebuilds: 0 to 90.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spare_percent: Option<u32>,
    /// How copies that replace a lost one give way to applications.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuild: Option<Text<Policy>>,
    /// The same for copies that only move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebalance: Option<Text<Policy>>,
}

/// Fault sets or pools, and the hosts in them, or with devices in them.
type Homes<'a> = BTreeMap<&'a str, Vec<&'a Host>>;

impl PoolPlan {
    fn settings(&self) -> Settings {
        let (rebuild, rebalance) = (self.rebuild.map(|p| p.0), self.rebalance.map(|p| p.0));
        let (spare, media) = (self.spare_percent, self.media);
        Settings { spare, media, rebuild, rebalance, new_devices: None }
    }
}

impl Topology {
    /// Returns true if it names pools or domains; else the cluster's default ones are used.
    pub fn names_pools(&self) -> bool {
        let named = |h: &Host| {
            h.domain.is_some() || h.pool.is_some() || h.devices.iter().any(|d| d.pool.is_some())
        };
        !self.pools.is_empty() || self.servers().any(named)
    }

    /// Returns its pools, and the hosts with devices in them.
    fn pools_of_hosts(&self) -> Homes<'_> {
        let mut pools = Homes::new();
        for host in self.servers() {
            for device in &host.devices {
                pools.entry(host.pool_of(device)).or_default().push(host);
            }
        }
        pools
    }

    /// Returns its fault sets, and the hosts in them.
    fn fault_sets(&self) -> Homes<'_> {
        let mut sets = Homes::new();
        for (set, host) in self.servers().filter_map(|h| Some((h.fault_set.as_deref()?, h))) {
            sets.entry(set).or_default().push(host);
        }
        sets
    }

    /// Returns the pool that a volume names, or the only pool.
    pub fn pool_of_volume<T>(&self, volume: &InPool<T>) -> Option<String> {
        let only = || {
            let pools = self.pools_of_hosts();
            pools.keys().next().filter(|_| pools.len() == 1).map(|pool| (*pool).to_owned())
        };
        volume.pool.clone().or_else(only)
    }
}

impl Host {
    /// Returns its protection domain.
    pub fn domain(&self) -> &str {
        self.domain.as_deref().unwrap_or(DEFAULT)
    }

    /// Returns the storage pool of one of its devices.
    pub fn pool_of<'a, T>(&'a self, device: &'a InPool<T>) -> &'a str {
        device.pool.as_deref().or(self.pool.as_deref()).unwrap_or(DEFAULT)
    }
}

/// Checks the domains, fault sets and pools of a topology.
pub(crate) fn check(topology: &Topology) -> Result<()> {
    let pools = topology.pools_of_hosts();
    for host in topology.servers().filter(|h| h.domain() != DEFAULT) {
        if host.devices.iter().any(|d| host.pool_of(d) == DEFAULT) {
            bail!(
                "{} is in the protection domain `{}`, and the storage pool `default` is in another \
                 one, `default`: name a `pool` for its devices",
                host.name,
                host.domain()
            );
        }
    }
    for (set, hosts) in &topology.fault_sets() {
        in_one_domain("fault set", "fault_set", set, hosts)?;
    }
    for (pool, hosts) in &pools {
        in_one_domain("storage pool", "pool", pool, hosts)?;
        // A server that names no fault set is a fault unit by itself.
        let unit = |h: &&Host| (h.fault_set.clone(), h.fault_set.is_none().then(|| h.name.clone()));
        if hosts.iter().map(unit).collect::<BTreeSet<_>>().len() < 2 {
            bail!(
                "two copies need two fault sets (or hosts in none), and all devices of the storage \
                 pool `{pool}` are in one"
            );
        }
    }
    check_plans(topology, &pools)?;
    topology.volumes.iter().try_for_each(|volume| check_volume(topology, volume, &pools))
}

fn in_one_domain(what: &str, field: &str, name: &str, hosts: &[&Host]) -> Result<()> {
    let domain = hosts[0].domain();
    match hosts.iter().find(|h| h.domain() != domain) {
        None => Ok(()),
        Some(other) => bail!(
            "the {what} `{name}` is in the protection domains {domain} ({}) and {} ({}), and can \
             be in one only: give the hosts of one of them another `{field}`",
            hosts[0].name,
            other.domain(),
            other.name
        ),
    }
}

fn check_plans(topology: &Topology, pools: &Homes<'_>) -> Result<()> {
    let mut planned = BTreeSet::new();
    for PoolPlan { name, spare_percent, .. } in &topology.pools {
        if !pools.contains_key(name.as_str()) {
            bail!("no device is in the storage pool `{name}`: hosts and devices name their `pool`");
        }
        if !planned.insert(name) {
            bail!("the storage pool `{name}` is described twice");
        }
        if spare_percent.is_some_and(|spare| spare > 90) {
            bail!("spare_percent of the storage pool `{name}`: use 0 to 90");
        }
    }
    Ok(())
}

fn check_volume(topology: &Topology, volume: &InPool<VolumeSpec>, pools: &Homes<'_>) -> Result<()> {
    let spec = &volume.spec;
    match topology.pool_of_volume(volume) {
        Some(pool) if pools.contains_key(pool.as_str()) => Ok(()),
        Some(pool) => {
            bail!("no device is in the storage pool `{pool}` of the volume {}", spec.name)
        }
        None => bail!(
            "there are several storage pools: say where the volume {} is to be, as in \
             {{ spec = \"{spec}\", pool = \"{}\" }}",
            spec.name,
            pools.keys().next().unwrap_or(&DEFAULT)
        ),
    }
}

/// Returns the orders that create missing objects, and apply the settings of the described pools.
pub(crate) fn orders(topology: &Topology, there: &[ObjectStatus]) -> Vec<Ask> {
    let is_there = |kind, name: &str| there.iter().any(|o| o.kind() == kind && o.name == name);
    let mut orders = Vec::new();
    let named = topology.names_pools();
    let plain = Settings::default();
    let domains: BTreeSet<&str> = topology.servers().map(Host::domain).collect();
    for domain in domains {
        if named && !is_there(ObjectKind::Domain, domain) {
            orders.push(plain.create(ObjectKind::Domain, domain, ""));
        }
    }
    let domain_of = |host: &Host| if named { host.domain().to_owned() } else { String::new() };
    for (set, hosts) in topology.fault_sets() {
        if !is_there(ObjectKind::FaultSet, set) {
            orders.push(plain.create(ObjectKind::FaultSet, set, &domain_of(hosts[0])));
        }
    }
    for (pool, hosts) in topology.pools_of_hosts() {
        let plan = topology.pools.iter().find(|p| p.name == pool);
        let settings = plan.map_or(plain, PoolPlan::settings);
        if named && !is_there(ObjectKind::Pool, pool) {
            orders.push(settings.create(ObjectKind::Pool, pool, &domain_of(hosts[0])));
        } else if !settings.is_empty() {
            orders.push(settings.set(pool));
        }
    }
    orders
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOLS: &str = r#"
        volumes = [{ spec = "db:1GiB", pool = "fast" }]
        [[pool]]
        name = "fast"
        spare_percent = 34
        rebuild = "concurrent:8"
        [[host]]
        name = "a"
        address = "10.0.0.1"
        mdm = true
        sdc = "127.0.0.1:10809"
        fault_set = "r1"
        devices = ["block:/dev/sdb", { spec = "block:/dev/sdc", pool = "fast" }]
        [[host]]
        name = "b"
        address = "10.0.0.2"
        pool = "fast"
        devices = ["block:/dev/sdb", { spec = "block:/dev/sdc", pool = "default" }]
        [[host]]
        name = "c"
        address = "10.0.0.3"
        domain = "east"
        pool = "remote"
        devices = ["block:/dev/sdb"]
        [[host]]
        name = "d"
        address = "10.0.0.4"
        domain = "east"
        pool = "remote"
        devices = ["block:/dev/sdb"]
    "#;

    #[test]
    fn objects_that_hosts_name_are_created_once_and_described_pools_are_set() {
        let topology: Topology = toml::from_str(POOLS).unwrap();
        topology.check(false).unwrap();
        let object = |kind, name: &str| ObjectStatus {
            kind: kind as i32,
            name: name.into(),
            ..ObjectStatus::default()
        };
        let mut there =
            vec![object(ObjectKind::Domain, "default"), object(ObjectKind::Pool, "default")];
        let made = |there: &[ObjectStatus]| -> Vec<String> {
            let tell = |ask: &Ask| match ask {
                Ask::CreateObject(o) => format!("make {} in {}", o.name, o.domain),
                Ask::SetPool(p) => format!("set {} {:?}", p.pool, p.spare),
                odd => format!("{odd:?}"),
            };
            orders(&topology, there).iter().map(tell).collect()
        };
        let all =
            ["make east in ", "make r1 in default", "make fast in default", "make remote in east"];
        assert_eq!(made(&there), all);
        there.push(object(ObjectKind::Pool, "fast"));
        assert_eq!(made(&there)[2], "set fast Some(34)");
    }

    #[test]
    fn a_topology_that_names_nothing_leaves_all_as_it_is() {
        let plain: Topology = toml::from_str(super::super::topology::EXAMPLE).unwrap();
        assert!(!plain.names_pools());
        assert!(orders(&plain, &[]).is_empty());
    }

    #[test]
    fn an_inconsistent_topology_is_reported_before_any_host_is_contacted() {
        let wrong = |from: &str, to: &str, word: &str| {
            assert!(POOLS.contains(from), "{from}");
            let topology: Topology = toml::from_str(&POOLS.replace(from, to)).unwrap();
            let said = topology.check(false).unwrap_err().to_string();
            assert!(said.contains(word), "{said}");
        };
        wrong("domain = \"east\"\n        pool = \"remote\"", "domain = \"east\"", "name a `pool`");
        wrong(
            "pool = \"remote\"",
            "pool = \"fast\"",
            "protection domains default (a) and east (c)",
        );
        wrong(
            "{ spec = \"block:/dev/sdc\", pool = \"fast\" }",
            "\"block:/dev/sdc\"",
            "two fault sets",
        );
        wrong("{ spec = \"db:1GiB\", pool = \"fast\" }", "\"db:1GiB\"", "several storage pools");
        wrong("\"db:1GiB\", pool = \"fast\"", "\"db:1GiB\", pool = \"fsat\"", "`fsat`");
        wrong("name = \"fast\"", "name = \"fsat\"", "no device is in the storage pool `fsat`");
        wrong("= 34", "= 91", "0 to 90");
        let said =
            toml::from_str::<Topology>(&POOLS.replace("spec = \"db", "speck = \"db")).unwrap_err();
        assert!(said.to_string().contains("spec = "), "{said}");
    }
}

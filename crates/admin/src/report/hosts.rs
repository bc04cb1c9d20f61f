//! Hosts of iSCSI and NVMe/TCP, as `status --json` publishes them. NBD clients have no names, so
//! they are no hosts here.

use super::{Mapped, Volume};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use wire::control::SdcStatus;

/// The name of the protocol NVMe/TCP in paths.
const NVME: &str = "nvme";

/// A host that is connected, that is served, or to which a volume is mapped by name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Host {
    /// Its name: IQN or NQN.
    pub name: String,
    /// `iscsi` or `nvme`.
    pub protocol: &'static str,
    /// The data clients to which it is connected.
    pub connections: Vec<HostConnection>,
    /// Its volumes, each with the only client that serves it to this host.
    pub seats: Vec<HostSeat>,
    /// The volumes that are mapped to it by name, but not those that are mapped to all hosts.
    pub mapped: Vec<HostVolume>,
}

/// The connections of a host to one data client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct HostConnection {
    /// The client's name.
    pub sdc: String,
    /// Addresses of the host, without ports.
    pub host_addresses: Vec<String>,
    /// Addresses of the client that the host has dialled.
    pub portals: Vec<String>,
    /// Volumes that this client serves to the host.
    pub optimized: Vec<String>,
    /// Volumes that this client does not serve to the host, because another one does. Here their
    /// path is in standby; NVMe calls that inaccessible.
    pub standby: Vec<String>,
}

/// A volume of a host, and the client that serves it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct HostSeat {
    /// The volume's name.
    pub volume: String,
    /// The client's name.
    pub gateway: String,
}

/// A volume that is mapped to a host by name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct HostVolume {
    /// The volume's name.
    pub volume: String,
    /// `read-write` or `read-only`.
    pub access: &'static str,
}

/// The connections of one host to one client, as they are collected.
#[derive(Default)]
struct Links<'a> {
    /// They are of NVMe.
    nvme: bool,
    addresses: BTreeSet<&'a str>,
    portals: BTreeSet<&'a str>,
    /// The volumes of iSCSI sessions. A connection of NVMe has all volumes.
    volumes: BTreeSet<&'a str>,
}

/// Returns all hosts, sorted by name.
pub(super) fn hosts(volumes: &[Volume], sdcs: &[SdcStatus]) -> Vec<Host> {
    let mut hosts: BTreeMap<&str, Host> = BTreeMap::new();
    for volume in volumes {
        for seat in &volume.seats {
            let seat_of = HostSeat { volume: volume.name.clone(), gateway: seat.gateway.clone() };
            host(&mut hosts, &seat.host).seats.push(seat_of);
        }
        for to in volume.mapped_hosts.iter().filter(|to| !to.all) {
            let mapped = HostVolume { volume: volume.name.clone(), access: to.access };
            host(&mut hosts, &to.host).mapped.push(mapped);
        }
    }
    for ((name, sdc), links) in links(volumes, sdcs) {
        let mut shown: BTreeSet<&str> = links.volumes;
        if links.nvme {
            let of_host = |v: &&Volume| v.seats.iter().any(|seat| seat.host == name);
            let here = |v: &&Volume| v.mapped.iter().any(|m: &Mapped| m.all || m.sdc == sdc);
            let all = volumes.iter().filter(of_host).filter(here);
            shown.extend(all.map(|v| v.name.as_str()));
        }
        let host = host(&mut hosts, name);
        if links.nvme {
            host.protocol = NVME;
        }
        let serves = |volume: &str| {
            host.seats.iter().any(|seat| seat.volume == volume && seat.gateway == sdc)
        };
        let (optimized, standby): (Vec<&str>, Vec<&str>) =
            shown.into_iter().partition(|volume| serves(volume));
        let owned = |all: Vec<&str>| all.into_iter().map(str::to_owned).collect();
        host.connections.push(HostConnection {
            sdc: sdc.to_owned(),
            host_addresses: owned(links.addresses.into_iter().collect()),
            portals: owned(links.portals.into_iter().collect()),
            optimized: owned(optimized),
            standby: owned(standby),
        });
    }
    hosts.into_values().collect()
}

/// Returns the host with this name, and adds it if it is new.
fn host<'a, 'b>(hosts: &'b mut BTreeMap<&'a str, Host>, name: &'a str) -> &'b mut Host {
    hosts.entry(name).or_insert_with(|| Host {
        name: name.to_owned(),
        // No iSCSI name begins like this.
        protocol: if name.starts_with("nqn.") { NVME } else { "iscsi" },
        connections: Vec::new(),
        seats: Vec::new(),
        mapped: Vec::new(),
    })
}

/// Returns the connections to clients that are up, by the names of host and client.
fn links<'a>(
    volumes: &'a [Volume],
    sdcs: &'a [SdcStatus],
) -> BTreeMap<(&'a str, &'a str), Links<'a>> {
    let names: BTreeMap<u32, &str> = volumes.iter().map(|v| (v.id, v.name.as_str())).collect();
    let mut all: BTreeMap<(&str, &str), Links<'_>> = BTreeMap::new();
    for sdc in sdcs.iter().filter(|sdc| sdc.connected) {
        let paths = sdc.counts.iter().flat_map(|counts| &counts.paths);
        for path in paths.filter(|path| !path.host.is_empty()) {
            let links = all.entry((&path.host, &sdc.name)).or_default();
            links.nvme |= path.protocol == NVME;
            let ip = path.from.rsplit_once(':').map(|(ip, _)| ip.trim_matches(['[', ']']));
            links.addresses.extend(ip);
            links.portals.extend(Some(path.at.as_str()).filter(|at| !at.is_empty()));
            links.volumes.extend(names.get(&path.volume));
        }
    }
    all
}

/// Returns the number of NVMe hosts that are connected to a client.
pub(super) fn nvme_hosts(sdc: &SdcStatus) -> u32 {
    let paths = sdc.counts.iter().filter(|_| sdc.connected).flat_map(|counts| &counts.paths);
    let hosts = paths.filter(|path| path.protocol == NVME).map(|path| path.host.as_str());
    hosts.collect::<BTreeSet<&str>>().len() as u32
}

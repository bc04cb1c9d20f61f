//! Volumes, as `status --json` publishes them.

use super::counts::{Client, Io, Path, of_volume};
use super::objects::{Mapped, MappedHost, mapped, mapped_host};
use super::reservations::Reservations;
use super::{Groups, Sdc, State, UpDown};
use base::{ClusterId, VolumeId};
use serde::Serialize;
use target::ident;
use wire::control::{SeatStatus, StatusInfo, VolumeStatus};

/// A volume.
// Large: the fields that `status --json` publishes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its id, which is never used again.
    pub id: u32,
    /// Its size, a multiple of 1 MiB.
    pub size_bytes: u64,
    /// The state of its groups alone.
    pub state: State,
    /// One URI for each NBD address of each client that is up and may use it.
    pub nbd_uris: Vec<String>,
    /// One URI for each iSCSI portal of each client that is up and may use it.
    pub iscsi_uris: Vec<String>,
    /// The name of its iSCSI target, the same at all portals.
    pub iscsi_target: String,
    /// One URI for each NVMe/TCP portal of each client that is up and may use it.
    pub nvme_portals: Vec<String>,
    /// The name of the NVMe subsystem, which has all volumes of the cluster.
    pub nvme_subsystem: String,
    /// The UUID by which NVMe hosts know it.
    pub nvme_uuid: String,
    /// The groups that it is striped over.
    pub groups: Groups,
    /// Its storage pool.
    pub storage_pool: String,
    /// Space for the whole volume is reserved.
    pub thick: bool,
    /// Clients that may use the volume; empty if none may.
    pub mapped: Vec<Mapped>,
    /// Hosts that may use the volume through these clients; empty if none may.
    pub mapped_hosts: Vec<MappedHost>,
    /// The gateways of its hosts. Only this gateway serves the host.
    pub seats: Vec<Seat>,
    /// Hosts that are registered, and the reservation; `None` if no host is.
    pub reservations: Option<Reservations>,
    /// Requests to it, over all data clients that are up.
    pub io: Io,
    /// The same by data client.
    pub clients: Vec<Client>,
    /// Connections of hosts that have it attached.
    pub paths: Vec<Path>,
    /// The volume is mapped to clients that have served it, and none of them is up.
    pub unserved: bool,
}

/// The gateway of a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Seat {
    /// The iSCSI or NVMe name of the host.
    pub host: String,
    /// The name of the data client.
    pub gateway: String,
}

impl Seat {
    fn of(seat: &SeatStatus) -> Seat {
        Seat { host: seat.host.clone(), gateway: seat.gateway.clone() }
    }
}

/// Returns one volume, with its URIs at these data clients.
pub(super) fn volume(v: &VolumeStatus, info: &StatusInfo, sdc: &[Sdc]) -> Volume {
    let groups = Groups { total: v.groups, degraded: v.groups_degraded, failed: v.groups_failed };
    let mapped: Vec<Mapped> = v.mapped.iter().map(mapped).collect();
    let may = |s: &&Sdc| mapped.iter().any(|m| m.all || m.sdc == s.name);
    let serves = |s: &&Sdc| s.state == UpDown::Up && may(s);
    let has_address = |s: &&Sdc| {
        [&s.nbd_uris, &s.iscsi_portals, &s.nvme_portals].iter().any(|uris| !uris.is_empty())
    };
    let mut servers = sdc.iter().filter(|s| may(s) && has_address(s)).peekable();
    let unserved = servers.peek().is_some() && servers.all(|s| s.state == UpDown::Down);
    let bases = sdc.iter().filter(serves).flat_map(|s| &s.nbd_uris);
    let portals = sdc.iter().filter(serves).flat_map(|s| &s.iscsi_portals);
    let nvme = sdc.iter().filter(serves).flat_map(|s| &s.nvme_portals);
    let cluster = ClusterId(info.cluster);
    let uuid = ident::uuid(cluster, VolumeId(v.id));
    let iscsi_target = ident::iqn(ident::AUTHORITY, cluster, VolumeId(v.id));
    let (clients, paths) = of_volume(v.id, &info.sdcs);
    Volume {
        name: v.name.clone(),
        id: v.id,
        size_bytes: v.size,
        state: groups.state(),
        nbd_uris: bases.map(|base| volume_uri(base, &v.name)).collect(),
        iscsi_uris: portals.map(|portal| format!("{portal}/{iscsi_target}/0")).collect(),
        iscsi_target,
        nvme_portals: nvme.cloned().collect(),
        nvme_subsystem: ident::nqn(cluster),
        nvme_uuid: ident::uuid_text(&uuid),
        groups,
        storage_pool: v.pool.clone(),
        thick: v.thick,
        unserved,
        mapped,
        mapped_hosts: v.hosts.iter().map(mapped_host).collect(),
        seats: v.seats.iter().map(Seat::of).collect(),
        reservations: v.reservations.as_ref().and_then(Reservations::of),
        io: Io::sum(clients.iter().map(|client| &client.io)),
        clients,
        paths,
    }
}

/// Returns the URI of one volume at an address that a data client has reported.
pub fn volume_uri(base: &str, volume: &str) -> String {
    let authority = base.find("://").map_or(0, |at| at + 3);
    match base[authority..].find('/') {
        Some(slash) => {
            let (before, after) = base.split_at(authority + slash + 1);
            format!("{before}{volume}{after}")
        }
        None => format!("{base}/{volume}"),
    }
}

//! Objects that operators create: protection domains, fault sets, storage pools and mappings, as
//! `status --json` publishes them.

use base::Policy;
use serde::Serialize;
use wire::control::{
    Access, MapTo, MapToHost, Media, ObjectKind, ObjectStatus, PolicyInfo, StatusInfo,
};

/// A protection domain.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Domain {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: u32,
    /// Number of its servers.
    pub sds: u32,
    /// Number of its devices.
    pub devices: u32,
    /// Number of its volumes.
    pub volumes: u32,
    /// Bytes that its devices can hold.
    pub capacity_bytes: u64,
    /// Bytes that its devices have allocated.
    pub used_bytes: u64,
}

/// A fault set.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FaultSet {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: u32,
    /// Its protection domain.
    pub protection_domain: String,
    /// Number of its servers.
    pub sds: u32,
    /// Number of its devices.
    pub devices: u32,
    /// Bytes that its devices can hold.
    pub capacity_bytes: u64,
    /// Bytes that its devices have allocated.
    pub used_bytes: u64,
}

/// A storage pool.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: u32,
    /// Its protection domain.
    pub protection_domain: String,
    /// The medium of its devices: `any`, `hdd` or `ssd`.
    pub media_type: &'static str,
    /// Percentage of its capacity that is reserved for rebuilds.
    pub spare_percent: u32,
    /// How rebuilds of lost copies yield to application I/O.
    pub rebuild_policy: String,
    /// The same for copies that only move.
    pub rebalance_policy: String,
    /// New devices get no copy before `gabion device admit`.
    pub new_devices_wait: bool,
    /// Always true: space that was never written reads as zeros.
    pub zero_padding: bool,
    /// Number of its servers.
    pub sds: u32,
    /// Number of its devices.
    pub devices: u32,
    /// Number of its volumes.
    pub volumes: u32,
    /// Bytes that its devices can hold.
    pub capacity_bytes: u64,
    /// Bytes that its devices have allocated.
    pub used_bytes: u64,
    /// Bytes reserved by thick volumes, both copies.
    pub reserved_bytes: u64,
}

/// A client that may use a volume.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Mapped {
    /// The client's name; `all` means every client.
    pub sdc: String,
    /// Every client may use it.
    pub all: bool,
    /// `read-write` or `read-only`.
    pub access: &'static str,
}

/// A host that may use a volume.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct MappedHost {
    /// Its iSCSI or NVMe name; `all` means every host.
    pub host: String,
    /// Every host may use it.
    pub all: bool,
    /// `read-write` or `read-only`.
    pub access: &'static str,
}

/// Converts a mapping to a client for the report.
pub fn mapped(to: &MapTo) -> Mapped {
    let (all, sdc) = named(&to.sdc);
    Mapped { sdc, all, access: access(to.access()) }
}

/// Converts a mapping to a host for the report.
pub fn mapped_host(to: &MapToHost) -> MappedHost {
    let (all, host) = named(&to.host);
    MappedHost { host, all, access: access(to.access()) }
}

fn named(name: &str) -> (bool, String) {
    let all = name.is_empty();
    (all, if all { "all".to_owned() } else { name.to_owned() })
}

fn access(access: Access) -> &'static str {
    match access {
        Access::ReadWrite => "read-write",
        Access::ReadOnly => "read-only",
    }
}

pub(super) fn of_kind(info: &StatusInfo, kind: ObjectKind) -> impl Iterator<Item = &ObjectStatus> {
    info.objects.iter().filter(move |o| o.kind() == kind)
}

pub(super) fn domain(o: &ObjectStatus) -> Domain {
    Domain {
        name: o.name.clone(),
        id: o.id,
        sds: o.servers,
        devices: o.devices,
        volumes: o.volumes,
        capacity_bytes: o.capacity,
        used_bytes: o.used,
    }
}

pub(super) fn fault_set(o: &ObjectStatus) -> FaultSet {
    FaultSet {
        name: o.name.clone(),
        id: o.id,
        protection_domain: o.domain.clone(),
        sds: o.servers,
        devices: o.devices,
        capacity_bytes: o.capacity,
        used_bytes: o.used,
    }
}

pub(super) fn pool(o: &ObjectStatus) -> Pool {
    let policy =
        |info: Option<PolicyInfo>| info.map_or_else(String::new, |p| Policy::from(p).to_string());
    Pool {
        name: o.name.clone(),
        id: o.id,
        protection_domain: o.domain.clone(),
        media_type: match o.media() {
            Media::Any => "any",
            Media::Hdd => "hdd",
            Media::Ssd => "ssd",
        },
        spare_percent: o.spare,
        rebuild_policy: policy(o.rebuild),
        rebalance_policy: policy(o.rebalance),
        new_devices_wait: o.by_order,
        zero_padding: true,
        sds: o.servers,
        devices: o.devices,
        volumes: o.volumes,
        capacity_bytes: o.capacity,
        used_bytes: o.used,
        reserved_bytes: o.reserved,
    }
}

//! Turns orders about the mapping of a volume, and about its hosts, into commands.

use crate::command::{self, Command};
use crate::controller::find;
use crate::mapping::{Grant, Mapping, NAMED_HOSTS, Permissions};
use crate::refused::Refused;
use crate::seat::{HOST_NAME, is_iscsi_or_nvme_name};
use crate::state::{Change, Sdc, State, Volume};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use base::{SdcId, VolumeId};
use wire::control::{self, Access, ObjectKind};

/// Returns the command that maps a volume to more clients and hosts; with `only`, to these only.
pub fn map_command(state: &State, m: &control::MapRequest) -> Result<Change, Refused> {
    let (id, old) = find(state, &m.volume)?;
    if m.to.is_empty() && m.hosts.is_empty() {
        return Err(Refused::Nobody);
    }
    let wish = wished(state, &m.to, true)?;
    let mapping = match (wish.named(), old.mapping.named()) {
        _ if m.to.is_empty() => old.mapping.clone(),
        (Some(_), None) if !m.only => {
            return Err(Refused::MappedToAll { volume: m.volume.clone() });
        }
        (Some(new), Some(old)) if !m.only => {
            Mapping::only(old.iter().chain(new).map(|(sdc, grant)| (*sdc, *grant)).collect())
        }
        _ => wish,
    };
    let (hosts, had) = (wished_hosts(&m.hosts)?, old.mapping.hosts());
    let hosts = match (hosts.named(), had.named()) {
        _ if m.hosts.is_empty() => had.clone(),
        (Some(_), None) if !m.only => {
            return Err(Refused::MappedToAllHosts { volume: m.volume.clone() });
        }
        (Some(new), Some(old)) if !m.only => {
            let all = old.iter().chain(new).map(|(host, grant)| (host.clone(), *grant));
            few_hosts(all.collect())?
        }
        _ => hosts,
    };
    let (volume, mapping) = (id.0, Some(mapping.with_hosts(hosts).info()));
    state.change(Command::MapVolume(command::MapVolume { volume, mapping }))
}

/// Returns the command that ends permissions of clients and hosts to use a volume.
pub fn unmap_command(state: &State, m: &control::UnmapRequest) -> Result<Change, Refused> {
    let (id, old) = find(state, &m.volume)?;
    let volume = || m.volume.clone();
    let mapping = match old.mapping.named() {
        _ if m.all => Mapping::nobody(),
        _ if m.sdcs.is_empty() && m.hosts.is_empty() => return Err(Refused::Nobody),
        _ if m.sdcs.is_empty() => old.mapping.clone(),
        None => return Err(Refused::MappedToAll { volume: volume() }),
        Some(list) => {
            let mut list = list.clone();
            for sdc in &m.sdcs {
                let (id, _) = client(state, sdc)?;
                if list.remove(&id).is_none() {
                    return Err(Refused::NotMapped { volume: volume(), sdc: sdc.clone() });
                }
            }
            Mapping::only(list)
        }
    };
    let hosts = match old.mapping.hosts().named() {
        _ if m.hosts.is_empty() => old.mapping.hosts().clone(),
        None => return Err(Refused::MappedToAllHosts { volume: volume() }),
        Some(list) => {
            let mut list = list.clone();
            for host in &m.hosts {
                if list.remove(host).is_none() {
                    let host = host.chars().take(HOST_NAME).collect();
                    return Err(Refused::HostNotMapped { volume: volume(), host });
                }
            }
            Permissions::only(list)
        }
    };
    let (volume, mapping) = (id.0, Some(mapping.with_hosts(hosts).info()));
    state.change(Command::MapVolume(command::MapVolume { volume, mapping }))
}

/// Returns permissions for these hosts. An empty list means all hosts.
pub(crate) fn wished_hosts(to: &[control::MapToHost]) -> Result<Permissions<String>, Refused> {
    match to {
        [] => Ok(Permissions::to_all(Access::ReadWrite, 0)),
        [all] if all.host.is_empty() => Ok(Permissions::to_all(all.access(), 0)),
        _ => {
            let host = |m: &control::MapToHost| match is_iscsi_or_nvme_name(&m.host) {
                true => Ok((m.host.clone(), Grant::new(m.access(), 0))),
                false => Err(Refused::HostName(m.host.chars().take(HOST_NAME).collect())),
            };
            few_hosts(to.iter().map(host).collect::<Result<_, Refused>>()?)
        }
    }
}

fn few_hosts(named: BTreeMap<String, Grant>) -> Result<Permissions<String>, Refused> {
    match named.len() <= NAMED_HOSTS {
        true => Ok(Permissions::only(named)),
        false => Err(Refused::TooManyHosts),
    }
}

fn client<'a>(state: &'a State, name: &str) -> Result<(SdcId, &'a Sdc), Refused> {
    let none = || Refused::NoObject(ObjectKind::Sdc, name.chars().take(64).collect());
    state.sdc_named(name).ok_or_else(none)
}

/// Returns the mapping to these clients. An empty list means all clients; with `nobody`, none.
pub(crate) fn wished(
    state: &State,
    to: &[control::MapTo],
    nobody: bool,
) -> Result<Mapping, Refused> {
    let grant = |m: &control::MapTo| Grant::new(m.access(), 0);
    match to {
        [] if !nobody => Ok(Mapping::everyone(0)),
        [all] if all.sdc.is_empty() => Ok(Mapping::to_all(all.access(), 0)),
        _ => {
            let named = to.iter().map(|m| Ok((client(state, &m.sdc)?.0, grant(m))));
            Ok(Mapping::only(named.collect::<Result<_, Refused>>()?))
        }
    }
}

/// Returns the command that ends the reservation of a volume and all registrations.
pub fn clear_reservations_command(
    state: &State,
    m: &control::ClearReservations,
) -> Result<Command, Refused> {
    let (id, volume) = find(state, &m.volume)?;
    match volume.reservations.registrants.is_empty() {
        true => Err(Refused::NoReservations(m.volume.clone())),
        false => Ok(Command::ClearReservations(command::ClearReservations { volume: id.0 })),
    }
}

/// Returns the command that moves seats of a volume to another gateway. `serves` returns true if a
/// host can use the volume through that gateway. All of the seats move, or none.
pub fn move_path_command(
    state: &State,
    m: &control::MovePath,
    serves: impl Fn(VolumeId, &Volume, SdcId, &str) -> bool,
) -> Result<Command, Refused> {
    if state.recovery.open {
        return Err(Refused::Recovering);
    }
    let (id, volume) = find(state, &m.volume)?;
    let (to, sdc) = client(state, &m.to)?;
    if sdc.gateway.is_none() {
        return Err(Refused::NoGateway(sdc.name.clone()));
    }
    if volume.mapping.grant(to).is_none() {
        return Err(Refused::NotMapped { volume: m.volume.clone(), sdc: sdc.name.clone() });
    }
    if let Some(host) = m.hosts.iter().find(|host| !volume.seats.contains_key(*host)) {
        let host = host.chars().take(HOST_NAME).collect();
        return Err(Refused::NoSeat { volume: m.volume.clone(), host });
    }
    let is_meant = |host: &String| m.hosts.is_empty() || m.hosts.contains(host);
    let moving = volume.seats.iter().filter(|(host, seat)| is_meant(host) && seat.sdc != to);
    let moving: Vec<_> = moving.collect();
    if let Some((host, _)) = moving.iter().find(|(host, _)| !serves(id, volume, to, host)) {
        let (host, gateway) = ((*host).clone(), sdc.name.clone());
        return Err(Refused::NotConnected { volume: m.volume.clone(), host, gateway });
    }
    let change = |(host, seat): (&String, &crate::seat::Seat)| command::SeatChange {
        volume: id.0,
        host: host.clone(),
        from: seat.sdc.0,
        to: to.0,
    };
    let changes = moving.into_iter().map(change).collect();
    Ok(Command::Seat(command::Seat { changes }))
}

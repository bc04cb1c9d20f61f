//! Clients: their registration and removal, and the numbers of those that are gateways.

use super::{Edits, LIVES, PAST, Sdc, State, Volume};
use crate::command;
use crate::refused::{MAX_SDCS, Refused};
use crate::seat::GATEWAYS;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use base::{Incarnation, SdcId};
use wire::control::GatewayInfo;

pub(super) fn sdc_up(state: &State, c: &command::RegisterSdc) -> Option<Edits> {
    let id = SdcId(c.sdc);
    let old = state.sdcs.get(&id);
    let known = match old {
        Some(sdc) => sdc.own == c.name && sdc.incarnation.0 <= c.incarnation,
        None => {
            (id == state.next_sdc() || state.may_be_lost(id))
                && state.sdcs.len() < MAX_SDCS
                && !state.sdcs.values().any(|s| s.own == c.name || s.name == c.name)
        }
    };
    if !known || !(1..LIVES).contains(&c.incarnation) {
        return None;
    }
    let mut past = old.map_or_else(Vec::new, |s| s.past.clone());
    if let Some(sdc) = old.filter(|s| s.incarnation.0 < c.incarnation && s.nonce != c.nonce) {
        past.push(sdc.nonce);
        past.drain(..past.len().saturating_sub(PAST));
    }
    let entry = Sdc {
        own: c.name.clone(),
        name: old.map_or_else(|| c.name.clone(), |s| s.name.clone()),
        incarnation: Incarnation(c.incarnation),
        nonce: c.nonce,
        past,
        pid: c.pid,
        uris: c.uris.clone(),
        gateway: state.gateway_number(old, &c.uris),
        changed_at: old.map_or(state.version, |s| s.changed_at),
    };
    let sdc = (old != Some(&entry)).then_some((id, Some(entry)));
    Some(Edits { sdc, ..Edits::default() })
}

/// Removes a client for good. Its id is never used again, and its incarnations have ended. A volume
/// that is mapped to all clients does not keep the permission that the client had before.
pub(super) fn drop_sdc(state: &State, id: SdcId) -> Result<Edits, Refused> {
    let sdc = state.sdcs.get(&id).ok_or(Refused::Outdated)?;
    let names = |v: &&Volume| v.mapping.named().is_some_and(|named| named.contains_key(&id));
    let mut mapped = state.volumes.values().filter(names);
    if let Some(volume) = mapped.next() {
        return Err(Refused::SdcMapped {
            name: sdc.name.clone(),
            volume: volume.name.clone(),
            count: 1 + mapped.count(),
        });
    }
    let rest = state.volumes.iter().filter_map(|(volume, v)| {
        let mapping = v.mapping.without(id)?;
        Some((*volume, Some(Volume { mapping, ..v.clone() })))
    });
    Ok(Edits { sdc: Some((id, None)), volumes: rest.collect(), ..Edits::default() })
}

/// Returns true if hosts connect to a client with these addresses.
fn is_gateway(uris: &[String]) -> bool {
    uris.iter().any(|uri| uri.starts_with("iscsi:") || uri.starts_with("nvme-tcp:"))
}

impl State {
    /// Returns the number as a gateway of a client with these addresses: the one that it has, or
    /// the lowest free one. `None`: it is no gateway, or no number is free.
    pub(crate) fn gateway_number(&self, old: Option<&Sdc>, uris: &[String]) -> Option<u8> {
        let own = old.and_then(|sdc| sdc.gateway);
        let taken: BTreeSet<u8> = self.sdcs.values().filter_map(|sdc| sdc.gateway).collect();
        let free = || (0..GATEWAYS).find(|number| !taken.contains(number));
        is_gateway(uris).then(|| own.or_else(free)).flatten()
    }

    /// Returns all gateways, as the map has them.
    pub fn gateways(&self) -> Vec<GatewayInfo> {
        let info = |(id, sdc): (&SdcId, &Sdc)| {
            let (number, uris) = (sdc.gateway?.into(), sdc.uris.clone());
            Some(GatewayInfo { sdc: id.0, number, uris })
        };
        self.sdcs.iter().filter_map(info).collect()
    }
}

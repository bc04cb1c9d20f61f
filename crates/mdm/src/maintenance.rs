//! Maintenance: a server will be off for a while, and will come back with its data.
//!
//! *Instant*: other servers take over the groups that it leads, and nothing else happens. When the
//! server is back, it gets what it missed; until then its groups have one copy. *Protected*: its
//! copies move away first, as in a removal, so that there are two copies all the time; afterwards
//! it gets its share again, copied afresh (docs/design/0006 says why).
//!
//! An order is stored in the state as an intent ([`Intent`]) of each device; the healer carries it
//! out.

use crate::command::{self, Command};
use crate::observed::Observed;
use crate::refused::Refused;
use crate::removal;
use crate::state::{Device, State};
use alloc::collections::BTreeSet;
use alloc::string::String;
use base::{DeviceId, Limits, SdsId};
use wire::control::{Intent, MaintainRequest};

/// Returns the command that puts all devices of a server into maintenance, or takes them out of
/// it.
pub fn maintenance_command(
    state: &State,
    ask: &MaintainRequest,
    seen: &Observed,
    limits: &Limits,
) -> Result<Command, Refused> {
    let name = || String::from(&ask.server);
    let server = state.server_named(&ask.server).ok_or_else(|| Refused::NoServer(name()))?;
    let there = |d: &Device| d.sds == server && d.intent.counts();
    let meant = || state.devices.iter().filter(|(_, d)| there(d));
    let all: BTreeSet<DeviceId> = meant().map(|(id, _)| *id).collect();
    if all.is_empty() {
        return Err(Refused::NoServer(name()));
    }
    if ask.end {
        let maintained = meant().filter(|(_, d)| d.intent.maintains());
        let maintained: BTreeSet<DeviceId> = maintained.map(|(id, _)| *id).collect();
        let none = maintained.is_empty();
        return if none {
            Err(Refused::NotMaintained(name()))
        } else {
            Ok(intend(&maintained, Intent::Normal))
        };
    }
    if meant().any(|(_, d)| d.intent == Intent::Remove) {
        return Err(Refused::Leaves(name()));
    }
    if ask.protected {
        removal::check_can_remove(state, &all, seen, limits)?;
        return Ok(intend(&all, Intent::Protect));
    }
    check_can_stop(state, &all, server)?;
    Ok(intend(&all, Intent::Maintain))
}

/// Checks that all groups are served without these devices, which are those of one server. Other
/// servers of its fault unit may be off, too: no group has both copies there.
fn check_can_stop(state: &State, all: &BTreeSet<DeviceId>, server: SdsId) -> Result<(), Refused> {
    let mates = || {
        let domain = state.domain_of(server);
        let mate = move |d: &&Device| d.sds != server && state.domain_of(d.sds) == domain;
        state.devices.values().filter(mate)
    };
    let name = |d: &Device| state.servers.get(&d.sds).map_or(String::new(), |s| s.name.clone());
    let beside = |d: &&Device| state.unit(d.sds) != state.unit(server);
    if let Some(other) = mates().filter(beside).find(|d| d.intent == Intent::Maintain) {
        return Err(Refused::Maintained(name(other)));
    }
    if let Some(other) = mates().find(|d| d.intent.empties()) {
        return Err(Refused::Empties(name(other))); // its data needs room on other servers
    }
    let groups = only_on(state, all);
    let server = state.servers.get(&server).map_or(String::new(), |s| s.name.clone());
    if groups > 0 { Err(Refused::OnlyHere { server, groups }) } else { Ok(()) }
}

/// Returns the number of groups in use that would have no in-sync replica up without these
/// devices.
pub(crate) fn only_on(state: &State, all: &BTreeSet<DeviceId>) -> usize {
    let elsewhere = |d: &DeviceId| !all.contains(d) && state.is_up(*d);
    let only_here = |g: &&base::GroupId| {
        let in_sync = &state.groups[*g].in_sync;
        state.is_used(**g) && !in_sync.is_empty() && !in_sync.iter().any(elsewhere)
    };
    let groups = all.iter().flat_map(|d| state.groups_of(*d)).filter(only_here);
    groups.collect::<BTreeSet<_>>().len()
}

fn intend(devices: &BTreeSet<DeviceId>, intent: Intent) -> Command {
    let devices = devices.iter().map(|d| d.0).collect();
    Command::Intend(command::Intend { devices, intent: intent as i32 })
}

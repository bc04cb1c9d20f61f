//! Turns orders on objects into commands. They create, change and remove protection domains, fault
//! sets and storage pools, rename everything that has a name, and remove clients.

use crate::command::{self, Command};
use crate::refused::{Refused, check_new_name};
use crate::state::{Change, State};
use base::{DomainId, SdcId};
use wire::control::{self, ObjectKind};

/// Returns the command that creates a domain, a fault set or a pool.
pub fn create_object_command(state: &State, m: &control::CreateObject) -> Result<Change, Refused> {
    let kind = m.kind();
    let domain = match kind {
        ObjectKind::Domain => DomainId(0),
        _ => state.objects.domain(&m.domain)?,
    };
    if state.objects.named(kind, &m.name).is_some() {
        return Err(Refused::ObjectTaken(kind, m.name.clone()));
    }
    let id = state.objects.next(kind).0;
    state.change(Command::PutObject(command::PutObject {
        kind: m.kind,
        id,
        name: m.name.clone(),
        domain: domain.0,
        media: m.media,
        spare: m.spare,
        rebuild: m.rebuild,
        rebalance: m.rebalance,
        by_order: m.by_order,
    }))
}

/// Returns the command that changes the settings of a pool.
pub fn set_pool_command(state: &State, m: &control::SetPool) -> Result<Change, Refused> {
    let id = state.objects.pool(&m.pool, None)?;
    let old = &state.objects.pools[&id];
    let old = old.put(id);
    state.change(Command::PutObject(command::PutObject {
        media: m.media.unwrap_or(old.media),
        spare: m.spare.or(old.spare),
        rebuild: m.rebuild.or(old.rebuild),
        rebalance: m.rebalance.or(old.rebalance),
        by_order: m.by_order.unwrap_or(old.by_order),
        ..old
    }))
}

/// Returns the command that removes a domain, a fault set, a pool, or a client that is not
/// connected.
pub fn remove_object_command(
    state: &State,
    m: &control::RemoveObject,
    is_here: impl Fn(SdcId) -> bool,
) -> Result<Change, Refused> {
    let id = match m.kind() {
        ObjectKind::Sdc => {
            let none = || Refused::NoObject(ObjectKind::Sdc, m.name.chars().take(64).collect());
            let (id, sdc) = state.sdc_named(&m.name).ok_or_else(none)?;
            if is_here(id) {
                return Err(Refused::SdcHere(sdc.name.clone()));
            }
            id.0
        }
        kind => state.objects.id(kind, &m.name)?,
    };
    state.change(Command::DropObject(command::DropObject { kind: m.kind, id }))
}

/// Returns the command that renames an object.
pub fn rename_command(state: &State, m: &control::RenameRequest) -> Result<Change, Refused> {
    let (kind, name) = (m.kind(), &m.name);
    let shown = || name.chars().take(64).collect();
    let none = || Refused::NoObject(kind, shown());
    let id = match kind {
        ObjectKind::Volume => {
            check_new_name(&m.to)?;
            state.volume_named(name).ok_or_else(|| Refused::NotFound(shown()))?.0.0
        }
        ObjectKind::Sdc => state.sdc_named(name).ok_or_else(none)?.0.0,
        ObjectKind::Sds => state.server_named(name).ok_or_else(|| Refused::NoServer(shown()))?.0,
        ObjectKind::System => 0,
        _ => state.objects.id(kind, name)?,
    };
    let name = m.to.clone();
    state.change(Command::Rename(command::Rename { kind: m.kind, id, name }))
}

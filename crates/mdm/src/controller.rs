//! Turns orders, registrations and proposals into commands.
//!
//! Every command is computed against the state right after the last command, so it is applied to
//! the very state that it was computed for. Nothing here changes the state. A command that would
//! change nothing isn't made: repeated proposals and registrations never grow the log.

use crate::command::{self, Command};
use crate::group::{Doubt, Group};
use crate::mapping_orders;
use crate::recovery::DeviceReport;
use crate::refused::{
    MAX_DEVICES, MAX_NEW_GROUPS, MAX_SDCS, MAX_WAITING, Refused, check_name, check_new_name,
};
use crate::state::{Change, Device, State, survives};
use crate::volume::check_size;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base::name::{PEER_NAME_MAX, is_peer_name};
use base::{
    DeviceId, DomainId, FaultSetId, GroupId, Incarnation, Limits, Mutant, PoolId, SdcId, UNIT,
    beside_spare, mutant,
};
use core::net::SocketAddr;
use placement::Choice;
use wire::control::{self, Intent, ObjectKind};

/// The error for a new device or client during a recovery: an id that it got now might belong to
/// another one.
const NEW_WAITS: &str = "it is new, and a recovery of the MDMs is under way: servers still report which ids are taken. It is \
                         admitted when the recovery is over; `gabion status` shows what the recovery waits for";

/// The result of a registration.
#[derive(Clone, PartialEq, Debug)]
#[allow(clippy::large_enum_variant)] // There is one at a time.
pub enum Registration<Id> {
    /// This incarnation is registered already.
    Known(Id),
    /// The command registers it.
    New(Id, Command),
    /// A newer process has this name, or the client was removed; the text says so.
    Superseded(String),
    /// It can't be registered, at least not now; the text says what to do.
    Bad(String),
    /// The cluster takes no more of them; the text says what to do.
    Full(String),
    /// Its domain, fault set or pool can't be found; the text says what to do.
    WrongPlace(String),
    /// The device is not this server's; the text says what to do.
    WrongDevice(String),
}

impl State {
    /// Returns the result of a device's registration. `older`: its connection was opened before the
    /// one on which the present incarnation registered, so it can't be the newer process. `told` is
    /// the device's report, if a recovering MDM has asked for one.
    // Long: one match over the cases, each with its refusal, and the command.
    pub fn register(
        &self,
        m: &control::Register,
        older: bool,
        told: Option<&DeviceReport>,
    ) -> Registration<DeviceId> {
        if let Err(text) = check_peer(&m.sds) {
            return Registration::Bad(text);
        }
        if m.address.parse::<SocketAddr>().is_err() {
            return Registration::Bad(format!("`{:.64}` is no address: use `ip:port`", m.address));
        }
        let checked = check_device(self, m, told);
        if let (Err(text), false) = (checked, mutant::on(Mutant::StrangeDevice)) {
            return Registration::WrongDevice(text);
        }
        let known = self.reporter(m);
        let home = match home(self, m, known.map(|(_, d)| d)) {
            Ok(home) => home,
            Err(text) => return Registration::WrongPlace(text),
        };
        let (device, incarnation) = match known {
            Some((id, d)) if d.nonce == m.nonce => {
                (id, same_life(self, m.incarnation, d.incarnation))
            }
            Some((_, d))
                if d.past.contains(&m.nonce)
                    || is_superseded(self, older, m.incarnation, d.incarnation) =>
            {
                return Registration::Superseded(superseded(&m.sds));
            }
            Some((id, d)) => (id, life_of(self, m.incarnation, d.incarnation)),
            None if self.devices_there() >= MAX_DEVICES => {
                return Registration::Full(format!(
                    "there are {MAX_DEVICES} devices, the most that one cluster takes: `gabion sds remove` or \
                     `gabion device remove` makes room"
                ));
            }
            None if self.is_full_of_strangers(home.2) && !was_lost(self, m.device) => {
                return Registration::Full(format!(
                    "{MAX_WAITING} new devices wait for an order: `gabion device admit` or `gabion device remove` \
                     makes room"
                ));
            }
            None if was_lost(self, m.device) => {
                (DeviceId(m.device), life_of(self, m.incarnation, Incarnation(0)))
            }
            None if self.recovery.open => return Registration::Bad(String::from(NEW_WAITS)),
            None => (self.next_device(), self.next_incarnation),
        };
        let command = Command::DeviceUp(command::DeviceUp {
            device: device.0,
            sds: self.server_of(&m.sds).unwrap_or(self.next_sds()).0,
            name: m.sds.clone(),
            shard: m.shard,
            incarnation: incarnation.0,
            nonce: m.nonce,
            store: m.store,
            address: m.address.clone(),
            capacity: m.capacity,
            kind: m.kind,
            pid: m.pid,
            domain: home.0.0,
            fault_set: home.1.0,
            pool: home.2.0,
            release: String::new(),
        });
        match self.would_change(&command) {
            true => Registration::New(device, command),
            false if known.is_some_and(|(_, d)| d.nonce == m.nonce) => Registration::Known(device),
            false => Registration::Bad(format!(
                "{device} can't be admitted at its present place: the place or its content has changed meanwhile"
            )),
        }
    }

    /// Returns the result of a client's registration; `older` as for [`State::register`].
    pub fn register_sdc(&self, m: &control::RegisterSdc, older: bool) -> Registration<SdcId> {
        if let Err(text) = check_peer(&m.name) {
            return Registration::Bad(text);
        }
        if m.uris.len() > 16 || m.uris.iter().any(|uri| uri.len() > 256) {
            return Registration::Bad(String::from(
                "at most 16 addresses of 256 bytes can be shown",
            ));
        }
        let known = self.sdc_of(&m.name);
        if known.is_none() && self.sdc_named(&m.name).is_some() {
            return Registration::Bad(format!(
                "another client was given the name `{:.64}`: give one of them another name",
                m.name
            ));
        }
        let (sdc, incarnation) = match known {
            Some((id, s)) if s.nonce == m.nonce => {
                (id, same_life(self, m.incarnation, s.incarnation))
            }
            Some((_, s))
                if s.past.contains(&m.nonce)
                    || is_superseded(self, older, m.incarnation, s.incarnation) =>
            {
                return Registration::Superseded(superseded(&m.name));
            }
            Some((id, s)) => (id, life_of(self, m.incarnation, s.incarnation)),
            None if self.sdcs.len() >= MAX_SDCS => {
                return Registration::Full(format!(
                    "there are {MAX_SDCS} clients, the most that one cluster takes: `gabion sdc list` shows them, and \
                     `gabion sdc remove` takes out those that are gone for good"
                ));
            }
            // Under a new id, its requests under the old id would count as another client's.
            None if was_removed(self, SdcId(m.id)) => {
                return Registration::Superseded(format!(
                    "the client `{:.64}` was removed from this cluster: start it again if it is to come back",
                    m.name
                ));
            }
            None if is_free(self, SdcId(m.id)) => {
                (SdcId(m.id), life_of(self, m.incarnation, Incarnation(0)))
            }
            None if self.recovery.open => return Registration::Bad(String::from(NEW_WAITS)),
            None => (self.next_sdc(), self.next_incarnation),
        };
        let command = Command::RegisterSdc(command::RegisterSdc {
            sdc: sdc.0,
            name: m.name.clone(),
            incarnation: incarnation.0,
            nonce: m.nonce,
            pid: m.pid,
            uris: m.uris.clone(),
        });
        match self.would_change(&command) {
            true => Registration::New(sdc, command),
            false => Registration::Known(sdc),
        }
    }

    /// Returns the command for a device that counts as down and is heard again.
    pub fn revive(&self, device: DeviceId) -> Option<Command> {
        let d = self.devices.get(&device).filter(|d| !d.up && d.intent != Intent::Removed)?;
        Some(Command::DeviceUp(command::DeviceUp {
            device: device.0,
            sds: d.sds.0,
            name: self.servers.get(&d.sds)?.own.clone(),
            shard: d.shard,
            incarnation: d.incarnation.0,
            nonce: d.nonce,
            store: d.store,
            address: d.address.clone(),
            capacity: d.capacity,
            kind: d.kind as i32,
            pid: d.pid,
            release: d.release.clone(),
            ..command::DeviceUp::default()
        }))
    }
}

/// Returns the incarnation of a process that this MDM does not know. After a recovery, the
/// process keeps an incarnation that the lost MDMs gave it.
fn life_of(state: &State, told: u64, known: Incarnation) -> Incarnation {
    match is_lost_life(state, told, known) {
        true => Incarnation(told),
        false => state.next_incarnation,
    }
}

/// Returns the incarnation of a process that this MDM knows. After a recovery, this MDM's entry may
/// come from a log entry that was never decided, while the lost MDMs decided another one.
fn same_life(state: &State, told: u64, known: Incarnation) -> Incarnation {
    match is_lost_life(state, told, known) {
        true => Incarnation(told),
        false => known,
    }
}

/// Returns true if a process that this MDM does not know was superseded by the one that it
/// knows. The incarnation that an MDM gave to it decides, if it has one: after a recovery that
/// decision may be lost, and the two processes may register in any order. Otherwise the order
/// of their connections decides.
fn is_superseded(state: &State, older: bool, told: u64, known: Incarnation) -> bool {
    let earlier = told != 0 && told < known.0 && !mutant::on(Mutant::EarlierLife);
    earlier || older && !is_lost_life(state, told, known)
}

/// Returns true for an incarnation that the lost MDMs gave to a process, and that is later than
/// the one that this MDM knows.
fn is_lost_life(state: &State, told: u64, known: Incarnation) -> bool {
    state.recovery.number > 0 && told > known.0 && told < state.next_incarnation.0
}

/// Returns true if the lost MDMs may have accepted this content of a device in place of the one
/// that this MDM knows. While the recovery is open, that is so if no group in doubt is on the
/// device, or:
/// - Its process has a later incarnation, so they have accepted it. (An empty device is accepted,
///   too: its map tells when it was emptied.)
/// - It remembers as much of at least one group in doubt as the state does, or it has taken
///   part in a group that was made since. Older content can't: the epoch of each of its groups
///   rose when it was replaced.
/// - It remembers no group, and no map names another content. Once it is accepted, its groups wait
///   for an operator. If it were refused, an older disk might be put in and believed.
///
/// The content that the recovery waits for counts as newer.
///
/// After an operator has ended the recovery, such a device is still accepted if nothing relies on
/// the content that this MDM knows.
fn may_have_replaced(
    state: &State,
    (id, d): (DeviceId, &Device),
    m: &control::Register,
    told: Option<&DeviceReport>,
) -> bool {
    let doubtful = |group: &GroupId| state.groups[group].doubt != Doubt::None;
    let known = state.groups_of(id).iter().any(doubtful);
    let is_newer = |(group, acted): (GroupId, u64)| match state.groups.get(&group) {
        Some(g) => g.doubt != Doubt::None && acted >= g.epoch.0,
        None => acted > 0,
    };
    let newer = told.is_some_and(|report| report.took_part().any(is_newer))
        || state.recovery.is_awaited(id, m.store);
    let named = is_lost_life(state, m.incarnation, d.incarnation);
    let awaits = state.recovery.awaited.contains_key(&id);
    let empty = || {
        let blank = |report: &DeviceReport| report.took_part().all(|(_, acted)| acted == 0);
        !awaits && told.is_some_and(blank)
    };
    match state.recovery.open {
        true => !known || newer || named || empty(),
        false => (newer && state.wants_reports() || named) && !is_relied_on(state, id),
    }
}

/// Returns true if the content that this MDM knows on this device is in use, or is an in-sync
/// copy of a group that is not in doubt.
fn is_relied_on(state: &State, id: DeviceId) -> bool {
    let settled = |g: &Group| g.doubt == Doubt::None && g.in_sync.contains(&id);
    state.is_up(id) || state.groups_of(id).iter().any(|group| settled(&state.groups[group]))
}

/// Returns true for the id of a device that only lost MDMs may know.
fn was_lost(state: &State, device: u32) -> bool {
    let free = !state.devices.contains_key(&DeviceId(device));
    free && state.may_be_lost_device(DeviceId(device))
}

/// Returns the domain, fault set and pool of a registration. Known servers and devices keep theirs,
/// and the registration can't change that.
fn home(
    state: &State,
    m: &control::Register,
    device: Option<&Device>,
) -> Result<(DomainId, FaultSetId, PoolId), String> {
    let say = |why: Refused| format!("{why}");
    let server = state.server_of(&m.sds);
    let domain = match server {
        Some(sds) => state.servers[&sds].domain,
        None if state.server_named(&m.sds).is_some() => {
            return Err(format!(
                "another server was given the name `{:.64}`: give one of them another name",
                m.sds
            ));
        }
        None => state.objects.domain(&m.domain).map_err(say)?,
    };
    let fault_set = match state.objects.named(ObjectKind::FaultSet, &m.fault_set) {
        None if m.fault_set.is_empty() || server.is_some() => FaultSetId(0),
        None => {
            let name = m.fault_set.chars().take(64).collect();
            return Err(format!(
                "{}; `gabion fault-set create` makes one",
                Refused::NoObject(ObjectKind::FaultSet, name)
            ));
        }
        Some(id) => FaultSetId(id),
    };
    let set = state.objects.fault_sets.get(&fault_set);
    if server.is_none() && set.is_some_and(|f| f.domain != domain) {
        return Err(format!("the fault set `{}` is of another protection domain", m.fault_set));
    }
    let pool = match device {
        Some(device) => device.pool,
        None => state.objects.pool(&m.pool, Some(domain)).map_err(|why| {
            format!("{why}; the configuration's `pool` says it, `gabion pool create` makes one")
        })?,
    };
    match state.objects.pools.get(&pool).is_some_and(|p| p.domain == domain) {
        true => Ok((domain, fault_set, pool)),
        false => Err(String::from("the storage pool is of another protection domain")),
    }
}

/// Checks that a device may have the identity that it claims, in its place. A copy must not be
/// taken for the original, a replaced device for its successor, or an empty device for one that has
/// data.
// Long: one check after the other, each with the text of its refusal.
fn check_device(
    state: &State,
    m: &control::Register,
    told: Option<&DeviceReport>,
) -> Result<(), String> {
    let Some((id, d)) = state.reporter(m) else {
        return match m.device {
            0 => Ok(()),
            id if was_lost(state, id) => Ok(()),
            id => Err(format!(
                "this cluster has no dev{id}: was its MDM set back, or is it another? Use the device with \
                 the MDM that knows it, or add it anew"
            )),
        };
    };
    let place = |d: &Device| {
        let server = state.servers.get(&d.sds).map_or("?", |s| &s.name);
        format!("device {} of server `{server}`", d.shard)
    };
    let elsewhere = state.is_elsewhere(m);
    if m.device == 0 {
        let has_data = survives(d.kind) && !state.groups_of(id).is_empty();
        // The process was interrupted after its registration, before it wrote its id.
        let same_life = (d.nonce, d.store) == (m.nonce, m.store);
        return match has_data && !m.replace && !same_life {
            true => Err(format!(
                "it is empty, and {id} with data was {} before. Is its disk mounted? If it is gone for \
                 good: `gabion device add SPEC --sds {} --replace {}`",
                place(d),
                m.sds,
                id.0
            )),
            false => Ok(()),
        };
    }
    if d.intent == Intent::Removed {
        return Err(format!("it is {id}, which was removed from this cluster: add it anew"));
    }
    if d.store != m.store && (elsewhere || !may_have_replaced(state, (id, d), m, told)) {
        // Its copies may be the newest ones left of a group in doubt.
        return Err(match state.wants_reports() {
            true => format!(
                "it is an older disk of {id}, which was replaced since. Put the newer disk into its place, and keep this \
                 one until `gabion status` shows no group in doubt. Then add it anew"
            ),
            false => format!(
                "it is an older disk of {id}, which was replaced since: its data is not needed any more. Add it anew"
            ),
        });
    }
    if elsewhere && d.is_in_use() {
        return Err(format!(
            "it is {id}, which serves as {}: if this is a copy, remove it; if it was moved, stop that one \
             first",
            place(d)
        ));
    }
    // `device_up` takes no second device for a place: it would change nothing.
    if let Some(other) = state.in_the_way(m).into_iter().find(|other| *other != id) {
        return Err(format!(
            "it is {id}, and {} is {other}, which counts as up: wait for a moment if that one is gone, or \
             stop it first",
            place(&state.devices[&other])
        ));
    }
    if state.wants_reports() {
        return Ok(()); // its report tells what it has
    }
    if m.next_volume > state.next_volume.0 {
        return Err(format!(
            "{id} holds data of a volume that this MDM never made: its log was set back; restore its newest log"
        ));
    }
    // The epochs of all groups: it may have acted in one that has other replicas by now.
    let epochs = state.groups.values().map(|g| g.epoch.0);
    match epochs.max() {
        Some(known) if m.acted > known => Err(format!(
            "{id} has acted in epoch {}, and this MDM knows none above {known}: it was set back; restore \
             its newest state",
            m.acted
        )),
        _ => Ok(()),
    }
}

/// Returns true for the id of a client that was removed.
fn was_removed(state: &State, id: SdcId) -> bool {
    let given = id.0 != 0 && id <= state.last_sdc;
    given && !state.sdcs.contains_key(&id) && !state.may_be_lost(id)
}

/// Returns true for a client's id that lost MDMs may have given away, and that no client has.
fn is_free(state: &State, id: SdcId) -> bool {
    !state.sdcs.contains_key(&id) && state.may_be_lost(id)
}

/// Returns the commands for a primary's proposals, one for each. The caller tests one after the
/// other, and leaves out those that change nothing ([`State::would_change`]).
pub fn proposed(m: &control::Proposal) -> Vec<Command> {
    let (by, incarnation) = (m.device, m.incarnation);
    let suspect = |d: &u32| Command::Suspect(command::Suspect { by, incarnation, device: *d });
    let join = |d: &u32| Command::Join(command::Join { by, incarnation, device: *d });
    let admission = |a: &control::Admission| command::Admission {
        group: a.group,
        epoch: a.epoch,
        device: a.device,
    };
    let list: Vec<_> = m.admit.iter().map(admission).collect();
    let admit = (!list.is_empty()).then_some(Command::Admit(command::Admit { list }));
    let unique = |of: &[u32]| of.iter().copied().collect::<BTreeSet<u32>>();
    let (suspects, joins) = (unique(&m.suspects), unique(&m.join));
    // Suspicions come first: a joiner that no longer answers must not be admitted and lead.
    suspects.iter().map(suspect).chain(admit).chain(joins.iter().map(join)).collect()
}

/// Returns the command that creates a volume. It creates the groups that the pool lacks, and
/// chooses those of the volume. `used` returns the bytes in use on a device.
pub fn create_volume_command(
    state: &State,
    m: &control::CreateVolume,
    limits: &Limits,
    used: &dyn Fn(DeviceId) -> u64,
) -> Result<Change, Refused> {
    check_new_name(&m.name)?;
    let size = whole_units(m.size)?;
    if state.volume_named(&m.name).is_some() {
        return Err(Refused::Taken(m.name.clone()));
    }
    let pool = state.objects.pool(&m.pool, None)?;
    let mapping = mapping_orders::wished(state, &m.to, m.unmapped)?
        .with_hosts(mapping_orders::wished_hosts(&m.hosts)?);
    if m.thick {
        has_space(state, pool, size, limits, used)?;
    }
    let all = placement_of(state, |of| of == pool || mutant::on(Mutant::PlaceAnywhere));
    let up = |d: &&placement::Device| state.is_up(d.id);
    let devices: Vec<placement::Device> = all.iter().filter(up).copied().collect();
    let here = |g: &&Group| state.pool_of(g) == Some(pool);
    let live = state.groups.values().filter(|g| !g.lost).filter(here);
    let existing: Vec<placement::Pair> = live.filter_map(|g| g.pair()).collect();
    let mut new = placement::top_up(&devices, &existing, limits.groups_per_device)
        .map_err(|e| too_few(state, pool, e.servers))?;
    new.truncate(MAX_NEW_GROUPS);
    // Groups that have a primary; if there are none, groups that will have one again.
    let served = choices(state, |g| here(&g) && g.primary.is_some());
    let made = (state.next_group().0..)
        .zip(&new)
        .map(|(id, pair)| Choice { group: base::GroupId(id), replicas: *pair });
    let mut chosen: Vec<Choice> = served.into_iter().chain(made).collect();
    if chosen.is_empty() {
        chosen = choices(state, |g| here(&g) && !g.lost);
    }
    let width = limits.stripe_width as usize;
    let slots = placement::choose_slots(state.next_volume, &all, &chosen, width)
        .map_err(|e| too_few(state, pool, e.servers))?;
    if slots.is_empty() {
        return Err(Refused::NoGroup);
    }
    state.change(Command::CreateVolume(command::CreateVolume {
        volume: state.next_volume.0,
        name: m.name.clone(),
        size,
        groups: new
            .iter()
            .map(|p| command::NewGroup { replicas: p.iter().map(|d| d.0).collect() })
            .collect(),
        slots: slots.into_iter().map(|g| g.0).collect(),
        mapping: Some(mapping.info()),
        pool: pool.0,
        thick: m.thick,
    }))
}

/// Returns the devices of a pool that may hold replicas.
pub(crate) fn placement(state: &State, pool: PoolId) -> Vec<placement::Device> {
    placement_of(state, |of| of == pool)
}

/// Returns the devices of all these pools that may hold replicas.
pub(crate) fn placement_of(
    state: &State,
    pools: impl Fn(PoolId) -> bool,
) -> Vec<placement::Device> {
    let here = |d: &Device| pools(d.pool) && d.intent == Intent::Normal;
    let devices = state.devices.iter().filter(|(_, d)| here(d));
    let device = |(id, d): (&DeviceId, &Device)| {
        let sds = state.unit_of(*id)?;
        Some(placement::Device { id: *id, sds, capacity: d.capacity })
    };
    devices.filter_map(device).collect()
}

/// Returns the error for too few fault units. It counts servers if there are no fault sets and no
/// other pools.
fn too_few(state: &State, pool: PoolId, up: usize) -> Refused {
    let plain = state.objects.fault_sets.is_empty() && state.objects.pools.len() == 1;
    match plain {
        true => Refused::TooFewServers { up, known: state.servers.len() },
        false => {
            let pool = state.objects.pools.get(&pool).map_or("?", |p| &p.name);
            Refused::TooFewUnits { pool: String::from(pool), up }
        }
    }
}

/// Checks that a pool can reserve `size` bytes more for a thick volume, in two copies. Data that
/// thin volumes have written counts; data that they may still write does not.
fn has_space(
    state: &State,
    pool: PoolId,
    size: u64,
    limits: &Limits,
    used: &dyn Fn(DeviceId) -> u64,
) -> Result<(), Refused> {
    let spare = state.objects.spare(pool, limits);
    let here = state.devices.iter().filter(|(_, d)| d.pool == pool);
    let here: Vec<_> = here.filter(|(_, d)| d.intent == Intent::Normal).collect();
    let usable: u64 = here.iter().map(|(_, d)| beside_spare(d.capacity, spare)).sum();
    let taken = state.reserved(pool).max(here.iter().map(|(id, _)| used(**id)).sum());
    let (room, needed) = (usable.saturating_sub(taken), size.saturating_mul(2));
    if needed <= room {
        return Ok(());
    }
    let pool = state.objects.pools.get(&pool).map_or("?", |p| &p.name);
    Err(Refused::NoSpace { pool: String::from(pool), size, needed, room })
}

fn choices(state: &State, may: impl Fn(&Group) -> bool) -> Vec<Choice> {
    let choice =
        |(id, g): (&base::GroupId, &Group)| Some(Choice { group: *id, replicas: g.pair()? });
    state.groups.iter().filter(|(_, g)| may(g)).filter_map(choice).collect()
}

/// Returns the command that grows a volume.
pub fn resize_volume_command(
    state: &State,
    name: &str,
    size: u64,
    limits: &Limits,
    used: &dyn Fn(DeviceId) -> u64,
) -> Result<Change, Refused> {
    let (id, old) = find(state, name)?;
    let size = whole_units(size)?;
    let command = Command::ResizeVolume(command::ResizeVolume { volume: id.0, size });
    let change = state.change(command)?;
    if old.thick && size > old.size {
        has_space(state, old.pool, size - old.size, limits, used)?;
    }
    Ok(change)
}

/// Returns the command that deletes a volume; `attached` returns the clients that use it.
/// Without `unmap` it is refused if named clients may use the volume, or any client does.
pub fn delete_volume_command(
    state: &State,
    name: &str,
    unmap: bool,
    attached: impl Fn(base::VolumeId) -> Vec<SdcId>,
) -> Result<Change, Refused> {
    let (id, old) = find(state, name)?;
    let volume = || String::from(name);
    let names = |of: &mut dyn Iterator<Item = SdcId>| {
        let names: Vec<&str> =
            of.filter_map(|sdc| state.sdcs.get(&sdc).map(|s| &*s.name)).collect();
        names.join(", ")
    };
    let named = old.mapping.named().filter(|list| !list.is_empty() && !unmap);
    if let Some(list) = named {
        let sdcs = names(&mut list.keys().copied());
        return Err(Refused::StillMapped { volume: volume(), sdcs });
    }
    let hosts = old.mapping.hosts().named().filter(|list| !list.is_empty() && !unmap);
    if let Some(list) = hosts {
        let host = list.keys().next().cloned().unwrap_or_default();
        return Err(Refused::StillMappedToHosts { volume: volume(), host, count: list.len() });
    }
    let users = if unmap { Vec::new() } else { attached(id) };
    if !users.is_empty() {
        let sdcs = names(&mut users.into_iter());
        return Err(Refused::InUse { volume: volume(), sdcs });
    }
    state.change(Command::DeleteVolume(command::DeleteVolume { volume: id.0 }))
}

/// Returns the commands to scrub a device, or all (0): one for each that keeps its content.
pub fn scrub_commands(state: &State, device: u32) -> Result<Vec<Command>, Refused> {
    let meant = |id: &DeviceId| device == 0 || id.0 == device;
    let found = state.devices.iter().filter(|(id, _)| meant(id));
    if device != 0 && !state.devices.contains_key(&DeviceId(device)) {
        return Err(Refused::NoDevice(device));
    }
    let kept = found.filter(|(_, d)| survives(d.kind));
    let command = |(id, d): (&DeviceId, &Device)| {
        let number = d.scrub.saturating_add(1);
        Command::Scrub(command::Scrub { device: id.0, number })
    };
    Ok(kept.map(command).collect())
}

pub(crate) fn find<'a>(
    state: &'a State,
    name: &str,
) -> Result<(base::VolumeId, &'a crate::state::Volume), Refused> {
    check_name(name)?;
    state.volume_named(name).ok_or_else(|| Refused::NotFound(String::from(name)))
}

fn whole_units(size: u64) -> Result<u64, Refused> {
    let rounded = size.checked_next_multiple_of(u64::from(UNIT)).ok_or(Refused::TooBig(size))?;
    check_size(rounded).map(|()| rounded)
}

/// Returns the error for a process whose place another process has taken.
pub fn superseded(name: &str) -> String {
    format!("another process serves as {name:.64}: stop one")
}

fn check_peer(name: &str) -> Result<(), String> {
    if is_peer_name(name) {
        return Ok(());
    }
    Err(format!(
        "a server or client needs a name of 1 to {PEER_NAME_MAX} bytes without control characters"
    ))
}

//! The whole state as bytes, for the log's snapshots.
//!
//! Protocol Buffers, as everywhere: tags are part of the format, never reuse one. Derived values
//! (next ids, indexes) are computed when a snapshot is read.

use crate::command::{self, Awaited, Forget, Told};
use crate::group::{Doubt, Group};
use crate::mapping::Mapping;
use crate::members::Member;
use crate::objects::{Domain, FaultSet, Objects, Pool};
use crate::publish::{device_info, gaps, group_info, store_info, volume_info};
use crate::recovery::{JUMP, Recovery};
use crate::reserve::{Asked, table};
use crate::seat::seats;
use crate::state::naming;
use crate::state::{Device, GroupIndex, Sdc, Server, State, Volume};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base::{
    ClusterId, DeviceId, DomainId, Epoch, FaultSetId, GroupId, Incarnation, MapVersion, Mutant,
    PoolId, SdcId, SdsId, VolumeId, level, mutant,
};
use prost::Message;
use wire::control::{
    AcceptedLoss, DeviceInfo, GroupInfo, IdRange, MdmInfo, ObjectKind, ReserveOutcome, StoreInfo,
    UnknownValue, VolumeInfo, known, level_of,
};

#[derive(Clone, PartialEq, Message)]
struct Snapshot {
    #[prost(uint64, tag = "1")]
    cluster: u64,
    #[prost(uint64, tag = "2")]
    index: u64,
    #[prost(uint64, tag = "3")]
    version: u64,
    #[prost(uint32, tag = "4")]
    next_volume: u32,
    #[prost(uint64, tag = "5")]
    next_incarnation: u64,
    #[prost(message, repeated, tag = "6")]
    servers: Vec<ServerRecord>,
    #[prost(message, repeated, tag = "7")]
    devices: Vec<DeviceRecord>,
    #[prost(message, repeated, tag = "8")]
    groups: Vec<GroupRecord>,
    #[prost(message, repeated, tag = "9")]
    volumes: Vec<VolumeRecord>,
    #[prost(message, repeated, tag = "10")]
    sdcs: Vec<SdcRecord>,
    #[prost(message, repeated, tag = "30")]
    members: Vec<MdmInfo>,
    #[prost(uint32, tag = "31")]
    last_member: u32,
    #[prost(uint64, tag = "32")]
    members_changed_at: u64,
    #[prost(message, optional, tag = "50")]
    objects: Option<ObjectsRecord>,
    /// Absent if there was no recovery.
    #[prost(message, optional, tag = "80")]
    recovery: Option<RecoveryRecord>,
    /// 0 in snapshots from before clients could be removed.
    #[prost(uint32, tag = "81")]
    last_sdc: u32,
    #[prost(uint64, tag = "82")]
    sdcs_gone_at: u64,
    /// In snapshots from before `removed_ranges`.
    #[prost(uint32, repeated, tag = "83")]
    removed_sdcs: Vec<u32>,
    #[prost(message, repeated, tag = "84")]
    removed_ranges: Vec<IdRange>,
    /// Read before anything else ([`level_of`]). 0 in snapshots from before there were levels.
    #[prost(uint32, tag = "90")]
    level: u32,
}

#[derive(Clone, PartialEq, Message)]
struct RecoveryRecord {
    #[prost(uint32, tag = "1")]
    number: u32,
    #[prost(bool, tag = "2")]
    open: bool,
    #[prost(string, tag = "3")]
    by: String,
    #[prost(uint64, tag = "4")]
    at: u64,
    #[prost(uint64, tag = "5")]
    version: u64,
    #[prost(uint32, tag = "6")]
    device: u32,
    #[prost(uint32, tag = "7")]
    server: u32,
    #[prost(uint32, tag = "8")]
    group: u32,
    #[prost(uint32, tag = "9")]
    sdc: u32,
    /// In snapshots from before `unknown`: the first volume id that this MDM had not given away.
    #[prost(uint32, tag = "10")]
    volume: u32,
    #[prost(uint32, tag = "11")]
    sdc_known: u32,
    #[prost(message, repeated, tag = "12")]
    unknown: Vec<IdRange>,
    #[prost(uint32, repeated, tag = "13")]
    left: Vec<u32>,
    #[prost(message, optional, tag = "14")]
    forgot: Option<Forget>,
    /// 0 in snapshots from before this field.
    #[prost(uint64, tag = "15")]
    began: u64,
    /// 0 in snapshots of earlier builds.
    #[prost(uint64, tag = "16")]
    lost_from: u64,
    #[prost(uint64, tag = "17")]
    lost_to: u64,
    #[prost(message, repeated, tag = "18")]
    awaited: Vec<Awaited>,
    #[prost(message, repeated, tag = "19")]
    emptied: Vec<StoreInfo>,
    #[prost(message, repeated, tag = "20")]
    replaced: Vec<ReplacedRecord>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ReplacedRecord {
    #[prost(uint32, tag = "1")]
    device: u32,
    #[prost(uint64, tag = "2")]
    epoch: u64,
}

/// Absent in snapshots from before there were objects: then there are those of a new cluster.
#[derive(Clone, PartialEq, Message)]
struct ObjectsRecord {
    #[prost(string, tag = "1")]
    system: String,
    #[prost(message, repeated, tag = "2")]
    list: Vec<command::PutObject>,
    #[prost(uint32, tag = "3")]
    last_domain: u32,
    #[prost(uint32, tag = "4")]
    last_fault_set: u32,
    #[prost(uint32, tag = "5")]
    last_pool: u32,
    /// 0 in snapshots from before pools had policies: then the map has none to tell.
    #[prost(uint64, tag = "6")]
    changed_at: u64,
}

#[derive(Clone, PartialEq, Message)]
struct ServerRecord {
    #[prost(uint32, tag = "1")]
    id: u32,
    #[prost(string, tag = "2")]
    own: String,
    /// Empty: the name that its processes give.
    #[prost(string, tag = "3")]
    name: String,
    /// 0, from builds without domains: the first one.
    #[prost(uint32, tag = "4")]
    domain: u32,
    #[prost(uint32, tag = "5")]
    fault_set: u32,
}

#[derive(Clone, PartialEq, Message)]
struct DeviceRecord {
    #[prost(message, required, tag = "1")]
    info: DeviceInfo,
    #[prost(uint64, tag = "2")]
    changed_at: u64,
    #[prost(uint32, tag = "3")]
    shard: u32,
    #[prost(uint64, tag = "4")]
    nonce: u64,
    #[prost(uint64, repeated, tag = "5")]
    past: Vec<u64>,
    #[prost(uint64, tag = "6")]
    store: u64,
    #[prost(uint32, tag = "7")]
    pid: u32,
    /// From level 2 on.
    #[prost(string, tag = "90")]
    release: String,
}

#[derive(Clone, PartialEq, Message)]
struct GroupRecord {
    #[prost(message, required, tag = "1")]
    info: GroupInfo,
    #[prost(uint64, tag = "2")]
    changed_at: u64,
    #[prost(uint32, repeated, tag = "3")]
    filling: Vec<u32>,
    // An earlier build used tag 4.
    #[prost(message, optional, tag = "5")]
    told: Option<Told>,
}

#[derive(Clone, PartialEq, Message)]
struct VolumeRecord {
    #[prost(message, required, tag = "1")]
    info: VolumeInfo,
    #[prost(uint64, tag = "2")]
    changed_at: u64,
    #[prost(message, repeated, tag = "3")]
    losses: Vec<AcceptedLoss>,
    #[prost(message, repeated, tag = "4")]
    asked: Vec<AskedRecord>,
}

/// The last change of a volume's reservations that a client has requested.
#[derive(Clone, Copy, PartialEq, Message)]
struct AskedRecord {
    #[prost(uint32, tag = "1")]
    sdc: u32,
    #[prost(uint64, tag = "2")]
    incarnation: u64,
    #[prost(uint64, tag = "3")]
    number: u64,
    #[prost(enumeration = "ReserveOutcome", tag = "4")]
    outcome: i32,
}

#[derive(Clone, PartialEq, Message)]
struct SdcRecord {
    #[prost(uint32, tag = "1")]
    id: u32,
    #[prost(string, tag = "2")]
    own: String,
    #[prost(uint64, tag = "3")]
    incarnation: u64,
    #[prost(uint64, tag = "4")]
    nonce: u64,
    #[prost(uint64, repeated, tag = "5")]
    past: Vec<u64>,
    #[prost(uint32, tag = "6")]
    pid: u32,
    #[prost(string, repeated, tag = "7")]
    uris: Vec<String>,
    /// Empty: the name that its processes give.
    #[prost(string, tag = "8")]
    name: String,
    #[prost(uint32, optional, tag = "9")]
    gateway: Option<u32>,
    #[prost(uint64, tag = "70")]
    changed_at: u64,
}

impl State {
    /// Returns the state as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let snapshot = Snapshot {
            cluster: self.cluster.0,
            index: self.index,
            version: self.version.0,
            next_volume: self.next_volume.0,
            next_incarnation: self.next_incarnation.0,
            servers: self.servers.iter().map(|(id, s)| server_record(*id, s)).collect(),
            devices: self.devices.iter().map(|(id, d)| device_record(*id, d)).collect(),
            groups: self.groups.iter().map(|(id, g)| group_record(*id, g)).collect(),
            volumes: self.volumes.iter().map(|(id, v)| volume_record(*id, v)).collect(),
            sdcs: self.sdcs.iter().map(|(id, s)| sdc_record(*id, s)).collect(),
            members: self.members.infos(),
            last_member: self.members.last_id,
            members_changed_at: self.members.changed_at.0,
            objects: Some(objects_record(&self.objects)),
            recovery: (self.recovery.number > 0).then(|| recovery_record(&self.recovery)),
            last_sdc: self.last_sdc.0,
            sdcs_gone_at: self.sdcs_gone_at.0,
            removed_sdcs: Vec::new(),
            removed_ranges: self
                .removed_sdcs
                .ranges()
                .map(|r| IdRange { from: r.start, to: r.end })
                .collect(),
            level: self.level,
        };
        snapshot.encode_to_vec()
    }

    /// Reads such bytes as this release does.
    pub fn from_bytes(bytes: &[u8]) -> Result<State, String> {
        State::read(bytes, level::LEVEL)
    }

    /// Reads such bytes, as in a build that knows levels up to `level_max`. An error says why they
    /// are not a state. A higher level is refused before anything else is read.
    pub fn read(bytes: &[u8], level_max: u32) -> Result<State, String> {
        let level = level_of(bytes).map_err(|e| format!("{e}"))?;
        if level > level_max && !mutant::on(Mutant::AnySnapshot) {
            return Err(format!(
                "it is of a cluster of level {level}, and this build knows levels up to {level_max}: \
                 update it"
            ));
        }
        let s = Snapshot::decode(bytes).map_err(|e| format!("{e}"))?;
        // Every field of a snapshot belongs to a level, and those of this level are all known.
        if s.encoded_len() != bytes.len() && !mutant::on(Mutant::AnySnapshot) {
            return Err(String::from(
                "it has fields that this build doesn't know, or is damaged: update it",
            ));
        }
        s.check().map_err(|unknown| format!("{unknown} is not known to this build: update it"))?;
        let early = s.devices.iter().any(|d| !d.release.is_empty());
        if early && level < level::of_field("DeviceUp.release") && !mutant::on(Mutant::AnySnapshot)
        {
            return Err(String::from("it has fields of a higher level than its own"));
        }
        let mut state = State {
            cluster: ClusterId(s.cluster),
            level,
            index: s.index,
            version: MapVersion(s.version),
            next_volume: VolumeId(s.next_volume),
            next_incarnation: Incarnation(s.next_incarnation),
            recovery: s.recovery.map_or_else(Recovery::default, |r| recovery(r, s.next_volume)),
            ..State::new()
        };
        state.servers.extend(s.servers.into_iter().map(server));
        naming::name_units(&mut state);
        state.objects = s.objects.map_or_else(Objects::default, objects);
        state.devices.extend(s.devices.into_iter().map(|r| (DeviceId(r.info.id), device(r))));
        state.groups.extend(s.groups.into_iter().map(|r| (GroupId(r.info.id), group(r))));
        for r in s.volumes {
            let id = VolumeId(r.info.id);
            let wrong = || format!("the reservations of {id} can't be");
            state.volumes.insert(id, volume(r).ok_or_else(wrong)?);
        }
        state.sdcs.extend(s.sdcs.into_iter().map(|r| (SdcId(r.id), sdc(r))));
        let last = state.sdcs.last_key_value().map_or(SdcId(0), |(id, _)| *id);
        state.last_sdc = last.max(SdcId(s.last_sdc));
        state.sdcs_gone_at = MapVersion(s.sdcs_gone_at);
        let single = s.removed_sdcs.into_iter().map(|id| id..id.saturating_add(1));
        let ranges = s.removed_ranges.into_iter().map(|r| r.from..r.to);
        single.chain(ranges).for_each(|ids| state.removed_sdcs.insert(ids));
        state.members.list.extend(s.members.into_iter().map(member));
        state.members.last_id = s.last_member;
        state.members.changed_at = MapVersion(s.members_changed_at);
        state.group_index = GroupIndex::of(&state.groups, state.volumes.values());
        state.check()?;
        Ok(state)
    }
}

impl Snapshot {
    /// Returns an error for values that this build does not know: they must not be taken for
    /// others.
    fn check(&self) -> Result<(), UnknownValue> {
        self.devices.iter().try_for_each(|d| d.info.check())?;
        self.groups.iter().try_for_each(|g| g.info.check())?;
        self.volumes.iter().try_for_each(|v| v.info.check())?;
        let asked = self.volumes.iter().flat_map(|v| &v.asked).map(|a| a.outcome);
        asked.into_iter().try_for_each(|n| known::<ReserveOutcome>("ReserveOutcome", n))?;
        self.objects.iter().flat_map(|o| &o.list).try_for_each(command::PutObject::check)
    }
}

fn server_record(id: SdsId, s: &Server) -> ServerRecord {
    ServerRecord {
        id: id.0,
        own: s.own.clone(),
        name: s.name.clone(),
        domain: s.domain.0,
        fault_set: s.fault_set.map_or(0, |f| f.0),
    }
}

fn server(r: ServerRecord) -> (SdsId, Server) {
    let id = SdsId(r.id);
    let fault_set = Some(FaultSetId(r.fault_set)).filter(|f| f.0 != 0);
    let name = if r.name.is_empty() { r.own.clone() } else { r.name };
    (id, Server { own: r.own, name, domain: DomainId(r.domain.max(1)), fault_set, unit: id })
}

fn objects_record(o: &Objects) -> ObjectsRecord {
    let put = |kind: ObjectKind, id: u32, name: &String, domain: u32| command::PutObject {
        kind: kind as i32,
        id,
        name: name.clone(),
        domain,
        ..command::PutObject::default()
    };
    let domains = o.domains.iter().map(|(id, d)| put(ObjectKind::Domain, id.0, &d.name, 0));
    let sets =
        o.fault_sets.iter().map(|(id, f)| put(ObjectKind::FaultSet, id.0, &f.name, f.domain.0));
    let pools = o.pools.iter().map(|(id, p)| p.put(*id));
    ObjectsRecord {
        system: o.system.clone(),
        list: domains.chain(sets).chain(pools).collect(),
        last_domain: o.last_domain,
        last_fault_set: o.last_fault_set,
        last_pool: o.last_pool,
        changed_at: o.changed_at.0,
    }
}

fn objects(r: ObjectsRecord) -> Objects {
    let mut o = Objects {
        system: r.system,
        domains: BTreeMap::new(),
        fault_sets: BTreeMap::new(),
        pools: BTreeMap::new(),
        last_domain: r.last_domain,
        last_fault_set: r.last_fault_set,
        last_pool: r.last_pool,
        changed_at: MapVersion(r.changed_at),
    };
    for put in r.list {
        let domain = DomainId(put.domain);
        match put.kind() {
            ObjectKind::Domain => {
                drop(o.domains.insert(DomainId(put.id), Domain { name: put.name }));
            }
            ObjectKind::FaultSet => {
                drop(o.fault_sets.insert(FaultSetId(put.id), FaultSet { name: put.name, domain }));
            }
            _ => {
                let pool = Pool::new(put.name.clone(), domain).said(&put);
                drop(o.pools.insert(PoolId(put.id), pool));
            }
        }
    }
    o
}

fn recovery_record(r: &Recovery) -> RecoveryRecord {
    RecoveryRecord {
        number: r.number,
        open: r.open,
        by: r.by.clone(),
        at: r.at,
        version: r.version.0,
        began: r.began.0,
        lost_from: r.lost.start.0,
        lost_to: r.lost.end.0,
        awaited: r.awaited.iter().map(Awaited::of).collect(),
        emptied: r.emptied.iter().map(|(d, store)| store_info(*d, *store)).collect(),
        replaced: r.replaced.iter().map(|(d, epoch)| replaced_record(*d, *epoch)).collect(),
        device: r.device,
        server: r.server,
        group: r.group,
        sdc: r.sdc,
        volume: 0,
        sdc_known: r.sdc_known,
        unknown: r.unknown.iter().map(IdRange::of).collect(),
        left: r.left.clone(),
        forgot: r.forgot.clone(),
    }
}

fn replaced_record(device: DeviceId, epoch: u64) -> ReplacedRecord {
    ReplacedRecord { device: device.0, epoch }
}

fn recovery(r: RecoveryRecord, next_volume: u32) -> Recovery {
    let all = IdRange { from: r.volume, to: next_volume };
    let old = (r.open && r.volume > 0).then_some(all);
    let unknown = r.unknown.into_iter().chain(old);
    let began = if r.began > 0 { r.began } else { r.version + JUMP };
    let lost = match r.lost_to {
        0 => r.version + 1..began,
        to => r.lost_from..to,
    };
    Recovery {
        number: r.number,
        open: r.open,
        by: r.by,
        at: r.at,
        version: MapVersion(r.version),
        began: MapVersion(began),
        lost: MapVersion(lost.start)..MapVersion(lost.end),
        awaited: r.awaited.iter().map(Awaited::entry).collect(),
        emptied: r.emptied.iter().map(|s| (DeviceId(s.device), s.store)).collect(),
        replaced: r.replaced.iter().map(|r| (DeviceId(r.device), r.epoch)).collect(),
        device: r.device,
        server: r.server,
        group: r.group,
        sdc: r.sdc,
        sdc_known: r.sdc_known,
        unknown: unknown.map(|r| r.ids()).collect(),
        left: r.left,
        forgot: r.forgot,
    }
}

fn member(info: MdmInfo) -> (u32, Member) {
    let MdmInfo { id, name, address, tie_breaker } = info;
    (id, Member { name, address, tie_breaker })
}

fn device_record(id: DeviceId, d: &Device) -> DeviceRecord {
    DeviceRecord {
        info: device_info(id, d),
        changed_at: d.changed_at.0,
        shard: d.shard,
        nonce: d.nonce,
        past: d.past.clone(),
        store: d.store,
        pid: d.pid,
        release: d.release.clone(),
    }
}

fn device(r: DeviceRecord) -> Device {
    Device {
        sds: SdsId(r.info.sds),
        shard: r.shard,
        incarnation: Incarnation(r.info.incarnation),
        nonce: r.nonce,
        past: r.past,
        store: r.store,
        kind: r.info.kind(),
        capacity: r.info.capacity,
        scrub: r.info.scrub,
        intent: r.info.intent(),
        pool: PoolId(r.info.pool.max(1)),
        pid: r.pid,
        release: r.release,
        up: r.info.up,
        dead: r.info.dead,
        address: r.info.address,
        changed_at: MapVersion(r.changed_at),
    }
}

fn group_record(id: GroupId, g: &Group) -> GroupRecord {
    let filling = g.filling.iter().map(|d| d.0).collect();
    let (changed_at, told) = (g.changed_at.0, g.told.as_deref().cloned());
    // `told` has the rest.
    let info = GroupInfo { doubt: g.doubt as u32, reached: 0, ..group_info(id, g) };
    GroupRecord { info, changed_at, filling, told }
}

fn group(r: GroupRecord) -> Group {
    let ids = |of: Vec<u32>| of.into_iter().map(DeviceId).collect();
    Group {
        epoch: Epoch(r.info.epoch),
        primary: Some(DeviceId(r.info.primary)).filter(|p| p.0 != 0),
        replicas: ids(r.info.replicas),
        in_sync: ids(r.info.in_sync),
        joiners: ids(r.info.joiners),
        leaving: Some(DeviceId(r.info.leaving)).filter(|d| d.0 != 0),
        lost: r.info.lost,
        doubt: match r.info.doubt {
            0 => Doubt::None,
            1 => Doubt::Reports,
            2 => Doubt::Gone,
            other => unreachable!("doubt {other} was refused by `Snapshot::check`"),
        },
        told: r.told.map(Box::new),
        filling: ids(r.filling),
        changed_at: MapVersion(r.changed_at),
    }
}

fn volume_record(id: VolumeId, v: &Volume) -> VolumeRecord {
    let asked = |(sdc, a): (&SdcId, &Asked)| AskedRecord {
        sdc: sdc.0,
        incarnation: a.incarnation,
        number: a.number,
        outcome: a.outcome as i32,
    };
    VolumeRecord {
        info: volume_info(id, v),
        changed_at: v.changed_at.0,
        losses: v.losses.clone(),
        asked: v.asked.iter().map(asked).collect(),
    }
}

/// Returns `None` if its reservations can't be.
fn volume(r: VolumeRecord) -> Option<Volume> {
    let asked = |a: AskedRecord| {
        let (incarnation, number, outcome) = (a.incarnation, a.number, a.outcome());
        (SdcId(a.sdc), Asked { incarnation, number, outcome })
    };
    Some(Volume {
        name: r.info.name,
        size: r.info.size,
        generation: r.info.generation,
        mapping: Mapping::of(r.info.mapping),
        pool: PoolId(r.info.pool.max(1)),
        thick: r.info.thick,
        slots: r.info.slots.into_iter().map(GroupId).collect(),
        losses: r.losses,
        gaps: gaps(&r.info.gaps),
        reservations: table(r.info.reservations.as_ref())?,
        asked: r.asked.into_iter().map(asked).collect(),
        seats: seats(r.info.seats),
        changed_at: MapVersion(r.changed_at),
    })
}

fn sdc_record(id: SdcId, s: &Sdc) -> SdcRecord {
    SdcRecord {
        id: id.0,
        own: s.own.clone(),
        name: s.name.clone(),
        incarnation: s.incarnation.0,
        nonce: s.nonce,
        past: s.past.clone(),
        pid: s.pid,
        uris: s.uris.clone(),
        gateway: s.gateway.map(u32::from),
        changed_at: s.changed_at.0,
    }
}

fn sdc(r: SdcRecord) -> Sdc {
    let name = if r.name.is_empty() { r.own.clone() } else { r.name };
    Sdc {
        own: r.own,
        name,
        incarnation: Incarnation(r.incarnation),
        nonce: r.nonce,
        past: r.past,
        pid: r.pid,
        uris: r.uris,
        gateway: r.gateway.and_then(|number| number.try_into().ok()),
        changed_at: MapVersion(r.changed_at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_recovery_of_an_earlier_build_keeps_the_list_of_unknown_volumes() {
        let unknown = |open| {
            let record = RecoveryRecord { open, volume: 5, ..RecoveryRecord::default() };
            recovery(record, 9).unknown
        };
        assert_eq!(unknown(true), [VolumeId(5)..VolumeId(9)]);
        assert_eq!(unknown(false), []);
    }

    #[test]
    fn a_snapshot_that_this_build_does_not_understand_is_refused() {
        let mut state = State { cluster: ClusterId(7), level: 2, ..State::new() };
        let refused = |bytes: &[u8]| State::read(bytes, 1).unwrap_err();
        let bytes = state.to_bytes();
        assert_eq!(State::read(&bytes, 2), Ok(state.clone()));
        assert!(refused(&bytes).contains("level 2"));
        // The level is found even where the rest can't be read.
        let unreadable = [&bytes[..], &[0x0d, 1, 2, 3, 4]].concat();
        assert!(refused(&unreadable).contains("level 2"), "{}", refused(&unreadable));
        state.level = 1;
        let bytes = state.to_bytes();
        assert_eq!(State::read(&bytes, 1), Ok(state));
        let unknown_field = [&bytes[..], &[0xf8, 0x3f, 1]].concat();
        assert!(refused(&unknown_field).contains("fields that this build doesn't know"));
        let info = DeviceInfo { id: 1, intent: 6, ..DeviceInfo::default() };
        let device = DeviceRecord { info, ..DeviceRecord::default() };
        let s = Snapshot { devices: Vec::from([device]), ..Snapshot::default() };
        assert!(refused(&s.encode_to_vec()).contains("Intent 6"));
        let info = GroupInfo { id: 1, doubt: 3, ..GroupInfo::default() };
        let group = GroupRecord { info, ..GroupRecord::default() };
        let s = Snapshot { groups: Vec::from([group]), ..Snapshot::default() };
        assert!(refused(&s.encode_to_vec()).contains("Doubt 3"));
    }

    #[test]
    fn removed_clients_of_an_earlier_build_are_known() {
        let record = RecoveryRecord { number: 1, sdc: 1000, ..RecoveryRecord::default() };
        let removed_sdcs = Vec::from([5, 6, 9]);
        let s = Snapshot { recovery: Some(record), removed_sdcs, ..Snapshot::default() };
        let state = State::from_bytes(&s.encode_to_vec()).unwrap();
        assert_eq!(state.removed_sdcs.ranges().collect::<Vec<_>>(), [5..7, 9..10]);
        assert_eq!(State::from_bytes(&state.to_bytes()), Ok(state));
    }
}

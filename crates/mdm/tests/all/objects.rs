//! Protection domains, fault sets, storage pools and mappings: how they are made and removed, what
//! is refused, and how placement and the healer use them.

use crate::common::*;
use base::{
    DeviceId, Duration, GroupId, Limits, MapVersion, Policy, PoolId, SdcId, SdsId, Time, VolumeId,
};
use mdm::command::*;
use mdm::controller;
use mdm::controller::Registration;
use mdm::healer::Healer;
use mdm::maintenance;
use mdm::mapping::Mapping;
use mdm::object_orders;
use mdm::observed::{Observed, Seen};
use mdm::removal;
use mdm::status;
use mdm::{Command, Outcome, Refused, State};
use std::collections::BTreeSet;
use wire::control::{self, Access, DeviceKind, Heartbeat, Intent, MapTo, ObjectKind};

fn formed() -> State {
    let mut state = State::new();
    apply(&mut state, &Command::FormCluster(FormCluster { cluster: 7 }));
    state
}

fn make(state: &mut State, kind: ObjectKind, name: &str, domain: &str) -> Result<(), Refused> {
    let ask = control::CreateObject {
        kind: kind as i32,
        name: name.into(),
        domain: domain.into(),
        ..Default::default()
    };
    let command = object_orders::create_object_command(state, &ask)?;
    assert_eq!(apply(state, &command), Outcome::Changed);
    Ok(())
}

fn remove(state: &mut State, kind: ObjectKind, name: &str) -> Result<(), Refused> {
    let ask = control::RemoveObject { kind: kind as i32, name: name.into() };
    let command = object_orders::remove_object_command(state, &ask, |_| false)?;
    assert_eq!(apply(state, &command), Outcome::Changed);
    Ok(())
}

fn rename(state: &mut State, kind: ObjectKind, name: &str, to: &str) -> Result<(), Refused> {
    let ask = control::RenameRequest { kind: kind as i32, name: name.into(), to: to.into() };
    let command = object_orders::rename_command(state, &ask)?;
    assert_eq!(apply(state, &command), Outcome::Changed);
    Ok(())
}

/// Registers a device of a server with these words.
fn register(
    state: &mut State,
    sds: &str,
    shard: u32,
    home: (&str, &str, &str),
) -> Result<DeviceId, String> {
    let device = state.next_device().0;
    let m = control::Register {
        sds: sds.into(),
        shard,
        address: format!("10.0.0.{device}:7000"),
        nonce: u64::from(device) + 100,
        store: u64::from(device) + 200,
        capacity: 1 << 30,
        kind: DeviceKind::Durable as i32,
        domain: home.0.into(),
        fault_set: home.1.into(),
        pool: home.2.into(),
        ..Default::default()
    };
    match state.register(&m, false, None) {
        Registration::New(id, command) => {
            assert_eq!(apply(state, &command), Outcome::Changed);
            Ok(id)
        }
        Registration::WrongPlace(text) => Err(text),
        other => panic!("{other:?}"),
    }
}

fn client(state: &mut State, name: &str) -> SdcId {
    let m = control::RegisterSdc { name: name.into(), nonce: 5, ..Default::default() };
    match state.register_sdc(&m, false) {
        Registration::New(id, command) => {
            assert_eq!(apply(state, &command), Outcome::Changed);
            id
        }
        Registration::Known(id) => id,
        other => panic!("{other:?}"),
    }
}

fn create_in(state: &mut State, pool: &str, m: control::CreateVolume) -> Result<VolumeId, Refused> {
    let ask = control::CreateVolume { pool: pool.into(), ..m };
    let command = controller::create_volume_command(state, &ask, &limits(), &|_| 0)?;
    assert_eq!(apply(state, &command), Outcome::Changed);
    Ok(state.volume_named(&ask.name).unwrap().0)
}

fn plain(name: &str) -> control::CreateVolume {
    control::CreateVolume { name: name.into(), size: 8 << 20, ..Default::default() }
}

#[test]
fn objects_come_and_go_and_every_refusal_says_why() {
    use ObjectKind::{Domain, FaultSet, Pool};
    let mut s = formed();
    make(&mut s, Domain, "east", "").unwrap();
    assert_eq!(make(&mut s, Domain, "east", ""), Err(Refused::ObjectTaken(Domain, "east".into())));
    assert_eq!(make(&mut s, Pool, "fast", ""), Err(Refused::Which(Domain)));
    let none = Err(Refused::NoObject(Domain, "west".into()));
    assert_eq!(make(&mut s, Pool, "fast", "west"), none);
    make(&mut s, Pool, "fast", "east").unwrap();
    make(&mut s, FaultSet, "rack1", "east").unwrap();
    let not_empty = remove(&mut s, Domain, "east").unwrap_err();
    assert!(
        not_empty.to_string().contains("still has 2 storage pools and fault sets"),
        "{not_empty}"
    );
    assert!(make(&mut s, Pool, "", "east").is_err());

    let bad = register(&mut s, "a", 0, ("", "", "")).unwrap_err();
    assert!(bad.contains("say which one"), "{bad}");
    let bad = register(&mut s, "a", 0, ("default", "rack1", "")).unwrap_err();
    assert!(bad.contains("of another protection domain"), "{bad}");
    let bad = register(&mut s, "a", 0, ("east", "rack9", "")).unwrap_err();
    assert!(bad.contains("gabion fault-set create"), "{bad}");
    let bad = register(&mut s, "a", 0, ("east", "rack1", "default")).unwrap_err();
    assert!(bad.contains("of another protection domain"), "{bad}");
    let a = register(&mut s, "a", 0, ("east", "rack1", "")).unwrap();
    assert_eq!(s.devices[&a].pool, PoolId(2), "the only one of its domain");

    for (kind, name) in [(Pool, "fast"), (FaultSet, "rack1"), (Domain, "east")] {
        let refused = remove(&mut s, kind, name).unwrap_err();
        assert!(matches!(refused, Refused::NotEmpty { count: 1, .. }), "{refused}");
    }
    remove(&mut s, Pool, "default").unwrap();
    remove(&mut s, Domain, "default").unwrap();
    let last = remove(&mut s, Domain, "east").unwrap_err();
    assert!(matches!(last, Refused::NotEmpty { .. }), "{last}");
    make(&mut s, Pool, "slow", "").unwrap();
    assert_eq!(s.objects.named(Pool, "slow"), Some(3), "ids never come back");
    rename(&mut s, Pool, "slow", "bulk").unwrap();
    let taken = rename(&mut s, Pool, "bulk", "fast");
    assert_eq!(taken, Err(Refused::ObjectTaken(Pool, "fast".into())));
    rename(&mut s, ObjectKind::System, "", "lab").unwrap();
    assert_eq!(s.objects.system, "lab");
    remove(&mut s, Pool, "bulk").unwrap();
    let spare = control::SetPool { pool: "fast".into(), spare: Some(95), ..Default::default() };
    assert_eq!(object_orders::set_pool_command(&s, &spare), Err(Refused::Spare(95)));
    let spare = control::SetPool { spare: Some(34), ..spare };
    let command = object_orders::set_pool_command(&s, &spare).unwrap();
    apply(&mut s, &command);
    assert_eq!(s.objects.spare(PoolId(2), &limits()), 34);
    s.check().unwrap();
    assert_eq!(State::from_bytes(&s.to_bytes()), Ok(s));
}

#[test]
fn a_pools_policies_are_kept_told_once_and_refused_if_they_are_none() {
    let mut s = formed();
    let told = |s: &State, have| s.pages_since(have).pop().map(|page| page.pools);
    assert_eq!(told(&s, MapVersion(0)), Some(vec![]), "nothing was said");
    let before = s.version;
    let rebuild = Some(Policy::latency_percent(150, 1 << 20).into());
    let ask = control::SetPool { rebuild, ..Default::default() };
    let command = object_orders::set_pool_command(&s, &ask).unwrap();
    assert_eq!(apply(&mut s, &command), Outcome::Changed);
    let info = control::PoolInfo { id: 1, rebuild, rebalance: None, spare: None };
    assert_eq!(told(&s, before), Some(vec![info]));
    assert_eq!(apply(&mut s, &command), Outcome::Unchanged);

    // The map tells the spare, too: the devices' servers need it.
    let spare = Some(34);
    let kept = control::SetPool { spare, ..Default::default() };
    let command = object_orders::set_pool_command(&s, &kept).unwrap();
    apply(&mut s, &command);
    let info = control::PoolInfo { id: 1, rebuild, rebalance: None, spare };
    assert_eq!(told(&s, before), Some(vec![info]));

    // Settings that are not named stay; the rest of the map does not repeat them.
    let rebalance = Some(Policy::UNLIMITED.into());
    let both = control::SetPool { rebalance, ..Default::default() };
    let command = object_orders::set_pool_command(&s, &both).unwrap();
    apply(&mut s, &command);
    let info = control::PoolInfo { id: 1, rebuild, rebalance, spare };
    assert_eq!(told(&s, before), Some(vec![info]));
    let after = s.version;
    let status = status::object_status(&s, &limits(), |_| 0);
    let shown = status.iter().find(|o| o.kind() == ObjectKind::Pool).unwrap();
    assert_eq!((shown.rebuild, shown.rebalance), (rebuild, rebalance));
    register(&mut s, "a", 0, ("", "", "")).unwrap();
    assert_eq!(told(&s, after), Some(vec![]));
    assert_eq!(State::from_bytes(&s.to_bytes()), Ok(s.clone()));

    let endless = Policy::favour(1, 0).into();
    let ask = control::SetPool { rebuild: Some(endless), ..Default::default() };
    let refused = object_orders::set_pool_command(&s, &ask).unwrap_err();
    assert!(refused.to_string().contains("favour:TIMES:FLOOR"), "{refused}");
    let ask = control::CreateObject {
        kind: ObjectKind::Pool as i32,
        name: "fast".into(),
        rebalance: Some(endless),
        ..Default::default()
    };
    assert!(matches!(object_orders::create_object_command(&s, &ask), Err(Refused::Policy(_))));
}

#[test]
fn the_last_domain_and_the_last_pool_stay() {
    let mut s = formed();
    let last = Err(Refused::LastObject(ObjectKind::Pool, "default".into()));
    assert_eq!(remove(&mut s, ObjectKind::Pool, "default"), last);
    let refused = remove(&mut s, ObjectKind::Domain, "default").unwrap_err();
    assert!(matches!(refused, Refused::NotEmpty { count: 1, .. }), "it has the pool: {refused}");
}

/// Three racks with two servers each, of which each has a device in each of two pools.
fn racks() -> State {
    let mut s = formed();
    make(&mut s, ObjectKind::Pool, "fast", "").unwrap();
    for rack in ["r1", "r2", "r3"] {
        make(&mut s, ObjectKind::FaultSet, rack, "").unwrap();
        for n in 0..2 {
            let name = format!("{rack}-{n}");
            register(&mut s, &name, 0, ("", rack, "default")).unwrap();
            register(&mut s, &name, 1, ("", rack, "fast")).unwrap();
        }
    }
    s
}

/// Returns the fault units and the pools of every group's devices.
fn places(s: &State) -> Vec<(BTreeSet<SdsId>, BTreeSet<PoolId>)> {
    let of = |d: &DeviceId| (s.unit_of(*d).unwrap(), s.devices[d].pool);
    s.groups.values().map(|g| g.replicas.iter().map(of).unzip()).collect()
}

#[test]
fn copies_lie_on_two_fault_units_of_one_pool() {
    let mut s = racks();
    assert_eq!(create_in(&mut s, "", plain("v")), Err(Refused::Which(ObjectKind::Pool)));
    create_in(&mut s, "fast", plain("v")).unwrap();
    assert!(s.groups.values().all(|g| s.pool_of(g) == Some(PoolId(2))));
    create_in(&mut s, "default", plain("w")).unwrap();
    let all = places(&s);
    assert!(all.len() > 8 && all.iter().all(|(units, pools)| (units.len(), pools.len()) == (2, 1)));
    s.check().unwrap();
    assert_eq!(State::from_bytes(&s.to_bytes()), Ok(s.clone()), "units follow from the rest");

    // A group may not move to its other replica's rack, nor to the other pool.
    let (id, group) = s.groups.iter().next().unwrap();
    let [a, b] = group.pair().unwrap();
    let tries = s.devices.keys().filter(|d| ![a, b].contains(d));
    for d in tries {
        let shape = Shape {
            group: id.0,
            epoch: group.epoch.0,
            replicas: vec![a.0, d.0, b.0],
            leaving: b.0,
            acted: 0,
        };
        let command = Command::Reshape(Reshape { list: vec![shape] });
        let fits = s.unit_of(*d) != s.unit_of(a) && s.devices[d].pool == s.devices[&a].pool;
        assert_eq!(s.would_change(&command), fits, "{d} for {b} beside {a}");
    }
}

#[test]
fn one_rack_is_too_few_and_the_last_two_stay() {
    let mut s = formed();
    make(&mut s, ObjectKind::FaultSet, "r1", "").unwrap();
    make(&mut s, ObjectKind::FaultSet, "r2", "").unwrap();
    register(&mut s, "a", 0, ("", "r1", "")).unwrap();
    register(&mut s, "b", 0, ("", "r1", "")).unwrap();
    let refused = create_in(&mut s, "", plain("v")).unwrap_err();
    assert_eq!(refused, Refused::TooFewUnits { pool: "default".into(), up: 1 });
    register(&mut s, "c", 0, ("", "r2", "")).unwrap();
    create_in(&mut s, "", plain("v")).unwrap();
    let go = |s: &State, server: &str| {
        let ask = control::RemoveRequest { server: server.into(), ..Default::default() };
        removal::removal_command(s, &ask, &Observed::default(), &limits()).map(drop)
    };
    assert_eq!(go(&s, "c"), Err(Refused::LastUnit { pool: "default".into(), left: 1 }));
    assert_eq!(go(&s, "a"), Ok(()));
}

/// Returns how many groups get other devices from the healer after the servers of a rack died.
/// Other servers may be away somewhere else.
fn rebuilt(mut s: State, rack: SdsId, away: &[DeviceId]) -> (usize, Healer) {
    let limits = Limits { moves: 1000, moves_per_device: 1000, ..limits() };
    let mut seen = Observed::default();
    for id in s.devices.keys() {
        let mut one = Seen::default();
        one.connected = true;
        one.beat(Time::ZERO, Heartbeat::default());
        one.map = MapVersion(u64::MAX);
        seen.devices.insert(*id, one);
    }
    let in_rack = s.devices.keys().copied().filter(|d| s.unit_of(*d) == Some(rack));
    let lost: Vec<DeviceId> = in_rack.chain(away.iter().copied()).collect();
    for device in &lost {
        let life = s.devices[device].incarnation.0;
        apply(&mut s, &down(device.0, life, true));
    }
    let mut healer = Healer::default();
    let mut now = Time(1);
    let mut shaped = 0;
    for _ in 0..3 {
        for command in healer.work(now, &s, &seen, &limits) {
            if let Command::Reshape(c) = &command {
                shaped += c.list.len();
                for shape in &c.list {
                    let staying = shape.replicas.iter().filter(|d| **d != shape.leaving);
                    let units: BTreeSet<_> = staying.map(|d| s.unit_of(DeviceId(*d))).collect();
                    let pools: BTreeSet<_> =
                        shape.replicas.iter().map(|d| s.devices[&DeviceId(*d)].pool).collect();
                    assert_eq!((units.len(), pools.len()), (2, 1), "{shape:?}");
                    assert!(!units.contains(&Some(rack)), "{shape:?}");
                }
            }
            apply(&mut s, &command);
        }
        now = now + limits.rebuild_after + Duration::from_secs(1);
    }
    s.check().unwrap();
    (shaped, healer)
}

#[test]
fn a_lost_rack_is_rebuilt_on_others_of_the_pool() {
    let mut s = racks();
    create_in(&mut s, "fast", plain("v")).unwrap();
    let rack = s.unit_of(DeviceId(1)).unwrap();
    let (shaped, healer) = rebuilt(s, rack, &[]);
    assert!(shaped > 0 && !healer.is_held_back(), "a rack is one accident");
}

#[test]
fn a_domain_that_is_off_keeps_no_other_one_waiting() {
    let mut s = racks();
    create_in(&mut s, "fast", plain("v")).unwrap();
    make(&mut s, ObjectKind::Domain, "lab", "").unwrap();
    make(&mut s, ObjectKind::Pool, "bench", "lab").unwrap();
    let lab = register(&mut s, "lab1", 0, ("lab", "", "bench")).unwrap();
    let rack = s.unit_of(DeviceId(1)).unwrap();
    let (shaped, healer) = rebuilt(s, rack, &[lab]);
    assert!(shaped > 0 && healer.is_held_back(), "{shaped} groups get other devices");
}

#[test]
fn thick_volumes_reserve_their_space_and_thin_ones_do_not() {
    let mut s = racks();
    // Six devices of 1 GiB, a tenth spare, two copies: 2.7 GiB and a bit less.
    let thick = |name: &str, mib: u64| control::CreateVolume {
        size: mib << 20,
        thick: true,
        ..plain(name)
    };
    create_in(&mut s, "fast", control::CreateVolume { size: 1 << 40, ..plain("thin") }).unwrap();
    create_in(&mut s, "fast", thick("a", 2048)).unwrap();
    let refused = create_in(&mut s, "fast", thick("b", 1024)).unwrap_err();
    assert!(matches!(refused, Refused::NoSpace { needed: 2_147_483_648, .. }), "{refused}");
    create_in(&mut s, "fast", thick("b", 512)).unwrap();
    assert_eq!(s.reserved(PoolId(2)), 2 * 2560 * base::MIB);
    let grow = controller::resize_volume_command(&s, "b", 1024 << 20, &limits(), &|_| 0);
    assert!(matches!(grow, Err(Refused::NoSpace { .. })), "{grow:?}");
    create_in(&mut s, "default", thick("c", 1024)).unwrap();
    let delete = controller::delete_volume_command(&s, "a", false, |_| Vec::new()).unwrap();
    apply(&mut s, &delete);
    create_in(&mut s, "fast", thick("d", 1024)).unwrap();
    let used = |_: DeviceId| 900 << 20;
    let refused = controller::create_volume_command(&s, &thick("e", 64), &limits(), &used);
    assert!(refused.is_err(), "what is written counts");
}

fn map(state: &mut State, volume: &str, to: &[(&str, Access)], only: bool) -> Result<(), Refused> {
    let to = to.iter().map(|(sdc, access)| MapTo { sdc: (*sdc).into(), access: *access as i32 });
    let ask =
        control::MapRequest { volume: volume.into(), to: to.collect(), only, hosts: Vec::new() };
    let command = mdm::mapping_orders::map_command(state, &ask)?;
    apply(state, &command);
    Ok(())
}

fn unmap(state: &mut State, volume: &str, sdcs: &[&str], all: bool) -> Result<(), Refused> {
    let sdcs = sdcs.iter().map(|s| String::from(*s)).collect();
    let ask = control::UnmapRequest { volume: volume.into(), sdcs, all, hosts: Vec::new() };
    let command = mdm::mapping_orders::unmap_command(state, &ask)?;
    apply(state, &command);
    Ok(())
}

#[test]
fn volumes_are_mapped_to_all_clients_or_to_named_ones() {
    use Access::{ReadOnly, ReadWrite};
    let mut s = racks();
    let (a, b) = (client(&mut s, "a"), client(&mut s, "b"));
    let v = create_in(&mut s, "fast", plain("v")).unwrap();
    let access = |s: &State, sdc| s.volumes[&v].mapping.grant(sdc).map(|g| g.access);
    assert_eq!(access(&s, a), Some(ReadWrite));
    let all = Refused::MappedToAll { volume: "v".into() };
    assert_eq!(map(&mut s, "v", &[("a", ReadWrite)], false), Err(all.clone()));
    assert_eq!(unmap(&mut s, "v", &["a"], false), Err(all));
    map(&mut s, "v", &[("a", ReadWrite)], true).unwrap();
    map(&mut s, "v", &[("b", ReadOnly)], false).unwrap();
    assert_eq!((access(&s, a), access(&s, b)), (Some(ReadWrite), Some(ReadOnly)));
    let none = Err(Refused::NoObject(ObjectKind::Sdc, "x".into()));
    assert_eq!(map(&mut s, "v", &[("x", ReadOnly)], false), none);
    let mapped = controller::delete_volume_command(&s, "v", false, |_| Vec::new()).unwrap_err();
    assert!(mapped.to_string().contains("is mapped to a, b: unmap it first"), "{mapped}");
    unmap(&mut s, "v", &["a"], false).unwrap();
    let not = Refused::NotMapped { volume: "v".into(), sdc: "a".into() };
    assert_eq!(unmap(&mut s, "v", &["a"], false), Err(not));
    assert_eq!(access(&s, a), None);
    unmap(&mut s, "v", &[], true).unwrap();
    assert_eq!(s.volumes[&v].mapping, Mapping::nobody());
    assert!(controller::delete_volume_command(&s, "v", false, |_| Vec::new()).is_ok());
    map(&mut s, "v", &[("", ReadWrite)], false).unwrap();
    let in_use = controller::delete_volume_command(&s, "v", false, |_| vec![b]).unwrap_err();
    assert!(in_use.to_string().contains("in use by b"), "{in_use}");
    assert!(controller::delete_volume_command(&s, "v", true, |_| vec![b]).is_ok());
    let to = vec![MapTo { sdc: "b".into(), access: ReadOnly as i32 }];
    let w = create_in(&mut s, "fast", control::CreateVolume { to, ..plain("w") }).unwrap();
    assert_eq!(s.volumes[&w].mapping.grant(a), None);
    let n = control::CreateVolume { unmapped: true, ..plain("n") };
    let n = create_in(&mut s, "fast", n).unwrap();
    assert_eq!(s.volumes[&n].mapping, Mapping::nobody());
    s.check().unwrap();
    assert_eq!(State::from_bytes(&s.to_bytes()), Ok(s));
}

#[test]
fn a_renamed_client_is_recognised_by_its_own_name() {
    let mut s = racks();
    let a = client(&mut s, "a");
    let b = client(&mut s, "b");
    rename(&mut s, ObjectKind::Sdc, "a", "web").unwrap();
    assert_eq!(client(&mut s, "a"), a, "it says `a`, as its file does");
    assert_eq!(s.sdc_named("web").map(|(id, _)| id), Some(a));
    let taken = |name: &str| Err(Refused::ObjectTaken(ObjectKind::Sdc, name.into()));
    assert_eq!(rename(&mut s, ObjectKind::Sdc, "b", "web"), taken("web"));
    assert_eq!(rename(&mut s, ObjectKind::Sdc, "b", "a"), taken("a"), "somebody says so of itself");
    let stranger = control::RegisterSdc { name: "web".into(), nonce: 9, ..Default::default() };
    assert!(matches!(s.register_sdc(&stranger, false), Registration::Bad(_)));
    assert_eq!(s.sdc_named("b").map(|(id, _)| id), Some(b));

    rename(&mut s, ObjectKind::Sds, "r1-0", "node1").unwrap();
    assert_eq!(s.server_of("r1-0"), s.server_named("node1"));
    let why = register(&mut s, "node1", 0, ("", "", "fast")).unwrap_err();
    assert!(why.contains("another server was given the name"), "{why}");
    rename(&mut s, ObjectKind::Volume, "x", "y").unwrap_err();
    create_in(&mut s, "fast", plain("v")).unwrap();
    create_in(&mut s, "fast", plain("w")).unwrap();
    rename(&mut s, ObjectKind::Volume, "v", "u").unwrap();
    assert!(rename(&mut s, ObjectKind::Volume, "u", "w").is_err());
    assert!(rename(&mut s, ObjectKind::Volume, "u", "a b").is_err());
    // Earlier releases made volumes with such names.
    for odd in ["..", "-x"] {
        let refused = Err(Refused::OddName(odd.into()));
        assert_eq!(rename(&mut s, ObjectKind::Volume, "u", odd), refused);
        assert_eq!(create_in(&mut s, "fast", plain(odd)).map(|_| ()), refused);
        let id = s.volume_named("u").unwrap().0.0;
        let before = Rename { kind: ObjectKind::Volume as i32, id, name: odd.into() };
        assert_eq!(apply(&mut s, &Command::Rename(before)), Outcome::Changed);
        rename(&mut s, ObjectKind::Volume, odd, "u").unwrap();
    }
    s.check().unwrap();
}

#[test]
fn a_client_that_is_gone_is_removed_and_its_id_never_comes_back() {
    let mut s = racks();
    let (a, b) = (client(&mut s, "a"), client(&mut s, "b"));
    let ask = control::RemoveObject { kind: ObjectKind::Sdc as i32, name: "b".into() };
    let here = object_orders::remove_object_command(&s, &ask, |sdc| sdc == b).unwrap_err();
    assert_eq!(here, Refused::SdcHere("b".into()));
    create_in(&mut s, "fast", plain("v")).unwrap();
    map(&mut s, "v", &[("b", Access::ReadWrite)], true).unwrap();
    let mapped = remove(&mut s, ObjectKind::Sdc, "b").unwrap_err().to_string();
    assert!(mapped.contains("`gabion volume unmap v --sdc b`"), "{mapped}");
    unmap(&mut s, "v", &["b"], false).unwrap();
    let before = s.version;
    remove(&mut s, ObjectKind::Sdc, "b").unwrap();
    let none = Refused::NoObject(ObjectKind::Sdc, "b".into());
    assert_eq!(remove(&mut s, ObjectKind::Sdc, "b"), Err(none));
    // A client with an older map is told all that are left, and which incarnations were given out.
    let page = s.pages_since(before).pop().unwrap();
    assert!(page.all_sdcs && page.next_life == s.next_incarnation.0);
    assert_eq!(page.sdcs.iter().map(|c| c.id).collect::<Vec<_>>(), [a.0]);
    let restored = State::from_bytes(&s.to_bytes());
    assert_eq!(restored.as_ref(), Ok(&s));
    assert_eq!(s.next_sdc(), SdcId(b.0 + 1));
    // Its process may still run, and must not continue as another client.
    let m = control::RegisterSdc { name: "b".into(), nonce: 5, id: b.0, ..Default::default() };
    assert!(matches!(s.register_sdc(&m, false), Registration::Superseded(_)));
    assert_eq!(client(&mut s, "b"), SdcId(b.0 + 1), "started anew");
    assert!(!s.pages_since(s.version).iter().any(|p| p.all_sdcs));
    s.check().unwrap();
}

#[test]
fn a_client_that_was_named_before_all_clients_were_can_be_removed() {
    let mut s = racks();
    let (a, b) = (client(&mut s, "a"), client(&mut s, "b"));
    let v = create_in(&mut s, "fast", plain("v")).unwrap();
    create_in(&mut s, "fast", plain("w")).unwrap();
    let to = [("a", Access::ReadWrite), ("b", Access::ReadWrite)];
    map(&mut s, "v", &to, true).unwrap();
    map(&mut s, "v", &[("", Access::ReadWrite)], false).unwrap();
    let named = |s: &State| s.volumes[&v].mapping.clients().map(|(id, _)| id).collect::<Vec<_>>();
    let (kept, changed) = (s.volumes[&v].mapping.grant(a), s.volumes[&v].changed_at);
    assert_eq!(named(&s), [a, b], "they keep what they had");
    remove(&mut s, ObjectKind::Sdc, "b").unwrap();
    assert_eq!((named(&s), s.volumes[&v].mapping.grant(a)), (vec![a], kept));
    assert!(s.volumes[&v].changed_at > changed, "the map tells it");
    assert_eq!(State::from_bytes(&s.to_bytes()).as_ref(), Ok(&s));
    map(&mut s, "w", &[("a", Access::ReadWrite)], true).unwrap();
    let mapped = remove(&mut s, ObjectKind::Sdc, "a").unwrap_err().to_string();
    assert!(mapped.contains("1 volumes are") && mapped.contains("unmap w --sdc a`"), "{mapped}");
    unmap(&mut s, "w", &["a"], false).unwrap();
    remove(&mut s, ObjectKind::Sdc, "a").unwrap();
    assert_eq!(named(&s), []);
}

#[test]
fn a_client_that_was_removed_is_known_to_be_gone_after_a_recovery_too() {
    let mut s = racks();
    let (a, b) = (client(&mut s, "a"), client(&mut s, "b"));
    remove(&mut s, ObjectKind::Sdc, "a").unwrap();
    let me = mdm::members::Member {
        name: "mdm1".into(),
        address: "10.0.0.9:1".into(),
        tie_breaker: false,
    };
    s.recover(&s.clone(), 1, me, "test", 1);
    let back = |name: &str, id: u32| control::RegisterSdc {
        name: name.into(),
        nonce: 77,
        id,
        ..Default::default()
    };
    let known = |s: &State, m: &control::RegisterSdc| {
        !matches!(s.register_sdc(m, false), Registration::Superseded(_))
    };
    assert!(!known(&s, &back("a", a.0)) && known(&s, &back("b", b.0)));
    // A client that only the lost MDMs knew comes back, is removed, and comes back again.
    let lost = back("lost", b.0 + 2);
    assert!(known(&s, &lost));
    let Registration::New(id, command) = s.register_sdc(&lost, false) else { panic!("it is new") };
    assert_eq!((id.0, apply(&mut s, &command)), (lost.id, Outcome::Changed));
    let restored = State::from_bytes(&s.to_bytes()).unwrap();
    assert_eq!(restored, s);
    remove(&mut s, ObjectKind::Sdc, "lost").unwrap();
    assert!(!known(&s, &lost));
    assert_eq!(State::from_bytes(&s.to_bytes()), Ok(s));
}

#[test]
fn more_clients_than_a_cluster_takes_are_told_what_to_do() {
    let mut s = racks();
    (0..mdm::refused::MAX_SDCS).for_each(|n| {
        client(&mut s, &format!("c{n}"));
    });
    let m = control::RegisterSdc { name: "late".into(), nonce: 5, ..Default::default() };
    match s.register_sdc(&m, false) {
        Registration::Full(text) => assert!(text.contains("`gabion sdc remove`"), "{text}"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        s.register_sdc(&control::RegisterSdc { name: "c7".into(), ..m }, false),
        Registration::Known(_)
    ));
    remove(&mut s, ObjectKind::Sdc, "c9").unwrap();
    client(&mut s, "late");
}

#[test]
fn a_new_device_of_a_pool_by_order_gets_nothing_before_it_is_admitted() {
    let mut s = formed();
    let old: Vec<DeviceId> =
        (1..=3).map(|i| register(&mut s, &format!("sds{i}"), 0, ("", "", "")).unwrap()).collect();
    let ask =
        control::SetPool { pool: "default".into(), by_order: Some(true), ..Default::default() };
    let set = object_orders::set_pool_command(&s, &ask).unwrap();
    assert_eq!(apply(&mut s, &set), Outcome::Changed);
    assert!(old.iter().all(|d| s.devices[d].intent == Intent::Normal), "who is there stays");

    let stranger = register(&mut s, "stranger", 0, ("", "", "")).unwrap();
    assert_eq!(s.devices[&stranger].intent, Intent::Waiting);
    create_in(&mut s, "default", plain("a")).unwrap();
    assert!(s.groups_of(stranger).is_empty() && !s.groups_of(old[0]).is_empty());
    assert_eq!(s.units_beside(old[0]), 3, "a stranger is no part of the domain");
    let pool = |s: &State| {
        let all = status::object_status(s, &limits(), |_| 0).into_iter();
        all.filter(|o| o.kind() == ObjectKind::Pool).map(|o| (o.capacity, o.by_order)).next()
    };
    assert_eq!(pool(&s), Some((3 << 30, true)));
    // It waits after a restart of the MDM, and maintenance of its server admits nothing.
    s = State::from_bytes(&s.to_bytes()).unwrap();
    let maintain = control::MaintainRequest { server: "stranger".into(), ..Default::default() };
    let refused = maintenance::maintenance_command(&s, &maintain, &Observed::default(), &limits());
    assert_eq!(refused, Err(Refused::NoServer("stranger".into())));

    // Strangers leave room for other devices, and a known device needs none.
    for i in 1..mdm::refused::MAX_WAITING {
        register(&mut s, &format!("more{i}"), 0, ("", "", "")).unwrap();
    }
    let one_more = control::Register {
        sds: "one-more".into(),
        address: "10.0.0.9:7000".into(),
        nonce: 1,
        store: 2,
        capacity: 1 << 30,
        kind: DeviceKind::Durable as i32,
        ..Default::default()
    };
    let full = s.register(&one_more, false, None);
    assert!(matches!(&full, Registration::Full(why) if why.contains("device admit")), "{full:?}");

    let admit = |server: &str| control::AdmitRequest { device: 0, server: server.into() };
    let command = removal::admission_command(&s, &admit("stranger")).unwrap();
    assert_eq!(apply(&mut s, &command), Outcome::Changed);
    assert_eq!(s.devices[&stranger].intent, Intent::Normal);
    assert_eq!(pool(&s), Some((4 << 30, true)));
    assert_eq!(removal::admission_command(&s, &admit("stranger")), Err(Refused::NotWaiting));
    assert!(matches!(s.register(&one_more, false, None), Registration::New(..)));

    // A device that was never admitted is removed at once: it holds nothing.
    let ask = control::RemoveRequest { server: "more1".into(), ..Default::default() };
    let go = removal::removal_command(&s, &ask, &Observed::default(), &limits()).unwrap();
    assert_eq!(apply(&mut s, &go), Outcome::Changed);
    let back = control::RemoveRequest { server: "more1".into(), keep: true, ..Default::default() };
    assert!(removal::removal_command(&s, &back, &Observed::default(), &limits()).is_ok());
}

/// Removes every field with a number above `most` from a message, and from the messages in its
/// fields.
fn strip(bytes: &[u8], most: u64, inner: &[(u64, u64)]) -> Vec<u8> {
    let varint = |at: &mut usize| {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let byte = bytes[*at];
            *at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    };
    let put = |out: &mut Vec<u8>, mut value: u64| {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    };
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let from = at;
        let key = varint(&mut at);
        let number = key >> 3;
        match key & 7 {
            0 => drop(varint(&mut at)),
            1 => at += 8,
            5 => at += 4,
            _ => {
                let len = varint(&mut at) as usize;
                let body = &bytes[at..at + len];
                at += len;
                if let Some((_, most)) = inner.iter().find(|(n, _)| *n == number) {
                    // All these messages start with a field for a map's entry, and have no other
                    // one below 50.
                    let body = strip(body, *most, &[(1, 49)]);
                    put(&mut out, key);
                    put(&mut out, body.len() as u64);
                    out.extend(body);
                    continue;
                }
            }
        }
        if number <= most {
            out.extend(&bytes[from..at]);
        }
    }
    out
}

#[test]
fn state_of_an_older_build_is_in_the_default_objects_and_mapped_to_all() {
    let mut s = pair(DeviceKind::Durable);
    client(&mut s, "c");
    let (bytes, volume) = (s.to_bytes(), s.volumes[&VolumeId(1)].clone());
    assert_eq!(
        (volume.pool, volume.mapping.all().map(|g| g.access)),
        (PoolId(1), Some(Access::ReadWrite))
    );
    // Servers, devices and volumes. Clients have ids in their first field, which `strip` must not
    // look into.
    let old = strip(&bytes, 49, &[(7, 49), (9, 49)]);
    assert!(old.len() + 20 < bytes.len());
    let mut read = State::from_bytes(&old).unwrap();
    let mapping = read.volumes[&VolumeId(1)].mapping.clone();
    assert_eq!(mapping, Mapping::everyone(0), "of before there were generations of mappings");
    read.volumes.get_mut(&VolumeId(1)).unwrap().mapping = volume.mapping;
    assert_eq!(read, s);
    assert!(read.groups.contains_key(&GroupId(1)));
}

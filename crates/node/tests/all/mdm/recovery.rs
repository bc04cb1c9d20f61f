//! An MDM that starts from a backup: it closes the recovery only after every device could report.

use super::*;
use mdm::group::Doubt;
use node::backup::{Backup, pack};

/// Returns an MDM whose log was made from a backup of `from`.
fn restored(from: &Bench) -> Bench {
    begun_with(from.mdm.state())
}

/// Returns an MDM whose log was made from this state.
fn begun_with(state: &mdm::State) -> Bench {
    begun_as(state, wire::DIALECT)
}

/// Returns an MDM of this build whose log was made from this state.
pub(crate) fn begun_as(state: &mdm::State, dialect: base::Dialect) -> Bench {
    let backup = Backup::from_bytes(&pack(&state.to_bytes(), 1000), dialect.level_max).unwrap();
    let mut disk = BTreeMap::new();
    for (at, data) in backup.log("mdm", config(Limits::TEST_MIN).address, "me", 60_000) {
        for (i, block) in data.chunks(4096).enumerate() {
            disk.insert(at / 4096 + i as u64, block.to_vec());
        }
    }
    let limits = Limits { mdm_log: Limits::SHIPPED.mdm_log, ..Limits::TEST_MIN };
    let mut bench = Bench::on_disk(disk, Config { dialect, ..config(limits) });
    bench.settle();
    bench
}

impl Bench {
    fn is_open(&self) -> bool {
        self.mdm.state().recovery.open
    }

    /// Lets a server report, and register.
    fn tells(&mut self, name: &str, store: u64, held: &[u32]) -> LinkId {
        self.took_part(name, store, held, 1)
    }

    /// The same for a server that took part in this epoch of all groups.
    fn took_part(&mut self, name: &str, store: u64, held: &[u32], acted: u64) -> LinkId {
        let report = Report { held: held.to_vec(), ..Report::default() };
        self.process(80, name, store, acted, report)
    }

    /// The same for the process that drew the number `drawn`, with more in its report.
    fn process(
        &mut self,
        drawn: u64,
        name: &str,
        store: u64,
        acted: u64,
        report: Report,
    ) -> LinkId {
        let link = self.say_hello(Role::Sds);
        let welcome = self.take::<Welcome>(link, Kind::Welcome).remove(0);
        let recovered = self.mdm.state().recovery.lost.end.0;
        assert_eq!((welcome.recovers, welcome.recovered), (true, recovered));
        let ids: Vec<u32> = self.mdm.state().groups.keys().map(|g| g.0).collect();
        let group = |group| GroupReport { group, acted, base: 1, ..Default::default() };
        let groups = ids.into_iter().map(group).collect();
        self.send(link, Header::new(Kind::Report), &Report { groups, ..report });
        let known = self.mdm.state().devices.iter().find(|(_, d)| d.store == store);
        let register = Register {
            sds: name.into(),
            device: known.expect("it was there before").0.0,
            nonce: drawn + store,
            store,
            address: format!("10.0.0.{}:7000", name.len()),
            capacity: 1 << 30,
            kind: DeviceKind::Durable as i32,
            ..Register::default()
        };
        self.send(link, Header::new(Kind::Register), &register);
        assert_eq!(self.take::<Registered>(link, Kind::Registered).len(), 1);
        link
    }
}

#[test]
fn a_new_term_of_leadership_ends_no_recovery() {
    let (b, ..) = Bench::with_volume(DeviceKind::Durable);
    let stores: Vec<u64> = b.mdm.state().devices.values().map(|d| d.store).collect();
    let mut b = restored(&b);
    assert!(b.is_open());
    // Devices hold data of a volume that no MDM knows: only an operator ends that.
    let links = [b.tells("a", stores[0], &[1]), b.tells("bb", stores[1], &[1, 7])];
    b.pass(8000, &links);
    let doubts =
        |b: &Bench| b.mdm.state().groups.values().filter(|g| g.doubt != Doubt::None).count();
    assert_eq!((b.is_open(), doubts(&b)), (true, 0));
    let limits = Limits { mdm_log: Limits::SHIPPED.mdm_log, ..Limits::TEST_MIN };
    let mut again = Bench::on_disk(std::mem::take(&mut b.disk), config(limits));
    again.settle();
    assert!(again.is_open(), "nobody has told it anything yet");
    again.pass(8000, &[]);
    assert!(again.is_open(), "its servers are away");
    let links = [again.tells("a", stores[0], &[1]), again.tells("bb", stores[1], &[1])];
    again.pass(1000, &links);
    assert!(!again.is_open(), "that data is gone: all have told, and there was time for others");
}

#[test]
fn a_backup_of_before_everything_waits_for_an_order() {
    let mut b = restored(&Bench::new());
    assert!(b.is_open());
    b.pass(20_000, &[]);
    assert!(b.is_open(), "servers may have volumes, and come later");
    let order = RecoverMdm { finish: true, ..RecoverMdm::default() };
    b.ask(Ask::RecoverMdm(order));
    assert!(!b.is_open());
}

#[test]
fn data_of_unknown_volumes_is_deleted_by_an_order_that_names_them() {
    let (b, ..) = Bench::with_volume(DeviceKind::Durable);
    let stores: Vec<u64> = b.mdm.state().devices.values().map(|d| d.store).collect();
    let mut b = restored(&b);
    let links = [b.tells("a", stores[0], &[1]), b.tells("bb", stores[1], &[1, 7])];
    b.pass(8000, &links);
    let finish = RecoverMdm { finish: true, ..RecoverMdm::default() };
    assert_eq!(b.ask(Ask::RecoverMdm(finish)).error(), AdminError::None);
    assert!(!b.is_open());
    let is_kept = |b: &mut Bench, id: u32| {
        let page = b.pull(links[0], MapVersion(0), false).pop().expect("a map");
        assert!(id < page.next_volume && !page.live.contains(&id));
        page.unknown.iter().any(|r| (r.from..r.to).contains(&id))
    };
    assert!(is_kept(&mut b, 7) && is_kept(&mut b, 8));
    let delete = |b: &mut Bench, ids: &[u32]| {
        let order = RecoverMdm { delete: ids.to_vec(), ..RecoverMdm::default() };
        b.ask(Ask::RecoverMdm(order)).error()
    };
    assert_eq!(delete(&mut b, &[7, 1]), AdminError::NotFound, "one of them is known");
    assert!(is_kept(&mut b, 7));
    assert_eq!(delete(&mut b, &[7]), AdminError::None);
    assert!(!is_kept(&mut b, 7) && is_kept(&mut b, 8));
}

/// A device that the backup does not know, in a pool that it does not know, reports a volume.
fn of_the_new_pool(b: &mut Bench, device: u32) -> LinkId {
    let link = b.say_hello(Role::Sds);
    let made = GroupInfo {
        id: 900,
        epoch: 1,
        primary: 900,
        replicas: vec![900, 901],
        in_sync: vec![900, 901],
        ..GroupInfo::default()
    };
    let volume = VolumeInfo {
        id: 500,
        name: "db".into(),
        size: 1 << 20,
        slots: vec![900],
        ..VolumeInfo::default()
    };
    let report = Report {
        version: 10_000,
        told: 10_000,
        next_volume: 501,
        groups: vec![GroupReport {
            group: 900,
            acted: 1,
            base: 1,
            config: Some(made),
            joiner: false,
        }],
        volumes: vec![volume],
        ..Report::default()
    };
    b.send(link, Header::new(Kind::Report), &report);
    let register = Register {
        sds: format!("new{device}"),
        device,
        nonce: u64::from(device),
        store: u64::from(device),
        address: format!("10.0.1.{}:7000", device - 899),
        capacity: 1 << 30,
        kind: DeviceKind::Durable as i32,
        pool: "fast".into(),
        ..Register::default()
    };
    b.send(link, Header::new(Kind::Register), &register);
    link
}

#[test]
fn a_pool_created_since_the_backup_is_created_again_and_its_volumes_come_back() {
    let (b, ..) = Bench::with_volume(DeviceKind::Durable);
    let stores: Vec<u64> = b.mdm.state().devices.values().map(|d| d.store).collect();
    let mut b = restored(&b);
    let old = [b.tells("a", stores[0], &[1]), b.tells("bb", stores[1], &[1])];
    let link = of_the_new_pool(&mut b, 900);
    assert!(b.take::<Registered>(link, Kind::Registered).is_empty(), "it has no home");
    assert!(b.is_open());
    let make = CreateObject {
        kind: ObjectKind::Pool as i32,
        name: "quick".into(),
        ..CreateObject::default()
    };
    assert_eq!(b.ask(Ask::CreateObject(make)).error(), AdminError::None);
    let rename =
        RenameRequest { kind: ObjectKind::Pool as i32, name: "quick".into(), to: "fast".into() };
    assert_eq!(b.ask(Ask::Rename(rename.clone())).error(), AdminError::None);
    let volume = RenameRequest { kind: ObjectKind::Volume as i32, name: "v".into(), ..rename };
    assert_ne!(b.ask(Ask::Rename(volume)).error(), AdminError::None, "volumes wait");
    let new = [900, 901].map(|device| of_the_new_pool(&mut b, device));
    for link in new {
        assert_eq!(b.take::<Registered>(link, Kind::Registered).len(), 1);
    }
    b.pass(8000, &[old[0], old[1], new[0], new[1]]);
    assert!(!b.is_open());
    let state = b.mdm.state();
    assert!(state.volumes.values().any(|v| v.name == "db"), "{:?}", state.volumes);
    assert_eq!(state.groups[&base::GroupId(900)].in_sync.len(), 2);
}

/// The state has one device in sync, and another one took part in a later epoch: it is unknown
/// which of them is primary by an older map.
#[test]
fn a_volume_with_a_group_in_doubt_is_unmapped_when_all_devices_know() {
    let (mut b, _, two) = Bench::with_volume(DeviceKind::Durable);
    b.drop_link(two);
    b.dial_failed(DialError::Refused);
    let stores: Vec<u64> = b.mdm.state().devices.values().map(|d| d.store).collect();
    let mut b = restored(&b);
    let one = b.tells("a", stores[0], &[1]);
    let two = b.took_part("bb", stores[1], &[1], 9);
    b.pass(300, &[one, two]);
    let finish = RecoverMdm { finish: true, ..RecoverMdm::default() };
    assert_eq!(b.ask(Ask::RecoverMdm(finish)).error(), AdminError::None);
    let volume = |b: &Bench| b.mdm.state().volumes.values().next().unwrap().slots.clone();
    let groups: Vec<_> = volume(&b).iter().map(|g| b.mdm.state().groups[g].clone()).collect();
    let alone = |g: &mdm::group::Group| g.doubt != Doubt::None && g.in_sync.len() == 1;
    assert!(groups.iter().any(alone), "{groups:?}");
    let admin = b.say_hello(Role::Admin);
    let (volume, sdcs) = ("v".into(), Vec::new());
    b.order(admin, Ask::Unmap(UnmapRequest { volume, sdcs, all: true, hosts: Vec::new() }));
    let version = b.mdm.state().version;
    b.pull(one, version, true);
    b.pass(6000, &[one, two]);
    let reply: AdminReply = b.take(admin, Kind::AdminReply).pop().unwrap();
    assert_eq!(reply.error(), AdminError::Unconfirmed, "dev2 may lead");
    b.pull(two, version, true);
    let (volume, sdcs) = ("v".into(), Vec::new());
    b.order(admin, Ask::Unmap(UnmapRequest { volume, sdcs, all: true, hosts: Vec::new() }));
    b.pass(1500, &[one, two]);
    assert_eq!(b.take::<AdminReply>(admin, Kind::AdminReply).pop().unwrap().error, 0);
}

impl Bench {
    fn doubts(&self) -> usize {
        self.mdm.state().groups.values().filter(|g| g.doubt != Doubt::None).count()
    }

    /// Restarts the MDM with its log.
    fn restarted(&mut self) -> Bench {
        let limits = Limits { mdm_log: Limits::SHIPPED.mdm_log, ..Limits::TEST_MIN };
        let mut again = Bench::on_disk(std::mem::take(&mut self.disk), config(limits));
        again.settle();
        again
    }
}

/// The map of "bb" names a newer disk in the place of the disk that "a" has.
#[test]
fn a_newer_disk_is_waited_for_when_the_process_that_knew_of_it_is_gone() {
    let (b, ..) = Bench::with_volume(DeviceKind::Durable);
    let stores: Vec<u64> = b.mdm.state().devices.values().map(|d| d.store).collect();
    let mut b = restored(&b);
    let all = b.doubts();
    let version = b.mdm.state().recovery.version.0 + 1;
    let knows = || Report {
        version,
        devices: vec![StoreInfo { device: 1, store: 99, awaited: 0 }],
        next_volume: 2,
        ..Report::default()
    };
    let one = b.tells("a", stores[0], &[1]);
    let two = b.process(80, "bb", stores[1], 1, knows());
    b.pass(8000, &[one, two]);
    assert_eq!((b.is_open(), b.doubts()), (true, all), "the newer disk may come");
    b.drop_link(two);
    let two = b.process(81, "bb", stores[1], 1, Report::default());
    b.pass(1000, &[one, two]);
    assert_eq!((b.is_open(), b.doubts()), (true, all), "the map is gone, and what it said is true");
    let mut b = b.restarted();
    let links =
        [b.tells("a", stores[0], &[1]), b.process(81, "bb", stores[1], 1, Report::default())];
    b.pass(8000, &links);
    assert_eq!((b.is_open(), b.doubts()), (true, all), "nobody runs any more that has heard of it");
}

/// The survivor's log ends with an undecided entry that gives a process another incarnation than
/// the decided one.
#[test]
fn a_process_is_accepted_with_its_committed_incarnation() {
    use mdm::command::{Command, DeviceUp};
    let (b, ..) = Bench::with_volume(DeviceKind::Durable);
    let decided = b.mdm.state();
    let mut state = decided.clone();
    let device = &decided.devices[&DeviceId(1)];
    let (before, life) = (device.incarnation.0, decided.next_incarnation.0 + 1);
    let up = DeviceUp {
        device: 1,
        sds: device.sds.0,
        name: "a".into(),
        incarnation: life,
        nonce: 9,
        store: device.store,
        address: device.address.clone(),
        capacity: device.capacity,
        kind: device.kind as i32,
        ..DeviceUp::default()
    };
    state.apply(state.index + 1, &Command::DeviceUp(up));
    assert_eq!(state.devices[&DeviceId(1)].incarnation.0, life);
    let me = mdm::members::Member {
        name: "mdm".into(),
        address: "10.0.0.1:7000".into(),
        tie_breaker: false,
    };
    state.recover(decided, 1, me, "me", 60_000);
    let mut b = begun_with(&state);
    assert!(b.is_open() && before < life - 1);
    let link = b.connect();
    let mut hello = hello(&wire::DIALECT, ClusterId(0), Role::Sds, "a");
    (hello.id, hello.incarnation) = (1, life - 1);
    b.send(link, Header::new(Kind::Hello), &hello);
    assert!(b.take::<Refusal>(link, Kind::Refusal).is_empty(), "it is not superseded");
    assert!(b.take::<Welcome>(link, Kind::Welcome).remove(0).recovers);
}

#[test]
fn reports_from_maps_of_before_the_recovery_put_no_device_down() {
    let mut b = Bench::new();
    let names = [("a", 11), ("bb", 12), ("ccc", 13), ("dddd", 14)];
    for (name, store) in names {
        b.sds(name, store, store, DeviceKind::Durable);
    }
    b.create("v");
    let mut b = restored(&b);
    // The fourth server is away, so the recovery stays open. The third one was restarted. It has no
    // map, so it refuses the two that still have theirs.
    let links: Vec<LinkId> = names[..3].iter().map(|(n, s)| b.tells(n, *s, &[1])).collect();
    let accuse = |b: &mut Bench| {
        for device in [1, 2] {
            let incarnation = b.device(device).2;
            let (unreached, suspects) = (vec![3], vec![3]);
            let m = Proposal { device, incarnation, unreached, suspects, ..Proposal::default() };
            b.send(links[device as usize - 1], Header::new(Kind::Proposal), &m);
        }
    };
    for _ in 0..20 {
        accuse(&mut b);
        b.pass(200, &links);
    }
    assert!(b.is_open() && b.device(3).0);
    let finish = RecoverMdm { finish: true, ..RecoverMdm::default() };
    assert_eq!(b.ask(Ask::RecoverMdm(finish)).error(), AdminError::None);
    b.pass(400, &links);
    let cut_off = |n: &Note| matches!(n, Note::CutOff { device: DeviceId(3), .. });
    assert!(!b.is_open() && b.device(3).0);
    assert!(!b.notes.iter().any(cut_off), "nobody had a map of this state yet");
    // From now on, such reports count.
    for _ in 0..20 {
        accuse(&mut b);
        b.pass(200, &links);
    }
    assert!(b.notes.iter().any(cut_off));
}

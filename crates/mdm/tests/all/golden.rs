//! Golden logs: this release reads the logs of earlier ones, and gets to the same states.
//!
//! `golden/RELEASE/log.txt` has one entry of the MDMs' log per line, in hex, followed by the sum of
//! the state after it. `snapshot.txt` is the last state. `recovery.txt` is the same for an MDM that
//! recovers: the state with which it begins, and then its entries. `reservations.txt` is a log with
//! reservations, and the state at its end; `since.txt` is the same of builds that record who has
//! lost the right to write. `seats.txt` is a log with gateways and seats, and `hosts.txt` one with
//! hosts by name. `disk.txt` is a log on a
//! disk: the pages that are not zero, each with its offset and without the zeros at its end.
//!
//! If a sum differs, `apply` has changed for an existing command, which must never happen. The
//! files of a release are never written again. A new release adds its own folder:
//! `GOLDEN=write cargo test -p gabion-mdm --test all golden::`.

#[path = "../../../wire/tests/hex/mod.rs"]
mod hex;

use crate::common::*;
use base::GroupId;
use base::crc::crc32c;
use hex::{hex, unhex};
use mdm::command::*;
use mdm::entry::{Commands, apply as apply_entry};
use mdm::log::{Batch, Found, Io, Log, Progress};
use mdm::members::Member;
use mdm::{Command, Outcome, State};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use wire::control::DeviceKind::{Durable, Ram};
use wire::control::{
    AcceptedLoss, GrantInfo, GroupInfo, HostGrant, HostInfo, HostsInfo, Intent, LostRange,
    MappingInfo, MdmInfo, ObjectKind, ReservationKind, ReserveAction, ReserveChange, VolumeInfo,
};

const LIMIT: u64 = 1 << 20;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The releases that have golden files.
fn releases() -> Vec<PathBuf> {
    let all = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let all: Vec<PathBuf> = all.filter(|path| path.is_dir()).collect();
    assert!(!all.is_empty());
    all
}

fn put(kind: ObjectKind, id: u32, name: &str) -> Command {
    let (kind, name) = (kind as i32, name.into());
    Command::PutObject(PutObject { kind, id, name, domain: 1, ..PutObject::default() })
}

/// A volume on three groups, and another one on the same groups.
fn volumes() -> [CreateVolume; 2] {
    let new = |a, b| NewGroup { replicas: vec![a, b] };
    let volume = CreateVolume {
        volume: 1,
        name: "v".into(),
        size: 8 << 20,
        groups: vec![new(1, 2), new(2, 3), new(3, 1)],
        slots: vec![1, 2, 3],
        ..CreateVolume::default()
    };
    let other = CreateVolume { volume: 2, name: "w".into(), groups: vec![], ..volume.clone() };
    [volume, other]
}

/// A history with every command of level 1 that a log without a recovery has, some in one entry.
/// [`reservations`], [`seats`] and [`recovery`] have the others.
fn history() -> Vec<Vec<Command>> {
    let member = |id: u32| MdmInfo {
        id,
        name: format!("m{id}"),
        address: format!("10.1.0.{id}:7001"),
        tie_breaker: id == 3,
    };
    let grant = GrantInfo { sdc: 1, access: 1, generation: 0, since: None };
    let mapping = Some(MappingInfo { all: None, sdcs: vec![grant], hosts: None });
    let [volume, other] = volumes();
    let sdc = |sdc, name: &str| RegisterSdc {
        sdc,
        name: name.into(),
        incarnation: 3 + u64::from(sdc),
        nonce: 9,
        pid: 7,
        uris: vec!["nbd://10.0.0.9/".into()],
    };
    let intend = |intent: Intent| Intend { devices: vec![4], intent: intent as i32 };
    let scrub = Scrub { device: 1, number: 1 };
    let rename = Rename { kind: ObjectKind::Volume as i32, id: 1, name: "data".into() };
    let drop_pool = DropObject { kind: ObjectKind::Pool as i32, id: 2 };
    let downs = DevicesDown {
        list: vec![
            DeviceDown { device: 1, incarnation: 1, dead: false },
            DeviceDown { device: 4, incarnation: 9, dead: true },
        ],
    };
    vec![
        vec![Command::FormCluster(FormCluster { cluster: 7 }), Command::AddMdm(member(1))],
        vec![Command::AddMdm(member(2)), Command::AddMdm(member(3))],
        vec![put(ObjectKind::FaultSet, 1, "rack1"), put(ObjectKind::Pool, 2, "fast")],
        vec![up(1, 1, 11, Durable), up(2, 2, 12, Durable), up(3, 3, 13, Ram)],
        vec![Command::RegisterSdc(sdc(1, "c")), Command::RegisterSdc(sdc(2, "d"))],
        vec![Command::CreateVolume(volume), Command::CreateVolume(other)],
        vec![Command::MapVolume(MapVolume { volume: 1, mapping })],
        vec![suspect(1, 1, 2), down(3, 3, true)],
        vec![up(3, 8, 33, Ram), join(1, 1, 2), admit(1, 3, 2)],
        vec![up(4, 9, 14, Durable), reshape(1, 5, &[1, 4, 2], 2)],
        vec![Command::Scrub(scrub), Command::Rename(rename)],
        vec![Command::DevicesDown(downs)],
        vec![up(1, 10, 11, Durable)],
        vec![Command::ResizeVolume(ResizeVolume { volume: 1, size: 16 << 20 })],
        vec![Command::DeleteVolume(DeleteVolume { volume: 2 })],
        vec![Command::Intend(intend(Intent::Maintain)), Command::Intend(intend(Intent::Remove))],
        vec![Command::RemoveMdm(RemoveMdm { id: 2 }), Command::DropObject(drop_pool)],
        vec![Command::SetLevel(SetLevel { level: 1 })],
    ]
}

/// A history with gateways and seats. It has a file of its own, because it was written later.
fn seats() -> Vec<Vec<Command>> {
    let sdc = |sdc: u32, uri: &str| {
        let (name, incarnation) = (format!("c{sdc}"), 3 + u64::from(sdc));
        let uris = vec![uri.into()];
        Command::RegisterSdc(RegisterSdc { sdc, name, incarnation, uris, ..Default::default() })
    };
    let seat = |host: &str, from, to| {
        let change = SeatChange { volume: 1, host: host.into(), from, to };
        Command::Seat(Seat { changes: vec![change] })
    };
    vec![
        vec![Command::FormCluster(FormCluster { cluster: 7 })],
        vec![up(1, 1, 11, Durable), up(2, 2, 12, Durable), up(3, 3, 13, Durable)],
        vec![sdc(1, "iscsi://10.0.0.1:3260"), sdc(2, "nvme-tcp://10.0.0.2:4420")],
        vec![Command::CreateVolume(volumes()[0].clone())],
        vec![seat("iqn.2026-11.a:b", 0, 1), seat("nqn.2026-11.a:c", 0, 2)],
        vec![seat("iqn.2026-11.a:b", 1, 2), seat("nqn.2026-11.a:c", 2, 0)],
    ]
}

/// A history with hosts by name, and with reservations that an operator ends. It has a file of its
/// own, because it was written later.
fn hosts() -> Vec<Vec<Command>> {
    let grant = |name: &str, access| HostGrant { name: name.into(), access, since: 0 };
    let map = |all: Option<HostGrant>, named: Vec<HostGrant>| {
        let all_sdcs = Some(GrantInfo::default());
        let hosts = Some(HostsInfo { all, named });
        let mapping = Some(MappingInfo { all: all_sdcs, sdcs: vec![], hosts });
        Command::MapVolume(MapVolume { volume: 1, mapping })
    };
    let [a, b] = ["iqn.2026-11.a:b", "nqn.2026-11.a:c"];
    let mut all = seats()[..5].to_vec();
    let mut reserved = reservations(true);
    all.push(vec![map(None, vec![grant(a, 0), grant(b, 1)])]);
    all.push(vec![map(None, vec![grant(b, 0)])]);
    all.push(reserved.swap_remove(3)); // by the client of the same number and incarnation
    all.push(vec![Command::ClearReservations(ClearReservations { volume: 1 })]);
    all.push(vec![map(Some(grant("", 0)), vec![])]);
    all
}

/// A history with reservations. It has files of its own, because it was written later.
fn reservations(notes_losses: bool) -> Vec<Vec<Command>> {
    let sdc = RegisterSdc { sdc: 1, name: "c".into(), incarnation: 4, ..RegisterSdc::default() };
    let iqn = HostInfo { name: "iqn.2026-11.a:b".into(), id: vec![1, 2, 3, 4, 5, 6], port: 1 };
    let nvme = HostInfo { id: vec![7; 16], ..HostInfo::default() };
    let mut number = 0;
    let mut ask = |who: &HostInfo, action, key, other, kind, all_ports| {
        number += 1;
        let (action, kind) = (action as i32, kind as i32);
        let change = ReserveChange { action, key, other, kind, ignore: number == 1, all_ports };
        let (sdc, incarnation, who) = (1, 4, who.clone());
        Command::Reserve(Reserve { volume: 1, sdc, incarnation, number, who, change, notes_losses })
    };
    use ReservationKind::{ExclusiveAccess, None, WriteExclusiveRegistrants as Shared};
    use ReserveAction::{Clear, Preempt, Register, Release};
    vec![
        vec![Command::FormCluster(FormCluster { cluster: 7 })],
        vec![up(1, 1, 11, Durable), up(2, 2, 12, Durable), up(3, 3, 13, Durable)],
        vec![Command::RegisterSdc(sdc), Command::CreateVolume(volumes()[0].clone())],
        vec![ask(&iqn, Register, 9, 10, None, true), ask(&nvme, Register, 0, 20, None, false)],
        vec![ask(&iqn, ReserveAction::Reserve, 10, 0, Shared, false)],
        vec![ask(&nvme, ReserveAction::Reserve, 20, 0, ExclusiveAccess, false)],
        vec![ask(&nvme, Preempt, 20, 10, ExclusiveAccess, false)],
        vec![ask(&nvme, Release, 20, 0, Shared, false)],
        vec![ask(&iqn, Register, 0, 30, None, false)],
        vec![ask(&iqn, Clear, 30, 0, None, false), ask(&iqn, Register, 0, 40, None, false)],
    ]
}

/// The state with which a recovering MDM begins, and a history with the commands of recoveries. It
/// knows two volumes on three groups. The lost MDMs had made a volume and two groups more.
// Long: one entry after the other, each of which relies on the state after those before.
fn recovery() -> (State, Vec<Vec<Command>>) {
    let mut s = State::new();
    let [volume, other] = volumes();
    let me =
        MdmInfo { id: 1, name: "m".into(), address: "10.1.0.1:7001".into(), ..Default::default() };
    for command in [
        Command::FormCluster(FormCluster { cluster: 7 }),
        Command::AddMdm(me.clone()),
        up(1, 1, 11, Durable),
        up(2, 2, 12, Durable),
        up(3, 3, 13, Durable),
        Command::CreateVolume(volume),
        Command::CreateVolume(other),
    ] {
        apply(&mut s, &command);
    }
    let (decided, address) = (s.clone(), me.address);
    s.recover(&decided, 1, Member { name: me.name, address, tie_breaker: false }, "me", 60_000);
    let first = s.clone();
    let mut all: Vec<Vec<Command>> = Vec::new();
    let mut add = |s: &mut State, commands: Vec<Command>| {
        for command in &commands {
            assert_eq!(s.apply(s.index + 1, command), Outcome::Changed, "{command:?}");
            s.check().unwrap();
        }
        all.push(commands);
    };
    let info = |id: u32, a: u32, b: u32| GroupInfo {
        id,
        epoch: 4,
        primary: a,
        replicas: vec![a, b],
        in_sync: vec![a, b],
        ..GroupInfo::default()
    };
    let mapping = MappingInfo {
        all: Some(GrantInfo { sdc: 0, access: 1, generation: 2, since: None }),
        sdcs: vec![],
        hosts: None,
    };
    let (lost, next_volume) = (s.recovery.lost.start.0, s.next_volume.0 + 3);
    let told = Reconcile {
        made: vec![info(40, 1, 2), info(41, 2, 3)],
        group: s.recovery.group + 1,
        next_volume,
        device: s.recovery.device + 1,
        sdc: s.recovery.sdc + 1,
        awaited: vec![Awaited { device: 2, version: lost, store: 99 }],
        ..Reconcile::default()
    };
    add(&mut s, vec![Command::Reconcile(told)]);
    let life = s.next_incarnation.0;
    let lives = (1..=3).map(|id| up(id, life + u64::from(id), 10 + u64::from(id), Durable));
    add(&mut s, lives.collect());
    let gap = LostRange { group: 40, units: 1 };
    let volumes = vec![VolumeInfo {
        id: 3,
        name: "x".into(),
        size: 16 << 20,
        generation: 2,
        slots: vec![40],
        mapping: Some(mapping),
        pool: 1,
        thick: true,
        gaps: vec![gap],
        ..VolumeInfo::default()
    }];
    let groups = vec![info(1, 1, 2), GroupInfo { in_sync: vec![2], ..info(40, 2, 1) }];
    let known = Reconcile { groups, volumes, deleted: vec![2], ..Reconcile::default() };
    add(&mut s, vec![Command::Reconcile(known)]);
    let over = Reconcile { close: true, left: vec![9], ..Reconcile::default() };
    add(&mut s, vec![Command::Reconcile(over)]);
    let forget = Some(Forget { volumes: vec![9], by: "me".into(), at: 60_500 });
    let forget = Reconcile { forget, ..Reconcile::default() };
    let unused = Reconcile { unused: vec![41], ..Reconcile::default() };
    add(&mut s, vec![Command::Reconcile(forget), Command::Reconcile(unused)]);
    for (group, replicas, stale, errors) in [(2, [2, 1], true, false), (3, [1, 2], false, true)] {
        let epoch = s.groups[&GroupId(group)].epoch.0;
        let shape = Shape { group, epoch, replicas: replicas.into(), leaving: 0, acted: epoch + 1 };
        let loss = AcceptedLoss { by: "me".into(), at: 60_600, groups: vec![group], stale, errors };
        let accept = AcceptLoss { volumes: vec![1], loss, groups: vec![shape] };
        add(&mut s, vec![Command::AcceptLoss(accept)]);
    }
    (first, all)
}

fn sum(state: &State) -> u32 {
    crc32c(&state.to_bytes())
}

/// Runs a log on pages of 4 KiB until it has nothing to do.
fn run(log: &mut Log, disk: &mut BTreeMap<u64, Vec<u8>>) -> Option<Found> {
    let mut found = None;
    while let Some(io) = log.next() {
        let progress = match io {
            Io::Read { at, len } => {
                let mut data = vec![0; len as usize];
                for (i, part) in data.chunks_mut(4096).enumerate() {
                    if let Some(page) = disk.get(&(at + 4096 * i as u64)) {
                        part.copy_from_slice(&page[..part.len()]);
                    }
                }
                log.done(Ok(&data))
            }
            Io::Write { at, data } => {
                for (i, page) in data.chunks(4096).enumerate() {
                    disk.insert(at + 4096 * i as u64, page.to_vec());
                }
                log.done(Ok(&[]))
            }
            Io::Flush => log.done(Ok(&[])),
        };
        match progress {
            Progress::Recovered(read) => found = Some(*read),
            Progress::Failed => panic!("{:?}", log.failed()),
            _ => {}
        }
    }
    found
}

/// Applies an entry of these commands. Returns its line in a golden log.
fn entry(state: &mut State, commands: &[Command]) -> String {
    let mut list = Commands::default();
    assert!(commands.iter().all(|command| list.push(command, state.level)));
    let data = list.into_data();
    apply_entry(state, &data, base::level::LEVEL).unwrap();
    state.check().unwrap();
    format!("{} {:08x}", hex(&data), sum(state))
}

/// The files of this release, by name.
fn files() -> BTreeMap<&'static str, String> {
    let (mut state, mut log, mut records) = (State::new(), String::new(), Vec::new());
    for commands in history() {
        let line = entry(&mut state, &commands);
        records.push(unhex(line.split_once(' ').unwrap().0));
        writeln!(log, "{line}").unwrap();
    }
    let mut disk = BTreeMap::new();
    let mut on_disk = Log::new(LIMIT);
    run(&mut on_disk, &mut disk);
    on_disk.switch(b"an image");
    run(&mut on_disk, &mut disk);
    for data in &records {
        let mut batch = Batch::default();
        assert!(batch.push(data));
        on_disk.append(batch);
        run(&mut on_disk, &mut disk);
    }
    let mut pages = String::new();
    for (at, page) in disk {
        let end = page.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        if end > 0 {
            writeln!(pages, "{at} {}", hex(&page[..end])).unwrap();
        }
    }
    let (mut recovering, history) = recovery();
    let mut rescue = format!("{}\n", hex(&recovering.to_bytes()));
    for commands in history {
        writeln!(rescue, "{}", entry(&mut recovering, &commands)).unwrap();
    }
    let whole = |history: Vec<Vec<Command>>| {
        let (mut state, mut text) = (State::new(), String::new());
        for commands in history {
            writeln!(text, "{}", entry(&mut state, &commands)).unwrap();
        }
        writeln!(text, "{}", hex(&state.to_bytes())).unwrap();
        text
    };
    [
        ("hosts.txt", whole(hosts())),
        ("log.txt", log),
        ("reservations.txt", whole(reservations(false))),
        ("seats.txt", whole(seats())),
        ("since.txt", whole(reservations(true))),
        ("snapshot.txt", hex(&state.to_bytes())),
        ("recovery.txt", rescue),
        ("disk.txt", pages),
    ]
    .into()
}

#[test]
fn this_release_writes_what_its_golden_files_say() {
    let files = files();
    let folder = folder().join(env!("CARGO_PKG_VERSION"));
    if std::env::var("GOLDEN").is_ok_and(|v| v == "write") {
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in &files {
            fs::write(folder.join(name), text).unwrap();
        }
    }
    for (name, text) in &files {
        let golden = fs::read_to_string(folder.join(name)).unwrap();
        assert!(golden == *text, "{name}: other bytes than this release has written before");
    }
}

#[test]
fn the_log_of_every_release_leads_to_the_same_states() {
    fn follow(state: &mut State, release: &Path, lines: &str) {
        for (number, line) in lines.lines().enumerate() {
            let (data, golden) = line.split_once(' ').unwrap();
            apply_entry(state, &unhex(data), base::level::LEVEL).unwrap();
            assert_eq!(format!("{:08x}", sum(state)), golden, "{release:?}, entry {}", number + 1);
        }
    }
    for release in releases() {
        let mut state = State::new();
        follow(&mut state, &release, &fs::read_to_string(release.join("log.txt")).unwrap());
        for name in ["reservations.txt", "since.txt", "seats.txt", "hosts.txt"] {
            let reserved = fs::read_to_string(release.join(name)).unwrap();
            let (lines, last) = reserved.trim_end().rsplit_once('\n').unwrap();
            let mut with = State::new();
            follow(&mut with, &release, lines);
            assert!(State::from_bytes(&unhex(last)) == Ok(with), "{release:?}, {name}");
        }
        let rescue = fs::read_to_string(release.join("recovery.txt")).unwrap();
        let (begin, lines) = rescue.split_once('\n').unwrap();
        follow(&mut State::from_bytes(&unhex(begin)).unwrap(), &release, lines);
        let bytes = unhex(&fs::read_to_string(release.join("snapshot.txt")).unwrap());
        assert!(State::from_bytes(&bytes) == Ok(state), "{release:?}");
    }
}

#[test]
fn the_disk_of_every_release_is_read() {
    for release in releases() {
        let mut disk = BTreeMap::new();
        for line in fs::read_to_string(release.join("disk.txt")).unwrap().lines() {
            let (at, data) = line.split_once(' ').unwrap();
            let mut page = unhex(data);
            page.resize(4096, 0);
            disk.insert(at.parse().unwrap(), page);
        }
        let found = run(&mut Log::new(LIMIT), &mut disk).expect("it was read");
        assert_eq!(found.image.as_deref(), Some(&b"an image"[..]), "{release:?}");
        let log = fs::read_to_string(release.join("log.txt")).unwrap();
        let entries: Vec<Vec<u8>> =
            log.lines().map(|line| unhex(line.split_once(' ').unwrap().0)).collect();
        assert_eq!(found.records, entries, "{release:?}");
    }
}

#[test]
fn the_histories_have_every_command() {
    let tag = |c: &Command| prost::encoding::decode_key(&mut &c.to_bytes()[..]).unwrap().0;
    let all = [history(), reservations(true), seats(), hosts(), recovery().1].concat();
    let mut tags: Vec<u32> = all.iter().flatten().map(tag).collect();
    tags.sort_unstable();
    tags.dedup();
    let first = &base::level::LEVELS[0];
    assert_eq!(tags, first.commands, "each command has a golden entry");
}

//! Golden frames: this release reads the frames of each kind that earlier ones sent, and sends the
//! same bytes.
//!
//! `golden/RELEASE/frames.txt` has one frame per line, in hex, by the number of its kind. The files
//! of a release are never written anew: a new release adds its own folder, by `GOLDEN=write cargo
//! test -p gabion-wire --test golden`.

mod hex;

use base::{
    BlockSet, DeviceId, Epoch, GroupId, Incarnation, Lsn, MapVersion, SdcId, Time, UnitKey,
    VolumeId,
};
use hex::{hex, unhex};
use prost::Message;
use seam::{ClientWrite, Framer, Framing};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use wire::control::{
    AdminError, AdminReply, AdminRequest, Ask, BuildInfo, DeviceInfo, DeviceKind, Heartbeat, Hello,
    HostInfo, Intent, MapPage, Proposal, Refusal, RefusalCode, Register, RegisterSdc, Registered,
    Report, ReservationKind, Reserve, ReserveAction, ReserveChange, ReserveOutcome, Reserved, Role,
    SeatWish, SeatsTaken, SetLevelRequest, TakeSeats, Welcome,
};
use wire::message::{
    self, Beacon, Commit, CompareWrite, Damage, Extents, Fetch, Fetched, Grant, Raft, Read,
    Replicate, Replicated, Reply, Request, Seal, Sealed, Sender, SyncStart, SyncState, SyncWipe,
    UnitRange, Write, Zero,
};
use wire::records::{Executed, UnitBlocks};
use wire::{Frame, Kind, PeerFramer, PeerLink, Status, body_ok, parse};
use zerocopy::IntoBytes;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn kinds() -> impl Iterator<Item = Kind> {
    (0..=u8::MAX).filter_map(Kind::from_code)
}

fn build() -> Option<BuildInfo> {
    Some(BuildInfo { release: "0.1.0".into(), level_max: 1, version_min: 1, version_max: 1 })
}

/// A body of this kind with all fields set.
// Long: one match over all kinds.
fn body(kind: Kind) -> Vec<u8> {
    let unit = UnitKey { volume: VolumeId(3), index: 4 };
    let blocks = BlockSet::touching(4096, 8192);
    let device = DeviceInfo {
        id: 3,
        sds: 2,
        address: "10.0.0.2:7072".into(),
        incarnation: 9,
        up: true,
        kind: DeviceKind::Durable as i32,
        capacity: 1 << 40,
        intent: Intent::Maintain as i32,
        pool: 1,
        store: 77,
        ..DeviceInfo::default()
    };
    match kind {
        Kind::Hello => Hello {
            cluster: 7,
            role: Role::Sdc as i32,
            id: 4,
            incarnation: 40,
            session: 2,
            version_min: 1,
            version_max: 1,
            map: 12,
            name: "c".into(),
            to: 3,
            build: build(),
            ..Hello::default()
        }
        .encode_to_vec(),
        Kind::Welcome => Welcome {
            cluster: 7,
            role: Role::Sds as i32,
            id: 3,
            incarnation: 9,
            version: 1,
            map: 12,
            credit_ops: 64,
            credit_bytes: 8 << 20,
            ..Welcome::default()
        }
        .encode_to_vec(),
        Kind::Refusal => Refusal {
            code: RefusalCode::TooOld as i32,
            text: "update it".into(),
            leader: "10.0.0.1:7001".into(),
            session: 5,
        }
        .encode_to_vec(),
        Kind::Write | Kind::Replicate => vec![7; 512],
        Kind::CompareWrite => [[7; 512], [8; 512]].concat(),
        Kind::Fetched => {
            Executed::new(SdcId(4), Incarnation(40), 5, unit, blocks).as_bytes().to_vec()
        }
        Kind::SyncState => UnitBlocks::new(unit, blocks).as_bytes().to_vec(),
        Kind::Seal | Kind::SyncStart => {
            Executed::new(SdcId(4), Incarnation(40), 6, unit, blocks).as_bytes().to_vec()
        }
        Kind::Register => Register {
            sds: "sds1".into(),
            shard: 1,
            address: "10.0.0.2:7073".into(),
            nonce: 5,
            store: 77,
            capacity: 1 << 40,
            kind: DeviceKind::Durable as i32,
            pid: 100,
            acted: 8,
            device: 3,
            domain: "east".into(),
            next_volume: 4,
            records: 1000,
            build: build(),
            level: 1,
            ..Register::default()
        }
        .encode_to_vec(),
        Kind::RegisterSdc => {
            let (name, uris) = ("c".into(), vec!["nbd://10.0.0.9/".into()]);
            RegisterSdc { name, nonce: 5, pid: 100, uris, id: 4, incarnation: 40, build: build() }
                .encode_to_vec()
        }
        Kind::Registered => {
            Registered { cluster: 7, id: 3, incarnation: 9, map: 12, scrub: 1 }.encode_to_vec()
        }
        Kind::Heartbeat => {
            Heartbeat { used: 5 << 30, ops: 12, settled: 1000, ..Heartbeat::default() }
                .encode_to_vec()
        }
        Kind::MapPage => MapPage {
            version: 12,
            last: true,
            cluster: 7,
            devices: vec![device],
            live: vec![3],
            next_volume: 4,
            next_life: 41,
            level: 1,
            ..MapPage::default()
        }
        .encode_to_vec(),
        Kind::Proposal => {
            Proposal { device: 3, incarnation: 9, suspects: vec![2], ..Proposal::default() }
                .encode_to_vec()
        }
        Kind::Admin => {
            let ask = Ask::SetLevel(SetLevelRequest { level: 2, without: vec!["sds7".into()] });
            AdminRequest::of(ask).encode_to_vec()
        }
        Kind::AdminReply => {
            let error = AdminError::Invalid as i32;
            AdminReply { error, text: "no".into(), term: 3, ..AdminReply::default() }
                .encode_to_vec()
        }
        Kind::Report => Report::default().encode_to_vec(),
        Kind::Reserve => {
            let who =
                HostInfo { name: "iqn.2026-11.a:b".into(), id: vec![1, 2, 3, 4, 5, 6], port: 7 };
            let action = ReserveAction::Register as i32;
            let kind = ReservationKind::ExclusiveAccess as i32;
            let (key, other, ignore, all_ports) = (8, 9, true, true);
            let change = ReserveChange { action, key, other, kind, ignore, all_ports };
            Reserve { volume: 3, number: 10, who, change }.encode_to_vec()
        }
        Kind::Reserved => {
            let outcome = ReserveOutcome::Conflict as i32;
            Reserved { volume: 3, number: 10, outcome, map: 12 }.encode_to_vec()
        }
        Kind::TakeSeats => {
            let wish = SeatWish { volume: 3, host: "iqn.2026-11.a:b".into(), moves: true };
            TakeSeats { number: 10, seats: vec![wish] }.encode_to_vec()
        }
        Kind::SeatsTaken => {
            SeatsTaken { number: 10, map: 12, since: vec![4], volume: 3 }.encode_to_vec()
        }
        Kind::Raft => vec![1, 2, 3],
        _ => Vec::new(),
    }
}

/// A frame of this kind, with a number of its own in each field.
// Long: one match over all kinds.
fn said(kind: Kind) -> Frame {
    let (op, group, epoch, lsn) = (2, GroupId(3), Epoch(5), Lsn(6));
    let (incarnation, map) = (Incarnation(14), MapVersion(15));
    let sender = Sender { incarnation, map };
    let unit = UnitKey { volume: VolumeId(4), index: 10 };
    let range = UnitRange { unit, at: 11, len: 12 };
    let client = ClientWrite { sdc: SdcId(13), incarnation, seq: 8, floor: 9 };
    let request = Request { op, group, epoch, range, client, map, generation: 17 };
    let (retry, status, commit) = (true, Status::Stale, Lsn(7));
    match kind {
        Kind::Hello => Frame::Hello(message::Hello {}),
        Kind::Welcome => Frame::Welcome(message::Welcome {}),
        Kind::Refusal => Frame::Refusal(message::Refusal {}),
        Kind::Beacon => Frame::Beacon(Beacon { sender, sent: Time(16) }),
        Kind::Grant => Frame::Grant(Grant { sender, sent: Time(16) }),
        Kind::Read => Frame::Read(Read { request, retry }),
        Kind::Write => Frame::Write(Write { request, retry }),
        Kind::Zero => Frame::Zero(Zero { request, retry, hole: true }),
        Kind::Extents => Frame::Extents(Extents { request, retry }),
        Kind::CompareWrite => Frame::CompareWrite(CompareWrite { request, retry }),
        Kind::Reply => {
            let reply = Reply::new(op, group, status, map);
            Frame::Reply(Reply { epoch, leader: Some(DeviceId(12)), part_done: true, ..reply })
        }
        Kind::Fetch => Frame::Fetch(Fetch { op, group, epoch, range }),
        Kind::Fetched => {
            let (at, len) = (11, 12);
            Frame::Fetched(Fetched { status, op, group, epoch, at, len, sender })
        }
        Kind::Replicate => Frame::Replicate(Replicate {
            op,
            group,
            epoch,
            lsn,
            commit,
            range,
            client,
            skipped: 18,
            fresh: true,
            zero: true,
            yields: true,
            lost: true,
            copy: true,
        }),
        Kind::Replicated => Frame::Replicated(Replicated { status, op, group, epoch, lsn, sender }),
        Kind::Commit => Frame::Commit(Commit { group, epoch, commit }),
        Kind::SyncStart => {
            let (question, after, all, joiner) = (2, lsn, true, true);
            Frame::SyncStart(SyncStart { question, group, epoch, after, all, joiner })
        }
        Kind::SyncState => Frame::SyncState(SyncState {
            status,
            question: 2,
            group,
            epoch,
            base: Epoch(6),
            sender,
            more: true,
            all: true,
            empty: true,
        }),
        Kind::SyncWipe => Frame::SyncWipe(SyncWipe { question: 2, group, epoch }),
        Kind::Seal => Frame::Seal(Seal { group, epoch, lsn }),
        Kind::Sealed => Frame::Sealed(Sealed { status, group, epoch, lsn, sender }),
        Kind::Damage => Frame::Damage(Damage { group, epoch, range, sender }),
        Kind::Register => Frame::Register(message::Register {}),
        Kind::RegisterSdc => Frame::RegisterSdc(message::RegisterSdc {}),
        Kind::Registered => Frame::Registered(message::Registered {}),
        Kind::Heartbeat => Frame::Heartbeat(message::Heartbeat {}),
        Kind::MapPull => Frame::MapPull(message::MapPull { op, have: map, wait: true }),
        Kind::MapPage => Frame::MapPage(message::MapPage { op, map }),
        Kind::Proposal => Frame::Proposal(message::Proposal {}),
        Kind::Report => Frame::Report(message::Report {}),
        Kind::Reserve => Frame::Reserve(message::Reserve {}),
        Kind::Reserved => Frame::Reserved(message::Reserved {}),
        Kind::TakeSeats => Frame::TakeSeats(message::TakeSeats {}),
        Kind::SeatsTaken => Frame::SeatsTaken(message::SeatsTaken {}),
        Kind::Admin => Frame::Admin(message::Admin { op }),
        Kind::AdminReply => Frame::AdminReply(message::AdminReply { op }),
        Kind::Raft => Frame::Raft(Raft { secret: 2, number: 8, at: 11, len: 12 }),
    }
}

fn frame(kind: Kind) -> Vec<u8> {
    let body = body(kind);
    let head = PeerLink::new(base::LinkId(1), 1).frame(said(kind), &body);
    [head.as_slice(), &body].concat()
}

/// Reads the message of a control frame and writes it again.
fn again(kind: Kind, body: &[u8]) -> Vec<u8> {
    fn through<M: Message + Default>(body: &[u8]) -> Vec<u8> {
        M::decode(body).expect("this release reads it").encode_to_vec()
    }
    match kind {
        Kind::Hello => through::<Hello>(body),
        Kind::Welcome => through::<Welcome>(body),
        Kind::Refusal => through::<Refusal>(body),
        Kind::Register => through::<Register>(body),
        Kind::RegisterSdc => through::<RegisterSdc>(body),
        Kind::Registered => through::<Registered>(body),
        Kind::Heartbeat => through::<Heartbeat>(body),
        Kind::MapPage => through::<MapPage>(body),
        Kind::Proposal => through::<Proposal>(body),
        Kind::Report => through::<Report>(body),
        Kind::Reserve => through::<Reserve>(body),
        Kind::Reserved => through::<Reserved>(body),
        Kind::TakeSeats => through::<TakeSeats>(body),
        Kind::SeatsTaken => through::<SeatsTaken>(body),
        Kind::Admin => through::<AdminRequest>(body),
        Kind::AdminReply => through::<AdminReply>(body),
        _ => body.to_vec(),
    }
}

fn read(release: &std::path::Path) -> BTreeMap<u8, Vec<u8>> {
    let text = fs::read_to_string(release.join("frames.txt")).unwrap();
    let line = |line: &str| {
        let (kind, bytes) = line.split_once(' ').unwrap();
        (kind.parse().unwrap(), unhex(bytes))
    };
    text.lines().map(line).collect()
}

#[test]
fn this_release_sends_what_its_golden_frames_say() {
    let folder = folder().join(env!("CARGO_PKG_VERSION"));
    if std::env::var("GOLDEN").is_ok_and(|v| v == "write") {
        let line = |kind: Kind| format!("{} {}\n", kind as u8, hex(&frame(kind)));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("frames.txt"), kinds().map(line).collect::<String>()).unwrap();
    }
    let golden = read(&folder);
    assert_eq!(golden.len(), kinds().count(), "a frame of each kind");
    for kind in kinds() {
        assert!(golden[&(kind as u8)] == frame(kind), "{kind:?}: other bytes than before");
    }
}

#[test]
fn the_frames_of_every_release_are_read() {
    for release in fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()) {
        for (code, bytes) in read(&release) {
            let kind = Kind::from_code(code).expect("no kind is ever taken back");
            let Framing::Frame { head, body } = PeerFramer::new(1 << 20).frame(&bytes).unwrap()
            else {
                panic!("{kind:?} is a whole frame");
            };
            assert_eq!(head + body, bytes.len(), "{kind:?}");
            let (header, body) = (parse(&bytes[..head]), &bytes[head..]);
            assert_eq!(header.kind(), Some(kind));
            assert!(body_ok(header, body), "{kind:?}");
            assert_eq!(Frame::try_from(header), Ok(said(kind)), "{kind:?}");
            assert_eq!(again(kind, body), body, "{kind:?}: no field is lost");
        }
    }
}

/// Returns the names of the fields and flags that a header of this kind has. The fields of ranges
/// and clients are not listed.
fn names(kind: Kind) -> Vec<String> {
    let text = format!("{:?}", said(kind));
    let mut names = Vec::new();
    let mut inner = 0;
    let mut last = "";
    for word in text.split([' ', '(', ')', ',']) {
        match word {
            "{" if inner > 0 || ["UnitRange", "ClientWrite"].contains(&last) => inner += 1,
            "}" if inner > 0 => inner -= 1,
            _ => {}
        }
        if let Some(name) = word.strip_suffix(':').filter(|_| inner == 0) {
            names.push(name.to_owned());
        }
        last = word;
    }
    names.retain(|name| name != "request" && name != "sender");
    names
}

#[test]
fn the_protocol_pages_name_what_each_header_has() {
    let pages = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals/protocol");
    let pages = fs::read_dir(pages).unwrap().map(|page| page.unwrap().path());
    let text: String = pages.map(|page| fs::read_to_string(page).unwrap()).collect();
    let rows = |kind: Kind| {
        let start = format!("| `{kind:?}` |");
        let rows: String = text.lines().filter(|line| line.starts_with(&start)).collect();
        assert!(!rows.is_empty(), "no page has a row for {kind:?}");
        rows
    };
    for kind in kinds() {
        let own = rows(kind);
        let like_read = own.contains("the same") || own.contains("as `Read`");
        let read = if like_read { rows(Kind::Read) } else { String::new() };
        for name in names(kind) {
            let named = format!("`{name}`");
            assert!(own.contains(&named) || read.contains(&named), "{kind:?} has a {name}");
        }
    }
}

//! Golden frames: this release reads the frames of each kind that earlier ones sent, and sends the
//! same bytes.
//!
//! `golden/RELEASE/frames.txt` has one frame per line, in hex, by the number of its kind. The files
//! of a release are never written anew: a new release adds its own folder, by `GOLDEN=write cargo
//! test -p gabion-wire --test golden`.

mod hex;

use base::{BlockSet, Incarnation, SdcId, UnitKey, VolumeId};
use hex::{hex, unhex};
use prost::Message;
use seam::{Framer, Framing};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use wire::control::*;
use wire::records::{Executed, UnitBlocks};
use wire::{Header, Kind, PeerFramer, PeerLink, body_ok, parse};
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
        Kind::Reply => {
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
            let (name, nbd) = ("c".into(), vec!["nbd://10.0.0.9/".into()]);
            RegisterSdc { name, nonce: 5, pid: 100, nbd, id: 4, incarnation: 40, build: build() }
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
            let ask = Ask::SetLevel(SetLevelAsk { level: 2, without: vec!["sds7".into()] });
            AdminRequest::of(ask).encode_to_vec()
        }
        Kind::AdminReply => {
            let error = AdminError::Invalid as i32;
            AdminReply { error, text: "no".into(), term: 3, ..AdminReply::default() }
                .encode_to_vec()
        }
        Kind::Report => Report::default().encode_to_vec(),
        Kind::Raft => vec![1, 2, 3],
        _ => Vec::new(),
    }
}

/// The frame of this kind, with a number of its own in each field.
fn frame(kind: Kind) -> Vec<u8> {
    let mut h = Header::new(kind);
    h.status = 1.into();
    h.op = 2.into();
    (h.group, h.volume, h.epoch) = (3.into(), 4.into(), 5.into());
    (h.lsn, h.commit, h.seq, h.floor) = (6.into(), 7.into(), 8.into(), 9.into());
    (h.unit, h.at, h.len, h.sdc) = (10.into(), 11.into(), 12.into(), 13.into());
    (h.incarnation, h.map, h.sent) = (14.into(), 15.into(), 16.into());
    (h.generation, h.skipped) = (17.into(), 18.into());
    let body = body(kind);
    let head = PeerLink::new(base::LinkId(1), 1).frame(h, &body);
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
            assert!(body_ok(&header, body), "{kind:?}");
            assert_eq!((header.op.get(), header.skipped.get()), (2, 18), "{kind:?}");
            assert_eq!(again(kind, body), body, "{kind:?}: no field is lost");
        }
    }
}

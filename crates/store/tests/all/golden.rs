//! Golden devices: this build reads what an earlier build left on a device, and writes the same.
//!
//! There are three images of a fixed run: a device of 16 MiB as a crash leaves it, with most of its
//! content in the log; one after a checkpoint; and one that grew to 33 MiB on the way, and uses the
//! new space. A fourth image, of an earlier build, is only read. The images are stored as pages
//! that are not zero, each as runs of equal words.
//!
//! If a run leaves other bytes, slots may have been chosen differently. If an image can't be read,
//! the format has changed: devices in use could not be read any more, and the format needs a new
//! number. `GOLDEN=write cargo test -p gabion-store --test all golden::same_run` makes new images.

use base::{
    BLOCK, BlockSet, ClusterId, DeviceId, Epoch, GroupId, Incarnation, Prng, SdcId, UNIT, UnitKey,
    VolumeId,
};
use seam::{
    Buf, BufPool, Change, ClientWrite, DiskError, DiskId, DiskOp, Effect, Effects, ExecutedBlocks,
    Job, Origin, Started, UnitStore, WriteMetadata,
};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use store::durable::{Durable, Expected, Format, Formatting, Identity, Mount, Mounting, Tuning};

const SIZE: u64 = 16 << 20;
const GROWN: u64 = 33 << 20;
const PAGE: usize = 4096;
const SECTOR: u32 = 512;
const IDENTITY: Identity =
    Identity { cluster: ClusterId(0xc1), device: DeviceId(4), uuid: [0x1111, 0x2222] };

type Pages = BTreeMap<u32, Vec<u8>>;

/// A device that completes operations in order, and what should be on it.
struct Device {
    size: u64,
    pages: Pages,
    out: Effects,
    open: VecDeque<Effect>,
    store: Option<Box<Durable>>,
    /// By unit and sector: the word that fills it.
    content: BTreeMap<(UnitKey, u32), u32>,
    next: u64,
}

fn unit(volume: u32, index: u32) -> UnitKey {
    UnitKey { volume: VolumeId(volume), index }
}

fn group(unit: UnitKey) -> GroupId {
    GroupId(unit.index % 3 + 1)
}

impl Device {
    fn with(pages: Pages) -> Device {
        let out = Effects::new(BufPool::new(1 << 20), Prng::new(1), None);
        let (open, store, content) = (VecDeque::new(), None, BTreeMap::new());
        Device { size: SIZE, pages, out, open, store, content, next: 1 }
    }

    fn format(&mut self) {
        let mut format = Format::new(DiskId(0), self.size, IDENTITY, false).unwrap();
        format.start(&mut self.out);
        loop {
            let (op, result) = self.end_one().expect("it waits for something");
            match format.disk_done(op, result, &mut self.out) {
                Formatting::Running => {}
                Formatting::Done => return,
                Formatting::Failed(error) => panic!("{error}"),
            }
        }
    }

    fn mount(&mut self) {
        let (cluster, device) = (Some(IDENTITY.cluster), Some(IDENTITY.device));
        let expected = Expected { cluster, device, level_max: base::level::LEVEL };
        let mut mount = Mount::new(DiskId(0), self.size, expected, Tuning::SHIPPED);
        let mut state = mount.start(&mut self.out);
        loop {
            match state {
                Mounting::Running => {}
                Mounting::Done(store) => return self.store = Some(store),
                Mounting::Failed(error) => panic!("{error}"),
            }
            let (op, result) = self.end_one().expect("it waits for something");
            state = mount.disk_done(op, result, &mut self.out);
        }
    }

    fn end_one(&mut self) -> Option<(DiskOp, Result<Buf, DiskError>)> {
        self.open.extend(self.out.drain());
        Some(match self.open.pop_front()? {
            Effect::Read { op, at, len, .. } => {
                let mut buf = self.out.pool().zeroed(len as usize);
                let first = (at / PAGE as u64) as u32;
                for (page, bytes) in (first..).zip(buf.as_mut().chunks_mut(PAGE)) {
                    if let Some(kept) = self.pages.get(&page) {
                        bytes.copy_from_slice(&kept[..bytes.len()]);
                    }
                }
                (op, Ok(buf))
            }
            Effect::Write { op, at, body, .. } => {
                let first = (at / PAGE as u64) as u32;
                for (page, bytes) in (first..).zip(body.chunks(PAGE)) {
                    self.pages.insert(page, bytes.to_vec());
                }
                (op, Ok(Buf::EMPTY))
            }
            Effect::Flush { op, .. } => (op, Ok(Buf::EMPTY)),
            other => panic!("{other:?}"),
        })
    }

    /// Runs until no operation is in flight.
    fn settle(&mut self) {
        loop {
            let store = self.store.as_mut().expect("mounted");
            store.flush(&mut self.out);
            while let Some(finished) = store.finished() {
                finished.result.expect("nothing fails");
            }
            let Some((op, result)) = self.end_one() else { return };
            self.store.as_mut().expect("mounted").disk_done(op, result, &mut self.out);
        }
    }

    fn start(&mut self, unit: UnitKey, job: Job, dirty: bool) {
        self.next += 1;
        let write = ClientWrite {
            sdc: SdcId(7),
            incarnation: Incarnation(2),
            seq: self.next,
            floor: self.next.saturating_sub(4),
        };
        let marks = WriteMetadata { dirty, origin: Origin::Client(write) };
        let store = self.store.as_mut().expect("mounted");
        let started = store.start(self.next, group(unit), unit, job, marks, &mut self.out);
        assert!(matches!(started, Started::Pending | Started::Done(_)));
        self.settle();
    }

    /// Fills a range with a word.
    fn write(&mut self, unit: UnitKey, at: u32, len: u32, word: u32) {
        let mut body = self.out.alloc(len as usize);
        body.as_mut().chunks_exact_mut(4).for_each(|b| b.copy_from_slice(&word.to_le_bytes()));
        let sectors = at / SECTOR..(at + len) / SECTOR;
        self.content.extend(sectors.map(|s| ((unit, s), word)));
        self.start(unit, Job::Write { at, body, crc: None }, word.is_multiple_of(2));
    }

    fn zero(&mut self, unit: UnitKey, at: u32, len: u32) {
        let gone = at / SECTOR..(at + len) / SECTOR;
        self.content.retain(|(u, sector), _| *u != unit || !gone.contains(sector));
        self.start(unit, Job::Zero { at, len }, false);
    }

    fn change(&mut self, group: u32, changes: Vec<Change>) {
        self.store.as_mut().expect("mounted").change(None, GroupId(group), changes);
        self.settle();
    }

    /// The first part of the fixed run.
    fn first_half(&mut self) {
        for (i, at) in (0..8).zip([0, 65536, 131_072, 4096, 200_704, 8192, 0, 69632]) {
            self.write(unit(1, i % 5), at, (i + 1) * 4 * BLOCK, 0x1000 + i);
        }
        self.write(unit(2, 0), 0, UNIT, 0x2000); // a whole unit
        self.write(unit(1, 0), 0, BLOCK, 0x3001); // over old data
        self.write(unit(1, 0), 512, 1536, 0x3002); // less than a block
        self.write(unit(2, 0), 131_072, 65536, 0x3003); // a whole slot over old data
        self.zero(unit(2, 0), 400 * 1024, 100 * 1024);
        self.change(1, vec![Change::Acted(Epoch(5)), Change::Base(Epoch(4))]);
        let blocks = BlockSet::from_range(3..9);
        self.change(2, vec![Change::Dirty(vec![(unit(1, 1), blocks)]), Change::Acted(Epoch(6))]);
    }

    /// Grows the device, and uses more than its old size has room for.
    fn grow(&mut self) {
        self.size = GROWN;
        self.mount();
        (0..8).for_each(|i| self.write(unit(4, i), 0, UNIT, 0x6000 + i));
        let used = self.store.as_ref().expect("mounted").used();
        assert!(used > store::durable::layout::Layout::new(SIZE).unwrap().capacity());
    }

    fn second_half(&mut self) {
        self.write(unit(3, 1), 0, 40 * BLOCK, 0x4000);
        self.change(2, vec![Change::Clean(vec![(unit(1, 1), BlockSet::from_range(3..5))])]);
        self.write(unit(3, 1), 3 * BLOCK + 1024, 2 * BLOCK, 0x4001);
        self.store.as_mut().expect("mounted").drop_volume(VolumeId(3));
        self.content.retain(|(unit, _), _| unit.volume != VolumeId(3));
        self.settle();
        self.write(unit(1, 4), 12 * BLOCK, 9 * BLOCK, 0x5000);
        self.write(unit(1, 4), 13 * BLOCK, BLOCK, 0x5002);
        self.zero(unit(1, 2), 131_072 + 512, 512);
    }

    /// Checks that the content is what was written, and that the records are those of the run.
    fn check(&mut self) {
        let mut units: Vec<UnitKey> = self.content.keys().map(|(unit, _)| *unit).collect();
        units.dedup();
        let all: usize =
            (1..=3).map(|g| self.store.as_ref().expect("mounted").units(GroupId(g)).len()).sum();
        assert_eq!(all, units.len());
        for unit in units {
            let data = self.read(unit);
            for (sector, bytes) in (0..).zip(data.chunks_exact(SECTOR as usize)) {
                let word = self.content.get(&(unit, sector)).copied().unwrap_or(0);
                let same = bytes.chunks_exact(4).all(|b| b == word.to_le_bytes());
                assert!(same, "{unit:?}, sector {sector}");
            }
        }
        let records: BTreeMap<_, _> =
            self.store.as_ref().expect("mounted").records().into_iter().collect();
        assert_eq!((records[&GroupId(1)].acted, records[&GroupId(1)].base), (Epoch(5), Epoch(4)));
        assert_eq!(records[&GroupId(2)].acted, Epoch(6));
    }

    fn read(&mut self, unit: UnitKey) -> Buf {
        let job = Job::Read { at: 0, len: UNIT };
        let store = self.store.as_mut().expect("mounted");
        match store.start(1, group(unit), unit, job, WriteMetadata::default(), &mut self.out) {
            Started::Done(data) => data,
            Started::Full | Started::BadBody => panic!("a read needs no space"),
            Started::Pending => loop {
                let (op, result) = self.end_one().expect("the read ends");
                let store = self.store.as_mut().expect("mounted");
                store.disk_done(op, result, &mut self.out);
                store.flush(&mut self.out);
                if let Some(finished) = store.finished() {
                    break finished.result.expect("all checksums match");
                }
            },
        }
    }
}

/// A variant of the fixed run.
#[derive(Clone, Copy)]
struct Run {
    name: &'static str,
    grow: bool,
    /// At the end of the run.
    checkpoint: bool,
}

const RUNS: [Run; 3] = [
    Run { name: "format1-log.rle", grow: false, checkpoint: false },
    Run { name: "format1-checkpoint.rle", grow: false, checkpoint: true },
    Run { name: "format1-grown.rle", grow: true, checkpoint: true },
];

/// Does the fixed run.
fn run(how: Run) -> Device {
    let mut device = Device::with(Pages::new());
    device.format();
    device.mount();
    device.first_half();
    device.store.as_mut().expect("mounted").request_checkpoint();
    device.settle();
    if how.grow {
        device.grow();
    }
    device.second_half();
    if how.checkpoint {
        device.store.as_mut().expect("mounted").request_checkpoint();
        device.settle();
    }
    device
}

// ---- images ----

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn words(page: &[u8]) -> impl Iterator<Item = u32> + '_ {
    page.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes")))
}

/// Encodes each page that is not zero: its number, then runs (count, word) until it is full.
fn encode(pages: &Pages) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, page) in pages.iter().filter(|(_, p)| p.iter().any(|b| *b != 0)) {
        bytes.extend(number.to_le_bytes());
        let mut runs: Vec<(u16, u32)> = Vec::new();
        for word in words(page) {
            match runs.last_mut() {
                Some((count, last)) if *last == word => *count += 1,
                _ => runs.push((1, word)),
            }
        }
        for (count, word) in runs {
            bytes.extend(count.to_le_bytes());
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes
}

fn decode(mut bytes: &[u8]) -> Pages {
    fn take<const N: usize>(from: &mut &[u8]) -> [u8; N] {
        let (here, rest) = from.split_first_chunk().expect("a whole image");
        *from = rest;
        *here
    }
    let mut pages = Pages::new();
    while !bytes.is_empty() {
        let number = u32::from_le_bytes(take(&mut bytes));
        let mut page = Vec::new();
        while page.len() < PAGE {
            let count = u16::from_le_bytes(take(&mut bytes));
            let word: [u8; 4] = take(&mut bytes);
            page.extend(word.repeat(count.into()));
        }
        pages.insert(number, page);
    }
    pages
}

#[test]
fn the_same_run_leaves_the_same_bytes() {
    for how in RUNS {
        let (name, image) = (how.name, encode(&run(how).pages));
        if std::env::var("GOLDEN").is_ok_and(|v| v == "write") {
            std::fs::create_dir_all(file("")).unwrap();
            std::fs::write(file(name), &image).unwrap();
        }
        let golden = std::fs::read(file(name)).unwrap();
        if image == golden {
            continue;
        }
        let (new, old) = (decode(&image), decode(&golden));
        let numbers = new.keys().chain(old.keys());
        let first = numbers.filter(|n| new.get(n) != old.get(n)).min().expect("they differ");
        panic!("{name}: page {first} (byte {}) is another one", u64::from(*first) * 4096);
    }
}

#[test]
fn devices_of_an_earlier_build_are_read() {
    // A build that kept each client's floor in each group has left this image.
    let floors = ("format1-floors.rle", RUNS[1]);
    for (name, how) in RUNS.map(|how| (how.name, how)).into_iter().chain([floors]) {
        let mut device = Device::with(decode(&std::fs::read(file(name)).unwrap()));
        let same = run(how);
        (device.content, device.size) = (same.content, same.size);
        device.mount();
        let replayed = device.store.as_ref().unwrap().replayed();
        assert_eq!(replayed.batches > 0, !how.checkpoint, "{replayed:?}");
        device.check();
        device.mount(); // again, on what this mount left
        device.check();
    }
}

// ---- a device that an earlier build has filled up ----

/// Number of groups of that device, and of the writes of client 9 that its records area lists.
const GROUPS: u32 = 10;
const LISTED: u64 = 4000;
/// Number of writes of client 8 that its log lists, in a group of their own.
const LOGGED: u64 = 2000;
const LAST: u32 = GROUPS + 1;

fn executed(sdc: u32, seq: u64, floor: u64, blocks: BlockSet) -> ExecutedBlocks {
    let write = ClientWrite { sdc: SdcId(sdc), incarnation: Incarnation(1), seq, floor };
    ExecutedBlocks { write, unit: unit(1, (seq % 16) as u32), blocks }
}

/// Returns a records area as builds up to 4680bb2 left it, full to its last entry: executed writes,
/// and each client's floor in each group, without a bound.
fn full_area(len: usize) -> Vec<u8> {
    let entry = |bytes: &mut Vec<u8>, e: &ExecutedBlocks| {
        bytes.extend([e.write.sdc.0, 0].map(u32::to_le_bytes).concat());
        let numbers = [e.write.incarnation.0, e.write.seq, e.write.floor];
        bytes.extend(numbers.map(u64::to_le_bytes).concat());
        bytes.extend([e.unit.volume.0, e.unit.index].map(u32::to_le_bytes).concat());
        bytes.extend(e.blocks.0.map(u64::to_le_bytes).concat());
    };
    let all = (len - GROUPS as usize * 32) / 72;
    let floors = |group: u32| (0..all).filter(move |n| *n as u32 % GROUPS == group - 1);
    let mut bytes = Vec::new();
    for group in 1..=GROUPS {
        let entries = floors(group).count() as u32;
        bytes.extend([group, 0].map(u32::to_le_bytes).concat());
        bytes.extend([5u64, 4].map(u64::to_le_bytes).concat());
        bytes.extend([0, entries].map(u32::to_le_bytes).concat());
        for n in floors(group) {
            let (n, one) = (n as u64, BlockSet::from_range(0..1));
            let listed = executed(9, n + 1, 1, one);
            let floor = executed(100 + n as u32 / GROUPS, 50, 50, BlockSet::EMPTY);
            entry(&mut bytes, if n < LISTED { &listed } else { &floor });
        }
    }
    assert!(bytes.len() <= len && bytes.len() + 72 > len, "{} of {len}", bytes.len());
    bytes
}

/// Replaces the records in the area that counts, and their length and crc in all superblocks.
fn replace_records(pages: &mut Pages, records: &[u8]) {
    let field = |page: &[u8], at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
    let first = pages[&0].clone();
    let copy = field(&first, 64) as usize & 1;
    let area = (field(&first, 120 + (2 + copy) * 16) / PAGE as u64) as u32;
    for (number, bytes) in (area..).zip(records.chunks(PAGE)) {
        let mut page = bytes.to_vec();
        page.resize(PAGE, 0);
        pages.insert(number, page);
    }
    for page in pages.values_mut().filter(|page| page.starts_with(b"GABNDEV1")) {
        assert_eq!(field(page, 64), field(&first, 64), "the device has settled");
        page[104..112].copy_from_slice(&(records.len() as u64).to_le_bytes());
        page[112..116].copy_from_slice(&base::crc::crc32c(records).to_le_bytes());
        page[12..16].fill(0);
        let crc = base::crc::crc32c(&page[..512]);
        page[12..16].copy_from_slice(&crc.to_le_bytes());
    }
}

#[test]
fn a_device_that_an_earlier_build_filled_up_is_mounted_and_forgets_nothing_silently() {
    let mut device = Device::with(Pages::new());
    device.format();
    device.mount();
    let one = BlockSet::from_range(0..1);
    let logged = (1..=LOGGED).map(|seq| executed(8, seq, 1, one)).collect();
    device.change(LAST, vec![Change::Executed(logged)]);
    let area = store::durable::layout::Layout::new(SIZE).unwrap().records[0].len as usize;
    replace_records(&mut device.pages, &full_area(area));
    for _ in 0..2 {
        device.mount();
        let store = device.store.as_ref().expect("mounted");
        let records = store.records();
        let acted =
            |(_, r): &&(GroupId, seam::ReplicaRecord)| (r.acted, r.base) == (Epoch(5), Epoch(4));
        assert_eq!(records.iter().filter(acted).count(), GROUPS as usize);
        let listed: BTreeMap<_, _> = records
            .iter()
            .flat_map(|(group, r)| r.executed.entries().into_iter().map(|e| (e.write, *group)))
            .map(|(write, group)| ((write.sdc, write.seq), group))
            .collect();
        assert!(listed.len() > 2000 && listed.len() <= store.executed_most(), "{}", listed.len());
        let forgotten = store.forgotten().expect("it keeps what it forgets");
        let known = |sdc, seq, group| {
            listed.get(&(SdcId(sdc), seq)) == Some(&GroupId(group))
                || forgotten.covers(GroupId(group), executed(sdc, seq, 0, one).write)
        };
        assert!((1..=LISTED).all(|seq| known(9, seq, (seq - 1) as u32 % GROUPS + 1)));
        assert!((1..=LOGGED).all(|seq| known(8, seq, LAST)));
        assert!(!known(7, 1, 1), "who was never here");
    }
    device.write(unit(1, 1), 0, UNIT, 0x7000);
    assert!(device.read(unit(1, 1)).chunks_exact(4).all(|b| b == 0x7000u32.to_le_bytes()));
}

//! Gives every slot of a device an owner without writing the data. So the memory that a server
//! needs for a full device of 1 TiB can be measured on a real process, with a small sparse file.
//!
//! Run it by hand, on a device whose server was stopped in order (`docs/internals/measuring.md` has
//! the commands). The content of the device stays. Added slots belong to the owner of the first
//! slot in use, and read as damaged.

use base::crc::crc32c;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use store::durable::Content;
use store::durable::format::{MapEntry, Superblock, page_sum, superblock_crc};
use store::durable::layout::{Layout, MAP_ENTRIES, PAGE, UNIT_CHUNKS};
use store::durable::survey::{CopyState, look};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Number of the first unit that is added.
const FIRST_UNIT: u32 = 1 << 16;

fn read(file: &File, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).unwrap();
    bytes
}

struct Device {
    file: File,
    layout: Layout,
    uuid: [u64; 2],
    root_at: u64,
    root: Vec<u32>,
}

impl Device {
    fn open(path: &str) -> Device {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let page = read(&file, 0, PAGE as usize);
        let CopyState::Valid(Content { layout, .. }) = look(&page) else { panic!("no device") };
        let sb = Superblock::ref_from_prefix(&page).unwrap().0;
        let root_at = layout.root[(sb.sequence.get() & 1) as usize].at;
        let bytes = read(&file, root_at, layout.root_len());
        assert_eq!(crc32c(&bytes), sb.root_crc.get(), "stop its server in order first");
        let root = bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap()));
        Device { root: root.collect(), uuid: sb.uuid.map(|w| w.get()), file, layout, root_at }
    }

    /// Returns the entries of a page of the map.
    fn page(&self, page: u32) -> Vec<MapEntry> {
        let (at, wanted) = (self.layout.map_page(page), self.root[page as usize]);
        if wanted == 0 {
            return (0..MAP_ENTRIES).map(|_| MapEntry::new_zeroed()).collect();
        }
        let both = read(&self.file, at, 2 * PAGE as usize);
        let mut copies = both.chunks_exact(PAGE as usize);
        let whole = copies.find(|copy| page_sum(copy, self.uuid, at) == wanted).unwrap();
        whole.chunks_exact(16).map(|b| MapEntry::read_from_bytes(b).unwrap()).collect()
    }

    /// Writes a page over the first of its copies. From now on only this one counts.
    fn save(&mut self, page: u32, entries: &[MapEntry]) {
        let at = self.layout.map_page(page);
        self.file.write_all_at(entries.as_bytes(), at).unwrap();
        self.root[page as usize] = page_sum(entries.as_bytes(), self.uuid, at);
    }

    fn close(self) {
        let bytes: Vec<u8> = self.root.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        self.file.write_all_at(&bytes, self.root_at).unwrap();
        for at in self.layout.earlier_ends().chain(self.layout.places()) {
            let mut page = read(&self.file, at, PAGE as usize);
            Superblock::mut_from_prefix(&mut page).unwrap().0.root_crc = crc32c(&bytes).into();
            let crc = superblock_crc(&page);
            page[12..16].copy_from_slice(&crc.to_le_bytes());
            self.file.write_all_at(&page, at).unwrap();
        }
        self.file.sync_all().unwrap();
    }
}

#[test]
#[ignore = "changes the device that the variable GABION_DEVICE names"]
fn every_slot_of_a_device_is_taken() {
    let mut device = Device::open(&std::env::var("GABION_DEVICE").unwrap());
    let pages = device.layout.map_pages();
    let used = (0..pages).flat_map(|page| device.page(page)).find(|e| e.valid.get() != 0);
    let owner = used.expect("write something to it first");
    let (mut added, unused) = (0, BTreeSet::from_iter(device.layout.unused()));
    for page in 0..pages {
        let mut entries = device.page(page);
        for (slot, entry) in (page * MAP_ENTRIES..).zip(&mut entries) {
            let exists = device.layout.has_slot(slot) && !unused.contains(&slot);
            if exists && entry.valid.get() == 0 {
                let (unit, chunk) = (FIRST_UNIT + added / UNIT_CHUNKS, added % UNIT_CHUNKS);
                (entry.group, entry.volume, entry.unit) = (owner.group, owner.volume, unit.into());
                (entry.valid, entry.chunk) = (u16::MAX.into(), chunk as u8);
                added += 1;
            }
        }
        device.save(page, &entries);
    }
    println!("{added} of {} slots were free", device.layout.slot_count());
    device.close();
}

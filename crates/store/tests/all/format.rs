//! The bytes on the device are those of format 1: golden bytes, field by field as
//! `docs/internals/on-disk.md` draws them. If this test fails, devices in use can't be read any
//! more: a new format is needed.

use crate::common::world::{SIZE, World};
use base::{BLOCK, GroupId, Incarnation, SdcId, UnitKey, VolumeId};
use seam::{ClientWrite, Job, Origin, Started, UnitStore, WriteMetadata};
use std::fmt::Write;
use store::durable::layout::Layout;

/// Makes a device with two writes in its log: one with metadata to fresh space, and one inline.
fn device() -> World {
    let mut world = World::new(1, true);
    world.fifo = true;
    world.mount(None).unwrap();
    let unit = UnitKey { volume: VolumeId(0x0102), index: 0x0304 };
    for (token, fill, len) in [(0x11, 0x5a, 2 * BLOCK), (0x12, 0xa5, BLOCK)] {
        let mut body = world.out.alloc(len as usize);
        body.as_mut().fill(fill);
        let write =
            ClientWrite { sdc: SdcId(7), incarnation: Incarnation(8), seq: token, floor: 9 };
        let marks = WriteMetadata { dirty: token == 0x11, origin: Origin::Client(write) };
        let store = world.store.as_mut().unwrap();
        let job = Job::Write { at: 17 * BLOCK, body, crc: None };
        let started = store.start(token, GroupId(0x0a0b), unit, job, marks, &mut world.out);
        assert!(matches!(started, Started::Pending));
        loop {
            world.store.as_mut().unwrap().flush(&mut world.out);
            if world.store.as_mut().unwrap().finished().is_some() {
                break;
            }
            assert!(world.end_or_fail(None));
        }
    }
    world
}

fn hex(world: &World, at: u64, len: usize) -> String {
    let mut bytes = vec![0; len];
    world.disk.read(at, &mut bytes);
    let mut text = String::new();
    for line in bytes.chunks(32) {
        line.iter().for_each(|b| write!(text, "{b:02x}").unwrap());
        text.push('\n');
    }
    text
}

const SUPERBLOCK: &str = "\
4741424e4445563101000000f76a686c00000000000000004d00000000000000
03000000000000000b000000000000000c000000000000000000000100000000
0300000000000000010000000000000000000000000000000000000000000000
00000000ea9a7042000000000000000000000000000000000000110000000000
0000010000000000000012000000000000000100000000000000130000000000
0000100000000000000023000000000000001000000000000000330000000000
0000400000000000000073000000000000000100000000000000740000000000
0000010000000000000075000000000000008a0000000000
";

const BATCHES: [&str; 2] = [
    "\
474c4231235a842dc00000000000000000000000000000000000000000000000
0100000000000000000000000000000000000000000000000100000000000000
80000000010301000b0a00000201000004030000010000001100130000000000
00000000ffffffff0100060000000000ed5fb132cd5c40660700000000000000
0800000000000000110000000000000009000000000000000201000004030000
0000060000000000000000000000000000000000000000000000000000000000
",
    "\
474c4231061993e9bc100000235a842d00100000000000000100000000000000
0100000000000000010000000000000001000000000000000100000000000000
7c100000010201000b0a00000201000004030000010000001100120000000000
00000000ffffffff010102000000000077e0898f
",
];

const MAP_ENTRY: &str = "\
0b0a0000020100000403000006000100
";

#[test]
fn bytes_are_those_of_format_1() {
    let mut world = device();
    let layout = Layout::new(SIZE).unwrap();
    assert_eq!(hex(&world, 0, 248), SUPERBLOCK);
    // Head, record, part, two checksums, one executed entry; then the inline write without payload.
    assert_eq!(hex(&world, layout.log.at, 64 + 32 + 16 + 8 + 72), BATCHES[0]);
    assert_eq!(hex(&world, layout.log.at + 4096, 64 + 32 + 16 + 4), BATCHES[1]);
    world.store.as_mut().unwrap().request_checkpoint();
    loop {
        world.store.as_mut().unwrap().flush(&mut world.out);
        if !world.end_or_fail(None) {
            break;
        }
    }
    // The first write of a page goes to its second copy.
    assert_eq!(hex(&world, layout.extents[0].map.at + 4096, 16), MAP_ENTRY);
}

/// A superblock that grew twice, to 33 and to 64 MiB: 504 bytes, and 8 zeros.
const GROWN: &str = "\
4741424e444556310100000050dae92301000000000000004d00000000000000
03000000000000000b000000000000000c000000000000000000000400000000
0400000000000000020000000000000000000000000000000000000000000000
00000000f69fcb07000000000000000000000000000000000000100200000000
0000010000000000000011020000000000000100000000000000130000000000
0000100000000000000023000000000000001000000000000000330000000000
0000400000000000000073000000000000000100000000000000740000000000
0000010000000000000075000000000000008a00000000000000000100000000
000010010000000000001002000000000000f001000000000000000000000000
0000000000000000000000000000000000000000000000000000000000000000
0000000000000000000000000000000000000000000000000000000000000000
0000000000000000000000000000000000000000000000000000000000000000
0000000000000000000000000000000000000000000000000000000000000000
0000000000000000000000000000000000000000000000000000000000000000
0000000000000000000000000000000000000000000000000000000000000000
0000000000000000000000000000000000000000000000000000000000000000
";

#[test]
fn a_superblock_of_a_device_that_grew_is_that_of_format_1_with_a_feature() {
    let mut world = World::new(1, true);
    world.disk.size = 33 << 20;
    world.mount(None).unwrap();
    world.disk.size = 64 << 20;
    world.mount(None).unwrap();
    assert_eq!(hex(&world, 0, 512), GROWN);
    let ends = [SIZE, 33 << 20, 64 << 20].map(|end| hex(&world, end - (64 << 10), 512));
    assert!(ends.iter().all(|end| end == GROWN), "where the last one was, too");
}

#[test]
fn the_layout_of_a_terabyte_is_as_drawn() {
    let l = Layout::new(1 << 40).unwrap();
    let e = l.extents[0];
    let mib = |a: store::durable::layout::Area| (a.at >> 20, a.len >> 20);
    assert_eq!(
        [mib(l.root[0]), mib(l.records[0]), mib(l.log), mib(e.map), mib(e.sums), mib(e.slots)],
        [(1, 1), (3, 160), (323, 8192), (8515, 512), (9027, 2048), (11075, 1037500)]
    );
}

//! Commands that tell something: bytes as the specifications have them.

use super::rig::*;
use target::scsi::*;

/// Returns a page of vital product data.
fn vital(rig: &mut Rig, page: u8) -> Vec<u8> {
    let told = rig.read(&[0x12, 1, page, 4, 0, 0], 1024);
    assert!(told.is_good(), "{told:?}");
    assert_eq!(told.data[..2], [0, page]);
    assert_eq!(told.data.len(), 4 + usize::from(u16::from_be_bytes([told.data[2], told.data[3]])));
    told.data
}

#[test]
fn standard_inquiry_data() {
    let mut rig = Rig::new(Format::Native512);
    let told = rig.read(&[0x12, 0, 0, 4, 0, 0], 1024);
    assert_eq!(told.residual, Residual::Under(1024 - 96));
    let expected = [
        &hex("00 00 06 12 5b 30 10 02")[..],
        b"GABION  VOLUME          1   ",
        &[0; 22],
        &hex("00a0 0460 04c0 0960"),
        &[0; 30],
    ]
    .concat();
    assert_eq!(told.data, expected);
    for allocation in 0..200u16 {
        let [high, low] = allocation.to_be_bytes();
        let told = rig.read(&[0x12, 0, 0, high, low, 0], 1024);
        assert_eq!(told.data, expected[..96.min(allocation.into())]);
    }
    assert_eq!(rig.read(&[0x12, 0, 1, 1, 0, 0], 256).sense, says::IN_CDB, "a page without EVPD");
    assert_eq!(rig.read(&[0x12, 1, 0x42, 1, 0, 0], 256).sense, says::IN_CDB, "no such page");
}

#[test]
fn pages_are_listed_ascending_and_there() {
    let mut rig = Rig::new(Format::Native512);
    let pages = vital(&mut rig, 0)[4..].to_vec();
    assert_eq!(pages, [0x00, 0x80, 0x83, 0x86, 0xb0, 0xb1, 0xb2]);
    pages.iter().for_each(|page| drop(vital(&mut rig, *page)));
    assert_eq!(vital(&mut rig, 0x80)[4..], *b"89abcdef00000007");
    assert_eq!(vital(&mut rig, 0x86)[4..9], hex("00 01 00 00 00"));
    assert_eq!(vital(&mut rig, 0xb1)[4..9], hex("0001 00 00 00"));
    assert_eq!(vital(&mut rig, 0xb2), hex("00 b2 0004 00 e4 02 00"));
}

#[test]
fn designators_of_unit_port_and_target() {
    let mut rig = Rig::new(Format::Native512);
    let page = vital(&mut rig, 0x83);
    let mut rest = &page[4..];
    let mut found = Vec::new();
    while let [set, kind, _, len, ..] = *rest {
        let (designator, after) = rest[4..].split_at(len.into());
        found.push((set, kind, designator.to_vec()));
        rest = after;
    }
    let name = |text: &str| {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let target = "iqn.2026-11.io.github.gabion:0123456789abcdef.7";
    assert_eq!(
        found,
        [
            (0x01, 0x03, hex("39abcdef 00000007")),
            (0x02, 0x01, b"GABION  0123456789abcdef-00000007".to_vec()),
            (0x03, 0x08, name(&format!("{target},L,0x0000000000000000"))),
            (0x51, 0x94, hex("0000 0001")),
            (0x51, 0x95, hex("0000 0001")),
            (0x53, 0x98, name(&format!("{target},t,0x0001"))),
            (0x53, 0xa8, name(target)),
        ]
    );
}

#[test]
fn block_limits() {
    let expected = |caw: &str, per: &str, most: &str, best: &str, unmap: &str, same: &str| {
        hex(&format!(
            "00 b0 003c 01 {caw} {per} {most} {best} 00000000 {unmap} 00000100 0000{per} 80000000 \
             00000000{same} {}",
            "00".repeat(20)
        ))
    };
    for format in [Format::Native512, Format::Emulated512] {
        let page = vital(&mut Rig::new(format), 0xb0);
        let of_512 = expected("08", "0008", "00002000", "00000800", "00100000", "00008000");
        assert_eq!((page.len(), page), (64, of_512));
    }
    let page = vital(&mut Rig::new(Format::Native4k), 0xb0);
    assert_eq!(page, expected("01", "0001", "00000400", "00000100", "00020000", "00001000"));
}

#[test]
fn capacities() {
    let capacity = |rig: &mut Rig| {
        let ten = rig.read(&cdb10(0x25, 0, 0, 0), 8).data;
        (ten, rig.read(&cdb16(0x9e, 0x10, 0, 32), 32).data)
    };
    for (format, last, block, exponent) in [
        (Format::Native512, "0000ffff", "00000200", "00"),
        (Format::Emulated512, "0000ffff", "00000200", "03"),
        (Format::Native4k, "00001fff", "00001000", "00"),
    ] {
        let mut rig = Rig::new(format);
        let (ten, sixteen) = capacity(&mut rig);
        assert_eq!(ten, hex(&format!("{last} {block}")));
        let rest = "00".repeat(16);
        let expected = hex(&format!("00000000{last} {block} 00 {exponent} c000 {rest}"));
        assert_eq!(sixteen, expected);
        for allocation in 0..32 {
            let told = rig.read(&cdb16(0x9e, 0x10, 0, allocation), 100);
            assert_eq!(told.data, expected[..allocation as usize]);
        }
    }
    let mut large = unit(Format::Native512);
    large.size = (1 << 41) + 512 + 100;
    let mut rig = Rig::new(Format::Native512);
    rig.hosts[0].1.changed(large);
    rig.read(&[0; 6], 0);
    let (ten, sixteen) = capacity(&mut rig);
    assert_eq!((&ten[..4], &sixteen[..8]), (&[0xff; 4][..], &(1u64 << 32).to_be_bytes()[..]));
}

#[test]
fn mode_pages() {
    let caching = format!("0812{}", "00".repeat(18));
    let (control, exceptions) = ("0a0a 0010 0000 0000 0000 0000", "1c0a 0800 0000 0000 0000 0000");
    let mut rig = Rig::new(Format::Native512);
    let sense = |rig: &mut Rig, flags: u8, page: u8| {
        let six = rig.read(&[0x1a, flags & 8, page, 0, 255, 0], 255).data;
        let ten = rig.read(&[0x5a, flags, page, 0, 0, 0, 0, 1, 0, 0], 256).data;
        (six, ten)
    };
    let all = format!("{caching}{control}{exceptions}");
    let (six, ten) = sense(&mut rig, 0, 0x3f);
    assert_eq!(six, hex(&format!("37 00 10 08 00010000 00000200 {all}")));
    assert_eq!(ten, hex(&format!("003a 00 10 00 00 0008 00010000 00000200 {all}")));
    let (_, long) = sense(&mut rig, 0x10, 0x0a);
    let expected = format!("0022 00 10 01 00 0010 0000000000010000 00000000 00000200 {control}");
    assert_eq!(long, hex(&expected));
    let (six, ten) = sense(&mut rig, 0x08, 0x08);
    assert_eq!(six, hex(&format!("17 00 10 00 {caching}")));
    assert_eq!(ten, hex(&format!("001a 00 10 00 00 0000 {caching}")));
    let changeable = rig.read(&[0x1a, 8, 0x4a, 0, 255, 0], 255).data;
    assert_eq!(changeable, hex(&format!("0f 00 10 00 0a0a {}", "00".repeat(10))), "nothing");
    assert_eq!(rig.read(&[0x1a, 8, 0x8a, 0, 255, 0], 255).data, sense(&mut rig, 8, 0x0a).0);
    assert_eq!(rig.read(&[0x1a, 8, 0xca, 0, 255, 0], 255).sense, (5, 0x39, 0), "saved values");
    assert_eq!(rig.read(&[0x1a, 8, 0x01, 0, 255, 0], 255).sense, says::IN_CDB, "no such page");
    assert_eq!(rig.read(&[0x1a, 8, 0x0a, 1, 255, 0], 255).sense, says::IN_CDB, "no such subpage");
    let cut = rig.read(&[0x1a, 0, 0x3f, 0, 4, 0], 4);
    assert_eq!((cut.data.len(), cut.residual), (4, Residual::None));
}

#[test]
fn mode_select_accepts_what_is_so_already() {
    for format in [Format::Native512, Format::Native4k] {
        let mut rig = Rig::new(format);
        for (flags, page) in [(0, 0x3f), (8, 0x3f), (0, 0x08), (0x10, 0x3f)] {
            let mut list = rig.read(&[0x1a, flags & 8, page, 0, 255, 0], 255).data;
            list[0] = 0;
            let select = [0x15, 0x10, 0, 0, list.len() as u8, 0];
            assert_eq!(rig.write(&select, &list), Told::good());
            let last = list.len() - 1;
            list[last] ^= 1;
            assert_eq!(rig.write(&select, &list).sense, says::IN_LIST);
            let mut list = rig.read(&[0x5a, flags, page, 0, 0, 0, 0, 1, 0, 0], 256).data;
            list[..2].fill(0);
            let select = cdb10(0x55, 0x10, 0, list.len() as u16);
            assert_eq!(rig.write(&select, &list), Told::good());
            let select = cdb10(0x55, 0x10, 0, list.len() as u16 - 1);
            assert_eq!(rig.write(&select, &list[..list.len() - 1]).sense, says::LIST_LENGTH);
        }
        let write = |rig: &mut Rig, list: &str| {
            let list = hex(list);
            rig.write(&[0x15, 0x10, 0, 0, list.len() as u8, 0], &list).sense
        };
        assert_eq!(write(&mut rig, ""), (0, 0, 0));
        assert_eq!(write(&mut rig, "000000"), says::LIST_LENGTH);
        assert_eq!(write(&mut rig, "00000000"), (0, 0, 0));
        assert_eq!(write(&mut rig, "00010000"), says::IN_LIST, "medium type");
        assert_eq!(write(&mut rig, "00000007 00000000000000"), says::IN_LIST);
        assert_eq!(write(&mut rig, "00000008 00000000"), says::LIST_LENGTH);
        assert_eq!(write(&mut rig, "00000008 00000000 00000208"), says::IN_LIST, "block length");
        assert_eq!(write(&mut rig, "00000000 01"), says::IN_LIST, "no such page");
        assert_eq!(rig.write(&[0x15, 0x00, 0, 0, 4, 0], &[0; 4]).sense, says::IN_CDB, "PF 0");
        assert_eq!(rig.write(&[0x15, 0x11, 0, 0, 4, 0], &[0; 4]).sense, says::IN_CDB, "SP 1");
    }
}

#[test]
fn luns_groups_defects_and_tasks() {
    let mut rig = Rig::new(Format::Native512);
    let luns = |select: u8, allocation: u8| [0xa0, 0, select, 0, 0, 0, 0, 0, 0, allocation, 0, 0];
    let one = hex("00000008 00000000 0000000000000000");
    assert_eq!(rig.read(&luns(0, 16), 16).data, one);
    assert_eq!(rig.read(&luns(2, 255), 255).data, one);
    assert_eq!(rig.read(&luns(1, 255), 255).data, [0; 8], "no well known units");
    assert_eq!(rig.read(&luns(3, 255), 255).sense, says::IN_CDB);
    assert_eq!(rig.read(&luns(0, 15), 255).sense, says::IN_CDB);

    let groups = |format: u8| [0xa3, 0x0a | format, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0];
    let states = "05 0001 00 02 00 01 0000 0001";
    assert_eq!(rig.read(&groups(0), 255).data, hex(&format!("0000000c 00 {states}")));
    assert_eq!(rig.read(&groups(0x20), 255).data, hex(&format!("00000010 10000000 00 {states}")));
    rig.hosts[0].1.changed(Unit { path: Path::Standby, ..unit(Format::Native512) });
    assert_eq!(rig.read(&[0; 6], 0).sense, (6, 0x2a, 6));
    assert_eq!(rig.read(&groups(0), 255).data, hex(&format!("0000000c 02 {states}")));

    let mut rig = Rig::new(Format::Native512);
    assert_eq!(rig.read(&[0x37, 0, 0x1d, 0, 0, 0, 0, 0, 32, 0], 32).data, hex("00 1d 0000"));
    let twelve = [0xb7, 0x0d, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0];
    assert_eq!(rig.read(&twelve, 32).data, hex("00 0d 0000 00000000"));

    let tasks = |flags: u8, len: u8| [0xa3, 0x0d, flags, 0, 0, 0, 0, 0, 0, len, 0, 0];
    assert_eq!(rig.read(&tasks(0, 255), 255).data, hex("da000000"));
    assert_eq!(rig.read(&tasks(0x80, 255), 255).data, hex("da00000c 00000000 00000000 00000000"));
    assert_eq!(rig.read(&tasks(0, 3), 255).sense, says::IN_CDB);
}

/// SPC-4 6.37: each gateway is a port group with one port.
#[test]
fn port_groups_of_all_gateways_are_reported() {
    let most = (1..=126).map(|n| (n + 1, Path::Standby)).collect::<Vec<_>>();
    let table: [(Path, Groups<'_>); 4] = [
        (Path::Optimized, &[]),
        (Path::Optimized, &[(2, Path::Standby)]),
        (Path::Standby, &[(2, Path::Optimized), (127, Path::Standby)]),
        (Path::Optimized, &most),
    ];
    for (path, paths) in table {
        let others = others(paths);
        let mut rig = Rig::fresh(Unit { path, others, ..unit(Format::Native512) });
        assert_eq!(rig.read(&[0; 6], 0).sense, (6, 0x29, 0));
        let mut groups = |format: u8, allocation: u16, room: u32| {
            let [high, low] = allocation.to_be_bytes();
            rig.read(&[0xa3, 0x0a | format, 0, 0, 0, 0, 0, 0, high, low, 0, 0], room).data
        };
        let mut expected = Vec::new();
        for (port, path) in [(1, path)].iter().chain(paths) {
            let state = if *path == Path::Optimized { 0 } else { 2 };
            expected.extend(hex(&format!("{state:02x} 05 {port:04x} 00 02 00 01 0000 {port:04x}")));
        }
        let len = expected.len();
        assert_eq!(len, 12 * (1 + paths.len()));
        let short = [&(len as u32).to_be_bytes()[..], &expected].concat();
        assert_eq!(groups(0, 4096, 4096), short);
        let head = [&(len as u32 + 4).to_be_bytes()[..], &[0x10, 0, 0, 0]].concat();
        assert_eq!(groups(0x20, 4096, 4096), [&head[..], &expected].concat());
        // The length says how much there is, however much the host asks for or has room for.
        for (allocation, room) in [(0, 255), (4, 255), (15, 255), (255, 15), (255, 0)] {
            let most = usize::from(allocation).min(room as usize);
            assert_eq!(groups(0, allocation, room), short[..short.len().min(most)]);
        }
    }
}

/// SPC-4 6.45: a host makes the path that it wants to use optimized.
#[test]
fn a_host_sets_the_state_of_port_groups() {
    const LENGTH: (u8, u8, u8) = (5, 0x1a, 0);
    const FIELD: (u8, u8, u8) = (5, 0x26, 0);
    let others = others(&[(2, Path::Optimized), (4, Path::Standby)]);
    let unit = Unit { path: Path::Standby, others, ..unit(Format::Native512) };
    let mut rig = Rig::fresh(unit);
    assert_eq!(rig.read(&[0; 6], 0).sense, (6, 0x29, 0));
    let mut set = |list: &str| {
        let list = hex(list);
        let before = rig.activated;
        let told = rig.write(&[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0, 0], &list);
        (told.sense, rig.activated - before)
    };
    let good = (0, 0, 0);
    let table = [
        ("", good, 0),
        ("00000000 00000001", good, 1),
        ("00000000 00000001 02000002", good, 1),
        ("00000000 02000002 00000001 02000004", good, 1),
        ("00000000 02000002", good, 0),
        ("00000000", LENGTH, 0),
        ("00000000 000000", LENGTH, 0),
        ("00000000 00000001 02", LENGTH, 0),
        ("00000000 02000001", FIELD, 0), // its own group leaves only for another one
        ("00000000 00000002", FIELD, 0), // over this path, only its own group is activated
        ("00000000 00000003", FIELD, 0), // no such group
        ("00000000 02000003", FIELD, 0),
        ("00000000 01000001", FIELD, 0), // active/non-optimized
        ("00000000 0f000002", FIELD, 0),
        ("00000000 00000001 0e000002", FIELD, 0),
    ];
    for (list, sense, activated) in table {
        assert_eq!(set(list), (sense, activated), "{list}");
    }
}

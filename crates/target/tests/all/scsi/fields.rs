//! Every CDB beside the field tables of SPC-4 6 and SBC-3 5, written down a second time.

use super::rig::*;
use target::scsi::*;

/// A field: byte, highest bit, width in bits.
type Field = (usize, u8, usize);

/// Fields that several commands have.
const DPO: Field = (1, 4, 1);
const FUA: Field = (1, 3, 1);
const FUA_NV: Field = (1, 1, 1);
const BYTCHK_1: Field = (1, 1, 1);
const GROUP_10: Field = (6, 4, 5);
const GROUP_12: Field = (10, 4, 5);
const GROUP_16: Field = (14, 4, 5);
const LBA_32: Field = (2, 7, 32);
const LBA_64: Field = (2, 7, 64);
const COUNT_10: Field = (7, 7, 16);
const COUNT_12: Field = (6, 7, 32);
const COUNT_16: Field = (10, 7, 32);

/// A command: name, operation code, service action, length, and the fields that may be set.
type Row = (&'static str, u8, Option<u8>, usize, &'static [Field]);

/// All commands, in the order in which they are reported. What a specification has besides these
/// fields is refused: protection, anchors, saved pages, NACA.
const ROWS: &[Row] = &[
    ("TEST UNIT READY", 0x00, None, 6, &[]),
    ("REQUEST SENSE: DESC, allocation length", 0x03, None, 6, &[(1, 0, 1), (4, 7, 8)]),
    ("READ (6): LBA, count", 0x08, None, 6, &[(1, 4, 21), (4, 7, 8)]),
    ("WRITE (6): LBA, count", 0x0a, None, 6, &[(1, 4, 21), (4, 7, 8)]),
    ("INQUIRY: EVPD, page, allocation", 0x12, None, 6, &[(1, 0, 1), (2, 7, 8), (3, 7, 16)]),
    ("MODE SELECT (6): PF, length", 0x15, None, 6, &[(1, 4, 1), (4, 7, 8)]),
    (
        "MODE SENSE (6): DBD, PC and page, subpage, allocation",
        0x1a,
        None,
        6,
        &[(1, 3, 1), (2, 7, 8), (3, 7, 8), (4, 7, 8)],
    ),
    (
        "START STOP UNIT: IMMED, modifier, condition, NO_FLUSH, LOEJ, START",
        0x1b,
        None,
        6,
        &[(1, 0, 1), (3, 3, 4), (4, 7, 4), (4, 2, 3)],
    ),
    ("SEND DIAGNOSTIC: PF, SELFTEST, DEVOFFL, UNITOFFL", 0x1d, None, 6, &[(1, 4, 1), (1, 2, 3)]),
    ("PREVENT ALLOW MEDIUM REMOVAL: PREVENT", 0x1e, None, 6, &[(4, 1, 2)]),
    ("READ CAPACITY (10)", 0x25, None, 10, &[]),
    ("READ (10)", 0x28, None, 10, &[DPO, FUA, FUA_NV, LBA_32, GROUP_10, COUNT_10]),
    ("WRITE (10)", 0x2a, None, 10, &[DPO, FUA, FUA_NV, LBA_32, GROUP_10, COUNT_10]),
    ("WRITE AND VERIFY (10)", 0x2e, None, 10, &[DPO, BYTCHK_1, LBA_32, GROUP_10, COUNT_10]),
    ("VERIFY (10)", 0x2f, None, 10, &[DPO, BYTCHK_1, LBA_32, GROUP_10, COUNT_10]),
    ("PRE-FETCH (10): IMMED", 0x34, None, 10, &[(1, 1, 1), LBA_32, GROUP_10, COUNT_10]),
    (
        "SYNCHRONIZE CACHE (10): SYNC_NV, IMMED",
        0x35,
        None,
        10,
        &[(1, 2, 2), LBA_32, GROUP_10, COUNT_10],
    ),
    ("READ DEFECT DATA (10): PLIST, GLIST, format", 0x37, None, 10, &[(2, 4, 5), COUNT_10]),
    ("WRITE SAME (10): UNMAP", 0x41, None, 10, &[(1, 3, 1), LBA_32, GROUP_10, COUNT_10]),
    ("UNMAP", 0x42, None, 10, &[GROUP_10, COUNT_10]),
    ("MODE SELECT (10): PF, length", 0x55, None, 10, &[(1, 4, 1), COUNT_10]),
    ("MODE SENSE (10): LLBAA, DBD", 0x5a, None, 10, &[(1, 4, 2), (2, 7, 8), (3, 7, 8), COUNT_10]),
    ("PERSISTENT RESERVE IN: READ KEYS", 0x5e, Some(0), 10, &[COUNT_10]),
    ("PERSISTENT RESERVE IN: READ RESERVATION", 0x5e, Some(1), 10, &[COUNT_10]),
    ("PERSISTENT RESERVE IN: REPORT CAPABILITIES", 0x5e, Some(2), 10, &[COUNT_10]),
    ("PERSISTENT RESERVE IN: READ FULL STATUS", 0x5e, Some(3), 10, &[COUNT_10]),
    ("PERSISTENT RESERVE OUT: REGISTER", 0x5f, Some(0), 10, &[(2, 7, 8), (5, 7, 32)]),
    ("PERSISTENT RESERVE OUT: RESERVE", 0x5f, Some(1), 10, &[(2, 7, 8), (5, 7, 32)]),
    ("PERSISTENT RESERVE OUT: RELEASE", 0x5f, Some(2), 10, &[(2, 7, 8), (5, 7, 32)]),
    ("PERSISTENT RESERVE OUT: CLEAR", 0x5f, Some(3), 10, &[(2, 7, 8), (5, 7, 32)]),
    ("PERSISTENT RESERVE OUT: PREEMPT", 0x5f, Some(4), 10, &[(2, 7, 8), (5, 7, 32)]),
    ("PERSISTENT RESERVE OUT: PREEMPT AND ABORT", 0x5f, Some(5), 10, &[(2, 7, 8), (5, 7, 32)]),
    ("PERSISTENT RESERVE OUT: REGISTER AND IGNORE", 0x5f, Some(6), 10, &[(2, 7, 8), (5, 7, 32)]),
    ("READ (16)", 0x88, None, 16, &[DPO, FUA, FUA_NV, LBA_64, COUNT_16, GROUP_16]),
    ("COMPARE AND WRITE", 0x89, None, 16, &[DPO, FUA, FUA_NV, LBA_64, (13, 7, 8), GROUP_16]),
    ("WRITE (16)", 0x8a, None, 16, &[DPO, FUA, FUA_NV, LBA_64, COUNT_16, GROUP_16]),
    ("WRITE AND VERIFY (16)", 0x8e, None, 16, &[DPO, BYTCHK_1, LBA_64, COUNT_16, GROUP_16]),
    ("VERIFY (16)", 0x8f, None, 16, &[DPO, BYTCHK_1, LBA_64, COUNT_16, GROUP_16]),
    ("PRE-FETCH (16): IMMED", 0x90, None, 16, &[(1, 1, 1), LBA_64, COUNT_16, GROUP_16]),
    (
        "SYNCHRONIZE CACHE (16): SYNC_NV, IMMED",
        0x91,
        None,
        16,
        &[(1, 2, 2), LBA_64, COUNT_16, GROUP_16],
    ),
    (
        "WRITE SAME (16): UNMAP, NDOB",
        0x93,
        None,
        16,
        &[(1, 3, 1), (1, 0, 1), LBA_64, COUNT_16, GROUP_16],
    ),
    ("READ CAPACITY (16)", 0x9e, Some(0x10), 16, &[COUNT_16]),
    ("GET LBA STATUS", 0x9e, Some(0x12), 16, &[LBA_64, COUNT_16]),
    ("REPORT LUNS: select, allocation", 0xa0, None, 12, &[(2, 7, 8), COUNT_12]),
    ("REPORT TARGET PORT GROUPS: format", 0xa3, Some(0x0a), 12, &[(1, 5, 1), COUNT_12]),
    (
        "REPORT SUPPORTED OPERATION CODES: RCTD, options, code, action",
        0xa3,
        Some(0x0c),
        12,
        &[(2, 7, 1), (2, 2, 3), (3, 7, 8), (4, 7, 16), COUNT_12],
    ),
    (
        "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS: REPD",
        0xa3,
        Some(0x0d),
        12,
        &[(2, 7, 1), COUNT_12],
    ),
    ("SET TARGET PORT GROUPS", 0xa4, Some(0x0a), 12, &[COUNT_12]),
    ("READ (12)", 0xa8, None, 12, &[DPO, FUA, FUA_NV, LBA_32, COUNT_12, GROUP_12]),
    ("WRITE (12)", 0xaa, None, 12, &[DPO, FUA, FUA_NV, LBA_32, COUNT_12, GROUP_12]),
    ("WRITE AND VERIFY (12)", 0xae, None, 12, &[DPO, BYTCHK_1, LBA_32, COUNT_12, GROUP_12]),
    ("VERIFY (12)", 0xaf, None, 12, &[DPO, BYTCHK_1, LBA_32, COUNT_12, GROUP_12]),
    (
        "READ DEFECT DATA (12): PLIST, GLIST, format, index",
        0xb7,
        None,
        12,
        &[(1, 4, 5), LBA_32, COUNT_12],
    ),
];

/// Returns the bits that the fields of a row cover.
fn usage(row: &Row) -> Vec<u8> {
    let mut usage = vec![0; row.3];
    for &(byte, high, width) in row.4 {
        for i in 0..width {
            let bit = byte * 8 + usize::from(7 - high) + i;
            usage[bit / 8] |= 0x80 >> (bit % 8);
        }
    }
    usage
}

/// Returns the CDB of a row with all fields zero.
fn bare(row: &Row) -> Vec<u8> {
    let mut cdb = vec![0; row.3];
    (cdb[0], cdb[1]) = (row.1, row.2.unwrap_or(0));
    cdb
}

/// Returns REPORT SUPPORTED OPERATION CODES.
fn supported(options: u8, opcode: u8, action: u8) -> [u8; 12] {
    [0xa3, 0x0c, options, opcode, 0, action, 0, 0, 0xff, 0xff, 0, 0]
}

#[test]
fn the_commands_are_those_of_the_table() {
    let mut rig = Rig::new(Format::Native512);
    let told = rig.read(&supported(0, 0, 0), 65535);
    let expected: Vec<Vec<u8>> = ROWS
        .iter()
        .map(|row| {
            let (action, has) = (row.2.unwrap_or(0), u8::from(row.2.is_some()));
            vec![row.1, 0, 0, action, 0, has, 0, row.3 as u8]
        })
        .collect();
    let listed: Vec<Vec<u8>> = told.data[4..].chunks(8).map(<[u8]>::to_vec).collect();
    assert_eq!(listed, expected);
    assert_eq!(told.data[..4], (ROWS.len() as u32 * 8).to_be_bytes());
}

#[test]
fn exactly_the_bits_of_fields_may_be_set() {
    let mut rig = Rig::new(Format::Native512);
    for row in ROWS {
        let (mut expected, options) = (usage(row), if row.2.is_some() { 2 } else { 1 });
        let told = rig.read(&supported(options, row.1, row.2.unwrap_or(0)), 65535);
        for bit in row.2.map_or(8, |_| 16).max(8)..row.3 * 8 {
            let (byte, mask) = (bit / 8, 0x80 >> (bit % 8));
            if expected[byte] & mask == 0 {
                refuses(&mut rig, row, byte, bit);
            }
        }
        if row.2.is_some() {
            for bit in 8..11 {
                if expected[1] & 0x80 >> (bit % 8) == 0 {
                    refuses(&mut rig, row, 1, bit);
                }
            }
        }
        expected[0] = row.1;
        expected[1] |= row.2.unwrap_or(0);
        assert_eq!(told.data[..4], [0, 3, 0, row.3 as u8], "{}", row.0);
        assert_eq!(told.data[4..], expected, "{}", row.0);
    }
}

/// A bit beside all fields is refused, and sense data points to it.
fn refuses(rig: &mut Rig, row: &Row, byte: usize, bit: usize) {
    let mut cdb = bare(row);
    cdb[byte] |= 0x80 >> (bit % 8);
    let command = Command { lun: 0, cdb: &cdb, attribute: Attribute::Simple, reads: 0, sends: 0 };
    match rig.hosts[0].1.start(&command, &rig.pool) {
        Step::Answer(Answer { sense: Some(sense), .. }) => {
            let pointer = Some(7 - (bit % 8) as u8);
            assert_eq!((sense.key, sense.asc, sense.ascq), says::IN_CDB, "{}: {byte}", row.0);
            let field = sense.field.expect("a pointer");
            assert_eq!((field.in_cdb, usize::from(field.byte), field.bit), (true, byte, pointer));
        }
        step => panic!("{} with bit {bit} set: {step:?}", row.0),
    }
}

#[test]
fn other_operation_codes_and_service_actions_do_not_exist() {
    let mut rig = Rig::new(Format::Native512);
    for opcode in 0..=255u8 {
        let rows: Vec<&Row> = ROWS.iter().filter(|row| row.1 == opcode).collect();
        for action in 0..32u8 {
            let mut cdb = [0; 32];
            (cdb[0], cdb[1]) = (opcode, action);
            let told = rig.read(&cdb, 0);
            let has_actions = rows.iter().any(|row| row.2.is_some());
            if rows.is_empty() {
                assert_eq!(told.sense, says::OPCODE, "{opcode:#x}");
            } else if has_actions && rows.iter().all(|row| row.2 != Some(action)) {
                assert_eq!(told.sense, says::IN_CDB, "{opcode:#x}/{action:#x}");
            } else {
                assert_ne!(told.sense, says::OPCODE, "{opcode:#x}");
            }
        }
    }
    assert_eq!(rig.read(&[], 0).sense, says::OPCODE);
    assert_eq!(rig.read(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1], 512).sense, says::IN_CDB, "too short");
}

#[test]
fn forms_of_one_command_go_with_service_actions() {
    let mut rig = Rig::new(Format::Native512);
    for row in ROWS {
        let (with, without) = if row.2.is_some() { (2, 1) } else { (1, 2) };
        let action = row.2.unwrap_or(0);
        assert!(rig.read(&supported(with, row.1, action), 100).is_good(), "{}", row.0);
        assert_eq!(rig.read(&supported(without, row.1, action), 100).sense, says::IN_CDB);
        assert!(rig.read(&supported(3, row.1, action), 100).data[1] == 3, "{}", row.0);
        let timed = rig.read(&supported(0x80 | with, row.1, action), 100);
        assert_eq!((timed.data[1], timed.data.len()), (0x83, 4 + row.3 + 12), "{}", row.0);
    }
    for absent in [supported(1, 0x7f, 0), supported(2, 0x5e, 9), supported(3, 0x28, 1)] {
        assert_eq!(rig.read(&absent, 100).data, [0, 1, 0, 0]);
    }
    let timed = rig.read(&supported(0x80, 0, 0), 65535);
    assert_eq!(timed.data.len(), 4 + 20 * ROWS.len());
    assert!(timed.data[4..].chunks(20).all(|d| d[5] & 2 != 0 && d[8..10] == [0, 10]));
    assert_eq!(rig.read(&supported(4, 0, 0), 100).sense, says::IN_CDB);
}

#[test]
fn unsupported_functions_of_the_volume_are_not_offered() {
    let mut plain = unit(Format::Native512);
    plain.asks = false;
    let mut rig = Rig::fresh(plain);
    rig.read(&[0; 6], 0);
    let told = rig.read(&supported(0, 0, 0), 65535);
    let gone = ROWS.iter().filter(|row| matches!(row.1, 0x5e | 0x5f | 0xa4)).count();
    assert_eq!(told.data.len(), 4 + 8 * (ROWS.len() - gone));
    for opcode in [0x5e, 0x5f, 0xa4] {
        let mut cdb = [0; 16];
        cdb[0] = opcode;
        assert_eq!(rig.read(&cdb, 0).sense, says::OPCODE);
        assert_eq!(rig.read(&supported(1, opcode, 0), 100).data, [0, 1, 0, 0]);
    }
}

#[test]
fn ranges_are_read_from_their_fields() {
    let mut large = unit(Format::Native512);
    large.size = 1 << 51;
    let mut rig = Rig::new(Format::Native512);
    rig.hosts[0].1.changed(large);
    rig.read(&[0; 6], 0);
    let mut range = |cdb: &[u8]| {
        let (reads, sends) = (u32::MAX, 0);
        let command = Command { lun: 0, cdb, attribute: Attribute::Simple, reads, sends };
        match rig.hosts[0].1.start(&command, &rig.pool) {
            Step::Read(t) => (t.at / 512, t.len / 512),
            step => panic!("{step:?}"),
        }
    };
    assert_eq!(range(&[0x08, 0x1f, 0xff, 0xfe, 0x05, 0]), (0x1f_fffe, 5));
    assert_eq!(range(&[0x08, 0x01, 0x02, 0x03, 0x00, 0]), (0x1_0203, 256), "0 is 256");
    assert_eq!(range(&[0x08, 0, 0, 0, 255, 0]), (0, 255));
    assert_eq!(range(&cdb10(0x28, 0, 0xfedc_ba98, 0x1234)), (0xfedc_ba98, 0x1234));
    assert_eq!(range(&cdb12(0xa8, 0, 0xfedc_ba98, 0x1fff)), (0xfedc_ba98, 0x1fff));
    assert_eq!(range(&cdb16(0x88, 0, 0x3_fedc_ba98, 0x2000)), (0x3_fedc_ba98, 0x2000));
}

//! Conditions that stop a command, in their order: units, attentions, paths, reservations, write
//! protection.

use super::rig::*;
use target::reserve::Access;
use target::scsi::*;

const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 96, 0];
const REPORT_LUNS: [u8; 12] = [0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0];
const REQUEST_SENSE: [u8; 6] = [3, 0, 0, 0, 18, 0];
const READY: [u8; 6] = [0; 6];

fn at_lun(rig: &mut Rig, lun: u64, cdb: &[u8]) -> Told {
    let attribute = Attribute::Simple;
    rig.command(0, &Command { lun, cdb, attribute, reads: 96, sends: 0 }, &[])
}

#[test]
fn only_lun_0_exists() {
    let mut rig = Rig::new(Format::Native512);
    for lun in [1 << 48, 1, 0xc101 << 48, 0x4001 << 48] {
        assert_eq!(at_lun(&mut rig, lun, &READY).sense, says::NO_UNIT);
        assert_eq!(at_lun(&mut rig, lun, &cdb10(0x28, 0, 0, 1)).sense, says::NO_UNIT);
        assert_eq!(at_lun(&mut rig, lun, &[0xff; 6]).sense, says::OPCODE, "the code comes first");
        assert_eq!(at_lun(&mut rig, lun, &INQUIRY).data[..3], [0x7f, 0, 6]);
        assert_eq!(at_lun(&mut rig, lun, &[0x12, 1, 0, 0, 96, 0]).sense, says::IN_CDB);
        assert_eq!(at_lun(&mut rig, lun, &REPORT_LUNS).data[3], 8);
        let sense = at_lun(&mut rig, lun, &REQUEST_SENSE).data;
        assert_eq!((sense[2], sense[12]), (5, 0x25));
    }
    assert!(at_lun(&mut rig, 0x4000 << 48, &READY).is_good(), "flat addressing");
}

#[test]
fn attentions_are_reported_once_and_in_order() {
    let mut rig = Rig::fresh(unit(Format::Native512));
    let device = &mut rig.hosts[0].1;
    device.attention(Attention::Reset);
    device.attention(Attention::Capacity);
    device.attention(Attention::Reset);
    assert_eq!(rig.read(&INQUIRY, 96).data.len(), 96);
    assert_eq!(rig.read(&REPORT_LUNS, 16).data.len(), 16);
    assert_eq!(rig.read(&[0x28; 16], 512).sense, says::IN_CDB, "a wrong CDB tells no attention");
    assert_eq!(rig.read(&READY, 0).sense, (6, 0x29, 0));
    assert_eq!(rig.read(&cdb10(0x28, 0, 0, 1), 512).sense, (6, 0x29, 3));
    let told = rig.read(&REQUEST_SENSE, 18).data;
    assert_eq!((told[2], told[12], told[13]), (6, 0x2a, 9));
    assert_eq!(
        rig.read(&REQUEST_SENSE, 18).data[..13],
        [0x70, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0]
    );
    assert_eq!(rig.read(&[3, 1, 0, 0, 18, 0], 18).data, hex("72 00 00 00 00 00 00 00"));
    assert_eq!(rig.read(&READY, 0), Told::good());
    let attentions = [
        (Attention::NexusLoss, 0x29, 7),
        (Attention::Mode, 0x2a, 1),
        (Attention::ReservationsPreempted, 0x2a, 3),
        (Attention::ReservationsReleased, 0x2a, 4),
        (Attention::RegistrationsPreempted, 0x2a, 5),
        (Attention::Path, 0x2a, 6),
        (Attention::Cleared, 0x2f, 0),
        (Attention::Inquiry, 0x3f, 3),
    ];
    attentions.iter().for_each(|(attention, ..)| rig.hosts[0].1.attention(*attention));
    for (attention, asc, ascq) in attentions {
        assert_eq!(rig.read(&READY, 0).sense, (6, asc, ascq), "{attention:?}");
    }
    assert_eq!(rig.read(&READY, 0), Told::good());
}

#[test]
fn changes_of_the_volume_are_reported() {
    let mut rig = Rig::new(Format::Native512);
    let mut now = unit(Format::Native512);
    let mut tells = |now: &Unit| {
        rig.hosts[0].1.changed(now.clone());
        let mut told = Vec::new();
        while let (6, asc, ascq) = rig.read(&READY, 0).sense {
            told.push((asc, ascq));
        }
        told
    };
    assert_eq!(tells(&now), []);
    now.size += 511;
    assert_eq!(tells(&now), [], "no block more");
    now.size += 1;
    assert_eq!(tells(&now), [(0x2a, 9)]);
    now.read_only = true;
    assert_eq!(tells(&now), [(0x2a, 1)]);
    now.port = 2;
    assert_eq!(tells(&now), [(0x3f, 3)]);
    (now.path, now.size, now.read_only) = (Path::Standby, 64 << 20, false);
    rig.hosts[0].1.changed(now);
    let told: Vec<_> = (0..3).map(|_| rig.read(&READY, 0).sense).collect();
    assert_eq!(told, [(6, 0x2a, 9), (6, 0x2a, 1), (6, 0x2a, 6)]);
}

#[test]
fn a_path_that_does_not_serve_tells_only() {
    let works: &[&[u8]] = &[
        &INQUIRY,
        &REPORT_LUNS,
        &REQUEST_SENSE,
        &[0x1a, 0, 0x3f, 0, 255, 0],
        &[0x5a, 0, 0x3f, 0, 0, 0, 0, 0, 255, 0],
        &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0],
        &[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0],
        &[0x5e, 0, 0, 0, 0, 0, 0, 0, 255, 0],
    ];
    let mut rig = standby();
    for cdb in works {
        assert!(rig.read(cdb, 255).is_good(), "{cdb:x?}");
    }
    for cdb in [&READY[..], &cdb10(0x28, 0, 0, 1), &cdb10(0x2f, 0, u32::MAX, 1)] {
        assert_eq!(rig.read(cdb, 512).sense, says::STANDBY, "{cdb:x?}");
    }
    // A host can register through a path that does not serve.
    let key = [[0; 8], [7; 8], [0; 8]].concat();
    let registered = rig.write(&[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &key);
    assert!(registered.is_good() && rig.table.registrants.len() == 1, "{registered:?}");
    let present = rig.read(&[0x1a, 8, 0x0a, 0, 255, 0], 255).data;
    let list = [&[0; 4], &present[4..]].concat();
    assert!(rig.write(&[0x15, 0x10, 0, 0, list.len() as u8, 0], &list).is_good());
    rig.hosts[0].1.set_access(Access { read: false, write: false });
    assert_eq!(rig.read(&cdb10(0x28, 0, 0, 1), 512).sense, says::STANDBY, "the path is first");
    assert!(rig.did.is_empty());
}

/// Creates hosts that know that their path is in standby.
fn standby() -> Rig {
    let mut rig = Rig::fresh(Unit { path: Path::Standby, ..unit(Format::Native512) });
    assert_eq!(rig.read(&READY, 0).sense, (6, 0x29, 0), "attentions come first");
    rig
}

/// Tries each command that the device reports.
#[test]
fn all_commands_but_a_few_fail_in_standby() {
    const WORK: &[(u8, u8)] = &[
        (0x03, 0), // REQUEST SENSE
        (0x12, 0), // INQUIRY
        (0x15, 0), // MODE SELECT
        (0x55, 0),
        (0x1a, 0), // MODE SENSE
        (0x5a, 0),
        (0x25, 0), // READ CAPACITY
        (0x9e, 0x10),
        (0x5e, 0), // PERSISTENT RESERVE IN
        (0x5e, 1),
        (0x5e, 2),
        (0x5e, 3),
        (0x5f, 0), // PERSISTENT RESERVE OUT
        (0x5f, 1),
        (0x5f, 2),
        (0x5f, 3),
        (0x5f, 4),
        (0x5f, 5),
        (0x5f, 6),
        (0xa0, 0),    // REPORT LUNS
        (0xa3, 0x0a), // REPORT TARGET PORT GROUPS
        (0xa3, 0x0c), // REPORT SUPPORTED OPERATION CODES, and TASK MANAGEMENT FUNCTIONS
        (0xa3, 0x0d),
        (0xa4, 0x0a), // SET TARGET PORT GROUPS
    ];
    let mut rig = standby();
    let all = rig.read(&[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0], 4096).data;
    let commands: Vec<(u8, u8)> = all[4..].chunks(8).map(|c| (c[0], c[3])).collect();
    assert!(commands.len() > 40 && WORK.iter().all(|command| commands.contains(command)));
    for (opcode, action) in commands {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (opcode, action);
        let fails = rig.read(&cdb, 255).sense == says::STANDBY;
        assert_eq!(fails, !WORK.contains(&(opcode, action)), "{opcode:x}/{action:x}");
    }
    assert!(rig.did.is_empty());
}

#[test]
fn a_change_of_a_path_is_told_once() {
    let mut rig = Rig::new(Format::Native512);
    // The own path, the others, and whether this is a change.
    let table: [(Path, Groups<'_>, bool); 9] = [
        (Path::Optimized, &[], false),
        (Path::Standby, &[], true),
        (Path::Standby, &[], false),
        (Path::Optimized, &[(2, Path::Standby)], true),
        (Path::Optimized, &[(2, Path::Standby)], false),
        (Path::Optimized, &[(2, Path::Standby), (3, Path::Standby)], true),
        (Path::Optimized, &[(3, Path::Standby)], true),
        (Path::Optimized, &[(3, Path::Optimized)], true),
        (Path::Standby, &[(3, Path::Optimized)], true),
    ];
    for (path, paths, is_change) in table {
        let now = Unit { path, others: others(paths), ..unit(Format::Native512) };
        rig.hosts[0].1.changed(now);
        let idle = if path == Path::Standby { says::STANDBY } else { (0, 0, 0) };
        if is_change {
            assert_eq!(rig.read(&READY, 0).sense, (6, 0x2a, 6), "{path:?} {paths:?}");
        }
        assert_eq!(rig.read(&READY, 0).sense, idle, "{path:?} {paths:?}");
    }
    // Two changes that the host has not heard of are one attention.
    rig.hosts[0].1.changed(Unit { others: Vec::new(), ..unit(Format::Native512) });
    rig.hosts[0].1.changed(Unit { path: Path::Standby, ..unit(Format::Native512) });
    assert!(rig.read(&INQUIRY, 96).is_good(), "it tells no attention");
    assert_eq!(rig.read(&READY, 0).sense, (6, 0x2a, 6));
    assert_eq!(rig.read(&READY, 0).sense, says::STANDBY);
    // A host that logs in again hears of the changes that it missed.
    let former = rig.hosts[0].1.clone();
    let now = Unit { others: others(&[(2, Path::Standby)]), ..unit(Format::Native512) };
    let mut device = Device::new(now, Attention::NewNexus);
    device.succeed(&former);
    rig.hosts[0].1 = device;
    assert_eq!(rig.read(&READY, 0).sense, (6, 0x29, 0));
    assert_eq!(rig.read(&READY, 0).sense, (6, 0x2a, 6));
    assert!(rig.read(&READY, 0).is_good());
}

/// SPC-4 5.13.1 table 65, SBC-3 4.17 table 13, for hosts that are not registered.
#[test]
fn reservations_of_others_stop_commands() {
    let never: &[&[u8]] = &[
        &READY,
        &INQUIRY,
        &REPORT_LUNS,
        &REQUEST_SENSE,
        &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0],
        &[0x5e, 0, 0, 0, 0, 0, 0, 0, 255, 0],
        &[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0],
        &[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0],
        &[0x1b, 0, 0, 0, 1, 0],
        &[0x1e, 0, 0, 0, 0, 0],
    ];
    let reads: &[&[u8]] = &[
        &[0x08, 0, 0, 0, 1, 0],
        &cdb10(0x28, 0, 0, 1),
        &cdb12(0xa8, 0, 0, 1),
        &cdb16(0x88, 0, 0, 1),
        &cdb10(0x2f, 0, 0, 1),
        &cdb12(0xaf, 0, 0, 1),
        &cdb16(0x8f, 0, 0, 1),
        &cdb10(0x34, 0, 0, 1),
        &cdb16(0x90, 0, 0, 1),
        &cdb16(0x9e, 0x12, 0, 24),
        &[0x1a, 0, 0x3f, 0, 255, 0],
        &[0x37, 0, 0, 0, 0, 0, 0, 0, 32, 0],
    ];
    let writes: &[&[u8]] = &[
        &[0x0a, 0, 0, 0, 1, 0],
        &cdb10(0x2a, 0, 0, 1),
        &cdb12(0xaa, 0, 0, 1),
        &cdb16(0x8a, 0, 0, 1),
        &cdb10(0x2e, 0, 0, 1),
        &cdb12(0xae, 0, 0, 1),
        &cdb16(0x8e, 0, 0, 1),
        &cdb10(0x41, 8, 0, 1),
        &cdb16(0x93, 9, 0, 1),
        &cdb10(0x42, 0, 0, 0),
        &compare_and_write(0, 1),
        &cdb10(0x35, 0, 0, 1),
        &cdb16(0x91, 0, 0, 1),
        &[0x15, 0x10, 0, 0, 0, 0],
        &[0x1b, 0, 0, 0, 0, 0],
        &[0x1e, 0, 0, 0, 1, 0],
        &[0x1d, 4, 0, 0, 0, 0],
    ];
    let mut rig = Rig::new(Format::Native512);
    let mut conflicts = |access: Access, cdb: &[u8]| {
        rig.hosts[0].1.set_access(access);
        rig.read(cdb, 512).status == Status::ReservationConflict
    };
    let access = |read, write| Access { read, write };
    for cdb in never {
        assert!(!conflicts(access(false, false), cdb), "{cdb:x?}");
    }
    for cdb in reads {
        assert!(conflicts(access(false, false), cdb), "{cdb:x?}");
        assert!(!conflicts(access(true, false), cdb), "{cdb:x?}");
    }
    for cdb in writes {
        assert!(conflicts(access(true, false), cdb), "{cdb:x?}");
        assert!(!conflicts(access(true, true), cdb), "{cdb:x?}");
    }
}

/// `ReadOnly.*` of libiscsi.
#[test]
fn a_volume_for_reading_is_not_written() {
    let mut rig = Rig::new(Format::Native512);
    rig.hosts[0].1.changed(Unit { read_only: true, ..unit(Format::Native512) });
    assert_eq!(rig.read(&READY, 0).sense, (6, 0x2a, 1));
    let writes: &[&[u8]] = &[
        &[0x0a, 0, 0, 0, 1, 0],
        &cdb10(0x2a, 0, 0, 1),
        &cdb12(0xaa, 0, 0, 1),
        &cdb16(0x8a, 0, 0, 1),
        &cdb10(0x2e, 2, 0, 1),
        &cdb12(0xae, 2, 0, 1),
        &cdb16(0x8e, 2, 0, 1),
        &cdb10(0x41, 8, 0, 1),
        &cdb16(0x93, 9, 0, 1),
        &cdb10(0x42, 0, 0, 24),
        &compare_and_write(0, 1),
        &cdb10(0x2a, 0, u32::MAX, 1),
    ];
    for cdb in writes {
        assert_eq!(rig.write(cdb, &[0; 512]).sense, says::WRITE_PROTECTED, "{cdb:x?}");
    }
    assert!(rig.did.is_empty());
    assert!(rig.read(&cdb10(0x28, 0, 0, 1), 512).is_good());
    assert!(rig.read(&cdb10(0x35, 0, 0, 1), 0).is_good());
    assert_eq!(rig.read(&[0x1a, 0, 0x3f, 0, 255, 0], 255).data[2], 0x90, "WP");
}

#[test]
fn commands_without_effect_are_good() {
    let mut rig = Rig::new(Format::Native512);
    for cdb in
        [[0x1b, 0, 0, 0, 1, 0], [0x1b, 1, 0, 0, 2, 0], [0x1d, 4, 0, 0, 0, 0], [0x1e, 0, 0, 0, 1, 0]]
    {
        assert_eq!(rig.read(&cdb, 0), Told::good(), "{cdb:x?}");
    }
    let ready = rig.run(0, &READY, 0, &[1; 100]);
    assert_eq!(ready, Told { residual: Residual::Under(100), ..Told::good() });
}

#[test]
fn attributes_are_left_to_the_transport() {
    let mut rig = Rig::new(Format::Native512);
    for (attribute, sense) in [
        (Attribute::Simple, (0, 0, 0)),
        (Attribute::Ordered, (0, 0, 0)),
        (Attribute::HeadOfQueue, (0, 0, 0)),
        (Attribute::Aca, (0xb, 0x49, 0)),
    ] {
        let command = Command { lun: 0, cdb: &READY, attribute, reads: 0, sends: 0 };
        assert_eq!(rig.command(0, &command, &[]).sense, sense);
    }
}

#[test]
fn request_sense_tells_an_attention_only_with_room_for_its_code() {
    let mut rig = Rig::fresh(unit(Format::Native512));
    for (flags, allocation, room) in [(0, 0, 0), (0, 13, 64), (0, 252, 13), (1, 3, 64)] {
        let told = rig.read(&[3, flags, 0, 0, allocation, 0], room);
        assert!(told.is_good() && told.data.len() <= 13, "{told:?}");
    }
    assert_eq!(rig.read(&[3, 0, 0, 0, 14, 0], 252).data[12], 0x29);
    assert!(rig.read(&READY, 0).is_good());
    rig.hosts[0].1.attention(Attention::Reset);
    assert_eq!(rig.read(&[3, 1, 0, 0, 4, 0], 252).data, [0x72, 6, 0x29, 3]);
    assert!(rig.read(&READY, 0).is_good());
}

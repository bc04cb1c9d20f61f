//! PERSISTENT RESERVE IN and OUT between two hosts. Where libiscsi's `iscsi-test-cu` looks at the
//! same thing, its test is named.

use super::rig::*;
use target::reserve::Kind;
use target::scsi::*;

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const IGNORE: u8 = 6;

/// Sends PERSISTENT RESERVE OUT.
fn out(rig: &mut Rig, host: usize, action: u8, kind: u8, key: u64, new: u64) -> Told {
    out_with(rig, host, action, kind, key, new, 0)
}

fn out_with(
    rig: &mut Rig,
    host: usize,
    action: u8,
    kind: u8,
    key: u64,
    new: u64,
    flags: u8,
) -> Told {
    let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    let list = [&key.to_be_bytes()[..], &new.to_be_bytes(), &[0, 0, 0, 0, flags, 0, 0, 0]].concat();
    rig.run(host, &cdb, 0, &list)
}

/// Sends PERSISTENT RESERVE IN.
fn tells(rig: &mut Rig, host: usize, action: u8) -> Vec<u8> {
    let told = rig.run(host, &[0x5e, action, 0, 0, 0, 0, 0, 0x40, 0, 0], 16384, &[]);
    assert!(told.is_good(), "{told:?}");
    told.data
}

/// Sends TEST UNIT READY until it is good, and returns the attentions.
fn attentions(rig: &mut Rig, host: usize) -> Vec<(u8, u8)> {
    let mut told = Vec::new();
    while let (6, asc, ascq) = rig.run(host, &[0; 6], 0, &[]).sense {
        told.push((asc, ascq));
    }
    told
}

fn conflicts(told: &Told) -> bool {
    told.status == Status::ReservationConflict
}

/// `ProutRegister.Simple`, `PrinReadKeys.Simple`, `PrinReadKeys.Truncate`.
#[test]
fn keys_are_registered_changed_and_removed() {
    let mut rig = Rig::new(Format::Native512);
    assert_eq!(tells(&mut rig, 0, 0), [0; 8]);
    assert!(conflicts(&out(&mut rig, 0, REGISTER, 0, 5, 6)), "not registered");
    assert!(out(&mut rig, 0, IGNORE, 0, 99, 0x1234).is_good());
    assert_eq!(tells(&mut rig, 1, 0), hex("00000001 00000008 0000000000001234"));
    assert!(conflicts(&out(&mut rig, 0, REGISTER, 0, 0x1235, 7)));
    assert!(out(&mut rig, 0, REGISTER, 0, 0x1234, 7).is_good());
    let cut = rig.read(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0], 8);
    assert_eq!((cut.data, cut.residual), (hex("00000002 00000008"), Residual::None));
    assert!(out(&mut rig, 0, REGISTER, 0, 7, 0).is_good());
    assert_eq!(tells(&mut rig, 0, 0), hex("00000003 00000000"));
}

/// `PrinReportCapabilities.Simple`, `ProutReserve.Simple`.
#[test]
fn reservations_are_told_with_their_type() {
    let mut rig = Rig::new(Format::Native512);
    assert_eq!(tells(&mut rig, 0, 2), hex("0008 05 81 ea 01 0000"));
    assert!(out(&mut rig, 0, IGNORE, 0, 0, 0xabc).is_good());
    for kind in Kind::ALL {
        let number = kind.scsi();
        assert_eq!(tells(&mut rig, 0, 1), hex("00000001 00000000"));
        assert!(out(&mut rig, 0, RESERVE, number, 0xabc, 0).is_good());
        assert!(out(&mut rig, 0, RESERVE, number, 0xabc, 0).is_good(), "again");
        let key = if kind.is_held_by_all() { "0000" } else { "0abc" };
        let told = format!("00000001 00000010 000000000000{key} 00000000 00 0{number} 0000");
        assert_eq!(tells(&mut rig, 1, 1), hex(&told));
        let other = if number == 1 { 3 } else { 1 };
        assert!(conflicts(&out(&mut rig, 0, RESERVE, other, 0xabc, 0)));
        assert_eq!(out(&mut rig, 0, RELEASE, other, 0xabc, 0).sense, (5, 0x26, 4));
        assert!(out(&mut rig, 0, RELEASE, number, 0xabc, 0).is_good());
        assert!(out(&mut rig, 0, RELEASE, number, 0xabc, 0).is_good(), "nothing to release");
    }
}

/// `PrinServiceactionRange.Range`.
#[test]
fn service_actions_beyond_the_known_ones_are_refused() {
    let mut rig = Rig::new(Format::Native512);
    for action in 4..32 {
        let told = rig.read(&[0x5e, action, 0, 0, 0, 0, 0, 0x40, 0, 0], 16384);
        assert_eq!(told.sense, says::IN_CDB);
    }
    for action in 7..32 {
        assert_eq!(out(&mut rig, 0, action, 0, 0, 0).sense, says::IN_CDB);
    }
    for kind in [0x00, 0x02, 0x04, 0x09, 0x0f, 0x11, 0x21] {
        assert_eq!(out(&mut rig, 0, RESERVE, kind, 0, 0).sense, says::IN_CDB, "{kind:#x}");
        assert!(out(&mut rig, 0, IGNORE, kind, 0, 1).is_good(), "the type does not matter");
    }
    assert_eq!(out_with(&mut rig, 0, IGNORE, 0, 0, 1, 0x08).sense, says::IN_LIST, "SPEC_I_PT");
    assert!(out_with(&mut rig, 0, IGNORE, 0, 0, 1, 0x01).is_good(), "APTPL");
    let cdb = [0x5f, REGISTER, 0, 0, 0, 0, 0, 0, 25, 0];
    assert_eq!(rig.write(&cdb, &[0; 25]).sense, says::LIST_LENGTH);
    let cdb = [0x5f, REGISTER, 0, 0, 0, 0, 0, 0, 24, 0];
    assert_eq!(rig.write(&cdb, &[0; 23]).sense, says::WRONG_LENGTH);
}

/// `ProutReserve.Access*`: registered and not registered, reading and writing.
#[test]
fn access_goes_by_type_and_registration() {
    let access = [
        (Kind::ExclusiveAccess, [false, false, false, false]),
        (Kind::WriteExclusive, [true, false, true, false]),
        (Kind::ExclusiveAccessRegistrants, [true, true, false, false]),
        (Kind::WriteExclusiveRegistrants, [true, true, true, false]),
        (Kind::ExclusiveAccessAll, [true, true, false, false]),
        (Kind::WriteExclusiveAll, [true, true, true, false]),
    ];
    for (kind, expected) in access {
        let mut rig = Rig::new(Format::Native512);
        let may = |rig: &mut Rig, host: usize| {
            let read = rig.run(host, &cdb10(0x28, 0, 0, 1), 512, &[]);
            let write = rig.run(host, &cdb10(0x2a, 0, 0, 1), 0, &[1; 512]);
            [!conflicts(&read), !conflicts(&write)]
        };
        assert!(out(&mut rig, 0, IGNORE, 0, 0, 1).is_good());
        assert!(out(&mut rig, 1, IGNORE, 0, 0, 2).is_good());
        assert!(out(&mut rig, 0, RESERVE, kind.scsi(), 1, 0).is_good());
        assert_eq!(may(&mut rig, 0), [true, true], "the holder");
        let registered = may(&mut rig, 1);
        assert!(out(&mut rig, 1, REGISTER, 0, 2, 0).is_good());
        let unregistered = may(&mut rig, 1);
        assert_eq!([registered, unregistered].concat(), expected, "{kind:?}");
        assert!(out(&mut rig, 0, RELEASE, kind.scsi(), 1, 0).is_good());
        assert_eq!(may(&mut rig, 1), [true, true], "released");
    }
}

/// `ProutReserve.Ownership*`.
#[test]
fn a_reservation_goes_with_its_last_holder() {
    for kind in Kind::ALL {
        let mut rig = Rig::new(Format::Native512);
        assert!(out(&mut rig, 0, IGNORE, 0, 0, 1).is_good());
        assert!(out(&mut rig, 1, IGNORE, 0, 0, 2).is_good());
        assert!(out(&mut rig, 0, RESERVE, kind.scsi(), 1, 0).is_good());
        assert!(out(&mut rig, 0, REGISTER, 0, 1, 0).is_good());
        let reserved = tells(&mut rig, 0, 1).len() > 8;
        assert_eq!(reserved, kind.is_held_by_all(), "{kind:?}");
        let released = kind.admits_registrants() && !kind.is_held_by_all();
        let expected: &[(u8, u8)] = if released { &[(0x2a, 4)] } else { &[] };
        assert_eq!(attentions(&mut rig, 1), expected, "{kind:?}");
        assert!(out(&mut rig, 1, RELEASE, kind.scsi(), 2, 0).is_good());
        assert!(out(&mut rig, 1, REGISTER, 0, 2, 0).is_good());
        assert_eq!(tells(&mut rig, 0, 1).len(), 8);
    }
}

/// `ProutPreempt.RemoveRegistration`, `ProutClear.Simple`.
#[test]
fn preempting_and_clearing_tell_the_others() {
    let mut rig = Rig::new(Format::Native512);
    assert!(out(&mut rig, 0, IGNORE, 0, 0, 1).is_good());
    assert!(out(&mut rig, 1, IGNORE, 0, 0, 2).is_good());
    assert!(out(&mut rig, 1, PREEMPT, 3, 2, 1).is_good());
    assert_eq!(tells(&mut rig, 1, 0), hex("00000003 00000008 0000000000000002"));
    assert_eq!((attentions(&mut rig, 0), attentions(&mut rig, 1)), (vec![(0x2a, 5)], vec![]));
    assert_eq!(tells(&mut rig, 1, 1).len(), 8, "no reservation was taken over");
    assert_eq!(out(&mut rig, 1, PREEMPT, 3, 2, 0).sense, says::IN_LIST);
    assert!(conflicts(&out(&mut rig, 1, PREEMPT, 3, 2, 77)));

    assert!(out(&mut rig, 0, IGNORE, 0, 0, 1).is_good());
    assert!(out(&mut rig, 0, RESERVE, 1, 1, 0).is_good());
    assert!(out(&mut rig, 1, PREEMPT, 3, 2, 1).is_good());
    assert_eq!(tells(&mut rig, 1, 1)[8..], hex("0000000000000002 00000000 00 03 0000"));
    assert_eq!(attentions(&mut rig, 0), [(0x2a, 5)]);
    assert!(conflicts(&rig.run(0, &cdb10(0x28, 0, 0, 1), 512, &[])));
    assert!(conflicts(&out(&mut rig, 0, CLEAR, 0, 1, 0)), "not registered any more");

    assert!(out(&mut rig, 0, IGNORE, 0, 0, 1).is_good());
    assert!(out(&mut rig, 0, CLEAR, 0, 1, 0).is_good(), "any registrant");
    assert_eq!(tells(&mut rig, 0, 0).len(), 8);
    assert_eq!(attentions(&mut rig, 1), [(0x2a, 3)]);
    assert!(rig.run(0, &cdb10(0x28, 0, 0, 1), 512, &[]).is_good());
}

#[test]
fn full_status_names_the_registrants() {
    let mut rig = Rig::new(Format::Native512);
    assert!(out_with(&mut rig, 0, IGNORE, 0, 0, 1, 0x04).is_good());
    assert!(out(&mut rig, 1, IGNORE, 0, 0, 2).is_good());
    assert!(out(&mut rig, 1, RESERVE, 5, 2, 0).is_good());
    let told = tells(&mut rig, 0, 3);
    let name = |n: u8| {
        let mut bytes = format!("iqn.2007-10.com.example:host{n},i,0x40000000000{n}").into_bytes();
        bytes.resize((bytes.len() + 1).next_multiple_of(4), 0);
        bytes
    };
    let descriptor = |key: u8, flags: u8, kind: u8, port: u8, name: &[u8]| {
        let len = name.len() as u8;
        let head = [0, 0, 0, 0, 0, 0, 0, key, 0, 0, 0, 0, flags, kind, 0, 0, 0, 0, 0, port];
        [&head[..], &[0, 0, 0, len + 4, 0x45, 0, 0, len], name].concat()
    };
    let all = [descriptor(1, 2, 0, 0, &name(0)), descriptor(2, 1, 5, 1, &name(1))].concat();
    let head = [0, 0, 0, 2, 0, 0, 0, all.len() as u8];
    assert_eq!(told, [&head[..], &all].concat());
}

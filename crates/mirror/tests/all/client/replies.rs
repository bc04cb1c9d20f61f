//! A table of what each answer does to an operation, and requests that are refused before there is
//! an operation.

use super::rig::{LIFE, Rig, SDC, VOLUME};
use base::time::Duration;
use base::{DeviceId, Epoch, Limits, MapVersion, UNIT};
use mirror::client::Leader;
use seam::{BlockError, BlockKind, Buf};
use wire::Status;
use wire::message::Io;

const MIB: u64 = 1 << 20;

#[test]
fn a_write_names_all_that_a_primary_checks() {
    let mut rig = Rig::up(2);
    rig.write(1, MIB + 512, &[9; 4096]);
    let sent = rig.one();
    let request = sent.request();
    assert!(matches!(sent.io, Io::Write(write) if !write.retry));
    assert_eq!(sent.device, DeviceId(2));
    assert_eq!((request.group.0, request.range.unit.volume, sent.epoch()), (1, VOLUME, 10));
    assert_eq!((sent.unit(), sent.at(), sent.len()), (1, 512, 4096));
    assert_eq!((sent.seq(), sent.floor()), (1, 1));
    assert_eq!((request.client.sdc, request.client.incarnation), (SDC, LIFE));
    assert_eq!((request.map.0, request.generation), (5, 2));
    assert_eq!(&sent.body[..], &[9; 4096]);
    rig.answer(&sent, Status::Ok, b"");
    assert_eq!(rig.result().map(|b| b.len()), Ok(0));
    assert_eq!(rig.client.outstanding(), 0);
}

/// A read is never retried under its number, so what was written meanwhile may be forgotten.
#[test]
pub(crate) fn a_read_that_waits_does_not_hold_the_floor_back() {
    let mut rig = Rig::up(1);
    rig.read(1, 0, 4096);
    rig.write(2, MIB / 2, &[1; 4096]);
    let floors =
        |rig: &Rig| -> Vec<(u64, u64)> { rig.sent.iter().map(|s| (s.seq(), s.floor())).collect() };
    assert_eq!(floors(&rig), [(1, 1), (2, 2)]);
    let done = rig.sent.remove(1);
    rig.answer(&done, Status::Ok, b"");
    rig.write(3, MIB / 2, &[2; 4096]);
    rig.write(4, MIB / 4, &[3; 4096]);
    assert_eq!(floors(&rig), [(1, 1), (3, 3), (4, 3)], "a write does");
}

/// Status; the error of the request, if it ends; milliseconds until the next sending; whether a map
/// is needed.
type Row = (Status, Option<BlockError>, Option<u64>, bool);

#[test]
fn every_status_has_its_meaning() {
    let table: &[Row] = &[
        (Status::Stale, None, Some(2), true),
        (Status::Behind, None, Some(2), false),
        (Status::Busy, None, Some(2), false),
        (Status::Damaged, None, Some(0), false),
        (Status::NoVolume, None, Some(2), true),
        (Status::OutOfRange, None, Some(2), true),
        (Status::Lost, Some(BlockError::Lost), None, false),
        (Status::Media, Some(BlockError::Media), None, false),
    ];
    for (status, error, resend_ms, wants_map) in table {
        let mut rig = Rig::up(1);
        rig.write(1, 0, &[1; 512]);
        let sent = rig.one();
        rig.answer_with(&sent, *status, b"", |h| {
            h.map = MapVersion(9);
            h.epoch = Epoch(11);
        });
        assert_eq!(rig.done.first().map(|d| d.1.clone().unwrap_err()), *error, "{status:?}");
        assert_eq!(rig.needs.is_some(), *wants_map, "{status:?}");
        if let Some(ms) = resend_ms {
            if *ms > 0 {
                rig.pass(Duration::from_millis(ms - 1));
                assert!(rig.sent.is_empty(), "{status:?}");
                rig.pass(Duration::from_millis(1));
            }
            let again = rig.one();
            assert_eq!((again.seq(), again.op()), (sent.seq(), sent.op()));
            assert_eq!((again.is_retry(), &again.body[..]), (true, &[1; 512][..]), "{status:?}");
            rig.answer(&again, Status::Ok, b"");
            assert!(rig.result().is_ok());
            assert_eq!(rig.client.take_retried(), 1);
        }
        assert_eq!(rig.client.outstanding(), 0, "{status:?}");
    }
}

#[test]
fn waits_grow_to_fifty_milliseconds() {
    let mut rig = Rig::up(1);
    rig.read(1, 0, 512);
    let mut waits = Vec::new();
    for _ in 0..8 {
        let sent = rig.one();
        rig.answer(&sent, Status::Busy, b"");
        let mut ms = 0;
        while rig.sent.is_empty() {
            rig.pass(Duration::from_millis(1));
            ms += 1;
        }
        waits.push(ms);
    }
    assert_eq!(waits, [2, 4, 8, 16, 32, 50, 50, 50]);
}

#[test]
fn a_retry_waits_behind_no_new_operation() {
    let mut rig = Rig::new(1, &Limits::SHIPPED);
    rig.link_up_with(1, 4, 64 << 20);
    (0..12u64).for_each(|i| rig.write(i, i * 4096, &[1; 4096]));
    let sent = std::mem::take(&mut rig.sent);
    assert!((2..10).contains(&sent.len()), "{} are sent, the others wait", sent.len());
    rig.answer(&sent[0], Status::Busy, b"");
    assert_eq!(rig.one().seq(), sent.len() as u64 + 1);
    rig.pass(Duration::from_millis(2));
    assert!(rig.sent.is_empty(), "no credit");
    rig.answer(&sent[1], Status::Ok, b"");
    assert_eq!(rig.one().seq(), sent[0].seq());
}

#[test]
fn a_write_without_space_is_held_under_a_new_number_until_there_is_some() {
    let mut rig = Rig::up(1);
    rig.write(1, 0, &[1; 512]);
    for round in 1..100 {
        let sent = rig.one();
        assert_eq!((sent.is_retry(), sent.seq()), (false, 2 * round - 1), "as a new one");
        rig.answer(&sent, Status::Full, b"");
        assert_eq!((rig.client.held(), rig.client.outstanding()), (1, 1));
        rig.read(2, 0, 512);
        let read = rig.one();
        assert_eq!(read.floor(), 2 * round, "what is held holds no floor back");
        rig.answer(&read, Status::Ok, &[0; 512]);
        assert!(rig.result().is_ok());
        rig.pass(Duration::from_millis(249));
        assert!(rig.sent.is_empty());
        rig.pass(Duration::from_millis(51));
    }
    let sent = rig.one();
    rig.answer(&sent, Status::Ok, b"");
    assert!(rig.result().is_ok());
    assert_eq!((rig.client.held(), rig.client.outstanding()), (0, 0));
}

/// The owner may have had no room for it the first time.
#[test]
fn the_owner_is_told_each_time_that_a_write_finds_no_space() {
    let mut rig = Rig::up(1);
    rig.write(1, 0, &[1; 512]);
    for round in 1..5 {
        let sent = rig.one();
        rig.answer(&sent, Status::Full, b"");
        assert_eq!(rig.told_held, vec![1; round]);
        rig.pass(Duration::from_millis(300));
    }
}

#[test]
fn a_write_of_which_a_part_is_done_keeps_its_number() {
    let mut rig = Rig::up(1);
    rig.write(1, 0, &[1; 512]);
    let sent = rig.one();
    rig.link_down(sent.device);
    rig.link_up(1);
    let again = rig.one();
    rig.answer_with(&again, Status::Full, b"", |m| m.part_done = true);
    rig.pass(Duration::from_millis(300));
    let last = rig.one();
    assert_eq!((last.seq(), last.is_retry()), (sent.seq(), true));
}

#[test]
fn writes_leave_room_for_operations_that_free_space() {
    let mut rig = Rig::new(1, &Limits { sdc_requests: 8, ..Limits::SHIPPED });
    rig.link_up(1);
    (0..7).for_each(|i| rig.write(i, i * 4096, &[1; 512]));
    assert_eq!((rig.done[0].0, rig.result().unwrap_err()), (6, BlockError::Busy));
    for sent in rig.sent.drain(..).collect::<Vec<_>>() {
        rig.answer(&sent, Status::Full, b"");
    }
    assert_eq!(rig.client.held(), 6);
    rig.ask(7, BlockKind::Zero { hole: true }, 0, 4096, Buf::EMPTY);
    rig.read(8, 0, 512);
    assert_eq!(rig.sent.len(), 2);
    rig.sent.clear();
    // The caller of writes 0 to 2 is gone.
    rig.forget(|origin| origin < 3);
    assert_eq!((rig.done.len(), rig.client.held()), (3, 3));
    rig.pass(Duration::from_millis(300));
    let at: Vec<u32> = rig.sent.iter().map(|s| s.at()).collect();
    assert_eq!(at.len(), 3, "{at:?}");
    assert!(at.iter().all(|at| *at >= 3 * 4096));
}

#[test]
fn many_held_bytes_are_sent_more_seldom() {
    let mut rig = Rig::up(1);
    (0..48).for_each(|i| rig.write(i, 0, &[1; UNIT as usize]));
    for sent in rig.sent.drain(..).collect::<Vec<_>>() {
        rig.answer(&sent, Status::Full, b"");
    }
    assert_eq!(rig.client.held(), 48);
    rig.pass(Duration::from_millis(500));
    let early = rig.sent.len();
    assert!(early < 40, "{early}");
    rig.pass(Duration::from_millis(600));
    assert_eq!(rig.sent.len(), 48);
}

#[test]
fn volume_and_range_are_errors_only_when_our_map_agrees() {
    let mut rig = Rig::up(1);
    rig.read(1, 15 * MIB, 4096);
    let sent = rig.one();
    rig.map.volumes.insert(VOLUME, (MIB, 2, 2));
    rig.answer(&sent, Status::OutOfRange, b"");
    assert_eq!(rig.result().unwrap_err(), BlockError::OutOfRange);
    rig.read(1, 0, 4096);
    let sent = rig.one();
    rig.map.volumes.clear();
    rig.answer(&sent, Status::NoVolume, b"");
    assert_eq!(rig.result().unwrap_err(), BlockError::NoSuchVolume);
}

#[test]
fn a_former_primary_names_its_successor_and_no_mdm_is_needed() {
    let mut rig = Rig::up(3);
    rig.write(1, 0, &[1; 512]);
    let sent = rig.one();
    // Device 1 knows that device 3 is the primary in epoch 11. The client never gets a newer map.
    rig.answer_with(&sent, Status::Stale, b"", |h| {
        (h.epoch, h.map, h.leader) = (Epoch(11), MapVersion(6), Some(DeviceId(3)));
    });
    let sent = rig.one();
    assert_eq!((sent.device, sent.epoch()), (DeviceId(3), 11));
}

/// There is no epoch after the highest one.
#[test]
fn an_epoch_that_a_server_makes_up_ends_nothing() {
    let mut rig = Rig::up(3);
    rig.write(1, 0, &[1; 512]);
    let sent = rig.one();
    rig.answer_with(&sent, Status::Stale, b"", |h| {
        (h.epoch, h.map, h.leader) = (Epoch(u64::MAX), MapVersion(6), Some(DeviceId(1)));
    });
    let sent = rig.one();
    assert_eq!((sent.device, sent.epoch()), (DeviceId(1), u64::MAX));
    rig.new_map(|_| {});
    rig.answer(&sent, Status::Ok, b"");
    assert_eq!(rig.done.len(), 1);
}

#[test]
fn a_primary_that_names_itself_is_asked_at_once_until_the_map_knows() {
    let mut rig = Rig::up(3);
    rig.write(1, 0, &[1; 512]);
    let sent = rig.one();
    // Device 1 isn't the primary any more. The map names device 2 in epoch 11, which is the primary
    // in epoch 12 already.
    rig.answer_with(&sent, Status::Stale, b"", |h| (h.epoch, h.map) = (Epoch(11), MapVersion(6)));
    assert_eq!(rig.needs, Some(MapVersion(6)));
    rig.lead(0, 2, 11);
    let sent = rig.one();
    assert_eq!((sent.device, sent.epoch()), (DeviceId(2), 11));
    rig.answer_with(&sent, Status::Stale, b"", |h| {
        (h.epoch, h.map, h.leader) = (Epoch(12), MapVersion(9), Some(DeviceId(2)));
    });
    let sent = rig.one();
    assert_eq!((sent.device, sent.epoch(), rig.needs), (DeviceId(2), 12, Some(MapVersion(9))));
    // A map that is too old doesn't end the hint; one that is new enough does.
    rig.new_map(|_| {});
    rig.read(2, 0, 512);
    assert_eq!(rig.one().epoch(), 12);
    rig.map.version = 8;
    rig.lead(0, 3, 13);
    assert_eq!(rig.sent.iter().map(|s| (s.device.0, s.epoch())).collect::<Vec<_>>(), [(3, 13); 2]);
}

#[test]
fn a_stale_that_teaches_nothing_does_not_spin() {
    let mut rig = Rig::up(1);
    rig.read(1, 0, 512);
    let sent = rig.one();
    rig.answer(&sent, Status::Stale, b""); // Same map, same epoch: it has restarted, and waits.
    assert!(rig.sent.is_empty());
    rig.pass(Duration::from_millis(2));
    assert_eq!(rig.sent.len(), 1);
}

#[test]
fn damaged_bodies_and_wrong_lengths_end_the_link_and_are_asked_again() {
    for (body, damage) in
        [(&[0u8; 4096][..], true), (&[0; 4095], false), (&[0; 4097], false), (&[], false)]
    {
        let mut rig = Rig::up(1);
        rig.read(1, 0, 4096);
        let sent = rig.one();
        match damage {
            true => rig.damaged(sent.device),
            false => rig.answer(&sent, Status::Ok, body),
        }
        assert_eq!((rig.hangups.len(), rig.sent.len(), rig.done.len()), (1, 0, 0));
        rig.link_up(1);
        let again = rig.one();
        assert_eq!((again.is_retry(), again.seq()), (true, sent.seq()));
        rig.answer(&again, Status::Ok, &[3; 4096]);
        assert_eq!(&rig.result().unwrap()[..], &[3; 4096]);
    }
}

#[test]
fn requests_that_are_not_in_order_are_refused() {
    let limits = Limits { sdc_requests: 2, ..Limits::SHIPPED };
    let mut rig = Rig::new(1, &limits);
    let big = limits.nbd_payload + 512;
    let table = [
        (BlockKind::Read, 1, 512, BlockError::Misaligned),
        (BlockKind::Read, 0, 100, BlockError::Misaligned),
        (BlockKind::Write, 0, 512, BlockError::Misaligned), // without a body
        (BlockKind::CompareWrite, 0, 512, BlockError::Misaligned),
        (BlockKind::Read, 0, big, BlockError::TooBig),
        (BlockKind::Read, 16 * MIB, 512, BlockError::OutOfRange),
        (BlockKind::Read, 16 * MIB - 512, 1024, BlockError::OutOfRange),
        (BlockKind::Zero { hole: true }, u64::MAX - 511, 512, BlockError::OutOfRange),
    ];
    for (kind, at, len, error) in table {
        rig.ask(1, kind, at, len, Buf::EMPTY);
        assert_eq!(rig.result().unwrap_err(), error, "{kind:?} {at} {len}");
    }
    rig.read(1, 0, 512);
    rig.read(2, 0, 512);
    rig.read(3, 0, 512);
    assert_eq!((rig.done[0].0, rig.result().unwrap_err()), (3, BlockError::Busy));
    rig.ask(4, BlockKind::Flush, 0, 0, Buf::EMPTY);
    assert!(rig.result().is_ok(), "a flush needs no place");
    rig.map.volumes.clear();
    rig.ask(5, BlockKind::Flush, 0, 0, Buf::EMPTY);
    assert_eq!(rig.result().unwrap_err(), BlockError::NoSuchVolume);
}

#[test]
fn a_comparison_is_one_operation_within_a_block() {
    let mut rig = Rig::up(1);
    let body = |rig: &Rig, len: usize| rig.pool.copy(&vec![7; len]);
    for (at, len, bytes) in [(3584, 1024, 2048), (0, 8192, 16384), (0, 512, 512), (0, 512, 1536)] {
        let body = body(&rig, bytes);
        rig.ask(1, BlockKind::CompareWrite, at, len, body);
        assert_eq!(rig.result().unwrap_err(), BlockError::Misaligned, "{at} {len} {bytes}");
    }
    for (at, len) in [(0, 4096), (3584, 512), (8192 + 512, 2048)] {
        let body = body(&rig, 2 * len as usize);
        rig.ask(1, BlockKind::CompareWrite, at, len, body);
        let sent = rig.one();
        assert!(matches!(sent.io, Io::CompareWrite(_)) && !sent.is_retry());
        assert_eq!((u64::from(sent.at()), sent.len()), (at, len));
        assert_eq!(sent.body.len(), 2 * len as usize);
        rig.answer(&sent, Status::Ok, b"");
        assert!(rig.result().is_ok());
    }
    rig.map.read_only = true;
    let body = body(&rig, 1024);
    rig.ask(1, BlockKind::CompareWrite, 0, 512, body);
    assert_eq!(rig.result().unwrap_err(), BlockError::ReadOnly);
}

#[test]
fn other_data_than_expected_is_an_answer_and_is_asked_for_once() {
    let mut rig = Rig::up(1);
    let swap = |rig: &mut Rig| {
        let body = rig.pool.copy(&[1; 1024]);
        rig.ask(1, BlockKind::CompareWrite, 512, 512, body);
        rig.one()
    };
    let sent = swap(&mut rig);
    rig.answer(&sent, Status::Busy, b"");
    rig.pass(Duration::from_millis(5));
    let again = rig.one();
    assert_eq!((again.seq(), again.is_retry()), (sent.seq(), true));
    rig.answer(&again, Status::Miscompare, &511u32.to_le_bytes());
    assert_eq!(rig.result().unwrap_err(), BlockError::Miscompare(511));
    assert_eq!((rig.client.ops(), rig.client.writes()), (0, 0));
    // One that names no place in the range, and one that nobody has asked for.
    for at in [&512u32.to_le_bytes()[..], b"", &[0; 5]] {
        let sent = swap(&mut rig);
        rig.answer(&sent, Status::Miscompare, at);
        assert_eq!((rig.hangups.pop(), rig.done.len()), (Some(sent.device), 0));
        rig.link_up(1);
        let again = rig.one();
        rig.answer(&again, Status::Ok, b"");
        assert!(rig.result().is_ok());
    }
    rig.read(2, 0, 512);
    let sent = rig.one();
    rig.answer(&sent, Status::Miscompare, &0u32.to_le_bytes());
    assert_eq!(rig.hangups.len(), 1);
}

/// A comparison that passes may find no space for what it writes.
#[test]
fn a_comparison_waits_for_space_as_a_write_does() {
    let mut rig = Rig::up(1);
    let body = rig.pool.copy(&[1; 1024]);
    rig.ask(1, BlockKind::CompareWrite, 0, 512, body);
    let sent = rig.one();
    assert_eq!(rig.client.writes(), 1);
    rig.answer(&sent, Status::Full, b"");
    assert_eq!((rig.client.held(), &rig.told_held[..]), (1, &[1][..]));
    rig.pass(Duration::from_millis(300));
    let again = rig.one();
    assert!(!again.is_retry() && again.seq() > sent.seq() && again.body[..] == [1; 1024]);
    rig.forget(|_| true);
    rig.answer(&again, Status::Full, b"");
    rig.pass(Duration::from_secs(2));
    assert_eq!((rig.sent.len(), rig.client.outstanding()), (0, 0), "nobody waits for it");
}

#[test]
fn lost_groups_fail_at_once_and_deleted_volumes_too() {
    let mut rig = Rig::up(2);
    rig.write(1, 0, &[1; 512]);
    rig.read(2, MIB, 512);
    rig.new_map(|map| map.groups[0] = Leader::Lost);
    assert_eq!((rig.done[0].0, rig.result().unwrap_err()), (1, BlockError::Lost));
    rig.read(3, 512, 512);
    assert_eq!(rig.result().unwrap_err(), BlockError::Lost);
    let late = rig.sent.remove(0);
    rig.new_map(|map| map.volumes.clear());
    assert_eq!((rig.done[0].0, rig.result().unwrap_err()), (2, BlockError::NoSuchVolume));
    rig.answer(&late, Status::Ok, b"");
    assert_eq!((rig.done.len(), rig.client.outstanding()), (0, 0));
}

#[test]
fn one_bad_piece_fails_the_request_once() {
    let mut rig = Rig::up(4);
    rig.read(1, 0, 4 * UNIT);
    assert_eq!(rig.sent.len(), 4);
    let sent: Vec<_> = rig.sent.drain(..).collect();
    rig.answer(&sent[2], Status::Media, b"");
    rig.answer(&sent[0], Status::Busy, b"");
    rig.answer(&sent[1], Status::Ok, &vec![0; UNIT as usize]);
    assert!(rig.done.is_empty(), "one is still out");
    rig.link_down(sent[3].device);
    assert_eq!(rig.result().unwrap_err(), BlockError::Media);
    assert_eq!((rig.sent.len(), rig.client.outstanding()), (0, 0));
}

#[test]
pub(crate) fn a_leave_that_ended_takes_its_requests_with_it_and_readers_write_nothing() {
    let mut rig = Rig::up(2);
    rig.write(1, 0, &[1; 512]);
    let late = rig.sent.remove(0);
    // The volume was unmapped and mapped again meanwhile.
    rig.new_map(|map| map.volumes.extend([(VOLUME, (16 * MIB, 3, 3))]));
    assert_eq!((rig.done[0].0, rig.result().unwrap_err()), (1, BlockError::NoSuchVolume));
    rig.answer(&late, Status::Ok, b"");
    rig.read(2, 0, 512);
    assert_eq!(rig.one().request().generation, 3);
    rig.map.read_only = true;
    rig.write(3, 0, &[1; 512]);
    assert_eq!((rig.done[0].0, rig.result().unwrap_err()), (3, BlockError::ReadOnly));
    rig.ask(4, BlockKind::Zero { hole: true }, 0, 512, Buf::EMPTY);
    assert_eq!(rig.result().unwrap_err(), BlockError::ReadOnly);
    rig.read(5, 0, 512);
    assert_eq!(rig.one().len(), 512);
}

/// Lost MDMs had raised the generation, and only clients have heard of that.
#[test]
fn a_permission_that_goes_on_under_a_lower_generation_after_a_recovery_keeps_its_requests() {
    let mut rig = Rig::up(2);
    rig.write(1, 0, &[1; 512]);
    let first = rig.sent.remove(0);
    assert_eq!(first.request().generation, 2);
    rig.answer_with(&first, Status::Stale, b"", |h| h.map = MapVersion(6));
    rig.new_map(|map| map.volumes.extend([(VOLUME, (16 * MIB, 1, 1))]));
    assert!(rig.done.is_empty(), "it has lost nothing");
    let again = rig.one();
    assert_eq!((again.seq(), again.request().generation), (first.seq(), 1));
}

/// A reservation has taken access from others. This client's own permission goes on.
#[test]
fn a_permission_that_goes_on_under_a_higher_generation_keeps_its_requests_and_their_numbers() {
    let mut rig = Rig::up(2);
    rig.write(1, 0, &[1; 512]);
    rig.write(2, 4096, &[2; 512]);
    rig.read(3, MIB, 512);
    let (first, second, read) = (rig.sent.remove(0), rig.sent.remove(0), rig.sent.remove(0));
    // A server knows the new map before this client does.
    rig.answer_with(&first, Status::Stale, b"", |h| h.map = MapVersion(6));
    rig.new_map(|map| map.volumes.extend([(VOLUME, (16 * MIB, 5, 2))]));
    assert!(rig.done.is_empty(), "nobody has lost anything");
    let again = rig.one();
    assert_eq!((again.seq(), again.is_retry()), (first.seq(), true), "it is done at most once");
    assert_eq!(again.request().generation, 5);
    // What another server had begun is answered, and what it had not is sent again.
    rig.answer(&second, Status::Ok, b"");
    assert_eq!((rig.done[0].0, rig.result().is_ok()), (2, true));
    rig.answer(&read, Status::Stale, b"");
    rig.pass(Duration::from_millis(2));
    let read = rig.one();
    assert_eq!(read.request().generation, 5);
    // Then the permission ends, and begins again before this client hears of it.
    rig.new_map(|map| map.volumes.extend([(VOLUME, (16 * MIB, 7, 6))]));
    assert_eq!(rig.done.len(), 2, "{:?}", rig.done);
    assert!(rig.done.drain(..).all(|(_, r)| r.unwrap_err() == BlockError::NoSuchVolume));
    rig.answer(&again, Status::Stale, b"");
    rig.pass(Duration::from_secs(1));
    assert!(rig.sent.is_empty());
}

#[test]
fn a_refusal_under_a_newer_map_makes_the_client_pull_the_map() {
    let mut rig = Rig::up(1);
    rig.write(1, 0, &[1; 512]);
    let sent = rig.one();
    rig.answer_with(&sent, Status::NoVolume, b"", |h| h.map = MapVersion(9));
    assert!(rig.done.is_empty(), "our map is older");
    rig.new_map(|map| map.volumes.clear());
    assert_eq!(rig.result().unwrap_err(), BlockError::NoSuchVolume);
}

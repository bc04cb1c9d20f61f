//! Scenes in virtual time: links that break, primaries that change, credit that runs out.

use super::rig::Rig;
use base::time::Duration;
use base::{DeviceId, Epoch, Limits, MapVersion, UNIT};
use mirror::client::Leader;
use seam::{BlockKind, Buf};
use wire::Status;

const MIB: u64 = 1 << 20;

#[test]
fn pieces_come_together_whatever_the_order() {
    let mut rig = Rig::up(3);
    rig.read(1, MIB - 512, UNIT + 1024);
    let sent: Vec<_> = rig.sent.drain(..).collect();
    let lens: Vec<_> = sent.iter().map(|s| (s.unit(), s.at(), s.len())).collect();
    assert_eq!(lens, [(0, UNIT - 512, 512), (1, 0, UNIT), (2, 0, 512)]);
    for i in [2, 0, 1] {
        rig.answer(&sent[i], Status::Ok, &vec![i as u8 + 1; lens[i].2 as usize]);
    }
    let data = rig.result().unwrap();
    assert_eq!(data.len(), UNIT as usize + 1024);
    assert!(
        data[..512].iter().all(|b| *b == 1) && data[512 + UNIT as usize..].iter().all(|b| *b == 3)
    );
    assert!(data[512..512 + UNIT as usize].iter().all(|b| *b == 2));
}

#[test]
fn extents_are_counted_from_the_block_that_holds_the_start() {
    let mut rig = Rig::up(2);
    rig.ask(1, BlockKind::Extents, MIB - 3 * 4096 + 512, 5 * 4096, Buf::EMPTY);
    let sent: Vec<_> = rig.sent.drain(..).collect();
    rig.answer(&sent[1], Status::Ok, &[0b1111_1101]); // 3 blocks: the other bits don't count
    rig.answer(&sent[0], Status::Ok, &[0b100]);
    assert_eq!(&rig.result().unwrap()[..], &[0b10_1100]);
}

#[test]
fn a_long_zero_is_cut_lazily() {
    let mut rig = Rig::new(1, &Limits::SHIPPED);
    rig.map.volumes.insert(super::rig::VOLUME, (1 << 42, 0, 0));
    rig.link_up(1);
    let len = u32::MAX - 511;
    rig.ask(1, BlockKind::Zero { hole: true }, 512, len, Buf::EMPTY);
    let (mut bytes, mut most) = (0u64, 0);
    while !rig.sent.is_empty() {
        most = most.max(rig.sent.len());
        let sent = rig.sent.remove(0);
        assert!(sent.is_discard() && !sent.is_retry());
        bytes += u64::from(sent.len());
        rig.answer(&sent, Status::Ok, b"");
    }
    assert_eq!((bytes, most), (u64::from(len), 32));
    assert!(rig.result().is_ok());
}

#[test]
fn a_lost_link_is_retried_in_order_with_the_same_numbers() {
    let mut rig = Rig::up(1);
    for i in 0..3 {
        rig.write(i, i * 4096, &[i as u8; 4096]);
    }
    let before: Vec<_> = rig.sent.drain(..).map(|s| (s.seq(), s.at())).collect();
    rig.link_down(DeviceId(1));
    assert_eq!(rig.needs, Some(MapVersion(6)), "maybe it is dead: a map will tell");
    rig.write(3, 3 * 4096, &[3; 4096]);
    assert!(rig.sent.is_empty());
    rig.link_up(1);
    let after: Vec<_> = rig.sent.iter().map(|s| (s.seq(), s.at(), s.is_retry())).collect();
    for (i, (seq, at)) in before.iter().enumerate() {
        assert_eq!(after[i], (*seq, *at, true));
    }
    assert_eq!((after[3].0, after[3].2), (4, false));
    assert!(rig.sent.iter().all(|s| s.floor() == 1));
    let sent: Vec<_> = rig.sent.drain(..).collect();
    for s in [&sent[0], &sent[2]] {
        rig.answer(s, Status::Ok, b"");
    }
    rig.read(9, 0, 512);
    assert_eq!(rig.one().floor(), 2);
}

#[test]
fn credit_holds_back_and_is_given_back() {
    let mut rig = Rig::new(1, &Limits::SHIPPED);
    rig.read(0, 0, 512);
    assert_eq!(rig.dials, [DeviceId(1)]);
    rig.link_up_with(1, 2, 8192);
    rig.read(1, 0, 8192);
    rig.read(2, 0, 512);
    assert_eq!(rig.sent.len(), 1, "512 + 8192 bytes are too many");
    let first = rig.one();
    rig.answer(&first, Status::Ok, &[0; 512]);
    let second = rig.one();
    assert_eq!(second.len(), 8192);
    rig.answer(&second, Status::Ok, &[0; 8192]);
    rig.read(3, 0, 512);
    rig.read(4, 0, 512);
    assert_eq!(rig.sent.len(), 2);
    // An operation larger than the whole credit is sent alone.
    rig.sent.clear();
    rig.link_down(DeviceId(1));
    rig.link_up_with(1, 1, 100);
    assert_eq!(rig.sent.len(), 1);
}

#[test]
fn a_client_sends_no_more_at_once_than_its_own_link_queue_takes() {
    let limits = Limits { link_queue: 4 << 20, ..Limits::TEST_MIN };
    let mut rig = Rig::new(1, &limits);
    for i in 0..16 {
        rig.write(i, i << 20, &vec![1; 1 << 20]);
    }
    // The server has room for 64 MiB. After each break, the client sends all again.
    for _ in 0..2 {
        rig.sent.clear();
        rig.link_up_with(1, 64, 64 << 20);
        let bytes: usize = rig.sent.iter().map(|s| s.body.len()).sum();
        assert_eq!(bytes, 2 << 20, "half of the queue");
        rig.link_down(DeviceId(1));
    }
}

#[test]
fn requests_wait_while_a_group_has_no_primary() {
    let mut rig = Rig::up(2);
    rig.new_map(|map| map.groups[0] = Leader::Nobody);
    rig.write(1, 0, &[1; 512]);
    assert_eq!((rig.sent.len(), rig.needs), (0, Some(MapVersion(7))));
    assert!(!rig.client.is_stuck());
    rig.pass(Duration::from_secs(3600));
    assert!(rig.client.is_stuck() && rig.done.is_empty());
    rig.lead(0, 2, 13);
    let sent = rig.one();
    assert_eq!((sent.device, sent.epoch(), sent.is_retry()), (DeviceId(2), 13, false));
    rig.answer(&sent, Status::Ok, b"");
    assert!(rig.result().is_ok());
    rig.pass(Duration::from_secs(1));
    assert!(!rig.client.is_stuck());
    assert_eq!(rig.client.wake_at(), None, "nothing to do, nothing to wake for");
}

#[test]
fn a_primary_that_was_replaced_is_not_waited_for() {
    let mut rig = Rig::up(2);
    rig.write(1, 0, &[1; 512]);
    let old = rig.one();
    rig.lead(0, 2, 11);
    let new = rig.one();
    assert_eq!((new.device, new.is_retry(), new.seq()), (DeviceId(2), true, old.seq()));
    rig.answer(&old, Status::Ok, b""); // too late: only the answer of the new primary counts
    assert!(rig.done.is_empty());
    rig.answer(&new, Status::Ok, b"");
    assert!(rig.result().is_ok());
}

#[test]
fn a_write_never_lives_twice_in_one_session() {
    let mut rig = Rig::up(3);
    rig.write(1, 0, &[1; 512]);
    let first = rig.one();
    rig.lead(0, 2, 11);
    let second = rig.one();
    rig.lead(0, 1, 12); // back again, while the first copy may still be executed there
    assert_eq!((rig.hangups.as_slice(), rig.sent.len()), (&[DeviceId(1)][..], 0));
    rig.link_up(1);
    let third = rig.one();
    assert_eq!((third.device, third.epoch()), (DeviceId(1), 12));
    // Device 2 has answered its copy in between, so the write may go there again.
    rig.answer(&second, Status::Stale, b"");
    rig.lead(0, 2, 13);
    assert_eq!((rig.one().device, rig.hangups.len()), (DeviceId(2), 1));
    drop(first);
}

#[test]
fn a_primary_that_may_have_been_away_is_given_a_moment_then_a_new_session() {
    let mut rig = Rig::up(2);
    rig.write(1, 0, &[1; 512]);
    rig.read(2, 512, 512);
    rig.read(3, MIB, 512);
    let sent: Vec<_> = rig.sent.drain(..).collect();
    rig.lead(0, 1, 11); // it stayed the primary
    rig.pass(Duration::from_millis(500));
    assert_eq!((rig.sent.len(), rig.hangups.len()), (0, 0));
    rig.lead(0, 1, 13); // another device may have led in epoch 12
    assert_eq!((rig.sent.len(), rig.hangups.len()), (0, 0));
    rig.pass(Duration::from_millis(200));
    assert_eq!(rig.hangups, [DeviceId(1)]);
    rig.link_up(1);
    let again: Vec<_> = rig.sent.iter().map(|s| (s.seq(), s.epoch())).collect();
    assert_eq!(again, [(sent[0].seq(), 13), (sent[1].seq(), 13)]);
}

#[test]
fn requests_before_the_first_map_wait_for_it() {
    let mut rig = Rig::up(1);
    let map = rig.map.clone();
    rig.map.version = 0;
    rig.map.volumes.clear();
    rig.read(1, 0, 512);
    rig.read(2, 16 * MIB, 512);
    rig.ask(3, BlockKind::Flush, 0, 0, Buf::EMPTY);
    assert_eq!((rig.done.len(), rig.client.outstanding()), (0, 3));
    rig.new_map(|m| *m = map);
    assert_eq!(
        rig.done.iter().map(|d| (d.0, d.1.is_ok())).collect::<Vec<_>>(),
        [(2, false), (3, true)]
    );
    assert_eq!(rig.sent.len(), 1);
}

#[test]
fn a_map_moves_what_waits_in_a_queue() {
    let mut rig = Rig::new(2, &Limits::SHIPPED);
    rig.link_up(2);
    for i in 0..4 {
        rig.read(i, 0, 512);
    }
    rig.new_map(|map| map.groups[0] = Leader::At(DeviceId(2), Epoch(11)));
    assert!(rig.sent.iter().all(|s| s.device == DeviceId(2) && !s.is_retry()));
    assert_eq!(rig.sent.len(), 4);
    rig.link_up(1);
    assert_eq!(rig.sent.len(), 4);
}

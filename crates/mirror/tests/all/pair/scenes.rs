//! Writes, leases, replicas that return, and primaries that change.

use super::*;

#[test]
fn a_bit_that_flips_after_a_writes_arrival_is_never_kept() {
    let mut pair = settled();
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    pair.flips[0] = true;
    assert_eq!(pair.write(0, 0, 8), Some(Status::Damaged), "the client sends it again");
    pair.assert_equal();
    assert_eq!((pair.read(0, 0), pair.mirrors[0].in_flight()), (Some(7), 0));
    pair.flips[1] = true;
    assert_eq!(pair.write(0, 0, 9), Some(Status::Ok), "the secondary gets the blocks anew");
    assert_eq!(pair.flips, [false; 2]);
    pair.assert_equal();
    assert_eq!(pair.read(0, 0), Some(9));
    assert!(!pair.mirrors[0].failed() && !pair.mirrors[1].failed());
}

#[test]
fn a_bit_that_flips_when_the_secondary_may_have_the_write_ends_the_process() {
    let mut pair = settled();
    pair.flips[0] = true;
    assert_eq!(pair.write(0, 0, 7), None, "a first write goes to the secondary first");
    assert!(pair.mirrors[0].failed() || pair.mirrors[1].failed());
}

#[test]
fn a_bit_that_flips_between_store_and_answer_shows_at_the_reader() {
    let mut pair = settled();
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    pair.mirrors[0].store_mut().flips = true;
    assert_eq!(pair.read(0, 0), Some(6));
    assert_eq!(pair.sound.last(), Some(&false));
    assert_eq!(pair.read(0, 0), Some(7));
    assert_eq!(pair.sound.last(), Some(&true));
}

#[test]
fn writes_reach_both_copies_and_reads_need_a_lease() {
    let mut pair = settled();
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    pair.assert_equal();
    assert_eq!(pair.read(0, 0), Some(7));
    pair.connected = false;
    pair.wait(1100);
    assert_eq!(pair.read(0, 0), None, "no lease, no read");
    assert_eq!(pair.write(0, 1, 8), None, "no second copy, no answer");
    pair.wait(1000);
    assert!(pair.mirrors[0].suspects(pair.now).contains(&DeviceId(2)));
}

#[test]
fn a_returning_copy_gets_what_it_missed_and_no_more() {
    let mut pair = settled();
    (0..8).for_each(|b| assert_eq!(pair.write(0, b, 1), Some(Status::Ok)));
    pair.wait(500); // the last commit point is sent
    pair.connect(false);
    pair.configure(1, &[1], &[], &[0]);
    assert_eq!(pair.write(0, 3, 2), Some(Status::Ok));
    assert_eq!(pair.client(0, Kind::Zero, 0, 5 * BLOCK..6 * BLOCK, 0, HOLE), Some(Status::Ok));
    assert_eq!(pair.read(0, 3), Some(2));
    pair.connect(true);
    let before = pair.mirrors[0].stats().moved;
    pair.configure(1, &[1], &[2], &[0, 1]);
    pair.wait(500);
    assert_eq!(pair.mirrors[0].admissions(), [(GROUP, Epoch(pair.epoch), DeviceId(2))]);
    assert_eq!(
        pair.mirrors[0].stats().moved - before,
        u64::from(BLOCK),
        "one block of data, one of zeros"
    );
    assert_eq!(pair.write(0, 6, 3), Some(Status::Ok), "in limbo");
    pair.assert_equal();
    pair.configure(1, &[1, 2], &[], &[0, 1]);
    pair.wait(500);
    assert_eq!(pair.mirrors[0].replicas().view(GROUP).unwrap().dirty_bytes, 0);
    assert_eq!((pair.read(0, 3), pair.read(0, 5)), (Some(2), Some(0)));
    pair.assert_equal();
}

#[test]
fn a_promoted_secondary_waits_out_its_promises_and_dedupes_retries() {
    let mut pair = settled();
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    pair.wait(200);
    pair.connect(false);
    pair.configure(2, &[2], &[], &[1]);
    assert_eq!(
        pair.client(1, Kind::Write, 0, 0..BLOCK, 7, RETRY),
        None,
        "held: a lease still runs"
    );
    pair.wait(1300);
    assert_eq!(pair.replies.last().unwrap().status, Status::Ok);
    assert_eq!(pair.write(1, 0, 8), Some(Status::Ok));
    let seq = std::mem::replace(&mut pair.seq, 1);
    assert_eq!(pair.client(1, Kind::Write, 0, 0..BLOCK, 7, RETRY), Some(Status::Ok));
    pair.seq = seq;
    assert_eq!(pair.read(1, 0), Some(8), "the retry was not executed again");
    assert_ne!(pair.write(0, 0, 9), Some(Status::Ok), "the old leader can't answer");
}

#[test]
fn an_empty_joiner_gets_everything_and_a_stranger_is_wiped_first() {
    let mut pair = settled();
    (0..5).for_each(|b| assert_eq!(pair.write(0, b, 1), Some(Status::Ok)));
    // Device 2 comes back with foreign content and without a record.
    pair.replace_second();
    pair.connect(true);
    assert_eq!(pair.mirrors[0].replicas().resync().partial, []);
    pair.configure(1, &[1], &[2], &[1]);
    assert_eq!(
        pair.mirrors[1].replicas().resync().partial,
        [GROUP],
        "it has nothing that was ever whole"
    );
    pair.configure(1, &[1], &[2], &[0, 1]);
    pair.wait(500);
    pair.configure(1, &[1, 2], &[], &[0, 1]);
    pair.wait(500);
    assert_eq!(pair.mirrors[1].replicas().resync().partial, []);
    pair.assert_equal();
    assert_eq!(pair.read(0, 4), Some(1));
}

/// An answer to an older question may still be on its way.
#[test]
fn only_the_answer_to_a_wipe_says_that_the_joiner_is_empty() {
    let mut pair = settled();
    assert_eq!(pair.write(0, 0, 1), Some(Status::Ok));
    pair.connected = false;
    pair.configure(1, &[1], &[2], &[0]);
    let tells = |pair: &mut Pair, question| {
        let (status, group, base) = (Status::Ok, GROUP, Epoch(0));
        let (epoch, sender) = (Epoch(pair.epoch), Sender::default());
        let (more, all, empty) = (false, true, false);
        let state = SyncState { status, question, group, epoch, base, sender, more, all, empty };
        let out = &mut pair.outs[0];
        pair.mirrors[0].sync_state_in(pair.now, DeviceId(2), &state, &Buf::EMPTY, out);
        pair.run();
        pair.asked.clone()
    };
    let mut asked = pair.asked.clone();
    let mut question = 0;
    while let Some(Frame::SyncStart(m)) = asked.last() {
        question = m.question;
        asked = tells(&mut pair, question);
    }
    let Some(Frame::SyncWipe(wipe)) = asked.last() else { panic!("{asked:?}") };
    assert_ne!(wipe.question, question);
    assert_eq!(tells(&mut pair, question), asked, "it may still have what it had");
    assert!(matches!(tells(&mut pair, wipe.question).last(), Some(Frame::SyncStart(_))));
}

#[test]
fn the_new_leader_overwrites_what_was_never_acknowledged() {
    let mut pair = settled();
    assert_eq!(pair.write(0, 0, 1), Some(Status::Ok));
    pair.connected = false;
    assert_eq!(pair.write(0, 0, 2), None, "written at the primary only");
    pair.connect(false);
    pair.configure(2, &[2], &[], &[1]);
    pair.wait(1300);
    assert_eq!(pair.read(1, 0), Some(1));
    pair.connect(true);
    pair.configure(2, &[2], &[1], &[0, 1]);
    pair.wait(500);
    pair.assert_equal();
    assert_eq!(pair.mirrors[0].store().units[&UNIT0].1[0], 1);
}

#[test]
fn more_units_may_be_in_flight_than_one_change_names() {
    let mut pair = Pair::new([4, 4]);
    let media = Memory { kept: true, ..Memory::room(4) };
    pair.mirrors[0] = Mirror::new(DeviceId(1), Incarnation(7), Limits::SHIPPED, media, Time::ZERO);
    pair.connect(true);
    pair.configure(1, &[1], &[2], &[0, 1]);
    pair.wait(3000);
    assert_eq!(pair.mirrors[0].admissions().len(), 1);
    pair.connected = false;
    (0..9000).for_each(|unit| pair.ask(0, Kind::Zero, unit, 0..BLOCK, 0, HOLE));
    pair.run();
    assert_eq!((pair.replies.len(), pair.mirrors[0].in_flight()), (0, 9000));
    pair.connected = true;
    pair.configure(1, &[1, 2], &[], &[0, 1]);
    pair.wait(500);
    let view = pair.mirrors[0].replicas().view(GROUP).unwrap();
    assert!(view.active && view.dirty_bytes == 0, "{view:?}");
    assert_eq!((pair.replies.len(), pair.mirrors[0].in_flight()), (9000, 0));
}

/// Creates two durable devices that have settled.
fn durable() -> Pair {
    let mut pair = Pair::new([4, 4]);
    for i in 0..2 {
        let (me, media) = (DeviceId(i as u32 + 1), Memory { kept: true, ..Memory::room(4) });
        pair.mirrors[i] = Mirror::new(me, Incarnation(7), Limits::TEST_MIN, media, Time::ZERO);
    }
    settle(pair)
}

#[test]
fn a_write_that_both_copies_have_is_settled_in_both_logs_soon() {
    let mut pair = durable();
    assert_eq!(pair.write(0, 2, 7), Some(Status::Ok));
    // Any record after the write says that it arrived whole: from then on damage is damage.
    pair.wait(1000);
    for mirror in &pair.mirrors {
        assert_eq!(mirror.store().clean, BlockSet::from_range(2..3));
    }
}

/// Otherwise these blocks would be copied again after the next start.
#[test]
fn before_servers_end_their_stores_learn_which_blocks_are_clean() {
    for tell in [false, true] {
        let mut pair = durable();
        assert_eq!(pair.write(0, 2, 7), Some(Status::Ok));
        for end in [0, 1].into_iter().filter(|_| tell) {
            pair.mirrors[end].tell_news(&mut pair.outs[end]);
            pair.run();
        }
        let clean = if tell { BlockSet::from_range(2..3) } else { BlockSet::EMPTY };
        assert_eq!(pair.mirrors.each_ref().map(|m| m.store().clean), [clean; 2]);
    }
}

/// A copy is still being read when its sync is cut off, and the answer to the sync's question comes
/// a second time.
#[test]
fn a_copy_of_a_sync_that_was_cut_ends_before_the_next_one_begins() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7 + b as u8), Some(Status::Ok)));
    pair.replace_second();
    pair.connect(true);
    let memory = pair.mirrors[0].store_mut();
    (memory.flips, memory.late) = (true, true);
    pair.configure(1, &[1], &[2], &[0, 1]);
    let (told, list) = pair.state.clone().expect("the joiner has told its state");
    let cut = SyncState { status: Status::Stale, ..told };
    for h in [cut, told] {
        let (mirror, out) = (&mut pair.mirrors[0], &mut pair.outs[0]);
        assert!(!mirror.store().ended.is_empty(), "a copy is being read");
        mirror.sync_state_in(pair.now, DeviceId(2), &h, &list, out);
    }
    pair.run();
    pair.mirrors[0].store_mut().late = false;
    pair.wait(2000);
    assert_eq!(pair.mirrors[0].admissions().len(), 1);
    pair.assert_equal();
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

/// The primary may cut the joiner off after its seal and go on without it, so the seal proves
/// nothing before the admission.
#[test]
fn a_joiner_says_that_it_is_one_until_it_is_admitted() {
    let mut pair = settled();
    pair.configure(1, &[1], &[], &[0]);
    pair.configure(1, &[1], &[2], &[0, 1]);
    pair.wait(3000);
    let epoch = Epoch(pair.epoch);
    assert_eq!(pair.mirrors[0].admissions().len(), 1, "it is sealed");
    let said = |pair: &Pair, i: usize| pair.mirrors[i].replicas().evidence()[0].1;
    assert_eq!(said(&pair, 1), mirror::Evidence { acted: epoch, joiner: true, base: epoch });
    assert_eq!(said(&pair, 0), mirror::Evidence { acted: epoch, joiner: false, base: Epoch(1) });
    pair.configure(1, &[1, 2], &[], &[0, 1]);
    pair.wait(500);
    let epoch = Epoch(pair.epoch);
    let both = mirror::Evidence { acted: epoch, joiner: false, base: epoch };
    assert_eq!([0, 1].map(|i| said(&pair, i)), [both; 2]);
}

/// The next configuration comes before the joiner has recorded that it takes part in this one.
#[test]
fn a_joiner_that_enters_late_says_that_it_was_one() {
    let mut pair = settled();
    pair.configure(1, &[1], &[], &[0, 1]);
    let store = pair.mirrors[1].store_mut();
    (store.kept, store.late) = (true, true);
    pair.configure(1, &[1], &[2], &[0, 1]);
    let epoch = Epoch(pair.epoch);
    pair.configure(1, &[1], &[], &[0, 1]);
    pair.mirrors[1].store_mut().late = false;
    pair.wait(50);
    let (_, said) = pair.mirrors[1].replicas().evidence()[0];
    assert_eq!((said.acted, said.joiner), (epoch, true));
}

//! The scrubber.

use super::*;

/// Creates two durable devices with 20 blocks of data each, which are damaged before a scrub
/// begins.
fn scrubbed(bad: [&[u32]; 2]) -> Pair {
    let mut pair = Pair::new([4, 4]);
    pair.mirrors = [0, 1].map(|i| {
        let media = Memory { kept: true, ..Memory::room(4) };
        Mirror::new(DeviceId(i + 1), Incarnation(7), Limits::TEST_MIN, media, Time::ZERO)
    });
    let mut pair = settle(pair);
    (0..40).step_by(2).for_each(|b| assert_eq!(pair.write(0, b, b as u8 + 1), Some(Status::Ok)));
    pair.wait(500);
    for (mirror, bad) in pair.mirrors.iter_mut().zip(bad) {
        bad.iter().for_each(|b| mirror.store_mut().bad.insert(BlockSet::from_range(*b..b + 1)));
        mirror.begin_scrub(pair.now);
    }
    pair
}

#[test]
fn a_scrub_finds_and_repairs_unread_damage_at_both_copies() {
    let mut pair = scrubbed([&[0, 2, 34], &[4, 38]]);
    pair.wait(3000);
    let stats = pair.mirrors.each_ref().map(|m| m.scrub_stats().unwrap());
    for (stats, bad) in stats.iter().zip([3, 2]) {
        let bytes = bad * u64::from(BLOCK);
        assert_eq!((stats.running, stats.passes, stats.skipped), (false, 1, 0), "{stats:?}");
        assert_eq!((stats.damaged, stats.repaired, stats.unrepairable), (bytes, bytes, 0));
        assert_eq!((stats.done, stats.held), (20 * u64::from(BLOCK), 20 * u64::from(BLOCK)));
    }
    assert!(pair.mirrors.iter().all(|m| m.store().bad.is_empty() && m.in_flight() == 0));
    pair.assert_equal();
    assert_eq!(pair.mirrors[1].replicas().view(GROUP).unwrap().dirty_bytes, 0);
    (0..40).step_by(2).for_each(|b| assert_eq!(pair.read(0, b), Some(b as u8 + 1)));
}

#[test]
fn a_scrub_gives_up_what_both_copies_have_lost_and_comes_to_its_end() {
    let mut pair = scrubbed([&[6], &[6, 8]]);
    pair.wait(20_000);
    let stats = pair.mirrors.each_ref().map(|m| m.scrub_stats().unwrap());
    assert_eq!(stats.map(|s| (s.passes, s.running)), [(1, false); 2]);
    let block = u64::from(BLOCK);
    assert_eq!(stats.map(|s| s.unrepairable), [block; 2]);
    assert_eq!((stats[1].damaged, stats[1].repaired), (2 * block, block));
    assert!(pair.mirrors[0].suspects(pair.now).is_empty(), "damage is no reason to suspect");
    assert_eq!(pair.write(0, 6, 9), Some(Status::Ok), "it can be written anew");
    assert!(pair.mirrors.iter().all(|m| m.store().bad.is_empty()));
}

#[test]
fn each_pass_reports_only_its_own_findings() {
    let mut pair = scrubbed([&[6], &[6, 8]]);
    let pass = |pair: &mut Pair| {
        let now = pair.now;
        pair.mirrors.iter_mut().for_each(|m| m.begin_scrub(now));
        pair.wait(20_000);
        let stats = pair.mirrors.each_ref().map(|m| m.scrub_stats().unwrap());
        stats.map(|s| [s.damaged, s.repaired, s.unrepairable].map(|n| n / u64::from(BLOCK)))
    };
    assert_eq!(pass(&mut pair), [[1, 0, 1], [2, 1, 1]]);
    assert_eq!(pass(&mut pair), [[1, 0, 1]; 2], "what is still damaged is told again");
    assert_eq!(pair.write(0, 6, 9), Some(Status::Ok));
    assert_eq!(pass(&mut pair), [[0; 3]; 2], "what was written anew is not");
}

#[test]
fn a_scrub_keeps_to_its_rate_and_begins_anew_by_the_clock_or_when_asked() {
    let mut pair = scrubbed([&[], &[]]);
    pair.mirrors = pair.mirrors.map(|mut m| {
        let limits = Limits {
            scrub_bytes: 64 << 10,
            scrub_every: std::time::Duration::from_secs(60),
            ..Limits::TEST_MIN
        };
        let media = std::mem::take(m.store_mut());
        Mirror::new(DeviceId(1), Incarnation(7), limits, media, pair.now)
    });
    pair.configure(1, &[1], &[], &[0]);
    pair.wait(2000);
    let stats = |pair: &Pair| pair.mirrors[0].scrub_stats().unwrap();
    assert_eq!((stats(&pair).running, stats(&pair).passes), (false, 0));
    let now = pair.now;
    pair.mirrors[0].begin_scrub(now);
    pair.wait(2900);
    assert_eq!(stats(&pair).passes, 0, "3 ranges of 64 KiB at 64 KiB/s");
    let half = pair.now;
    pair.mirrors[0].begin_scrub(half);
    pair.wait(4000);
    assert_eq!(stats(&pair).passes, 1);
    pair.wait(54_000);
    assert_eq!(stats(&pair).passes, 1);
    pair.wait(6000);
    assert_eq!(stats(&pair).passes, 2);
}

#[test]
fn writes_go_on_while_a_scrub_repairs() {
    let mut pair = scrubbed([&[10], &[12, 14]]);
    for round in 0..60u8 {
        for b in [10, 12, 14, 15] {
            assert_eq!(pair.write(0, b, round + 100), Some(Status::Ok));
            let part = b * BLOCK + 512..b * BLOCK + 1024;
            assert_eq!(pair.client(0, Kind::Write, 0, part, round, 0), Some(Status::Ok));
        }
        pair.wait(50);
    }
    assert!(pair.mirrors.iter().all(|m| m.store().bad.is_empty()));
    pair.assert_equal();
}

/// An honest scrubber reports one range at a time.
#[test]
fn reports_of_damage_take_a_bounded_number_of_operations() {
    use wire::message::Damage;
    let mut pair = settled();
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    let sender = Sender { incarnation: Incarnation(7), map: MapVersion(pair.epoch) };
    let (group, epoch) = (GROUP, Epoch(pair.epoch));
    let report = |pair: &mut Pair, n: u32| {
        let range = place(n / 250, n % 250 * BLOCK, BLOCK);
        let (mirror, out) = (&mut pair.mirrors[0], &mut pair.outs[0]);
        mirror.damage_in(pair.now, DeviceId(2), &Damage { group, epoch, range, sender }, out);
        mirror.in_flight()
    };
    // These ranges are damaged here as well, and the results are late.
    pair.mirrors[0].store_mut().bad = BlockSet::FULL;
    pair.mirrors[0].store_mut().late = true;
    let most = (0..1000).map(|n| report(&mut pair, n)).max();
    assert!(most <= Some(8), "{most:?} operations");
    pair.mirrors[0].store_mut().bad = BlockSet::EMPTY;
    pair.mirrors[0].store_mut().late = false;
    pair.run();
    assert_eq!(pair.mirrors[0].in_flight(), 0);
    assert_eq!(report(&mut pair, 0), 1, "there is room again");
}

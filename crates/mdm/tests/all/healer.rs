//! The healer's plans: for which groups and destinations, and when it must not plan any.

use crate::common::{self, *};
use base::{DeviceId, Duration, GroupId, Limits, SdsId, Time};
use mdm::command::*;
use mdm::healer::Healer;
use mdm::maintenance;
use mdm::observed::{Observed, Seen};
use mdm::removal;
use mdm::{Command, Refused, State};
use std::collections::{BTreeMap, BTreeSet};
use wire::control::{DeviceKind, Heartbeat, Intent, MaintainRequest, MoveStatus, RemoveRequest};

/// A cluster of servers with one device each and one volume, and what the MDM's node adds to the
/// state.
struct Rig {
    state: State,
    seen: Observed,
    healer: Healer,
    limits: Limits,
    now: Time,
    /// Devices that get no new maps.
    deaf: BTreeSet<u32>,
}

impl Rig {
    fn new(servers: u32) -> Rig {
        let mut state = State::new();
        apply(&mut state, &Command::FormCluster(FormCluster { cluster: 7 }));
        let limits = Limits {
            groups_per_device: 16,
            moves: 64,
            moves_per_device: 64,
            moving_bytes: 0,
            ..Limits::TEST_MIN
        };
        let mut rig = Rig {
            state,
            seen: Observed::default(),
            healer: Healer::default(),
            limits,
            now: Time(1_000_000_000),
            deaf: BTreeSet::new(),
        };
        (1..=servers).for_each(|n| rig.add(n, 0));
        let create = common::create(&rig.state, "v", 64 << 20, &rig.limits).unwrap();
        apply(&mut rig.state, &create);
        rig
    }

    fn add(&mut self, device: u32, used: u64) {
        let life = self.state.next_incarnation.0;
        apply(&mut self.state, &up(device, life, u64::from(device), DeviceKind::Durable));
        self.used(device, used);
    }

    fn used(&mut self, device: u32, used: u64) {
        self.beat(device, Heartbeat { used, ..Heartbeat::default() });
    }

    fn beat(&mut self, device: u32, heartbeat: Heartbeat) {
        let mut seen = Seen::default();
        seen.connected = true;
        seen.beat(self.now, heartbeat);
        self.seen.devices.insert(DeviceId(device), seen);
    }

    fn life(&self, device: u32) -> u64 {
        self.state.devices[&DeviceId(device)].incarnation.0
    }

    fn down(&mut self, device: u32) {
        let life = self.life(device);
        apply(&mut self.state, &down(device, life, true));
    }

    fn back(&mut self, device: u32) {
        let life = self.state.next_incarnation.0;
        apply(&mut self.state, &up(device, life, u64::from(device), DeviceKind::Durable));
    }

    /// Plays one round after this time, and returns how many groups it changed. Every command must
    /// fit the state.
    fn round(&mut self, after: Duration) -> usize {
        self.now = self.now + after;
        for (device, seen) in &mut self.seen.devices {
            if !self.deaf.contains(&device.0) {
                seen.map = self.state.version;
            }
        }
        let commands = self.healer.work(self.now, &self.state, &self.seen, &self.limits);
        assert!(commands.iter().filter(|c| matches!(c, Command::Reshape(_))).count() <= 1);
        let mut changed = 0;
        for command in &commands {
            if let Command::Reshape(c) = command {
                changed += c.list.len();
            }
            apply(&mut self.state, command);
        }
        changed
    }

    fn beats(&mut self) -> usize {
        self.round(self.limits.heartbeat_every)
    }

    /// Plays rounds until nothing is left to do; every newcomer gets its copy at once. Returns how
    /// many copies were made.
    fn settle(&mut self) -> usize {
        let mut copies = 0;
        for _ in 0..1000 {
            let changed = self.beats();
            let moving: Vec<_> = self.moving();
            if changed == 0 && moving.is_empty() {
                return copies;
            }
            copies += self.copy();
        }
        panic!("it never ends");
    }

    /// Gives every newcomer its copy, and returns how many there were.
    fn copy(&mut self) -> usize {
        let moving = self.moving();
        for (id, primary, newcomer) in &moving {
            let life = self.life(primary.0);
            apply(&mut self.state, &join(primary.0, life, newcomer.0));
            let epoch = self.state.groups[id].epoch.0;
            apply(&mut self.state, &admit(id.0, epoch, newcomer.0));
        }
        moving.len()
    }

    fn moving(&self) -> Vec<(GroupId, DeviceId, DeviceId)> {
        let moving =
            |(id, g): (&GroupId, &mdm::group::Group)| Some((*id, g.primary?, g.newcomer()?));
        self.state.groups.iter().filter_map(moving).collect()
    }

    /// Returns how many replicas, and how many preferred primaries, each device has.
    fn shares(&self) -> BTreeMap<u32, (i32, i32)> {
        let mut shares = BTreeMap::new();
        for group in self.state.groups.values() {
            let [a, b] = group.pair().unwrap();
            assert_eq!(group.leaving, None);
            assert!(group.is_whole(), "{group:?}");
            let server = |d: DeviceId| self.state.devices[&d].sds;
            assert_ne!(server(a), server(b));
            shares.entry(a.0).or_insert((0, 0)).1 += 1;
            [a, b].iter().for_each(|d| shares.entry(d.0).or_insert((0, 0)).0 += 1);
        }
        shares
    }

    fn intend(&mut self, device: u32, intent: Intent) {
        let c = Intend { devices: vec![device], intent: intent as i32 };
        apply(&mut self.state, &Command::Intend(c));
    }
}

#[test]
fn a_device_that_stays_away_is_rebuilt_on_all_others() {
    let mut rig = Rig::new(5);
    let lost = rig.state.groups_of(DeviceId(2)).len();
    rig.down(2);
    assert_eq!(rig.beats(), 0, "a restart moves nothing");
    assert_eq!(rig.round(rig.limits.rebuild_after), lost, "all in one command");
    let to: BTreeMap<u32, u32> =
        rig.moving().iter().fold(BTreeMap::new(), |mut all, (_, _, to)| {
            *all.entry(to.0).or_default() += 1;
            all
        });
    assert!(to.len() == 4 && to.values().all(|n| *n <= lost as u32 / 4 + 1), "{to:?}");
    assert_eq!(rig.settle(), lost);
    assert!(rig.state.groups_of(DeviceId(2)).is_empty());
}

#[test]
fn an_absent_device_without_data_delays_no_rebalance() {
    let mut rig = Rig::new(4);
    rig.down(2);
    rig.beats();
    rig.round(rig.limits.rebuild_after);
    rig.settle();
    assert!(rig.state.groups_of(DeviceId(2)).is_empty());
    rig.add(5, 0);
    rig.settle();
    let share = rig.shares()[&1].0;
    assert!((rig.shares()[&5].0 - share).abs() <= 1, "{:?}", rig.shares());
    // It gets its share when it is back.
    rig.back(2);
    rig.settle();
    let share = rig.shares()[&1].0;
    assert!((rig.shares()[&2].0 - share).abs() <= 1, "{:?}", rig.shares());
}

#[test]
fn a_bounded_number_of_groups_moves_at_a_time() {
    let mut rig = Rig::new(5);
    (rig.limits.moves, rig.limits.moves_per_device) = (5, 2);
    rig.down(2);
    rig.beats();
    rig.round(rig.limits.rebuild_after);
    let mut busy: BTreeMap<(&str, u32), u32> = BTreeMap::new();
    for (_, from, to) in rig.moving() {
        [("makes", from.0), ("gets", to.0)].iter().for_each(|d| *busy.entry(*d).or_default() += 1);
    }
    assert!(rig.moving().len() <= 5 && busy.values().all(|n| *n <= 2), "{busy:?}");
    assert_eq!(rig.beats(), 0, "before one is at its end no other begins");
    rig.settle();
    rig.shares();
}

#[test]
fn a_returning_device_gets_only_what_it_missed_where_that_is_less() {
    let mut rig = Rig::new(4);
    rig.down(2);
    rig.beats();
    rig.round(rig.limits.rebuild_after);
    let moving = rig.moving();
    let (first, rest) = moving.split_first().unwrap();
    // The primaries report that the first group's copy is almost done and the others have just
    // begun.
    for device in [1, 3, 4] {
        let told = moving.iter().filter(|m| m.1 == DeviceId(device)).map(|m| MoveStatus {
            group: m.0.0,
            todo: if m.0 == first.0 { 4096 } else { 1 << 20 },
            missed: 8192,
        });
        rig.beat(device, Heartbeat { moves: told.collect(), ..Heartbeat::default() });
    }
    rig.back(2);
    assert_eq!(rig.beats(), rest.len());
    assert_eq!(rig.moving(), [*first]);
}

#[test]
fn a_newcomer_that_goes_down_is_given_up() {
    let mut rig = Rig::new(3);
    rig.down(3);
    rig.beats();
    rig.round(rig.limits.rebuild_after);
    assert!(!rig.moving().is_empty());
    rig.down(2);
    rig.back(3);
    rig.beats();
    let comes = rig.moving().into_iter().any(|m| m.2 == DeviceId(2));
    assert!(!comes);
}

#[test]
fn a_replica_that_may_still_serve_is_not_dropped() {
    let cut_off = || {
        let mut rig = Rig::new(3);
        let life = rig.life(1);
        apply(&mut rig.state, &down(1, life, false));
        rig.deaf.insert(1);
        rig.beats();
        rig.round(rig.limits.rebuild_after);
        assert!(rig.copy() > 0);
        rig
    };
    let parting = |rig: &Rig| rig.state.groups.values().filter(|g| g.leaving.is_some()).count();
    let mut rig = cut_off();
    let all = parting(&rig);
    rig.beats();
    assert_eq!(parting(&rig), all, "it may have a lease");
    rig.round(rig.limits.grace);
    assert_eq!(parting(&rig), 0, "it has none any more");
    let mut rig = cut_off();
    rig.deaf.clear();
    rig.beats();
    assert_eq!(parting(&rig), 0, "it knows");
    let mut rig = cut_off();
    let life = rig.life(1);
    apply(&mut rig.state, &down(1, life, true));
    rig.beats();
    assert_eq!(parting(&rig), 0, "it is dead");
    // Its successor may have granted it a lease a moment ago, and does not know yet that it is the
    // successor.
    let mut rig = Rig::new(3);
    let life = rig.life(1);
    apply(&mut rig.state, &down(1, life, false));
    rig.deaf.extend([1, 2]);
    rig.beats();
    rig.round(rig.limits.rebuild_after);
    rig.copy();
    rig.round(rig.limits.grace);
    let groups = rig.state.groups.iter().filter(|(_, g)| g.leaving.is_some());
    let kept: Vec<GroupId> = groups.map(|(id, _)| *id).collect();
    let still = |rig: &Rig| kept.iter().filter(|g| rig.state.groups[g].leaving.is_some()).count();
    rig.deaf.remove(&2);
    rig.beats();
    assert_eq!(still(&rig), kept.len());
    rig.round(rig.limits.grace);
    assert!(!kept.is_empty() && still(&rig) == 0);
    // A second device that is silent forever holds up no group.
    let mut rig = Rig::new(4);
    let life = [1, 2].map(|device| rig.life(device));
    apply(&mut rig.state, &down(1, life[0], false));
    rig.deaf.extend([1, 2]);
    rig.beats();
    rig.round(rig.limits.rebuild_after);
    apply(&mut rig.state, &down(2, life[1], false));
    rig.beats();
    for _ in 0..3 {
        rig.round(rig.limits.rebuild_after.max(rig.limits.grace));
        rig.settle();
    }
    let served = |g: &&mdm::group::Group| g.primary.is_some();
    let left =
        rig.state.groups.values().filter(served).find(|g| !g.is_whole() || g.leaving.is_some());
    assert_eq!(left, None);
}

#[test]
fn a_move_within_a_fault_set_never_ends_with_both_copies_there() {
    // Devices 1, 4 and 5 are full, so the copy that leaves 2 can go only to 3, which is in the same
    // fault set.
    let mut rig = Rig::new(5);
    for n in [2, 3] {
        rig.state.servers.get_mut(&SdsId(n)).unwrap().unit = SdsId(2);
    }
    rig.settle();
    [1, 4, 5].into_iter().for_each(|n| rig.used(n, 1 << 30));
    rig.intend(2, Intent::Remove);
    rig.beats();
    let (id, primary, newcomer) = *rig.moving().first().expect("nothing moves");
    let other = rig.state.groups[&id].staying().find(|d| *d != newcomer).unwrap();
    assert_eq!((newcomer, primary == newcomer), (DeviceId(3), false));
    // The server of the other copy goes down, and the newcomer has its copy.
    rig.down(other.0);
    rig.beats();
    let group = rig.state.groups[&id].clone();
    assert_eq!(group.leaving, Some(DeviceId(2)), "{group:?}");
    let life = rig.life(2);
    apply(&mut rig.state, &join(2, life, 3));
    let epoch = rig.state.groups[&id].epoch.0;
    apply(&mut rig.state, &admit(id.0, epoch, 3));
    rig.beats();
    let group = rig.state.groups[&id].clone();
    assert_eq!((group.leaving, group.in_sync.len()), (Some(DeviceId(2)), 2), "{group:?}");
    // It stays away: another newcomer replaces it, while the two copies stay.
    [1, 4, 5].into_iter().filter(|n| *n != other.0).for_each(|n| rig.used(n, 0));
    rig.round(rig.limits.rebuild_after);
    let group = rig.state.groups[&id].clone();
    assert!(!group.replicas.contains(&other) && group.in_sync.len() == 2, "{group:?}");
    rig.settle();
    let [a, b] = rig.state.groups[&id].pair().unwrap();
    assert_ne!(rig.state.unit_of(a), rig.state.unit_of(b));
}

/// Moves from 2 to 3, which is in the same fault set, have their copies when the servers of the
/// other copies go down. Other devices take the place of these copies.
#[test]
fn replacements_of_lost_copies_are_few_per_device_and_leave_the_spare_to_rebuilds() {
    let mut rig = Rig::new(6);
    for n in [2, 3] {
        rig.state.servers.get_mut(&SdsId(n)).unwrap().unit = SdsId(2);
    }
    rig.settle();
    [1, 4, 5, 6].into_iter().for_each(|n| rig.used(n, 1 << 30));
    rig.intend(2, Intent::Remove);
    rig.beats();
    let moving: Vec<_> = rig.moving().into_iter().filter(|m| m.2 == DeviceId(3)).collect();
    rig.down(4);
    rig.down(5);
    rig.beats();
    for (id, ..) in &moving {
        let Some(primary) = rig.state.groups[id].primary else { continue };
        let life = rig.life(primary.0);
        apply(&mut rig.state, &join(primary.0, life, 3));
        let epoch = rig.state.groups[id].epoch.0;
        apply(&mut rig.state, &admit(id.0, epoch, 3));
    }
    rig.beats();
    [1, 6].into_iter().for_each(|n| rig.used(n, 0));
    rig.limits.moves_per_device = 1;
    rig.round(rig.limits.rebuild_after);
    for to in [1, 6] {
        let count = rig.moving().iter().filter(|m| m.2 == DeviceId(to)).count();
        assert!(count <= 1, "{count} copies go to device {to} at once: {:?}", rig.moving());
    }
}

#[test]
fn a_move_that_lost_all_its_copies_keeps_no_other_group_waiting() {
    let mut rig = Rig::new(5);
    rig.limits.moves = 1;
    rig.intend(2, Intent::Remove);
    rig.beats();
    let (id, ..) = rig.moving()[0];
    let held: Vec<DeviceId> = rig.state.groups[&id].in_sync.clone();
    let server = held.iter().find(|d| **d != DeviceId(2)).unwrap().0;
    [2, server].into_iter().for_each(|n| rig.down(n));
    assert!(rig.state.groups[&id].is_failed());
    let begun = rig.beats() + rig.round(rig.limits.rebuild_after);
    assert!(begun > 0, "others are made anew");
}

#[test]
fn rebuilds_are_held_while_too_many_devices_are_away() {
    let mut rig = Rig::new(12);
    (2..=3).for_each(|n| rig.down(n));
    rig.beats();
    assert!(rig.round(rig.limits.rebuild_after) > 0 && !rig.healer.is_held_back());
    rig.settle();
    (4..=6).for_each(|n| rig.down(n));
    rig.beats();
    assert_eq!(rig.round(rig.limits.rebuild_after), 0);
    assert!(rig.healer.is_held_back());
}

#[test]
fn a_full_device_gets_no_copies_and_only_a_rebuild_uses_the_spare() {
    let mut rig = Rig::new(4);
    let almost = (1 << 30) * 91 / 100;
    [1, 2].into_iter().for_each(|n| rig.used(n, 1 << 20));
    rig.used(4, almost);
    rig.used(3, 1 << 30);
    rig.intend(2, Intent::Remove);
    rig.beats();
    let to = |rig: &Rig, n: u32| rig.moving().iter().filter(|m| m.2 == DeviceId(n)).count();
    assert_eq!((to(&rig, 3), to(&rig, 4)), (0, 0));
    rig.intend(2, Intent::Normal);
    rig.settle();
    rig.down(2);
    rig.beats();
    rig.round(rig.limits.rebuild_after);
    assert_eq!((to(&rig, 3), to(&rig, 4) > 0), (0, true), "{:?}", rig.moving());
}

#[test]
fn a_device_is_removed_while_both_copies_stay() {
    let mut rig = Rig::new(4);
    let had = rig.state.groups_of(DeviceId(2)).len();
    rig.intend(2, Intent::Remove);
    rig.beats();
    assert!(rig.state.groups.values().all(|g| g.is_whole()));
    assert_eq!(rig.settle(), had);
    assert_eq!(rig.state.devices[&DeviceId(2)].intent, Intent::Removed);
    assert!(!rig.shares().contains_key(&2));
}

#[test]
fn a_removal_can_be_given_up() {
    let mut rig = Rig::new(4);
    rig.limits.moves_per_device = 1;
    rig.intend(2, Intent::Remove);
    rig.beats();
    rig.intend(2, Intent::Normal);
    let moving = rig.moving().len();
    assert!(moving <= 3, "one from each, and one to each");
    assert!(rig.settle() <= 2 * moving, "what is on its way goes on, and is levelled again");
    assert!(rig.shares().contains_key(&2));
}

#[test]
fn a_new_device_gets_its_share_and_hardly_more_moves_than_that() {
    let mut rig = Rig::new(4);
    assert_eq!(rig.settle(), 0, "all is level already");
    rig.add(5, 0);
    let share = rig.state.groups.len() * 2 / 5;
    let copies = rig.settle();
    assert!((share - 1..=share + 1).contains(&copies), "{copies} copies for {share}");
    for (device, (replicas, leads)) in rig.shares() {
        // One off for groups with data, and one for groups without.
        assert!((replicas - share as i32).abs() <= 2, "dev{device}: {replicas} of {share}");
        assert!((2 * leads - replicas).abs() <= 2, "dev{device} leads {leads} of {replicas}");
    }
    assert_eq!(rig.settle(), 0, "and then there is peace");
}

#[test]
fn more_moves_begin_when_a_quarter_of_the_first_ones_is_done() {
    let mut rig = Rig::new(4);
    (rig.limits.moves_per_device, rig.limits.moving_bytes) = (8, 0);
    rig.add(5, 0);
    rig.beats();
    let first = rig.moving();
    assert_eq!(first.len(), 8, "all go to one device");
    let finish = |rig: &mut Rig, some: &[(GroupId, DeviceId, DeviceId)]| {
        for (id, primary, newcomer) in some {
            let life = rig.life(primary.0);
            apply(&mut rig.state, &join(primary.0, life, newcomer.0));
            let epoch = rig.state.groups[id].epoch.0;
            apply(&mut rig.state, &admit(id.0, epoch, newcomer.0));
        }
        rig.beats();
        rig.beats();
    };
    finish(&mut rig, &first[..1]);
    assert_eq!(rig.moving(), first[1..], "not for each of them is all weighed again");
    finish(&mut rig, &first[1..3]);
    assert!(rig.moving().len() > 5, "new ones have begun beside the others");
    assert!(first[3..].iter().all(|m| rig.moving().contains(m)));
}

#[test]
fn a_new_device_gets_its_share_with_its_first_heartbeat() {
    let mut rig = Rig::new(4);
    rig.settle();
    rig.add(5, 0);
    rig.seen.devices.remove(&DeviceId(5));
    assert_eq!(rig.beats(), 0, "nobody knows how full it is");
    rig.used(5, 0);
    assert!(rig.beats() > 0);
}

#[test]
fn nothing_is_levelled_while_anything_is_degraded() {
    let mut rig = Rig::new(4);
    rig.down(2);
    rig.add(5, 0);
    assert_eq!(rig.beats(), 0);
    rig.back(2);
    assert_eq!(rig.beats(), 0, "it is not in sync yet");
}

#[test]
fn two_copies_on_one_server_are_separated() {
    let mut rig = two_on_one_server(3);
    rig.settle();
    rig.shares();
}

#[test]
fn two_copies_on_one_server_are_separated_as_soon_as_a_server_is_heard() {
    let mut rig = two_on_one_server(6); // no device exceeds its share: only the server matters
    // A new leader: no device has reported to it yet.
    rig.healer = Healer::default();
    let heard = std::mem::take(&mut rig.seen);
    for _ in 0..20 {
        assert_eq!(rig.beats(), 0);
    }
    rig.seen = heard;
    rig.settle();
    rig.shares();
}

/// A cluster in which the second device came to the first one's server, with all its data.
fn two_on_one_server(devices: u32) -> Rig {
    let mut rig = Rig::new(devices);
    rig.down(2);
    let id = rig.state.next_incarnation.0;
    let Command::DeviceUp(c) = up(2, id, 2, DeviceKind::Durable) else { unreachable!() };
    let moved = DeviceUp { sds: 1, name: "sds1".into(), shard: 1, ..c };
    apply(&mut rig.state, &Command::DeviceUp(moved));
    assert_eq!(rig.state.devices[&DeviceId(2)].sds, SdsId(1));
    let groups: Vec<GroupId> = rig.state.groups_of(DeviceId(2)).to_vec();
    for id in groups {
        let Some(primary) = rig.state.groups[&id].primary else { continue };
        let life = rig.life(primary.0);
        apply(&mut rig.state, &join(primary.0, life, 2));
        let epoch = rig.state.groups[&id].epoch.0;
        apply(&mut rig.state, &admit(id.0, epoch, 2));
    }
    rig
}

#[test]
fn a_removal_that_would_break_what_was_promised_is_refused() {
    let ask = |rig: &Rig, device: u32, server: &str| {
        let ask = RemoveRequest { device, server: server.into(), keep: false };
        removal::removal_command(&rig.state, &ask, &rig.seen, &rig.limits)
    };
    let mut rig = Rig::new(3);
    assert_eq!(ask(&rig, 9, ""), Err(Refused::NoDevice(9)));
    assert_eq!(ask(&rig, 0, "who"), Err(Refused::NoServer("who".into())));
    assert!(ask(&rig, 0, "sds2").is_ok());
    rig.used(2, 1 << 29);
    rig.used(1, 1 << 29);
    rig.used(3, 1 << 30);
    let room = (1 << 30) * 9 / 10 - (1 << 29);
    assert_eq!(ask(&rig, 2, ""), Err(Refused::NoRoom { needed: 1 << 29, room }));
    rig.used(3, 0);
    rig.intend(1, Intent::Remove);
    assert_eq!(ask(&rig, 2, ""), Err(Refused::TooFewLeft { left: 1 }));
    // What a device used does not count once its copies are elsewhere.
    let mut rig = Rig::new(4);
    rig.down(2);
    rig.beats();
    rig.round(rig.limits.rebuild_after);
    rig.settle();
    (1..=4).for_each(|n| rig.used(n, 1 << 30));
    assert_eq!(ask(&rig, 1, ""), Err(Refused::NoRoom { needed: 1 << 30, room: 0 }));
    assert!(ask(&rig, 2, "").is_ok());
    let mut rig = Rig::new(4);
    let used = rig.state.groups.iter().find(|(id, _)| rig.state.is_used(**id)).unwrap();
    let [a, b] = used.1.pair().unwrap();
    rig.down(b.0);
    rig.down(a.0);
    let refused = ask(&rig, a.0, "");
    assert!(
        matches!(refused, Err(Refused::LastCopies { device, .. }) if device == a.0),
        "{refused:?}"
    );
}

#[test]
fn a_server_in_maintenance_leads_nothing_and_is_waited_for() {
    let mut rig = Rig::new(4);
    let had = rig.state.groups_of(DeviceId(2)).to_vec();
    rig.intend(2, Intent::Maintain);
    rig.beats();
    let leads =
        |rig: &Rig| rig.state.groups.values().filter(|g| g.primary == Some(DeviceId(2))).count();
    assert_eq!(leads(&rig), 0);
    assert!(rig.state.groups.values().all(|g| g.is_whole()), "and is a copy all the same");
    rig.down(2);
    rig.beats();
    assert_eq!(rig.round(rig.limits.rebuild_after * 100), 0, "nothing is made anew for it");
    rig.add(5, 0);
    assert_eq!(rig.beats(), 0, "nor levelled");
    rig.intend(2, Intent::Normal);
    rig.beats();
    assert_eq!(rig.beats(), 0, "its time away begins when it is over");
    assert!(rig.round(rig.limits.rebuild_after) > 0);
    assert_eq!(rig.state.groups_of(DeviceId(2)), had);
}

#[test]
fn protected_maintenance_leaves_nothing_there_and_brings_its_share_back() {
    let mut rig = Rig::new(4);
    let share = rig.state.groups_of(DeviceId(2)).len();
    rig.intend(2, Intent::Protect);
    rig.beats();
    assert!(rig.state.groups.values().all(|g| g.is_whole()));
    assert_eq!(rig.settle(), share);
    assert!(rig.state.groups_of(DeviceId(2)).is_empty());
    rig.down(2);
    assert_eq!(rig.round(rig.limits.rebuild_after * 100), 0);
    assert_eq!(rig.state.devices[&DeviceId(2)].intent, Intent::Protect, "it is not removed");
    rig.back(2);
    assert_eq!(rig.settle(), 0);
    rig.intend(2, Intent::Normal);
    assert_eq!(rig.settle(), share);
    rig.shares();
}

#[test]
fn a_maintenance_that_would_stop_service_is_refused() {
    let ask = |rig: &Rig, server: &str, protected: bool, end: bool| {
        let ask = MaintainRequest { server: server.into(), protected, end };
        maintenance::maintenance_command(&rig.state, &ask, &rig.seen, &rig.limits)
    };
    let mut rig = Rig::new(3);
    assert_eq!(ask(&rig, "who", false, false), Err(Refused::NoServer("who".into())));
    assert_eq!(ask(&rig, "sds1", false, true), Err(Refused::NotMaintained("sds1".into())));
    let begin = ask(&rig, "sds1", false, false).unwrap();
    apply(&mut rig.state, &begin);
    assert_eq!(rig.state.devices[&DeviceId(1)].intent, Intent::Maintain);
    assert_eq!(ask(&rig, "sds2", false, false), Err(Refused::Maintained("sds1".into())));
    assert_eq!(ask(&rig, "sds2", true, false), Err(Refused::TooFewLeft { left: 1 }));
    let end = ask(&rig, "sds1", false, true).unwrap();
    apply(&mut rig.state, &end);
    assert_eq!(rig.state.devices[&DeviceId(1)].intent, Intent::Normal);
    rig.down(1);
    assert!(matches!(ask(&rig, "sds2", false, false), Err(Refused::OnlyHere { .. })));
    assert!(ask(&rig, "sds1", false, false).is_ok(), "who is away may be worked on");
    rig.back(1);
    rig.intend(1, Intent::Remove);
    assert_eq!(ask(&rig, "sds1", false, false), Err(Refused::Leaves("sds1".into())));
    // Withdrawing a removal does not end a maintenance.
    rig.intend(1, Intent::Maintain);
    let keep = RemoveRequest { device: 0, server: "sds1".into(), keep: true };
    let keep = removal::removal_command(&rig.state, &keep, &rig.seen, &rig.limits).unwrap();
    assert!(!rig.state.would_change(&keep));
}

#[test]
fn a_new_device_that_was_not_heard_yet_gets_its_share_when_it_is() {
    let mut rig = Rig::new(4);
    rig.settle();
    rig.add(5, 0);
    let heard = rig.seen.devices.remove(&DeviceId(5)).unwrap();
    assert_eq!(rig.beats(), 0);
    rig.seen.devices.insert(DeviceId(5), heard);
    let waited = (0..20).find(|_| rig.beats() > 0);
    assert!(waited.is_some(), "it is never looked at again");
}

#[test]
fn a_newcomer_that_has_no_room_is_given_up() {
    let mut rig = Rig::new(4);
    rig.down(2);
    rig.beats();
    rig.round(rig.limits.rebuild_after);
    let to = |rig: &Rig| rig.moving().iter().filter(|m| m.2 == DeviceId(3)).count();
    assert!(to(&rig) > 0);
    rig.beat(3, Heartbeat { full: true, ..Heartbeat::default() });
    rig.beats();
    assert_eq!(to(&rig), 0);
    rig.beats();
    assert_eq!(to(&rig), 0, "nor is it chosen again");
}

#[test]
fn a_newcomer_that_is_held_out_for_long_is_given_up() {
    let mut rig = Rig::new(4);
    rig.down(2);
    rig.beats();
    rig.round(rig.limits.rebuild_after);
    let groups: Vec<_> = rig.moving().iter().filter(|m| m.2 == DeviceId(3)).map(|m| m.0).collect();
    assert!(!groups.is_empty());
    let quarantine = &mut rig.seen.devices.get_mut(&DeviceId(3)).unwrap().quarantine;
    let long = rig.limits.rebuild_after * 4;
    (0..4).for_each(|_| quarantine.left(rig.now, long));
    assert_eq!(quarantine.returned(rig.now, long), Some(long));
    let newcomers = |rig: &Rig| {
        let of = |id: &GroupId| rig.state.groups[id].newcomer();
        groups.iter().map(of).collect::<BTreeSet<_>>()
    };
    rig.beats();
    assert_eq!(newcomers(&rig), [Some(DeviceId(3))].into(), "it may be let in soon");
    rig.round(rig.limits.rebuild_after);
    for _ in 0..4 {
        rig.beats();
    }
    let now = newcomers(&rig);
    assert!(!now.contains(&Some(DeviceId(3))) && !now.contains(&None), "{now:?}");
}

#[test]
fn a_copy_that_its_leader_does_not_reach_is_made_elsewhere() {
    let mut rig = Rig::new(4);
    rig.settle();
    // Device 2 was away for a moment, and the MDM hears it again; device 1 cannot reach it.
    rig.down(2);
    rig.back(2);
    let lacks = |rig: &Rig, leader: u32| {
        let (leader, out) = (DeviceId(leader), DeviceId(2));
        let here = |g: &&mdm::group::Group| {
            g.primary == Some(leader) && g.replicas.contains(&out) && !g.in_sync.contains(&out)
        };
        rig.state.groups.values().filter(here).count()
    };
    let (one, three) = (lacks(&rig, 1), lacks(&rig, 3));
    assert!(one > 0 && three > 0);
    rig.beats();
    assert!(rig.moving().is_empty(), "it is there, and will be brought up to date");
    rig.seen.parted.insert((DeviceId(1), DeviceId(2)));
    rig.beats();
    let moving = rig.moving();
    assert_eq!(moving.len(), one, "{moving:?}");
    let elsewhere = |(_, leader, newcomer): &(GroupId, DeviceId, DeviceId)| {
        *leader == DeviceId(1) && *newcomer != DeviceId(2)
    };
    assert!(moving.iter().all(elsewhere), "{moving:?}");
    rig.beats();
    assert_eq!(rig.moving(), moving, "device 2 lacks less, but can't be reached");
    // The newcomer cannot be reached either: another one replaces it.
    let (id, _, newcomer) = moving[0];
    rig.seen.parted.insert((DeviceId(1), newcomer));
    rig.beats();
    rig.beats();
    let now = rig.moving().into_iter().find(|m| m.0 == id).map(|m| m.2);
    assert!(now.is_some_and(|d| d != newcomer && d != DeviceId(2)), "{now:?}");
    assert_eq!(lacks(&rig, 3), three, "device 3 reaches it");
}

#[test]
fn nothing_is_levelled_over_a_broken_path() {
    let mut rig = Rig::new(3);
    rig.settle();
    rig.add(4, 0);
    // When a primary is to leave, the other replica of its group makes the copy.
    rig.seen.parted.extend([1, 2].map(|d| (DeviceId(d), DeviceId(4))));
    rig.beats();
    let moving = rig.moving();
    assert!(!moving.is_empty() && moving.iter().all(|m| m.1 == DeviceId(3)), "{moving:?}");
    assert!((0..9).all(|_| rig.beats() == 0), "no move ends before it is done");
    rig.settle();
    rig.seen.parted.clear();
    assert!((0..20).any(|_| rig.beats() > 0), "the path is in order again");
}

#[test]
fn a_device_gets_no_copy_before_its_process_has_pulled_the_map() {
    let mut rig = Rig::new(3);
    rig.settle();
    // The heartbeat of the last incarnation says how full it is. It may not yet have deleted its
    // old replicas.
    rig.seen.devices.get_mut(&DeviceId(3)).unwrap().born();
    rig.deaf.insert(3);
    rig.down(2);
    rig.seen.devices.remove(&DeviceId(2));
    rig.round(rig.limits.rebuild_after);
    rig.round(rig.limits.rebuild_after);
    let gets = |rig: &Rig| rig.moving().iter().any(|(_, _, to)| *to == DeviceId(3));
    assert!(!gets(&rig));
    rig.deaf.clear();
    rig.round(rig.limits.rebuild_after);
    assert!(gets(&rig));
}

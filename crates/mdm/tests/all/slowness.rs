//! Slow devices: whose reports count, which devices are compared, and which slow ones are kept all
//! the same.

use crate::common::{self, *};
use base::{DeviceId, Duration, Limits, Time};
use mdm::command::*;
use mdm::observed::{Observed, Seen};
use mdm::slowness::{Slowness, delays};
use mdm::{Command, State};
use wire::control::{DeviceKind, Heartbeat, Intent, SlowDevice};

/// A cluster of servers with one device each, and what they report of each other.
struct Rig {
    state: State,
    seen: Observed,
    slowness: Slowness,
    limits: Limits,
    now: Time,
}

impl Rig {
    fn new(servers: u32) -> Rig {
        let mut state = State::new();
        apply(&mut state, &Command::FormCluster(FormCluster { cluster: 7 }));
        let limits = Limits { groups_per_device: 16, ..Limits::SHIPPED };
        for n in 1..=servers {
            let life = state.next_incarnation.0;
            apply(&mut state, &up(n, life, u64::from(n), DeviceKind::Durable));
        }
        let create = common::create(&state, "v", 64 << 20, &limits).unwrap();
        apply(&mut state, &create);
        let (seen, slowness, now) = (Observed::default(), Slowness::default(), Time(1_000_000_000));
        Rig { state, seen, slowness, limits, now }
    }

    /// Takes one server's next heartbeat: which devices take how many milliseconds.
    fn says(&mut self, by: u32, slow: &[(u32, u32)]) {
        let slow =
            slow.iter().map(|(device, ms)| SlowDevice { device: *device, ms: *ms, stands_ms: 0 });
        self.tells(by, slow.collect());
    }

    fn tells(&mut self, by: u32, slow: Vec<SlowDevice>) {
        let mut seen = Seen::default();
        seen.connected = true;
        seen.beat(self.now, Heartbeat { slow, ..Heartbeat::default() });
        self.seen.devices.insert(DeviceId(by), seen);
    }

    /// Lets time pass while the reports stay the same. Returns the devices that are ejected.
    fn after(&mut self, time: Duration) -> Vec<u32> {
        let end = self.now + time;
        loop {
            self.slowness.hurry(self.now);
            let out = self.slowness.look(self.now, &self.state, &self.seen, &self.limits);
            if !out.is_empty() || self.now >= end {
                return out.into_iter().map(|(device, _)| device.0).collect();
            }
            self.now = self.now + self.limits.heartbeat_every;
        }
    }

    fn long(&mut self) -> Vec<u32> {
        self.after(self.limits.slow_for * 2)
    }

    fn down(&mut self, device: u32) {
        let life = self.state.devices[&DeviceId(device)].incarnation.0;
        apply(&mut self.state, &down(device, life, true));
    }
}

#[test]
fn a_device_that_reports_itself_slow_is_ejected_after_a_while() {
    let mut rig = Rig::new(4);
    rig.says(2, &[(2, 250)]);
    assert_eq!(rig.after(rig.limits.slow_for - Duration::from_secs(1)), []);
    assert_eq!(rig.long(), [2]);
}

#[test]
fn a_gap_in_reports_restarts_the_count() {
    let mut rig = Rig::new(4);
    rig.says(2, &[(2, 250)]);
    assert_eq!(rig.after(rig.limits.slow_for / 2), []);
    rig.says(2, &[]);
    assert_eq!(rig.after(Duration::from_secs(3)), []);
    rig.says(2, &[(2, 250)]);
    assert_eq!(rig.after(rig.limits.slow_for / 2), []);
}

#[test]
fn most_other_devices_and_at_least_two_have_to_report_slowness() {
    let mut rig = Rig::new(4);
    // A device that is slow itself finds all others slow.
    rig.says(2, &[(1, 400), (3, 400), (4, 400)]);
    assert_eq!(rig.long(), []);
    assert!(delays(&rig.state, &rig.seen).is_empty());
    rig.says(1, &[(2, 400)]);
    rig.says(3, &[(2, 300)]);
    assert_eq!(delays(&rig.state, &rig.seen)[&DeviceId(2)], Duration::from_millis(300));
    assert_eq!(rig.long(), [2]);
    // With three, each has two that ask it.
    let mut rig = Rig::new(3);
    rig.says(2, &[(1, 400), (3, 400)]);
    assert_eq!(rig.long(), []);
}

#[test]
fn a_pool_that_is_slow_as_a_whole_has_no_slow_devices() {
    let mut rig = Rig::new(5);
    (1..=4).for_each(|n| rig.says(n, &[(n, 150)]));
    rig.says(5, &[(5, 500)]);
    assert_eq!(rig.long(), []);
    rig.says(5, &[(5, 700)]);
    assert_eq!(rig.long(), [5]);
}

#[test]
fn a_slow_device_that_is_needed_or_in_maintenance_is_kept() {
    let mut rig = Rig::new(4);
    rig.says(2, &[(2, 900)]);
    rig.down(1);
    assert_eq!(rig.long(), [], "2 has the only copies of what 1 had, and one of four is out");
    // Device 2 is in maintenance now: the operator knows.
    let mut rig = Rig::new(4);
    rig.says(2, &[(2, 900)]);
    let maintain = Intend { devices: vec![2], intent: Intent::Maintain as i32 };
    apply(&mut rig.state, &Command::Intend(maintain));
    assert_eq!(rig.long(), [], "people know");
}

#[test]
fn of_many_slow_devices_a_fifth_is_ejected_one_fault_unit_at_a_time() {
    let mut rig = Rig::new(10);
    for n in [2, 5, 8] {
        rig.says(n, &[(n, 900)]);
    }
    for out in [2, 5] {
        assert_eq!(rig.long(), [out]);
        // It counts as lost, and its copies are rebuilt elsewhere.
        rig.state.devices.get_mut(&DeviceId(out)).unwrap().up = false;
        for group in rig.state.groups.values_mut().filter(|g| g.replicas.contains(&DeviceId(out))) {
            let to = if group.replicas.contains(&DeviceId(1)) { 3 } else { 1 };
            group.replicas.iter_mut().filter(|d| d.0 == out).for_each(|d| *d = DeviceId(to));
            group.in_sync = group.replicas.clone();
        }
        rig.seen.devices.remove(&DeviceId(out));
    }
    assert_eq!(rig.long(), [], "two of ten are out");
}

#[test]
fn copies_excuse_a_slow_device_while_it_finishes_some() {
    let mut rig = Rig::new(4);
    let group = rig
        .state
        .groups
        .iter()
        .find(|(_, g)| g.primary != Some(DeviceId(2)) && g.replicas.contains(&DeviceId(2)));
    let (id, leader) = group.map(|(id, g)| (*id, g.primary.unwrap())).unwrap();
    let life = rig.state.devices[&leader].incarnation.0;
    apply(&mut rig.state, &suspect(leader.0, life, 2));
    apply(&mut rig.state, &join(leader.0, life, 2));
    assert!(rig.state.groups[&id].joiners.contains(&DeviceId(2)));
    rig.says(2, &[(2, 900)]);
    assert_eq!(rig.long(), [], "its copies take their time");
    let queue = rig.limits.slow_for.as_millis() as u32 * 2;
    rig.says(2, &[(2, queue)]);
    assert_eq!(rig.long(), [], "it has much to do");
    let own = |ms, stands_ms| vec![SlowDevice { device: 2, ms, stands_ms }];
    let most = rig.limits.slow_for.as_millis() as u32;
    rig.tells(2, own(queue, most - 1));
    assert_eq!(rig.long(), [], "it ends one now and then");
    rig.tells(3, vec![SlowDevice { device: 2, ms: 900, stands_ms: most }]);
    assert_eq!(rig.long(), [], "nobody else knows");
    let (state, seen, limits) = (rig.state.clone(), rig.seen.clone(), rig.limits.clone());
    let mut again = Rig { state, seen, slowness: Slowness::default(), limits, now: rig.now };
    rig.tells(2, own(most, most));
    assert_eq!(rig.long(), [2], "it ends none");
    again.says(2, &[(2, queue * 2)]);
    assert_eq!(again.long(), [2], "one does not end");
}

//! The MDM's work in a domain of 128 servers with ten devices each, of different sizes: how much
//! state and how many commands there are, and (printed with `--nocapture`) how long each step
//! takes.

use crate::common;
use base::{DeviceId, Duration, GroupId, Limits, Time};
use mdm::command::*;
use mdm::healer::Healer;
use mdm::observed::Observed;
use mdm::{Command, State};
use prost::Message;
use std::collections::BTreeSet;
use std::time::Instant;
use wire::control::{DeviceKind, Heartbeat};

const SERVERS: u32 = 128;
const PER_SERVER: u32 = 10;
const TIB: u64 = 1 << 40;

fn up(device: u32) -> Command {
    let sds = (device - 1) / PER_SERVER + 1;
    Command::DeviceUp(DeviceUp {
        device,
        sds,
        name: format!("sds{sds}"),
        shard: (device - 1) % PER_SERVER,
        incarnation: u64::from(device),
        nonce: u64::from(device),
        store: u64::from(device),
        address: format!("10.0.{}.{}:{}", sds / 200, sds % 200, 7000 + device % PER_SERVER),
        capacity: TIB * u64::from(1 + device % 4),
        kind: DeviceKind::Durable as i32,
        pid: 1,
        ..DeviceUp::default()
    })
}

fn timed<T>(what: &str, f: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = f();
    println!("{what}: {:.1} ms", begin.elapsed().as_secs_f64() * 1e3);
    result
}

struct Domain {
    state: State,
    seen: Observed,
    healer: Healer,
    now: Time,
}

impl Domain {
    fn new() -> Domain {
        let mut state = State::new();
        let form = Command::FormCluster(FormCluster { cluster: 7 });
        state.apply(1, &form);
        for command in (1..=SERVERS * PER_SERVER).map(up) {
            state.apply(state.index + 1, &command);
        }
        Domain { state, seen: Observed::default(), healer: Healer::default(), now: Time(1 << 40) }
    }

    fn apply(&mut self, command: &Command) {
        self.state.apply(self.state.index + 1, command);
    }

    fn round(&mut self, what: &str, after: Duration) -> Vec<Command> {
        self.now = self.now + after;
        for (id, d) in &self.state.devices {
            let seen = self.seen.devices.entry(*id).or_default();
            seen.connected = d.up;
            seen.map = self.state.version;
            seen.beat(self.now, Heartbeat { used: 1 << 30, ..Heartbeat::default() });
        }
        let (healer, state) = (&mut self.healer, &self.state);
        timed(what, || healer.work(self.now, state, &self.seen, &Limits::SHIPPED))
    }
}

/// Makes an order's change as the leader does, and once more with the edits computed for each
/// question: whether the order is refused, whether it changes anything, what it changes.
fn edits_are_computed_once(state: &State, command: &Command) {
    let (mut once, mut thrice) = (state.clone(), state.clone());
    let begin = Instant::now();
    let change = once.change(command.clone()).unwrap();
    assert!(!change.is_nothing());
    once.make(change);
    let one = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    assert!(thrice.change(command.clone()).is_ok() && thrice.would_change(command));
    thrice.apply(thrice.index + 1, command);
    let three = begin.elapsed().as_secs_f64();
    let (one, three) = (one * 1e3, three * 1e3);
    println!("its edits once: {one:.1} ms; three times: {three:.1} ms ({:.1} times)", three / one);
    assert!(once == thrice);
}

fn moves(commands: &[Command]) -> usize {
    let [Command::Reshape(c)] = commands else { panic!("{} commands", commands.len()) };
    c.list.len()
}

#[test]
fn a_domain_of_1280_devices_is_planned_in_few_commands() {
    let mut d = Domain::new();
    let create = timed("create the first volume", || {
        common::create(&d.state, "v1", 64 * TIB, &Limits::SHIPPED).unwrap()
    });
    println!("its command: {} bytes", create.encoded_len());
    edits_are_computed_once(&d.state, &create);
    timed("apply it", || d.apply(&create));
    let create =
        timed("create another", || common::create(&d.state, "v2", TIB, &Limits::SHIPPED).unwrap());
    d.apply(&create);
    let (devices, groups) = (d.state.devices.len(), d.state.groups.len());
    let bytes = timed("write the state", || d.state.to_bytes());
    println!("{devices} devices, {groups} groups: {} bytes of state", bytes.len());
    assert_eq!((devices, groups), (1280, 1280 * 256 / 2));
    assert!(bytes.len() < devices * 200 + groups * 40, "{} bytes", bytes.len());
    assert!(timed("read the state", || State::from_bytes(&bytes)).unwrap() == d.state);
    let pages = timed("all of the map", || d.state.pages_since(base::MapVersion(0)));
    println!(
        "{} pages, {} bytes",
        pages.len(),
        pages.iter().map(|p| p.encoded_len()).sum::<usize>()
    );
    let level = d.round("a round that looks whether all is level", Duration::from_secs(1));
    assert!(level.len() <= 1);
    // A server dies.
    let lost: BTreeSet<GroupId> =
        (1..=PER_SERVER).flat_map(|n| d.state.groups_of(DeviceId(n)).to_vec()).collect();
    let lost = lost.len();
    let before = d.state.version;
    timed("ten devices go down", || {
        (1..=PER_SERVER).for_each(|n| d.apply(&common::down(n, u64::from(n), true)));
    });
    let pages = timed("what is new in the map", || d.state.pages_since(before));
    println!("{} bytes, {lost} groups", pages.iter().map(|p| p.encoded_len()).sum::<usize>());
    assert_eq!(pages.iter().map(|p| p.groups.len()).sum::<usize>(), lost);
    d.round("a round in which nothing is due", Duration::from_secs(1));
    let commands = d.round("a round that begins the rebuild", Limits::SHIPPED.rebuild_after);
    assert_eq!(moves(&commands), lost.min(Limits::SHIPPED.moves as usize));
    timed("apply it", || commands.iter().for_each(|c| d.apply(c)));
    d.round("a round in the middle of it", Limits::SHIPPED.heartbeat_every);
}

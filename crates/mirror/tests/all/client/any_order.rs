//! Whatever the order of answers, lost links, moved groups and late maps: each request is answered
//! once, reads return the right bytes, and writes take effect in an order that a primary may
//! choose.

use super::rig::{FakeMap, Rig, Sent};
use base::time::Duration;
use base::{BLOCK, DeviceId, Epoch, Limits, MapVersion, UNIT};
use mirror::client::Leader;
use proptest::collection::vec;
use proptest::prelude::*;
use seam::{BlockError, BlockKind, Buf};
use std::collections::{BTreeMap, BTreeSet};
use wire::Status;
use wire::message::Io;

const DEVICES: u32 = 3;
const GROUPS: u32 = 4;
const MIB: u64 = 1 << 20;

/// What happens next. The number picks from what there is.
#[derive(Clone, Copy, Debug)]
enum Step {
    Read(u32),
    Write(u32),
    Zero(u32),
    Extents(u32),
    Swap(u32),
    Deliver(u32),
    Refuse(u32, u8),
    Ignore(u32),
    LinkDown(u32),
    LinkUp(u32),
    Move(u32),
    Vacant(u32),
    Map,
    Pass(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => any::<u32>().prop_map(Step::Read),
        3 => any::<u32>().prop_map(Step::Write),
        1 => any::<u32>().prop_map(Step::Zero),
        1 => any::<u32>().prop_map(Step::Extents),
        2 => any::<u32>().prop_map(Step::Swap),
        8 => any::<u32>().prop_map(Step::Deliver),
        2 => (any::<u32>(), any::<u8>()).prop_map(|(a, b)| Step::Refuse(a, b)),
        1 => any::<u32>().prop_map(Step::Ignore),
        1 => any::<u32>().prop_map(Step::LinkDown),
        3 => any::<u32>().prop_map(Step::LinkUp),
        1 => any::<u32>().prop_map(Step::Move),
        1 => any::<u32>().prop_map(Step::Vacant),
        2 => Just(Step::Map),
        2 => any::<u16>().prop_map(Step::Pass),
    ]
}

/// The true state of the cluster.
struct World {
    rig: Rig,
    truth: FakeMap,
    /// Per group: its epoch, and the epoch since which its primary has led without a break.
    epochs: Vec<(u64, u64)>,
    data: Vec<u8>,
    /// What devices work on, with the session. A session has each write once at most.
    inbox: Vec<(u64, Sent)>,
    sessions: BTreeMap<DeviceId, u64>,
    up: BTreeSet<DeviceId>,
    executed: BTreeSet<u64>,
    seen: BTreeSet<u64>,
    /// What each request must return. Reads are of the lower half, to which nothing writes.
    asked: BTreeMap<u64, Vec<u8>>,
    answered: BTreeSet<u64>,
    /// By slot of 64 KiB in the upper half: the value that was written last, once that was
    /// answered.
    slots: Vec<Option<u8>>,
    writes: BTreeMap<u64, (usize, u8)>,
    /// The first byte of each block that is compared and written, and by request: the block, and
    /// what it has afterwards; `None` if it must be found to differ.
    swapped: Vec<u8>,
    swaps: BTreeMap<u64, (usize, Option<u8>)>,
}

/// Where the blocks are that are compared and written. No read touches them.
const SWAPPED: u64 = 15 * MIB / 2;

fn pattern(at: u64) -> u8 {
    (at / 512 % 251) as u8
}

impl World {
    fn new() -> World {
        let mut rig = Rig::new(GROUPS, &Limits { sdc_requests: 64, ..Limits::SHIPPED });
        for (i, leader) in rig.map.groups.iter_mut().enumerate() {
            *leader = Leader::At(DeviceId(i as u32 % DEVICES + 1), Epoch(10));
        }
        let mut data = vec![0; 16 << 20];
        data[..8 << 20]
            .chunks_mut(512)
            .enumerate()
            .for_each(|(i, c)| c.fill(pattern(i as u64 * 512)));
        World {
            truth: rig.map.clone(),
            epochs: vec![(10, 10); GROUPS as usize],
            rig,
            data,
            inbox: Vec::new(),
            sessions: BTreeMap::new(),
            up: BTreeSet::new(),
            executed: BTreeSet::new(),
            seen: BTreeSet::new(),
            asked: BTreeMap::new(),
            answered: BTreeSet::new(),
            slots: vec![None; 128],
            writes: BTreeMap::new(),
            swapped: (0..16).map(|block| pattern(SWAPPED + block * 4096)).collect(),
            swaps: BTreeMap::new(),
        }
    }

    fn ask(&mut self, step: Step) {
        let id = self.asked.len() as u64;
        if self.rig.client.outstanding() >= 60 {
            return;
        }
        match step {
            Step::Read(n) | Step::Extents(n) => {
                // Mostly short ranges around the borders of units; now and then a long one.
                let long = n >> 28 == 0;
                let sectors = if long { 2 * UNIT / 512 + 3 } else { 64 };
                let len = (n >> 8) % sectors * 512 + 512;
                let border = u64::from(n % 5 + 1) * MIB;
                let at = border - u64::from((n >> 4) % 64) * 512;
                if matches!(step, Step::Read(_)) {
                    self.asked.insert(id, (at..at + u64::from(len)).map(pattern).collect());
                    return self.rig.read(id, at, len);
                }
                self.asked.insert(id, bits_of(at, u64::from(len)));
                self.rig.ask(id, BlockKind::Extents, at, len, Buf::EMPTY);
            }
            Step::Write(n) | Step::Zero(n) => {
                let slot = (n % 128) as usize;
                if self.writes.values().any(|w| w.0 == slot) {
                    return; // not two at once: it would be open which one wins
                }
                let zero = matches!(step, Step::Zero(_));
                let value = if zero { 0 } else { (n >> 8) as u8 };
                self.asked.insert(id, Vec::new());
                self.writes.insert(id, (slot, value));
                let at = 8 * MIB + slot as u64 * 65536;
                if zero {
                    self.rig.ask(id, BlockKind::Zero { hole: true }, at, 65536, Buf::EMPTY);
                } else {
                    self.rig.write(id, at, &[value; 65536]);
                }
            }
            Step::Swap(n) => {
                let block = (n % 16) as usize;
                if self.swaps.values().any(|swap| swap.0 == block) {
                    return; // not two at once, as above
                }
                let (now, new, fits) = (self.swapped[block], (n >> 8) as u8, n >> 16 & 3 > 0);
                let expected = if fits { now } else { now.wrapping_add(1) };
                self.asked.insert(id, Vec::new());
                self.swaps.insert(id, (block, fits.then_some(new)));
                let body = self.rig.pool.copy(&[[expected; 512], [new; 512]].concat());
                let at = SWAPPED + block as u64 * 4096;
                self.rig.ask(id, BlockKind::CompareWrite, at, 512, body);
            }
            _ => unreachable!(),
        }
    }

    /// Takes over what the client did. Frames reach devices whose link is up.
    fn settle(&mut self) {
        for device in std::mem::take(&mut self.rig.hangups) {
            assert!(self.up.remove(&device), "only links that are up are hung up");
            self.inbox.retain(|(_, s)| s.device != device);
        }
        for sent in std::mem::take(&mut self.rig.sent) {
            let (seq, session) = (sent.seq(), self.sessions[&sent.device]);
            let first = self.seen.insert(seq);
            assert_eq!(first, !sent.is_retry());
            assert!(sent.floor() <= seq);
            if sent.lost {
                continue;
            }
            assert!(self.up.contains(&sent.device), "sent to {:?}, which is down", sent.device);
            let twin =
                |(s, o): &&(u64, Sent)| *s == session && o.seq() == seq && o.device == sent.device;
            let writes = sent.io.writes();
            assert!(
                !writes || self.inbox.iter().find(twin).is_none(),
                "two of {} at one device",
                seq
            );
            self.inbox.push((session, sent));
        }
        for (id, result) in std::mem::take(&mut self.rig.done) {
            assert!(self.answered.insert(id), "{id} was answered twice");
            if let Some((block, after)) = self.swaps.remove(&id) {
                let expected = after.map(|_| ()).ok_or(BlockError::Miscompare(0));
                assert_eq!(result.map(drop), expected, "request {id}");
                self.swapped[block] = after.unwrap_or(self.swapped[block]);
                let from = SWAPPED as usize + block * 4096;
                assert_eq!(self.data[from..from + 512], [self.swapped[block]; 512]);
                continue;
            }
            assert_eq!(
                &result.expect("nothing fails here")[..],
                &self.asked[&id][..],
                "request {id}"
            );
            if let Some((slot, value)) = self.writes.remove(&id) {
                self.slots[slot] = Some(value);
                let from = 8 * MIB as usize + slot * 65536;
                assert!(
                    self.data[from..from + 65536].iter().all(|b| *b == value),
                    "not done, but answered"
                );
            }
        }
    }

    /// A device executes an operation if device and epoch are the true ones. Otherwise it answers
    /// `Stale`, or drops the operation if `silent`.
    fn deliver(&mut self, n: u32, silent: bool) {
        if self.inbox.is_empty() {
            return;
        }
        let (_, sent) = self.inbox.swap_remove(n as usize % self.inbox.len());
        let (group, epoch) = (sent.request().group.0 as usize, sent.epoch());
        let leader = self.truth.groups[group];
        let version = self.truth.version;
        match leader {
            Leader::At(device, true_one) if (device, true_one.0) == (sent.device, epoch) => {}
            // A device that was the primary all the time goes on with it; another one may drop it
            // silently.
            Leader::At(device, _) if device == sent.device && epoch >= self.epochs[group].1 => {}
            _ if silent => return,
            Leader::At(device, epoch) => {
                return self.rig.answer_with(&sent, Status::Stale, b"", |m| {
                    (m.epoch, m.leader, m.map) = (epoch, Some(device), MapVersion(version));
                });
            }
            _ => {
                return self
                    .rig
                    .answer_with(&sent, Status::Stale, b"", |m| m.map = MapVersion(version));
            }
        }
        match self.execute(&sent) {
            Ok(body) => self.rig.answer(&sent, Status::Ok, &body),
            Err(at) => self.rig.answer(&sent, Status::Miscompare, &at.to_le_bytes()),
        }
    }

    /// The true primary has no space for a write that was not executed.
    fn full(&mut self, n: u32) {
        let n = n as usize % self.inbox.len();
        let sent = &self.inbox[n].1;
        let leader = self.truth.groups[sent.request().group.0 as usize];
        let leads = leader == Leader::At(sent.device, sent.request().epoch);
        let is_new = !self.executed.contains(&sent.seq());
        if matches!(sent.io, Io::Write(_) | Io::CompareWrite(_)) && leads && is_new {
            let (_, sent) = self.inbox.swap_remove(n);
            self.rig.answer(&sent, Status::Full, b"");
        }
    }

    /// Returns the data of the answer, or where the data differs that was to be compared.
    fn execute(&mut self, sent: &Sent) -> Result<Vec<u8>, u32> {
        let from = sent.unit() as usize * UNIT as usize + sent.at() as usize;
        let range = from..from + sent.len() as usize;
        match sent.io {
            Io::Read(_) => return Ok(self.data[range].to_vec()),
            Io::Extents(_) => return Ok(bits_of(from as u64, u64::from(sent.len()))),
            _ if self.executed.contains(&sent.seq()) => {
                assert!(sent.is_retry());
                return Ok(Vec::new());
            }
            Io::Write(_) => self.data[range].copy_from_slice(&sent.body),
            Io::Zero(_) => self.data[range].fill(0),
            Io::CompareWrite(_) => {
                let (expected, new) = sent.body.split_at(range.len());
                let stored = &mut self.data[range];
                if let Some(at) = stored.iter().zip(expected).position(|(a, b)| a != b) {
                    return Err(at as u32);
                }
                stored.copy_from_slice(new);
            }
        }
        self.executed.insert(sent.seq());
        Ok(Vec::new())
    }

    fn link_up(&mut self, device: DeviceId) {
        if self.up.insert(device) {
            *self.sessions.entry(device).or_default() += 1;
            self.rig.link_up_with(device.0, 4, 2 << 20);
        }
    }

    fn step(&mut self, step: Step) {
        let device = |n: u32| DeviceId(n % DEVICES + 1);
        match step {
            Step::Read(_) | Step::Write(_) | Step::Zero(_) | Step::Extents(_) | Step::Swap(_) => {
                self.ask(step)
            }
            Step::Deliver(n) => self.deliver(n, false),
            Step::Ignore(n) => self.deliver(n, true),
            Step::Refuse(n, how) if !self.inbox.is_empty() && how % 5 == 4 => self.full(n),
            Step::Refuse(n, how) if !self.inbox.is_empty() => {
                let (_, sent) = self.inbox.swap_remove(n as usize % self.inbox.len());
                let all = [Status::Behind, Status::Busy, Status::Damaged, Status::NoVolume];
                self.rig.answer(&sent, all[how as usize % 4], b"");
            }
            Step::LinkDown(n) if self.up.remove(&device(n)) => {
                self.inbox.retain(|(_, s)| s.device != device(n));
                self.rig.link_down(device(n));
            }
            Step::LinkUp(n) => self.link_up(device(n)),
            Step::Move(n) | Step::Vacant(n) => {
                let group = (n % GROUPS) as usize;
                self.truth.version += 1;
                let (last, since) = self.epochs[group];
                let epoch = last + 1 + u64::from(n >> 30);
                let to = matches!(step, Step::Move(_)).then(|| device(n >> 8));
                let stays = matches!(self.truth.groups[group], Leader::At(at, _) if Some(at) == to);
                self.epochs[group] =
                    (epoch, if stays && epoch == last + 1 { since } else { epoch });
                self.truth.groups[group] =
                    to.map_or(Leader::Nobody, |to| Leader::At(to, Epoch(epoch)));
            }
            Step::Map => self.map(),
            Step::Pass(ms) => self.rig.pass(Duration::from_millis(u64::from(ms % 200))),
            _ => {}
        }
        self.settle();
    }

    fn map(&mut self) {
        if self.truth.version > self.rig.map.version {
            let truth = self.truth.clone();
            self.rig.new_map(|map| *map = truth);
        }
    }

    /// Faults stop. Everything must end in bounded time.
    fn heal(&mut self) {
        for group in 0..GROUPS {
            if self.truth.groups[group as usize] == Leader::Nobody {
                self.step(Step::Move(group));
            }
        }
        self.map();
        for round in 0.. {
            assert!(round < 20_000, "stuck: {} requests", self.rig.client.outstanding());
            (0..DEVICES).for_each(|d| self.step(Step::LinkUp(d)));
            self.settle();
            if self.rig.client.outstanding() == 0 {
                break;
            }
            self.step(Step::Deliver(round));
            if self.inbox.is_empty() {
                self.step(Step::Pass(60));
            }
        }
        assert_eq!(self.answered.len(), self.asked.len());
        for (slot, value) in self.slots.iter().enumerate() {
            let from = 8 * MIB as usize + slot * 65536;
            let value = value.unwrap_or(0);
            assert!(self.data[from..from + 65536].iter().all(|b| *b == value), "slot {slot}");
        }
        assert!(self.rig.client.wake_at().is_none_or(|at| at > self.rig.now));
    }
}

/// Returns the bits of a range in which every third block holds data.
fn bits_of(at: u64, len: u64) -> Vec<u8> {
    let (first, end) = (at / u64::from(BLOCK), (at + len).div_ceil(u64::from(BLOCK)));
    let mut bits = vec![0; (end - first).div_ceil(8) as usize];
    for block in (first..end).filter(|b| b % 3 == 0) {
        let i = (block - first) as usize;
        bits[i / 8] |= 1 << (i % 8);
    }
    bits
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
    #[test]
    fn each_request_is_answered_once_and_rightly(steps in vec(step(), 1..250)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.heal();
    }
}

//! Three replicas of one group. Their connections keep their order, can stall, and can end before
//! any frame.
//!
//! While a group moves, three replicas are in sync. A settle of three may break off anywhere, and
//! more than once. No acknowledged write may be lost by that, no two replicas may differ
//! afterwards, and everything must be there that the list of executed writes contains.

use super::*;
use std::collections::{BTreeSet, VecDeque};

/// Number of blocks that stories write to.
const BLOCKS: u32 = 4;

struct Sent {
    link: LinkId,
    from: usize,
    to: usize,
    header: Header,
    body: Buf,
}

/// Three devices. The one with index i dials the one with index j on link `10 * (i + 1) + j + 1`.
struct Trio {
    mirrors: [Option<Mirror<Memory>>; 3],
    outs: [Effects; 3],
    wire: VecDeque<Sent>,
    /// Pairs of sender and receiver between which nothing is delivered.
    stalled: BTreeSet<(usize, usize)>,
    now: Time,
    epoch: u64,
    seq: u64,
    replies: Vec<Reply>,
}

impl Trio {
    /// Devices 1 and 2 are in sync; device 3 is empty.
    fn new(limits: &Limits) -> Trio {
        Trio::on(limits, false)
    }

    /// The same. With `kept` the devices survive their processes.
    fn on(limits: &Limits, kept: bool) -> Trio {
        let pool = BufPool::new(1 << 24);
        let mirror = |i: u32| {
            let media = Memory { kept, ..Memory::room(4) };
            Mirror::new(DeviceId(i), Incarnation(7), limits.clone(), media, Time::ZERO)
        };
        let mut trio = Trio {
            mirrors: [1, 2, 3].map(|i| Some(mirror(i))),
            outs: [(); 3].map(|()| Effects::new(pool.clone(), Prng::new(1), None)),
            wire: VecDeque::new(),
            stalled: BTreeSet::new(),
            now: Time(10_000_000_000),
            epoch: 0,
            seq: 0,
            replies: Vec::new(),
        };
        trio.dial(true);
        trio.configure(1, &[1, 2], &[]);
        trio.pass(3000);
        trio
    }

    /// Devices 1 and 2 are in sync; device 3 has everything and waits for its admission.
    fn in_limbo() -> Trio {
        let mut trio = Trio::new(&Limits::TEST_MIN);
        (0..BLOCKS).for_each(|block| trio.write(0, block, 1, 0));
        trio.run(usize::MAX);
        assert_eq!(trio.replies.len(), BLOCKS as usize);
        trio.configure(1, &[1, 2], &[3]);
        trio.pass(100);
        assert_eq!(trio.admissions().len(), 1);
        trio
    }

    fn admissions(&self) -> Vec<(GroupId, Epoch, DeviceId)> {
        self.mirrors[0].as_ref().unwrap().admissions()
    }

    fn dial(&mut self, up: bool) {
        for (from, to) in (0..9).map(|n| (n / 3, n % 3)).filter(|(a, b)| a != b) {
            let (peer, link) = (DeviceId(to as u32 + 1), LinkId((10 * (from + 1) + to + 1) as u64));
            let alive = self.mirrors[to].is_some();
            let Some(mirror) = &mut self.mirrors[from] else { continue };
            if up && alive {
                mirror.peer_up(self.now, peer, on(link), &mut self.outs[from]);
            } else {
                mirror.peer_down(self.now, peer, &mut self.outs[from]);
            }
        }
    }

    /// All live devices learn the next configuration; nothing is delivered yet.
    fn configure(&mut self, primary: u32, in_sync: &[u32], joiners: &[u32]) {
        self.epoch += 1;
        let devices = |of: &[u32]| of.iter().map(|d| DeviceId(*d)).collect::<Vec<_>>();
        let config = GroupConfig {
            epoch: Epoch(self.epoch),
            primary: Some(DeviceId(primary)),
            replicas: devices(&[1, 2, 3]),
            in_sync: devices(in_sync),
            joiners: devices(joiners),
            lost: false,
        };
        for (mirror, out) in self.mirrors.iter_mut().zip(&mut self.outs) {
            let Some(mirror) = mirror else { continue };
            mirror.set_map(MapVersion(self.epoch), BTreeMap::new());
            mirror.configure(self.now, GROUP, &config, true, out);
            let (needed, candidates) = mirror.replicas().wanted();
            mirror.need_leases(self.now, &needed, &candidates);
        }
    }

    /// A device loses its content and never returns. Frames that it has sent are lost, too.
    fn kill(&mut self, index: usize) {
        self.mirrors[index] = None;
        self.wire.retain(|f| f.from != index && f.to != index);
        self.dial(false);
        self.wire.retain(|f| f.from != index && f.to != index);
        self.dial(true);
    }

    /// Puts what was sent onto the wire.
    fn collect(&mut self) {
        for from in 0..3 {
            let Some(mirror) = &mut self.mirrors[from] else { continue };
            mirror.flush(self.now, &mut self.outs[from]);
            for effect in self.outs[from].drain().collect::<Vec<_>>() {
                let (link, head, body) = match effect {
                    Effect::Send { link, head, body } => (link, head, body),
                    Effect::SendFirst { link, head } => (link, head, Buf::EMPTY),
                    _ => continue,
                };
                let header = *wire::parse(head.as_slice());
                assert_eq!(header.version(), on(link).version, "{:?}", header.kind());
                if link == CLIENT {
                    self.replies.push(Reply::try_from(&header).unwrap());
                    continue;
                }
                let (dialler, other) = (link.0 as usize / 10 - 1, link.0 as usize % 10 - 1);
                let to = if dialler == from { other } else { dialler };
                self.wire.push_back(Sent { link, from, to, header, body });
            }
        }
    }

    /// Delivers at most this many frames, the oldest first. Returns how many were delivered.
    fn run(&mut self, most: usize) -> usize {
        for done in 0..most {
            self.collect();
            let moves = |f: &Sent| !self.stalled.contains(&(f.from, f.to));
            let Some(place) = self.wire.iter().position(moves) else { return done };
            let frame = self.wire.remove(place).expect("it was found");
            self.deliver(frame);
        }
        most
    }

    /// Delivers what is on its way from one device to another.
    fn deliver_between(&mut self, from: usize, to: usize) {
        self.collect();
        while let Some(place) = self.wire.iter().position(|f| (f.from, f.to) == (from, to)) {
            let frame = self.wire.remove(place).expect("it was found");
            self.deliver(frame);
        }
    }

    fn deliver(&mut self, Sent { link, from, to, header: h, body }: Sent) {
        let (now, sender) = (self.now, DeviceId(from as u32 + 1));
        let Some(mirror) = &mut self.mirrors[to] else { return };
        deliver_to(mirror, now, on(link), sender, &h, body, &mut self.outs[to]);
    }

    /// Lets time pass, and delivers everything.
    fn pass(&mut self, ms: u64) {
        for _ in 0..2 {
            self.run(usize::MAX);
            self.now = Time(self.now.0 + ms * 1_000_000);
            for (mirror, out) in self.mirrors.iter_mut().zip(&mut self.outs) {
                mirror.iter_mut().for_each(|mirror| mirror.tick(self.now, out));
            }
            self.run(usize::MAX);
        }
    }

    /// A client writes a block; `flags` may say that it is a retry.
    fn write(&mut self, to: usize, block: u32, fill: u8, flags: u8) {
        self.ask(to, Kind::Write, block, vec![fill; BLOCK as usize], flags);
    }

    /// A client writes the first sector of a block.
    fn write_part(&mut self, to: usize, block: u32) {
        self.ask(to, Kind::Write, block, vec![9; base::SECTOR as usize], 0);
    }

    /// A client reads a block, and everything is delivered. Returns the answer.
    fn read(&mut self, to: usize, block: u32) -> Option<Status> {
        self.replies.clear();
        self.ask(to, Kind::Read, block, vec![], 0);
        self.run(usize::MAX);
        self.replies.last().map(|reply| reply.status)
    }

    fn ask(&mut self, to: usize, kind: Kind, block: u32, body: Vec<u8>, flags: u8) {
        let len = if kind == Kind::Write { body.len() as u32 } else { BLOCK };
        self.ask_range(to, kind, place(0, block * BLOCK, len), body, flags);
    }

    fn ask_range(&mut self, to: usize, kind: Kind, range: UnitRange, body: Vec<u8>, flags: u8) {
        self.seq += u64::from(flags & RETRY == 0);
        let client = named(5, self.seq, 1);
        let request = request(self.seq, GROUP, self.epoch, range, client);
        let body = summed(&body, &self.outs[to]);
        let mirror = self.mirrors[to].as_mut().expect("clients ask who lives");
        mirror.client(self.now, on(CLIENT), &io(kind, request, flags), body, &mut self.outs[to]);
    }

    /// Returns the first byte of each block at a device.
    fn content(&self, index: usize) -> Option<Vec<u8>> {
        let (_, data) = &self.mirrors[index].as_ref()?.store().units[&UNIT0];
        Some((0..BLOCKS).map(|block| data[(block * BLOCK) as usize]).collect())
    }
}

/// How a settle breaks off, and what follows.
#[derive(Clone, Copy, Debug)]
struct Break {
    /// Number of frames that are delivered before.
    frames: usize,
    /// The device to which nothing is delivered that the primary sends.
    stalled: Option<u32>,
    /// Number of frames after which that device gets nothing.
    since: usize,
    /// The primary dies.
    dies: bool,
    /// The next primary.
    next: u32,
}

#[derive(Debug)]
struct Story {
    /// The in-sync replicas in order, and the primary that settles them first.
    order: [u32; 3],
    leader: u32,
    /// Devices that the write has reached, besides the former primary.
    reached: &'static [u32],
    breaks: Vec<Break>,
}

impl Story {
    /// Plays the story. Returns the number of frames of the last settle before it broke off, and
    /// what went wrong.
    fn play(&self) -> (usize, Result<(), String>) {
        let mut trio = Trio::in_limbo();
        trio.write(0, 0, 2, 0);
        trio.collect();
        self.reached.iter().for_each(|d| trio.deliver_between(0, *d as usize - 1));
        let (mut in_sync, mut leader, mut frames) = (self.order.to_vec(), self.leader, 0);
        trio.configure(leader, &in_sync, &[]);
        for Break { frames: most, stalled, since, dies, next } in &self.breaks {
            frames = trio.run(*most.min(since));
            trio.stalled =
                stalled.map(|d| (leader as usize - 1, d as usize - 1)).into_iter().collect();
            frames += trio.run(most - frames);
            trio.stalled.clear();
            if *dies {
                trio.kill(leader as usize - 1);
                in_sync.retain(|d| *d != leader);
            }
            leader = *next;
            trio.configure(leader, &in_sync, &[]);
        }
        trio.pass(3000);
        (frames, self.judge(&mut trio, leader))
    }

    /// The client retries. Then all replicas must have what was answered, and no two may differ.
    fn judge(&self, trio: &mut Trio, leader: u32) -> Result<(), String> {
        let index = leader as usize - 1;
        let view =
            trio.mirrors[index].as_ref().and_then(|m| m.replicas().view(GROUP)).expect("it leads");
        if !view.active {
            return Err("it does not serve".into());
        }
        let settled: Vec<_> = (0..3).filter_map(|i| trio.content(i)).collect();
        if settled.iter().any(|c| *c != settled[0]) {
            return Err(format!("members differ: {settled:?}"));
        }
        trio.replies.clear();
        trio.write(index, 0, 2, RETRY);
        trio.pass(1000);
        let answer = trio.replies.last().map(|reply| reply.status);
        if answer != Some(Status::Ok) {
            return Err(format!("the write was answered {answer:?}"));
        }
        let after: Vec<_> = (0..3).filter_map(|i| trio.content(i)).collect();
        let lost = after.iter().any(|c| *c != [2, 1, 1, 1]);
        if lost { Err(format!("the write is not on all: {after:?}")) } else { Ok(()) }
    }
}

const ORDERS: [[u32; 3]; 6] = [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]];
const REACHED: [&[u32]; 4] = [&[], &[2], &[3], &[2, 3]];

/// Returns the possible next primaries, if the present one dies and if it lives.
fn successors(leader: u32) -> impl Iterator<Item = (bool, u32)> {
    let all = [true, false].into_iter().flat_map(|dies| (1..=3).map(move |next| (dies, next)));
    all.filter(move |(dies, next)| !dies || *next != leader)
}

/// Returns all combinations of these beginnings.
fn beginnings() -> impl Iterator<Item = ([u32; 3], u32, &'static [u32])> {
    let leaders = ORDERS.into_iter().flat_map(|order| (1..=3).map(move |leader| (order, leader)));
    leaders.flat_map(|(order, leader)| REACHED.map(|reached| (order, leader, reached)))
}

fn fail(broken: &[(Story, String)], told: usize) {
    let few: Vec<_> = broken.iter().take(3).collect();
    assert!(broken.is_empty(), "{} of {told} stories: {few:#?}", broken.len());
}

#[test]
fn a_settle_of_three_that_breaks_off_anywhere_loses_nothing() {
    let (mut told, mut broken) = (0, Vec::new());
    for (order, leader, reached) in beginnings() {
        let others = order.iter().copied().filter(|d| *d != leader).map(Some);
        for (stalled, (dies, next)) in std::iter::once(None)
            .chain(others)
            .flat_map(|stalled| successors(leader).map(move |then| (stalled, then)))
        {
            for frames in 0.. {
                let breaks = vec![Break { frames, stalled, since: 0, dies, next }];
                let story = Story { order, leader, reached, breaks };
                told += 1;
                let (delivered, judged) = story.play();
                broken.extend(judged.err().map(|why| (story, why)));
                if delivered < frames {
                    break;
                }
            }
        }
    }
    println!("{told} stories");
    fail(&broken, told);
}

/// One secondary gets nothing more at some moment of the settle. Then the primary dies.
#[test]
pub(crate) fn a_settle_of_three_of_which_one_falls_silent_loses_nothing() {
    let (mut told, mut broken) = (0, Vec::new());
    for (order, leader, reached) in beginnings() {
        let others = || order.iter().copied().filter(|d| *d != leader);
        for (stalled, next, since) in others()
            .flat_map(|stalled| others().map(move |next| (Some(stalled), next)))
            .flat_map(|(stalled, next)| (0..16).map(move |since| (stalled, next, since)))
        {
            let breaks = vec![Break { frames: usize::MAX, stalled, since, dies: true, next }];
            let story = Story { order, leader, reached, breaks };
            told += 1;
            broken.extend(story.play().1.err().map(|why| (story, why)));
        }
    }
    fail(&broken, told);
}

#[test]
fn a_settle_of_three_that_breaks_off_twice_loses_nothing() {
    let mut random = Prng::new(22);
    let mut broken = Vec::new();
    let starts: Vec<_> = beginnings().collect();
    const TOLD: usize = 12_000;
    for _ in 0..TOLD {
        let (order, leader, reached) = starts[random.below(starts.len() as u64) as usize];
        let (mut leads, mut dead, mut breaks) = (leader, Vec::new(), Vec::new());
        for _ in 0..2 {
            let mut then: Vec<_> =
                successors(leads).filter(|(_, next)| !dead.contains(next)).collect();
            // Two replicas have to be left, which can be compared.
            then.retain(|(dies, _)| !dies || dead.is_empty());
            let (dies, next) = then[random.below(then.len() as u64) as usize];
            let stalled = Some(1 + random.below(3) as u32).filter(|_| random.below(3) == 0);
            let [frames, since] = [24, 12].map(|most| random.below(most) as usize);
            breaks.push(Break { frames, stalled, since, dies, next });
            dead.extend(dies.then_some(leads));
            leads = next;
        }
        let story = Story { order, leader, reached, breaks };
        let judged = story.play().1;
        broken.extend(judged.err().map(|why| (story, why)));
    }
    fail(&broken, TOLD);
}

#[test]
pub(crate) fn what_two_of_three_cannot_read_comes_from_the_third() {
    let mut trio = Trio::in_limbo();
    trio.configure(1, &[1, 2, 3], &[]);
    trio.pass(200);
    let damage = |trio: &mut Trio, of: &[usize]| {
        for i in of {
            let mirror = trio.mirrors[*i].as_mut().unwrap();
            mirror.store_mut().bad.insert(BlockSet::from_range(1..2));
        }
    };
    damage(&mut trio, &[0, 1]);
    assert_eq!(trio.read(0, 1), Some(Status::Ok), "the third one has it");
    assert!(trio.mirrors[0].as_ref().unwrap().store().bad.is_empty());
    damage(&mut trio, &[0, 2]);
    assert_eq!(trio.read(0, 1), Some(Status::Media), "nobody has it now");
}

/// The second device answers a request that was repeated when the read waits for other blocks.
#[test]
fn a_late_answer_about_damage_does_not_count_for_other_blocks() {
    let mut trio = Trio::in_limbo();
    trio.configure(1, &[1, 2, 3], &[]);
    trio.pass(200);
    for (i, blocks) in [(0, [0, 2].as_slice()), (1, &[0]), (2, &[2])] {
        let bad = &mut trio.mirrors[i].as_mut().unwrap().store_mut().bad;
        blocks.iter().for_each(|block| bad.insert(BlockSet::from_range(*block..block + 1)));
    }
    trio.replies.clear();
    trio.ask_range(0, Kind::Read, place(0, 0, 3 * BLOCK), vec![], 0);
    let waits_for = |trio: &mut Trio, block: u32| loop {
        trio.collect();
        let mut frames = trio.wire.iter();
        let fetch = frames.find_map(|f| wire::message::Fetch::try_from(&f.header).ok());
        match fetch.filter(|fetch| fetch.range.at == block * BLOCK) {
            Some(fetch) => return fetch,
            None => assert_eq!(trio.run(1), 1, "the read ends: {:?}", trio.replies),
        }
    };
    let first = waits_for(&mut trio, 0);
    assert_eq!(waits_for(&mut trio, 2).op, first.op);
    let late = wire::message::Fetched {
        status: Status::Media,
        op: first.op,
        group: GROUP,
        epoch: first.epoch,
        at: first.range.at,
        len: first.range.len,
        sender: Sender { incarnation: Incarnation(7), map: MapVersion(trio.epoch) },
    };
    let leader = trio.mirrors[0].as_mut().unwrap();
    leader.fetched_in(trio.now, DeviceId(2), &late, Buf::EMPTY, &mut trio.outs[0]);
    trio.run(usize::MAX);
    assert_eq!(trio.replies.last().map(|reply| reply.status), Some(Status::Ok));
}

/// Of three replicas in sync, two need the blocks of a write whole, and the primary can't read what
/// it has just written. Its device is still late.
fn damaged_by_a_write() -> Trio {
    let mut trio = Trio::in_limbo();
    trio.configure(1, &[1, 2, 3], &[]);
    trio.pass(200);
    let damage = |trio: &mut Trio, i: usize| {
        let mirror = trio.mirrors[i].as_mut().unwrap();
        mirror.store_mut().bad.insert(BlockSet::from_range(1..2));
    };
    [1, 2].into_iter().for_each(|i| damage(&mut trio, i));
    trio.replies.clear();
    trio.write_part(0, 1);
    trio.collect();
    trio.mirrors[0].as_mut().unwrap().store_mut().late = true;
    damage(&mut trio, 0);
    trio.run(usize::MAX);
    trio
}

/// Every copy is damaged.
#[test]
fn a_write_that_damages_every_copy_ends_no_process() {
    let mut trio = damaged_by_a_write();
    trio.mirrors[0].as_mut().unwrap().store_mut().late = false;
    trio.pass(1000);
    let primary = trio.mirrors[0].as_ref().unwrap();
    assert!(!primary.failed());
    assert_eq!(trio.replies, [], "the copies differ, and one of them has to go");
    assert_eq!(primary.suspects(trio.now).len(), 2);
}

/// The same while one other copy is whole: all three get the write.
#[test]
fn a_write_that_damages_two_of_three_copies_is_repaired_by_the_third() {
    let mut trio = damaged_by_a_write();
    // The error of one of them passes.
    trio.mirrors[2].as_mut().unwrap().store_mut().bad = BlockSet::EMPTY;
    trio.mirrors[0].as_mut().unwrap().store_mut().late = false;
    trio.pass(1000);
    assert!(!trio.mirrors[0].as_ref().unwrap().failed());
    let answers = trio.replies.iter().map(|reply| Some(reply.status));
    assert_eq!(answers.collect::<Vec<_>>(), [Some(Status::Ok)]);
    let all: Vec<_> = (0..3).filter_map(|i| trio.content(i)).collect();
    assert_eq!(all, [[1, 9, 1, 1]; 3]);
}

/// One of three replicas has a write, and can't read it when it settles the others. The content
/// that it is repaired with lacks the write. Wherever that breaks off, no list of executed writes
/// says that the write is there.
#[test]
fn a_settle_that_repairs_its_leader_leaves_true_lists() {
    for frames in 0..60 {
        let mut trio = Trio::in_limbo();
        trio.write(0, 0, 2, 0);
        trio.configure(1, &[1, 2, 3], &[]);
        let mirror = trio.mirrors[0].as_mut().unwrap();
        mirror.store_mut().bad.insert(BlockSet::from_range(0..1));
        trio.run(frames);
        trio.kill(0);
        trio.configure(2, &[2, 3], &[]);
        trio.pass(3000);
        let story = Story { order: [1, 2, 3], leader: 1, reached: &[], breaks: Vec::new() };
        story.judge(&mut trio, 2).unwrap_or_else(|why| panic!("after {frames} frames: {why}"));
    }
}

/// One of three replicas alone has a write. The primary can't read those blocks, and repairs them
/// with the content of that replica, which dies before the settle has ended. The two that are left
/// know that they may differ.
#[test]
pub(crate) fn a_settle_that_repairs_its_leader_marks_what_others_may_lack() {
    for frames in 0..60 {
        let mut trio = Trio::in_limbo();
        trio.write(0, 0, 2, 0);
        trio.collect();
        trio.wire.clear();
        trio.configure(2, &[1, 2, 3], &[]);
        let mirror = trio.mirrors[1].as_mut().unwrap();
        mirror.store_mut().bad.insert(BlockSet::from_range(0..1));
        trio.run(frames);
        trio.kill(0);
        trio.configure(2, &[2, 3], &[]);
        trio.pass(3000);
        let story = Story { order: [1, 2, 3], leader: 2, reached: &[], breaks: Vec::new() };
        story.judge(&mut trio, 2).unwrap_or_else(|why| panic!("after {frames} frames: {why}"));
    }
}

#[test]
fn copies_wait_behind_a_write_that_one_member_does_not_answer() {
    let limits = Limits {
        stream: 16,
        copy_bytes: BLOCK,
        executed_window: 512,
        executed_group: 1024,
        ..Limits::TEST_MIN
    };
    let mut trio = Trio::new(&limits);
    for block in 0..256 {
        trio.write(0, block, 1, 0);
        trio.run(usize::MAX);
    }
    trio.stalled.insert((0, 2));
    trio.configure(1, &[1, 2], &[3]);
    trio.pass(100);
    trio.stalled = [(0, 1)].into();
    trio.write(0, 0, 2, 0);
    trio.pass(100);
    trio.pass(100);
    let grown = trio.mirrors[0].as_ref().unwrap().grown().stream;
    let may = mirror::ListLengths::most(&limits, 0).stream;
    assert!((16..=may).contains(&grown), "{grown} operations in the stream, {may} allowed");
    assert_eq!(trio.admissions().len(), 0);
    trio.stalled.clear();
    trio.pass(100);
    trio.pass(100);
    assert_eq!(trio.admissions().len(), 1);
}

/// While a group moves, it has a joiner for hours. Damage at a secondary must not wait until that
/// ends.
#[test]
fn a_scrub_of_a_secondary_repairs_while_a_joiner_is_being_filled() {
    let mut trio = Trio::on(&Limits::TEST_MIN, true);
    (0..BLOCKS).for_each(|block| trio.write(0, block, 1, 0));
    trio.run(usize::MAX);
    trio.configure(1, &[1, 2], &[3]);
    trio.stalled.insert((0, 2));
    trio.pass(100);
    let now = trio.now;
    let secondary = trio.mirrors[1].as_mut().unwrap();
    secondary.store_mut().bad.insert(BlockSet::from_range(1..2));
    secondary.begin_scrub(now);
    (0..100).for_each(|_| trio.pass(50));
    let secondary = trio.mirrors[1].as_ref().unwrap();
    let stats = secondary.scrub_stats().unwrap();
    assert_eq!((stats.unrepairable, stats.repaired), (0, u64::from(BLOCK)), "{stats:?}");
    assert!(secondary.store().bad.is_empty());
    trio.stalled.clear();
    trio.pass(3000);
    assert_eq!(trio.admissions().len(), 1, "the joiner is filled all the same");
}

/// Beacons to two devices are due at different times.
#[test]
fn damaged_blocks_are_requested_again_once_in_a_beacon_period() {
    for phase in [1, 2, 3] {
        let mut trio = Trio::in_limbo();
        trio.configure(1, &[1, 2, 3], &[]);
        (0..10 + phase).for_each(|_| trio.pass(50));
        let (leader, out) = (trio.mirrors[0].as_mut().unwrap(), &mut trio.outs[0]);
        leader.peer_up(trio.now, DeviceId(3), on(LinkId(13)), out);
        leader.tick(trio.now, out);
        trio.pass(50);
        trio.mirrors[0].as_mut().unwrap().store_mut().bad = BlockSet::from_range(1..2);
        trio.stalled.insert((0, 1));
        assert_eq!(trio.read(0, 1), None);
        (0..40).for_each(|_| trio.pass(50));
        let requests = trio.wire.iter().filter(|f| f.header.kind() == Some(Kind::Fetch));
        let requests = requests.count();
        assert!((5..=11).contains(&requests), "{requests} requests in four seconds");
    }
}

/// No honest replica asks for what it has acknowledged.
#[test]
fn a_replica_that_has_done_a_write_needs_no_whole_blocks_for_it() {
    let mut trio = Trio::in_limbo();
    trio.stalled.insert((0, 2));
    trio.write_part(0, 0);
    trio.run(usize::MAX);
    let replicate = |sent: &Sent| wire::message::Replicate::try_from(&sent.header).ok();
    let m = trio.wire.iter().find_map(replicate).expect("the third one is still sent the write");
    let sender = Sender { incarnation: Incarnation(7), map: MapVersion(trio.epoch) };
    let (op, group, epoch, lsn) = (m.op, m.group, m.epoch, m.lsn);
    let answer = Replicated { status: Status::SendWhole, op, group, epoch, lsn, sender };
    let before = trio.mirrors[0].as_ref().unwrap().in_flight();
    let mirror = trio.mirrors[0].as_mut().unwrap();
    mirror.replicated(trio.now, DeviceId(2), &answer, &mut trio.outs[0]);
    assert_eq!(trio.mirrors[0].as_ref().unwrap().in_flight(), before);
    trio.stalled.clear();
    trio.run(usize::MAX);
    assert_eq!(trio.mirrors[0].as_ref().unwrap().in_flight(), 0);
}

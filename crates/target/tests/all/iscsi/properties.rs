//! Properties for any initiator: no panic, bounded memory, one answer per command.

use super::initiator::*;
use super::rig::*;
use base::Limits;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use seam::BlockError;
use std::collections::BTreeMap;
use target::Cleared;

const NOBODY: u32 = 0xffff_ffff;

/// Most memory that a session takes with the smallest limits: 12 commands with 8 KiB unasked, and
/// 32 KiB that was asked for, all of it in pieces of a sector in a buffer of 4 KiB each.
const MEMORY: usize = (12 * (8 << 10) + (32 << 10)) / 512 * 4096 + (128 << 10);

/// Returns something that an initiator might send: valid, nearly valid, or nonsense.
fn anything() -> impl Strategy<Value = Request> {
    let opcode = prop_oneof![8 => 0u8..8, 1 => 0x10u8..0x12, 1 => any::<u8>()];
    let flags = prop_oneof![Just(0x80u8), Just(0xa0), Just(0xc0), Just(0x20), any::<u8>()];
    let tag = prop_oneof![8 => 0u32..6, 1 => Just(NOBODY), 1 => any::<u32>()];
    let number = prop_oneof![0u32..4, Just(512), Just(4096), Just(8192), Just(65536), any::<u32>()];
    let cdb = prop_oneof![
        (0u32..40, 0u16..129).prop_map(|(lba, blocks)| read10(lba, blocks)),
        (0u32..40, 0u16..129).prop_map(|(lba, blocks)| write10(lba, blocks)),
        (any::<u8>(), 0u32..40, 0u16..40).prop_map(|(o, lba, n)| transfer10(o, lba, n)),
        any::<[u8; 16]>(),
    ];
    let data = prop_oneof![
        4 => Just(0usize),
        2 => (1usize..17).prop_map(|sectors| sectors * 512),
        1 => 0usize..8192
    ];
    let ahs = prop_oneof![20 => Just(0usize), 1 => 0usize..30];
    let numbers = (tag.clone(), number.clone(), number.clone(), number);
    (opcode, any::<bool>(), flags, numbers, -1i8..3, cdb, data, ahs).prop_map(
        |(opcode, immediate, flags, (itt, a, b, c), sn, cdb, data, ahs)| {
            let opcode = if immediate { opcode | 0x40 } else { opcode };
            let mut request = Request::new(opcode, flags, itt).u32(20, a).data(&vec![5; data]);
            request.ahs = vec![1; ahs * 4];
            if opcode & 0x3f == 1 { request.put(32, &cdb) } else { request.u32(36, b).u32(40, c) }
                .u32(24, sn as u32)
        },
    )
}

/// The events besides the PDUs of an initiator.
#[derive(Clone, Debug)]
enum Event {
    Serve(Index),
    Fail(Index),
    Withdraw,
    Clear(Cleared),
    Clears,
    Shutdown,
    Gone,
    Remapped,
    Waits(Index),
    Tick(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => any::<Index>().prop_map(Event::Serve),
        2 => any::<Index>().prop_map(Event::Fail),
        4 => Just(Event::Withdraw),
        1 => Just(Event::Clear(Cleared::Unit)),
        1 => Just(Event::Clear(Cleared::Tasks)),
        2 => Just(Event::Clears),
        1 => any::<u8>().prop_map(Event::Tick),
        1 => Just(Event::Shutdown),
        1 => Just(Event::Gone),
        1 => Just(Event::Remapped),
        2 => any::<Index>().prop_map(Event::Waits),
    ]
}

fn happen(rig: &mut Rig, event: &Event) {
    match event {
        Event::Serve(index) if !rig.asked.is_empty() => rig.serve(index.index(rig.asked.len())),
        Event::Fail(index) if !rig.asked.is_empty() => {
            rig.fail(index.index(rig.asked.len()), BlockError::Media);
        }
        Event::Waits(index) if !rig.asked.is_empty() => {
            let (tag, _) = rig.asked[index.index(rig.asked.len())];
            rig.session.waits(tag);
        }
        Event::Serve(_) | Event::Fail(_) | Event::Waits(_) => {}
        Event::Withdraw => withdraw(rig),
        Event::Clear(what) => rig.call(|session, _, pool, out| session.cleared(*what, pool, out)),
        Event::Clears => rig.call(|session, _, pool, out| session.others_cleared(pool, out)),
        Event::Gone => rig.call(|session, _, pool, out| session.volume_gone(pool, out)),
        Event::Remapped => rig.call(|session, _, pool, out| session.remapped(pool, out)),
        Event::Shutdown => rig.call(|session, _, pool, out| session.shutdown(pool, out)),
        Event::Tick(seconds) => {
            let now = base::Time::ZERO + base::time::Duration::from_secs(u64::from(*seconds));
            rig.call(|session, _, pool, out| session.tick(now, pool, out));
        }
    }
}

/// Withdraws what the session has asked to withdraw.
fn withdraw(rig: &mut Rig) {
    let (closes, rest) = rig.told().into_iter().partition(|told| matches!(told, Told::Close(_)));
    rig.told = closes;
    for told in rest {
        if let Told::Withdraw(tag) = told {
            rig.withdraw(tag);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_frames_never_panic(
        frames in vec((vec(any::<u8>(), 0..130), vec(any::<u8>(), 0..64)), 0..8),
        logged_in in any::<bool>(),
    ) {
        let limits = Limits::TEST_MIN;
        let mut rig = if logged_in { Rig::full(&limits, &[]) } else { Rig::new(&limits) };
        for (head, body) in frames {
            rig.raw(&head, &body);
        }
    }

    #[test]
    fn any_login_never_panics(
        parts in vec((any::<u8>(), vec((0usize..12, ".{0,12}"), 0..6)), 1..6),
        chap in any::<bool>(),
    ) {
        const KEYS: [&str; 12] = [
            "InitiatorName", "TargetName", "SessionType", "AuthMethod", "CHAP_A", "CHAP_N",
            "CHAP_R", "CHAP_I", "CHAP_C", "MaxBurstLength", "HeaderDigest", "X",
        ];
        let mut rig = Rig::new(&Limits::TEST_MIN);
        if chap {
            let own = Some(("t", &b"othersecret1"[..]));
            rig.hosts.chap =
                Some(target::iscsi::Credentials { user: "u", secret: b"secretsecret", own });
        }
        let names = [("InitiatorName", HOST), ("TargetName", NAME), ("AuthMethod", "CHAP,None")];
        rig.send(Request::login(0x04, &names).put(1, &[0]));
        for (flags, pairs) in &parts {
            let pairs: Vec<_> = pairs.iter().map(|(key, v)| (KEYS[*key], v.as_str())).collect();
            rig.send(Request::login(*flags, &pairs));
        }
        prop_assert!(!chap || rig.session.nexus().is_none(), "nobody guesses a secret");
    }

    #[test]
    fn any_initiator_never_panics_and_memory_is_bounded(
        steps in vec((anything(), vec(event(), 0..2)), 0..60),
        digests in any::<bool>(),
    ) {
        let on = if digests { "CRC32C" } else { "None" };
        let offers = [("HeaderDigest", on), ("DataDigest", on)];
        let mut rig = Rig::full(&Limits::TEST_MIN, &offers);
        rig.serves = false;
        for (request, events) in steps {
            // The number says how far from the right one it is.
            let off = u32::from_be_bytes(request.bhs[24..28].try_into().unwrap());
            if request.bhs[0] & 0x40 == 0 && off == 0 && request.bhs[0] != 5 {
                rig.ask(request);
            } else {
                rig.send(request.clone().u32(24, rig.cmd_sn.wrapping_add(off)));
            }
            for event in &events {
                happen(&mut rig, event);
            }
            prop_assert!(rig.pool.used() <= MEMORY, "{} bytes", rig.pool.used());
            prop_assert!(rig.session.bytes().0 <= 32 << 10);
            prop_assert!(rig.session.in_flight() <= 4 + 8);
            prop_assert!(rig.session.requests() <= Limits::TEST_MIN.iscsi_requests + 4 + 8);
            rig.answers();
        }
        drop(rig.session);
        rig.asked.clear();
        prop_assert_eq!(rig.pool.used(), 0);
    }

    /// Pieces of a write may fail in any order. The failed piece with the lowest offset decides, so
    /// everything before the block that the sense data names is written.
    #[test]
    fn blocks_before_the_reported_one_are_written(
        fails in vec(prop_oneof![
            3 => Just(None),
            1 => Just(Some((BlockError::Media, (2, Some((3, 0x0c, 0)))))),
            1 => Just(Some((BlockError::Lost, (2, Some((3, 0x0c, 2)))))),
            1 => Just(Some((BlockError::TimedOut, (2, Some((2, 0x04, 1)))))),
            1 => Just(Some((BlockError::Full, (2, Some((2, 0x04, 0x14)))))),
            1 => Just(Some((BlockError::Busy, (0x28, None)))),
        ], 8),
        order in vec(any::<Index>(), 8),
    ) {
        let mut rig = Rig::full(&Limits::SHIPPED, &[]);
        rig.serves = false;
        let data = [7; 8 * 512];
        rig.ask(Request::command(5, 0x20, 4096, &write10(0, 8)).data(&data[..512]));
        for i in 1..8 {
            let part = &data[i * 512..][..512];
            rig.send(Request::data_out(5, NOBODY, i as u32 - 1, i as u32 * 512, i == 7, part));
        }
        for index in order {
            let at = index.index(rig.asked.len());
            match fails[rig.asked[at].1.at as usize / 512] {
                Some((error, _)) => rig.fail(at, error),
                None => rig.serve(at),
            }
        }
        let answer = rig.answer();
        let lowest = fails.iter().position(Option::is_some);
        let expected = lowest.map_or((0, None), |at| fails[at].unwrap().1);
        prop_assert_eq!(answer.status(), expected);
        if !answer.data.is_empty() && answer.data[2] & 0x80 != 0 {
            let block = u32::from_be_bytes(answer.data[5..9].try_into().unwrap()) as usize;
            prop_assert_eq!(Some(block), lowest);
            prop_assert_eq!(&rig.disk[..block * 512], &data[..block * 512]);
        }
    }

    /// For any commands of an honest initiator, any order of completions, aborts and withdrawals:
    /// a command has one answer, or was aborted and has none, and what is written arrives.
    #[test]
    fn every_command_has_exactly_one_answer(
        steps in vec((0u8..8, 0u16..121, any::<Index>(), any::<bool>()), 1..50),
        segment in prop_oneof![Just(512usize), Just(8192), Just(1000), 500usize..8193],
    ) {
        let mut host = Host::new(segment);
        for (what, blocks, index, withdraws) in &steps {
            host.step(*what, *blocks, index);
            if *withdraws {
                withdraw(&mut host.rig);
            }
            host.read_answers();
        }
        while !host.asking.is_empty() || !host.rig.asked.is_empty() || !host.rig.told.is_empty() {
            host.step(if host.asking.is_empty() { 7 } else { 6 }, 0, &steps[0].2);
            withdraw(&mut host.rig);
            host.read_answers();
        }
        let rig = host.rig;
        prop_assert!(host.open.is_empty(), "{:?}", host.open);
        prop_assert_eq!((rig.session.in_flight(), rig.session.bytes()), (0, (0, 0)));
        prop_assert_eq!(rig.pool.used(), 0);
        prop_assert!(host.written.iter().all(|(start, data)| rig.disk[*start..].starts_with(data)));
    }
}

/// An honest initiator. Each of its writes has a range of its own.
struct Host {
    rig: Rig,
    segment: usize,
    itt: u32,
    /// The last number that a command may have.
    max: u32,
    /// Commands that are neither answered nor aborted: tag, number, and start and data of a write.
    open: BTreeMap<u32, (u32, usize, Vec<u8>)>,
    /// R2Ts that are not answered.
    asking: Vec<Pdu>,
    /// Data that has to be on the volume.
    written: Vec<(usize, Vec<u8>)>,
}

impl Host {
    fn new(segment: usize) -> Host {
        // Its commands have places for all pieces.
        let limits = Limits { iscsi_requests: 4096, ..Limits::TEST_MIN };
        let mut rig = Rig::full(&limits, &[]);
        rig.serves = false;
        let max = rig.cmd_sn + 3;
        let (open, asking, written) = (BTreeMap::new(), Vec::new(), Vec::new());
        Host { rig, segment, itt: 0, max, open, asking, written }
    }

    fn step(&mut self, what: u8, blocks: u16, index: &Index) {
        let (rig, itt) = (&mut self.rig, self.itt);
        let (lba, sn) = (itt * 120, rig.cmd_sn);
        let len = usize::from(blocks) * 512;
        match what {
            0..4 if sn > self.max => {}
            0 | 1 => {
                rig.ask(Request::command(itt, 0xc0, len as u32, &read10(lba, blocks)));
                self.open.insert(itt, (sn, 0, Vec::new()));
                self.itt += 1;
            }
            2 | 3 => {
                let data = vec![itt as u8 ^ 0x5a; len];
                rig.write(itt, &write10(lba, blocks), &data, index.index(8193));
                self.open.insert(itt, (sn, lba as usize * 512, data));
                self.itt += 1;
            }
            4 if !self.open.is_empty() => {
                let task = *self.open.keys().nth(index.index(self.open.len())).unwrap();
                let (task_sn, ..) = self.open.remove(&task).unwrap();
                self.asking.retain(|r2t| r2t.itt() != task || index.index(2) == 0);
                rig.ask(Request::management(1 << 20, 1, task, task_sn));
            }
            5 if blocks < 30 => {
                self.open.clear();
                rig.ask(Request::management(1 << 20, 2, NOBODY, 0));
            }
            6 if !self.asking.is_empty() => {
                let r2t = self.asking.remove(index.index(self.asking.len()));
                let len = (r2t.u32(40) + r2t.u32(44)) as usize;
                rig.give(&r2t, &vec![r2t.itt() as u8 ^ 0x5a; len], self.segment);
            }
            _ if !rig.asked.is_empty() => rig.serve(index.index(rig.asked.len())),
            _ => {}
        }
    }

    fn read_answers(&mut self) {
        for answer in self.rig.answers() {
            self.max = answer.u32(32);
            match answer.opcode() {
                0x31 => self.asking.push(answer),
                0x25 if answer.bhs[1] & 1 == 0 => {}
                0x21 | 0x25 => {
                    let open = self.open.remove(&answer.itt());
                    let (_, start, data) = open.expect("answered twice, or though aborted");
                    assert_eq!((answer.status(), answer.residual()), ((0, None), 0));
                    self.written.push((start, data));
                }
                0x22 => {
                    assert_eq!(answer.bhs[2], 0);
                    self.asking.retain(|r2t| self.open.contains_key(&r2t.itt()));
                }
                _ => panic!("{answer:?}"),
            }
        }
        assert!(!self.rig.session.is_closed(), "{:?}", self.rig.told);
    }
}

//! Properties for any host: no panic, bounded memory, one answer per command.

use super::host::*;
use super::rig::*;
use base::{Limits, VolumeId};
use proptest::collection::vec;
use proptest::prelude::*;
use seam::BlockError;
use std::collections::BTreeMap;
use target::reserve::{Access, Refusal, Table};
use target::{Asked, Question};

/// Most memory that a queue takes with the smallest limits: 8 commands with 4 KiB in their capsules
/// (in blocks of 16 KiB), 128 KiB in each direction, all of it in pieces of a sector in blocks of
/// 4 KiB, and 8 KiB for each two fused commands.
const MEMORY: usize = 8 * (16 << 10) + 2 * (128 << 10) / 512 * 4096 + 4 * (16 << 10) + (64 << 10);

/// Returns a command that a host might send: valid, nearly valid, or nonsense.
fn command() -> impl Strategy<Value = Command> {
    let opcode = prop_oneof![
        8 => prop::sample::select(vec![0x00u8, 0x01, 0x02, 0x05, 0x06, 0x08, 0x09, 0x0a, 0x0c]),
        2 => prop::sample::select(vec![0x0du8, 0x0e, 0x11, 0x15]),
        2 => Just(0x7fu8),
        1 => any::<u8>()
    ];
    let blocks = prop_oneof![1u32..9, Just(128u32), Just(129)];
    let data = prop_oneof![
        3 => Just(None),
        1 => Just(Some(16)),
        2 => (1usize..9).prop_map(|sectors| Some(sectors * 512)),
        1 => (1usize..4097).prop_map(Some)
    ];
    let dwords = vec(prop_oneof![0u32..16, any::<u32>()], 6);
    // Nearly half of the Compares and Writes are fused.
    let flags = prop_oneof![2 => Just(0x40u8), 1 => Just(0x41), 1 => Just(0x42)];
    let kind = (opcode, flags, any::<bool>());
    (kind, 0u16..12, 0u64..20, blocks, data, dwords).prop_map(
        |((opcode, flags, plain), cid, first, blocks, data, dwords)| {
            let mut command = Command::blocks(opcode, cid, first, blocks);
            if matches!(opcode, 1 | 5) || !plain {
                command = command.put(1, &[flags]);
            }
            if !plain {
                for (i, dword) in dwords.iter().enumerate() {
                    command = command.dword(10 + i, *dword);
                }
                command = command.nsid(dwords[0]);
            }
            match data {
                Some(len) => command.carries(&vec![5; len]),
                None => command.at_host(blocks as usize * 512),
            }
        },
    )
}

/// The events besides commands.
#[derive(Clone, Debug)]
enum Event {
    Serve(usize),
    Fail(usize),
    Give(usize, usize),
    Tick(u8),
    Review(bool),
    Cleared,
    Answer(usize, u8),
    Notify(u8),
    Reserved(bool, bool),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => any::<usize>().prop_map(Event::Serve),
        2 => any::<usize>().prop_map(Event::Fail),
        6 => (any::<usize>(), prop_oneof![100usize..600, Just(4096)])
            .prop_map(|(index, part)| Event::Give(index, part)),
        1 => (0u8..4).prop_map(Event::Tick),
        1 => any::<bool>().prop_map(Event::Review),
        1 => Just(Event::Cleared),
        3 => any::<(usize, u8)>().prop_map(|(index, what)| Event::Answer(index, what)),
        1 => (0u8..3).prop_map(Event::Notify),
        1 => any::<(bool, bool)>().prop_map(|(read, write)| Event::Reserved(read, write)),
    ]
}

/// A host with the R2Ts that it has got, and how often each command id was answered.
#[derive(Default)]
struct State {
    r2ts: Vec<Pdu>,
    answers: BTreeMap<u16, usize>,
    second: u64,
    questions: Vec<(u64, Question)>,
}

impl State {
    fn take(&mut self, rig: &mut Rig) {
        for pdu in rig.answers() {
            match pdu.kind() {
                0x05 => *self.answers.entry(pdu.answer().0).or_default() += 1,
                0x09 => self.r2ts.push(pdu),
                _ => {}
            }
        }
        let closed = rig.session.is_closed();
        let told = rig.told.drain(..).filter_map(|told| match told {
            Told::Ask(tag, question) => Some((tag, question)),
            _ => None,
        });
        self.questions.extend(told.filter(|_| !closed));
    }

    fn happen(&mut self, rig: &mut Rig, event: &Event) {
        match event {
            Event::Serve(index) if !rig.asked.is_empty() => {
                rig.serve(index % rig.asked.len());
            }
            Event::Fail(index) if !rig.asked.is_empty() => {
                rig.fail(index % rig.asked.len(), BlockError::Media);
            }
            Event::Give(index, part) if !self.r2ts.is_empty() => {
                let r2t = self.r2ts.remove(index % self.r2ts.len());
                let data = vec![6; r2t.u32(16) as usize];
                rig.give(&r2t, &data, *part);
            }
            Event::Serve(_) | Event::Fail(_) | Event::Give(..) => {}
            Event::Tick(seconds) => {
                self.second += u64::from(*seconds);
                rig.tick(self.second);
            }
            Event::Review(there) => {
                rig.hosts.namespaces.remove(&9);
                if *there {
                    rig.hosts.add(9, 4096);
                }
                rig.review();
            }
            Event::Cleared => rig.session.others_cleared(),
            Event::Answer(index, what) if !self.questions.is_empty() => {
                let (tag, question) = self.questions.remove(index % self.questions.len());
                let table = Table::default();
                rig.reply(
                    tag,
                    match (what % 4, question) {
                        (0, _) => Asked::Nobody,
                        (1, Question::Reserve(_)) => Asked::Reserved(Err(Refusal::Conflict)),
                        (_, Question::Reserve(_)) => Asked::Reserved(Ok(())),
                        (_, Question::Report) => Asked::Table(&table),
                        (_, Question::Activate) => panic!("no command of NVMe asks for that"),
                    },
                );
            }
            Event::Answer(..) => {}
            Event::Notify(what) => {
                use target::reserve::Notice::*;
                let all = [RegistrationsPreempted, ReservationsReleased, ReservationsPreempted];
                let notice = all[usize::from(*what)];
                rig.call(|session, _, pool, out| session.notify(VolumeId(7), notice, pool, out));
            }
            Event::Reserved(read, write) => {
                let left = Access { read: *read, write: *write };
                rig.call(|session, _, pool, out| session.reserved(VolumeId(7), left, pool, out));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_frames_never_panic(
        frames in vec((vec(any::<u8>(), 0..129), vec(any::<u8>(), 0..64)), 0..8),
        kinds in vec(prop::sample::select(vec![0u8, 2, 4, 6]), 8),
        role in 0u8..4,
    ) {
        let limits = Limits::TEST_MIN;
        let mut rig = match role {
            0 => Rig::new(&limits),
            1 => Rig::set_up(&limits, Options::default()),
            2 => Rig::admin(&limits, Options::default()),
            _ => Rig::io(&limits, Options::default()),
        };
        for ((mut head, body), kind) in frames.into_iter().zip(kinds) {
            if let Some(first) = head.first_mut() {
                *first = kind;
            }
            rig.raw(&head, &body);
        }
    }

    #[test]
    fn any_commands_are_answered_once_in_bounded_memory(
        admin in any::<bool>(),
        digests in any::<(bool, bool)>(),
        script in vec(prop_oneof![
            1 => command().prop_map(Ok),
            2 => event().prop_map(Err)
        ], 0..60),
    ) {
        let limits = Limits::TEST_MIN;
        let options = Options { digests, ..Options::default() };
        let mut rig =
            if admin { Rig::admin(&limits, options) } else { Rig::io(&limits, options) };
        rig.serves = false;
        let mut state = State::default();
        let mut sent: BTreeMap<u16, usize> = BTreeMap::new();
        for step in &script {
            if rig.session.is_closed() {
                break;
            }
            match step {
                Ok(command) => {
                    let open: usize = sent.values().sum::<usize>()
                        - state.answers.values().sum::<usize>();
                    if open >= 8 {
                        continue;
                    }
                    let cid = u16::from_le_bytes([command.entry[2], command.entry[3]]);
                    *sent.entry(cid).or_default() += 1;
                    rig.ask(command);
                }
                Err(event) => state.happen(&mut rig, event),
            }
            state.take(&mut rig);
            prop_assert!(rig.pool.used() <= MEMORY, "{} bytes", rig.pool.used());
            let (solicited, reading) = rig.session.bytes();
            prop_assert!(solicited <= limits.nvme_solicited.into());
            prop_assert!(reading <= limits.nvme_solicited.into());
            prop_assert!(rig.session.in_flight() <= limits.nvme_entries as usize);
            prop_assert!(rig.session.requests() <= limits.nvme_requests);
        }
        // Everything is done in the end, except what waits for events. Each sector that came in
        // several PDUs is a request, and eight commands have up to 1,024 sectors.
        for round in 0..1210 {
            if rig.session.is_closed() {
                break;
            }
            // The first of two fused commands waits for the second one, which never comes.
            if !admin && round == 1200 {
                state.happen(&mut rig, &Event::Tick(0));
                rig.tick(state.second + 21);
            }
            state.happen(&mut rig, &Event::Give(0, 4096));
            state.happen(&mut rig, &Event::Serve(0));
            state.happen(&mut rig, &Event::Answer(0, 0));
            state.take(&mut rig);
        }
        if !rig.session.is_closed() {
            prop_assert_eq!(rig.session.in_flight(), 0);
            prop_assert_eq!((rig.session.bytes(), rig.session.requests()), ((0, 0), 0));
            for (cid, count) in &state.answers {
                prop_assert!(count <= &sent[cid], "{} was answered {} times", cid, count);
            }
            let open = sent.values().sum::<usize>() - state.answers.values().sum::<usize>();
            prop_assert!(open <= if admin { 4 } else { 0 }, "{} were not answered", open);
        }
        let pool = rig.pool.clone();
        drop(rig);
        prop_assert_eq!(pool.used(), 0);
    }

    #[test]
    fn any_pieces_of_a_write_give_the_same_volume(
        parts in vec(1usize..3000, 1..20),
        first in 0u64..100,
        blocks in 1u32..65,
    ) {
        let mut rig = Rig::io(&Limits::TEST_MIN, Options::default());
        let len = blocks as usize * 512;
        let data: Vec<u8> = (0..len).map(|i| (i * 3 + i / 512) as u8).collect();
        rig.ask(&Command::write(1, first, blocks));
        let ids = rig.answer().ids();
        let (mut at, mut sizes) = (0, parts.iter().cycle());
        while at < len {
            let end = (at + sizes.next().unwrap()).min(len);
            rig.send(&Request::host_data(ids, at as u32, end == len, &data[at..end]));
            at = end;
        }
        prop_assert_eq!(rig.answer().answer(), (1, 0, 0));
        prop_assert_eq!(&rig.disk[first as usize * 512..][..len], &data[..]);
    }
}

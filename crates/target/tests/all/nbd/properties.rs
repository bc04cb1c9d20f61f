//! Properties for any client: no panic, no dependence on how bytes arrive, one reply per request.

use super::rig::*;
use base::Limits;
use proptest::collection::vec;
use proptest::prelude::*;
use seam::{BlockError, BlockKind, FrameError, Framer, Framing};
use std::collections::BTreeMap;
use target::nbd::NbdFramer;
use target::nbd::proto::*;

/// Splits a stream that arrives in these pieces, as a driver does: one frame per framer result.
fn cut(stream: &[u8], pieces: &[usize]) -> (Vec<(usize, usize)>, Option<FrameError>) {
    let mut framer = NbdFramer::new(&Limits::TEST_MIN);
    let (mut frames, mut start, mut there) = (Vec::new(), 0, 0);
    let mut pieces = pieces.iter().cycle();
    loop {
        match framer.frame(&stream[start..there.max(start)]) {
            Ok(Framing::Need(n)) => {
                assert!(n > there.max(start) - start && n <= 128);
                if there >= stream.len() {
                    return (frames, None);
                }
                there = (there + pieces.next().unwrap()).min(stream.len());
            }
            Ok(Framing::Frame { head, body }) => {
                frames.push((head, body));
                start += head + body;
                if start > stream.len() {
                    return (frames, None);
                }
                while there < start {
                    there = (there + pieces.next().unwrap()).min(stream.len());
                }
            }
            Err(why) => return (frames, Some(why)),
        }
    }
}

/// Returns something that a client might send: valid, nearly valid, or nonsense.
fn anything() -> impl Strategy<Value = Vec<u8>> {
    let lengths = prop_oneof![Just(0u32), Just(512), Just(4096), Just(1 << 20), any::<u32>()];
    prop_oneof![
        4 => (0u32..13, vec(any::<u8>(), 0..40)).prop_map(|(o, data)| option(o, &data)),
        2 => Just(option(NBD_OPT_STRUCTURED_REPLY, &[])),
        2 => vec(0u16..5, 0..4).prop_map(|w| option(NBD_OPT_INFO, &info(b"a", &w))),
        2 => Just(option(NBD_OPT_GO, &info(b"", &[]))),
        2 => Just(option(NBD_OPT_SET_META_CONTEXT, &meta(b"a", &[b"base:allocation"]))),
        8 => (0u16..32, 0u16..10, any::<u64>(), any::<u64>(), lengths).prop_map(
            |(flags, command, cookie, at, len)| {
                request(flags, command, cookie, at % (32 << 20), if command == 1 { len % 9000 } else { len })
            }
        ),
        1 => vec(any::<u8>(), 0..64),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_framer_does_not_depend_on_the_pieces(
        frames in vec(anything(), 0..12),
        pieces in vec(1usize..50, 1..8),
    ) {
        let stream = [vec![0, 0, 0, 3], frames.concat()].concat();
        prop_assert_eq!(cut(&stream, &[usize::MAX / 2]), cut(&stream, &pieces));
    }

    #[test]
    fn any_frames_never_panic(
        frames in vec((vec(any::<u8>(), 0..130), vec(any::<u8>(), 0..64)), 0..8),
        serving in any::<bool>(),
    ) {
        let mut rig = if serving { Rig::serving(true, &Limits::TEST_MIN) } else { Rig::haggling() };
        for (head, body) in frames {
            rig.raw(&head, &body);
        }
    }

    #[test]
    fn any_clients_never_panic(
        flags in 0u8..4,
        frames in vec((anything(), any::<bool>(), any::<bool>()), 0..40),
    ) {
        let mut rig = Rig::new(&Limits::TEST_MIN);
        rig.greet();
        rig.feed(&[0, 0, 0, flags]);
        for (frame, refreshes, done) in frames {
            let mut probe = rig.input.framer.clone();
            // Nonsense may be half a frame; then the connection stops here.
            match probe.frame(&frame) {
                Ok(Framing::Frame { head, body }) if head + body == frame.len() => {}
                _ => break,
            }
            rig.refreshes = refreshes;
            rig.feed(&frame);
            rig.refresh();
            if done && !rig.asked.is_empty() {
                let len = rig.asked[0].1.len as usize;
                rig.done(Ok(&vec![0x5a; len.min(1 << 20)]));
            }
        }
    }

    /// For any requests, and any order and kind of completions: there is one reply per request,
    /// with its cookie; never more than the limit are in flight; and reading resumes in the end.
    #[test]
    fn every_request_gets_exactly_one_reply(
        structured in any::<bool>(),
        requests in vec((0u16..32, 0u16..9, 0u64..40, 0u32..40), 1..60),
        picks in vec((any::<prop::sample::Index>(), 0u8..8), 200),
    ) {
        let limits = Limits::TEST_MIN;
        let mut rig = Rig::serving(structured, &limits);
        let mut sizes = BTreeMap::new();
        let mut picks = picks.into_iter();
        let mut complete = |rig: &mut Rig, all: bool| {
            while !rig.asked.is_empty() {
                let Some((index, how)) = picks.next() else { break };
                if !all && how > 3 {
                    break;
                }
                let (tag, request) = rig.asked.remove(index.index(rig.asked.len()));
                let len = match request.kind {
                    BlockKind::Read => request.len as usize,
                    BlockKind::Extents => (request.len as usize).div_ceil(4096 * 8) + 1,
                    _ => 0,
                };
                let result = if how == 0 { Err(BlockError::Lost) } else { Ok(&vec![0xa5; len][..]) };
                rig.done_tag(tag, result);
            }
        };
        let mut sent = Vec::new();
        for (cookie, (flags, command, at, len)) in requests.iter().enumerate() {
            if *command == NBD_CMD_DISC {
                continue;
            }
            // Ranges that often reach the end of the volume, and sometimes are not aligned.
            let (at, len) = (at * (1 << 19), if *len == 39 { 700 } else { len * 16384 });
            let read = if *command == NBD_CMD_READ { len as usize } else { 0 };
            sizes.insert(cookie as u64, read);
            rig.feed(&request(*flags, *command, cookie as u64, at, len));
            prop_assert!(rig.session.in_flight() <= limits.nbd_requests as usize);
            complete(&mut rig, false);
            sent.extend(rig.sent());
        }
        complete(&mut rig, true);
        sent.extend(rig.sent());
        prop_assert!(rig.asked.is_empty(), "the picks were enough");
        let mut cookies: Vec<u64> =
            replies(&sent, &|cookie| sizes[&cookie]).iter().map(|r| r.cookie).collect();
        cookies.sort();
        prop_assert_eq!(cookies, sizes.keys().copied().collect::<Vec<_>>());
        let told = rig.told();
        prop_assert!(told.chunks(2).all(|pair| pair == [Told::Pause, Told::Resume]), "{:?}", told);
        prop_assert_eq!(rig.pool.used(), 0);
    }
}

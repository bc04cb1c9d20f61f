//! The framer, over every cut of a stream.

use super::initiator::*;
use base::Limits;
use seam::{FrameError, Framer, Framing};
use target::iscsi::{IscsiFramer, Mode};

fn mode(header_digest: bool, data_digest: bool) -> Mode {
    Mode { full: true, header_digest, data_digest }
}

/// Splits a stream of which the first `first` bytes arrive together, and then single bytes.
fn cut(stream: &[u8], first: usize, mode: Mode) -> (Vec<(usize, usize)>, Option<FrameError>) {
    let mut framer = IscsiFramer::new(&Limits::SHIPPED);
    framer.set_mode(mode.number());
    let (mut frames, mut start, mut there) = (Vec::new(), 0, first);
    loop {
        match framer.frame(&stream[start..there.max(start)]) {
            Ok(Framing::Need(n)) => {
                assert!(n > there.saturating_sub(start) && n <= 128);
                if there >= stream.len() {
                    return (frames, None);
                }
                there += 1;
            }
            Ok(Framing::Frame { head, body }) => {
                assert!((1..=128).contains(&head));
                frames.push((head, body));
                start += head + body;
            }
            Err(why) => return (frames, Some(why)),
        }
    }
}

fn requests() -> Vec<Request> {
    let nop = |data: &[u8]| Request::new(0x40, 0x80, 1).data(data);
    let with_ahs = |words: usize| Request { ahs: vec![1; words * 4], ..nop(b"abcde") };
    vec![nop(b""), nop(b"abc"), nop(b"abcd"), with_ahs(1), with_ahs(19), with_ahs(20), nop(b"x")]
}

#[test]
fn the_result_does_not_depend_on_the_pieces() {
    for (header, data) in [(false, false), (true, false), (false, true), (true, true)] {
        let mode = mode(header, data);
        let bytes: Vec<u8> =
            requests().iter().flat_map(|request| request.bytes((header, data))).collect();
        let (frames, error) = cut(&bytes, bytes.len(), mode);
        let lengths: usize = frames.iter().map(|(head, body)| head + body).sum();
        assert_eq!((lengths, error), (bytes.len(), None));
        for first in 0..bytes.len() {
            assert_eq!(cut(&bytes, first, mode), (frames.clone(), None), "{first}, {mode:?}");
        }
    }
}

#[test]
fn padding_and_digest_are_a_frame_of_their_own() {
    let frames = |mode, digests| {
        let bytes: Vec<u8> = requests().iter().flat_map(|r| r.bytes(digests)).collect();
        cut(&bytes, 0, mode).0
    };
    let plain = [(48, 0), (48, 3), (1, 0), (48, 4), (52, 5), (3, 0), (124, 5), (3, 0)];
    let plain = [&plain[..], &[(48, 88), (48, 1), (3, 0)]].concat();
    assert_eq!(frames(mode(false, false), (false, false)), plain);
    let both = [(52, 0), (52, 3), (5, 0), (52, 4), (4, 0), (56, 5), (7, 0), (128, 5), (7, 0)];
    let both = [&both[..], &[(48, 96), (52, 1), (7, 0)]].concat();
    assert_eq!(frames(mode(true, true), (true, true)), both);
}

#[test]
fn a_length_is_only_believed_after_its_digest() {
    let mut bytes = Request::new(0x40, 0x80, 1).data(&[1; 100]).bytes((true, true));
    assert_eq!(cut(&bytes, 0, mode(true, true)).1, None);
    bytes[5] = 0xff;
    assert_eq!(cut(&bytes, 0, mode(true, true)), (vec![], Some(FrameError::BadHead)));
    assert_eq!(cut(&bytes, 0, mode(false, true)), (vec![], Some(FrameError::TooLong)));
}

#[test]
fn a_login_has_short_data() {
    let frame = |len: usize, mode: Mode| {
        let bytes = Request::new(0x43, 0x80, 1).data(&vec![0; len]).bytes((false, false));
        cut(&bytes, bytes.len(), mode).1
    };
    let full = mode(false, false);
    assert_eq!(frame(8192, Mode::default()), None);
    assert_eq!(frame(8193, Mode::default()), Some(FrameError::TooLong));
    assert_eq!(frame(256 << 10, full), None);
    assert_eq!(frame((256 << 10) + 1, full), Some(FrameError::TooLong));
}

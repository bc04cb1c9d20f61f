//! The framer, over every cut of a stream, and what is no PDU.

use super::host::*;
use super::rig::*;
use base::Limits;
use seam::{Framer, Framing};
use target::nvme::NvmeFramer;

/// Splits a stream of which the first `first` bytes arrive together, and then single bytes.
fn cut(stream: &[u8], first: usize) -> Vec<(usize, usize)> {
    let mut framer = NvmeFramer::new(&Limits::SHIPPED);
    let (mut frames, mut start, mut there) = (Vec::new(), 0, first);
    loop {
        match framer
            .frame(&stream[start..there.max(start)])
            .expect("the session says what is wrong")
        {
            Framing::Need(n) => {
                assert!(n > there.saturating_sub(start) && n <= 128);
                if there >= stream.len() {
                    return frames;
                }
                there += 1;
            }
            Framing::Frame { head, body } => {
                assert!((1..=128).contains(&head));
                frames.push((head, body));
                start += head + body;
            }
        }
    }
}

fn requests() -> Vec<Request> {
    vec![
        Request::set_up(0, (true, true)),
        Command::new(0x18, 1).request(),
        Command::new(0x01, 2).carries(&[3; 512]).request(),
        Request::host_data((1, 7), 0, true, &[1; 9]),
        Request::new(0x02, 0, 24).data(&[5; 72]),
        Command::new(0x18, 3).request(),
    ]
}

#[test]
fn the_result_does_not_depend_on_the_pieces() {
    for digests in [(false, false), (true, false), (false, true), (true, true)] {
        let bytes: Vec<u8> = requests().iter().flat_map(|r| r.bytes(digests)).collect();
        let frames = cut(&bytes, bytes.len());
        let lengths: usize = frames.iter().map(|(head, body)| head + body).sum();
        assert_eq!(lengths, bytes.len());
        for first in 0..bytes.len() {
            assert_eq!(cut(&bytes, first), frames, "{first}, {digests:?}");
        }
    }
}

#[test]
fn the_digest_of_data_is_a_frame_of_its_own() {
    let frames = |digests| {
        let bytes: Vec<u8> = requests().iter().flat_map(|r| r.bytes(digests)).collect();
        cut(&bytes, 0)
    };
    let plain = [(128, 0), (72, 0), (72, 512), (24, 9), (24, 72), (72, 0)];
    assert_eq!(frames((false, false)), plain);
    let both = [(128, 0), (76, 0), (76, 512), (4, 0), (28, 9), (4, 0), (24, 72), (76, 0)];
    assert_eq!(frames((true, true)), both);
}

/// The host changes one byte of a PDU.
fn spoiled(request: &Request, digests: Digests, at: usize, byte: u8) -> Vec<u8> {
    let mut bytes = request.bytes(digests);
    bytes[at] = byte;
    bytes
}

#[test]
fn what_is_no_pdu_is_named_to_the_host() {
    let command = Command::new(0x18, 1).request();
    let data = Request::host_data((1, 7), 0, true, &[1; 512]);
    let both = (true, true);
    // The bytes, the error, and the field.
    let table = [
        (spoiled(&command, both, 0, 0x05), (1, 0)), // a PDU of the target
        (spoiled(&command, both, 0, 0x0b), (1, 0)),
        (spoiled(&command, both, 2, 71), (1, 2)),
        (spoiled(&command, both, 4, 75), (1, 3)), // shorter than its header
        (spoiled(&data, both, 3, 24), (1, 3)),    // data within the digest
        (spoiled(&data, both, 3, 132), (1, 3)),
        (spoiled(&data, both, 3, 30), (1, 3)),
        (spoiled(&data, both, 5, 0), (1, 4)), // shorter than its offset says
        (spoiled(&data, both, 7, 1), (5, 0)), // 16 MiB
        (spoiled(&command, both, 20, 1), (3, 0)),
        (spoiled(&data, both, 11, 1), (3, 0)),
        (spoiled(&Request::set_up(0, both), (false, false), 1, 1), (1, 1)),
        (spoiled(&Request::new(0x02, 0, 24), (false, false), 5, 1), (5, 0)),
    ];
    for (bytes, fault) in table {
        let mut rig =
            Rig::set_up(&Limits::SHIPPED, Options { digests: both, ..Options::default() });
        rig.feed(&bytes);
        assert_eq!(rig.fault(), fault, "{:02x?}", &bytes[..24]);
    }
}

#[test]
fn a_request_to_terminate_quotes_the_header() {
    let mut rig = Rig::set_up(&Limits::SHIPPED, Options::default());
    let request = Request::host_data((1, 0x1234), 0, true, &[1; 512]);
    rig.send(&request);
    let answer = rig.answer();
    assert_eq!(
        (answer.fault(), answer.data),
        ((1, 10), request.bytes((false, false))[..24].into())
    );
    assert!(rig.session.is_closed());
}

#[test]
fn digests_are_those_that_were_agreed() {
    for digests in [(false, false), (true, false), (false, true), (true, true)] {
        for other in [(false, false), (true, false), (false, true), (true, true)] {
            let options = Options { digests, ..Options::default() };
            let mut rig = Rig::io(&Limits::SHIPPED, options);
            let write = Command::blocks(0x01, 1, 0, 1).carries(&[9; 512]);
            rig.feed(&write.request().bytes(other));
            if digests == other {
                assert_eq!(rig.answer().answer(), (1, 0, 0));
            } else {
                assert_eq!(rig.fault(), (1, 1), "{digests:?}, {other:?}");
            }
        }
    }
}

#[test]
fn a_connection_is_set_up_once_and_first() {
    let limits = Limits::SHIPPED;
    let mut rig = Rig::new(&limits);
    rig.ask(&Command::new(0x18, 1));
    assert_eq!(rig.fault(), (2, 0));
    let mut rig = Rig::set_up(&limits, Options::default());
    rig.send(&Request::set_up(0, (false, false)));
    assert_eq!(rig.fault(), (2, 0));
    let mut rig = Rig::new(&limits);
    rig.send(&Request::set_up(0, (false, false)).put(8, &[1]));
    assert_eq!(rig.fault(), (6, 8), "another version");
    let mut rig = Rig::new(&limits);
    rig.send(&Request::set_up(32, (false, false)));
    assert_eq!(rig.fault(), (1, 10), "an alignment of 132 bytes");
    let mut rig = Rig::set_up(&limits, Options::default());
    rig.send(&Request::new(0x02, 0, 24).data(&[5; 72]));
    assert!(rig.answers().is_empty() && rig.session.is_closed(), "the host ends it");
}

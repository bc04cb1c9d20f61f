//! Tests of the messages of vhost-user.

mod log;

use proptest::prelude::*;
use target::vhost::message::{Addresses, BODY_MAX, Config, File, Log, Notes, Region, Ring};
use target::vhost::{Fault, Head, Message, reply};

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn a_head_tells_the_request_its_length_and_whether_an_answer_is_wanted() {
    let head = |flags: u32, len: u32| {
        let bytes: Vec<u8> = [5, flags, len].iter().flat_map(|w: &u32| w.to_le_bytes()).collect();
        Head::parse(bytes.as_slice().try_into().unwrap())
    };
    assert_eq!(head(1, 8), Ok(Head { request: 5, need_reply: false, len: 8 }));
    assert_eq!(head(9, 0), Ok(Head { request: 5, need_reply: true, len: 0 }));
    assert_eq!((head(2, 8), head(0, 8)), (Err(Fault::Version(2)), Err(Fault::Version(0))));
    let long = BODY_MAX as u32 + 1;
    assert_eq!(
        (head(1, long), head(1, u32::MAX)),
        (Err(Fault::Long(long)), Err(Fault::Long(u32::MAX)))
    );
}

#[test]
fn messages_are_read_as_the_protocol_lays_them_out() {
    let of = |request, body: &[u8], files| Message::parse(request, body, files);
    let ring = |queue, value| Ring { queue, value };
    let pair = (7u64 << 32 | 2).to_le_bytes();
    assert_eq!(of(1, &[], 0), Ok(Message::GetFeatures));
    assert_eq!(of(2, &words(&[1 << 32]), 0), Ok(Message::SetFeatures(1 << 32)));
    assert_eq!(of(8, &pair, 0), Ok(Message::SetVringNum(ring(2, 7))));
    assert_eq!(of(10, &pair, 0), Ok(Message::SetVringBase(ring(2, 7))));
    assert_eq!(of(11, &pair, 0), Ok(Message::GetVringBase { queue: 2 }));
    assert_eq!(of(18, &pair, 0), Ok(Message::SetVringEnable(ring(2, 7))));
    let addresses = |log| Addresses { queue: 3, descriptors: 10, used: 20, available: 30, log };
    for (flags, log) in [(0, None), (1, Some(40)), (2, None)] {
        let body = words(&[flags << 32 | 3, 10, 20, 30, 40]);
        assert_eq!(of(9, &body, 0), Ok(Message::SetVringAddr(addresses(log))));
    }
    let log = Log { len: 50, offset: 60 };
    assert_eq!(of(6, &words(&[50, 60]), 1), Ok(Message::SetLogBase(log)));
    assert_eq!(of(7, &[], 1), Ok(Message::SetLogFd));
    let file = |has_file| File { queue: 1, has_file };
    assert_eq!(of(12, &words(&[1]), 1), Ok(Message::SetVringKick(file(true))));
    assert_eq!(of(13, &words(&[0x101]), 0), Ok(Message::SetVringCall(file(false))));
    assert_eq!(of(14, &words(&[1]), 1), Ok(Message::SetVringErr(file(true))));
    let region = |n| Region { guest: n, len: n + 1, user: n + 2, offset: n + 3 };
    let table = words(&[2, 10, 11, 12, 13, 20, 21, 22, 23]);
    assert_eq!(of(5, &table, 2), Ok(Message::SetMemTable(vec![region(10), region(20)])));
    let config = [4u32, 8, 1].iter().flat_map(|w| w.to_le_bytes()).chain([0; 8]);
    let config: Vec<u8> = config.collect();
    assert_eq!(of(24, &config, 0), Ok(Message::GetConfig(Config { offset: 4, len: 8, flags: 1 })));
    assert_eq!(of(25, &config, 0), Ok(Message::SetConfig));
    let notes = Notes { len: 100, offset: 200, queues: 4, size: 128 };
    let body = words(&[100, 200, 128 << 16 | 4]);
    assert_eq!(of(31, &body, 0), Ok(Message::GetInflight(notes)));
    assert_eq!(of(32, &body[..20], 1), Ok(Message::SetInflight(notes)));
    let empty = [
        (3, Message::SetOwner),
        (4, Message::ResetOwner),
        (15, Message::GetProtocolFeatures),
        (17, Message::GetQueueNum),
        (34, Message::ResetDevice),
    ];
    empty.into_iter().for_each(|(request, message)| assert_eq!(of(request, &[], 0), Ok(message)));
    assert_eq!(of(21, &[], 1), Ok(Message::SetBackendSocket));
}

#[test]
fn wrong_lengths_and_wrong_numbers_of_files_are_refused() {
    for request in [2, 6, 8, 9, 10, 11, 12, 13, 14, 16, 18, 24, 25, 31, 32] {
        for len in [0, 7, 9, 39, 41, BODY_MAX] {
            let refused = Message::parse(request, &vec![0; len], 0);
            assert_eq!(refused, Err(Fault::Length { request, len }), "{request} {len}");
        }
    }
    for (count, len) in [(9, 8 + 9 * 32), (2, 8 + 32), (u64::MAX, 8), (0, 7)] {
        let mut body = words(&[count]);
        body.resize(len, 0);
        assert!(matches!(Message::parse(5, &body, 0), Err(Fault::Length { .. })), "{count}");
    }
    let files = |request, body: &[u8], files| {
        Message::parse(request, body, files) == Err(Fault::Files { request, files })
    };
    assert!(files(1, &[], 1) && files(12, &words(&[0]), 0) && files(12, &words(&[0x100]), 1));
    assert!(files(5, &words(&[1, 0, 0, 0, 0]), 0) && files(21, &[], 0) && files(21, &[], 2));
    assert!(files(6, &words(&[1, 0]), 0) && files(6, &words(&[1, 0]), 2) && files(7, &[], 0));
    for request in [0, 19, 20, 22, 28, 33, 35, 40, u32::MAX] {
        assert_eq!(Message::parse(request, &[], 0), Err(Fault::Unknown(request)));
    }
}

#[test]
fn answers_are_as_the_protocol_lays_them_out() {
    let head = |request: u32, len: u32| [request, 5, len].map(u32::to_le_bytes).concat();
    assert_eq!(reply::number(15, 9), [head(15, 8), words(&[9])].concat());
    assert_eq!(reply::ring(11, 2, 7), [head(11, 8), words(&[7 << 32 | 2])].concat());
    let config = reply::config(24, Config { offset: 1, len: 4, flags: 0 }, |to| to.fill(3));
    assert_eq!(
        config,
        [head(24, 16), words(&[4 << 32 | 1])[..8].to_vec(), vec![0; 4], vec![3; 4]].concat()
    );
    let notes = reply::notes(31, Notes { len: 100, offset: 0, queues: 4, size: 128 });
    assert_eq!(notes, [head(31, 24), words(&[100, 0, 128 << 16 | 4])].concat());
    assert_eq!(reply::config_changed(), [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_a_fault(
        request in 0u32..45,
        body in proptest::collection::vec(any::<u8>(), 0..=BODY_MAX),
        files in 0usize..10,
    ) {
        if let Ok(Message::SetMemTable(regions)) = Message::parse(request, &body, files) {
            prop_assert!(regions.len() == files && files <= 8);
        }
    }
}

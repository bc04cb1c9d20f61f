//! In-band authentication: what a host may do before it is authenticated, and each message.

use super::auth_host::*;
use super::host::*;
use super::rig::*;
use base::Limits;
use sha2::{Digest, Sha256};
use target::ident;

const AUTH_REQUIRED: u16 = 0x4191;
const FIELD: u16 = 0x4002;
const OPCODE: u16 = 0x4001;
const SEQUENCE: u16 = 0x400c;
const SGL_LENGTH: u16 = 0x400f;

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digit).collect()
}

/// The host's element of ffdhe2048: 2 to the power of an exponent of 32 bytes 77.
const ELEMENT: &str = "ae34643e241afd5a002e0619a830b5ce5ec75a85e8ac7089822ea5c3fa0940c4\
    aa68af7e57f3b1ddfcb754117539c922725abc3dd95499bd3a69b78f726d7dba\
    836e038abbcce698924c46886a9e230a56a1277b7842e45dab1f9cf1d586390d\
    2e04be49e843d4f427d0ec8dc47ce277b55bdd3c47a7aa6bbcfa3ca11f7489dd\
    f3debff6faa2824bbabde67304c700cecb295027b820cd244b6648f8993bfa18\
    fa2674259ea2bbc21fe3c2532fd52251d2395631371bc3a6b4f8eaad5df58c13\
    268bde3d51e7bccd20d97ba29f1f2dc87be66d176f507ff4d245b8fd1028b088\
    c4d94a20a50b40ec504201f70258c074018f899b4426d3a8c16f37b203fba7af";
/// The digest of ours.
const OURS: &str = "d9d54327dfcf88ce68751b34c23146fc09bac68ac5c26858b4b6b78ce2492b31";

/// The prime of ffdhe2048 (RFC 7919, appendix A.1).
const PRIME: &str = "ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695\
    a9e13641146433fbcc939dce249b3ef97d2fe363630c75d8f681b202aec4617a\
    d3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935\
    984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797a\
    bc0ab182b324fb61d108a94bb2c8e3fbb96adab760d7f4681d4f42a3de394df4\
    ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f61\
    9172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005\
    c58ef1837d1683b2c6f34a26c1b2effa886b423861285c97ffffffffffffffff";

/// Hash function, group, the indices of the host's key and of ours, the proof of the host, and
/// ours. Computed with `hmac`, `hashlib`, `pow` and `zlib.crc32` of Python, from the formulas of
/// the specification: the host's challenge is all 5a with the sequence number 01020304, and ours
/// follows from the seed of the rig: `hmac.new(bytes([9]*32), struct.pack('>I', n), 'sha512')` with
/// n = 1 is our challenge, and with n = 2 our exponent and sequence number.
const KNOWN: [(u8, u8, usize, usize, &str, &str); 4] = [
    (
        1,
        0,
        1,
        0,
        "12ac442c6ad447fb44ca7fb7d278302510faf9b3d76ce6cc31bf44925aeedd04",
        "248ca21f2c8b76da6f97cd11b6a66af6ed727a20cf347c02a8580e21b142e92c",
    ),
    (
        2,
        0,
        2,
        3,
        "ba43c4066f308e17abbc0ac98ac037d63f8055b6a426bba15ea6b98845122dad8e8be7c32f4948fa6b32febd\
         a2202539",
        "7f7fe97e69007b72f6410268e3452e4ef0db2485eeaee5eb7de49f01c3924a7b849d680743084bf0c61f0197\
         8163943f",
    ),
    (
        3,
        0,
        3,
        2,
        "c82e493548e6ada39dd43b303dc7d2ae707ea99a923a1c012b922b172d77d04dece5b61525ee9a61c2d18c00\
         8e80ea9ba99221f40ed3a6feb4f81d0f640ca325",
        "f2f13fa0225c173d9ce8c6b904896b7f9081d664c8194948a702670530cdafeed9ef6e70a17cb35d59ab4cd6\
         43fa1a37681816c00f31782cc2a186f84040b947",
    ),
    (
        1,
        1,
        1,
        0,
        "3a96a702a74b8351c2f1806e4363c76ab496620d263ef8668b0df7c7b5de2801",
        "49be4869567099b6819cd8782101b470a47da25b095218201ffda1ac2f8d21ff",
    ),
];

#[test]
fn proofs_are_those_of_the_specification() {
    for (hash, group, host, own, proof, ours) in KNOWN {
        let mut rig = Rig::closed(0);
        rig.hosts.keys = Some((key(host), Some(key(own))));
        let len = proof.len() / 2;
        assert_eq!(rig.tell(&negotiate(&[9, hash, 1], &[4, 0, group])), 0);
        let element = if group == 1 { bytes(ELEMENT) } else { Vec::new() };
        let challenge = rig.hear(16 + len + element.len());
        let lengths = [len as u8, 0, hash, group, 0, u8::from(group == 1)];
        assert_eq!(challenge[..12], message((1, 1), &lengths));
        assert_eq!(challenge[12..24], bytes("d4a7396f3eec622b910b323b"));
        if group == 1 {
            assert_eq!(Sha256::digest(&challenge[16 + len..])[..], bytes(OURS));
        }
        let asks = Some((vec![0x5a; len], 0x0102_0304));
        assert_eq!(rig.tell(&Reply { proof: bytes(proof), asks, element }.message()), 0);
        let success = rig.hear(16 + len);
        assert_eq!(success[..16], message((1, 3), &[len as u8, 0, 1, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(success[16..], bytes(ours));
        assert!(rig.session.controller().is_none(), "the host has to confirm");
        assert_eq!(rig.tell(&message((1, 4), &[0; 10])), 0);
        assert_eq!(rig.session.controller().unwrap().cntlid, CNTLID);
        assert_eq!(rig.result(&Command::property_set(2, 0x14, 0x46_0001)), (0, 0));
        assert_eq!(rig.told(), []);
    }
}

#[test]
fn hosts_without_a_key_need_not_authenticate() {
    for keys in [None, Some((key(0), None))] {
        let mut rig = Rig::set_up(&Limits::SHIPPED, Options::default());
        let name = if keys.is_some() { DISCOVERY.into() } else { ident::nqn(CLUSTER) };
        rig.hosts.keys = keys;
        let result = rig.connect(0, 0xffff, &name, Options::default());
        assert_eq!(result, (0, CNTLID.into()));
        assert_eq!(rig.result(&Command::property_get(3, 0x1c, 0)), (0, 0));
        assert_eq!(rig.tell(&negotiate(&[1], &[0])), OPCODE);
        assert_eq!(rig.result(&receive(512)).0, OPCODE);
    }
}

#[test]
fn a_host_does_nothing_before_it_is_authenticated() {
    for qid in [0, 1] {
        let mut rig = Rig::closed(qid);
        let data = [0; 512];
        let commands = [
            Command::property_get(3, 0x1c, 0),
            Command::property_set(3, 0x14, 0x46_0001),
            Command::connect(3, qid, 31, 0),
            Command::identify(3, 1, 0),
            Command::new(0x18, 3),
            Command::new(0x0c, 3),
            Command::read(3, 0, 1),
            Command::write(3, 0, 1),
            Command::blocks(0x01, 3, 0, 1).carries(&data),
            Command::blocks(0x05, 3, 0, 1).carries(&data).put(1, &[0x41]),
            Command::blocks(0x01, 3, 0, 1).carries(&data).put(1, &[0x42]),
            Command::deallocate(3, &[(0, 1)]),
            send(&negotiate(&[1], &[0])).put(1, &[0x41]),
        ];
        let refused = |rig: &mut Rig| {
            for command in &commands {
                rig.ask(command);
                assert_eq!(rig.answer().answer().1, AUTH_REQUIRED, "{command:02x?}");
            }
            assert!(rig.session.controller().is_none() && rig.session.io_queue().is_none());
            assert_eq!((rig.told(), rig.session.in_flight()), (vec![], 0));
        };
        refused(&mut rig);
        let challenge = rig.challenge();
        refused(&mut rig);
        assert_eq!(rig.tell(&right(&challenge).message()), 0);
        refused(&mut rig);
        rig.hear(16);
        if qid == 0 {
            assert!(rig.session.controller().is_some());
        } else {
            assert_eq!(rig.session.io_queue(), Some((CNTLID, 1)));
            assert_eq!(rig.fetch(&Command::read(4, 0, 1)).len(), 512);
        }
    }
}

#[test]
fn a_host_may_leave_before_it_is_authenticated() {
    let mut rig = Rig::closed(1);
    assert_eq!(rig.result(&Command::fabrics(8, 5)).0, 0);
    assert_eq!(rig.told(), [Told::Close(None)]);
}

#[test]
fn wrong_proofs_fail() {
    let with = |change: &dyn Fn(&mut Rig, Vec<u8>) -> Vec<u8>, of: &str| {
        for qid in [0, 1] {
            let mut rig = Rig::closed(qid);
            let challenge = rig.challenge();
            let reply = change(&mut rig, challenge);
            assert_eq!(rig.tell(&reply), 0);
            assert_eq!(rig.result(&Command::new(0x18, 3)).0, AUTH_REQUIRED);
            assert_eq!(rig.fails(1, of), TRANSACTION);
        }
    };
    for bit in [0, 100, 255] {
        let flipped = |_: &mut Rig, challenge: Vec<u8>| {
            let mut reply = right(&challenge);
            reply.proof[bit / 8] ^= 1 << (bit % 8);
            reply.message()
        };
        with(&flipped, "a wrong bit");
    }
    let other = |rig: &mut Rig, challenge: Vec<u8>| {
        rig.hosts.keys = Some((key(1), None));
        right(&challenge).message()
    };
    with(&other, "another key");
    let none = |rig: &mut Rig, challenge: Vec<u8>| {
        rig.hosts.keys = None;
        right(&challenge).message()
    };
    with(&none, "the key was taken away");
    let zeros = |_: &mut Rig, challenge: Vec<u8>| {
        Reply { proof: vec![0; 32], ..right(&challenge) }.message()
    };
    with(&zeros, "zeros");
}

#[test]
fn messages_come_in_their_order() {
    let first = negotiate(&[1], &[0]);
    let success2 = message((1, 4), &[0; 10]);
    let strange = message((2, 0), &[0; 10]);
    let reply = right(&[0; 48]).message();
    for (told, of) in [
        (vec![&reply], "a reply to nothing"),
        (vec![&success2], "a confirmation of nothing"),
        (vec![&message((0, 0xf1), &[1, 1])], "our own message"),
        (vec![&message((1, 1), &[0; 42])], "our own challenge"),
        (vec![&strange], "an unknown type"),
        (vec![], "nothing"),
        (vec![&first, &first], "a second offer"),
        (vec![&first, &reply], "a reply to an unknown challenge"),
    ] {
        let mut rig = Rig::closed(0);
        told.iter().for_each(|message| assert_eq!(rig.tell(message), 0));
        rig.fails(7, of);
    }
    for (told, of) in [(&first, "a second offer"), (&success2, "a confirmation"), (&strange, "?")] {
        let mut rig = Rig::closed(0);
        let challenge = rig.challenge();
        assert_eq!(rig.tell(told), 0);
        assert_eq!(rig.tell(&right(&challenge).message()), 0);
        rig.fails(7, of);
    }
    let mut rig = Rig::closed(0);
    rig.challenge();
    rig.fails(7, "the challenge is fetched twice");
    let mut rig = Rig::closed(0);
    let challenge = rig.challenge();
    let reply = right(&challenge).message();
    assert_eq!((rig.tell(&reply), rig.tell(&reply)), (0, 0));
    rig.fails(7, "two replies");
}

#[test]
fn other_offers_are_refused_with_their_reason() {
    let head =
        |channel, count: u8, rest: &[u8]| message((0, 0), &[&[channel, count][..], rest].concat());
    let good = offer(&[1], &[0]);
    let other = [&[2][..], &[0; 63]].concat();
    let put = |at: usize, value| {
        let mut offer = good.clone();
        offer[at] = value;
        offer
    };
    for (message, why) in [
        (head(1, 1, &good), 3),
        (head(0, 0, &[]), 2),
        (head(0, 1, &other), 2),
        (negotiate(&[], &[0]), 4),
        (negotiate(&[0, 4, 9], &[0]), 4),
        (negotiate(&[1], &[]), 5),
        (negotiate(&[1], &[2, 3, 4, 5]), 5),
        (head(0, 1, &put(2, 31)), 6),
        (head(0, 1, &put(3, 31)), 6),
        (head(0, 2, &good), 6),
    ] {
        let mut rig = Rig::closed(0);
        assert_eq!(rig.tell(&message), 0);
        rig.fails(why, &format!("{message:02x?}"));
    }
    let mut rig = Rig::closed(0);
    assert_eq!(rig.tell(&head(0, 2, &[other, good].concat())), 0);
    assert_eq!(rig.hear(48)[..2], [1, 1], "the second offer is taken");
}

#[test]
fn short_messages_and_wrong_lengths_fail() {
    let offer = negotiate(&[1], &[0]);
    for len in 1..offer.len() {
        let mut rig = Rig::closed(0);
        assert_eq!(rig.tell(&offer[..len]), 0);
        rig.fails(6, &format!("{len} bytes"));
    }
    let reply = right(&Rig::closed(0).challenge());
    let whole = Reply { asks: Some((vec![5; 32], 7)), ..reply.clone() }.message();
    for len in 1..whole.len() {
        let mut rig = Rig::closed(0);
        rig.challenge();
        assert_eq!(rig.tell(&whole[..len]), 0);
        rig.fails(6, &format!("{len} bytes"));
    }
    // The length of digests; that of the element; "asks"; and the transaction.
    for (at, value) in
        [(6, 0), (6, 31), (6, 48), (6, 255), (10, 4), (11, 1), (8, 2), (4, 0), (5, 0)]
    {
        let mut rig = Rig::closed(0);
        rig.challenge();
        let mut message = whole.clone();
        message[at] = value;
        assert_eq!(rig.tell(&message), 0);
        rig.fails(6, &format!("{value} at {at}"));
    }
    for (len, transaction) in [(6, TRANSACTION), (15, TRANSACTION), (16, 5)] {
        let mut rig = Rig::closed(0);
        let challenge = rig.challenge();
        let asks = Some((vec![5; 32], 7));
        assert_eq!(rig.tell(&Reply { asks, ..right(&challenge) }.message()), 0);
        rig.hear(48);
        let mut confirmation = message((1, 4), &[0; 10]);
        confirmation[4..6].copy_from_slice(&transaction.to_le_bytes());
        assert_eq!(rig.tell(&confirmation[..len]), 0);
        rig.fails(6, "a wrong confirmation");
    }
}

#[test]
fn elements_that_give_the_secret_away_are_refused() {
    let prime = bytes(PRIME);
    let mut last = prime.clone();
    last[255] -= 1;
    let mut one = vec![0; 256];
    one[255] = 1;
    for element in [vec![0; 256], one, last, prime, vec![0xff; 256], vec![7; 255], vec![7; 260]] {
        let mut rig = Rig::closed(0);
        assert_eq!(rig.tell(&negotiate(&[1], &[1])), 0);
        rig.hear(16 + 32 + 256);
        let reply = Reply { proof: vec![0; 32], asks: None, element };
        assert_eq!(rig.tell(&reply.message()), 0);
        rig.fails(6, &format!("{:02x?}", reply.element));
    }
}

#[test]
fn fields_of_the_commands_are_checked_and_change_nothing() {
    let mut rig = Rig::closed(0);
    let offer = negotiate(&[1], &[0]);
    for at in [41, 42, 43] {
        assert_eq!(rig.result(&send(&offer).put(at, &[0])).0, FIELD);
        assert_eq!(rig.result(&receive(512).put(at, &[0])).0, FIELD);
    }
    assert_eq!(rig.result(&send(&offer).u32(44, 0)).0, FIELD);
    assert_eq!(rig.result(&send(&[0; 4097])).0, FIELD);
    assert_eq!(rig.result(&send(&offer).u32(44, 71)).0, SGL_LENGTH);
    assert_eq!(rig.result(&receive(512).u32(44, 513)).0, SGL_LENGTH);
    assert_eq!(rig.tell(&offer), 0);
    for len in [0, 8, 47] {
        assert_eq!(rig.result(&receive(len)).0, FIELD, "{len}");
    }
    assert_eq!(rig.fetch(&receive(48)).len(), 48);
    let mut rig = Rig::closed(0);
    assert_eq!(rig.tell(&offer), 0);
    assert_eq!(rig.fetch(&receive(1 << 20)).len(), 4096);
}

#[test]
fn a_message_is_fetched_from_the_host_and_only_one_at_a_time() {
    let mut rig = Rig::closed(0);
    let offer = negotiate(&[1], &[0]);
    rig.ask(&send(&[]).u32(44, 72).at_host(72));
    let r2t = rig.answer();
    assert_eq!(rig.tell(&offer), SEQUENCE);
    rig.give(&r2t, &offer, 50);
    assert_eq!(rig.answer().answer().1, 0);
    assert_eq!(rig.hear(48)[..2], [1, 1]);
}

#[test]
fn we_prove_our_key_only_to_whom_we_know() {
    let with = |asks: Option<(Vec<u8>, u32)>, own: bool| {
        let mut rig = Rig::closed(0);
        rig.hosts.keys = Some((key(0), own.then(|| key(1))));
        let challenge = rig.challenge();
        let asks = asks.map(|(theirs, sequence)| {
            let reflected = theirs.is_empty();
            (if reflected { challenge[16..48].to_vec() } else { theirs }, sequence)
        });
        assert_eq!(rig.tell(&Reply { asks, ..right(&challenge) }.message()), 0);
        rig
    };
    with(Some((vec![5; 32], 7)), false).fails(1, "we have no key");
    with(Some((Vec::new(), 7)), true).fails(1, "our own challenge");
    // A sequence number of 0 asks for nothing.
    let mut rig = with(Some((vec![5; 32], 0)), false);
    assert_eq!(rig.hear(16)[8], 0);
    assert!(rig.session.controller().is_some());
    // The host refuses our proof, before or after it has fetched it.
    for fetches in [false, true] {
        let mut rig = with(Some((vec![5; 32], 7)), true);
        if fetches {
            assert_eq!(rig.hear(48)[8], 1);
        }
        assert_eq!(rig.tell(&message((0, 0xf0), &[1, 1])), 0);
        let why = "does not accept how we have authenticated";
        assert_eq!(rig.told(), [Told::Close(Some(why))]);
        assert!(rig.session.controller().is_none());
    }
}

#[test]
fn a_host_authenticates_again_and_nothing_can_be_replayed() {
    let mut rig = Rig::closed(0);
    rig.authenticate();
    assert_eq!(rig.result(&Command::property_set(2, 0x14, 0x46_0001)), (0, 0));
    let old = Rig::closed(0).challenge();
    for _ in 0..3 {
        let challenge = rig.challenge();
        assert_eq!(rig.result(&Command::new(0x18, 3)).0, 0, "it works meanwhile");
        assert!(challenge[16..] != old[16..] && challenge[12..16] != old[12..16]);
        assert_eq!(rig.tell(&right(&challenge).message()), 0);
        rig.hear(16);
    }
    rig.challenge();
    assert_eq!(rig.tell(&right(&old).message()), 0, "a reply that was heard before");
    assert_eq!(rig.result(&Command::new(0x18, 3)).0, AUTH_REQUIRED);
    rig.fails(1, "a replay");
}

#[test]
fn time_ends_authentications_that_are_not_finished() {
    let late = [Told::Close(Some("has not authenticated in time"))];
    for steps in 0..3 {
        let mut rig = Rig::closed(1);
        rig.tick(100);
        let challenge = if steps > 0 { rig.challenge() } else { Vec::new() };
        rig.tick(114);
        if steps > 1 {
            let asks = Some((vec![5; 32], 7));
            assert_eq!(rig.tell(&Reply { asks, ..right(&challenge) }.message()), 0);
            rig.hear(48);
        }
        assert_eq!(rig.told(), []);
        rig.tick(115);
        assert_eq!(rig.told(), late, "{steps} steps");
    }
    let mut rig = Rig::closed(1);
    rig.tick(100);
    rig.authenticate();
    rig.tick(10_000);
    rig.challenge();
    rig.tick(10_001);
    rig.tick(10_015);
    assert_eq!(rig.told(), []);
    rig.tick(10_016);
    assert_eq!(rig.told(), late, "also when it has begun anew");
}

#[test]
fn a_link_that_authenticates_too_late_is_no_queue() {
    type Change = fn(&mut Hosts);
    let changes: [(u16, Change); 6] = [
        (0, |hosts| hosts.busy = true),
        (0, |hosts| hosts.controller = Some(controller())),
        (1, |hosts| hosts.controller = None),
        (1, |hosts| hosts.controller.as_mut().unwrap().ready = false),
        (1, |hosts| hosts.controller.as_mut().unwrap().host_id = [1; 16]),
        (1, |hosts| hosts.queues.push((CNTLID, 1))),
    ];
    for asks in [false, true] {
        for (i, (qid, change)) in changes.into_iter().enumerate() {
            let mut rig = Rig::closed(qid);
            let challenge = rig.challenge();
            let theirs = asks.then(|| (vec![5; 32], 7));
            assert_eq!(rig.tell(&Reply { asks: theirs, ..right(&challenge) }.message()), 0);
            if asks {
                rig.hear(48);
                change(&mut rig.hosts);
                rig.ask(&send(&message((1, 4), &[0; 10])));
            } else {
                change(&mut rig.hosts);
                rig.ask(&receive(512));
            }
            let why = "has authenticated for a queue that it can't have any more";
            assert_eq!(rig.told(), [Told::Close(Some(why))], "{i}");
            assert_eq!(rig.answers(), []);
            assert!(rig.session.controller().is_none() && rig.session.io_queue().is_none());
        }
    }
}

#[test]
fn nothing_secret_is_in_debug_output() {
    let mut rig = Rig::closed(0);
    assert_eq!(rig.tell(&negotiate(&[1], &[1])), 0);
    rig.hear(304);
    let shown = format!("{:?} {:?}", rig.session, rig.hosts.keys);
    for secret in ["9, 9, 9", "117, 111", "09, 09", "MzmoF"] {
        assert!(!shown.contains(secret), "{secret} in {shown}");
    }
}

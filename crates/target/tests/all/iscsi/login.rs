//! Logins: what an initiator offers, and what it gets.

use super::initiator::*;
use super::rig::*;
use base::time::Duration;
use base::{Limits, Time, VolumeId};
use target::iscsi::{Closed, Credentials, Nexus};

const I: (&str, &str) = ("InitiatorName", HOST);
const T: (&str, &str) = ("TargetName", NAME);

fn rig() -> Rig {
    Rig::new(&Limits::SHIPPED)
}

/// Sends one login request, and returns the status.
fn status(rig: &mut Rig, request: Request) -> u16 {
    rig.send(request);
    let status = rig.answer().login_status();
    assert_eq!(status == 0, !rig.session.is_closed(), "a refused login ends the connection");
    status
}

#[test]
fn each_error_has_its_status() {
    let login = |pairs: &[(&str, &str)]| Request::login(0x87, pairs);
    let rows: &[(u16, Request)] = &[
        (0x0000, login(&[I, T])),
        (0x0000, login(&[I, ("SessionType", "Discovery")])),
        (0x0000, login(&[I, T, ("SessionType", "Normal")])),
        (0x0205, login(&[I, T]).put(2, &[1, 1])),
        (0x0205, login(&[]).put(2, &[1, 1])),
        (0x0207, login(&[T])),
        (0x0207, login(&[I])),
        (0x0207, login(&[("InitiatorName", ""), T])),
        (0x0207, login(&[("InitiatorName", "nqn.2026-11.test:a"), T])), // a host of NVMe
        (0x0207, login(&[("InitiatorName", "iqn.\u{1b}[2J"), T])),
        (0x0207, login(&[("InitiatorName", "iqn.a\nb"), T])),
        (0x0207, login(&[("InitiatorName", "iqn.\u{9b}2J"), T])),
        (0x0207, login(&[("InitiatorName", "iqn.\u{202e}b-a"), T])),
        (0x0207, login(&[("InitiatorName", "iqn.a yes"), T])),
        (0x0209, login(&[I, T, ("SessionType", "Other")])),
        (0x0203, login(&[I, ("TargetName", "iqn.2026-11.io.github.gabion:1.8")])),
        (0x0203, login(&[("InitiatorName", "iqn.x"), ("TargetName", "iqn.y")])),
        (0x0202, login(&[("InitiatorName", "iqn.x"), T])),
        (0x020a, login(&[I, T]).u16(14, 5)),
        (0x0200, login(&[I, T, I])),
        (0x0200, login(&[I, T, ("InitialR2T", "No"), ("InitialR2T", "No")])),
        (0x0200, login(&[I, T, ("MaxBurstLength", "512"), ("FirstBurstLength", "1024")])),
        (0x0200, login(&[I, T]).put(1, &[0x8b])), // to the stage that there is not
        (0x0200, login(&[I, T]).put(1, &[0xc7])), // onward, though the text goes on
        (0x0200, login(&[]).data(b"InitiatorName")),
        (0x020b, Request::command(1, 0x80, 0, &[0; 16])),
        (0x020b, Request::text(1, 0xffff_ffff, &[])),
    ];
    for (expected, request) in rows {
        let mut rig = rig();
        assert_eq!(status(&mut rig, request.clone()), *expected, "{request:?}");
        assert_eq!(rig.session.nexus().is_some(), *expected == 0);
    }
}

#[test]
fn a_normal_login_names_group_and_alias_and_our_segment() {
    let mut rig = rig();
    rig.send(Request::login(0x87, &[I, T, ("FirstBurstLength", "1024")]).u32(24, 9));
    let answer = rig.answer();
    let pairs: Vec<_> = answer.pairs();
    let pairs: Vec<_> = pairs.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let expected = [
        ("TargetPortalGroupTag", "3"),
        ("FirstBurstLength", "1024"),
        ("MaxRecvDataSegmentLength", "262144"),
        ("TargetAlias", "vol"),
    ];
    assert_eq!(pairs, expected);
    // The handle, the next command and the window.
    assert_eq!(answer.bhs[14..16], [0, 0x77]);
    assert_eq!((answer.u32(28), answer.u32(32)), (9, 9 + 127));
    assert_eq!(answer.bhs[8..14], [0x40, 1, 2, 3, 4, 5]);
    let nexus = rig.session.nexus().unwrap();
    assert_eq!((nexus.initiator.as_str(), nexus.volume), (HOST, Some(VolumeId(7))));
}

#[test]
fn unsolicited_data_of_a_command_is_at_most_a_burst() {
    let (first, max) = (|n| ("FirstBurstLength", n), |n| ("MaxBurstLength", n));
    let no_data = [("InitialR2T", "Yes"), ("ImmediateData", "No")];
    let rows: &[(u16, &[(&str, &str)])] = &[
        (0x0000, &[first("8192"), max("8192")]),
        (0x0200, &[first("8192"), max("4096")]),
        (0x0200, &[max("4096"), first("8192")]),
        (0x0200, &[max("4096")]), // FirstBurstLength is 65,536 then
        (0x0000, &[max("4096"), no_data[0], no_data[1]]),
        (0x0200, &[max("4096"), no_data[0]]),
        (0x0000, &[max("4096"), no_data[1]]), // InitialR2T is Yes then
        (0x0200, &[max("4096"), no_data[1], ("InitialR2T", "No")]),
        (0x0000, &[first("16777215")]), // ours is 65,536
        (0x0000, &[first("16777215"), max("65536")]),
        (0x0000, &[("SessionType", "Discovery"), max("512")]),
    ];
    for (expected, offers) in rows {
        let names = if offers[0].0 == "SessionType" { &[I][..] } else { &[I, T] };
        let mut rig = rig();
        let request = Request::login(0x87, &[names, offers].concat());
        assert_eq!(status(&mut rig, request), *expected, "{offers:?}");
    }
}

#[test]
fn a_login_may_take_its_time() {
    let mut rig = rig();
    // Security stage, then operational stage in two steps, then onward with an empty text.
    rig.send(Request::login(0x81, &[I, T, ("AuthMethod", "CHAP,None")]));
    let answer = rig.answer();
    assert_eq!((answer.bhs[1], answer.value("AuthMethod").as_deref()), (0x81, Some("None")));
    rig.send(Request::login(0x04, &[("HeaderDigest", "CRC32C,None")]));
    let answer = rig.answer();
    assert_eq!((answer.bhs[1], answer.value("HeaderDigest").as_deref()), (0x04, Some("CRC32C")));
    assert!(answer.value("MaxRecvDataSegmentLength").is_some());
    rig.send(Request::login(0x87, &[]));
    let answer = rig.answer();
    assert_eq!((answer.bhs[1], answer.login_status(), answer.data.len()), (0x87, 0, 0));
    assert_eq!(answer.u32(24), 3, "the third answer");
    assert!(rig.session.nexus().is_some());
    // From here on, heads have digests in both directions.
    rig.digests = (true, false);
    rig.ask(Request::new(0x40, 0x80, 7).u32(20, 0xffff_ffff).data(b"ping"));
    assert_eq!(rig.answer().data, b"ping");
}

#[test]
fn texts_span_several_pdus_in_both_directions() {
    let mut rig = rig();
    let offers: Vec<(String, String)> =
        (0..400).map(|i| (format!("X-org.example.long-key-{i}"), "value".into())).collect();
    let offers: Vec<(&str, &str)> =
        offers.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let all = text(&[&[I, T][..], &offers].concat());
    let parts: Vec<&[u8]> = all.chunks(5000).collect();
    for (i, part) in parts.iter().enumerate() {
        let last = i + 1 == parts.len();
        let flags = if last { 0x87 } else { 0x44 };
        rig.send(Request::login(flags, &[]).data(part));
        if !last {
            let answer = rig.answer();
            assert_eq!((answer.bhs[1], answer.data.len()), (0x04, 0));
        }
    }
    let mut answer = Vec::new();
    loop {
        let part = rig.answer();
        assert!(part.data.len() <= 8192 && part.login_status() == 0);
        answer.extend(&part.data);
        if part.bhs[1] & 0x40 == 0 {
            assert_eq!(part.bhs[1], 0x87, "the last part goes onward");
            break;
        }
        rig.send(Request::login(0x04, &[]));
    }
    let understood = pairs(&answer).iter().filter(|pair| pair.1 == "NotUnderstood").count();
    assert_eq!(understood, 400);
    assert!(rig.session.nexus().is_some());
}

#[test]
fn the_text_of_a_login_is_bounded() {
    let mut rig = rig();
    let part = vec![b'a'; 8192];
    let answers: Vec<u16> = (0..9)
        .map(|_| {
            rig.send(Request::login(0x44, &[]).data(&part));
            rig.answers().first().map_or(1, Pdu::login_status)
        })
        .collect();
    assert_eq!(answers, [0, 0, 0, 0, 0, 0, 0, 0, 0x0200]);
    assert!(rig.is_out());
}

#[test]
fn an_initiator_waits_for_its_answer() {
    let mut rig = rig();
    rig.serves = false;
    rig.send(Request::login(0x87, &[I, T]));
    assert_eq!(rig.told(), [Told::Refresh]);
    rig.send(Request::login(0x87, &[I, T]));
    assert!(rig.is_out());
    rig.call(|session, hosts, pool, out| session.refreshed(hosts, pool, out));
    assert_eq!(rig.answers(), []);
}

#[test]
fn stages_and_ids_do_not_change_in_a_login() {
    for second in [
        Request::login(0x81, &[]),            // back to the security stage
        Request::login(0x87, &[]).u16(14, 1), // another session
        Request::login(0x87, &[]).put(8, &[9; 6]),
    ] {
        let mut rig = rig();
        assert_eq!(status(&mut rig, Request::login(0x04, &[I, T])), 0);
        assert_eq!(status(&mut rig, second), 0x020b);
    }
}

#[test]
fn reasons_of_the_owner_come_last() {
    for (closed, expected) in [
        (Closed::Stopping, 0x0301),
        (Closed::NotReady, 0x0301),
        (Closed::Full, 0x0302),
        (Closed::Elsewhere("10.0.0.2:3260".parse().unwrap()), 0x0101),
    ] {
        let mut rig = rig();
        rig.hosts.closed = Some(closed);
        rig.send(Request::login(0x87, &[I, T]));
        let answer = rig.answer();
        assert_eq!((answer.login_status(), rig.is_out()), (expected, true));
        let address = answer.value("TargetAddress");
        assert_eq!(address.is_some(), expected == 0x0101, "{address:?}");
    }
}

#[test]
fn a_silent_stranger_has_15_seconds() {
    let mut rig = rig();
    let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
    rig.call(|session, _, pool, out| session.tick(at(100), pool, out));
    rig.call(|session, _, pool, out| session.tick(at(114), pool, out));
    assert_eq!(rig.told(), []);
    rig.call(|session, _, pool, out| session.tick(at(115), pool, out));
    assert!(rig.is_out());
}

// Reinstatement

fn other(tsih: u16) -> Nexus {
    let isid = [0x40, 1, 2, 3, 4, 5];
    Nexus { initiator: HOST.into(), isid, tsih, volume: Some(VolumeId(7)), cid: 0 }
}

#[test]
fn the_same_port_replaces_its_session() {
    let mut rig = rig();
    let port = Nexus { isid: [1; 6], ..other(10) };
    let name = Nexus { initiator: "iqn.x".into(), ..other(11) };
    let volume = Nexus { volume: Some(VolumeId(8)), ..other(12) };
    rig.hosts.sessions = vec![port, name, volume, other(13)];
    rig.send(Request::login(0x87, &[I, T]).u32(24, rig.cmd_sn));
    assert_eq!(rig.answer().bhs[14..16], [0, 0x77], "a new handle");
    assert_eq!(rig.told(), [Told::Reinstate]);
    rig.ask(Request::command(1, 0x80, 0, &[0; 16]));
    assert_eq!(rig.answers()[0].status(), (2, Some((6, 0x29, 7))), "the former nexus was lost");
}

#[test]
fn a_known_session_is_continued_by_its_connection_only() {
    let login = |rig: &mut Rig, tsih: u16, cid: u16| {
        rig.hosts.sessions = vec![other(13)];
        status(rig, Request::login(0x87, &[I, T]).u16(14, tsih).u16(20, cid))
    };
    let mut same = rig();
    assert_eq!(login(&mut same, 13, 0), 0);
    assert_eq!(same.told(), [Told::Reinstate]);
    assert_eq!(same.session.nexus().unwrap().tsih, 13, "the handle stays");
    for (tsih, cid, expected) in [(13, 1, 0x0206), (14, 0, 0x020a)] {
        let mut rig = rig();
        assert_eq!(login(&mut rig, tsih, cid), expected);
        assert!(!rig.told().contains(&Told::Reinstate));
    }
}

// CHAP

const CHAP: Credentials<'static> =
    Credentials { user: "u", secret: b"secretsecret", own: Some(("t", b"othersecret1")) };
/// MD5 of the byte 9, the secret, and 32 bytes 9.
const RIGHT: &str = "0x1479fc3231b48407e4f0a403aa9a42e4";

/// Goes to the challenge.
fn challenged() -> Rig {
    let mut rig = rig();
    rig.hosts.chap = Some(CHAP);
    rig.send(Request::login(0x81, &[I, T, ("AuthMethod", "CHAP,None")]));
    let answer = rig.answer();
    assert_eq!((answer.bhs[1], answer.value("AuthMethod").as_deref()), (0, Some("CHAP")));
    rig.send(Request::login(0x81, &[("CHAP_A", "6,5,7")]));
    let answer = rig.answer();
    assert_eq!((answer.bhs[1], answer.login_status()), (0, 0), "no stage ends before the proof");
    assert_eq!(answer.value("CHAP_I").as_deref(), Some("9"));
    assert_eq!(answer.value("CHAP_C"), Some(format!("0x{}", "09".repeat(32))));
    rig
}

#[test]
fn a_host_with_the_right_secret_logs_in() {
    let mut rig = challenged();
    rig.send(Request::login(0x81, &[("CHAP_N", "u"), ("CHAP_R", RIGHT)]));
    let answer = rig.answer();
    assert_eq!((answer.bhs[1], answer.login_status()), (0x81, 0));
    rig.send(Request::login(0x87, OFFERS));
    assert_eq!(rig.answer().bhs[1], 0x87);
    assert!(rig.session.nexus().is_some());
}

#[test]
fn a_host_without_a_secret_where_others_have_one_stays_out() {
    for request in
        [Request::login(0x81, &[I, T, ("AuthMethod", "CHAP,None")]), Request::login(0x87, &[I, T])]
    {
        let mut rig = rig();
        rig.hosts.strange = true;
        assert_eq!(status(&mut rig, request), 0x0201);
        assert_eq!(rig.hosts.visits.get(), 0, "and learns of no target");
    }
}

#[test]
fn the_target_shows_its_own_secret_too() {
    let mut rig = challenged();
    let theirs = [("CHAP_N", "u"), ("CHAP_R", RIGHT), ("CHAP_I", "1"), ("CHAP_C", "0x0a0b")];
    rig.send(Request::login(0x83, &theirs));
    let answer = rig.answer();
    assert_eq!((answer.bhs[1], answer.value("CHAP_N").as_deref()), (0x83, Some("t")));
    assert_eq!(answer.value("CHAP_R").as_deref(), Some("0xe2148a2fbdd3cb1726db03abc2c6cfbb"));
    assert!(rig.session.nexus().is_some(), "from the security stage straight on");
}

#[test]
fn a_host_with_a_wrong_secret_is_refused_and_harms_no_other() {
    let reflected = format!("0x{}", "09".repeat(32));
    let proof = [("CHAP_N", "u"), ("CHAP_R", RIGHT)];
    let reflection = [&proof[..], &[("CHAP_I", "1"), ("CHAP_C", &reflected)]].concat();
    for wrong in [
        &[("CHAP_N", "u"), ("CHAP_R", "0x00112233445566778899aabbccddeeff")][..],
        &[("CHAP_N", "t"), ("CHAP_R", RIGHT)],
        &[("CHAP_R", RIGHT)],
        &reflection,
    ] {
        let mut rig = challenged();
        rig.hosts.sessions = vec![other(13)];
        assert_eq!(status(&mut rig, Request::login(0x83, wrong)), 0x0201, "{wrong:?}");
        assert_eq!(rig.told().len(), 1, "nothing but the close");
    }
    // Around the security stage, without a method, and with one that does not do.
    for request in [
        Request::login(0x87, &[I, T]),
        Request::login(0x81, &[I, T]),
        Request::login(0x81, &[I, T, ("AuthMethod", "None")]),
        Request::login(0x81, &[I, T, ("AuthMethod", "KRB5,SRP")]),
    ] {
        let mut rig = rig();
        rig.hosts.chap = Some(CHAP);
        rig.hosts.sessions = vec![other(13)];
        assert_eq!(status(&mut rig, request.clone()), 0x0201, "{request:?}");
        assert_eq!(rig.told().len(), 1);
    }
    // A second proof after the first one is no proof, and the stage can't be left without one.
    let mut rig = challenged();
    rig.send(Request::login(0x83, &[]));
    assert_eq!(rig.answer().bhs[1], 0);
    assert!(rig.session.nexus().is_none());
}

#[test]
fn volumes_are_not_listed_before_authentication() {
    let other = ("TargetName", "iqn.2026-11.io.github.gabion:1.8");
    let answers = [T, other].map(|target| {
        let mut rig = rig();
        rig.serves = false;
        rig.hosts.chap = Some(CHAP);
        let mut bytes = Vec::new();
        for pairs in [&[I, target, ("AuthMethod", "CHAP")][..], &[("CHAP_A", "5")]] {
            rig.send(Request::login(0x81, pairs));
            assert_eq!(rig.told(), [], "the MDM is not asked for a stranger");
            let answer = rig.answer();
            assert_eq!(answer.value("TargetAlias"), None);
            bytes.push((answer.bhs, answer.data));
        }
        assert_eq!(rig.hosts.visits.get(), 0);
        rig.send(Request::login(0x81, &[("CHAP_N", "u"), ("CHAP_R", RIGHT)]));
        assert_eq!((rig.told(), rig.answers()), (vec![Told::Refresh], vec![]));
        rig.call(|session, hosts, pool, out| session.refreshed(hosts, pool, out));
        let answer = rig.answer();
        let found = target == T;
        assert_eq!(answer.login_status(), if found { 0 } else { 0x0203 });
        assert_eq!(answer.value("TargetAlias").is_some(), found);
        bytes
    });
    assert_eq!(answers[0], answers[1], "whether there is such a target");
}

#[test]
fn a_host_that_comes_back_is_let_in_though_there_is_no_memory() {
    let mut rig = rig();
    rig.hosts.closed = Some(Closed::Full);
    rig.hosts.sessions = vec![other(13)];
    assert_eq!(status(&mut rig, Request::login(0x87, &[I, T])), 0);
    assert_eq!(rig.told(), [Told::Reinstate]);
}

#[test]
fn a_gateway_that_does_not_know_the_volumes_has_its_hosts_try_again() {
    // Hosts give up after "not found", and forget what a discovery does not list.
    for request in [
        Request::login(0x87, &[I, ("TargetName", "iqn.2026-11.io.github.gabion:1.8")]),
        Request::login(0x87, &[I, ("SessionType", "Discovery")]),
    ] {
        let mut rig = rig();
        rig.hosts.closed = Some(Closed::NotReady);
        assert_eq!(status(&mut rig, request), 0x0301);
    }
}

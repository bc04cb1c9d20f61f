//! Requests in text, and signs of life.

use super::initiator::*;
use super::rig::*;
use base::time::Duration;
use base::{Limits, Time};

const NOBODY: u32 = 0xffff_ffff;

fn discovering() -> Rig {
    discovering_in_parts(8192)
}

/// Creates a discovery session whose initiator takes this many bytes at a time.
fn discovering_in_parts(segment: usize) -> Rig {
    let mut rig = Rig::new(&Limits::SHIPPED);
    let segment = segment.to_string();
    let pairs = [
        ("InitiatorName", HOST),
        ("SessionType", "Discovery"),
        ("MaxRecvDataSegmentLength", &segment),
    ];
    rig.send(Request::login(0x87, &pairs).u32(24, rig.cmd_sn));
    assert_eq!(rig.answer().login_status(), 0);
    rig
}

fn listed(pdu: &Pdu) -> Vec<(String, String)> {
    assert_eq!(pdu.opcode(), 0x24);
    pdu.pairs()
}

#[test]
fn a_discovery_lists_targets_with_all_portals() {
    let mut rig = discovering();
    rig.ask(Request::text(5, NOBODY, &[("SendTargets", "All"), ("X-y", "1")]));
    let answer = rig.answer();
    assert_eq!((answer.bhs[1], answer.u32(20)), (0x80, NOBODY));
    let expected = [
        ("TargetName", NAME),
        ("TargetAddress", "10.0.0.1:3260,3"),
        ("TargetAddress", "[::1]:3260,4"),
        ("X-y", "NotUnderstood"),
    ];
    let listed = listed(&answer);
    let listed: Vec<_> = listed.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(listed, expected);
    rig.ask(Request::text(6, NOBODY, &[("SendTargets", "iqn.other")]));
    assert_eq!(rig.answer().data, b"");
}

#[test]
fn a_long_list_fills_each_part() {
    let mut rig = discovering();
    rig.hosts.others = (0..300).map(|i| format!("iqn.2026-11.io.github.gabion:{i}")).collect();
    rig.ask(Request::text(5, NOBODY, &[("SendTargets", "All")]));
    let text = rest(&mut rig, 8192);
    assert_eq!(pairs(&text).iter().filter(|pair| pair.0 == "TargetName").count(), 301);
}

/// Fetches all parts of a text, each as long as the initiator takes.
fn rest(rig: &mut Rig, segment: usize) -> Vec<u8> {
    let mut text = Vec::new();
    loop {
        let part = rig.answer();
        text.extend(&part.data);
        if part.bhs[1] & 0x80 != 0 {
            assert_eq!(part.u32(20), NOBODY);
            return text;
        }
        assert_eq!(part.data.len(), segment, "as much as the initiator takes");
        assert_ne!(part.u32(20), NOBODY);
        rig.ask(Request::text(5, part.u32(20), &[]));
    }
}

#[test]
fn each_target_has_the_portals_of_all_gateways() {
    // Two networks, and as many gateways as there may be.
    let portals: Vec<(String, u16)> = (1..=127)
        .flat_map(|group| {
            [(format!("10.0.0.{group}:3260"), group), (format!("[fd00::{group}]:3261"), group)]
        })
        .collect();
    for segment in [512, 777, 8192] {
        let mut rig = discovering_in_parts(segment);
        rig.hosts.others = vec!["iqn.2026-11.io.github.gabion:1.8".into()];
        rig.hosts.portals = portals.iter().map(|(at, group)| portal(at, *group)).collect();
        rig.ask(Request::text(5, NOBODY, &[("SendTargets", "All")]));
        let text = rest(&mut rig, segment);
        let mut expected = Vec::new();
        for name in [NAME, "iqn.2026-11.io.github.gabion:1.8"] {
            expected.push(("TargetName".to_string(), name.to_string()));
            let address = |(at, group): &(String, u16)| {
                ("TargetAddress".to_string(), format!("{at},{group}"))
            };
            expected.extend(portals.iter().map(address));
        }
        assert_eq!(pairs(&text), expected, "{segment}");
    }
}

#[test]
fn a_question_may_come_in_parts() {
    let mut rig = discovering();
    let (first, rest) = (b"SendTar", b"gets=All\0");
    rig.ask(Request::text(5, NOBODY, &[]).put(1, &[0x40]).data(first));
    let more = rig.answer();
    assert_eq!((more.bhs[1], more.data.len()), (0, 0));
    rig.ask(Request::text(5, more.u32(20), &[]).data(rest));
    assert_eq!(listed(&rig.answer()).len(), 3);
}

#[test]
fn a_session_of_a_target_learns_of_no_other() {
    let mut rig = Rig::full(&Limits::SHIPPED, &[]);
    rig.hosts.others = vec!["iqn.other".into()];
    for which in ["All", "", NAME] {
        rig.ask(Request::text(5, NOBODY, &[("SendTargets", which)]));
        assert_eq!(listed(&rig.answer()).len(), 3, "{which}");
    }
    rig.ask(Request::text(5, NOBODY, &[("SendTargets", "iqn.other")]));
    assert_eq!(listed(&rig.answer()), []);
}

#[test]
fn a_discovery_session_has_no_logical_unit() {
    let mut rig = discovering();
    for request in [
        Request::command(1, 0x80, 0, &[0; 16]),
        Request::management(2, 5, 0, 0),
        Request::data_out(3, NOBODY, 0, 0, true, &[1; 512]),
    ] {
        rig.ask(request);
        let answer = rig.answer();
        assert_eq!((answer.opcode(), answer.bhs[2]), (0x3f, 4), "rejected: {answer:?}");
    }
    rig.cmd_sn = 101;
    rig.ask(Request::new(0x06, 0x80, 9));
    assert_eq!(rig.answer().opcode(), 0x26);
    assert_eq!(rig.told(), [Told::Close(None)]);
}

#[test]
fn a_ping_is_echoed_and_an_answer_is_not() {
    let mut rig = Rig::full(&Limits::SHIPPED, &[("MaxRecvDataSegmentLength", "512")]);
    rig.ask(Request::new(0x00, 0x80, 7).u32(20, NOBODY).data(&[3; 700]));
    let answer = rig.answer();
    assert_eq!((answer.opcode(), answer.itt(), answer.u32(20)), (0x20, 7, NOBODY));
    assert_eq!(answer.data, [3; 512], "no more than the initiator takes");
    rig.ask(Request::new(0x40, 0x80, NOBODY).u32(20, 1));
    assert_eq!(rig.answers(), []);
}

#[test]
fn a_silent_initiator_is_asked_and_then_closed() {
    let mut rig = Rig::full(&Limits::SHIPPED, &[]);
    let tick = |rig: &mut Rig, seconds| {
        let now = Time::ZERO + Duration::from_secs(seconds);
        rig.call(|session, _, pool, out| session.tick(now, pool, out));
    };
    tick(&mut rig, 100);
    tick(&mut rig, 129);
    assert_eq!(rig.answers(), []);
    tick(&mut rig, 130);
    let ping = rig.answer();
    assert_eq!((ping.opcode(), ping.itt()), (0x20, NOBODY));
    assert_ne!(ping.u32(20), NOBODY, "an answer is owed");
    let stat_sn = ping.u32(24);
    rig.send(Request::new(0x40, 0x80, NOBODY).u32(20, ping.u32(20)).u32(24, rig.cmd_sn));
    tick(&mut rig, 159);
    tick(&mut rig, 160);
    assert_eq!(rig.answers(), []);
    tick(&mut rig, 189);
    assert_eq!(rig.answer().u32(24), stat_sn, "a question is no status");
    tick(&mut rig, 218);
    assert!(!rig.session.is_closed());
    tick(&mut rig, 219);
    assert!(rig.is_out());
}

#[test]
fn a_text_lists_targets_once() {
    let mut rig = discovering();
    rig.hosts.others = (0..300).map(|i| format!("iqn.2026-11.io.github.gabion:{i}")).collect();
    for (which, most) in [("All", 301), (NAME, 1), ("iqn.other", 1)] {
        rig.hosts.visits.set(0);
        let all = vec![("SendTargets", which); 100];
        rig.ask(Request::text(5, NOBODY, &all));
        assert!(rig.hosts.visits.get() <= most, "{which}: {}", rig.hosts.visits.get());
        let text = rest(&mut rig, 8192);
        let rejected = pairs(&text).iter().filter(|pair| pair.1 == "Reject").count();
        assert_eq!(rejected, 99);
    }
}

#[test]
fn an_echo_keeps_no_receive_buffer() {
    let mut rig = Rig::full(&Limits::SHIPPED, &[]);
    let ping = Request::new(0x40, 0x80, 7).u32(20, NOBODY).u32(24, rig.cmd_sn).data(&[3; 516]);
    let bytes = ping.bytes((false, false));
    rig.call(|session, hosts, pool, out| {
        let received = pool.alloc(256 << 10);
        session.frame(&bytes[..48], received.slice(0..516), hosts, pool, out);
        drop(received);
        assert!(pool.used() <= 4096, "{} bytes for 516", pool.used());
    });
}

#[test]
fn a_text_of_countless_keys_ends_the_connection() {
    let limits = Limits::SHIPPED;
    for (keys, out) in [(8000, false), (21_845, true)] {
        let mut rig = Rig::full(&limits, &[("MaxRecvDataSegmentLength", "1048576")]);
        rig.ask(Request::text(5, NOBODY, &[]).data(&b"x=\0".repeat(keys)));
        assert_eq!(rig.is_out(), out, "{keys}");
    }
}

//! Greeting and option haggling, byte by byte.

use super::rig::*;
use base::{Limits, VolumeId};
use seam::FrameError;
use target::nbd::OPTION_MAX;
use target::nbd::proto::*;

const INVALID: u32 = NBD_REP_ERR_INVALID;
/// The block sizes: 512, 4096, 32 MiB.
const SIZES: &str = "0003 00000200 00001000 02000000";

fn ack(option: u32) -> Vec<u8> {
    option_reply(option, NBD_REP_ACK, &[])
}

/// `NBD_INFO_EXPORT` of 16 MiB with these transmission flags.
fn export_info(flags: u16) -> Vec<u8> {
    [hex("0000 0000000001000000"), flags.to_be_bytes().to_vec()].concat()
}

#[test]
fn the_greeting_is_golden() {
    let mut rig = Rig::new(&Limits::SHIPPED);
    rig.greet();
    assert_eq!(rig.sent(), hex("4e42444d41474943 49484156454f5054 0003"));
}

#[test]
fn unknown_client_flags_close() {
    for (flags, closes) in
        [(0u32, false), (1, false), (2, false), (3, false), (4, true), (1 << 31, true)]
    {
        let mut rig = Rig::new(&Limits::SHIPPED);
        rig.feed(&flags.to_be_bytes());
        assert_eq!(!rig.told().is_empty(), closes, "{flags}");
    }
}

// Long: one table of options and their replies.
#[test]
fn options_get_exactly_these_replies() {
    let text = |t: &str| t.as_bytes().to_vec();
    let no_data = || text("this option takes no data");
    let malformed = || text("malformed data");
    let unknown =
        || text("no volume has this name; the client's list function shows those there are");
    // Option, data, structured replies before, replies.
    type Case = (u32, Vec<u8>, bool, Vec<(u32, Vec<u8>)>);
    let cases: Vec<Case> = vec![
        (
            NBD_OPT_LIST,
            vec![],
            false,
            vec![
                (2, [hex("00000001 61"), text("01234567-89ab-8cde-bc00-000000000007")].concat()),
                (1, vec![]),
            ],
        ),
        (NBD_OPT_LIST, vec![1], false, vec![(INVALID, no_data())]),
        (NBD_OPT_STRUCTURED_REPLY, vec![], false, vec![(1, vec![])]),
        (NBD_OPT_STRUCTURED_REPLY, vec![0], false, vec![(INVALID, no_data())]),
        (
            NBD_OPT_STARTTLS,
            vec![],
            false,
            vec![(NBD_REP_ERR_UNSUP, text("this server does not speak TLS"))],
        ),
        (
            NBD_OPT_EXTENDED_HEADERS,
            vec![],
            false,
            vec![(NBD_REP_ERR_UNSUP, text("this server does not know this option"))],
        ),
        (
            4711,
            vec![9; 100],
            false,
            vec![(NBD_REP_ERR_UNSUP, text("this server does not know this option"))],
        ),
        // INFO: the requested properties, and always the block sizes.
        (
            NBD_OPT_INFO,
            info(b"a", &[]),
            false,
            vec![(3, export_info(0x96d)), (3, hex(SIZES)), (1, vec![])],
        ),
        (
            NBD_OPT_INFO,
            info(b"a", &[3, 1, 2, 99, 0]),
            true,
            vec![
                (3, export_info(0x9ed)),
                (3, hex("0001 61")),
                (3, [hex("0002"), text("01234567-89ab-8cde-bc00-000000000007")].concat()),
                (3, hex(SIZES)),
                (1, vec![]),
            ],
        ),
        (
            NBD_OPT_INFO,
            info(b"", &[1]),
            false,
            vec![(3, export_info(0x96d)), (3, hex("0001 61")), (3, hex(SIZES)), (1, vec![])],
        ),
        (NBD_OPT_INFO, info(b"b", &[]), false, vec![(NBD_REP_ERR_UNKNOWN, unknown())]),
        (NBD_OPT_GO, info(b"b", &[]), false, vec![(NBD_REP_ERR_UNKNOWN, unknown())]),
        (NBD_OPT_GO, vec![], false, vec![(INVALID, malformed())]),
        (NBD_OPT_GO, hex("00000002 61 0000"), false, vec![(INVALID, malformed())]),
        (NBD_OPT_GO, hex("ffffffff 61 0000"), false, vec![(INVALID, malformed())]),
        (NBD_OPT_GO, hex("00000001 61 0001"), false, vec![(INVALID, malformed())]),
        (NBD_OPT_GO, hex("00000001 61 0000 00"), false, vec![(INVALID, malformed())]),
        // Metadata contexts.
        (
            NBD_OPT_LIST_META_CONTEXT,
            meta(b"a", &[]),
            false,
            vec![(INVALID, text("negotiate structured replies first"))],
        ),
        (
            NBD_OPT_SET_META_CONTEXT,
            meta(b"a", &[]),
            false,
            vec![(INVALID, text("negotiate structured replies first"))],
        ),
        (
            NBD_OPT_LIST_META_CONTEXT,
            meta(b"a", &[]),
            true,
            vec![(4, [hex("00000000"), text("base:allocation")].concat()), (1, vec![])],
        ),
        (
            NBD_OPT_LIST_META_CONTEXT,
            meta(b"a", &[b"base:"]),
            true,
            vec![(4, [hex("00000000"), text("base:allocation")].concat()), (1, vec![])],
        ),
        (NBD_OPT_LIST_META_CONTEXT, meta(b"a", &[b"x-y:"]), true, vec![(1, vec![])]),
        (NBD_OPT_SET_META_CONTEXT, meta(b"a", &[]), true, vec![(1, vec![])]),
        (NBD_OPT_SET_META_CONTEXT, meta(b"a", &[b"base:"]), true, vec![(1, vec![])]),
        (
            NBD_OPT_SET_META_CONTEXT,
            meta(b"a", &[b"qemu:x", b"base:allocation", b"base:allocation"]),
            true,
            vec![(4, [hex("00000001"), text("base:allocation")].concat()), (1, vec![])],
        ),
        (
            NBD_OPT_SET_META_CONTEXT,
            meta(b"b", &[b"base:allocation"]),
            true,
            vec![(NBD_REP_ERR_UNKNOWN, unknown())],
        ),
        (NBD_OPT_SET_META_CONTEXT, hex("00000001 61 00000001"), true, vec![(INVALID, malformed())]),
        (
            NBD_OPT_SET_META_CONTEXT,
            hex("00000001 61 ffffffff 00000000"),
            true,
            vec![(INVALID, malformed())],
        ),
    ];
    for (number, data, structured, expected) in cases {
        let mut rig = Rig::haggling();
        if structured {
            assert_eq!(rig.ask(&option(NBD_OPT_STRUCTURED_REPLY, &[])), ack(8));
        }
        let expected: Vec<u8> =
            expected.iter().flat_map(|(k, d)| option_reply(number, *k, d)).collect();
        assert_eq!(rig.ask(&option(number, &data)), expected, "option {number} with {data:x?}");
        assert!(rig.session.attached().is_none());
        assert!(!rig.session.is_closed());
        // The session is still in option haggling.
        assert_eq!(rig.ask(&option(NBD_OPT_STRUCTURED_REPLY, &[])), ack(8));
    }
}

#[test]
fn go_attaches_and_names_what_is_read_only() {
    let mut rig = Rig::haggling();
    rig.volumes = Volumes(vec![(1, 1 << 20, false, "a"), (2, (16 << 20) + 100, true, "b")]);
    let reply = rig.ask(&option(NBD_OPT_GO, &info(b"b", &[2])));
    const UUID: &[u8] = b"01234567-89ab-8cde-bc00-000000000002";
    let expected = [
        // Neither trim nor zeroing; without the last 100 bytes, which do not fill a sector.
        option_reply(7, 3, &export_info(0x010f)),
        option_reply(7, 3, &[hex("0002"), UUID.to_vec()].concat()),
        option_reply(7, 3, &hex(SIZES)),
        ack(7),
    ];
    assert_eq!(reply, expected.concat());
    assert_eq!(rig.session.attached(), Some((VolumeId(2), 16 << 20)));
}

#[test]
fn export_name_answers_with_and_without_zeroes() {
    for (client_flags, zeroes) in [(1u32, 124), (3, 0)] {
        let mut rig = Rig::new(&Limits::SHIPPED);
        rig.feed(&client_flags.to_be_bytes());
        let reply = rig.ask(&option(NBD_OPT_EXPORT_NAME, b"a"));
        assert_eq!(reply, [hex("0000000001000000 096d"), vec![0; zeroes]].concat());
        assert!(rig.session.attached().is_some());
    }
    let mut rig = Rig::haggling();
    assert_eq!(rig.ask(&option(NBD_OPT_EXPORT_NAME, b"nope")), []);
    assert_eq!(
        rig.told(),
        [Told::Refresh, Told::Close(Some("asked for a volume that does not exist"))]
    );
}

#[test]
fn abort_is_acknowledged_then_closed() {
    let mut rig = Rig::haggling();
    assert_eq!(rig.ask(&option(NBD_OPT_ABORT, b"whatever")), ack(2));
    assert_eq!(rig.told(), [Told::Close(None)]);
    assert_eq!(rig.ask(&option(NBD_OPT_LIST, &[])), [], "nothing after the close");
}

#[test]
fn the_default_export_is_the_only_volume_or_an_error_that_helps() {
    let mut rig = Rig::haggling();
    rig.volumes = Volumes(vec![]);
    let none = b"there is no volume yet: create one, then connect again";
    let unknown = NBD_REP_ERR_UNKNOWN;
    assert_eq!(rig.ask(&option(NBD_OPT_GO, &info(b"", &[]))), option_reply(7, unknown, none));
    rig.volumes = Volumes(vec![(1, 512, false, "a"), (2, 512, false, "b")]);
    let two = b"there are 2 volumes, so there is no default: connect to one by its name (a, b)";
    assert_eq!(rig.ask(&option(NBD_OPT_GO, &info(b"", &[]))), option_reply(7, unknown, two));
    // With any number of volumes, the text is no longer than the spec allows.
    let name: &'static str = "n".repeat(200).leak();
    rig.volumes = Volumes((1..1000).map(|i| (i, 512, false, name)).collect());
    let reply = rig.ask(&option(NBD_OPT_GO, &info(b"", &[])));
    assert!(reply.len() > 3900 && reply.len() <= 20 + STRING_MAX, "{}", reply.len());
    assert!(reply.ends_with("n, …)".as_bytes()));
}

#[test]
fn a_list_of_many_volumes_is_complete() {
    let mut rig = Rig::haggling();
    rig.volumes = Volumes((1..=500).map(|i| (i, 512, false, "same")).collect());
    let one = |i: u32| {
        let uuid = format!("01234567-89ab-8cde-bc00-{i:012x}");
        option_reply(3, NBD_REP_SERVER, format!("\0\0\0\x04same{uuid}").as_bytes())
    };
    let expected: Vec<u8> = (1..=500).flat_map(one).chain(ack(3)).collect();
    assert_eq!(rig.ask(&option(NBD_OPT_LIST, &[])), expected);
}

#[test]
fn options_wait_for_fresh_exports_and_see_the_newest_volume() {
    let mut rig = Rig::haggling();
    rig.refreshes = false;
    rig.volumes = Volumes(vec![]);
    rig.feed(&option(NBD_OPT_GO, &info(b"new", &[])));
    assert_eq!((rig.told(), rig.sent()), (vec![Told::Refresh], vec![]));
    // The client does not wait for the answer: its frames do.
    rig.feed(&request(0, NBD_CMD_READ, 1, 0, 512));
    rig.feed(&request(0, NBD_CMD_FLUSH, 2, 0, 0));
    assert_eq!((rig.told(), rig.asked.len()), (vec![Told::Pause], 0));
    rig.volumes = Volumes(vec![(9, 1 << 20, false, "new")]);
    rig.refresh();
    assert!(rig.sent().ends_with(&ack(7)));
    let asked: Vec<_> = rig.asked.iter().map(|(_, r)| (r.volume, r.len)).collect();
    assert_eq!(asked, [(VolumeId(9), 512), (VolumeId(9), 0)]);
    assert_eq!(rig.told(), [Told::Resume]);
    rig.refresh();
    assert_eq!(rig.sent(), [], "nothing was asked");
}

#[test]
fn metadata_counts_only_for_the_export_that_it_was_selected_for() {
    let select = |name: &[u8]| option(NBD_OPT_SET_META_CONTEXT, &meta(name, &[b"base:allocation"]));
    let status = request(0, NBD_CMD_BLOCK_STATUS, 5, 0, 4096);
    // The options that are sent before GO with "a", and whether the status is granted.
    let cases = [
        (vec![select(b"a")], true),
        (vec![select(b"")], false),
        (vec![select(b"b")], false),
        (vec![select(b"a"), select(b"b")], false),
        (vec![select(b"a"), select(b"none")], false),
        (vec![select(b"a"), option(NBD_OPT_SET_META_CONTEXT, &[1])], false),
        (vec![select(b"a"), option(NBD_OPT_LIST_META_CONTEXT, &meta(b"b", &[]))], true),
        (vec![], false),
    ];
    for (i, (options, granted)) in cases.into_iter().enumerate() {
        let mut rig = Rig::haggling();
        rig.volumes = Volumes(vec![(1, 1 << 20, false, "a"), (2, 1 << 20, false, "b")]);
        rig.feed(&option(NBD_OPT_STRUCTURED_REPLY, &[]));
        options.iter().for_each(|o| rig.feed(o));
        rig.feed(&option(NBD_OPT_GO, &info(b"a", &[])));
        rig.sent();
        let reply = rig.ask(&status);
        assert_eq!((reply.is_empty(), rig.asked.len() == 1), (granted, granted), "case {i}");
    }
}

#[test]
fn phases_do_not_mix() {
    let mut rig = Rig::haggling();
    rig.feed(&request(0, NBD_CMD_READ, 1, 0, 512));
    assert_eq!(rig.told(), [Told::Close(Some("not an option, in option haggling"))]);
    let mut rig = Rig::serving(false, &Limits::SHIPPED);
    rig.feed(&option(NBD_OPT_LIST, &[]));
    assert_eq!(rig.told(), [Told::Close(Some("not a request, in transmission"))]);
}

#[test]
fn the_framer_refuses_what_is_no_nbd_or_too_long() {
    let too_long = |mut bytes: Vec<u8>, at: usize, len: u32| {
        bytes[at..at + 4].copy_from_slice(&len.to_be_bytes());
        bytes
    };
    let cases = [
        (b"GET / HTTP/1.1\r\n".to_vec(), FrameError::BadMagic),
        (b"IHAVEOPX\0\0\0\x01\0\0\0\0".to_vec(), FrameError::BadMagic),
        (too_long(option(1, &[]), 12, OPTION_MAX + 1), FrameError::TooLong),
        (too_long(request(0, NBD_CMD_WRITE, 1, 0, 0), 24, (32 << 20) + 1), FrameError::TooLong),
    ];
    for (bytes, why) in cases {
        let mut rig = Rig::haggling();
        rig.feed(&bytes);
        assert_eq!(rig.input.garbage, Some(why), "{bytes:x?}");
    }
    // A read may have any length: it has no body.
    let mut rig = Rig::serving(false, &Limits::SHIPPED);
    rig.feed(&request(0, NBD_CMD_READ, 1, 0, u32::MAX));
    assert_eq!(rig.input.garbage, None);
}

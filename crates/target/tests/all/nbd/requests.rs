//! Every kind of request: the resulting block request, and its reply, byte by byte.

use super::rig::*;
use base::{Limits, VolumeId};
use seam::{BlockError, BlockKind};
use target::nbd::proto::*;

const COOKIE: u64 = 0x0102_0304_0506_0708;
const MIB: u64 = 1 << 20;

fn simple(error: u32) -> Vec<u8> {
    [hex("67446698"), error.to_be_bytes().to_vec(), COOKIE.to_be_bytes().to_vec()].concat()
}

/// A structured reply of one chunk.
fn chunk(kind: u16, payload: &[u8]) -> Vec<u8> {
    let head = [hex("668e33ef 0001"), kind.to_be_bytes().to_vec(), COOKIE.to_be_bytes().to_vec()];
    [head.concat(), (payload.len() as u32).to_be_bytes().to_vec(), payload.to_vec()].concat()
}

#[test]
fn replies_are_golden() {
    let mut rig = Rig::serving(false, &Limits::SHIPPED);
    rig.feed(&request(0, NBD_CMD_READ, COOKIE, 512, 512));
    rig.done(Ok(&[0xab; 512]));
    let expected = [hex("67446698 00000000 0102030405060708"), vec![0xab; 512]].concat();
    assert_eq!(rig.sent(), expected);
    let refused = rig.ask(&request(0, 99, COOKIE, 0, 0));
    assert_eq!(refused, hex("67446698 00000016 0102030405060708"));

    let mut rig = Rig::serving(true, &Limits::SHIPPED);
    rig.feed(&request(NBD_CMD_FLAG_DF, NBD_CMD_READ, COOKIE, 512, 512));
    rig.done(Ok(&[0xab; 512]));
    let head = hex("668e33ef 0001 0001 0102030405060708 00000208 0000000000000200");
    assert_eq!(rig.sent(), [head, vec![0xab; 512]].concat());
    rig.feed(&request(NBD_CMD_FLAG_FUA, NBD_CMD_WRITE, COOKIE, 0, 512));
    rig.done(Ok(&[]));
    assert_eq!(rig.sent(), hex("668e33ef 0001 0000 0102030405060708 00000000"));
    let refused = rig.ask(&request(0, NBD_CMD_READ, COOKIE, 0, 0));
    let text = "74 68 65 20 6c 65 6e 67 74 68 20 69 73 20 30"; // "the length is 0"
    let head = "668e33ef 0001 8001 0102030405060708 00000015 00000016 000f";
    assert_eq!(refused, [hex(head), hex(text)].concat());
}

#[test]
fn requests_ask_the_core_for_exactly_this() {
    use BlockKind::*;
    let (fua, fast) = (NBD_CMD_FLAG_FUA, NBD_CMD_FLAG_FAST_ZERO);
    let hole = Zero { hole: true };
    // Flags, command, offset, length, expected block request.
    let cases = [
        (0, NBD_CMD_READ, 0, 512, Read),
        (fua, NBD_CMD_READ, 16 * MIB - 512, 512, Read),
        (NBD_CMD_FLAG_DF, NBD_CMD_READ, 0, 16 << 20, Read),
        (0, NBD_CMD_WRITE, 4096, 4096, Write),
        (fua, NBD_CMD_WRITE, 512, 1 << 20, Write),
        (0, NBD_CMD_FLUSH, 0, 0, Flush),
        (fua, NBD_CMD_FLUSH, 0, 0, Flush),
        (0, NBD_CMD_TRIM, 0, 16 << 20, hole),
        (fua, NBD_CMD_TRIM, 512, 512, hole),
        (0, NBD_CMD_WRITE_ZEROES, 0, 16 << 20, hole),
        (fua | fast, NBD_CMD_WRITE_ZEROES, 0, 512, hole),
        (NBD_CMD_FLAG_NO_HOLE, NBD_CMD_WRITE_ZEROES, 0, 512, Zero { hole: false }),
        (0, NBD_CMD_BLOCK_STATUS, 512, 1 << 20, Extents),
        (NBD_CMD_FLAG_REQ_ONE, NBD_CMD_BLOCK_STATUS, 0, 512, Extents),
    ];
    for (flags, command, at, len, kind) in cases {
        let mut rig = Rig::serving(true, &Limits::SHIPPED);
        assert_eq!(rig.ask(&request(flags, command, COOKIE, at, len)), []);
        let (_, asked) = &rig.asked[0];
        assert_eq!((asked.volume, asked.kind, asked.at, asked.len), (VolumeId(7), kind, at, len));
        let body = if kind == Write { vec![b'w'; len as usize] } else { vec![] };
        assert_eq!(&asked.body[..], body);
        if !matches!(kind, Read | Extents) {
            rig.done(Ok(&[]));
            assert_eq!(rig.sent(), chunk(0, &[]));
        }
    }
}

#[test]
fn wrong_requests_are_refused_with_the_spec_s_error() {
    let (fua, df, one) = (NBD_CMD_FLAG_FUA, NBD_CMD_FLAG_DF, NBD_CMD_FLAG_REQ_ONE);
    let end = 16 * MIB;
    let (beyond, odd) = (
        "the range goes beyond the end of the export",
        "offset and length must be multiples of 512 bytes",
    );
    let (zero, flag) = ("the length is 0", "a flag is set that does not go with this command");
    let flush = "a flush has no offset and no length";
    let cases = [
        (0, NBD_CMD_READ, 0, 0, NBD_EINVAL, zero),
        (0, NBD_CMD_READ, 1, 512, NBD_EINVAL, odd),
        (0, NBD_CMD_READ, 0, 513, NBD_EINVAL, odd),
        (0, NBD_CMD_READ, end, 512, NBD_EINVAL, beyond),
        (0, NBD_CMD_READ, u64::MAX - 511, 512, NBD_EINVAL, beyond),
        (one, NBD_CMD_READ, 0, 512, NBD_EINVAL, flag),
        (1 << 5, NBD_CMD_READ, 0, 512, NBD_EINVAL, flag),
        (0, NBD_CMD_WRITE, end - 512, 1024, NBD_ENOSPC, beyond),
        (0, NBD_CMD_WRITE, 256, 512, NBD_EINVAL, odd),
        (0, NBD_CMD_WRITE, 0, 0, NBD_EINVAL, zero),
        (df, NBD_CMD_WRITE, 0, 512, NBD_EINVAL, flag),
        (0, NBD_CMD_FLUSH, 512, 0, NBD_EINVAL, flush),
        (0, NBD_CMD_FLUSH, 0, 512, NBD_EINVAL, flush),
        (0, NBD_CMD_TRIM, end, 512, NBD_EINVAL, beyond),
        (0, NBD_CMD_TRIM, 0, 0xffff_fe00, NBD_EINVAL, beyond),
        (NBD_CMD_FLAG_NO_HOLE, NBD_CMD_TRIM, 0, 512, NBD_EINVAL, flag),
        (0, NBD_CMD_CACHE, end, 512, NBD_EINVAL, beyond),
        (one, NBD_CMD_CACHE, 0, 512, NBD_EINVAL, flag),
        (0, NBD_CMD_WRITE_ZEROES, end, 512, NBD_ENOSPC, beyond),
        (fua | one, NBD_CMD_WRITE_ZEROES, 0, 512, NBD_EINVAL, flag),
        (0, NBD_CMD_BLOCK_STATUS, end, 512, NBD_EINVAL, beyond),
        (0, NBD_CMD_BLOCK_STATUS, 0, 0, NBD_EINVAL, zero),
        (df, NBD_CMD_BLOCK_STATUS, 0, 512, NBD_EINVAL, flag),
        (0, 8, 0, 512, NBD_EINVAL, "this server does not know this command"),
        (0, 0xffff, 0, 512, NBD_EINVAL, "this server does not know this command"),
    ];
    for structured in [true, false] {
        let mut rig = Rig::serving(structured, &Limits::SHIPPED);
        for (flags, command, at, len, error, why) in cases {
            let reply = rig.ask(&request(flags, command, COOKIE, at, len));
            let expected = if structured { error_chunk(COOKIE, error, why) } else { simple(error) };
            assert_eq!(reply, expected, "flags {flags} command {command} {at}+{len}");
        }
        assert!(rig.asked.is_empty() && !rig.session.is_closed());
    }
    // Without structured replies there is neither DF nor block status.
    let mut rig = Rig::serving(false, &Limits::SHIPPED);
    assert_eq!(rig.ask(&request(df, NBD_CMD_READ, COOKIE, 0, 512)), simple(NBD_EINVAL));
    assert_eq!(rig.ask(&request(0, NBD_CMD_BLOCK_STATUS, COOKIE, 0, 512)), simple(NBD_EINVAL));
}

#[test]
fn a_read_only_export_refuses_writes_and_serves_the_rest() {
    let mut rig = Rig::haggling();
    rig.volumes.0[0].2 = true;
    rig.serve(true);
    for command in [NBD_CMD_WRITE, NBD_CMD_TRIM, NBD_CMD_WRITE_ZEROES] {
        let reply = rig.ask(&request(0, command, COOKIE, 0, 512));
        assert_eq!(reply, error_chunk(COOKIE, NBD_EPERM, "the export is read-only"));
    }
    rig.feed(&request(0, NBD_CMD_READ, COOKIE, 0, 512));
    rig.feed(&request(0, NBD_CMD_FLUSH, COOKIE, 0, 0));
    rig.feed(&request(0, NBD_CMD_BLOCK_STATUS, COOKIE, 0, 512));
    assert_eq!(rig.asked.len(), 3);
}

#[test]
fn payloads_above_the_limit_are_refused() {
    let limits = Limits::TEST_MIN; // 1 MiB
    let mut rig = Rig::serving(true, &limits);
    let why = "longer than the maximum payload, which the server has told";
    let reply = rig.ask(&request(0, NBD_CMD_READ, COOKIE, 0, 2 << 20));
    assert_eq!(reply, error_chunk(COOKIE, NBD_EOVERFLOW, why));
    rig.feed(&request(0, NBD_CMD_TRIM, COOKIE, 0, 2 << 20));
    assert_eq!(rig.asked.len(), 1, "no payload, no limit");
    let mut rig = Rig::serving(false, &limits);
    assert_eq!(rig.ask(&request(0, NBD_CMD_READ, COOKIE, 0, 2 << 20)), simple(NBD_EINVAL));
}

#[test]
fn cache_succeeds_and_does_nothing() {
    let mut rig = Rig::serving(true, &Limits::SHIPPED);
    assert_eq!(rig.ask(&request(0, NBD_CMD_CACHE, COOKIE, 0, 16 << 20)), chunk(0, &[]));
    let mut rig = Rig::serving(false, &Limits::SHIPPED);
    assert_eq!(rig.ask(&request(0, NBD_CMD_CACHE, COOKIE, 0, 512)), simple(0));
    assert!(rig.asked.is_empty());
}

#[test]
fn the_core_s_errors_become_the_spec_s() {
    use BlockError::*;
    let (read, write, zero, trim) =
        (NBD_CMD_READ, NBD_CMD_WRITE, NBD_CMD_WRITE_ZEROES, NBD_CMD_TRIM);
    let cases = [
        (0, read, Lost, NBD_EIO),
        (0, write, Media, NBD_EIO),
        (0, read, NoSuchVolume, NBD_EIO),
        (0, write, Full, NBD_ENOSPC),
        (0, zero, Full, NBD_ENOSPC),
        (0, read, OutOfRange, NBD_EINVAL),
        (0, trim, OutOfRange, NBD_EINVAL),
        (0, write, OutOfRange, NBD_ENOSPC),
        (0, zero, OutOfRange, NBD_ENOSPC),
        (0, read, Misaligned, NBD_EINVAL),
        (0, read, TooBig, NBD_EOVERFLOW),
        (0, write, TooBig, NBD_EINVAL),
        (0, trim, TooBig, NBD_EOVERFLOW),
        (0, zero, TooBig, NBD_EOVERFLOW),
        (NBD_CMD_FLAG_FAST_ZERO, zero, TooBig, NBD_EINVAL),
        (0, NBD_CMD_BLOCK_STATUS, TooBig, NBD_EOVERFLOW),
        (0, write, Busy, NBD_ENOMEM),
        (0, write, Elsewhere, NBD_EIO),
    ];
    let mut rig = Rig::serving(true, &Limits::SHIPPED);
    for (flags, command, error, expected) in cases {
        rig.feed(&request(flags, command, COOKIE, 0, 512));
        rig.done(Err(error));
        assert_eq!(rig.sent(), error_chunk(COOKIE, expected, &error.to_string()), "{error:?}");
    }
    let mut rig = Rig::serving(false, &Limits::SHIPPED);
    rig.feed(&request(0, read, COOKIE, 0, 512));
    rig.done(Err(Lost));
    assert_eq!(rig.sent(), simple(NBD_EIO));
}

#[test]
fn block_status_tells_merged_runs_and_never_more_than_asked() {
    let (hole, one) = ("00000003", NBD_CMD_FLAG_REQ_ONE);
    // Flags, offset, length, bitmap, extents.
    let cases = [
        (
            0,
            0,
            4096 * 4,
            vec![0b0110u8],
            format!("00001000{hole} 00002000 00000000 00001000{hole}"),
        ),
        (one, 0, 4096 * 4, vec![0b0110], format!("00001000{hole}")),
        (0, 512, 4096, vec![0b01], format!("00000e00 00000000 00000200{hole}")),
        (0, 4096 * 8, 1 << 20, vec![0; 32], format!("00100000{hole}")),
        (0, 4096, 512, vec![0xff, 0xff], "00000200 00000000".into()),
    ];
    for (flags, at, len, bits, extents) in cases {
        let mut rig = Rig::serving(true, &Limits::SHIPPED);
        rig.feed(&request(flags, NBD_CMD_BLOCK_STATUS, COOKIE, at, len));
        rig.done(Ok(&bits));
        let expected = chunk(5, &[hex("00000001"), hex(&extents)].concat());
        assert_eq!(rig.sent(), expected, "{at}+{len}");
    }
}

#[test]
fn block_status_of_a_huge_range_is_cut_to_bounded_work() {
    let mut rig = Rig::haggling();
    rig.volumes.0[0].1 = 8 << 30;
    rig.serve(true);
    rig.feed(&request(0, NBD_CMD_BLOCK_STATUS, COOKIE, 0, u32::MAX - 511));
    assert_eq!(rig.asked[0].1.len, 1 << 30);
    rig.done(Ok(&[0b1010_1010; (1 << 30) / 4096 / 8]));
    let reply = rig.sent();
    assert_eq!(reply.len(), 20 + 4 + 8 * (1 << 18), "every other block is an extent");

    // With a small payload limit the answer stays below it, even if the range is not aligned.
    let limits = Limits { nbd_payload: 4096, ..Limits::SHIPPED };
    let mut rig = Rig::serving(true, &limits);
    rig.feed(&request(0, NBD_CMD_BLOCK_STATUS, COOKIE, 512, 8 << 20));
    assert_eq!(rig.asked[0].1.len, 512 * 4096);
    rig.done(Ok(&[0b1010_1010; 65]));
    assert_eq!(rig.sent().len(), 20 + 4 + 4096);
}

#[test]
fn an_answer_of_the_wrong_length_is_an_error_not_a_panic() {
    let mut rig = Rig::serving(true, &Limits::SHIPPED);
    for command in [NBD_CMD_READ, NBD_CMD_BLOCK_STATUS] {
        rig.feed(&request(0, command, COOKIE, 0, 1 << 20));
        rig.done(Ok(&[1; 3]));
        assert_eq!(rig.sent(), error_chunk(COOKIE, NBD_EIO, "the core's answer is too short"));
    }
}

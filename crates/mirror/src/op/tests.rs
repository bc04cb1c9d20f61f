//! Tables of operations: what each kind of work is, and their parts.

use super::*;
use crate::testing::{
    GROUP, UNIT as UNIT_0, bits, blocks, compare, copy, fetch, read, stream, write,
};
use base::{BLOCK, Epoch, LinkId, SECTOR, SdcId};

#[test]
fn a_range_fits_if_it_lies_in_a_unit_at_multiples_of_the_grain() {
    for (at, len, sectors, blocks) in [
        (0, UNIT, true, true),
        (UNIT - BLOCK, BLOCK, true, true),
        (SECTOR, SECTOR, true, false),
        (0, SECTOR, true, false),
        (0, 0, false, false),
        (UNIT, SECTOR, false, false),
        (UNIT - SECTOR, BLOCK, false, false),
        (BLOCK, u32::MAX - BLOCK + 1, false, false),
        (1, SECTOR, false, false),
    ] {
        let found = (fits::<SECTOR>(at, len), fits::<BLOCK>(at, len));
        assert_eq!(found, (sectors, blocks), "{at} {len}");
    }
}

#[test]
fn a_fetch_that_comes_again_is_the_same_one() {
    let fetch = |link, op, group, at| {
        let range = UnitRange { unit: UNIT_0, at, len: BLOCK };
        let m = Fetch { op, group: GroupId(group), epoch: Epoch(1), range };
        Op::of_fetch(&m, PeerLink::new(LinkId(link), 1))
    };
    let first = fetch(1, 5, 7, 0);
    for (other, same) in [
        (fetch(1, 5, 7, 0), true),
        (fetch(2, 5, 7, 0), true), // on another link
        (fetch(1, 6, 7, 0), false),
        (fetch(1, 5, 8, 0), false),
        (fetch(1, 5, 7, BLOCK), false),
        (Op::new(GroupId(7), UNIT_0, 0, BLOCK, Work::Scrub), false),
    ] {
        assert_eq!(first.is_same_fetch(&other), same, "{other:?}");
    }
}

/// What each kind of work does: it shares its blocks, changes content, has a client, reads, and
/// which job it has.
#[test]
fn work_shares_its_blocks_if_it_only_reads_them() {
    let zero = |work| match work {
        Work::Write(write) => Work::Write(Write { zero: true, ..write }),
        Work::Stream(stream) => Work::Stream(Streamed { zero: true, ..stream }),
        other => other,
    };
    let lost = Work::Stream(Streamed { lost: true, ..stream() });
    let orphan = |changes, reads| Work::Orphan { changes, reads };
    let extents = Work::Extents(crate::testing::of_client(), Time(1));
    let in_stream = Work::Stream(stream());
    for (work, shares, changes, client, job) in [
        (read(), true, false, true, "Read"),
        (extents, true, false, true, "Read"),
        (fetch(), true, false, false, "Read"),
        (Work::Scrub, true, false, false, "Read"),
        (orphan(false, true), true, false, false, "Read"),
        (orphan(true, false), false, true, false, "Read"),
        (write(), false, true, true, "Write"),
        (zero(write()), false, true, true, "Zero"),
        (in_stream, false, true, false, "Write"),
        (zero(in_stream), false, true, false, "Zero"),
        (lost, false, true, false, "MarkLost"),
        (compare(), false, false, true, "Read"),
        (copy(), false, false, false, "Read"),
        (Work::Whole { of: None }, false, false, false, "Read"),
    ] {
        let op = Op::new(GROUP, UNIT_0, BLOCK, BLOCK, work);
        let found = (op.shares(), work.changes_data(), work.client().is_some());
        assert_eq!(found, (shares, changes, client), "{work:?}");
        assert_eq!(work.since().is_some(), client, "{work:?}");
        let does = alloc::format!("{:?}", op.job());
        assert!(does.starts_with(job) && does.contains("at: 4096"), "{work:?}: {does}");
        assert!(!Op { alone: true, ..op }.shares(), "{work:?} has met damage");
    }
}

#[test]
fn an_operation_whose_configuration_ends_keeps_what_its_job_does() {
    for (work, changes, reads) in
        [(read(), false, true), (write(), true, false), (copy(), false, false)]
    {
        let mut op = Op::new(GROUP, UNIT_0, 0, BLOCK, work);
        op.orphan();
        assert!(op.is_orphan() && op.work.client().is_none());
        assert_eq!((op.work.changes_data(), op.work.reads()), (changes, reads), "{work:?}");
    }
}

#[test]
fn an_operation_has_every_block_that_it_touches() {
    for (at, len, expected) in [
        (0, BLOCK, blocks(0..1)),
        (0, SECTOR, blocks(0..1)),
        (BLOCK - SECTOR, 2 * SECTOR, blocks(0..2)),
        (UNIT - BLOCK, BLOCK, blocks(255..256)),
        (0, UNIT, BlockSet::FULL),
    ] {
        let op = Op::new(GROUP, UNIT_0, at, len, read());
        assert_eq!(op.blocks(), expected, "{at} {len}");
    }
}

/// A write in several parts is answered so that the client asks for the rest.
#[test]
fn the_last_part_of_a_write_is_answered_ok() {
    for (more, expected) in [(false, Status::Ok), (true, Status::Busy)] {
        let requester = crate::testing::of_client();
        let write = Write { more, ..Write::new(requester, Time(1)) };
        assert_eq!(write.status_when_done(), expected);
    }
}

#[test]
fn blocks_are_sent_whole_to_all_that_need_them_by_one_operation() {
    let mut whole = WholeBlocks::default();
    whole.add(bits(&[2]));
    whole.add(bits(&[3]));
    assert_eq!(whole.begin(), bits(&[2, 3]));
    whole.add(bits(&[4]));
    assert_eq!((whole.needed, whole.sent, whole.running), (bits(&[4]), bits(&[2, 3]), true));
    whole.end(bits(&[3]));
    assert_eq!((whole.needed, whole.sent), (bits(&[3, 4]), bits(&[2])));
    assert_eq!((whole.begin(), whole.sent), (bits(&[3, 4]), bits(&[2, 3, 4])));
}

#[test]
#[should_panic = "at once"]
fn no_two_operations_send_the_same_blocks_whole() {
    let mut whole = WholeBlocks::default();
    whole.add(bits(&[2]));
    whole.begin();
    whole.begin();
}

/// What a request of a client takes of the shard's limits.
#[test]
fn an_operation_counts_with_its_body_or_its_answer() {
    use wire::message::{Extents, Read, Request};
    let range = UnitRange { unit: UNIT_0, at: 0, len: 3 * BLOCK };
    let client = ClientWrite { sdc: SdcId(5), ..ClientWrite::default() };
    let (epoch, map) = (Epoch(1), base::MapVersion(1));
    let request = Request { op: 1, group: GROUP, epoch, range, client, map, generation: 0 };
    let read = Io::Read(Read { request, retry: false });
    let extents = Io::Extents(Extents { request, retry: false });
    let write = Io::Write(wire::message::Write { request, retry: true });
    for (io, body, counts) in [(read, 0, 3 * BLOCK), (extents, 0, 0), (write, 3 * BLOCK, 3 * BLOCK)]
    {
        let data = seam::BufPool::new(0).zeroed(body as usize);
        let link = PeerLink::new(LinkId(1), 1);
        let op = Op::of_client(&io, link, Body { data, crc: None }, Time(1));
        assert_eq!((op.counts, op.client), (Some(counts), client), "{io:?}");
        assert_eq!(op.write().is_some_and(|write| write.retry), io.is_retry(), "{io:?}");
    }
}

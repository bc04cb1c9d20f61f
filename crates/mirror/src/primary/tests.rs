//! Tables of the primary: what it admits, and how reads and writes begin.

use super::*;
use crate::sync::Phase;
use crate::testing::{
    EPOCH, GROUP, ME, NOW, Rig, SECOND, UNIT, blocks, compare, named, of_client, op, read, write,
};
use base::{Duration, Incarnation, MapVersion};
use seam::{BufPool, Forgotten};
use wire::Frame;
use wire::message::{CompareWrite, Extents, Read, Request, UnitRange, Write, Zero};

type Change = fn(&mut Rig);
type Make = fn() -> Rig;
type Verdict = Result<(), Status>;

const AS_IT_IS: Change = |_| {};

fn request(at: u32, len: u32) -> Request {
    let range = UnitRange { unit: UNIT, at, len };
    let (client, map) = (named(9), MapVersion(0));
    Request { op: 99, group: GROUP, epoch: EPOCH, range, client, map, generation: 0 }
}

fn io_read(request: Request) -> Io {
    Io::Read(Read { request, retry: false })
}

fn io_write(at: u32, len: u32) -> Io {
    Io::Write(Write { request: request(at, len), retry: false })
}

fn body(bytes: u32) -> Body {
    Body { data: BufPool::new(0).zeroed(bytes as usize), crc: None }
}

fn admits(rig: &Rig, io: &Io, bytes: u32, full: bool) -> Verdict {
    rig.shard.replicas.of(GROUP).admits(ME, io, &body(bytes), &rig.shard.limits, full)
}

/// Makes device 2 grant a lease.
fn lease(rig: &mut Rig) {
    rig.shard.leases.granted(NOW, SECOND, NOW, MapVersion(0), MapVersion(0));
}

// ---- admission ----

#[test]
fn the_primary_of_the_present_epoch_admits_operations() {
    let rows: &[(&str, Change, u64, Verdict)] = &[
        ("present", AS_IT_IS, 4, Ok(())),
        ("older", AS_IT_IS, 3, Err(Status::Stale)),
        ("newer", AS_IT_IS, 5, Err(Status::Behind)),
        ("lost", |r| r.replica().config.lost = true, 4, Err(Status::Lost)),
        ("led by 2", |r| r.replica().config.primary = Some(SECOND), 4, Err(Status::Stale)),
        ("without a role", |r| r.replica().role = Role::Out, 4, Err(Status::Behind)),
        ("about to end", Rig::end_soon, 4, Err(Status::Stale)),
        ("about to begin", Rig::end_soon, 5, Err(Status::Behind)),
    ];
    for (name, change, epoch, expected) in rows {
        let mut rig = Rig::leading(&[2], &[]);
        change(&mut rig);
        let io = io_read(Request { epoch: Epoch(*epoch), ..request(0, SECTOR) });
        assert_eq!(admits(&rig, &io, 0, false), *expected, "{name}");
    }
}

#[test]
fn a_range_lies_in_a_unit_and_a_body_fits_its_range() {
    let reads = |at, len| io_read(request(at, len));
    let zero = |at, len| Io::Zero(Zero { request: request(at, len), hole: true, retry: false });
    let extents = |at, len| Io::Extents(Extents { request: request(at, len), retry: false });
    let compare =
        |at, len| Io::CompareWrite(CompareWrite { request: request(at, len), retry: false });
    let unfit = Err(Status::OutOfRange);
    for (io, bytes, expected) in [
        (reads(0, base::UNIT), 0, Ok(())),
        (reads(base::UNIT - SECTOR, SECTOR), 0, Ok(())),
        (reads(base::UNIT - SECTOR, 2 * SECTOR), 0, unfit),
        (reads(base::UNIT, SECTOR), 0, unfit),
        (reads(0, 0), 0, unfit),
        (reads(1, SECTOR), 0, unfit),
        (reads(0, SECTOR - 1), 0, unfit),
        (io_write(0, BLOCK), BLOCK, Ok(())),
        (io_write(0, BLOCK), BLOCK - 1, unfit),
        (io_write(0, BLOCK), 0, unfit),
        (zero(0, base::UNIT), 0, Ok(())),
        (extents(0, base::UNIT), 0, Ok(())),
        (compare(0, SECTOR), 2 * SECTOR, Ok(())),
        (compare(0, SECTOR), SECTOR, unfit),
        (compare(BLOCK - SECTOR, 2 * SECTOR), 4 * SECTOR, unfit),
    ] {
        let rig = Rig::leading(&[2], &[]);
        assert_eq!(admits(&rig, &io, bytes, false), expected, "{io:?} {bytes}");
    }
}

#[test]
fn no_number_follows_the_last_one_and_a_client_has_an_id() {
    let rig = Rig::leading(&[2], &[]);
    let mut io = io_read(request(0, SECTOR));
    io.request_mut().client.seq = u64::MAX;
    assert_eq!(admits(&rig, &io, 0, false), Err(Status::OutOfRange));
    let mut io = io_read(request(0, SECTOR));
    io.request_mut().client.sdc = SdcId(0);
    assert_eq!(admits(&rig, &io, 0, false), Err(Status::Busy));
}

#[test]
fn a_full_shard_admits_nothing_and_a_full_stream_no_writes() {
    let mut rig = Rig::leading(&[2], &[]);
    let reads = io_read(request(0, SECTOR));
    let writes = io_write(0, SECTOR);
    assert_eq!(admits(&rig, &reads, 0, true), Err(Status::Busy));
    assert_eq!(admits(&rig, &writes, SECTOR, true), Err(Status::Busy));
    for op in 0..u64::from(rig.shard.limits.stream) {
        rig.primary().enter(op, ReplicaSet::default());
    }
    assert_eq!(admits(&rig, &reads, 0, false), Ok(()));
    assert_eq!(admits(&rig, &writes, SECTOR, false), Err(Status::Busy));
    rig.primary().leave(Lsn(1));
    assert_eq!(admits(&rig, &writes, SECTOR, false), Ok(()));
}

/// The client's oldest write may wait for the space that a discard makes.
#[test]
fn a_discard_is_admitted_beyond_the_window_of_writes() {
    let zero = Io::Zero(Zero { request: request(0, SECTOR), hole: true, retry: false });
    let window = u64::from(base::Limits::TEST_MIN.executed_window);
    for (listed, writes, discards) in [
        (window - 1, Ok(()), Ok(())),
        (window, Err(Status::Busy), Ok(())),
        (2 * window - 1, Err(Status::Busy), Ok(())),
        (2 * window, Err(Status::Busy), Err(Status::Busy)),
    ] {
        let mut rig = Rig::leading(&[2], &[]);
        for seq in 100..100 + listed {
            let list = &mut rig.replica().record.executed;
            list.record(named(seq), UNIT, blocks(0..1), &mut 0);
        }
        let found =
            (admits(&rig, &io_write(0, SECTOR), SECTOR, false), admits(&rig, &zero, 0, false));
        assert_eq!(found, (writes, discards), "{listed}");
    }
}

#[test]
fn a_read_needs_a_lease_of_each_replica_that_could_be_promoted() {
    let mut rig = Rig::filling(&[2], 4);
    let term = rig.shard.limits.lease;
    let reads = |rig: &Rig, now| rig.shard.replicas.of(GROUP).may_read(now, &rig.shard.leases);
    assert!(!reads(&rig, NOW));
    lease(&mut rig);
    let last = NOW + (term - Duration::from_nanos(1));
    // A joiner that is being filled can't be promoted. One in limbo can.
    assert!(reads(&rig, last) && !reads(&rig, NOW + term));
    rig.sync().phase = Phase::Admit;
    assert!(!reads(&rig, NOW));
    rig.shard.leases.granted(NOW, DeviceId(4), NOW, MapVersion(0), MapVersion(0));
    assert!(reads(&rig, last));
    assert!(reads(&Rig::leading(&[], &[]), NOW), "no other replica could be promoted");
}

// ---- arrival ----

/// What a client's operation leaves: the answer, and operations that can start or wait.
#[test]
fn an_operation_is_queued_or_answered_when_it_comes() {
    type Row = (&'static str, Change, u32, u64, &'static str, [usize; 2]);
    let rows: &[Row] = &[
        ("served", AS_IT_IS, 7, 0, "", [1, 0]),
        ("not yet served", |r| r.primary().active = false, 7, 0, "", [0, 1]),
        (
            "the client's epoch is old",
            |r| r.replica().config.epoch = Epoch(5),
            7,
            0,
            "Stale",
            [0, 0],
        ),
        ("no replica is here", AS_IT_IS, 8, 0, "Stale", [0, 0]),
        ("the client has a newer map", AS_IT_IS, 8, 1, "Behind", [0, 0]),
        ("no room", |r| r.shard.limits.shard_ops = 0, 7, 0, "Busy", [0, 0]),
    ];
    for (name, change, group, map, left, queued) in rows {
        let mut rig = Rig::leading(&[2], &[]);
        change(&mut rig);
        let request =
            Request { group: GroupId(*group), map: MapVersion(*map), ..request(0, SECTOR) };
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.clients.client(shard, NOW, of_client().link, &io_read(request), body(0), out);
        assert_eq!(rig.left(), *left, "{name}");
        let waiting = rig.primary().waiting_for_service.len();
        assert_eq!([rig.ready().len(), waiting], *queued, "{name}");
    }
}

#[test]
fn a_client_with_an_old_epoch_learns_the_new_one_and_who_leads() {
    for (group, epoch, leader) in [(GROUP, Epoch(5), Some(SECOND)), (GroupId(8), Epoch(0), None)] {
        let mut rig = Rig::leading(&[2], &[]);
        let replica = rig.replica();
        (replica.config.epoch, replica.config.primary) = (Epoch(5), Some(SECOND));
        let io = io_read(Request { group, ..request(0, SECTOR) });
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.clients.client(shard, NOW, of_client().link, &io, body(0), out);
        let frames = rig.frames();
        assert!(matches!(frames[..], [(_, Frame::Reply(m), _)]
            if (m.status, m.epoch, m.leader) == (Status::Stale, epoch, leader)));
        assert_eq!(rig.notes, [Note::StaleEpoch { group, have: epoch, got: EPOCH }]);
    }
}

/// Operations that have begun hold their ranges, so those of the next session come after them.
#[test]
fn the_end_of_a_session_ends_what_has_not_begun() {
    for (name, work, client, local, lsn, ends) in [
        ("it waits", read(), 5, Local::NotStarted, 0, true),
        ("of another client", read(), 6, Local::NotStarted, 0, false),
        ("it runs", read(), 5, Local::Running, 0, false),
        ("it is in the stream", write(), 5, Local::NotStarted, 1, false),
        ("of no client", Work::Scrub, 5, Local::NotStarted, 0, false),
    ] {
        for blocked in [false, true] {
            let mut rig = Rig::leading(&[2], &[]);
            let client = seam::ClientWrite { sdc: SdcId(client), ..named(9) };
            let key = rig.hold(Op { client, local, lsn: Lsn(lsn), ..op(work) });
            match blocked {
                true => rig.primary().blocked.push(key),
                false => rig.primary().waiting_for_service.push_back(key),
            }
            rig.flows.clients.session_over(&mut rig.shard, SdcId(5));
            let primary = rig.primary();
            let listed = primary.waiting_for_service.len() + primary.blocked.len();
            assert_eq!((rig.is_over(key), listed), (ends, usize::from(!ends)), "{name}");
        }
    }
}

// ---- reads ----

#[test]
fn a_read_starts_under_leases_where_there_is_something_to_read() {
    let extents = || Work::Extents(of_client(), NOW);
    let lost: Change = |r| r.flows.clients.lost_blocks.set([((UNIT.volume, GROUP), 1)].into());
    let gone: Change = Rig::delete_volume;
    let valid: Change = |r| r.shard.store.valid = blocks(0..1);
    let job = "Read 0+4096";
    type Row<'a> = (&'a str, Work, bool, &'a [Change], &'a str, &'a str);
    let rows: &[Row] = &[
        ("leased", read(), true, &[], "", job),
        ("not leased", read(), false, &[], "", "blocked"),
        ("a comparison, not leased", compare(), false, &[], "", "blocked"),
        ("extents, not leased", extents(), false, &[], "", "blocked"),
        ("a comparison", compare(), true, &[], "", job),
        ("extents", extents(), true, &[], "Ok", ""),
        ("of a deleted volume", read(), true, &[gone], "NoVolume", ""),
        ("of a deleted volume, not leased", read(), false, &[gone], "NoVolume", ""),
        ("of a lost block", read(), true, &[lost], "Media", ""),
        ("of a lost block that was written", read(), true, &[lost, valid], "", job),
    ];
    for (name, work, leased, changes, left, jobs) in rows {
        let mut rig = Rig::leading(&[2], &[]);
        changes.iter().for_each(|change| change(&mut rig));
        if *leased {
            lease(&mut rig);
        }
        let key = rig.hold(op(*work));
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.clients.start_read(shard, NOW, key, out);
        assert_eq!(rig.left(), *left, "{name}");
        let waits = rig.primary().blocked == [key];
        let found = if waits { "blocked".into() } else { rig.jobs() };
        assert_eq!(found, *jobs, "{name}");
        assert_eq!(rig.notes.contains(&Note::LeaseWait { group: GROUP }), waits, "{name}");
        assert_eq!(rig.is_over(key), !left.is_empty(), "{name}");
    }
}

#[test]
fn extents_have_a_bit_for_each_block_that_holds_data_or_was_lost() {
    for (at, len, lost, expected) in [
        (0, 10 * BLOCK, false, &[0b1000_0101, 0b10][..]),
        (2 * BLOCK, BLOCK, false, &[1]),
        (BLOCK + SECTOR, BLOCK, false, &[0b10]),
        (3 * BLOCK, SECTOR, false, &[0]),
        (3 * BLOCK, 2 * BLOCK, true, &[0b11]),
    ] {
        let mut rig = Rig::leading(&[], &[]);
        [0, 2, 7, 9].into_iter().for_each(|b| rig.shard.store.valid.insert(blocks(b..b + 1)));
        if lost {
            rig.flows.clients.lost_blocks.set([((UNIT.volume, GROUP), 1)].into());
        }
        let key = rig.hold(Op { at, len, ..op(Work::Extents(of_client(), NOW)) });
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.clients.start_read(shard, NOW, key, out);
        let frames = rig.frames();
        assert_eq!(&frames[0].2[..], expected, "{at}+{len}");
        assert_eq!(rig.shard.stats.reads, 0, "no data was read");
    }
}

// ---- writes ----

/// What the start of a write leaves: frames, jobs, and its place in the stream.
#[test]
fn a_write_is_sent_and_begun_here_when_it_has_its_range() {
    let two: Make = || Rig::leading(&[2], &[]);
    let three: Make = || Rig::leading(&[2, 3], &[]);
    let fills: Make = || Rig::filling(&[2], 4);
    let valid: Change = |r| r.shard.store.valid = blocks(0..1);
    let full: Change = |r| r.shard.store.full = true;
    let bad: Change = |r| r.shard.store.started.push_back(Started::BadBody);
    let drains: Change = |r| r.sync().phase = Phase::Drain;
    let (job, both) = ("Write 0+4096", "Replicate 1 to 2, Replicate 1 to 3");
    type Row<'a> = (&'a str, Make, &'a [Change], &'a str, &'a str, u64);
    let rows: &[Row] = &[
        ("it has its space", two, &[valid], "Replicate 1 to 2", job, 1),
        ("it needs space", two, &[], "Replicate 1 fresh to 2", "", 1),
        ("it needs space here alone", || Rig::leading(&[], &[]), &[], "", job, 1),
        ("it needs space in three copies", three, &[], both, "", 1),
        ("a joiner", fills, &[valid], "Replicate 1 to 2, Replicate 1 to 4", job, 1),
        ("no space", two, &[full], "Full", "", 0),
        ("a deleted volume", two, &[Rig::delete_volume], "NoVolume", "", 0),
        ("its body has changed", two, &[valid, bad], "", job, 0),
        ("no room", two, &[valid, Rig::crowd], "", "blocked", 0),
        ("a seal is coming", fills, &[valid, drains], "", "blocked", 0),
    ];
    for (name, make, changes, left, jobs, lsn) in rows {
        let mut rig = make();
        changes.iter().for_each(|change| change(&mut rig));
        let key = rig.hold(op(write()));
        start_write(&mut rig, key);
        assert_eq!(rig.left(), *left, "{name}");
        let waits = rig.primary().blocked == [key];
        let found = if waits { "blocked".into() } else { rig.jobs() };
        assert_eq!((&found[..], rig.primary().last), (*jobs, Lsn(*lsn)), "{name}");
    }
}

#[test]
fn zeros_need_no_space() {
    let mut rig = Rig::leading(&[2], &[]);
    rig.shard.store.full = true;
    let zero = crate::op::Write { zero: true, ..crate::op::Write::new(of_client(), NOW) };
    let key = rig.hold(op(Work::Write(zero)));
    start_write(&mut rig, key);
    assert_eq!((&rig.left()[..], &rig.jobs()[..]), ("Replicate 1 zero to 2", "Zero 0+4096"));
}

/// Of a write of two blocks, some are in the content already.
#[test]
fn a_retry_does_only_what_is_missing() {
    let forgotten: Change = |r| {
        let mut forgotten = Forgotten::new(8);
        forgotten.raise(GROUP, SdcId(5), Incarnation(1), 10);
        r.shard.history = crate::history::History::new(&r.shard.limits, Some(&forgotten));
    };
    type Row = (&'static str, bool, core::ops::Range<u32>, Change, &'static str, &'static str);
    let rows: &[Row] = &[
        ("nothing was done", true, 0..0, AS_IT_IS, "Replicate 1 to 2", "Write 0+8192"),
        ("all was done", true, 0..2, AS_IT_IS, "Ok", ""),
        ("the first block was", true, 0..1, AS_IT_IS, "Replicate 1 to 2", "Write 4096+4096"),
        ("the second one was", true, 1..2, AS_IT_IS, "Replicate 1 to 2", "Write 0+4096"),
        ("it may be forgotten", true, 0..0, forgotten, "Forgotten", ""),
        ("all was done, others may be forgotten", true, 0..2, forgotten, "Ok", ""),
        ("it is no retry", false, 0..2, AS_IT_IS, "Replicate 1 to 2", "Write 0+8192"),
    ];
    for (name, retry, done, change, left, jobs) in rows {
        let mut rig = Rig::leading(&[2], &[]);
        rig.shard.store.valid = blocks(0..2);
        change(&mut rig);
        let list = &mut rig.replica().record.executed;
        list.record(named(9), UNIT, blocks(done.clone()), &mut 0);
        let work = Work::Write(crate::op::Write {
            retry: *retry,
            ..crate::op::Write::new(of_client(), NOW)
        });
        let data = BufPool::new(0).zeroed(2 * BLOCK as usize);
        let key = rig.hold(Op { client: named(9), len: 2 * BLOCK, body: data, ..op(work) });
        start_write(&mut rig, key);
        assert_eq!((&rig.left()[..], &rig.jobs()[..]), (*left, *jobs), "{name}");
        let deduped = rig.notes.contains(&Note::Deduped { group: GROUP });
        assert_eq!(deduped, *left == "Ok", "{name}");
    }
}

fn start_write(rig: &mut Rig, key: u64) {
    let Rig { shard, flows, out, .. } = rig;
    flows.clients.start_write(shard, NOW, key, out);
}

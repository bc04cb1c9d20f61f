//! The cost of the durable store on memory, next to the store for memory: time, bytes and
//! operations of the device. `docs/design/0009-ram-devices.md` has the figures.
//!
//! Run it by hand: `cargo test --release -p gabion-store -- --ignored --nocapture ram::`.

use crate::common::world::{expected, identity};
use base::{BLOCK, GroupId, Prng, UNIT, UnitKey, VolumeId};
use seam::{
    Buf, BufPool, ClientWrite, DiskId, Effect, Effects, Job, Origin, Started, UnitStore,
    WriteMetadata,
};
use std::time::{Duration, Instant};
use store::Memory;
use store::durable::{Durable, Format, Formatting, Mount, Mounting, Tuning};

const BYTES: u64 = 512 << 20;
const UNITS: u32 = 256;
const G: GroupId = GroupId(1);

/// A device in memory whose operations complete at once.
struct Ram {
    bytes: Vec<u8>,
    ops: u64,
    moved: u64,
    out: Effects,
}

impl Ram {
    fn new() -> Ram {
        let out = Effects::new(BufPool::new(1 << 28), Prng::new(1), None);
        Ram { bytes: vec![0; BYTES as usize], ops: 0, moved: 0, out }
    }

    /// Carries out everything that was emitted.
    fn run(&mut self, mut done: impl FnMut(seam::DiskOp, Buf, &mut Effects)) {
        loop {
            let effects: Vec<Effect> = self.out.drain().collect();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                self.ops += 1;
                let (op, data) = match effect {
                    Effect::Read { op, at, len, .. } => {
                        self.moved += u64::from(len);
                        (op, self.out.copy(&self.bytes[at as usize..][..len as usize]))
                    }
                    Effect::Write { op, at, body, .. } => {
                        self.moved += body.len() as u64;
                        self.bytes[at as usize..][..body.len()].copy_from_slice(&body);
                        (op, Buf::EMPTY)
                    }
                    Effect::Flush { op, .. } => (op, Buf::EMPTY),
                    other => panic!("{other:?}"),
                };
                done(op, data, &mut self.out);
            }
        }
    }
}

fn durable(ram: &mut Ram) -> Durable {
    let mut format = Format::new(DiskId(0), BYTES, identity(), true).unwrap();
    format.start(&mut ram.out);
    let mut formatted = false;
    ram.run(|op, data, out| {
        formatted |= matches!(format.disk_done(op, Ok(data), out), Formatting::Done);
    });
    assert!(formatted);
    let mut mount = Mount::new(DiskId(0), BYTES, expected(), Tuning::SHIPPED);
    let mut store = None;
    let _ = mount.start(&mut ram.out);
    ram.run(|op, data, out| match mount.disk_done(op, Ok(data), out) {
        Mounting::Done(mounted) => store = Some(*mounted),
        Mounting::Running => {}
        Mounting::Failed(error) => panic!("{error}"),
    });
    store.expect("mounted")
}

/// Runs `batch` jobs at a time, and returns the time of a job.
fn measure<S: UnitStore>(
    store: &mut S,
    ram: &mut Ram,
    jobs: u64,
    batch: u64,
    mut job: impl FnMut(u64, &mut Effects) -> (u32, Job),
) -> Duration {
    let begin = Instant::now();
    let mut next = 0;
    while next < jobs {
        let mut left = batch.min(jobs - next);
        for _ in 0..batch.min(jobs - next) {
            let (index, job) = job(next, &mut ram.out);
            let write = ClientWrite { sdc: base::SdcId(1), seq: next + 1, ..Default::default() };
            let write = ClientWrite { floor: (next + 1).saturating_sub(batch), ..write };
            let marks = WriteMetadata { dirty: false, origin: Origin::Client(write) };
            let unit = UnitKey { volume: VolumeId(1), index };
            match store.start(next, G, unit, job, marks, &mut ram.out) {
                Started::Pending => {}
                Started::Done(_) => left -= 1,
                other => panic!("{other:?}"),
            }
            next += 1;
            // `Memory` wants to be asked after each call.
            while store.finished().is_some() {
                left -= 1;
            }
        }
        while left > 0 {
            store.flush(&mut ram.out);
            ram.run(|op, data, out| {
                store.disk_done(op, Ok(data), out);
                while let Some(done) = store.finished() {
                    done.result.expect("nothing fails");
                    left -= 1;
                }
                store.flush(out);
            });
            while store.finished().is_some() {
                left -= 1;
            }
        }
    }
    begin.elapsed() / jobs as u32
}

fn table<S: UnitStore>(name: &str, ram: &mut Ram, store: &mut S) {
    let body = ram.out.copy(&vec![7; UNIT as usize]);
    let mut prng = Prng::new(3);
    let mut row = |what: &str,
                   jobs,
                   batch,
                   job: &mut dyn FnMut(u64, &mut Effects) -> (u32, Job)| {
        (ram.ops, ram.moved) = (0, 0);
        let took = measure(store, ram, jobs, batch, job);
        let (ops, moved) = (ram.ops as f64 / jobs as f64, ram.moved / jobs);
        println!("{name:8} {what:24} {took:>10.1?} {ops:>6.2} operations {moved:>8} bytes per job");
    };
    let sum = base::crc::crc32c(&body[..BLOCK as usize]);
    let large = base::crc::crc32c(&body[..128 << 10]);
    row("fill 128 KiB", u64::from(UNITS) * 8, 16, &mut |i, _| {
        let body = body.slice(0..128 << 10);
        ((i / 8) as u32, Job::Write { at: (i % 8) as u32 * (128 << 10), body, crc: Some(large) })
    });
    for batch in [1, 32] {
        let mut place = |i: u64| {
            // Jobs of a batch are apart.
            let unit = (i % batch) as u32 * (UNITS / batch as u32);
            (unit + prng.below(u64::from(UNITS) / batch) as u32, prng.below(256) as u32 * BLOCK)
        };
        row(&format!("write 4 KiB, {batch} at once"), 400_000, batch, &mut |i, _| {
            let (unit, at) = place(i);
            let body = body.slice(0..BLOCK as usize);
            (unit, Job::Write { at, body, crc: Some(sum) })
        });
        row(&format!("read 4 KiB, {batch} at once"), 400_000, batch, &mut |i, _| {
            let (unit, at) = place(i);
            (unit, Job::Read { at, len: BLOCK })
        });
    }
}

#[test]
#[ignore = "it measures, and takes a minute"]
fn the_durable_store_on_memory_in_numbers() {
    let mut ram = Ram::new();
    let mut memory = Memory::new(DiskId(0), BYTES, true);
    table("memory", &mut ram, &mut memory);
    let mut ram = Ram::new();
    let mut store = durable(&mut ram);
    table("durable", &mut ram, &mut store);
}

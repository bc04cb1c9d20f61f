//! A writer that outlives crashes: knows which writes were answered, and which one may or may not be there.
//!
//! It writes runs of blocks of mixed lengths over its own part of a volume, again and again over the same
//! places. Each block tells its place and the number of its write, so a lost, a misplaced and a stale block
//! are all noticed.

use crate::bytes::Random;
use crate::nbd::Nbd;
use crate::{Cluster, MIB};
use anyhow::{Result, bail, ensure};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

const BLOCK: u64 = 4096;
/// The longest write, in blocks.
const LONGEST: u64 = 64;

/// What one writer knows.
#[derive(Debug)]
pub struct Ledger {
    /// Blocks of the volume that are this writer's.
    part: Range<u64>,
    /// The number of the last answered write of each block; 0: never written.
    answered: Vec<u64>,
    /// Blocks and number of the write that was not answered.
    doubtful: Option<(Range<u64>, u64)>,
    next: u64,
    random: Random,
}

impl Ledger {
    /// Nothing is written yet to part `n` of `of` of the first `bytes` of a volume.
    pub fn new(n: u64, of: u64, bytes: u64) -> Ledger {
        let blocks = bytes / BLOCK / of;
        let part = n * blocks..(n + 1) * blocks;
        let answered = vec![0; blocks as usize];
        Ledger { part, answered, doubtful: None, next: 1, random: Random::new(n + 1) }
    }

    /// Writes until told to stop, or until the connection breaks; counts what was answered.
    pub fn write(&mut self, mut nbd: Nbd, stop: &AtomicBool, count: &AtomicU64) {
        while !stop.load(Ordering::Relaxed) {
            let len = 1 + self.random.below(LONGEST);
            let len = if self.random.below(2) == 0 { 1 } else { len };
            let first = self.random.below(self.answered.len() as u64 - len);
            let (blocks, number) = (first..first + len, self.next);
            self.next += 1;
            let start = self.part.start;
            let data: Vec<u8> =
                blocks.clone().flat_map(|b| content((start + b) * BLOCK, number)).collect();
            self.doubtful = Some((blocks.clone(), number));
            if nbd.write((start + first) * BLOCK, &data).is_err() {
                return;
            }
            self.answered[blocks.start as usize..blocks.end as usize].fill(number);
            self.doubtful = None;
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Compares the volume with what is known; what was in doubt is settled afterwards.
    pub fn verify(&mut self, nbd: &mut Nbd) -> Result<()> {
        let step = MIB / BLOCK;
        for from in (0..self.answered.len() as u64).step_by(step as usize) {
            let end = (from + step).min(self.answered.len() as u64);
            let at = (self.part.start + from) * BLOCK;
            let data = nbd.read(at, ((end - from) * BLOCK) as usize)?;
            for (block, found) in (from..end).zip(data.chunks(BLOCK as usize)) {
                self.settle(block, found)?;
            }
        }
        self.doubtful = None;
        Ok(())
    }

    fn settle(&mut self, block: u64, found: &[u8]) -> Result<()> {
        let at = (self.part.start + block) * BLOCK;
        let known = self.answered[block as usize];
        if found == content(at, known) {
            return Ok(());
        }
        match &self.doubtful {
            Some((blocks, number)) if blocks.contains(&block) && found == content(at, *number) => {
                self.answered[block as usize] = *number;
                Ok(())
            }
            doubt => bail!(
                "at byte {at}: write {known} was answered, {doubt:?} was not, and we read {:x?}",
                &found[..32]
            ),
        }
    }
}

/// The content of a block that write `number` wrote; zeros for 0.
fn content(at: u64, number: u64) -> Vec<u8> {
    let words = if number == 0 { [0, 0] } else { [at, number] };
    words.iter().flat_map(|w| w.to_le_bytes()).cycle().take(BLOCK as usize).collect()
}

/// Writers at work.
#[derive(Debug)]
pub struct Writers {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Ledger>>,
}

impl Writers {
    /// Starts one per ledger.
    pub fn start(cluster: &Cluster, volume: &str, ledgers: Vec<Ledger>) -> Result<Writers> {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut threads = Vec::new();
        for mut ledger in ledgers {
            let (nbd, stop, count) = (cluster.nbd(volume)?, stop.clone(), count.clone());
            threads.push(std::thread::spawn(move || {
                ledger.write(nbd, &stop, &count);
                ledger
            }));
        }
        Ok(Writers { stop, count, threads })
    }

    /// Waits until so many writes more are answered.
    pub fn wait(&self, count: u64) -> Result<()> {
        let goal = self.count.load(Ordering::Relaxed) + count;
        crate::wait(&format!("{count} writes more are answered"), crate::secs(60), || {
            ensure!(!self.threads.iter().all(|t| t.is_finished()), "all writers have ended");
            Ok((self.count.load(Ordering::Relaxed) >= goal).then_some(()))
        })
    }

    /// Lets them stop, or notice that the cluster is gone.
    pub fn finish(self) -> Vec<Ledger> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|t| t.join().expect("a writer doesn't panic")).collect()
    }
}

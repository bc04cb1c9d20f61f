//! A writer that survives crashes. It knows which writes were answered, and which one may or may
//! not have been executed.
//!
//! It writes runs of sectors of mixed lengths to its own part of a volume, repeatedly to the same
//! places; some are zeroed or trimmed. Each sector contains its place and the number of its write,
//! so lost, misplaced and stale sectors are all detected.

use crate::bytes::Random;
use crate::nbd::{Nbd, cmd};
use crate::{Cluster, MIB};
use anyhow::{Result, bail, ensure};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// The unit of comparison, in bytes.
const SECTOR: u64 = 512;
/// Sectors in the unit of a device's checksums. Shorter writes take another code path.
const BLOCK: u64 = 8;
/// The longest write, in blocks.
const LONGEST: u64 = 64;

/// The state of one writer.
#[derive(Debug)]
pub struct Ledger {
    /// This writer's sectors of the volume.
    part: Range<u64>,
    /// The number of the last answered write of each sector; 0: it is zeros.
    answered: Vec<u64>,
    /// Sectors and number of the unanswered write.
    doubtful: Option<(Range<u64>, u64)>,
    next: u64,
    random: Random,
}

impl Ledger {
    /// Creates an empty ledger for part `n` of `of` of the first `bytes` of a volume.
    pub fn new(n: u64, of: u64, bytes: u64) -> Ledger {
        let sectors = bytes / SECTOR / of / BLOCK * BLOCK;
        let part = n * sectors..(n + 1) * sectors;
        let answered = vec![0; sectors as usize];
        Ledger { part, answered, doubtful: None, next: 1, random: Random::new(n + 1) }
    }

    /// Writes until `stop` is set or the connection breaks; counts answered writes.
    pub fn write(&mut self, mut nbd: Nbd, stop: &AtomicBool, count: &AtomicU64) {
        while !stop.load(Ordering::Relaxed) && self.write_one(&mut nbd).is_ok() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Does the next write, which is doubtful until it is answered.
    pub fn write_one(&mut self, nbd: &mut Nbd) -> Result<()> {
        let (command, sectors, number) = self.draw();
        let at = (self.part.start + sectors.start) * SECTOR;
        let len = (sectors.end - sectors.start) * SECTOR;
        let data = match command {
            cmd::WRITE => (at..at + len).step_by(16).flat_map(|w| words(w, number)).collect(),
            _ => Vec::new(),
        };
        self.doubtful = Some((sectors.clone(), number));
        nbd.request(command, at, len as u32, &data)?;
        self.answered[sectors.start as usize..sectors.end as usize].fill(number);
        self.doubtful = None;
        Ok(())
    }

    /// Records writes that another process did for this ledger: `count` of them, and maybe one
    /// more.
    pub fn take_over(&mut self, count: u64) {
        for _ in 0..count {
            let (_, sectors, number) = self.draw();
            self.answered[sectors.start as usize..sectors.end as usize].fill(number);
        }
        let (_, sectors, number) = self.draw();
        self.doubtful = Some((sectors, number));
    }

    /// Draws the next write: its command, its sectors, and the number that they contain afterwards.
    fn draw(&mut self) -> (u16, Range<u64>, u64) {
        let sectors = self.place();
        let command = match self.random.below(16) {
            0 => cmd::TRIM,
            1 => cmd::WRITE_ZEROES,
            _ => cmd::WRITE,
        };
        let number = if command == cmd::WRITE { self.next } else { 0 };
        self.next += 1;
        (command, sectors, number)
    }

    /// Draws the place of the next write: half of them are one block, some are shorter.
    fn place(&mut self) -> Range<u64> {
        let blocks = if self.random.below(2) == 0 { 1 } else { 1 + self.random.below(LONGEST) };
        let first = self.random.below(self.answered.len() as u64 / BLOCK - blocks) * BLOCK;
        let end = first + blocks * BLOCK;
        match self.random.below(8) {
            0 => first + self.random.below(BLOCK / 2)..end - self.random.below(BLOCK / 2),
            _ => first..end,
        }
    }

    /// Compares the volume with the recorded writes. This settles the doubtful write.
    pub fn verify(&mut self, nbd: &mut Nbd) -> Result<()> {
        let step = MIB / SECTOR;
        for from in (0..self.answered.len() as u64).step_by(step as usize) {
            let end = (from + step).min(self.answered.len() as u64);
            let at = (self.part.start + from) * SECTOR;
            let data = nbd.read(at, ((end - from) * SECTOR) as usize)?;
            for (sector, found) in (from..end).zip(data.chunks(SECTOR as usize)) {
                self.settle(sector, found)?;
            }
        }
        self.doubtful = None;
        Ok(())
    }

    fn settle(&mut self, sector: u64, found: &[u8]) -> Result<()> {
        let at = (self.part.start + sector) * SECTOR;
        let known = self.answered[sector as usize];
        if is(found, at, known) {
            return Ok(());
        }
        match &self.doubtful {
            Some((sectors, number)) if sectors.contains(&sector) && is(found, at, *number) => {
                self.answered[sector as usize] = *number;
                Ok(())
            }
            doubt => bail!(
                "at byte {at}: write {known} was answered, {doubt:?} was not, and we read {:x?}",
                &found[..32]
            ),
        }
    }
}

/// Returns what write `number` wrote to the 16 bytes at a place; zeros for 0.
fn words(at: u64, number: u64) -> [u8; 16] {
    if number == 0 {
        return [0; 16];
    }
    (u128::from(number) << 64 | u128::from(at)).to_le_bytes()
}

/// Returns true if a sector has what write `number` wrote.
fn is(found: &[u8], at: u64, number: u64) -> bool {
    found.chunks(16).zip((at..).step_by(16)).all(|(found, at)| found == words(at, number))
}

/// Writer threads.
#[derive(Debug)]
pub struct Writers {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Ledger>>,
}

impl Writers {
    /// Starts one writer per ledger.
    pub fn start(cluster: &Cluster, volume: &str, ledgers: Vec<Ledger>) -> Result<Writers> {
        Writers::on(|| cluster.nbd(volume), ledgers)
    }

    /// Starts one writer per ledger, each on its own connection.
    pub fn on(connect: impl Fn() -> Result<Nbd>, ledgers: Vec<Ledger>) -> Result<Writers> {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut threads = Vec::new();
        for mut ledger in ledgers {
            let (nbd, stop, count) = (connect()?, stop.clone(), count.clone());
            threads.push(std::thread::spawn(move || {
                ledger.write(nbd, &stop, &count);
                ledger
            }));
        }
        Ok(Writers { stop, count, threads })
    }

    /// Waits until `count` more writes are answered.
    pub fn wait(&self, count: u64) -> Result<()> {
        let goal = self.count.load(Ordering::Relaxed) + count;
        crate::wait(&format!("{count} writes more are answered"), crate::secs(60), || {
            ensure!(!self.threads.iter().all(|t| t.is_finished()), "all writers have ended");
            Ok((self.count.load(Ordering::Relaxed) >= goal).then_some(()))
        })
    }

    /// Returns the number of answered writes since the start.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Stops the writers, or waits until they notice that the cluster is gone.
    pub fn finish(&mut self) -> Vec<Ledger> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).map(|t| t.join().expect("a writer doesn't panic")).collect()
    }
}

//! All faults at once, for any length of time: at the end every copy of every unit is byte-equal.
//!
//! Writers that record their writes continue while processes are killed and stopped and bits flip,
//! one fault after the other and before the last one is healed. The test never damages both copies
//! of a block, because no cluster of two copies survives that. So bits flip on one device at a
//! time, while both copies are whole, and are repaired before the next fault.

use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use system::bytes::Random;
use system::ledger::{Ledger, Writers};
use system::rot::Rot;
use system::{Cluster, MIB, Options, case, next_fault, replicas, secs, setting};

const OPTIONS: Options =
    Options { sds: 3, device: "file:320MiB", volumes: &["hot:96MiB", "cold:16MiB"], more: &[] };

const HOT: u64 = 96 * MIB;
const COLD: u64 = 16 * MIB;
const WRITERS: u64 = 3;

fn device(cluster: &Cluster, n: u64) -> String {
    cluster.device(n).display().to_string()
}

/// The kinds of faults.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fault {
    KillOne,
    KillTwo,
    KillMdm,
    KillAll,
    FreezeServer,
    FreezeMdm,
    /// On a running server.
    FlipBits,
    /// On a server that is down meanwhile, in data that was written long before.
    KillAndFlipBits,
}

use Fault::*;
const FAULTS: [Fault; 8] =
    [KillOne, KillTwo, KillMdm, KillAll, FreezeServer, FreezeMdm, FlipBits, KillAndFlipBits];

struct Torture {
    cluster: Cluster,
    random: Random,
    rot: Rot,
    /// First bytes of the blocks that are written only once.
    cold: BTreeSet<[u8; 16]>,
    writers: Writers,
    /// Number of blocks with flipped bits.
    flipped: u64,
    /// Writes that were answered to earlier writers.
    answered: u64,
}

impl Torture {
    fn writers(cluster: &Cluster, ledgers: Vec<Ledger>) -> Result<Writers> {
        Writers::start(cluster, "hot", ledgers)
    }

    /// Returns one of the servers.
    fn any(&mut self) -> u64 {
        1 + self.random.below(3)
    }

    /// Waits for some more writes.
    fn some_writes(&mut self) -> Result<()> {
        let count = 1 + self.random.below(300);
        self.writers.wait(count)
    }

    fn kill(&self, n: u64) -> Result<()> {
        self.cluster.kill(&format!("sds{n}"))
    }

    /// Causes a fault. Half of the faults come before the last one is healed.
    fn happens(&mut self, fault: Fault) -> Result<()> {
        if self.random.below(2) == 0 || matches!(fault, FlipBits | KillAndFlipBits) {
            self.cluster.wait_state("healthy", secs(60))?;
        }
        // Otherwise a process that is killed or stopped now may have the only good copy.
        let goes_on = self.cluster.status()?["state"] == "healthy";
        let n = self.any();
        match fault {
            KillOne => {
                self.kill(n)?;
                self.writes_if(goes_on)?;
                self.cluster.start_sds(n as u32)
            }
            KillTwo => {
                let second = 1 + (n + self.random.below(2)) % 3;
                let goes_on = goes_on && self.random.below(2) == 0;
                self.kill(n)?;
                self.writes_if(goes_on)?;
                self.kill(second)?;
                self.cluster.start_sds(n as u32)?;
                self.cluster.start_sds(second as u32)
            }
            KillMdm => {
                self.cluster.kill("mdm")?;
                self.writes_if(goes_on)?;
                self.cluster.gabion(&["mdm", "start"])?.ok().map(drop)
            }
            KillAll => self.kill_all(),
            FreezeServer => self.freeze(&format!("sds{n}"), goes_on),
            FreezeMdm => self.freeze("mdm", goes_on),
            FlipBits => self.flip(n, false),
            KillAndFlipBits => {
                self.kill(n)?;
                self.writes_if(goes_on)?;
                self.flip(n, true)
            }
        }
    }

    fn writes_if(&mut self, goes_on: bool) -> Result<()> {
        if goes_on { self.some_writes() } else { Ok(()) }
    }

    fn freeze(&mut self, name: &str, goes_on: bool) -> Result<()> {
        self.cluster.freeze(name)?;
        let outcome = self.writes_if(goes_on);
        self.cluster.thaw(name)?;
        outcome
    }

    /// Flips bits, starts the server again if it was down, and has the bits repaired.
    fn flip(&mut self, n: u64, down: bool) -> Result<()> {
        let device = device(&self.cluster, n);
        let only = down.then_some(&self.cold);
        self.flipped += self.rot.flip(&device, 8, only, &mut self.random)?;
        if down {
            self.cluster.start_sds(n as u32)?;
        }
        self.cluster.wait_state("healthy", secs(60))?;
        self.cluster.gabion(&["device", "scrub"])?.ok().map(drop)
    }

    /// Kills all processes. Afterwards everything that the writers recorded must be there.
    fn kill_all(&mut self) -> Result<()> {
        self.cluster.kill_all()?;
        let mut ledgers = self.writers.finish();
        self.answered += self.writers.count();
        self.cluster.start_again()?;
        let mut nbd = self.cluster.nbd("hot")?;
        for ledger in &mut ledgers {
            ledger.verify(&mut nbd)?;
        }
        self.writers = Torture::writers(&self.cluster, ledgers)?;
        Ok(())
    }
}

/// Starts a cluster with data that is never written again.
fn prepared() -> Result<(Cluster, Rot, Vec<u8>)> {
    let cluster = Cluster::start(&OPTIONS)?;
    let cold = Random::new(2).bytes(COLD as usize);
    cluster.fill("cold", &cold)?;
    cluster.gabion(&["down"])?.ok()?;
    let rot = Rot::learn(&device(&cluster, 1))?;
    cluster.start_again()?;
    Ok((cluster, rot, cold))
}

fn whole(cluster: &Cluster, volume: &str, bytes: u64) -> Result<Vec<u8>> {
    let mut nbd = cluster.nbd(volume)?;
    let units = (0..bytes).step_by(MIB as usize).map(|at| nbd.read(at, MIB as usize));
    Ok(units.collect::<Result<Vec<_>>>()?.concat())
}

/// `GABION_TORTURE=600` is the long form, in seconds; `GABION_SEED` chooses the faults.
#[test]
fn after_any_faults_every_copy_equals_the_acknowledged_data() {
    case(|| {
        let (seconds, seed) = (setting("GABION_TORTURE", 20), setting("GABION_SEED", 1));
        println!("to repeat it: GABION_TORTURE={seconds} GABION_SEED={seed}");
        let (cluster, rot, cold) = prepared()?;
        let ledgers = (0..WRITERS).map(|n| Ledger::new(n, WRITERS, HOT)).collect();
        let begins = cold.chunks(4096).filter_map(|block| block.first_chunk().copied()).collect();
        let writers = Torture::writers(&cluster, ledgers)?;
        let random = Random::new(seed);
        let mut torture =
            Torture { cluster, random, rot, cold: begins, writers, flipped: 0, answered: 0 };
        let mut faults = BTreeMap::new();
        let end = Instant::now() + secs(seconds);
        while Instant::now() < end {
            torture.some_writes()?;
            let count: u64 = faults.values().sum();
            let fault = next_fault(&FAULTS, count, &mut torture.random);
            torture.happens(fault).with_context(|| format!("fault {count}, {fault:?}"))?;
            *faults.entry(fault).or_insert(0) += 1;
        }
        let Torture { cluster, mut writers, flipped, answered, .. } = torture;
        let answered = answered + writers.count();
        let mut ledgers = writers.finish();
        cluster.wait_state("healthy", secs(60))?;
        cluster.gabion(&["device", "scrub"])?.ok()?;
        let mut nbd = cluster.nbd("hot")?;
        ledgers.iter_mut().try_for_each(|ledger| ledger.verify(&mut nbd))?;
        cluster.verify("cold", &cold)?;
        println!("{faults:?}; bits in {flipped} blocks; {answered} writes answered");
        equal_copies(&cluster, &cold)
    });
}

/// Compares the copies on the devices alone.
fn equal_copies(cluster: &Cluster, cold: &[u8]) -> Result<()> {
    let hot = whole(cluster, "hot", HOT)?;
    let status = cluster.status()?;
    cluster.stop_and_inspect(3)?;
    let devices: Vec<String> = (1..=3).map(|n| device(cluster, n)).collect();
    for (name, content) in [("hot", &hot[..]), ("cold", cold)] {
        let volumes = status["volumes"].as_array().context("volumes")?;
        let volume = volumes.iter().find(|v| v["name"] == name).context("the volume")?;
        let id = volume["id"].as_u64().context("an id")?;
        let bytes = replicas::compare(&cluster.folder, &devices, id, content)?;
        ensure!(bytes >= content.len() as u64, "{bytes} bytes are not all");
        println!("{name}: {bytes} bytes compared");
    }
    Ok(())
}

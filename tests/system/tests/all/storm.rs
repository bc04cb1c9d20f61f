//! Hosts with cables: servers and the MDM are killed and stopped, cables are pulled, packets
//! between two hosts are lost, bits flip and disks fail, one after the other and at once. All
//! answered writes must be there, and at the end all copies must be equal.
//!
//! Like the torture test, it adds a fault while another one lasts only if both leave a good copy.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;
use system::bytes::Random;
use system::failing::Operation;
use system::ledger::{Ledger, Writers};
use system::rot::Rot;
use system::{Failing, MIB, Spaces, case, gabion, next_fault, replicas, secs, setting, wait};

const HOSTS: u32 = 4;
const BYTES: u64 = 64 * MIB;
const WRITERS: u64 = 3;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fault {
    KillServer,
    FreezeServer,
    KillMdm,
    FreezeMdm,
    PullCable,
    /// Packets from a server to one other host are lost; the other direction works.
    LoseOneWay,
    /// Packets between two servers are lost in both directions.
    Part,
    FlipBits,
    FailReads,
    FailWrites,
    FailFlushes,
}

use Fault::*;
const FAULTS: [Fault; 11] = [
    KillServer,
    FreezeServer,
    KillMdm,
    FreezeMdm,
    PullCable,
    LoseOneWay,
    Part,
    FlipBits,
    FailReads,
    FailWrites,
    FailFlushes,
];

struct Storm {
    spaces: Spaces,
    random: Random,
    rot: Rot,
    writers: Writers,
    /// The disks of all hosts except the first.
    disks: BTreeMap<String, Failing>,
    /// The host whose disk failed last: its server may have ended, or is about to.
    failed: Option<String>,
    flipped: u64,
}

impl Storm {
    /// Returns a server's host, except the one that serves the volume, whose cable must stay.
    fn server(&mut self) -> String {
        format!("h{}", 2 + self.random.below(u64::from(HOSTS) - 1))
    }

    fn other(&mut self, than: &str) -> String {
        loop {
            let other = self.server();
            if other != than {
                return other;
            }
        }
    }

    /// Waits for some writes, which continue under any fault.
    fn some_writes(&mut self) -> Result<()> {
        let count = 1 + self.random.below(200);
        self.writers.wait(count)
    }

    fn happens(&mut self, fault: Fault) -> Result<()> {
        self.all_is_well()?;
        let host = self.server();
        match fault {
            KillServer => {
                self.spaces.signal(&host, "sds", Signal::KILL)?;
                self.some_writes()?;
                self.spaces.start(&host, "sds")
            }
            FreezeServer => self.freeze(&host, "sds"),
            KillMdm => {
                self.spaces.signal("h1", "mdm", Signal::KILL)?;
                self.some_writes()?;
                self.spaces.start("h1", "mdm")
            }
            FreezeMdm => self.freeze("h1", "mdm"),
            PullCable => {
                self.spaces.cable(&host, "down")?;
                let outcome = self.some_writes();
                self.spaces.cable(&host, "up")?;
                outcome
            }
            LoseOneWay => {
                let to = format!("h{}", 1 + self.random.below(u64::from(HOSTS)));
                let to = if to == host { "h1".to_owned() } else { to };
                self.parted(&[(&host, &to)])
            }
            Part => {
                let other = self.other(&host);
                self.parted(&[(&host, &other), (&other, &host)])
            }
            FlipBits => {
                let device = self.spaces.device(&host);
                self.flipped += self.rot.flip(&device, 8, None, &mut self.random)?;
                self.spaces.gabion(&["device", "scrub"])?.ok().map(drop)
            }
            FailReads => self.fail(&host, Operation::Read),
            FailWrites => self.fail(&host, Operation::Write),
            FailFlushes => self.fail(&host, Operation::Flush),
        }
    }

    /// Lets a disk fail until its server has ended or has not noticed.
    fn fail(&mut self, host: &str, operation: Operation) -> Result<()> {
        self.disks[host].set(operation, true);
        let seen = self.spaces.nbd("v")?.read(0, (BYTES / 4) as usize).map(drop);
        let outcome = seen.and_then(|()| self.some_writes());
        self.disks[host].set(operation, false);
        self.failed = Some(host.to_owned());
        outcome
    }

    fn all_is_well(&self) -> Result<()> {
        wait("all is well", secs(90), || {
            if let Some(host) = self.failed.as_ref().filter(|h| !self.spaces.runs(h, "sds")) {
                self.spaces.start(host, "sds")?;
            }
            Ok((self.spaces.status()?["state"] == "healthy").then_some(()))
        })
    }

    fn freeze(&mut self, host: &str, role: &str) -> Result<()> {
        self.spaces.signal(host, role, Signal::STOP)?;
        let outcome = self.some_writes();
        self.spaces.signal(host, role, Signal::CONT)?;
        outcome
    }

    fn parted(&mut self, ways: &[(&str, &str)]) -> Result<()> {
        ways.iter().try_for_each(|(from, to)| self.spaces.lose(from, to, true))?;
        let outcome = self.some_writes();
        ways.iter().try_for_each(|(from, to)| self.spaces.lose(from, to, false))?;
        outcome
    }
}

/// `GABION_STORM=1200` is the long form, in seconds; `GABION_SEED` chooses the faults.
#[test]
fn a_storm_over_hosts_with_cables_loses_nothing() {
    case(|| {
        let (seconds, seed) = (setting("GABION_STORM", 20), setting("GABION_SEED", 1));
        println!("to repeat it: GABION_STORM={seconds} GABION_SEED={seed}");
        let mut spaces = Spaces::new(HOSTS, "256MiB", "\"v:64MiB\"")?;
        spaces.deploy(&["--down"])?.ok()?;
        let rot = Rot::learn(&spaces.device("h2"))?;
        let disk = |n: u32| {
            let host = format!("h{n}");
            Ok((host.clone(), Failing::over(Path::new(&spaces.device(&host)))?))
        };
        let disks = (2..=HOSTS).map(disk).collect::<Result<_>>()?;
        spaces.up()?;
        let ledgers = (0..WRITERS).map(|n| Ledger::new(n, WRITERS, BYTES)).collect();
        let writers = Writers::on(|| spaces.nbd("v"), ledgers)?;
        let mut storm = Storm {
            spaces,
            random: Random::new(seed),
            rot,
            writers,
            disks,
            failed: None,
            flipped: 0,
        };
        let mut faults = BTreeMap::new();
        let end = Instant::now() + secs(seconds);
        while Instant::now() < end {
            storm.some_writes()?;
            let count: u64 = faults.values().sum();
            let fault = next_fault(&FAULTS, count, &mut storm.random);
            storm.happens(fault).with_context(|| format!("fault {count}, {fault:?}"))?;
            *faults.entry(fault).or_insert(0) += 1;
        }
        storm.all_is_well()?;
        for (host, role) in
            [("h1", "mdm"), ("h1", "sds"), ("h2", "sds"), ("h3", "sds"), ("h4", "sds")]
        {
            ensure!(!storm.spaces.log(host, role)?.contains("panicked"), "{host} {role}");
        }
        let Storm { spaces, mut writers, disks, flipped, .. } = storm;
        let answered = writers.count();
        let mut ledgers = writers.finish();
        spaces.wait_state("healthy")?;
        spaces.gabion(&["device", "scrub"])?.ok()?;
        let mut nbd = spaces.nbd("v")?;
        ledgers.iter_mut().try_for_each(|ledger| ledger.verify(&mut nbd))?;
        println!("{faults:?}; bits in {flipped} blocks; {answered} writes answered");
        let units = (0..BYTES).step_by(MIB as usize).map(|at| nbd.read(at, MIB as usize));
        let content = units.collect::<Result<Vec<_>>>()?.concat();
        drop(nbd);
        let id = spaces.status()?["volumes"][0]["id"].as_u64().context("an id")?;
        spaces.deploy(&["--down"])?.ok()?;
        drop(disks);
        let devices: Vec<String> = (1..=HOSTS).map(|n| spaces.device(&format!("h{n}"))).collect();
        for device in &devices {
            gabion(["inspect", device, "verify"])?.ok()?;
        }
        let bytes = replicas::compare(&spaces.folder, &devices, id, &content)?;
        ensure!(bytes >= BYTES, "{bytes} bytes are not all");
        println!("{bytes} bytes compared");
        Ok(())
    });
}

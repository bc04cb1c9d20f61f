//! A client that never reads its answers uses little memory, and does not affect others.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::time::Duration;
use system::bytes::Random;
use system::nbd::{Nbd, cmd};
use system::probe::Probe;
use system::{Cluster, MIB, Options, case, secs, wait};

/// Number of connections that do not read, requests of each, and the length of a request.
const GREEDY: u64 = 4;
const ASKED: u64 = 100;
const PART: u64 = 2 * MIB;
const VOLUME: u64 = 64 * MIB;
/// Memory that one may use: requests in flight (64 MiB), unsent answers (1 MiB), and a margin.
const COST: u64 = 96 * MIB;

/// Returns the resident memory of a process, in bytes.
fn memory(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).context("its memory")?;
    let kib: u64 = line.split_whitespace().next().context("a number")?.parse()?;
    Ok(kib << 10)
}

/// Waits until a process needs no more memory than a second before. Returns the amount.
fn settled(pid: u32) -> Result<u64> {
    let mut before = 0;
    wait("its memory settles", secs(60), || {
        std::thread::sleep(Duration::from_secs(1));
        let now = memory(pid)?;
        let grown = now > before + 8 * MIB;
        before = now;
        Ok((!grown).then_some(now))
    })
}

#[test]
fn a_client_that_never_reads_costs_little_memory_and_delays_no_other() {
    case(|| {
        let volumes = &["vol1:64MiB", "vol2:64MiB"];
        let cluster = Cluster::start(&Options { volumes, ..Options::default() })?;
        let content = Random::new(9).bytes(VOLUME as usize);
        cluster.fill("vol1", &content)?;
        let probe = Probe::start(&cluster, "vol2", 2, 32 * MIB)?;
        let sdc = cluster.pid("sdc")?;
        let before = settled(sdc)?;
        let mut greedy = Vec::new();
        for _ in 0..GREEDY {
            let mut nbd = cluster.nbd("vol1")?;
            for i in 0..ASKED {
                nbd.ask(cmd::READ, i * PART % VOLUME, PART as u32, &[])?;
            }
            greedy.push(nbd);
        }
        let grown = settled(sdc)?.saturating_sub(before);
        println!("{GREEDY} clients that don't read cost {} MiB", grown / MIB);
        ensure!(grown <= GREEDY * COST, "{} MiB", grown / MIB);
        // Others continue, even on the same volume.
        probe.wait_ops(500)?;
        cluster.nbd("vol1")?.verify(&content[..8 * MIB as usize])?;
        // One of them finally reads: every answer is there. Another one just disconnects.
        let mut reader: Nbd = greedy.pop().context("one of them")?;
        drop(greedy.pop());
        for _ in 0..ASKED {
            let (cookie, data) = reader.answer(PART as usize)?;
            let at = ((cookie - 1) * PART % VOLUME) as usize;
            ensure!(data == content[at..at + PART as usize], "answer {cookie} is wrong");
        }
        probe.wait_ops(100)?;
        probe.finish().map(drop)
    });
}

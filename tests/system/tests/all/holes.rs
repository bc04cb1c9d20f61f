//! Freed space goes back to the file system under file devices, and what stays is whole.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::MetadataExt;
use system::bytes::Random;
use system::nbd::{Nbd, cmd};
use system::run::tool;
use system::{Cluster, MIB, Options, case, secs, wait};

const OPTIONS: Options =
    Options { sds: 2, device: "file:256MiB", volumes: &["vol1:128MiB"], more: &[] };
/// Of each part of the volume, the first half is discarded.
const PART: u64 = 8 * MIB;
/// What the log and the maps of a device may take meanwhile.
const METADATA: u64 = 6 * MIB;

/// Returns the space that a server's device file takes in its file system, in bytes.
fn space(cluster: &Cluster, n: u32) -> Result<u64> {
    Ok(fs::metadata(cluster.device(n))?.blocks() * 512)
}

/// Waits until the device files of both servers take no more than this.
fn wait_for_space(cluster: &Cluster, most: [u64; 2]) -> Result<()> {
    wait("the space was given back", secs(60), || {
        let now = [space(cluster, 1)?, space(cluster, 2)?];
        Ok((now[0] <= most[0] && now[1] <= most[1]).then_some(()))
    })
    .with_context(|| format!("wanted {most:?}, have {:?}", [1, 2].map(|n| space(cluster, n))))
}

/// Discards the first half of these parts, in the volume and in the expected content.
fn discard(nbd: &mut Nbd, content: &mut [u8], parts: impl Iterator<Item = u64>) -> Result<()> {
    for part in parts {
        nbd.request(cmd::TRIM, part * PART, (PART / 2) as u32, &[])?;
        content[(part * PART) as usize..][..(PART / 2) as usize].fill(0);
    }
    Ok(())
}

#[test]
fn discarded_space_goes_back_to_the_file_system_of_both_copies() {
    case(|| {
        let cluster = Cluster::start(&OPTIONS)?;
        let mut content = Random::new(31).bytes(128 << 20);
        cluster.fill("vol1", &content)?;
        cluster.verify("vol1", &content)?;
        let full = [space(&cluster, 1)?, space(&cluster, 2)?];
        ensure!(full.iter().all(|bytes| *bytes >= 128 * MIB), "{full:?}");
        let parts = content.len() as u64 / PART;
        let mut nbd = cluster.nbd("vol1")?;
        discard(&mut nbd, &mut content, 0..parts / 2)?;
        // In the middle of it, a server is killed. It misses the other discards.
        cluster.kill("sds1")?;
        discard(&mut nbd, &mut content, parts / 2..parts)?;
        nbd.verify(&content)?;
        cluster.start_sds(1)?;
        cluster.wait_state("healthy", secs(60))?;
        wait_for_space(&cluster, full.map(|bytes| bytes + METADATA - 64 * MIB))?;
        nbd.verify(&content)?;
        // The space is used again while more of it is given back, and all processes are killed.
        let again = Random::new(32).bytes(PART as usize / 2);
        for part in 0..parts / 4 {
            nbd.write(part * PART, &again)?;
            content[(part * PART) as usize..][..again.len()].copy_from_slice(&again);
            discard(&mut nbd, &mut content, std::iter::once(parts - 1 - part))?;
        }
        cluster.kill_all()?;
        cluster.start_again()?;
        cluster.wait_state("healthy", secs(60))?;
        cluster.verify("vol1", &content)?;
        // Each server alone has every byte.
        for n in 1..=2 {
            cluster.kill(&format!("sds{n}"))?;
            cluster.verify("vol1", &content)?;
            cluster.start_sds(n)?;
            cluster.wait_state("healthy", secs(60))?;
        }
        cluster.gabion(&["volume", "delete", "vol1", "--yes"])?.ok()?;
        wait_for_space(&cluster, [32 * MIB; 2])?;
        cluster.stop_and_inspect(2)
    });
}

#[test]
fn a_file_that_has_all_of_its_blocks_keeps_them() {
    case(|| {
        let cluster = Cluster::start(&OPTIONS)?;
        let mut content = Random::new(33).bytes(128 << 20);
        cluster.fill("vol1", &content)?;
        cluster.gabion(&["down"])?.ok()?;
        let file = cluster.device(1);
        tool("fallocate", ["-l", "256MiB", file.to_str().context("text")?])?.ok()?;
        cluster.start_again()?;
        let full = [space(&cluster, 1)?, space(&cluster, 2)?];
        ensure!(full[0] >= 256 * MIB && full[1] < 200 * MIB, "{full:?}");
        let mut nbd = cluster.nbd("vol1")?;
        discard(&mut nbd, &mut content, 0..128 * MIB / PART)?;
        wait_for_space(&cluster, [u64::MAX, full[1] + METADATA - 64 * MIB])?;
        wait("its server says so", secs(30), || {
            let log = fs::read_to_string(cluster.file("logs/sds1.log"))?;
            Ok(log.contains("its file keeps the space of freed data").then_some(()))
        })?;
        ensure!(space(&cluster, 1)? >= 256 * MIB, "{}", space(&cluster, 1)?);
        nbd.verify(&content)?;
        cluster.stop_and_inspect(2)
    });
}

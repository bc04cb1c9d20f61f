//! Devices that fail with EIO on reads, writes or flushes. The volume continues with the other
//! copy, clients notice nothing, the server logs the failure, and a repaired device is used again.

use anyhow::{Result, ensure};
use std::fs;
use system::bytes::Random;
use system::failing::Operation::{self, Flush, Read, Write};
use system::ledger::{Ledger, Writers};
use system::{Cluster, Failing, MIB, Options, case, secs};

const OPTIONS: Options =
    Options { sds: 3, device: "file:256MiB", volumes: &["vol1:96MiB", "vol2:32MiB"], more: &[] };
/// Size of the volume that is read. Repaired blocks are read from memory until 8 MiB of them wait
/// there for their slots. The second server leads a third of the volume, which is far more.
const READ_BYTES: u64 = 96 * MIB;

/// Size of the volume that is written.
const WRITTEN_BYTES: u64 = 32 * MIB;

/// Starts a cluster with data, whose second server has a device that can fail.
fn cluster() -> Result<(Cluster, Failing)> {
    let cluster = Cluster::start(&OPTIONS)?;
    cluster.fill("vol1", &Random::new(5).bytes(READ_BYTES as usize))?;
    cluster.gabion(&["down"])?.ok()?;
    let disk = Failing::over(&cluster.device(2))?;
    cluster.start_again()?;
    cluster.wait_state("healthy", secs(20))?;
    Ok((cluster, disk))
}

#[test]
fn unreadable_blocks_are_read_from_the_other_copy() {
    case(|| {
        let (cluster, disk) = cluster()?;
        let content = Random::new(5).bytes(READ_BYTES as usize);
        disk.set(Read, true);
        cluster.verify("vol1", &content)?;
        // Blocks that were rewritten can't be read from their slots either: the device is useless.
        cluster.wait_down("sds2")?;
        ended(&cluster, "can't read what was just written to it")?;
        disk.set(Read, false);
        cluster.start_sds(2)?;
        cluster.wait_state("healthy", secs(20))?;
        cluster.gabion(&["device", "scrub"])?.ok()?;
        cluster.verify("vol1", &content)?;
        cluster.gabion(&["down"])?.ok()?;
        drop(disk);
        cluster.start_again()?;
        cluster.verify("vol1", &content)?;
        cluster.stop_and_inspect(3)
    });
}

/// Checks that the second server has logged why it ended.
fn ended(cluster: &Cluster, why: &str) -> Result<()> {
    let log = fs::read_to_string(cluster.file("logs/sds2.log"))?;
    ensure!(log.contains(why), "{log}");
    Ok(())
}

/// Writers continue while a device fails in this operation. In the end all answered writes are
/// there, including on the device.
fn fails(operation: Operation) -> Result<()> {
    let (cluster, disk) = cluster()?;
    let ledgers = (0..2).map(|n| Ledger::new(n, 2, WRITTEN_BYTES)).collect();
    let mut writers = Writers::start(&cluster, "vol2", ledgers)?;
    writers.wait(100)?;
    disk.set(operation, true);
    cluster.wait_down("sds2")?;
    writers.wait(500)?;
    ended(&cluster, "the device failed to write or to flush")?;
    // While its device fails, the server can't come back, and says so.
    let said = cluster.gabion(&["sds", "start", "2"])?;
    ensure!(said.code == 1, "{said:?}");
    writers.wait(100)?;
    disk.set(operation, false);
    cluster.start_sds(2)?;
    writers.wait(500)?;
    let mut ledgers = writers.finish();
    cluster.wait_state("healthy", secs(30))?;
    let mut nbd = cluster.nbd("vol2")?;
    ledgers.iter_mut().try_for_each(|ledger| ledger.verify(&mut nbd))?;
    // Its copies alone have everything.
    for other in ["sds1", "sds3"] {
        cluster.kill(other)?;
        ledgers.iter_mut().try_for_each(|ledger| ledger.verify(&mut nbd))?;
        cluster.start_sds(if other == "sds1" { 1 } else { 3 })?;
        cluster.wait_state("healthy", secs(30))?;
    }
    drop(nbd);
    cluster.gabion(&["down"])?.ok()?;
    drop(disk);
    cluster.start_again()?;
    cluster.wait_state("healthy", secs(30))?;
    cluster.stop_and_inspect(3)
}

#[test]
fn a_device_that_cannot_write_is_taken_out_of_use() {
    case(|| fails(Write));
}

#[test]
fn a_device_that_cannot_flush_is_taken_out_of_use() {
    case(|| fails(Flush));
}

//! Full RAM devices: new data waits, nothing is lost, others are served, and space that comes back is used.

use anyhow::{Context, Result, ensure};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use system::bytes::Random;
use system::nbd::{Nbd, cmd};
use system::{Cluster, MIB, Options, case, secs, wait};

/// Units that are written, one after the other; more than there is space for.
const UNITS: usize = 60;

fn write_all(nbd: &mut Nbd, units: &[Vec<u8>], done: &AtomicUsize) -> Result<()> {
    for (i, data) in units.iter().enumerate() {
        nbd.write(i as u64 * MIB, data)?;
        done.store(i + 1, Ordering::SeqCst);
    }
    Ok(())
}

fn is_full(cluster: &Cluster) -> Result<bool> {
    let status = cluster.status()?;
    let devices = status["sds"].as_array().context("servers")?.iter();
    let devices = devices.filter_map(|s| s["devices"].as_array()).flatten();
    Ok(devices.filter(|d| d["full"].as_bool() == Some(true)).count() > 0)
}

#[test]
fn a_full_pool_holds_new_data_and_keeps_the_old() {
    case(|| {
        let cluster = Cluster::start(&Options {
            device: "ram:32MiB",
            volumes: &["big:256MiB", "other:4MiB"],
            ..Options::default()
        })?;
        let mut other = cluster.nbd("other")?;
        other.write(0, &[5; 4096])?;
        let mut random = Random::new(12);
        let units: Vec<_> = (0..UNITS).map(|_| random.bytes(MIB as usize)).collect();
        let done = AtomicUsize::new(0);
        let (mut writer, mut nbd) = (cluster.nbd("big")?, cluster.nbd("big")?);
        thread::scope(|scope| {
            let writing = scope.spawn(|| write_all(&mut writer, &units, &done));
            wait("the pool is full", secs(30), || Ok(is_full(&cluster)?.then_some(())))?;
            let written = done.load(Ordering::SeqCst);
            ensure!((10..UNITS).contains(&written), "full after {written} MiB");
            // What was written is there and can be overwritten; others are served.
            for (i, data) in units[..written].iter().enumerate() {
                ensure!(nbd.read(i as u64 * MIB, data.len())? == *data, "unit {i}");
            }
            nbd.write(0, &units[0])?;
            other.write(4096, &[6; 4096])?;
            ensure!(other.read(0, 4096)? == [5; 4096]);
            ensure!(done.load(Ordering::SeqCst) == written && !writing.is_finished());
            // Discards give space back, and what waits is done.
            wait("everything is written", secs(30), || {
                let end = done.load(Ordering::SeqCst).saturating_sub(1);
                nbd.request(cmd::TRIM, 0, (end as u64 * MIB) as u32, &[])?;
                Ok(writing.is_finished().then_some(()))
            })?;
            writing.join().expect("the writer does not panic")
        })?;
        let last = UNITS - 1;
        ensure!(nbd.read(last as u64 * MIB, MIB as usize)? == units[last]);
        let status = cluster.status()?;
        let state = status["state"].as_str().context("a state")?;
        ensure!(state == "healthy", "a full device is no failure: {status:#}");
        Ok(())
    });
}

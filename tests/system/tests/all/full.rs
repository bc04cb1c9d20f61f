//! Full devices: new data waits, nothing is lost, other volumes are served, and freed space is
//! used. The spare is reserved for rebuilding lost copies.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use system::bytes::Random;
use system::nbd::{Nbd, cmd};
use system::{Cluster, MIB, Options, case, secs, wait};

/// Units that are written in sequence; more than there is space for.
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

/// Starts a cluster with two volumes, one of which is larger than the devices.
fn small_devices() -> Result<Cluster> {
    let volumes = &["big:256MiB", "other:4MiB"];
    Cluster::start(&Options { device: "ram:32MiB", volumes, ..Options::default() })
}

#[test]
fn a_full_pool_holds_new_data_and_keeps_the_old() {
    case(|| {
        let cluster = small_devices()?;
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
            // Written data is there and can be overwritten; other volumes are served.
            for (i, data) in units[..written].iter().enumerate() {
                ensure!(nbd.read(i as u64 * MIB, data.len())? == *data, "unit {i}");
            }
            nbd.write(0, &units[0])?;
            other.write(4096, &[6; 4096])?;
            ensure!(other.read(0, 4096)? == [5; 4096]);
            ensure!(done.load(Ordering::SeqCst) == written && !writing.is_finished());
            // Discards free space, and the waiting write is executed.
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

/// Least number of writes that wait for space, and the length of each: far more than one connection
/// may have in flight.
const WAITING: u64 = 1000;
const PART: u64 = 128 << 10;

#[test]
fn a_thousand_waiting_writes_delay_nothing_else() {
    case(|| {
        let cluster = small_devices()?;
        let (mut nbd, mut other) = (cluster.nbd("big")?, cluster.nbd("other")?);
        other.write(0, &[5; 4096])?;
        let asked = 1600;
        let part = vec![7; PART as usize];
        for i in 0..asked {
            nbd.ask(cmd::WRITE, i * PART, PART as u32, &part)?;
        }
        wait("writes wait", secs(60), || {
            Ok((cluster.status()?["full"]["held"].as_u64() >= Some(WAITING)).then_some(()))
        })?;
        // Reads, flushes and discards of the same connection continue, and so do other volumes.
        let mut answered = 0;
        for (command, len) in [(cmd::READ, 4096), (cmd::FLUSH, 0), (cmd::TRIM, 4096)] {
            let at = if command == cmd::FLUSH { 0 } else { 255 * MIB };
            let cookie = nbd.ask(command, at, len, &[])?;
            let data = if command == cmd::READ { len as usize } else { 0 };
            answered += nbd.answers(cookie, data)?;
        }
        other.write(0, &[6; 4096])?;
        ensure!(other.read(0, 4096)? == [6; 4096]);
        ensure!(answered <= asked - WAITING, "{answered} writes are done: they don't wait");
        // Space is freed: all writes are executed without an error.
        while answered < asked {
            let cookie = nbd.ask(cmd::TRIM, 0, (200 * MIB) as u32, &[])?;
            answered += nbd.answers(cookie, 0)?;
        }
        Ok(())
    });
}

/// Returns a server with space on each of its devices.
fn with_space(cluster: &Cluster) -> Result<String> {
    let status = cluster.status()?;
    let mut servers = status["sds"].as_array().context("servers")?.iter();
    let full = |d: &Value| d["full"].as_bool() != Some(false);
    let server = servers.find(|s| s["devices"].as_array().is_some_and(|all| !all.iter().any(full)));
    let name = server.context("a server with space")?["name"].as_str().context("a name")?;
    Ok(name.to_string())
}

/// Returns the highest fill level (used bytes per capacity) of the devices that are up.
fn fullest(cluster: &Cluster) -> Result<f64> {
    let status = cluster.status()?;
    let devices = status["sds"].as_array().context("servers")?.iter();
    let devices = devices.filter_map(|s| s["devices"].as_array()).flatten();
    let up = devices.filter(|d| d["state"] == "up");
    let bytes = |d: &Value, what: &str| d[what].as_u64().unwrap_or(0) as f64;
    Ok(up.map(|d| bytes(d, "used_bytes") / bytes(d, "capacity_bytes")).fold(0.0, f64::max))
}

#[test]
fn a_pool_that_is_full_but_for_its_spare_rebuilds_and_keeps_the_space_of_thick_volumes() {
    case(|| {
        let cluster = Cluster::start(&Options {
            sds: 4,
            device: "file:128MiB",
            volumes: &["big:512MiB"],
            more: &["--rebuild-after", "2"],
        })?;
        cluster.gabion(&["pool", "set", "default", "--spare", "35"])?.ok()?;
        cluster.gabion(&["volume", "create", "thick", "4MiB", "--thick"])?.ok()?;
        let mut random = Random::new(13);
        let units: Vec<_> = (0..256).map(|_| random.bytes(MIB as usize)).collect();
        let done = AtomicUsize::new(0);
        let (mut writer, mut thick) = (cluster.nbd("big")?, cluster.nbd("thick")?);
        let held = || {
            let full = &cluster.status()?["full"];
            let only_spare = full["only_spare"].as_array().is_some_and(|d| !d.is_empty());
            Ok((only_spare && full["held"].as_u64() > Some(0)).then_some(()))
        };
        thread::scope(|scope| {
            let writing = scope.spawn(|| write_all(&mut writer, &units, &done));
            wait("writes are held", secs(60), held)?;
            let before = done.load(Ordering::SeqCst);
            let used = fullest(&cluster)?;
            ensure!((0.5..0.68).contains(&used), "{used} of a device is used");
            let page = cluster.gabion(&["status"])?.stdout;
            ensure!(page.contains("gabion pool set default --spare"), "{page}");
            let content = Random::new(14).bytes(4 * MIB as usize);
            for (at, part) in content.chunks(MIB as usize).enumerate() {
                thick.write(at as u64 * MIB, part)?;
            }
            // All of it finds space on the other devices. The held write still waits for the device
            // that held it up.
            let lost = with_space(&cluster)?;
            cluster.kill(&lost)?;
            cluster.wait_down(&lost)?;
            wait("the others have it all", secs(120), || {
                let groups = &cluster.status()?["groups"];
                Ok((groups["degraded"] == 0 && groups["failed"] == 0).then_some(()))
            })?;
            ensure!(fullest(&cluster)? > 0.75, "the spare is in use");
            ensure!(done.load(Ordering::SeqCst) == before && !writing.is_finished());
            ensure!(thick.read(0, content.len())? == content);
            // The operator may release the spare for writes.
            cluster.gabion(&["pool", "set", "default", "--spare", "0"])?.ok()?;
            wait("writes go on", secs(30), || {
                Ok((done.load(Ordering::SeqCst) > before + 4).then_some(()))
            })?;
            wait("everything is written", secs(60), || {
                let end = done.load(Ordering::SeqCst).saturating_sub(1);
                thick.request(cmd::TRIM, 0, 4 * MIB as u32, &[])?;
                let mut trim = cluster.nbd("big")?;
                trim.request(cmd::TRIM, 0, (end as u64 * MIB) as u32, &[])?;
                Ok(writing.is_finished().then_some(()))
            })?;
            writing.join().expect("the writer does not panic")
        })?;
        let last = units.len() - 1;
        let mut nbd = cluster.nbd("big")?;
        ensure!(nbd.read(last as u64 * MIB, MIB as usize)? == units[last]);
        cluster.stop_and_inspect(3)
    });
}

//! Devices become larger while everything runs.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use system::bytes::Random;
use system::cluster::signal;
use system::ledger::{Ledger, Writers};
use system::nbd::Nbd;
use system::{Cluster, MIB, Options, case, secs, wait};

const OPTIONS: Options =
    Options { sds: 3, device: "file:40MiB", volumes: &["vol1:256MiB"], more: &[] };

/// Returns the status of a server's first device.
fn device(cluster: &Cluster, n: u32) -> Result<Value> {
    let status = cluster.status()?;
    let mut servers = status["sds"].as_array().context("servers")?.iter();
    let server = servers.find(|s| s["name"] == format!("sds{n}")).context("the server")?;
    Ok(server["devices"][0].clone())
}

fn capacity(cluster: &Cluster, n: u32) -> Result<u64> {
    device(cluster, n)?["capacity_bytes"].as_u64().context("a capacity")
}

fn grow(cluster: &Cluster, n: u32, more: &[&str]) -> Result<system::Ran> {
    let (id, sds) = (device(cluster, n)?["id"].to_string(), n.to_string());
    cluster.gabion(&[&["device", "grow", &id, "--sds", &sds], more].concat())
}

fn write_all(nbd: &mut Nbd, units: &[Vec<u8>], done: &AtomicUsize) -> Result<()> {
    for (i, data) in units.iter().enumerate() {
        nbd.write(i as u64 * MIB, data)?;
        done.store(i + 1, Ordering::SeqCst);
    }
    Ok(())
}

#[test]
fn writes_that_wait_for_space_go_on_when_devices_have_grown() {
    case(|| {
        let cluster = Cluster::start(&OPTIONS)?;
        let before = capacity(&cluster, 1)?;
        let mut random = Random::new(21);
        let units: Vec<_> = (0..90).map(|_| random.bytes(MIB as usize)).collect();
        let done = AtomicUsize::new(0);
        let mut writer = cluster.nbd("vol1")?;
        thread::scope(|scope| {
            let writing = scope.spawn(|| write_all(&mut writer, &units, &done));
            wait("writes are held", secs(60), || {
                Ok((cluster.number("/full/held")? > 0).then_some(()))
            })?;
            let page = cluster.gabion(&["status"])?;
            ensure!(page.stdout.contains("gabion device grow"), "{}", page.stdout);
            ensure!(!writing.is_finished() && done.load(Ordering::SeqCst) > 20);
            for n in 1..=3 {
                let said = grow(&cluster, n, &["160MiB"])?.ok()?;
                ensure!(said.contains("40 MiB -> 160 MiB"), "{said}");
                ensure!(capacity(&cluster, n)? > before + 100 * MIB);
            }
            // The writes continue without a retry.
            wait("everything is written", secs(60), || Ok(writing.is_finished().then_some(())))?;
            writing.join().expect("the writer does not panic")
        })?;
        let content = units.concat();
        cluster.verify("vol1", &content)?;
        let status = cluster.wait_state("healthy", secs(60))?;
        ensure!(status["full"].is_null(), "{status:#}");
        let list = cluster.gabion(&["device", "list"])?.ok()?;
        ensure!(list.matches(":160MiB").count() == 3, "{list}");
        cluster.stop_and_inspect(3)?;
        // The next start finds everything, even with the command that created the cluster.
        cluster.gabion(&["up", "--detach", "--device", "file:40MiB"])?.ok()?;
        ensure!(capacity(&cluster, 2)? > before + 100 * MIB);
        cluster.verify("vol1", &content)
    });
}

#[test]
fn devices_grow_under_load_and_nothing_is_lost() {
    case(|| {
        let cluster = Cluster::start(&Options { device: "file:192MiB", ..OPTIONS })?;
        let pids = [1, 2, 3].map(|n| cluster.pid(&format!("sds{n}")).expect("it runs"));
        let ledgers = (0..3).map(|n| Ledger::new(n, 3, 120 * MIB)).collect();
        let mut writers = Writers::start(&cluster, "vol1", ledgers)?;
        for size in ["240MiB", "300MiB"] {
            for n in 1..=3 {
                writers.wait(50)?;
                grow(&cluster, n, &[size])?.ok()?;
            }
        }
        writers.wait(200)?;
        // All processes are killed at once in the middle of it.
        cluster.kill_all()?;
        let mut ledgers = writers.finish();
        cluster.start_again()?;
        let mut nbd = cluster.nbd("vol1")?;
        ledgers.iter_mut().try_for_each(|ledger| ledger.verify(&mut nbd))?;
        for n in 1..=3 {
            ensure!(capacity(&cluster, n)? > 250 * MIB, "{}", capacity(&cluster, n)?);
            ensure!(cluster.pid(&format!("sds{n}"))? != pids[n as usize - 1]);
        }
        cluster.wait_state("healthy", secs(60))?;
        cluster.stop_and_inspect(3)
    });
}

fn configuration(cluster: &Cluster, n: u32) -> std::path::PathBuf {
    cluster.file(&format!("config/sds{n}.toml"))
}

fn replace(file: &Path, old: &str, new: &str) -> Result<()> {
    let text = fs::read_to_string(file)?;
    ensure!(text.contains(old), "{text}");
    Ok(fs::write(file, text.replace(old, new))?)
}

#[test]
fn a_larger_file_and_a_larger_size_in_the_configuration_count_as_well() {
    case(|| {
        let cluster = Cluster::start(&OPTIONS)?;
        let data = Random::new(2).bytes(8 * MIB as usize);
        cluster.fill("vol1", &data)?;
        let before = capacity(&cluster, 1)?;
        let larger = |n: u32| {
            wait(&format!("sds{n} has more"), secs(30), || {
                Ok((capacity(&cluster, n)? > before).then_some(()))
            })
        };
        // By hand, while the server runs: the configuration, and a signal.
        let (old, new) = (":40MiB", ":80MiB");
        replace(&configuration(&cluster, 1), old, new)?;
        signal(cluster.pid("sds1")?, Signal::HUP)?;
        larger(1)?;
        // The file grows, although the configuration says otherwise, and the server restarts.
        File::options().write(true).open(cluster.device(2))?.set_len(90 * MIB)?;
        cluster.wait_state("healthy", secs(60))?;
        cluster.kill("sds2")?;
        cluster.start_sds(2)?;
        larger(2)?;
        // The configuration changes, and the server restarts.
        cluster.wait_state("healthy", secs(60))?;
        cluster.kill("sds3")?;
        replace(&configuration(&cluster, 3), old, new)?;
        cluster.start_sds(3)?;
        larger(3)?;
        ensure!(fs::metadata(cluster.device(3))?.len() == 80 * MIB);
        cluster.wait_state("healthy", secs(60))?;
        cluster.verify("vol1", &data)?;
        cluster.stop_and_inspect(3)?;
        let shown = system::gabion(["inspect", cluster.device(2).to_str().context("text")?])?;
        ensure!(shown.ok()?.contains("slots of growth 1"));
        Ok(())
    });
}

#[test]
fn a_device_that_can_not_grow_says_why() {
    case(|| {
        let options = Options { device: "file:16MiB", volumes: &["vol1:8MiB"], ..OPTIONS };
        let cluster = Cluster::start(&options)?;
        let (file, before) = (cluster.device(1), capacity(&cluster, 1)?);
        grow(&cluster, 1, &["8MiB"])?.fails(1, &["16 MiB", "can't become smaller"])?;
        grow(&cluster, 1, &["20MiB"])?.fails(1, &["at least 16 MiB"])?;
        grow(&cluster, 1, &[])?.fails(1, &["at least 16 MiB"])?;
        cluster
            .gabion(&["device", "grow", "4711", "1GiB", "--sds", "1"])?
            .fails(1, &["has no device 4711", "gabion device list"])?;
        let id = device(&cluster, 2)?["id"].to_string();
        cluster
            .gabion(&["device", "grow", &id, "1GiB", "--sds", "1"])?
            .fails(1, &["has no device"])?;
        ensure!(fs::metadata(&file)?.len() == 16 * MIB && capacity(&cluster, 1)? == before);
        // Memory can't grow.
        cluster.gabion(&["device", "add", "ram:64MiB", "--sds", "1"])?.ok()?;
        let list = cluster.gabion(&["device", "list", "--json"])?.ok()?;
        let list: Value = serde_json::from_str(&list)?;
        let ram = list.as_array().context("a list")?.iter().find(|d| d["kind"] == "ram");
        let ram = ram.context("the new device")?["id"].to_string();
        cluster
            .gabion(&["device", "grow", &ram, "128MiB", "--sds", "1"])?
            .fails(1, &["is memory", "only files and block devices"])?;
        // A device can grow 16 times.
        for i in 2..=17 {
            grow(&cluster, 1, &[&format!("{}MiB", 16 * i)])?.ok()?;
        }
        grow(&cluster, 1, &["1GiB"])?.fails(1, &["can grow 16 times"])?;
        ensure!(fs::metadata(&file)?.len() == 17 * 16 * MIB);
        cluster.wait_state("healthy", secs(60)).map(drop)
    });
}

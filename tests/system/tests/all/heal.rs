//! A cluster heals and grows by itself: lost copies are rebuilt, devices and servers come and go,
//! and no client notices.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use system::bytes::Random;
use system::probe::Probe;
use system::{Cluster, MIB, Options, case, run, secs, wait};

const OPTIONS: Options = Options {
    sds: 4,
    device: "file:256MiB",
    volumes: &["vol1:64MiB", "vol2:96MiB"],
    more: &["--rebuild-after", "2"],
};

/// Starts a cluster with content in `vol2`, and a probe on `vol1`.
fn loaded() -> Result<(Cluster, Vec<u8>, Probe)> {
    let cluster = Cluster::start(&OPTIONS)?;
    let content = Random::new(5).bytes(96 * MIB as usize);
    cluster.fill("vol2", &content)?;
    let probe = Probe::start(&cluster, "vol1", 2, 48 * MIB)?;
    Ok((cluster, content, probe))
}

/// Returns the number of groups of a server, from the status.
fn groups(cluster: &Cluster, server: &str) -> Result<u64> {
    let status = cluster.status()?;
    let servers = status["sds"].as_array().context("servers")?.clone();
    let devices = servers.iter().filter(|s| s["name"] == server);
    let devices = devices.flat_map(|s| s["devices"].as_array().cloned().unwrap_or_default());
    Ok(devices.map(|d| d["groups"].as_u64().unwrap_or(0)).sum())
}

fn moving(status: &Value) -> u64 {
    let count = |what: &str| status["moves"][what].as_u64().unwrap_or(u64::MAX / 2);
    count("groups") + count("waiting_groups")
}

/// Waits until nothing moves and nothing is degraded.
fn settled(cluster: &Cluster) -> Result<Value> {
    wait("everything is in its place", secs(120), || {
        let status = cluster.status()?;
        let groups = status["groups"]["degraded"] == 0 && status["groups"]["failed"] == 0;
        let still = moving(&status) == 0 && groups;
        Ok(still.then_some(status))
    })
}

/// Checks all data: under load, read again, and on every device of the cluster's `servers`.
fn verified(cluster: &Cluster, content: &[u8], probe: Probe, servers: u32) -> Result<()> {
    probe.finish()?;
    cluster.verify("vol2", content)?;
    cluster.stop_and_inspect(servers)
}

#[test]
fn a_lost_server_is_rebuilt_without_an_order() {
    case(|| {
        let (cluster, content, probe) = loaded()?;
        cluster.kill("sds4")?;
        cluster.wait_down("sds4")?;
        wait("the others have it all", secs(120), || {
            Ok((groups(&cluster, "sds4")? == 0).then_some(()))
        })?;
        settled(&cluster)?;
        // Another server fails, now that the first one's copies are elsewhere.
        cluster.kill("sds3")?;
        cluster.wait_down("sds3")?;
        wait("two have it all", secs(120), || Ok((groups(&cluster, "sds3")? == 0).then_some(())))?;
        settled(&cluster)?;
        verified(&cluster, &content, probe, 2)
    });
}

#[test]
fn a_server_that_comes_back_late_gets_its_share_again() {
    case(|| {
        let (cluster, content, probe) = loaded()?;
        let share = groups(&cluster, "sds4")?;
        cluster.kill("sds4")?;
        wait("the others have it all", secs(120), || {
            Ok((groups(&cluster, "sds4")? == 0).then_some(()))
        })?;
        cluster.start_sds(4)?;
        wait("it has its share", secs(120), || {
            Ok((groups(&cluster, "sds4")? * 100 >= share * 95).then_some(()))
        })?;
        settled(&cluster)?;
        verified(&cluster, &content, probe, 4)
    });
}

#[test]
fn a_server_in_maintenance_is_waited_for_and_a_protected_one_is_emptied() {
    case(|| {
        let (cluster, content, probe) = loaded()?;
        let refused = |args: &[&str], code: i32, why: &str| {
            let run = cluster.gabion(args)?;
            ensure!(run.code == code && run.stderr.contains(why), "{args:?}: {run:?}");
            Ok(())
        };
        refused(&["sds", "maintain", "9"], 1, "there is no server `sds9`")?;
        refused(&["sds", "maintain", "2", "--end"], 1, "`sds2` is not in maintenance")?;
        let share = groups(&cluster, "sds2")?;
        cluster.gabion(&["sds", "maintain", "2"])?.ok()?;
        refused(&["sds", "maintain", "3"], 1, "`sds2` is in maintenance already")?;
        ensure!(cluster.gabion(&["sds", "list"])?.ok()?.contains("up, maintenance"));
        cluster.kill("sds2")?;
        cluster.wait_down("sds2")?;
        // Much longer than `--rebuild-after`.
        std::thread::sleep(secs(5));
        ensure!(groups(&cluster, "sds2")? == share, "it is waited for");
        refused(&["sds", "maintain", "3"], 1, "`sds2` is in maintenance already")?;
        cluster.start_sds(2)?;
        cluster.gabion(&["sds", "maintain", "2", "--end"])?.ok()?;
        settled(&cluster)?;
        cluster.gabion(&["sds", "maintain", "4", "--protected"])?.ok()?;
        ensure!(groups(&cluster, "sds4")? == 0);
        ensure!(cluster.status()?["groups"]["degraded"] == 0);
        cluster.kill("sds4")?;
        cluster.wait_down("sds4")?;
        ensure!(cluster.status()?["groups"]["degraded"] == 0);
        cluster.start_sds(4)?;
        cluster.gabion(&["sds", "maintain", "4", "--end"])?.ok()?;
        wait("it has its share", secs(120), || {
            Ok((groups(&cluster, "sds4")? * 100 >= share * 90).then_some(()))
        })?;
        settled(&cluster)?;
        verified(&cluster, &content, probe, 4)
    });
}

#[test]
fn a_device_and_a_server_are_removed_under_load() {
    case(|| {
        let (cluster, content, probe) = loaded()?;
        let spec = format!("file:{}:256MiB", cluster.file("more").display());
        cluster.gabion(&["device", "add", &spec, "--sds", "2"])?.ok()?;
        let share = groups(&cluster, "sds1")?;
        wait("the new device has its share", secs(120), || {
            Ok((groups(&cluster, "sds2")? > share).then_some(()))
        })?;
        settled(&cluster)?;
        let status = cluster.status()?;
        let servers = status["sds"].as_array().context("servers")?;
        let second = servers.iter().find(|s| s["name"] == "sds2").context("sds2")?;
        let id = second["devices"][1]["id"].to_string();
        cluster.gabion(&["device", "remove", &id, "--sds", "2"])?.ok()?;
        ensure!(!cluster.gabion(&["device", "list"])?.ok()?.contains("sds2.1"));
        // The first removal is cancelled, the second one is not.
        cluster.gabion(&["sds", "remove", "3", "--detach"])?.ok()?;
        cluster.gabion(&["sds", "remove", "3", "--keep"])?.ok()?;
        cluster.gabion(&["sds", "remove", "4"])?.ok()?;
        settled(&cluster)?;
        ensure!(groups(&cluster, "sds3")? > 0);
        let status = cluster.status()?;
        ensure!(status["sds"].as_array().context("servers")?.len() == 3, "{status}");
        cluster.gabion(&["sds", "remove", "3", "--detach"])?.ok()?;
        cluster.gabion(&["sds", "remove", "2"])?.fails(1, &["two servers"])?;
        cluster.gabion(&["sds", "remove", "3", "--keep"])?.ok()?;
        settled(&cluster)?;
        verified(&cluster, &content, probe, 3)
    });
}

/// A server that `up` did not start. It ends with the test.
struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn guest(cluster: &Cluster) -> Result<Guest> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let status = cluster.status()?;
    let mdm = status["mdm"][0]["address"].as_str().context("an MDM")?.to_owned();
    let (file, config) = (cluster.file("guest"), cluster.file("guest.toml"));
    let text = format!(
        "name = \"guest\"\nmdm = [\"{mdm}\"]\n[[device]]\nspec = \"file:{}:256MiB\"\nlisten = \"127.0.0.1:{port}\"\n",
        file.display()
    );
    fs::write(&config, text)?;
    let mut command = Command::new(run::binary());
    command.args(["sds", "run", "--config"]).arg(&config);
    Ok(Guest(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
}

#[test]
fn a_new_server_gets_its_share_and_can_go_again() {
    case(|| {
        let (cluster, content, probe) = loaded()?;
        let all: u64 = (1..=4).map(|n| groups(&cluster, &format!("sds{n}"))).sum::<Result<_>>()?;
        let guest = guest(&cluster)?;
        wait("it has its share", secs(120), || {
            Ok((groups(&cluster, "guest")? * 100 >= all / 5 * 95).then_some(()))
        })?;
        settled(&cluster)?;
        for n in 1..=4 {
            let has = groups(&cluster, &format!("sds{n}"))?;
            ensure!(has.abs_diff(all / 5) * 100 <= all, "sds{n} has {has} of {all}");
        }
        cluster.gabion(&["sds", "remove", "guest"])?.ok()?;
        drop(guest);
        settled(&cluster)?;
        verified(&cluster, &content, probe, 4)
    });
}

#[test]
fn a_slow_server_is_ejected() {
    case(|| {
        let options = Options { more: &["--quarantine", "600"], ..OPTIONS };
        let cluster = Cluster::start(&options)?;
        let probe = Probe::start(&cluster, "vol1", 2, 16 * MIB)?;
        // The server is stopped most of the time, but never silent for long.
        let over = AtomicBool::new(false);
        let held = std::thread::scope(|scope| {
            let slow = scope.spawn(|| -> Result<()> {
                while !over.load(Ordering::Relaxed) {
                    cluster.freeze("sds2")?;
                    std::thread::sleep(Duration::from_millis(600));
                    cluster.thaw("sds2")?;
                    std::thread::sleep(Duration::from_millis(40));
                }
                Ok(())
            });
            let held = wait("it is held out", secs(90), || {
                let list = cluster.gabion(&["sds", "list"])?.ok()?;
                let held: Vec<String> =
                    list.lines().filter(|l| l.contains("held out")).map(str::to_owned).collect();
                Ok((!held.is_empty()).then_some(held))
            });
            over.store(true, Ordering::Relaxed);
            slow.join().expect("it returns")?;
            held
        })?;
        ensure!(held.len() == 1 && held[0].contains("sds2"), "{held:?}");
        let log = fs::read_to_string(cluster.file("logs/mdm.log"))?;
        ensure!(log.contains("is slow"), "people are told");
        ensure!(cluster.status()?["groups"]["failed"] == 0);
        probe.finish().map(drop)
    });
}

#[test]
fn a_flapping_server_is_quarantined_but_serves_groups_that_it_alone_has() {
    case(|| {
        let options = Options { more: &["--quarantine", "600"], sds: 2, ..OPTIONS };
        let cluster = Cluster::start(&options)?;
        let probe = Probe::start(&cluster, "vol1", 2, 16 * MIB)?;
        let held = |server: &str| -> Result<f64> {
            let status = cluster.status()?;
            let servers = status["sds"].as_array().context("servers")?;
            let server = servers.iter().find(|s| s["name"] == server).context("it")?;
            server["devices"][0]["quarantine_seconds"].as_f64().context("a number")
        };
        for times in 1..=4 {
            cluster.kill("sds2")?;
            cluster.wait_down("sds2")?;
            cluster.start_sds(2)?;
            ensure!((held("sds2")? > 0.0) == (times == 4), "{times}");
            if times < 4 {
                settled(&cluster)?;
            }
        }
        ensure!(cluster.gabion(&["sds", "list"])?.ok()?.contains("up, held out for"));
        std::thread::sleep(secs(2));
        ensure!(cluster.status()?["groups"]["degraded"] != 0, "it gets nothing");
        ensure!(cluster.status()?["groups"]["failed"] == 0);
        probe.finish().map(drop)
    });
}

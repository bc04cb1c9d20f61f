//! Clients write as fast as they can, and a server that stands still for a second loses no copy.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::thread;
use std::time::Duration;
use system::{Cluster, Options, case, secs, setting, wait};

/// Clients, each with its own connections to the servers.
const CLIENTS: &str = "6";
/// Duration of the load in seconds. The long form is `GABION_SECONDS=60`.
const SECONDS: u64 = 8;
/// Writes of 1 MiB that each client has in flight, in the short and in the long form.
const DEPTH: [u64; 2] = [32, 128];
/// Time for which a server is stopped: the shortest silence that the MDM acts on (`suspect_after`).
const STOP: Duration = secs(1);

fn written(cluster: &Cluster, name: &str) -> Result<u64> {
    let status = cluster.status()?;
    let mut servers = status["sds"].as_array().context("a list")?.iter();
    let server = servers.find(|s| s["name"] == name).context("the server")?;
    server["devices"][0]["written_bytes"].as_u64().context("a number")
}

#[test]
fn a_server_that_stands_still_for_a_second_under_large_writes_keeps_its_copies() {
    case(|| {
        let seconds = setting("GABION_SECONDS", SECONDS);
        let depth = DEPTH[usize::from(seconds > SECONDS)];
        let cluster = Cluster::start(&Options { sds: 2, ..Options::default() })?;
        let before = cluster.number("/resync/moved_bytes")?;
        let (time, depth) = (seconds.to_string(), depth.to_string());
        let load = ["bench", "io", "--volume", "vol1", "--workload", "randwrite", "--bs", "1MiB"];
        let how = ["--jobs", CLIENTS, "--depth", &depth, "--seconds", &time, "--json"];
        let ran = thread::scope(|scope| {
            let load = scope.spawn(|| cluster.gabion(&[&load[..], &how].concat()));
            let begun = wait("the clients write", secs(30), || {
                Ok((written(&cluster, "sds2")? > 0).then_some(()))
            });
            begun?;
            thread::sleep(secs(seconds) / 3);
            cluster.freeze("sds2")?;
            thread::sleep(STOP);
            cluster.thaw("sds2")?;
            load.join().expect("it doesn't panic")
        })?;
        let said: Value = serde_json::from_str(&ran.ok()?)?;
        let longest = said["latency_us"]["max"].as_f64().context("a number")?;
        println!(
            "{CLIENTS} clients, {depth} writes of 1 MiB each, {seconds} s: {} writes, the longest \
             took {:.1} s",
            said["ops"],
            longest / 1e6
        );
        // A copy that was thrown out would have to be brought up to date.
        let log = fs::read_to_string(cluster.file("logs/mdm.log"))?;
        ensure!(!log.contains(" is down: "), "{log}");
        let status = cluster.wait_state("healthy", secs(30))?;
        ensure!(status["resync"]["moved_bytes"] == before, "something was copied: {status:#}");
        Ok(())
    });
}

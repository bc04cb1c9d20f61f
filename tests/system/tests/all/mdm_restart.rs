//! I/O continues without the MDM. When the MDM is back, its configuration is complete.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use system::probe::Probe;
use system::run::binary;
use system::{Cluster, Options, case, free_port, secs, tool, wait};

/// An additional MDM with a copy of the cluster's log. It ends with the test.
struct Copy {
    child: Child,
    address: String,
}

impl Copy {
    fn start(cluster: &Cluster, name: &str) -> Result<Copy> {
        let (log, said) = (cluster.folder.join(name), cluster.folder.join(&format!("{name}.said")));
        tool(
            "cp",
            ["--sparse=always".as_ref(), cluster.file("mdm.log").as_os_str(), log.as_os_str()],
        )?
        .ok()?;
        let address = format!("127.0.0.1:{}", free_port()?);
        let config = cluster.folder.join(&format!("{name}.toml"));
        let text = format!("name = \"mdm\"\nlisten = \"{address}\"\nlog = \"{}\"\n", log.display());
        fs::write(&config, text)?;
        let said = fs::File::create(said)?;
        let mut command = Command::new(binary());
        command.args(["mdm", "run", "--config"]).arg(&config).stdin(Stdio::null());
        let child = command.stdout(said.try_clone()?).stderr(said).spawn()?;
        Ok(Copy { child, address })
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a status without the counts of requests, which change with each of them.
fn without_counts(mut status: Value) -> Value {
    for volume in status["volumes"].as_array_mut().into_iter().flatten() {
        if let Some(fields) = volume.as_object_mut() {
            fields.retain(|name, _| !["io", "clients", "paths"].contains(&name.as_str()));
        }
    }
    status
}

#[test]
fn io_goes_on_while_the_mdm_is_away() {
    case(|| {
        let volumes = &["vol1:512MiB", "keep:7MiB"];
        let cluster = Cluster::start(&Options { volumes, ..Options::default() })?;
        cluster.gabion(&["volume", "create", "later", "5MiB"])?.ok()?;
        let probe = Probe::start(&cluster, "vol1", 2, 256 << 20)?;
        let before = without_counts(cluster.status()?);
        cluster.kill("mdm")?;
        // Longer than any lease or time-out.
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_secs(6) {
            probe.wait_ops(500)?;
        }
        cluster.gabion(&["status"])?.fails(5, &["no MDM answers", "sds3", "gabion mdm start"])?;
        // New clients can connect, too.
        tool("nbdinfo", ["--size", &cluster.uri("keep")])?.ok()?;
        cluster.gabion(&["mdm", "start"])?.ok()?;
        wait("everything is there again", secs(20), || {
            let after = without_counts(cluster.status()?);
            for same in ["cluster", "state", "volumes", "groups"] {
                ensure!(before[same] == after[same], "{same}: {} {}", before[same], after[same]);
            }
            Ok(Some(()))
        })?;
        let saw = probe.lap();
        println!("longest request while the MDM was away: {:?}", saw.worst);
        ensure!(saw.worst <= Duration::from_secs(1), "{saw:?}");
        // The MDM still does its work.
        cluster.kill("sds1")?;
        cluster.wait_down("sds1")?;
        probe.wait_ops(500)?;
        cluster.start_sds(1)?;
        cluster.wait_state("healthy", secs(60))?;
        probe.finish()?;
        Ok(())
    });
}

#[test]
fn many_restarts_keep_every_volume() {
    case(|| -> Result<()> {
        let cluster = Cluster::start(&Options::default())?;
        for i in 0..5 {
            cluster.gabion(&["volume", "create", &format!("v{i}"), "1MiB"])?.ok()?;
            cluster.gabion(&["mdm", "kill"])?.ok()?;
            cluster.gabion(&["mdm", "start"])?.ok()?;
        }
        let status = cluster.wait_state("healthy", secs(20))?;
        ensure!(status["volumes"].as_array().map(Vec::len) == Some(6), "{status:#}");
        Ok(())
    });
}

#[test]
fn a_copy_of_the_only_mdms_log_leads_only_when_that_one_is_gone() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let probe = Probe::start(&cluster, "vol1", 2, 256 << 20)?;
        let copy = Copy::start(&cluster, "copy")?;
        let said = cluster.folder.join("copy.said");
        wait("the copy says what is wrong", secs(10), || {
            Ok(fs::read_to_string(&said)?.contains("stop the one there first").then_some(()))
        })?;
        cluster.gabion(&["status", "--mdm", &copy.address])?.fails(1, &["copy of its log"])?;
        cluster.gabion(&["volume", "create", "later", "5MiB"])?.ok()?;
        probe.wait_ops(500)?;
        ensure!(cluster.status()?["state"] == "healthy");
        drop(copy);
        cluster.kill("mdm")?;
        let moved = Copy::start(&cluster, "moved")?;
        wait("it leads where it is now", secs(10), || {
            let ran = cluster.gabion(&["status", "--mdm", &moved.address, "--json"])?;
            if ![0, 3].contains(&ran.code) {
                return Ok(None);
            }
            let status: serde_json::Value = serde_json::from_str(&ran.stdout)?;
            let volumes = status["volumes"].as_array().context("a list")?;
            let servers = status["sds"].as_array().context("a list")?;
            let up = servers.len() == 3 && servers.iter().all(|s| s["state"] == "up");
            // The client only knows the former address: it serves, but this MDM does not hear it.
            let unheard = volumes.iter().all(|v| v["unserved"] == true);
            let well = status["state"] == if unheard { "degraded" } else { "healthy" };
            Ok((volumes.len() == 2 && up && well).then_some(()))
        })?;
        probe.wait_ops(500)?;
        probe.finish()?;
        Ok(())
    });
}

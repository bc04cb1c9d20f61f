//! Without the MDM I/O goes on; when it is back, nothing of the configuration is missing.

use anyhow::{Result, ensure};
use std::time::Duration;
use system::probe::Probe;
use system::{Cluster, Options, case, secs, tool, wait};

#[test]
fn io_goes_on_while_the_mdm_is_away() {
    case(|| {
        let volumes = &["vol1:512MiB", "keep:7MiB"];
        let cluster = Cluster::start(&Options { volumes, ..Options::default() })?;
        cluster.gabion(&["volume", "create", "later", "5MiB"])?.ok()?;
        let probe = Probe::start(&cluster, "vol1", 2, 256 << 20)?;
        let before = cluster.status()?;
        cluster.kill("mdm")?;
        // Longer than any lease or time-out.
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_secs(6) {
            probe.wait_ops(500)?;
        }
        cluster.gabion(&["status"])?.fails(5, &["no MDM answers", "sds3", "gabion mdm start"])?;
        // New clients come in, too.
        tool("nbdinfo", ["--size", &cluster.uri("keep")])?.ok()?;
        cluster.gabion(&["mdm", "start"])?.ok()?;
        wait("everything is there again", secs(20), || {
            let after = cluster.status()?;
            for same in ["cluster", "state", "volumes", "groups"] {
                ensure!(before[same] == after[same], "{same}: {} {}", before[same], after[same]);
            }
            Ok(Some(()))
        })?;
        let saw = probe.lap();
        println!("longest request while the MDM was away: {:?}", saw.worst);
        ensure!(saw.worst <= Duration::from_secs(1), "{saw:?}");
        // It still does its work.
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

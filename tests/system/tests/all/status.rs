//! `status` is correct while something is lost, and answers at once.

use anyhow::{Context, Result, ensure};
use std::time::Instant;
use system::bytes::Random;
use system::{Cluster, MIB, Options, case, secs, wait};

/// Returns a number of the status by its JSON pointer.
fn number(status: &serde_json::Value, pointer: &str) -> Result<u64> {
    status.pointer(pointer).and_then(serde_json::Value::as_u64).with_context(|| pointer.to_owned())
}

#[test]
fn a_frozen_mdm_delays_no_command_and_a_lost_one_is_shown() {
    case(|| {
        let options = Options { more: &["--mdms", "3"], ..Options::default() };
        let cluster = Cluster::start(&options)?;
        cluster.gabion(&["status"])?.code(0)?;
        // The first MDM of the list.
        cluster.freeze("mdm")?;
        wait("another one leads, and has heard the third one", secs(10), || {
            let status = cluster.status()?;
            let mdms = status["mdm"].as_array().context("a list")?;
            let down = mdms.iter().filter(|m| m["state"] == "down").count();
            Ok((mdms[0]["name"] != "mdm" && down == 1).then_some(()))
        })?;
        for _ in 0..3 {
            let begun = Instant::now();
            let said = cluster.gabion(&["status"])?.code(3)?;
            ensure!(begun.elapsed() < secs(2), "status took {:?}", begun.elapsed());
            ensure!(said.contains("1 of 3 MDMs DOWN"), "{said}");
        }
        let begun = Instant::now();
        cluster.gabion(&["volume", "create", "v2", "16MiB"])?.ok()?;
        ensure!(begun.elapsed() < secs(3), "an order took {:?}", begun.elapsed());
        let status = cluster.status()?;
        let mdms = status["mdm"].as_array().context("a list")?;
        let down: Vec<_> = mdms.iter().filter(|m| m["state"] == "down").collect();
        ensure!(mdms.len() == 3 && down.len() == 1 && down[0]["name"] == "mdm", "{status:#}");
        ensure!(status["state"] == "degraded" && status["mdm"][0]["leads"] == true, "{status:#}");
        cluster.thaw("mdm")?;
        cluster.wait_state("healthy", secs(20)).map(drop)
    });
}

#[test]
fn volumes_without_a_client_are_not_healthy() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        cluster.gabion(&["status"])?.code(0)?;
        cluster.kill("sdc")?;
        wait("the lost client is shown", secs(10), || {
            let ran = cluster.gabion(&["status"])?;
            ensure!(ran.stdout.contains("without a client"), "{}", ran.stdout);
            Ok((ran.code == 3).then_some(()))
        })?;
        cluster.gabion(&["sdc", "start"])?.ok()?;
        cluster.wait_state("healthy", secs(10)).map(drop)
    });
}

#[test]
fn figures_that_are_unknown_after_a_restart_are_not_shown_as_zero() {
    case(|| {
        let options =
            Options { device: "file:256MiB", volumes: &["vol1:64MiB"], ..Options::default() };
        let cluster = Cluster::start(&options)?;
        cluster.fill("vol1", &Random::new(2).bytes(32 * MIB as usize))?;
        for restart in ["mdm", "all"] {
            wait("its data is shown", secs(10), || {
                let status = cluster.status()?;
                let held = number(&status, "/capacity/protected_bytes")?;
                Ok((status["state"] == "healthy" && held >= 64 * MIB).then_some(()))
            })?;
            match restart {
                "mdm" => {
                    cluster.kill("mdm")?;
                    cluster.gabion(&["mdm", "start"])?.ok()?;
                }
                _ => {
                    cluster.kill_all()?;
                    cluster.start_again()?;
                }
            }
            let begun = Instant::now();
            while begun.elapsed() < secs(3) {
                let status = cluster.status()?;
                let held = number(&status, "/capacity/protected_bytes")?;
                ensure!(
                    status["state"] != "healthy" || held >= 64 * MIB,
                    "healthy with {held} protected bytes, {:?} after the restart of {restart}: {status:#}",
                    begun.elapsed()
                );
            }
        }
        Ok(())
    });
}

//! Many servers on one machine.

use anyhow::{Context, ensure};
use std::time::Instant;
use system::bytes::Random;
use system::{Cluster, MIB, Options, case, secs};

fn many(sds: u32) {
    case(|| {
        let start = Instant::now();
        let options = Options { sds, device: "ram:256MiB", volumes: &["vol1:128MiB"], more: &[] };
        let cluster = Cluster::start(&options)?;
        println!("{sds} SDSs serve after {:?}", start.elapsed());
        let status = cluster.wait_state("healthy", secs(60))?;
        ensure!(status["sds"].as_array().map(Vec::len) == Some(sds as usize));
        let content = Random::new(13).bytes(128 * MIB as usize);
        cluster.fill("vol1", &content)?;
        let servers = status["sds"].as_array().context("a list")?;
        ensure!(servers.iter().all(|s| s["devices"][0]["groups"].as_u64() > Some(0)), "{status:#}");
        cluster.kill("sds5")?;
        cluster.wait_down("sds5")?;
        cluster.verify("vol1", &content)?;
        cluster.start_sds(5)?;
        cluster.wait_state("healthy", secs(60))?;
        cluster.verify("vol1", &content)?;
        cluster.gabion(&["down"])?.ok()?;
        ensure!(cluster.running().is_empty());
        println!("{sds} SDSs: {:?} in all", start.elapsed());
        Ok(())
    });
}

#[test]
fn sixteen_servers_serve_and_lose_one() {
    many(16);
}

#[test]
fn sixty_four_servers_serve_and_lose_one() {
    many(64);
}

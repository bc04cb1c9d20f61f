//! Several MDMs: any one may die at any time, and no configuration is lost. MDMs are added and
//! removed while the cluster serves. An MDM with an incomplete log is refused.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};
use system::probe::Probe;
use system::{Cluster, Options, case, secs, setting, tool, wait};

fn three() -> Result<Cluster> {
    Cluster::start(&Options { more: &["--mdms", "3"], ..Options::default() })
}

fn list(cluster: &Cluster) -> Result<Vec<Value>> {
    let text = cluster.gabion(&["mdm", "list", "--json"])?.ok()?;
    let all: Value = serde_json::from_str(&text)?;
    Ok(all.as_array().context("a list")?.clone())
}

fn leader(cluster: &Cluster) -> Result<String> {
    let leads = |m: &Value| (m["leads"] == true).then(|| m["name"].as_str().map(str::to_owned));
    list(cluster)?.iter().find_map(leads).flatten().context("one of them leads")
}

fn wait_all_vote(cluster: &Cluster, count: usize) -> Result<()> {
    wait("all MDMs vote and have everything", secs(30), || {
        let all = list(cluster)?;
        let fine =
            |m: &&Value| m["votes"] == true && m["state"] == "up" && m["entries_behind"] == 0;
        Ok((all.len() == count && all.iter().filter(fine).count() == count).then_some(()))
    })
}

/// `GABION_ROUNDS=50` is the long form.
#[test]
fn leaders_die_under_load_and_no_io_fails_and_no_configuration_is_lost() {
    case(|| {
        let cluster = three()?;
        let probe = Probe::start(&cluster, "vol1", 2, 256 << 20)?;
        probe.wait_ops(500)?;
        let (mut gaps, rounds) = (Vec::new(), setting("GABION_ROUNDS", 8));
        for i in 0..rounds {
            cluster.gabion(&["volume", "create", &format!("a{i}"), "1MiB"])?.ok()?;
            let dead = leader(&cluster)?;
            let start = Instant::now();
            cluster.kill(&dead)?;
            wait("another MDM leads", secs(10), || {
                let name = format!("b{i}");
                let ran = cluster.gabion(&["volume", "create", &name, "1MiB"])?;
                // An order without an answer may have been executed.
                Ok((ran.code == 0 || ran.stderr.contains("there is a volume")).then_some(()))
            })?;
            gaps.push(start.elapsed());
            probe.wait_ops(200)?;
            cluster.gabion(&["mdm", "start", &dead])?.ok()?;
            wait_all_vote(&cluster, 3)?;
        }
        let status = cluster.wait_state("healthy", secs(20))?;
        let volumes = status["volumes"].as_array().map_or(0, Vec::len);
        ensure!(volumes as u64 == 1 + 2 * rounds, "{volumes} volumes");
        let saw = probe.finish()?;
        gaps.sort();
        println!("without a leader: {gaps:?}; longest request: {:?}", saw.worst);
        ensure!(saw.worst <= Duration::from_secs(1), "{saw:?}");
        let limit = Duration::from_secs(3);
        ensure!(gaps.iter().all(|gap| *gap <= limit), "{gaps:?}");
        Ok(())
    });
}

#[test]
fn a_member_goes_and_comes_and_another_one_leads_on_demand() {
    case(|| {
        let cluster = three()?;
        let probe = Probe::start(&cluster, "vol1", 2, 256 << 20)?;
        cluster.gabion(&["mdm", "switch", "mdm2"])?.ok()?;
        ensure!(leader(&cluster)? == "mdm2");
        cluster.gabion(&["mdm", "switch", "mdm2"])?.fails(1, &["leads already"])?;
        cluster.gabion(&["mdm", "switch", "mdm3"])?.fails(1, &["tie-breaker"])?;
        cluster.gabion(&["mdm", "remove", "mdm3"])?.fails(1, &["even number"])?;
        cluster.gabion(&["mdm", "remove", "nobody"])?.fails(1, &["there is no MDM"])?;
        // The leader itself is removed: it hands over first.
        let gone = list(&cluster)?.into_iter().find(|m| m["name"] == "mdm2").context("mdm2")?;
        cluster.gabion(&["mdm", "remove", "mdm2"])?.ok()?;
        ensure!(list(&cluster)?.len() == 2);
        cluster.gabion(&["mdm", "remove", "mdm"])?.fails(1, &["last manager"])?;
        cluster.kill("mdm2")?;
        fs::remove_file(cluster.file("mdm2.log"))?;
        cluster.gabion(&["mdm", "start", "mdm2"])?.ok()?;
        let address = gone["address"].as_str().context("an address")?;
        cluster.gabion(&["mdm", "add", "mdm2", address])?.ok()?;
        wait_all_vote(&cluster, 3)?;
        cluster.kill("mdm")?;
        cluster.gabion(&["volume", "create", "later", "1MiB"])?.ok()?;
        probe.wait_ops(200)?;
        probe.finish()?;
        Ok(())
    });
}

#[test]
fn a_member_from_an_old_copy_is_turned_away_and_may_come_anew() {
    case(|| {
        let cluster = three()?;
        let (log, old) = (cluster.file("mdm2.log"), cluster.folder.join("old.log"));
        let (log, old) = (log.to_string_lossy().into_owned(), old.to_string_lossy().into_owned());
        let copy = |from: &str, to: &str| tool("cp", ["--sparse=always", from, to])?.ok().map(drop);
        cluster.kill("mdm2")?;
        copy(&log, &old)?;
        cluster.gabion(&["mdm", "start", "mdm2"])?.ok()?;
        wait_all_vote(&cluster, 3)?;
        for i in 0..3 {
            cluster.gabion(&["volume", "create", &format!("v{i}"), "1MiB"])?.ok()?;
        }
        wait_all_vote(&cluster, 3)?;
        cluster.kill("mdm2")?;
        copy(&old, &log)?;
        cluster.gabion(&["mdm", "start", "mdm2"])?.ok()?;
        wait("mdm2 says what is wrong", secs(10), || {
            let said = fs::read_to_string(cluster.file("logs/mdm2.log"))?;
            Ok(said.contains("was set back").then_some(()))
        })?;
        let Some(gone) = list(&cluster)?.into_iter().find(|m| m["name"] == "mdm2") else {
            bail!("it is still a member");
        };
        wait("the others see that it is away", secs(10), || {
            let ran = cluster.gabion(&["mdm", "remove", "mdm2"])?;
            Ok((ran.code == 0).then_some(()))
        })?;
        cluster.kill("mdm2")?;
        fs::remove_file(&log)?;
        cluster.gabion(&["mdm", "start", "mdm2"])?.ok()?;
        let address = gone["address"].as_str().context("an address")?;
        cluster.gabion(&["mdm", "add", "mdm2", address])?.ok()?;
        wait_all_vote(&cluster, 3)?;
        let status = cluster.status()?;
        ensure!(status["volumes"].as_array().map(Vec::len) == Some(4), "{status:#}");
        Ok(())
    });
}

#[test]
fn mdms_that_are_all_killed_at_once_come_back_with_everything() {
    case(|| {
        let more = &["--mdms", "3"];
        let cluster = Cluster::start(&Options {
            device: "file:256MiB",
            volumes: &["vol1:64MiB"],
            more,
            ..Options::default()
        })?;
        cluster.gabion(&["volume", "create", "later", "5MiB"])?.ok()?;
        cluster.kill_all()?;
        cluster.start_again()?;
        let status = cluster.wait_state("healthy", secs(60))?;
        ensure!(status["volumes"].as_array().map(Vec::len) == Some(2), "{status:#}");
        wait_all_vote(&cluster, 3)
    });
}

//! If every copy of some data is gone, clients get errors, never zeros and never old data.

use anyhow::{Result, bail, ensure};
use system::bytes::Random;
use system::nbd::{Refused, cmd, errno};
use system::{Cluster, MIB, Options, Ran, case, secs, wait};

const UNITS: u64 = 64;

/// Returns how many units read as written, and how many as errors. Fails on other content.
fn count(cluster: &Cluster, content: &[u8]) -> Result<(u64, u64)> {
    let mut nbd = cluster.nbd("vol1")?;
    let (mut right, mut errors) = (0, 0);
    for (i, unit) in content.chunks(MIB as usize).enumerate() {
        match nbd.read(i as u64 * MIB, unit.len()) {
            Ok(got) if got == unit => right += 1,
            Ok(_) => bail!("unit {i} reads as something that was never written"),
            Err(e) if e.downcast_ref() == Some(&Refused(errno::EIO)) => errors += 1,
            Err(e) => return Err(e),
        }
    }
    Ok((right, errors))
}

/// Kills two servers with volatile devices, so that data is lost. Returns the status.
fn lose(cluster: &Cluster, names: [&str; 2]) -> Result<serde_json::Value> {
    for name in names {
        cluster.kill(name)?;
        cluster.wait_down(name)?;
    }
    cluster.wait_state("failed", secs(10))
}

fn accept(cluster: &Cluster, read_as: &str) -> Result<Ran> {
    cluster.gabion(&["volume", "accept-loss", "vol1", "--read-as", read_as, "--yes"])
}

/// Accepts the loss once the servers that came back empty have reported it.
fn accept_once_possible(cluster: &Cluster, read_as: &str) -> Result<()> {
    wait("the loss is accepted", secs(10), || {
        Ok((accept(cluster, read_as)?.code == 0).then_some(()))
    })
}

#[test]
fn lost_groups_are_errors_and_stay_errors() {
    case(|| {
        let cluster = Cluster::start(&Options { volumes: &["vol1:64MiB"], ..Options::default() })?;
        let content = Random::new(9).bytes((UNITS * MIB) as usize);
        let mut nbd = cluster.nbd("vol1")?;
        cluster.fill("vol1", &content)?;
        // The MDM knows the amount of data from heartbeats.
        wait("all is told", secs(10), || {
            Ok((cluster.number("/capacity/protected_bytes")? >= 2 * UNITS * MIB).then_some(()))
        })?;
        let status = lose(&cluster, ["sds2", "sds3"])?;
        ensure!(status["capacity"]["failed_bytes"].as_u64() > Some(0), "{status:#}");
        cluster.gabion(&["status"])?.code(4)?;
        let (right, errors) = count(&cluster, &content)?;
        println!("{right} units right, {errors} lost");
        ensure!(right > 0 && errors > 0 && right + errors == UNITS);
        // Their return changes nothing: RAM came back empty.
        cluster.start_sds(2)?;
        cluster.start_sds(3)?;
        ensure!(count(&cluster, &content)? == (right, errors));
        cluster.wait_state("failed", secs(10))?;
        let log = std::fs::read_to_string(cluster.file("logs/sds2.log"))?;
        ensure!(log.contains("groups of this device are LOST"), "{log}");
        // Writes to a lost group fail, too: with half a unit of new data the unit would look whole.
        let mut refused = 0;
        for unit in 0..UNITS {
            match nbd.request(cmd::WRITE, unit * MIB, 512, &[1; 512]) {
                Ok(_) => {}
                Err(e) if e.downcast_ref() == Some(&Refused(errno::EIO)) => refused += 1,
                Err(e) => return Err(e),
            }
        }
        ensure!(refused == errors, "{refused} writes refused, {errors} units lost");
        Ok(())
    });
}

#[test]
fn after_a_loss_a_new_volume_is_whole() {
    case(|| {
        let cluster = Cluster::start(&Options { volumes: &["vol1:64MiB"], ..Options::default() })?;
        cluster.nbd("vol1")?.write(0, &[7; 4096])?;
        for name in ["sds1", "sds2"] {
            cluster.kill(name)?;
            cluster.wait_down(name)?;
        }
        cluster.start_sds(1)?;
        cluster.start_sds(2)?;
        cluster.wait_state("failed", secs(10))?;
        cluster.gabion(&["volume", "delete", "vol1", "--yes"])?.ok()?;
        cluster.gabion(&["volume", "create", "vol2", "64MiB"])?.ok()?;
        cluster.wait_state("healthy", secs(30))?;
        let content = Random::new(10).bytes((UNITS * MIB) as usize);
        cluster.verify("vol2", &vec![0; (UNITS * MIB) as usize])?;
        cluster.fill("vol2", &content)?;
        cluster.verify("vol2", &content)
    });
}

/// Returns the output of `volume damage --json`.
fn damaged(cluster: &Cluster) -> Result<(Vec<(u64, u64)>, serde_json::Value)> {
    let ran = cluster.gabion(&["volume", "damage", "vol1", "--json"])?;
    let told: serde_json::Value = serde_json::from_str(&ran.stdout)?;
    let mut ranges = Vec::new();
    for r in told["ranges"].as_array().into_iter().flatten() {
        let number = |field: &str| r[field].as_u64().unwrap_or(u64::MAX);
        ensure!(r["why"] == "lost", "{told:#}");
        ranges.push((number("from"), number("length")));
    }
    ensure!(ran.code == if ranges.is_empty() { 0 } else { 4 }, "it ended with {}", ran.code);
    Ok((ranges, told))
}

#[test]
fn damage_is_reported_by_ranges_and_an_accepted_loss_reads_as_zeros() {
    case(|| {
        let cluster = Cluster::start(&Options { volumes: &["vol1:64MiB"], ..Options::default() })?;
        let mut content = Random::new(9).bytes((UNITS * MIB) as usize);
        cluster.fill("vol1", &content)?;
        ensure!(damaged(&cluster)?.0.is_empty());
        accept(&cluster, "zeros")?.fails(1, &["no data that can be given up"])?;
        lose(&cluster, ["sds2", "sds3"])?;
        let log = std::fs::read_to_string(cluster.file("logs/mdm.log"))?;
        ensure!(log.contains("are LOST"), "{log}");
        let ranges = damaged(&cluster)?.0;
        let lost = |unit: u64| {
            ranges.iter().any(|(from, len)| (*from..from + len).contains(&(unit * MIB)))
        };
        let mut nbd = cluster.nbd("vol1")?;
        for unit in 0..UNITS {
            let read = nbd.read(unit * MIB, MIB as usize);
            ensure!(read.is_err() == lost(unit), "unit {unit}, {ranges:?}");
        }
        drop(nbd);
        cluster.start_sds(2)?;
        cluster.start_sds(3)?;
        accept_once_possible(&cluster, "zeros")?;
        cluster.wait_state("healthy", secs(30))?;
        for unit in (0..UNITS).filter(|unit| lost(*unit)) {
            content[(unit * MIB) as usize..((unit + 1) * MIB) as usize].fill(0);
        }
        cluster.verify("vol1", &content)?;
        let (ranges, told) = damaged(&cluster)?;
        ensure!(
            ranges.is_empty() && told["accepted"].as_array().map(Vec::len) == Some(1),
            "{told:#}"
        );
        let content = Random::new(11).bytes((UNITS * MIB) as usize);
        cluster.fill("vol1", &content)?;
        cluster.kill("sds1")?;
        cluster.wait_down("sds1")?;
        cluster.verify("vol1", &content)
    });
}

#[test]
fn an_accepted_loss_may_stay_an_error_until_it_is_written() {
    case(|| {
        let cluster = Cluster::start(&Options { volumes: &["vol1:64MiB"], ..Options::default() })?;
        let mut content = Random::new(13).bytes((UNITS * MIB) as usize);
        cluster.fill("vol1", &content)?;
        lose(&cluster, ["sds2", "sds3"])?;
        let lost = count(&cluster, &content)?.1;
        ensure!(lost > 1, "{lost} units are lost");
        cluster.start_sds(2)?;
        cluster.start_sds(3)?;
        accept_once_possible(&cluster, "errors")?;
        cluster.wait_state("healthy", secs(30))?;
        ensure!(count(&cluster, &content)? == (UNITS - lost, lost), "errors stay errors");
        let (ranges, told) = damaged(&cluster)?;
        ensure!(ranges.is_empty() && told["accepted"][0]["errors"] == true, "{told:#}");
        let spans = told["error_ranges"].as_array().cloned().unwrap_or_default();
        let numbers = |s: &serde_json::Value| Some((s["from"].as_u64()?, s["length"].as_u64()?));
        let spans: Vec<(u64, u64)> = spans.iter().filter_map(numbers).collect();
        ensure!(spans.iter().map(|s| s.1).sum::<u64>() == lost * MIB, "{told:#}");
        // The first of these units is written and the last one zeroed: both are whole again.
        let (first, last) = (spans[0].0, spans[spans.len() - 1].0 + spans[spans.len() - 1].1 - MIB);
        let mut nbd = cluster.nbd("vol1")?;
        let of = |at: u64| at as usize..(at + MIB) as usize;
        nbd.write(first, &content[of(first)])?;
        nbd.request(cmd::WRITE_ZEROES, last, MIB as u32, &[])?;
        drop(nbd);
        content[of(last)].fill(0);
        let left = (UNITS - lost + 2, lost - 2);
        ensure!(count(&cluster, &content)? == left);
        cluster.kill("sds1")?;
        cluster.wait_down("sds1")?;
        ensure!(count(&cluster, &content)? == left, "another copy says the same");
        accept(&cluster, "zeros")?.ok()?;
        for (from, length) in &spans {
            for at in (*from..from + length).step_by(MIB as usize).filter(|at| *at != first) {
                content[of(at)].fill(0);
            }
        }
        cluster.verify("vol1", &content)?;
        ensure!(damaged(&cluster)?.1["error_ranges"].as_array().is_some_and(Vec::is_empty));
        Ok(())
    });
}

#[test]
fn an_older_copy_is_used_on_the_operator_s_order() {
    case(|| {
        let cluster = Cluster::start(&Options {
            device: "file:512MiB",
            volumes: &["vol1:64MiB"],
            ..Options::default()
        })?;
        let mut content = Random::new(12).bytes((UNITS * MIB) as usize);
        cluster.fill("vol1", &content)?;
        cluster.kill("sds2")?;
        cluster.wait_down("sds2")?;
        let mut nbd = cluster.nbd("vol1")?;
        for unit in 0..UNITS {
            nbd.write(unit * MIB, &[1; 4096])?;
        }
        drop(nbd);
        cluster.kill("sds1")?;
        cluster.wait_down("sds1")?;
        cluster.start_sds(2)?;
        let damage = || -> Result<serde_json::Value> {
            Ok(serde_json::from_str(
                &cluster.gabion(&["volume", "damage", "vol1", "--json"])?.stdout,
            )?)
        };
        let told = wait("an older copy is there", secs(20), || {
            let told = damage()?;
            let older =
                |r: &serde_json::Value| r["older_copies"].as_array().is_some_and(|o| !o.is_empty());
            let all = told["ranges"]
                .as_array()
                .is_some_and(|all| !all.is_empty() && all.iter().all(older));
            Ok(all.then_some(told))
        })?;
        let given_up = |unit: u64| {
            let within = |r: &serde_json::Value| {
                let (from, len) =
                    (r["from"].as_u64().unwrap_or(0), r["length"].as_u64().unwrap_or(0));
                (from..from + len).contains(&(unit * MIB))
            };
            told["ranges"].as_array().is_some_and(|all| all.iter().any(within))
        };
        let kept: Vec<u64> = (0..UNITS).filter(|unit| !given_up(*unit)).collect();
        ensure!(!kept.is_empty() && kept.len() < UNITS as usize, "{told:#}");
        for unit in kept {
            content[(unit * MIB) as usize..][..4096].fill(1);
        }
        accept(&cluster, "zeros")?.fails(1, &["--use-stale"])?;
        // An order that would be refused does not ask for confirmation.
        let unasked = cluster.gabion(&["volume", "accept-loss", "vol1", "--read-as", "zeros"])?;
        unasked.fails(1, &["--use-stale"])?;
        cluster.gabion(&["volume", "accept-loss", "vol1", "--use-stale", "--yes"])?.ok()?;
        cluster.verify("vol1", &content)?;
        // The server with more data comes back, but the data that was given up does not.
        cluster.start_sds(1)?;
        cluster.wait_state("healthy", secs(90))?;
        for dead in ["sds2", "sds3"] {
            cluster.kill(dead)?;
            cluster.wait_down(dead)?;
            cluster.verify("vol1", &content)?;
            cluster.start_sds(dead[3..].parse()?)?;
            cluster.wait_state("healthy", secs(60))?;
        }
        Ok(())
    });
}

#[test]
fn a_removal_that_waits_for_lost_data_says_so() {
    case(|| {
        let cluster =
            Cluster::start(&Options { sds: 4, volumes: &["vol1:64MiB"], ..Options::default() })?;
        cluster.fill("vol1", &Random::new(13).bytes((UNITS * MIB) as usize))?;
        lose(&cluster, ["sds1", "sds2"])?;
        cluster
            .gabion(&["sds", "remove", "1"])?
            .fails(4, &["no copy that may serve", "accept-loss"])?;
        accept(&cluster, "zeros")?.ok()?;
        // The removal that was ordered above continues by itself.
        cluster.wait_removed("sds1")
    });
}

/// The server that died last has the last copies, on a device that survives. The order to remove it
/// is refused and says what is needed first, instead of waiting in silence.
#[test]
fn the_removal_of_a_dead_server_with_last_copies_says_what_is_needed_first() {
    case(|| {
        let cluster = Cluster::start(&Options {
            sds: 4,
            device: "file:512MiB",
            volumes: &["vol1:64MiB"],
            ..Options::default()
        })?;
        cluster.fill("vol1", &Random::new(14).bytes((UNITS * MIB) as usize))?;
        cluster.kill("sds2")?;
        cluster.wait_down("sds2")?;
        // What is written now has no other copy in the groups of sds1 and sds2.
        let content = Random::new(15).bytes((UNITS * MIB) as usize);
        cluster.fill("vol1", &content)?;
        cluster.kill("sds1")?;
        cluster.wait_down("sds1")?;
        let status = cluster.status()?;
        let servers = status["sds"].as_array().cloned().unwrap_or_default();
        let server = servers.iter().find(|s| s["name"] == "sds1").cloned().unwrap_or_default();
        let device = server["devices"][0]["id"].as_u64().unwrap_or_default();
        let needed = format!("dev{device} is down, and has the only good copy of");
        cluster.gabion(&["sds", "remove", "sds1"])?.fails(1, &[&needed, "bring it back first"])?;
        let ran = cluster.gabion(&["volume", "damage", "vol1", "--json"])?;
        let told: serde_json::Value = serde_json::from_str(&ran.stdout)?;
        let ranges = told["ranges"].as_array().cloned().unwrap_or_default();
        let waits = |r: &serde_json::Value| {
            r["why"] == "away" && r["waits_for"] == serde_json::json!([device])
        };
        ensure!(!ranges.is_empty() && ranges.iter().all(waits), "{told:#}");
        cluster.start_sds(1)?;
        cluster.gabion(&["sds", "remove", "sds1"])?.ok()?;
        cluster.wait_removed("sds1")?;
        cluster.verify("vol1", &content)
    });
}

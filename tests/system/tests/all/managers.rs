//! Most or all MDMs are lost for good: one continues by order, and no answered write is lost.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use system::bytes::Random;
use system::probe::Probe;
use system::run::gabion;
use system::{Cluster, MIB, Options, case, secs, wait};

fn three() -> Result<Cluster> {
    Cluster::start(&Options {
        device: "file:512MiB",
        volumes: &["vol1:64MiB"],
        more: &["--mdms", "3"],
        ..Options::default()
    })
}

fn voters(cluster: &Cluster) -> Result<usize> {
    let text = cluster.gabion(&["mdm", "list", "--json"])?.ok()?;
    let all: Value = serde_json::from_str(&text)?;
    let votes = |m: &&Value| m["votes"] == true && m["state"] == "up";
    Ok(all.as_array().context("a list")?.iter().filter(votes).count())
}

fn address(cluster: &Cluster, name: &str) -> Result<String> {
    let text = cluster.gabion(&["mdm", "list", "--json"])?.ok()?;
    let all: Value = serde_json::from_str(&text)?;
    let mut all = all.as_array().context("a list")?.iter();
    let found = all.find(|m| m["name"] == name).context("it is there")?;
    Ok(found["address"].as_str().context("an address")?.to_owned())
}

fn lose(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.kill(name)?;
    Ok(fs::remove_file(cluster.file(&format!("{name}.log")))?)
}

/// Adds lost MDMs again, with empty logs.
fn add_again(cluster: &Cluster, lost: &[(&str, String)]) -> Result<()> {
    for (name, address) in lost {
        cluster.gabion(&["mdm", "start", name])?;
        cluster.gabion(&["mdm", "add", name, address])?.ok()?;
    }
    wait("all three vote", secs(30), || Ok((voters(cluster)? == 3).then_some(())))
}

#[test]
fn the_last_of_three_mdms_continues_and_every_byte_is_there() {
    case(|| {
        let cluster = three()?;
        let content = Random::new(1).bytes((64 * MIB) as usize);
        cluster.fill("vol1", &content)?;
        cluster.gabion(&["volume", "create", "vol2", "64MiB"])?.ok()?;
        cluster.wait_state("healthy", secs(20))?;
        cluster.gabion(&["mdm", "recover", "--yes"])?.fails(1, &["MDMs work"])?;
        let lost = [("mdm2", address(&cluster, "mdm2")?), ("mdm3", address(&cluster, "mdm3")?)];
        let probe = Probe::start(&cluster, "vol2", 2, 64 << 20)?;
        probe.wait_ops(200)?;
        for (name, _) in &lost {
            lose(&cluster, name)?;
        }
        cluster.gabion(&["volume", "create", "no", "1MiB"])?.code(5)?;
        wait("the survivor knows that nobody leads", secs(10), || {
            Ok((cluster.gabion(&["mdm", "recover", "--yes"])?.code == 0).then_some(()))
        })?;
        probe.wait_ops(200)?;
        cluster.wait_state("healthy", secs(30))?;
        cluster.verify("vol1", &content)?;
        cluster.gabion(&["volume", "create", "later", "5MiB"])?.ok()?;
        add_again(&cluster, &lost)?;
        // The cluster works normally: the survivor may go once the others know that they vote.
        cluster.gabion(&["volume", "create", "then", "1MiB"])?.ok()?;
        probe.wait_ops(1000)?;
        cluster.kill("mdm")?;
        wait("another one leads", secs(10), || {
            Ok((cluster.gabion(&["volume", "create", "last", "1MiB"])?.code == 0).then_some(()))
        })?;
        probe.wait_ops(200)?;
        let saw = probe.finish()?;
        println!("longest request: {:?}", saw.worst);
        cluster.kill_all()?;
        cluster.start_again()?;
        cluster.wait_state("healthy", secs(60))?;
        cluster.verify("vol1", &content)
    });
}

#[test]
fn decisions_of_a_lost_majority_are_learned_from_the_servers() {
    case(|| {
        let cluster = three()?;
        let content = Random::new(2).bytes((64 * MIB) as usize);
        cluster.fill("vol1", &content)?;
        cluster.gabion(&["mdm", "switch", "mdm2"])?.ok()?;
        let lost = [("mdm2", address(&cluster, "mdm2")?), ("mdm3", address(&cluster, "mdm3")?)];
        // This MDM misses what follows: a new volume, and a server that is down during writes.
        cluster.kill("mdm")?;
        cluster.gabion(&["volume", "create", "vol2", "32MiB"])?.ok()?;
        let second = Random::new(3).bytes((32 * MIB) as usize);
        cluster.fill("vol2", &second)?;
        cluster.kill("sds2")?;
        cluster.wait_down("sds2")?;
        let third = Random::new(4).bytes((64 * MIB) as usize);
        cluster.fill("vol1", &third)?;
        for (name, _) in &lost {
            lose(&cluster, name)?;
        }
        cluster.gabion(&["mdm", "start"])?;
        // One server is down: only the operator can decide whether it knows more.
        wait("the survivor goes on", secs(60), || {
            let ran = cluster.gabion(&["mdm", "recover", "--yes"])?;
            Ok(ran.stderr.contains("of sds2: start them").then_some(()))
        })?;
        cluster.verify("vol1", &third)?;
        cluster.gabion(&["mdm", "recover", "--finish"])?.fails(1, &["--yes"])?;
        cluster.gabion(&["mdm", "recover", "--finish", "--yes"])?.ok()?;
        cluster.verify("vol1", &third)?;
        cluster.verify("vol2", &second)?;
        cluster.start_sds(2)?;
        cluster.wait_state("healthy", secs(60))?;
        cluster.kill("sds1")?;
        cluster.wait_down("sds1")?;
        cluster.verify("vol1", &third)?;
        cluster.verify("vol2", &second)?;
        cluster.start_sds(1)?;
        add_again(&cluster, &lost)
    });
}

#[test]
fn after_the_loss_of_all_mdms_an_older_backup_suffices() {
    case(|| {
        let cluster = three()?;
        let content = Random::new(5).bytes((64 * MIB) as usize);
        cluster.fill("vol1", &content)?;
        let file = cluster.folder.join("backup");
        let file = file.to_str().context("text")?;
        cluster.gabion(&["mdm", "backup", file])?.ok()?;
        cluster.gabion(&["mdm", "backup", file])?.fails(1, &["can't write"])?;
        // After the backup: a new volume, and groups change as a server goes and comes back.
        cluster.gabion(&["volume", "create", "vol2", "32MiB"])?.ok()?;
        let second = Random::new(6).bytes((32 * MIB) as usize);
        cluster.fill("vol2", &second)?;
        cluster.kill("sds3")?;
        cluster.wait_down("sds3")?;
        let third = Random::new(7).bytes((64 * MIB) as usize);
        cluster.fill("vol1", &third)?;
        cluster.start_sds(3)?;
        cluster.wait_state("healthy", secs(60))?;
        let lost = [("mdm2", address(&cluster, "mdm2")?), ("mdm3", address(&cluster, "mdm3")?)];
        cluster.gabion(&["mdm", "restore", file, "--yes"])?.fails(1, &["there is a log"])?;
        for name in ["mdm", "mdm2", "mdm3"] {
            lose(&cluster, name)?;
        }
        cluster.gabion(&["mdm", "restore", file, "--yes"])?.ok()?;
        cluster.gabion(&["mdm", "start"])?.ok()?;
        cluster.wait_state("healthy", secs(30))?;
        cluster.verify("vol1", &third)?;
        cluster.verify("vol2", &second)?;
        cluster.gabion(&["volume", "create", "vol3", "8MiB"])?.ok()?;
        cluster.verify("vol3", &vec![0; (8 * MIB) as usize])?;
        for dead in ["sds1", "sds2"] {
            cluster.kill(dead)?;
            cluster.wait_down(dead)?;
            cluster.verify("vol1", &third)?;
            cluster.verify("vol2", &second)?;
            cluster.start_sds(dead[3..].parse()?)?;
            cluster.wait_state("healthy", secs(60))?;
        }
        add_again(&cluster, &lost)
    });
}

#[test]
fn a_backup_restored_after_a_full_stop_deletes_no_new_volume_in_silence() {
    case(|| {
        let cluster = three()?;
        let content = Random::new(8).bytes((64 * MIB) as usize);
        cluster.fill("vol1", &content)?;
        let (old, new) = (cluster.folder.join("old"), cluster.folder.join("new"));
        let (old, new) = (old.to_str().context("text")?, new.to_str().context("text")?);
        cluster.gabion(&["mdm", "backup", old])?.ok()?;
        cluster.gabion(&["volume", "create", "vol2", "32MiB"])?.ok()?;
        let second = Random::new(9).bytes((32 * MIB) as usize);
        cluster.fill("vol2", &second)?;
        cluster.gabion(&["mdm", "backup", new])?.ok()?;
        cluster.kill_all()?;
        let lose_logs = || -> Result<()> {
            for name in ["mdm", "mdm2", "mdm3"] {
                let _ = fs::remove_file(cluster.file(&format!("{name}.log")));
            }
            Ok(())
        };
        lose_logs()?;
        cluster.gabion(&["mdm", "restore", old, "--yes"])?.ok()?;
        for name in ["mdm start 1", "sds start 1", "sds start 2", "sds start 3"] {
            cluster.say(name)?;
        }
        let told = || -> Result<()> {
            wait("it is told that there is more than the backup has", secs(30), || {
                let ran = cluster.gabion(&["status"])?;
                Ok(ran.stdout.contains("--delete-volumes").then_some(()))
            })
        };
        told()?;
        // A restarted MDM has not heard from any server yet, and ends nothing because of that.
        cluster.kill("mdm")?;
        cluster.gabion(&["mdm", "start"])?.ok()?;
        told()?;
        // A recovery without that volume keeps its data: a newer backup may be found.
        cluster.gabion(&["mdm", "recover", "--finish", "--yes"])?.ok()?;
        cluster.gabion(&["sdc", "start"])?.ok()?;
        cluster.wait_state("healthy", secs(60))?;
        cluster.verify("vol1", &content)?;
        told()?;
        let known = ["mdm", "recover", "--delete-volumes", "1", "--yes"];
        cluster.gabion(&known)?.fails(1, &["volume 1 is not one of the unknown volumes"])?;
        cluster.kill_all()?;
        lose_logs()?;
        cluster.gabion(&["mdm", "restore", new, "--yes"])?.ok()?;
        cluster.start_again()?;
        cluster.wait_state("healthy", secs(60))?;
        cluster.verify("vol1", &content)?;
        cluster.verify("vol2", &second)
    });
}

/// Runs the commands that a message names, without prompts and in the background.
fn obey<'a>(commands: impl Iterator<Item = &'a str>) -> Result<usize> {
    let mut count = 0;
    for line in commands {
        let words = line.trim().strip_prefix("gabion ").with_context(|| line.to_owned())?;
        let more = match words {
            _ if words.starts_with("mdm recover") => Some("--yes"),
            _ if words.starts_with("up") => Some("--detach"),
            _ => None,
        };
        gabion(words.split(' ').chain(more))?.ok()?;
        count += 1;
    }
    Ok(count)
}

/// Runs the commands that `up` names for adding the MDMs that it left out. Returns their number.
fn add_left_out(printed: &str) -> Result<usize> {
    let lines = printed.lines().filter_map(|line| line.split_once("To have it again: "));
    obey(lines.flat_map(|(_, commands)| commands.split(" && ")))
}

#[test]
fn a_cluster_that_was_stopped_starts_again_without_the_first_mdms_log() {
    case(|| {
        let cluster = three()?;
        let content = Random::new(10).bytes((64 * MIB) as usize);
        cluster.fill("vol1", &content)?;
        let id = cluster.wait_state("healthy", secs(30))?["cluster"].clone();
        let there = || -> Result<()> {
            ensure!(cluster.status()?["cluster"] == id, "another cluster began");
            cluster.verify("vol1", &content)
        };
        cluster.gabion(&["down"])?.ok()?;
        fs::remove_file(cluster.file("mdm.log"))?;
        let printed = cluster.gabion(&["up", "--detach"])?.ok()?;
        there()?;
        // An empty log in place of the lost one starts no new cluster, however its MDM is started.
        cluster.gabion(&["mdm", "start"])?;
        cluster.gabion(&["down"])?.ok()?;
        ensure!(cluster.file("mdm.log").exists());
        cluster.start_again()?;
        there()?;
        lose(&cluster, "mdm")?;
        ensure!(add_left_out(&printed)? == 3, "{printed}");
        wait("all three vote", secs(30), || Ok((voters(&cluster)? == 3).then_some(())))?;
        cluster.kill_all()?;
        cluster.start_again()?;
        cluster.wait_state("healthy", secs(60))?;
        there()
    });
}

#[test]
fn a_stopped_cluster_comes_back_with_one_of_three_logs_by_the_commands_that_up_prints() {
    case(|| {
        let cluster = three()?;
        let content = Random::new(11).bytes((64 * MIB) as usize);
        cluster.fill("vol1", &content)?;
        cluster.gabion(&["volume", "create", "vol2", "32MiB"])?.ok()?;
        let second = Random::new(12).bytes((32 * MIB) as usize);
        cluster.fill("vol2", &second)?;
        let id = cluster.wait_state("healthy", secs(30))?["cluster"].clone();
        let there = || -> Result<()> {
            ensure!(cluster.status()?["cluster"] == id, "another cluster began");
            cluster.verify("vol1", &content)?;
            cluster.verify("vol2", &second)
        };
        cluster.gabion(&["down"])?.ok()?;
        fs::remove_file(cluster.file("mdm.log"))?;
        fs::remove_file(cluster.file("mdm3.log"))?;
        let ran = cluster.gabion(&["up", "--detach"])?;
        ensure!(ran.code == 1, "{ran:?}");
        for said in ["/mdm.log", "/mdm3.log", "Only mdm2"] {
            ensure!(ran.stderr.contains(said), "{}", ran.stderr);
        }
        ensure!(cluster.running().is_empty());
        let commands = |line: &&str| line.starts_with("  gabion ");
        ensure!(obey(ran.stderr.lines().filter(commands))? == 3, "{}", ran.stderr);
        there()?;
        cluster.wait_state("healthy", secs(60))?;
        // The remaining MDMs are the whole cluster, and start as such.
        cluster.gabion(&["down"])?.ok()?;
        let printed = cluster.gabion(&["up", "--detach"])?.ok()?;
        there()?;
        ensure!(add_left_out(&printed)? == 4, "{printed}");
        wait("all three vote", secs(30), || Ok((voters(&cluster)? == 3).then_some(())))?;
        cluster.kill_all()?;
        cluster.start_again()?;
        cluster.wait_state("healthy", secs(60))?;
        there()
    });
}

//! Details that matter to an operator at night: what commands print, refuse, and leave alone.

use anyhow::{Context, ensure};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use system::bytes::Random;
use system::cluster::signal;
use system::nbd::{Refused, errno};
use system::probe::Probe;
use system::{Cluster, MIB, Options, case, gabion, run, secs, wait};

const FILES: Options =
    Options { sds: 3, device: "file:256MiB", volumes: &["vol1:64MiB"], more: &[] };

#[test]
fn a_cluster_without_its_mdms_log_is_not_replaced_by_another_one() {
    case(|| {
        let cluster = Cluster::start(&FILES)?;
        let data = Random::new(3).bytes(4 * MIB as usize);
        cluster.fill("vol1", &data)?;
        cluster.gabion(&["down"])?.ok()?;
        let (log, away) = (cluster.file("mdm.log"), cluster.file("away"));
        fs::rename(&log, &away)?;
        for _ in 0..2 {
            cluster.gabion(&["up", "--detach"])?.fails(1, &["mdm.log is gone", "where"])?;
        }
        ensure!(!log.exists() && cluster.file("config/sds1.toml").exists(), "it changed something");
        fs::rename(&away, &log)?;
        cluster.start_again()?;
        cluster.verify("vol1", &data)
    });
}

/// Another cluster starts at the MDM's address. The servers keep their own map, and continue.
#[test]
fn an_mdm_that_has_lost_its_log_is_not_started_and_ends_no_server() {
    case(|| {
        let cluster = Cluster::start(&FILES)?;
        let probe = Probe::start(&cluster, "vol1", 2, 16 << 20)?;
        probe.wait_ops(200)?;
        cluster.kill("mdm")?;
        let (log, away) = (cluster.file("mdm.log"), cluster.file("away"));
        fs::rename(&log, &away)?;
        let servers = cluster.running();
        cluster.gabion(&["mdm", "start"])?.fails(1, &["is gone", "mdm restore"])?;
        let own = cluster.file("config/mdm.toml");
        let run = |config: &Path| {
            let mut command = Command::new(run::binary());
            command.args(["mdm", "run", "--config"]).arg(config).stdin(Stdio::null());
            command
        };
        run::run(&mut run(&own))?.fails(1, &["is gone", "holds data of a cluster"])?;
        // Its configuration, in a folder without those of the servers.
        let (log_there, config) = (cluster.folder.join("other.log"), cluster.folder.join("o.toml"));
        let text = fs::read_to_string(&own)?;
        let text = text.replace(&*log.to_string_lossy(), &log_there.to_string_lossy());
        fs::write(&config, text)?;
        let mut other = run(&config).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let met = wait("all servers have met it", secs(20), || {
            let met = |n| fs::read_to_string(cluster.file(&format!("logs/sds{n}.log")));
            let all: Vec<String> = (1..=3).map(met).collect::<Result<_, _>>()?;
            Ok(all.iter().all(|log| log.contains("an MDM of another cluster")).then_some(()))
        });
        let goes_on = probe.wait_ops(500);
        other.kill()?;
        other.wait()?;
        met?;
        goes_on?;
        ensure!(cluster.running() == servers, "a server has ended");
        fs::rename(&away, &log)?;
        cluster.gabion(&["mdm", "start"])?.ok()?;
        cluster.wait_state("healthy", secs(20))?;
        probe.finish().map(drop)
    });
}

#[test]
fn killed_mdms_come_back_one_by_one_and_say_whom_they_wait_for() {
    case(|| {
        let cluster = Cluster::start(&Options { more: &["--mdms", "3"], ..Options::default() })?;
        for name in ["mdm", "mdm2", "mdm3"] {
            cluster.kill(name)?;
        }
        let begun = Instant::now();
        let said = cluster.gabion(&["mdm", "start", "mdm2"])?.ok()?;
        ensure!(begun.elapsed() < secs(10), "it took {:?}", begun.elapsed());
        ensure!(said.contains("2 of 3") && said.contains("mdm, mdm3"), "{said}");
        let said = cluster.gabion(&["mdm", "start", "mdm"])?.ok()?;
        ensure!(!said.contains("waits"), "{said}");
        cluster.gabion(&["status"])?.code(3)?;
        cluster.gabion(&["mdm", "start", "mdm3"])?.ok()?;
        cluster.wait_state("healthy", secs(20)).map(drop)
    });
}

#[test]
fn an_exported_address_is_no_hindrance_to_commands_of_this_machine() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let exported = |args: &[&str]| {
            let mut command = Command::new(run::binary());
            command.args(args).args(["--dir", cluster.dir()]).env("GABION_MDM", "127.0.0.1:9");
            run::run(&mut command)
        };
        exported(&["sds", "kill", "2"])?.ok()?;
        exported(&["sds", "start", "2"])?.ok()?;
        exported(&["status"])?;
        let folder = cluster.folder.join("deploy");
        let mut deploy = Command::new(run::binary());
        deploy.args(["deploy", "--down", "--dir"]).arg(&folder).env("GABION_MDM", "127.0.0.1:9");
        run::run(&mut deploy)?.fails(1, &["no cluster was deployed"])?;
        gabion(["sds", "kill", "2", "--mdm", "127.0.0.1:9"])?.fails(1, &["leave out --mdm"])
    });
}

#[test]
fn a_log_that_was_rotated_is_opened_anew_by_sighup() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        for name in ["mdm", "sds1", "sdc"] {
            let log = cluster.file(&format!("logs/{name}.log"));
            let rotated = cluster.file(&format!("logs/{name}.log.1"));
            fs::rename(&log, &rotated)?;
            signal(cluster.pid(name)?, rustix::process::Signal::HUP)?;
            wait("the log goes on in a new file", secs(10), || {
                Ok(fs::read_to_string(&log)?.contains("goes on").then_some(()))
            })?;
            let before = fs::metadata(&rotated)?.len();
            cluster.gabion(&["status"])?.code(0)?;
            ensure!(fs::metadata(&rotated)?.len() == before, "{name} writes to the old file");
        }
        Ok(())
    });
}

#[test]
fn an_overcommitted_pool_is_reported() {
    case(|| {
        let cluster = Cluster::start(&FILES)?;
        let said = cluster.gabion(&["volume", "create", "small", "16MiB"])?.ok()?;
        ensure!(!said.contains("Note:"), "{said}");
        let said = cluster.gabion(&["volume", "create", "large", "10GiB"])?.ok()?;
        ensure!(said.contains("Note:") && said.contains("default"), "{said}");
        let status = cluster.gabion(&["status"])?.stdout;
        let id = cluster.status()?["sds"][0]["devices"][0]["id"].as_u64().context("an id")?;
        ensure!(status.contains(&format!("dev{id} durable")), "{status}");
        // All processes are killed, and come back at once.
        cluster.kill_all()?;
        cluster.start_again()
    });
}

#[test]
fn requests_end_with_an_error_after_the_time_that_the_operator_allows() {
    case(|| {
        let more = &["--io-timeout", "2"];
        let cluster = Cluster::start(&Options { sds: 2, more, ..FILES })?;
        let mut nbd = cluster.nbd("vol1")?;
        nbd.write(0, &[1; 4096])?;
        ["sds1", "sds2"].into_iter().try_for_each(|name| cluster.kill(name))?;
        let begun = Instant::now();
        let refused = nbd.write(0, &[2; 4096]).err().context("a write that nobody has is done")?;
        ensure!(refused.downcast_ref() == Some(&Refused(errno::EIO)), "{refused:#}");
        ensure!(begun.elapsed() >= secs(2), "{:?}", begun.elapsed());
        [1, 2].into_iter().try_for_each(|n| cluster.start_sds(n))?;
        cluster.wait_state("healthy", secs(20))?;
        ensure!(nbd.read(0, 4096)? == [1; 4096], "what ended with an error was sent again");
        nbd.write(0, &[3; 4096])?;
        // The next start keeps the setting.
        cluster.gabion(&["down"])?.ok()?;
        cluster.start_again()?;
        ensure!(cluster.nbd("vol1")?.read(0, 4096)? == [3; 4096]);
        let config = fs::read_to_string(cluster.file("config/sdc.toml"))?;
        ensure!(config.contains("io_timeout_seconds = 2"), "{config}");
        Ok(())
    });
}

#[test]
fn a_new_volume_that_was_never_used_is_served_while_the_mdm_is_away() {
    case(|| {
        let cluster = Cluster::start(&FILES)?;
        cluster.gabion(&["volume", "create", "new", "8MiB"])?.ok()?;
        cluster.kill("mdm")?;
        let mut nbd = cluster.nbd("new")?;
        nbd.write(0, &[5; 4096])?;
        ensure!(nbd.read(0, 4096)? == [5; 4096]);
        Ok(())
    });
}

#[test]
fn a_server_stops_using_a_device_that_is_emptied() {
    case(|| {
        let cluster = Cluster::start(&FILES)?;
        // Restart the server with an existing device: only a server that has seen the content of
        // its device can notice that the content is gone.
        cluster.kill("sds1")?;
        cluster.start_sds(1)?;
        let data = Random::new(8).bytes(8 * MIB as usize);
        cluster.fill("vol1", &data)?;
        cluster.wait_state("healthy", secs(20))?;
        fs::File::options().write(true).open(cluster.device(1))?.set_len(0)?;
        cluster.wait_state("degraded", secs(60))?;
        let log = fs::read_to_string(cluster.file("logs/sds1.log"))?;
        ensure!(log.contains("was emptied") && log.contains("--replace"), "{log}");
        cluster.verify("vol1", &data)
    });
}

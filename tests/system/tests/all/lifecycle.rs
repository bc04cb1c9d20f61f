//! Starting and stopping clusters, regularly and irregularly.

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;
use system::cluster::{is_running, signal};
use system::run::binary;
use system::{Cluster, Folder, Options, case, gabion, secs, wait};

/// Highest number of wake-ups per second of an idle cluster.
const WAKE_UPS: u64 = 150;

#[test]
fn a_second_up_is_refused_and_harms_nothing() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let running = cluster.running();
        ensure!(running.len() == 5, "MDM, SDC and three SDSs: {running:?}");
        cluster.gabion(&["up", "--detach"])?.fails(6, &["runs in", "gabion down"])?;
        ensure!(cluster.running() == running);
        cluster.wait_state("healthy", secs(1))?;
        Ok(())
    });
}

#[test]
fn a_server_that_is_just_being_killed_can_be_started() {
    case(|| {
        let cluster = Cluster::start(&Options { device: "file:64MiB", ..Options::default() })?;
        for _ in 0..5 {
            signal(cluster.pid("sds2")?, Signal::KILL)?;
            cluster.start_sds(2)?;
        }
        let running = cluster.running();
        cluster.gabion(&["sds", "start", "2"])?.fails(1, &["runs already"])?;
        ensure!(cluster.running() == running);
        Ok(())
    });
}

#[test]
fn down_stops_everything_and_up_starts_anew() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        cluster.nbd("vol1")?.write(0, &[1; 4096])?;
        let running = cluster.running();
        cluster.gabion(&["down"])?.ok()?;
        ensure!(running.iter().all(|pid| !is_running(*pid)), "something still runs");
        cluster.gabion(&["down"])?.ok()?;
        cluster.gabion(&["status"])?.fails(5, &["nothing of the cluster", "gabion up"])?;
        let said = cluster.gabion(&["up", "--detach", "--volume", "v:8MiB"])?.ok()?;
        ensure!(said.contains("its data") && said.contains("mdm.log.1"), "{said}");
        let status = cluster.wait_state("healthy", secs(5))?;
        ensure!(status["volumes"].as_array().map(Vec::len) == Some(1), "{status:#}");
        cluster.verify("v", &vec![0; 8 << 20])
    });
}

#[test]
fn up_finds_the_remains_of_a_crash_and_starts_anew() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let running = cluster.running();
        for pid in &running {
            signal(*pid, Signal::KILL)?;
        }
        wait("all are dead", secs(5), || Ok(cluster.running().is_empty().then_some(())))?;
        cluster.gabion(&["up", "--detach"])?.ok()?;
        cluster.wait_state("healthy", secs(5))?;
        Ok(())
    });
}

#[test]
fn a_recycled_pid_is_never_signalled() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let mut stranger = Command::new("sleep").arg("60").spawn()?;
        cluster.kill("sds1")?;
        let file = format!("{}/run/sds1.pid", cluster.dir());
        let old = fs::read_to_string(&file)?;
        let (_, identity) = old.split_once(' ').context("a pid file tells more than the pid")?;
        fs::write(&file, format!("{} {identity}", stranger.id()))?;
        cluster.gabion(&["down"])?.ok()?;
        let alive = stranger.try_wait()?.is_none();
        stranger.kill()?;
        stranger.wait()?;
        ensure!(alive, "`down` has killed a process that is none of its own");
        Ok(())
    });
}

/// Starts `up` in the foreground, with its output in a file.
fn foreground(folder: &Folder) -> Result<Child> {
    let out = fs::File::create(folder.join("out"))?;
    Ok(Command::new(binary())
        .args(["up", "--dir"])
        .arg(folder.join("c"))
        .stdin(Stdio::null())
        .stderr(out.try_clone()?)
        .stdout(out)
        .spawn()?)
}

fn wait_printed(folder: &Folder, what: &str) -> Result<()> {
    wait(&format!("up prints `{what}`"), secs(60), || {
        Ok(fs::read_to_string(folder.join("out"))?.contains(what).then_some(()))
    })
}

fn pids(folder: &Folder) -> Result<Vec<u32>> {
    let files = fs::read_dir(folder.join("c/run"))?;
    files
        .map(|f| Ok(fs::read_to_string(f?.path())?.split(' ').next().unwrap_or("").parse()?))
        .collect()
}

#[test]
fn ctrl_c_stops_a_foreground_cluster_cleanly() {
    case(|| {
        let folder = Folder::new()?;
        let mut up = foreground(&folder)?;
        wait_printed(&folder, "healthy")?;
        wait_printed(&folder, "nbdinfo")?;
        let pids = pids(&folder)?;
        ensure!(pids.len() == 5, "{pids:?}");
        // The live view shows events.
        gabion(["sds", "kill", "2", "--dir", folder.join("c").to_str().context("text")?])?.ok()?;
        wait_printed(&folder, "degraded")?;
        signal(up.id(), Signal::INT)?;
        let status = wait("up ends", secs(20), || Ok(up.try_wait()?))?;
        ensure!(status.success(), "{status}");
        ensure!(pids.iter().all(|pid| !is_running(*pid)), "something still runs");
        Ok(())
    });
}

#[test]
fn down_works_after_up_itself_was_killed() {
    case(|| {
        let folder = Folder::new()?;
        let mut up = foreground(&folder)?;
        wait_printed(&folder, "nbdinfo")?;
        let pids = pids(&folder)?;
        up.kill()?;
        up.wait()?;
        ensure!(pids.iter().all(|pid| is_running(*pid)), "the cluster does not need `up`");
        gabion(["down", "--dir", folder.join("c").to_str().context("text")?])?.ok()?;
        ensure!(pids.iter().all(|pid| !is_running(*pid)), "something still runs");
        Ok(())
    });
}

#[test]
fn a_silent_process_is_stopped_too() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let running = cluster.running();
        cluster.freeze("sds2")?;
        cluster.gabion(&["down"])?.ok()?;
        ensure!(running.iter().all(|pid| !is_running(*pid)), "something still runs");
        Ok(())
    });
}

#[test]
fn a_used_address_is_named() {
    case(|| {
        let folder = Folder::new()?;
        let taken = TcpListener::bind("127.0.0.1:0")?;
        let address = taken.local_addr()?.to_string();
        let file = folder.join("mdm.toml");
        let log = folder.join("mdm.log");
        fs::write(&file, format!("listen = \"{address}\"\nlog = \"{}\"\n", log.display()))?;
        let file = file.to_str().context("text")?;
        gabion(["mdm", "run", "--config", file])?.fails(6, &[&address, "in use"])?;
        // A cluster that can't start completely does not stay in part.
        let dir = folder.join("c");
        let dir = dir.to_str().context("text")?;
        gabion(["up", "--detach", "--dir", dir, "--nbd-tcp", &address])?
            .fails(6, &[&address, "in use"])?;
        ensure!(!folder.join("c/cluster.toml").exists(), "the next start would find a cluster");
        ensure!(fs::read_dir(folder.join("c/devices"))?.next().is_none(), "its devices are there");
        ensure!(pids(&folder)?.iter().all(|pid| !is_running(*pid)), "something still runs");
        Ok(())
    });
}

#[test]
fn logs_in_use_and_files_that_are_no_log_are_refused() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let file = cluster.folder.join("mdm.toml");
        let path = file.to_str().context("text")?;
        let config =
            |log: &str| fs::write(&file, format!("listen = \"127.0.0.1:0\"\nlog = \"{log}\"\n"));
        config(&format!("{}/mdm.log", cluster.dir()))?;
        gabion(["mdm", "run", "--config", path])?.fails(6, &["mdm.log", "in use"])?;
        cluster.wait_state("healthy", secs(1))?;

        let garbage = cluster.folder.join("garbage");
        fs::write(&garbage, [0x5a; 10_000])?;
        config(garbage.to_str().context("text")?)?;
        let said = cluster.folder.join("said");
        let mut mdm = Command::new(binary())
            .args(["mdm", "run", "--config", path])
            .stdin(Stdio::null())
            .stderr(fs::File::create(&said)?)
            .spawn()?;
        let outcome = wait("it says that this is no log", secs(10), || {
            let text = fs::read_to_string(&said)?;
            Ok(text.contains("not an MDM's log").then_some(()))
        });
        mdm.kill()?;
        mdm.wait()?;
        outcome?;
        ensure!(fs::read(&garbage)? == [0x5a; 10_000], "somebody else's file was overwritten");
        Ok(())
    });
}

#[test]
fn foreign_directories_are_not_touched() {
    case(|| {
        let folder = Folder::new()?;
        let (dir, file) = (folder.join("c"), folder.join("c/precious"));
        fs::create_dir(&dir)?;
        fs::write(&file, "data")?;
        let dir = dir.to_str().context("text")?;
        gabion(["up", "--detach", "--dir", dir])?.fails(1, &["something else"])?;
        fs::remove_file(&file)?;
        fs::write(folder.join("c/format"), "gabion-up 99\n")?;
        gabion(["up", "--detach", "--dir", dir])?.fails(1, &["another version", "gabion-up 99"])?;
        gabion(["status", "--dir", dir])?.fails(1, &["another version"])?;
        gabion(["status", "--dir", "/nowhere"])?.fails(1, &["no cluster"])?;
        let long = folder.join(&"x".repeat(100));
        let long = long.to_str().context("text")?;
        gabion(["up", "--detach", "--dir", long])?.fails(1, &["--dir"])?;
        Ok(())
    });
}

#[test]
fn wrong_usage_says_what_is_right() {
    case(|| {
        gabion(["up", "--sds", "1"])?.fails(2, &["--sds", "two servers"])?;
        gabion(["up", "--device", "floppy:1M"])?.fails(2, &["ram:SIZE"])?;
        gabion(["up", "--volume", "x"])?.fails(2, &["NAME:SIZE"])?;
        gabion(["sds", "run"])?.fails(2, &["--config"])?;
        gabion(["status", "--mdm", "nonsense"])?.fails(2, &["--mdm"])?;
        gabion(["status", "--mdm", "127.0.0.1:1"])?.fails(5, &["no MDM answers"])?;
        let folder = Folder::new()?;
        let file = folder.join("x.toml");
        fs::write(&file, "listen = \"127.0.0.1:0\"\nlog = \"/x\"\ncolour = 3\n")?;
        let file = file.to_str().context("text")?;
        gabion(["mdm", "run", "--config", file])?.fails(1, &["colour", "--example-config"])?;
        for words in [vec!["--help"], vec!["up", "--help"], vec!["volume", "create", "--help"]] {
            let help = gabion(&words)?.ok()?;
            ensure!(help.contains("Example"), "no example in {words:?}");
        }
        Ok(())
    });
}

#[test]
fn an_idle_cluster_wakes_up_rarely() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let pids = cluster.running();
        let woke = || pids.iter().map(|pid| wake_ups(*pid)).sum::<Result<u64>>();
        let window = Duration::from_secs(5);
        // On a busy machine processes wait for late answers, and wake up more often. So the
        // quietest of three periods counts.
        let mut least = u64::MAX;
        for _ in 0..3 {
            let before = woke()?;
            // There is no condition to wait for: this measures a period of time.
            sleep(window);
            least = least.min((woke()? - before) / window.as_secs());
            println!("idle: {least} wake-ups per second, all processes together");
            if least <= WAKE_UPS {
                return Ok(());
            }
        }
        bail!("{least} wake-ups per second")
    });
}

/// Returns how often threads of a process have waited for something.
fn wake_ups(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(task?.path().join("status"))?;
        let line = text.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        sum += line.context("no count of switches")?.trim().parse::<u64>()?;
    }
    Ok(sum)
}

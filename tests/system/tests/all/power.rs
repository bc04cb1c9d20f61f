//! Real power cuts: data in the page cache is lost, and the same `up` brings everything back.
//!
//! The cluster runs in namespaces with a file system of its own (`system::machine`). Where the host
//! allows no namespaces or no loop devices, these tests say so and pass, unless the environment has
//! `GABION_ALL=1`.

use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::thread;
use std::time::Duration;
use system::bytes::Random;
use system::ledger::Ledger;
use system::machine::Machine;
use system::nbd::Nbd;
use system::{Cluster, MIB, Options, case, leave_out, run, secs, setting};

/// Options that create the cluster.
const FIRST: &str = "--device file:256MiB --volume vol1:64MiB";
/// Time limit for a start in the machine.
const PATIENCE: Duration = secs(120);
/// Environment variable with the task of this program when it runs in the machine.
const PART: &str = "GABION_POWER_PART";
/// Parts of the volume. Each round writes one.
const PARTS: u64 = 24;

fn machine(file_system: &'static str) -> Result<Option<Machine>> {
    let machine = Machine::new(file_system)?;
    if machine.is_none() {
        leave_out("power cuts: this host allows no namespaces or no loop devices")?;
    }
    Ok(machine)
}

/// Returns the command line of `gabion` in the machine.
fn gabion(machine: &Machine) -> String {
    format!("{} --dir {}", run::binary().display(), machine.mount().join("c").display())
}

/// Returns shell commands that start the cluster and report the result.
fn up(machine: &Machine, options: &str) -> String {
    let gabion = gabion(machine);
    format!(
        "if {gabion} up --detach {options}; then echo '=== up'; else echo '=== failed'; fi\n\
         for n in $(seq 50); do {gabion} status --json > /run/s && break; sleep 0.2; done\n\
         grep -q '\"state\": \"healthy\"' /run/s && echo '=== healthy' || cat /run/s\n\
         {gabion} volume list --json | grep -q vol1 && echo '=== vol1'\n"
    )
}

/// Cuts the power this long after the beginning or the end of the first `up`, and starts everything
/// again with the same command.
fn cut(machine: &Machine, after: Duration, whole: bool) -> Result<()> {
    let when =
        format!("{after:?} after the {} of the first `up`", if whole { "end" } else { "begin" });
    let first = machine.boot(&format!("echo '=== begin'\n{}sleep 1000", up(machine, FIRST)))?;
    first.wait(if whole { "up" } else { "begin" }, PATIENCE)?;
    thread::sleep(after);
    first.cut()?;
    let said = machine.boot(&up(machine, FIRST))?.end(PATIENCE)?;
    for wanted in ["=== up", "=== healthy", "=== vol1"] {
        ensure!(said.contains(wanted), "no `{wanted}` after a power cut {when}:\n{said}");
    }
    Ok(())
}

/// Tests each cut in a separate machine, all concurrently.
fn cuts(all: &[(&'static str, Duration, bool)]) -> Result<()> {
    let mut machines = Vec::new();
    for (file_system, after, whole) in all {
        let Some(machine) = machine(file_system)? else { return Ok(()) };
        machines.push((machine, *after, *whole));
    }
    thread::scope(|scope| {
        let cuts: Vec<_> = machines
            .iter()
            .map(|(machine, after, whole)| scope.spawn(|| cut(machine, *after, *whole)))
            .collect();
        cuts.into_iter().try_for_each(|cut| cut.join().expect("it doesn't panic"))
    })
}

/// `GABION_ROUNDS=1` or more is the long form: each file system at each time.
#[test]
fn a_power_cut_after_the_first_up_leaves_a_cluster_that_starts_again() {
    case(|| {
        if setting("GABION_ROUNDS", 0) > 0 {
            return ["ext4", "xfs"]
                .iter()
                .try_for_each(|kind| cuts(&[1, 10, 25].map(|n| (*kind, secs(n), true))));
        }
        cuts(&[
            ("ext4", secs(1), true),
            ("ext4", secs(10), true),
            ("xfs", secs(1), true),
            ("xfs", secs(25), true),
        ])
    });
}

/// Without this, the other tests could pass on a machine that loses nothing.
#[test]
fn a_power_cut_loses_what_was_not_flushed_and_nothing_else() {
    case(|| {
        for kind in ["ext4", "xfs"] {
            let Some(machine) = machine(kind)? else { return Ok(()) };
            let files = machine.mount();
            let files = files.display();
            let on = machine.boot(&format!(
                "cd {files}; echo 1 > flushed; sync; echo 2 > forgotten; echo '=== written'\n\
                 sleep 1000"
            ))?;
            on.wait("written", PATIENCE)?;
            on.cut()?;
            let said = machine.boot(&format!("echo '===' files $(ls {files})"))?.end(PATIENCE)?;
            let files = said.lines().find(|line| line.contains("files"));
            let files = files.context("the machine lists its files")?;
            ensure!(files.contains("flushed") && !files.contains("forgotten"), "{kind}: {said}");
        }
        Ok(())
    });
}

/// The test takes only a few seconds, so the file system does not write files back by itself.
#[test]
fn a_device_that_was_added_is_there_after_a_power_cut() {
    case(|| {
        let Some(machine) = machine("xfs")? else { return Ok(()) };
        let (gabion, more) = (gabion(&machine), machine.mount().join("more"));
        let add = format!(
            "{gabion} device add file:{}:128MiB --sds 2 && echo '=== added'\nsleep 1000",
            more.display()
        );
        let first = machine.boot(&(up(&machine, FIRST) + &add))?;
        first.wait("added", PATIENCE)?;
        thread::sleep(secs(3));
        first.cut()?;
        let list = format!("{gabion} device list | grep -q 'sds2.1' && echo '=== both'\n");
        let said = machine.boot(&(up(&machine, FIRST) + &list))?.end(PATIENCE)?;
        for wanted in ["=== up", "=== healthy", "=== vol1", "=== both"] {
            ensure!(said.contains(wanted), "no `{wanted}` after a power cut:\n{said}");
        }
        Ok(())
    });
}

#[test]
fn after_a_power_cut_during_the_first_up_the_same_command_completes_it() {
    case(|| {
        let rounds = setting("GABION_ROUNDS", 2);
        for round in 0..rounds {
            let at = |n| Duration::from_millis(50 + (round * 4 + n) * 1600 / (rounds * 4));
            cuts(&[
                ("ext4", at(0), false),
                ("xfs", at(1), false),
                ("ext4", at(2), false),
                ("xfs", at(3), false),
            ])?;
        }
        Ok(())
    });
}

/// Runs in the machine. Either writes and reports after each write how many were answered, or
/// compares the content.
#[test]
#[ignore = "the test below runs it in the machine"]
fn in_the_machine() {
    case(|| {
        let part = std::env::var(PART).context("the test below sets it")?;
        let mut words = part.split_whitespace();
        let (what, socket) = (words.next().context("what")?, words.next().context("where")?);
        let mut nbd = Nbd::connect(socket.as_ref(), "vol1")?;
        for (round, count) in (0..).zip(words) {
            let mut ledger = Ledger::new(round, PARTS, 60 * MIB);
            match (what, count.parse::<u64>()) {
                ("verify", Ok(count)) => {
                    ledger.take_over(count);
                    ledger.verify(&mut nbd).with_context(|| format!("round {round}"))?;
                }
                ("write", Ok(_)) => {}
                ("write", Err(_)) => {
                    for n in 1.. {
                        ledger.write_one(&mut nbd)?;
                        println!("\n=== answered {n}");
                    }
                }
                _ => bail!("{part}"),
            }
        }
        println!("\n=== whole");
        Ok(())
    });
}

#[test]
fn acknowledged_writes_survive_power_cuts_under_load() {
    case(|| {
        let Some(machine) = machine("ext4")? else { return Ok(()) };
        let (gabion, mut random) = (gabion(&machine), Random::new(11));
        let (test, socket) = (std::env::current_exe()?, machine.mount().join("c/nbd.sock"));
        let play = |what: &str, counts: &str| {
            format!(
                "{PART}='{what} {} {counts}' {} --exact power::in_the_machine --ignored --nocapture\n",
                socket.display(),
                test.display()
            )
        };
        let mut counts = String::new();
        for round in 0..=setting("GABION_ROUNDS", 3).min(PARTS) {
            let verify = up(&machine, FIRST) + &play("verify", &counts);
            let earlier = (1..=round)
                .map(|n| format!("{gabion} volume list | grep -q ' made{n} ' || exit\n"));
            let write = format!(
                "({gabion} volume create made{} 1MiB && printf '\\n=== made\\n') &\n{}",
                round + 1,
                play("write", &format!("{counts} go"))
            );
            let on = machine
                .boot(&(verify + &earlier.collect::<String>() + "echo '=== there'\n" + &write))?;
            on.wait("there", PATIENCE)
                .with_context(|| format!("after {round} power cuts under load"))?;
            ensure!(on.marked("whole").is_some(), "something is lost:\n{}", on.said());
            on.wait("made", PATIENCE)?;
            on.wait("answered 30", PATIENCE)?;
            thread::sleep(Duration::from_millis(random.below(1500)));
            let answered = on.marked("answered").context("some are")?;
            // More writes may be answered between these lines: the last report counts.
            let said = on.cut()?;
            let last = said.iter().rev().find_map(|l| l.strip_prefix("=== answered "));
            counts += &format!(" {}", last.unwrap_or(&answered));
        }
        Ok(())
    });
}

/// Truncates files as a power cut did with files of a build that did not flush them.
fn empty(cluster: &Cluster, names: &[&str]) -> Result<()> {
    names.iter().try_for_each(|name| {
        let file = cluster.file(name);
        fs::File::options()
            .write(true)
            .truncate(true)
            .open(&file)
            .map(drop)
            .with_context(|| format!("no {}", file.display()))
    })
}

#[test]
fn a_directory_whose_files_were_emptied_is_brought_back() {
    case(|| {
        let options = Options {
            device: "file:256MiB",
            volumes: &["vol1:64MiB", "more:16MiB"],
            ..Options::default()
        };
        let cluster = Cluster::start(&options)?;
        let data = Random::new(4).bytes(8 * MIB as usize);
        cluster.fill("vol1", &data)?;
        let id = cluster.status()?["cluster"].clone();
        let all = ["mdm", "sds1", "sds2", "sds3", "sdc"].map(|name| format!("config/{name}.toml"));
        let all: Vec<&str> =
            all.iter().map(String::as_str).chain(["format", "cluster.toml"]).collect();
        for emptied in
            [&all[..], &["config/sds2.toml"], &["format"], &["cluster.toml", "config/mdm.toml"]]
        {
            cluster.gabion(&["down"])?.ok()?;
            empty(&cluster, emptied)?;
            cluster
                .gabion(&["status"])?
                .fails(1, &["gabion up"])
                .or_else(|_| cluster.gabion(&["status"])?.fails(5, &["gabion up"]))?;
            cluster.start_again().with_context(|| format!("{emptied:?}"))?;
            let status = cluster.wait_state("healthy", secs(30))?;
            ensure!(status["cluster"] == id, "another cluster: {status:#}");
            ensure!(status["volumes"].as_array().map(Vec::len) == Some(2), "{status:#}");
            cluster.verify("vol1", &data)?;
        }
        Ok(())
    });
}

#[test]
fn three_mdms_find_each_other_again_when_their_files_were_emptied() {
    case(|| {
        let options =
            Options { device: "file:256MiB", more: &["--mdms", "3"], ..Options::default() };
        let cluster = Cluster::start(&options)?;
        let data = Random::new(4).bytes(MIB as usize);
        cluster.fill("vol1", &data)?;
        let configs = ["mdm", "mdm2", "mdm3", "sds1", "sds2", "sds3"];
        let configs = configs.map(|name| format!("config/{name}.toml"));
        let configs: Vec<&str> = configs.iter().map(String::as_str).collect();
        cluster.gabion(&["down"])?.ok()?;
        empty(&cluster, &configs)?;
        cluster.start_again()?;
        cluster.wait_state("healthy", secs(30))?;
        cluster.verify("vol1", &data)?;
        // If nothing has their addresses any more, the command says where to find them.
        cluster.gabion(&["down"])?.ok()?;
        empty(&cluster, &configs)?;
        empty(&cluster, &["config/sdc.toml"])?;
        cluster.gabion(&["up", "--detach"])?.fails(1, &["power cut", "listens on", "mdm.log"])
    });
}

//! Measurements run and print what they promise. Figures are not judged on a shared machine.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use system::cluster::{is_running, signal};
use system::run::binary;
use system::{Cluster, Folder, Options, case, free_port, gabion, secs, wait};

/// Runs a measurement and checks that these JSON pointers lead to numbers.
fn numbers(args: &[&str], places: &[&str]) -> Result<Value> {
    let json: Value = serde_json::from_str(&gabion(args)?.ok()?).context("--json is JSON")?;
    for place in places {
        let number = json.pointer(place).and_then(Value::as_f64);
        ensure!(number.is_some_and(|n| n > 0.0), "{place} of {args:?} in {json:#}");
    }
    Ok(json)
}

const COMMON: [&str; 4] = ["/iops", "/mb_per_s", "/latency_us/p99.9", "/process_us_per_io"];

#[test]
fn a_load_tells_rates_latencies_and_processor_time() {
    case(|| {
        let args = ["bench", "io", "--sds", "3", "--sds-per-process", "2", "--seconds", "0.3"];
        let mix = ["--workload", "randrw", "--depth", "8", "--jobs", "2", "--json"];
        let json = numbers(&[&args[..], &mix].concat(), &COMMON)?;
        for side in ["read", "write"] {
            ensure!(json[side]["latency_us"]["p50"].is_number(), "{side}: {json:#}");
        }
        let cpu = json["cpu"].as_array().context("a list")?;
        let sds = cpu.iter().find(|k| k["kind"] == "sds").context("SDSs")?;
        ensure!(sds["processes"] == 2, "three SDSs in two processes: {json:#}");
        Ok(())
    });
}

#[test]
fn every_pattern_of_the_floor_runs() {
    case(|| {
        for pattern in ["read", "write", "mirror", "mix", "stream"] {
            let args = ["bench", "floor", "--pattern", pattern, "--seconds", "0.3", "--json"];
            numbers(&[&args[..], &["--servers-per-process", "2", "--spin"]].concat(), &COMMON)?;
        }
        Ok(())
    });
}

#[test]
fn a_ratio_has_its_must_beside_it() {
    case(|| {
        // The rows of hosts check every answer and every digest.
        let rows = [("read", 2.0), ("iscsi-digests", 1.25), ("nvme-digests", 1.25)];
        let mut args = vec!["bench", "ratio", "--rounds", "1", "--seconds", "0.3", "--json"];
        rows.iter().for_each(|(name, _)| args.extend(["--only", name]));
        let ran = gabion(args)?;
        ensure!([0, 7].contains(&ran.code), "{} {}", ran.code, ran.stderr);
        let json: Value = serde_json::from_str(&ran.stdout)?;
        ensure!(json["rounds"] == 1, "{json:#}");
        for (i, (name, must)) in rows.into_iter().enumerate() {
            let row = &json["results"][i];
            ensure!(row["name"] == name && row["must"] == must, "{json:#}");
            for field in ["floor_us", "ours_us", "ratio"] {
                ensure!(row[field].is_number(), "{field}: {json:#}");
            }
        }
        gabion(["bench", "ratio", "--only", "x"])?.fails(1, &["no row x", "read-latency"])
    });
}

#[test]
fn a_re_enacted_experiment_leaves_a_report_that_needs_no_other_file() {
    case(|| {
        let out = Folder::new()?.join("report");
        let dir = out.to_str().context("a temporary path is text")?;
        let args = ["bench", "esg", "--nodes", "3,6", "--rounds", "1", "--seconds", "0.3"];
        let more = ["--only", "scaling", "--out", dir, "--json"];
        let printed = gabion([&args[..], &more].concat())?;
        // 7: a size could not be measured on this machine, or a must of speed was missed.
        ensure!([0, 7].contains(&printed.code), "{} {}", printed.code, printed.stderr);
        let written = fs::read_to_string(out.join("report.json"))?;
        let json: Value = serde_json::from_str(&written)?;
        ensure!(serde_json::from_str::<Value>(&printed.stdout)? == json, "--json prints the file");
        let rows = json["scaling"].as_array().context("a list")?;
        // 2 sizes x 2 layouts x 2 workloads.
        ensure!(rows.len() == 8, "{json:#}");
        for row in rows.iter().filter(|row| row["note"].is_null()) {
            for field in ["nodes", "sds_per_process", "iops", "iops_per_node", "cpu_us_per_io"] {
                ensure!(row[field].as_f64().is_some_and(|n| n > 0.0), "{field}: {row:#}");
            }
            ensure!(row["floor_us_per_io"].is_number() && row["workload"].is_string(), "{row:#}");
        }
        for list in ["limits", "arithmetic"] {
            ensure!(json[list].as_array().is_some_and(|l| !l.is_empty()), "{list}: {json:#}");
        }
        ensure!(json["machine"]["cores"].as_u64() > Some(0), "{json:#}");
        let html = fs::read_to_string(out.join("report.html"))?;
        ensure!(html.contains("<svg") && html.contains("<table>") && html.contains("</html>"));
        for outside in ["http://", "https://", "src=", "href="] {
            ensure!(!html.contains(outside), "the page points to something with {outside}");
        }
        Ok(())
    });
}

#[test]
fn loads_of_one_cluster_at_a_time_do_not_end_each_other() {
    case(|| {
        let cluster = Cluster::start(&Options { device: "null:1TiB", ..Options::default() })?;
        let args = ["bench", "io", "--dir", cluster.dir(), "--volume", "vol1", "--seconds", "1"];
        let load = || numbers(&[&args[..], &["--jobs", "2", "--json"]].concat(), &COMMON);
        thread::scope(|scope| {
            let loads = [scope.spawn(load), scope.spawn(load)];
            loads.into_iter().try_for_each(|load| match load.join() {
                Ok(outcome) => outcome.map(drop),
                Err(_) => anyhow::bail!("a load panicked"),
            })
        })?;
        // The names depend on other measurements on this host.
        let status = cluster.status()?;
        let clients = status["sdc"].as_array().context("a list")?.iter();
        let names = clients.filter_map(|c| c["name"].as_str()).filter(|n| n.contains("-bench-"));
        ensure!(names.count() >= 2, "two jobs have two names: {status:#}");
        Ok(())
    });
}

/// A measurement that a test interrupts. Its temporary files are in the test's folder.
struct Measuring {
    folder: Folder,
    child: Child,
}

impl Measuring {
    fn start(args: &[&str]) -> Result<Measuring> {
        let folder = Folder::new()?;
        let child = Command::new(binary())
            .args(args)
            .env("TMPDIR", folder.join(""))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.join("said"))?)
            .spawn()?;
        Ok(Measuring { folder, child })
    }

    /// Returns the directory of its cluster.
    fn cluster(&self) -> Result<Option<PathBuf>> {
        for entry in fs::read_dir(self.folder.join(""))? {
            let path = entry?.path();
            if path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("gabion-bench")) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Returns the processes of its cluster.
    fn daemons(&self) -> Result<Vec<u32>> {
        let Some(dir) = self.cluster()? else { return Ok(Vec::new()) };
        let files = fs::read_dir(dir.join("run"))?.filter_map(|f| Some(f.ok()?.path()));
        let texts = files.filter(|f| f.extension().is_some_and(|e| e == "pid"));
        let pids =
            texts.filter_map(|f| fs::read_to_string(f).ok()?.split(' ').next()?.parse().ok());
        Ok(pids.collect())
    }

    /// Returns the processes that it started itself: servers of the floor.
    fn children(&self) -> Result<Vec<u32>> {
        let parent = self.child.id();
        let all = fs::read_dir("/proc")?.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
        let is_child = |pid: &u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
            fields.split(' ').nth(1).and_then(|p| p.parse().ok()) == Some(parent)
        };
        Ok(all.filter(is_child).collect())
    }

    /// Ends it, and checks that nothing is left.
    fn end(mut self, by: Signal) -> Result<()> {
        let (daemons, children) = (self.daemons()?, self.children()?);
        signal(self.child.id(), by)?;
        let status = wait("it ends", secs(30), || Ok(self.child.try_wait()?))?;
        let said = fs::read_to_string(self.folder.join("said"))?;
        ensure!(status.code() == Some(1) && said.contains("interrupted"), "{status}: {said}");
        ensure!(self.cluster()?.is_none(), "its directory is still there");
        let left: Vec<u32> = [daemons, children].concat();
        ensure!(left.iter().all(|pid| !is_running(*pid)), "one of {left:?} still runs");
        Ok(())
    }
}

impl Drop for Measuring {
    /// Ends the measurement of a failed test, too.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = signal(self.child.id(), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

#[test]
fn a_measurement_that_is_interrupted_leaves_nothing_behind() {
    case(|| {
        let args = ["bench", "ratio", "--only", "read", "--rounds", "50", "--seconds", "2"];
        for by in [Signal::INT, Signal::TERM, Signal::HUP] {
            let measuring = Measuring::start(&args)?;
            wait("the cluster runs, and the floor is measured", secs(60), || {
                let all = measuring.daemons()?.len() == 5 && measuring.children()?.len() == 3;
                Ok(all.then_some(()))
            })?;
            measuring.end(by)?;
        }
        // Interrupted while the cluster starts.
        let measuring = Measuring::start(&args)?;
        wait("the MDM runs", secs(60), || Ok((!measuring.daemons()?.is_empty()).then_some(())))?;
        measuring.end(Signal::TERM)
    });
}

#[test]
fn servers_of_the_floor_end_with_whoever_measures() {
    case(|| {
        let mut measuring = Measuring::start(&["bench", "floor", "--seconds", "60"])?;
        let servers = wait("the servers run", secs(20), || {
            Ok(Some(measuring.children()?).filter(|all| all.len() == 3))
        })?;
        measuring.child.kill()?;
        measuring.child.wait()?;
        wait("they end", secs(10), || {
            Ok(servers.iter().all(|pid| !is_running(*pid)).then_some(()))
        })?;
        // Killed before its server has begun.
        let server = "bench floor-server --first 0 --count 1 --connections 1 --block 4096";
        let more = format!(" --ports {} --parent {}", free_port()?, measuring.child.id());
        gabion((server.to_owned() + &more).split(' '))?.fails(1, &["has ended"])
    });
}

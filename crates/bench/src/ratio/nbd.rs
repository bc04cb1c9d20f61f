//! NBD on a unix socket: the same fio command line against `nbdkit null` and against Gabion.

use super::outcome::Outcome;
use super::rows::NBD;
use crate::cpu::{Kind, Processes, Reading};
use crate::interrupt;
use crate::pair::Rounds;
use crate::test_cluster::TestCluster;
use anyhow::{Context, Result, bail};
use fleet::progress::Line;
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TITLE: &str = "NBD, unix socket, 4 KiB read, depth 32";
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Processor time of fio and of the servers, in microseconds per I/O.
#[derive(Clone, Copy)]
struct Cost {
    us: f64,
    iops: f64,
}

struct Nbdkit(Child);

impl Drop for Nbdkit {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures nbdkit, Gabion, nbdkit, and so on.
pub(crate) fn measure(cluster: &TestCluster, rounds: usize, window: Duration) -> Result<Outcome> {
    let outcome = Outcome::new("nbd", TITLE, "us of fio and servers", NBD);
    let missing: Vec<&str> = ["fio", "nbdkit"].into_iter().filter(|p| !is_there(p)).collect();
    if !missing.is_empty() {
        let packages = missing.join(" ");
        return Ok(outcome.not_measured(&format!("install the Debian packages: {packages}")));
    }
    if !fio_speaks_nbd() {
        return Ok(
            outcome.not_measured("this fio has no engine nbd: install the Debian package fio")
        );
    }
    let socket = cluster.dir().join("nbdkit.sock");
    let size = format!("size={}", cluster.volume.size);
    let nbdkit = Nbdkit(
        Command::new("nbdkit")
            .args(["--foreground", "--unix"])
            .arg(&socket)
            .args(["null", &size])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?,
    );
    wait_for(&socket)?;
    let mut floor = Processes::default();
    floor.add(Kind::Server, [nbdkit.0.id()]);
    let (ours, uri) = (cluster.processes.daemons(), cluster.nbd_uri()?);
    let bare = format!("nbd+unix:///?socket={}", socket.display());
    let taken = Rounds::take(
        rounds,
        |at| fio(&format!("{TITLE}, nbdkit, {at}"), &bare, &floor, window),
        |at| fio(&format!("{TITLE}, Gabion, {at}"), &uri, &ours, window),
    )?;
    let (us, ours_us) = (taken.floor(|c| c.us), taken.ours(|c| c.us));
    Ok(Outcome {
        note: Some(format!(
            "IOPS: nbdkit {:.0}, Gabion {:.0}",
            taken.floor(|c| c.iops),
            taken.ours(|c| c.iops)
        )),
        process_ratio: Some(taken.ratio(|c| c.us).median),
        ..outcome.with_figures([us, ours_us], [us, ours_us]).with_ratio(taken.ratio(|c| c.us))
    })
}

/// Runs fio and returns its cost, including the servers' time.
fn fio(title: &str, uri: &str, servers: &Processes, window: Duration) -> Result<Cost> {
    let _line = Line::new(title);
    let start = Reading::take(servers)?;
    let out = interrupt::output(
        Command::new("fio")
            .args(["--name=bench", "--ioengine=nbd", "--rw=randread", "--bs=4k", "--iodepth=32"])
            .args(["--time_based", "--output-format=json", &format!("--uri={uri}")])
            .arg(format!("--runtime={}ms", window.as_millis())),
    )?;
    let spent = start.until(&Reading::take(servers)?);
    if !out.status.success() {
        bail!("fio failed: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    cost(&String::from_utf8_lossy(&out.stdout), spent.processes())
}

/// Computes the cost per I/O from fio's report and the servers' time.
fn cost(text: &str, servers_us: f64) -> Result<Cost> {
    // fio prints notices before the report, on the same stream.
    let json: Value = serde_json::from_str(&text[text.find('{').unwrap_or(0)..])
        .context("fio's report is no JSON")?;
    let job = &json["jobs"][0];
    let number = |path: &str| {
        job.pointer(path).and_then(Value::as_f64).with_context(|| format!("fio tells no {path}"))
    };
    let (ios, ms) = (number("/read/total_ios")?, number("/job_runtime")?);
    if ios == 0.0 {
        bail!("fio read nothing");
    }
    let fio_us = (number("/usr_cpu")? + number("/sys_cpu")?) / 100.0 * ms * 1e3;
    Ok(Cost { us: (fio_us + servers_us) / ios, iops: ios / ms * 1e3 })
}

fn is_there(program: &str) -> bool {
    let run = Command::new(program).arg("--version").output();
    run.is_ok_and(|o| o.status.success())
}

fn fio_speaks_nbd() -> bool {
    let listed = Command::new("fio").arg("--enghelp").output();
    listed.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).lines().any(|l| l.trim() == "nbd"))
}

fn wait_for(socket: &Path) -> Result<()> {
    let deadline = Instant::now() + START_TIMEOUT;
    while !socket.exists() {
        if Instant::now() > deadline {
            bail!("nbdkit did not start within {START_TIMEOUT:?}");
        }
        interrupt::sleep(Duration::from_millis(5))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_and_servers_are_added_up() {
        let report = r#"note
            {"jobs": [{"read": {"total_ios": 1000}, "job_runtime": 500, "usr_cpu": 1.0, "sys_cpu": 3.0}]}"#;
        let cost = cost(report, 10_000.0).unwrap();
        assert_eq!((cost.us, cost.iops), (30.0, 2000.0));
        assert!(super::cost("{}", 0.0).is_err());
    }
}

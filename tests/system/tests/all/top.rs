//! The live view of a cluster.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Instant;
use system::run::binary;
use system::{Cluster, Options, case, secs};

fn sample(line: &str) -> Result<Value> {
    serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))
}

#[test]
fn top_shows_the_writes_of_clients_and_the_absent_servers() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let (begin, mut nbd) = (Instant::now(), cluster.nbd("vol1")?);
        let arguments =
            ["--dir", cluster.dir(), "top", "--json", "--every", "300ms", "--count", "5"];
        let top = Command::new(binary()).args(arguments).stdout(Stdio::piped()).spawn()?;
        while begin.elapsed() < secs(2) {
            nbd.write(4096, &[7; 4096])?;
            nbd.read(4096, 4096)?;
        }
        let said = String::from_utf8(top.wait_with_output()?.stdout)?;
        let samples = said.lines().map(sample).collect::<Result<Vec<_>>>()?;
        ensure!(samples.len() == 5, "{said}");
        let most =
            |field: &str| samples.iter().filter_map(|s| s[field].as_f64()).fold(0.0, f64::max);
        let (writes, written) = (most("writes_per_second"), most("written_bytes_per_second"));
        ensure!(writes > 0.0 && most("reads_per_second") > 0.0, "{said}");
        ensure!((written - writes * 4096.0).abs() < 1.0, "{said}");
        cluster.kill("sds2")?;
        cluster.wait_down("sds2")?;
        let line = cluster.gabion(&["top", "--plain", "--every", "200ms", "--count", "1"])?.ok()?;
        ensure!(line.contains("degraded"), "{line}");
        cluster.kill("mdm")?;
        cluster.gabion(&["top", "--plain", "--count", "1"])?.fails(5, &["MDM"])?;
        cluster.gabion(&["top", "--every", "1ms"])?.fails(1, &["100ms"])?;
        Ok(())
    });
}

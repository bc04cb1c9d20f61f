//! Counts of requests, per volume and per connection of a host.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use system::nbd::cmd;
use system::{Cluster, Options, case, free_port, secs, wait};

/// Returns the volume as `gabion volume show` prints it, as soon as this is true of it.
fn shown(cluster: &Cluster, what: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
    wait(what, secs(10), || {
        let shown = cluster.gabion(&["volume", "show", "vol1", "--json"])?.ok()?;
        let volume: Value = serde_json::from_str(&shown)?;
        ensure!(is(&volume), "{volume:#}");
        Ok(Some(volume))
    })
}

#[test]
fn requests_are_counted_per_volume_and_connection() {
    case(|| {
        let at: &'static str = format!("127.0.0.1:{}", free_port()?).leak();
        let more = vec!["--iscsi", at].leak();
        let cluster = Cluster::start(&Options { more, ..Options::default() })?;
        let mut nbd = cluster.nbd("vol1")?;
        for block in 0..10 {
            nbd.write(block * 4096, &[7; 4096])?;
        }
        nbd.read(0, 8192)?;
        nbd.request(cmd::TRIM, 0, 1 << 20, &[])?;
        let volume = shown(&cluster, "all is counted", |v| v["io"]["zeroes"] == 1)?;
        let (io, path) = (&volume["io"], &volume["paths"][0]);
        for (field, expected) in [
            ("reads", 1),
            ("read_bytes", 8192),
            ("writes", 10),
            ("written_bytes", 40960),
            ("zeroed_bytes", 1 << 20),
            ("failed", 0),
            ("outstanding", 0),
        ] {
            ensure!(io[field] == expected && path[field] == expected, "{field}: {volume:#}");
        }
        ensure!(path["protocol"] == "nbd" && path["host_address"].is_null(), "{path:#}");
        let counted = |latency: &Value| -> Option<u64> {
            latency["histogram"].as_array()?.iter().map(|range| range["count"].as_u64()).sum()
        };
        ensure!(counted(&io["write_latency"]) == Some(10), "{io:#}");
        let p99 = io["write_latency"]["p99_us"].as_f64().context("it has a percentile")?;
        ensure!((1.0..1e7).contains(&p99), "{p99}");
        drop(nbd);
        let volume = shown(&cluster, "the path is gone", |v| v["paths"] == Value::Array(vec![]))?;
        ensure!(volume["io"]["writes"] == 10, "{volume:#}");

        let uri = volume["iscsi_uris"][0].as_str().context("it has a URI")?.to_owned();
        let mut perf = std::process::Command::new("iscsi-perf")
            .args(["-m", "8", "-b", "8", "-r", "-t", "8", &uri])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .context("install the Debian package libiscsi-bin")?;
        let busy = |v: &Value| v["paths"][0]["reads"].as_u64().is_some_and(|reads| reads > 100);
        let volume = shown(&cluster, "a host reads over iSCSI", busy)?;
        let path = &volume["paths"][0];
        let told = |field: &str| path[field].as_str().unwrap_or_default().to_owned();
        ensure!(told("protocol") == "iscsi" && told("host").starts_with("iqn."), "{path:#}");
        ensure!(told("portal") == at && told("host_address").starts_with("127."), "{path:#}");
        let lines = cluster.gabion(&["top", "--json", "--every", "1s", "--count", "2"])?.ok()?;
        let last: Value = serde_json::from_str(lines.lines().last().context("two lines")?)?;
        let rate = &last["volumes"][0];
        ensure!(rate["reads_per_second"].as_f64().is_some_and(|n| n > 50.0), "{rate:#}");
        ensure!(rate["read_p99_us"].as_f64().is_some_and(|us| us > 1.0), "{rate:#}");
        perf.wait()?;
        Ok(())
    });
}

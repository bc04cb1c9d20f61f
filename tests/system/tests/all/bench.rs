//! Measurements run and print what they promise to print. No figure is judged: the machine is shared.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use system::{case, gabion};

/// Runs a measurement and checks that these places hold numbers.
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
        let args =
            ["bench", "ratio", "--only", "read", "--rounds", "1", "--seconds", "0.3", "--json"];
        let ran = gabion(args)?;
        ensure!([0, 7].contains(&ran.code), "{} {}", ran.code, ran.stderr);
        let json: Value = serde_json::from_str(&ran.stdout)?;
        let row = &json["results"][0];
        ensure!(json["rounds"] == 1 && row["name"] == "read" && row["must"] == 2.0, "{json:#}");
        for field in ["floor_us", "ours_us", "ratio"] {
            ensure!(row[field].is_number(), "{field}: {json:#}");
        }
        gabion(["bench", "ratio", "--only", "x"])?.fails(1, &["no row x", "read-latency"])
    });
}

//! A small `gabion demo exaforge`, which is another name of `experiment exaforge`, runs to its end
//! and reports everything. Speed on a shared machine says nothing, so it is not judged here.

use super::experiment::FILES;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use system::{Folder, case, gabion};

const PHASES: [&str; 8] = [
    "read 1 MiB",
    "write 1 MiB",
    "8 KiB half and half",
    "remove node3",
    "node3 comes back empty",
    "kill node2 under load",
    "node2 comes back",
    "pull node1's cable",
];

fn number(value: &Value, path: &str) -> Result<f64> {
    value.pointer(path).and_then(Value::as_f64).with_context(|| format!("{path} in {value:#}"))
}

#[test]
fn the_fifth_experiment_runs_to_its_end_without_an_error() {
    case(|| {
        let folder = Folder::new()?;
        let out = folder.join("report").display().to_string();
        fs::create_dir(&out)?;
        let sizes = ["--data", "64MiB", "--disk", "256MiB", "--seconds", "0.5"];
        let arguments = [&["demo", "exaforge", "--out", &out, "--json"], &sizes[..]].concat();
        let ran = gabion(arguments)?;
        // 7: a rate was missed, which may happen with so little data and beside other tests.
        ensure!(ran.code == 0 || ran.code == 7, "{ran:?}");
        let report: Value =
            serde_json::from_str(&ran.stdout).with_context(|| format!("{ran:?}"))?;
        let text = fs::read_to_string(folder.join("report/report.json"))?;
        ensure!(serde_json::from_str::<Value>(&text)? == report, "the file has something else");
        ensure!(report["error"].is_null() && report["io_errors"] == 0, "{report:#}");
        ensure!(report["missed"].as_array().is_some_and(|m| m.is_empty()) == (ran.code == 0));
        for path in ["/kill_noticed_ms", "/partition_noticed_ms"] {
            ensure!(number(&report, path)? > 0.0, "{path}");
        }
        let phases = report["phases"].as_array().context("phases")?;
        let names: Vec<_> = phases.iter().filter_map(|p| p["name"].as_str()).collect();
        ensure!(names == PHASES, "{names:?}");
        let mut end = 0.0;
        for phase in phases {
            let begin = number(phase, "/begin_seconds")?;
            ensure!(begin >= end, "they come one after the other: {phase:#}");
            end = begin + number(phase, "/seconds")?;
        }
        // Lost copies are rebuilt, and empty devices get their share.
        for moves in &phases[3..7] {
            ensure!(number(moves, "/moved_bytes")? > 0.0, "{moves:#}");
        }
        for load in phases[..3].iter().chain([&phases[5], &phases[7]]) {
            ensure!(number(load, "/requests")? > 0.0, "{load:#}");
        }
        let samples = report["samples"].as_array().context("samples")?;
        let times: Vec<_> = samples.iter().filter_map(|s| s["seconds"].as_f64()).collect();
        ensure!(times.len() == samples.len() && times.is_sorted(), "{times:?}");
        let protected = |s: &Value| s["protected_bytes"].as_u64() > Some(0);
        ensure!(samples.last().is_some_and(protected), "it ends protected");
        let page = fs::read_to_string(folder.join("report/report.html"))?;
        ensure!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"), "half a page");
        for foreign in ["http:", "https:", "src=", "href=", "@import"] {
            ensure!(
                !page.contains(foreign),
                "the page asks for something from elsewhere: {foreign}"
            );
        }
        ensure!(page.matches("role=\"img\"").count() == 4, "the stand, and three charts");
        ensure!(!is_left(&folder)?, "the hosts' files are left");
        Ok(())
    });
}

/// Returns true if there is anything besides the report.
fn is_left(folder: &Folder) -> Result<bool> {
    let names = fs::read_dir(folder.join("report"))?.map(|e| Ok(e?.file_name()));
    let names: Vec<_> = names.collect::<Result<_>>()?;
    Ok(names.iter().any(|n| !FILES.iter().any(|file| n == file)))
}

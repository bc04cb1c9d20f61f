//! The published experiments in their short form: each runs to its end, reports all its figures and
//! claims, and leaves nothing else behind, even when it is interrupted. Speed is not judged.

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use system::run::{binary, run, run_within};
use system::{Folder, case, gabion, wait};

/// The time that CI has for all of them.
const ALL: Duration = Duration::from_secs(480);

/// The files of a report.
pub(super) const FILES: [&str; 7] = [
    "claims.csv",
    "figures",
    "report.html",
    "report.json",
    "samples.csv",
    "tables",
    "transcript.txt",
];

fn names(folder: &Path) -> Result<Vec<String>> {
    let names = fs::read_dir(folder)?.map(|e| Ok(e?.file_name().to_string_lossy().into_owned()));
    let mut names: Vec<String> = names.collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}

/// Checks a report: all files are there, no figure is empty, and every claim has a verdict.
fn check(folder: &Path, claims: &[&str]) -> Result<Value> {
    ensure!(names(folder)? == FILES, "{:?}", names(folder)?);
    let report: Value = serde_json::from_str(&fs::read_to_string(folder.join("report.json"))?)?;
    ensure!(report["not_measured"].as_array().is_some_and(|l| l.is_empty()), "{report:#}");
    let list = |name: &str| report[name].as_array().cloned().with_context(|| name.to_owned());
    for figure in list("figures")? {
        let csv = fs::read_to_string(folder.join(figure["csv"].as_str().context("csv")?))?;
        // A drawing of the stand has no values.
        let is_stand = ["stand", "figure-1"].iter().any(|id| figure["id"] == *id);
        ensure!(is_stand || csv.lines().count() > 1, "{figure:#} is empty");
    }
    for table in list("tables")? {
        ensure!(table["rows"].as_array().is_some_and(|rows| !rows.is_empty()), "{table:#}");
    }
    let found = list("claims")?;
    for id in claims {
        let claim = found.iter().find(|c| c["id"] == *id).with_context(|| id.to_string())?;
        let verdict = claim["verdict"].as_str().context("verdict")?;
        ensure!(verdict != "not judged" || claim["reason"].is_string(), "{claim:#}");
    }
    for id in ["run-errors", "run-healthy"] {
        ensure!(found.iter().any(|c| c["id"] == id && c["verdict"] == "holds"), "{report:#}");
    }
    let page = fs::read_to_string(folder.join("report.html"))?;
    for outside in ["http:", "https:", "src=", "href=", "@import", "<script"] {
        ensure!(!page.contains(outside), "the page asks for something from elsewhere: {outside}");
    }
    let samples = fs::read_to_string(folder.join("samples.csv"))?;
    ensure!(samples.starts_with("seconds,"), "{samples}");
    Ok(report)
}

#[test]
fn all_experiments_in_their_short_form_leave_reports_and_nothing_else() {
    case(|| {
        let folder = Folder::new()?;
        let out = folder.join("reports");
        let mut command = Command::new(binary());
        command.args(["experiment", "all", "--short", "--out"]).arg(&out);
        let ran = run_within(&mut command, ALL)?;
        ensure!(ran.code == 0, "{ran:?}");
        ensure!(names(&out)? == ["esg", "exaforge", "index.html"], "{:?}", names(&out)?);
        let esg = check(&out.join("esg"), &["000-44", "000-47", "000-35", "000-32", "000-23"])?;
        // 3 and 6 nodes, two loads, three media; 3, 6 and 16 nodes, two layouts, two loads.
        for (list, count) in [("media", 12), ("scaling", 12)] {
            ensure!(esg[list].as_array().is_some_and(|l| l.len() == count), "{list}: {esg:#}");
        }
        check(&out.join("exaforge"), &["004-13", "004-20", "004-22", "004-24", "004-26"])?;
        let index = fs::read_to_string(out.join("index.html"))?;
        ensure!(index.contains("esg/report.html") && index.contains("not judged"), "{index}");
        Ok(())
    });
}

/// Returns the process ids of the data servers whose files are below a folder.
fn servers(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() {
            found.extend(servers(&path));
        } else if name.starts_with("sds") && name.ends_with(".pid") {
            let text = fs::read_to_string(&path).unwrap_or_default();
            found.extend(text.split_whitespace().next().map(str::to_owned));
        }
    }
    found
}

#[test]
fn an_interrupted_experiment_says_so_and_leaves_nothing_behind() {
    case(|| {
        for experiment in ["esg", "exaforge"] {
            let folder = Folder::new()?;
            let here = folder.join("");
            let mut command = Command::new(binary());
            command.args(["experiment", experiment, "--out"]).arg(folder.join("report"));
            // All of the other experiment's files are in the directory of its report. In the
            // temporary folder it has only a lock, which it shares with other deployments.
            if experiment == "esg" {
                command.env("TMPDIR", &here);
            }
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
            let found = wait("three data servers", Duration::from_secs(60), || {
                let found = servers(&here);
                Ok((found.len() >= 3).then_some(found))
            })?;
            kill_process(Pid::from_child(&child), Signal::INT)?;
            let ended = child.wait_with_output()?;
            let said = String::from_utf8_lossy(&ended.stderr);
            ensure!(ended.status.code() == Some(1), "{experiment}: {:?} {said}", ended.status);
            ensure!(said.contains("interrupted"), "{experiment}: {said}");
            ensure!(names(&here)?.is_empty(), "{experiment}: {:?}", names(&here)?);
            // A killed process of a namespace stays in the list until init has collected it.
            let there = |pid: &String| Path::new("/proc").join(pid).exists();
            let gone = || Ok((!found.iter().any(there)).then_some(()));
            wait("no data server is left", Duration::from_secs(10), gone)?;
        }
        Ok(())
    });
}

#[test]
fn a_plan_changes_nothing_and_what_lacks_is_one_sentence() {
    case(|| {
        let folder = Folder::new()?;
        let out = folder.join("report").display().to_string();
        for experiment in ["esg", "exaforge", "all"] {
            let plan = gabion(["experiment", experiment, "--plan", "--out", &out])?.ok()?;
            for word in ["time", "disk", "root", "packages"] {
                ensure!(plan.contains(word), "{word}: {plan}");
            }
        }
        let unknown = ["experiment", "esg", "--only", "x", "--out", &out];
        gabion(unknown)?.fails(1, &["no step x", "media, scaling"])?;
        let mut command = Command::new(binary());
        command.args(["experiment", "esg", "--short", "--out", &out]);
        let mut without = Command::new("env");
        without.arg("PATH=/nowhere").arg(binary()).args(command.get_args());
        let ran = run(&mut without)?;
        ran.fails(1, &["apt-get install fio"])?;
        ensure!(names(&folder.join(""))?.is_empty(), "something was made");
        Ok(())
    });
}

//! fio at work in the background: over NBD, and over the engine that links `libgabion`.
//!
//! Invariants: what it leaves behind lies in its test's folder; its process ends with its value. What it
//! finds wrong makes it fail; whether it looked at anything is for the test to check.

use crate::cluster::signal;
use crate::run::{binary, run};
use crate::{Folder, secs, wait};
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The workspace that the tests belong to.
pub fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The folder that the library under test lies in: beside the binary.
pub fn built() -> Result<PathBuf> {
    let folder = binary().parent().context("the binary lies in a folder")?.to_owned();
    let library = folder.join("libgabion.so");
    ensure!(library.exists(), "no {}: `cargo xtask test system` builds it", library.display());
    Ok(folder)
}

/// fio's engine: built by the script that the documentation names, kept in `target/fio`.
pub fn engine() -> Result<String> {
    let profile = built()?;
    let profile = profile.file_name().context("target/PROFILE")?;
    let script = workspace().join("bench/fio/build.sh");
    // What is there was built a moment ago, and cargo is busy with us.
    let mut command = Command::new(script);
    command.arg(profile).env("GABION_LIB_IS_BUILT", "1");
    if let Some(target) = built()?.parent() {
        command.env("CARGO_TARGET_DIR", target);
    }
    Ok(run(&mut command)?.ok()?.trim().to_owned())
}

/// fio's exit code when it was told to end.
const INTERRUPTED: i32 = 128;

/// A run of fio in the background.
#[derive(Debug)]
pub struct Fio {
    child: Child,
    name: String,
    said: PathBuf,
    report: PathBuf,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Did {
    /// Bytes written.
    pub written: u64,
    /// Bytes read, to compare them.
    pub verified: u64,
}

impl Fio {
    /// Starts it.
    pub fn start(folder: &Folder, name: &str, args: &[String]) -> Result<Fio> {
        let place = folder.join(&format!("fio-{name}"));
        fs::create_dir_all(&place)?;
        let (said, report) = (place.join("said.log"), place.join("report.json"));
        let log = fs::File::create(&said)?;
        let child = Command::new("fio")
            .arg(format!("--name={name}"))
            .args(["--thread", "--group_reporting", "--exitall_on_error", "--output-format=json"])
            .arg(format!("--output={}", report.display()))
            .args(args)
            .current_dir(place)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("can't run fio")?;
        Ok(Fio { child, name: name.to_owned(), said, report })
    }

    /// How it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True until it has ended.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Tells it to end, and waits for that: it must have found nothing wrong until then.
    pub fn stop(self) -> Result<Did> {
        signal(self.child.id(), Signal::INT)?;
        self.ended(INTERRUPTED)
    }

    /// Waits for its end, which has to be a good one.
    pub fn finish(self) -> Result<Did> {
        self.ended(0)
    }

    fn ended(mut self, code: i32) -> Result<Did> {
        let name = format!("fio {} ends", self.name);
        let status =
            wait(&name, secs(120), || Ok(self.child.try_wait()?)).with_context(|| self.words())?;
        ensure!(
            status.code() == Some(code),
            "fio {} ended with {status}: {}",
            self.name,
            self.words()
        );
        let report = fs::read_to_string(&self.report)?;
        // Behind its warnings.
        let json = report.find('{').map_or("", |at| &report[at..]);
        let report: Value = serde_json::from_str(json).with_context(|| self.words())?;
        let number = |pointer: &str| {
            report.pointer(pointer).and_then(Value::as_u64).with_context(|| format!("{report:#}"))
        };
        ensure!(number("/jobs/0/error")? == 0, "{report:#}");
        Ok(Did {
            written: number("/jobs/0/write/io_bytes")?,
            verified: number("/jobs/0/read/io_bytes")?,
        })
    }

    fn words(&self) -> String {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        format!("{}{}", read(&self.said), read(&self.report))
    }
}

impl Drop for Fio {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

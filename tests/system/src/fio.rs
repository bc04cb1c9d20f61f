//! Runs fio in the background, over NBD or over the engine that links `libgabion`.
//!
//! Invariants: all its files are in the test's folder; its process ends with its value. Any error
//! that fio finds makes it fail. The test has to check whether fio verified anything.

use crate::cluster::signal;
use crate::run::{binary, run};
use crate::{Folder, secs, wait};
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The workspace of the tests.
pub fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The folder of the library under test, which is beside the binary.
pub fn built() -> Result<PathBuf> {
    let folder = binary().parent().context("the binary lies in a folder")?.to_owned();
    let library = folder.join("libgabion.so");
    ensure!(library.exists(), "no {}: `cargo xtask test system` builds it", library.display());
    Ok(folder)
}

/// Returns the path of fio's engine. The script from the documentation builds it in `target/fio`.
pub fn engine() -> Result<String> {
    let profile = built()?;
    let profile = profile.file_name().context("target/PROFILE")?;
    let script = workspace().join("bench/fio/build.sh");
    // The library was built a moment ago, and cargo is still busy with this test run.
    let mut command = Command::new(script);
    command.arg(profile).env("GABION_LIB_IS_BUILT", "1");
    if let Some(target) = built()?.parent() {
        command.env("CARGO_TARGET_DIR", target);
    }
    Ok(run(&mut command)?.ok()?.trim().to_owned())
}

/// Exit code of fio after it was interrupted.
const INTERRUPTED: i32 = 128;

/// A run of fio in the background.
#[derive(Debug)]
pub struct Fio {
    child: Child,
    name: String,
    said: PathBuf,
    report: PathBuf,
}

/// The work of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Did {
    /// Bytes written.
    pub written: u64,
    /// Bytes read for verification.
    pub verified: u64,
}

impl Fio {
    /// Starts fio.
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

    /// Name of the run.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true until it has ended.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Interrupts fio and waits for its end. It must not have found an error until then.
    pub fn stop(self) -> Result<Did> {
        signal(self.child.id(), Signal::INT)?;
        self.ended(INTERRUPTED)
    }

    /// Waits for its end, which has to be a success.
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
        // The JSON follows fio's warnings.
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

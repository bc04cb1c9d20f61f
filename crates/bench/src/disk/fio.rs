//! The disk alone: fio on a plain file next to the cluster, with direct I/O and durable writes.

use super::rows::Load;
use crate::drive::Work;
use crate::interrupt;
use anyhow::{Context, Result, bail};
use fleet::progress::Line;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// fio's warm-up before it counts, as long as ours.
const WARM_UP: &str = "--ramp_time=700ms";
const PIECE: u64 = 1 << 20;

/// A load, as fio describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pattern {
    /// fio's name for it.
    pub rw: &'static str,
    /// Its writes are durable when they are answered.
    pub durable: bool,
    /// Percentage of reads in a mix.
    pub mix: u32,
    /// Bytes per request.
    pub block: u32,
    /// Requests in flight.
    pub depth: u32,
}

/// A file that is written completely. It is removed when this is dropped.
pub struct RawFile {
    path: PathBuf,
    bytes: u64,
}

impl Drop for RawFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns true if fio can be run.
pub fn is_there() -> bool {
    Command::new("fio").arg("--version").output().is_ok_and(|o| o.status.success())
}

impl RawFile {
    /// Creates the file with `bytes` bytes in a folder.
    pub fn new(folder: &Path, bytes: u64) -> Result<RawFile> {
        let _line = Line::new("writing fio's file");
        let path = folder.join(format!(".gabion-bench-{}-raw", std::process::id()));
        let file = RawFile { path, bytes };
        let mut to = std::fs::File::create(&file.path)
            .with_context(|| format!("can't make {}", file.path.display()))?;
        let piece: Vec<u8> =
            (0..PIECE / 8).flat_map(|i| base::prng::mix(i).to_le_bytes()).collect();
        for _ in 0..bytes / PIECE {
            to.write_all(&piece).context("writing fio's file")?;
            interrupt::check()?;
        }
        to.sync_all().context("writing fio's file")?;
        Ok(file)
    }

    /// Returns fio's operations per second with a load.
    pub(crate) fn rate(&self, title: &str, load: &Load, window: Duration) -> Result<f64> {
        let Work { mix, block, depth, .. } = load.work;
        let (rw, durable) = (load.fio, load.writes);
        self.run(title, &Pattern { rw, durable, mix, block, depth }, window)
    }

    /// Returns fio's operations per second, reads and writes together.
    pub fn run(&self, title: &str, pattern: &Pattern, window: Duration) -> Result<f64> {
        let _line = Line::new(title);
        let mut command = self.command(pattern, window);
        let out = interrupt::output(&mut command)?;
        if !out.status.success() {
            bail!("fio failed: {}", String::from_utf8_lossy(&out.stderr).trim());
        }
        rate(&String::from_utf8_lossy(&out.stdout))
    }

    /// Returns the command.
    pub fn command(&self, pattern: &Pattern, window: Duration) -> Command {
        let mut command = Command::new("fio");
        command.args(["--name=raw", "--ioengine=io_uring", "--direct=1", "--time_based", WARM_UP]);
        command.args(["--output-format=json", "--norandommap", "--randrepeat=0"]);
        if pattern.durable {
            command.arg("--sync=dsync");
        }
        command.arg(format!("--filename={}", self.path.display()));
        command.arg(format!("--size={}", self.bytes));
        command.arg(format!("--rw={}", pattern.rw));
        command.arg(format!("--rwmixread={}", pattern.mix));
        command.arg(format!("--bs={}", pattern.block));
        command.arg(format!("--iodepth={}", pattern.depth));
        command.arg(format!("--runtime={}ms", window.as_millis()));
        command
    }
}

fn rate(text: &str) -> Result<f64> {
    // fio prints notices before the report, on the same stream.
    let report: serde_json::Value = serde_json::from_str(&text[text.find('{').unwrap_or(0)..])
        .context("fio's report is no JSON")?;
    let side =
        |side: &str| report["jobs"][0][side]["iops"].as_f64().context("fio's report has no rate");
    Ok(side("read")? + side("write")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_reads_and_writes_together() {
        let text = r#"note {"jobs": [{"read": {"iops": 5.0}, "write": {"iops": 7.0}}]}"#;
        assert_eq!(rate(text).unwrap(), 12.0);
        assert!(rate("{}").is_err());
    }
}

//! Runs programs with a time limit and collects their output.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit, long enough for the slowest client on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

/// A program that has ended.
#[derive(Debug)]
pub struct Ran {
    /// The command line.
    pub line: String,
    /// Its exit code; -1 if a signal ended it.
    pub code: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Ran {
    /// Returns its output; an error unless it ended with 0.
    pub fn ok(self) -> Result<String> {
        self.code(0)
    }

    /// Returns its output; an error unless it ended with this code.
    pub fn code(self, code: i32) -> Result<String> {
        if self.code != code {
            bail!(
                "`{}` ended with {}, not {code}\n{}\n{}",
                self.line,
                self.code,
                self.stdout,
                self.stderr
            );
        }
        Ok(self.stdout)
    }

    /// Returns an error unless it ended with this code and its standard error has these words.
    pub fn fails(self, code: i32, words: &[&str]) -> Result<()> {
        let (line, stderr) = (self.line.clone(), self.stderr.clone());
        self.code(code)?;
        for word in words {
            if !stderr.contains(word) {
                bail!("`{line}` should have mentioned `{word}`: {stderr}");
            }
        }
        Ok(())
    }
}

/// Returns the binary under test: `GABION_BIN`, or else the one in `target/ci`.
pub fn binary() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/ci/gabion");
    let path = std::env::var_os("GABION_BIN").map_or_else(default, PathBuf::from);
    assert!(path.is_absolute(), "GABION_BIN is an absolute path: tests run in their own folder");
    assert!(path.exists(), "there is no {}: `cargo xtask test system` builds it", path.display());
    path
}

/// Runs `gabion` with these arguments.
pub fn gabion<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Result<Ran> {
    run(Command::new(binary()).args(args))
}

/// Runs a client with these arguments.
pub fn tool<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Result<Ran> {
    run(Command::new(program).args(args))
}

/// Runs one line in a shell, as a user would.
pub fn shell(line: &str) -> Result<Ran> {
    run(Command::new("sh").args(["-c", line]))
}

/// Runs a command, and kills it after the time limit.
pub fn run(command: &mut Command) -> Result<Ran> {
    run_within(command, LIMIT)
}

/// Runs a command, and kills it after this time.
pub fn run_within(command: &mut Command, limit: Duration) -> Result<Ran> {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut child = command
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("can't run {command:?}"))?;
    let out = drain(child.stdout.take().context("stdout is piped")?);
    let err = drain(child.stderr.take().context("stderr is piped")?);
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            bail!("{command:?} did not end within {limit:?}");
        }
        thread::sleep(Duration::from_millis(5));
    };
    let text = |t: thread::JoinHandle<Vec<u8>>| {
        String::from_utf8_lossy(&t.join().unwrap_or_default()).into_owned()
    };
    Ok(Ran {
        line: format!("{command:?}"),
        code: status.code().unwrap_or(-1),
        stdout: text(out),
        stderr: text(err),
    })
}

fn drain(mut from: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}

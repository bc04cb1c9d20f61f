//! Ctrl-C, SIGTERM and SIGHUP end a measurement with an error, so that the owners of whatever it
//! has started clean up.
//!
//! Therefore everything here that takes long waits with [`sleep`] or [`output`], or calls
//! [`check`]. A SIGKILL leaves the temporary cluster running; `gabion down --dir` stops it by its
//! directory.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

/// How often a wait checks the flag.
const LOOK: Duration = Duration::from_millis(20);

static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Catches the signals from now on; they no longer end the process.
pub fn watch() -> Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, INTERRUPTED.clone()).context("can't handle signals")?;
    }
    Ok(())
}

fn is_set() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Returns an error if a signal has arrived.
pub fn check() -> Result<()> {
    if is_set() {
        bail!("interrupted: what was started for the measurement is stopped");
    }
    Ok(())
}

/// Sleeps; returns an error once a signal has arrived.
pub fn sleep(time: Duration) -> Result<()> {
    let begun = Instant::now();
    while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        check()?;
        thread::sleep(left.min(LOOK));
    }
    check()
}

/// Runs a program to its end and returns its output. Passes a signal on to the program, and then
/// still waits for its end.
pub fn output(command: &mut Command) -> Result<Output> {
    let what = format!("can't run {}", command.get_program().display());
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context(what)?;
    let (out, err) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let (mut told, pid) = (false, Pid::from_child(&child));
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if is_set() && !told {
            // It is our child and not reaped yet, so the pid can't belong to another process.
            let _ = kill_process(pid, Signal::TERM);
            told = true;
        }
        thread::sleep(LOOK);
    };
    let text = |t: thread::JoinHandle<Vec<u8>>| t.join().unwrap_or_default();
    let output = Output { status, stdout: text(out), stderr: text(err) };
    check()?;
    Ok(output)
}

fn drain(from: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            let _ = from.read_to_end(&mut bytes);
        }
        bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_run_to_its_end() {
        let ran = output(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]));
        let ran = ran.unwrap();
        assert_eq!(
            (ran.status.code(), &ran.stdout[..], &ran.stderr[..]),
            (Some(3), &b"out\n"[..], &b"err\n"[..])
        );
        assert!(output(&mut Command::new("/there/is/no/such")).is_err());
    }
}

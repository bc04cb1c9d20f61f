//! Processes started by another command, which are found again by pid file, never by name.
//!
//! A pid file holds `PID START BOOT`. The process's start time in clock ticks and the boot id
//! distinguish it from a later process with the same pid, so that one never gets a signal.

use crate::files;
use anyhow::{Context, Result};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// One process, identified across reuse of its pid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its pid.
    pub pid: u32,
    start: u64,
    boot: String,
}

impl Process {
    /// Returns this process.
    pub fn this() -> Result<Process> {
        let pid = std::process::id();
        let start = start_time(pid).context("/proc/self/stat can't be read")?;
        Ok(Process { pid, start, boot: boot_id() })
    }

    /// Reads a pid file. Returns `None` if it does not exist or can't be parsed.
    pub fn read(file: &Path) -> Option<Process> {
        let text = fs::read_to_string(file).ok()?;
        let mut words = text.split_whitespace();
        Some(Process {
            pid: words.next()?.parse().ok()?,
            start: words.next()?.parse().ok()?,
            boot: words.next()?.to_owned(),
        })
    }

    /// Writes the pid file atomically.
    pub fn write(&self, file: &Path) -> Result<()> {
        let content = format!("{} {} {}\n", self.pid, self.start, self.boot);
        files::write_for_this_boot(file, content)
            .with_context(|| format!("can't write {}", file.display()))
    }

    /// Returns true while it runs or is stopped by a signal, and false for a zombie.
    pub fn is_alive(&self) -> bool {
        self.boot == boot_id() && start_time(self.pid) == Some(self.start)
    }

    /// Sends a signal. Returns false when the process is gone.
    pub fn signal(&self, signal: Signal) -> Result<bool> {
        let Some(pid) = Pid::from_raw(self.pid as i32) else { return Ok(false) };
        // The descriptor refers to this very process, so the pid can't be reused between the check
        // and the signal.
        let Ok(fd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
            return Ok(false);
        };
        if !self.is_alive() {
            return Ok(false);
        }
        match rustix::process::pidfd_send_signal(&fd, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(e) => Err(e).with_context(|| format!("can't signal process {}", self.pid)),
        }
    }

    /// Waits until it is gone. Returns false if it is still there after `timeout`.
    pub fn wait_gone(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        while self.is_alive() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }
}

/// Returns the start of a process in clock ticks since boot; `None` if it is gone or a zombie.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything. The third field follows it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_or_else(|_| "-".into(), |id| id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recycled_pid_is_not_the_process() {
        let this = Process::this().unwrap();
        assert!(this.is_alive());
        let stranger = Process { start: this.start + 1, ..this.clone() };
        assert!(!stranger.is_alive());
        assert!(!stranger.signal(Signal::TERM).unwrap(), "we would be gone otherwise");
        let earlier_boot = Process { boot: "x".into(), ..this };
        assert!(!earlier_boot.is_alive());
    }

    #[test]
    fn pid_files_read_as_written_and_garbage_names_no_process() {
        let dir = std::env::temp_dir().join(format!("gabion-process-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("x.pid");
        let this = Process::this().unwrap();
        this.write(&file).unwrap();
        assert_eq!(Process::read(&file), Some(this));
        fs::write(&file, "4711\n").unwrap();
        assert_eq!(Process::read(&file), None);
        fs::remove_dir_all(&dir).unwrap();
    }
}

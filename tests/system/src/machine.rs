//! A machine whose power can be cut: User Mode Linux, with a file as its disk.
//!
//! Data that its programs have written and not flushed is in the page cache of its kernel, and is
//! lost with it. Killing a process never shows that, because the host's page cache survives. Its
//! root is the host's, read-only.

use crate::{Folder, secs, tool, wait};
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// The kernel as a program, from Debian's package `user-mode-linux`.
const KERNEL: &str = "linux.uml";
/// Prefix of script output that the test evaluates.
const MARK: &str = "=== ";
/// Memory of the machine, in MiB.
const MEMORY_MIB: u32 = 768;

/// A machine that is off.
#[derive(Debug)]
pub struct Machine {
    kernel: PathBuf,
    folder: Folder,
    file_system: &'static str,
}

/// A machine that is on. Its power is cut when this is dropped.
#[derive(Debug)]
pub struct Powered {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
    heard: Option<JoinHandle<()>>,
}

impl Machine {
    /// Creates a machine with a new disk, which has this file system. Returns `None` if User Mode
    /// Linux is not installed.
    pub fn new(file_system: &'static str) -> Result<Option<Machine>> {
        let folders = ["/usr/bin", "/usr/local/bin"].map(PathBuf::from);
        let named = std::env::var_os("GABION_UML").map(PathBuf::from);
        let found = named.into_iter().chain(folders.map(|folder| folder.join(KERNEL)));
        let Some(kernel) = found.into_iter().find(|path| path.exists()) else {
            return Ok(None);
        };
        let machine = Machine { kernel, folder: Folder::new()?, file_system };
        let disk = machine.disk();
        fs::File::create(&disk)?.set_len(4 << 30)?;
        fs::create_dir(machine.folder.join("m"))?;
        let disk = disk.to_str().context("a temporary path is text")?;
        let quiet = if file_system == "xfs" { ["-q", "-f"] } else { ["-q", "-F"] };
        tool(&format!("mkfs.{file_system}"), quiet.into_iter().chain([disk]))?.ok()?;
        Ok(Some(machine))
    }

    fn disk(&self) -> PathBuf {
        self.folder.join("disk")
    }

    /// Returns the path at which its disk is mounted.
    pub fn mount(&self) -> PathBuf {
        self.folder.join("m")
    }

    /// Boots it. It runs this shell script and powers off at the end.
    pub fn boot(&self, script: &str) -> Result<Powered> {
        let (init, mount) = (self.folder.join("init"), self.mount());
        let (mount, kind) = (mount.display(), self.file_system);
        let text = format!(
            "#!/bin/sh\n\
             mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs tmpfs /run\n\
             mkdir -p /dev/shm; mount -t tmpfs tmpfs /dev/shm; ip link set lo up\n\
             mount -t {kind} /dev/ubda {mount} || echo '{MARK}no disk'\n\
             {script}\n\
             umount {mount}; echo '{MARK}off'; poweroff -f\n"
        );
        fs::write(&init, text)?;
        tool("chmod", [Path::new("+x"), &init])?.ok()?;
        let mut command = Command::new(&self.kernel);
        command
            .args([&format!("mem={MEMORY_MIB}M"), "root=/dev/root", "rootfstype=hostfs"])
            .args(["rootflags=/", "ro", "quiet", "con=null", "con0=null,fd:1"])
            .arg(format!("ubd0={}", self.disk().display()))
            .arg(format!("init={}", init.display()))
            .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
            .env("TMPDIR", self.folder.join(""))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        let mut child = command.spawn().context("User Mode Linux does not start")?;
        let mut lines = BufReader::new(child.stdout.take().context("stdout is piped")?);
        let said = Arc::<Mutex<Vec<String>>>::default();
        let shown = said.clone();
        let heard = std::thread::spawn(move || {
            let mut line = Vec::new();
            // An incomplete last line was cut off.
            while lines.read_until(b'\n', &mut line).is_ok() && line.ends_with(b"\n") {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                shown.lock().expect("nobody panics with it").push(text);
                line.clear();
            }
        });
        Ok(Powered { child, said, heard: Some(heard) })
    }
}

impl Powered {
    /// Returns all output of its console.
    pub fn said(&self) -> String {
        self.said.lock().expect("nobody panics with it").join("\n")
    }

    /// Returns the text after the last mark with this name.
    pub fn marked(&self, name: &str) -> Option<String> {
        let wanted = format!("{MARK}{name}");
        let said = self.said.lock().expect("nobody panics with it");
        said.iter().rev().find_map(|l| Some(l.strip_prefix(&wanted)?.trim().to_owned()))
    }

    /// Waits for a mark and returns the text after it.
    pub fn wait(&self, name: &str, limit: Duration) -> Result<String> {
        wait(&format!("the machine says `{name}`"), limit, || match self.marked(name) {
            Some(rest) => Ok(Some(rest)),
            None => bail!("it said:\n{}", self.said()),
        })
    }

    /// Cuts its power. Returns the output of its console until then.
    pub fn cut(mut self) -> Result<Vec<String>> {
        self.kill()?;
        let heard = self.heard.take().context("it was on")?;
        heard.join().expect("who listens doesn't panic");
        Ok(std::mem::take(&mut *self.said.lock().expect("nobody panics with it")))
    }

    /// Waits until its script has ended.
    pub fn end(self, limit: Duration) -> Result<String> {
        self.wait("off", limit)?;
        Ok(self.said())
    }

    fn kill(&mut self) -> Result<()> {
        let group = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        wait("the machine is off", secs(10), || Ok(self.child.try_wait()?.map(drop)))
    }
}

impl Drop for Powered {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

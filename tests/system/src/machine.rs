//! A machine whose power can be cut: namespaces of processes, network and mounts, with a file
//! system of its own in a file.
//!
//! A cut shuts the file system down without writing anything back (`FS_IOC_SHUTDOWN`, as the crash
//! tests of ext4 and XFS do), and then kills all processes. Data that programs have written and not
//! flushed is in the page cache, and is lost. Killing a process alone never shows that.

use crate::{Folder, secs, tool, wait};
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Prefix of script output that the test evaluates.
const MARK: &str = "=== ";

/// Arguments of `unshare`: the machine sees no process or network of the host, and the
/// host sees no mount of the machine.
const NAMESPACES: [&str; 6] =
    ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// A machine that is not running.
#[derive(Debug)]
pub struct Machine {
    folder: Folder,
    file_system: &'static str,
}

/// A running machine. Dropping this value cuts its power.
#[derive(Debug)]
pub struct Powered {
    child: Child,
    disk: PathBuf,
    mount: PathBuf,
    said: Arc<Mutex<Vec<String>>>,
    heard: Option<JoinHandle<()>>,
}

impl Machine {
    /// Creates a machine with a new disk, which has this file system. Returns `None` if this host
    /// does not allow namespaces or loop devices.
    pub fn new(file_system: &'static str) -> Result<Option<Machine>> {
        let allowed = tool("unshare", NAMESPACES.into_iter().chain(["true"]))?.code == 0;
        if !allowed || !Path::new("/dev/loop-control").exists() {
            return Ok(None);
        }
        let machine = Machine { folder: Folder::new()?, file_system };
        let disk = machine.disk();
        fs::File::create(&disk)?.set_len(4 << 30)?;
        fs::create_dir(machine.mount())?;
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
        let (init, disk, mount) = (self.folder.join("init"), self.disk(), self.mount());
        let text = format!(
            "mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /dev/shm; ip link set lo up\n\
             mount -t {} -o loop {} {} || echo '{MARK}no disk'\n\
             {script}\n\
             echo '{MARK}off'\n",
            self.file_system,
            disk.display(),
            mount.display()
        );
        fs::write(&init, text)?;
        let mut command = Command::new("unshare");
        command
            .args(NAMESPACES)
            .arg("sh")
            .arg(init)
            .env("TMPDIR", self.folder.join(""))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        let mut child = command.spawn().context("unshare does not start")?;
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
        Ok(Powered { child, disk, mount, said, heard: Some(heard) })
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
        // The command makes one call, `FS_IOC_SHUTDOWN`, and tells it not to flush the log.
        let shutdown = format!("--target {} --mount xfs_io -x -c shutdown", self.child.id());
        let shutdown = shutdown.split(' ').map(OsStr::new);
        tool("nsenter", shutdown.chain([self.mount.as_os_str()]))?.ok()?;
        self.off()?;
        let heard = self.heard.take().context("it was on")?;
        heard.join().expect("who listens doesn't panic");
        Ok(std::mem::take(&mut *self.said.lock().expect("nobody panics with it")))
    }

    /// Waits until its script has ended.
    pub fn end(self, limit: Duration) -> Result<String> {
        self.wait("off", limit)?;
        Ok(self.said())
    }

    /// Kills all its processes, and waits until nothing uses its disk any more.
    fn off(&mut self) -> Result<()> {
        let group = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        wait("the machine is off", secs(10), || Ok(self.child.try_wait()?.map(drop)))?;
        // Its mount disappears with its last process.
        wait("its disk is free", secs(20), || {
            let used = tool("losetup", [OsStr::new("--associated"), self.disk.as_os_str()])?;
            Ok(used.ok()?.is_empty().then_some(()))
        })
    }
}

impl Drop for Powered {
    fn drop(&mut self) {
        let _ = self.off();
    }
}

//! The directory of a cluster that `up` runs on this machine.
//!
//! ```text
//! format        the version of this layout: "gabion-up 1"
//! lock          held by a command that starts or stops something
//! cluster.toml  the arguments of `up`, such as the number of SDSs that share a process
//! devices/      NAME.SHARD  the file devices that `up` has created
//! config/       NAME.toml   the configuration for `gabion ROLE run --config`
//! run/          NAME.pid    see `process`
//! logs/         NAME.log    the process's output; a link for each further SDS of a process
//! NAME.log      an MDM's log; NAME.log.1 and so on are those of earlier clusters
//! nbd.sock      where volumes are served
//! ```

use admin::exit::{Exit, coded};
use anyhow::{Context, Result, bail};
use daemon::files;
use daemon::process::Process;
use daemon::written::{KEY, RELEASE, is_newer};
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const FORMAT: &str = "gabion-up 1";
/// The kernel's limit for a unix socket's path.
const SOCKET_PATH_MAX: usize = 107;

/// A cluster's directory; its path is absolute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateDir {
    root: PathBuf,
}

/// The state of the file `format`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    /// This build reads the directory.
    Ours,
    /// There is no such file.
    Missing,
    /// It is empty: a power cut came before it was flushed.
    Emptied,
}

/// The directory's lock, held by one command at a time.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl StateDir {
    /// Opens the directory of an existing cluster.
    pub fn open(path: &Path) -> Result<StateDir> {
        let root = path.canonicalize().map_err(|_| {
            anyhow::anyhow!(
                "there is no cluster in {}: start one with `gabion up`, or name its directory with \
                 --dir, or its MDM with --mdm",
                path.display()
            )
        })?;
        let dir = StateDir { root };
        let place = dir.root.display();
        match dir.read_format()? {
            Format::Ours => {}
            Format::Missing => {
                bail!("{place} is not the directory of a cluster that `gabion up` made");
            }
            Format::Emptied => bail!(
                "a power cut has emptied the file `format` in {place}: `gabion up --dir {place}` \
                 writes it again, and starts the cluster with its data"
            ),
        }
        Ok(dir)
    }

    /// Opens the directory, or creates a new one.
    pub fn create(path: &Path) -> Result<StateDir> {
        let failed = || format!("can't make the directory {}", path.display());
        files::make_folder(path).with_context(failed)?;
        let dir = StateDir { root: path.canonicalize().with_context(failed)? };
        let format = dir.read_format()?;
        if format == Format::Missing && !dir.is_unused()? {
            bail!(
                "{} holds something else, not a Gabion cluster: choose another --dir",
                dir.root.display()
            );
        }
        if format != Format::Ours {
            files::write(&dir.root.join("format"), format!("{FORMAT}\n{KEY} {RELEASE}\n"))
                .with_context(failed)?;
        }
        for part in ["config", "devices", "run", "logs"] {
            files::make_folder(&dir.root.join(part)).with_context(failed)?;
        }
        let socket = dir.nbd_socket();
        if socket.as_os_str().len() > SOCKET_PATH_MAX {
            bail!(
                "{} is longer than the {SOCKET_PATH_MAX} bytes that a unix socket's path may have: \
                 choose a shorter --dir",
                socket.display()
            );
        }
        Ok(dir)
    }

    /// Returns true while the directory has neither `cluster.toml` nor devices.
    pub fn is_blank(&self) -> Result<bool> {
        let mut devices = fs::read_dir(self.root.join("devices"))?;
        Ok(!self.cluster_file().exists() && devices.next().is_none())
    }

    /// Removes what the failed first start of a cluster created. The logs stay, as they say why.
    pub fn make_blank(&self) -> Result<()> {
        let mut all = vec![self.cluster_file()];
        for name in self.configured()? {
            all.extend([self.config_file(&name), self.mdm_log(&name)]);
        }
        for device in fs::read_dir(self.root.join("devices"))? {
            all.push(device?.path());
        }
        for file in &all {
            files::remove(file).with_context(|| format!("can't remove {}", file.display()))?;
        }
        Ok(())
    }

    /// Returns true if it is empty, or has only what a power cut left of the very first file.
    fn is_unused(&self) -> Result<bool> {
        for entry in fs::read_dir(&self.root)? {
            if entry?.file_name() != *format!("format{}", files::DRAFT) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads the file `format`. Fails if another build's format is in it.
    fn read_format(&self) -> Result<Format> {
        let file = self.root.join("format");
        if files::is_emptied(&file) {
            return Ok(Format::Emptied);
        }
        match fs::read_to_string(file) {
            Ok(text) if is_ours(&text) => Ok(Format::Ours),
            Ok(text) => bail!(
                "{} was made by another version of gabion (its format is `{}`, this build reads \
                 `{FORMAT}`): use the gabion that made it, or choose another --dir",
                self.root.display(),
                text.trim()
            ),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Format::Missing),
            Err(e) => Err(e).with_context(|| format!("can't read {}", self.root.display())),
        }
    }

    /// Takes the lock, or fails at once: two commands that change the same cluster are a mistake.
    pub fn lock(&self) -> Result<Lock> {
        let file = files::lock(&self.root.join("lock"))
            .with_context(|| format!("can't open the lock in {}", self.root.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Lock { _file: file }),
            Err(TryLockError::WouldBlock) => Err(coded(
                Exit::InUse,
                format!(
                    "another gabion command is starting or stopping something in {}: wait for it",
                    self.root.display()
                ),
            )),
            Err(TryLockError::Error(e)) => Err(e).context("can't lock the directory"),
        }
    }

    /// Returns the directory's path.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Path of the arguments of `up`.
    pub fn cluster_file(&self) -> PathBuf {
        self.root.join("cluster.toml")
    }

    /// Path of a role's configuration.
    pub fn config_file(&self, name: &str) -> PathBuf {
        self.root.join("config").join(format!("{name}.toml"))
    }

    /// Path of a role's pid file.
    pub fn pid_file(&self, name: &str) -> PathBuf {
        self.root.join("run").join(format!("{name}.pid"))
    }

    /// Path of the output of a role's process.
    pub fn output_file(&self, name: &str) -> PathBuf {
        self.root.join("logs").join(format!("{name}.log"))
    }

    /// Path of a device that `up` creates.
    pub fn device_file(&self, name: &str, shard: u32) -> PathBuf {
        self.root.join("devices").join(format!("{name}.{shard}"))
    }

    /// Path of an MDM's log.
    pub fn mdm_log(&self, name: &str) -> PathBuf {
        self.root.join(format!("{name}.log"))
    }

    /// Path of the socket where volumes are served.
    pub fn nbd_socket(&self) -> PathBuf {
        self.root.join("nbd.sock")
    }

    /// Returns the names with a pid file, whether the process is alive or not.
    pub fn recorded(&self) -> Result<Vec<String>> {
        self.names("run", "pid")
    }

    /// Returns the names with a configuration: all that `up` runs.
    pub fn configured(&self) -> Result<Vec<String>> {
        self.names("config", "toml")
    }

    /// Returns the names that have a file with this extension.
    fn names(&self, part: &str, kind: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.root.join(part))? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == kind)
                && let Some(name) = path.file_stem()
            {
                names.push(name.to_string_lossy().into_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Returns the live process of this name.
    pub fn process(&self, name: &str) -> Option<Process> {
        Process::read(&self.pid_file(name)).filter(Process::is_alive)
    }

    /// Returns all live processes of the cluster.
    pub fn live(&self) -> Result<Vec<(String, Process)>> {
        let named = |name: String| self.process(&name).map(|p| (name, p));
        Ok(self.recorded()?.into_iter().filter_map(named).collect())
    }
}

/// Returns true if this build can read a directory whose file `format` has this text. The first
/// line is the layout. Unknown lines are allowed only where `written_by` names a newer release.
fn is_ours(text: &str) -> bool {
    let mut lines = text.trim().lines();
    let layout = lines.next() == Some(FORMAT);
    let (by, others): (Vec<&str>, Vec<&str>) =
        lines.partition(|line| line.split_whitespace().next() == Some(KEY));
    let newer = || by.iter().any(|l| l.split_whitespace().nth(1).is_some_and(is_newer));
    layout && (others.is_empty() || newer())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temp(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("gabion-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    /// Files of each release so far. They are never changed; a release adds its own.
    #[test]
    fn the_directories_of_every_release_are_ours() {
        assert!(is_ours(include_str!("../tests/golden/0.1.0/format")));
    }

    #[test]
    fn foreign_and_newer_directories_are_not_touched() {
        let path = temp("statedir");
        assert!(StateDir::open(&path).is_err(), "not there");
        let dir = StateDir::create(&path).unwrap();
        assert_eq!(StateDir::open(&path).unwrap(), dir);
        fs::write(path.join("format"), "gabion-up 2\n").unwrap();
        let error = StateDir::create(&path).unwrap_err().to_string();
        assert!(error.contains("another version"), "{error}");
        let format = |text: &str| fs::write(path.join("format"), text).unwrap();
        for ours in ["gabion-up 1\n", "gabion-up 1\nwritten_by 99.0.0\ncolour red\n"] {
            format(ours);
            assert_eq!(StateDir::open(&path).unwrap(), dir, "{ours}");
        }
        for not in ["gabion-up 1\ncolour red\n", "gabion-up 1\nwritten_by 0.0.1\ncolour red\n"] {
            format(not);
            assert!(StateDir::open(&path).is_err(), "{not}");
        }
        fs::write(path.join("format"), "").unwrap();
        assert!(StateDir::open(&path).unwrap_err().to_string().contains("power cut"));
        assert_eq!(StateDir::create(&path).unwrap(), dir, "and `up` writes it anew");
        assert_eq!(StateDir::open(&path).unwrap(), dir);
        fs::remove_file(path.join("format")).unwrap();
        assert!(StateDir::create(&path).unwrap_err().to_string().contains("something else"));
        fs::remove_dir_all(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("format.new"), "gab").unwrap();
        assert_eq!(StateDir::create(&path).unwrap(), dir, "a power cut came with its first file");
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn a_first_start_that_failed_leaves_only_its_logs() {
        let path = temp("blank");
        let dir = StateDir::create(&path).unwrap();
        assert!(dir.is_blank().unwrap());
        let made = [dir.cluster_file(), dir.config_file("mdm"), dir.mdm_log("mdm")];
        let made = made.into_iter().chain([dir.config_file("sds1"), dir.device_file("sds1", 0)]);
        let made: Vec<_> = made.collect();
        for file in made.iter().chain([&dir.output_file("sds1"), &path.join("mine")]) {
            fs::write(file, "").unwrap();
        }
        assert!(!dir.is_blank().unwrap());
        dir.make_blank().unwrap();
        assert!(dir.is_blank().unwrap() && made.iter().all(|file| !file.exists()));
        assert!(dir.output_file("sds1").exists() && path.join("mine").exists());
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn the_lock_is_held_once() {
        let path = temp("lock");
        let dir = StateDir::create(&path).unwrap();
        let lock = dir.lock().unwrap();
        assert_eq!(admin::exit::of(&dir.lock().unwrap_err()), Exit::InUse);
        drop(lock);
        dir.lock().unwrap();
        fs::remove_dir_all(&path).unwrap();
    }
}

//! The start of a cluster: from configurations to processes that serve.

use super::managers;
use crate::cluster;
use crate::mdm_cluster::{self, Member};
use crate::statedir::StateDir;
use crate::target::Target;
use admin::exit::{Exit, coded};
use admin::report::{Report, UpDown};
use anyhow::{Context, Result, bail};
use daemon::config::{self, MdmConfig};
use daemon::spec::VolumeSpec;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that parts of an existing cluster get before `up` goes on without them.
const PATIENCE: Duration = Duration::from_secs(15);
/// The first bytes that an NBD server sends.
const NBD_GREETING: &[u8; 8] = b"NBDMAGIC";

/// A start in progress.
pub(crate) struct Starting<'a> {
    dir: &'a StateDir,
    target: &'a Target,
    /// The cluster existed before, so it may serve without some of its parts.
    again: bool,
    /// Its MDMs whose logs are gone.
    lost: &'a [String],
    pub children: Vec<(String, Child)>,
    /// Servers and MDMs that have ended.
    ended: Vec<String>,
    /// Messages for people about parts that are missing.
    pub missing: Vec<String>,
    interrupted: &'a AtomicBool,
}

impl<'a> Starting<'a> {
    /// Makes a start that has not run anything yet.
    pub(crate) fn new(
        (dir, target): (&'a StateDir, &'a Target),
        again: bool,
        lost: &'a [String],
        interrupted: &'a AtomicBool,
    ) -> Starting<'a> {
        let (children, ended, missing) = (Vec::new(), Vec::new(), Vec::new());
        Starting { dir, target, again, lost, children, ended, missing, interrupted }
    }

    /// Starts the processes of these names and creates the volumes. Returns when everything serves.
    pub(crate) fn start(&mut self, names: &[String], volumes: &[VolumeSpec]) -> Result<Report> {
        let target = self.target;
        let (mdms, others): (Vec<_>, Vec<_>) =
            names.iter().cloned().partition(|n| n.starts_with("mdm"));
        self.start_mdms(&mdms)?;
        for name in &others {
            self.spawn(name)?;
        }
        let dir = self.dir;
        let (again, begun) = (self.again, Instant::now());
        let patient = || !again || begun.elapsed() < PATIENCE;
        let late = self.wait("all SDSs are registered", |ended| {
            let report = target.report()?;
            let late = cluster::unregistered(dir, &report, ended)?;
            Ok((late.is_empty() || !patient()).then_some(late))
        })?;
        let here = |name: &&String| name.starts_with("sds") && !self.ended.contains(*name);
        if late.is_empty() {
            names
                .iter()
                .filter(here)
                .try_for_each(|name| cluster::forget_replaced(&dir.config_file(name)))?;
        }
        let late = late.iter().map(|device| {
            let name = device.split('.').next().unwrap_or_default();
            let log = dir.output_file(name);
            format!("{device} is not there; the others serve. {} says why.", log.display())
        });
        self.missing.extend(late);
        let mut admin = target.connect()?;
        let members = admin.status()?.mdms;
        self.missing.extend(managers::left_out(dir, target, self.lost, &members)?);
        let there = target.report()?.volumes;
        for volume in volumes.iter().filter(|v| !there.iter().any(|t| t.name == v.name)) {
            admin
                .create_volume(&volume.name, volume.size.0)
                .with_context(|| format!("can't make volume {}", volume.name))?;
        }
        let socket = self.dir.nbd_socket();
        self.wait("everything serves", |_| {
            let report = target.report()?;
            let sdc = dir.process("sdc").map(|p| p.pid);
            let clients = report.sdc.iter().any(|s| Some(s.pid) == sdc && s.state == UpDown::Up);
            let whole = report.groups.failed == 0 || !patient();
            let serves = clients && whole && greets(&socket);
            Ok(serves.then_some(report))
        })
    }

    /// Starts the MDMs. Returns when one of them leads, and a new cluster has all of them.
    fn start_mdms(&mut self, mdms: &[String]) -> Result<()> {
        mdms.iter().try_for_each(|name| self.spawn(name))?;
        let (dir, target, again, lost) = (self.dir, self.target, self.again, self.lost);
        self.wait("the MDM answers", |ended| {
            if target.connect().is_ok() {
                return Ok(Some(Ok(())));
            }
            let run = |name: &&String| !ended.contains(*name);
            let (running, ended): (Vec<_>, Vec<_>) = mdms.iter().partition(run);
            let none = || managers::none_can_lead(dir, target, &running, lost, &ended);
            Ok(if again { none()?.map(Err) } else { None })
        })??;
        self.gather(mdms)
    }

    /// Adds all MDMs to a new cluster. The last ones, fewer than half, are tie-breakers.
    fn gather(&mut self, mdms: &[String]) -> Result<()> {
        let target = self.target;
        let member = |(i, name): (usize, &String)| {
            let address = config::read::<MdmConfig>(&self.dir.config_file(name))?.listen;
            Ok(Member { name: name.clone(), address, tie_breaker: i > mdms.len() / 2 })
        };
        let members: Vec<_> = mdms.iter().enumerate().map(member).collect::<Result<_>>()?;
        if !mdm_cluster::take_in(|| target.connect(), &members)? {
            return Ok(());
        }
        self.wait("all MDMs vote", |_| {
            Ok(mdm_cluster::vote(&mut target.connect()?, mdms.len())?.then_some(()))
        })
    }

    /// Ends the processes that were started. They may not have written their pid files yet.
    pub(crate) fn end(&mut self) {
        for (_, child) in &mut self.children {
            // An error means that it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn spawn(&mut self, name: &str) -> Result<()> {
        self.children.push((name.to_owned(), cluster::spawn(self.dir, name)?));
        Ok(())
    }

    /// Notices processes that have ended. Fails if the cluster can't do without one of them.
    fn look_after_children(&mut self) -> Result<()> {
        let mut at = 0;
        while let Some((_, child)) = self.children.get_mut(at) {
            let Some(status) = child.try_wait()? else {
                at += 1;
                continue;
            };
            let (name, _) = self.children.remove(at);
            let words = cluster::last_words(self.dir, &name);
            // The others serve, unless it was the only MDM.
            let others = || self.children.iter().any(|(other, _)| other.starts_with("mdm"));
            if self.again && (name.starts_with("sds") || name.starts_with("mdm") && others()) {
                self.missing.push(format!("{name} ended; the others serve. {words}"));
                self.ended.push(name);
                continue;
            }
            let exit = match status.code() {
                Some(code) if code == Exit::InUse as i32 => Exit::InUse,
                _ => Exit::Failed,
            };
            return Err(coded(exit, format!("{name} ended ({status}). {words}")));
        }
        Ok(())
    }

    /// Waits for a condition, or until a process ends that the cluster needs. An error of the
    /// condition counts as not yet true.
    fn wait<T>(
        &mut self,
        what: &str,
        mut condition: impl FnMut(&[String]) -> Result<Option<T>>,
    ) -> Result<T> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let outcome = condition(&self.ended);
            if let Ok(Some(value)) = outcome {
                return Ok(value);
            }
            self.look_after_children()?;
            if self.interrupted.load(Ordering::Relaxed) {
                bail!("interrupted before {what}");
            }
            if Instant::now() > deadline {
                let why = outcome.err().map_or(String::new(), |e| format!(" ({e:#})"));
                bail!(
                    "gave up: not yet true after {START_TIMEOUT:?} that {what}{why}. The \
                     processes' logs are in {}",
                    self.dir.root().join("logs").display()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Returns true when an NBD server answers at the socket.
fn greets(socket: &Path) -> bool {
    let Ok(mut stream) = UnixStream::connect(socket) else { return false };
    let mut greeting = [0; NBD_GREETING.len()];
    stream.set_read_timeout(Some(Duration::from_secs(1))).is_ok()
        && stream.read_exact(&mut greeting).is_ok()
        && greeting == *NBD_GREETING
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    #[test]
    fn when_a_start_fails_everything_ends_that_was_started() {
        let root = std::env::temp_dir().join(format!("gabion-up-ends-{}", std::process::id()));
        let dir = StateDir::create(&root).unwrap();
        let spawn = |command: &str| {
            let (program, argument) = command.split_once(' ').unwrap();
            Command::new(program).arg(argument).spawn().unwrap()
        };
        let children: Vec<_> = ["sleep 600", "ls /nowhere", "sleep 601"]
            .map(|command| (command.to_owned(), spawn(command)))
            .into();
        let pids: Vec<u32> = children.iter().map(|(_, child)| child.id()).collect();
        let target = Target { dir: root, mdm: Vec::new() };
        let never = AtomicBool::new(false);
        let mut starting = Starting::new((&dir, &target), false, &[], &never);
        starting.children = children;
        assert!(starting.wait("nothing", |_| Ok(None::<()>)).is_err());
        starting.end();
        for pid in pids {
            assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{pid} is still there");
        }
        fs::remove_dir_all(dir.root()).unwrap();
    }
}

//! Roles that are started one by one from configuration files, as on real hosts:
//! `docs/operate/hosts.md`.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::fs;
use std::process::{Child, Command, Stdio};
use system::bytes::Random;
use system::cluster::signal;
use system::nbd::Nbd;
use system::run::binary;
use system::{Folder, MIB, case, free_port, gabion, secs, wait};

/// Processes of a test. They end with it.
struct Hosts {
    folder: Folder,
    mdm: String,
    running: Vec<Child>,
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Hosts {
    /// Runs a role with the example configuration, after changes to some of its lines.
    fn run(
        &mut self,
        role: &str,
        name: &str,
        changes: &[(&str, String)],
        more: &str,
    ) -> Result<()> {
        let mut config = gabion([role, "run", "--example-config"])?.ok()?;
        for (field, line) in changes {
            let old = config.lines().find(|l| l.split(' ').next() == Some(field));
            let old = old.with_context(|| format!("{field} in {config}"))?.to_owned();
            config = config.replace(&old, &format!("{field} = {line}"));
        }
        let file = self.folder.join(&format!("{name}.toml"));
        fs::write(&file, config + more)?;
        let log = fs::File::create(self.folder.join(&format!("{name}.log")))?;
        let mut command = Command::new(binary());
        command.args([role, "run", "--config"]).arg(&file).stdin(Stdio::null()).stderr(log);
        self.running.push(command.spawn()?);
        Ok(())
    }

    fn sds(&mut self, file: &str, name: &str, more: &str) -> Result<()> {
        let listen = ("listen", "\"127.0.0.1:0\"".to_owned());
        let spec = ("spec", "\"ram:1GiB\"".to_owned());
        let (name, mdm) = (("name", format!("{name:?}")), ("mdm", format!("[{:?}]", self.mdm)));
        self.run("sds", file, &[name, mdm, spec, listen], more)
    }

    fn wait_healthy(&self) -> Result<()> {
        wait("the cluster is healthy", secs(30), || {
            let ran = gabion(["status", "--json", "--mdm", &self.mdm])?;
            ensure!(ran.code == 0, "{} {}", ran.stdout, ran.stderr);
            Ok(Some(()))
        })
    }
}

#[test]
fn roles_run_from_their_files_and_a_later_process_takes_over() {
    case(|| {
        let folder = Folder::new()?;
        let mdm = format!("127.0.0.1:{}", free_port()?);
        let mut hosts = Hosts { folder, mdm: mdm.clone(), running: Vec::new() };
        let log = hosts.folder.join("mdm-data/log");
        let changes = [("listen", format!("{mdm:?}")), ("log", format!("{log:?}"))];
        hosts.run("mdm", "mdm", &changes, "")?;
        hosts.sds("s1", "s1", "")?;
        hosts.sds("s2", "s2", "\n[[device]]\nspec = \"ram:64MiB\"\nlisten = \"127.0.0.1:0\"\n")?;
        let socket = hosts.folder.join("nbd.sock");
        let nbd = format!("[\"unix:{}\"]", socket.display());
        hosts.run("sdc", "sdc", &[("mdm", format!("[{mdm:?}]")), ("nbd", nbd)], "")?;
        wait("both servers are there", secs(20), || {
            let list = gabion(["sds", "list", "--json", "--mdm", &mdm])?.ok()?;
            let list: serde_json::Value = serde_json::from_str(&list)?;
            let devices = list.as_array().context("a list")?.iter();
            let devices = devices.filter_map(|s| s["devices"].as_array()).map(Vec::len);
            Ok((devices.sum::<usize>() == 3).then_some(()))
        })?;
        gabion(["volume", "create", "v", "32MiB", "--mdm", &mdm])?.ok()?;
        let content = Random::new(14).bytes(32 * MIB as usize);
        let mut nbd =
            wait("the volume is served", secs(10), || Ok(Nbd::connect(&socket, "v").ok()))?;
        for (i, unit) in content.chunks(MIB as usize).enumerate() {
            nbd.write(i as u64 * MIB, unit)?;
        }
        hosts.wait_healthy()?;
        // The same server again at another address, while the first one is still running.
        hosts.sds("s1-again", "s1", "")?;
        let old = &mut hosts.running[1];
        let status = wait("the earlier process ends", secs(10), || Ok(old.try_wait()?))?;
        ensure!(status.code() == Some(1), "{status}");
        let said = fs::read_to_string(hosts.folder.join("s1.log"))?;
        ensure!(said.contains("a newer process serves in its name"), "{said}");
        hosts.wait_healthy()?;
        for (i, unit) in content.chunks(MIB as usize).enumerate() {
            ensure!(nbd.read(i as u64 * MIB, unit.len())? == unit, "unit {i}");
        }
        // The same client again at another socket: the first one can't know which is right. It
        // keeps nobody waiting, says so once, and does not come back.
        let again = hosts.folder.join("nbd-again.sock");
        let other = format!("[\"unix:{}\"]", again.display());
        hosts.run("sdc", "sdc-again", &[("mdm", format!("[{mdm:?}]")), ("nbd", other)], "")?;
        let said = || -> Result<String> { Ok(fs::read_to_string(hosts.folder.join("sdc.log"))?) };
        wait("the earlier client says what to do", secs(10), || {
            Ok(said()?.contains("this client is over: a newer process has its name").then_some(()))
        })?;
        ensure!(nbd.read(0, 4096).is_err(), "it serves nobody");
        std::thread::sleep(secs(1));
        let lines = said()?.lines().count();
        std::thread::sleep(secs(4));
        ensure!(Nbd::connect(&socket, "v").is_err(), "it takes nobody");
        ensure!(said()?.lines().count() == lines, "{}", said()?);
        let mut nbd =
            wait("the later one serves", secs(10), || Ok(Nbd::connect(&again, "v").ok()))?;
        ensure!(nbd.read(0, 4096)? == content[..4096], "it reads something else");
        // SIGTERM ends each process cleanly.
        for (i, child) in hosts.running.iter_mut().enumerate().filter(|(i, _)| *i != 1) {
            signal(child.id(), Signal::TERM)?;
            let status = wait("it ends", secs(10), || Ok(child.try_wait()?))?;
            ensure!(status.success(), "process {i}: {status}");
        }
        Ok(())
    });
}

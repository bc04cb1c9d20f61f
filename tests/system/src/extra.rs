//! Processes that a test runs beside a cluster: additional clients and servers.

use crate::cluster::signal;
use crate::run::binary;
use crate::{Cluster, free_port, secs, wait};
use anyhow::{Context, Result};
use rustix::process::Signal;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A process beside those that `up` has started. It ends with the test.
#[derive(Debug)]
pub struct Extra {
    child: Child,
}

impl Extra {
    /// Starts the process. `config` is added to the name and the MDM in its configuration file.
    pub fn start(cluster: &Cluster, role: &str, name: &str, config: &str) -> Result<Extra> {
        let mdm = fs::read_to_string(cluster.file("config/sds1.toml"))?;
        let mdm = mdm.lines().find(|l| l.starts_with("mdm = ")).context("its MDM")?.to_owned();
        let file = cluster.folder.join(&format!("{name}.toml"));
        fs::write(&file, format!("name = \"{name}\"\n{mdm}\n{config}"))?;
        let log = fs::File::create(cluster.folder.join(&format!("{name}.log")))?;
        let child = Command::new(binary())
            .args([role, "run", "--config"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        Ok(Extra { child })
    }

    /// Starts a data client with its own socket.
    pub fn sdc(cluster: &Cluster, name: &str) -> Result<(Extra, PathBuf)> {
        Extra::sdc_with(cluster, name, "")
    }

    /// Does the same, with more lines in its configuration file.
    pub fn sdc_with(cluster: &Cluster, name: &str, more: &str) -> Result<(Extra, PathBuf)> {
        let socket = cluster.folder.join(&format!("{name}.sock"));
        let config = format!("nbd = [\"unix:{}\"]\n{more}", socket.display());
        let extra = Extra::start(cluster, "sdc", name, &config)?;
        wait(&format!("{name} is up"), secs(10), || {
            let status = cluster.status()?;
            let mut all = status["sdc"].as_array().context("a list")?.iter();
            Ok(all.any(|s| s["name"] == name && s["state"] == "up").then_some(()))
        })?;
        Ok((extra, socket))
    }

    /// Starts a data server with one device in memory.
    pub fn sds(cluster: &Cluster, name: &str, home: &str, pool: &str) -> Result<Extra> {
        let config = format!(
            "{home}\n[[device]]\nspec = \"ram:256MiB\"\nlisten = \"127.0.0.1:{}\"\npool = \"{pool}\"\n",
            free_port()?
        );
        Extra::start(cluster, "sds", name, &config)
    }

    /// Stops it with SIGSTOP.
    pub fn freeze(&self) -> Result<()> {
        signal(self.child.id(), Signal::STOP)
    }

    /// Lets it continue.
    pub fn thaw(&self) -> Result<()> {
        signal(self.child.id(), Signal::CONT)
    }

    /// Kills it. Returns when it is gone.
    pub fn kill(&mut self) -> Result<()> {
        signal(self.child.id(), Signal::KILL)?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Extra {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

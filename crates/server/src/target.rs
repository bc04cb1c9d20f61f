//! Which cluster a command is about: `--mdm ADDR` names any, `--dir DIR` one that `up` runs here.

use crate::admin::Admin;
use crate::cluster;
use crate::config::{self, MdmConfig};
use crate::exit::{Exit, coded};
use crate::statedir::StateDir;
use anyhow::Result;
use clap::Args;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const DEFAULT_DIR: &str = "gabion-data";

/// Options that every command takes.
#[derive(Args, Clone, Debug)]
pub struct Target {
    /// The directory of a cluster that `gabion up` runs on this machine
    #[arg(long, global = true, env = "GABION_DIR", default_value = DEFAULT_DIR, value_name = "DIR")]
    pub dir: PathBuf,

    /// The address of an MDM: talk to that cluster, wherever it runs
    #[arg(long, global = true, env = "GABION_MDM", value_name = "IP:PORT")]
    pub mdm: Option<SocketAddr>,
}

impl Target {
    /// True when the command line or the environment names a cluster.
    pub fn is_named(&self) -> bool {
        self.mdm.is_some() || self.dir != Path::new(DEFAULT_DIR)
    }

    /// The MDM's address.
    pub fn mdm(&self) -> Result<SocketAddr> {
        match self.mdm {
            Some(address) => Ok(address),
            None => mdm_of(&StateDir::open(&self.dir)?),
        }
    }

    /// The addresses of all MDMs that are known here.
    fn mdms(&self) -> Result<Vec<SocketAddr>> {
        let first = self.mdm()?;
        if self.mdm.is_some() {
            return Ok(vec![first]);
        }
        let dir = StateDir::open(&self.dir)?;
        let file = |i| dir.config_file(&cluster::mdm(i));
        let others = (1..).map(file).take_while(|file| file.exists());
        let listens = others.map(|file| Ok(config::read::<MdmConfig>(&file)?.listen));
        std::iter::once(Ok(first)).chain(listens).collect()
    }

    /// A connection to the MDM that leads.
    pub fn connect(&self) -> Result<Admin> {
        Admin::find(&self.mdms()?)
    }

    /// The directory, for commands that need processes on this machine.
    pub fn local(&self) -> Result<StateDir> {
        if let Some(mdm) = self.mdm {
            anyhow::bail!(
                "this command works on a cluster that `gabion up` runs on this machine: leave out \
                 --mdm {mdm}, and name the directory with --dir if it isn't {DEFAULT_DIR}"
            );
        }
        StateDir::open(&self.dir)
    }

    /// How to name this directory on a command line: ` --dir DIR`, or nothing when it is the default.
    pub fn dir_option(&self) -> String {
        if self.dir == Path::new(DEFAULT_DIR) {
            return String::new();
        }
        format!(" --dir {}", self.dir.display())
    }
}

/// The address of the MDM of a cluster that `up` started.
pub fn mdm_of(dir: &StateDir) -> Result<SocketAddr> {
    let file = dir.config_file("mdm");
    if !file.exists() {
        let text = format!("no cluster was started in {}: `gabion up` does", dir.root().display());
        return Err(coded(Exit::Unreachable, text));
    }
    Ok(config::read::<MdmConfig>(&file)?.listen)
}

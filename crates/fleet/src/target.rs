//! The cluster that a command is about: `--mdm ADDR,ADDR` names any, `--dir DIR` one that `up` runs
//! on this machine.

use crate::cluster;
use crate::statedir::StateDir;
use admin::Admin;
use admin::exit::{self, Exit, coded};
use admin::report::Report;
use anyhow::Result;
use clap::Args;
use daemon::config::{self, MdmConfig};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

const DEFAULT_DIR: &str = "gabion-data";

/// Options that every command takes.
#[derive(Args, Clone, Debug)]
pub struct Target {
    /// The directory of a cluster that `gabion up` runs on this machine
    #[arg(long, global = true, env = "GABION_DIR", default_value = DEFAULT_DIR, value_name = "DIR")]
    pub dir: PathBuf,

    /// Addresses of all or some MDMs, separated by commas: use that cluster, wherever it runs
    #[arg(
        long,
        global = true,
        env = "GABION_MDM",
        value_name = "HOST:PORT",
        value_delimiter = ',',
        value_parser = address
    )]
    pub mdm: Vec<SocketAddr>,
}

impl Target {
    /// Returns true when the command line or the environment names a cluster.
    pub fn is_named(&self) -> bool {
        !self.mdm.is_empty() || self.dir != Path::new(DEFAULT_DIR)
    }

    /// Returns the addresses of all MDMs that are known here.
    pub fn mdms(&self) -> Result<Vec<SocketAddr>> {
        if !self.mdm.is_empty() {
            return Ok(self.mdm.clone());
        }
        let dir = StateDir::open(&self.dir)?;
        let file = |i| dir.config_file(&cluster::mdm(i));
        let others = (1..).map(file).take_while(|file| file.exists());
        let listens = others.map(|file| Ok(config::read::<MdmConfig>(&file)?.listen));
        std::iter::once(mdm_of(&dir)).chain(listens).collect()
    }

    /// Connects to the leader.
    pub fn connect(&self) -> Result<Admin> {
        Admin::find(&self.mdms()?).map_err(|error| match self.absent() {
            Ok(Some(text)) if exit::of(&error) == Exit::Unreachable => {
                coded(Exit::Unreachable, text)
            }
            _ => error,
        })
    }

    /// Asks the MDM for its status and makes a report of it.
    pub fn report(&self) -> Result<Report> {
        let mut admin = self.connect()?;
        Ok(Report::new(&admin.status()?, admin.mdm()))
    }

    /// Explains which processes of a local cluster don't run and what to do, if that is why no MDM
    /// answers. Returns `None` if the cluster is not local, or all its MDMs run.
    fn absent(&self) -> Result<Option<String>> {
        if !self.mdm.is_empty() {
            return Ok(None);
        }
        let dir = StateDir::open(&self.dir)?;
        let (place, option) = (dir.root().display(), self.dir_option());
        let (runs, absent): (Vec<_>, Vec<_>) =
            dir.configured()?.into_iter().partition(|name| dir.process(name).is_some());
        if runs.is_empty() {
            return Ok(Some(format!(
                "no MDM answers, because nothing of the cluster in {place} runs, and no volume is \
                 served: `gabion up{option}` starts it"
            )));
        }
        let mut mdms = absent.iter().filter(|name| name.starts_with("mdm")).peekable();
        if mdms.peek().is_none() {
            return Ok(None);
        }
        let back = match mdms.find(|name| dir.mdm_log(name).exists()) {
            Some(mdm) => format!("bring an MDM back: `gabion mdm start {mdm}{option}`"),
            None => "put their MDMs' logs back, which are gone too, or, if these are lost for \
                     good, see `gabion mdm recover --help` and `gabion mdm restore --help`"
                .to_owned(),
        };
        Ok(Some(format!(
            "no MDM answers, because these processes of the cluster in {place} don't run: {}. \
             Those that do serve volumes meanwhile: {}. To change or see the cluster, {back}",
            absent.join(", "),
            runs.join(", ")
        )))
    }

    /// Opens the directory, for commands that need processes on this machine.
    pub fn local(&self) -> Result<StateDir> {
        if let Some(mdm) = self.mdm.first() {
            anyhow::bail!(
                "this command works on a cluster that `gabion up` runs on this machine: leave out \
                 --mdm {mdm}, and name the directory with --dir if it isn't {DEFAULT_DIR}"
            );
        }
        StateDir::open(&self.dir)
    }

    /// Returns the option that names this directory: ` --dir DIR`, or nothing for the default.
    pub fn dir_option(&self) -> String {
        if self.dir == Path::new(DEFAULT_DIR) {
            return String::new();
        }
        format!(" --dir {}", self.dir.display())
    }
}

/// Parses an address, or resolves a host name to its first address.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let found = text.to_socket_addrs().map(|mut all| all.next());
    match found {
        Ok(Some(address)) => Ok(address),
        Err(why) if text.rsplit_once(':').is_some_and(|(_, p)| p.parse::<u16>().is_ok()) => {
            Err(format!("this host's address isn't known: {why}"))
        }
        _ => Err("write a host and a port, as in 192.168.1.11:7001 or node1:7001".to_owned()),
    }
}

/// Returns the address of the first MDM of a cluster that `up` started.
fn mdm_of(dir: &StateDir) -> Result<SocketAddr> {
    let file = dir.config_file("mdm");
    if !file.exists() {
        let text = format!("no cluster was started in {}: `gabion up` does", dir.root().display());
        return Err(coded(Exit::Unreachable, text));
    }
    Ok(config::read::<MdmConfig>(&file)?.listen)
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn addresses_are_given_as_numbers_or_as_names() {
        assert_eq!(address("10.0.0.1:7001").unwrap().to_string(), "10.0.0.1:7001");
        assert_eq!(address("[::1]:7001").unwrap().to_string(), "[::1]:7001");
        assert_eq!(address("localhost:7001").unwrap().port(), 7001);
        for wrong in ["node1", "7001", "", "node1:", "node1:70010"] {
            assert!(address(wrong).unwrap_err().contains("node1:7001"), "{wrong}");
        }
    }
}

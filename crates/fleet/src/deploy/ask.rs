//! Builds a topology from questions and answers.

use super::topology::{Host, InPool, MdmRole, Topology};
use anyhow::{Context, Result};
use daemon::spec::{DeviceSpec, VolumeSpec};
use std::io::{BufRead, Write};
use std::str::FromStr;

/// Asks for what a small cluster needs: hosts that are servers, the first of which also run MDMs.
/// With `local` it does not ask for addresses.
pub(crate) fn topology(
    input: &mut impl BufRead,
    output: &mut impl Write,
    local: bool,
) -> Result<Topology> {
    let mut asking = Asking { input, output };
    let count: usize = asking.ask("How many hosts?", "3")?;
    let user = if local { "root".into() } else { asking.ask("Who logs in there?", "root")? };
    let mut hosts: Vec<Host> = Vec::new();
    for number in 1..=count {
        let name: String =
            asking.ask(&format!("Name of host {number}?"), &format!("node{number}"))?;
        let address = match local {
            true => "0.0.0.0".parse()?,
            false => asking.ask(&format!("Address of {name}?"), "")?,
        };
        hosts.push(Host::new(&name, address));
    }
    let default = "file:/var/lib/gabion/disk0:10GiB";
    for host in &mut hosts {
        let question =
            format!("Devices of {} (block:PATH or file:PATH:SIZE, spaces between)?", host.name);
        let devices: Devices = asking.ask(&question, default)?;
        host.devices = devices.0;
    }
    let first = hosts.first().context("a cluster needs hosts")?.name.clone();
    let some = if count < 3 { "1" } else { "3" };
    let managers: usize = asking
        .ask("How many of them manage it (1, 3 or 5; the last ones as tie-breakers)?", some)?;
    for (place, host) in hosts.iter_mut().take(managers).enumerate() {
        let manages = place <= managers / 2;
        host.mdm = Some(if manages { MdmRole::Manager } else { MdmRole::TieBreaker });
    }
    let serves: String = asking.ask("Which host serves volumes over NBD?", &first)?;
    let serves = hosts.iter_mut().find(|h| h.name == serves).context("there is no such host")?;
    serves.sdc = Some("127.0.0.1:10809".parse()?);
    let volume: Volume = asking.ask("A volume to begin with (NAME:SIZE, or nothing)?", "")?;
    Ok(Topology { user, volumes: volume.0, hosts, ..Topology::default() })
}

struct Devices(Vec<InPool<DeviceSpec>>);

impl FromStr for Devices {
    type Err = String;
    fn from_str(text: &str) -> Result<Devices, String> {
        let device = |d: &str| d.parse::<DeviceSpec>().map(InPool::from);
        text.split_whitespace().map(device).collect::<Result<_, _>>().map(Devices)
    }
}

struct Volume(Vec<InPool<VolumeSpec>>);

impl FromStr for Volume {
    type Err = String;
    fn from_str(text: &str) -> Result<Volume, String> {
        let one =
            (!text.is_empty()).then(|| text.parse::<VolumeSpec>().map(InPool::from)).transpose()?;
        Ok(Volume(one.into_iter().collect()))
    }
}

struct Asking<'a, R, W> {
    input: &'a mut R,
    output: &'a mut W,
}

impl<R: BufRead, W: Write> Asking<'_, R, W> {
    /// Repeats a question until the answer can be parsed. An empty answer means the default.
    fn ask<T: FromStr<Err: std::fmt::Display>>(
        &mut self,
        question: &str,
        default: &str,
    ) -> Result<T> {
        loop {
            let shown = if default.is_empty() { String::new() } else { format!(" [{default}]") };
            write!(self.output, "{question}{shown} ")?;
            self.output.flush()?;
            let mut line = String::new();
            let read = self.input.read_line(&mut line)?;
            anyhow::ensure!(read > 0, "no answer: give a topology file instead");
            let answer = if line.trim().is_empty() { default } else { line.trim() };
            match answer.parse() {
                Ok(answer) => return Ok(answer),
                Err(why) => writeln!(self.output, "  {why}")?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_a_topology_and_mistakes_are_asked_again() {
        let answers = "2\n\n\n10.0.0\n10.0.0.1\nb\n10.0.0.2\n\nblock:/dev/sdb disk\n\
                       block:/dev/sdb\n\n\nvol:1GiB\n";
        let (mut said, mut answers) = (Vec::new(), answers.as_bytes());
        let topology = topology(&mut answers, &mut said, false).unwrap();
        topology.check(false).unwrap();
        let names: Vec<_> = topology.hosts.iter().map(|h| h.name.as_str()).collect();
        assert_eq!((names, topology.volumes.len()), (vec!["node1", "b"], 1));
        let said = String::from_utf8(said).unwrap();
        assert!(said.contains("is not a device"), "{said}");
        assert!(super::topology(&mut &b""[..], &mut Vec::new(), true).is_err());
    }
}

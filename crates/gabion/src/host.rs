//! `gabion host list`: the hosts of iSCSI and NVMe/TCP, and their paths.

use admin::exit::Exit;
use admin::report::Host;
use anyhow::Result;
use clap::Subcommand;
use fleet::table::table;
use fleet::target::Target;

/// Subcommands of `gabion host`.
#[derive(Subcommand, Debug)]
pub(crate) enum HostCommand {
    /// List the hosts of iSCSI and NVMe/TCP, with their paths and volumes
    #[command(after_help = "\
Each line is a host and an SDC to which it is connected. This SDC serves the volumes under \
OPTIMIZED to the host, and another one serves those under STANDBY. A host that is not connected \
has a line with its volumes that are mapped to it by name.

Examples:
  gabion host list
  gabion host list --json | jq '.[] | select(.connections | length < 2) | .name'")]
    List {
        /// Print a JSON array, with the fields of `hosts` in docs/reference/status.md
        #[arg(long)]
        json: bool,
    },
}

/// Runs `gabion host`.
pub(crate) fn run(target: &Target, command: &HostCommand) -> Result<Exit> {
    let HostCommand::List { json } = command;
    let hosts = target.report()?.hosts;
    match json {
        true => println!("{}", serde_json::to_string_pretty(&hosts)?),
        false => println!("{}", list(&hosts)),
    }
    Ok(Exit::Ok)
}

fn list(hosts: &[Host]) -> String {
    if hosts.is_empty() {
        return "No host of iSCSI or NVMe/TCP is connected.".into();
    }
    let mut t = table(&["host", "protocol", "sdc", "address", "optimized", "standby"]);
    for host in hosts {
        for c in &host.connections {
            let (addresses, optimized) = (c.host_addresses.join("\n"), c.optimized.join("\n"));
            let standby = c.standby.join("\n");
            t.add_row([&host.name, host.protocol, &c.sdc, &addresses, &optimized, &standby]);
        }
        if host.connections.is_empty() {
            let seats = host.seats.iter().map(|seat| &seat.volume);
            let mut volumes: Vec<&String> =
                seats.chain(host.mapped.iter().map(|of| &of.volume)).collect();
            volumes.sort();
            volumes.dedup();
            let volumes: Vec<String> =
                volumes.into_iter().map(|volume| format!("{volume} (no path)")).collect();
            t.add_row([&host.name, host.protocol, "not connected", "", "", &volumes.join("\n")]);
        }
    }
    t.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use admin::report::{HostConnection, HostVolume};

    fn host(name: &str, connections: Vec<HostConnection>, mapped: &[&str]) -> Host {
        let mapped = mapped
            .iter()
            .map(|volume| HostVolume { volume: (*volume).into(), access: "read-write" });
        let (name, protocol, mapped) = (name.into(), "iscsi", mapped.collect());
        Host { name, protocol, connections, seats: Vec::new(), mapped }
    }

    #[test]
    fn each_path_has_a_line_and_a_host_without_one_is_shown_as_well() {
        let path = |sdc: &str, optimized: &[&str], standby: &[&str]| {
            let owned = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect();
            HostConnection {
                sdc: sdc.into(),
                host_addresses: vec!["10.0.0.9".into()],
                portals: Vec::new(),
                optimized: owned(optimized),
                standby: owned(standby),
            }
        };
        let paths = vec![path("sdc1", &["db1"], &[]), path("sdc2", &[], &["db1"])];
        let page = list(&[host("iqn.a", paths, &[]), host("iqn.b", Vec::new(), &["db2"])]);
        let has =
            |words: &[&str]| page.lines().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(has(&["iqn.a", "iscsi", "sdc1", "10.0.0.9", "db1"]), "{page}");
        assert!(has(&["iqn.a", "sdc2"]), "{page}");
        assert!(has(&["iqn.b", "not connected", "db2 (no path)"]), "{page}");
        assert!(list(&[]).starts_with("No host"));
    }
}

//! `gabion status`: the state of the cluster, for people and for programs.

use admin::exit::Exit;
use admin::report::{Device, Mdm, Recovery, Report, Sdc, State, UpDown, Volume};
use anyhow::Result;
use clap::Args;
use daemon::size::Size;
use fleet::lines::{capacity, headline, mapping, moves, resync, space, used};
use fleet::table::{right, table};
use fleet::target::Target;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Options of `gabion status`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  gabion status                          the cluster that `gabion up` runs here
  gabion status --mdm 192.168.1.10:7001  any cluster
  gabion status --json | jq .state       healthy, degraded or failed

Exit codes: 0 healthy, 3 degraded, 4 failed, 5 no MDM answers. \
docs/reference/status.md describes the fields of --json.")]
pub(crate) struct StatusArgs {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Runs `gabion status`.
pub(crate) fn run(target: &Target, args: &StatusArgs) -> Result<Exit> {
    let report = target.report()?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", page(&report));
    }
    Ok(report.exit())
}

fn page(report: &Report) -> String {
    let mut page = format!("{}\n\n", headline(report));
    for mdm in &report.mdm {
        let _ = writeln!(page, "{}", manager(mdm));
    }
    page += &clients(&report.sdc);
    let _ = writeln!(page, "\n{}\n\n{}\n", servers(report), volumes(report));
    let _ = writeln!(page, "{}\n{}", capacity(report), resync(&report.resync));
    moves(&report.moves).into_iter().for_each(|line| page += &format!("{line}\n"));
    for volume in report.volumes.iter().filter(|v| v.state == State::Failed).take(VOLUMES) {
        let name = &volume.name;
        page += &format!(
            "FAILED    {name}: `gabion volume damage {name}` shows which bytes, and why\n"
        );
    }
    repairs(report).into_iter().for_each(|line| page += &format!("{line}\n"));
    space(report).into_iter().for_each(|line| page += &format!("{line}\n"));
    let news = |r: &&Recovery| r.open || r.doubtful_groups > 0 || !r.unknown_volumes.is_empty();
    let doubt = report.recovery.iter().filter(news);
    doubt.for_each(|r| page += &format!("RECOVERY  {}\n", r.text));
    page += &releases(report);
    for t in &report.refused_servers {
        let at = if t.address.is_empty() { String::new() } else { format!(" at {}", t.address) };
        page += &format!("TURNED AWAY {} s ago: {}{at}: {}\n", t.seconds_ago, t.name, t.why);
    }
    page
}

/// Formats the releases of all processes, if they are not the same: one line for each release, with
/// the names of the processes.
fn releases(report: &Report) -> String {
    let mdm = report.mdm.iter().map(|m| (&m.build, &m.name));
    let sds = report.sds.iter().map(|s| (&s.build, &s.name));
    let sdc = report.sdc.iter().filter(|s| s.state == UpDown::Up).map(|s| (&s.build, &s.name));
    let mut releases: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let all = mdm.chain(sds).chain(sdc);
    for (build, name) in all.filter_map(|(build, name)| Some((build.as_ref()?, name))) {
        releases.entry(&build.release).or_default().push(name);
    }
    if releases.len() < 2 {
        return String::new();
    }
    let mut t = table(&["release", "processes", "names"]);
    right(&mut t, &[1]);
    for (release, mut names) in releases {
        let count = names.len();
        let more = count.saturating_sub(NAMES);
        names.truncate(NAMES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let names = format!("{}{more}", names.join(", "));
        t.add_row([release.to_owned(), count.to_string(), names]);
    }
    format!("\n{t}\n")
}

/// Number of processes of one release that are named.
const NAMES: usize = 8;

/// Number of failed volumes that get a line each.
const VOLUMES: usize = 8;
/// Up to this many clients get a line each; beyond it, only those with a problem.
const CLIENTS: usize = 8;

/// Formats how many block clients are connected.
fn connected(nbd: u64, iscsi: u64, nvme: u64) -> String {
    let mut text = format!("{nbd} NBD connections");
    for (count, what) in [(iscsi, "iSCSI sessions"), (nvme, "NVMe hosts")] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    text
}

/// Formats where a client serves iSCSI and NVMe/TCP, if it does.
fn portals(sdc: &Sdc) -> String {
    let all: Vec<&str> =
        sdc.iscsi_portals.iter().chain(&sdc.nvme_portals).map(String::as_str).collect();
    if all.is_empty() { String::new() } else { format!("  {}", all.join(" ")) }
}

/// Formats the clients. More than [`CLIENTS`] of them are summed up in one line, so that they don't
/// push the servers off the screen.
fn clients(sdcs: &[Sdc]) -> String {
    let mut page = String::new();
    let many = sdcs.len() > CLIENTS;
    if many {
        let up = sdcs.iter().filter(|sdc| sdc.state == UpDown::Up).count();
        let sum = |of: fn(&Sdc) -> u32| -> u64 { sdcs.iter().map(|sdc| u64::from(of(sdc))).sum() };
        let connected = connected(
            sum(|sdc| sdc.nbd_connections),
            sum(|sdc| sdc.iscsi_sessions),
            sum(|sdc| sdc.nvme_hosts),
        );
        let down = sdcs.len() - up;
        let _ = writeln!(
            page,
            "SDC  {up} up, {down} down  {connected}  \
             (`gabion sdc list` names them)"
        );
    }
    let has_problem = |sdc: &Sdc| !sdc.refused_by.is_empty() || sdc.hosts_left_out > 0;
    for sdc in sdcs.iter().filter(|sdc| !many || has_problem(sdc)) {
        let _ = writeln!(
            page,
            "SDC  {}  {}  pid {}  {}{}",
            sdc.name,
            sdc.state,
            sdc.pid,
            connected(sdc.nbd_connections.into(), sdc.iscsi_sessions.into(), sdc.nvme_hosts.into()),
            portals(sdc)
        );
        if !sdc.refused_by.is_empty() {
            let devices: Vec<String> = sdc.refused_by.iter().map(|d| format!("dev{d}")).collect();
            let _ = writeln!(
                page,
                "     REFUSED by {}: its I/O to them waits; its log says why",
                devices.join(", ")
            );
        }
        if sdc.hosts_left_out > 0 {
            let _ = writeln!(
                page,
                "     NOT TOLD of {} hosts: its list for the MDM is full, and their seats may move",
                sdc.hosts_left_out
            );
        }
    }
    page
}

/// Formats an MDM as one line.
fn manager(mdm: &Mdm) -> String {
    let name = if mdm.name.is_empty() { "mdm" } else { &mdm.name };
    let state = match (mdm.state, mdm.votes) {
        (UpDown::Down, _) => "DOWN",
        (UpDown::Up, false) => "up, does not vote yet",
        (UpDown::Up, true) => "up",
    };
    let mut line = format!("MDM  {name}  {state}  {}", mdm.address);
    if mdm.leads {
        let _ = write!(line, "  pid {}  leads", mdm.pid);
    }
    if mdm.role == "tie-breaker" {
        line += "  tie-breaker";
    }
    line
}

/// Formats the damage found since the servers started as one line, if there was any.
fn repairs(report: &Report) -> Option<String> {
    let sum = |of: fn(&Device) -> u64| -> u64 {
        report.sds.iter().flat_map(|sds| &sds.devices).map(of).sum()
    };
    let (bytes, unreadable) = (sum(|d| d.repaired_bytes), sum(|d| d.unreadable));
    (bytes + unreadable > 0).then(|| {
        let mut line = format!("Repaired  {} that was damaged, from other copies", Size(bytes));
        if unreadable > 0 {
            let _ = write!(line, "; {unreadable} times NO GOOD COPY was there");
        }
        line
    })
}

/// Formats the table of data servers.
pub(crate) fn servers(report: &Report) -> String {
    let mut t =
        table(&["sds", "state", "pid", "address", "device", "used", "of", "groups", "leads"]);
    right(&mut t, &[2, 5, 6, 7, 8]);
    for sds in &report.sds {
        for device in &sds.devices {
            let state = match (device.state, device.full) {
                (up, _) if device.maintenance.is_some() => format!("{up}, maintenance"),
                (UpDown::Up, _) if !device.connected => "up, not heard".to_owned(),
                (UpDown::Up, _) if !device.told => "up, no report yet".to_owned(),
                (UpDown::Up, _) if device.cut_off => "up, other servers do not reach it".to_owned(),
                (UpDown::Up, _) if device.quarantine_seconds > 0.0 => {
                    format!("up, held out for {:.0} s", device.quarantine_seconds.ceil())
                }
                (UpDown::Up, _) if device.slow_ms > 0 => format!("up, slow: {} ms", device.slow_ms),
                (UpDown::Up, _) if device.leaving => "up, leaves".to_owned(),
                (UpDown::Up, _) if device.waiting => {
                    format!("up, waits for `gabion device admit {}`", device.id)
                }
                (UpDown::Up, true) => "up, full".to_owned(),
                (UpDown::Down, _) if !device.dead => "down (silent)".to_owned(),
                (state, _) => state.to_string(),
            };
            t.add_row([
                sds.name.clone(),
                state,
                sds.pid.to_string(),
                device.address.clone(),
                format!("dev{} {}", device.id, device.kind),
                used(device),
                Size(device.capacity_bytes).to_string(),
                device.groups.to_string(),
                device.groups_led.to_string(),
            ]);
        }
    }
    t.to_string()
}

/// Formats the mapping of a volume. The names of hosts are long, so they are counted.
fn mapped_to(v: &Volume) -> String {
    let sdcs = mapping(&v.mapped);
    match &v.mapped_hosts[..] {
        [all] if all.all => sdcs,
        [_] => format!("{sdcs}; 1 host"),
        hosts => format!("{sdcs}; {} hosts", hosts.len()),
    }
}

/// Returns where clients reach a volume: every URI of NBD and iSCSI, and every portal of NVMe.
fn reached(v: &Volume) -> String {
    let all = v.nbd_uris.iter().chain(&v.iscsi_uris).chain(&v.nvme_portals);
    let all: Vec<&str> = all.map(String::as_str).collect();
    if all.is_empty() { "(no SDC serves it)".into() } else { all.join("\n") }
}

/// Formats the table of volumes. A volume has a line for each gateway and protocol.
pub(crate) fn volumes(report: &Report) -> String {
    if report.volumes.is_empty() {
        return "No volumes: `gabion volume create NAME SIZE` makes one.".into();
    }
    let mut t = table(&["volume", "state", "size", "mapped to", "reached at"]);
    right(&mut t, &[2]);
    for v in &report.volumes {
        let size = format!("{}{}", Size(v.size_bytes), if v.thick { " thick" } else { "" });
        t.add_row([&v.name, &v.state.to_string(), &size, &mapped_to(v), &reached(v)]);
    }
    t.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(n: u32, refused: bool) -> Sdc {
        Sdc {
            name: format!("c{n}"),
            id: n,
            state: if n.is_multiple_of(2) { UpDown::Up } else { UpDown::Down },
            pid: n,
            process_name: format!("c{n}"),
            nbd_uris: Vec::new(),
            iscsi_portals: Vec::new(),
            nvme_portals: Vec::new(),
            gateway: None,
            nbd_connections: 1,
            iscsi_sessions: n % 2,
            nvme_hosts: 2 * (n % 2),
            counts_left_out: 0,
            hosts_left_out: 0,
            build: None,
            refused_by: if refused { vec![3] } else { Vec::new() },
        }
    }

    #[test]
    fn many_clients_are_counted_and_those_that_are_refused_are_named() {
        let few: Vec<Sdc> = (0..8).map(|n| client(n, false)).collect();
        assert_eq!(clients(&few).lines().count(), 8);
        let many: Vec<Sdc> = (0..100).map(|n| client(n, n == 7)).collect();
        let page = clients(&many);
        let lines: Vec<&str> = page.lines().collect();
        assert!(
            lines[0].starts_with(
                "SDC  50 up, 50 down  100 NBD connections, 50 iSCSI sessions, 100 NVMe"
            ),
            "{page}"
        );
        assert!(lines[1].starts_with("SDC  c7  down") && lines[2].contains("REFUSED by dev3"));
        assert_eq!(lines.len(), 3, "{page}");
    }

    #[test]
    fn a_client_whose_list_of_hosts_is_cut_says_so() {
        let mut many: Vec<Sdc> = (0..100).map(|n| client(n, false)).collect();
        many[6].hosts_left_out = 17;
        let page = clients(&many);
        let lines: Vec<&str> = page.lines().collect();
        assert!(lines[1].starts_with("SDC  c6  up") && lines[2].contains("of 17 hosts"), "{page}");
        assert_eq!(lines.len(), 3, "{page}");
    }
}

//! The state of a cluster in single lines for people, from its report.

use admin::report::{Device, Mapped, MappedHost, Moves, Report, Resync, UpDown};
use daemon::size::Size;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Formats the cluster's state, servers and groups as one line.
pub fn headline(report: &Report) -> String {
    let groups = report.groups;
    let cluster = match report.name.as_str() {
        "" => report.cluster.clone(),
        name => format!("{name} ({})", report.cluster),
    };
    let mut line = format!(
        "Cluster {cluster}: {}, {} of {} SDSs up, {} groups",
        report.state,
        report.sds_up(),
        report.sds.len(),
        groups.total
    );
    let lost = report.mdm.iter().filter(|m| m.state == UpDown::Down).count();
    if lost > 0 {
        let _ = write!(line, ", {lost} of {} MDMs DOWN", report.mdm.len());
    }
    let unserved = report.volumes.iter().filter(|v| v.unserved).count();
    if unserved > 0 {
        let _ = write!(line, ", {unserved} volumes without a client (SDC) that is up");
    }
    if groups.degraded > 0 {
        let _ = write!(line, ", {} degraded", groups.degraded);
    }
    if groups.failed > 0 {
        let recovers = report.recovery.as_ref().is_some_and(|r| r.open);
        let what = if recovers { "not known yet" } else { "FAILED" };
        let _ = write!(line, ", {} {what}", groups.failed);
    }
    line
}

/// Formats the groups that move to other devices as one line, if there are any.
pub fn moves(moves: &Moves) -> Option<String> {
    if moves.held_back {
        return Some(
            "Moves     ALARM: too many servers are away for a single failure; \
             nothing is rebuilt until they are back"
                .into(),
        );
    }
    (moves.groups + moves.waiting_groups > 0).then(|| {
        let mut line = format!(
            "Moves     {} groups, {} more wait, {} to copy",
            moves.groups,
            moves.waiting_groups,
            Size(moves.remaining_bytes)
        );
        if let Some(seconds) = moves.eta_seconds {
            let _ = write!(line, ", about {seconds} s");
        }
        line
    })
}

/// Explains what to do when space has run out.
pub fn space(report: &Report) -> Option<String> {
    let full = report.full.as_ref()?;
    let devices: Vec<String> = full.devices.iter().map(|id| format!("dev{id}")).collect();
    let mut line = format!(
        "FULL      {} writes wait for space on {}: delete volumes, discard (fstrim), \
         `gabion device add` or `gabion device grow`",
        full.held,
        if devices.is_empty() { "the devices".to_owned() } else { devices.join(", ") }
    );
    let devices = report.sds.iter().flat_map(|sds| &sds.devices);
    let those = devices.filter(|d| full.only_spare.contains(&d.id));
    let pools: BTreeSet<&str> = those.map(|d| d.storage_pool.as_str()).collect();
    for pool in pools {
        let spare = report.storage_pools.iter().find(|p| p.name == pool);
        let percent = spare.map_or(0, |p| p.spare_percent);
        let _ = write!(
            line,
            "\n          {percent} % are kept for lost copies; to use that: \
             `gabion pool set {pool} --spare PERCENT`"
        );
    }
    Some(line)
}

/// Formats the clients that a volume is mapped to.
pub fn mapping(mapped: &[Mapped]) -> String {
    if mapped.is_empty() {
        return "nobody".into();
    }
    let one = |m: &Mapped| with_access(&m.sdc, m.access);
    mapped.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Formats the hosts that a volume is mapped to; `None` if all hosts may read and write.
pub fn mapped_hosts(hosts: &[MappedHost]) -> Option<String> {
    match hosts {
        [] => Some("no host".into()),
        [all] if all.all && all.access == "read-write" => None,
        [all] if all.all => Some(with_access("all hosts", all.access)),
        hosts => {
            let one = |host: &MappedHost| with_access(&host.host, host.access);
            Some(hosts.iter().map(one).collect::<Vec<_>>().join(", "))
        }
    }
}

fn with_access(name: &str, access: &str) -> String {
    match access {
        "read-only" => format!("{name} (read-only)"),
        _ => name.to_owned(),
    }
}

/// Formats the allocated bytes of a device; `?` until it has reported.
pub fn used(device: &Device) -> String {
    if device.told { Size(device.used_bytes).to_string() } else { "?".into() }
}

/// Formats the bytes by state as one line.
pub fn capacity(report: &Report) -> String {
    let c = report.capacity;
    let devices = report.sds.iter().flat_map(|s| &s.devices);
    let unreported = devices.filter(|d| d.state == UpDown::Up && !d.told).count();
    if unreported > 0 {
        let total = Size(c.total_bytes);
        return format!(
            "Capacity  {total} raw; {unreported} devices have not reported what they hold"
        );
    }
    format!(
        "Capacity  {} raw: {} protected, {} degraded, {} failed",
        Size(c.total_bytes),
        Size(c.protected_bytes),
        Size(c.degraded_bytes),
        Size(c.failed_bytes)
    )
}

/// Formats what is still to be copied as one line.
pub fn resync(resync: &Resync) -> String {
    format!(
        "Resync    {} remaining, {} per second, {} moved so far",
        Size(resync.remaining_bytes),
        Size(resync.rate_bytes_per_second),
        Size(resync.moved_bytes)
    )
}

//! Checks across hosts: each host may be fine by itself.

use super::check::{Findings, Held};
use super::topology::Topology;
use base::ClusterId;

/// Largest difference between clocks, in seconds.
const CLOCKS_APART: i64 = 60;

/// Adds problems to the findings of each host. Hosts that could not be asked are left out.
pub(crate) fn compare(topology: &Topology, findings: &mut [Findings]) {
    let names: Vec<&str> = topology.hosts.iter().map(|h| h.name.as_str()).collect();
    let answered: Vec<usize> =
        (0..findings.len()).filter(|i| !findings[*i].machine.is_empty()).collect();
    let mut wrong = machines(&names, findings, &answered);
    wrong.extend(clocks(&names, findings, &answered));
    wrong.extend(logs(topology, findings, &answered));
    wrong.extend(devices(&names, findings, &answered));
    wrong.into_iter().for_each(|(host, why)| findings[host].wrong.push(why));
}

/// Indexes of hosts, and what is wrong with them.
type Wrong = Vec<(usize, String)>;

fn machines(names: &[&str], findings: &[Findings], all: &[usize]) -> Wrong {
    let first =
        |host: &usize| all.iter().find(|h| findings[**h].machine == findings[*host].machine);
    let again = all.iter().filter_map(|host| Some((*host, *first(host)?))).filter(|(a, b)| a != b);
    let why = |first: usize| {
        format!("is the same machine as {}: two copies on it would be lost together", names[first])
    };
    again.map(|(host, first)| (host, why(first))).collect()
}

/// Checks the clocks. No decision of Gabion depends on the time of day, but operators compare logs
/// after an incident.
fn clocks(names: &[&str], findings: &[Findings], all: &[usize]) -> Wrong {
    let mut order = all.to_vec();
    order.sort_by_key(|host| findings[*host].ahead);
    let Some(middle) = order.get(order.len().saturating_sub(1) / 2) else { return Wrong::new() };
    let apart = |host: &usize| findings[*host].ahead - findings[*middle].ahead;
    let off = all.iter().filter(|host| apart(host).abs() > CLOCKS_APART);
    let why = |host: usize| {
        let apart = apart(&host);
        let way = if apart > 0 { "ahead of" } else { "behind" };
        format!(
            "its clock is {} s {way} {}'s: their logs could not be put in order. Start chrony or \
             another NTP client on both",
            apart.abs(),
            names[*middle]
        )
    };
    off.map(|host| (*host, why(*host))).collect()
}

/// Checks that the MDMs either all begin a cluster, or all go on with one.
fn logs(topology: &Topology, findings: &[Findings], all: &[usize]) -> Wrong {
    let managers = || all.iter().filter(|host| topology.hosts[**host].mdm.is_some());
    let Some(without) = managers().find(|host| !findings[**host].has_log) else {
        return Wrong::new();
    };
    let with = managers().filter(|host| findings[**host].has_log);
    let why = |host: usize| {
        let host = &topology.hosts[host];
        format!(
            "has an MDM's log ({}), and {} has none: if that cluster is to go on, start its MDMs \
             by hand and add the new ones with `gabion mdm add`; if a new one is to begin, remove \
             the log",
            host.path("var/lib/gabion/mdm.log").display(),
            topology.hosts[*without].name
        )
    };
    with.map(|host| (*host, why(*host))).collect()
}

/// Checks that devices with data belong to the cluster that goes on, and that none is a copy.
fn devices(names: &[&str], findings: &[Findings], all: &[usize]) -> Wrong {
    let each = || all.iter().flat_map(|host| findings[*host].held.iter().map(|held| (*host, held)));
    let goes_on = all.iter().any(|host| findings[*host].has_log);
    let count = |of: ClusterId| each().filter(|(_, held)| held.identity.cluster == of).count();
    let ours = each().map(|(_, held)| held.identity.cluster).max_by_key(|id| (count(*id), id.0));
    let why = |place: usize, held: &Held| {
        let (path, id) = (&held.path, held.identity);
        let twin = each().take(place).find(|(_, other)| other.identity == id);
        if let Some((other, twin)) = twin {
            return Some(format!(
                "{path} is the same device as {} of {}: a copy of it. Only one of them may be used",
                twin.path, names[other]
            ));
        }
        let stranger = !goes_on || Some(id.cluster) != ours;
        stranger.then(|| {
            let whose = if goes_on {
                "another cluster"
            } else {
                "a cluster whose MDM is on none of these hosts"
            };
            format!(
                "{path} holds data of {whose} ({:016x}): use it there; to give that data up, \
                 remove the file, or clear the disk with `blkdiscard`",
                id.cluster.0,
            )
        })
    };
    let places = each().enumerate();
    places.filter_map(|(place, (host, held))| Some((host, why(place, held)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::topology::EXAMPLE;
    use super::*;
    use store::durable::Identity;

    fn held(cluster: u64, device: u32) -> Held {
        let (cluster, device) = (ClusterId(cluster), base::DeviceId(device));
        Held {
            path: format!("/d{}", device.0),
            identity: Identity { cluster, device, uuid: [1, 2] },
        }
    }

    /// Returns the problems with the three hosts of the example after a change.
    fn wrong(change: impl Fn(&mut [Findings])) -> Vec<(usize, String)> {
        let topology: Topology = toml::from_str(EXAMPLE).unwrap();
        let host = |n: u32| Findings { machine: n.to_string(), ..Findings::default() };
        let mut findings: Vec<Findings> = (0..3).map(host).collect();
        change(&mut findings);
        compare(&topology, &mut findings);
        let each = findings.into_iter().enumerate();
        each.flat_map(|(n, f)| f.wrong.into_iter().map(move |why| (n, why))).collect()
    }

    fn one(change: impl Fn(&mut [Findings])) -> (usize, String) {
        let all = wrong(change);
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].clone()
    }

    #[test]
    fn compatible_hosts_have_no_findings() {
        assert_eq!(wrong(|_| {}), []);
        assert_eq!(wrong(|f| f[0].ahead = 60), []);
        assert_eq!(
            wrong(|f| f.iter_mut().for_each(|f| f.ahead = 9999)),
            [],
            "ours is off, not theirs"
        );
        let again = |f: &mut [Findings]| {
            f.iter_mut().for_each(|f| f.has_log = true);
            (f[0].held, f[1].held) = (vec![held(5, 1), held(5, 2)], vec![held(5, 3)]);
        };
        assert_eq!(wrong(again), []);
        assert_eq!(
            wrong(|f| f[1] = Findings::default()),
            [],
            "who is silent has a fault of its own"
        );
    }

    #[test]
    fn incompatible_hosts_are_reported() {
        let (host, why) = one(|f| f[2].machine = "0".into());
        assert!(host == 2 && why.contains("same machine as node1"), "{why}");
        let (host, why) = one(|f| f[1].ahead = -90);
        assert!(host == 1 && why.contains("90 s behind node1's"), "{why}");
        let (host, why) = one(|f| f[1].has_log = true);
        assert!(host == 1 && why.contains("node1 has none"), "{why}");
        let (host, why) = one(|f| f[2].held = vec![held(5, 1)]);
        assert!(host == 2 && why.contains("none of these hosts"), "{why}");
        let logs = |f: &mut [Findings]| f.iter_mut().for_each(|f| f.has_log = true);
        let (host, why) = one(|f| {
            logs(f);
            (f[0].held, f[1].held) = (vec![held(5, 1), held(5, 2)], vec![held(6, 3)]);
        });
        assert!(host == 1 && why.contains("another cluster (0000000000000006)"), "{why}");
        let (host, why) = one(|f| {
            logs(f);
            (f[0].held, f[2].held) = (vec![held(5, 1)], vec![held(5, 1)]);
        });
        assert!(host == 2 && why.contains("same device as /d1 of node1"), "{why}");
    }
}

//! Plans with hosts that have two paths to a volume, by iSCSI or NVMe, and the faults of these
//! paths.

use super::{Action, Plan, Timed};
use anyhow::{Result, bail};
use base::Prng;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The protocol of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostKind {
    /// iSCSI.
    Iscsi,
    /// NVMe/TCP.
    Nvme,
}

/// A host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostPlan {
    /// Its protocol.
    pub kind: HostKind,
    /// The client at the end of each path.
    pub gateways: [u8; 2],
    /// Index of the volume in the plan.
    pub volume: u8,
    /// If it has two gateways: it repeats the commands of a lost path at once through the other
    /// gateway. Otherwise it excludes the former one first, with reservations.
    pub moves: bool,
}

impl HostPlan {
    /// Returns true if its paths lead to two clients.
    pub fn has_two_gateways(&self) -> bool {
        self.gateways[0] != self.gateways[1]
    }

    /// Returns true if it repeats the commands of a lost path at once, and does not wait until its
    /// gateway knows of the loss.
    pub fn repeats_at_once(&self) -> bool {
        self.kind == HostKind::Nvme || self.moves
    }

    /// Returns true if it excludes the former gateway before it uses the other one.
    pub fn fences(&self) -> bool {
        self.has_two_gateways() && !self.moves
    }
}

impl Plan {
    /// Returns the addresses at which a client listens for hosts. Without hosts there are none, so
    /// that the client is no gateway.
    pub fn uris(&self, client: u8) -> Vec<String> {
        let hosts = !self.hosts.is_empty();
        hosts.then(|| format!("iscsi://10.9.0.{client}:3260")).into_iter().collect()
    }
}

/// An event of a host's path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathFault {
    /// The host closes the connection.
    Close,
    /// The host gives the session up and logs in again, while the older connection stays.
    Again,
    /// The host does not read for this many ms.
    Deaf(u32),
    /// The host aborts its oldest command.
    Abort,
    /// The host leaves this gateway for the one of its other path.
    Leave,
}

impl fmt::Display for HostPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostPlan { kind, gateways: [first, second], volume, moves } = self;
        let kind = if *kind == HostKind::Nvme { " nvme" } else { "" };
        let moves = if *moves { " moves" } else { "" };
        write!(f, "{first} {second} {volume}{kind}{moves}")
    }
}

impl FromStr for HostPlan {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<HostPlan> {
        let words: Vec<&str> = s.split_whitespace().collect();
        let [first, second, volume, ref rest @ ..] = words[..] else {
            bail!("three numbers are needed")
        };
        let (kind, moves) = match rest {
            [] => (HostKind::Iscsi, false),
            ["moves"] => (HostKind::Iscsi, true),
            ["nvme"] => (HostKind::Nvme, false),
            ["nvme", "moves"] => (HostKind::Nvme, true),
            _ => bail!("after the numbers come `nvme` and `moves`, or one of them"),
        };
        let gateways = [first.parse()?, second.parse()?];
        let plan = HostPlan { kind, gateways, volume: volume.parse()?, moves };
        if plan.fences() && kind == HostKind::Nvme {
            bail!("an NVMe host with two gateways moves between them");
        }
        Ok(plan)
    }
}

impl FromStr for PathFault {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<PathFault> {
        Ok(match s.split_once(' ').unwrap_or((s, "")) {
            ("close", "") => PathFault::Close,
            ("again", "") => PathFault::Again,
            ("deaf", ms) => PathFault::Deaf(ms.parse()?),
            ("abort", "") => PathFault::Abort,
            ("leave", "") => PathFault::Leave,
            _ => bail!("a fault of a path is close, again, deaf MS, abort or leave"),
        })
    }
}

impl fmt::Display for PathFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathFault::Close => f.write_str("close"),
            PathFault::Again => f.write_str("again"),
            PathFault::Deaf(ms) => write!(f, "deaf {ms}"),
            PathFault::Abort => f.write_str("abort"),
            PathFault::Leave => f.write_str("leave"),
        }
    }
}

/// Lets hosts use NVMe in half of the plans that have hosts.
fn draw_kinds(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("protocols of hosts");
    if plan.hosts.is_empty() || r.chance(0.5) {
        return;
    }
    for host in &mut plan.hosts {
        if r.chance(0.85) {
            host.kind = HostKind::Nvme;
        }
    }
}

/// Lets most of the hosts with two gateways move between them.
fn draw_moves(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("gateways of hosts");
    for host in &mut plan.hosts {
        let moves = r.chance(0.6) || host.kind == HostKind::Nvme;
        host.moves = moves && host.has_two_gateways();
    }
}

/// Adds hosts to some plans. In half of these a host has two gateways.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("hosts");
    if plan.is_one_story() || plan.copies_devices() || plan.has_doubles() || !r.chance(0.1) {
        return;
    }
    plan.limits.target_patience = Duration::from_millis(*r.pick(&[300, 1000, 20_000]));
    plan.depth = plan.depth.max(3);
    for _ in 0..r.range(1, 3) {
        let first = r.below(plan.clients.into()) as u8;
        let second = if r.chance(0.6) { r.below(plan.clients.into()) as u8 } else { first };
        let volume = r.below(plan.volumes.len() as u64) as u8;
        let (kind, gateways) = (HostKind::Iscsi, [first, second]);
        plan.hosts.push(HostPlan { kind, gateways, volume, moves: false });
    }
    draw_kinds(plan, root);
    draw_moves(plan, root);
    let every = *r.pick(&[15u64, 60, 250, 1500]);
    let mut at = Duration::ZERO;
    loop {
        at += Duration::from_millis(r.below(2 * every) + 1);
        if at >= plan.length {
            return;
        }
        let host = r.below(plan.hosts.len() as u64) as u8;
        let path = r.below(2) as u8;
        let fault = match r.below(10) {
            0..=2 => PathFault::Close,
            3..=4 => PathFault::Again,
            5 => PathFault::Deaf(r.range(1, 500) as u32),
            6..=7 => PathFault::Abort,
            _ if plan.hosts[usize::from(host)].has_two_gateways() => PathFault::Leave,
            _ => PathFault::Close,
        };
        plan.steps.push(Timed { at, action: Action::Path(host, path, fault) });
    }
}

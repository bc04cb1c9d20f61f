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

impl HostKind {
    /// Returns true if the paths of a host may lead to two clients.
    fn may_have_two_gateways(self) -> bool {
        self == HostKind::Iscsi
    }

    /// Returns true if a host repeats the commands of a lost path at once, and does not wait until
    /// its gateway knows of the loss.
    pub fn repeats_at_once(self) -> bool {
        self == HostKind::Nvme
    }
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
}

impl HostPlan {
    /// Returns true if its paths lead to two clients.
    pub fn has_two_gateways(&self) -> bool {
        self.gateways[0] != self.gateways[1]
    }

    /// Returns true if it excludes the former gateway before it uses the other one.
    pub fn fences(&self) -> bool {
        self.has_two_gateways() && self.kind == HostKind::Iscsi
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
        let HostPlan { kind, gateways: [first, second], volume } = self;
        let word = if *kind == HostKind::Nvme { " nvme" } else { "" };
        write!(f, "{first} {second} {volume}{word}")
    }
}

impl FromStr for HostPlan {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<HostPlan> {
        let words: Vec<&str> = s.split_whitespace().collect();
        let (kind, [first, second, volume]) = match words[..] {
            [a, b, c] => (HostKind::Iscsi, [a, b, c]),
            [a, b, c, "nvme"] => (HostKind::Nvme, [a, b, c]),
            _ => bail!("three numbers are needed, and `nvme` for a host that uses NVMe"),
        };
        let gateways = [first.parse()?, second.parse()?];
        let plan = HostPlan { kind, gateways, volume: volume.parse()? };
        if plan.has_two_gateways() && !kind.may_have_two_gateways() {
            bail!("the paths of an NVMe host lead to one client");
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
        if !host.kind.may_have_two_gateways() {
            host.gateways[1] = host.gateways[0];
        }
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
        plan.hosts.push(HostPlan { kind: HostKind::Iscsi, gateways: [first, second], volume });
    }
    draw_kinds(plan, root);
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

//! Orders about hosts in a plan: volumes are mapped to hosts by name under load, and hosts are
//! moved to their other gateways.

use super::{Action, Plan, Timed, Who};
use crate::admin::ALL;
use base::Prng;
use std::time::Duration;

impl Plan {
    /// Lets a process hear of what follows late.
    fn tell_late(&mut self, at: Duration, who: Who, r: &mut Prng) {
        let (at, ms) = (at.saturating_sub(Duration::from_micros(200)), r.range(10, 600) as u32);
        for mdm in (0..self.mdms).map(Who::Mdm) {
            self.steps.push(Timed { at, action: Action::Clog(mdm, who, ms) });
        }
    }

    /// Lets one of the gateways of a host, or a server, hear late of an order about the host.
    fn tell_some_late(&mut self, at: Duration, host: u8, r: &mut Prng) {
        if r.chance(0.5) {
            let gateway = *r.pick(&self.hosts[usize::from(host)].gateways);
            self.tell_late(at, Who::Sdc(gateway), r);
        }
        if r.chance(0.2) {
            let i = r.below(self.sds.into()) as u8;
            self.tell_late(at, Who::Sds(i), r);
        }
    }
}

/// Takes the volume of a host from it, and gives it back soon or late.
fn unmap(plan: &mut Plan, r: &mut Prng) {
    let host = r.below(plan.hosts.len() as u64) as u8;
    let (v, all) = (plan.hosts[usize::from(host)].volume, (1 << plan.hosts.len()) - 1);
    let mut at = plan.moment(r);
    let push = |plan: &mut Plan, at, action| plan.steps.push(Timed { at, action });
    plan.tell_some_late(at, host, r);
    if r.chance(0.4) {
        // Only a volume that is mapped to hosts by name can be unmapped from one of them.
        push(plan, at, Action::Hosts(v, all));
        push(plan, at, Action::UnmapHost(host));
    } else {
        let others = all & !(1 << host);
        let some = if r.chance(0.5) { others } else { others & r.below(8) as u8 };
        push(plan, at, Action::Hosts(v, some));
    }
    at += Duration::from_micros(match r.below(3) {
        0 => r.range(1, 5_000),
        1 => r.range(500, 150_000),
        _ => r.range(100_000, 2_000_000),
    });
    push(plan, at, Action::Hosts(v, if r.chance(0.5) { ALL } else { all }));
}

/// Moves a host to its gateways in turn.
fn change_gateways(plan: &mut Plan, r: &mut Prng) {
    let two = |i: &u8| plan.hosts[usize::from(*i)].has_two_gateways();
    let hosts: Vec<u8> = (0..plan.hosts.len() as u8).filter(two).collect();
    if hosts.is_empty() {
        return;
    }
    let (host, mut path) = (*r.pick(&hosts), r.below(2) as u8);
    let mut at = plan.moment(r);
    for _ in 0..r.range(1, 4) {
        plan.tell_some_late(at, host, r);
        plan.steps.push(Timed { at, action: Action::MovePath(host, path) });
        at += Duration::from_micros(r.range(500, 600_000));
        path = 1 - path;
    }
}

/// Adds such orders to most plans with hosts, and permissions of hosts to some recoveries.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    in_recoveries(plan, root);
    let mut r = root.fork("permissions of hosts");
    if plan.hosts.is_empty() || r.chance(0.3) {
        return;
    }
    if r.chance(0.75) {
        (0..r.range(1, 5)).for_each(|_| unmap(plan, &mut r));
    }
    if r.chance(0.75) {
        (0..r.range(1, 4)).for_each(|_| change_gateways(plan, &mut r));
    }
}

/// Maps volumes to hosts by name, mostly before the logs of the MDMs are lost. These plans have no
/// hosts: what is judged is which permissions the recovery finds.
fn in_recoveries(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("permissions in recoveries");
    let lost = |s: &Timed| matches!(s.action, Action::Lose(_)).then_some(s.at);
    let Some(lost) = plan.steps.iter().find_map(lost).filter(|_| r.chance(0.4)) else { return };
    for _ in 0..r.range(1, 5) {
        let v = r.below(plan.volumes.len() as u64) as u8;
        let until = if r.chance(0.8) { lost } else { plan.length };
        let at = Duration::from_micros(r.below(until.as_micros() as u64 + 1));
        let hosts = if r.chance(0.2) { ALL } else { r.below(8) as u8 };
        plan.steps.push(Timed { at, action: Action::Hosts(v, hosts) });
    }
}

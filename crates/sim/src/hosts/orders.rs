//! Orders of an administrator about hosts, and what judges expect after them. A volume is mapped to
//! hosts by name, and hosts are moved to their other gateway.
//!
//! - From the answer to an order that takes a volume from a host, nothing that the host has sent
//!   before takes effect (I9), and nothing that it sends later is done until an order gives the
//!   volume back.
//! - From the answer to an order that moves a host to a gateway, nothing that it has sent through
//!   the other gateway takes effect, if that gateway believed that it serves the host (R19). (A
//!   gateway without the seat may let a command wait, and do it when it gets the seat.)
//! - A gateway that knows that a host has no permission says so at once. The host does not wait.

use super::play::Initiator;
use crate::admin::{ALL, Order};
use crate::check::errors::User;
use crate::history::Record;
use crate::plan::{Action, Timed};
use crate::stage::Stage;
use base::VolumeId;
use node::sdc::Sdc;
use std::collections::BTreeSet;

/// What orders mean for the commands of a host.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// The moment of the last order about its permission.
    ordered: u64,
    /// Commands whose gateway believed, while they were under way, that it serves the host.
    seated: BTreeSet<u32>,
}

impl Stage {
    /// Returns the hosts of the plan that use this volume.
    fn users_of(&self, id: VolumeId) -> Vec<u8> {
        let uses = |i: &u8| self.hosts[usize::from(*i)].volume == Some(id);
        (0..self.hosts.len() as u8).filter(uses).collect()
    }

    /// Returns true when an order is waiting that gives a volume to this host, or takes it if
    /// `gives` is false.
    fn is_host_ordered(&self, v: u8, host: u8, gives: bool) -> bool {
        self.is_ordered(v, |order| match *order {
            Order::Hosts(_, to) => (to >> host & 1 == 1) == gives,
            Order::UnmapHost(_, from) => from == host && !gives,
            _ => false,
        })
    }

    /// Lets judges expect what this order, which is given now, may change.
    pub(crate) fn expect(&mut self, order: Order) {
        match order {
            Order::Map(v, clients) => {
                self.volumes[usize::from(v)].mapped = true;
                for client in 0..self.plan.clients {
                    self.may_change(v, User::Client(client), clients >> client & 1 == 1);
                }
            }
            Order::Hosts(v, to) => {
                for host in 0..self.hosts.len() as u8 {
                    self.may_change(v, User::Host(host), to >> host & 1 == 1);
                }
            }
            Order::UnmapHost(v, host) => self.may_change(v, User::Host(host), false),
            Order::MovePath(_, host, _) => self.note_seat(usize::from(host)),
            _ => {}
        }
    }

    /// Lets judges expect that a volume is given to this user from now on, or is taken.
    fn may_change(&mut self, v: u8, user: User, gives: bool) {
        if let User::Host(host) = user {
            self.hosts[usize::from(host)].standing.ordered = self.history.tick();
        }
        let Some(id) = self.volumes[usize::from(v)].id else { return };
        if gives {
            self.cuts.remove(&(user, id));
        } else {
            self.denials.take(user, id);
        }
    }

    /// Orders that the volume of a host is taken from it.
    pub(crate) fn unmap_host(&mut self, host: u8) {
        let Some(of) = self.hosts.get(usize::from(host)) else { return };
        let v = of.plan.volume;
        if self.has_volume(v) {
            self.order(Order::UnmapHost(v, host));
        }
    }

    /// Orders that the gateway of this path serves a host.
    pub(crate) fn move_path(&mut self, host: u8, path: u8) {
        let Some(of) = self.hosts.get(usize::from(host)).filter(|_| path < 2) else { return };
        let (v, to) = (of.plan.volume, of.plan.gateways[usize::from(path)]);
        if self.has_volume(v) {
            self.order(Order::MovePath(v, host, to));
        }
    }

    /// Gives all volumes back to all clients and hosts, if orders may have taken them.
    pub(crate) fn map_to_all(&mut self) {
        for v in 0..self.volumes.len() as u8 {
            let hosts = |s: &Timed| match s.action {
                Action::Hosts(of, _) => of == v,
                Action::UnmapHost(_) => true,
                _ => false,
            };
            if self.has_volume(v) && self.volumes[usize::from(v)].mapped {
                self.order(Order::Map(v, ALL));
            }
            if self.has_volume(v) && self.plan.steps.iter().any(hosts) {
                self.order(Order::Hosts(v, ALL));
            }
        }
    }

    /// Processes the answer to an order about permissions of hosts: `has` may use the volume, and
    /// `lacks` may not. If it is confirmed, unfinished operations of those never take effect.
    pub(crate) fn hosts_mapped(&mut self, v: u8, (has, lacks): (u8, u8), confirmed: bool) {
        let Some(id) = self.volumes[usize::from(v)].id else { return };
        let moment = self.history.tick();
        for host in self.users_of(id) {
            if has >> host & 1 == 1 {
                self.host_given_back(v, id, host);
            } else if confirmed && lacks >> host & 1 == 1 {
                if !self.is_host_ordered(v, host, true) {
                    self.cuts.insert((User::Host(host), id), moment);
                }
                self.cut_host(id, host, moment);
            }
        }
    }

    fn cut_host(&mut self, id: VolumeId, host: u8, moment: u64) {
        let of_host = |op: &&mut Record| op.volume == id && op.host == Some(host) && !op.is_ok();
        for op in self.history.ops.iter_mut().filter(of_host) {
            if op.cut.is_none() {
                op.cut = Some(moment);
                self.marks.meet("sim: a host was unmapped under load");
            }
        }
    }

    /// Records that a host may use a volume, by the newest map of any MDM, unless a waiting order
    /// takes it from it.
    fn host_given_back(&mut self, v: u8, id: VolumeId, host: u8) {
        let Some(version) = self.mdm().map(|m| m.state().version) else { return };
        if !self.is_host_ordered(v, host, false) {
            let moment = self.history.tick();
            self.denials.give(User::Host(host), id, moment, version);
        }
    }

    /// Lets hosts use a volume if the MDM maps it to them now, whatever was ordered before.
    pub(crate) fn heed_hosts(&mut self, v: u8) {
        let Some(id) = self.volumes[usize::from(v)].id else { return };
        for host in self.users_of(id) {
            let name = &self.hosts[usize::from(host)].name;
            let volume = self.mdm().and_then(|m| m.state().volumes.get(&id));
            match volume.is_some_and(|volume| volume.mapping.admits(name)) {
                true => {
                    self.cuts.remove(&(User::Host(host), id));
                    self.host_given_back(v, id, host);
                }
                false => self.denials.take(User::Host(host), id),
            }
        }
    }

    /// Returns a host that has not reached its volume again over all of its paths.
    pub(crate) fn hosts_unmet(&self) -> Option<String> {
        let lives = |id: VolumeId| self.volumes.iter().any(|v| v.id == Some(id));
        let out = |host: &&Initiator| host.volume.is_some_and(lives) && host.is_up() != [true; 2];
        let host = self.hosts.iter().find(out)?;
        Some(format!("{} has these paths: {:?}", host.name, host.is_up()))
    }

    /// Processes the answer to an order that moves a host to a gateway.
    pub(crate) fn moved(&mut self, v: u8, host: u8, to: u8) {
        let moment = self.history.tick();
        let (id, host) = (self.volumes[usize::from(v)].id, &self.hosts[usize::from(host)]);
        if id.is_none() || host.volume != id {
            return;
        }
        let former = |op: &&u32| host.plan.gateways[usize::from(host.paths[*op])] != to;
        for op in host.standing.seated.iter().filter(former) {
            let op = &mut self.history.ops[*op as usize];
            if !op.is_ok() && op.cut.is_none() {
                op.cut = Some(moment);
                self.marks.meet("sim: a host's path was moved by order");
            }
        }
    }

    /// Records which host sends an operation over this path, and what its gateway knows.
    pub(super) fn sends(&mut self, i: usize, path: u8, index: usize) {
        let host = &self.hosts[i];
        let (id, v) = (host.volume, host.plan.volume);
        let gateway = host.plan.gateways[usize::from(path)];
        let map = self.sdc(gateway).map(Sdc::map);
        let known = map.and_then(|map| map.volumes.get(&id?));
        let lacks = known.is_some_and(|volume| !volume.mapping.admits(&host.name));
        let changes = self.is_ordered(v, |o| matches!(o, Order::Hosts(..) | Order::UnmapHost(..)));
        let seated = self.is_seated(i, path);
        let op = &mut self.history.ops[index];
        (op.host, op.barred) = (Some(i as u8), lacks && !changes);
        if seated {
            self.hosts[i].standing.seated.insert(index as u32);
        }
    }

    /// Returns true when the gateway of this path believes that it serves the host.
    fn is_seated(&self, i: usize, path: u8) -> bool {
        let host = &self.hosts[i];
        let gateway = self.sdc(host.plan.gateways[usize::from(path)]).map(Sdc::map);
        gateway.is_some_and(|map| {
            let volume = host.volume.and_then(|id| map.volumes.get(&id));
            let seat = volume.and_then(|volume| volume.seats.get(&host.name));
            seat.is_some_and(|seat| Some(seat.sdc) == map.me)
        })
    }

    /// Records the unanswered operations of a host whose gateway believes that it serves the host.
    fn note_seat(&mut self, i: usize) {
        let served = [0, 1].map(|path| self.is_seated(i, path));
        let host = &mut self.hosts[i];
        let open = host.paths.iter().filter(|(op, path)| {
            let answered = self.history.ops[**op as usize].answer.is_some();
            served[usize::from(**path)] && !answered
        });
        host.standing.seated.extend(open.map(|(op, _)| *op));
    }

    /// Returns true when the gateway of an operation knew that its host has no permission, and no
    /// order has changed that since.
    pub(crate) fn is_barred(&self, op: &Record) -> bool {
        let host = op.host.and_then(|host| self.hosts.get(usize::from(host)));
        op.barred && host.is_some_and(|host| host.standing.ordered < op.invoked)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, pass};
    use super::*;
    use crate::plan::IoKind;
    use seam::BlockError;

    /// Returns a stage with one volume, two clients and this host, which is logged in and served.
    fn stage(host: &str) -> Stage {
        let mut stage = testing::stage(host);
        assert!(is_served(&mut stage));
        stage
    }

    /// Lets the host write over the path that it uses. Returns the result, if it could ask.
    fn write(stage: &mut Stage) -> Option<Option<Result<(), BlockError>>> {
        let (index, id) = (stage.history.ops.len(), stage.hosts[0].volume.unwrap());
        let asked = |client| stage.ask_a_host(client, (0, id), IoKind::Write, (8, 8));
        let any = [0, 1].repeat(8).into_iter().any(asked);
        pass(stage, 100);
        any.then(|| stage.history.ops[index].answer.map(|answer| answer.result))
    }

    /// Returns true if the host can write. Its first commands over a path may get unit attentions.
    fn is_served(stage: &mut Stage) -> bool {
        (0..8).any(|_| write(stage) == Some(Some(Ok(()))))
    }

    fn is_cut(stage: &Stage) -> bool {
        let (host, id) = (User::Host(0), stage.hosts[0].volume.unwrap());
        stage.cuts.contains_key(&(host, id))
    }

    #[test]
    fn a_host_is_unmapped_and_mapped_again() {
        for host in ["0 0 0", "0 1 0 moves", "0 1 0 nvme moves"] {
            let mut stage = stage(host);
            for order in [Action::Hosts(0, 0), Action::UnmapHost(0)] {
                let id = stage.hosts[0].volume.unwrap();
                let (index, _) = stage.record(0, id, IoKind::Write, 8, 8);
                stage.hosts[0].paths.insert(index as u32, 0);
                stage.sends(0, 0, index);
                stage.act(Action::Hosts(0, 1));
                pass(&mut stage, 100);
                assert_eq!((is_cut(&stage), stage.history.ops[index].cut), (false, None));
                stage.act(order);
                pass(&mut stage, 100);
                assert!(is_cut(&stage) && stage.history.ops[index].cut.is_some(), "{host}");
                let told = write(&mut stage);
                let refused = matches!(told, None | Some(Some(Err(BlockError::NoSuchVolume))));
                assert!(refused, "{host}: {told:?}");
                stage.act(Action::Hosts(0, ALL));
                assert!(!is_cut(&stage), "it may be there at any time from now on");
                pass(&mut stage, 1000);
                assert!(is_served(&mut stage), "{host}");
            }
        }
    }

    #[test]
    fn an_order_moves_a_host_and_ends_what_it_has_sent_through_its_former_gateway() {
        for host in ["0 1 0 moves", "0 1 0 nvme moves"] {
            let mut stage = stage(host);
            let first = if stage.is_seated(0, 0) { 0 } else { 1 };
            for path in [1 - first, first, first] {
                let former = usize::from(!stage.is_seated(0, 0));
                let id = stage.hosts[0].volume.unwrap();
                let open = [0, 1].map(|path| {
                    let (index, _) = stage.record(path, id, IoKind::Write, 8, 8);
                    stage.hosts[0].paths.insert(index as u32, path);
                    stage.sends(0, path, index);
                    index
                });
                stage.act(Action::MovePath(0, path));
                pass(&mut stage, 100);
                assert!(stage.is_seated(0, path), "{host}");
                let cut = open.map(|index| stage.history.ops[index].cut.is_some());
                let moves = former != usize::from(path);
                assert_eq!(cut, [0, 1].map(|of| moves && of == former), "{host}");
                pass(&mut stage, 1000);
                assert!(is_served(&mut stage), "{host}");
            }
        }
    }

    #[test]
    fn a_host_may_not_wait_where_its_gateway_knows_that_it_is_unmapped() {
        let mut stage = stage("0 0 0");
        let id = stage.hosts[0].volume.unwrap();
        let asked = |stage: &mut Stage| {
            let (index, _) = stage.record(0, id, IoKind::Write, 8, 8);
            stage.sends(0, 0, index);
            stage.hosts[0].paths.insert(index as u32, 0);
            index
        };
        let may = |stage: &Stage, index| stage.is_in_order(index, BlockError::TimedOut);
        let before = asked(&mut stage);
        stage.act(Action::Hosts(0, 0));
        let during = asked(&mut stage);
        pass(&mut stage, 100);
        let after = asked(&mut stage);
        assert_eq!([before, during, after].map(|i| may(&stage, i)), [true, true, false]);
        stage.act(Action::Hosts(0, ALL));
        assert!(may(&stage, after), "it may have arrived later");
    }
}

//! The administrator of a run: a node that speaks the wire protocol as a command line would. It
//! carries out one order after the other, and repeats each until the outcome is known.

use crate::hosts::host_name;
use crate::plan::HostKind;
use crate::plan::pools::pool_name;
use crate::stage::NEXT;
use base::{ClusterId, DeviceId, Limits, Policy, Time, UNIT, VolumeId};
use node::link::handshake::{hello, send_hello};
use node::link::{Answer, Callee};
use prost::Message;
use seam::{DialId, Effect, Effects, Event, Node, Port};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use wire::control::{
    AcceptLoss, Access, AddMdm, AdminError, AdminReply, AdminRequest, Ask, CreateObject,
    CreateVolume, DeleteVolume, Hello, MaintainRequest, MapRequest, MapTo, MapToHost, MovePath,
    ObjectKind, RecoverMdm, RemoveMdm, RemoveRequest, ResizeVolume, Role, ScrubRequest,
    SetLevelRequest, SetPool, StatusInfo, StatusRequest, SwitchMdm, UnmapRequest,
};
use wire::{Control, Frame, HANDSHAKE_VERSION, Header, PeerFramer, control_frame};

/// An order. Volumes have the names `v0`, `v1`...
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Create volume `v` of this many units, in this pool.
    Create(u8, u32, u8),
    /// Grow the volume to this many units.
    Resize(u8, u32),
    /// Delete the volume.
    Delete(u8),
    /// Map the volume to these clients only, one bit each; `ALL`: to all clients.
    Map(u8, u8),
    /// Map the volume to these hosts of the plan only, one bit each; `ALL`: to all hosts.
    Hosts(u8, u8),
    /// Unmap the volume from this host of the plan.
    UnmapHost(u8, u8),
    /// Serve this host of the volume through this client: (volume, host, client).
    MovePath(u8, u8, u8),
    /// Create this fault set.
    FaultSet(u8),
    /// Create this storage pool.
    Pool(u8),
    /// Scrub all devices.
    Scrub,
    /// Remove this server; true: cancel its removal.
    Remove(u8, bool),
    /// Remove this device.
    RemoveDevice(DeviceId),
    /// Put this server into maintenance, if it may be off now; true: protected maintenance.
    Maintain(u8, bool),
    /// End the maintenance of this server.
    Return(u8),
    /// Add this MDM to the cluster.
    AddMdm(u8),
    /// Remove this MDM from the cluster, if the others can do without it.
    RemoveMdm(u8),
    /// Make another MDM the leader, if one can lead.
    SwitchMdm,
    /// Set this storage pool's policies for rebuilds and for moves.
    Policies(u8, Policy, Policy),
    /// Raise the level to that of the next release, if everybody can follow.
    Level,
    /// Let volumes use the spare of this storage pool.
    GiveUpSpare(u8),
    /// Let this MDM, which still has its log, continue alone.
    Recover(u8),
    /// End a recovery.
    Finish,
    /// Delete the data of this volume, which is unknown to all MDMs.
    Forget(VolumeId),
    /// Accept the losses of these volumes, one bit each: lost data reads as zeros.
    Accept(u8),
    /// Serve groups of these volumes, one bit each, from older copies, if they wait for devices
    /// that don't come back.
    UseStale(u8),
}

/// Bits of all clients, or of all hosts.
pub const ALL: u8 = u8::MAX;

/// Outcome of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// The volume exists: (volume, id, units).
    Created(u8, u32, u32),
    /// The volume has this many units, or more, or is gone.
    Resized(u8, u32),
    /// The volume is gone.
    Deleted(u8),
    /// These clients may use the volume. If true (confirmed), surely no others can.
    Mapped(u8, u8, bool),
    /// These hosts may use the volume, and these may not: (volume, those that may, those that may
    /// not, confirmed).
    Hosts(u8, u8, u8, bool),
    /// The hosts of the volume may do what they could before.
    HostsKept(u8),
    /// This host of the volume is served through this client: (volume, host, client).
    Moved(u8, u8, u8),
    /// The MDM is removed.
    RemovedMdm(u8),
    /// Lost data reads as zeros.
    Accepted,
    /// The order is done, or can't be done.
    Other,
}

/// Orders and outcomes, shared between the world's owner and the node.
#[derive(Default, Debug)]
pub struct Desk {
    /// Waiting orders in sequence.
    pub orders: VecDeque<Order>,
    /// Outcomes that the owner has not taken yet.
    pub done: Vec<Done>,
    /// The last status that was received.
    pub status: Option<StatusInfo>,
    /// The newest term and command that answers contained.
    pub applied: (u64, u64),
    /// Set when an answer knew less than an earlier one.
    pub forgotten: Option<String>,
    /// The names of the plan's hosts.
    pub hosts: Vec<String>,
}

impl Desk {
    /// Returns the name of a host. A plan may have orders about hosts that it does not have.
    fn host(&self, i: u8) -> String {
        let known = self.hosts.get(usize::from(i)).cloned();
        known.unwrap_or_else(|| host_name(HostKind::Iscsi, i))
    }

    /// Returns the hosts of these bits, for an order that maps a volume to no others.
    fn map_to(&self, hosts: u8) -> Vec<MapToHost> {
        let to = |host: String| MapToHost { host, access: Access::ReadWrite as i32 };
        match hosts {
            ALL => vec![to(String::new())],
            0 => vec![to("iqn.2026-11.sim:nobody".into())],
            _ => (0..8).filter(|i| hosts >> i & 1 == 1).map(|i| to(self.host(i))).collect(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Down {
        retry_at: Time,
    },
    Dialing,
    Greeting(base::LinkId),
    Idle(base::LinkId),
    Asking(base::LinkId, bool),
    /// A status request without an order behind it, sent at this time.
    Looking(base::LinkId, Time),
}

/// The administrator's node.
pub struct Admin {
    desk: Rc<RefCell<Desk>>,
    mdms: Vec<SocketAddr>,
    /// Index of the MDM that is dialled or used.
    current: usize,
    state: State,
    dials: u64,
    /// The outcome of an earlier try is unknown: look before the next try.
    unsure: bool,
    pause_until: Time,
    limits: Limits,
}

const RETRY: Duration = Duration::from_millis(50);
/// Interval between status requests while there are no orders. With several MDMs, one after the
/// other is asked, and their answers must be consistent.
const LOOK: Duration = Duration::from_millis(15);
/// Longest wait for the answer to such a request.
const PATIENCE: Duration = Duration::from_millis(100);

/// Returns the name of a volume.
pub(crate) fn name(v: u8) -> String {
    format!("v{v}")
}

impl Admin {
    /// Creates an administrator that carries out `desk`'s orders with the leader of these MDMs.
    pub fn new(desk: Rc<RefCell<Desk>>, mdms: Vec<SocketAddr>, limits: Limits) -> Admin {
        let (state, current) = (State::Down { retry_at: Time::ZERO }, 0);
        let pause_until = Time::ZERO;
        Admin { desk, mdms, current, state, dials: 0, unsure: false, pause_until, limits }
    }

    fn send<M: Control>(link: base::LinkId, message: &M, out: &mut Effects) {
        let header = Header::new(M::KIND);
        let (head, body) = control_frame(HANDSHAKE_VERSION, header, message, out.pool());
        out.send(link, head, body);
    }

    // Long: one match over all orders.
    fn ask(&mut self, link: base::LinkId, out: &mut Effects) {
        let Some(order) = self.desk.borrow().orders.front().copied() else { return };
        let size = |units: u32| u64::from(units) * u64::from(UNIT);
        let look = self.unsure && matches!(order, Order::Create(..));
        let ask = match order {
            _ if look => Ask::Status(StatusRequest {}),
            Order::Create(v, units, pool) => Ask::CreateVolume(CreateVolume {
                name: name(v),
                size: size(units),
                pool: pool_name(pool).into(),
                ..CreateVolume::default()
            }),
            Order::Resize(v, units) => {
                Ask::ResizeVolume(ResizeVolume { name: name(v), size: size(units) })
            }
            Order::Delete(v) => Ask::DeleteVolume(DeleteVolume { name: name(v), unmap: true }),
            Order::Map(v, 0) => {
                Ask::Unmap(UnmapRequest { volume: name(v), all: true, ..UnmapRequest::default() })
            }
            Order::Map(v, clients) => {
                let to = |sdc: String| MapTo { sdc, access: Access::ReadWrite as i32 };
                let some = (0..8).filter(|i| clients >> i & 1 == 1);
                let to = match clients {
                    ALL => vec![to(String::new())],
                    _ => some.map(|i| to(format!("sdc{i}"))).collect(),
                };
                Ask::Map(MapRequest { volume: name(v), to, only: true, ..MapRequest::default() })
            }
            Order::Hosts(v, hosts) => {
                let hosts = self.desk.borrow().map_to(hosts);
                Ask::Map(MapRequest { volume: name(v), hosts, only: true, to: Vec::new() })
            }
            Order::UnmapHost(v, host) => {
                let hosts = vec![self.desk.borrow().host(host)];
                Ask::Unmap(UnmapRequest { volume: name(v), hosts, ..UnmapRequest::default() })
            }
            Order::MovePath(v, host, client) => {
                let hosts = vec![self.desk.borrow().host(host)];
                Ask::MovePath(MovePath { volume: name(v), hosts, to: format!("sdc{client}") })
            }
            Order::FaultSet(i) => Ask::CreateObject(CreateObject {
                kind: ObjectKind::FaultSet as i32,
                name: format!("set{i}"),
                ..CreateObject::default()
            }),
            Order::Pool(i) => Ask::CreateObject(CreateObject {
                kind: ObjectKind::Pool as i32,
                name: pool_name(i).into(),
                ..CreateObject::default()
            }),
            Order::Scrub => Ask::Scrub(ScrubRequest { device: 0 }),
            Order::Remove(i, keep) => {
                Ask::Remove(RemoveRequest { device: 0, server: format!("sds{i}"), keep })
            }
            Order::RemoveDevice(device) => {
                Ask::Remove(RemoveRequest { device: device.0, ..RemoveRequest::default() })
            }
            Order::Maintain(i, protected) => {
                Ask::Maintain(MaintainRequest { server: format!("sds{i}"), protected, end: false })
            }
            Order::Return(i) => Ask::Maintain(MaintainRequest {
                server: format!("sds{i}"),
                end: true,
                ..MaintainRequest::default()
            }),
            Order::AddMdm(i) => Ask::AddMdm(AddMdm {
                name: format!("mdm{i}"),
                address: self.mdms[i as usize].to_string(),
                tie_breaker: usize::from(i) > self.mdms.len() / 2,
            }),
            Order::RemoveMdm(i) => Ask::RemoveMdm(RemoveMdm { name: format!("mdm{i}") }),
            Order::SwitchMdm => Ask::SwitchMdm(SwitchMdm::default()),
            Order::Policies(pool, rebuild, rebalance) => Ask::SetPool(SetPool {
                pool: pool_name(pool).into(),
                rebuild: Some(rebuild.into()),
                rebalance: Some(rebalance.into()),
                ..SetPool::default()
            }),
            Order::Level => {
                Ask::SetLevel(SetLevelRequest { level: NEXT.level_max, without: Vec::new() })
            }
            Order::Recover(_) => Ask::RecoverMdm(RecoverMdm {
                by: "admin".into(),
                at: 60_000,
                ..RecoverMdm::default()
            }),
            Order::Finish => Ask::RecoverMdm(RecoverMdm { finish: true, ..RecoverMdm::default() }),
            Order::Forget(id) => {
                Ask::RecoverMdm(RecoverMdm { delete: vec![id.0], ..RecoverMdm::default() })
            }
            Order::Accept(volumes) | Order::UseStale(volumes) => Ask::AcceptLoss(AcceptLoss {
                volumes: (0..8).filter(|v| volumes >> v & 1 == 1).map(name).collect(),
                stale: matches!(order, Order::UseStale(_)),
                ..AcceptLoss::default()
            }),
            Order::GiveUpSpare(pool) => Ask::SetPool(SetPool {
                pool: pool_name(pool).into(),
                spare: Some(0),
                ..SetPool::default()
            }),
        };
        Admin::send(link, &AdminRequest::of(ask), out);
        self.state = State::Asking(link, look);
    }

    /// Checks that an answer knows no less than the answer before, as it was requested later.
    fn compare(&self, reply: &AdminReply) {
        let mut desk = self.desk.borrow_mut();
        // An MDM that hands over its leadership does not ask the others whether it still leads. An
        // MDM that continues alone does not, either.
        let sure = !matches!(desk.orders.front(), Some(Order::SwitchMdm | Order::Recover(_)));
        let (now, before) = ((reply.term, reply.applied), desk.applied);
        if reply.error() != AdminError::Log && sure && (now.0 < before.0 || now.1 < before.1) {
            let text = format!("an answer of (term, command) {now:?} after one of {before:?}");
            desk.forgotten = Some(text);
        }
        desk.applied = (now.0.max(before.0), now.1.max(before.1));
    }

    /// Returns the MDM that an order is for, whether it leads or not.
    fn meant(&self) -> Option<usize> {
        match self.desk.borrow().orders.front() {
            Some(Order::Recover(i)) => Some(usize::from(*i)),
            _ => None,
        }
    }

    fn is_curious(&self) -> bool {
        self.mdms.len() > 1 && self.desk.borrow().orders.is_empty()
    }

    /// Closes the link to this MDM, and moves on to the next one.
    fn leave(&mut self, now: Time, link: base::LinkId, out: &mut Effects) {
        out.push(Effect::Close { link });
        self.state = State::Down { retry_at: now + LOOK };
        self.current = (self.current + 1) % self.mdms.len();
    }

    fn finish(&mut self, done: Done) {
        let mut desk = self.desk.borrow_mut();
        desk.orders.pop_front();
        if let Done::RemovedMdm(i) = done {
            // Add it before all else: servers that know only this MDM can't find the others until
            // it belongs to them.
            desk.orders.push_front(Order::AddMdm(i));
        }
        desk.done.push(done);
        self.unsure = false;
    }

    // Long: one match over all orders and their outcomes.
    fn reply(&mut self, now: Time, looked: bool, reply: AdminReply) {
        let Some(order) = self.desk.borrow().orders.front().copied() else { return };
        if looked {
            let Some(status) = reply.status else { return };
            if let Order::Create(v, units, _) = order {
                match status.volumes.iter().find(|s| s.name == name(v)) {
                    Some(found) => self.finish(Done::Created(v, found.id, units)),
                    None => self.unsure = false,
                }
            }
            self.desk.borrow_mut().status = Some(status);
            return;
        }
        if reply.error() == AdminError::Log {
            // Another MDM may have done it.
            (self.unsure, self.pause_until) = (true, now + RETRY);
            return;
        }
        match (order, reply.error(), reply.volume) {
            (Order::Create(v, units, _), AdminError::None, Some(made)) => {
                self.finish(Done::Created(v, made.id, units));
            }
            (Order::Create(..), AdminError::NameTaken, _) => self.unsure = true,
            (Order::Create(..), AdminError::TooFewServers, _) => {
                // Later orders may bring servers back.
                self.desk.borrow_mut().orders.rotate_left(1);
                self.pause_until = now + RETRY;
            }
            (Order::Resize(v, units), AdminError::None, _) => self.finish(Done::Resized(v, units)),
            // The volume is larger already, or gone.
            (Order::Resize(v, _), AdminError::Invalid | AdminError::NotFound, _) => {
                self.finish(Done::Resized(v, 0));
            }
            (Order::Delete(v), AdminError::None | AdminError::NotFound, _) => {
                self.finish(Done::Deleted(v))
            }
            (Order::Map(v, clients), AdminError::None, _) => {
                self.finish(Done::Mapped(v, clients, true));
            }
            (Order::Map(v, clients), AdminError::Unconfirmed, _) => {
                self.finish(Done::Mapped(v, clients, false));
            }
            (Order::Hosts(v, hosts), error @ (AdminError::None | AdminError::Unconfirmed), _) => {
                self.finish(Done::Hosts(v, hosts, !hosts, error == AdminError::None));
            }
            (
                Order::UnmapHost(v, host),
                error @ (AdminError::None | AdminError::Unconfirmed),
                _,
            ) => {
                self.finish(Done::Hosts(v, 0, 1 << host, error == AdminError::None));
            }
            // The volume is mapped to all hosts, or not to this one, or is gone.
            (Order::UnmapHost(v, _), AdminError::NotFound | AdminError::InUse, _)
            | (Order::Hosts(v, _), AdminError::NotFound, _) => self.finish(Done::HostsKept(v)),
            (Order::MovePath(v, host, client), AdminError::None, _) => {
                self.finish(Done::Moved(v, host, client));
            }
            // It is not confirmed, or the host is not connected there.
            (Order::MovePath(..), _, _) => self.finish(Done::Other),
            (Order::Map(..), AdminError::NotFound, _)
            | (Order::FaultSet(_) | Order::Pool(_), AdminError::None | AdminError::NameTaken, _) => {
                self.finish(Done::Other);
            }
            (Order::Scrub | Order::Policies(..) | Order::GiveUpSpare(_), AdminError::None, _) => {
                self.finish(Done::Other);
            }
            (
                Order::Remove(..)
                | Order::RemoveDevice(_)
                | Order::Maintain(..)
                | Order::Return(_)
                | Order::Level
                | Order::UseStale(_),
                error,
                _,
            ) if error != AdminError::Other => {
                self.finish(Done::Other);
            }
            (Order::Recover(_) | Order::Finish, AdminError::None | AdminError::Already, _)
            | (Order::Forget(_), AdminError::None | AdminError::NotFound, _) => {
                self.finish(Done::Other);
            }
            (Order::Accept(_), AdminError::None, _) => self.finish(Done::Accepted),
            (Order::Accept(_), AdminError::Already | AdminError::NotFound, _)
            | (Order::AddMdm(_), AdminError::None | AdminError::NameTaken, _) => {
                self.finish(Done::Other);
            }
            (Order::RemoveMdm(i), AdminError::None | AdminError::NotFound, _) => {
                self.finish(Done::RemovedMdm(i));
            }
            (Order::RemoveMdm(_) | Order::SwitchMdm, AdminError::TooFewMdms, _)
            | (Order::SwitchMdm, AdminError::None, _) => self.finish(Done::Other),
            _ => self.pause_until = now + RETRY,
        }
    }

    fn lost(&mut self, now: Time) {
        if matches!(self.state, State::Asking(..)) {
            self.unsure = true;
        }
        self.state = State::Down { retry_at: now + RETRY };
        self.current = (self.current + 1) % self.mdms.len();
    }
}

impl Node for Admin {
    type Framer = PeerFramer;

    fn framer(&mut self, _: Port) -> PeerFramer {
        PeerFramer::new(self.limits.frame_body)
    }

    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects) {
        match event {
            Event::LinkUp { link, .. } => {
                let hello = hello(&wire::DIALECT, ClusterId(0), Role::Admin, "admin");
                let hello = Hello { direct: self.meant().is_some(), ..hello };
                send_hello(link, &hello, out);
                self.state = State::Greeting(link);
            }
            Event::LinkDown { .. } | Event::DialFailed { .. } => self.lost(now),
            Event::Frame { link, head, body } => {
                let header = wire::parse(head);
                if !wire::body_ok(header, &body) {
                    out.push(Effect::Close { link });
                    return self.lost(now);
                }
                let Ok(frame) = Frame::try_from(header) else { return };
                let answer = Callee::Mdm.answer(&wire::DIALECT, ClusterId(0), &frame, &body);
                match (answer, self.state) {
                    (None, _) if !matches!(frame, Frame::AdminReply(_)) => {}
                    (Some(Answer::Welcome(_)), State::Greeting(link)) => {
                        self.state = State::Idle(link);
                    }
                    (Some(Answer::Refusal(refusal)), _) => {
                        if self.is_curious() {
                            // A status request also goes to MDMs that refuse as they don't lead.
                            return self.leave(now, link, out);
                        }
                        out.push(Effect::Close { link });
                        self.lost(now);
                        let named = self.mdms.iter().position(|m| refusal.leader == m.to_string());
                        self.current = named.unwrap_or(self.current);
                    }
                    (None, State::Asking(link, looked)) => {
                        self.state = State::Idle(link);
                        if let Ok(reply) = AdminReply::decode(&body[..]) {
                            self.compare(&reply);
                            self.reply(now, looked, reply);
                        }
                    }
                    (None, State::Looking(link, _)) => {
                        if let Ok(reply) = AdminReply::decode(&body[..]) {
                            self.compare(&reply);
                        }
                        self.leave(now, link, out);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn flush(&mut self, now: Time, out: &mut Effects) {
        if now < self.pause_until {
            return;
        }
        match self.state {
            State::Down { retry_at } if retry_at <= now => {
                self.dials += 1;
                self.state = State::Dialing;
                self.current = self.meant().unwrap_or(self.current);
                let to = self.mdms[self.current];
                out.push(Effect::Dial { dial: DialId(self.dials), to, port: Port::Ours });
            }
            State::Idle(link) if self.meant().is_some_and(|i| i != self.current) => {
                self.leave(now, link, out);
            }
            State::Idle(link) if self.is_curious() => {
                let ask = AdminRequest::of(Ask::Status(StatusRequest {}));
                Admin::send(link, &ask, out);
                self.state = State::Looking(link, now);
            }
            State::Idle(link) => self.ask(link, out),
            State::Looking(link, since) if now.since(since) >= PATIENCE => {
                self.leave(now, link, out);
            }
            _ => {}
        }
    }

    fn wake_at(&self) -> Option<Time> {
        match self.state {
            State::Down { retry_at } => Some(retry_at.max(self.pause_until)),
            State::Looking(_, since) => Some(since + PATIENCE),
            State::Idle(_) if self.is_curious() => Some(self.pause_until),
            State::Idle(_) if !self.desk.borrow().orders.is_empty() => Some(self.pause_until),
            _ => None,
        }
    }
}

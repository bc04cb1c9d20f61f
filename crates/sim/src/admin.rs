//! The one who makes, grows and deletes volumes: a node that speaks the wire protocol as a command
//! line would, one order after the other, each repeated until its outcome is known.

use crate::plan::pools::pool_name;
use base::{DeviceId, Limits, Policy, Time, UNIT, VolumeId};
use prost::Message;
use seam::{DialId, Effect, Effects, Event, Node, Port};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use wire::control::{
    AcceptLoss, Access, AddMdm, AdminError, AdminReply, AdminRequest, Ask, CreateObject,
    CreateVolume, DeleteVolume, Hello, MaintainAsk, MapAsk, MapTo, ObjectKind, RecoverMdm, Refusal,
    RemoveAsk, RemoveMdm, ResizeVolume, Role, ScrubAsk, SetPool, StatusAsk, StatusInfo, SwitchMdm,
    UnmapAsk,
};
use wire::{Header, Kind, PeerFramer};

/// An order. Volumes have the names `v0`, `v1`...
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Make volume `v` of so many units, in this pool.
    Create(u8, u32, u8),
    /// Grow it.
    Resize(u8, u32),
    /// Delete it.
    Delete(u8),
    /// Map it to these clients alone, a bit each; `ALL`: to all.
    Map(u8, u8),
    /// Make this fault set.
    FaultSet(u8),
    /// Make this storage pool.
    Pool(u8),
    /// Scrub all devices.
    Scrub,
    /// Remove this server; true: keep it after all.
    Remove(u8, bool),
    /// Remove this device.
    RemoveDevice(DeviceId),
    /// Put this server into maintenance, if it may be off now; true: protected.
    Maintain(u8, bool),
    /// Its maintenance is over.
    Return(u8),
    /// Take this MDM in.
    AddMdm(u8),
    /// Take it out, if the others can do without it.
    RemoveMdm(u8),
    /// Let another MDM lead, if one can.
    SwitchMdm,
    /// Tell this storage pool how copies give way to clients: those that replace a lost one, and those that move.
    Policies(u8, Policy, Policy),
    /// Let volumes have the spare of this storage pool.
    GiveUpSpare(u8),
    /// Let this MDM, which has its log yet, go on alone.
    Recover(u8),
    /// End a recovery.
    Finish,
    /// Delete the data of this volume, which no MDM knows.
    Forget(VolumeId),
    /// Serve what is lost of these volumes, a bit each, as zeros.
    Accept(u8),
    /// Serve what waits for devices that don't come back from older copies, of these volumes, a bit each.
    UseStale(u8),
}

/// All clients.
pub const ALL: u8 = u8::MAX;

/// What came of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// The volume exists under this id.
    Created(u8, u32, u32),
    /// It has so many units, or is gone.
    Resized(u8, u32),
    /// It is gone.
    Deleted(u8),
    /// These clients may use it; for sure no others, if that is confirmed.
    Mapped(u8, u8, bool),
    /// The MDM is out.
    RemovedMdm(u8),
    /// What was lost is zeros.
    Accepted,
    /// It is done, or can't be.
    Other,
}

/// Orders and outcomes, shared between the world's owner and the node.
#[derive(Default, Debug)]
pub struct Desk {
    /// To do, the first one first.
    pub orders: VecDeque<Order>,
    /// Done, not taken yet.
    pub done: Vec<Done>,
    /// The last status that came.
    pub status: Option<StatusInfo>,
    /// The newest term and command that answers told of.
    pub applied: (u64, u64),
    /// An answer knew less than one before.
    pub forgotten: Option<String>,
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
    /// Asked how everything is, out of curiosity, at this time.
    Looking(base::LinkId, Time),
}

/// The node.
pub struct Admin {
    desk: Rc<RefCell<Desk>>,
    mdms: Vec<SocketAddr>,
    /// The one that is tried, or used.
    current: usize,
    state: State,
    dials: u64,
    /// An earlier try's outcome is unknown: look before trying again.
    unsure: bool,
    pause_until: Time,
    limits: Limits,
}

const RETRY: Duration = Duration::from_millis(50);
/// When there is nothing to order, one of several MDMs after the other is asked how everything is: all that they
/// answer has to fit together.
const LOOK: Duration = Duration::from_millis(15);
/// An answer that takes longer is not waited for.
const PATIENCE: Duration = Duration::from_millis(100);

fn name(v: u8) -> String {
    format!("v{v}")
}

impl Admin {
    /// Works off `desk`'s orders at the leading one of the MDMs at these addresses.
    pub fn new(desk: Rc<RefCell<Desk>>, mdms: Vec<SocketAddr>, limits: Limits) -> Admin {
        let (state, current) = (State::Down { retry_at: Time::ZERO }, 0);
        let pause_until = Time::ZERO;
        Admin { desk, mdms, current, state, dials: 0, unsure: false, pause_until, limits }
    }

    fn send(link: base::LinkId, kind: Kind, message: &impl Message, out: &mut Effects) {
        let (head, body) = wire::control_frame(Header::new(kind), message, out.pool());
        out.send(link, head, body);
    }

    fn ask(&mut self, link: base::LinkId, out: &mut Effects) {
        let Some(order) = self.desk.borrow().orders.front().copied() else { return };
        let size = |units: u32| u64::from(units) * u64::from(UNIT);
        let look = self.unsure && matches!(order, Order::Create(..));
        let ask = match order {
            _ if look => Ask::Status(StatusAsk {}),
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
                Ask::Unmap(UnmapAsk { volume: name(v), sdcs: Vec::new(), all: true })
            }
            Order::Map(v, clients) => {
                let to = |sdc: String| MapTo { sdc, access: Access::ReadWrite as i32 };
                let some = (0..8).filter(|i| clients >> i & 1 == 1);
                let to = match clients {
                    ALL => vec![to(String::new())],
                    _ => some.map(|i| to(format!("sdc{i}"))).collect(),
                };
                Ask::Map(MapAsk { volume: name(v), to, only: true })
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
            Order::Scrub => Ask::Scrub(ScrubAsk { device: 0 }),
            Order::Remove(i, keep) => {
                Ask::Remove(RemoveAsk { device: 0, server: format!("sds{i}"), keep })
            }
            Order::RemoveDevice(device) => {
                Ask::Remove(RemoveAsk { device: device.0, ..RemoveAsk::default() })
            }
            Order::Maintain(i, protected) => {
                Ask::Maintain(MaintainAsk { server: format!("sds{i}"), protected, end: false })
            }
            Order::Return(i) => Ask::Maintain(MaintainAsk {
                server: format!("sds{i}"),
                end: true,
                ..MaintainAsk::default()
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
        Admin::send(link, Kind::Admin, &AdminRequest { ask: Some(ask) }, out);
        self.state = State::Asking(link, look);
    }

    /// Each question was asked after the answer before: what that one told of is not forgotten.
    fn compare(&self, reply: &AdminReply) {
        let mut desk = self.desk.borrow_mut();
        // Who hands over doesn't ask the others whether it still leads.
        // Nor does who goes on alone.
        let sure = !matches!(desk.orders.front(), Some(Order::SwitchMdm | Order::Recover(_)));
        let (now, before) = ((reply.term, reply.applied), desk.applied);
        if reply.error() != AdminError::Log && sure && (now.0 < before.0 || now.1 < before.1) {
            let text = format!("an answer of (term, command) {now:?} after one of {before:?}");
            desk.forgotten = Some(text);
        }
        desk.applied = (now.0.max(before.0), now.1.max(before.1));
    }

    /// The MDM that an order is for, whether it leads or not.
    fn meant(&self) -> Option<usize> {
        match self.desk.borrow().orders.front() {
            Some(Order::Recover(i)) => Some(usize::from(*i)),
            _ => None,
        }
    }

    fn is_curious(&self) -> bool {
        self.mdms.len() > 1 && self.desk.borrow().orders.is_empty()
    }

    /// Leaves this MDM for the next one.
    fn leave(&mut self, now: Time, link: base::LinkId, out: &mut Effects) {
        out.push(Effect::Close { link });
        self.state = State::Down { retry_at: now + LOOK };
        self.current = (self.current + 1) % self.mdms.len();
    }

    fn finish(&mut self, done: Done) {
        let mut desk = self.desk.borrow_mut();
        desk.orders.pop_front();
        if let Done::RemovedMdm(i) = done {
            // Before all else: servers that know only this one can't find the others until it belongs to them.
            desk.orders.push_front(Order::AddMdm(i));
        }
        desk.done.push(done);
        self.unsure = false;
    }

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
        match (order, reply.error(), reply.volume) {
            (Order::Create(v, units, _), AdminError::None, Some(made)) => {
                self.finish(Done::Created(v, made.id, units));
            }
            (Order::Create(..), AdminError::NameTaken, _) => self.unsure = true,
            (Order::Create(..), AdminError::TooFewServers, _) => {
                // What is ordered after it may bring servers back.
                self.desk.borrow_mut().orders.rotate_left(1);
                self.pause_until = now + RETRY;
            }
            (Order::Resize(v, units), AdminError::None, _) => self.finish(Done::Resized(v, units)),
            // Smaller than it is already, or gone.
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
                let hello = Hello {
                    role: Role::Admin as i32,
                    version_min: u32::from(wire::VERSION_MIN),
                    version_max: u32::from(wire::VERSION),
                    name: "admin".into(),
                    direct: self.meant().is_some(),
                    ..Hello::default()
                };
                Admin::send(link, Kind::Hello, &hello, out);
                self.state = State::Greeting(link);
            }
            Event::LinkDown { .. } | Event::DialFailed { .. } => self.lost(now),
            Event::Frame { link, head, body } => {
                let header = wire::parse(head);
                if !wire::body_ok(&header, &body) {
                    out.push(Effect::Close { link });
                    return self.lost(now);
                }
                match (header.kind(), self.state) {
                    (Some(Kind::Welcome), State::Greeting(link)) => self.state = State::Idle(link),
                    (Some(Kind::Refusal), _) => {
                        let leader = Refusal::decode(&body[..]).map(|r| r.leader);
                        if self.is_curious() {
                            // It asks also those who are said not to lead: do they know it?
                            return self.leave(now, link, out);
                        }
                        out.push(Effect::Close { link });
                        self.lost(now);
                        let named = self.mdms.iter().position(|m| leader == Ok(m.to_string()));
                        self.current = named.unwrap_or(self.current);
                    }
                    (Some(Kind::AdminReply), State::Asking(link, looked)) => {
                        self.state = State::Idle(link);
                        if let Ok(reply) = AdminReply::decode(&body[..]) {
                            self.compare(&reply);
                            self.reply(now, looked, reply);
                        }
                    }
                    (Some(Kind::AdminReply), State::Looking(link, _)) => {
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
                out.push(Effect::Dial { dial: DialId(self.dials), to, port: Port::Peer });
            }
            State::Idle(link) if self.meant().is_some_and(|i| i != self.current) => {
                self.leave(now, link, out);
            }
            State::Idle(link) if self.is_curious() => {
                let ask = AdminRequest { ask: Some(Ask::Status(StatusAsk {})) };
                Admin::send(link, Kind::Admin, &ask, out);
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

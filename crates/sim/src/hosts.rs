//! Hosts with iSCSI sessions to clients: a node for each host, which logs in at two gateways, sends
//! the commands that it is told to, and logs in again when a session is gone. The owner decides
//! what becomes of the commands of a lost session, as dm-multipath would.

mod fence;
mod pdu;
mod play;
mod session;

pub use pdu::{Command, PduFramer, Told};
pub use play::Initiator;

use crate::host_link::{AGAIN, HostLink};
use base::{LinkId, Time};
use pdu::{Pdu, data_len, from_target};
use seam::{Buf, Effect, Effects, Event, Head, Node, Port};
use session::{Session, Step};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// An order to a path.
#[derive(Debug)]
pub enum Order {
    /// Send this command.
    Send(Command),
    /// Close the connection.
    Close,
    /// Give the session up without closing its connection, and log in again with the same session
    /// id: the gateway has to end the older session.
    Again,
    /// Stop reading for this long.
    Deaf(Duration),
    /// Abort the oldest command that the gateway has.
    Abort,
}

/// An event on a path.
#[derive(Debug)]
pub enum Seen {
    /// The host is logged in.
    LoggedIn,
    /// A command was answered.
    Answered(u32, Told),
    /// A command was aborted.
    Aborted(u32),
    /// The session is given up, and these commands are unanswered.
    Gone(Vec<u32>),
    /// The gateway broke the protocol.
    Wrong(String),
}

/// Orders and events by path, shared between the world's owner and the node.
#[derive(Default, Debug)]
pub struct Shared {
    /// Waiting orders in sequence.
    pub orders: VecDeque<(u8, Order)>,
    /// Events that the owner has not taken yet.
    pub seen: Vec<(u8, Seen)>,
    /// The link of each path that is logged in.
    pub links: BTreeMap<u8, LinkId>,
}

#[derive(Debug)]
struct Path {
    link: HostLink,
    /// None until the host is logged in.
    session: Option<Session>,
    /// Connections of sessions that were given up.
    abandoned: Vec<LinkId>,
}

/// The node of a host.
pub struct Host {
    shared: Rc<RefCell<Shared>>,
    name: String,
    target: String,
    paths: Vec<Path>,
    dials: u64,
}

impl Host {
    /// Creates a host with this name, and one path to the target at each of these addresses.
    pub fn new(
        shared: Rc<RefCell<Shared>>,
        name: String,
        target: String,
        to: impl IntoIterator<Item = SocketAddr>,
    ) -> Host {
        let path = |to| Path {
            link: HostLink::new(to, node::sdc::ISCSI),
            session: None,
            abandoned: Vec::new(),
        };
        Host { shared, name, target, paths: to.into_iter().map(path).collect(), dials: 0 }
    }

    fn tell(&self, i: usize, seen: Seen) {
        self.shared.borrow_mut().seen.push((i as u8, seen));
    }

    fn of_link(&self, link: LinkId) -> Option<usize> {
        self.paths.iter().position(|path| path.link.id() == Some(link))
    }

    /// Ends the session of a path, whose next login is at this time.
    fn gone(&mut self, i: usize, dial_at: Time) {
        let path = &mut self.paths[i];
        path.link.give_up(dial_at);
        if let Some(session) = path.session.take() {
            self.shared.borrow_mut().links.remove(&(i as u8));
            self.tell(i, Seen::Gone(session.unanswered()));
        }
    }

    fn close(&mut self, now: Time, i: usize, out: &mut Effects) {
        if let Some(link) = self.paths[i].link.id() {
            out.push(Effect::Close { link });
            self.gone(i, now + AGAIN);
        }
    }

    fn carry_out(&mut self, now: Time, i: usize, steps: Vec<Step>, out: &mut Effects) {
        for step in steps {
            match (step, self.paths[i].link.id()) {
                (Step::Send(pdu), Some(link)) => send(link, &pdu, out),
                (Step::Tell(seen), _) => self.tell(i, seen),
                (Step::Leave, _) => self.close(now, i, out),
                (Step::Send(_), None) => {}
            }
        }
    }

    fn frame(&mut self, now: Time, i: usize, bhs: &[u8], body: &[u8], out: &mut Effects) {
        let data = &body[..data_len(bhs)];
        let Some(link) = self.paths[i].link.id() else { return };
        match &mut self.paths[i].session {
            None => {
                if bhs[0] != from_target::LOGIN {
                    return self.tell(i, Seen::Wrong(format!("{:#x} in a login", bhs[0])));
                }
                // The volume is missing, or not mapped to this client: try again later.
                if (bhs[36], bhs[37]) != (0, 0) {
                    out.push(Effect::Close { link });
                    return self.gone(i, now + AGAIN * 10);
                }
                self.paths[i].session = Some(Session::new(bhs, data));
                for link in std::mem::take(&mut self.paths[i].abandoned) {
                    out.push(Effect::Close { link });
                }
                self.shared.borrow_mut().links.insert(i as u8, link);
                self.tell(i, Seen::LoggedIn);
            }
            Some(session) => {
                let mut steps = Vec::new();
                session.pdu(bhs, data, &mut steps);
                self.carry_out(now, i, steps, out);
            }
        }
    }

    fn order(&mut self, now: Time, i: usize, order: Order, out: &mut Effects) {
        let path = &mut self.paths[i];
        let mut steps = Vec::new();
        match (order, &mut path.session) {
            (Order::Send(command), Some(session)) => session.command(command, &mut steps),
            (Order::Send(command), None) => self.tell(i, Seen::Gone(vec![command.id])),
            (Order::Close, _) => return self.close(now, i, out),
            (Order::Again, Some(_)) => {
                path.abandoned.extend(path.link.id());
                return self.gone(i, now);
            }
            (Order::Deaf(time), Some(_)) => path.link.pause(now + time, out),
            (Order::Abort, Some(session)) => session.abort(&mut steps),
            (Order::Again | Order::Deaf(_) | Order::Abort, None) => {}
        }
        self.carry_out(now, i, steps, out);
    }
}

fn send(link: LinkId, pdu: &Pdu, out: &mut Effects) {
    let body = if pdu.data.is_empty() { Buf::EMPTY } else { out.copy(&pdu.data) };
    out.send(link, Head::new(&pdu.bhs), body);
}

impl Node for Host {
    type Framer = PduFramer;

    fn framer(&mut self, _: Port) -> PduFramer {
        PduFramer
    }

    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects) {
        match event {
            Event::LinkUp { link, dial, .. } => {
                let Some(i) = self.paths.iter_mut().position(|p| p.link.is_up(dial, link)) else {
                    return out.push(Effect::Close { link });
                };
                send(link, &Pdu::login(&self.name, i as u8, &self.target), out);
            }
            Event::LinkDown { link, .. } => {
                self.paths.iter_mut().for_each(|path| path.abandoned.retain(|of| *of != link));
                if let Some(i) = self.of_link(link) {
                    self.gone(i, now + AGAIN);
                }
            }
            Event::DialFailed { dial, .. } => {
                self.paths.iter_mut().for_each(|p| p.link.dial_failed(dial, now));
            }
            Event::Frame { link, head, body } => {
                if let Some(i) = self.of_link(link) {
                    self.frame(now, i, head, &body, out);
                }
            }
            Event::Tick
            | Event::Request { .. }
            | Event::Withdraw { .. }
            | Event::DiskDone { .. } => {}
        }
    }

    fn flush(&mut self, now: Time, out: &mut Effects) {
        let orders = std::mem::take(&mut self.shared.borrow_mut().orders);
        for (i, order) in orders {
            self.order(now, usize::from(i), order, out);
        }
        for path in &mut self.paths {
            path.link.flush(now, &mut self.dials, out);
        }
    }

    fn wake_at(&self) -> Option<Time> {
        self.paths.iter().filter_map(|p| p.link.wake_at()).min()
    }
}

//! Hosts with iSCSI sessions to clients: a node for each host, which logs in at two gateways, sends
//! the commands that it is told to, and logs in again when a session is gone. The owner decides
//! what becomes of the commands of a lost session, as dm-multipath would.

mod fence;
mod pdu;
mod play;
mod session;

pub use pdu::{Command, PduFramer, Told};
pub use play::Initiator;

use base::{LinkId, Time};
use pdu::{Pdu, data_len, from_target};
use seam::{Buf, DialId, Effect, Effects, Event, Head, Node, Port};
use session::{Session, Step};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// Delay before a lost session is made again.
const AGAIN: Duration = Duration::from_millis(3);

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
enum State {
    Down { dial_at: Time },
    Dialling(DialId),
    LoggingIn(LinkId),
    Full(LinkId, Session),
}

#[derive(Debug)]
struct Path {
    to: SocketAddr,
    state: State,
    deaf_until: Option<Time>,
    /// Connections of sessions that were given up.
    abandoned: Vec<LinkId>,
}

impl Path {
    fn link(&self) -> Option<LinkId> {
        match self.state {
            State::LoggingIn(link) | State::Full(link, _) => Some(link),
            State::Down { .. } | State::Dialling(_) => None,
        }
    }
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
            to,
            state: State::Down { dial_at: Time::ZERO },
            deaf_until: None,
            abandoned: Vec::new(),
        };
        Host { shared, name, target, paths: to.into_iter().map(path).collect(), dials: 0 }
    }

    fn tell(&self, i: usize, seen: Seen) {
        self.shared.borrow_mut().seen.push((i as u8, seen));
    }

    fn of_link(&self, link: LinkId) -> Option<usize> {
        self.paths.iter().position(|path| path.link() == Some(link))
    }

    /// Ends the session of a path, whose next login is at this time.
    fn gone(&mut self, i: usize, dial_at: Time) {
        let path = &mut self.paths[i];
        path.deaf_until = None;
        let state = std::mem::replace(&mut path.state, State::Down { dial_at });
        if let State::Full(_, session) = state {
            self.shared.borrow_mut().links.remove(&(i as u8));
            self.tell(i, Seen::Gone(session.unanswered()));
        }
    }

    fn close(&mut self, now: Time, i: usize, out: &mut Effects) {
        if let Some(link) = self.paths[i].link() {
            out.push(Effect::Close { link });
            self.gone(i, now + AGAIN);
        }
    }

    fn carry_out(&mut self, now: Time, i: usize, steps: Vec<Step>, out: &mut Effects) {
        for step in steps {
            match (step, self.paths[i].link()) {
                (Step::Send(pdu), Some(link)) => send(link, &pdu, out),
                (Step::Tell(seen), _) => self.tell(i, seen),
                (Step::Leave, _) => self.close(now, i, out),
                (Step::Send(_), None) => {}
            }
        }
    }

    fn frame(&mut self, now: Time, i: usize, bhs: &[u8], body: &[u8], out: &mut Effects) {
        let data = &body[..data_len(bhs)];
        match &mut self.paths[i].state {
            State::LoggingIn(link) => {
                let link = *link;
                if bhs[0] != from_target::LOGIN {
                    return self.tell(i, Seen::Wrong(format!("{:#x} in a login", bhs[0])));
                }
                // The volume is missing, or not mapped to this client: try again later.
                if (bhs[36], bhs[37]) != (0, 0) {
                    out.push(Effect::Close { link });
                    return self.gone(i, now + AGAIN * 10);
                }
                self.paths[i].state = State::Full(link, Session::new(bhs, data));
                for link in std::mem::take(&mut self.paths[i].abandoned) {
                    out.push(Effect::Close { link });
                }
                self.shared.borrow_mut().links.insert(i as u8, link);
                self.tell(i, Seen::LoggedIn);
            }
            State::Full(_, session) => {
                let mut steps = Vec::new();
                session.pdu(bhs, data, &mut steps);
                self.carry_out(now, i, steps, out);
            }
            State::Down { .. } | State::Dialling(_) => {}
        }
    }

    fn order(&mut self, now: Time, i: usize, order: Order, out: &mut Effects) {
        let path = &mut self.paths[i];
        let mut steps = Vec::new();
        match (order, &mut path.state) {
            (Order::Send(command), State::Full(_, session)) => session.command(command, &mut steps),
            (Order::Send(command), _) => self.tell(i, Seen::Gone(vec![command.id])),
            (Order::Close, _) => return self.close(now, i, out),
            (Order::Again, State::Full(link, _)) => {
                path.abandoned.push(*link);
                return self.gone(i, now);
            }
            (Order::Deaf(time), State::Full(link, _)) => {
                out.push(Effect::Pause { link: *link });
                path.deaf_until = Some(now + time);
            }
            (Order::Abort, State::Full(_, session)) => session.abort(&mut steps),
            (Order::Again | Order::Deaf(_) | Order::Abort, _) => {}
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
                let dialled = |p: &Path| matches!(p.state, State::Dialling(of) if Some(of) == dial);
                let Some(i) = self.paths.iter().position(dialled) else {
                    return out.push(Effect::Close { link });
                };
                self.paths[i].state = State::LoggingIn(link);
                send(link, &Pdu::login(&self.name, i as u8, &self.target), out);
            }
            Event::LinkDown { link, .. } => {
                self.paths.iter_mut().for_each(|path| path.abandoned.retain(|of| *of != link));
                if let Some(i) = self.of_link(link) {
                    self.gone(i, now + AGAIN);
                }
            }
            Event::DialFailed { dial, .. } => {
                let dialled = |p: &&mut Path| matches!(p.state, State::Dialling(of) if of == dial);
                if let Some(path) = self.paths.iter_mut().find(dialled) {
                    path.state = State::Down { dial_at: now + AGAIN * 3 };
                }
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
            if path.deaf_until.is_some_and(|until| until <= now) {
                path.deaf_until = None;
                if let Some(link) = path.link() {
                    out.push(Effect::Resume { link });
                }
            }
            if let State::Down { dial_at } = path.state
                && dial_at <= now
            {
                self.dials += 1;
                let dial = DialId(self.dials);
                path.state = State::Dialling(dial);
                out.push(Effect::Dial { dial, to: path.to, port: node::sdc::ISCSI });
            }
        }
    }

    fn wake_at(&self) -> Option<Time> {
        let due = |path: &Path| match path.state {
            State::Down { dial_at } => Some(dial_at),
            _ => path.deaf_until,
        };
        self.paths.iter().filter_map(due).min()
    }
}

//! Programs with NBD connections to a client: a node beside each SDC that speaks the protocol as a
//! kernel or QEMU would. It connects, attaches a volume, sends the requests that it is told to, and
//! reconnects when a connection is gone. Connection i attaches volume i of the plan modulo their
//! number, so several connections may have the same volume.

mod framer;
mod play;

pub use framer::ReplyFramer;
pub use play::Outlet;
pub(crate) use play::deaf;

use base::{LinkId, Time};
use seam::{Buf, DialId, Effect, Effects, Event, Head, Node, Port};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use target::nbd::proto::*;

/// Delay before a lost connection is dialled again.
const AGAIN: Duration = Duration::from_millis(3);

/// An order to a connection.
#[derive(Debug)]
pub enum Order {
    /// Send this request, with the operation's index as the cookie.
    Ask {
        /// Index of the operation in the history.
        index: u64,
        /// The NBD command.
        command: u16,
        /// First byte.
        at: u64,
        /// Number of bytes.
        len: u32,
        /// The data of a write.
        body: Vec<u8>,
    },
    /// Close the connection.
    Close,
    /// Stop reading for this long.
    Deaf(Duration),
}

/// An event on a connection.
#[derive(Debug)]
pub enum Seen {
    /// The connection is up, and its volume is attached.
    Attached,
    /// An answer arrived: cookie, error value, and the data of a read.
    Answered(u64, u32, Vec<u8>),
    /// The connection is gone, and these operations are unanswered.
    Gone(Vec<u64>),
    /// The server broke the protocol.
    Wrong(String),
}

/// Orders and events by connection, shared between the world's owner and the node.
#[derive(Default, Debug)]
pub struct Shared {
    /// Waiting orders in sequence.
    pub orders: VecDeque<(u8, Order)>,
    /// Events that the owner has not taken yet.
    pub seen: Vec<(u8, Seen)>,
    /// The link of each connection that is up.
    pub links: BTreeMap<u8, LinkId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Down { dial_at: Time },
    Dialling(DialId),
    Greeted(LinkId),
    Serving(LinkId),
}

#[derive(Debug)]
struct Connection {
    volume: u8,
    state: State,
    deaf_until: Option<Time>,
    /// Cookies of unanswered requests.
    asked: Vec<u64>,
}

impl Connection {
    fn link(&self) -> Option<LinkId> {
        match self.state {
            State::Greeted(link) | State::Serving(link) => Some(link),
            State::Down { .. } | State::Dialling(_) => None,
        }
    }
}

/// The node with all connections to one SDC.
pub struct Host {
    shared: Rc<RefCell<Shared>>,
    to: SocketAddr,
    connections: Vec<Connection>,
    /// Length of the data in a successful answer, by cookie.
    lens: framer::Lens,
    dials: u64,
}

impl Host {
    /// Creates one connection to the SDC at this address for each of these volumes.
    pub fn new(shared: Rc<RefCell<Shared>>, to: SocketAddr, volumes: Vec<u8>) -> Host {
        let connection = |volume| Connection {
            volume,
            state: State::Down { dial_at: Time::ZERO },
            deaf_until: None,
            asked: Vec::new(),
        };
        let connections = volumes.into_iter().map(connection).collect();
        Host { shared, to, connections, lens: Default::default(), dials: 0 }
    }

    fn tell(&self, i: usize, seen: Seen) {
        self.shared.borrow_mut().seen.push((i as u8, seen));
    }

    fn of_link(&self, link: LinkId) -> Option<usize> {
        self.connections.iter().position(|c| c.link() == Some(link))
    }

    fn gone(&mut self, i: usize, now: Time) {
        let connection = &mut self.connections[i];
        connection.state = State::Down { dial_at: now + AGAIN };
        connection.deaf_until = None;
        let asked = std::mem::take(&mut connection.asked);
        self.lens.borrow_mut().retain(|cookie, _| !asked.contains(cookie));
        self.shared.borrow_mut().links.remove(&(i as u8));
        self.tell(i, Seen::Gone(asked));
    }

    fn frame(&mut self, now: Time, i: usize, head: &[u8], body: Buf, out: &mut Effects) {
        let be32 = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four"));
        let be64 = |at: usize| u64::from_be_bytes(head[at..at + 8].try_into().expect("eight"));
        match self.connections[i].state {
            State::Greeted(link) if head.len() == framer::GREETING => self.go(i, link, out),
            State::Greeted(link) => match be32(12) {
                NBD_REP_ACK => {
                    self.connections[i].state = State::Serving(link);
                    self.shared.borrow_mut().links.insert(i as u8, link);
                    self.tell(i, Seen::Attached);
                }
                NBD_REP_INFO => {}
                // The volume is missing, or not mapped to this client: try again later.
                _ => {
                    out.push(Effect::Close { link });
                    self.gone(i, now);
                    self.connections[i].state = State::Down { dial_at: now + AGAIN * 10 };
                }
            },
            State::Serving(_) => {
                let cookie = be64(8);
                let asked = &mut self.connections[i].asked;
                match asked.iter().position(|c| *c == cookie) {
                    Some(at) => {
                        asked.remove(at);
                        self.tell(i, Seen::Answered(cookie, be32(4), body.to_vec()));
                    }
                    None => self.tell(i, Seen::Wrong(format!("nobody asked {cookie}"))),
                }
            }
            State::Down { .. } | State::Dialling(_) => {}
        }
    }

    fn go(&mut self, i: usize, link: LinkId, out: &mut Effects) {
        let flags = NBD_FLAG_C_FIXED_NEWSTYLE | NBD_FLAG_C_NO_ZEROES;
        out.send(link, Head::new(&flags.to_be_bytes()), Buf::EMPTY);
        let name = format!("v{}", self.connections[i].volume);
        let mut bytes = IHAVEOPT.to_be_bytes().to_vec();
        bytes.extend(NBD_OPT_GO.to_be_bytes());
        bytes.extend((name.len() as u32 + 6).to_be_bytes());
        bytes.extend((name.len() as u32).to_be_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend(0u16.to_be_bytes());
        out.send(link, Head::new(&bytes), Buf::EMPTY);
    }

    fn carry_out(&mut self, now: Time, i: usize, order: Order, out: &mut Effects) {
        let link = self.connections[i].link();
        match (order, self.connections[i].state) {
            (Order::Ask { index, command, at, len, body }, State::Serving(link)) => {
                let mut head = NBD_REQUEST_MAGIC.to_be_bytes().to_vec();
                head.extend(0u16.to_be_bytes());
                head.extend(command.to_be_bytes());
                head.extend(index.to_be_bytes());
                head.extend(at.to_be_bytes());
                head.extend(len.to_be_bytes());
                let data = if command == NBD_CMD_READ { len } else { 0 };
                self.lens.borrow_mut().insert(index, data);
                self.connections[i].asked.push(index);
                let body = out.copy(&body);
                out.send(link, Head::new(&head), body);
            }
            (Order::Ask { index, .. }, _) => self.tell(i, Seen::Gone(vec![index])),
            (Order::Close, _) => {
                if let Some(link) = link {
                    out.push(Effect::Close { link });
                    self.gone(i, now);
                }
            }
            (Order::Deaf(time), State::Serving(link)) => {
                out.push(Effect::Pause { link });
                self.connections[i].deaf_until = Some(now + time);
            }
            (Order::Deaf(_), _) => {}
        }
    }
}

impl Node for Host {
    type Framer = ReplyFramer;

    fn framer(&mut self, _: Port) -> ReplyFramer {
        ReplyFramer::new(self.lens.clone())
    }

    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects) {
        match event {
            Event::LinkUp { link, dial, .. } => {
                let dialled = |c: &Connection| dial.map(State::Dialling) == Some(c.state);
                match self.connections.iter().position(dialled) {
                    Some(i) => self.connections[i].state = State::Greeted(link),
                    None => out.push(Effect::Close { link }),
                }
            }
            Event::LinkDown { link, .. } => {
                if let Some(i) = self.of_link(link) {
                    self.gone(i, now);
                }
            }
            Event::DialFailed { dial, .. } => {
                let dialled = |c: &&mut Connection| c.state == State::Dialling(dial);
                if let Some(c) = self.connections.iter_mut().find(dialled) {
                    c.state = State::Down { dial_at: now + AGAIN * 3 };
                }
            }
            Event::Frame { link, head, body } => {
                if let Some(i) = self.of_link(link) {
                    self.frame(now, i, head, body, out);
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
            self.carry_out(now, usize::from(i), order, out);
        }
        for connection in &mut self.connections {
            if connection.deaf_until.is_some_and(|until| until <= now) {
                connection.deaf_until = None;
                if let Some(link) = connection.link() {
                    out.push(Effect::Resume { link });
                }
            }
            if let State::Down { dial_at } = connection.state
                && dial_at <= now
            {
                self.dials += 1;
                connection.state = State::Dialling(DialId(self.dials));
                let (dial, to) = (DialId(self.dials), self.to);
                out.push(Effect::Dial { dial, to, port: node::sdc::NBD });
            }
        }
    }

    fn wake_at(&self) -> Option<Time> {
        let due = |c: &Connection| match c.state {
            State::Down { dial_at } => Some(dial_at),
            _ => c.deaf_until,
        };
        self.connections.iter().filter_map(due).min()
    }
}

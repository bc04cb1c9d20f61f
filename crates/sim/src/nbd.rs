//! Programs with NBD connections to a client: a node beside each SDC that speaks the protocol as a
//! kernel or QEMU would. It connects, attaches a volume, sends the requests that it is told to, and
//! reconnects when a connection is gone. Connection i attaches volume i of the plan modulo their
//! number, so several connections may have the same volume.

mod framer;
mod play;

pub use framer::ReplyFramer;
pub use play::Outlet;
pub(crate) use play::deaf;

use crate::host_link::{AGAIN, HostLink};
use base::{LinkId, Time};
use seam::{Buf, Effect, Effects, Event, Head, Node, Port};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use target::nbd::proto::*;

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

#[derive(Debug)]
struct Connection {
    volume: u8,
    link: HostLink,
    /// True once the volume is attached.
    serves: bool,
    /// Cookies of unanswered requests.
    asked: Vec<u64>,
}

/// The node with all connections to one SDC.
pub struct Host {
    shared: Rc<RefCell<Shared>>,
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
            link: HostLink::new(to, node::sdc::NBD),
            serves: false,
            asked: Vec::new(),
        };
        let connections = volumes.into_iter().map(connection).collect();
        Host { shared, connections, lens: Default::default(), dials: 0 }
    }

    fn tell(&self, i: usize, seen: Seen) {
        self.shared.borrow_mut().seen.push((i as u8, seen));
    }

    fn of_link(&self, link: LinkId) -> Option<usize> {
        self.connections.iter().position(|c| c.link.id() == Some(link))
    }

    /// Ends a connection, which is dialled again at this time.
    fn gone(&mut self, i: usize, dial_at: Time) {
        let connection = &mut self.connections[i];
        connection.link.give_up(dial_at);
        connection.serves = false;
        let asked = std::mem::take(&mut connection.asked);
        self.lens.borrow_mut().retain(|cookie, _| !asked.contains(cookie));
        self.shared.borrow_mut().links.remove(&(i as u8));
        self.tell(i, Seen::Gone(asked));
    }

    fn frame(&mut self, now: Time, i: usize, head: &[u8], body: Buf, out: &mut Effects) {
        let be32 = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four"));
        let be64 = |at: usize| u64::from_be_bytes(head[at..at + 8].try_into().expect("eight"));
        let Some(link) = self.connections[i].link.id() else { return };
        match self.connections[i].serves {
            false if head.len() == framer::GREETING => self.go(i, link, out),
            false => match be32(12) {
                NBD_REP_ACK => {
                    self.connections[i].serves = true;
                    self.shared.borrow_mut().links.insert(i as u8, link);
                    self.tell(i, Seen::Attached);
                }
                NBD_REP_INFO => {}
                // The volume is missing, or not mapped to this client: try again later.
                _ => {
                    out.push(Effect::Close { link });
                    self.gone(i, now + AGAIN * 10);
                }
            },
            true => {
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
        let connection = &mut self.connections[i];
        let link = connection.link.id();
        match (order, link.filter(|_| connection.serves)) {
            (Order::Ask { index, command, at, len, body }, Some(link)) => {
                let mut head = NBD_REQUEST_MAGIC.to_be_bytes().to_vec();
                head.extend(0u16.to_be_bytes());
                head.extend(command.to_be_bytes());
                head.extend(index.to_be_bytes());
                head.extend(at.to_be_bytes());
                head.extend(len.to_be_bytes());
                let data = if command == NBD_CMD_READ { len } else { 0 };
                self.lens.borrow_mut().insert(index, data);
                connection.asked.push(index);
                let body = out.copy(&body);
                out.send(link, Head::new(&head), body);
            }
            (Order::Ask { index, .. }, _) => self.tell(i, Seen::Gone(vec![index])),
            (Order::Close, _) => {
                if let Some(link) = link {
                    out.push(Effect::Close { link });
                    self.gone(i, now + AGAIN);
                }
            }
            (Order::Deaf(time), Some(_)) => connection.link.pause(now + time, out),
            (Order::Deaf(_), None) => {}
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
                if !self.connections.iter_mut().any(|c| c.link.is_up(dial, link)) {
                    out.push(Effect::Close { link });
                }
            }
            Event::LinkDown { link, .. } => {
                if let Some(i) = self.of_link(link) {
                    self.gone(i, now + AGAIN);
                }
            }
            Event::DialFailed { dial, .. } => {
                self.connections.iter_mut().for_each(|c| c.link.dial_failed(dial, now));
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
            connection.link.flush(now, &mut self.dials, out);
        }
    }

    fn wake_at(&self) -> Option<Time> {
        self.connections.iter().filter_map(|c| c.link.wake_at()).min()
    }
}

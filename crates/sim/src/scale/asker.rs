//! The administrator of a scale run: sends one order after the other, on a connection
//! that must not break.

use base::{Limits, LinkId, Time};
use prost::Message;
use seam::{DialId, Effect, Effects, Event, Node, Port};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use wire::control::{AdminReply, AdminRequest, Ask, Hello, Role};
use wire::{Control, HANDSHAKE_VERSION, Header, Kind, PeerFramer, control_frame};

/// Orders, and their answers.
#[derive(Default)]
pub(super) struct Desk {
    /// Waiting orders in sequence. After adding one, wake up the process with `poke` of
    /// [`crate::world::World`].
    pub orders: VecDeque<Ask>,
    /// One answer for each completed order.
    pub replies: Vec<AdminReply>,
}

/// The administrator's node.
pub(super) struct Asker {
    desk: Rc<RefCell<Desk>>,
    mdm: SocketAddr,
    limits: Limits,
    dialled: bool,
    retry_at: Option<Time>,
    link: Option<LinkId>,
    /// An order waits for its answer.
    asking: bool,
}

impl Asker {
    /// Creates a node that sends the desk's orders to this MDM.
    pub(super) fn new(desk: Rc<RefCell<Desk>>, mdm: SocketAddr, limits: Limits) -> Asker {
        let (dialled, retry_at, link, asking) = (false, None, None, false);
        Asker { desk, mdm, limits, dialled, retry_at, link, asking }
    }

    fn send<M: Control>(link: LinkId, message: &M, out: &mut Effects) {
        let header = Header::new(M::KIND);
        let (head, body) = control_frame(HANDSHAKE_VERSION, header, message, out.pool());
        out.send(link, head, body);
    }
}

impl Node for Asker {
    type Framer = PeerFramer;

    fn framer(&mut self, _: Port) -> PeerFramer {
        PeerFramer::new(self.limits.frame_body)
    }

    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects) {
        match event {
            Event::LinkUp { link, .. } => {
                let version = (u32::from(wire::VERSION_MIN), u32::from(wire::VERSION));
                let hello = Hello {
                    role: Role::Admin as i32,
                    version_min: version.0,
                    version_max: version.1,
                    name: "admin".into(),
                    ..Hello::default()
                };
                Asker::send(link, &hello, out);
            }
            Event::LinkDown { .. } | Event::DialFailed { .. } => {
                assert!(!self.asking, "the connection broke in the middle of an order");
                (self.link, self.dialled) = (None, false);
                self.retry_at = Some(now + Duration::from_millis(50));
            }
            Event::Frame { link, head, body } => match wire::parse(head).kind() {
                Some(Kind::Welcome) => self.link = Some(link),
                Some(Kind::AdminReply) => {
                    let reply = AdminReply::decode(&body[..]).expect("the MDM writes no nonsense");
                    self.desk.borrow_mut().replies.push(reply);
                    self.asking = false;
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn flush(&mut self, now: Time, out: &mut Effects) {
        if !self.dialled && self.retry_at.is_none_or(|at| at <= now) {
            (self.dialled, self.retry_at) = (true, None);
            out.push(Effect::Dial { dial: DialId(1), to: self.mdm, port: Port::Ours });
        }
        let Some(link) = self.link.filter(|_| !self.asking) else { return };
        if let Some(ask) = self.desk.borrow_mut().orders.pop_front() {
            Asker::send(link, &AdminRequest::of(ask), out);
            self.asking = true;
        }
    }

    fn wake_at(&self) -> Option<Time> {
        self.retry_at
    }
}

//! A host that uses iSCSI: a session for each path.

mod pdu;
mod session;

use super::{Order, Seen, Shared, host_name, send};
use crate::host_link::{AGAIN, HostLink};
use crate::plan::HostKind;
use base::{ClusterId, LinkId, Time, VolumeId};
use pdu::{Command, Pdu, PduFramer, data_len, from_target};
use seam::{Effect, Effects, Event, Node, Port};
use session::{Session, Step};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

#[derive(Debug)]
struct Path {
    link: HostLink,
    /// None until the host is logged in.
    session: Option<Session>,
    /// Connections of sessions that were given up.
    abandoned: Vec<LinkId>,
}

/// The node of a host.
pub(super) struct Host {
    shared: Rc<RefCell<Shared>>,
    name: String,
    target: String,
    paths: Vec<Path>,
    dials: u64,
}

impl Host {
    /// Creates host number `i`, with one path to the volume's target at each of these addresses.
    pub(super) fn new(
        shared: Rc<RefCell<Shared>>,
        i: u8,
        (cluster, volume): (ClusterId, VolumeId),
        to: impl IntoIterator<Item = SocketAddr>,
    ) -> Host {
        let path = |to| Path {
            link: HostLink::new(to, node::sdc::ISCSI),
            session: None,
            abandoned: Vec::new(),
        };
        let name = host_name(HostKind::Iscsi, i);
        let (target, paths) = (pdu::target(cluster, volume), to.into_iter().map(path).collect());
        Host { shared, name, target, paths, dials: 0 }
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
                (Step::Send(pdu), Some(link)) => send(link, &pdu.bhs, &pdu.data, out),
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
                self.shared.borrow_mut().links.insert(i as u8, vec![link]);
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
            (Order::Send(command), Some(session)) => {
                session.command(Command::of(command), &mut steps);
            }
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
                let login = Pdu::login(&self.name, i as u8, &self.target);
                send(link, &login.bhs, &login.data, out);
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

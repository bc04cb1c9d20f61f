//! A host that uses NVMe/TCP: a controller for each path, with an admin queue and one I/O queue.
//!
//! A host gives a path up with both of its links. Unless its gateway breaks one of them, or the
//! host closes both, the links stay: until another controller has taken the place of the former
//! one, or until the gateway misses the keep-alive of the former one.

mod controller;
mod io;
mod pdu;
mod status;

use super::{Order, Seen, Shared, host_name, send};
use crate::host_link::{AGAIN, HostLink};
use crate::plan::HostKind;
use base::{ClusterId, LinkId, Time, VolumeId};
use controller::{Controller, Queue, Step};
use pdu::{Pdu, PduFramer};
use seam::{DialId, Effect, Effects, Event, Node, Port};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// The keep-alive time-out that a host asks for.
const KEEP_ALIVE_MS: u32 = 1000;
/// Interval of a host's keep alives.
const KEEP_ALIVE_EVERY: Duration = Duration::from_millis(400);

#[derive(Debug)]
struct Path {
    to: SocketAddr,
    admin: HostLink,
    /// None until the controller is ready.
    io: Option<HostLink>,
    /// None until the admin link is up.
    controller: Option<Controller>,
    keep_alive_at: Option<Time>,
    /// Admin links of controllers that were given up.
    abandoned: Vec<LinkId>,
}

impl Path {
    fn link(&self, queue: Queue) -> Option<LinkId> {
        match queue {
            Queue::Admin => self.admin.id(),
            Queue::Io => self.io.as_ref()?.id(),
        }
    }

    /// Returns all links that are up.
    fn links(&self) -> Vec<LinkId> {
        [Queue::Admin, Queue::Io].into_iter().filter_map(|queue| self.link(queue)).collect()
    }
}

/// The node of a host.
pub(super) struct Host {
    shared: Rc<RefCell<Shared>>,
    host: pdu::Host,
    volume: VolumeId,
    paths: Vec<Path>,
    dials: u64,
    /// Controllers that were given up while their links stayed.
    given_up: u32,
}

impl Host {
    /// Creates host number `i`, which uses this volume, with one path to the cluster at each of
    /// these addresses.
    pub(super) fn new(
        shared: Rc<RefCell<Shared>>,
        i: u8,
        (cluster, volume): (ClusterId, VolumeId),
        to: impl IntoIterator<Item = SocketAddr>,
    ) -> Host {
        let path = |to| Path {
            to,
            admin: HostLink::new(to, node::sdc::NVME),
            io: None,
            controller: None,
            keep_alive_at: None,
            abandoned: Vec::new(),
        };
        let host = pdu::Host {
            name: host_name(HostKind::Nvme, i),
            id: i + 1,
            subsystem: target::ident::nqn(cluster),
            keep_alive_ms: KEEP_ALIVE_MS,
        };
        let paths = to.into_iter().map(path).collect();
        Host { shared, host, volume, paths, dials: 0, given_up: 0 }
    }

    fn tell(&self, i: usize, seen: Seen) {
        self.shared.borrow_mut().seen.push((i as u8, seen));
    }

    fn of_link(&self, link: LinkId) -> Option<(usize, Queue)> {
        let both = [Queue::Admin, Queue::Io];
        let all = (0..self.paths.len()).flat_map(|i| both.map(|queue| (i, queue)));
        all.into_iter().find(|(i, queue)| self.paths[*i].link(*queue) == Some(link))
    }

    /// Ends the controller of a path, whose next one is connected at this time.
    fn gone(&mut self, i: usize, dial_at: Time) {
        let path = &mut self.paths[i];
        path.admin.give_up(dial_at);
        (path.io, path.keep_alive_at) = (None, None);
        if let Some(controller) = path.controller.take().filter(Controller::is_ready) {
            self.shared.borrow_mut().links.remove(&(i as u8));
            self.tell(i, Seen::Gone(controller.unanswered()));
        }
    }

    fn close(&mut self, i: usize, dial_at: Time, out: &mut Effects) {
        for link in self.paths[i].links() {
            out.push(Effect::Close { link });
        }
        self.gone(i, dial_at);
    }

    fn carry_out(&mut self, now: Time, i: usize, steps: Vec<Step>, out: &mut Effects) {
        for step in steps {
            match step {
                Step::Send(queue, pdu) => {
                    if let Some(link) = self.paths[i].link(queue) {
                        send(link, &pdu.head, &pdu.data, out);
                    }
                }
                Step::Tell(seen) => {
                    if matches!(seen, Seen::LoggedIn) {
                        self.connected(now, i, out);
                    }
                    self.tell(i, seen);
                }
                Step::DialIo => {
                    let path = &mut self.paths[i];
                    path.io = Some(HostLink::new(path.to, node::sdc::NVME));
                }
                Step::Leave => self.close(i, now + AGAIN * 10, out),
            }
        }
    }

    /// A path can be used. Half of the controllers that were given up end with it; the links of the
    /// others stay.
    fn connected(&mut self, now: Time, i: usize, out: &mut Effects) {
        let path = &mut self.paths[i];
        path.keep_alive_at = Some(now + KEEP_ALIVE_EVERY);
        self.shared.borrow_mut().links.insert(i as u8, path.links());
        for link in std::mem::take(&mut path.abandoned) {
            self.given_up += 1;
            if self.given_up.is_multiple_of(2) {
                out.push(Effect::Close { link });
            }
        }
    }

    fn order(&mut self, now: Time, i: usize, order: Order, out: &mut Effects) {
        let path = &mut self.paths[i];
        let ready = path.controller.as_mut().filter(|controller| controller.is_ready());
        let mut steps = Vec::new();
        match (order, ready) {
            (Order::Send(command), Some(controller)) => controller.command(command, &mut steps),
            (Order::Send(command), None) => self.tell(i, Seen::Gone(vec![command.id])),
            (Order::Close, _) => return self.close(i, now + AGAIN, out),
            (Order::Again, Some(_)) => {
                path.abandoned.extend(path.admin.id());
                return self.gone(i, now);
            }
            (Order::Deaf(time), Some(_)) => {
                path.admin.pause(now + time, out);
                if let Some(io) = &mut path.io {
                    io.pause(now + time, out);
                }
            }
            (Order::Abort, Some(controller)) => controller.abort(&mut steps),
            (Order::Again | Order::Deaf(_) | Order::Abort, None) => {}
        }
        self.carry_out(now, i, steps, out);
    }

    fn link_up(&mut self, dial: Option<DialId>, link: LinkId, out: &mut Effects) {
        let admin = self.paths.iter_mut().position(|path| path.admin.is_up(dial, link));
        if let Some(i) = admin {
            let flow = i == 0; // the other one disables flow control
            let controller = Controller::new(self.host.clone(), self.volume, flow);
            self.paths[i].controller = Some(controller);
        } else {
            let mut links = self.paths.iter_mut().filter_map(|path| path.io.as_mut());
            if !links.any(|io| io.is_up(dial, link)) {
                return out.push(Effect::Close { link });
            }
        }
        let set_up = Pdu::set_up();
        send(link, &set_up.head, &set_up.data, out);
    }
}

impl Node for Host {
    type Framer = PduFramer;

    fn framer(&mut self, _: Port) -> PduFramer {
        PduFramer
    }

    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects) {
        match event {
            Event::LinkUp { link, dial, .. } => self.link_up(dial, link, out),
            Event::LinkDown { link, .. } => {
                self.paths.iter_mut().for_each(|path| path.abandoned.retain(|of| *of != link));
                if let Some((i, queue)) = self.of_link(link) {
                    let other = if queue == Queue::Io { Queue::Admin } else { Queue::Io };
                    if let Some(link) = self.paths[i].link(other) {
                        out.push(Effect::Close { link });
                    }
                    self.gone(i, now + AGAIN);
                }
            }
            Event::DialFailed { dial, .. } => {
                for path in &mut self.paths {
                    path.admin.dial_failed(dial, now);
                    if let Some(io) = &mut path.io {
                        io.dial_failed(dial, now);
                    }
                }
            }
            Event::Frame { link, head, body } => {
                let Some((i, queue)) = self.of_link(link) else { return };
                let mut steps = Vec::new();
                if let Some(controller) = &mut self.paths[i].controller {
                    controller.pdu(queue, head, &body, &mut steps);
                }
                self.carry_out(now, i, steps, out);
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
        for i in 0..self.paths.len() {
            let path = &mut self.paths[i];
            let mut steps = Vec::new();
            if let (Some(at), Some(of)) = (&mut path.keep_alive_at, &mut path.controller)
                && *at <= now
            {
                *at = now + KEEP_ALIVE_EVERY;
                of.keep_alive(&mut steps);
            }
            for link in path.io.iter_mut().chain([&mut path.admin]) {
                link.flush(now, &mut self.dials, out);
            }
            self.carry_out(now, i, steps, out);
        }
    }

    fn wake_at(&self) -> Option<Time> {
        let links = |path: &Path| {
            let io = path.io.as_ref().and_then(HostLink::wake_at);
            let both = [io, path.admin.wake_at(), path.keep_alive_at];
            both.into_iter().flatten().min()
        };
        self.paths.iter().filter_map(links).min()
    }
}

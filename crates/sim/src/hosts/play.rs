//! Hosts in a run: which requests go over which path, how they end, and where those of a lost path
//! are sent again.
//!
//! A request of a lost iSCSI session is sent again when its gateway knows that the session is gone,
//! over any path to the same gateway. A host with two gateways also excludes the former one
//! ([`super::fence`]), and then sends the request over the other one. A request of a lost NVMe
//! controller is sent again at once, as Linux does it. Whatever is repeated, an unanswered request
//! of a lost path takes effect before any request that follows when its gateway knows of the loss.

use super::fence::{self, Fence, Next};
use super::multipath::{self, Multipath};
use super::orders::Standing;
use super::{Command, Order, Seen, Shared, Told, What, host_name, iscsi, nvme};
use crate::check::Failure;
use crate::history::Record;
use crate::plan::{HostKind, HostPlan, IoKind, PathFault, Who};
use crate::stage::Stage;
use crate::world::{ProcId, ProcState};
use base::{LinkId, Prng, SECTOR, UNIT, VolumeId};
use seam::BlockError;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// A lost path of which the gateway may not know yet.
#[derive(Debug)]
struct Broken {
    path: u8,
    /// The gateway's ids of its links, and the gateway's incarnation. When the gateway does not
    /// serve one of them any more, it knows that the path is gone.
    links: Vec<LinkId>,
    life: u32,
    asked: Vec<u32>,
}

/// A host.
#[derive(Debug)]
pub struct Initiator {
    proc: ProcId,
    pub(super) name: String,
    shared: Rc<RefCell<Shared>>,
    pub(super) plan: HostPlan,
    /// The volume, by its id when the host was started.
    pub(super) volume: Option<VolumeId>,
    /// Paths over which commands can be sent: the gateway's ids of the links, and its incarnation.
    up: BTreeMap<u8, (Vec<LinkId>, u32)>,
    broken: Vec<Broken>,
    /// The path of each command.
    pub(super) paths: BTreeMap<u32, u8>,
    /// What orders mean for its commands.
    pub(super) standing: Standing,
    /// Commands that wait until they may be sent again.
    stranded: Vec<u32>,
    /// Only for a host that excludes its former gateway.
    fence: Option<Fence>,
    /// Only for a host with two gateways.
    multipath: Option<Multipath>,
    prng: Prng,
}

impl Initiator {
    pub(super) fn is_up(&self) -> [bool; 2] {
        [0, 1].map(|path| self.up.contains_key(&path))
    }

    /// Returns the paths over which I/O may be sent.
    fn usable(&self) -> Vec<u8> {
        if let (true, Some(multipath)) = (self.plan.moves, &self.multipath) {
            return multipath.path(self.is_up()).into_iter().collect();
        }
        let fenced = |path: &u8| self.fence.as_ref().is_none_or(|f| f.path() == Some(*path));
        self.up.keys().copied().filter(fenced).collect()
    }
}

impl Stage {
    /// Adds the hosts. They come after all other processes, so that these are the same in plans
    /// without hosts.
    pub(crate) fn add_hosts(&mut self) {
        for (i, plan) in self.plan.hosts.clone().into_iter().enumerate() {
            let proc = self.world.add(&format!("host{i}"), None, Vec::new());
            let name = host_name(plan.kind, i as u8);
            self.desk.borrow_mut().hosts.push(name.clone());
            self.hosts.push(Initiator {
                proc,
                name,
                shared: Rc::default(),
                plan,
                volume: None,
                up: BTreeMap::new(),
                broken: Vec::new(),
                paths: BTreeMap::new(),
                standing: Standing::default(),
                stranded: Vec::new(),
                fence: plan.fences().then(|| Fence::new(i as u8)),
                multipath: plan.has_two_gateways().then(Multipath::default),
                prng: Prng::new(self.plan.seed).fork(&format!("host{i}")),
            });
        }
    }

    /// Starts the hosts.
    pub(crate) fn start_hosts(&mut self) {
        for i in 0..self.hosts.len() {
            let cluster = self.sdc(0).map(|sdc| sdc.map().cluster);
            let volume = self.volumes[usize::from(self.hosts[i].plan.volume)].id;
            let (Some(cluster), Some(volume)) = (cluster, volume) else { continue };
            let host = &mut self.hosts[i];
            host.volume = Some(volume);
            let to = host.plan.gateways.map(|client| Stage::address(Who::Sdc(client)));
            let (shared, ids) = (host.shared.clone(), (cluster, volume));
            match host.plan.kind {
                HostKind::Iscsi => {
                    let node = iscsi::Host::new(shared, i as u8, ids, to);
                    self.world.boot(host.proc, Box::new(node));
                }
                HostKind::Nvme => {
                    let node = nvme::Host::new(shared, i as u8, ids, to);
                    self.world.boot(host.proc, Box::new(node));
                }
            }
        }
    }

    fn order_path(&mut self, i: usize, path: u8, order: Order) {
        let host = &mut self.hosts[i];
        if self.world.state(host.proc) == ProcState::Running {
            host.shared.borrow_mut().orders.push_back((path, order));
            self.world.poke(host.proc);
        }
    }

    /// Carries out a fault of a path.
    pub(crate) fn break_path(&mut self, host: u8, path: u8, fault: PathFault) {
        let i = usize::from(host);
        if i >= self.hosts.len() || path > 1 {
            return;
        }
        let order = match fault {
            PathFault::Close => Order::Close,
            PathFault::Again => Order::Again,
            PathFault::Abort => Order::Abort,
            PathFault::Deaf(ms) => Order::Deaf(Duration::from_millis(ms.into())),
            PathFault::Leave if self.hosts[i].plan.moves => return self.change_path(i),
            PathFault::Leave => {
                if let Some(fence) = &mut self.hosts[i].fence {
                    fence.go_over();
                }
                return self.fence_on(i);
            }
        };
        self.order_path(i, path, order);
    }

    /// Returns true when a reservation of a host may forbid others to write to this volume.
    pub(crate) fn may_be_reserved(&self, volume: VolumeId) -> bool {
        self.hosts.iter().any(|host| host.fence.is_some() && host.volume == Some(volume))
    }

    /// Returns true for an operation of a host.
    pub(crate) fn is_hosts(&self, index: usize) -> bool {
        self.hosts.iter().any(|host| host.paths.contains_key(&(index as u32)))
    }

    /// Returns true for an operation of a host that uses NVMe.
    pub(crate) fn is_nvme(&self, index: usize) -> bool {
        let mut nvme = self.hosts.iter().filter(|host| host.plan.kind == HostKind::Nvme);
        nvme.any(|host| host.paths.contains_key(&(index as u32)))
    }

    /// Sends a request over a path of a host to this client. Returns false if none of them can have
    /// it.
    pub(crate) fn ask_a_host(
        &mut self,
        client: u8,
        (v, id): (u8, VolumeId),
        kind: IoKind,
        (sector, sectors): (u32, u32),
    ) -> bool {
        for i in 0..self.hosts.len() {
            if self.hosts[i].fence.is_some() {
                self.fence_on(i);
            }
            let host = &mut self.hosts[i];
            let there = |path: &u8| host.plan.gateways[usize::from(*path)] == client;
            let paths: Vec<u8> = host.usable().into_iter().filter(there).collect();
            if host.volume != Some(id) || paths.is_empty() || host.prng.chance(0.3) {
                continue;
            }
            let path = *host.prng.pick(&paths);
            // Hosts do not know parts that were added later.
            let first = self.plan.volumes[usize::from(v)] * (UNIT / SECTOR);
            if sector + sectors > first {
                return false;
            }
            return self.send_over(i, path, kind, (sector, sectors));
        }
        false
    }

    /// Sends a request over a path that is up. Returns false if a host can't ask for this.
    fn send_over(
        &mut self,
        i: usize,
        path: u8,
        kind: IoKind,
        (sector, sectors): (u32, u32),
    ) -> bool {
        let host = &self.hosts[i];
        let client = host.plan.gateways[usize::from(path)];
        let limits = &self.plan.limits;
        let most = match host.plan.kind {
            HostKind::Iscsi => limits.scsi_transfer,
            HostKind::Nvme => limits.nvme_mdts,
        };
        let long = sectors * SECTOR > most;
        let dead = self.world.state(self.proc(Who::Sdc(client))) == ProcState::Dead;
        let Some(volume) = host.volume.filter(|_| !dead) else { return false };
        let moves_data = !matches!(kind, IoKind::Zero | IoKind::Discard);
        if kind == IoKind::Extents || long && moves_data {
            return false;
        }
        let (index, body) = self.record(client, volume, kind, sector, sectors);
        let id = index as u32;
        let what = match kind {
            IoKind::Read | IoKind::Extents => What::Read,
            IoKind::Write => What::Write,
            IoKind::Zero => What::Zero { hole: false },
            IoKind::Discard => What::Zero { hole: true },
            IoKind::Swap => What::Swap,
        };
        let command = Command { id, what, sector, sectors, data: body };
        self.meet_host(i, ["sim: asked over iscsi", "sim: asked over nvme"]);
        self.hosts[i].paths.insert(id, path);
        self.sends(i, path, index);
        self.order_path(i, path, Order::Send(command));
        true
    }

    /// Counts a mark that each protocol has.
    fn meet_host(&mut self, i: usize, [iscsi, nvme]: [&str; 2]) {
        let of_kind = match self.hosts[i].plan.kind {
            HostKind::Iscsi => iscsi,
            HostKind::Nvme => nvme,
        };
        self.marks.meet(of_kind);
    }

    /// Processes the events of the hosts.
    pub(crate) fn take_in_hosts(&mut self) -> Result<(), Failure> {
        for i in 0..self.hosts.len() {
            let news = std::mem::take(&mut self.hosts[i].shared.borrow_mut().seen);
            for (path, seen) in news {
                self.host_seen(i, path, seen)?;
            }
            self.notice_gone(i);
        }
        Ok(())
    }

    fn host_seen(&mut self, i: usize, path: u8, seen: Seen) -> Result<(), Failure> {
        let sdc = self.proc(Who::Sdc(self.hosts[i].plan.gateways[usize::from(path)]));
        let life = self.world.life(sdc);
        let host = &mut self.hosts[i];
        match seen {
            Seen::LoggedIn => {
                let links = host.shared.borrow().links.get(&path).cloned().unwrap_or_default();
                let far: Option<Vec<LinkId>> =
                    links.iter().map(|link| self.world.far_end(host.proc, *link)).collect();
                if let Some(far) = far.filter(|far| !far.is_empty()) {
                    host.up.insert(path, (far, life));
                }
                self.fence_on(i);
                self.send_stranded(i);
            }
            Seen::Gone(mut asked) => {
                self.meet_host(
                    i,
                    ["sim: an iscsi session was gone", "sim: an nvme controller was gone"],
                );
                let host = &mut self.hosts[i];
                asked.retain(|id| *id < fence::FIRST);
                let up = host.up.remove(&path);
                if let Some(fence) = &mut host.fence {
                    fence.gone(path);
                    if fence.path() == Some(path) {
                        fence.go_over();
                    }
                }
                let at_once = host.plan.repeats_at_once();
                if let Some(multipath) = &mut host.multipath {
                    multipath.gone(path);
                }
                if let Some((links, life)) = up {
                    host.broken.push(Broken { path, links, life, asked: asked.clone() });
                }
                asked.iter().for_each(|id| self.unanswered(*id as usize));
                asked.iter().for_each(|id| self.is_over(i, path, *id));
                asked.retain(|_| at_once);
                asked.into_iter().for_each(|id| self.again(i, id));
                self.fence_on(i);
            }
            Seen::Answered(id, told) if id >= multipath::FIRST => self.activated(i, id, &told),
            Seen::Aborted(id) if id >= multipath::FIRST => self.activated(i, id, &Told::Later),
            Seen::Aborted(id) if id >= fence::FIRST => {
                if let Some(fence) = &mut host.fence {
                    fence.gone(path);
                }
                self.fence_on(i);
            }
            Seen::Aborted(id) => {
                self.marks.meet("sim: an iscsi command was aborted");
                self.unanswered(id as usize);
                self.is_over(i, path, id);
                self.over(id);
                self.again(i, id);
            }
            Seen::Kept => self.marks.meet("sim: an nvme command was not aborted"),
            Seen::Answered(id, told) if id >= fence::FIRST => self.fence_told(i, id, &told),
            Seen::Answered(id, told) => self.host_answered(i, path, id, &told)?,
            Seen::Wrong(text) => return Err(self.wrong_of(i, text)),
        }
        Ok(())
    }

    /// Returns the failure of a gateway that breaks the protocol of this host.
    fn wrong_of(&self, i: usize, text: String) -> Failure {
        match self.hosts[i].plan.kind {
            HostKind::Iscsi => Failure::new("iscsi", text),
            HostKind::Nvme => Failure::new("nvme", text),
        }
    }

    /// Records that no answer to a command will come.
    fn unanswered(&mut self, index: usize) {
        self.history.ops[index].left = true;
        self.free_place(index);
    }

    /// Records that a command takes effect before any later request to the same place.
    fn over(&mut self, id: u32) {
        let moment = self.history.tick();
        self.history.ops[id as usize].gone.get_or_insert(moment);
    }

    /// Notices lost paths that their gateways know to be gone.
    fn notice_gone(&mut self, i: usize) {
        if self.hosts[i].broken.is_empty() {
            return;
        }
        let broken = std::mem::take(&mut self.hosts[i].broken);
        let gateways = self.hosts[i].plan.gateways;
        let (still, known): (Vec<_>, Vec<_>) = broken.into_iter().partition(|b| {
            let gateway = gateways[usize::from(b.path)];
            b.links.iter().all(|link| self.serves(gateway, b.life, *link))
        });
        self.hosts[i].broken = still;
        let waits = !self.hosts[i].plan.repeats_at_once();
        for id in known.into_iter().flat_map(|b| b.asked) {
            self.over(id);
            if waits {
                self.again(i, id);
            }
        }
    }

    /// Lets a host send a command again, as a new operation.
    fn again(&mut self, i: usize, id: u32) {
        if self.hosts[i].prng.chance(0.7) {
            self.hosts[i].stranded.push(id);
            self.send_stranded(i);
        }
    }

    /// Sends waiting commands again: over any path to the same gateway, or if the host moves
    /// between its gateways, over the path that it uses.
    fn send_stranded(&mut self, i: usize) {
        let waiting = std::mem::take(&mut self.hosts[i].stranded);
        for id in waiting {
            let host = &mut self.hosts[i];
            let gateway = |path: u8| host.plan.gateways[usize::from(path)];
            let former = gateway(host.paths[&id]);
            let paths = host.usable();
            let may = |path: &u8| host.plan.moves || gateway(*path) == former;
            let paths: Vec<u8> = paths.into_iter().filter(may).collect();
            if paths.is_empty() {
                host.stranded.push(id);
                continue;
            }
            let path = *host.prng.pick(&paths);
            self.repeat(i, path, id);
        }
    }

    fn repeat(&mut self, i: usize, path: u8, id: u32) {
        let Record { kind, sector, sectors, .. } = self.history.ops[id as usize];
        let client = self.hosts[i].plan.gateways[usize::from(path)];
        let lives = self.volumes.iter().any(|v| v.id == self.hosts[i].volume);
        if lives
            && self.outstanding[usize::from(client)] < self.plan.depth
            && self.send_over(i, path, kind, (sector, sectors))
        {
            self.meet_host(i, ["sim: asked again over iscsi", "sim: asked again over nvme"]);
        }
    }

    /// Processes the answer to a command.
    fn host_answered(&mut self, i: usize, path: u8, id: u32, told: &Told) -> Result<(), Failure> {
        let index = id as usize;
        let record = &self.history.ops[index];
        if record.answer.is_some() {
            return Err(Failure::new("requests", format!("answered twice: {record}")));
        }
        self.free_place(index);
        let record = &self.history.ops[index];
        let media = || {
            let errors = [BlockError::Media, BlockError::Lost];
            errors.into_iter().find(|e| self.is_in_order(index, *e)).unwrap_or(BlockError::Lost)
        };
        // What comes with `true` tells the host to try again. (NVMe says of a reservation that it
        // should not.)
        let at_once = self.hosts[i].plan.kind == HostKind::Nvme;
        let (result, again) = match told {
            Told::Done(data) => (Ok(&data[..]), false),
            Told::Conflict => (Err(BlockError::Reserved), !at_once),
            // Parts of it may be done.
            Told::Later => (Err(BlockError::TimedOut), true),
            Told::Full => (Err(BlockError::Full), true),
            Told::Elsewhere => (Err(BlockError::Elsewhere), true),
            // It comes instead of any effect.
            Told::Attention => (Err(BlockError::Busy), true),
            Told::Unreadable => (Err(media()), false),
            Told::NoVolume => (Err(BlockError::NoSuchVolume), false),
            Told::OutOfRange => (Err(BlockError::OutOfRange), false),
            Told::Differs(at) => (Err(BlockError::Miscompare(at.unwrap_or(0))), false),
            Told::Strange(text) => return Err(self.wrong_of(i, format!("{text} to {record}"))),
        };
        // Nobody knows which of several sectors differs.
        let vague = *told == Told::Differs(None) && record.sectors > 1;
        self.history.ops[index].left |= vague;
        if let (Err(BlockError::Reserved), Some(fence)) = (result, &mut self.hosts[i].fence) {
            fence.lost_access(path);
        }
        let done = result.is_ok();
        self.answered(index, result)?;
        match done {
            true => self.cut_others(i, path, index),
            false => self.is_over(i, path, id),
        }
        if *told == Told::Elsewhere {
            self.go_elsewhere(i, path);
        }
        if again {
            self.again(i, id);
        }
        self.fence_on(i);
        Ok(())
    }

    /// Records that a command over this path is over for its host, and was not done.
    fn is_over(&mut self, i: usize, path: u8, id: u32) {
        let host = &mut self.hosts[i];
        if let (true, Some(multipath)) = (host.plan.moves, &mut host.multipath) {
            multipath.is_over(id, path);
        }
    }

    /// A command over this path is done. So no command that was over before, and that the host had
    /// sent through the other gateway, takes effect any more.
    fn cut_others(&mut self, i: usize, path: u8, done: usize) {
        let Some(multipath) = &mut self.hosts[i].multipath else { return };
        let (ops, invoked) = (&self.history.ops, self.history.ops[done].invoked);
        let over = multipath.take_over(path, |id| ops[id as usize].invoked < invoked);
        let moment = self.history.tick();
        for id in over {
            self.marks.meet("sim: a host has moved to another gateway");
            self.history.ops[id as usize].cut.get_or_insert(moment);
        }
    }

    /// The gateway of this path does not serve the host: it uses the other path, or activates this
    /// one.
    fn go_elsewhere(&mut self, i: usize, path: u8) {
        let host = &mut self.hosts[i];
        let nvme = host.plan.kind == HostKind::Nvme;
        let other = host.is_up()[usize::from(1 - path)];
        let changes = host.plan.moves && other && (nvme || host.prng.chance(0.5));
        match &mut host.multipath {
            Some(multipath) if changes => multipath.use_path(1 - path),
            Some(_) if !nvme => self.activate(i, path),
            _ => {}
        }
    }

    /// Lets a host use its other path.
    fn change_path(&mut self, i: usize) {
        let Some(path) = self.hosts[i].usable().first().copied() else { return };
        if let Some(multipath) = &mut self.hosts[i].multipath {
            multipath.use_path(1 - path);
        }
        if self.hosts[i].plan.kind == HostKind::Iscsi {
            self.activate(i, 1 - path);
        }
    }

    /// Sends the command that activates a path, if the path is up.
    fn activate(&mut self, i: usize, path: u8) {
        let gateway = self.hosts[i].plan.gateways[usize::from(path)];
        let number = self.sdc(gateway).and_then(|sdc| sdc.map().my_number());
        let host = &mut self.hosts[i];
        if let (true, Some(number)) = (host.is_up()[usize::from(path)], number)
            && let Some(multipath) = &mut host.multipath
            && let Some(command) = multipath.activate(path, target::ident::port(number))
        {
            self.order_path(i, path, Order::Send(command));
        }
    }

    /// A command that activates a path has ended.
    fn activated(&mut self, i: usize, id: u32, told: &Told) {
        if let Some(multipath) = &mut self.hosts[i].multipath {
            multipath.activated(id);
        }
        if matches!(told, Told::Done(_)) {
            self.marks.meet("sim: a host has activated a path");
            self.send_stranded(i);
        }
    }

    /// Returns true when a gateway may send the host of this operation to the other gateway: one
    /// that is not the gateway of its path has had a seat of the volume. (A gateway that does not
    /// hear of the MDM does not know that the other one has lost the seat.)
    pub(crate) fn may_be_elsewhere(&self, index: usize) -> bool {
        let hosts = self.hosts.iter().filter(|host| host.multipath.is_some());
        let mut gateways = hosts.filter_map(|host| {
            let path = host.paths.get(&(index as u32))?;
            Some(host.plan.gateways[usize::from(*path)])
        });
        let volume = self.history.ops[index].volume;
        gateways.any(|gateway| {
            let me = self.sdc(gateway).and_then(|sdc| sdc.map().me);
            self.observer.seated.iter().any(|(id, sdc)| *id == volume && Some(*sdc) != me)
        })
    }

    /// Sends the next request about the reservation of a host's volume.
    fn fence_on(&mut self, i: usize) {
        let host = &mut self.hosts[i];
        let up = host.is_up();
        let next = host.fence.as_mut().and_then(|fence| fence.next(up));
        if let Some((path, command)) = next {
            self.order_path(i, path, Order::Send(command));
        }
    }

    /// Processes the answer to such a request. If it has excluded a path, nothing that was asked
    /// over that path and is not answered appears any more, and is sent again over the other one.
    fn fence_told(&mut self, i: usize, id: u32, told: &Told) {
        let host = &mut self.hosts[i];
        let next = host.fence.as_mut().map_or(Next::Later, |fence| fence.answered(id, told));
        if let Next::Excluded(former) = next {
            self.marks.meet("sim: a host has excluded its former gateway");
            let moment = self.history.tick();
            let (host, ops) = (&mut self.hosts[i], &mut self.history.ops);
            let of_former = host.paths.iter().filter(|(_, path)| **path == former);
            for (id, _) in of_former {
                let op = &mut ops[*id as usize];
                if !op.is_ok() {
                    op.cut.get_or_insert(moment);
                }
            }
            let mut lost = std::mem::take(&mut host.stranded);
            for broken in host.broken.iter_mut().filter(|b| b.path == former) {
                lost.append(&mut broken.asked);
            }
            let there = host.up.contains_key(&(1 - former));
            lost.into_iter().filter(|_| there).for_each(|id| self.repeat(i, 1 - former, id));
        }
        if next != Next::Later {
            self.fence_on(i);
            self.send_stranded(i);
        }
    }

    /// Lets the hosts give up their reservations.
    pub(crate) fn end_reservations(&mut self) {
        for i in 0..self.hosts.len() {
            if let Some(fence) = &mut self.hosts[i].fence {
                fence.end();
            }
            self.fence_on(i);
        }
    }

    /// Returns a volume that is reserved, as an MDM or a client knows.
    pub(crate) fn reservations_unmet(&self) -> Option<String> {
        let two = self.hosts.iter().filter(|host| host.fence.is_some());
        let lives = |id: &VolumeId| self.volumes.iter().any(|v| v.id == Some(*id));
        two.filter_map(|host| host.volume).filter(lives).find_map(|id| {
            let known = self.mdm().and_then(|mdm| mdm.state().volumes.get(&id));
            let known = known.map(|volume| volume.reservations.clone());
            let clients = (0..self.plan.clients).filter_map(|i| self.sdc(i));
            let seen = clients.filter_map(|sdc| sdc.map().volumes.get(&id));
            let mut all = known.into_iter().chain(seen.map(|v| v.reservations.clone()));
            let left = all.find(|t| t.reserved.is_some() || !t.registrants.is_empty())?;
            Some(format!("{id} has reservations: {left:?}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, pass};
    use super::*;

    /// Returns a stage with one volume, two clients and this host, which is logged in.
    fn stage(host: &str) -> Stage {
        let stage = testing::stage(host);
        assert_eq!(stage.hosts[0].is_up(), [true; 2]);
        stage
    }

    /// Lets a host write over a path. Returns the result, if there is an answer.
    fn write(stage: &mut Stage, path: u8, sectors: u32) -> Option<Result<(), BlockError>> {
        let index = stage.history.ops.len();
        assert!(stage.send_over(0, path, IoKind::Write, (8, sectors)));
        pass(stage, 50);
        stage.history.ops[index].answer.map(|answer| answer.result)
    }

    #[test]
    fn a_host_reads_writes_zeroes_and_compares() {
        let attention = Some(Err(BlockError::Busy));
        for (host, first) in [("0 0 0", attention), ("0 0 0 nvme", Some(Ok(())))] {
            let mut stage = stage(host);
            for path in 0..2 {
                assert_eq!(write(&mut stage, path, 8), first, "{host}");
                assert_eq!(write(&mut stage, path, 100), Some(Ok(())), "more than comes at once");
            }
            let all = [IoKind::Read, IoKind::Swap, IoKind::Zero, IoKind::Discard, IoKind::Swap];
            let first = stage.history.ops.len();
            for (n, kind) in all.repeat(6).into_iter().enumerate() {
                let sectors = if kind == IoKind::Discard { 24 } else { 8 };
                assert!(stage.send_over(0, (n / 5 % 2) as u8, kind, (16, sectors)));
                pass(&mut stage, 50);
            }
            let ops = &stage.history.ops[first..];
            assert!(ops.iter().all(Record::is_ok), "{ops:?}");
            assert_eq!(stage.outstanding, [0, 0]);
        }
    }

    #[test]
    fn commands_of_a_lost_path_are_sent_again_and_are_over_when_the_gateway_knows_of_the_loss() {
        for (host, known) in [("0 0 0", 200), ("0 0 0 nvme", 4000)] {
            let mut stage = stage(host);
            for fault in [PathFault::Close, PathFault::Again, PathFault::Abort].repeat(4) {
                write(&mut stage, 0, 8);
                let index = stage.history.ops.len();
                assert!(stage.send_over(0, 0, IoKind::Write, (0, 8)));
                stage.break_path(0, 0, fault);
                pass(&mut stage, known);
                let op = &stage.history.ops[index];
                let lost = op.left && op.gone.is_some() && op.answer.is_none();
                assert!(lost || op.answer.is_some(), "{fault}: {op}");
                assert_eq!((stage.hosts[0].is_up(), stage.outstanding[0]), ([true; 2], 0));
            }
            let marks = stage.marks.counts();
            let expected = match stage.hosts[0].plan.kind {
                HostKind::Iscsi => ["asked again over iscsi", "an iscsi command was aborted"],
                HostKind::Nvme => ["asked again over nvme", "an nvme command was not aborted"],
            };
            let met = |what: &&str| marks.contains_key(&format!("sim: {what}"));
            assert!(expected.iter().all(met), "{marks:?}");
        }
    }

    #[test]
    fn an_nvme_host_repeats_at_once_and_the_first_attempt_stays_open() {
        let mut stage = stage("0 0 0 nvme");
        let index = stage.history.ops.len();
        for _ in 0..8 {
            assert!(stage.send_over(0, 0, IoKind::Write, (0, 8)));
            pass(&mut stage, 0);
        }
        stage.break_path(0, 0, PathFault::Again);
        let ops = stage.history.ops.len();
        while stage.history.ops.len() == ops {
            stage.step().unwrap();
        }
        let open = |op: &Record| op.left && op.gone.is_none();
        assert!(stage.history.ops[index..ops].iter().any(open), "{:?}", stage.history.ops);
    }

    #[test]
    fn a_host_with_two_gateways_excludes_the_one_that_it_leaves() {
        let mut stage = stage("0 1 0");
        assert_eq!(stage.hosts[0].usable(), [0], "it has reserved the volume");
        write(&mut stage, 0, 8);
        assert_eq!(write(&mut stage, 0, 8), Some(Ok(())));
        let volume = stage.hosts[0].volume.unwrap();
        let (index, _) = stage.record(0, volume, IoKind::Write, 8, 8);
        stage.hosts[0].paths.insert(index as u32, 0);
        stage.break_path(0, 0, PathFault::Leave);
        pass(&mut stage, 3000);
        assert_eq!(stage.hosts[0].usable(), [1]);
        let cut: Vec<_> = stage.history.ops.iter().map(|op| op.cut.is_some()).collect();
        assert!(cut[index] && !cut[index - 1], "only what is not answered: {cut:?}");
        assert!(stage.reservations_unmet().is_some());
        stage.end_reservations();
        pass(&mut stage, 3000);
        assert_eq!(stage.reservations_unmet(), None);
    }

    #[test]
    fn a_host_is_sent_elsewhere_only_where_another_gateway_has_had_the_seat() {
        let mut stage = stage("0 1 0 moves");
        let volume = stage.hosts[0].volume.unwrap();
        for path in [0, 1] {
            // One gateway has got the seat, because the host came to it first. The first answer
            // over a path may be a unit attention.
            write(&mut stage, path, 8);
            let index = stage.history.ops.len();
            assert!(stage.send_over(0, path, IoKind::Read, (0, 8)));
            let may = stage.may_be_elsewhere(index);
            pass(&mut stage, 50);
            let seated = stage.history.ops[index].is_ok();
            assert_eq!(may, !seated, "path {path}: {:?}", stage.observer.seated);
        }
        assert_eq!(stage.observer.seated.iter().filter(|(id, _)| *id == volume).count(), 1);
    }
}

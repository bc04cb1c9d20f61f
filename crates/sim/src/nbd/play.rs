//! NBD clients in a run: which requests go over which connection, and how they end.

use super::{Host, Order, Seen, Shared};
use crate::check::Failure;
use crate::plan::{IoKind, Who};
use crate::stage::Stage;
use crate::world::{ProcId, ProcState};
use base::{LinkId, Prng, SECTOR, UNIT, VolumeId};
use seam::BlockError;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use target::nbd::proto::*;

/// A lost connection of which the SDC may not know yet.
#[derive(Debug)]
struct Broken {
    /// The SDC's link id of the connection, and the SDC's incarnation.
    link: LinkId,
    life: u32,
    asked: Vec<u64>,
}

/// The NBD connections to one client.
#[derive(Debug)]
pub struct Outlet {
    proc: ProcId,
    shared: Rc<RefCell<Shared>>,
    volumes: Vec<u8>,
    /// Ids of the plan's volumes when the connections were first made.
    ids: Vec<Option<VolumeId>>,
    /// Connections with an attached volume: the SDC's link id, and the SDC's incarnation.
    up: BTreeMap<u8, (LinkId, u32)>,
    broken: Vec<Broken>,
    prng: Prng,
}

impl Stage {
    /// Adds the processes that connect to clients. They come after all others, so that these are
    /// the same in plans without NBD.
    pub(crate) fn add_nbd(&mut self) {
        for client in 0..self.plan.clients {
            if self.plan.nbd == 0 {
                return;
            }
            let proc = self.world.add(&format!("nbd{client}"), None, Vec::new());
            let volumes = self.plan.volumes.len() as u8;
            let prng = Prng::new(self.plan.seed).fork(&format!("nbd{client}"));
            let volumes = (0..self.plan.nbd).map(|i| i % volumes).collect();
            let (shared, up, broken) = (Rc::default(), BTreeMap::new(), Vec::new());
            let ids = Vec::new();
            self.outlets.push(Outlet { proc, shared, volumes, ids, up, broken, prng });
        }
    }

    /// Starts these processes.
    pub(crate) fn start_nbd(&mut self) {
        for client in 0..self.outlets.len() {
            let outlet = &mut self.outlets[client];
            outlet.ids = self.volumes.iter().map(|v| v.id).collect();
            let to = Stage::address(Who::Sdc(client as u8));
            let host = Host::new(outlet.shared.clone(), to, outlet.volumes.clone());
            self.world.boot(outlet.proc, Box::new(host));
        }
    }

    /// Gives a connection an order.
    pub(crate) fn order_nbd(&mut self, client: u8, connection: u8, order: Order) {
        let Some(outlet) = self.outlets.get(client as usize) else { return };
        if usize::from(connection) < outlet.volumes.len() {
            outlet.shared.borrow_mut().orders.push_back((connection, order));
            self.world.poke(outlet.proc);
        }
    }

    /// Sends a request over one of the client's connections. Returns false if none has this volume.
    /// A volume that may have been created again is not requested, as a connection may have
    /// attached the former one under the same name.
    pub(crate) fn ask_over_nbd(
        &mut self,
        client: u8,
        volume: (u8, VolumeId),
        kind: IoKind,
        sector: u32,
        sectors: u32,
    ) -> bool {
        let (v, id) = volume;
        // Connections do not know parts that were added later.
        let first = self.plan.volumes.get(v as usize).copied().unwrap_or(0) * (UNIT / SECTOR);
        let long = sectors * SECTOR > self.plan.limits.nbd_payload;
        let dead = self.world.state(self.proc(Who::Sdc(client))) == ProcState::Dead;
        let Some(outlet) = self.outlets.get_mut(client as usize) else { return false };
        let those = outlet.up.keys().filter(|c| outlet.volumes[usize::from(**c)] == v);
        let those: Vec<u8> = those.copied().collect();
        if dead
            || those.is_empty()
            || outlet.ids[usize::from(v)] != Some(id)
            || long
            || sector + sectors > first
            || matches!(kind, IoKind::Extents | IoKind::Swap)
        {
            return false;
        }
        if outlet.prng.chance(0.2) {
            return false; // other programs, without NBD, send requests as well
        }
        let connection = *outlet.prng.pick(&those);
        let command = match kind {
            IoKind::Read | IoKind::Extents | IoKind::Swap => NBD_CMD_READ,
            IoKind::Write => NBD_CMD_WRITE,
            IoKind::Zero => NBD_CMD_WRITE_ZEROES,
            IoKind::Discard => NBD_CMD_TRIM,
        };
        let (index, body) = self.record(client, id, kind, sector, sectors);
        let at = u64::from(sector) * u64::from(SECTOR);
        let len = sectors * SECTOR;
        self.marks.meet("sim: asked over nbd");
        let order = Order::Ask { index: index as u64, command, at, len, body };
        self.order_nbd(client, connection, order);
        true
    }

    /// Processes the events of the connections.
    pub(crate) fn take_in_nbd(&mut self) -> Result<(), Failure> {
        for client in 0..self.outlets.len() {
            let news = std::mem::take(&mut self.outlets[client].shared.borrow_mut().seen);
            for (connection, seen) in news {
                self.nbd_seen(client as u8, connection, seen)?;
            }
            self.notice_nbd(client);
        }
        Ok(())
    }

    fn nbd_seen(&mut self, client: u8, connection: u8, seen: Seen) -> Result<(), Failure> {
        let sdc = self.proc(Who::Sdc(client));
        let life = self.world.life(sdc);
        let outlet = &mut self.outlets[client as usize];
        match seen {
            Seen::Attached => {
                let link = outlet.shared.borrow().links.get(&connection).copied();
                let far = link.and_then(|link| self.world.far_end(outlet.proc, link));
                if let Some(far) = far {
                    outlet.up.insert(connection, (far, life));
                }
            }
            Seen::Gone(asked) => {
                let up = outlet.up.remove(&connection);
                self.marks.meet("sim: an nbd connection was gone");
                for index in &asked {
                    self.history.ops[*index as usize].left = true;
                    self.free_place(*index as usize);
                }
                if let Some((link, life)) = up {
                    self.outlets[client as usize].broken.push(Broken { link, life, asked });
                }
            }
            Seen::Answered(index, error, data) => {
                self.nbd_answered(index as usize, error, &data)?
            }
            Seen::Wrong(text) => return Err(Failure::new("nbd", text)),
        }
        Ok(())
    }

    /// Processes a connection's answer to this operation.
    pub(crate) fn nbd_answered(
        &mut self,
        index: usize,
        error: u32,
        data: &[u8],
    ) -> Result<(), Failure> {
        let record = &self.history.ops[index];
        if record.answer.is_some() {
            return Err(Failure::new("requests", format!("answered twice: {record}")));
        }
        let write = record.is_write();
        self.free_place(index);
        let record = &self.history.ops[index];
        // One error value stands for several errors. The first of these that is allowed counts.
        // `TimedOut` comes before errors that end an operation for sure, as the operation may
        // still take effect.
        let failed = [
            BlockError::NoSuchVolume,
            BlockError::TimedOut,
            BlockError::Media,
            BlockError::Forgotten,
        ];
        let late = self.may_be_late(index);
        let fits = |e: &BlockError| late || *e != BlockError::TimedOut;
        let failed = || failed.into_iter().filter(fits).find(|e| self.is_in_order(index, *e));
        let result = match error {
            0 => Ok(data),
            NBD_EIO => Err(failed().unwrap_or(BlockError::Lost)),
            NBD_ENOSPC if write && self.is_in_order(index, BlockError::Full) => {
                Err(BlockError::Full)
            }
            NBD_ENOSPC if write => Err(BlockError::OutOfRange),
            NBD_EINVAL => Err(BlockError::OutOfRange),
            NBD_EPERM if self.is_in_order(index, BlockError::Reserved) => Err(BlockError::Reserved),
            NBD_EPERM => Err(BlockError::ReadOnly),
            // There is no value for `Busy`, as a busy SDC lets its NBD clients wait.
            other => {
                return Err(Failure::new("nbd", format!("error value {other} for {record}")));
            }
        };
        self.answered(index, result)
    }

    /// Returns true when the client's time limit may have ended this operation, as it has passed by
    /// the client's clock. The clock of a former incarnation is unknown.
    fn may_be_late(&self, index: usize) -> bool {
        let record = &self.history.ops[index];
        let proc = self.proc(Who::Sdc(record.client));
        let passed = self.world.local_now(proc).since(record.clock);
        record.life != self.world.life(proc) || passed >= self.plan.limits.answer_within
    }

    /// Handles lost connections that the SDC knows to be gone: requests over them take effect
    /// before all later ones. Some of the requests are sent again.
    fn notice_nbd(&mut self, client: usize) {
        if self.outlets[client].broken.is_empty() {
            return;
        }
        let broken = std::mem::take(&mut self.outlets[client].broken);
        let (still, known): (Vec<_>, Vec<_>) =
            broken.into_iter().partition(|b| self.serves(client as u8, b.life, b.link));
        self.outlets[client].broken = still;
        for index in known.into_iter().flat_map(|b| b.asked) {
            let moment = self.history.tick();
            let record = &mut self.history.ops[index as usize];
            record.gone = Some(moment);
            let record = record.clone();
            let v = self.volumes.iter().position(|v| v.id == Some(record.volume));
            let room = self.outstanding[client] < self.plan.depth;
            if let Some(v) = v
                && room
                && self.outlets[client].prng.chance(0.5)
            {
                let (volume, kind) = ((v as u8, record.volume), record.kind);
                let (sector, sectors) = (record.sector, record.sectors);
                if self.ask_over_nbd(client as u8, volume, kind, sector, sectors) {
                    self.marks.meet("sim: asked again over another nbd connection");
                }
            }
        }
    }
}

/// Returns an order to leave a connection unread for this many ms.
pub(crate) fn deaf(ms: u32) -> Order {
    Order::Deaf(Duration::from_millis(u64::from(ms)))
}

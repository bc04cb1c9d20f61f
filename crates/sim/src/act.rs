//! Carries out a plan's actions.

use crate::admin::Order;
use crate::disk::Damage;
use crate::history::Record;
use crate::nbd::{Order as Nbd, deaf};
use crate::plan::{Action, Death, IoKind, Who};
use crate::rescue::Which;
use crate::stage::{NEXT, Stage};
use crate::stamp;
use crate::world::ProcState;
use base::{BLOCK, BLOCKS_PER_UNIT, GroupId, MIB, SECTOR, UNIT, UnitKey, VolumeId};
use node::sdc::Sdc;
use node::sds::Sds;
use seam::{BlockKind, BlockRequest, Buf, DiskId, RequestId, UnitStore};
use std::ops::Range;
use std::time::Duration;

const UNIT_SECTORS: u32 = UNIT / SECTOR;
const BLOCK_SECTORS: u32 = BLOCK / SECTOR;

/// A block that can be damaged.
struct Spot {
    block: (UnitKey, u32),
    /// Its byte offset on the device.
    at: u64,
    /// Byte ranges of the device that hold blocks, superblocks included.
    data: Vec<Range<u64>>,
}

impl Stage {
    /// Carries out one action.
    // Long: one match over all actions.
    pub fn act(&mut self, action: Action) {
        if action.is_fault() {
            self.fault(action);
        }
        match action {
            Action::Io { client, volume, kind, sector, sectors } => {
                self.io(client, volume, kind, sector, sectors);
            }
            Action::Crash(who, death) => self.crash(who, death),
            Action::Start(who) => self.start(who),
            Action::Pause(who, midway) => {
                let id = self.proc(who);
                self.world.pause(id, midway);
            }
            Action::Resume(who) => {
                let id = self.proc(who);
                self.world.resume(id);
            }
            Action::Block(a, b) => self.set_blocked(a, b, true),
            Action::Open(a, b) => self.set_blocked(a, b, false),
            Action::Clog(a, b, ms) => {
                let (a, b) = (self.proc(a), self.proc(b));
                let until = self.world.now() + Duration::from_millis(u64::from(ms));
                self.world.clog(a, b, until);
            }
            Action::Forge(i, how) => {
                let id = self.proc(Who::Sds(i));
                self.world.forge(id, how);
            }
            Action::Lie(who, lie) => self.lie(who, lie),
            Action::Idle(who, count) => self.world.dial_idly(self.proc(who), count),
            Action::Overlong(who, member) => {
                self.marks.meet("sim: a frame was announced that nobody takes");
                self.world.say_too_much(self.proc(who), member, &self.plan.limits);
            }
            Action::Readdress(i, j) => self.readdress(i, j),
            Action::Reject(i, ms) => {
                let until = self.world.now() + Duration::from_millis(ms.into());
                self.world.refuse_dials(self.proc(Who::Sds(i)), until);
            }
            Action::Halt(who, us) => {
                self.marks.meet("sim: a virtual machine was stopped");
                self.world.halt(self.proc(who), Duration::from_micros(us.into()));
            }
            Action::Leap(who, ms) => {
                self.marks.meet("sim: a clock jumped ahead");
                self.world.leap(self.proc(who), Duration::from_millis(ms.into()));
            }
            Action::Elsewhere(client) => self.start_elsewhere(client),
            Action::Thaw(client) => self.thaw(client),
            Action::Double(i) => self.double(i),
            Action::Wake(i) => self.wake(i),
            Action::NewDisk(i) => self.new_disk(i),
            Action::OlderDisk(i) => self.older_disk(i),
            Action::NewerDisk(i) => self.newer_disk(i),
            Action::Drift(who, ppm) => self.world.drift(self.proc(who), ppm.into()),
            Action::Reset(a, b) => {
                let (a, b) = (self.proc(a), self.proc(b));
                self.world.reset(a, b);
            }
            Action::Create(v, units) => {
                let free = self.volumes[v as usize].id.is_none() || self.volumes[v as usize].doomed;
                if free && !self.is_ordered(v, |o| matches!(o, Order::Create(..))) {
                    self.order(Order::Create(v, units, self.plan.volume_pool(v)));
                }
            }
            Action::Damage(i, damage) => self.damage(i, damage),
            Action::Tamper(i, how) => self.tamper(i, how),
            Action::Snapshot(i) => self.snapshot(i),
            Action::Grow(i, mib) => self.grow(i, mib),
            Action::Scrub => self.order(Order::Scrub),
            Action::Remove(i) => self.order(Order::Remove(self.plan.server(i), false)),
            Action::RemoveDevice(i) => {
                if let Some(device) = self.sds(i).map(Sds::id).filter(|d| d.0 != 0) {
                    self.order(Order::RemoveDevice(device));
                }
            }
            Action::Keep(i) => self.order(Order::Remove(self.plan.server(i), true)),
            Action::Maintain(i, protected) => {
                self.order(Order::Maintain(self.plan.server(i), protected));
            }
            Action::Ambush(after_us, away_ms) => self.ambush = Some((after_us, away_ms)),
            Action::Return(i) => self.order(Order::Return(self.plan.server(i))),
            Action::Become(who, newer) => {
                let bit = who.build_bit();
                if (self.newer & bit != 0) != newer {
                    self.newer ^= bit;
                    self.marks.meet("sim: a process changed its build");
                }
            }
            Action::Level => self.raise_level(),
            Action::Policies(rebuild, rebalance) => {
                let pools = self.plan.all_pools();
                pools.for_each(|pool| self.order(Order::Policies(pool, rebuild, rebalance)));
            }
            Action::CloseNbd(client, c) => self.order_nbd(client, c, Nbd::Close),
            Action::Deaf(client, c, ms) => self.order_nbd(client, c, deaf(ms)),
            Action::Path(host, path, fault) => self.break_path(host, path, fault),
            Action::Withdraw(client, v) => self.withdraw(client, v),
            Action::Switch => self.order(Order::SwitchMdm),
            Action::Replace(i) => {
                let waits = |o: &Order| matches!(o, Order::AddMdm(_) | Order::RemoveMdm(_));
                if i < self.plan.mdms && !self.desk.borrow().orders.iter().any(waits) {
                    self.order(Order::RemoveMdm(i));
                }
            }
            Action::Backup => self.back_up(),
            Action::Lose(survivor) => self.lose_mdms(survivor),
            Action::Recover => self.recover_mdms(),
            Action::Restore(i) => self.restore_mdms(i, Which::Newest),
            Action::RestoreFirst(i) => self.restore_mdms(i, Which::First),
            Action::Finish => self.finish_recovery(),
            Action::Accept => self.accept_loss(),
            Action::Resize(v, units) => self.order(Order::Resize(v, units)),
            Action::Map(v, clients) => {
                if self.has_volume(v) {
                    self.order(Order::Map(v, clients));
                }
            }
            Action::Hosts(v, hosts) => {
                if self.has_volume(v) {
                    self.order(Order::Hosts(v, hosts));
                }
            }
            Action::UnmapHost(host) => self.unmap_host(host),
            Action::MovePath(host, path) => self.move_path(host, path),
            Action::Delete(v) => {
                if self.has_volume(v) {
                    self.order(Order::Delete(v));
                }
            }
        }
    }

    /// Orders the next level. From now on no process of this release is started, because the level
    /// may have risen. Absent clients do not block the order, so the operator first updates all
    /// clients. The operator also waits for a server that has the older build if no MDM knows that:
    /// it was just given that build, or comes back after its removal.
    fn raise_level(&mut self) {
        let old = |i: &u8| self.clients_of(*i).any(|sdc| sdc.level_max() < NEXT.level_max);
        let unknown = |i: &u8| {
            let device = self.id_of(*i);
            let mdms = (0..self.plan.mdms).filter_map(|m| self.mdm_at(m));
            let seen = mdms.filter_map(|m| m.observed().devices.get(&device)?.build.as_ref());
            let mut seen = seen.map(|build| build.level_max).peekable();
            let older = self.newer & Who::Sds(*i).build_bit() == 0 && !self.raised;
            older && (seen.peek().is_none() || seen.any(|max| max >= NEXT.level_max))
        };
        let waits =
            (0..self.plan.clients).any(|i| old(&i)) || (0..self.plan.sds).any(|i| unknown(&i));
        if !waits {
            self.raised = true;
            self.order(Order::Level);
        }
    }

    /// Returns true when a volume exists, and is not about to be deleted.
    pub(crate) fn has_volume(&self, v: u8) -> bool {
        self.volumes[usize::from(v)].id.is_some() && !self.volumes[usize::from(v)].doomed
    }

    /// Returns true when an order of this kind about this volume is waiting.
    pub fn is_ordered(&self, v: u8, kind: impl Fn(&Order) -> bool) -> bool {
        let of = |o: &Order| match o {
            Order::Create(of, ..)
            | Order::Resize(of, _)
            | Order::Delete(of)
            | Order::Map(of, _)
            | Order::Hosts(of, _)
            | Order::UnmapHost(of, _)
            | Order::MovePath(of, ..) => Some(*of),
            Order::Scrub
            | Order::Remove(..)
            | Order::RemoveDevice(_)
            | Order::Maintain(..)
            | Order::Return(_)
            | Order::AddMdm(_)
            | Order::RemoveMdm(_)
            | Order::FaultSet(_)
            | Order::Pool(_)
            | Order::Policies(..)
            | Order::Level
            | Order::GiveUpSpare(_)
            | Order::Recover(_)
            | Order::Finish
            | Order::Forget(_)
            | Order::Accept(_)
            | Order::UseStale(_)
            | Order::SwitchMdm => None,
        };
        self.desk.borrow().orders.iter().any(|o| of(o) == Some(v) && kind(o))
    }

    fn set_blocked(&mut self, from: Who, to: Who, blocked: bool) {
        let (from, to) = (self.proc(from), self.proc(to));
        self.world.set_blocked(from, to, blocked);
    }

    /// Notes a fault. While a wiped server has no full copy yet, or is about to die, the fault may
    /// destroy a last copy: then losses are excused.
    pub(crate) fn fault(&mut self, what: impl std::fmt::Display) {
        if !self.exposure.exposed {
            return;
        }
        if self.is_whole() && self.dying.iter().all(Option::is_none) {
            self.exposure.exposed = false;
        } else if self.exposure.excuse.is_none() {
            self.exposure.excuse = Some(format!("{what} while a server was being replaced"));
        }
    }

    /// Damages a block of a server's device. Only one device at a time is damaged, and none while a
    /// copy is missing, so the other copy has everything.
    fn damage(&mut self, i: u8, damage: Damage) {
        let who = Who::Sds(i);
        let others: Vec<Who> = (0..self.plan.sds).filter(|j| *j != i).map(Who::Sds).collect();
        let wrong = others.iter().any(|o| {
            let id = self.proc(*o);
            self.world.disk(id, DiskId(0)).is_wrong()
        });
        let spares =
            !wrong && self.lost_copies.is_empty() && !self.exposure.exposed && self.is_whole();
        if !self.plan.keeps(who) || !(spares || self.plan.allow_loss) {
            return;
        }
        let Some(Spot { block, at, data }) = self.some_block(i) else { return };
        let id = self.proc(who);
        let prng = &mut self.damage_prng;
        if self.world.disk(id, DiskId(0)).damage(damage, at, data, prng) {
            self.marks.meet("sim: a block was damaged");
            self.harmed.insert((i, block.0, block.1));
        }
    }

    /// Grows a server's device. The server uses the former size until it restarts.
    pub(crate) fn grow(&mut self, i: u8, mib: u32) {
        let who = Who::Sds(i);
        if self.plan.keeps(who) && !self.tampered.contains_key(&i) {
            self.marks.meet("sim: a device became larger");
            let id = self.proc(who);
            let disk = self.world.disk(id, DiskId(0));
            disk.resize(disk.size() + u64::from(mib) * MIB);
        }
    }

    /// Picks a block of this device that rests in its slot.
    fn some_block(&mut self, i: u8) -> Option<Spot> {
        let id = self.server_place(i);
        let prng = &mut self.damage_prng;
        let sds = self.world.actor::<Sds>(id)?;
        let device = sds.device()?;
        let durable = device.durable()?;
        let all: Vec<(GroupId, UnitKey)> = sds
            .groups()
            .into_iter()
            .flat_map(|g| device.units(g.group).into_iter().map(move |u| (g.group, u)))
            .collect();
        let (group, unit) = *all.get(prng.below(all.len().max(1) as u64) as usize)?;
        let resting: Vec<u32> = (0..BLOCKS_PER_UNIT)
            .filter(|b| durable.waiting(group, unit, *b).is_none())
            .filter(|b| durable.place(group, unit, *b).is_some())
            .collect();
        let block = *resting.get(prng.below(resting.len().max(1) as u64) as usize)?;
        let data = durable.layout().extents.iter().map(|e| e.slots.at..e.end).collect();
        Some(Spot { block: (unit, block), at: durable.place(group, unit, block)?, data })
    }

    /// Undoes all damage.
    pub fn heal(&mut self) {
        if self.plan.allow_loss {
            return;
        }
        for i in 0..self.plan.sds {
            let id = self.proc(Who::Sds(i));
            self.world.disk(id, DiskId(0)).heal_all();
        }
    }

    /// Undoes the damage of these blocks on all servers. On a server that does not run, undoes all
    /// damage, as the places of its blocks are unknown.
    pub(crate) fn heal_blocks(&mut self, group: GroupId, unit: UnitKey, blocks: Range<u32>) {
        for i in (0..self.plan.sds).filter(|_| !self.plan.allow_loss) {
            let id = self.proc(Who::Sds(i));
            let device = self.world.actor::<Sds>(id).and_then(Sds::device);
            let places = device.and_then(|d| d.durable()).map(|durable| {
                let places = blocks.clone().filter_map(|b| durable.place(group, unit, b));
                places.collect::<Vec<u64>>()
            });
            let disk = self.world.disk(id, DiskId(0));
            match places {
                Some(places) => places.into_iter().for_each(|at| disk.heal_at(at)),
                None => drop(disk.heal_all()),
            }
        }
    }

    /// Cancels all damage that waits for a later write.
    pub fn disarm(&mut self) {
        for i in 0..self.plan.sds {
            let id = self.proc(Who::Sds(i));
            self.world.disk(id, DiskId(0)).disarm();
        }
    }

    /// Restarts an MDM whose disk has failed, as its host would.
    pub(crate) fn restart_mdm(&mut self, i: u8) {
        let failed = self.mdm_at(i).and_then(node::mdm::Mdm::failed);
        if !failed.is_some_and(|why| why.contains("could not be")) {
            return;
        }
        let who = Who::Mdm(i);
        self.marks.meet("sim: an MDM's disk failed");
        self.fault(format_args!("{who}'s disk failed"));
        // A death that waits for the process's next effects would never come.
        self.spare(who);
        self.kill(who, Death { keep: true, ..Death::default() });
        self.start_soon(self.proc(who));
    }

    pub(crate) fn crash(&mut self, who: Who, death: Death) {
        let mut those = match who {
            Who::Sds(i) if death.server => self.plan.together(i).map(Who::Sds).collect(),
            _ => vec![who],
        };
        those.retain(|who| self.world.state(self.proc(*who)) != ProcState::Dead);
        // A tampered server is left alone until its device is repaired. A swapped server is not
        // wiped: its empty device would be taken for the one that was there before the swap.
        let waits = |who: &Who| {
            matches!(who, Who::Sds(i) if self.tampered.contains_key(i)
                || !death.keep && self.written.contains_key(i))
        };
        let tells = |who: &Who| matches!(who, Who::Sds(i) if self.is_last_witness(*i));
        if those.is_empty() || those.iter().any(waits) || those.iter().any(tells) {
            return;
        }
        let empties =
            |who: &Who| matches!(who, Who::Sds(_)) && !(death.keep && self.plan.keeps(*who));
        if those.iter().any(empties) && !self.may_empty(&those, death) {
            return;
        }
        if !self.plan.mates.is_empty() && matches!(who, Who::Sds(_)) {
            self.marks.meet(match those.len() {
                1 => "sim: a device died alone",
                _ => "sim: a server died with its devices",
            });
        }
        those.into_iter().for_each(|who| self.kill(who, death));
    }

    /// Prepares the loss of all content of these servers. Returns false if the death is careful and
    /// must not happen, as a last copy may be among them.
    pub(crate) fn may_empty(&mut self, those: &[Who], death: Death) -> bool {
        self.heal();
        // A swap may have brought two copies to one server.
        let apart = those.len() == 1 || self.written.is_empty();
        let whole = self.is_whole() && self.is_calm() && self.lost_copies.is_empty() && apart;
        if death.careful && !whole {
            return false;
        }
        let twins = those.len() > 1;
        self.marks.meet(if twins {
            "sim: a server was wiped with its devices"
        } else {
            "sim: a server was wiped"
        });
        let w = self.world.weather();
        let rough =
            w.net_tail_ppm | w.run_tail_ppm | w.disk_tail_ppm | w.reset_ppm | w.flip_ppm != 0;
        if (!whole || rough) && self.exposure.excuse.is_none() {
            let why = if rough {
                "wiped in rough weather"
            } else {
                "wiped while it may be the last copy"
            };
            self.exposure.excuse = Some(format!("{} was {why}", those[0]));
        }
        if !whole {
            self.lose_last_data(those);
        }
        self.exposure.exposed = true;
        self.rescue.device_was_emptied();
        true
    }

    fn io(&mut self, client: u8, volume: u8, kind: IoKind, sector: u32, sectors: u32) {
        let Some(v) = self.volumes.get(volume as usize).copied() else { return };
        let Some(id) = v.id else { return };
        if client >= self.plan.clients || sector + sectors > v.units * UNIT_SECTORS || sectors == 0
        {
            return;
        }
        if kind == IoKind::Swap && sector % BLOCK_SECTORS + sectors > BLOCK_SECTORS {
            return;
        }
        // A client that does not know the volume answers with an error at once. Send only a few
        // such requests.
        let known = self.sdc(client).is_some_and(|s| {
            let map = s.map();
            map.volumes.get(&id).is_some_and(|v| map.my_grant(v).is_some())
        });
        if !known && !self.world.now().0.is_multiple_of(16) {
            return;
        }
        if self.outstanding[client as usize] < self.plan.depth
            && !self.ask_a_host(client, (volume, id), kind, (sector, sectors))
            && !self.ask_over_nbd(client, (volume, id), kind, sector, sectors)
        {
            self.issue(client, id, kind, sector, sectors);
        }
    }

    /// Sends a request to a client.
    pub fn issue(&mut self, client: u8, volume: VolumeId, kind: IoKind, sector: u32, sectors: u32) {
        let proc = self.proc(Who::Sdc(client));
        if self.world.state(proc) == ProcState::Dead {
            return;
        }
        let block = match kind {
            IoKind::Read => BlockKind::Read,
            IoKind::Write => BlockKind::Write,
            IoKind::Zero => BlockKind::Zero { hole: false },
            IoKind::Discard => BlockKind::Zero { hole: true },
            IoKind::Extents => BlockKind::Extents,
            IoKind::Swap => BlockKind::CompareWrite,
        };
        let (index, body) = self.record(client, volume, kind, sector, sectors);
        let (at, len) = (u64::from(sector) * u64::from(SECTOR), sectors * SECTOR);
        let request = BlockRequest { volume, kind: block, at, len, body: Buf::EMPTY };
        self.programs[usize::from(client)].ask(index);
        self.world.request(proc, RequestId(index as u64), request, &body);
    }

    /// Records a request in the history. Returns its index, and the data of a write.
    pub(crate) fn record(
        &mut self,
        client: u8,
        volume: VolumeId,
        kind: IoKind,
        sector: u32,
        sectors: u32,
    ) -> (usize, Vec<u8>) {
        let proc = self.proc(Who::Sdc(client));
        let index = self.history.ops.len();
        let mut body = Vec::new();
        let mut expected = Vec::new();
        if kind == IoKind::Swap {
            expected = self.history.known(volume, sector..sector + sectors);
            stamp::sectors(&expected, volume, sector, &mut body);
        }
        if matches!(kind, IoKind::Write | IoKind::Swap) {
            let from = body.len();
            body.resize(from + (sectors * SECTOR) as usize, 0);
            stamp::fill(index as u32 + 1, volume, sector, &mut body[from..]);
        }
        let end = u64::from(sector + sectors) * u64::from(SECTOR);
        let knew = self.sdc(client).map(Sdc::map).and_then(|map| {
            let known = map.volumes.get(&volume).filter(|v| map.my_grant(v).is_some())?;
            (known.size >= end).then_some(map.version)
        });
        let (invoked, at) = (self.history.tick(), self.world.now());
        self.history.ops.push(Record {
            client,
            life: self.world.life(proc),
            clock: self.world.local_now(proc),
            expected,
            knew,
            ..Record::asked(volume, kind, sector..sector + sectors, invoked, at)
        });
        self.outstanding[client as usize] += 1;
        (index, body)
    }
}

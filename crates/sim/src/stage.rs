//! The cast of a run: the MDM, the data servers, the clients and the administrator, all of them the
//! shipped nodes; and everything that is known about them from outside.

use crate::admin::{Admin, Desk, Done, Order};
use crate::check::Failure;
use crate::check::agreement::Agreement;
use crate::check::deaths;
use crate::check::differences;
use crate::check::errors::Leaves;
use crate::check::i13_epochs::Observer;
use crate::check::losses::Losses;
use crate::check::pace::Pace;
use crate::check::pools::Places;
use crate::check::upkeep::Upkeep;
use crate::disk::{Disk, DiskKind};
use crate::history::History;
use crate::marks::Marks;
use crate::nbd::Outlet;
use crate::plan::pools::pool_name;
use crate::plan::{Action, Death, Plan, Who};
use crate::replaced::Replaced;
use crate::rescue::Rescue;
use crate::tamper::{Harm, Snapshot};
use crate::trace::Sink;
use crate::twins::Twins;
use crate::world::{ProcId, ProcState, Step, World};
use base::{DeviceId, GroupId, Limits, MIB, Prng, TIB, Time, UnitKey, VolumeId};
use node::mdm::Mdm;
use node::sdc::{Sdc, SdcConfig};
use node::sds::{DeviceConfig, DurableConfig, Home, Sds, SdsConfig, Trouble};
use prost::Message;
use seam::Note;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use store::durable::{Durability, Tuning};
use wire::control::{Intent, MapPage};

/// One of the plan's volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Volume {
    /// Its id, while it exists for sure.
    pub id: Option<VolumeId>,
    /// Its size in units, as far as it is known to have grown.
    pub units: u32,
    /// Its deletion was ordered.
    pub doomed: bool,
    /// It was mapped to some clients alone: others, and those whose leave had ended, are told so.
    pub mapped: bool,
}

/// Whether a copy may be the last one.
#[derive(Default, Debug)]
pub struct Exposure {
    /// A wiped server is not yet replaced by a whole copy.
    pub exposed: bool,
    /// Why the loss of everything has to be accepted, if so.
    pub excuse: Option<String>,
}

/// A run in progress.
pub struct Stage {
    /// What it plays.
    pub plan: Plan,
    /// Where it plays.
    pub world: World,
    /// Orders to the administrator.
    pub desk: Rc<RefCell<Desk>>,
    /// The map, watched from outside.
    pub observer: Observer,
    /// What devices keep for copies of what was lost, in percent.
    pub spare_percent: u32,
    /// What the MDMs agree on.
    pub agreement: Agreement,
    /// How soon lost copies are made anew.
    pub pace: Pace,
    /// What became of servers in maintenance.
    pub upkeep: Upkeep,
    /// Devices that were removed, for good.
    pub removed: BTreeSet<DeviceId>,
    /// What clients saw.
    pub history: History,
    /// The plan's volumes.
    pub volumes: Vec<Volume>,
    /// Rare paths that were met.
    pub marks: Marks,
    /// What may be lost.
    pub exposure: Exposure,
    /// What was lost.
    pub losses: Losses,
    /// The devices of the servers' processes, as they are or were named.
    ids: Vec<DeviceId>,
    /// Blocks that were damaged somewhere, or told to be lost, at some time.
    pub(crate) harmed: BTreeSet<(UnitKey, u32)>,
    /// Volumes that clients may be told they don't have.
    pub leaves: Leaves,
    /// Orders that took a volume from clients, and were answered without a word from a server that may serve them yet.
    pub unconfirmed: u32,
    /// Since when a client can't use a volume, for sure.
    pub cuts: BTreeMap<(u8, VolumeId), u64>,
    /// Operations without an answer, by client, of its present life.
    pub outstanding: Vec<u32>,
    /// The plan's outcast's devices, by process, while it is one; and those of a second one that died after the first
    /// one's copies were made anew.
    pub outcasts: BTreeMap<u8, u32>,
    /// A slow device that the MDM does without.
    pub sent_away: Option<DeviceId>,
    /// Groups that were sealed and whose copies have not been compared since.
    pub sealed: BTreeSet<GroupId>,
    /// Reads of the final scan that ended in an error that is accepted.
    pub lost: u32,
    /// Blocks that a server has learned to be unreadable where its copy was made from, until the last scrub: that
    /// their bytes are equal says nothing, as no checksum of theirs fits.
    pub lost_copies: BTreeSet<(u8, UnitKey, u32)>,
    /// Blocks of reads of the final scan that were told to be unreadable.
    pub(crate) unread: BTreeSet<(UnitKey, u32)>,
    /// Servers whose devices must be refused, and what was done to them.
    pub(crate) tampered: BTreeMap<u8, Harm>,
    /// Copies of servers' devices that somebody keeps.
    pub(crate) snapshots: BTreeMap<u8, Snapshot>,
    /// Servers whose disks were replaced.
    pub(crate) replaced: BTreeMap<u8, Replaced>,
    /// Servers that have another one's device, and which one that is.
    pub(crate) written: BTreeMap<u8, DeviceId>,
    /// What damage strikes.
    pub(crate) damage_prng: Prng,
    /// The next leader that begins to seal three or more is killed so many microseconds later, for so many
    /// milliseconds.
    pub(crate) ambush: Option<(u32, u32)>,
    /// Everything is read for the last time: no error is accepted any more.
    pub scanning: bool,
    /// Deaths that are to happen in the middle of effects, and whether to start again at once.
    pub(crate) dying: Vec<Option<(Death, bool)>>,
    /// The loss of the MDMs' logs, and what came of it.
    pub(crate) rescue: Rescue,
    /// NBD connections, by client; empty when the plan has none.
    pub(crate) outlets: Vec<Outlet>,
    /// Clients whose newest life is at their second place.
    pub(crate) elsewhere: Vec<bool>,
    /// Where the lives of servers are.
    pub(crate) twins: Twins,
    /// How many fresh addresses were given to servers.
    pub(crate) readdressed: u8,
}

/// Where everybody listens.
pub(crate) const MDM_PORT: u16 = 7000;
/// As small as possible, so that a short run meets every bound.
const TUNING: Tuning = Tuning {
    durability: Durability::Flush,
    overlay_bytes: 1200 << 10,
    replay_bytes: 1 << 30,
    fresh_sums: 48,
    cached_pages: 2,
    dirty_units: 64,
    executed: 96,
    sweep: 8,
};
/// How long until somebody starts a server again that has given up its device, in ms.
const AGAIN_MS: (u64, u64) = (1, 300);
/// Alarms for that: this, and whose.
const AGAIN: u64 = 1 << 32;
/// How late a leader hears that a third member is in sync, in an ambush.
const LATE: Duration = Duration::from_millis(5);
/// Alarms for who was waited for in an ambush: this, and whose.
const STRIKE: u64 = 2 << 32;

impl Stage {
    /// Everybody in place, nobody started.
    pub fn new(plan: &Plan, sink: Sink) -> Stage {
        let mut world = World::new(plan.seed, plan.weather.clone(), plan.limits.link_queue, sink);
        let mdm = Some(Stage::address(Who::Mdm(0)));
        let id = world.add("mdm", mdm, vec![Disk::new(DiskKind::Log, 4 * TIB)]);
        world.tap.push(id);
        for i in 0..plan.sds {
            let disk = if plan.keeps(Who::Sds(i)) {
                // What a store needs besides; the smallest has 16 MiB.
                Disk::new(DiskKind::File, u64::from(plan.capacity + 12).max(16) * MIB)
            } else {
                Disk::new(DiskKind::Memory, u64::from(plan.capacity) * MIB)
            };
            world.add(&format!("sds{i}"), Some(Stage::address(Who::Sds(i))), vec![disk]);
        }
        for i in 0..plan.clients {
            world.add(&format!("sdc{i}"), Some(Stage::address(Who::Sdc(i))), Vec::new());
        }
        world.add("admin", None, Vec::new());
        // Behind the others, so that those are the same whether there is one MDM or several.
        for i in 1..plan.mdms {
            let at = Some(Stage::address(Who::Mdm(i)));
            let id = world.add(&format!("mdm{i}"), at, vec![Disk::new(DiskKind::Log, 4 * TIB)]);
            world.tap.push(id);
        }
        let everybody = 1 + plan.mdms as usize + 2 * (plan.sds as usize + plan.clients as usize);
        let volume = |units: &u32| Volume { id: None, units: *units, doomed: false, mapped: false };
        let mut stage = Stage {
            world,
            desk: Rc::default(),
            observer: Observer::new(Places::new(plan)),
            spare_percent: plan.limits.spare_percent,
            agreement: Agreement::default(),
            pace: Pace::default(),
            upkeep: Upkeep::default(),
            removed: BTreeSet::new(),
            history: History::default(),
            volumes: plan.volumes.iter().map(volume).collect(),
            marks: Marks::default(),
            exposure: Exposure::default(),
            losses: Losses::default(),
            ids: vec![DeviceId(0); plan.sds.into()],
            harmed: BTreeSet::new(),
            leaves: Leaves::default(),
            unconfirmed: 0,
            cuts: BTreeMap::new(),
            outstanding: vec![0; plan.clients as usize],
            outcasts: BTreeMap::new(),
            sent_away: None,
            sealed: BTreeSet::new(),
            lost: 0,
            lost_copies: BTreeSet::new(),
            unread: BTreeSet::new(),
            tampered: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            replaced: BTreeMap::new(),
            written: BTreeMap::new(),
            damage_prng: Prng::new(plan.seed).fork("damage"),
            ambush: None,
            scanning: false,
            dying: (0..everybody).map(|_| None).collect(),
            rescue: Rescue::default(),
            outlets: Vec::new(),
            elsewhere: vec![false; plan.clients.into()],
            twins: Twins::default(),
            readdressed: 0,
            plan: plan.clone(),
        };
        stage.add_doubles();
        stage.add_twins();
        stage.add_nbd();
        if plan.has_lies() {
            stage.world.expect_lies(Prng::new(plan.seed).fork("lies"));
        }
        stage
    }

    /// Starts a process, unless it runs.
    pub fn start(&mut self, who: Who) {
        let id = self.proc(who);
        if self.stays_away(who) {
            return;
        }
        if self.world.state(id) != ProcState::Dead {
            if let Some(dying) = &mut self.dying[id.0] {
                dying.1 = true;
            }
            return;
        }
        let limits = self.plan.limits.clone();
        // Some know them all, some only one.
        let all: Vec<SocketAddr> =
            (0..self.plan.mdms).map(|i| Stage::address(Who::Mdm(i))).collect();
        let known = match who {
            Who::Sds(i) | Who::Sdc(i) if i % 2 == 1 => vec![all[i as usize % all.len()]],
            _ => all,
        };
        let nonce = self.world.draw(id);
        match who {
            Who::Mdm(i) => {
                let config = node::mdm::Config {
                    name: format!("mdm{i}"),
                    address: Stage::address(who),
                    join: i != 0 || self.world.now() > Time(0),
                    cluster: None,
                    limits,
                    pid: 1,
                };
                self.world.boot(id, Box::new(Mdm::new(config)));
            }
            Who::Sds(i) => {
                let uuid = [self.world.draw(id), self.world.draw(id)];
                let bytes = self.world.disk(id, seam::DiskId(0)).size();
                let device = if self.plan.keeps(who) {
                    DeviceConfig::Durable(DurableConfig {
                        bytes,
                        format: true,
                        replace: true,
                        uuid,
                        tuning: if self.plan.shipped { Tuning::SHIPPED } else { TUNING },
                    })
                } else {
                    DeviceConfig::Ram { capacity: bytes }
                };
                let server = self.plan.server(i);
                let before = self.plan.together(i).filter(|j| *j < i);
                let config = SdsConfig {
                    name: format!("sds{server}"),
                    shard: before.count() as u32,
                    mdm: known,
                    address: self.world.address(id).expect("a server has an address"),
                    device,
                    home: Home {
                        fault_set: match self.plan.fault_sets {
                            0 => String::new(),
                            _ => format!("set{}", self.plan.unit(i)),
                        },
                        pool: pool_name(self.plan.pool(i)).into(),
                        ..Home::default()
                    },
                    nonce,
                    pid: 1,
                    limits,
                };
                self.losses.starts(self.ids[usize::from(i)], nonce);
                self.world.boot(id, Box::new(Sds::new(config)));
            }
            Who::Sdc(i) => {
                // Whoever reads everything at the end waits for every answer.
                let limits = match self.scanning {
                    true => Limits { answer_within: Duration::ZERO, ..limits },
                    false => limits,
                };
                let name = format!("sdc{i}");
                let nbd_uris = Vec::new();
                let config = SdcConfig { name, mdm: known, nbd_uris, nonce, pid: 1, limits };
                self.world.boot(id, Box::new(Sdc::new(config)));
            }
            Who::Admin => {
                let admin = Admin::new(self.desk.clone(), known, limits);
                self.world.boot(id, Box::new(admin));
            }
        }
    }

    /// Kills a process, if it lives.
    pub fn kill(&mut self, who: Who, death: Death) {
        let id = self.proc(who);
        if self.world.state(id) == ProcState::Dead || self.dying[id.0].is_some() {
            return;
        }
        if death.midway && self.world.state(id) == ProcState::Running {
            self.marks.meet("sim: death in the middle of effects");
            self.dying[id.0] = Some((death, false));
            self.world.crash_in_effects(id, death.power);
            return;
        }
        self.world.crash(id, death.power).expect("it lives");
        self.bury(who, death);
    }

    /// Takes back a death that has not happened yet.
    pub fn spare(&mut self, who: Who) {
        let id = self.proc(who);
        self.dying[id.0] = None;
        self.world.spare(id);
    }

    fn bury(&mut self, who: Who, death: Death) {
        match who {
            Who::Sds(_) if death.keep && self.plan.keeps(who) => {}
            Who::Sds(i) => {
                let id = self.proc(who);
                // It was careful when it was ordered; since then another one may have gone down.
                // Two copies of anything are in two servers, unless devices were exchanged.
                let down = |j: u8| self.world.state(self.proc(Who::Sds(j))) != ProcState::Running;
                let mate =
                    |j: u8| self.plan.server(j) == self.plan.server(i) && self.written.is_empty();
                let other = |j: &u8| *j != i && !mate(*j) && down(*j);
                if (0..self.plan.sds).any(|j| other(&j)) && self.exposure.excuse.is_none() {
                    self.exposure.excuse = Some(format!("{who} was wiped while another was down"));
                }
                self.world.disk(id, seam::DiskId(0)).wipe();
                self.losses.emptied(self.ids[usize::from(i)], self.world.steps());
            }
            Who::Sdc(i) => self.outstanding[i as usize] = 0,
            Who::Mdm(_) | Who::Admin => {}
        }
    }

    /// Lets the next thing happen, and takes in what it shows. Gives the token of an alarm.
    pub fn step(&mut self) -> Result<Option<u64>, Failure> {
        let alarm = match self.world.step() {
            Step::Idle => return Err(Failure::new("world", "nothing is left to happen")),
            Step::Ran => None,
            Step::Alarm(token) if token >= STRIKE => {
                self.strike(ProcId((token - STRIKE) as usize));
                None
            }
            Step::Alarm(token) if token >= AGAIN => {
                self.comes_again(ProcId((token - AGAIN) as usize));
                None
            }
            Step::Alarm(token) => Some(token),
            Step::Died(id, _) => {
                self.take_in()?; // what it still did
                let who = self.who(id);
                // Nothing is left to do if it gave up at that very moment: it is buried, and comes again.
                if let Some((death, again)) = self.dying[id.0].take() {
                    self.bury(who, death);
                    if again {
                        self.start(who);
                    }
                }
                None
            }
        };
        self.take_in()?;
        Ok(alarm)
    }

    /// Takes in what the world has shown.
    fn take_in(&mut self) -> Result<(), Failure> {
        for (_, body) in std::mem::take(&mut self.world.tapped) {
            let page = MapPage::decode(&body[..])
                .map_err(|e| Failure::new("wire", format!("the MDM sent a bad page: {e}")))?;
            self.losses(&page)?;
            let now = self.world.now();
            page.groups.iter().for_each(|g| self.pace.group(g, now));
            self.observer.page(page)?;
        }
        self.look_at_rescue()?;
        (0..self.plan.sds).for_each(|i| self.replace_removed(i));
        self.end_told();
        if self.plan.weather.log_fail_ppm > 0 {
            (0..self.plan.mdms).for_each(|i| self.restart_mdm(i));
        }
        for (id, note) in std::mem::take(&mut self.world.notes) {
            self.note(id, note)?;
        }
        for reply in std::mem::take(&mut self.world.replies) {
            self.reply(reply)?;
        }
        self.take_in_nbd()?;
        if let Some(text) = self.desk.borrow_mut().forgotten.take() {
            return Err(Failure::new("Mdm", text));
        }
        if !self.desk.borrow().done.is_empty() {
            let done = std::mem::take(&mut self.desk.borrow_mut().done);
            done.into_iter().for_each(|d| self.done(d));
        }
        Ok(())
    }

    /// What is given up as lost is lost. Who is whose, if devices change their places, is not known here.
    fn losses(&mut self, page: &MapPage) -> Result<(), Failure> {
        let moment = self.world.steps();
        let nothing = page.groups.iter().filter(|g| self.loses_nothing(g));
        let nothing: Vec<GroupId> = nothing.map(|g| GroupId(g.id)).collect();
        nothing.into_iter().for_each(|g| self.losses.stays_lost(g));
        let result = page.groups.iter().try_for_each(|g| self.losses.group(g, moment));
        if self.plan.swaps() { Ok(()) } else { result }
    }

    fn note(&mut self, id: ProcId, note: Note) -> Result<(), Failure> {
        self.marks.note(&note);
        // A former life may be active until it is told; nothing else that it does is of interest.
        let former = self.former_of(id).is_some();
        if former && !matches!(note, Note::Active { .. } | Note::Refused { .. }) {
            return Ok(());
        }
        match note {
            Note::Active { group, epoch, .. } if former => {
                let life = self.world.life(id);
                self.observer.active(id, life, group, epoch)?;
            }
            Note::Active { group, epoch, .. } => {
                self.may_lead(id)?;
                let life = self.world.life(id);
                self.observer.active(id, life, group, epoch)?;
            }
            Note::Decided { index, term, chain } => {
                self.agreement.decided(id, index, term, chain)?;
                let mdm = self.world.actor::<Mdm>(id);
                let at = |mdm: &&Mdm| mdm.consensus().is_some_and(|c| c.applied() == index);
                if let Some(mdm) = mdm.filter(at) {
                    self.upkeep.look(index, mdm.state())?;
                    self.rescue.judge_older(mdm.state())?;
                    let moment = self.world.steps();
                    for (id, device) in &mdm.state().devices {
                        self.losses.registered(*id, device.nonce, moment);
                    }
                    if mdm.is_decided() {
                        let gone = |d: &mdm::state::Device| d.intent == Intent::Removed;
                        let gone = mdm.state().devices.iter().filter(|(_, d)| gone(d));
                        self.removed.extend(gone.map(|(id, _)| *id));
                    }
                }
            }
            Note::Leading { term } => {
                let life = self.world.life(id);
                self.agreement.leading(id, life, term)?;
            }
            // Links keep order, and what was not answered is sent again in order.
            Note::Refused { why, .. } if why == mirror::GAP => {
                return Err(Failure::new("stream", format!("{}: {why}", self.world.name(id))));
            }
            Note::DeviceDown { device, proof } => {
                self.pace.down(device, self.world.now());
                if proof {
                    deaths::check(self, id, device)?;
                }
            }
            Note::RefusesAlive { device } => self.cut_from_mdm(id, device),
            Note::Slow { device, .. } if self.is_out(device.0) => self.sent_away = Some(device),
            Note::Slow { device, .. } if !self.outcasts.is_empty() => {
                return Err(Failure::new(
                    "R12",
                    format!("{device} is done without, and is not slow"),
                ));
            }
            Note::Lost { group, unit, first, blocks } => {
                self.copied_loss(id, group, unit, first..first + blocks);
            }
            Note::Unreadable { group, unit, first, blocks } => {
                self.met_damage(id, group, unit, first..first + blocks);
            }
            Note::DeviceFailed | Note::DeviceRefused => self.gave_up(id)?,
            Note::Sealed { group, .. } => {
                self.sealed.insert(group);
                self.spring(id, group);
                if self.leads(id, group) {
                    differences::check(self, group)?;
                }
            }
            Note::BadBody { .. } if self.plan.weather.flip_ppm == 0 => {
                return Err(Failure::new(
                    "wire",
                    format!("{}: {note:?} in fair weather", self.world.name(id)),
                ));
            }
            _ => {}
        }
        Ok(())
    }

    /// An MDM knows that this device's address refuses dials though it lives: the link between the two breaks.
    fn cut_from_mdm(&mut self, mdm: ProcId, device: DeviceId) {
        let is_it = |i: &u8| self.sds(*i).is_some_and(|s| s.id() == device);
        let Some(i) = (0..self.plan.sds).find(is_it) else { return };
        // If it takes dials again before the link breaks, and then refuses them once more, nobody can tell that it lives.
        if !self.world.refuses_for(self.proc(Who::Sds(i)), Duration::from_secs(2)) {
            return;
        }
        self.marks.meet("sim: a server that refuses dials was cut from an MDM");
        self.world.reset(mdm, self.proc(Who::Sds(i)));
    }

    /// A joiner was told that blocks can't be read any more. Unless losses are allowed, two copies of a block
    /// are never damaged: the first one becomes readable again, and has to mend the joiner's.
    pub(crate) fn copied_loss(
        &mut self,
        id: ProcId,
        group: GroupId,
        unit: UnitKey,
        blocks: Range<u16>,
    ) {
        let blocks = u32::from(blocks.start)..u32::from(blocks.end);
        if let Who::Sds(i) = self.who(id) {
            self.harmed.extend(blocks.clone().map(|b| (unit, b)));
            self.lost_copies.extend(blocks.clone().map(|b| (i, unit, b)));
        }
        self.heal_blocks(group, unit, blocks);
    }

    /// True while somebody has told a joiner that blocks can't be read: who is left when one more server goes might
    /// be the one that has to be mended.
    pub fn has_to_mend(&self) -> bool {
        !self.plan.allow_loss && !self.lost_copies.is_empty()
    }

    /// A server can't go on with its device: it dies, and somebody starts it again. A device that is no
    /// device any more is replaced.
    fn gave_up(&mut self, id: ProcId) -> Result<(), Failure> {
        use store::durable::MountError::Device;
        let who = self.who(id);
        let trouble = self.world.actor::<Sds>(id).and_then(Sds::trouble).cloned();
        let death = Death { keep: true, ..Death::default() };
        let mut refuses = None;
        match (who, trouble) {
            (_, None | Some(Trouble::Device(Device { .. }))) => {}
            (Who::Sds(i), Some(Trouble::Refused(_))) if self.is_removed(i) => {
                self.replace_removed(i);
                return Ok(());
            }
            (Who::Sds(i), Some(Trouble::Refused(_))) if self.has_older_disk(i) => {
                self.exchange(i);
                return Ok(());
            }
            (Who::Sds(i), Some(Trouble::Refused(why))) if self.is_taken_for_older(i, &why) => {
                self.add_anew(id);
                return Ok(());
            }
            (Who::Sds(i), Some(other)) if self.is_refused_rightly(i, &other) => refuses = Some(i),
            (_, Some(other)) => {
                let text = format!("{who} can't use its device: {other}");
                return Err(Failure::new("device", text));
            }
        }
        self.marks.meet("sim: a device failed");
        self.fault(format_args!("{who}'s device failed"));
        self.spare(who);
        self.kill(who, death);
        if let Some(i) = refuses {
            self.put_right(i);
        }
        self.start_soon(id);
        Ok(())
    }

    pub(crate) fn start_soon(&mut self, id: ProcId) {
        let (low, high) = AGAIN_MS;
        let after = Duration::from_millis(low + self.world.draw(id) % (high - low));
        let at = self.world.now() + after;
        self.world.alarm(at, AGAIN + id.0 as u64);
    }

    /// The device that a server has, or had.
    pub(crate) fn id_of(&self, i: u8) -> DeviceId {
        self.sds(i).map(Sds::id).filter(|id| id.0 != 0).unwrap_or(self.ids[usize::from(i)])
    }

    /// The device that a server has: as it was named, or as is written on it.
    pub(crate) fn device_of(&self, i: u8) -> Option<DeviceId> {
        let sds = self.sds(i)?;
        let written = || Some(sds.device()?.durable()?.identity().device);
        Some(sds.id()).filter(|id| id.0 != 0).or_else(written)
    }

    /// True when the removal of its device is complete: an MDM decided so, or told a map of it and died with that.
    fn is_removed(&self, i: u8) -> bool {
        let told = |d: DeviceId| self.observer.devices.get(&d).is_some_and(|entry| entry.removed);
        self.device_of(i).is_some_and(|device| self.removed.contains(&device) || told(device))
    }

    /// A server whose removal is complete ends; what it had is thrown away, and nobody may miss it. Another one
    /// comes with an empty device.
    fn replace_removed(&mut self, i: u8) {
        let Some(device) = self.sds(i).map(Sds::id) else { return };
        if device.0 != 0 {
            self.ids[usize::from(i)] = device;
        }
        let gone =
            self.observer.devices.get(&device).is_some_and(|d| d.removed) || self.is_refused(i);
        let who = Who::Sds(i);
        let id = self.proc(who);
        if !gone || !self.is_removed(i) || self.world.state(id) == ProcState::Dead {
            return;
        }
        self.marks.meet("sim: a server was removed and another added");
        self.rescue.emptied = true;
        self.spare(who);
        self.world.crash(id, false).expect("it lives");
        self.world.disk(id, seam::DiskId(0)).wipe();
        self.start_soon(id);
    }

    fn is_refused(&self, i: u8) -> bool {
        self.sds(i).is_some_and(Sds::ended)
    }

    /// A leader has heard of one that is equal. If that was a joiner, a third member will be in sync: the leader hears of
    /// it late, so that what it takes meanwhile is refused by the others. If three are, the ambush was for this leader.
    fn spring(&mut self, id: ProcId, group: GroupId) {
        let Some((after_us, away_ms)) = self.ambush else { return };
        let Who::Sds(i) = self.who(id) else { return };
        let Some(group) = self.observer.groups.get(&group) else { return };
        let leads = self.device_of(i).is_some_and(|device| device.0 == group.primary);
        if !self.plan.keeps(Who::Sds(i)) || !leads || group.in_sync.len() < 2 {
            return;
        }
        if group.in_sync.len() == 2 {
            let until = self.world.now() + LATE;
            let mdms: Vec<ProcId> = (0..self.plan.mdms).map(|i| self.proc(Who::Mdm(i))).collect();
            mdms.into_iter().for_each(|mdm| self.world.clog(mdm, id, until));
            return;
        }
        self.marks.meet("sim: a leader died between two seals");
        self.ambush = None;
        let strike = self.world.now() + Duration::from_micros(after_us.into());
        self.world.alarm(strike, STRIKE + id.0 as u64);
        let again = strike + Duration::from_millis(away_ms.into());
        self.world.alarm(again, AGAIN + id.0 as u64);
    }

    /// True when this process leads the group, by the newest map.
    fn leads(&self, id: ProcId, group: GroupId) -> bool {
        let Who::Sds(i) = self.who(id) else { return false };
        let group = self.observer.groups.get(&group);
        group.is_some_and(|g| self.sds(i).is_some_and(|sds| sds.id().0 == g.primary))
    }

    fn strike(&mut self, id: ProcId) {
        let death = Death { keep: true, ..Death::default() };
        self.act(Action::Crash(self.who(id), death));
    }

    /// The alarm for a server that gave up.
    fn comes_again(&mut self, id: ProcId) {
        if self.world.state(id) == ProcState::Dead {
            let who = self.who(id);
            self.start(who);
        }
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Created(v, id, units) if self.rescue.deleted.contains(&VolumeId(id)) => {
                self.bury_again(v, units);
            }
            Done::Created(v, id, units) => {
                let volume = &mut self.volumes[v as usize];
                *volume = Volume { id: Some(VolumeId(id)), units, doomed: false, mapped: false };
            }
            Done::Resized(v, units) => {
                let volume = &mut self.volumes[v as usize];
                volume.units = volume.units.max(units);
            }
            Done::Deleted(v) => self.rescue.deleted.extend(self.volumes[v as usize].id.take()),
            Done::Mapped(v, clients, confirmed) => self.mapped(v, clients, confirmed),
            Done::RemovedMdm(i) => self.begin_anew(i),
            Done::Accepted => self.loss_accepted(),
            Done::Other => {}
        }
    }

    /// An MDM was taken out: its process ends, its file goes, and it is about to be taken in as a new one.
    fn begin_anew(&mut self, i: u8) {
        self.marks.meet("sim: an MDM was replaced");
        let (who, id) = (Who::Mdm(i), self.proc(Who::Mdm(i)));
        self.spare(who);
        self.world.resume(id);
        self.world.crash(id, false);
        self.world.disk(id, seam::DiskId(0)).wipe();
        self.start(who);
    }

    /// Gives the administrator an order.
    pub fn order(&mut self, order: Order) {
        if let Order::Delete(v) = order {
            self.volumes[v as usize].doomed = true;
        }
        if let Order::Map(v, clients) = order {
            let volume = &mut self.volumes[v as usize];
            volume.mapped = true;
            let id = volume.id;
            let without = (0..self.plan.clients).filter(|client| clients >> client & 1 == 0);
            without.for_each(|client| id.into_iter().for_each(|id| self.leaves.take(client, id)));
            self.cuts.retain(|(client, of), _| Some(*of) != id || clients >> client & 1 == 0);
        }
        self.desk.borrow_mut().orders.push_back(order);
        let admin = self.proc(Who::Admin);
        self.world.poke(admin);
    }
}

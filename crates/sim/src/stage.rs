//! The processes of a run (MDMs, data servers, clients and the administrator, all with the shipped
//! nodes), and the simulator's knowledge about them.

use crate::admin::{Admin, Desk, Done, Order};
use crate::check::Failure;
use crate::check::agreement::Agreement;
use crate::check::deaths;
use crate::check::differences;
use crate::check::errors::{Denials, User};
use crate::check::i13_epochs::Observer;
use crate::check::i15_versions;
use crate::check::i17_holes;
use crate::check::losses::Losses;
use crate::check::pace::Pace;
use crate::check::pools::Places;
use crate::check::upkeep::Upkeep;
use crate::disk::{Disk, DiskKind};
use crate::history::History;
use crate::hosts::Initiator;
use crate::marks::Coverage;
use crate::nbd::Outlet;
use crate::plan::pools::pool_name;
use crate::plan::{Action, Death, Plan, Totals, Who};
use crate::programs::Programs;
use crate::replaced::Replaced;
use crate::rescue::Rescue;
use crate::tamper::{Harm, Snapshot};
use crate::trace::Sink;
use crate::twins::Twins;
use crate::world::{ProcId, ProcState, Step, World};
use base::{DeviceId, Dialect, GroupId, Limits, MIB, Prng, TIB, Time, UnitKey, VolumeId};
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
use wire::control::{Intent, MapPage};

/// State of one of the plan's volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Volume {
    /// Id, while the volume surely exists.
    pub id: Option<VolumeId>,
    /// Size in units, as far as the volume has surely grown.
    pub units: u32,
    /// Deletion of the volume was ordered.
    pub doomed: bool,
    /// The volume was mapped to some clients only. Other clients, and those that lost the mapping,
    /// may get errors.
    pub mapped: bool,
}

/// Whether some copy may be the last one.
#[derive(Default, Debug)]
pub struct Exposure {
    /// A wiped server may not have a full copy yet.
    pub exposed: bool,
    /// Reason why the loss of all data is acceptable, if there is one.
    pub excuse: Option<String>,
}

/// A run in progress.
pub struct Stage {
    /// The plan of the run.
    pub plan: Plan,
    /// What the steps of the plan do together.
    pub totals: Totals,
    /// The world in which the processes run.
    pub world: World,
    /// Orders for the administrator.
    pub desk: Rc<RefCell<Desk>>,
    /// The map as seen in pages of the MDMs.
    pub observer: Observer,
    /// Percentage of each device that is kept for rebuilding lost copies.
    pub spare_percent: u32,
    /// Judge: the MDMs agree.
    pub agreement: Agreement,
    /// Judge: lost copies are rebuilt soon.
    pub pace: Pace,
    /// Judge: nothing is rebuilt in place of servers in maintenance.
    pub upkeep: Upkeep,
    /// Devices whose removal is final.
    pub removed: BTreeSet<DeviceId>,
    /// Operations and answers of clients.
    pub history: History,
    /// State of the plan's volumes.
    pub volumes: Vec<Volume>,
    /// Rare paths that were met.
    pub marks: Coverage,
    /// Which losses are acceptable.
    pub exposure: Exposure,
    /// Judge: which groups are really lost.
    pub losses: Losses,
    /// Device id of each server process, as far as it was ever named.
    pub(crate) ids: Vec<DeviceId>,
    /// Blocks that were damaged on a server at some time, or were reported lost to it.
    pub(crate) harmed: BTreeSet<(u8, UnitKey, u32)>,
    /// Volumes that clients may be told they can't use.
    pub denials: Denials,
    /// Unmap orders that were answered although a server that may still serve had not confirmed.
    pub unconfirmed: u32,
    /// The moment since which a client or a host surely can't use a volume.
    pub cuts: BTreeMap<(User, VolumeId), u64>,
    /// Unanswered operations of each client in its present incarnation, without withdrawn ones.
    pub outstanding: Vec<u32>,
    /// Requests of programs beside each client.
    pub programs: Vec<Programs>,
    /// Devices of the plan's outcast by process, while it is away; also those of a second server
    /// that died when the first one's copies were rebuilt.
    pub outcasts: BTreeMap<u8, u32>,
    /// The slow device that the MDM has ejected.
    pub ejected: Option<DeviceId>,
    /// Groups that were sealed and whose copies have not been compared since.
    pub sealed: BTreeSet<GroupId>,
    /// Number of operations that ended in the error `Lost`.
    pub lost: u32,
    /// Blocks that a server has learned to be unreadable at the source of its copy, until the final
    /// scrub. Their bytes may differ from other copies, as no checksum matches them.
    pub lost_copies: BTreeSet<(u8, UnitKey, u32)>,
    /// Blocks of the final scan that were reported unreadable.
    pub(crate) unread: BTreeSet<(UnitKey, u32)>,
    /// Servers that must refuse their devices, and the tampering.
    pub(crate) tampered: BTreeMap<u8, Harm>,
    /// Copies of servers' devices that were set aside.
    pub(crate) snapshots: BTreeMap<u8, Snapshot>,
    /// Servers whose disks were replaced.
    pub(crate) replaced: BTreeMap<u8, Replaced>,
    /// Servers that hold another server's device, and the id of that device.
    pub(crate) written: BTreeMap<u8, DeviceId>,
    /// Random numbers for damage.
    pub(crate) damage_prng: Prng,
    /// Ambush: the next primary that begins to seal three or more replicas is killed this many µs
    /// later, and starts again after this many ms.
    pub(crate) ambush: Option<(u32, u32)>,
    /// The final scan runs: errors are no longer accepted, and clients wait for every answer.
    pub scanning: bool,
    /// By process: a pending death in the middle of effects, and whether to start again at once.
    pub(crate) dying: Vec<Option<(Death, bool)>>,
    /// The loss of the MDMs' logs, and the recovery.
    pub(crate) rescue: Rescue,
    /// NBD connections, by client; empty if the plan has none.
    pub(crate) outlets: Vec<Outlet>,
    /// Hosts that use iSCSI or NVMe.
    pub(crate) hosts: Vec<Initiator>,
    /// By client: whether its newest incarnation is at its second place.
    pub(crate) elsewhere: Vec<bool>,
    /// Where the incarnations of servers are.
    pub(crate) twins: Twins,
    /// Number of new addresses that servers were given.
    pub(crate) readdressed: u8,
    /// Processes that are of the next release when they start, one bit each.
    pub(crate) newer: u64,
    /// The level may have risen: nothing of this release is started any more.
    pub(crate) raised: bool,
}

/// The capabilities of the next release. Its frames are the same.
pub(crate) const NEXT: Dialect =
    Dialect { release: "next", wire_max: 2, level_max: 2, ..wire::DIALECT };

/// Port of all processes.
pub(crate) const MDM_PORT: u16 = 7000;
/// Delay in ms before a server that gave up its device starts again: (lowest, highest).
const AGAIN_MS: (u64, u64) = (1, 300);
/// First alarm token for these restarts; the process id is added.
const AGAIN: u64 = 1 << 32;
/// Delay of the MDMs' frames to a primary in an ambush, so that it hears late of a third replica.
const LATE: Duration = Duration::from_millis(5);
/// First alarm token for strikes of ambushes; the process id is added.
const STRIKE: u64 = 2 << 32;

impl Stage {
    /// Creates the stage with all processes in place and none started.
    // Long: one list of all fields, and the processes in their order.
    pub fn new(plan: &Plan, sink: Sink) -> Stage {
        let mut world = World::new(plan.seed, plan.weather.clone(), plan.limits.link_queue, sink);
        let mdm = Some(Stage::address(Who::Mdm(0)));
        let id = world.add("mdm", mdm, vec![Disk::new(DiskKind::Log, 4 * TIB)]);
        world.tap.push(id);
        for i in 0..plan.sds {
            let disk = if plan.keeps(Who::Sds(i)) {
                // A store needs 12 MiB besides its data, and 16 MiB at least.
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
        // The other MDMs come last, so that all other processes are the same in plans with one MDM.
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
            marks: Coverage::default(),
            exposure: Exposure::default(),
            losses: Losses::default(),
            ids: vec![DeviceId(0); plan.sds.into()],
            harmed: BTreeSet::new(),
            denials: Denials::default(),
            unconfirmed: 0,
            cuts: BTreeMap::new(),
            outstanding: vec![0; plan.clients as usize],
            programs: vec![Programs::default(); plan.clients as usize],
            outcasts: BTreeMap::new(),
            ejected: None,
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
            hosts: Vec::new(),
            elsewhere: vec![false; plan.clients.into()],
            twins: Twins::default(),
            readdressed: 0,
            newer: plan.newer,
            raised: false,
            plan: plan.clone(),
            totals: plan.totals(),
        };
        stage.add_doubles();
        stage.add_twins();
        stage.add_nbd();
        stage.add_hosts();
        if plan.has_lies() {
            stage.world.expect_lies(Prng::new(plan.seed).fork("lies"));
        }
        stage
    }

    /// Starts a process, unless it runs.
    // Long: one match over the roles, each with its whole configuration.
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
        let newer = self.raised || self.newer & who.build_bit() != 0;
        let dialect = if newer { NEXT } else { wire::DIALECT };
        // Some processes know all MDMs, some only one.
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
                    dialect,
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
                        tuning: self.plan.tuning(),
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
                    dialect,
                };
                self.losses.starts(self.ids[usize::from(i)], nonce);
                self.world.boot(id, Box::new(Sds::new(config)));
            }
            Who::Sdc(i) => {
                let within = if self.scanning { Duration::ZERO } else { limits.answer_within };
                let queue = self.plan.client_queue(i);
                let limits = Limits { answer_within: within, link_queue: queue, ..limits };
                self.world.set_link_queue(id, limits.link_queue);
                let program = SdcConfig::program(format!("sdc{i}"), known, nonce, 1);
                let config = SdcConfig { uris: self.plan.uris(i), limits, dialect, ..program };
                self.world.boot(id, Box::new(Sdc::new(config)));
            }
            Who::Admin => {
                self.world.boot(id, Box::new(Admin::new(self.desk.clone(), known, limits)));
            }
        }
    }

    /// Kills a process, unless it is dead.
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

    /// Cancels a pending death.
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
                // The death was careful when it was ordered, but another server may have gone down
                // since. Two copies of a group are on two servers, unless devices were swapped.
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
            Who::Sdc(i) => {
                self.outstanding[i as usize] = 0;
                self.programs[i as usize] = Programs::default();
            }
            Who::Mdm(_) | Who::Admin => {}
        }
    }

    /// Runs the next step of the world, and processes its results. Returns the token of an alarm.
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
                self.take_in()?; // effects from before the death
                let who = self.who(id);
                // If it gave up its device at that very moment, its death is already handled.
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

    /// Processes the map pages, notes and replies of the last step.
    fn take_in(&mut self) -> Result<(), Failure> {
        for (_, body) in std::mem::take(&mut self.world.tapped) {
            let page = MapPage::decode(&body[..])
                .map_err(|e| Failure::new("wire", format!("the MDM sent a bad page: {e}")))?;
            self.losses(&page)?;
            let now = self.world.now();
            page.groups.iter().for_each(|g| self.pace.group(g, now));
            self.observer.page(page)?;
        }
        i17_holes::check(self)?;
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
        self.take_in_hosts()?;
        if let Some(text) = self.desk.borrow_mut().forgotten.take() {
            return Err(Failure::new("Mdm", text));
        }
        if !self.desk.borrow().done.is_empty() {
            let done = std::mem::take(&mut self.desk.borrow_mut().done);
            done.into_iter().for_each(|d| self.done(d));
        }
        Ok(())
    }

    /// Checks that a group is really lost when an MDM gives it up as lost.
    pub(crate) fn losses(&mut self, page: &MapPage) -> Result<(), Failure> {
        let moment = self.world.steps();
        let nothing = page.groups.iter().filter(|g| self.loses_nothing(g));
        let nothing: Vec<GroupId> = nothing.map(|g| GroupId(g.id)).collect();
        nothing.into_iter().for_each(|g| self.losses.stays_lost(g));
        // The entry that names a device's next incarnation may give up a group as well.
        if let Some(mdm) = self.mdm().filter(|mdm| mdm.is_decided()) {
            let known = mdm.state().devices.iter().map(|(id, device)| (*id, device.nonce));
            let known: Vec<(DeviceId, u64)> = known.collect();
            known.into_iter().for_each(|(id, nonce)| self.losses.registered(id, nonce, moment));
        }
        page.groups.iter().try_for_each(|g| self.losses.group(g, moment))
    }

    // Long: one match over all notes that a judge looks at.
    fn note(&mut self, id: ProcId, note: Note) -> Result<(), Failure> {
        self.marks.note(&note);
        // A former incarnation may be active until it learns of the newer one. Its other
        // notes don't matter.
        let former = self.former_of(id).is_some();
        if former && !matches!(note, Note::Active { .. } | Note::Refused { .. }) {
            return Ok(());
        }
        if !former {
            i15_versions::note(self, id, &note)?;
            i17_holes::note(self, id, &note)?;
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
                    if mdm.state().level >= NEXT.level_max {
                        self.marks.meet("sim: the level was raised");
                    }
                    i15_versions::state(self, id, mdm.state())?;
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
            // A gap is a bug: links keep order, and unanswered frames are resent in order.
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
            Note::Slow { device, .. } if self.is_out(device.0) => self.ejected = Some(device),
            Note::Slow { device, .. } if !self.outcasts.is_empty() => {
                return Err(Failure::new("R12", format!("{device} is ejected, and is not slow")));
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

    /// Breaks the link between an MDM and a device, when the MDM knows that the device's address
    /// refuses dials although the device lives.
    fn cut_from_mdm(&mut self, mdm: ProcId, device: DeviceId) {
        let is_it = |i: &u8| self.sds(*i).is_some_and(|s| s.id() == device);
        let Some(i) = (0..self.plan.sds).find(is_it) else { return };
        // If the address accepts dials before the link breaks, and refuses again after that, the
        // MDM can't know that the device lives.
        if !self.world.refuses_for(self.proc(Who::Sds(i)), Duration::from_secs(2)) {
            return;
        }
        self.marks.meet("sim: a server that refuses dials was cut from an MDM");
        self.world.reset(mdm, self.proc(Who::Sds(i)));
    }

    /// Records that a joiner was told of unreadable blocks. Unless losses are allowed, two copies
    /// of a block are never damaged at once: the source becomes readable again, and has to repair
    /// the joiner's copy.
    pub(crate) fn copied_loss(
        &mut self,
        id: ProcId,
        group: GroupId,
        unit: UnitKey,
        blocks: Range<u16>,
    ) {
        let blocks = u32::from(blocks.start)..u32::from(blocks.end);
        if let Who::Sds(i) = self.who(id) {
            self.harmed.extend(blocks.clone().map(|b| (i, unit, b)));
            self.lost_copies.extend(blocks.clone().map(|b| (i, unit, b)));
        }
        self.heal_blocks(group, unit, blocks);
    }

    /// Returns true while a copy has blocks that were reported unreadable. If one more server
    /// failed, the server that is left might be the one that needs the repair.
    pub fn has_to_mend(&self) -> bool {
        !self.plan.allow_loss && !self.lost_copies.is_empty()
    }

    /// Handles a server that gave up its device: kills it and starts it again soon. A device whose
    /// removal is complete is replaced.
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
            (Who::Sds(i), Some(Trouble::Refused(_))) if self.counts_as_up(i) => {}
            (Who::Sds(i), Some(Trouble::Refused(_)))
                if self.has_older_disk(i)
                    || self.is_older_believed(i)
                    || self.is_other_in_use(i) =>
            {
                self.exchange(i);
                return Ok(());
            }
            (Who::Sds(i), Some(Trouble::Refused(why))) if self.is_to_be_added_anew(i, &why) => {
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

    /// Returns the device that a server has or had.
    pub(crate) fn id_of(&self, i: u8) -> DeviceId {
        self.sds(i).map(Sds::id).filter(|id| id.0 != 0).unwrap_or(self.ids[usize::from(i)])
    }

    /// Returns the device that a server has: as an MDM named it, or as is written on it.
    pub(crate) fn device_of(&self, i: u8) -> Option<DeviceId> {
        let sds = self.sds(i)?;
        let written = || Some(sds.device()?.durable()?.identity().device);
        Some(sds.id()).filter(|id| id.0 != 0).or_else(written)
    }

    /// Returns true when the removal of the server's device is complete: an MDM decided that, or
    /// published a map with it and died.
    fn is_removed(&self, i: u8) -> bool {
        let told = |d: DeviceId| self.observer.devices.get(&d).is_some_and(|entry| entry.removed);
        self.device_of(i).is_some_and(|device| self.removed.contains(&device) || told(device))
    }

    /// Ends a server whose removal is complete, and deletes all its content, which nobody may need
    /// any more. Another server with an empty device takes its place.
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
        self.rescue.device_was_emptied();
        self.spare(who);
        self.world.crash(id, false).expect("it lives");
        self.world.disk(id, seam::DiskId(0)).wipe();
        self.start_soon(id);
    }

    fn is_refused(&self, i: u8) -> bool {
        self.sds(i).is_some_and(Sds::ended)
    }

    /// Acts on a seal while an ambush waits. With two replicas in sync, a third one is about to
    /// join: the MDMs' frames to the primary are delayed, so that others refuse what it accepts
    /// meanwhile. With three or more, the primary is killed soon.
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

    /// Returns true when this process is primary of the group, by the newest map.
    fn leads(&self, id: ProcId, group: GroupId) -> bool {
        let Who::Sds(i) = self.who(id) else { return false };
        let group = self.observer.groups.get(&group);
        group.is_some_and(|g| self.sds(i).is_some_and(|sds| sds.id().0 == g.primary))
    }

    fn strike(&mut self, id: ProcId) {
        let death = Death { keep: true, ..Death::default() };
        self.act(Action::Crash(self.who(id), death));
    }

    /// Handles the alarm that restarts a process.
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
            Done::Created(v, id, units) => self.created(v, VolumeId(id), units),
            Done::Resized(v, units) => {
                let volume = &mut self.volumes[v as usize];
                volume.units = volume.units.max(units);
            }
            Done::Deleted(v) => self.rescue.deleted.extend(self.volumes[v as usize].id.take()),
            Done::Mapped(v, clients, confirmed) => self.mapped(v, clients, confirmed),
            Done::Hosts(v, has, lacks, sure) => self.hosts_mapped(v, (has, lacks), sure),
            Done::HostsKept(v) => self.heed_hosts(v),
            Done::Moved(v, host, client) => self.moved(v, host, client),
            Done::RemovedMdm(i) => self.begin_anew(i),
            Done::Accepted => self.loss_accepted(),
            Done::Other => {}
        }
    }

    /// Restarts an MDM that was removed: its process ends, its file is deleted, and it will be
    /// added as a new one.
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
        self.expect(order);
        self.desk.borrow_mut().orders.push_back(order);
        let admin = self.proc(Who::Admin);
        self.world.poke(admin);
    }
}

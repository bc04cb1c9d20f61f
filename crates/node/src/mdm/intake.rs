//! Turns inputs into commands, each against the state right after the command before.

use super::outlet::{Answer, Fence, Progress};
use super::{Mdm, Peer, Session};
use crate::refusals::refusal;
use alloc::collections::BTreeSet;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{ClusterId, DeviceId, Duration, LinkId, SdcId, Time, VolumeId};
use mdm::command::{self, Command};
use mdm::controller;
use mdm::controller::Registration;
use mdm::detector::{Verdict, loss_limit};
use mdm::entry::{Commands, ENTRY_MAX};
use mdm::maintenance;
use mdm::object_orders;
use mdm::removal;
use mdm::state::Change;
use mdm::{Refused, status};
use seam::{Effect, Effects, Note};
use wire::control::{
    AdminReply, Ask, Intent, MdmInfo, Proposal, RefusalCode, Register, RegisterSdc, Registered,
};
use wire::message;

/// How long the answer to a mapping order waits for the devices that serve the volume. A silent
/// device is declared down within this time, and then others confirm, unless it has the last copy.
const CONFIRM: Duration = Duration::from_secs(5);

/// Something that may change the state.
pub(super) enum Input {
    /// The cluster is to be formed.
    Form(ClusterId),
    /// A new leader checks that the state has its own name and address.
    Here,
    /// An SDS registers a device.
    Register(LinkId, Register),
    /// An SDC registers.
    RegisterSdc(LinkId, RegisterSdc),
    /// The detector considers devices of a server gone.
    Verdicts(Vec<Verdict>),
    /// A primary proposes changes.
    Proposal(LinkId, Proposal),
    /// Suspicions of a primary that were deferred.
    Doubts(Proposal),
    /// An order; the second field is the sender's number for it.
    Order(LinkId, u64, Option<Ask>),
}

impl Input {
    fn link(&self) -> Option<LinkId> {
        match self {
            Input::Form(_) | Input::Here | Input::Verdicts(_) | Input::Doubts(_) => None,
            Input::Register(link, _)
            | Input::RegisterSdc(link, _)
            | Input::Proposal(link, _)
            | Input::Order(link, ..) => Some(*link),
        }
    }
}

/// Returns the devices that this command declares down.
fn downs(command: &Command) -> &[command::DeviceDown] {
    match command {
        Command::DeviceDown(c) => core::slice::from_ref(c),
        Command::DevicesDown(c) => &c.list,
        _ => &[],
    }
}

impl Mdm {
    /// Works on waiting inputs, as many as fit into one entry. Afterwards the state is ahead of
    /// what is committed.
    pub(super) fn work(&mut self, now: Time, out: &mut Effects) -> Commands {
        let mut batch = Commands::default();
        while let Some(device) = self.revived.pop_first() {
            if let Some(command) = self.state.revive(device) {
                self.execute(now, command, &mut batch, out);
            }
        }
        // A single input adds little more than half of a batch: it is bounded by the length of a
        // control message or, for a volume, by the number of devices.
        while batch.bytes() < ENTRY_MAX / 4 {
            let Some(input) = self.inputs.pop_front() else { break };
            if let Some(link) = input.link() {
                match self.links.get_mut(&link) {
                    Some(link) => link.queued -= 1,
                    None => continue,
                }
            }
            self.input(now, input, &mut batch, out);
        }
        if let Some(command) = self.reconciled(now, out) {
            self.execute(now, command, &mut batch, out);
        }
        self.heal(now, &mut batch, out);
        batch
    }

    /// Gives groups other replicas where that is due.
    fn heal(&mut self, now: Time, batch: &mut Commands, out: &mut Effects) {
        if !self.ready || self.state.recovery.open {
            return;
        }
        self.do_without_cut_off(now, batch, out);
        self.send_slow_away(now, batch, out);
        let limits = &self.config.limits;
        for command in self.healer.work(now, &self.state, &self.observed, limits) {
            self.execute(now, command, batch, out);
        }
        let held_back = self.healer.is_held_back();
        if held_back != core::mem::replace(&mut self.rebuilds_held, held_back) {
            out.note(Note::RebuildHeld { over: !held_back });
        }
    }

    /// Ejects slow devices. An ejected device counts as lost, and is held out when it registers.
    fn send_slow_away(&mut self, now: Time, batch: &mut Commands, out: &mut Effects) {
        let limits = &self.config.limits;
        let never = limits.slow.is_zero() || limits.quarantine.is_zero();
        let slow = self.slowness.look(now, &self.state, &self.observed, limits);
        for (device, took) in slow.into_iter().filter(|_| !never && !mutant::on(Mutant::KeepSlow)) {
            let incarnation = self.state.devices[&device].incarnation.0;
            let down = command::DeviceDown { device: device.0, incarnation, dead: false };
            if self.execute(now, Command::DeviceDown(down), batch, out) {
                out.note(Note::Slow { device, took });
                self.observed.devices.entry(device).or_default().quarantine.sent_away();
            }
        }
    }

    fn input(&mut self, now: Time, input: Input, batch: &mut Commands, out: &mut Effects) {
        match input {
            Input::Form(cluster) => {
                let command = Command::FormCluster(command::FormCluster { cluster: cluster.0 });
                self.execute(now, command, batch, out);
            }
            Input::Here => {
                if let Some(command) = self.here() {
                    self.execute(now, command, batch, out);
                }
            }
            Input::Register(link, m) => self.register(now, link, &m, batch, out),
            Input::RegisterSdc(link, m) => self.register_sdc(now, link, &m, batch, out),
            Input::Verdicts(list) => self.verdicts(now, list, batch, out),
            Input::Proposal(_, mut m) => {
                self.weigh(now, &mut m);
                self.defer(now, &mut m);
                self.propose_all(now, &m, batch, out);
            }
            Input::Doubts(m) => self.propose_all(now, &m, batch, out),
            Input::Order(link, op, ask) => self.obey(now, link, op, ask, batch, out),
        }
    }

    /// Returns the command that makes the state name this MDM as it is. There is one if this MDM is
    /// the first of its cluster, or if its address has changed; a leader may report that itself.
    fn here(&self) -> Option<Command> {
        let me = self.consensus.as_ref()?.id() as u32;
        let old = self.state.members.list.get(&me);
        if old.is_none() && !self.state.members.list.is_empty() {
            return None; // it was removed, and will leave soon
        }
        Some(Command::AddMdm(MdmInfo {
            id: me,
            name: old.map_or_else(|| self.config.name.clone(), |m| m.name.clone()),
            address: self.config.address.to_string(),
            tie_breaker: old.is_some_and(|m| m.tie_breaker),
        }))
    }

    /// Executes a command, if it changes anything. Returns true if so.
    pub(super) fn execute(
        &mut self,
        now: Time,
        command: Command,
        batch: &mut Commands,
        out: &mut Effects,
    ) -> bool {
        let change = self.state.change(command);
        change.is_ok_and(|change| self.make(now, change, batch, out))
    }

    /// Makes a change and puts its command into the batch, if it changes anything. Returns true if
    /// so.
    fn make(&mut self, now: Time, change: Change, batch: &mut Commands, out: &mut Effects) -> bool {
        if change.is_nothing() {
            return false;
        }
        let level = self.state.level;
        assert!(batch.push(&change, level), "a batch has room for one more input");
        self.count_absences(now, &change, out);
        let command = self.state.make(change);
        match &command {
            Command::DeviceUp(c) => {
                let device = DeviceId(c.device);
                let entry = &self.state.devices[&device];
                let unit = self.state.unit(entry.sds);
                let domain = self.state.domain_of(entry.sds);
                self.detector.belongs(unit, domain);
                self.detector.watch(now, device, unit, entry.incarnation);
                self.detector.waits(device, entry.intent == Intent::Waiting);
                out.note(Note::DeviceUp { device });
            }
            Command::DeviceDown(_) | Command::DevicesDown(_) => {
                for c in downs(&command) {
                    let device = DeviceId(c.device);
                    self.detector.unwatch(device);
                    out.note(Note::DeviceDown { device, proof: c.dead });
                }
            }
            Command::Intend(c) if c.intent() == Intent::Removed => {
                c.devices.iter().for_each(|device| self.detector.forget(DeviceId(*device)));
            }
            Command::Intend(c) => {
                c.devices.iter().for_each(|device| self.detector.waits(DeviceId(*device), false));
            }
            _ => {}
        }
        true
    }

    /// Executes what a primary proposes.
    fn propose_all(&mut self, now: Time, m: &Proposal, batch: &mut Commands, out: &mut Effects) {
        // A device that suspects so many others is itself cut off or overloaded (rule R12).
        let unit = |d: &u32| self.state.unit_of(DeviceId(*d));
        let suspects: BTreeSet<_> = m.suspects.iter().filter_map(unit).collect();
        if !m.admit.is_empty() {
            self.healer.hurry(now, &self.config.limits);
        }
        let believable = suspects.len() <= loss_limit(self.state.units_beside(DeviceId(m.device)));
        let when = if mutant::on(Mutant::QuarantineForever) { Time::ZERO } else { now };
        let held = |device| self.observed.is_out(device, when);
        let may = |command: &Command| match command {
            Command::Suspect(c) => believable && !self.gathers(DeviceId(c.device)),
            Command::Join(c) => !held(DeviceId(c.device)),
            _ => true,
        };
        let commands: Vec<_> = controller::proposed(m).into_iter().filter(may).collect();
        for command in commands {
            self.execute(now, command, batch, out);
        }
    }

    /// Counts how often devices leave. A device that leaves too often is held out when it comes
    /// back. Absences during maintenance do not count.
    fn count_absences(&mut self, now: Time, command: &Command, out: &mut Effects) {
        if let Command::DeviceUp(c) = command {
            self.count_absence(now, DeviceId(c.device), Some(c.incarnation), out);
        }
        for c in downs(command) {
            self.count_absence(now, DeviceId(c.device), None, out);
        }
    }

    pub(super) fn count_absence(
        &mut self,
        now: Time,
        device: DeviceId,
        came: Option<u64>,
        out: &mut Effects,
    ) {
        let first = self.config.limits.quarantine;
        let Some(old) = self.state.devices.get(&device) else { return };
        let record = &mut self.observed.devices.entry(device).or_default().quarantine;
        let again = came.is_some_and(|life| life > old.incarnation.0);
        if old.up && (came.is_none() || again) && !old.intent.maintains() {
            record.went(now, first);
        }
        let held = came.filter(|_| !old.up || again).and_then(|_| record.came(now, first));
        if let Some(long) = held {
            out.note(Note::Quarantined { device, long });
        }
    }

    fn verdicts(&mut self, now: Time, list: Vec<Verdict>, batch: &mut Commands, out: &mut Effects) {
        let down = |v: &Verdict| command::DeviceDown {
            device: v.device.0,
            incarnation: v.incarnation.0,
            dead: v.dead,
        };
        let news = |mdm: &mut Mdm, v: &Verdict| {
            let counts = v.dead || mdm.detector.still_silent(now, v);
            counts && mdm.state.would_change(&Command::DeviceDown(down(v)))
        };
        let list: Vec<Verdict> = list.into_iter().filter(|v| news(self, v)).collect();
        let command = match &list[..] {
            [] => return,
            [one] => Command::DeviceDown(down(one)),
            all => {
                Command::DevicesDown(command::DevicesDown { list: all.iter().map(down).collect() })
            }
        };
        self.execute(now, command, batch, out);
        for v in list.iter().filter(|v| !v.dead) {
            // Silent or dead? The answer ends leases early, and distinguishes lost memory from a
            // lost link.
            self.probe(v.device, out);
        }
    }

    /// Records that a server was turned away, for `gabion status`.
    fn turn_away(&mut self, now: Time, m: &Register, why: &str) {
        self.turned_away.put(now, &m.sds, m.shard, &m.address, why);
    }

    /// Returns how many records of this device's log are known to have been durable while it had
    /// this content.
    fn settled(&self, m: &Register) -> u64 {
        let seen = self.observed.devices.get(&DeviceId(m.device));
        seen.map_or(0, |seen| seen.settled(m.store))
    }

    /// Returns true for an older copy of a device: it lacks writes that were acknowledged since.
    fn is_set_back(&self, m: &Register) -> bool {
        m.device != 0 && self.settled(m) > m.records && !mutant::on(Mutant::BelieveSetBack)
    }

    /// Returns a text about an older copy of a device.
    fn set_back(&self, m: &Register) -> String {
        alloc::format!(
            "it is dev{} as it was before: its log ends with record {}, and it had {}. An older copy of \
             a device lacks what was written since. Use the newest one. If that is gone: remove this one \
             (`gabion device remove`), and add it anew, empty",
            m.device,
            m.records,
            self.settled(m)
        )
    }

    /// Probes the devices in this one's way that have no link. Returns false if there are none.
    /// They may have died unnoticed, as another process may have listened at their address at once.
    /// A device that was silent for too long is declared down, even if no other device is heard:
    /// the process that asks for its place is heard, so this MDM is not the one that is cut off.
    fn ask_after(&mut self, now: Time, m: &Register, out: &mut Effects) -> bool {
        let mut silent = self.state.in_the_way(m);
        silent.retain(|device| !self.devices.contains_key(device));
        silent.iter().for_each(|device| self.probe(*device, out));
        // Any other reason to refuse this device does not depend on the others.
        let known = self.state.devices.get(&DeviceId(m.device));
        let right = known.is_some_and(|d| d.store == m.store && d.intent != Intent::Removed);
        let late = silent.iter().filter(|_| right);
        let late = late.filter_map(|device| self.detector.overdue(now, *device));
        let late: Vec<Verdict> = late.collect();
        if !late.is_empty() {
            self.push(Input::Verdicts(late));
        }
        !silent.is_empty()
    }

    fn register(
        &mut self,
        now: Time,
        link: LinkId,
        m: &Register,
        batch: &mut Commands,
        out: &mut Effects,
    ) {
        if let Err(why) = self.check_device(m) {
            self.turn_away(now, m, &why.text);
            return self.refuse(link, &why, out);
        }
        if let Some(command) = self.level_of_before(m) {
            self.execute(now, command, batch, out);
        }
        let opened = self.links[&link].opened;
        let session = self.state.reporter(m).and_then(|(id, _)| self.devices.get(&id));
        let before = session.map_or(0, |s| s.began);
        let told = self.links[&link].word.as_ref();
        let registration = self.state.register(m, before > opened, told);
        let (device, began) = match registration {
            Registration::Known(_) | Registration::New(..) if self.is_set_back(m) => {
                let text = self.set_back(m);
                self.turn_away(now, m, &text);
                return self.expel(link, refusal(RefusalCode::WrongDevice, text), out);
            }
            Registration::Known(id) => (id, before),
            Registration::New(id, mut command) => {
                self.tell_release(&mut command, m);
                self.execute(now, command, batch, out);
                self.observed.devices.entry(id).or_default().born();
                (id, opened)
            }
            Registration::Superseded(text) => {
                return self.refuse(link, &refusal(RefusalCode::Superseded, text), out);
            }
            Registration::Bad(text) => {
                self.turn_away(now, m, &text);
                return self.refuse(link, &refusal(RefusalCode::Unexpected, text), out);
            }
            Registration::Full(text) => {
                self.turn_away(now, m, &text);
                return self.refuse(link, &refusal(RefusalCode::Full, text), out);
            }
            Registration::WrongPlace(text) => {
                self.turn_away(now, m, &text);
                return self.refuse(link, &refusal(RefusalCode::WrongPlace, text), out);
            }
            Registration::WrongDevice(text) => {
                self.turn_away(now, m, &text);
                if !self.ask_after(now, m, out) {
                    return self.expel(link, refusal(RefusalCode::WrongDevice, text), out);
                }
                let text = alloc::format!(
                    "{text}. It was not heard lately: if it is off, start this one again"
                );
                return self.refuse(link, &refusal(RefusalCode::Occupied, text), out);
            }
        };
        self.turned_away.came(&m.sds, m.shard);
        let incarnation = self.state.devices[&device].incarnation;
        self.detector.heard(now, device, incarnation);
        let seen = self.observed.devices.entry(device).or_default();
        (seen.connected, seen.build) = (true, m.build.clone());
        self.heed(device, link);
        let before = self.devices.insert(device, Session { link, began });
        self.seat(link, Peer::Device(device, incarnation), before, out);
        let scrub = self.state.devices[&device].scrub;
        self.registered(link, device.0, incarnation.0, scrub, out);
    }

    fn register_sdc(
        &mut self,
        now: Time,
        link: LinkId,
        m: &RegisterSdc,
        batch: &mut Commands,
        out: &mut Effects,
    ) {
        if let Err(why) = self.check_build(&m.name, m.build.as_ref()) {
            return self.refuse(link, &why, out);
        }
        let opened = self.links[&link].opened;
        let session = self.state.sdc_of(&m.name).and_then(|(id, _)| self.sdcs.get(&id));
        let before = session.map_or(0, |s| s.began);
        let (sdc, began) = match self.state.register_sdc(m, before > opened) {
            Registration::Known(id) => (id, before),
            Registration::New(id, command) => {
                self.execute(now, command, batch, out);
                (id, opened)
            }
            Registration::Superseded(text) => {
                return self.refuse(link, &refusal(RefusalCode::Superseded, text), out);
            }
            Registration::Full(text) => {
                return self.refuse(link, &refusal(RefusalCode::Full, text), out);
            }
            Registration::Bad(text)
            | Registration::WrongPlace(text)
            | Registration::WrongDevice(text) => {
                return self.refuse(link, &refusal(RefusalCode::Unexpected, text), out);
            }
        };
        let incarnation = self.state.sdcs[&sdc].incarnation;
        let seen = self.observed.sdcs.entry(sdc).or_default();
        (seen.connected, seen.build) = (true, m.build.clone());
        let before = self.sdcs.insert(sdc, Session { link, began });
        self.seat(link, Peer::Sdc(sdc, incarnation), before, out);
        self.registered(link, sdc.0, incarnation.0, 0, out);
    }

    /// Makes the link the one of this incarnation. The same incarnation's earlier link is closed.
    /// The link of an earlier incarnation stays until its process sends something and is refused.
    fn seat(&mut self, link: LinkId, peer: Peer, before: Option<Session>, out: &mut Effects) {
        self.links.get_mut(&link).expect("it registered").peer = peer;
        out.push(Effect::Welcome { link });
        let Some(old) = before.map(|s| s.link).filter(|l| *l != link) else { return };
        if self.links.get(&old).is_some_and(|l| l.peer == peer) {
            self.links.remove(&old);
            out.push(Effect::Close { link: old });
        }
    }

    fn registered(
        &mut self,
        link: LinkId,
        id: u32,
        incarnation: u64,
        scrub: u32,
        out: &mut Effects,
    ) {
        let mut map = self.state.version.0;
        if self.state.recovery.open
            && matches!(self.links.get(&link).map(|l| l.peer), Some(Peer::Sdc(..)))
        {
            map = 0; // it continues with the map that it has
        }
        let cluster = self.state.cluster.0;
        let registered = Registered { cluster, id, incarnation, map, scrub };
        let frame = message::Registered {};
        let (head, body) = self.peer_link(link).control(frame, &registered, out.pool());
        self.answers.push(Answer::frame(link, head, body));
    }

    // Long: one match over all orders, and the reply that fits each.
    fn obey(
        &mut self,
        now: Time,
        link: LinkId,
        op: u64,
        ask: Option<Ask>,
        batch: &mut Commands,
        out: &mut Effects,
    ) {
        if let Some(Ask::Scrub(m)) = &ask {
            return self.obey_scrub(now, (link, op), m.device, batch, out);
        }
        let mut told = None;
        let change = |made: Result<Command, Refused>| self.state.change(made?).map(Some);
        let made = match &ask {
            _ if let Some(made) = self.while_recovering(now, ask.as_ref()) => {
                made.and_then(|made| made.map(|command| self.state.change(command)).transpose())
            }
            None | Some(Ask::Scrub(_) | Ask::RecoverMdm(_)) => Err(Refused::Unknown),
            Some(ask) if ask.check().is_err() => Err(Refused::Unknown),
            Some(Ask::SetLevel(m)) => change(self.raise_level(m)),
            Some(Ask::Status(_) | Ask::Backup(_)) => Ok(None),
            Some(Ask::Damage(m)) => {
                self.state.damage(&m.volume, &self.observed, &self.words).map(|damage| {
                    told = Some(damage);
                    None
                })
            }
            Some(Ask::AcceptLoss(m)) => {
                change(self.state.accept_loss_command(m, &self.observed, &self.words))
            }
            Some(Ask::AddMdm(_) | Ask::RemoveMdm(_)) if self.is_one_leaving() => {
                Err(Refused::MdmLeaves)
            }
            Some(Ask::AddMdm(m)) => change(self.state.members.add_command(m).map(Command::AddMdm)),
            Some(Ask::RemoveMdm(m)) => {
                let made = self.state.members.remove_command(&m.name, |id| self.vote(id));
                change(made.map(Command::RemoveMdm))
            }
            Some(Ask::SwitchMdm(m)) => self.switch(m).map(|()| None),
            Some(Ask::CreateVolume(m)) => {
                let limits = &self.config.limits;
                controller::create_volume_command(&self.state, m, limits, &|d| {
                    self.observed.used(d)
                })
                .map(Some)
            }
            Some(Ask::ResizeVolume(m)) => {
                let (limits, used) = (&self.config.limits, |d| self.observed.used(d));
                controller::resize_volume_command(&self.state, &m.name, m.size, limits, &used)
                    .map(Some)
            }
            Some(Ask::DeleteVolume(m)) => {
                let attached = |volume| self.observed.attached(volume);
                controller::delete_volume_command(&self.state, &m.name, m.unmap, attached).map(Some)
            }
            Some(Ask::Map(m)) => controller::map_command(&self.state, m).map(Some),
            Some(Ask::Unmap(m)) => controller::unmap_command(&self.state, m).map(Some),
            Some(Ask::Rename(m)) => object_orders::rename_command(&self.state, m).map(Some),
            Some(Ask::CreateObject(m)) => {
                object_orders::create_object_command(&self.state, m).map(Some)
            }
            Some(Ask::RemoveObject(m)) => {
                let is_here = |sdc: SdcId| self.sdcs.contains_key(&sdc);
                object_orders::remove_object_command(&self.state, m, is_here).map(Some)
            }
            Some(Ask::SetPool(m)) => object_orders::set_pool_command(&self.state, m).map(Some),
            Some(Ask::Remove(m)) => {
                let limits = &self.config.limits;
                change(removal::removal_command(&self.state, m, &self.observed, limits))
            }
            Some(Ask::Admit(m)) => change(removal::admission_command(&self.state, m)),
            Some(Ask::Maintain(m)) => {
                let limits = &self.config.limits;
                change(maintenance::maintenance_command(&self.state, m, &self.observed, limits))
            }
        };
        let mut reply = AdminReply::default();
        let (mut gone, mut fence, mut changed) = (None, None, false);
        match made {
            Err(why) => (reply.error, reply.text) = (why.code() as i32, why.to_string()),
            Ok(None) if told.is_some() => reply.damage = told,
            Ok(None) if matches!(ask, Some(Ask::Backup(_))) => reply.backup = self.state.to_bytes(),
            Ok(None) => {
                let unheard = self.detector.unheard(now);
                let (state, seen) = (&self.state, &self.observed);
                let limits = &self.config.limits;
                let mut info = status::status(state, seen, &unheard, now, limits);
                info.mdm_pid = self.config.pid;
                info.mdms = self.member_status();
                info.recovery = self.state.recovery_status(&self.words, self.is_patient(now));
                info.turned_away = self.turned_away.lately(now);
                if self.rebuilds_held {
                    info.moves.get_or_insert_default().held_back = true;
                }
                reply.status = Some(info);
            }
            Ok(Some(change)) => {
                if let Command::RemoveMdm(c) = &*change {
                    gone = Some(u64::from(c.id));
                }
                let mapped = match &*change {
                    Command::MapVolume(c) => Some(VolumeId(c.volume)),
                    _ => None,
                };
                changed = self.make(now, change, batch, out);
                // Even if it changed nothing: the answer to an earlier order may be lost.
                fence = mapped.map(|volume| {
                    let hasty = mutant::on(Mutant::ConfirmNothing);
                    let confirm = if hasty { Duration::ZERO } else { CONFIRM };
                    Fence { volume, map: self.state.version, until: now + confirm, known: None }
                });
                let name = match &ask {
                    Some(Ask::Map(m)) => &m.volume,
                    Some(Ask::Unmap(m)) => &m.volume,
                    Some(Ask::CreateVolume(m)) => &m.name,
                    Some(Ask::ResizeVolume(m)) => &m.name,
                    _ => "",
                };
                let volume = self.state.volume_named(name);
                let unheard = self.detector.unheard(now);
                reply.volume = volume.map(|(id, v)| status::volume(&self.state, &unheard, id, v));
            }
        }
        self.reply_order((link, op), changed, reply, out);
        let answer = self.answers.last_mut().expect("it was just put there");
        (answer.gone, answer.fence) = (gone, fence);
        if matches!(ask, Some(Ask::SwitchMdm(_))) {
            answer.question = 0; // soon it will not lead any more, and cannot ask
        }
    }

    fn obey_scrub(
        &mut self,
        now: Time,
        (link, op): (LinkId, u64),
        device: u32,
        batch: &mut Commands,
        out: &mut Effects,
    ) {
        let (mut reply, mut changed) = (AdminReply::default(), false);
        match controller::scrub_commands(&self.state, device) {
            Err(why) => (reply.error, reply.text) = (why.code() as i32, why.to_string()),
            Ok(commands) => {
                for command in commands {
                    changed |= self.execute(now, command, batch, out);
                }
            }
        }
        self.reply_order((link, op), changed, reply, out);
    }

    fn reply_order(
        &mut self,
        (link, op): (LinkId, u64),
        changed: bool,
        mut reply: AdminReply,
        out: &mut Effects,
    ) {
        reply.applied = self.state.index;
        reply.term = self.term();
        let frame = message::AdminReply { op };
        let (head, body) = self.peer_link(link).control(frame, &reply, out.pool());
        let answer = Answer::frame(link, head, body);
        let progress = if changed { Progress::Proposed } else { Progress::None };
        self.answers.push(Answer { order: Some(op), progress, question: u64::MAX, ..answer });
    }
}

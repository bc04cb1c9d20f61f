//! Turns inputs into commands, each against the state right after the command before, as many as
//! fit into one entry. Afterwards the state is ahead of what is committed.
//!
//! [`registration`]: devices and clients. [`orders`]: what operators ask for. [`reserve`]: what
//! hosts ask for. [`seats`]: which gateway serves a host. [`levels`]: which builds may be present.

mod levels;
mod orders;
mod registration;
mod reserve;
mod seats;

pub(super) use levels::check_build;

use super::answers::Answers;
use super::config::Config;
use super::dials::Dials;
use super::inputs::{Input, Inputs};
use super::journal::Journal;
use super::links::Links;
use super::refused_servers::RefusedServers;
use super::reports::Reports;
use super::watch::Watch;
use crate::refusals::{self, Writer, refuse};
use alloc::collections::BTreeSet;
use alloc::string::ToString;
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{DeviceId, LinkId, Time};
use mdm::command::{self, Command, DeviceDown};
use mdm::controller;
use mdm::detector::{Verdict, loss_limit};
use mdm::entry::{Commands, ENTRY_MAX};
use mdm::recovery;
use mdm::state::{Change, State};
use seam::{Effects, Note};
use wire::control::{Intent, MdmInfo, Proposal, Refusal};

/// The work on the inputs for one entry, and the parts of the MDM that it changes.
pub(super) struct Work<'a> {
    pub now: Time,
    pub config: &'a Config,
    pub journal: &'a mut Journal,
    pub links: &'a mut Links,
    pub watch: &'a mut Watch,
    pub answers: &'a mut Answers,
    pub reports: &'a mut Reports,
    pub refused_servers: &'a mut RefusedServers,
    pub inputs: &'a mut Inputs,
    pub dials: &'a mut Dials,
    pub batch: Commands,
    pub out: &'a mut Effects,
}

impl Work<'_> {
    /// Works on the waiting inputs, as many as fit into one entry. Returns their commands.
    pub(super) fn run(mut self) -> Commands {
        while let Some(device) = self.watch.take_revived() {
            if let Some(command) = self.state().revive(device) {
                self.execute(command);
            }
        }
        // A single input adds little more than half of a batch: it is bounded by the length of a
        // control message or, for a volume, by the number of devices.
        while self.batch.bytes() < ENTRY_MAX / 4 {
            let Some(input) = self.inputs.next(self.links) else { break };
            self.input(input);
        }
        if self.watch.serves() {
            // Before this MDM serves as leader, no device can have reported.
            if let Some(command) = self.reports.evaluate(self.now, self.journal.state(), self.out) {
                self.execute(command);
            }
            self.heal();
        }
        self.batch
    }

    fn state(&self) -> &State {
        self.journal.state()
    }

    /// Gives groups other replicas where that is due.
    fn heal(&mut self) {
        if self.state().recovery.open {
            return;
        }
        if let Some(command) = self.watch.cut_off(self.now, self.journal.state(), self.out) {
            self.execute(command);
        }
        for (device, took) in self.watch.slow(self.now, self.journal.state()) {
            let incarnation = self.state().devices[&device].incarnation.0;
            let down = DeviceDown { device: device.0, incarnation, dead: false };
            if self.execute(Command::DeviceDown(down)) {
                self.out.note(Note::Slow { device, took });
                self.watch.ejected(device);
            }
        }
        for mut command in self.watch.heal(self.now, self.journal.state()) {
            self.keep_needed(&mut command);
            self.execute(command);
        }
        self.watch.note_rebuilds(self.out);
        self.move_seats();
    }

    /// Takes devices that a group in doubt may need out of a command that marks devices as removed.
    fn keep_needed(&self, command: &mut Command) {
        if let Command::Intend(c) = command
            && c.intent() == Intent::Removed
        {
            let (state, reports) = (self.state(), self.reports.all());
            c.devices.retain(|d| !recovery::may_be_needed(state, reports, DeviceId(*d)));
        }
    }

    fn input(&mut self, input: Input) {
        match input {
            Input::Form(cluster) => {
                let form = command::FormCluster { cluster: cluster.0 };
                self.execute(Command::FormCluster(form));
            }
            Input::Here => {
                if let Some(command) = self.here() {
                    self.execute(command);
                }
            }
            Input::Register(link, m) => self.register(link, &m),
            Input::RegisterSdc(link, m) => self.register_sdc(link, &m),
            Input::Verdicts(list) => self.verdicts(list),
            // Primaries have maps of before the recovery: nothing in them is about this state.
            Input::Proposal(..) | Input::Doubts(_) if self.state().recovery.open => {}
            Input::Proposal(_, mut m) => {
                self.watch.weigh(self.now, &mut m, self.journal.state());
                self.propose_all(&m);
            }
            Input::Doubts(m) => self.propose_all(&m),
            Input::Reserve(link, m) => self.reserve(link, m),
            Input::TakeSeats(link, m) => self.take_seats(link, &m),
            Input::Order(link, op, ask) => self.obey(link, op, ask),
        }
    }

    /// Returns the command that gives the state this MDM's present address. The command changes
    /// something if this MDM is the first of its cluster, or if its address has changed; a leader
    /// may report that itself.
    fn here(&self) -> Option<Command> {
        let me = self.journal.consensus()?.id() as u32;
        let list = &self.state().members.list;
        let old = list.get(&me);
        if old.is_none() && !list.is_empty() {
            return None; // it was removed, and will leave soon
        }
        Some(Command::AddMdm(MdmInfo {
            id: me,
            name: old.map_or_else(|| self.config.name.clone(), |m| m.name.clone()),
            address: self.config.address.to_string(),
            tie_breaker: old.is_some_and(|m| m.tie_breaker),
        }))
    }

    /// Executes a command if it changes anything. Returns true if it does.
    fn execute(&mut self, command: Command) -> bool {
        let change = self.state().change(command);
        change.is_ok_and(|change| self.make(change))
    }

    /// Makes a change and puts its command into the batch, if it changes anything. Returns true if
    /// it does.
    fn make(&mut self, change: Change) -> bool {
        if change.is_nothing() {
            return false;
        }
        self.watch.count_absences(self.now, &change, self.journal.state(), self.out);
        let known = |device| self.journal.state().devices.get(&DeviceId(device));
        let replaces = match &*change {
            Command::DeviceUp(c) => {
                known(c.device).is_some_and(|d| d.incarnation.0 < c.incarnation)
            }
            _ => false,
        };
        let command = self.journal.make(change, &mut self.batch);
        let state = self.journal.state();
        if replaces {
            self.answers.replaced(state.version);
        }
        self.watch.changed(self.now, &command, state, self.out);
        true
    }

    /// Executes the proposals of a primary.
    fn propose_all(&mut self, m: &Proposal) {
        // A device that suspects so many others is itself cut off or overloaded (rule R12).
        let unit = |d: &u32| self.state().unit_of(DeviceId(*d));
        let suspects: BTreeSet<_> = m.suspects.iter().filter_map(unit).collect();
        if !m.admit.is_empty() {
            self.watch.hurry(self.now);
        }
        let beside = self.state().units_beside(DeviceId(m.device));
        let believable = suspects.len() <= loss_limit(beside);
        let when = if mutant::on(Mutant::QuarantineForever) { Time::ZERO } else { self.now };
        let held = |device| self.watch.observed().is_out(device, when);
        let may = |command: &Command| match command {
            Command::Suspect(c) => believable && !self.watch.has_verdict(DeviceId(c.device)),
            Command::Join(c) => !held(DeviceId(c.device)),
            _ => true,
        };
        let commands: Vec<_> = controller::proposed(m).into_iter().filter(may).collect();
        for command in commands {
            self.execute(command);
        }
    }

    fn verdicts(&mut self, list: Vec<Verdict>) {
        let down = |v: &Verdict| DeviceDown {
            device: v.device.0,
            incarnation: v.incarnation.0,
            dead: v.dead,
        };
        let is_news = |v: &Verdict| {
            let holds = self.watch.holds(self.now, v);
            holds && self.journal.state().would_change(&Command::DeviceDown(down(v)))
        };
        let list: Vec<Verdict> = list.into_iter().filter(is_news).collect();
        let command = match &list[..] {
            [] => return,
            [one] => Command::DeviceDown(down(one)),
            all => {
                Command::DevicesDown(command::DevicesDown { list: all.iter().map(down).collect() })
            }
        };
        self.execute(command);
        for v in list.iter().filter(|v| !v.dead) {
            // Silent or dead? The answer ends leases early, and distinguishes lost memory from a
            // lost link.
            self.probe(v.device);
        }
    }

    /// Finds out whether a process listens at the device's address.
    fn probe(&mut self, device: DeviceId) {
        self.watch.probe(device, self.journal.state(), self.dials, self.out);
    }

    /// Ends a link with a refusal.
    fn refuse(&mut self, link: LinkId, why: &Refusal) {
        self.out.note(Note::Refused { link, why: refusals::note(why.code(), Writer::Mdm) });
        refuse(link, why, self.out);
        self.watch.lost(link, (self.links, self.journal.state()), self.dials, self.out);
    }
}

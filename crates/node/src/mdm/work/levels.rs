//! The cluster's level at the leading MDM: which builds are present, and which are too old.

use super::Work;
use crate::refusals::refusal;
use base::{Mutant, level, mutant};
use mdm::command::{Command, SetLevel};
use mdm::level::{LevelMember, set_level_command, too_old};
use mdm::{Refused, State};
use wire::control::{
    BuildInfo, DeviceKind, Intent, Refusal, RefusalCode, Register, SetLevelRequest, known,
};

/// Refuses a process whose build does not know the cluster's level.
pub(in crate::mdm) fn check_build(
    state: &State,
    name: &str,
    said: Option<&BuildInfo>,
) -> Result<(), Refusal> {
    match too_old(state, name, said) {
        Some(text) => Err(refusal(RefusalCode::TooOld, text)),
        None => Ok(()),
    }
}

impl Work<'_> {
    /// Returns the highest level that this build knows.
    fn level_max(&self) -> u32 {
        self.config.dialect.level_max
    }

    /// Refuses a device of a build that does not know the cluster's level, or of a kind that this
    /// build does not know.
    pub(super) fn check_device(&self, m: &Register) -> Result<(), Refusal> {
        check_build(self.state(), &m.sds, m.build.as_ref())?;
        if m.level > self.level_max() {
            let text = alloc::format!(
                "`{}` has seen this cluster at level {}, and this MDM knows levels up to {}: update it",
                m.sds,
                m.level,
                self.level_max()
            );
            return Err(refusal(RefusalCode::Unexpected, text));
        }
        if self.level_of_before(m).is_some()
            && let Some(old) = self.mdm_below(m.level)
        {
            let text = alloc::format!(
                "`{}` has seen this cluster at level {}, and the MDM `{old}` does not know that \
                 level: update that MDM, or remove it (`gabion mdm remove`)",
                m.sds,
                m.level,
            );
            return Err(refusal(RefusalCode::Unexpected, text));
        }
        known::<DeviceKind>("DeviceKind", m.kind).map_err(|unknown| {
            let text = alloc::format!("this MDM doesn't know devices of {unknown}: update it");
            refusal(RefusalCode::Unexpected, text)
        })
    }

    /// Returns the command that restores a level which lost MDMs had raised, if a server reports it
    /// after a recovery: that level is in force.
    pub(super) fn level_of_before(&self, m: &Register) -> Option<Command> {
        let state = self.state();
        let raised = state.recovery.number > 0 && m.level > state.level;
        let raised = raised && !mutant::on(Mutant::ForgetLevel);
        raised.then_some(Command::SetLevel(SetLevel { level: m.level }))
    }

    /// Returns the name of another MDM that is up and does not know this level. It would stop.
    fn mdm_below(&self, level: u32) -> Option<&str> {
        let below = |id: &u32| {
            let build = self.links.build_of(*id);
            build.is_some_and(|build| BuildInfo::level(Some(&build)) < level)
        };
        let old = self.state().members.list.iter().find(|(id, _)| below(id));
        old.map(|(_, member)| member.name.as_str())
    }

    /// Returns the command that raises the level.
    pub(super) fn raise_level(&self, m: &SetLevelRequest) -> Result<Command, Refused> {
        let (me, state) = (self.journal.id(), self.state());
        let peers = self.journal.consensus().map_or_else(Default::default, |c| c.peers());
        let heard = |id: u32| peers.iter().any(|p| p.id == u64::from(id) && p.heard);
        let members = state.members.list.iter().map(|(id, member)| match *id == me {
            true => LevelMember::up(&member.name, Some(BuildInfo::of(&self.config.dialect))),
            false => match self.links.build_of(*id).filter(|_| heard(*id)) {
                Some(build) => LevelMember::up(&member.name, Some(build)),
                None => LevelMember::down(&member.name),
            },
        });
        let there = state.devices.iter().filter(|(_, d)| d.intent != Intent::Removed);
        let devices = there.map(|(id, d)| {
            let name = state.servers.get(&d.sds).map_or("?", |s| &s.name);
            let seen = self.watch.observed().devices.get(id).and_then(|seen| seen.build.clone());
            match self.links.has_device(*id) && state.is_up(*id) {
                true => LevelMember::up(name, seen),
                false => LevelMember::down(name),
            }
        });
        let clients = self.links.sdcs().filter_map(|id| {
            let seen = self.watch.observed().sdcs.get(&id).and_then(|seen| seen.build.clone());
            Some(LevelMember::up(&state.sdcs.get(&id)?.name, seen))
        });
        let all: alloc::vec::Vec<LevelMember> = members.chain(devices).chain(clients).collect();
        set_level_command(state, m, self.level_max(), &all)
    }

    /// Adds the device's release to a `DeviceUp`. From level 2 on the state keeps the releases of
    /// devices, so that they are known while the devices are down.
    pub(super) fn tell_release(&self, command: &mut Command, m: &Register) {
        let needed = level::of_field("DeviceUp.release");
        let may = self.state().level >= needed || mutant::on(Mutant::UseEarly);
        if let (Command::DeviceUp(c), Some(build)) = (command, &m.build)
            && self.level_max() >= needed
            && may
        {
            c.release = build.release.clone();
        }
    }
}

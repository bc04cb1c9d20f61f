//! The cluster's level at the leading MDM: which builds are present, and which are too old to stay.

use super::{Mdm, Peer};
use base::{DeviceId, LinkId, Mutant, level, mutant};
use mdm::Refused;
use mdm::command::{Command, SetLevel};
use mdm::level::{Party, set_level_command, too_old};
use wire::control::{
    BuildInfo, DeviceKind, Intent, Refusal, RefusalCode, Register, SetLevelRequest, known,
};

use crate::refusals::refusal;

impl Mdm {
    /// Returns the highest level that this build knows.
    pub(super) fn level_max(&self) -> u32 {
        self.config.dialect.level_max
    }

    /// Refuses a process whose build does not know the cluster's level.
    pub(super) fn check_build(&self, name: &str, said: Option<&BuildInfo>) -> Result<(), Refusal> {
        match too_old(&self.state, name, said) {
            Some(text) => Err(refusal(RefusalCode::TooOld, text)),
            None => Ok(()),
        }
    }

    /// Refuses a device of a build that does not know the cluster's level, or of a kind that this
    /// build does not know.
    pub(super) fn check_device(&self, m: &Register) -> Result<(), Refusal> {
        self.check_build(&m.sds, m.build.as_ref())?;
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

    /// Returns the command for a level that lost MDMs had raised, if a server reports it after a
    /// recovery: that level is in force.
    pub(super) fn level_of_before(&self, m: &Register) -> Option<Command> {
        let raised = self.state.recovery.number > 0 && m.level > self.state.level;
        let raised = raised && !mutant::on(Mutant::ForgetLevel);
        raised.then_some(Command::SetLevel(SetLevel { level: m.level }))
    }

    /// Returns the name of another MDM that is up and does not know this level. It would stop.
    fn mdm_below(&self, level: u32) -> Option<&str> {
        let below = |id: &u32| {
            let build = self.build_of(*id);
            build.is_some_and(|build| BuildInfo::level(Some(&build)) < level)
        };
        let old = self.state.members.list.iter().find(|(id, _)| below(id));
        old.map(|(_, member)| member.name.as_str())
    }

    /// Returns the build of another MDM, as reported on a link that is up.
    pub(super) fn build_of(&self, member: u32) -> Option<BuildInfo> {
        let of = |l: &&super::Link| l.peer == Peer::Mdm(member);
        let newest = self.links.values().filter(of).max_by_key(|l| l.opened)?;
        Some(newest.build.clone().unwrap_or_default())
    }

    /// Returns the command that raises the level.
    pub(super) fn raise_level(&self, m: &SetLevelRequest) -> Result<Command, Refused> {
        let me = self.consensus.as_ref().map_or(0, |c| c.id()) as u32;
        let peers = self.consensus.as_ref().map_or_else(Default::default, |c| c.peers());
        let heard = |id: u32| peers.iter().any(|p| p.id == u64::from(id) && p.heard);
        let members = self.state.members.list.iter().map(|(id, member)| match *id == me {
            true => Party::up(&member.name, Some(BuildInfo::of(&self.config.dialect))),
            false => match self.build_of(*id).filter(|_| heard(*id)) {
                Some(build) => Party::up(&member.name, Some(build)),
                None => Party::down(&member.name),
            },
        });
        let there = self.state.devices.iter().filter(|(_, d)| d.intent != Intent::Removed);
        let devices = there.map(|(id, d)| {
            let name = self.state.servers.get(&d.sds).map_or("?", |s| &s.name);
            let seen = self.observed.devices.get(id).and_then(|seen| seen.build.clone());
            match self.is_here(*id) {
                true => Party::up(name, seen),
                false => Party::down(name),
            }
        });
        let clients = self.sdcs.keys().filter_map(|id| {
            let seen = self.observed.sdcs.get(id).and_then(|seen| seen.build.clone());
            Some(Party::up(&self.state.sdcs.get(id)?.name, seen))
        });
        let all: alloc::vec::Vec<Party> = members.chain(devices).chain(clients).collect();
        set_level_command(&self.state, m, self.level_max(), &all)
    }

    fn is_here(&self, device: DeviceId) -> bool {
        self.devices.contains_key(&device) && self.state.is_up(device)
    }

    /// Adds the device's release to a `DeviceUp`. From level 2 on the state keeps the releases of
    /// devices, so that they are known while the devices are down.
    pub(super) fn tell_release(&self, command: &mut Command, m: &Register) {
        let needed = level::of_field("DeviceUp.release");
        let may = self.state.level >= needed || mutant::on(Mutant::UseEarly);
        if let (Command::DeviceUp(c), Some(build)) = (command, &m.build)
            && self.level_max() >= needed
            && may
        {
            c.release = build.release.clone();
        }
    }

    /// Records the build that another MDM reports.
    pub(super) fn note_build(&mut self, link: LinkId, build: Option<BuildInfo>) {
        if let Some(link) = self.links.get_mut(&link) {
            link.build = build;
        }
    }
}

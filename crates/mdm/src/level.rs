//! The order that raises the cluster's level, and the processes that must know the new level.
//!
//! These are all MDMs, all devices that were not removed, and all clients that are up. A process
//! that is down may be of any build: it prevents the order, unless the order names it as an
//! exception (`without`). From then on it is refused until it is updated. Clients that are down are
//! refused in the same way without being named: they hold no data.

use crate::command::{Command, SetLevel};
use crate::refused::Refused;
use crate::state::State;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base::{Mutant, mutant};
use wire::control::{BuildInfo, SetLevelRequest};

/// A process that must know the level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelMember {
    /// Name of the MDM, server or client.
    pub name: String,
    /// The build that it has announced; `None` if it is down.
    pub build: Option<BuildInfo>,
}

impl LevelMember {
    /// Returns a member that is up and has announced this build, or none.
    pub fn up(name: &str, build: Option<BuildInfo>) -> LevelMember {
        LevelMember { name: name.into(), build: Some(build.unwrap_or_default()) }
    }

    /// Returns a member that is down.
    pub fn down(name: &str) -> LevelMember {
        LevelMember { name: name.into(), build: None }
    }

    /// Returns why this member can't follow to this level; `None` if it can.
    fn lacks(&self, level: u32) -> Option<String> {
        let Some(build) = &self.build else { return Some(format!("`{}` (down)", self.name)) };
        let knows = BuildInfo::level(Some(build));
        let release = if build.release.is_empty() { "unknown" } else { &build.release };
        (knows < level).then(|| format!("`{}` (release {release}, up to level {knows})", self.name))
    }
}

/// Returns the command that raises the level. `all` lists each process of all MDMs and servers, and
/// of the clients that are up. `level_max` is the highest level that this MDM knows.
pub fn set_level_command(
    state: &State,
    m: &SetLevelRequest,
    level_max: u32,
    all: &[LevelMember],
) -> Result<Command, Refused> {
    if m.level == state.level {
        return Err(Refused::LevelIsThere(state.level));
    }
    if m.level < state.level {
        return Err(Refused::LevelFalls { level: state.level, asked: m.level });
    }
    if m.level > level_max {
        return Err(Refused::LevelUnknown { asked: m.level, known: level_max });
    }
    for name in &m.without {
        let mut named = all.iter().filter(|p| p.name == *name).peekable();
        if named.peek().is_none() {
            return Err(Refused::WithoutNobody(name.chars().take(64).collect()));
        }
        if named.any(|p| p.build.is_some()) {
            return Err(Refused::WithoutUp(name.clone()));
        }
    }
    let left = all.iter().filter(|p| !m.without.contains(&p.name));
    let lack: BTreeMap<&String, String> =
        left.filter_map(|p| Some((&p.name, p.lacks(m.level)?))).collect();
    if !lack.is_empty() && !mutant::on(Mutant::RaiseOver) {
        let names: Vec<String> = lack.into_values().collect();
        return Err(Refused::LevelLacks { level: m.level, who: names.join(", ") });
    }
    Ok(Command::SetLevel(SetLevel { level: m.level }))
}

/// Returns why a process with this build can't belong to the cluster; `None`: it can.
pub fn too_old(state: &State, name: &str, build: Option<&BuildInfo>) -> Option<String> {
    let knows = BuildInfo::level(build);
    (knows < state.level).then(|| {
        format!(
            "the cluster has level {}, and `{name}` knows levels up to {knows}: update it",
            state.level
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(level_max: u32) -> Option<BuildInfo> {
        Some(BuildInfo { release: "0.1.0".into(), level_max, ..BuildInfo::default() })
    }

    fn order(level: u32, without: &[&str]) -> SetLevelRequest {
        SetLevelRequest { level, without: without.iter().map(|s| String::from(*s)).collect() }
    }

    #[test]
    fn the_level_rises_when_everybody_can_follow() {
        let state = State::new();
        let new = |name| LevelMember::up(name, build(2));
        let all = [new("mdm1"), new("sds1"), new("sdc1")];
        let raise = Command::SetLevel(SetLevel { level: 2 });
        assert_eq!(set_level_command(&state, &order(2, &[]), 2, &all), Ok(raise.clone()));
        let old = [&all[..], &[LevelMember::up("sds2", build(1)), LevelMember::up("sdc2", None)]]
            .concat();
        let Err(why) = set_level_command(&state, &order(2, &[]), 2, &old) else { panic!() };
        let text = alloc::string::ToString::to_string(&why);
        assert!(text.contains("`sdc2` (release unknown, up to level 1), `sds2` (release 0.1.0"));
        let down = [&all[..], &[LevelMember::down("sds3"), LevelMember::down("sds3")]].concat();
        let Err(why) = set_level_command(&state, &order(2, &[]), 2, &down) else { panic!() };
        assert_eq!(why, Refused::LevelLacks { level: 2, who: "`sds3` (down)".into() });
        assert_eq!(set_level_command(&state, &order(2, &["sds3"]), 2, &down), Ok(raise));
    }

    #[test]
    fn an_order_without_a_server_needs_all_its_processes_down() {
        let state = State::new();
        // One process of the server is down, the other one is not.
        let all = [
            LevelMember::up("sds1", build(1)),
            LevelMember::down("sds1"),
            LevelMember::up("mdm1", build(2)),
        ];
        let up = set_level_command(&state, &order(2, &["sds1"]), 2, &all);
        assert_eq!(up, Err(Refused::WithoutUp("sds1".into())));
        let nobody = set_level_command(&state, &order(2, &["sds9"]), 2, &all);
        assert_eq!(nobody, Err(Refused::WithoutNobody("sds9".into())));
    }

    #[test]
    fn a_level_neither_falls_nor_exceeds_what_the_leader_knows() {
        let mut state = State::new();
        state.level = 2;
        let ask = |level| set_level_command(&state, &order(level, &[]), 2, &[]);
        assert_eq!(ask(2), Err(Refused::LevelIsThere(2)));
        assert_eq!(ask(1), Err(Refused::LevelFalls { level: 2, asked: 1 }));
        assert_eq!(ask(3), Err(Refused::LevelUnknown { asked: 3, known: 2 }));
        assert!(
            too_old(&state, "a", build(1).as_ref()).is_some_and(|why| why.contains("update it"))
        );
        assert!(
            too_old(&state, "a", None).is_some()
                && too_old(&state, "a", build(2).as_ref()).is_none()
        );
    }
}

//! The MDMs as the cluster knows them: names, addresses and roles. The consensus decides which of
//! them have a vote; it follows this list step by step.
//!
//! Invariants: names and addresses are unique; a list that is not empty has a manager; an id that
//! was assigned is never used again.

use crate::command::RemoveMdm;
use crate::refused::{MAX_MEMBERS, Refused};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use base::MapVersion;
use core::net::SocketAddr;
use wire::control;

/// An MDM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// The address on which it listens.
    pub address: String,
    /// It votes and stores the log, and leads only while no manager can.
    pub tie_breaker: bool,
}

/// The leader's knowledge of an MDM that has a vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voter {
    /// It was heard lately: it works.
    Heard,
    /// It was not heard yet: the leader has been leading for a moment only.
    Unclear,
    /// It has been silent for long enough: it is down, or cut off.
    Silent,
}

/// All MDMs of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Members {
    /// By id.
    pub list: BTreeMap<u32, Member>,
    /// The highest id that was ever assigned.
    pub last_id: u32,
    /// The map version that changed them last.
    pub changed_at: MapVersion,
}

impl Members {
    /// Returns the MDM with this name, or otherwise with this id or address.
    pub fn find(&self, name: &str) -> Result<(u32, &Member), Refused> {
        let by_name = self.list.iter().find(|(_, m)| m.name == name);
        let other = |(id, m): &(&u32, &Member)| m.address == name || name.parse() == Ok(**id);
        let found = by_name.or_else(|| self.list.iter().find(other));
        found.map(|(id, m)| (*id, m)).ok_or_else(|| Refused::NoMdm(name.chars().take(64).collect()))
    }

    /// Returns the command that adds an MDM, if the request is valid.
    pub fn add_command(&self, m: &control::AddMdm) -> Result<control::MdmInfo, Refused> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if !(1..=31).contains(&m.name.len()) || !m.name.chars().all(plain) {
            return Err(Refused::MdmName(m.name.chars().take(64).collect()));
        }
        if m.address.parse::<SocketAddr>().is_err() {
            return Err(Refused::MdmAddress(m.address.chars().take(64).collect()));
        }
        let taken = |v: &&Member| v.name == m.name || v.address == m.address;
        if let Some(there) = self.list.values().find(taken) {
            return Err(Refused::MdmTaken(there.name.clone(), there.address.clone()));
        }
        if self.list.len() >= MAX_MEMBERS {
            return Err(Refused::TooManyMdms);
        }
        let id = self.last_id + 1;
        let (name, address) = (m.name.clone(), m.address.clone());
        Ok(control::MdmInfo { id, name, address, tie_breaker: m.tie_breaker })
    }

    /// Returns the command that removes an MDM, if the rest keeps a majority that works. `vote`
    /// returns the leader's knowledge of an MDM with a vote. Members without a vote are ignored,
    /// because they have never taken part.
    pub fn remove_command(
        &self,
        name: &str,
        vote: impl Fn(u32) -> Option<Voter>,
    ) -> Result<RemoveMdm, Refused> {
        let (id, gone) = self.find(name)?;
        let Some(voter) = vote(id) else { return Ok(RemoveMdm { id }) };
        let all: Vec<(&u32, &Member)> =
            self.list.iter().filter(|(i, _)| vote(**i).is_some()).collect();
        let rest: Vec<(&u32, &Member)> = all.iter().copied().filter(|(i, _)| **i != id).collect();
        let managers = rest.iter().filter(|(_, m)| !m.tie_breaker).count();
        if managers == 0 {
            return Err(Refused::LastManager(gone.name.clone()));
        }
        let tied = rest.len() == managers && managers.is_multiple_of(2);
        // A tie-breaker that is down breaks no tie. Without it the cluster survives just as many
        // losses, and a new one can be added.
        match voter {
            Voter::Heard if gone.tie_breaker && tied => {
                return Err(Refused::LastTieBreaker(gone.name.clone()));
            }
            Voter::Unclear if gone.tie_breaker && tied => return Err(Refused::NotHeardYet),
            _ => {}
        }
        let those = |list: &[(&u32, &Member)], fit: fn(Voter) -> bool| {
            list.iter().filter(|(i, _)| vote(**i).is_some_and(fit)).count()
        };
        // Before and after the removal: the step itself needs a majority of all.
        let enough = |fit| 2 * those(&all, fit) > all.len() && 2 * those(&rest, fit) > rest.len();
        let works = |v| v == Voter::Heard;
        match enough(works) {
            true => Ok(RemoveMdm { id }),
            false if enough(|v| v != Voter::Silent) => Err(Refused::NotHeardYet),
            false => Err(Refused::Majority {
                name: gone.name.clone(),
                left: those(&rest, works),
                of: rest.len(),
            }),
        }
    }

    pub(crate) fn added(&self, c: &control::MdmInfo) -> Option<(u32, Option<Member>)> {
        let member =
            Member { name: c.name.clone(), address: c.address.clone(), tie_breaker: c.tie_breaker };
        let known = self.list.get(&c.id);
        let new = c.id == self.last_id + 1 && self.list.len() < MAX_MEMBERS;
        let same =
            |(id, m): (&u32, &Member)| *id != c.id && (m.name == c.name || m.address == c.address);
        let taken = self.list.iter().any(same);
        ((known.is_some() || new) && known != Some(&member) && !taken)
            .then_some((c.id, Some(member)))
    }

    pub(crate) fn removed(&self, c: &RemoveMdm) -> Option<(u32, Option<Member>)> {
        let managers = self.list.iter().filter(|(id, m)| **id != c.id && !m.tie_breaker).count();
        (self.list.contains_key(&c.id) && managers > 0).then_some((c.id, None))
    }

    pub(crate) fn set(&mut self, id: u32, member: Option<Member>, at: MapVersion) {
        self.last_id = self.last_id.max(id);
        self.changed_at = at;
        match member {
            Some(member) => self.list.insert(id, member),
            None => self.list.remove(&id),
        };
    }

    /// Returns true for an id whose MDM was removed.
    pub fn was_removed(&self, id: u32) -> bool {
        id <= self.last_id && !self.list.contains_key(&id)
    }

    /// Returns the MDMs as the map lists them.
    pub fn infos(&self) -> Vec<control::MdmInfo> {
        self.list.iter().map(|(id, m)| info(*id, m)).collect()
    }
}

/// Returns one MDM as the map lists it.
pub fn info(id: u32, m: &Member) -> control::MdmInfo {
    control::MdmInfo {
        id,
        name: m.name.clone(),
        address: m.address.clone(),
        tie_breaker: m.tie_breaker,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    fn members(list: &[(&str, bool)]) -> Members {
        let mut members = Members::default();
        for (name, tie_breaker) in list {
            let address = format!("10.0.0.{}:1", members.last_id + 1);
            let ask = control::AddMdm { name: (*name).into(), address, tie_breaker: *tie_breaker };
            let command = members.add_command(&ask).unwrap();
            let (id, member) = members.added(&command).unwrap();
            members.set(id, member, MapVersion(1));
        }
        members
    }

    #[test]
    fn ids_never_come_back_and_names_and_addresses_are_unique() {
        let mut m = members(&[("a", false), ("b", false), ("t", true)]);
        let again = control::AddMdm {
            name: "b".into(),
            address: "10.9.9.9:1".into(),
            ..Default::default()
        };
        assert!(matches!(m.add_command(&again), Err(Refused::MdmTaken(..))));
        m.set(3, None, MapVersion(2));
        assert!(m.was_removed(3) && !m.was_removed(4));
        let new = control::AddMdm {
            name: "c".into(),
            address: "10.0.0.3:1".into(),
            ..Default::default()
        };
        assert_eq!(m.add_command(&new).unwrap().id, 4);
        assert_eq!(m.find("b").unwrap().0, 2);
        assert_eq!(m.find("10.0.0.1:1").unwrap().0, 1);
    }

    #[test]
    fn no_member_is_removed_that_the_majority_needs() {
        let m = members(&[("a", false), ("b", false), ("t", true)]);
        let all = |_| Some(Voter::Heard);
        assert_eq!(m.remove_command("x", all), Err(Refused::NoMdm("x".into())));
        assert!(matches!(m.remove_command("t", all), Err(Refused::LastTieBreaker(_))));
        assert_eq!(m.remove_command("b", all), Ok(RemoveMdm { id: 2 }));
        // One is dead: it can be removed, and none of the others.
        let but = |gone| move |id| Some(if id == gone { Voter::Silent } else { Voter::Heard });
        let but_b = but(2);
        assert_eq!(m.remove_command("b", but_b), Ok(RemoveMdm { id: 2 }));
        assert!(matches!(m.remove_command("a", but_b), Err(Refused::Majority { .. })));
        let but_t = but(3);
        assert_eq!(m.remove_command("t", but_t), Ok(RemoveMdm { id: 3 }), "another one can come");
        assert!(matches!(m.remove_command("a", but_t), Err(Refused::Majority { .. })));
        let m = members(&[("a", false), ("t", true)]);
        assert!(matches!(m.remove_command("a", all), Err(Refused::LastManager(_))));
        assert_eq!(m.remove_command("t", all), Ok(RemoveMdm { id: 2 }), "nobody is tied with it");
    }

    #[test]
    fn a_member_that_was_not_heard_yet_does_not_count_as_down() {
        let m = members(&[("a", false), ("b", false), ("t", true)]);
        // Just after an election the leader has heard none of the others, or not all of them.
        let only_a = |id| Some(if id == 1 { Voter::Heard } else { Voter::Unclear });
        let but_t = |id| Some(if id < 3 { Voter::Heard } else { Voter::Unclear });
        for name in ["b", "t"] {
            assert_eq!(m.remove_command(name, only_a), Err(Refused::NotHeardYet), "{name}");
        }
        assert_eq!(m.remove_command("t", but_t), Err(Refused::NotHeardYet));
        assert_eq!(
            m.remove_command("b", but_t),
            Err(Refused::NotHeardYet),
            "a and t are to decide"
        );
    }

    #[test]
    fn a_member_that_never_joined_can_be_removed_and_adds_nothing_to_a_majority() {
        let m = members(&[("a", false), ("gone", false)]);
        let only_a = |id| (id == 1).then_some(Voter::Heard);
        assert_eq!(m.remove_command("gone", only_a), Ok(RemoveMdm { id: 2 }));
        assert!(matches!(m.remove_command("a", only_a), Err(Refused::LastManager(_))));
        let m = members(&[("a", false), ("b", false), ("t", true), ("gone", false)]);
        let but_gone = |id| (id < 4).then_some(Voter::Heard);
        assert_eq!(m.remove_command("gone", but_gone), Ok(RemoveMdm { id: 4 }));
        assert_eq!(m.remove_command("b", but_gone), Ok(RemoveMdm { id: 2 }));
        assert!(matches!(m.remove_command("t", but_gone), Err(Refused::LastTieBreaker(_))));
    }
}

//! Log entries: the commands that the MDMs agree on together, and the state between entries.
//!
//! The commands of an entry are applied in a row. On every MDM, an entry leads to the same state as
//! on the MDM that made it, which has applied the same commands before. Protocol Buffers: never
//! reuse a tag.

use crate::command::Command;
use crate::state::State;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use base::crc::crc32c;
use base::{Mutant, mutant};
use prost::Message;

/// Maximum bytes of commands in one entry. With what surrounds them, they fit into one batch of the
/// log.
pub const ENTRY_MAX: usize = crate::log::BATCH_MAX - (64 << 10);

/// Commands that are collected for an entry.
#[derive(Clone, Debug, Default)]
pub struct Commands {
    list: Vec<Vec<u8>>,
    bytes: usize,
}

#[derive(Clone, PartialEq, Message)]
struct Data {
    #[prost(bytes = "vec", repeated, tag = "1")]
    commands: Vec<Vec<u8>>,
}

impl Commands {
    /// Adds a command, in a cluster of this level. Returns false and adds nothing if there is no
    /// room. Panics if the command needs a higher level: other members may not know it.
    pub fn push(&mut self, command: &Command, level: u32) -> bool {
        let fits = command.level() <= level || mutant::on(Mutant::UseEarly);
        assert!(fits, "this needs a higher level: {command:?}");
        let bytes = command.to_bytes();
        if self.bytes + bytes.len() + 8 > ENTRY_MAX {
            return false;
        }
        self.bytes += bytes.len() + 8;
        self.list.push(bytes);
        true
    }

    /// Returns roughly the bytes of the commands.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if there is no command.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the entry's data.
    pub fn into_data(self) -> Vec<u8> {
        Data { commands: self.list }.encode_to_vec()
    }
}

/// The state after some entry, with a checksum of all entries up to it: members with the same
/// entries have the same sum.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Decided {
    /// The state.
    pub state: State,
    /// The CRC-32C of the last entry and the sum before it.
    pub chain: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Base {
    #[prost(bytes = "vec", tag = "1")]
    state: Vec<u8>,
    #[prost(fixed32, tag = "2")]
    chain: u32,
}

impl Decided {
    /// Returns the state before the first entry.
    pub fn nothing() -> Decided {
        Decided { state: State::new(), chain: 0 }
    }

    /// Returns the state and the sum as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        to_bytes(&self.state, self.chain)
    }

    /// Reads such bytes, as in a build that knows levels up to `level_max`. An error says why they
    /// are not a state.
    pub fn from_bytes(bytes: &[u8], level_max: u32) -> Result<Decided, String> {
        let base = Base::decode(bytes).map_err(|e| e.to_string())?;
        Ok(Decided { state: State::read(&base.state, level_max)?, chain: base.chain })
    }

    /// Reads the data of a member's base. A member that was never told anything has none.
    pub fn from_base(data: &[u8], level_max: u32) -> Result<Decided, String> {
        match data.is_empty() {
            true => Ok(Decided::nothing()),
            false => Decided::from_bytes(data, level_max),
        }
    }

    /// Applies an entry's commands. An error says which part of it this build does not know.
    pub fn apply(&mut self, data: &[u8], level_max: u32) -> Result<(), String> {
        self.chain = chain(self.chain, data);
        apply(&mut self.state, data, level_max)
    }
}

/// Applies an entry's commands, as in a build that knows levels up to `level_max`. An error says
/// which part of it the build does not know; then nothing is changed.
pub fn apply(state: &mut State, data: &[u8], level_max: u32) -> Result<(), String> {
    let commands = commands(data).ok_or("a command")?;
    for command in &commands {
        command.check().map_err(|unknown| unknown.to_string())?;
        if let Command::SetLevel(c) = command
            && c.level > level_max
        {
            return Err(format!("level {}", c.level));
        }
    }
    for command in commands {
        // Below its level a field has no meaning, so builds of both releases get the same state.
        let level = state.level.min(level_max);
        state.apply(state.index + 1, &command.as_known_at(level));
    }
    Ok(())
}

/// Returns the state and the sum as the bytes of a [`Decided`].
pub fn to_bytes(state: &State, chain: u32) -> Vec<u8> {
    Base { state: state.to_bytes(), chain }.encode_to_vec()
}

/// Returns the sum after an entry with this data.
pub fn chain(before: u32, data: &[u8]) -> u32 {
    let mut parts = Vec::from(before.to_le_bytes());
    parts.extend(crc32c(data).to_le_bytes());
    crc32c(&parts)
}

fn commands(data: &[u8]) -> Option<Vec<Command>> {
    let data = Data::decode(data).ok()?;
    data.commands.iter().map(|bytes| Command::from_bytes(bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{self, FormCluster, SetLevel};

    #[test]
    fn entries_survive_encoding_and_an_unknown_command_is_noticed() {
        let mut commands = Commands::default();
        assert!(commands.is_empty());
        assert!(commands.push(&Command::FormCluster(FormCluster { cluster: 7 }), 1));
        let data = commands.into_data();
        let mut decided = Decided::nothing();
        decided.apply(&data, 1).unwrap();
        assert_eq!((decided.state.cluster.0, decided.state.index), (7, 1));
        assert_eq!(Decided::from_bytes(&decided.to_bytes(), 1), Ok(decided.clone()));
        let unknown = Data { commands: Vec::from([Vec::from([0xf2, 6, 0])]) };
        assert!(decided.apply(&unknown.encode_to_vec(), 1).is_err());
        assert!(Decided::from_bytes(&[9], 1).is_err());
    }

    fn entry(commands: &[Command], level: u32) -> Vec<u8> {
        let mut list = Commands::default();
        assert!(commands.iter().all(|command| list.push(command, level)));
        list.into_data()
    }

    #[test]
    fn a_level_that_this_build_does_not_know_stops_it_before_anything_is_applied() {
        let form = Command::FormCluster(FormCluster { cluster: 7 });
        let set = |level| Command::SetLevel(SetLevel { level });
        let mut decided = Decided::nothing();
        decided.apply(&entry(&[form], 1), 2).unwrap();
        let before = decided.state.clone();
        let data = entry(&[set(2), Command::DeleteVolume(Default::default())], 1);
        assert_eq!(apply(&mut decided.state, &data, 1), Err("level 2".into()));
        assert_eq!(decided.state, before);
        decided.apply(&data, 2).unwrap();
        assert_eq!(decided.state.level, 2);
        let bytes = decided.to_bytes();
        assert_eq!(Decided::from_bytes(&bytes, 2), Ok(decided));
        let refused = Decided::from_bytes(&bytes, 1).unwrap_err();
        assert!(refused.contains("level 2") && refused.contains("update"), "{refused}");
    }

    #[test]
    fn a_value_that_this_build_does_not_know_stops_it() {
        let mut decided = Decided::nothing();
        let intend = command::Intend { devices: Vec::from([1]), intent: 6 };
        let data = entry(&[Command::Intend(intend)], 1);
        assert_eq!(decided.apply(&data, 1), Err("Intent 6".into()));
        let up = command::DeviceUp { kind: 9, ..Default::default() };
        let data = entry(&[Command::DeviceUp(up)], 1);
        assert_eq!(decided.apply(&data, 1), Err("DeviceKind 9".into()));
        let group = wire::control::GroupInfo { doubt: 3, ..Default::default() };
        let reconcile = command::Reconcile { made: Vec::from([group]), ..Default::default() };
        let data = entry(&[Command::Reconcile(reconcile)], 1);
        assert_eq!(decided.apply(&data, 1), Err("Doubt 3".into()));
        assert_eq!(decided.state, State::new());
    }

    #[test]
    fn a_field_below_its_level_has_no_meaning_to_any_build() {
        let up = command::DeviceUp {
            device: 1,
            sds: 1,
            name: "a".into(),
            incarnation: 1,
            store: 1,
            kind: 1,
            release: "0.9.0".into(),
            ..Default::default()
        };
        let data = entry(&[Command::DeviceUp(up)], 2);
        let after = |level, level_max| {
            let mut state = State { level, ..State::new() };
            apply(&mut state, &data, level_max).unwrap();
            assert_eq!(state.devices.len(), 1);
            state
        };
        assert_eq!(after(1, 2), after(1, 1));
        assert_eq!(State::read(&after(1, 2).to_bytes(), 2), Ok(after(1, 2)));
        assert_eq!(after(2, 2).devices[&base::DeviceId(1)].release, "0.9.0");
    }

    #[test]
    #[should_panic(expected = "higher level")]
    fn nothing_of_a_later_level_is_logged() {
        let up = command::DeviceUp { release: "0.9.0".into(), ..Default::default() };
        entry(&[Command::DeviceUp(up)], 1);
    }
}

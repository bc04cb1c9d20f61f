//! The file with a backup of an MDM's state, and a new MDM's log that is made from it.
//!
//! ```text
//! magic "GABNBKP1"   8 bytes
//! format             4 bytes, little-endian: 1
//! crc                4 bytes: CRC-32C of the rest
//! made at            8 bytes: seconds since 1970, UTC
//! state              as in a log's image (mdm::snapshot)
//! ```
//!
//! A backup may be older than changes that servers have acted on. So an MDM that starts from one
//! recovers ([`mdm::recovery`]).

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use base::Limits;
use base::crc::crc32c;
use consensus::Image;
use core::net::SocketAddr;
use mdm::entry;
use mdm::log::{Io, Log};
use mdm::members::Member;
use mdm::state::State;
use prost::Message;

const MAGIC: &[u8; 8] = b"GABNBKP1";
const FORMAT: u32 = 1;
const HEAD: usize = 16;

/// A backup that was read and verified.
#[derive(Debug)]
pub struct Backup {
    /// Time of the backup: seconds since 1970, UTC.
    pub made_at: u64,
    /// The cluster's name; empty if it has none.
    pub system: String,
    /// The cluster.
    pub cluster: u64,
    /// Volumes: name, and size in bytes.
    pub volumes: Vec<(String, u64)>,
    /// Number of devices.
    pub devices: usize,
    state: State,
}

/// Returns the backup file for a state from an MDM ([`wire::control::AdminReply::backup`]).
pub fn pack(state: &[u8], made_at: u64) -> Vec<u8> {
    let body = [&made_at.to_le_bytes()[..], state].concat();
    let head = [&MAGIC[..], &FORMAT.to_le_bytes(), &crc32c(&body).to_le_bytes()].concat();
    [head, body].concat()
}

impl Backup {
    /// Reads a file, in a build that knows levels up to `level_max`. The error says what is wrong
    /// with it.
    pub fn from_bytes(bytes: &[u8], level_max: u32) -> Result<Backup, String> {
        if bytes.len() < HEAD + 8 || bytes[..8] != MAGIC[..] {
            return Err(String::from(
                "it is no backup that `gabion mdm backup` made, or only the beginning of one",
            ));
        }
        let number = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if number(8) != FORMAT {
            return Err(format!(
                "it has format {}, and this build reads format {FORMAT}",
                number(8)
            ));
        }
        let body = &bytes[HEAD..];
        if crc32c(body) != number(12) {
            return Err(String::from("it is damaged, or not all of it is there: use another one"));
        }
        let (time, state) = body.split_at(8);
        let made_at = u64::from_le_bytes(time.try_into().expect("eight bytes"));
        let state =
            State::read(state, level_max).map_err(|what| format!("it can't be read: {what}"))?;
        let volumes = state.volumes.values().map(|v| (v.name.clone(), v.size)).collect();
        Ok(Backup {
            made_at,
            system: state.objects.system.clone(),
            cluster: state.cluster.0,
            volumes,
            devices: state.devices.len(),
            state,
        })
    }

    /// Returns the writes (offset and data) that turn an empty file into the log of the cluster's
    /// only MDM, with this name and address. The caller writes them in this order, and then
    /// flushes. Offsets and lengths are multiples of 4 KiB.
    pub fn log(
        mut self,
        name: &str,
        address: SocketAddr,
        by: &str,
        at: u64,
    ) -> Vec<(u64, Vec<u8>)> {
        let id = self.state.members.last_id + 1;
        let me = Member { name: name.into(), address: address.to_string(), tie_breaker: false };
        let decided = self.state.clone();
        self.state.recover(&decided, id, me, by, at);
        let image = Image::first(u64::from(id), entry::to_bytes(&self.state, 0));
        let mut log = Log::new(Limits::SHIPPED.mdm_log);
        let mut writes = run(&mut log);
        assert!(writes.is_empty() && log.is_idle(), "an empty disk was read");
        log.switch(&image.encode_to_vec());
        writes.extend(run(&mut log));
        writes
    }
}

/// Runs a log on an empty disk, and returns its writes.
fn run(log: &mut Log) -> Vec<(u64, Vec<u8>)> {
    let mut writes = Vec::new();
    while let Some(io) = log.next() {
        match io {
            Io::Read { len, .. } => drop(log.done(Ok(&alloc::vec![0; len as usize]))),
            Io::Write { at, data } => {
                writes.push((at, data));
                log.done(Ok(&[]));
            }
            Io::Flush => drop(log.done(Ok(&[]))),
        }
    }
    writes
}

#[cfg(test)]
mod tests {
    use super::*;
    use mdm::command::{Command, FormCluster};
    use mdm::log::Progress;

    fn state() -> State {
        let mut state = State::new();
        state.apply(1, &Command::FormCluster(FormCluster { cluster: 7 }));
        state
    }

    #[test]
    fn a_backup_comes_back_and_damage_is_noticed() {
        let bytes = pack(&state().to_bytes(), 1000);
        let backup = Backup::from_bytes(&bytes, 1).unwrap();
        assert_eq!((backup.cluster, backup.made_at, backup.state), (7, 1000, state()));
        for at in [0, 9, 13, 20, bytes.len() - 1] {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(Backup::from_bytes(&bad, 1).is_err(), "a flipped bit at {at}");
        }
        assert!(Backup::from_bytes(&bytes[..bytes.len() - 1], 1).is_err());
        assert!(Backup::from_bytes(&[], 1).is_err());
    }

    #[test]
    fn a_backup_of_a_higher_level_is_refused_by_a_build_that_does_not_know_it() {
        let mut state = state();
        state.level = 2;
        let bytes = pack(&state.to_bytes(), 1000);
        let why = Backup::from_bytes(&bytes, 1).unwrap_err();
        assert!(why.contains("level 2") && why.contains("update it"), "{why}");
        assert_eq!(Backup::from_bytes(&bytes, 2).unwrap().state, state);
    }

    #[test]
    fn a_log_made_of_it_holds_an_mdm_that_recovers() {
        let backup = Backup::from_bytes(&pack(&state().to_bytes(), 1000), 1).unwrap();
        let writes = backup.log("m", "10.0.0.1:7000".parse().unwrap(), "me", 6000);
        let mut disk: Vec<u8> = Vec::new();
        for (at, data) in writes {
            disk.resize(disk.len().max(at as usize + data.len()), 0);
            disk[at as usize..at as usize + data.len()].copy_from_slice(&data);
        }
        let mut log = Log::new(Limits::SHIPPED.mdm_log);
        let found = loop {
            let progress = match log.next().expect("it is being read") {
                Io::Read { at, len } => {
                    let there = disk.iter().skip(at as usize).take(len as usize);
                    let mut data: Vec<u8> = there.copied().collect();
                    data.resize(len as usize, 0);
                    log.done(Ok(&data))
                }
                Io::Write { .. } | Io::Flush => log.done(Ok(&[])),
            };
            if let Progress::Recovered(found) = progress {
                break found;
            }
        };
        let image = Image::decode(&found.image.unwrap()[..]).unwrap();
        let state = entry::Decided::from_bytes(&image.base.data, 1).unwrap().state;
        assert!(state.recovery.open && state.cluster.0 == 7);
        assert_eq!(state.members.list.len(), 1);
    }
}

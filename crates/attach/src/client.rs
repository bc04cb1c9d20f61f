//! A data client without a target: the program makes its requests itself.

use admin::exit::{Exit, coded};
use anyhow::{Context, Result};
use base::{Time, VolumeId};
use daemon::random;
use node::sdc::{Sdc, SdcConfig};
use rt::{HeldName, Reactor};
use seam::{BlockError, BlockRequest, Buf, Note, RequestId};
use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};
use wire::control::Access;

/// The one node of the reactor.
const SEAT: usize = 0;
/// How long an MDM may take to accept the client.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a turn may take meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// Callback for the notes of nodes.
type OnNote = Box<dyn FnMut(usize, Time, Note)>;

/// A volume that this client may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Usable {
    /// Its id.
    pub(crate) id: VolumeId,
    /// Its present size in bytes.
    pub(crate) size: u64,
    /// The generation at which the client's permission began. A later one means that others may
    /// have written between the two.
    pub(crate) since: u32,
    /// The permission is for reading only.
    pub(crate) read_only: bool,
}

/// A client that an MDM has accepted.
pub(crate) struct Client {
    reactor: Reactor<Sdc, OnNote>,
    _name: Option<HeldName>,
}

impl Client {
    /// Connects to the cluster. Without a name, the client gets a free one of this host.
    pub(crate) fn open(mdm: &[SocketAddr], name: Option<&str>) -> Result<Client> {
        let held = match name {
            Some(_) => None,
            None => Some(HeldName::first_free("-mount-")?.context("no client name is free")?),
        };
        let text = held.as_ref().map(|held| held.text.clone());
        let name = name.map(str::to_owned).or(text).context("one of the two")?;
        let shard = rt::Shard::bind(rt::Config { seed: random()?, ..rt::Config::default() })?;
        let sdc = Sdc::new(SdcConfig::program(name, mdm.to_vec(), random()?, std::process::id()));
        let refusal = Rc::new(Cell::new(None));
        let tell = refusal.clone();
        let on_note: OnNote = Box::new(move |_, _, note| {
            if let Note::Refused { why, .. } | Note::Malformed { why, .. } = note {
                tell.set(Some(why));
            }
        });
        let reactor = shard.start(vec![sdc], on_note)?;
        let mut client = Client { reactor, _name: held };
        let began = Instant::now();
        while !client.reactor.node(SEAT).is_ready() {
            if began.elapsed() > PATIENCE {
                let all: Vec<String> = mdm.iter().map(SocketAddr::to_string).collect();
                let why = refusal.get().map_or(String::new(), |why| format!(": {why}"));
                let text = format!(
                    "no MDM at {} has accepted this client within {PATIENCE:?}{why}. `gabion \
                     status` tells how the cluster does",
                    all.join(", ")
                );
                return Err(coded(Exit::Unreachable, text));
            }
            client.reactor.turn(Some(LOOK))?;
        }
        Ok(client)
    }

    /// Returns the volume with this name, if there is one that this client may use.
    pub(crate) fn named(&mut self, name: &str) -> Option<Usable> {
        let (id, _) = self.reactor.node(SEAT).volume_by_name(name)?;
        self.volume(id)
    }

    /// Returns the volume with this id, if this client may use it.
    pub(crate) fn volume(&mut self, id: VolumeId) -> Option<Usable> {
        let map = self.reactor.node(SEAT).map();
        let volume = map.volumes.get(&id)?;
        let grant = map.my_grant(volume)?;
        let (since, read_only) = (grant.since, grant.access == Access::ReadOnly);
        Some(Usable { id, size: volume.size, since, read_only })
    }

    /// Returns the names and ids of all volumes that this client may use, by id.
    pub(crate) fn list(&mut self) -> Vec<(String, VolumeId)> {
        let map = self.reactor.node(SEAT).map();
        let mine = map.volumes.iter().filter(|(_, volume)| map.my_grant(volume).is_some());
        let mut all: Vec<_> = mine.map(|(id, volume)| (volume.name.clone(), *id)).collect();
        all.sort_unstable_by_key(|(_, id)| id.0);
        all
    }

    /// Starts a request. Its answer has the same number.
    pub(crate) fn request(&mut self, id: RequestId, request: BlockRequest) {
        self.reactor.request(SEAT, id, request);
    }

    /// Returns a buffer with this content.
    pub(crate) fn copy(&self, data: &[u8]) -> Buf {
        let mut body = self.reactor.alloc(data.len());
        body.as_mut().copy_from_slice(data);
        body
    }

    /// Moves the answers that have come to the end of a list.
    pub(crate) fn answers(&mut self, to: &mut Vec<(RequestId, Result<Buf, BlockError>)>) {
        to.extend(self.reactor.answers());
    }

    /// Runs a round of the loop without waiting.
    pub(crate) fn turn(&mut self) -> Result<()> {
        Ok(self.reactor.turn(Some(Duration::ZERO))?)
    }

    /// Sends what was started. Returns true if there is nothing to do before [`Client::fd`] is
    /// readable.
    pub(crate) fn arm(&mut self) -> Result<bool> {
        Ok(self.reactor.arm()?)
    }

    /// A descriptor that is readable when there is something to do.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.reactor.fd()
    }
}

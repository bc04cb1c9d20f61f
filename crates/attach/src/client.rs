//! A data client without a target: the program that contains it makes the requests.

use admin::exit::{self, Exit, coded};
use admin::report::{Report, Sdc, UpDown};
use anyhow::{Context, Result};
use base::{ClusterId, Time, VolumeId};
use daemon::random;
use fleet::target::Target;
use node::sdc::{self, SdcConfig};
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
/// Longest wait of one round of the loop while the client waits for that.
const LOOK: Duration = Duration::from_millis(20);

/// How long a client's name may be in use by a process that may have been killed a moment ago.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// Pause between two questions to the MDM.
const AGAIN: Duration = Duration::from_millis(200);

/// Most bytes of a volume's name in a client's name.
const NAMED: usize = 17;

/// Callback for the notes of nodes.
type OnNote = Box<dyn FnMut(usize, Time, Note)>;

/// A volume that this client may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Usable {
    /// Its id.
    pub(crate) id: VolumeId,
    /// Its present size in bytes.
    pub(crate) size: u64,
    /// The generation at which the client's mapping began. If it is later than before, others may
    /// have written in between.
    pub(crate) since: u32,
    /// The mapping is read-only.
    pub(crate) read_only: bool,
}

/// A client's name.
pub(crate) struct Name {
    text: String,
    /// The lock that reserves the name on this host. `None`: the user gave the name.
    _held: Option<HeldName>,
}

impl Name {
    /// The name that was given by hand.
    fn given(name: &str) -> Name {
        Name { text: name.to_owned(), _held: None }
    }

    fn held(held: HeldName) -> Name {
        Name { text: held.text.clone(), _held: Some(held) }
    }

    /// Returns the name that the user gave, if it is free, or a free one of this host.
    pub(crate) fn numbered(target: &Target, given: Option<&str>) -> Result<Name> {
        let Some(name) = given else {
            let held = HeldName::first_free("-mount-")?;
            return Ok(Name::held(held.context("no client name is free")?));
        };
        check_free(target, name)?;
        Ok(Name::given(name))
    }

    /// Returns the name that the user gave, if it is free, or the fixed name of this host for this
    /// volume and this command.
    pub(crate) fn of(
        target: &Target,
        given: Option<&str>,
        (volume, command): (&str, &str),
    ) -> Result<Name> {
        let Some(name) = given else { return Name::of_volume(volume, command) };
        check_free(target, name)?;
        Ok(Name::given(name))
    }

    /// Returns the fixed name of this host for this volume and this command. With a fixed name, a
    /// new process replaces the previous one, and the requests of the previous one can't take
    /// effect later (R8).
    pub(crate) fn of_volume(volume: &str, command: &str) -> Result<Name> {
        let mark = format!("-{command}-{}", short(volume));
        let text = || {
            format!(
                "another `gabion {command}` serves {volume} here: end that one, or give this one \
                 a name of its own (--client)"
            )
        };
        let held = HeldName::of_host(&mark)?;
        Ok(Name::held(held.ok_or_else(|| coded(Exit::InUse, text()))?))
    }

    /// Returns this name, which no other process of this host may use meanwhile.
    pub(crate) fn alone(name: &str) -> Result<Name> {
        let text = || format!("another process here uses the client's name {name}: end that one");
        let held = HeldName::of(name.to_owned())?;
        Ok(Name::held(held.ok_or_else(|| coded(Exit::InUse, text()))?))
    }

    /// Returns its text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// Returns an error if a process runs as the client with this name: the MDM would take this process
/// for its successor, and cut it off with all of its hosts. A process that has just been killed
/// gets some time to be gone.
pub(crate) fn check_free(target: &Target, name: &str) -> Result<()> {
    let began = Instant::now();
    loop {
        let taken = match target.report() {
            Ok(report) => match holder(&report, name) {
                Some(Holder { why, serves }) => (coded(Exit::InUse, why), serves),
                None => return Ok(()),
            },
            // This command waits for the MDMs as long as for its own registration.
            Err(error) if exit::of(&error) == Exit::Unreachable && began.elapsed() < PATIENCE => {
                std::thread::sleep(AGAIN);
                continue;
            }
            Err(error) => (error, true),
        };
        match taken {
            (error, serves) if serves || began.elapsed() > GONE_WITHIN => return Err(error),
            _ => std::thread::sleep(AGAIN),
        }
    }
}

/// A process that has a client's name.
#[derive(PartialEq, Eq, Debug)]
struct Holder {
    /// Why the name is not free, for people.
    why: String,
    /// It serves hosts or NBD clients.
    serves: bool,
}

/// Returns the process that runs as the client with this name.
fn holder(report: &Report, name: &str) -> Option<Holder> {
    let has =
        |sdc: &&Sdc| sdc.state == UpDown::Up && (sdc.name == name || sdc.process_name == name);
    let sdc = report.sdc.iter().find(has)?;
    let all = sdc.nbd_uris.iter().chain(&sdc.iscsi_portals).chain(&sdc.nvme_portals);
    let uris: Vec<&str> = all.map(String::as_str).collect();
    let serves = !uris.is_empty();
    let why = match serves {
        true => format!(
            "the data client (SDC) `{name}` runs, and serves volumes at {}: a second process with \
             its name would cut off all of its hosts. Choose another name (--client)",
            uris.join(", ")
        ),
        false => format!(
            "another process (pid {}) runs as the client `{name}`: end that one first, or choose \
             another name (--client)",
            sdc.pid
        ),
    };
    Some(Holder { why, serves })
}

/// Returns a volume's name, or its end and a checksum of it, if it is too long for a client's name.
fn short(volume: &str) -> String {
    if volume.len() <= NAMED {
        return volume.to_owned();
    }
    let tail = volume.get(volume.len() - (NAMED - 9)..).unwrap_or_default();
    format!("{tail}-{:08x}", base::crc::crc32c(volume.as_bytes()))
}

/// A client that an MDM has accepted.
pub(crate) struct Client {
    reactor: Reactor<sdc::Sdc, OnNote>,
    _name: Name,
}

impl Client {
    /// Connects to the cluster.
    pub(crate) fn open(mdm: &[SocketAddr], name: Name) -> Result<Client> {
        let shard = rt::Shard::bind(rt::Config { seed: random()?, ..rt::Config::default() })?;
        let config =
            SdcConfig::program(name.text.clone(), mdm.to_vec(), random()?, std::process::id());
        let sdc = sdc::Sdc::new(config);
        let refusal = Rc::new(Cell::new(None));
        let tell = refusal.clone();
        let on_note: OnNote = Box::new(move |_, _, note| {
            if let Note::Refused { why, .. } | Note::Malformed { why, .. } = note {
                tell.set(Some(why));
            }
        });
        let reactor = shard.start(vec![sdc], on_note)?;
        let mut client = Client { reactor, _name: name };
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

    /// Returns the volume with this name, or an error for people.
    pub(crate) fn find(&mut self, name: &str) -> Result<Usable> {
        let text = || {
            format!(
                "there is no volume `{name}` for this client: `gabion volume list` shows those \
                 that exist, and `gabion volume show {name}` the clients that it is mapped to \
                 (--client says which of them this is)"
            )
        };
        self.named(name).with_context(text)
    }

    /// Returns the volume with this id, if this client may use it.
    pub(crate) fn volume(&mut self, id: VolumeId) -> Option<Usable> {
        let map = self.reactor.node(SEAT).map();
        let volume = map.volumes.get(&id)?;
        let grant = map.my_grant(volume)?;
        let (since, read_only) = (grant.since, grant.access == Access::ReadOnly);
        Some(Usable { id, size: volume.size, since, read_only })
    }

    /// Records one more use of a volume: while it has any, `gabion volume delete` is refused.
    /// [`Client::turn`] tells the MDM.
    pub(crate) fn hold(&mut self, volume: VolumeId) {
        self.reactor.node(SEAT).hold(volume);
        self.withdraw(&[]); // makes the node look
    }

    /// Records the end of one use.
    pub(crate) fn release(&mut self, volume: VolumeId) {
        self.reactor.node(SEAT).release(volume);
        self.withdraw(&[]);
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

    /// Withdraws requests whose answers nobody wants any more. Their numbers are in ascending
    /// order. Operations that no server has are never sent, and the others are not sent again. So
    /// each of these requests takes effect before any later request, or never (rule R16). The
    /// answers come nevertheless, within about ten seconds.
    pub(crate) fn withdraw(&mut self, ids: &[RequestId]) {
        self.reactor.withdraw(SEAT, ids);
    }

    /// Returns the cluster's id.
    pub(crate) fn cluster(&mut self) -> ClusterId {
        self.reactor.node(SEAT).map().cluster
    }

    /// Returns a buffer of this length with arbitrary content.
    pub(crate) fn alloc(&self, len: usize) -> Buf {
        self.reactor.alloc(len)
    }

    /// Returns a buffer with this content.
    pub(crate) fn copy(&self, data: &[u8]) -> Buf {
        let mut body = self.alloc(data.len());
        body.as_mut().copy_from_slice(data);
        body
    }

    /// Appends the answers that have arrived to a list.
    pub(crate) fn answers(&mut self, to: &mut Vec<(RequestId, Result<Buf, BlockError>)>) {
        to.extend(self.reactor.answers());
    }

    /// Runs a round of the loop without waiting.
    pub(crate) fn turn(&mut self) -> Result<()> {
        Ok(self.reactor.turn(Some(Duration::ZERO))?)
    }

    /// Sends the started requests. Returns true if there is nothing to do before [`Client::fd`] is
    /// readable.
    pub(crate) fn arm(&mut self) -> Result<bool> {
        Ok(self.reactor.arm()?)
    }

    /// A descriptor that is readable when there is something to do.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.reactor.fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::control::{SdcStatus, StatusInfo};

    #[test]
    fn the_name_of_a_client_that_runs_is_not_free() {
        let client = |name: &str, own: &str, connected, uris: &[&str]| SdcStatus {
            name: name.into(),
            own: own.into(),
            pid: 7,
            connected,
            uris: uris.iter().map(|uri| (*uri).into()).collect(),
            ..SdcStatus::default()
        };
        let sdcs = vec![
            client("web", "sdc", true, &["nbd://10.0.0.1:10809", "iscsi://10.0.0.1:3260"]),
            client("disk", "disk", true, &[]),
            client("old", "old", false, &["nbd://10.0.0.2:10809"]),
        ];
        let info = StatusInfo { sdcs, ..StatusInfo::default() };
        let report = Report::new(&info, ([10, 0, 0, 9], 7001).into());
        for name in ["web", "sdc"] {
            let held = holder(&report, name).unwrap();
            let text = format!("`{name}` runs, and serves volumes at nbd://10.0.0.1:10809, iscsi");
            assert!(held.serves && held.why.contains(&text), "{held:?}");
        }
        let held = holder(&report, "disk").unwrap();
        assert!(!held.serves && held.why.contains("another process (pid 7)"), "{held:?}");
        assert_eq!((holder(&report, "old"), holder(&report, "new")), (None, None));
    }

    #[test]
    fn long_names_of_volumes_stay_different() {
        assert_eq!(short("vol1"), "vol1");
        let (a, b) = (short("prod-postgres-data-0001"), short("test-postgres-data-0001"));
        assert!(a != b && a.len() <= NAMED && b.len() <= NAMED, "{a} {b}");
    }
}

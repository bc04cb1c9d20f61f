//! Why a link is refused or closed: the refusals that peers send each other, and the notes about
//! them in the logs of both sides.
//!
//! A refusal carries a code for programs and a text for people. The text names the fault of that
//! one case, so the code that finds the fault writes the text. A note is a fixed text for each
//! code: [`note`] has all of them, in one table.

use crate::link::send_control;
use alloc::string::String;
use base::LinkId;
use seam::{Effect, Effects, Note};
use wire::control::{Refusal, RefusalCode};
use wire::{Malformed, PeerLink};

/// The process that writes a note about a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writer {
    /// The MDM that refuses a peer.
    Mdm,
    /// A data server that an MDM refuses.
    Sds,
    /// A client that an MDM or a data server refuses.
    Sdc,
}

/// Why a link is closed.
#[derive(Clone, Copy, Debug)]
pub enum Reason {
    /// A frame came that can't be read.
    Frame(Malformed),
    /// The reason in words.
    Words(&'static str),
}

impl Reason {
    /// Returns the note about the link.
    pub fn note(self, link: LinkId) -> Note {
        match self {
            Reason::Frame(malformed) => malformed.note(link),
            Reason::Words(why) => Note::Refused { link, why },
        }
    }
}

impl From<Malformed> for Reason {
    #[cold]
    fn from(malformed: Malformed) -> Reason {
        Reason::Frame(malformed)
    }
}

impl From<&'static str> for Reason {
    fn from(why: &'static str) -> Reason {
        Reason::Words(why)
    }
}

/// Reason for closing a link whose peer does not answer.
pub const MUTE: &str = "it does not answer: its process hangs, or its host was restarted";

/// Reason for closing a link whose peer sends a second welcome.
pub const TWICE: &str = "welcomed twice";

/// Note of a data server that refuses a hello.
pub const HELLO: &str = "a hello was refused";

/// Note of a data server about a refusal by another one.
pub const BY_SERVER: &str = "another server refuses this one";

/// Note of a client about a refusal that it can't read, or that has no meaning for a client.
pub const REFUSED: &str = "refused";

/// Reason for closing a link whose peer answers with a version that this build did not offer.
pub const NOT_OFFERED: &str = "it speaks a protocol version that was not offered to it: update it";

/// Note about a refusal because there is no common protocol version.
pub const NO_COMMON_VERSION: &str = "refused: no protocol version is common to both sides";

/// Note about a refusal because a build does not know the cluster's level.
pub const TOO_OLD: &str =
    "refused: the cluster has a higher level than the build of this process knows: update it";

/// True for notes about refusals that have to do with versions or levels.
pub fn is_of_versions(why: &str) -> bool {
    use crate::mapview::{TOO_NEW, UNKNOWN};
    [NOT_OFFERED, NO_COMMON_VERSION, TOO_OLD, TOO_NEW, UNKNOWN].contains(&why)
}

/// Returns the note about a refusal with this code, in the log of `writer`.
pub fn note(code: RefusalCode, writer: Writer) -> &'static str {
    let [mdm, sds, sdc] = notes(code);
    match writer {
        Writer::Mdm => mdm,
        Writer::Sds => sds,
        Writer::Sdc => sdc,
    }
}

/// Returns the notes of an MDM, a data server and a client about a refusal with this code.
// Long: a table.
fn notes(code: RefusalCode) -> [&'static str; 3] {
    const UNEXPECTED: &str = "unexpected";
    const BY_MDM: &str = "the MDM refused this server: see its log";
    const OTHER_LEADS: &str = "that MDM does not lead: the others are asked";
    match code {
        RefusalCode::Unknown | RefusalCode::Unexpected => [UNEXPECTED, BY_MDM, REFUSED],
        RefusalCode::WrongCluster => [
            "wrong cluster",
            "an MDM of another cluster: if it was this one's, it has lost its log. Let the \
             servers run, end that MDM, remove its log, and restore a backup \
             (docs/operate/managers.md)",
            "refused: it belongs to another cluster",
        ],
        RefusalCode::WrongVersion => [NO_COMMON_VERSION; 3],
        RefusalCode::Superseded => [
            "superseded",
            BY_MDM,
            "refused: a newer process has this client's name, and one of the two needs another \
             `name`; or it was removed with `gabion sdc remove`. Start this one again then",
        ],
        RefusalCode::NotMe => {
            [UNEXPECTED, BY_MDM, "refused: another process listens at this address"]
        }
        RefusalCode::WrongDevice => ["wrong device", BY_MDM, REFUSED],
        RefusalCode::NotLeader => ["this MDM does not lead", OTHER_LEADS, OTHER_LEADS],
        RefusalCode::WrongMember => ["a wrong MDM", BY_MDM, REFUSED],
        RefusalCode::WrongPlace => [
            "a server's domain, fault set or storage pool",
            "the MDM does not know where this server belongs: compare `domain`, `fault_set` and \
             `pool` of its configuration with `gabion domain list`, `gabion fault-set list` and \
             `gabion pool list`. Where there are several, it has to say which",
            REFUSED,
        ],
        RefusalCode::Occupied => [
            "a device that counts as up elsewhere, or whose place is taken",
            "its device counts as up elsewhere, or another one in its place: it waits for what \
             the MDM finds there",
            REFUSED,
        ],
        RefusalCode::Full => [
            "the cluster has as many servers or clients as it takes",
            "the cluster has as many devices as it takes: remove one that is gone for good",
            REFUSED,
        ],
        RefusalCode::TooOld => [TOO_OLD; 3],
    }
}

/// Creates a refusal.
pub fn refusal(code: RefusalCode, text: impl Into<String>) -> Refusal {
    Refusal { code: code as i32, text: text.into(), ..Refusal::default() }
}

/// Sends a refusal, and closes the link after it.
pub fn refuse(link: LinkId, refusal: &Refusal, out: &mut Effects) {
    let way = PeerLink::new(link, wire::HANDSHAKE_VERSION);
    send_control(way, refusal, out);
    out.push(Effect::Close { link });
}

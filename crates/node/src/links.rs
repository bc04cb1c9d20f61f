//! Connections that a role needs, and the handshake on them.
//!
//! A [`Dialer`] keeps one connection: it dials, sends a hello, and dials again with growing delays.
//! It does not know what the link is for. The answering side uses [`check_hello`].

use crate::refusals::refusal;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base::{ClusterId, Dialect, Limits, LinkId, Mutant, Prng, Time, mutant};
use core::net::SocketAddr;
use core::time::Duration;
use seam::{DialId, Effect, Effects, Port, Strangers};
use wire::control::{Hello, Refusal, RefusalCode, Role, Welcome};
use wire::{Control, Header, PeerLink, common_version};

/// A session number may be at most this far above the last one that the server knows. So a made-up
/// number leaves room for the next ones.
pub const SESSION_LEAP: u64 = 1 << 32;

/// Returns the number above which the next session with a server has to be, after the server
/// refused session `own` and named `told` as the newest one.
///
/// If someone used a higher number in this process's name, sessions continue above that. 0, or a
/// much lower number, comes from a server that was restarted: then the numbers continue from there.
/// A number counts for that server only, and `told` is believed only up to [`SESSION_LEAP`] above
/// `own`: no peer can use up the numbers.
pub fn session_after(own: u64, told: u64) -> u64 {
    told.min(own.saturating_add(SESSION_LEAP))
}

/// The state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// There is no link. It is dialled at `retry_at`.
    Down { retry_at: Time },
    /// The dial is under way.
    Dialing,
    /// There is a link, and our hello was sent.
    Greeting(LinkId),
    /// The hello was accepted, and the link has a protocol version.
    Up(PeerLink),
}

/// One connection that a role needs.
#[derive(Debug)]
pub struct Dialer {
    to: SocketAddr,
    state: State,
    /// The time by which the peer has to answer the last question.
    answer_by: Option<Time>,
    patience: Duration,
    delay: Duration,
    min: Duration,
    max: Duration,
}

impl Dialer {
    /// Creates a connection to `to`, which is dialled at the next [`Dialer::poll`].
    pub fn new(to: SocketAddr, limits: &Limits) -> Dialer {
        let (min, max) = (limits.redial_min, limits.redial_max);
        // The server may wait for half of this time until its map has this process.
        let patience = limits.hello_within * 2;
        let state = State::Down { retry_at: Time::ZERO };
        Dialer { to, state, answer_by: None, patience, delay: min, min, max }
    }

    /// Creates a connection to an MDM. It is less patient: an MDM has no reason to wait, and there
    /// are others.
    pub fn to_mdm(to: SocketAddr, limits: &Limits) -> Dialer {
        Dialer { patience: limits.hello_within, ..Dialer::new(to, limits) }
    }

    /// Returns the address that is dialled.
    pub fn address(&self) -> SocketAddr {
        self.to
    }

    /// Dials if that is due, and returns true if it did. `dial` identifies the attempt and must
    /// never have been used before.
    pub fn poll(&mut self, now: Time, dial: DialId, out: &mut Effects) -> bool {
        match self.state {
            State::Down { retry_at } if retry_at <= now => {
                self.state = State::Dialing;
                out.push(Effect::Dial { dial, to: self.to, port: Port::Peer });
                true
            }
            _ => false,
        }
    }

    /// Returns when `poll` or [`Dialer::mute`] has something to do. `None` during a dial, and on a
    /// link without an open question.
    pub fn wake_at(&self) -> Option<Time> {
        match self.state {
            State::Down { retry_at } => Some(retry_at),
            _ => self.answer_by.filter(|_| !mutant::on(Mutant::AwaitMute)),
        }
    }

    /// Returns the link if its peer takes too long to answer. The caller closes it, and calls
    /// [`Dialer::lost`]. Either the peer's process hangs while its host still acknowledges data, or
    /// the host was restarted and does not know this connection.
    pub fn mute(&self, now: Time) -> Option<LinkId> {
        let late = self.answer_by.is_some_and(|by| by <= now) && !mutant::on(Mutant::AwaitMute);
        self.link().filter(|_| late)
    }

    /// Records that the dial succeeded with this link, and sends the hello.
    pub fn link_up(&mut self, now: Time, link: LinkId, hello: &Hello, out: &mut Effects) {
        self.greeted(now, link);
        send_hello(link, hello, out);
    }

    /// Records that `link` is the connection, and that our hello was sent.
    pub fn greeted(&mut self, now: Time, link: LinkId) {
        self.state = State::Greeting(link);
        self.asked(now);
    }

    /// Records that the peer was asked something that it has to answer at once.
    pub fn asked(&mut self, now: Time) {
        self.answer_by = Some(now + self.patience);
    }

    /// Records a `Welcome` after which nothing else can be refused. `version` is what both sides
    /// speak ([`agreed`]).
    pub fn welcomed(&mut self, version: u16) {
        self.admitted(version);
        self.settled();
    }

    /// Records a `Welcome` after which the peer may still refuse the next message. The redial delay
    /// keeps growing until [`Dialer::settled`].
    pub fn admitted(&mut self, version: u16) {
        if let State::Greeting(link) = self.state {
            self.state = State::Up(PeerLink::new(link, version));
            self.answer_by = None;
        }
    }

    /// Records that nothing was refused. If this link is lost, the first redial comes soon.
    pub fn settled(&mut self) {
        (self.delay, self.answer_by) = (self.min, None);
    }

    /// Records that the dial failed or the link is down, and schedules the next attempt. The delay
    /// doubles each time and is extended by a random part, up to a half, so that many clients of
    /// one dead server do not return at once.
    pub fn lost(&mut self, now: Time, prng: &mut Prng) {
        let spread = prng.below(self.delay.as_nanos() as u64 / 2 + 1);
        self.state = State::Down { retry_at: now + self.delay + Duration::from_nanos(spread) };
        self.answer_by = None;
        self.delay = (self.delay * 2).min(self.max);
    }

    /// Makes the next dial due at once, because there is news about the peer.
    pub fn hurry(&mut self) {
        self.delay = self.min;
        if let State::Down { retry_at } = &mut self.state {
            *retry_at = Time::ZERO;
        }
    }

    /// True if there is neither a link nor a dial.
    pub fn is_down(&self) -> bool {
        matches!(self.state, State::Down { .. })
    }

    /// Returns the link and its version if the hello was accepted.
    pub fn up(&self) -> Option<PeerLink> {
        match self.state {
            State::Up(link) => Some(link),
            _ => None,
        }
    }

    /// Returns the link, whether the hello was accepted or not.
    pub fn link(&self) -> Option<LinkId> {
        match self.state {
            State::Greeting(link) => Some(link),
            State::Up(link) => Some(link.id),
            _ => None,
        }
    }
}

/// Returns the limits on links from peers whose hello has not been accepted.
pub fn strangers(limits: &Limits) -> Strangers {
    let any = mutant::on(Mutant::EndlessStrangers);
    let most = if any { u32::MAX } else { limits.strangers };
    Strangers { most, body: limits.stranger_body, patience: limits.hello_within }
}

/// Sends a control message in the version of the link.
pub fn send_control<M: Control>(link: PeerLink, message: &M, out: &mut Effects) {
    send_answer(link, Header::new(M::KIND), message, out);
}

/// Sends a control message whose header says `frame`, in the version of the link.
pub fn send_answer(
    link: PeerLink,
    frame: impl Into<Header>,
    message: &impl Control,
    out: &mut Effects,
) {
    let (head, body) = link.control(frame, message, out.pool());
    out.send(link.id, head, body);
}

/// Sends a hello. The version of its frame is that of every handshake, however new this build is.
pub fn send_hello(link: LinkId, hello: &Hello, out: &mut Effects) {
    let newest = hello.version_max as u16;
    let as_newest = mutant::on(Mutant::NewestHello);
    let version = if as_newest { newest } else { wire::HANDSHAKE_VERSION };
    send_control(PeerLink::new(link, version), hello, out);
}

/// Sends a welcome.
pub fn send_welcome(link: LinkId, welcome: &Welcome, out: &mut Effects) {
    send_control(PeerLink::new(link, wire::HANDSHAKE_VERSION), welcome, out);
}

/// Returns the version of a link on which this welcome came. `None` if this build does not speak
/// it, or if the peer has named none.
pub fn agreed(dialect: &Dialect, welcome: &Welcome) -> Option<u16> {
    if mutant::on(Mutant::IgnoreWelcome) {
        return Some(dialect.wire_max);
    }
    common_version(dialect, welcome.version, welcome.version)
}

/// Returns a hello with the fields that are the same for every role.
pub fn hello(dialect: &Dialect, cluster: ClusterId, role: Role, name: &str) -> Hello {
    Hello {
        cluster: cluster.0,
        role: role as i32,
        version_min: u32::from(dialect.wire_min),
        version_max: u32::from(dialect.wire_max),
        name: String::from(name),
        auth: Vec::new(),
        ..Hello::default()
    }
}

/// Checks what every role checks of a hello: cluster and version. Returns the version of the link:
/// the highest one that both sides speak.
pub fn check_hello(dialect: &Dialect, hello: &Hello, cluster: ClusterId) -> Result<u16, Refusal> {
    let strange = hello.cluster != 0 && cluster.0 != 0 && hello.cluster != cluster.0;
    if strange && !mutant::on(Mutant::AnyCluster) {
        let text = format!(
            "this is cluster {:016x}, and `{}` belongs to cluster {:016x}: \
             check the MDM's address, and paths of devices, in its configuration",
            cluster.0, hello.name, hello.cluster
        );
        return Err(refusal(RefusalCode::WrongCluster, text));
    }
    common_version(dialect, hello.version_min, hello.version_max).ok_or_else(|| {
        let text = format!(
            "this side speaks protocol versions {} to {}, `{}` speaks {} to {}: update the older one",
            dialect.wire_min,
            dialect.wire_max,
            hello.name,
            hello.version_min,
            hello.version_max
        );
        refusal(RefusalCode::WrongVersion, text)
    })
}

/// Returns a welcome with the fields that are the same for every role. `version` is that of the
/// link ([`check_hello`]).
pub fn welcome(cluster: ClusterId, role: Role, version: u16) -> Welcome {
    Welcome {
        cluster: cluster.0,
        role: role as i32,
        version: u32::from(version),
        ..Welcome::default()
    }
}

//! Connections that a role wants, and the handshake on them.
//!
//! A [`Dialer`] keeps one wanted connection: it dials, greets, and dials again with growing delays.
//! It doesn't know what the link is for. The answering side uses [`check_hello`].

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base::{ClusterId, Limits, LinkId, Mutant, Prng, Time, mutant};
use core::net::SocketAddr;
use core::time::Duration;
use seam::{DialId, Effect, Effects, Port, Strangers};
use wire::control::{Hello, Refusal, RefusalCode, Role, Welcome};
use wire::{Header, Kind, control_frame};

/// A session's number is at most so far above the last one that the server knows: what somebody makes up leaves room
/// for the next.
pub const SESSION_LEAP: u64 = 1 << 32;

/// The number after which the next session with a server begins that has refused session `own`, and named `told`.
///
/// Somebody may have used a higher number in this process's name: then it goes on above that. Zero says that the server
/// knows no session, or a much lower one, as it was restarted: it begins anew. A number counts for that server only,
/// and what is told is believed a leap at a time: no far end can use up the numbers.
pub fn session_after(own: u64, told: u64) -> u64 {
    told.min(own.saturating_add(SESSION_LEAP))
}

/// Why a link is closed whose far end doesn't answer.
pub const MUTE: &str = "it does not answer: its process hangs, or its host was restarted";

/// Where a wanted connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Not there; to be dialled at this time.
    Down { retry_at: Time },
    /// Being dialled.
    Dialing,
    /// There; our hello is out.
    Greeting(LinkId),
    /// There, and welcomed.
    Up(LinkId),
}

/// One wanted connection.
#[derive(Debug)]
pub struct Dialer {
    to: SocketAddr,
    state: State,
    /// When the far end has to have answered what it was asked last.
    answer_by: Option<Time>,
    patience: Duration,
    delay: Duration,
    min: Duration,
    max: Duration,
}

impl Dialer {
    /// A connection to `to`, to be dialled at once.
    pub fn new(to: SocketAddr, limits: &Limits) -> Dialer {
        let (min, max) = (limits.redial_min, limits.redial_max);
        // A server may take the first half to wait for a map that knows us.
        let patience = limits.hello_within * 2;
        let state = State::Down { retry_at: Time::ZERO };
        Dialer { to, state, answer_by: None, patience, delay: min, min, max }
    }

    /// The same to an MDM: that has no reason to wait, and there are others.
    pub fn to_mdm(to: SocketAddr, limits: &Limits) -> Dialer {
        Dialer { patience: limits.hello_within, ..Dialer::new(to, limits) }
    }

    /// Where it goes.
    pub fn address(&self) -> SocketAddr {
        self.to
    }

    /// Dials when it is time to. `dial` names the attempt; pass one that was never used.
    /// True when it dialled.
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

    /// When `poll` or [`Dialer::mute`] has something to say; `None` while it is on the way, or up and nothing is asked.
    pub fn wake_at(&self) -> Option<Time> {
        match self.state {
            State::Down { retry_at } => Some(retry_at),
            _ => self.answer_by.filter(|_| !mutant::on(Mutant::AwaitMute)),
        }
    }

    /// The link whose far end takes too long to answer: close it, and call [`Dialer::lost`]. Its host acknowledges what
    /// comes, but its process hangs; or it was restarted, and knows nothing of this connection.
    pub fn mute(&self, now: Time) -> Option<LinkId> {
        let late = self.answer_by.is_some_and(|by| by <= now) && !mutant::on(Mutant::AwaitMute);
        self.link().filter(|_| late)
    }

    /// The dial ended in this link: greets.
    pub fn link_up(&mut self, now: Time, link: LinkId, hello: &Hello, out: &mut Effects) {
        self.greeted(now, link);
        send_control(link, Header::new(Kind::Hello), hello, out);
    }

    /// This link is it, and our hello is out.
    pub fn greeted(&mut self, now: Time, link: LinkId) {
        self.state = State::Greeting(link);
        self.asked(now);
    }

    /// Something was asked that the far end answers at once.
    pub fn asked(&mut self, now: Time) {
        self.answer_by = Some(now + self.patience);
    }

    /// The other side answered `Welcome`, and all is well.
    pub fn welcomed(&mut self) {
        self.admitted();
        self.settled();
    }

    /// The other side answered `Welcome`, and may still refuse what comes next: then the delay goes on growing.
    pub fn admitted(&mut self) {
        if let State::Greeting(link) = self.state {
            self.state = State::Up(link);
            self.answer_by = None;
        }
    }

    /// Nothing was refused: when this link is lost, it is tried again soon.
    pub fn settled(&mut self) {
        (self.delay, self.answer_by) = (self.min, None);
    }

    /// The dial failed, or the link is down: tries again later. The delay doubles each time and is
    /// spread by up to a half, so that many clients of one dead server don't come back at once.
    pub fn lost(&mut self, now: Time, prng: &mut Prng) {
        let spread = prng.below(self.delay.as_nanos() as u64 / 2 + 1);
        self.state = State::Down { retry_at: now + self.delay + Duration::from_nanos(spread) };
        self.answer_by = None;
        self.delay = (self.delay * 2).min(self.max);
    }

    /// Something new is known about the other side: tries at once.
    pub fn hurry(&mut self) {
        self.delay = self.min;
        if let State::Down { retry_at } = &mut self.state {
            *retry_at = Time::ZERO;
        }
    }

    /// True when there is no connection, and none on the way.
    pub fn is_down(&self) -> bool {
        matches!(self.state, State::Down { .. })
    }

    /// The welcomed link.
    pub fn up(&self) -> Option<LinkId> {
        match self.state {
            State::Up(link) => Some(link),
            _ => None,
        }
    }

    /// The link, welcomed or not yet.
    pub fn link(&self) -> Option<LinkId> {
        match self.state {
            State::Greeting(link) | State::Up(link) => Some(link),
            _ => None,
        }
    }
}

/// What links may do that others dialled, before they are welcome.
pub fn strangers(limits: &Limits) -> Strangers {
    let any = mutant::on(Mutant::EndlessStrangers);
    let most = if any { u32::MAX } else { limits.strangers };
    Strangers { most, body: limits.stranger_body, patience: limits.hello_within }
}

/// Sends a control message.
pub fn send_control(
    link: LinkId,
    header: Header,
    message: &impl prost::Message,
    out: &mut Effects,
) {
    let (head, body) = control_frame(header, message, out.pool());
    out.send(link, head, body);
}

/// A hello with the parts that are the same for every role.
pub fn hello(cluster: ClusterId, role: Role, name: &str) -> Hello {
    Hello {
        cluster: cluster.0,
        role: role as i32,
        version_min: u32::from(wire::VERSION_MIN),
        version_max: u32::from(wire::VERSION),
        name: String::from(name),
        auth: Vec::new(),
        ..Hello::default()
    }
}

/// What every role checks of a hello: cluster and version.
pub fn check_hello(hello: &Hello, cluster: ClusterId) -> Result<(), Refusal> {
    let strange = hello.cluster != 0 && cluster.0 != 0 && hello.cluster != cluster.0;
    if strange && !mutant::on(Mutant::AnyCluster) {
        let text = format!(
            "this is cluster {:016x}, and `{}` belongs to cluster {:016x}: \
             check the MDM's address, and paths of devices, in its configuration",
            cluster.0, hello.name, hello.cluster
        );
        return Err(refusal(RefusalCode::WrongCluster, text));
    }
    let ours = u32::from(wire::VERSION_MIN)..=u32::from(wire::VERSION);
    if hello.version_max < *ours.start() || hello.version_min > *ours.end() {
        let text = format!(
            "this side speaks protocol versions {} to {}, `{}` speaks {} to {}: update the older one",
            ours.start(),
            ours.end(),
            hello.name,
            hello.version_min,
            hello.version_max
        );
        return Err(refusal(RefusalCode::WrongVersion, text));
    }
    Ok(())
}

/// A refusal.
pub fn refusal(code: RefusalCode, text: impl Into<String>) -> Refusal {
    Refusal { code: code as i32, text: text.into(), ..Refusal::default() }
}

/// Sends a refusal and closes the link behind it.
pub fn refuse(link: LinkId, refusal: &Refusal, out: &mut Effects) {
    send_control(link, Header::new(Kind::Refusal), refusal, out);
    out.push(Effect::Close { link });
}

/// A welcome with the parts that are the same for every role.
pub fn welcome(cluster: ClusterId, role: Role) -> Welcome {
    Welcome {
        cluster: cluster.0,
        role: role as i32,
        version: u32::from(wire::VERSION),
        ..Welcome::default()
    }
}

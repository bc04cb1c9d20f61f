//! DH-HMAC-CHAP (base 2.0, 8.13.5): the host of one queue proves that it has its key. We do the
//! same if the host asks for it. This file takes and makes messages, and knows no queue.
//!
//! | the host sends | the host fetches |
//! |---|---|
//! | AUTH_Negotiate | DH-HMAC-CHAP_Challenge |
//! | DH-HMAC-CHAP_Reply | DH-HMAC-CHAP_Success1 |
//! | DH-HMAC-CHAP_Success2, if it has asked us to prove our key | |
//! | AUTH_Failure2, if our proof is wrong | |
//!
//! Whatever goes wrong, the host fetches AUTH_Failure1 in place of the next message.
//!
//! Invariants:
//! - A challenge is used once, and so is an exponent of the Diffie-Hellman group.
//! - A failure ends everything, also what an earlier transaction has allowed. So a connection has
//!   one attempt.
//! - We prove our key only to a host that has proven its own, and never with its own challenge.
//! - A host that is not authenticated costs two exponentiations at most.

use super::ffdhe::{self, ELEMENT, EXPONENT};
use super::key::{Hash, Keys};
use super::proto::{le16, le32};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// Most bytes of a message. (The longest one that makes sense needs 1168: a reply with a group of
/// 8192 bits.)
pub(crate) const MESSAGE_MAX: usize = 4096;

// Types and ids of messages (base 2.0, 8.13.5)
const COMMON: u8 = 0;
const DHCHAP: u8 = 1;
const NEGOTIATE: u8 = 0x00;
const CHALLENGE: u8 = 0x01;
const REPLY: u8 = 0x02;
const SUCCESS1: u8 = 0x03;
const SUCCESS2: u8 = 0x04;
const FAILURE2: u8 = 0xf0;
const FAILURE1: u8 = 0xf1;

/// Bytes of a message's part that all messages have.
const HEAD: usize = 6;
/// Bytes of AUTH_Negotiate without its descriptors, and of AUTH_Failure1 and 2.
const SHORT: usize = 8;
/// Bytes of a descriptor, and where its list of groups begins.
const DESCRIPTOR: usize = 64;
const GROUPS: usize = 34;
/// Most ids of a list.
const IDS_MAX: usize = 30;
/// Bytes of all others before the values of variable length.
const LONG: usize = 16;
/// The reason of a failure: the authentication has failed. An explanation follows.
const FAILED: u8 = 1;

/// Explains a failure: the second code of AUTH_Failure1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// A proof is wrong, or we have no key to prove.
    Failed = 1,
    /// The host offers another protocol only.
    Protocol = 2,
    /// The host wants a secure channel after the authentication.
    Channel = 3,
    /// The host offers unknown hash functions only.
    Hash = 4,
    /// The host offers unknown groups only.
    Group = 5,
    /// A field of a message is wrong.
    Payload = 6,
    /// Another message was due.
    Message = 7,
}

/// Where a message has led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The transaction goes on.
    GoesOn,
    /// The host is authenticated, and we are, if it has asked for that.
    Passed,
    /// It has failed, and the host knows that: the connection must end.
    Over,
}

/// Random bytes from which a link draws its challenges: secret and fresh.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub [u8; 32]);

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed")
    }
}

/// The names of the two sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names<'a> {
    pub(crate) host: &'a str,
    pub(crate) subsystem: &'a str,
}

/// What a challenge consists of, and what it needs later.
struct Challenge {
    hash: Hash,
    sequence: [u8; 4],
    /// The challenge: as many bytes as a digest has.
    value: Vec<u8>,
    /// Our exponent; `None` without a group.
    exponent: Option<[u8; EXPONENT]>,
    /// Our element of the group; empty without one.
    element: Vec<u8>,
}

/// What is due next.
enum Step {
    /// The host may negotiate.
    Idle,
    /// The host fetches the challenge.
    Challenge(Box<Challenge>),
    /// The host replies.
    Reply(Box<Challenge>),
    /// The host fetches that it is authenticated, and our proof, if it has asked for one.
    Success1(Hash, Option<Vec<u8>>),
    /// The host confirms our proof.
    Success2,
    /// The host fetches why it has failed.
    Failure1(Why),
    /// Nothing: it has failed.
    Over,
}

/// The authentication on one queue.
pub(crate) struct DhChap {
    seed: Seed,
    /// The number of values that were drawn from the seed.
    drawn: u32,
    step: Step,
    /// The id of the transaction, which the host chooses.
    transaction: u16,
    passed: bool,
}

impl fmt::Debug for DhChap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DhChap").field("passed", &self.passed).finish_non_exhaustive()
    }
}

impl DhChap {
    /// Creates the authentication of a host that has not begun it.
    pub(crate) fn new(seed: Seed) -> DhChap {
        DhChap { seed, drawn: 0, step: Step::Idle, transaction: 0, passed: false }
    }

    /// Returns true if the host is authenticated.
    #[inline]
    pub(crate) fn has_passed(&self) -> bool {
        self.passed
    }

    /// Returns true if a transaction is under way.
    pub(crate) fn is_under_way(&self) -> bool {
        !matches!(self.step, Step::Idle)
    }

    /// Handles a message of the host. `keys` are those of the host, if it still has one.
    pub(crate) fn sent(
        &mut self,
        message: &[u8],
        names: Names<'_>,
        keys: Option<Keys<'_>>,
    ) -> Outcome {
        if matches!(self.step, Step::Over) {
            return Outcome::Over;
        }
        let Some(head) = message.first_chunk::<HEAD>() else { return self.fail(Why::Payload) };
        let (id, transaction) = ((head[0], head[1]), le16(head, 4));
        if matches!(self.step, Step::Idle) {
            self.transaction = transaction;
        }
        match (id, &mut self.step) {
            ((COMMON, NEGOTIATE), Step::Idle) => {
                match self.negotiate(message) {
                    Ok(challenge) => self.step = Step::Challenge(Box::new(challenge)),
                    Err(why) => return self.fail(why),
                }
                Outcome::GoesOn
            }
            ((COMMON, FAILURE2), _) => {
                self.passed = false;
                self.step = Step::Over;
                Outcome::Over
            }
            ((DHCHAP, REPLY | SUCCESS2), Step::Reply(_) | Step::Success2)
                if transaction != self.transaction =>
            {
                self.fail(Why::Payload)
            }
            ((DHCHAP, REPLY), Step::Reply(challenge)) => {
                match reply(challenge, self.transaction, message, names, keys) {
                    Ok(proof) => self.step = Step::Success1(challenge.hash, proof),
                    Err(why) => return self.fail(why),
                }
                Outcome::GoesOn
            }
            ((DHCHAP, SUCCESS2), Step::Success2) if message.len() >= LONG => self.pass(),
            ((DHCHAP, SUCCESS2), Step::Success2) => self.fail(Why::Payload),
            _ => self.fail(Why::Message),
        }
    }

    /// The host fetches a message, and has room for `room` bytes. Returns `None` if that is not
    /// enough: then the message stays.
    pub(crate) fn fetch(&mut self, room: usize) -> Option<(Vec<u8>, Outcome)> {
        if matches!(self.step, Step::Idle | Step::Reply(_) | Step::Success2 | Step::Over) {
            self.fail(Why::Message);
        }
        let message = self.message();
        if message.len() > room {
            return None;
        }
        let outcome = match core::mem::replace(&mut self.step, Step::Over) {
            Step::Challenge(challenge) => {
                self.step = Step::Reply(challenge);
                Outcome::GoesOn
            }
            Step::Success1(_, None) => self.pass(),
            Step::Success1(_, Some(_)) => {
                self.step = Step::Success2;
                Outcome::GoesOn
            }
            _ => Outcome::Over,
        };
        Some((message, outcome))
    }

    fn pass(&mut self) -> Outcome {
        (self.step, self.passed) = (Step::Idle, true);
        Outcome::Passed
    }

    /// Records a failure, which the host has to fetch.
    fn fail(&mut self, why: Why) -> Outcome {
        self.passed = false;
        if !matches!(self.step, Step::Failure1(_) | Step::Over) {
            self.step = Step::Failure1(why);
        }
        Outcome::GoesOn
    }

    /// Returns 64 bytes that nobody else knows. They differ with each call.
    fn draw(&mut self) -> Vec<u8> {
        self.drawn += 1;
        Hash::Sha512.keyed(&self.seed.0, &[&self.drawn.to_be_bytes()])
    }

    /// Chooses the first hash function that both sides know, and the group rather than none:
    /// without it, somebody who hears the messages can try keys, one after the other.
    fn negotiate(&mut self, message: &[u8]) -> Result<Challenge, Why> {
        let (head, list) = message.split_at_checked(SHORT).ok_or(Why::Payload)?;
        let [.., channel, count] = *head else { return Err(Why::Payload) };
        let list = list.get(..usize::from(count) * DESCRIPTOR).ok_or(Why::Payload)?;
        if channel != 0 {
            return Err(Why::Channel);
        }
        let mut descriptors = list.chunks_exact(DESCRIPTOR);
        let ours = descriptors.find(|of| of[0] == DHCHAP).ok_or(Why::Protocol)?;
        let (hashes, groups) = (usize::from(ours[2]), usize::from(ours[3]));
        if hashes > IDS_MAX || groups > IDS_MAX {
            return Err(Why::Payload);
        }
        let mut hashes = ours[4..4 + hashes].iter();
        let hash = hashes.find_map(|id| Hash::of(*id)).ok_or(Why::Hash)?;
        let groups = &ours[GROUPS..GROUPS + groups];
        let has_group = groups.contains(&1);
        if !has_group && !groups.contains(&0) {
            return Err(Why::Group);
        }
        let mut value = self.draw();
        value.truncate(hash.len());
        let more = self.draw();
        let exponent = has_group.then(|| core::array::from_fn(|i| more[i]));
        let element = exponent.as_ref().map_or(Vec::new(), |of| ffdhe::public(of).to_vec());
        // 0 would mean that nobody is asked to prove anything.
        let sequence = le32(&more, EXPONENT).max(1).to_le_bytes();
        Ok(Challenge { hash, sequence, value, exponent, element })
    }

    /// Returns the message that the host fetches.
    fn message(&self) -> Vec<u8> {
        let head = |kind, id| {
            let [low, high] = self.transaction.to_le_bytes();
            alloc::vec![kind, id, 0, 0, low, high]
        };
        match &self.step {
            Step::Challenge(challenge) => {
                let Challenge { hash, sequence, value, exponent, element } = &**challenge;
                let mut message = head(DHCHAP, CHALLENGE);
                message.extend([hash.len() as u8, 0, hash.id(), exponent.is_some().into()]);
                message.extend((element.len() as u16).to_le_bytes());
                [&sequence[..], value, element].iter().for_each(|part| message.extend(*part));
                message
            }
            Step::Success1(hash, proof) => {
                let mut message = head(DHCHAP, SUCCESS1);
                message.extend([hash.len() as u8, 0, proof.is_some().into()]);
                message.resize(LONG, 0);
                message.extend(proof.iter().flatten());
                message
            }
            Step::Failure1(why) => {
                let mut message = head(COMMON, FAILURE1);
                message.extend([FAILED, *why as u8]);
                message
            }
            _ => Vec::new(),
        }
    }
}

/// Checks a reply. Returns our own proof, if the host asks for it.
fn reply(
    challenge: &Challenge,
    transaction: u16,
    message: &[u8],
    names: Names<'_>,
    keys: Option<Keys<'_>>,
) -> Result<Option<Vec<u8>>, Why> {
    let Challenge { hash, sequence, value, exponent, .. } = challenge;
    let (head, rest) = message.split_first_chunk::<LONG>().ok_or(Why::Payload)?;
    let (asks, element) = (head[8], usize::from(le16(head, 10)));
    let expected = if exponent.is_some() { ELEMENT } else { 0 };
    if usize::from(head[6]) != hash.len() || asks > 1 || element != expected {
        return Err(Why::Payload);
    }
    let (shown, rest) = rest.split_at_checked(hash.len()).ok_or(Why::Payload)?;
    let (theirs, rest) = rest.split_at_checked(hash.len()).ok_or(Why::Payload)?;
    let element = rest.get(..element).ok_or(Why::Payload)?;
    let session = match exponent {
        None => None,
        Some(exponent) => {
            let element = element.first_chunk::<ELEMENT>().ok_or(Why::Payload)?;
            let shared = ffdhe::shared(element, exponent).ok_or(Why::Payload)?;
            Some(hash.digest(&shared))
        }
    };
    // With a group, the challenge is augmented by the session key.
    let augmented = |challenge: &[u8]| match &session {
        None => challenge.to_vec(),
        Some(key) => hash.keyed(key, &[challenge]),
    };
    let transaction = transaction.to_le_bytes();
    let Names { host, subsystem } = names;
    let keys = keys.ok_or(Why::Failed)?;

    let value_now = augmented(value);
    let (who, names) = (&b"HostHost"[..], [host.as_bytes(), subsystem.as_bytes()]);
    let parts = [&value_now[..], sequence, &transaction, &[0], who, names[0], &[0], names[1]];
    if !hash.verify(&keys.host.of(host), &parts, shown) {
        return Err(Why::Failed);
    }
    let sequence = &head[12..LONG];
    // A sequence number of 0 asks for no proof, whatever the message carries.
    if asks == 0 || sequence == [0; 4] {
        return Ok(None);
    }
    let own = keys.own.ok_or(Why::Failed)?;
    if theirs == value {
        return Err(Why::Failed);
    }
    let theirs = augmented(theirs);
    let who = &b"Controller"[..];
    let parts = [&theirs[..], sequence, &transaction, &[0], who, names[1], &[0], names[0]];
    Ok(Some(hash.keyed(&own.of(subsystem), &parts)))
}

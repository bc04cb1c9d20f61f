//! A host that authenticates: the messages of DH-HMAC-CHAP, written from the specification.

use super::host::*;
use super::rig::*;
use base::Limits;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use target::ident;
use target::nvme::Key;

/// "The host has to authenticate", in the result of Connect.
pub(crate) const REQUIRED: u32 = 1 << 17;
pub(crate) const TRANSACTION: u16 = 0x1234;

/// Keys by `nvme gen-dhchap-key`, one for each way to tie them to a name.
pub(crate) const KEYS: [&str; 4] = [
    "DHHC-1:00:dW9p3GAPwpTwM9ZmqrWq0WhM5VoOcL0eeTUfglxerTyUWKfg:",
    "DHHC-1:01:MzmoFIg+WXbTzgzTWd5JTTdqrlU+fFCQnX5uZSS28lHiDF1A:",
    "DHHC-1:02:HrUvXOr6RgZo/9fciIKr0ZJkCyjZaAanLPOPxTExcFUWu22dyyDGWxP4Sf8Atlok+wmgnQ==:",
    "DHHC-1:03:jT/nNRD9YnDjJy1FlxzljaGQyC1XXI4/C3EnK2n8MSN0nnWhv5gyKPEQhYeS9cP7Z1rjsMBVlaqVUaHw9yLe\
     NQ60Dz0=:",
];
/// The bytes of the first one, which is not tied to a name: the key of [`plain`].
const SECRET: [u8; 32] = [
    0x75, 0x6f, 0x69, 0xdc, 0x60, 0x0f, 0xc2, 0x94, 0xf0, 0x33, 0xd6, 0x66, 0xaa, 0xb5, 0xaa, 0xd1,
    0x68, 0x4c, 0xe5, 0x5a, 0x0e, 0x70, 0xbd, 0x1e, 0x79, 0x35, 0x1f, 0x82, 0x5c, 0x5e, 0xad, 0x3c,
];

pub(crate) fn key(index: usize) -> Key {
    Key::parse(KEYS[index]).unwrap()
}

/// Authentication Send.
pub(crate) fn send(message: &[u8]) -> Command {
    let command = Command::fabrics(0x05, 8).put(41, &[1, 1, 0xe9]);
    command.u32(44, message.len() as u32).carries(message)
}

/// Authentication Receive of at most `len` bytes.
pub(crate) fn receive(len: usize) -> Command {
    Command::fabrics(0x06, 9).put(41, &[1, 1, 0xe9]).u32(44, len as u32).at_host(len)
}

/// A message with this type and id, and these bytes after the transaction.
pub(crate) fn message(id: (u8, u8), rest: &[u8]) -> Vec<u8> {
    let mut message = vec![id.0, id.1, 0, 0];
    message.extend(TRANSACTION.to_le_bytes());
    message.extend(rest);
    message
}

/// A descriptor of DH-HMAC-CHAP with these hash functions and groups.
pub(crate) fn offer(hashes: &[u8], groups: &[u8]) -> Vec<u8> {
    let mut offer = vec![0; 64];
    (offer[0], offer[2], offer[3]) = (1, hashes.len() as u8, groups.len() as u8);
    offer[4..4 + hashes.len()].copy_from_slice(hashes);
    offer[34..34 + groups.len()].copy_from_slice(groups);
    offer
}

/// AUTH_Negotiate with one offer.
pub(crate) fn negotiate(hashes: &[u8], groups: &[u8]) -> Vec<u8> {
    message((0, 0), &[&[0, 1], &offer(hashes, groups)[..]].concat())
}

/// What a reply consists of.
#[derive(Clone)]
pub(crate) struct Reply {
    pub proof: Vec<u8>,
    /// The host's challenge and its sequence number, if it asks for our proof.
    pub asks: Option<(Vec<u8>, u32)>,
    pub element: Vec<u8>,
}

impl Reply {
    pub(crate) fn message(&self) -> Vec<u8> {
        let (len, asks) = (self.proof.len(), self.asks.clone());
        let mut rest = vec![len as u8, 0, asks.is_some().into(), 0];
        rest.extend((self.element.len() as u16).to_le_bytes());
        let (challenge, sequence) = asks.unwrap_or((vec![0; len], 0));
        rest.extend(sequence.to_le_bytes());
        for part in [&self.proof, &challenge, &self.element] {
            rest.extend(part);
        }
        message((1, 2), &rest)
    }
}

/// The right reply to a challenge without a group, by SHA-256 and the first of [`KEYS`].
pub(crate) fn right(challenge: &[u8]) -> Reply {
    let (sequence, value) = (&challenge[12..16], &challenge[16..48]);
    let mut mac = Hmac::<Sha256>::new_from_slice(&SECRET).unwrap();
    let subsystem = ident::nqn(CLUSTER);
    let transaction = &challenge[4..6];
    for part in [value, sequence, transaction, &[0], b"HostHost", HOST.as_bytes(), &[0]] {
        mac.update(part);
    }
    mac.update(subsystem.as_bytes());
    Reply { proof: mac.finalize().into_bytes().to_vec(), asks: None, element: Vec::new() }
}

impl Rig {
    /// Creates a link whose host has the first of [`KEYS`], and we have the second one. It has
    /// connected as this queue.
    pub(crate) fn closed(qid: u16) -> Rig {
        let mut rig = Rig::set_up(&Limits::SHIPPED, Options::default());
        rig.hosts.keys = Some((key(0), Some(key(1))));
        let mut cntlid = 0xffff;
        if qid > 0 {
            rig.hosts.controller = Some(controller());
            cntlid = CNTLID;
        }
        let result = rig.connect(qid, cntlid, &ident::nqn(CLUSTER), Options::default());
        assert_eq!(result, (0, REQUIRED | u32::from(CNTLID)));
        rig
    }

    /// Sends a message. Returns the status.
    pub(crate) fn tell(&mut self, message: &[u8]) -> u16 {
        self.result(&send(message)).0
    }

    /// Fetches a message of this length.
    pub(crate) fn hear(&mut self, len: usize) -> Vec<u8> {
        let mut message = self.fetch(&receive(512));
        assert_eq!(message.len(), 512, "as much as was asked for");
        assert!(message[len..].iter().all(|byte| *byte == 0));
        message.truncate(len);
        message
    }

    /// Negotiates, and returns the challenge: SHA-256, no group.
    pub(crate) fn challenge(&mut self) -> Vec<u8> {
        assert_eq!(self.tell(&negotiate(&[1], &[0])), 0);
        let challenge = self.hear(48);
        assert_eq!(challenge[..12], message((1, 1), &[32, 0, 1, 0, 0, 0]));
        assert_ne!(challenge[12..16], [0; 4]);
        challenge
    }

    /// Authenticates.
    pub(crate) fn authenticate(&mut self) {
        let challenge = self.challenge();
        assert_eq!(self.tell(&right(&challenge).message()), 0);
        assert_eq!(self.hear(16), message((1, 3), &[32, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    }

    /// Asserts that the host fetches a failure, and loses its connection. Returns the transaction.
    pub(crate) fn fails(&mut self, why: u8, of: &str) -> u16 {
        let heard = self.hear(8);
        assert_eq!((&heard[..4], &heard[6..]), (&[0, 0xf1, 0, 0][..], &[1, why][..]), "{of}");
        assert_eq!(self.told(), [Told::Close(Some("has failed to authenticate"))], "{of}");
        assert!(self.session.controller().is_none() && self.session.io_queue().is_none());
        u16::from_le_bytes([heard[4], heard[5]])
    }
}

//! CHAP (RFC 7143 12.1.3, RFC 1994): the initiator proves that it knows a secret. The target does
//! the same if the initiator asks for it (mutual CHAP).
//!
//! Invariants: a challenge is used once. The target answers a challenge of the initiator only after
//! the initiator has proved its own secret, and uses a different secret. It never answers a
//! challenge that equals its own: this is the reflection attack.
//!
//! The negotiation of `AuthMethod` is in `login`. The owner supplies the secrets.

use super::keys::number;
use crate::base64;
use alloc::string::String;
use alloc::vec::Vec;
use md5::Md5;
use sha2::{Digest, Sha256};

/// Bytes of our challenge.
pub(crate) const CHALLENGE: usize = 32;
/// Longest binary value that is accepted, in bytes (RFC 7143 12.1.3).
const BINARY_MAX: usize = 1024;

/// The credentials that an initiator must prove.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials<'a> {
    /// The name that the initiator gives.
    pub user: &'a str,
    /// The secret of the initiator: at least 12 bytes.
    pub secret: &'a [u8],
    /// Our own name and secret, for an initiator that asks for them.
    pub own: Option<(&'a str, &'a [u8])>,
}

/// An algorithm of a digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Algorithm {
    Md5,
    Sha256,
}

impl Algorithm {
    /// Returns the first offered algorithm that we support, and its number.
    fn choose(list: &str) -> Option<(Algorithm, &str)> {
        list.split(',').find_map(|number| match number {
            "5" => Some((Algorithm::Md5, number)),
            "7" => Some((Algorithm::Sha256, number)),
            _ => None,
        })
    }

    /// Returns the answer to a challenge.
    fn response(self, id: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
        fn digest<D: Digest>(parts: [&[u8]; 3]) -> Vec<u8> {
            let mut digest = D::new();
            parts.iter().for_each(|part| digest.update(part));
            digest.finalize().to_vec()
        }
        let parts = [&[id][..], secret, challenge];
        match self {
            Algorithm::Md5 => digest::<Md5>(parts),
            Algorithm::Sha256 => digest::<Sha256>(parts),
        }
    }
}

/// The initiator failed the authentication, or broke the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refused;

/// The state of one authentication.
#[derive(Debug)]
pub(crate) struct Chap {
    /// Our identifier and challenge.
    id: u8,
    challenge: [u8; CHALLENGE],
    /// The algorithm that the initiator chose; the challenge was sent.
    algorithm: Option<Algorithm>,
}

/// An answer: pairs of a key and a value.
pub(crate) type Pairs = Vec<(&'static str, String)>;

impl Chap {
    /// Creates the state before the first message. `random` is secret and fresh.
    pub(crate) fn new(random: &[u8; CHALLENGE + 1]) -> Chap {
        let [id, challenge @ ..] = *random;
        Chap { id, challenge, algorithm: None }
    }

    /// Handles a message. Returns the answer, and true if the initiator is now authenticated.
    pub(crate) fn message(
        &mut self,
        pairs: &[(&str, &str)],
        credentials: &Credentials<'_>,
    ) -> Result<(Pairs, bool), Refused> {
        let value = |key| pairs.iter().find(|pair| pair.0 == key).map(|pair| pair.1);
        let Some(algorithm) = self.algorithm else {
            let Some(list) = value("CHAP_A") else { return Err(Refused) };
            let (algorithm, number) = Algorithm::choose(list).ok_or(Refused)?;
            self.algorithm = Some(algorithm);
            let answer = alloc::vec![
                ("CHAP_A", String::from(number)),
                ("CHAP_I", alloc::format!("{}", self.id)),
                ("CHAP_C", hex(&self.challenge)),
            ];
            return Ok((answer, false));
        };
        let name = value("CHAP_N").ok_or(Refused)?;
        let shown = value("CHAP_R").and_then(binary).ok_or(Refused)?;
        let expected = algorithm.response(self.id, credentials.secret, &self.challenge);
        if name != credentials.user || !same(&shown, &expected) {
            return Err(Refused);
        }
        let answer = match (value("CHAP_I"), value("CHAP_C")) {
            (None, None) => Pairs::new(),
            (Some(id), Some(challenge)) => {
                let id = number(id).and_then(|id| u8::try_from(id).ok()).ok_or(Refused)?;
                let challenge = binary(challenge).ok_or(Refused)?;
                let (name, secret) = credentials.own.ok_or(Refused)?;
                if challenge == self.challenge || secret == credentials.secret {
                    return Err(Refused);
                }
                let response = algorithm.response(id, secret, &challenge);
                alloc::vec![("CHAP_N", String::from(name)), ("CHAP_R", hex(&response))]
            }
            _ => return Err(Refused),
        };
        Ok((answer, true))
    }
}

/// Compares in constant time.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |found, (a, b)| found | (a ^ b)) == 0
}

/// Returns a binary value as text.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::from("0x");
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(digit), 16).expect("four bits"));
        }
    }
    text
}

/// Returns the bytes of a binary value in hexadecimal digits or base64; `None` if it is neither,
/// is empty, or is too long.
fn binary(text: &str) -> Option<Vec<u8>> {
    let (prefix, digits) = text.split_at_checked(2)?;
    if digits.is_empty() || digits.len() > BINARY_MAX * 2 {
        return None;
    }
    let bytes = match prefix {
        "0x" | "0X" => from_hex(digits.as_bytes()),
        "0b" | "0B" => base64::decode(digits.as_bytes()),
        _ => None,
    };
    bytes.filter(|bytes| !bytes.is_empty() && bytes.len() <= BINARY_MAX)
}

fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|d| d as u8);
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    digits.chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"secretsecret";
    const OWN: &[u8] = b"othersecret1";

    fn credentials(own: bool) -> Credentials<'static> {
        Credentials { user: "u", secret: SECRET, own: own.then_some(("t", OWN)) }
    }

    fn random() -> [u8; CHALLENGE + 1] {
        core::array::from_fn(|i| 7 + i as u8)
    }

    /// Returns an authentication after the challenge, and the initiator's right answer to it.
    fn challenged(number: &str, algorithm: Algorithm) -> (Chap, String) {
        let mut chap = Chap::new(&random());
        let (answer, done) = chap.message(&[("CHAP_A", number)], &credentials(false)).unwrap();
        assert_eq!((answer[0].1.as_str(), answer[1].1.as_str(), done), (number, "7", false));
        let challenge = binary(&answer[2].1).unwrap();
        let response = algorithm.response(7, SECRET, &challenge);
        (chap, hex(&response))
    }

    #[test]
    fn digests_are_those_of_known_vectors() {
        let md5 = Algorithm::Md5.response(b'a', b"b", b"c");
        assert_eq!(hex(&md5), "0x900150983cd24fb0d6963f7d28e17f72", "MD5 of abc, RFC 1321");
        let sha = Algorithm::Sha256.response(b'a', b"b", b"c");
        let abc = "0xba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(&sha), abc, "SHA-256 of abc, FIPS 180");
    }

    #[test]
    fn the_first_known_algorithm_is_taken() {
        for (list, first) in
            [("5", Some("5")), ("7,5", Some("7")), ("6,8,5", Some("5")), ("56", None), ("", None)]
        {
            assert_eq!(Algorithm::choose(list).map(|a| a.1), first, "{list}");
        }
        let refused = Chap::new(&random()).message(&[("CHAP_A", "56")], &credentials(false));
        assert_eq!(refused, Err(Refused));
    }

    #[test]
    fn a_secret_opens_and_anything_else_does_not() {
        for (number, algorithm) in [("5", Algorithm::Md5), ("7", Algorithm::Sha256)] {
            let (mut chap, right) = challenged(number, algorithm);
            let shown = chap.message(&[("CHAP_N", "u"), ("CHAP_R", &right)], &credentials(false));
            assert_eq!(shown, Ok((Pairs::new(), true)));
            let wrong = hex(&algorithm.response(7, b"secretsecreT", &[0; 32]));
            for pairs in [
                &[("CHAP_N", "v"), ("CHAP_R", &right)][..],
                &[("CHAP_N", "u"), ("CHAP_R", &wrong)],
                &[("CHAP_N", "u"), ("CHAP_R", &right[..20])],
                &[("CHAP_N", "u"), ("CHAP_R", "0x")],
                &[("CHAP_N", "u")],
                &[("CHAP_R", &right)],
                &[],
            ] {
                let (mut chap, _) = challenged(number, algorithm);
                assert_eq!(chap.message(pairs, &credentials(true)), Err(Refused), "{pairs:?}");
            }
        }
    }

    #[test]
    fn our_secret_is_proven_only_to_authenticated_hosts() {
        let theirs = [("CHAP_I", "3"), ("CHAP_C", "0x0102")];
        let with = |right: &str, theirs: &[(&str, &str)], credentials: &Credentials<'_>| {
            let (mut chap, _) = challenged("5", Algorithm::Md5);
            let pairs = [&[("CHAP_N", "u"), ("CHAP_R", right)], theirs].concat();
            chap.message(&pairs, credentials)
        };
        let right = challenged("5", Algorithm::Md5).1;
        let (answer, done) = with(&right, &theirs, &credentials(true)).unwrap();
        let own = hex(&Algorithm::Md5.response(3, OWN, &[1, 2]));
        assert_eq!((answer[0].1.as_str(), &answer[1].1, done), ("t", &own, true));
        assert_eq!(with("0x00", &theirs, &credentials(true)), Err(Refused));
        assert_eq!(with(&right, &theirs, &credentials(false)), Err(Refused), "we have none");
        assert_eq!(with(&right, &theirs[..1], &credentials(true)), Err(Refused), "half of it");
        let reflected = hex(&random()[1..]);
        let reflection = [("CHAP_I", "3"), ("CHAP_C", &reflected)];
        assert_eq!(with(&right, &reflection, &credentials(true)), Err(Refused));
        let equal = Credentials { own: Some(("t", SECRET)), ..credentials(true) };
        assert_eq!(with(&right, &theirs, &equal), Err(Refused), "one secret for both");
    }

    #[test]
    fn binary_values_come_in_two_forms() {
        assert_eq!(binary("0x0aFF").as_deref(), Some(&[10, 255][..]));
        assert_eq!(binary("0bSGVsbG8=").as_deref(), Some(&b"Hello"[..]));
        assert_eq!(binary("0BSGVsbG8h").as_deref(), Some(&b"Hello!"[..]));
        for bad in ["", "0", "0x", "0x1", "0xgg", "12", "0bA", "0b====", "0bSG=s", "ä"] {
            assert_eq!(binary(bad), None, "{bad}");
        }
        let long = |len| alloc::format!("0x{}", "00".repeat(len));
        assert_eq!(binary(&long(1024)).map(|b| b.len()), Some(1024));
        assert_eq!(binary(&long(1025)), None);
    }
}

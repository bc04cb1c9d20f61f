//! The keys of DH-HMAC-CHAP: their text form, and the digests that use them (base 2.0, 8.13.5).
//!
//! Invariants: no error and no `Debug` output contains a key. A key is used only under the name of
//! its host or subsystem, unless its text form says otherwise.

use crate::base64;
use alloc::vec::Vec;
use core::fmt;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};

/// The text form begins with this.
const PREFIX: &str = "DHHC-1:";
/// Bytes of the checksum behind a key.
const CHECKSUM: usize = 4;
/// Follows the name when a key is tied to it.
const PURPOSE: &[u8] = b"NVMe-over-Fabrics";

/// A hash function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    /// Returns the function with this id, which keys and messages use alike.
    pub(crate) fn of(id: u8) -> Option<Hash> {
        match id {
            1 => Some(Hash::Sha256),
            2 => Some(Hash::Sha384),
            3 => Some(Hash::Sha512),
            _ => None,
        }
    }

    /// Returns its id.
    pub(crate) fn id(self) -> u8 {
        match self {
            Hash::Sha256 => 1,
            Hash::Sha384 => 2,
            Hash::Sha512 => 3,
        }
    }

    /// Returns the length of its digests in bytes.
    pub(crate) fn len(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    /// Returns the digest of `bytes`.
    pub(crate) fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Hash::Sha256 => Sha256::digest(bytes).to_vec(),
            Hash::Sha384 => Sha384::digest(bytes).to_vec(),
            Hash::Sha512 => Sha512::digest(bytes).to_vec(),
        }
    }

    /// Returns the keyed digest (HMAC) of `parts`, one after the other.
    pub(crate) fn keyed(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        match self {
            Hash::Sha256 => keyed::<Hmac<Sha256>>(key, parts).finalize().into_bytes().to_vec(),
            Hash::Sha384 => keyed::<Hmac<Sha384>>(key, parts).finalize().into_bytes().to_vec(),
            Hash::Sha512 => keyed::<Hmac<Sha512>>(key, parts).finalize().into_bytes().to_vec(),
        }
    }

    /// Compares the keyed digest of `parts` with `shown`, in constant time.
    pub(crate) fn verify(self, key: &[u8], parts: &[&[u8]], shown: &[u8]) -> bool {
        match self {
            Hash::Sha256 => keyed::<Hmac<Sha256>>(key, parts).verify_slice(shown).is_ok(),
            Hash::Sha384 => keyed::<Hmac<Sha384>>(key, parts).verify_slice(shown).is_ok(),
            Hash::Sha512 => keyed::<Hmac<Sha512>>(key, parts).verify_slice(shown).is_ok(),
        }
    }
}

fn keyed<M: Mac + hmac::digest::KeyInit>(key: &[u8], parts: &[&[u8]]) -> M {
    let mut mac = <M as Mac>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac
}

/// The key of a host or of a subsystem.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// The function that ties the key to a name; without one, the key is used as it is.
    hash: Option<Hash>,
    bytes: Vec<u8>,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// A text is no key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadKey {
    /// It has another form than `DHHC-1:NN:BASE64:`.
    Form,
    /// The function `NN` is unknown.
    Hash,
    /// A key of this many bytes does not exist, or does not go with the function.
    Length(usize),
    /// The checksum is wrong.
    Checksum,
}

impl fmt::Display for BadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadKey::Form => f.write_str("it has not the form DHHC-1:NN:BASE64:"),
            BadKey::Hash => f.write_str("after DHHC-1: come 00, 01, 02 or 03"),
            BadKey::Length(len) => write!(
                f,
                "it has {len} bytes: 32, 48 or 64 go with 00, 32 with 01, 48 with 02, 64 with 03"
            ),
            BadKey::Checksum => f.write_str("its checksum is wrong: a character was mistyped"),
        }
    }
}

impl Key {
    /// Returns the key with this text form (base 2.0, 8.13.5.8).
    pub fn parse(text: &str) -> Result<Key, BadKey> {
        let rest = text.strip_prefix(PREFIX).ok_or(BadKey::Form)?;
        let (number, rest) = rest.split_once(':').ok_or(BadKey::Form)?;
        let digits = rest.strip_suffix(':').ok_or(BadKey::Form)?;
        let hash = match number {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(BadKey::Hash),
        };
        let mut bytes = base64::decode(digits.as_bytes()).ok_or(BadKey::Form)?;
        let len = bytes.len().checked_sub(CHECKSUM).ok_or(BadKey::Length(0))?;
        let fits = hash.map_or(matches!(len, 32 | 48 | 64), |hash| hash.len() == len);
        if !fits {
            return Err(BadKey::Length(len));
        }
        let checksum = bytes.split_off(len);
        if checksum != crc32(&bytes).to_le_bytes() {
            return Err(BadKey::Checksum);
        }
        Ok(Key { hash, bytes })
    }

    /// Returns true if the two have the same bytes, whatever ties them to a name.
    pub fn is_like(&self, other: &Key) -> bool {
        self.bytes == other.bytes
    }

    /// Returns the key of the host or subsystem with this name (base 2.0, 8.13.5).
    pub(crate) fn of(&self, name: &str) -> Vec<u8> {
        match self.hash {
            Some(hash) => hash.keyed(&self.bytes, &[name.as_bytes(), PURPOSE]),
            None => self.bytes.clone(),
        }
    }
}

/// The keys with which a host and the subsystem authenticate.
#[derive(Clone, Copy, Debug)]
pub struct Keys<'a> {
    /// The key of the host.
    pub host: &'a Key,
    /// Our own key, for a host that asks us to authenticate.
    pub own: Option<&'a Key>,
}

/// Returns the CRC-32 of Ethernet (RFC 1952, section 8).
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From `nvme gen-dhchap-key --hmac=0` to `3`, and how many bytes each has.
    const TEXTS: [(&str, usize); 4] = [
        ("DHHC-1:00:dW9p3GAPwpTwM9ZmqrWq0WhM5VoOcL0eeTUfglxerTyUWKfg:", 32),
        ("DHHC-1:01:MzmoFIg+WXbTzgzTWd5JTTdqrlU+fFCQnX5uZSS28lHiDF1A:", 32),
        ("DHHC-1:02:HrUvXOr6RgZo/9fciIKr0ZJkCyjZaAanLPOPxTExcFUWu22dyyDGWxP4Sf8Atlok+wmgnQ==:", 48),
        (
            "DHHC-1:03:jT/nNRD9YnDjJy1FlxzljaGQyC1XXI4/C3EnK2n8MSN0nnWhv5gyKPEQhYeS9cP7Z1rjsMBVlaqV\
             UaHw9yLeNQ60Dz0=:",
            64,
        ),
    ];

    #[test]
    fn keys_of_the_usual_tool_are_taken_and_damaged_ones_are_not() {
        for (i, (text, len)) in TEXTS.into_iter().enumerate() {
            let key = Key::parse(text).unwrap();
            assert_eq!((key.bytes.len(), key.hash), (len, Hash::of(i as u8)));
            assert_eq!(alloc::format!("{key:?}"), "Key");
        }
        let (good, _) = TEXTS[1];
        for (bad, why) in [
            ("", BadKey::Form),
            ("secret", BadKey::Form),
            ("DHHC-1:", BadKey::Form),
            ("DHHC-1:01:", BadKey::Form),
            ("DHHC-1:01:MzmoFIg=", BadKey::Form),
            ("DHHC-1:01:::", BadKey::Form),
            ("DHHC-1:01::", BadKey::Length(0)),
            ("DHHC-1:01:AAAA:", BadKey::Length(0)),
            ("DHHC-1:00:AAAAAAAA:", BadKey::Length(2)),
            (&good.replace("-1:01", "-2:01"), BadKey::Form),
            (&good.replace("-1:01", "-1:04"), BadKey::Hash),
            (&good.replace("-1:01", "-1:1"), BadKey::Hash),
            (&good.replace("-1:01", "-1:02"), BadKey::Length(32)),
            (&good.replace("Mzmo", "Mzmp"), BadKey::Checksum),
            (&good.replace("iDF1A", "iDF1B"), BadKey::Checksum),
            (&good.replace('+', "-"), BadKey::Form),
        ] {
            assert_eq!(Key::parse(bad), Err(why), "{bad}");
        }
    }

    #[test]
    fn a_key_is_tied_to_a_name_as_the_usual_tool_ties_it() {
        // nvme gen-dhchap-key --secret=$SECRET --key-length=32 --hmac=1 -n nqn.test
        let secret: Vec<u8> = (0..32).map(|i| (i % 16) * 0x11).collect();
        let key = Key { hash: Some(Hash::Sha256), bytes: secret.clone() };
        let tied = "DHHC-1:01:bxPw+bfKSZS0z1PFsUUrxD/dds0QTNuVThVr7096lV0C+D0n:";
        assert_eq!(key.of("nqn.test"), Key::parse(tied).unwrap().bytes);
        let plain = Key { hash: None, bytes: secret.clone() };
        assert_eq!(plain.of("nqn.test"), secret);
        assert!(plain.is_like(&key) && plain != key);
    }

    #[test]
    fn the_checksum_is_that_of_ethernet() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926, "the check value of its definition");
    }
}

//! Text of requests and answers: `key=value` pairs, each ended by a zero byte (RFC 7143 6.1).
//!
//! Invariants: a text of several PDUs is assembled before it is parsed, and is never longer than
//! the limit. An answer is split at the length of the initiator's data segment, not between pairs.

use alloc::vec::Vec;

/// Why a text can't be parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TextError {
    /// It is longer than one negotiation may be.
    TooLong,
    /// It has a pair without `=`, without a key, or with characters that are not allowed.
    Malformed,
}

/// Text that arrives in several PDUs.
#[derive(Debug)]
pub(crate) struct Incoming {
    bytes: Vec<u8>,
    /// How many bytes may still come.
    room: usize,
}

impl Incoming {
    /// Creates an empty text for a negotiation of at most `most` bytes.
    pub(crate) fn new(most: usize) -> Incoming {
        Incoming { bytes: Vec::new(), room: most }
    }

    /// Adds the data of a PDU.
    pub(crate) fn add(&mut self, data: &[u8]) -> Result<(), TextError> {
        self.room = self.room.checked_sub(data.len()).ok_or(TextError::TooLong)?;
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// Returns true if no part of the next text has arrived.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the text, and begins the next one.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.bytes)
    }

    /// Begins another negotiation of at most `most` bytes.
    pub(crate) fn reset(&mut self, most: usize) {
        self.bytes.clear();
        self.room = most;
    }
}

/// Returns the pairs of a text in their order.
pub(crate) fn pairs(text: &[u8]) -> Result<Vec<(&str, &str)>, TextError> {
    fn pair(bytes: &[u8]) -> Result<(&str, &str), TextError> {
        let text = core::str::from_utf8(bytes).map_err(|_| TextError::Malformed)?;
        let pair = text.split_once('=').filter(|(key, _)| !key.is_empty() && key.len() <= 63);
        pair.ok_or(TextError::Malformed)
    }
    text.split(|byte| *byte == 0).filter(|bytes| !bytes.is_empty()).map(pair).collect()
}

/// Text on its way to the initiator.
#[derive(Default, Debug)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outgoing {
    /// Adds a pair.
    pub(crate) fn pair(&mut self, key: &str, value: &str) {
        for part in [key, "=", value, "\0"] {
            self.bytes.extend_from_slice(part.as_bytes());
        }
    }

    /// Returns the next part, of at most `most` bytes, and whether more follows it.
    pub(crate) fn part(&mut self, most: usize) -> (&[u8], bool) {
        let start = self.sent;
        self.sent += most.min(self.bytes.len() - start);
        (&self.bytes[start..self.sent], self.sent < self.bytes.len())
    }

    /// Returns true if nothing is left to be sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Returns the number of bytes that are not sent yet.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Begins another text.
    pub(crate) fn clear(&mut self) {
        *self = Outgoing::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn pairs_end_with_a_zero_byte() {
        assert_eq!(pairs(b"A=1\0B=\0\0C=x=y\0"), Ok(vec![("A", "1"), ("B", ""), ("C", "x=y")]));
        assert_eq!(pairs(b"A=1"), Ok(vec![("A", "1")]), "the last zero byte may be missing");
        for bad in [&b"A\0"[..], b"=1\0", b"A=1\0B\0", b"A=\xff\0"] {
            assert_eq!(pairs(bad), Err(TextError::Malformed));
        }
        assert_eq!(pairs(&[b'k'; 70]), Err(TextError::Malformed));
    }

    #[test]
    fn a_text_is_bounded_over_all_its_pdus() {
        let mut text = Incoming::new(5);
        assert_eq!(text.add(b"A="), Ok(()));
        assert_eq!(text.add(b"123"), Ok(()));
        assert_eq!(text.take(), b"A=123");
        assert_eq!(text.add(b"4"), Err(TextError::TooLong));
    }

    #[test]
    fn an_answer_fills_each_part() {
        let mut text = Outgoing::default();
        text.pair("Key", "value");
        assert_eq!(text.part(4), (&b"Key="[..], true));
        assert_eq!(text.part(4), (&b"valu"[..], true));
        assert_eq!(text.part(4), (&b"e\0"[..], false));
        assert!(text.is_sent());
    }
}

//! The data of options, and their answers (spec: "Fixed newstyle negotiation", "Option types",
//! "Option reply types").
//!
//! Invariants: data is accepted only if its length is exactly what its own length fields say. All
//! replies to one option are sent as one, with the final one last. Properties of volumes come from
//! `export`; `session` makes the changes of its state. This code may allocate memory: negotiation
//! is not on the data path.

use super::export::Export;
use super::proto::*;
use crate::Action;
use alloc::vec::Vec;
use base::{BLOCK, SECTOR};
use seam::{BufPool, Head};

/// Parses an option's data. Methods return `None` if it is too short.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|b| be16(b, 0))
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4).map(|b| be32(b, 0))
    }

    /// Returns a string that is preceded by its length.
    fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        if len > STRING_MAX { None } else { self.take(len) }
    }
}

/// The data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InfoQuery<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) wants_name: bool,
    pub(crate) wants_description: bool,
}

impl<'a> InfoQuery<'a> {
    /// Returns `None` if the data is malformed.
    pub(crate) fn parse(data: &'a [u8]) -> Option<InfoQuery<'a>> {
        let mut data = Cursor(data);
        let mut query =
            InfoQuery { name: data.string()?, wants_name: false, wants_description: false };
        for _ in 0..data.u16()? {
            match data.u16()? {
                NBD_INFO_NAME => query.wants_name = true,
                NBD_INFO_DESCRIPTION => query.wants_description = true,
                _ => {} // export and block sizes are always sent, others never
            }
        }
        data.0.is_empty().then_some(query)
    }
}

/// The data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MetaQuery<'a> {
    pub(crate) name: &'a [u8],
    /// True if a query names `base:allocation`, or, in a list, includes it.
    pub(crate) allocation: bool,
}

impl<'a> MetaQuery<'a> {
    /// Returns `None` if the data is malformed. In a `list`, no query and `base:` mean all.
    pub(crate) fn parse(data: &'a [u8], list: bool) -> Option<MetaQuery<'a>> {
        let mut data = Cursor(data);
        let name = data.string()?;
        let queries = data.u32()?;
        let mut allocation = list && queries == 0;
        // Every query has at least 4 bytes, so this ends soon whatever number the client claims.
        for _ in 0..queries {
            let query = data.string()?;
            allocation |= query == BASE_ALLOCATION || (list && query == b"base:");
        }
        data.0.is_empty().then_some(MetaQuery { name, allocation })
    }
}

/// Collects the replies to one option.
pub(crate) struct Answer {
    option: u32,
    bytes: Vec<u8>,
}

impl Answer {
    /// Creates an answer without replies.
    pub(crate) fn new(option: u32) -> Answer {
        Answer { option, bytes: Vec::new() }
    }

    /// Adds a reply whose data is the concatenation of these parts.
    pub(crate) fn reply(&mut self, kind: u32, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        self.bytes.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        self.bytes.extend_from_slice(&self.option.to_be_bytes());
        self.bytes.extend_from_slice(&kind.to_be_bytes());
        self.bytes.extend_from_slice(&(len as u32).to_be_bytes());
        parts.iter().for_each(|p| self.bytes.extend_from_slice(p));
    }

    /// Adds one export to a list.
    pub(crate) fn server(&mut self, export: Export<'_>) {
        let len = (export.name.len() as u32).to_be_bytes();
        let description = export.description();
        self.reply(NBD_REP_SERVER, &[&len, export.name.as_bytes(), description.as_bytes()]);
    }

    /// Adds the properties of an export. They always include the block sizes, because these differ
    /// from the defaults ("Size constraints").
    pub(crate) fn info(
        &mut self,
        query: &InfoQuery<'_>,
        export: Export<'_>,
        flags: u16,
        payload: u32,
    ) {
        let size = exported_size(export.size).to_be_bytes();
        self.reply(NBD_REP_INFO, &[&NBD_INFO_EXPORT.to_be_bytes(), &size, &flags.to_be_bytes()]);
        if query.wants_name {
            self.reply(NBD_REP_INFO, &[&NBD_INFO_NAME.to_be_bytes(), export.name.as_bytes()]);
        }
        if query.wants_description {
            let text = export.description();
            let kind = NBD_INFO_DESCRIPTION.to_be_bytes();
            self.reply(NBD_REP_INFO, &[&kind, text.as_bytes()]);
        }
        let [min, preferred, max] = [SECTOR, BLOCK, payload].map(u32::to_be_bytes);
        self.reply(NBD_REP_INFO, &[&NBD_INFO_BLOCK_SIZE.to_be_bytes(), &min, &preferred, &max]);
    }

    /// Adds the metadata context with this number.
    pub(crate) fn context(&mut self, id: u32) {
        self.reply(NBD_REP_META_CONTEXT, &[&id.to_be_bytes(), BASE_ALLOCATION]);
    }

    /// Ends the answer with success.
    pub(crate) fn ack(self, pool: &BufPool, out: &mut Vec<Action>) {
        self.finish(NBD_REP_ACK, "", pool, out);
    }

    /// Ends the answer with this final reply, and sends it.
    pub(crate) fn finish(mut self, kind: u32, text: &str, pool: &BufPool, out: &mut Vec<Action>) {
        self.reply(kind, &[text.as_bytes()]);
        let (head, body) = self.bytes.split_at(self.bytes.len().min(Head::MAX));
        out.push(Action::Send { head: Head::new(head), body: pool.copy(body) });
    }
}

/// Returns the part of a volume's size that a client can address.
pub(crate) fn exported_size(bytes: u64) -> u64 {
    bytes - bytes % u64::from(SECTOR)
}

/// Returns the transmission flags of an export ("Transmission flags"). Many connections see one
/// state, because an answer means durable and visible (rule R7); for the same reason flush and FUA
/// cost nothing. Zeroing only changes metadata, so it is always fast.
pub(crate) fn transmission_flags(read_only: bool, structured: bool) -> u16 {
    let mut flags =
        NBD_FLAG_HAS_FLAGS | NBD_FLAG_SEND_FLUSH | NBD_FLAG_SEND_FUA | NBD_FLAG_CAN_MULTI_CONN;
    flags |= if read_only {
        NBD_FLAG_READ_ONLY
    } else {
        NBD_FLAG_SEND_TRIM | NBD_FLAG_SEND_WRITE_ZEROES | NBD_FLAG_SEND_FAST_ZERO
    };
    if structured { flags | NBD_FLAG_SEND_DF } else { flags }
}

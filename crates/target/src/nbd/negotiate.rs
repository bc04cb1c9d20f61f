//! The first part of a session: client flags and option haggling, up to the attached export (spec:
//! "Handshake", "Option types").
//!
//! Invariants: an option is answered before the next one is processed. Answers that depend on the
//! existing volumes only use exports that were fetched after the option arrived. Only `NBD_OPT_GO`
//! and `NBD_OPT_EXPORT_NAME` lead to transmission. The encoding is in `options`. There is no
//! authentication: any client that can reach the port may attach.

use super::export::{Export, Exports, resolve};
use super::options::{Answer, InfoQuery, MetaQuery, exported_size, transmission_flags};
use super::proto::*;
use super::request::Attached;
use super::session::{Phase, Session};
use crate::Action;
use alloc::vec::Vec;
use seam::{Buf, BufPool, Head};

impl Session {
    pub(super) fn client_flags(&mut self, head: &[u8], out: &mut Vec<Action>) {
        const KNOWN: u32 = NBD_FLAG_C_FIXED_NEWSTYLE | NBD_FLAG_C_NO_ZEROES;
        if head.len() != 4 || be32(head, 0) & !KNOWN != 0 {
            return self.close(Some("unknown client flags"), out);
        }
        // A client that does not announce the fixed newstyle may still use it ("Client flags").
        self.no_zeroes = be32(head, 0) & NBD_FLAG_C_NO_ZEROES != 0;
        self.phase = Phase::Options;
    }

    /// Handles an option. Answers at once unless the answer depends on which volumes exist.
    pub(super) fn option(&mut self, option: u32, data: Buf, pool: &BufPool, out: &mut Vec<Action>) {
        if self.stopping && option != NBD_OPT_ABORT {
            return refuse_shutdown(option, pool, out);
        }
        let answer = Answer::new(option);
        match option {
            NBD_OPT_EXPORT_NAME
            | NBD_OPT_LIST
            | NBD_OPT_INFO
            | NBD_OPT_GO
            | NBD_OPT_LIST_META_CONTEXT
            | NBD_OPT_SET_META_CONTEXT => {
                self.asked = Some((option, data));
                out.push(Action::Refresh);
            }
            NBD_OPT_ABORT => {
                answer.ack(pool, out);
                self.close(None, out);
            }
            NBD_OPT_STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                answer.ack(pool, out);
            }
            NBD_OPT_STRUCTURED_REPLY => {
                answer.finish(NBD_REP_ERR_INVALID, "this option takes no data", pool, out);
            }
            NBD_OPT_STARTTLS => {
                answer.finish(NBD_REP_ERR_UNSUP, "this server does not speak TLS", pool, out);
            }
            _ => {
                answer.finish(
                    NBD_REP_ERR_UNSUP,
                    "this server does not know this option",
                    pool,
                    out,
                );
            }
        }
    }

    /// Answers an option that depends on which volumes exist.
    pub(super) fn answer(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        pool: &BufPool,
        out: &mut Vec<Action>,
    ) {
        match option {
            NBD_OPT_EXPORT_NAME => self.export_name(data, exports, pool, out),
            NBD_OPT_INFO | NBD_OPT_GO => self.info(option, data, exports, pool, out),
            NBD_OPT_LIST => {
                let mut answer = Answer::new(option);
                if data.is_empty() {
                    exports.each(&mut |export| answer.server(export));
                    answer.ack(pool, out);
                } else {
                    answer.finish(NBD_REP_ERR_INVALID, "this option takes no data", pool, out);
                }
            }
            _ => self.meta_context(option, data, exports, pool, out),
        }
    }

    fn attach(&mut self, export: Export<'_>) {
        self.phase = Phase::Serving(Attached {
            volume: export.volume,
            size: exported_size(export.size),
            read_only: export.read_only,
            access: export.access,
            structured: self.structured,
            allocation: self.structured && self.allocation == Some(export.volume),
            payload: self.payload,
        });
    }

    /// Handles the old option to attach, which has no error reply.
    fn export_name(
        &mut self,
        name: &[u8],
        exports: &dyn Exports,
        pool: &BufPool,
        out: &mut Vec<Action>,
    ) {
        let Ok(export) = resolve(exports, name) else {
            return self.close(Some("asked for a volume that does not exist"), out);
        };
        let mut head = [0; 10];
        head[..8].copy_from_slice(&exported_size(export.size).to_be_bytes());
        let flags = transmission_flags(export.read_only, self.structured);
        head[8..].copy_from_slice(&flags.to_be_bytes());
        let zeroes = if self.no_zeroes { 0 } else { EXPORT_NAME_ZEROES };
        out.push(Action::Send { head: Head::new(&head), body: pool.zeroed(zeroes) });
        self.attach(export);
    }

    fn info(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        pool: &BufPool,
        out: &mut Vec<Action>,
    ) {
        let mut answer = Answer::new(option);
        let Some(query) = InfoQuery::parse(data) else {
            return answer.finish(NBD_REP_ERR_INVALID, "malformed data", pool, out);
        };
        match resolve(exports, query.name) {
            Ok(export) => {
                let flags = transmission_flags(export.read_only, self.structured);
                answer.info(&query, export, flags, self.payload);
                answer.ack(pool, out);
                if option == NBD_OPT_GO {
                    self.attach(export);
                }
            }
            Err(why) => answer.finish(NBD_REP_ERR_UNKNOWN, &why, pool, out),
        }
    }

    fn meta_context(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        pool: &BufPool,
        out: &mut Vec<Action>,
    ) {
        let list = option == NBD_OPT_LIST_META_CONTEXT;
        if !list {
            self.allocation = None; // even if the option fails
        }
        let mut answer = Answer::new(option);
        if !self.structured {
            let why = "negotiate structured replies first";
            return answer.finish(NBD_REP_ERR_INVALID, why, pool, out);
        }
        let Some(query) = MetaQuery::parse(data, list) else {
            return answer.finish(NBD_REP_ERR_INVALID, "malformed data", pool, out);
        };
        let export = match resolve(exports, query.name) {
            Ok(export) => export,
            Err(why) => return answer.finish(NBD_REP_ERR_UNKNOWN, &why, pool, out),
        };
        if query.allocation {
            answer.context(if list { 0 } else { BASE_ALLOCATION_ID });
            if !list {
                self.allocation = Some(export.volume);
            }
        }
        answer.ack(pool, out);
    }
}

/// Refuses an option because the server is shutting down.
pub(super) fn refuse_shutdown(option: u32, pool: &BufPool, out: &mut Vec<Action>) {
    // The answer to NBD_OPT_EXPORT_NAME can't express an error; the close that follows does.
    if option != NBD_OPT_EXPORT_NAME {
        let why = "the server is shutting down";
        Answer::new(option).finish(NBD_REP_ERR_SHUTDOWN, why, pool, out);
    }
}

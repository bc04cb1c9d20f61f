//! The host's side of NBD: the fixed newstyle handshake, then simple replies.
//!
//! The names are those of the protocol's specification. A cookie is the slot of a request. Its
//! highest bit says whether data follows a successful reply, so the framer needs no table.

use super::{Ask, Meaning, Protocol, be32, be64};
use crate::tally::Side;
use base::LinkId;
use seam::{Buf, Effects, FrameError, Framer, Framing, Head};

const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const NBD_OPT_GO: u32 = 7;
const NBD_REP_ACK: u32 = 1;
const NBD_REP_INFO: u32 = 3;
/// `NBD_FLAG_C_FIXED_NEWSTYLE` and `NBD_FLAG_C_NO_ZEROES`.
const CLIENT_FLAGS: u32 = 3;
const NBD_REQUEST_MAGIC: u32 = 0x2560_9513;
const NBD_SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const NBD_CMD_READ: u16 = 0;
const NBD_CMD_WRITE: u16 = 1;

const GREETING: usize = 18;
const OPTION_REPLY: usize = 20;
const REPLY: usize = 16;
/// The bit of a cookie that says that a successful reply has data.
const READS: u64 = 1 << 63;

/// A connection to an export.
#[derive(Clone, Debug)]
pub struct Nbd {
    export: String,
    block: u32,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Greeting,
    Options,
    Replies,
}

/// Splits the server's stream.
#[derive(Clone, Debug)]
pub struct NbdReplies {
    phase: Phase,
    block: u32,
}

impl Nbd {
    /// Creates a connection that will attach this export, and make requests of `block` bytes.
    pub fn new(export: &str, block: u32) -> Nbd {
        Nbd { export: export.to_owned(), block, phase: Phase::Greeting }
    }
}

impl Protocol for Nbd {
    type Framer = NbdReplies;

    fn framer(&self) -> NbdReplies {
        NbdReplies { phase: Phase::Greeting, block: self.block }
    }

    fn begin(&mut self, _: LinkId, _: &mut Effects) {} // the server speaks first

    fn frame(
        &mut self,
        link: LinkId,
        head: &[u8],
        _: &Buf,
        out: &mut Effects,
    ) -> Result<Meaning, String> {
        match self.phase {
            Phase::Greeting => {
                self.phase = Phase::Options;
                out.send(link, Head::new(&CLIENT_FLAGS.to_be_bytes()), Buf::EMPTY);
                let name = self.export.as_bytes();
                let mut data = (name.len() as u32).to_be_bytes().to_vec();
                data.extend(name);
                data.extend(0u16.to_be_bytes());
                let mut option = IHAVEOPT.to_be_bytes().to_vec();
                option.extend(NBD_OPT_GO.to_be_bytes());
                option.extend((data.len() as u32).to_be_bytes());
                let body = out.copy(&data);
                out.send(link, Head::new(&option), body);
                Ok(Meaning::Nothing)
            }
            Phase::Options => match be32(head, 12) {
                NBD_REP_ACK => {
                    self.phase = Phase::Replies;
                    Ok(Meaning::Attached)
                }
                NBD_REP_INFO => Ok(Meaning::Nothing),
                other => Err(format!("export {} is refused: {other:#x}", self.export)),
            },
            Phase::Replies => match be32(head, 4) {
                0 => Ok(Meaning::Done(be64(head, 8) as u32)),
                error => Err(format!("a request over NBD failed with error {error}")),
            },
        }
    }

    fn ask(&mut self, link: LinkId, ask: Ask, data: &Buf, out: &mut Effects) {
        let (command, bit, body) = match ask.side {
            Side::Read => (NBD_CMD_READ, READS, Buf::EMPTY),
            Side::Write => (NBD_CMD_WRITE, 0, data.clone()),
        };
        let mut head = [0; 28];
        head[..4].copy_from_slice(&NBD_REQUEST_MAGIC.to_be_bytes());
        head[6..8].copy_from_slice(&command.to_be_bytes());
        head[8..16].copy_from_slice(&(bit | u64::from(ask.slot)).to_be_bytes());
        head[16..24].copy_from_slice(&ask.at.to_be_bytes());
        head[24..].copy_from_slice(&ask.len.to_be_bytes());
        out.send(link, Head::new(&head), body);
    }
}

impl Framer for NbdReplies {
    fn frame(&mut self, start: &[u8]) -> Result<Framing, FrameError> {
        let head = match self.phase {
            Phase::Greeting => GREETING,
            Phase::Options => OPTION_REPLY,
            Phase::Replies => REPLY,
        };
        if start.len() < head {
            return Ok(Framing::Need(head));
        }
        let body = match self.phase {
            Phase::Greeting if be64(start, 0) != NBDMAGIC => return Err(FrameError::BadMagic),
            Phase::Greeting => {
                self.phase = Phase::Options;
                0
            }
            Phase::Options => {
                if be32(start, 12) == NBD_REP_ACK {
                    self.phase = Phase::Replies;
                }
                be32(start, 16)
            }
            Phase::Replies if be32(start, 0) != NBD_SIMPLE_REPLY_MAGIC => {
                return Err(FrameError::BadMagic);
            }
            Phase::Replies if be32(start, 4) == 0 && be64(start, 8) & READS != 0 => self.block,
            Phase::Replies => 0,
        };
        Ok(Framing::Frame { head, body: body as usize })
    }
}

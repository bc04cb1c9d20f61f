//! The messages of the frontend.

use super::Fault;
use alloc::vec::Vec;

/// Longest body: that of a configuration of 256 bytes, and of a table of 8 regions.
pub const BODY_MAX: usize = 272;
/// Most regions of memory of a backend without configurable memory slots.
pub const REGIONS: usize = 8;
/// Longest configuration.
const CONFIG: usize = 256;
/// The version of all messages, in the lowest two bits of the flags.
const VERSION: u32 = 1;
/// NEED_REPLY: an acknowledgement is wanted for a request that has no answer.
const NEED_REPLY: u32 = 1 << 3;
/// VHOST_VRING_F_LOG: what is written to the used ring is logged under an address of its own.
const LOG_USED: u32 = 1;
/// No file descriptor comes with this ring.
const NO_FILE: u64 = 1 << 8;

/// The head of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The number of the request.
    pub request: u32,
    /// NEED_REPLY: an acknowledgement is wanted for a request that has no answer.
    pub need_reply: bool,
    /// Bytes of the body.
    pub len: usize,
}

impl Head {
    /// Bytes of a head.
    pub const LEN: usize = 12;

    /// Reads a head.
    pub fn parse(bytes: &[u8; Head::LEN]) -> Result<Head, Fault> {
        let mut fields = Fields(bytes);
        let (request, flags, len) = (fields.u32(), fields.u32(), fields.u32());
        if flags & 3 != VERSION {
            return Err(Fault::Version(flags));
        }
        match len as usize {
            fits if fits <= BODY_MAX => {
                Ok(Head { request, need_reply: flags & NEED_REPLY != 0, len: fits })
            }
            _ => Err(Fault::Long(len)),
        }
    }
}

/// A region of the guest's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Its first address in the guest.
    pub guest: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Its first address in the frontend's process.
    pub user: u64,
    /// Where it begins in its file.
    pub offset: u64,
}

/// A number for a ring: its size, an index, or whether it is enabled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ring {
    /// Which ring.
    pub queue: u32,
    /// The number.
    pub value: u32,
}

/// The addresses of a ring's parts, in the frontend's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// Which ring.
    pub queue: u32,
    /// Descriptors.
    pub descriptors: u64,
    /// The used ring.
    pub used: u64,
    /// The available ring.
    pub available: u64,
    /// The address of the used ring in the log of written pages, if it is to be logged.
    pub log: Option<u64>,
}

/// A ring that gets a file descriptor, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct File {
    /// Which ring.
    pub queue: u32,
    /// True if a descriptor came with the message.
    pub has_file: bool,
}

/// A part of the configuration space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Its first byte.
    pub offset: u32,
    /// Its length in bytes, at most 256.
    pub len: u32,
    /// Flags, which the answer repeats.
    pub flags: u32,
}

/// The in-flight region: notes of the requests under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notes {
    /// Its length in bytes.
    pub len: u64,
    /// Where it begins in its file.
    pub offset: u64,
    /// Queues.
    pub queues: u16,
    /// Descriptors of each queue.
    pub size: u16,
}

/// The log of written pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Log {
    /// Its length in bytes.
    pub len: u64,
    /// Where it begins in its file.
    pub offset: u64,
}

/// A message of the frontend.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // They are the names of the protocol.
pub enum Message {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemTable(Vec<Region>),
    SetLogBase(Log),
    SetLogFd,
    SetVringNum(Ring),
    SetVringAddr(Addresses),
    SetVringBase(Ring),
    GetVringBase { queue: u32 },
    SetVringKick(File),
    SetVringCall(File),
    SetVringErr(File),
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetVringEnable(Ring),
    SetBackendSocket,
    GetConfig(Config),
    SetConfig,
    GetInflight(Notes),
    SetInflight(Notes),
    ResetDevice,
}

impl Message {
    /// Reads a message from its body and the number of file descriptors beside it.
    // Long: one match over all requests.
    pub fn parse(request: u32, body: &[u8], files: usize) -> Result<Message, Fault> {
        let wrong = Fault::Length { request, len: body.len() };
        let of = |len: usize| if body.len() == len { Ok(Fields(body)) } else { Err(wrong) };
        // Frontends may send a body with messages that need none.
        let mut wanted = 0;
        let message = match request {
            1 => Message::GetFeatures,
            2 => Message::SetFeatures(of(8)?.u64()),
            3 => Message::SetOwner,
            4 => Message::ResetOwner,
            5 => {
                let regions = regions(body).ok_or(wrong)?;
                wanted = regions.len();
                Message::SetMemTable(regions)
            }
            6 => {
                let mut fields = of(16)?;
                wanted = 1;
                Message::SetLogBase(Log { len: fields.u64(), offset: fields.u64() })
            }
            7 => {
                wanted = 1;
                Message::SetLogFd
            }
            8 => Message::SetVringNum(of(8)?.ring()),
            9 => Message::SetVringAddr(addresses(of(40)?)),
            10 => Message::SetVringBase(of(8)?.ring()),
            11 => Message::GetVringBase { queue: of(8)?.ring().queue },
            12..=14 => {
                let file = of(8)?.file();
                wanted = file.has_file.into();
                match request {
                    12 => Message::SetVringKick(file),
                    13 => Message::SetVringCall(file),
                    _ => Message::SetVringErr(file),
                }
            }
            15 => Message::GetProtocolFeatures,
            16 => Message::SetProtocolFeatures(of(8)?.u64()),
            17 => Message::GetQueueNum,
            18 => Message::SetVringEnable(of(8)?.ring()),
            21 => {
                wanted = 1;
                Message::SetBackendSocket
            }
            24 => Message::GetConfig(config(body).ok_or(wrong)?),
            25 => {
                config(body).ok_or(wrong)?;
                Message::SetConfig
            }
            31 => Message::GetInflight(notes(body).ok_or(wrong)?),
            32 => {
                wanted = 1;
                Message::SetInflight(notes(body).ok_or(wrong)?)
            }
            34 => Message::ResetDevice,
            _ => return Err(Fault::Unknown(request)),
        };
        if files == wanted { Ok(message) } else { Err(Fault::Files { request, files }) }
    }
}

/// Reads consecutive numbers. A missing number is 0: the length has been checked already.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn number(&mut self, len: usize) -> u64 {
        let (now, later) = self.0.split_at(len.min(self.0.len()));
        self.0 = later;
        now.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    fn u16(&mut self) -> u16 {
        self.number(2) as u16
    }

    fn u32(&mut self) -> u32 {
        self.number(4) as u32
    }

    fn u64(&mut self) -> u64 {
        self.number(8)
    }

    fn ring(&mut self) -> Ring {
        Ring { queue: self.u32(), value: self.u32() }
    }

    fn file(&mut self) -> File {
        let value = self.u64();
        File { queue: (value & 0xff) as u32, has_file: value & NO_FILE == 0 }
    }
}

fn addresses(mut fields: Fields<'_>) -> Addresses {
    let (queue, flags) = (fields.u32(), fields.u32());
    let (descriptors, used, available) = (fields.u64(), fields.u64(), fields.u64());
    let log = (flags & LOG_USED != 0).then(|| fields.u64());
    Addresses { queue, descriptors, used, available, log }
}

fn regions(body: &[u8]) -> Option<Vec<Region>> {
    let mut fields = Fields(body);
    let (count, _padding) = (fields.u32() as usize, fields.u32());
    if count > REGIONS || body.len() != 8 + 32 * count {
        return None;
    }
    let region = |_| Region {
        guest: fields.u64(),
        len: fields.u64(),
        user: fields.u64(),
        offset: fields.u64(),
    };
    Some((0..count).map(region).collect())
}

/// Reads the head of a configuration, whose content follows.
fn config(body: &[u8]) -> Option<Config> {
    let mut fields = Fields(body);
    let config = Config { offset: fields.u32(), len: fields.u32(), flags: fields.u32() };
    let fits = config.len as usize <= CONFIG && body.len() == 12 + config.len as usize;
    fits.then_some(config)
}

/// Reads the description of an in-flight region. Frontends pad it in different ways.
fn notes(body: &[u8]) -> Option<Notes> {
    let mut fields = Fields(body);
    (20..=24).contains(&body.len()).then(|| Notes {
        len: fields.u64(),
        offset: fields.u64(),
        queues: fields.u16(),
        size: fields.u16(),
    })
}

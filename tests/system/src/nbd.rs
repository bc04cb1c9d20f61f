//! A small NBD client (simple replies, one request at a time), written from the specification.

use crate::MIB;
use anyhow::{Context, Result, bail, ensure};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;

/// Error numbers of requests.
pub mod errno {
    /// Not permitted.
    pub const EPERM: u32 = 1;
    /// Input or output failed.
    pub const EIO: u32 = 5;
    /// Invalid request.
    pub const EINVAL: u32 = 22;
    /// No space.
    pub const ENOSPC: u32 = 28;
}

/// Commands.
pub mod cmd {
    /// Read.
    pub const READ: u16 = 0;
    /// Write.
    pub const WRITE: u16 = 1;
    /// Make all answered writes durable.
    pub const FLUSH: u16 = 3;
    /// Free the space.
    pub const TRIM: u16 = 4;
    /// Zero a range.
    pub const WRITE_ZEROES: u16 = 6;
}

/// A request that the server refused, with its error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused(pub u32);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the server answered with error {}", self.0)
    }
}

impl std::error::Error for Refused {}

/// A connection in the transmission phase.
#[derive(Debug)]
pub struct Nbd {
    /// The raw stream, for tests that break the rules.
    pub stream: UnixStream,
    /// Size of the volume in bytes.
    pub size: u64,
    /// Flags of the export.
    pub flags: u16,
    cookie: u64,
}

impl Nbd {
    /// Connects and negotiates.
    pub fn connect(socket: &Path, volume: &str) -> Result<Nbd> {
        let mut stream = greet(socket)?;
        let mut body = (volume.len() as u32).to_be_bytes().to_vec();
        body.extend(volume.as_bytes());
        body.extend([0, 0]);
        option(&mut stream, OPT_GO, &body)?;
        let (mut size, mut flags) = (0, 0);
        loop {
            let (kind, body) = option_reply(&mut stream)?;
            match kind {
                REP_ACK => return Ok(Nbd { stream, size, flags, cookie: 1 }),
                REP_INFO if body.starts_with(&INFO_EXPORT.to_be_bytes()) && body.len() == 12 => {
                    size = u64::from_be_bytes(body[2..10].try_into()?);
                    flags = u16::from_be_bytes(body[10..12].try_into()?);
                }
                REP_INFO => {}
                _ => {
                    bail!("export {volume} refused ({kind:#x}): {}", String::from_utf8_lossy(&body))
                }
            }
        }
    }

    /// Sends a request and waits for its answer. A [`Refused`] error leaves the connection usable.
    pub fn request(&mut self, command: u16, at: u64, len: u32, data: &[u8]) -> Result<Vec<u8>> {
        self.send(command, 0, at, len, data)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).context("no answer")?;
        let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().expect("4 bytes"));
        ensure!(word(0) == SIMPLE_REPLY, "not a simple reply: {reply:x?}");
        let cookie = u64::from_be_bytes(reply[8..].try_into()?);
        ensure!(cookie == self.cookie, "an answer to {cookie}, not to {}", self.cookie);
        self.cookie += 1;
        if word(4) != 0 {
            return Err(Refused(word(4)).into());
        }
        let mut bytes = vec![0; if command == cmd::READ { len as usize } else { 0 }];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Sends a request under a new cookie without waiting. Returns the cookie.
    pub fn ask(&mut self, command: u16, at: u64, len: u32, data: &[u8]) -> Result<u64> {
        self.send(command, 0, at, len, data)?;
        self.cookie += 1;
        Ok(self.cookie - 1)
    }

    /// Receives the next answer, which has to be a success with `len` bytes of data. Returns its
    /// cookie and the data.
    pub fn answer(&mut self, len: usize) -> Result<(u64, Vec<u8>)> {
        let cookie = self.reply()?;
        let mut data = vec![0; len];
        self.stream.read_exact(&mut data)?;
        Ok((cookie, data))
    }

    /// Receives successful answers without data, until the one with cookie `until`, which has `len`
    /// bytes of data. Returns the number of answers before that.
    pub fn answers(&mut self, until: u64, len: usize) -> Result<u64> {
        let mut before = 0;
        while self.reply()? != until {
            before += 1;
        }
        self.stream.read_exact(&mut vec![0; len])?;
        Ok(before)
    }

    /// Receives the head of the next answer, which has to be a success. Returns its cookie.
    fn reply(&mut self) -> Result<u64> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).context("no answer")?;
        let error = u32::from_be_bytes(reply[4..8].try_into()?);
        ensure!(error == 0, "error {error}");
        Ok(u64::from_be_bytes(reply[8..].try_into()?))
    }

    /// Sends a request without waiting.
    pub fn send(&mut self, command: u16, flags: u16, at: u64, len: u32, data: &[u8]) -> Result<()> {
        let mut request = Vec::with_capacity(28 + data.len());
        request.extend(REQUEST.to_be_bytes());
        request.extend(flags.to_be_bytes());
        request.extend(command.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(at.to_be_bytes());
        request.extend(len.to_be_bytes());
        request.extend(data);
        self.stream.write_all(&request)?;
        Ok(())
    }

    /// Reads from the volume.
    pub fn read(&mut self, at: u64, len: usize) -> Result<Vec<u8>> {
        self.request(cmd::READ, at, len as u32, &[])
    }

    /// Writes to the volume.
    pub fn write(&mut self, at: u64, data: &[u8]) -> Result<()> {
        self.request(cmd::WRITE, at, data.len() as u32, data).map(drop)
    }

    /// Writes this content from the volume's start on.
    pub fn fill(&mut self, content: &[u8]) -> Result<()> {
        let mut units = (0..).zip(content.chunks(MIB as usize));
        units.try_for_each(|(i, unit)| self.write(i * MIB, unit))
    }

    /// Reads as many bytes from the volume's start and compares them.
    pub fn verify(&mut self, content: &[u8]) -> Result<()> {
        for (i, expected) in (0..).zip(content.chunks(MIB as usize)) {
            let got = self.read(i * MIB, expected.len())?;
            if let Some(at) = got.iter().zip(expected).position(|(a, b)| a != b) {
                bail!("it differs at byte {}", i * MIB + at as u64);
            }
        }
        Ok(())
    }
}

/// Connects and receives the greeting. Options follow.
pub fn greet(socket: &Path) -> Result<UnixStream> {
    let mut stream = UnixStream::connect(socket).context("the SDC does not listen")?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_write_timeout(Some(Duration::from_secs(60)))?;
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    ensure!(greeting[..8] == NBDMAGIC.to_be_bytes(), "not an NBD server: {greeting:x?}");
    ensure!(greeting[8..16] == IHAVEOPT.to_be_bytes(), "not newstyle: {greeting:x?}");
    stream.write_all(&3u32.to_be_bytes())?;
    Ok(stream)
}

/// Sends an option.
pub fn option(stream: &mut UnixStream, code: u32, body: &[u8]) -> Result<()> {
    let mut bytes = IHAVEOPT.to_be_bytes().to_vec();
    bytes.extend(code.to_be_bytes());
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend(body);
    stream.write_all(&bytes)?;
    Ok(())
}

/// Receives one answer to an option. Returns its kind and its body.
pub fn option_reply(stream: &mut UnixStream) -> Result<(u32, Vec<u8>)> {
    let mut head = [0; 20];
    stream.read_exact(&mut head)?;
    ensure!(head[..8] == OPTION_REPLY.to_be_bytes(), "not an option's answer: {head:x?}");
    let kind = u32::from_be_bytes(head[12..16].try_into()?);
    let mut body = vec![0; u32::from_be_bytes(head[16..20].try_into()?) as usize];
    stream.read_exact(&mut body)?;
    Ok((kind, body))
}

/// Returns true if the peer closes the connection within `limit`, whatever it sends before.
pub fn closes(stream: &mut (impl Read + ?Sized), limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) if Instant::now() < deadline => {}
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return true,
            _ => return false,
        }
    }
}

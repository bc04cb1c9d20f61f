//! A connection to a data client over NBD: finds a volume by its UUID, and attaches it.
//!
//! Only the handshake is made here, and the question which ranges of the volume hold data. The
//! kernel makes all other requests, over the same socket.

use anyhow::{Context, Result, bail, ensure};
use rt::ListenAddr;
use rustix::net::sockopt::{self, Timeout};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use target::nbd::proto::*;

/// How long a data client may take for each step of the handshake.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of the answer to one option. A list of volumes is the longest one.
const ANSWER: usize = 64 << 20;
/// Longest answer to the question which ranges hold data.
const CHUNK: usize = 16 << 20;
/// Most bytes of a volume that one question is about.
const ASKED: u64 = 1 << 30;

/// A volume, as a data client describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Export {
    /// Its size in bytes.
    pub(super) size: u64,
    /// The transmission flags of NBD.
    pub(super) flags: u16,
    /// Longest read and write, in bytes.
    pub(super) payload: u32,
}

/// A connection on which no volume is attached.
pub(super) struct Remote {
    socket: File,
}

/// A part of an answer: its kind, and its data.
type Reply = (u32, Vec<u8>);

impl Remote {
    /// Connects to a data client.
    pub(super) fn dial(at: &ListenAddr) -> Result<Remote> {
        let socket = match at {
            ListenAddr::Unix(path) => UnixStream::connect(path).map(OwnedFd::from),
            ListenAddr::Tcp(at) => TcpStream::connect_timeout(at, PATIENCE).and_then(|stream| {
                stream.set_nodelay(true)?;
                Ok(stream.into())
            }),
        };
        let socket = File::from(socket.with_context(|| format!("no data client at {at}"))?);
        for which in [Timeout::Recv, Timeout::Send] {
            sockopt::set_socket_timeout(&socket, which, Some(PATIENCE))?;
        }
        let mut remote = Remote { socket };
        remote.greet().with_context(|| format!("what is at {at} is no data client"))?;
        Ok(remote)
    }

    fn greet(&mut self) -> Result<()> {
        let [magic, option] = [self.u64()?, self.u64()?];
        let flags = self.u16()?;
        ensure!((magic, option) == (NBDMAGIC, IHAVEOPT), "it does not speak NBD");
        ensure!(flags & NBD_FLAG_FIXED_NEWSTYLE != 0, "its NBD is too old");
        let ours = NBD_FLAG_C_FIXED_NEWSTYLE | NBD_FLAG_C_NO_ZEROES;
        Ok(self.socket.write_all(&ours.to_be_bytes())?)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.socket.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_be_bytes(self.take()?))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.take()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.take()?))
    }

    fn send(&mut self, option: u32, data: &[u8]) -> Result<()> {
        let head = [&IHAVEOPT.to_be_bytes()[..], &option.to_be_bytes()].concat();
        let len = (data.len() as u32).to_be_bytes();
        Ok(self.socket.write_all(&[&head[..], &len, data].concat())?)
    }

    /// Sends an option, and returns the parts of its answer but the last one, which says that it
    /// was accepted.
    fn option(&mut self, option: u32, data: &[u8]) -> Result<Vec<Reply>> {
        self.send(option, data)?;
        let (mut replies, mut bytes) = (Vec::new(), 0);
        loop {
            let (magic, of) = (self.u64()?, self.u32()?);
            let (kind, len) = (self.u32()?, self.u32()? as usize);
            ensure!((magic, of) == (OPTION_REPLY_MAGIC, option), "an answer that nobody asked for");
            bytes += len;
            ensure!(bytes <= ANSWER, "an answer of more than {ANSWER} bytes");
            let mut data = vec![0; len];
            self.socket.read_exact(&mut data)?;
            match kind {
                NBD_REP_ACK => return Ok(replies),
                kind if kind >> 31 == 1 => bail!("{}", String::from_utf8_lossy(&data)),
                kind => replies.push((kind, data)),
            }
        }
    }

    /// Returns the present name of the volume with this UUID, which is the description of its
    /// export.
    fn name(&mut self, uuid: &str) -> Result<Vec<u8>> {
        let all = self.option(NBD_OPT_LIST, &[]).context("can't list the volumes")?;
        let name = |data: &[u8]| {
            let (len, rest) = data.split_first_chunk()?;
            let (name, description) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
            (description == uuid.as_bytes()).then(|| name.to_owned())
        };
        let found = all.iter().filter(|(kind, _)| *kind == NBD_REP_SERVER);
        let found = found.filter_map(|(_, data)| name(data)).next();
        found.context(
            "the data client (SDC) of this machine may not use the volume: `gabion volume map` \
             lets it",
        )
    }

    /// Asks for a volume with `NBD_OPT_INFO` or `NBD_OPT_GO`.
    fn ask(&mut self, option: u32, name: &[u8]) -> Result<Export> {
        let data = [&named(name)[..], &[0, 0]].concat();
        export(&self.option(option, &data)?).context("an answer without the size of the volume")
    }

    /// Returns the volume with this UUID, and attaches nothing.
    pub(super) fn look(mut self, uuid: &str) -> Result<Export> {
        let name = self.name(uuid)?;
        let export = self.ask(NBD_OPT_INFO, &name)?;
        // Without this, the other side would take the end for the failure of a client.
        self.send(NBD_OPT_ABORT, &[])?;
        Ok(export)
    }

    /// Attaches the volume with this UUID. Returns the socket, over which requests can follow.
    pub(super) fn attach(mut self, uuid: &str) -> Result<(File, Export)> {
        let name = self.name(uuid)?;
        let export = self.ask(NBD_OPT_GO, &name)?;
        // The kernel waits without a limit, and would end a socket with one.
        for which in [Timeout::Recv, Timeout::Send] {
            sockopt::set_socket_timeout(&self.socket, which, None)?;
        }
        Ok((self.socket, export))
    }

    /// Attaches the volume with this UUID, to ask which of its ranges hold data.
    pub(super) fn allocation(mut self, uuid: &str) -> Result<Allocation> {
        let name = self.name(uuid)?;
        self.option(NBD_OPT_STRUCTURED_REPLY, &[])?;
        let query = [&1u32.to_be_bytes()[..], &named(BASE_ALLOCATION)].concat();
        self.option(NBD_OPT_SET_META_CONTEXT, &[named(&name), query].concat())?;
        let export = self.ask(NBD_OPT_GO, &name)?;
        Ok(Allocation { remote: self, size: export.size })
    }
}

/// Returns a string after its length.
fn named(name: &[u8]) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes()[..], name].concat()
}

/// Returns the volume that the answer to `NBD_OPT_INFO` or `NBD_OPT_GO` describes.
fn export(replies: &[Reply]) -> Option<Export> {
    let info = |wanted: u16| {
        let infos = replies.iter().filter(|(kind, _)| *kind == NBD_REP_INFO);
        let mut data = infos.filter_map(|(_, data)| data.split_first_chunk());
        data.find_map(|(kind, rest)| (u16::from_be_bytes(*kind) == wanted).then_some(rest))
    };
    let (size, rest) = info(NBD_INFO_EXPORT)?.split_first_chunk()?;
    let flags = u16::from_be_bytes(*rest.first_chunk()?);
    let payload = u32::from_be_bytes(*info(NBD_INFO_BLOCK_SIZE)?.last_chunk()?);
    Some(Export { size: u64::from_be_bytes(*size), flags, payload })
}

/// A connection that tells which ranges of a volume hold data.
pub(crate) struct Allocation {
    remote: Remote,
    size: u64,
}

impl Allocation {
    /// Returns the first position at or after `from` that may hold data. `None`: there is none.
    pub(crate) fn first_data(&mut self, mut from: u64) -> Result<Option<u64>> {
        while from < self.size {
            let found = self.ranges(from)?;
            for (len, state) in found {
                if state & NBD_STATE_ZERO == 0 {
                    return Ok(Some(from));
                }
                from += u64::from(len);
            }
        }
        Ok(None)
    }

    /// Returns lengths and states of the ranges from a position on, at least one.
    fn ranges(&mut self, from: u64) -> Result<Vec<(u32, u32)>> {
        let len = (self.size - from).min(ASKED) as u32;
        let head = [NBD_REQUEST_MAGIC.to_be_bytes(), u32::from(NBD_CMD_BLOCK_STATUS).to_be_bytes()];
        let place = [0u64.to_be_bytes(), from.to_be_bytes()];
        let request = [head.as_flattened(), place.as_flattened(), &len.to_be_bytes()].concat();
        self.remote.socket.write_all(&request)?;
        let mut found = Vec::new();
        loop {
            let magic = self.remote.u32()?;
            ensure!(magic == NBD_STRUCTURED_REPLY_MAGIC, "an answer of another kind");
            let (flags, kind) = (self.remote.u16()?, self.remote.u16()?);
            let (_, len) = (self.remote.u64()?, self.remote.u32()? as usize);
            ensure!(len <= CHUNK, "an answer of {len} bytes");
            let mut data = vec![0; len];
            self.remote.socket.read_exact(&mut data)?;
            ensure!(kind >> 15 == 0, "the volume can't be read");
            if kind == NBD_REPLY_TYPE_BLOCK_STATUS {
                found.extend(states(&data)?);
            }
            if flags & NBD_REPLY_FLAG_DONE != 0 {
                break;
            }
        }
        ensure!(found.iter().any(|(len, _)| *len > 0), "an answer without ranges");
        Ok(found)
    }
}

/// Returns the lengths and states in a chunk, after the number of the context.
fn states(chunk: &[u8]) -> Result<impl Iterator<Item = (u32, u32)>> {
    let (_, pairs) = chunk.split_first_chunk::<4>().context("an answer that is cut off")?;
    let (pairs, rest) = pairs.as_chunks::<8>();
    ensure!(rest.is_empty(), "an answer that is cut off");
    let word = |bytes: &[u8]| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    Ok(pairs.iter().map(move |pair| (word(&pair[..4]), word(&pair[4..]))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::thread;

    const UUID: &str = "01234567-89ab-8cde-bc00-000000000007";

    fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
        let head = [option, kind, data.len() as u32].map(u32::to_be_bytes);
        [&OPTION_REPLY_MAGIC.to_be_bytes()[..], head.as_flattened(), data].concat()
    }

    fn listed(name: &str, uuid: &str) -> Vec<u8> {
        reply(NBD_OPT_LIST, NBD_REP_SERVER, &[&named(name.as_bytes()), uuid.as_bytes()].concat())
    }

    /// Answers one connection with these bytes, and dials it. The answers don't depend on what is
    /// asked.
    fn dialled<T>(name: &str, answers: Vec<u8>, then: impl FnOnce(Remote) -> T) -> T {
        let path = std::env::temp_dir().join(format!("gabion-{name}-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let greeting = [&NBDMAGIC.to_be_bytes()[..], &IHAVEOPT.to_be_bytes(), &[0, 3]].concat();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&greeting).unwrap();
            stream.write_all(&answers).unwrap();
            // Until it hangs up, which may leave answers unread.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let done = then(Remote::dial(&ListenAddr::Unix(path.clone())).unwrap());
        server.join().unwrap();
        daemon::files::remove(&path).unwrap();
        done
    }

    #[test]
    fn a_volume_is_found_by_its_uuid_and_not_by_its_name() {
        let other = UUID.replace('7', "8");
        let list = [listed("a", &other), listed("b", UUID), reply(3, NBD_REP_ACK, &[])].concat();
        let size = [&NBD_INFO_EXPORT.to_be_bytes()[..], &4096u64.to_be_bytes(), &[1, 1]].concat();
        let block = [&[0, 3][..], &[0; 8], &(1u32 << 20).to_be_bytes()].concat();
        let info = |data: &[u8]| reply(NBD_OPT_INFO, NBD_REP_INFO, data);
        let told = [list, info(&size), info(&block), reply(6, NBD_REP_ACK, &[])].concat();
        let found = dialled("found", told, |remote| remote.look(UUID)).unwrap();
        assert_eq!(found, Export { size: 4096, flags: 0x101, payload: 1 << 20 });
    }

    #[test]
    fn a_volume_of_another_cluster_is_not_taken() {
        let other = UUID.replace("0123", "0124");
        let list = [listed("b", &other), reply(3, NBD_REP_ACK, &[])].concat();
        let error = dialled("other", list, |remote| remote.look(UUID)).unwrap_err();
        assert!(format!("{error:#}").contains("gabion volume map"), "{error:#}");
        let error = dialled("error", reply(3, 1 << 31 | 7, b"it stops"), |r| r.look(UUID));
        assert!(format!("{:#}", error.unwrap_err()).contains("it stops"));
    }

    #[test]
    fn ranges_without_data_are_skipped() {
        let chunk = |pairs: &[[u32; 2]]| {
            let bytes: Vec<u8> = pairs.iter().flatten().flat_map(|n| n.to_be_bytes()).collect();
            let head = [NBD_STRUCTURED_REPLY_MAGIC.to_be_bytes(), [0, 1, 0, 5]];
            let len = (bytes.len() as u32 + 4).to_be_bytes();
            [head.as_flattened(), &[0; 8], &len, &[0, 0, 0, 1], &bytes].concat()
        };
        let size = [&[0, 0][..], &(1u64 << 20).to_be_bytes(), &[1, 1]].concat();
        let block = [&[0, 3][..], &[0; 8], &(1u32 << 20).to_be_bytes()].concat();
        let told = [
            listed("b", UUID),
            reply(3, NBD_REP_ACK, &[]),
            reply(NBD_OPT_STRUCTURED_REPLY, NBD_REP_ACK, &[]),
            reply(NBD_OPT_SET_META_CONTEXT, NBD_REP_META_CONTEXT, b"\0\0\0\x01base:allocation"),
            reply(NBD_OPT_SET_META_CONTEXT, NBD_REP_ACK, &[]),
            reply(NBD_OPT_GO, NBD_REP_INFO, &size),
            reply(NBD_OPT_GO, NBD_REP_INFO, &block),
            reply(NBD_OPT_GO, NBD_REP_ACK, &[]),
            chunk(&[[4096, 3], [8192, 2], [4096, 0], [4096, 3]]),
            chunk(&[[1 << 19, 3]]),
            chunk(&[[(1 << 19) - 16384, 3]]),
        ];
        dialled("ranges", told.concat(), |remote| {
            let mut allocation = remote.allocation(UUID).unwrap();
            assert_eq!(allocation.first_data(0).unwrap(), Some(12288));
            assert_eq!(allocation.first_data(16384).unwrap(), None);
        });
        assert!(states(&[0; 7]).is_err() && states(&[0; 3]).is_err());
    }
}

//! The virtual machine's side of a virtio disk: a vhost-user frontend, and the driver of one split
//! queue. The machine's memory is a file, which this process reads and writes with system calls.
//!
//! Names and numbers are those of the specifications of virtio (1.2) and of vhost-user (QEMU).

use super::Ask;
use super::local::{Disk, LOOK};
use crate::tally::Side;
use anyhow::{Context, Result, bail, ensure};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::File;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Messages of the frontend.
const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const SET_OWNER: u32 = 3;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const GET_PROTOCOL_FEATURES: u32 = 15;
const SET_PROTOCOL_FEATURES: u32 = 16;
const SET_VRING_ENABLE: u32 = 18;
/// The version of a message's flags, and the flag that asks for an acknowledgement.
const VERSION: u32 = 1;
const NEED_REPLY: u32 = 1 << 3;

/// `VIRTIO_F_VERSION_1`, `VIRTIO_F_RING_EVENT_IDX` and `VHOST_USER_F_PROTOCOL_FEATURES`.
const FEATURES: u64 = 1 << 32 | 1 << 29 | 1 << 30;
/// `VHOST_USER_PROTOCOL_F_REPLY_ACK`.
const PROTOCOL_FEATURES: u64 = 1 << 3;

const DESC_F_NEXT: u16 = 1;
const DESC_F_WRITE: u16 = 2;
const BLK_T_IN: u32 = 0;
const BLK_T_OUT: u32 = 1;
const BLK_S_OK: u8 = 0;
const SECTOR: u64 = 512;

/// Descriptors of the queue. A request takes three.
const SIZE: u16 = 256;
/// Most requests under way.
const DEPTH: u16 = SIZE / 4;
/// The first address of the machine's memory, in the machine and in this process.
const GUEST: u64 = 1 << 20;
const USER: u64 = 1 << 46;
/// Places in the memory: the descriptors are first, then come the rings and the requests.
const AVAILABLE: u64 = 0x4000;
const USED: u64 = 0x8000;
const REQUESTS: u64 = 0x1_0000;
/// Bytes of a request: its head, its status, and its data on pages of its own.
const REQUEST: u64 = 2 << 12;
const STATUS: u64 = 0x80;
const DATA: u64 = 1 << 12;

/// A virtual machine with one disk.
pub struct Vhost {
    memory: File,
    /// Keeps the connection.
    _channel: UnixStream,
    kick: OwnedFd,
    call: OwnedFd,
    /// The next indices of the available ring and of the used ring.
    offered: u16,
    seen: u16,
    /// The index of the available ring that the device was told of last.
    told: u16,
}

impl Vhost {
    /// Attaches the disk at this socket, for requests of up to 4 KiB.
    ///
    /// # Errors
    /// Nobody listens there, or a message is refused.
    pub fn attach(socket: &Path) -> Result<Vhost> {
        let channel = UnixStream::connect(socket)
            .with_context(|| format!("can't connect to {}", socket.display()))?;
        channel.set_read_timeout(Some(Duration::from_secs(30)))?;
        let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC)?);
        let len = REQUESTS + REQUEST * u64::from(DEPTH);
        memory.set_len(len)?;
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (kick, call) = (event()?, event()?);
        let offered = number(&channel, GET_FEATURES)?;
        ensure!(offered & FEATURES == FEATURES, "the disk offers features {offered:#x} only");
        say(&channel, SET_OWNER, 0, &[], None)?;
        let offered = number(&channel, GET_PROTOCOL_FEATURES)?;
        ensure!(offered & PROTOCOL_FEATURES != 0, "the disk does not acknowledge messages");
        say(&channel, SET_PROTOCOL_FEATURES, 0, &[PROTOCOL_FEATURES], None)?;
        order(&channel, SET_FEATURES, &[FEATURES], None)?;
        order(&channel, SET_MEM_TABLE, &[1, GUEST, len, USER, 0], Some(memory.as_fd()))?;
        // A state of the queue is its index and a number, 32 bits each.
        let state = |value: u64| value << 32;
        order(&channel, SET_VRING_NUM, &[state(SIZE.into())], None)?;
        order(&channel, SET_VRING_BASE, &[state(0)], None)?;
        order(&channel, SET_VRING_ADDR, &[0, USER, USER + USED, USER + AVAILABLE, 0], None)?;
        order(&channel, SET_VRING_KICK, &[0], Some(kick.as_fd()))?;
        order(&channel, SET_VRING_CALL, &[0], Some(call.as_fd()))?;
        order(&channel, SET_VRING_ENABLE, &[state(1)], None)?;
        let (offered, seen, told) = (0, 0, 0);
        Ok(Vhost { memory, _channel: channel, kick, call, offered, seen, told })
    }

    fn poke(&self, at: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.memory.write_all_at(bytes, at)?)
    }

    fn peek<const N: usize>(&self, at: u64) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.memory.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }

    fn index(&self, at: u64) -> Result<u16> {
        Ok(u16::from_le_bytes(self.peek(at)?))
    }

    /// Waits a moment until the device has used more, and asks it to tell of the next request.
    fn await_used(&self) -> Result<u16> {
        self.poke(AVAILABLE + 4 + 2 * u64::from(SIZE), &self.seen.to_le_bytes())?;
        let used = self.index(USED + 2)?;
        if used != self.seen {
            return Ok(used);
        }
        let limit = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
        if poll(&mut [PollFd::new(&self.call, PollFlags::IN)], Some(&limit))? > 0 {
            rustix::io::read(&self.call, &mut [0; 8])?;
        }
        self.index(USED + 2)
    }
}

impl Disk for Vhost {
    fn start(&mut self, ask: Ask) -> Result<()> {
        let slot = ask.slot as u16;
        ensure!(slot < DEPTH && u64::from(ask.len) <= DATA, "the queue has no room for {ask:?}");
        let (kind, write) = match ask.side {
            Side::Read => (BLK_T_IN, DESC_F_WRITE),
            Side::Write => (BLK_T_OUT, 0),
        };
        let (at, first) = (REQUESTS + REQUEST * u64::from(slot), 4 * slot);
        let head = [u64::from(kind), ask.at / SECTOR].map(u64::to_le_bytes).concat();
        self.poke(at, &head)?;
        self.poke(at + STATUS, &[0xff])?;
        let chain = [
            descriptor(at, 16, DESC_F_NEXT, first + 1),
            descriptor(at + DATA, ask.len, DESC_F_NEXT | write, first + 2),
            descriptor(at + STATUS, 1, DESC_F_WRITE, 0),
        ];
        self.poke(16 * u64::from(first), &chain.concat())?;
        self.poke(AVAILABLE + 4 + 2 * u64::from(self.offered % SIZE), &first.to_le_bytes())?;
        self.offered = self.offered.wrapping_add(1);
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        let (old, new) = (self.told, self.offered);
        if old == new {
            return Ok(());
        }
        self.poke(AVAILABLE + 2, &new.to_le_bytes())?;
        self.told = new;
        // The device is kicked if it wants to know of one of these requests.
        let wanted = self.index(USED + 4 + 8 * u64::from(SIZE))?;
        if wanted.wrapping_sub(old) < new.wrapping_sub(old) {
            rustix::io::write(&self.kick, &1u64.to_ne_bytes())?;
        }
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<u32>) -> Result<()> {
        let used = self.await_used()?;
        while self.seen != used {
            let entry: [u8; 8] = self.peek(USED + 4 + 8 * u64::from(self.seen % SIZE))?;
            let slot = u16::from_le_bytes([entry[0], entry[1]]) / 4;
            let [status] = self.peek(REQUESTS + REQUEST * u64::from(slot) + STATUS)?;
            if status != BLK_S_OK {
                bail!("a request of the virtual machine failed with status {status}");
            }
            self.seen = self.seen.wrapping_add(1);
            ended.push(slot.into());
        }
        Ok(())
    }
}

/// Sends a message, with a file descriptor if there is one.
fn say(
    channel: &UnixStream,
    request: u32,
    flags: u32,
    words: &[u64],
    file: Option<BorrowedFd<'_>>,
) -> Result<()> {
    let head = [request, VERSION | flags, 8 * words.len() as u32].map(u32::to_le_bytes).concat();
    let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let message = [head, body].concat();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|file| [file]);
    if let Some(files) = &files {
        ensure!(beside.push(SendAncillaryMessage::ScmRights(files)), "no room for a descriptor");
    }
    let sent = sendmsg(channel, &[IoSlice::new(&message)], &mut beside, SendFlags::NOSIGNAL)?;
    ensure!(sent == message.len(), "the socket took a part of a message only");
    Ok(())
}

/// Receives the answer to a message, which is a number.
fn answer(mut channel: &UnixStream, request: u32) -> Result<u64> {
    let mut message = [0; 20];
    channel.read_exact(&mut message).context("the disk has closed the connection")?;
    let (head, body) = message.split_at(12);
    ensure!(head[..4] == request.to_le_bytes(), "the disk has answered another message");
    Ok(u64::from_le_bytes(body.try_into().expect("eight bytes")))
}

/// Asks for a number.
fn number(channel: &UnixStream, request: u32) -> Result<u64> {
    say(channel, request, 0, &[], None)?;
    answer(channel, request)
}

/// Sends a message that the disk has to accept.
fn order(
    channel: &UnixStream,
    request: u32,
    words: &[u64],
    file: Option<BorrowedFd<'_>>,
) -> Result<()> {
    say(channel, request, NEED_REPLY, words, file)?;
    ensure!(answer(channel, request)? == 0, "the disk has refused message {request}");
    Ok(())
}

/// Returns a descriptor for bytes at an offset in the machine's memory.
fn descriptor(at: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&(GUEST + at).to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}

//! The state behind a cluster's handle: a data client, its reactor, and the outstanding requests.
//!
//! Invariants:
//! - A slot is in use from the start of a request until the caller has its completion. Nothing here
//!   grows: the memory for all requests and completions is allocated at the start.
//! - The caller's memory is written only while the caller is inside a call.

use crate::failure::{Failure, errno};
use crate::name::Name;
use crate::{gabion_completion, gabion_volume_info};
use base::{BLOCK, Limits, SECTOR, Time, VolumeId};
use node::sdc::{Sdc, SdcConfig};
use rt::{Reactor, RtError};
use seam::{BlockError, BlockKind, BlockRequest, Buf, Note, RequestId};
use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The number of a request that only makes the node end a batch. Its answer is ignored.
const NUDGE: RequestId = RequestId(u64::MAX);
/// How long opening a volume may wait for the newest map if there is an older one.
const REFRESH: Duration = Duration::from_secs(1);
/// Longest wait of one round while the caller waits for something other than completions.
const LOOK: Duration = Duration::from_millis(20);
/// The one node of the reactor.
const SEAT: usize = 0;

/// Callback for the notes of nodes.
type OnNote = Box<dyn FnMut(usize, Time, Note)>;

/// Settings for opening a cluster.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) mdm: Vec<SocketAddr>,
    pub(crate) name: Name,
    pub(crate) backend: rt::Backend,
    pub(crate) queue_depth: u32,
    pub(crate) timeout: Duration,
}

/// A volume as it was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    id: VolumeId,
    /// The generation at which the client's permission to use the volume began.
    since: u32,
}

/// The error for requests of a handle that was opened with an earlier permission. Others may have
/// written since then, and the caller may rely on the old content.
const FENCED: Failure = Failure::plain(
    libc::ESTALE,
    c"the volume was unmapped from this client after it was opened, and others may have written to \
      it: open it again",
);

/// The caller's memory for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory {
    /// A read stores its data here.
    Into(*mut u8),
    /// A write takes its data from here.
    From(*const u8),
    /// None.
    None,
}

/// An outstanding request.
#[derive(Clone, Copy, Debug)]
struct Slot {
    user: *mut c_void,
    into: *mut u8,
    len: u32,
}

/// An open cluster.
pub(crate) struct Context {
    reactor: Reactor<Sdc, OnNote>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Completed slots with their results that the caller has not taken yet.
    ready: VecDeque<(u32, i64)>,
    timeout: Duration,
    _name: Name,
}

fn failed(error: RtError) -> Failure {
    let code = match &error {
        RtError::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        RtError::NoUring { .. } => libc::ENOSYS,
        _ => libc::EIO,
    };
    Failure::new(code, error.to_string())
}

fn random() -> Result<u64, Failure> {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => Ok(u64::from_ne_bytes(bytes)),
        _ => Err(Failure::plain(libc::EIO, c"the kernel gives no random numbers")),
    }
}

impl Context {
    /// Connects to the cluster as a client. Returns when an MDM has accepted it.
    pub(crate) fn open(settings: Settings) -> Result<Context, Failure> {
        let shard = rt::Shard::bind(rt::Config {
            backend: settings.backend,
            seed: random()?,
            ..rt::Config::default()
        })
        .map_err(failed)?;
        let sdc = Sdc::new(SdcConfig::program(
            settings.name.text.clone(),
            settings.mdm.clone(),
            random()?,
            std::process::id(),
        ));
        let refusal = Rc::new(Cell::new(None));
        let tell = refusal.clone();
        let on_note: OnNote = Box::new(move |_, _, note| {
            if let Note::Refused { why, .. } | Note::Malformed { why, .. } = note {
                tell.set(Some(why));
            }
        });
        let depth = settings.queue_depth;
        let free = Slot { user: std::ptr::null_mut(), into: std::ptr::null_mut(), len: 0 };
        let mut context = Context {
            reactor: shard.start(vec![sdc], on_note).map_err(failed)?,
            slots: vec![free; depth as usize],
            free: (0..depth).rev().collect(),
            ready: VecDeque::with_capacity(depth as usize),
            timeout: settings.timeout,
            _name: settings.name,
        };
        if context.turn_until(settings.timeout, |sdc| sdc.is_ready())? {
            return Ok(context);
        }
        let mdm: Vec<String> = settings.mdm.iter().map(SocketAddr::to_string).collect();
        let (mdm, timeout) = (mdm.join(", "), settings.timeout);
        Err(Failure::new(
            libc::ETIMEDOUT,
            match refusal.get() {
                Some(why) => format!("no MDM at {mdm} took us within {timeout:?}: {why}"),
                None => format!(
                    "no MDM answered at {mdm} within {timeout:?}: is the cluster up (`gabion status \
                     --mdm ADDRESS`), and is this its MDM's address?"
                ),
            },
        ))
    }

    /// Returns the volume of this name, by the newest map that is available.
    pub(crate) fn find(&mut self, name: &str) -> Result<Opened, Failure> {
        let asked = self.reactor.node(SEAT).refresh();
        let kind = BlockKind::Flush;
        let nudge = BlockRequest { volume: VolumeId(0), kind, at: 0, len: 0, body: Buf::EMPTY };
        self.reactor.request(SEAT, NUDGE, nudge);
        let fresh = self.turn_until(self.timeout.min(REFRESH), |sdc| sdc.refreshed() >= asked)?;
        let sdc = self.reactor.node(SEAT);
        let found = sdc.volume_by_name(name).and_then(|(id, volume)| {
            let since = sdc.map().my_grant(volume)?.since;
            Some(Opened { id, since })
        });
        match found {
            Some(opened) => {
                self.reactor.node(SEAT).hold(opened.id);
                self.reactor.withdraw(SEAT, &[]); // makes the node look
                self.reactor.turn(Some(Duration::ZERO)).map_err(failed)?;
                self.harvest();
                Ok(opened)
            }
            None if fresh => Err(Failure::new(
                libc::ENOENT,
                format!(
                    "there is no volume `{name}`: `gabion volume list` shows those that exist, \
                     `gabion volume create {name} SIZE` makes it"
                ),
            )),
            None => Err(Failure::new(
                libc::ETIMEDOUT,
                format!(
                    "there is no volume `{name}` as far as is known, and the MDM does not answer: \
                     `gabion status` tells how the cluster does"
                ),
            )),
        }
    }

    /// Records that a volume is not open any more. The MDM hears of it with the next call.
    pub(crate) fn close(&mut self, volume: Opened) {
        self.reactor.node(SEAT).release(volume.id);
        self.reactor.withdraw(SEAT, &[]);
    }

    /// Returns the present properties of a volume.
    pub(crate) fn info(&mut self, volume: Opened) -> Result<gabion_volume_info, Failure> {
        let volume = self.reactor.node(SEAT).map().volumes.get(&volume.id);
        let gone = Failure::plain(libc::ENOENT, c"the volume was deleted");
        Ok(gabion_volume_info {
            size: volume.ok_or(gone)?.size,
            sector: SECTOR,
            block: BLOCK,
            max_transfer: Limits::SHIPPED.nbd_payload,
            reserved: 0,
        })
    }

    /// Starts a request.
    ///
    /// # Safety
    /// The memory has `len` bytes; memory that is read into stays valid until the completion.
    #[inline]
    pub(crate) unsafe fn start(
        &mut self,
        volume: Opened,
        kind: BlockKind,
        at: u64,
        len: usize,
        memory: Memory,
        user: *mut c_void,
    ) -> Result<(), Failure> {
        let len = checked(kind, at, len, memory)?;
        if self.is_fenced(volume) {
            return Err(FENCED);
        }
        let Some(slot) = self.free.pop() else {
            let text =
                c"as many requests as queue_depth allows are outstanding: poll, then try again";
            return Err(Failure::plain(libc::EAGAIN, text));
        };
        let (mut into, mut body) = (std::ptr::null_mut(), Buf::EMPTY);
        match memory {
            Memory::From(data) if len > 0 => {
                body = self.reactor.alloc(len as usize);
                // SAFETY: the caller promises it.
                let data = unsafe { std::slice::from_raw_parts(data, len as usize) };
                body.as_mut().copy_from_slice(data);
            }
            Memory::Into(to) => into = to,
            _ => {}
        }
        self.slots[slot as usize] = Slot { user, into, len };
        let request = BlockRequest { volume: volume.id, kind, at, len, body };
        self.reactor.request(SEAT, RequestId(slot.into()), request);
        Ok(())
    }

    /// Returns true if the client's permission is later than the one with which the volume was
    /// opened. A request would be sent with the present permission, and so pass the fence.
    #[inline]
    fn is_fenced(&mut self, volume: Opened) -> bool {
        let map = self.reactor.node(SEAT).map();
        let now = map.volumes.get(&volume.id).and_then(|volume| map.my_grant(volume));
        now.is_some_and(|now| now.since != volume.since)
    }

    /// Sends started requests, and takes up to `out.len()` completions; waits for `min` of them.
    pub(crate) fn poll(
        &mut self,
        out: &mut [std::mem::MaybeUninit<gabion_completion>],
        min: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, Failure> {
        // Completions that are there already go first. The caller processes them and starts more
        // requests; all of those are sent in one batch with the next turn, when none is left here.
        let mut n = self.take(out);
        if n > 0 && n == out.len() {
            return Ok(n);
        }
        let start = Instant::now();
        loop {
            self.harvest();
            n += self.take(&mut out[n..]);
            let left = match timeout {
                _ if n >= min || self.is_idle() => Some(Duration::ZERO),
                Some(timeout) => Some(timeout.saturating_sub(start.elapsed())),
                None => None,
            };
            self.reactor.turn(left).map_err(failed)?;
            self.harvest();
            n += self.take(&mut out[n..]);
            if n >= min || self.is_idle() || left.is_some_and(|left| left.is_zero()) {
                return Ok(n);
            }
        }
    }

    /// Returns the descriptor that becomes readable when `poll` has something to do, after `arm`.
    pub(crate) fn fd(&self) -> c_int {
        self.reactor.fd().as_raw_fd()
    }

    /// Sends started requests. Returns true if there is nothing to do until `fd` is readable.
    pub(crate) fn arm(&mut self) -> Result<bool, Failure> {
        self.harvest();
        let armed = self.reactor.arm().map_err(failed)?;
        self.harvest();
        Ok(armed && self.ready.is_empty())
    }

    /// Runs the reactor until the condition holds. Returns false if the time limit has passed.
    fn turn_until(
        &mut self,
        limit: Duration,
        mut is_true: impl FnMut(&Sdc) -> bool,
    ) -> Result<bool, Failure> {
        let start = Instant::now();
        loop {
            if is_true(self.reactor.node(SEAT)) {
                return Ok(true);
            }
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            self.reactor.turn(Some(left.min(LOOK))).map_err(failed)?;
            self.harvest();
        }
    }

    /// Turns answers into completions.
    fn harvest(&mut self) {
        for (id, result) in self.reactor.answers() {
            if id == NUDGE {
                continue;
            }
            let result = match result {
                Ok(data) => complete(self.slots[id.0 as usize], &data),
                Err(error) => -i64::from(errno(error)),
            };
            self.ready.push_back((id.0 as u32, result));
        }
    }

    /// Returns true if the completions of all requests were taken.
    fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    fn take(&mut self, out: &mut [std::mem::MaybeUninit<gabion_completion>]) -> usize {
        let n = out.len().min(self.ready.len());
        for (to, (slot, result)) in out.iter_mut().zip(self.ready.drain(..n)) {
            to.write(gabion_completion { user: self.slots[slot as usize].user, result });
            self.free.push(slot);
        }
        n
    }
}

/// Copies a read's data to the caller's memory, and returns the result of the request.
fn complete(slot: Slot, data: &[u8]) -> i64 {
    if !slot.into.is_null() {
        if data.len() != slot.len as usize {
            return -i64::from(errno(BlockError::Media));
        }
        // SAFETY: the caller of `start` promises this much memory until the completion, and it does
        // not overlap with memory of this library.
        unsafe { slot.into.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
    }
    slot.len.into()
}

/// Returns the length if the request is valid as far as can be said without the volume.
#[inline]
fn checked(kind: BlockKind, at: u64, len: usize, memory: Memory) -> Result<u32, Failure> {
    let sector = u64::from(SECTOR);
    if !at.is_multiple_of(sector) || !(len as u64).is_multiple_of(sector) {
        return Err(Failure::invalid(format!(
            "offset {at} and length {len} must be multiples of {SECTOR}"
        )));
    }
    let null = match memory {
        Memory::From(from) => from.is_null(),
        Memory::Into(into) => into.is_null(),
        Memory::None => false,
    };
    if null && len > 0 {
        return Err(Failure::plain(libc::EINVAL, c"the buffer is NULL"));
    }
    let most = match kind {
        BlockKind::Read | BlockKind::Write => Limits::SHIPPED.nbd_payload,
        _ => u32::MAX,
    };
    match u32::try_from(len) {
        Ok(len) if len <= most => Ok(len),
        _ => Err(Failure::invalid(format!(
            "{len} bytes are more than one request may have here: split it into parts of {most} at most"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_checked_before_anything_happens() {
        let (read, zero) = (BlockKind::Read, BlockKind::Zero { hole: true });
        let memory = Memory::Into(std::ptr::dangling_mut());
        let text = |r: Result<u32, Failure>| r.unwrap_err().text().to_str().unwrap().to_owned();
        assert_eq!(checked(read, 512, 1024, memory), Ok(1024));
        assert_eq!(checked(read, 0, 32 << 20, memory), Ok(32 << 20));
        assert!(text(checked(read, 0, (32 << 20) + 512, memory)).contains("split"));
        assert_eq!(checked(zero, 0, 1 << 31, Memory::None), Ok(1 << 31));
        assert!(text(checked(zero, 0, 1 << 32, Memory::None)).contains("split"));
        assert!(text(checked(read, 1, 512, memory)).contains("multiples of 512"));
        assert!(text(checked(read, 0, 100, memory)).contains("multiples of 512"));
        let null = Memory::From(std::ptr::null());
        assert!(text(checked(BlockKind::Write, 0, 512, null)).contains("NULL"));
        assert_eq!(checked(BlockKind::Write, 0, 0, null), Ok(0));
    }
}

//! Whether a call may go on: is the handle one of ours, are we in its thread and its process, is the
//! context in order. And the net under each call: a panic ends here.
//!
//! What can't be checked is a handle whose memory was given back and used again. What is looked at
//! before the owner is known never changes, so a call from a wrong thread is refused without a race.

use crate::cluster::gabion_cluster;
use crate::context::Context;
use crate::failure::{Failure, keep};
use crate::volume::gabion_volume;
use base::VolumeId;
use std::borrow::Cow;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Marks memory as a handle of a cluster, and of a volume.
pub(crate) const CLUSTER: u64 = 0x6761_6269_6f6e_6331;
pub(crate) const VOLUME: u64 = 0x6761_6269_6f6e_7631;

const NO_CLUSTER: Failure =
    Failure::plain(libc::EBADF, c"not an open cluster: use what gabion_cluster_open has given");
const NO_VOLUME: Failure =
    Failure::plain(libc::EBADF, c"not an open volume: use what gabion_volume_open has given");
const NOT_HERE: Failure = Failure::plain(
    libc::EPERM,
    c"another thread, or the parent of this process, has opened this cluster: open one here",
);
const POISONED: Failure = Failure::plain(
    libc::ENOTRECOVERABLE,
    c"the library has failed here before: close the cluster and open it anew",
);

/// How often this process has come out of a fork.
static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

thread_local! {
    static HERE: u8 = const { 0 };
}

/// Tells threads apart that live at the same time.
fn thread() -> usize {
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// Who may use a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    thread: usize,
    forks: u64,
}

impl Owner {
    /// The present thread of the present process.
    pub(crate) fn here() -> Owner {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: the handler touches an atomic only, which a child may do.
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        });
        Owner { thread: thread(), forks: FORKS.load(Ordering::Relaxed) }
    }

    fn is_here(self) -> bool {
        self == Owner { thread: thread(), forks: FORKS.load(Ordering::Relaxed) }
    }
}

/// What only the owner looks at.
pub(crate) struct Inside {
    pub(crate) context: Context,
    poisoned: bool,
    error: Cow<'static, CStr>,
}

impl Inside {
    pub(crate) fn new(context: Context) -> UnsafeCell<Inside> {
        UnsafeCell::new(Inside { context, poisoned: false, error: Cow::Borrowed(c"") })
    }
}

/// The cluster behind a pointer, when it is one.
unsafe fn cluster_of<'a>(cluster: *const gabion_cluster) -> Option<&'a gabion_cluster> {
    if cluster.is_null() || !cluster.is_aligned() {
        return None;
    }
    // SAFETY: the caller of the C function promises that it is a handle.
    (unsafe { (&raw const (*cluster).mark).read_volatile() } == CLUSTER).then(|| {
        // SAFETY: it is marked.
        unsafe { &*cluster }
    })
}

/// The cluster, when this is the place to use it; the words are kept for the thread when not.
pub(crate) unsafe fn check<'a>(
    cluster: *const gabion_cluster,
) -> Result<&'a gabion_cluster, c_int> {
    // SAFETY: passed on.
    let Some(cluster) = (unsafe { cluster_of(cluster) }) else { return Err(keep(NO_CLUSTER)) };
    if !cluster.owner.is_here() {
        return Err(keep(NOT_HERE));
    }
    Ok(cluster)
}

/// Makes a call on a cluster.
#[inline]
pub(crate) unsafe fn enter<R>(
    cluster: *const gabion_cluster,
    call: impl FnOnce(&mut Context) -> Result<R, Failure>,
) -> Result<R, c_int> {
    // SAFETY: passed on.
    let cluster = unsafe { check(cluster) }?;
    // SAFETY: this is the one thread that may, and no function of the library calls another one, or
    // the caller's code, while it holds this.
    let inside = unsafe { &mut *cluster.inside.get() };
    let failure = if inside.poisoned {
        POISONED
    } else {
        match catch_unwind(AssertUnwindSafe(|| call(&mut inside.context))) {
            Ok(Ok(result)) => return Ok(result),
            Ok(Err(failure)) => failure,
            Err(panic) => {
                inside.poisoned = true;
                panicked(&*panic)
            }
        }
    };
    inside.error = Cow::Owned(failure.text().to_owned());
    Err(-failure.code)
}

/// Makes a call on a volume.
#[inline]
pub(crate) unsafe fn enter_volume<R>(
    volume: *const gabion_volume,
    call: impl FnOnce(&mut Context, VolumeId) -> Result<R, Failure>,
) -> Result<R, c_int> {
    if volume.is_null() || !volume.is_aligned() {
        return Err(keep(NO_VOLUME));
    }
    // SAFETY: the caller of the C function promises that it is a handle.
    if unsafe { (&raw const (*volume).mark).read_volatile() } != VOLUME {
        return Err(keep(NO_VOLUME));
    }
    // SAFETY: it is marked, and never changes while it is open.
    let volume = unsafe { &*volume };
    // SAFETY: passed on.
    unsafe { enter(volume.cluster, |context| call(context, volume.id)) }
}

/// Makes a call that has no cluster.
pub(crate) fn catch<R>(call: impl FnOnce() -> Result<R, Failure>) -> Result<R, c_int> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(keep),
        Err(panic) => Err(keep(panicked(&*panic))),
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Failure {
    let words = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let words = words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    Failure::new(
        libc::EIO,
        format!(
            "a bug in libgabion: {words}. Close the cluster and open it anew, and please report this"
        ),
    )
}

/// The words of a cluster's last failure, where they may be looked at.
pub(crate) unsafe fn last_error(cluster: *const gabion_cluster) -> Option<*const c_char> {
    // SAFETY: passed on.
    let cluster = unsafe { cluster_of(cluster) }.filter(|c| c.owner.is_here())?;
    // SAFETY: as in `enter`.
    Some(unsafe { &*cluster.inside.get() }.error.as_ptr())
}

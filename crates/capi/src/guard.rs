//! Checks before each call that the handle belongs to this library, that the call comes from the
//! right thread and process, and that the context is usable. Catches panics of each call.
//!
//! It can't detect a handle whose memory was freed and reused. Fields that are read before the
//! owner is known never change, so a call from a wrong thread is refused without a data race.

use crate::context::{Context, Opened};
use crate::failure::{Failure, keep};
use crate::handle::{CLUSTER, VOLUME, gabion_cluster, gabion_volume};
use std::borrow::Cow;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

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

/// Returns the cluster behind a pointer, if it is one.
unsafe fn cluster_of<'a>(cluster: *const gabion_cluster) -> Option<&'a gabion_cluster> {
    if cluster.is_null() || !cluster.is_aligned() {
        return None;
    }
    // SAFETY: the caller of the C function promises that it is a handle.
    (unsafe { (&raw const (*cluster).mark).read_volatile() } == CLUSTER).then(|| {
        // SAFETY: it has the mark.
        unsafe { &*cluster }
    })
}

/// Returns the cluster if it may be used here. Otherwise stores the message for the thread.
pub(crate) unsafe fn check<'a>(
    cluster: *const gabion_cluster,
) -> Result<&'a gabion_cluster, c_int> {
    // SAFETY: the caller promises the same.
    let Some(cluster) = (unsafe { cluster_of(cluster) }) else { return Err(keep(NO_CLUSTER)) };
    if !cluster.owner.is_here() {
        return Err(keep(NOT_HERE));
    }
    Ok(cluster)
}

/// Runs a call on a cluster.
#[inline]
pub(crate) unsafe fn enter<R>(
    cluster: *const gabion_cluster,
    call: impl FnOnce(&mut Context) -> Result<R, Failure>,
) -> Result<R, c_int> {
    // SAFETY: the caller promises the same.
    let cluster = unsafe { check(cluster) }?;
    // SAFETY: only this thread may access it, and no function of the library calls another one, or
    // the caller's code, while it holds this reference.
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

/// Runs a call on a volume.
#[inline]
pub(crate) unsafe fn enter_volume<R>(
    volume: *const gabion_volume,
    call: impl FnOnce(&mut Context, Opened) -> Result<R, Failure>,
) -> Result<R, c_int> {
    if volume.is_null() || !volume.is_aligned() {
        return Err(keep(NO_VOLUME));
    }
    // SAFETY: the caller of the C function promises that it is a handle.
    if unsafe { (&raw const (*volume).mark).read_volatile() } != VOLUME {
        return Err(keep(NO_VOLUME));
    }
    // SAFETY: it has the mark, and never changes while it is open.
    let volume = unsafe { &*volume };
    // SAFETY: the caller promises the same.
    unsafe { enter(volume.cluster, |context| call(context, volume.opened)) }
}

/// Runs a call that has no cluster.
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

/// Returns the message of a cluster's last failure, if it may be read here.
pub(crate) unsafe fn last_error(cluster: *const gabion_cluster) -> Option<*const c_char> {
    // SAFETY: the caller promises the same.
    let cluster = unsafe { cluster_of(cluster) }.filter(|c| c.owner.is_here())?;
    // SAFETY: as in `enter`.
    Some(unsafe { &*cluster.inside.get() }.error.as_ptr())
}

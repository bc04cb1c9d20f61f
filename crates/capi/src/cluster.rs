//! The functions of a cluster: open, poll, wait outside the library, close.

use crate::context::{Context, Settings};
use crate::failure::{Failure, keep};
use crate::guard;
use crate::handle::{CLUSTER, Inside, Owner, gabion_cluster, gabion_volume};
use crate::{GABION_BACKEND_AUTO, GABION_BACKEND_EPOLL, GABION_BACKEND_URING};
use crate::{address, gabion_completion, gabion_options, name};
use base::Limits;
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::time::Duration;

const TIMEOUT_MS: u32 = 10_000;
const QUEUE_DEPTH: u32 = 1024;

/// Opens a cluster: connects to it as a client, and waits until an MDM has accepted the client.
/// `mdm` has the addresses of its MDMs: `IP:PORT`, separated by commas; or `dir:PATH` with the
/// directory of a cluster that `gabion up` runs on this machine. `options` may be `NULL`.
///
/// Returns 0, or a negative errno with a message in `gabion_last_error(NULL)`: `-EINVAL` (an
/// argument), `-ETIMEDOUT` (no MDM accepted the client), or an errno of the system.
///
/// # Safety
/// `mdm` is a string, `options` is `NULL` or has `struct_size` bytes, `cluster` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gabion_cluster_open(
    mdm: *const c_char,
    options: *const gabion_options,
    cluster: *mut *mut gabion_cluster,
) -> c_int {
    let opened = guard::catch(|| {
        if cluster.is_null() {
            return Err(Failure::plain(
                libc::EINVAL,
                c"there is no place to put the cluster: NULL",
            ));
        }
        // SAFETY: the caller promises it.
        let (mdm, options) = unsafe { (text(mdm, "mdm")?, read_options(options)?) };
        let context = Context::open(settings(mdm, &options)?)?;
        Ok(Box::new(gabion_cluster {
            mark: CLUSTER,
            owner: Owner::here(),
            inside: Inside::new(context),
            volumes: RefCell::new(Vec::new()),
        }))
    });
    match opened {
        Ok(opened) => {
            // SAFETY: the caller promises it; not null, as checked above.
            unsafe { *cluster = Box::into_raw(opened) };
            0
        }
        Err(code) => code,
    }
}

/// Closes a cluster and frees its volumes. Outstanding requests never complete; writes among them
/// may or may not be executed. Returns 0, or a negative errno. `NULL` is allowed.
///
/// # Safety
/// `cluster` is `NULL` or an open cluster. It and its volumes are not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gabion_cluster_close(cluster: *mut gabion_cluster) -> c_int {
    if cluster.is_null() {
        return 0;
    }
    // SAFETY: the caller promises it.
    if let Err(code) = unsafe { guard::check(cluster) } {
        return code;
    }
    // SAFETY: it came from `gabion_cluster_open`, and is not used any more.
    let mut cluster = unsafe { Box::from_raw(cluster) };
    cluster.mark = 0;
    for volume in cluster.volumes.take() {
        // SAFETY: it came from `gabion_volume_open`; closed volumes are not in the list.
        unsafe { gabion_volume::free(volume) };
    }
    match guard::catch(|| {
        drop(cluster);
        Ok(())
    }) {
        Ok(()) => 0,
        Err(code) => code,
    }
}

/// Sends the requests that were started since the last call, and takes up to `max` completions. It
/// waits until there are `min` of them, for `timeout_ns` at most (0: does not wait; below 0: no
/// limit), and does not wait if nothing is outstanding. Returns the number of completions, or a
/// negative errno.
///
/// Nothing makes progress outside this function: call it often, or when `gabion_fd` is readable. If
/// it returns `max`, there may be more completions, and requests started since the last call may
/// not have been sent yet.
///
/// # Safety
/// `cluster` is an open cluster, `completions` has room for `max`; the memory of all started
/// requests is as promised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gabion_poll(
    cluster: *mut gabion_cluster,
    completions: *mut gabion_completion,
    max: u32,
    min: u32,
    timeout_ns: i64,
) -> c_int {
    let poll = |context: &mut Context| {
        if min > max {
            return Err(Failure::plain(libc::EINVAL, c"min is above max"));
        }
        if max > 0 && (completions.is_null() || !completions.is_aligned()) {
            return Err(Failure::plain(libc::EINVAL, c"there is no place to put completions"));
        }
        let max = max.min(i32::MAX as u32) as usize;
        let out: &mut [MaybeUninit<gabion_completion>] = match max {
            0 => &mut [],
            // SAFETY: the caller promises it.
            _ => unsafe { std::slice::from_raw_parts_mut(completions.cast(), max) },
        };
        let timeout = u64::try_from(timeout_ns).ok().map(Duration::from_nanos);
        context.poll(out, min as usize, timeout)
    };
    // SAFETY: the caller promises it.
    match unsafe { guard::enter(cluster, poll) } {
        Ok(n) => n as c_int,
        Err(code) => code,
    }
}

/// Returns a descriptor for `poll`, `epoll` and similar calls, or a negative errno. It becomes
/// readable when `gabion_poll` has something to do, but only if `gabion_arm` was the last call and
/// returned 1. It belongs to the cluster: do not read it, do not close it.
///
/// # Safety
/// `cluster` is an open cluster.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gabion_fd(cluster: *mut gabion_cluster) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { guard::enter(cluster, |context| Ok(context.fd())) }.unwrap_or_else(|code| code)
}

/// Sends the requests that were started. Call it before you wait for `gabion_fd`. Returns 1: wait
/// now, and call `gabion_poll` when the descriptor is readable. Returns 0: there is something to do
/// already, call `gabion_poll` first. Or returns a negative errno.
///
/// # Safety
/// `cluster` is an open cluster; the memory of all requests is as promised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gabion_arm(cluster: *mut gabion_cluster) -> c_int {
    // SAFETY: the caller promises it.
    match unsafe { guard::enter(cluster, Context::arm) } {
        Ok(armed) => armed.into(),
        Err(code) => code,
    }
}

/// Returns a string of the caller.
///
/// # Safety
/// `from` is a string or `NULL`.
pub(crate) unsafe fn text<'a>(from: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if from.is_null() {
        return Err(Failure::invalid(format!("{what} is NULL")));
    }
    // SAFETY: the caller promises it.
    let text = unsafe { CStr::from_ptr(from) }.to_str();
    text.map_err(|_| Failure::invalid(format!("{what} is not UTF-8")))
}

/// Reads the options.
unsafe fn read_options(from: *const gabion_options) -> Result<gabion_options, Failure> {
    const SIZE: usize = size_of::<gabion_options>();
    let mut options = gabion_options {
        struct_size: SIZE,
        name: std::ptr::null(),
        timeout_ms: 0,
        queue_depth: 0,
        backend: 0,
        flags: 0,
    };
    if from.is_null() {
        return Ok(options);
    }
    // SAFETY: the size comes first in every version.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    if !(SIZE..=4096).contains(&size) {
        return Err(Failure::invalid(format!(
            "gabion_options.struct_size is {size}: set it to sizeof(struct gabion_options), as \
             GABION_OPTIONS_INIT does"
        )));
    }
    // SAFETY: the caller promises `size` bytes.
    unsafe {
        let to = (&raw mut options).cast::<u8>();
        to.copy_from_nonoverlapping(from.cast(), SIZE);
        // Fields that only newer versions know must not be ignored.
        let rest = std::slice::from_raw_parts(from.cast::<u8>().add(SIZE), size - SIZE);
        if rest.iter().any(|b| *b != 0) {
            return Err(Failure::invalid(
                "gabion_options asks for something that this version of libgabion does not have: \
                 install a newer one",
            ));
        }
    }
    Ok(options)
}

fn settings(mdm: &str, options: &gabion_options) -> Result<Settings, Failure> {
    let or = |value: u32, default: u32| if value == 0 { default } else { value };
    let most = Limits::SHIPPED.sdc_requests;
    let queue_depth = or(options.queue_depth, QUEUE_DEPTH);
    if queue_depth > most {
        return Err(Failure::invalid(format!("queue_depth is {queue_depth}: at most {most}")));
    }
    if options.flags != 0 {
        return Err(Failure::plain(libc::EINVAL, c"gabion_options.flags must be 0"));
    }
    let backend = match options.backend {
        GABION_BACKEND_AUTO => rt::Backend::Auto,
        GABION_BACKEND_URING => rt::Backend::Uring,
        GABION_BACKEND_EPOLL => rt::Backend::Epoll,
        other => {
            return Err(Failure::invalid(format!("no backend {other}: use GABION_BACKEND_AUTO")));
        }
    };
    let mdm = address::parse(mdm)?;
    let name = match options.name.is_null() {
        true => name::first_free()?,
        // SAFETY: the caller of `gabion_cluster_open` promises a string.
        false => name::given(unsafe { text(options.name, "gabion_options.name") }?)?,
    };
    let timeout = Duration::from_millis(or(options.timeout_ms, TIMEOUT_MS).into());
    Ok(Settings { mdm, name, backend, queue_depth, timeout })
}

/// Stores the message for functions that have no cluster to store it in.
pub(crate) fn refuse(failure: Failure) -> c_int {
    keep(failure)
}

//! The functions of a volume: open, query, the five requests, close.

use crate::cluster::{refuse, text};
use crate::context::Memory;
use crate::failure::Failure;
use crate::handle::{VOLUME, gabion_cluster, gabion_volume};
use crate::{GABION_FUA, GABION_NO_HOLE, gabion_volume_info, guard};
use seam::BlockKind;
use std::ffi::{c_char, c_int, c_void};

fn done(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(0)
}

/// Opens the volume of this name. Returns 0, or a negative errno with a message in
/// `gabion_last_error`: `-ENOENT` (there is no such volume), `-ETIMEDOUT`. As with any call,
/// completions of other requests are not lost.
///
/// # Safety
/// `cluster` is an open cluster, `name` a string, `volume` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gabion_volume_open(
    cluster: *mut gabion_cluster,
    name: *const c_char,
    volume: *mut *mut gabion_volume,
) -> c_int {
    // SAFETY: the caller promises it.
    let found = unsafe {
        guard::enter(cluster, |context| {
            if volume.is_null() {
                let text = c"there is no place to put the volume: NULL";
                return Err(Failure::plain(libc::EINVAL, text));
            }
            context.find(text(name, "the volume's name")?)
        })
    };
    let opened = match found {
        Ok(opened) => opened,
        Err(code) => return code,
    };
    let opened = Box::into_raw(Box::new(gabion_volume { mark: VOLUME, cluster, opened }));
    // SAFETY: the caller promises it; `enter` has succeeded, so this is a cluster of this thread.
    unsafe {
        (*cluster).volumes.borrow_mut().push(opened);
        *volume = opened;
    }
    0
}

/// Closes a volume. Its outstanding requests continue and complete. Returns 0, or a negative errno.
/// `NULL` is allowed.
///
/// # Safety
/// `volume` is `NULL` or an open volume, which is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gabion_volume_close(volume: *mut gabion_volume) -> c_int {
    if volume.is_null() {
        return 0;
    }
    // SAFETY: the caller promises it. Closing a poisoned cluster frees its volumes.
    let entered = unsafe {
        guard::enter_volume(volume, |context, volume| {
            context.close(volume);
            Ok(())
        })
    };
    if let Err(code) = entered {
        return code;
    }
    // SAFETY: `enter_volume` has succeeded.
    let mut open = unsafe { (*(*volume).cluster).volumes.borrow_mut() };
    let Some(at) = open.iter().position(|v| *v == volume) else {
        return refuse(Failure::plain(libc::EBADF, c"this volume is not open"));
    };
    open.swap_remove(at);
    // SAFETY: it was in the list, so it was open, and now it is removed from the list.
    unsafe { gabion_volume::free(volume) };
    0
}

/// Returns the present properties of a volume in `info`. `info_size` is
/// `sizeof(struct gabion_volume_info)`. Returns 0, or a negative errno.
///
/// # Safety
/// `volume` is an open volume, `info` has `info_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gabion_volume_stat(
    volume: *mut gabion_volume,
    info: *mut gabion_volume_info,
    info_size: usize,
) -> c_int {
    // SAFETY: the caller promises it.
    done(unsafe {
        guard::enter_volume(volume, |context, volume| {
            if info.is_null() || info_size < size_of::<u64>() {
                let text = c"info is NULL, or info_size is not sizeof(struct gabion_volume_info)";
                return Err(Failure::plain(libc::EINVAL, text));
            }
            let now = context.info(volume)?;
            let known = size_of::<gabion_volume_info>().min(info_size);
            let to = info.cast::<u8>();
            to.write_bytes(0, info_size);
            to.copy_from_nonoverlapping((&raw const now).cast(), known);
            Ok(())
        })
    })
}

/// Returns the present size of a volume in bytes, or a negative errno.
///
/// # Safety
/// `volume` is an open volume.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gabion_volume_size(volume: *mut gabion_volume) -> i64 {
    // SAFETY: the caller promises it.
    match unsafe { guard::enter_volume(volume, |context, volume| context.info(volume)) } {
        Ok(info) => info.size as i64,
        Err(code) => code.into(),
    }
}

/// Starts a read of `len` bytes at `offset` into `data`. Returns 0 if the request was started; a
/// completion with `user` follows. Or returns a negative errno, and no completion follows:
/// `-EAGAIN` (the queue is full), `-EINVAL`, `-ESTALE` (the volume was unmapped from this client
/// after it was opened, and is mapped to it again: open it again).
///
/// # Safety
/// `volume` is an open volume. `data` has `len` bytes, unused elsewhere until the completion.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gabion_read(
    volume: *mut gabion_volume,
    data: *mut c_void,
    len: usize,
    offset: u64,
    user: *mut c_void,
) -> c_int {
    let memory = Memory::Into(data.cast());
    // SAFETY: the caller promises it.
    done(unsafe {
        guard::enter_volume(volume, |context, volume| {
            context.start(volume, BlockKind::Read, offset, len, memory, user)
        })
    })
}

/// Starts a write of `len` bytes from `data` to `offset`. `flags`: 0 or `GABION_FUA`. Returns the
/// same as `gabion_read`. After the completion, the data is on all copies.
///
/// # Safety
/// `volume` is an open volume. `data` has `len` bytes, which nothing changes until the completion.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gabion_write(
    volume: *mut gabion_volume,
    data: *const c_void,
    len: usize,
    offset: u64,
    flags: u32,
    user: *mut c_void,
) -> c_int {
    let memory = Memory::From(data.cast());
    // SAFETY: the caller promises it.
    done(unsafe {
        guard::enter_volume(volume, |context, volume| {
            known(flags, GABION_FUA)?;
            context.start(volume, BlockKind::Write, offset, len, memory, user)
        })
    })
}

/// Starts a flush. When it completes, every write that completed before is durable. Returns the
/// same as `gabion_read`.
///
/// # Safety
/// `volume` is an open volume.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gabion_flush(volume: *mut gabion_volume, user: *mut c_void) -> c_int {
    // SAFETY: the caller promises it.
    done(unsafe {
        guard::enter_volume(volume, |context, volume| {
            context.start(volume, BlockKind::Flush, 0, 0, Memory::None, user)
        })
    })
}

/// Starts to discard a range. From the completion on it reads as zeros, and its space is freed.
/// Returns the same as `gabion_read`.
///
/// # Safety
/// `volume` is an open volume.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gabion_discard(
    volume: *mut gabion_volume,
    len: usize,
    offset: u64,
    user: *mut c_void,
) -> c_int {
    let kind = BlockKind::Zero { hole: true };
    // SAFETY: the caller promises it.
    done(unsafe {
        guard::enter_volume(volume, |context, volume| {
            context.start(volume, kind, offset, len, Memory::None, user)
        })
    })
}

/// Starts to zero a range without sending data. `flags`: 0, `GABION_FUA`, `GABION_NO_HOLE`. Returns
/// the same as `gabion_read`.
///
/// # Safety
/// `volume` is an open volume.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gabion_write_zeroes(
    volume: *mut gabion_volume,
    len: usize,
    offset: u64,
    flags: u32,
    user: *mut c_void,
) -> c_int {
    let kind = BlockKind::Zero { hole: flags & GABION_NO_HOLE == 0 };
    // SAFETY: the caller promises it.
    done(unsafe {
        guard::enter_volume(volume, |context, volume| {
            known(flags, GABION_FUA | GABION_NO_HOLE)?;
            context.start(volume, kind, offset, len, Memory::None, user)
        })
    })
}

fn known(flags: u32, all: u32) -> Result<(), Failure> {
    if flags & !all != 0 {
        return Err(Failure::invalid(format!("flags {flags:#x}: only {all:#x} are known here")));
    }
    Ok(())
}

//! The functions that return messages for people.

use crate::failure;
use crate::guard;
use crate::handle::gabion_cluster;
use std::ffi::c_char;

/// Returns a message for a negative errno of this library. The text stays valid forever.
#[unsafe(no_mangle)]
pub extern "C" fn gabion_strerror(result: i64) -> *const c_char {
    let text = match i32::try_from(result.saturating_neg()).unwrap_or(0) {
        code if code <= 0 => c"no error",
        libc::EAGAIN => c"the queue is full: poll for completions, then try again",
        libc::EBADE => c"another host has reserved the volume: it has to release it",
        libc::EBADF => c"not a handle of this library, or one that was closed",
        libc::EINVAL => c"an argument is wrong: gabion_last_error says which",
        libc::ESTALE => {
            c"a newer process has this client's name: give one of the two another; or the volume \
              was unmapped after it was opened: open it again"
        }
        libc::EIO => {
            c"a device failed, or nobody knows whether a write was done; see `gabion status`"
        }
        libc::ENODATA => c"every copy of this range is lost; see `gabion status`",
        libc::ENOENT => {
            c"no such volume: it was deleted, is not mapped to this client, or was never made"
        }
        libc::ENOSPC => c"the storage pool is full: add a device, or delete or discard data",
        libc::ENOTRECOVERABLE => c"the library has failed before: close the cluster, open it anew",
        libc::EPERM => c"a cluster is used by the thread and the process that have opened it",
        libc::ERANGE => c"the range leaves the volume",
        libc::EROFS => c"the volume is mapped to this client for reading only",
        libc::ETIMEDOUT => c"no answer in time; gabion_last_error says from whom",
        _ => c"the system refused something: gabion_last_error says what",
    };
    text.as_ptr()
}

/// Returns a message that says why the last failed call on this cluster failed, and what to do.
/// With `NULL`: the same for the last failed call of this thread that had no cluster, such as
/// `gabion_cluster_open`. Never returns `NULL`. The text is valid until the next call on the
/// cluster (or of the thread).
///
/// # Safety
/// `cluster` is `NULL` or an open cluster.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gabion_last_error(cluster: *const gabion_cluster) -> *const c_char {
    // SAFETY: the caller promises it.
    if let Some(text) = unsafe { guard::last_error(cluster) } {
        return text;
    }
    failure::last()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Failure, errno, keep};
    use seam::BlockError;
    use std::ffi::CStr;

    #[test]
    fn every_error_of_a_request_has_words_of_its_own() {
        let all = [
            BlockError::NoSuchVolume,
            BlockError::ReadOnly,
            BlockError::Reserved,
            BlockError::OutOfRange,
            BlockError::Misaligned,
            BlockError::TooBig,
            BlockError::Full,
            BlockError::Lost,
            BlockError::Media,
            BlockError::Busy,
            BlockError::Forgotten,
            BlockError::Superseded,
            BlockError::Elsewhere,
            BlockError::TimedOut,
            BlockError::Miscompare(0),
        ];
        let words = |result: i64| {
            // SAFETY: a text of this library.
            unsafe { CStr::from_ptr(gabion_strerror(result)) }.to_str().unwrap()
        };
        let other = words(-i64::from(libc::ENOTTY));
        assert!(other.contains("gabion_last_error"));
        assert!(all.iter().all(|e| words(-i64::from(errno(*e))) != other));
        assert_eq!([words(0), words(5), words(i64::MIN), words(i64::MAX)], ["no error"; 4]);
    }

    #[test]
    fn texts_may_hold_anything() {
        let failure = Failure::invalid("a\0b");
        assert_eq!((failure.text(), keep(failure.clone())), (c"ab", -libc::EINVAL));
        // SAFETY: a text of this library.
        let kept = unsafe { CStr::from_ptr(gabion_last_error(std::ptr::null())) };
        assert_eq!(kept, c"ab");
    }
}

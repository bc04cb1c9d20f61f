//! Errors: an errno for programs, and a message for people that says what to do. The functions
//! that return messages to callers are in `message`.

use seam::BlockError;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};

/// The reason why a call failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    /// A positive errno.
    pub(crate) code: c_int,
    text: Cow<'static, CStr>,
}

impl Failure {
    /// Creates a failure with a constant message, without allocating memory.
    pub(crate) const fn plain(code: c_int, text: &'static CStr) -> Failure {
        Failure { code, text: Cow::Borrowed(text) }
    }

    /// Creates a failure with a formatted message.
    pub(crate) fn new(code: c_int, text: impl Into<String>) -> Failure {
        let mut bytes: Vec<u8> = text.into().into();
        bytes.retain(|b| *b != 0);
        Failure { code, text: Cow::Owned(CString::new(bytes).unwrap_or_default()) }
    }

    /// Creates a failure for wrong arguments.
    pub(crate) fn invalid(text: impl Into<String>) -> Failure {
        Failure::new(libc::EINVAL, text)
    }

    pub(crate) fn text(&self) -> &CStr {
        &self.text
    }
}

thread_local! {
    static LAST: RefCell<Cow<'static, CStr>> = const { RefCell::new(Cow::Borrowed(c"")) };
}

/// Stores a failure for which there is no context, and returns the result for the caller.
pub(crate) fn keep(failure: Failure) -> c_int {
    LAST.with_borrow_mut(|last| *last = failure.text);
    -failure.code
}

/// Returns the message of the thread's last failure for which there was no context.
pub(crate) fn last() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// Returns the errno of a failed request.
pub(crate) fn errno(error: BlockError) -> c_int {
    match error {
        BlockError::NoSuchVolume => libc::ENOENT,
        BlockError::ReadOnly => libc::EROFS,
        BlockError::Reserved => libc::EBADE,
        BlockError::OutOfRange => libc::ERANGE,
        BlockError::Misaligned | BlockError::TooBig => libc::EINVAL,
        BlockError::Full => libc::ENOSPC,
        BlockError::Lost => libc::ENODATA,
        // The library has no request that compares, and no second path.
        BlockError::Miscompare(_) | BlockError::Elsewhere => libc::EIO,
        BlockError::Media | BlockError::Forgotten => libc::EIO,
        BlockError::Superseded => libc::ESTALE,
        BlockError::Busy => libc::EAGAIN,
        BlockError::TimedOut => libc::ETIMEDOUT,
    }
}

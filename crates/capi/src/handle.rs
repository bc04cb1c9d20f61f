//! The handles that callers hold, and what belongs to one: its owner, and the state that only the
//! owner may access.

use crate::context::{Context, Opened};
use std::borrow::Cow;
use std::cell::{RefCell, UnsafeCell};
use std::ffi::CStr;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Marks memory as the handle of a cluster.
pub(crate) const CLUSTER: u64 = 0x6761_6269_6f6e_6331;
/// Marks memory as the handle of a volume.
pub(crate) const VOLUME: u64 = 0x6761_6269_6f6e_7631;

/// An open cluster. The thread that opened it is a client of the cluster.
#[allow(non_camel_case_types)]
pub struct gabion_cluster {
    pub(crate) mark: u64,
    pub(crate) owner: Owner,
    pub(crate) inside: UnsafeCell<Inside>,
    /// Open volumes, which are freed at the latest when the cluster is closed.
    pub(crate) volumes: RefCell<Vec<*mut gabion_volume>>,
}

/// An open volume.
#[allow(non_camel_case_types)]
pub struct gabion_volume {
    pub(crate) mark: u64,
    pub(crate) cluster: *const gabion_cluster,
    pub(crate) opened: Opened,
}

impl gabion_volume {
    /// # Safety
    /// `volume` came from `gabion_volume_open`, and is not used any more.
    pub(crate) unsafe fn free(volume: *mut gabion_volume) {
        // SAFETY: the caller promises it.
        let mut volume = unsafe { Box::from_raw(volume) };
        volume.mark = 0;
    }
}

/// How many forks led to this process.
static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

thread_local! {
    static HERE: u8 = const { 0 };
}

/// Returns a number that distinguishes threads that run at the same time.
fn thread() -> usize {
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// The thread and process that may use a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    thread: usize,
    forks: u64,
}

impl Owner {
    /// Returns the present thread of the present process.
    pub(crate) fn here() -> Owner {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: the handler only touches an atomic, which is allowed in a child.
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        });
        Owner { thread: thread(), forks: FORKS.load(Ordering::Relaxed) }
    }

    pub(crate) fn is_here(self) -> bool {
        self == Owner { thread: thread(), forks: FORKS.load(Ordering::Relaxed) }
    }
}

/// State that only the owner may access.
pub(crate) struct Inside {
    pub(crate) context: Context,
    pub(crate) poisoned: bool,
    pub(crate) error: Cow<'static, CStr>,
}

impl Inside {
    pub(crate) fn new(context: Context) -> UnsafeCell<Inside> {
        UnsafeCell::new(Inside { context, poisoned: false, error: Cow::Borrowed(c"") })
    }
}

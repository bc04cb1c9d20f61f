//! Panics as verdicts: the place of a panic is kept for the report instead of being printed.

use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Silences panics from now on, and keeps their places.
pub fn hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let place = info.location().map(|l| format!("at {}:{}", l.file(), l.line()));
            LAST.with(|last| *last.borrow_mut() = place);
        }));
    });
}

/// Returns and clears the place of this thread's last panic.
pub fn take() -> Option<String> {
    LAST.with(|last| last.borrow_mut().take())
}

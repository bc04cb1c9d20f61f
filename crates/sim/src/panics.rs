//! Panics are verdicts here: their place is kept for the report instead of being printed.

use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// From now on panics are silent, and their places are kept.
pub fn hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let place = info.location().map(|l| format!("at {}:{}", l.file(), l.line()));
            LAST.with(|last| *last.borrow_mut() = place);
        }));
    });
}

/// The place of this thread's last panic.
pub fn take() -> Option<String> {
    LAST.with(|last| last.borrow_mut().take())
}

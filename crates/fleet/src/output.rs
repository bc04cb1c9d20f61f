//! Output of commands: the workspace's own `print!`, `println!` and `eprintln!`. Those of the
//! standard library panic when stdout is closed.
//!
//! A failed print unwinds silently, so that destructors clean up. `run` then ends the process with
//! SIGPIPE, as other programs end. Until then the signal is ignored, because a broken link must not
//! end a role. A message to stderr that can't be written is dropped, and the command goes on.

use admin::exit::Exit;
use anyhow::{Context, Result};
use signal_hook::consts::SIGPIPE;
use std::fmt::Arguments;
use std::io::{Error, ErrorKind, Write, stderr, stdout};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Prints to stdout, or ends the command silently if nobody reads it.
#[macro_export]
macro_rules! print {
    ($($what:tt)*) => { $crate::output::print(format_args!($($what)*)) };
}

/// Prints a line to stdout, or ends the command silently if nobody reads it.
#[macro_export]
macro_rules! println {
    ($($what:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($what)*))) };
}

/// Writes a line to stderr, if that is possible.
#[macro_export]
macro_rules! eprintln {
    ($($what:tt)*) => { $crate::output::complain(format_args!("{}\n", format_args!($($what)*))) };
}

/// The payload with which a failed print unwinds.
struct Unprinted(Error);

/// Prints and flushes, or unwinds up to [`run`].
pub fn print(what: Arguments<'_>) {
    let mut out = stdout().lock();
    if let Err(error) = out.write_fmt(what).and_then(|()| out.flush()) {
        resume_unwind(Box::new(Unprinted(error)));
    }
}

/// Writes to stderr, if that is possible.
pub fn complain(what: Arguments<'_>) {
    let _ = stderr().lock().write_fmt(what);
}

/// Runs a command. Does not return if its stdout is closed by the reader.
pub fn run(command: impl FnOnce() -> Result<Exit>) -> Result<Exit> {
    let payload = match catch_unwind(AssertUnwindSafe(command)) {
        Ok(done) => return done,
        Err(payload) => payload,
    };
    let Unprinted(error) = *payload.downcast().unwrap_or_else(|panic| resume_unwind(panic));
    if error.kind() == ErrorKind::BrokenPipe {
        signal_hook::low_level::emulate_default_handler(SIGPIPE)?;
    }
    Err(error).context("can't write to stdout, so the output is incomplete")
}

//! What commands print: `print!`, `println!` and `eprintln!` of this crate, as those of the standard library panic when
//! nobody reads any more.
//!
//! A print that fails unwinds without a word, so that all that was begun is put away; `run` then ends the process as
//! SIGPIPE ends others. The signal itself stays ignored: a role must not end of a link that broke. A message to stderr
//! that nobody can read is no reason to end at all.

use crate::exit::Exit;
use anyhow::{Context, Result};
use signal_hook::consts::SIGPIPE;
use std::fmt::Arguments;
use std::io::{Error, ErrorKind, Write, stderr, stdout};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

macro_rules! print {
    ($($what:tt)*) => { $crate::output::print(format_args!($($what)*)) };
}

macro_rules! println {
    ($($what:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($what)*))) };
}

macro_rules! eprintln {
    ($($what:tt)*) => { $crate::output::complain(format_args!("{}\n", format_args!($($what)*))) };
}

/// What a failed print unwinds with.
struct Unprinted(Error);

/// Prints at once, or unwinds up to [`run`].
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

/// Runs a command; does not return if nobody reads what it prints.
pub fn run(command: impl FnOnce() -> Result<Exit>) -> Result<Exit> {
    let payload = match catch_unwind(AssertUnwindSafe(command)) {
        Ok(done) => return done,
        Err(payload) => payload,
    };
    let Unprinted(error) = *payload.downcast().unwrap_or_else(|panic| resume_unwind(panic));
    if error.kind() == ErrorKind::BrokenPipe {
        signal_hook::low_level::emulate_default_handler(SIGPIPE)?;
    }
    Err(error).context("can't write to stdout, so not all was said")
}

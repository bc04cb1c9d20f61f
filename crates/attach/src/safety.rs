//! Protects a process that the kernel needs to write back memory.
//!
//! A program's dirty pages leave memory through this process. If this process waited for memory
//! that only becomes free when those pages are written, both would wait for ever. So:
//! - It never waits for write-back when it allocates memory (`PR_SET_IO_FLUSHER`).
//! - Its own memory stays in place.
//! - The kernel does not kill it when memory is short.
//! - It leaves the memory group of the command that has started it. In control groups of version 1,
//!   whoever reaches the limit of a group waits for the group's pages to be written.

use rustix::mm::MlockAllFlags;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// What a process writes to be the last one that the kernel kills when memory is short.
const NEVER: &str = "-1000";

/// The processes of the topmost memory group, in control groups of version 1.
const TOP_GROUP: &str = "/sys/fs/cgroup/memory/cgroup.procs";

/// Writes a setting of the kernel.
fn set(file: &str, value: &str) -> std::io::Result<()> {
    File::options().write(true).open(file)?.write_all(value.as_bytes())
}

/// Protects this process, and the calling thread. Returns what could not be done, for people.
pub(crate) fn protect() -> Vec<String> {
    let mut missing = Vec::new();
    let mut tried = |what: &str, outcome: std::io::Result<()>| {
        if let Err(why) = outcome {
            missing.push(format!(
                "warning: {what}: {why}. Run it as root with CAP_SYS_RESOURCE and CAP_IPC_LOCK"
            ));
        }
    };
    // Per thread, and inherited by those that it starts.
    let flusher = rustix::process::configure_io_flusher_behavior(true).map_err(Into::into);
    tried("allocating memory may wait for this process itself", flusher);
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE;
    tried("its memory may be swapped out", rustix::mm::mlockall(all).map_err(Into::into));
    tried("it may be killed when memory is short", set("/proc/self/oom_score_adj", NEVER));
    if Path::new(TOP_GROUP).exists() {
        // 0 is whoever writes it.
        tried("it may wait for its memory group, and so for itself", set(TOP_GROUP, "0"));
    }
    missing
}

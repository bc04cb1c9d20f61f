//! Protects a process that the kernel of its machine needs for writing back dirty pages.
//!
//! Programs' dirty pages are written through this process. If the process waited for memory that
//! becomes free only when those pages are written, it would wait for itself. So:
//! - It never waits for write-back when it allocates memory (`PR_SET_IO_FLUSHER`).
//! - Its own memory is locked, and is not swapped out.
//! - The kernel does not kill it when memory is short.
//! - It leaves the memory cgroup of the command that started it. In cgroup v1, a process that
//!   reaches the limit of its cgroup waits until pages of that cgroup are written.

use rustix::mm::MlockAllFlags;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// The value of `oom_score_adj` that exempts a process from the kernel's OOM killer.
const NEVER: &str = "-1000";

/// The list of processes of the root memory cgroup, in cgroup v1.
const TOP_GROUP: &str = "/sys/fs/cgroup/memory/cgroup.procs";

/// Writes a setting of the kernel.
fn set(file: &str, value: &str) -> std::io::Result<()> {
    File::options().write(true).open(file)?.write_all(value.as_bytes())
}

/// Protects this process, and the calling thread. Returns warnings about steps that failed.
pub fn protect() -> Vec<String> {
    let mut missing = Vec::new();
    let mut tried = |what: &str, outcome: std::io::Result<()>| {
        if let Err(why) = outcome {
            missing.push(format!(
                "warning: {what}: {why}. Run it as root with CAP_SYS_RESOURCE and CAP_IPC_LOCK"
            ));
        }
    };
    // This applies to the calling thread and the threads that it starts later.
    let flusher = rustix::process::configure_io_flusher_behavior(true).map_err(Into::into);
    tried("allocating memory may wait for this process itself", flusher);
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE;
    tried("its memory may be swapped out", rustix::mm::mlockall(all).map_err(Into::into));
    tried("it may be killed when memory is short", set("/proc/self/oom_score_adj", NEVER));
    if Path::new(TOP_GROUP).exists() {
        // 0 means the process that writes it.
        tried("it may wait for its memory group, and so for itself", set(TOP_GROUP, "0"));
    }
    missing
}

//! Protects a process that the kernel needs to write back memory.
//!
//! A program's dirty pages leave memory through this process. If this process waited for memory
//! that only becomes free when those pages are written, both would wait for ever. So it never
//! starts writing back when it allocates memory, its own memory stays in place, and the kernel does
//! not kill it when memory is short.

use rustix::mm::MlockAllFlags;
use std::fs::File;
use std::io::Write;

/// What a process writes to be the last one that the kernel kills when memory is short.
const NEVER: &str = "-1000";

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
    let setting = File::options().write(true).open("/proc/self/oom_score_adj");
    let spared = setting.and_then(|mut setting| setting.write_all(NEVER.as_bytes()));
    tried("it may be killed when memory is short", spared);
    missing
}

//! Chooses the backend: checks whether this kernel and container allow what the io_uring one needs.

use crate::config::Backend;
use crate::error::RtError;
use crate::sys::uring::{self, Waits};
use io_uring::{Probe, opcode};
use std::sync::OnceLock;

/// The backend to use, and the reason if it is not io_uring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    pub(crate) backend: Backend,
    pub(crate) notice: Option<String>,
}

pub(crate) fn choose(wanted: Backend) -> Result<Choice, RtError> {
    if wanted == Backend::Epoll {
        return Ok(Choice { backend: Backend::Epoll, notice: None });
    }
    match uring_works() {
        Ok(()) => Ok(Choice { backend: Backend::Uring, notice: None }),
        Err(why) if wanted == Backend::Auto => Ok(fallback(&why)),
        Err(why) => Err(RtError::NoUring { why }),
    }
}

pub(crate) fn fallback(why: &str) -> Choice {
    let notice =
        format!("using epoll, which costs more per I/O: io_uring can't be used here: {why}");
    Choice { backend: Backend::Epoll, notice: Some(notice) }
}

/// Checks once whether io_uring works in this process.
///
/// The check runs on a thread of its own: when a ring is closed, the kernel interrupts the thread
/// that created it, and a system call of the caller would fail with EINTR.
fn uring_works() -> Result<(), String> {
    static WORKS: OnceLock<Result<(), String>> = OnceLock::new();
    let failed = || Err("no thread to try it on".to_owned());
    let probe = || match std::thread::Builder::new().spawn(try_uring) {
        Ok(thread) => thread.join().unwrap_or_else(|_| failed()),
        Err(_) => failed(),
    };
    WORKS.get_or_init(probe).clone()
}

/// Creates a ring and asks it which operations it supports.
fn try_uring() -> Result<(), String> {
    let ring = uring::build(Waits::InRing).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel has none".to_owned(),
        Some(libc::EPERM) => {
            "it is forbidden (sysctl kernel.io_uring_disabled, or the container's seccomp profile)"
                .to_owned()
        }
        Some(libc::ENOMEM) => "too little locked memory is allowed (ulimit -l)".to_owned(),
        _ => e.to_string(),
    })?;
    let p = ring.params();
    if !(p.is_feature_ext_arg() && p.is_feature_nodrop() && p.is_feature_fast_poll()) {
        return Err("the kernel is older than 5.11".to_owned());
    }
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|e| e.to_string())?;
    let needed = [
        (opcode::Recv::CODE, "recv"),
        (opcode::RecvMsg::CODE, "recvmsg"),
        (opcode::SendMsg::CODE, "sendmsg"),
        (opcode::Accept::CODE, "accept"),
        (opcode::Connect::CODE, "connect"),
        (opcode::Read::CODE, "read"),
        (opcode::Write::CODE, "write"),
        (opcode::Fsync::CODE, "fsync"),
        (opcode::PollAdd::CODE, "poll"),
        (opcode::AsyncCancel::CODE, "cancel"),
    ];
    match needed.iter().find(|(code, _)| !probe.is_supported(*code)) {
        Some((_, name)) => Err(format!("the kernel's has no {name}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_always_finds_a_backend() {
        let choice = choose(Backend::Auto).unwrap();
        assert_eq!(choice.notice.is_some(), choice.backend == Backend::Epoll);
        assert_eq!(choose(Backend::Epoll).unwrap().notice, None);
    }
}

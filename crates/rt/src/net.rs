//! Creates, binds and configures sockets. Does no I/O.
//!
//! Buffer sizes are left to the kernel: TCP adapts its buffers up to several MiB, and a fixed size
//! would switch that off.

use crate::config::ListenAddr;
use crate::error::RtError;
use rustix::process::{Resource, getrlimit, setrlimit};
use socket2::{Domain, SockAddr, Socket, TcpKeepalive, Type};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// A listening socket. The file of a unix socket is removed when this is dropped.
#[derive(Debug)]
pub struct Listening {
    pub(crate) socket: OwnedFd,
    pub(crate) at: ListenAddr,
    /// The same TCP address for processes on this host: see [`dial_local`].
    pub(crate) local: Option<Box<Listening>>,
    file: Option<PathBuf>,
}

impl Listening {
    /// Listens at a unix socket that is no shard's. The file of a dead process is replaced.
    pub fn unix(path: &Path) -> Result<Listening, RtError> {
        listen(&ListenAddr::Unix(path.to_owned()), false)
    }
}

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(path) = &self.file {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Listens at an address and returns it with the actual port. With `local`, a TCP address also
/// accepts [`dial_local`].
pub(crate) fn listen(at: &ListenAddr, local: bool) -> Result<Listening, RtError> {
    let fail = |source: io::Error| match source.raw_os_error() {
        Some(libc::EADDRINUSE) => RtError::InUse { at: at.clone() },
        _ => RtError::Listen { at: at.clone(), source },
    };
    match at {
        ListenAddr::Tcp(addr) => {
            let socket =
                Socket::new(Domain::for_address(*addr), Type::STREAM, None).map_err(fail)?;
            socket.set_reuse_address(true).map_err(fail)?;
            socket.bind(&(*addr).into()).map_err(fail)?;
            socket.listen(BACKLOG).map_err(fail)?;
            let real = socket.local_addr().map_err(fail)?.as_socket().unwrap_or(*addr);
            let at = ListenAddr::Tcp(real);
            let local = if local { listen_local(real).ok() } else { None };
            let local = local.map(|socket| {
                Box::new(Listening { socket, at: at.clone(), local: None, file: None })
            });
            Ok(Listening { socket: socket.into(), at, local, file: None })
        }
        ListenAddr::Unix(path) => {
            let addr = SockAddr::unix(path).map_err(fail)?;
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(fail)?;
            clear_stale(path, &addr, at)?;
            socket.bind(&addr).map_err(fail)?;
            let file = Some(path.clone());
            let listening = Listening { socket: socket.into(), at: at.clone(), local: None, file };
            rustix::net::listen(&listening.socket, BACKLOG).map_err(|e| fail(e.into()))?;
            Ok(listening)
        }
    }
}

/// Removes the socket file of a dead process, and no other file.
fn clear_stale(path: &Path, addr: &SockAddr, at: &ListenAddr) -> Result<(), RtError> {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !meta.file_type().is_socket() {
        return Err(RtError::NotASocket { path: path.to_owned() });
    }
    let fail = |source| RtError::Listen { at: at.clone(), source };
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(fail)?;
    // A full backlog must not block; it means that a process listens.
    probe.set_nonblocking(true).map_err(fail)?;
    match probe.connect(addr) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(fail)
        }
        _ => Err(RtError::InUse { at: at.clone() }),
    }
}

/// Returns the unix address that stands for a TCP address among the processes of one host. It is
/// abstract: it has no file, ends with its process, and is visible only in its network namespace.
fn local_name(at: std::net::SocketAddr) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0gabion/{at}"))
}

fn listen_local(at: std::net::SocketAddr) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&local_name(at)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Connects to a process on this host that listens at the TCP address `to`, without TCP, at half
/// the cost. `None` when no process listens there, or when its user is neither root nor this
/// process's user and so can't be trusted: the caller then uses TCP.
pub(crate) fn dial_local(to: std::net::SocketAddr, nonblocking: bool) -> Option<OwnedFd> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).ok()?;
    // A local connect succeeds or fails at once; a full backlog must not block.
    socket.set_nonblocking(true).ok()?;
    socket.connect(&local_name(to).ok()?).ok()?;
    let owner = rustix::net::sockopt::socket_peercred(&socket).ok()?.uid;
    let trusted = owner.is_root() || owner == rustix::process::geteuid();
    socket.set_nonblocking(nonblocking).ok()?;
    trusted.then(|| socket.into())
}

/// Creates a socket with which to dial `to`.
pub(crate) fn dialing(to: std::net::SocketAddr, nonblocking: bool) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.set_nonblocking(nonblocking)?;
    Ok(socket.into())
}

/// TCP keepalive: the first probe goes out after 5 s of silence, then one every 2 s, 3 in all. A
/// host that disappears without closing its connections is noticed after 11 s, even where there is
/// nothing to send.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(5))
    .with_interval(Duration::from_secs(2))
    .with_retries(3);

/// Configures a new TCP connection. A unix socket needs no configuration.
pub(crate) fn set_up(socket: &OwnedFd) {
    // Fails on a unix socket, and on a connection that is gone: the first read reports that.
    let _ = rustix::net::sockopt::set_tcp_nodelay(socket, true);
    let _ = socket2::SockRef::from(socket).set_tcp_keepalive(&KEEPALIVE);
}

/// Returns true if a dial to a port of this host at which no process listens connected to itself.
pub(crate) fn is_own_echo(socket: &OwnedFd) -> bool {
    let s = socket2::SockRef::from(socket);
    matches!((s.local_addr(), s.peer_addr()), (Ok(a), Ok(b)) if a == b)
}

/// Makes the next close of this socket discard unsent data.
pub(crate) fn reset_on_close(socket: impl AsFd) {
    let _ = socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO));
}

/// Returns true for an error that means: no descriptor or no memory for another socket.
pub(crate) fn is_exhausted(error: i32) -> bool {
    [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM].contains(&error)
}

/// Raises this process's soft limit on open files to its hard limit.
pub(crate) fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_silent_peer_is_probed_with_keepalives() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        for socket in [OwnedFd::from(dialled), listener.accept().unwrap().0.into()] {
            set_up(&socket);
            let socket = socket2::SockRef::from(&socket);
            assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(5));
        }
    }
}

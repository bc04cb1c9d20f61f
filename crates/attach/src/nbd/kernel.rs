//! Orders for the kernel's NBD client, by generic netlink (`linux/nbd-netlink.h`, netlink(7)).
//!
//! Every device that is made here has an identifier, its *backend*. The kernel refuses later orders
//! for a device with another identifier, so a device number that was reused harms nobody.

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// How long I/O waits for a new socket after the last one is gone; then it fails. In seconds.
const DEAD_SECONDS: u64 = 600;
/// Bytes of a logical block.
const BLOCK: u64 = 512;

// netlink(7), and `linux/genetlink.h`.
const HEAD: usize = 16;
const GENERIC_HEAD: usize = 4;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

// `linux/nbd-netlink.h`.
const NBD_CMD_CONNECT: u8 = 1;
const NBD_CMD_DISCONNECT: u8 = 2;
const NBD_CMD_RECONFIGURE: u8 = 3;
const NBD_ATTR_INDEX: u16 = 1;
const NBD_ATTR_SIZE_BYTES: u16 = 2;
const NBD_ATTR_BLOCK_SIZE_BYTES: u16 = 3;
const NBD_ATTR_SERVER_FLAGS: u16 = 5;
const NBD_ATTR_SOCKETS: u16 = 7;
const NBD_ATTR_DEAD_CONN_TIMEOUT: u16 = 8;
const NBD_ATTR_BACKEND_IDENTIFIER: u16 = 10;
const NBD_SOCK_ITEM: u16 = 1;
const NBD_SOCK_FD: u16 = 1;

/// A message that is being written.
struct Message(Vec<u8>);

impl Message {
    fn new(family: u16, command: u8) -> Message {
        let mut bytes = vec![0; HEAD + GENERIC_HEAD];
        bytes[4..6].copy_from_slice(&family.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
        bytes[HEAD] = command;
        bytes[HEAD + 1] = 1;
        Message(bytes)
    }

    /// Adds an attribute.
    fn with(mut self, kind: u16, data: &[u8]) -> Message {
        self.0.extend(attribute(kind, data));
        self
    }

    /// Adds a text.
    fn text(self, kind: u16, text: &str) -> Message {
        self.with(kind, &[text.as_bytes(), b"\0"].concat())
    }

    /// Adds the list of sockets, which has one.
    fn socket(self, socket: &impl AsFd) -> Message {
        let fd = attribute(NBD_SOCK_FD, &socket.as_fd().as_raw_fd().to_ne_bytes());
        self.with(NBD_ATTR_SOCKETS, &attribute(NBD_SOCK_ITEM, &fd))
    }

    /// Returns its bytes.
    fn done(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

/// Returns an attribute, padded to four bytes.
fn attribute(kind: u16, data: &[u8]) -> Vec<u8> {
    let len = (4 + data.len()) as u16;
    let mut bytes = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), data].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns the content of the first attribute of a kind.
fn find(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?));
        let this = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?);
        let data = attributes.get(4..len)?;
        if this == kind {
            return Some(data);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

/// Returns the attributes of an answer, which may be empty, once the kernel's acknowledgement is
/// there. `None`: there is more to read.
fn answer(mut bytes: &[u8], attributes: &mut Vec<u8>) -> Result<Option<()>, Errno> {
    while let Some(head) = bytes.get(..HEAD) {
        let len = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let body = bytes.get(HEAD..len).ok_or(Errno::PROTO)?;
        if u16::from_ne_bytes([head[4], head[5]]) == NLMSG_ERROR {
            let code = body.first_chunk().ok_or(Errno::PROTO)?;
            return match i32::from_ne_bytes(*code) {
                0 => Ok(Some(())),
                code => Err(Errno::from_raw_os_error(-code)),
            };
        }
        attributes.extend(body.get(GENERIC_HEAD..).ok_or(Errno::PROTO)?);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(None)
}

/// The kernel's NBD client.
pub(super) struct Kernel {
    socket: OwnedFd,
    family: u16,
}

impl Kernel {
    /// Opens a netlink socket, and finds the NBD client.
    pub(super) fn open() -> Result<Kernel> {
        let (family, raw) = (AddressFamily::NETLINK, SocketType::RAW);
        let kind = Some(netlink::GENERIC);
        let socket = rustix::net::socket_with(family, raw, SocketFlags::CLOEXEC, kind)
            .context("can't open a netlink socket")?;
        let mut kernel = Kernel { socket, family: GENL_ID_CTRL };
        let ask = kernel.order(CTRL_CMD_GETFAMILY).text(CTRL_ATTR_FAMILY_NAME, "nbd");
        let told = kernel.send(ask).context("the kernel's NBD client can't be reached")?;
        let id = find(&told, CTRL_ATTR_FAMILY_ID).and_then(|id| id.try_into().ok());
        kernel.family = u16::from_ne_bytes(id.context("the kernel's NBD client has no number")?);
        Ok(kernel)
    }

    fn order(&self, command: u8) -> Message {
        Message::new(self.family, command)
    }

    /// Sends an order, and returns the attributes of the answer.
    fn send(&mut self, message: Message) -> Result<Vec<u8>, Errno> {
        rustix::io::write(&self.socket, &message.done())?;
        let (mut attributes, mut bytes) = (Vec::new(), vec![0; 8192]);
        loop {
            let len = rustix::io::read(&self.socket, &mut bytes[..])?;
            if answer(&bytes[..len], &mut attributes)?.is_some() {
                return Ok(attributes);
            }
        }
    }

    /// Makes a device of a socket whose other end serves `size` bytes with these transmission
    /// flags. Returns its number.
    ///
    /// There is one socket, and no time-out for a request. With a time-out, or with several
    /// sockets, the kernel gives up a socket whose server is slow, and repeats its requests over
    /// another one. Then the server could execute a request of the first socket after the
    /// repetition was answered, which would bring old data back. As it is, the kernel repeats a
    /// request only over a new socket, and gets that only after the server has closed the old one.
    pub(super) fn connect(
        &mut self,
        socket: &impl AsFd,
        size: u64,
        flags: u16,
        backend: &str,
    ) -> Result<u32> {
        let order = self
            .order(NBD_CMD_CONNECT)
            .with(NBD_ATTR_SIZE_BYTES, &size.to_ne_bytes())
            .with(NBD_ATTR_BLOCK_SIZE_BYTES, &BLOCK.to_ne_bytes())
            .with(NBD_ATTR_SERVER_FLAGS, &u64::from(flags).to_ne_bytes())
            .with(NBD_ATTR_DEAD_CONN_TIMEOUT, &DEAD_SECONDS.to_ne_bytes())
            .text(NBD_ATTR_BACKEND_IDENTIFIER, backend)
            .socket(socket);
        let told = self.send(order).context("the kernel refuses to make an NBD device")?;
        let index = find(&told, NBD_ATTR_INDEX).and_then(|index| index.try_into().ok());
        index.map(u32::from_ne_bytes).context("the kernel does not tell the number of the device")
    }

    fn change(&self, index: u32, backend: &str) -> Message {
        let order = self.order(NBD_CMD_RECONFIGURE).with(NBD_ATTR_INDEX, &index.to_ne_bytes());
        order.text(NBD_ATTR_BACKEND_IDENTIFIER, backend)
    }

    /// Gives a device a new socket in place of a dead one. Does nothing if the kernel has not
    /// noticed yet that the former one is dead.
    pub(super) fn hand_over(
        &mut self,
        index: u32,
        backend: &str,
        socket: &impl AsFd,
    ) -> Result<(), Errno> {
        let order = self.change(index, backend).socket(socket);
        self.send(order).map(drop)
    }

    /// Changes the size of a device.
    pub(super) fn resize(&mut self, index: u32, backend: &str, size: u64) -> Result<(), Errno> {
        let order = self.change(index, backend).with(NBD_ATTR_SIZE_BYTES, &size.to_ne_bytes());
        self.send(order).map(drop)
    }

    /// Ends a device: its requests fail.
    pub(super) fn disconnect(&mut self, index: u32) -> Result<(), Errno> {
        let order = self.order(NBD_CMD_DISCONNECT).with(NBD_ATTR_INDEX, &index.to_ne_bytes());
        self.send(order).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_the_kernel_reads_them() {
        let message = Message::new(30, NBD_CMD_DISCONNECT)
            .with(NBD_ATTR_INDEX, &7u32.to_ne_bytes())
            .text(NBD_ATTR_BACKEND_IDENTIFIER, "ab")
            .done();
        assert_eq!(message.len(), 36);
        assert_eq!(message[..4], 36u32.to_ne_bytes());
        assert_eq!((message[HEAD], message[HEAD + 1]), (2, 1));
        let attributes = &message[HEAD + GENERIC_HEAD..];
        assert_eq!(find(attributes, NBD_ATTR_INDEX), Some(&7u32.to_ne_bytes()[..]));
        assert_eq!(find(attributes, NBD_ATTR_BACKEND_IDENTIFIER), Some(&b"ab\0"[..]));
        assert_eq!(find(attributes, NBD_ATTR_SOCKETS), None);
        assert_eq!(find(&[1, 0, 1, 0], 1), None);
    }

    #[test]
    fn an_answer_ends_with_an_acknowledgement_or_an_error() {
        let mut head = Message::new(NLMSG_ERROR, 0).0;
        head.truncate(HEAD);
        let ended = |code: i32| {
            let mut bytes = [&head[..], &code.to_ne_bytes()].concat();
            bytes[..4].copy_from_slice(&20u32.to_ne_bytes());
            bytes
        };
        let mut told = Vec::new();
        let reply = Message::new(30, 1).with(NBD_ATTR_INDEX, &7u32.to_ne_bytes()).done();
        assert_eq!(answer(&reply, &mut told), Ok(None));
        assert_eq!(find(&told, NBD_ATTR_INDEX), Some(&7u32.to_ne_bytes()[..]));
        let both = [reply, ended(0)].concat();
        assert_eq!(answer(&both, &mut told), Ok(Some(())));
        assert_eq!(answer(&ended(-22), &mut told), Err(Errno::INVAL));
        assert_eq!(answer(&ended(0)[..18], &mut told), Err(Errno::PROTO));
    }

    #[test]
    fn a_kernel_is_asked_for_a_family_that_it_has_or_not() {
        // Every kernel has generic netlink. Without the module, there is no such family.
        match Kernel::open() {
            Ok(kernel) => assert!(kernel.family > GENL_ID_CTRL),
            Err(error) => assert!(format!("{error:#}").contains("can't be reached"), "{error:#}"),
        }
    }
}

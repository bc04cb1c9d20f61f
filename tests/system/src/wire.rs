//! Frames of Gabion's own protocol, made from its documentation, to be broken by tests.

use crate::bytes::crc32c;

/// A whole header: magic, checksums, length, version, kind; all else zero.
pub fn header(kind: u8, version: u16, body: &[u8]) -> Vec<u8> {
    let mut head = vec![0; 128];
    head[..4].copy_from_slice(b"GABN");
    head[8..12].copy_from_slice(&crc32c(body).to_le_bytes());
    head[12..16].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[16..18].copy_from_slice(&version.to_le_bytes());
    head[18] = kind;
    seal(&mut head);
    head
}

/// Sets the header's own checksum, after a change.
pub fn seal(head: &mut [u8]) {
    let crc = crc32c(&head[8..128]);
    head[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// The kind of a hello.
pub const HELLO: u8 = 1;

/// A hello of a command line: role 4, versions 1 to 1.
pub fn hello() -> Vec<u8> {
    let body = [0x10, 4, 0x30, 1, 0x38, 1];
    [header(HELLO, 1, &body), body.to_vec()].concat()
}

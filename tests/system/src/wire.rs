//! Frames of Gabion's own protocol, built from its documentation, for tests that corrupt them.

use crate::bytes::crc32c;
use anyhow::{Result, ensure};
use std::io::Read;

/// Returns a header with magic, checksums, length, version and kind. All else is zero.
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

/// Sets the header's own checksum after a change.
pub fn seal(head: &mut [u8]) {
    let crc = crc32c(&head[8..128]);
    head[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// The kind of a hello.
pub const HELLO: u8 = 1;

/// The kind of a welcome.
pub const WELCOME: u8 = 2;

/// The kind of a refusal.
pub const REFUSAL: u8 = 3;

/// Returns a hello of a command line: role 4, versions 1 to 1.
pub fn hello() -> Vec<u8> {
    hello_of(0, 1)
}

/// Returns a hello of a command line for a cluster (0: none yet) with one protocol version.
pub fn hello_of(cluster: u8, version: u8) -> Vec<u8> {
    let mut body = vec![0x10, 4, 0x30, version, 0x38, version];
    if cluster > 0 {
        body.extend([0x08, cluster]);
    }
    [header(HELLO, 1, &body), body].concat()
}

/// Encodes a number as a field of a message.
pub fn number(tag: u8, value: u64) -> Vec<u8> {
    [varint(u64::from(tag) << 3), varint(value)].concat()
}

/// Encodes text as a field of a message.
pub fn text(tag: u8, text: &str) -> Vec<u8> {
    [varint(u64::from(tag) << 3 | 2), varint(text.len() as u64), text.into()].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 127 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Reads one frame. Returns its kind, and its body as text with invalid bytes replaced.
pub fn answer(from: &mut impl Read) -> Result<(u8, String)> {
    let mut head = [0; 128];
    from.read_exact(&mut head)?;
    ensure!(head[..4] == *b"GABN", "not our protocol: {head:x?}");
    ensure!(head[4..8] == crc32c(&head[8..]).to_le_bytes(), "a damaged header: {head:x?}");
    let len = u32::from_le_bytes([head[12], head[13], head[14], head[15]]);
    let mut body = vec![0; len as usize];
    from.read_exact(&mut body)?;
    ensure!(head[8..12] == crc32c(&body).to_le_bytes(), "a damaged body: {head:x?}");
    Ok((head[18], String::from_utf8_lossy(&body).into_owned()))
}

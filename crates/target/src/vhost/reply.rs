//! The messages of the backend: answers, and the notification of a changed configuration.

use super::message::{Config, Head, Notes};
use alloc::vec;
use alloc::vec::Vec;

/// Version 1.
const PLAIN: u32 = 1;
/// Version 1, an answer.
const ANSWER: u32 = 1 | 1 << 2;
/// The backend's own request: the configuration has changed.
const CONFIG_CHANGED: u32 = 2;

fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(Head::LEN + body.len());
    for word in [request, flags, body.len() as u32] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(body);
    bytes
}

/// Answers a request with a number. As an acknowledgement, 0 is success.
pub fn number(request: u32, value: u64) -> Vec<u8> {
    message(request, ANSWER, &value.to_le_bytes())
}

/// Answers with the index of a ring.
pub fn ring(request: u32, queue: u32, index: u16) -> Vec<u8> {
    message(request, ANSWER, &[queue.to_le_bytes(), u32::from(index).to_le_bytes()].concat())
}

/// Answers with a part of the configuration space, which `fill` writes.
pub fn config(request: u32, of: Config, fill: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut body = vec![0; 12 + of.len as usize];
    for (at, word) in [of.offset, of.len, of.flags].into_iter().enumerate() {
        body[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
    }
    fill(&mut body[12..]);
    message(request, ANSWER, &body)
}

/// Answers with an in-flight region. Its file descriptor accompanies the message.
pub fn notes(request: u32, of: Notes) -> Vec<u8> {
    let mut body = Vec::with_capacity(24);
    body.extend(of.len.to_le_bytes());
    body.extend(of.offset.to_le_bytes());
    body.extend(of.queues.to_le_bytes());
    body.extend(of.size.to_le_bytes());
    // The same length as the C structure of the protocol.
    body.extend([0; 4]);
    message(request, ANSWER, &body)
}

/// Notifies the frontend that the configuration has changed.
pub fn config_changed() -> Vec<u8> {
    message(CONFIG_CHANGED, PLAIN, &[])
}

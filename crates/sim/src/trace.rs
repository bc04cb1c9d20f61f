//! The trace of a run: a running hash of all events and effects (the fingerprint), and on demand
//! one line for each.

use crate::inbox::Item;
use base::{Time, prng};
use seam::{Effect, Head, Port};
use std::fmt::Write;

/// Destination of trace lines.
#[derive(Debug, Default)]
pub enum Sink {
    /// Nowhere.
    #[default]
    Off,
    /// To standard output.
    Print,
    /// Into a list.
    Keep(Vec<String>),
}

/// The fingerprint and the trace lines of a run.
#[derive(Debug, Default)]
pub struct Trace {
    hash: u64,
    sink: Sink,
}

impl Trace {
    /// Creates a trace that goes to `sink`.
    pub fn new(sink: Sink) -> Trace {
        Trace { hash: 0, sink }
    }

    /// Returns the fingerprint so far.
    pub fn fingerprint(&self) -> u64 {
        self.hash
    }

    /// Takes the lines that were kept.
    pub fn take_lines(&mut self) -> Vec<String> {
        match &mut self.sink {
            Sink::Keep(lines) => std::mem::take(lines),
            _ => Vec::new(),
        }
    }

    /// Adds words to the fingerprint.
    pub fn words(&mut self, words: &[u64]) {
        for w in words {
            self.hash = prng::mix(self.hash ^ w);
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for c in &mut chunks {
            let word = u64::from_le_bytes(c.try_into().expect("eight bytes"));
            self.hash = prng::mix(self.hash ^ word);
        }
        let rest =
            chunks.remainder().iter().fold(bytes.len() as u64, |h, b| h << 8 | u64::from(*b));
        self.words(&[rest]);
    }

    /// Returns true when lines are wanted.
    pub fn is_on(&self) -> bool {
        !matches!(self.sink, Sink::Off)
    }

    /// Adds a line. Calls `text` only when lines are wanted.
    pub fn line(&mut self, now: Time, who: &str, text: impl FnOnce() -> String) {
        match &mut self.sink {
            Sink::Off => {}
            Sink::Print => println!("{:>12.6} {who:<6} {}", now.0 as f64 / 1e9, text()),
            Sink::Keep(lines) => {
                lines.push(format!("{:>12.6} {who:<6} {}", now.0 as f64 / 1e9, text()))
            }
        }
    }

    pub(crate) fn item(&mut self, now: Time, who: &str, proc: usize, item: &Item, peer: &str) {
        self.words(&[now.0, proc as u64]);
        match item {
            Item::LinkUp { link, .. } => self.words(&[1, link.0]),
            Item::LinkDown { link, why } => self.words(&[2, link.0, *why as u64]),
            Item::DialFailed { dial, why } => self.words(&[3, dial.0, *why as u64]),
            Item::Frame { link, head, body, .. } => {
                self.words(&[4, link.0, body.len() as u64]);
                self.bytes(head.as_slice());
            }
            Item::DiskDone { op } => self.words(&[5, u64::from(*op)]),
            Item::Request { id, request } => {
                self.words(&[6, id.0, request.at, u64::from(request.len)]);
            }
            Item::Withdraw { ids } => {
                self.words(&[7, ids.len() as u64]);
                ids.iter().for_each(|id| self.words(&[id.0]));
            }
        }
        self.line(now, who, || match item {
            Item::Frame { link, head, body, .. } => {
                format!("<- {peer:<5} {link} {}", describe(head, body, Port::Ours))
            }
            Item::LinkUp { link, dial, .. } => format!("<- {peer:<5} {link} up {dial:?}"),
            Item::LinkDown { link, why } => format!("<- {peer:<5} {link} down: {why:?}"),
            Item::Request { id, request } => format!(
                "request {} {:?} {} {}+{}",
                id.0, request.kind, request.volume, request.at, request.len
            ),
            other => format!("{other:?}"),
        });
    }

    pub(crate) fn effect(&mut self, now: Time, who: &str, effect: &Effect, peer: &str) {
        match effect {
            Effect::Send { link, head, body } => {
                self.words(&[11, link.0, body.len() as u64]);
                self.bytes(head.as_slice());
            }
            Effect::SendFirst { link, head } => {
                self.words(&[22, link.0]);
                self.bytes(head.as_slice());
            }
            Effect::Dial { dial, .. } => self.words(&[12, dial.0]),
            Effect::Close { link } => self.words(&[13, link.0]),
            Effect::Pause { link } => self.words(&[14, link.0]),
            Effect::Resume { link } => self.words(&[15, link.0]),
            Effect::Read { op, at, len, .. } => self.words(&[16, op.0, *at, u64::from(*len)]),
            Effect::Write { op, at, body, .. } => self.words(&[17, op.0, *at, body.len() as u64]),
            Effect::Flush { op, .. } => self.words(&[18, op.0]),
            Effect::Punch { op, at, len, .. } => self.words(&[24, op.0, *at, *len]),
            Effect::Reply { id, result } => self.words(&[19, id.0, u64::from(result.is_ok())]),
            Effect::Note(_) => self.words(&[20]),
            Effect::Welcome { link } => self.words(&[21, link.0]),
            Effect::Reframe { link, mode } => self.words(&[23, link.0, u64::from(*mode)]),
        }
        self.line(now, who, || match effect {
            Effect::Send { link, head, body } => {
                format!("-> {peer:<5} {link} {}", describe(head, body, Port::Ours))
            }
            Effect::SendFirst { link, head } => {
                format!("=> {peer:<5} {link} {}", describe(head, &[], Port::Ours))
            }
            Effect::Reply { id, result } => match result {
                Ok(data) => format!("reply {} ok {} bytes", id.0, data.len()),
                Err(why) => format!("reply {} {why:?}", id.0),
            },
            Effect::Note(note) => format!("note {note:?}"),
            other => format!("{other:?}"),
        });
    }
}

/// Describes a frame in a line: what its header says, and the length of its body.
pub fn describe(head: &Head, body: &[u8], port: Port) -> String {
    if port != Port::Ours || head.as_slice().len() != wire::header::HEADER {
        return format!("{} + {} bytes", head.as_slice().len(), body.len());
    }
    let mut s = match wire::Frame::try_from(wire::parse(head.as_slice())) {
        Ok(frame) => format!("{frame:?}"),
        Err(why) => format!("a frame that can't be read: {why}"),
    };
    if !body.is_empty() {
        write!(s, " body={}", body.len()).expect("strings can be written");
    }
    s
}

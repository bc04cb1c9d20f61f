//! What an MDM remembers: reads the log at the start, and writes what the consensus asks for.
//!
//! Invariants: one write is in flight at a time. A message that promises durability leaves after
//! the write that it depends on ([`consensus::Consensus`] says which). After a failed write nothing
//! more is sent.

use super::Mdm;
use super::intake::Input;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use base::Time;
use consensus::{Consensus, Image, Record};
use mdm::State;
use mdm::entry::{self, Decided};
use mdm::log::{BATCH_MAX, Batch, Found, Io, Progress};
use prost::Message;
use seam::{Buf, DiskError, DiskId, DiskOp, Effect, Effects, Note};

/// Bytes of records in one write, about. The rest of a batch is for what surrounds them.
const RECORDS: usize = BATCH_MAX - (4 << 10);

impl Mdm {
    pub(super) fn disk_done(
        &mut self,
        now: Time,
        op: DiskOp,
        result: Result<Buf, DiskError>,
        out: &mut Effects,
    ) {
        assert_eq!(op.0, self.ops, "one operation at a time");
        let progress = match &result {
            Ok(data) => self.log.done(Ok(data)),
            Err(why) => self.log.done(Err(*why)),
        };
        match progress {
            Progress::More => {}
            Progress::Durable => self.written(now, out),
            Progress::Switched => {
                out.note(Note::Snapshot { version: self.state.version });
                self.written(now, out);
            }
            Progress::Recovered(found) => self.recovered(now, *found, out),
            Progress::Failed => self.log_failed(out),
        }
    }

    fn log_failed(&mut self, out: &mut Effects) {
        let why = self.log.failed().expect("it says so").to_string();
        self.fail(why, out);
    }

    /// Continues after a write became durable.
    fn written(&mut self, now: Time, out: &mut Effects) {
        if let Some(image) = self.beginning.take() {
            return self.start(now, image, out);
        }
        let Some(consensus) = &mut self.consensus else { return };
        let messages = consensus.durable();
        self.send_all(messages, out);
    }

    fn recovered(&mut self, now: Time, found: Found, out: &mut Effects) {
        match found.image {
            None if self.config.join => {
                out.note(Note::Waiting);
                self.settle_hellos(now, out);
            }
            None => {
                let data = entry::to_bytes(&State::new(), 0);
                self.begin_with(Image::first(1, data));
            }
            Some(image) => match read(&image, &found.records, self.level_max()) {
                Ok((image, whole)) => match self.config.cluster {
                    Some(want) if whole.state.cluster.0 != 0 && want != whole.state.cluster => {
                        let text = format!(
                            "this log belongs to cluster {:016x}, and cluster {:016x} is \
                             configured: check which file the MDM was given",
                            whole.state.cluster.0, want.0
                        );
                        self.fail(text, out);
                    }
                    _ if image.implausible().is_some() => {
                        let (what, number) = image.implausible().expect("just seen");
                        let text = format!(
                            "this MDM's log says {what} {number}, and no cluster ever gets that far: somebody has forged a \
                             message to it, or the log is damaged. Nothing was changed. If the other MDMs work, remove \
                             this one (`gabion mdm remove`), remove its log, and add it anew; if none does, keep all \
                             logs, and see docs/operate on MDMs that are lost"
                        );
                        self.fail(text, out);
                    }
                    _ => match self.former_address(image.me as u32, &whole.state) {
                        Some(at) => self.ask_at(at, image, whole.state.cluster, out),
                        None => self.resume(now, image, out),
                    },
                },
                Err(what) => {
                    self.log.reject(what);
                    self.log_failed(out);
                }
            },
        }
    }

    /// Starts with what was read, as soon as it is certainly on the disk: it may have come from the
    /// page cache.
    pub(super) fn resume(&mut self, now: Time, image: Image, out: &mut Effects) {
        match self.log.wants_switch() {
            true => self.begin_with(image),
            false => self.start(now, image, out),
        }
    }

    /// Starts with this image as soon as it is durable.
    pub(super) fn begin_with(&mut self, image: Image) {
        self.log.switch(&image.encode_to_vec());
        self.beginning = Some(image);
    }

    /// Starts with an image that is durable.
    pub(super) fn start(&mut self, now: Time, image: Image, out: &mut Effects) {
        let decided = Decided::from_base(&image.base.data, self.level_max())
            .expect("it was read, or made, before");
        let me = image.me as u32;
        let late = decided.state.members.list.get(&me).is_some_and(|m| m.tie_breaker);
        (self.state, self.chain) = (decided.state, decided.chain);
        let prng = out.prng().fork("elections");
        self.consensus = Some(Consensus::new(image, late, prng));
        self.tick_at = now;
        self.settle_hellos(now, out);
    }

    /// Starts the next write, if one is due.
    pub(super) fn write(&mut self) {
        let ahead = self.proposed().is_some();
        let Some(consensus) = self.consensus.as_mut().filter(|_| self.log.is_idle()) else {
            return;
        };
        let full = self.log.wants_switch() || consensus.is_image_wanted();
        if consensus.is_whole_due() || (full && !ahead) {
            let data = entry::to_bytes(&self.state, self.chain);
            self.log.switch(&consensus.write_image(data).encode_to_vec());
        } else if consensus.is_due() && !self.log.wants_switch() {
            let mut batch = Batch::default();
            for record in consensus.write_records(RECORDS) {
                assert!(batch.push(&record), "a record fits into a batch");
            }
            self.log.append(batch);
        }
    }

    /// Starts the next operation of the log.
    pub(super) fn disk(&mut self, out: &mut Effects) {
        let Some(io) = self.log.next() else { return };
        self.ops += 1;
        let (op, disk) = (DiskOp(self.ops), DiskId(0));
        let effect = match io {
            Io::Read { at, len } => Effect::Read { op, disk, at, len },
            Io::Write { at, data } => {
                let body = out.copy(&data);
                Effect::Write { op, disk, at, body, durable: false }
            }
            Io::Flush => Effect::Flush { op, disk },
        };
        out.push(effect);
    }

    /// Forms the cluster if that was not done yet. Called by a leader whose term has just begun.
    pub(super) fn form(&mut self, out: &mut Effects) {
        if self.state.cluster.0 == 0 {
            let drawn = base::ClusterId(out.prng().next_u64() | 1);
            self.push(Input::Form(self.config.cluster.filter(|c| c.0 != 0).unwrap_or(drawn)));
        }
        self.push(Input::Here);
    }
}

/// Returns the image in the log with its records replayed, and the state that results.
fn read(
    image: &[u8],
    records: &[Vec<u8>],
    level_max: u32,
) -> Result<(Image, Box<Decided>), String> {
    let mut image = Image::decode(image).map_err(|e| e.to_string())?;
    // The state says whether this build can read what follows, so it comes first.
    let mut scratch = Box::new(Decided::from_base(&image.base.data, level_max)?);
    for record in records {
        let record = Record::decode(&record[..]).map_err(|e| e.to_string())?;
        if !image.replay(record) {
            return Err(String::from("an entry that does not follow the one before"));
        }
    }
    if let Some(e) = image.entries.iter().find(|e| !e.is_known()) {
        return Err(format!("entry {}: its kind is {}", e.index, e.kind));
    }
    // All entries are tried now, so that one of a newer build is noticed before it matters.
    for e in image.entries.iter().filter(|e| e.kind == 0 && !e.data.is_empty()) {
        scratch.apply(&e.data, level_max).map_err(|what| format!("entry {}: {what}", e.index))?;
    }
    Ok((image, scratch))
}

//! Reads the MDM's log at the start, and writes what the consensus asks for.
//!
//! Invariants: one operation is in flight at a time. A message that promises durability is sent
//! after the write that it depends on ([`consensus::Consensus`] says which). After a failed write
//! nothing more is sent.

use super::Journal;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use base::{Prng, Time};
use consensus::{Consensus, Image, Message, Record};
use mdm::entry::{self, Decided};
use mdm::log::{BATCH_MAX, Batch, Found, Io, LogError, Progress, Why};
use prost::Message as _;
use seam::{Buf, DiskError, DiskId, DiskOp, Effect, Effects};

/// The bytes of records in one write, about. The rest of a batch is for their envelopes.
const RECORDS: usize = BATCH_MAX - (4 << 10);

impl Journal {
    /// Takes the result of a disk operation.
    pub(in crate::mdm) fn disk_done(
        &mut self,
        op: DiskOp,
        result: Result<Buf, DiskError>,
    ) -> Progress {
        assert_eq!(op.0, self.ops, "one operation at a time");
        match &result {
            Ok(data) => self.log.done(Ok(data)),
            Err(why) => self.log.done(Err(*why)),
        }
    }

    /// Returns true until the first disk operation begins.
    pub(in crate::mdm) fn is_unread(&self) -> bool {
        self.ops == 0
    }

    /// Returns true until the log was read.
    pub(in crate::mdm) fn is_recovering(&self) -> bool {
        self.log.is_recovering()
    }

    /// Returns why the log does not work any more.
    pub(in crate::mdm) fn failed(&self) -> Option<String> {
        self.log.failed().map(|why| why.to_string())
    }

    /// Records that the log can't be used, and returns the reason for people.
    pub(in crate::mdm) fn reject(&mut self, what: String) -> String {
        self.log.reject(what);
        self.failed().expect("it was rejected")
    }

    /// Returns true if the file system of the log is full.
    pub(in crate::mdm) fn lacks_space(&self) -> bool {
        matches!(self.log.failed(), Some(LogError::Disk(_, Why(DiskError::NoSpace))))
    }

    /// Returns the image in the log with its records replayed, and the state that results.
    pub(in crate::mdm) fn read(
        &self,
        image: &[u8],
        found: &Found,
    ) -> Result<(Image, Box<Decided>), String> {
        let level_max = self.level_max;
        let mut image = Image::decode(image).map_err(|e| e.to_string())?;
        // The state says whether this build can read what follows, so it comes first.
        let mut scratch = Box::new(Decided::from_base(&image.base.data, level_max)?);
        for record in &found.records {
            let record = Record::decode(&record[..]).map_err(|e| e.to_string())?;
            if !image.replay(record) {
                return Err(String::from("an entry that does not follow the one before"));
            }
        }
        if let Some(e) = image.entries.iter().find(|e| !e.is_known()) {
            return Err(format!("entry {}: its kind is {}", e.index, e.kind));
        }
        // All entries are applied to a scratch state now, so that one of a newer build is noticed
        // early.
        for e in image.entries.iter().filter(|e| e.kind == 0 && !e.data.is_empty()) {
            let tried = scratch.apply(&e.data, level_max);
            tried.map_err(|what| format!("entry {}: {what}", e.index))?;
        }
        Ok((image, scratch))
    }

    /// Returns true if the data that was read is certainly on the disk. If it may have come from
    /// the page cache only, it is written again.
    pub(in crate::mdm) fn is_safe(&self) -> bool {
        !self.log.wants_switch()
    }

    /// Starts with this image as soon as it is durable.
    pub(in crate::mdm) fn begin_with(&mut self, image: Image) {
        assert!(self.consensus.is_none(), "nobody takes part while the beginning is written");
        self.log.switch(&image.encode_to_vec());
        self.beginning = Some(image);
    }

    /// Starts with an empty log, as the member with this id, as soon as that is durable.
    pub(in crate::mdm) fn begin_as(&mut self, id: u64) {
        assert!(self.is_empty(), "what it has promised stays");
        self.consensus = None;
        self.begin_with(Image::newcomer(id));
    }

    /// Returns true if it can begin anew: nothing is being written.
    pub(in crate::mdm) fn is_idle(&self) -> bool {
        self.log.is_idle()
    }

    /// Returns true while it waits for the image that it begins with.
    pub(in crate::mdm) fn is_beginning(&self) -> bool {
        self.beginning.is_some()
    }

    /// Returns the image that it begins with, which is durable now.
    pub(in crate::mdm) fn beginning(&mut self) -> Option<Image> {
        self.beginning.take()
    }

    /// Starts with an image that is durable.
    pub(in crate::mdm) fn start(&mut self, now: Time, image: Image, prng: Prng) {
        let decided = Decided::from_base(&image.base.data, self.level_max)
            .expect("it was read, or made, before");
        let me = image.me as u32;
        let late = decided.state.members.list.get(&me).is_some_and(|m| m.tie_breaker);
        (self.state, self.chain) = (decided.state, decided.chain);
        assert!(self.consensus.is_none(), "the consensus starts once");
        self.consensus = Some(Consensus::new(image, late, prng));
        self.tick_at = now;
    }

    /// Returns the messages that waited for the write that is durable now.
    pub(in crate::mdm) fn durable(&mut self) -> Vec<Message> {
        self.consensus.as_mut().map_or_else(Vec::new, Consensus::durable)
    }

    /// Starts the next write, if one is due, and the next operation of the disk.
    pub(in crate::mdm) fn write(&mut self, out: &mut Effects) {
        self.write_due();
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

    fn write_due(&mut self) {
        let ahead = !self.is_decided();
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
}

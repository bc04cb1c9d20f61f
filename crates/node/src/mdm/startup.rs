//! How an MDM starts: from the log that it has read to its part in the consensus.

use super::Mdm;
use super::inputs::Input;
use super::moved::{self, Moved};
use alloc::format;
use alloc::string::String;
use base::{ClusterId, LinkId, Time};
use consensus::Image;
use mdm::State;
use mdm::entry;
use mdm::log::{Found, Progress};
use seam::{Buf, DiskError, DiskOp, Effect, Effects, Note};
use wire::Frame;

impl Mdm {
    /// Takes the result of an operation of the log.
    pub(super) fn disk_done(
        &mut self,
        now: Time,
        op: DiskOp,
        result: Result<Buf, DiskError>,
        out: &mut Effects,
    ) {
        match self.journal.disk_done(op, result) {
            Progress::More => {}
            Progress::Durable => self.written(now, out),
            Progress::Switched => {
                out.note(Note::Snapshot { version: self.state().version });
                self.written(now, out);
            }
            Progress::Recovered(found) => {
                if let Err(why) = self.recovered(now, *found, out) {
                    self.fail(why, out);
                }
            }
            Progress::Failed => {
                let why = self.journal.failed().expect("it says so");
                self.fail(why, out);
            }
        }
    }

    /// Continues after a write became durable.
    fn written(&mut self, now: Time, out: &mut Effects) {
        match self.journal.beginning() {
            Some(image) => self.start(now, image, out),
            None => {
                let messages = self.journal.durable();
                self.peers.send(messages, &mut self.journal, out);
            }
        }
    }

    /// Continues after the log was read. An error is the reason why this MDM can't start.
    fn recovered(&mut self, now: Time, found: Found, out: &mut Effects) -> Result<(), String> {
        let Some(image) = &found.image else {
            match self.config.join {
                true => {
                    out.note(Note::Waiting);
                    self.settle_hellos(out);
                }
                false => {
                    let data = entry::to_bytes(&State::new(), 0);
                    self.journal.begin_with(Image::first(1, data));
                }
            }
            return Ok(());
        };
        let read = self.journal.read(image, &found);
        let (image, whole) = read.map_err(|what| self.journal.reject(what))?;
        let cluster = whole.state.cluster;
        if let Some(want) = self.config.cluster.filter(|want| cluster.0 != 0 && *want != cluster) {
            return Err(format!(
                "this log belongs to cluster {:016x}, and cluster {:016x} is \
                 configured: check which file the MDM was given",
                cluster.0, want.0
            ));
        }
        if let Some((what, number)) = image.implausible() {
            return Err(format!(
                "this MDM's log says {what} {number}, and no cluster ever gets that far: somebody has forged a \
                 message to it, or the log is damaged. Nothing was changed. If the other MDMs work, remove \
                 this one (`gabion mdm remove`), remove its log, and add it anew; if none does, keep all \
                 logs, and see docs/operate on MDMs that are lost"
            ));
        }
        match moved::former_address(image.me as u32, self.config.address, &whole.state) {
            Some(at) => {
                out.note(Note::Moved { from: at });
                let nonce = out.prng().next_u64() | 1;
                let dial = self.dials.dial(at, out);
                self.moved = Some(Moved::new(image, cluster, dial, nonce));
            }
            None => self.resume(now, image, out),
        }
        Ok(())
    }

    /// Handles the answer of the process that listens at this MDM's former address.
    pub(super) fn answered_there(
        &mut self,
        now: Time,
        frame: Option<Frame>,
        body: &[u8],
        out: &mut Effects,
    ) {
        match moved::original(&self.config, frame, body) {
            Some(why) => {
                self.leave_question(out);
                self.fail(why, out);
            }
            None => self.go_on(now, out),
        }
    }

    /// Starts, because no other MDM with this log serves at the former address.
    pub(super) fn go_on(&mut self, now: Time, out: &mut Effects) {
        if let Some(image) = self.leave_question(out) {
            self.resume(now, image, out);
        }
    }

    fn leave_question(&mut self, out: &mut Effects) -> Option<Image> {
        let moved = self.moved.take()?;
        if let Some(link) = moved.link {
            out.push(Effect::Close { link });
        }
        Some(moved.image)
    }

    /// Starts with what was read, as soon as it is certainly on the disk.
    fn resume(&mut self, now: Time, image: Image, out: &mut Effects) {
        match self.journal.is_safe() {
            true => self.start(now, image, out),
            false => self.journal.begin_with(image),
        }
    }

    /// Starts with an image that is durable.
    fn start(&mut self, now: Time, image: Image, out: &mut Effects) {
        self.journal.start(now, image, out.prng().fork("elections"));
        self.settle_hellos(out);
    }

    /// Forms the cluster if that was not done yet. Called by a leader whose term has just begun.
    pub(super) fn form(&mut self, out: &mut Effects) {
        if self.state().cluster.0 == 0 {
            let drawn = ClusterId(out.prng().next_u64() | 1);
            let cluster = self.config.cluster.filter(|c| c.0 != 0).unwrap_or(drawn);
            self.inputs.push(Input::Form(cluster));
        }
        self.inputs.push(Input::Here);
    }

    /// Returns true for the link of the question to the former address.
    pub(super) fn asks_on(&self, link: LinkId) -> bool {
        self.moved.as_ref().is_some_and(|m| m.asks_on(link))
    }
}

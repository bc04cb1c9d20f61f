//! A durable store on one device, without a cluster and without a reactor. The caller starts jobs
//! and waits for their ends.
//!
//! It serves tools that examine or measure a device. Decisions are the store's, and the kernel
//! interface is [`OfflineDevice`]'s.

use anyhow::{Context, Result, anyhow, bail};
use base::{GroupId, Prng, UnitKey};
use rt::{Ended, OfflineDevice};
use seam::{Buf, DiskError, DiskId, Effects, Finished, Job, Started, UnitStore, WriteMetadata};
use std::path::Path;
use store::durable::{
    Durable, Expected, Format, Formatting, Identity, Mount, MountError, Mounting, Tuning,
};

const DISK: DiskId = DiskId(0);

/// Matches any device of any cluster.
pub const ANY: Expected = Expected { cluster: None, device: None, level_max: base::level::LEVEL };

fn effects(drive: &OfflineDevice) -> Effects {
    Effects::new(drive.pool().clone(), Prng::new(0), None)
}

/// Returns the next operation that ends. Fails if the store waits and none is in flight.
fn next(drive: &mut OfflineDevice, out: &mut Effects) -> Result<Ended> {
    drive.begin_all(out);
    drive.wait()?.ok_or_else(|| anyhow!("the store waits, and the device has nothing to do"))
}

/// Formats a device. Refuses one that holds Gabion data, unless `force`.
pub fn format(drive: &mut OfflineDevice, identity: Identity, force: bool) -> Result<()> {
    let mut format = Format::new(DISK, drive.bytes(), identity, force)?;
    let mut out = effects(drive);
    format.start(&mut out);
    loop {
        let (op, result) = next(drive, &mut out)?;
        match format.disk_done(op, result, &mut out) {
            Formatting::Running => {}
            Formatting::Done => return Ok(()),
            Formatting::Failed(error) => bail!(error),
        }
    }
}

/// A mounted device.
pub struct Offline {
    drive: OfflineDevice,
    out: Effects,
    store: Box<Durable>,
}

impl Offline {
    /// Mounts the store on a drive. If the drive is read-only, the replay and the first checkpoint
    /// stay in memory.
    pub fn mount(mut drive: OfflineDevice, tuning: Tuning) -> Result<Offline, MountFailure> {
        let mut out = effects(&drive);
        let mut mount = Mount::new(DISK, drive.bytes(), ANY, tuning);
        let mut state = mount.start(&mut out);
        loop {
            match state {
                Mounting::Running => {}
                Mounting::Done(store) => return Ok(Offline { drive, out, store }),
                Mounting::Failed(error) => return Err(MountFailure::Refused(error)),
            }
            let (op, result) = next(&mut drive, &mut out)?;
            state = mount.disk_done(op, result, &mut out);
        }
    }

    /// Returns the mounted store.
    pub fn store(&self) -> &Durable {
        &self.store
    }

    /// Allocates a buffer of `len` bytes with arbitrary content, for a job.
    pub fn alloc(&self, len: usize) -> Buf {
        self.drive.pool().alloc(len)
    }

    /// Starts a job, which must not overlap a running one. Unless the result is [`Started::Done`],
    /// its end comes out of [`Offline::finished`].
    pub fn start(&mut self, token: u64, group: GroupId, unit: UnitKey, job: Job) -> Started {
        let started =
            self.store.start(token, group, unit, job, WriteMetadata::default(), &mut self.out);
        self.drive.begin_all(&mut self.out);
        started
    }

    /// Waits for the end of a job. Returns `None` if none is in flight.
    pub fn finished(&mut self) -> Result<Option<Finished>> {
        loop {
            if let Some(finished) = self.store.finished() {
                return Ok(Some(finished));
            }
            // Takes what has ended first, so that a batch of the log is as long as possible.
            if let Some((op, result)) = self.drive.poll()? {
                self.store.disk_done(op, result, &mut self.out);
                continue;
            }
            self.settle();
            if let Some(finished) = self.store.finished() {
                return Ok(Some(finished));
            }
            let Some((op, result)) = self.drive.wait()? else { return Ok(None) };
            self.store.disk_done(op, result, &mut self.out);
        }
    }

    /// Flushes the store, and starts the operations that it emits.
    fn settle(&mut self) {
        self.store.flush(&mut self.out);
        self.drive.begin_all(&mut self.out);
    }

    /// Writes a checkpoint, so that the next mount has nothing to replay. No job may be running.
    pub fn checkpoint(&mut self) -> Result<()> {
        self.store.request_checkpoint();
        while self.store.is_checkpointing() {
            self.settle();
            let Some((op, result)) = self.drive.wait()? else { continue };
            self.store.disk_done(op, result, &mut self.out);
            if let Some(error) = self.store.failed() {
                bail!("the device failed ({error:?})");
            }
        }
        Ok(())
    }

    /// Reads a range of a unit, in bytes, while no other job is running.
    pub fn read(
        &mut self,
        group: GroupId,
        unit: UnitKey,
        at: u32,
        len: u32,
    ) -> Result<Result<Buf, DiskError>> {
        match self.start(0, group, unit, Job::Read { at, len }) {
            Started::Done(data) => Ok(Ok(data)),
            Started::Full | Started::BadBody => bail!("a read writes nothing"),
            Started::Pending => {
                let finished = self.finished()?;
                Ok(finished.context("a read that was started ends")?.result)
            }
        }
    }
}

/// Why a device could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountFailure {
    /// The content of the device can't be used.
    #[error(transparent)]
    Refused(#[from] MountError),
    /// The machine failed, not the device.
    #[error(transparent)]
    Failed(#[from] anyhow::Error),
}

/// Opens a device for reading only. Fails if a server uses it, or it is mounted.
pub fn read_only(path: &Path) -> Result<OfflineDevice> {
    OfflineDevice::read_only(path).map_err(|e| match e {
        rt::RtError::Locked { .. } | rt::RtError::Mounted { .. } => anyhow!(
            "{} is in use: a server runs on it, or it is mounted; stop that one first (`gabion sds \
             kill`, `gabion down`), or ask the cluster with `gabion status`",
            path.display()
        ),
        rt::RtError::Open { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            anyhow!("there is no file or block device {}: check the path", path.display())
        }
        e => anyhow!("{e}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{BLOCK, ClusterId, DeviceId, VolumeId};
    use rt::{Backend, DiskSpec};

    #[test]
    fn data_in_a_file_is_there_after_a_mount_with_and_without_replay() {
        let dir = std::env::temp_dir().join(format!("gabion-offline-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for backend in [Backend::Auto, Backend::Epoll] {
            let path = dir.join(backend.to_string());
            let spec = DiskSpec::file(&path, Some(16 << 20));
            let mut drive = OfflineDevice::open(&spec, backend).unwrap();
            let id = Identity { cluster: ClusterId(5), device: DeviceId(7), uuid: [1, 2] };
            format(&mut drive, id, false).unwrap();
            assert!(format(&mut drive, id, false).is_err(), "it holds something");
            let mut device = Offline::mount(drive, Tuning::SHIPPED).unwrap();
            assert_eq!(device.store().identity(), id);
            let unit = UnitKey { volume: VolumeId(1), index: 2 };
            for token in 0..40 {
                let mut body = device.alloc(2 * BLOCK as usize);
                body.as_mut().fill(token as u8);
                let job = Job::Write { at: token * BLOCK, body, crc: None };
                let started = device.start(u64::from(token), GroupId(3), unit, job);
                assert!(matches!(started, Started::Pending));
                assert!(device.finished().unwrap().unwrap().result.is_ok());
            }
            let mut batches = 1;
            for checkpoint in [false, true] {
                if checkpoint {
                    device.checkpoint().unwrap();
                }
                drop(device);
                let drive = OfflineDevice::open(&spec, backend).unwrap();
                device = Offline::mount(drive, Tuning::SHIPPED).unwrap();
                assert_eq!(device.store().replayed().batches > 0, batches > 0);
                batches = 0;
                for block in 0..40 {
                    let data = device.read(GroupId(3), unit, block * BLOCK, BLOCK).unwrap();
                    assert_eq!(&data.unwrap()[..], [block as u8; BLOCK as usize]);
                }
            }
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
}

//! A shard's device before anybody may use it: memory is ready at once, a durable device is mounted
//! first, and one that holds nothing is formatted as soon as the MDM has named it.
//!
//! Formatting waits for the name, so that the superblock has cluster and id from the first moment: there
//! is no device that is formatted and nobody's, and no second way to write a superblock. If the process
//! dies in between, its next life finds an unformatted device, draws another uuid, and is a new, empty
//! store to the MDM, which it is.

use super::device::Device;
use super::{DeviceConfig, DurableConfig};
use alloc::boxed::Box;
use base::{ClusterId, DeviceId};
use seam::{Buf, DiskError, DiskId, DiskOp, Effects};
use store::Memory;
use store::durable::{Expected, Format, Formatting, Identity, Mount, MountError, Mounting};

enum Step {
    /// Nothing was read yet.
    Unread,
    Mounting(Box<Mount>),
    /// Nothing of ours is on it: it waits for its name.
    Fresh,
    Formatting(Box<Format>),
    Ready(Device),
    /// It was taken, or it failed.
    Over,
}

/// The device on its way.
pub(super) struct Opening {
    /// For a durable one.
    config: Option<DurableConfig>,
    name: Option<(ClusterId, DeviceId)>,
    step: Step,
}

impl Opening {
    pub(super) fn new(config: &DeviceConfig) -> Opening {
        let memory = |bytes, keeps| Device::Memory(Memory::new(DiskId(0), bytes, keeps));
        let (config, step) = match config {
            DeviceConfig::Ram { capacity } => (None, Step::Ready(memory(*capacity, true))),
            DeviceConfig::Null { capacity } => (None, Step::Ready(memory(*capacity, false))),
            DeviceConfig::Durable(config) => (Some(config.clone()), Step::Unread),
        };
        Opening { config, name: None, step }
    }

    /// Begins to read.
    pub(super) fn start(&mut self, out: &mut Effects) -> Result<(), MountError> {
        match &self.config {
            Some(config) if matches!(self.step, Step::Unread) => {
                let (cluster, device) = match self.name {
                    Some((cluster, device)) => (Some(cluster), Some(device)),
                    None => (None, None),
                };
                let expected = Expected { cluster, device };
                let mut mount = Mount::new(DiskId(0), config.bytes, expected, config.tuning);
                let mounting = mount.start(out);
                self.step = Step::Mounting(Box::new(mount));
                self.mounted(mounting)
            }
            _ => Ok(()),
        }
    }

    /// An operation of the device ended.
    pub(super) fn disk_done(
        &mut self,
        op: DiskOp,
        result: Result<Buf, DiskError>,
        out: &mut Effects,
    ) -> Result<(), MountError> {
        match &mut self.step {
            Step::Mounting(mount) => {
                let mounting = mount.disk_done(op, result, out);
                self.mounted(mounting)
            }
            Step::Formatting(format) => match format.disk_done(op, result, out) {
                Formatting::Running => Ok(()),
                Formatting::Done => {
                    self.step = Step::Unread;
                    self.start(out)
                }
                Formatting::Failed(error) => self.fail(error),
            },
            _ => Ok(()),
        }
    }

    fn mounted(&mut self, mounting: Mounting) -> Result<(), MountError> {
        let may_format = self.name.is_none() && self.config.as_ref().is_some_and(|c| c.format);
        match mounting {
            Mounting::Running => Ok(()),
            Mounting::Done(durable) => {
                self.step = Step::Ready(Device::Durable(durable));
                Ok(())
            }
            Mounting::Failed(MountError::Unformatted) if may_format => {
                self.step = Step::Fresh;
                Ok(())
            }
            Mounting::Failed(error) => self.fail(error),
        }
    }

    fn fail(&mut self, error: MountError) -> Result<(), MountError> {
        self.step = Step::Over;
        Err(error)
    }

    /// The MDM has named the device: one that holds nothing is formatted with that.
    pub(super) fn name(
        &mut self,
        cluster: ClusterId,
        device: DeviceId,
        out: &mut Effects,
    ) -> Result<(), MountError> {
        let (Step::Fresh, Some(config)) = (&self.step, &self.config) else { return Ok(()) };
        let identity = Identity { cluster, device, uuid: config.uuid };
        match Format::new(DiskId(0), config.bytes, identity, false) {
            Ok(mut format) => {
                format.start(out);
                self.name = Some((cluster, device));
                self.step = Step::Formatting(Box::new(format));
                Ok(())
            }
            Err(error) => self.fail(error),
        }
    }

    /// What it is so far, for the MDM; `None` while nobody knows.
    pub(super) fn known(&self) -> Option<Known<'_>> {
        match &self.step {
            Step::Ready(device) => Some(Known::Ready(device)),
            Step::Fresh | Step::Formatting(_) => Some(Known::Fresh(self.config.as_ref()?)),
            Step::Mounting(_) | Step::Unread if self.name.is_some() => {
                Some(Known::Fresh(self.config.as_ref()?))
            }
            Step::Mounting(_) | Step::Unread | Step::Over => None,
        }
    }

    /// The device, if it can be used and nobody has taken it.
    pub(super) fn ready(&self) -> Option<&Device> {
        match &self.step {
            Step::Ready(device) => Some(device),
            _ => None,
        }
    }

    /// The device, when it can be used.
    pub(super) fn take(&mut self) -> Option<Device> {
        match core::mem::replace(&mut self.step, Step::Over) {
            Step::Ready(device) => Some(device),
            step => {
                self.step = step;
                None
            }
        }
    }
}

/// What is known of a device that is not in use yet.
pub(super) enum Known<'a> {
    /// It can be used.
    Ready(&'a Device),
    /// It holds nothing, and becomes this.
    Fresh(&'a DurableConfig),
}

/// Why a shard can't serve, for people: what is wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The device can't be used.
    #[error("{0}")]
    Device(MountError),
    /// The MDM does not take this device from this server.
    #[error("the MDM refuses this device: {0}")]
    Refused(alloc::string::String),
}

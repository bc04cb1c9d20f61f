//! A shard's device before it is in use. Memory is ready at once. A durable device is mounted
//! first, and one that holds nothing is formatted as soon as the MDM has assigned an id.
//!
//! The format waits for the id, so that the superblock has cluster and id from the start. So there
//! is no formatted device without an owner, and no second way to write a superblock. If the process
//! dies in between, its next start finds an unformatted device and draws another uuid. To the MDM
//! this is a new, empty store, as it should be.

use super::device::Device;
use super::{DeviceConfig, DurableConfig};
use alloc::boxed::Box;
use base::{ClusterId, DeviceId, MapVersion, Time};
use seam::{Buf, DiskError, DiskId, DiskOp, Effects};
use store::Memory;
use store::durable::{Expected, Format, Formatting, Identity, Mount, MountError, Mounting};

enum Step {
    /// Nothing has been read yet.
    Unread,
    Mounting(Box<Mount>),
    /// The device holds nothing of ours, and waits for its id.
    Fresh,
    Formatting(Box<Format>),
    Ready(Device),
    /// The device was taken, or opening failed.
    Over,
}

/// The device while it is being opened.
pub(super) struct Opening {
    /// Settings of a durable device.
    config: Option<DurableConfig>,
    /// The highest level of a cluster that this build knows.
    level_max: u32,
    name: Option<(ClusterId, DeviceId)>,
    step: Step,
    /// When the process began.
    pub(super) boot: Option<Time>,
    /// The version of the map when the MDM gave this process its incarnation.
    pub(super) named_at: MapVersion,
}

impl Opening {
    pub(super) fn new(config: &DeviceConfig, level_max: u32) -> Opening {
        let memory = |bytes, keeps| Device::Memory(Box::new(Memory::new(DiskId(0), bytes, keeps)));
        let (config, step) = match config {
            DeviceConfig::Ram { capacity } => (None, Step::Ready(memory(*capacity, true))),
            DeviceConfig::Null { capacity } => (None, Step::Ready(memory(*capacity, false))),
            DeviceConfig::Durable(config) => (Some(config.clone()), Step::Unread),
        };
        let named_at = MapVersion(0);
        Opening { config, level_max, name: None, step, boot: None, named_at }
    }

    /// Begins to read the device.
    pub(super) fn start(&mut self, out: &mut Effects) -> Result<(), MountError> {
        match &self.config {
            Some(config) if matches!(self.step, Step::Unread) => {
                let (cluster, device) = match self.name {
                    Some((cluster, device)) => (Some(cluster), Some(device)),
                    None => (None, None),
                };
                let expected = Expected { cluster, device, level_max: self.level_max };
                let mut mount = Mount::new(DiskId(0), config.bytes, expected, config.tuning);
                let mounting = mount.start(out);
                self.step = Step::Mounting(Box::new(mount));
                self.mounted(mounting)
            }
            _ => Ok(()),
        }
    }

    /// Handles the end of a device operation.
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

    /// Records that the MDM has assigned an id. A device that holds nothing is formatted with it.
    pub(super) fn name(
        &mut self,
        cluster: ClusterId,
        device: DeviceId,
        out: &mut Effects,
    ) -> Result<(), MountError> {
        let (Step::Fresh, Some(config)) = (&self.step, &self.config) else { return Ok(()) };
        assert!(self.name.is_none(), "a device is formatted once");
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

    /// Returns the facts about the device that its registration needs; `None` if they are unknown.
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

    /// Returns the device if it can be used and was not taken.
    pub(super) fn ready(&self) -> Option<&Device> {
        match &self.step {
            Step::Ready(device) => Some(device),
            _ => None,
        }
    }

    /// Takes the device, if it can be used.
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

/// The facts about a device that is not in use yet.
pub(super) enum Known<'a> {
    /// It can be used.
    Ready(&'a Device),
    /// It holds nothing, and is formatted with these settings.
    Fresh(&'a DurableConfig),
}

/// Reason why a shard can't serve, for people: what is wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The device can't be used.
    #[error("{0}")]
    Device(MountError),
    /// The MDM refuses this device from this server.
    #[error("the MDM refuses this device: {0}")]
    Refused(alloc::string::String),
}

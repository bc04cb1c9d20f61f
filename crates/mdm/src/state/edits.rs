//! The changes of a command, before they are made.

use super::{Device, Sdc, Server, Volume};
use crate::command::{self, Command};
use crate::group::Group;
use crate::members::Member;
use crate::objects::Objects;
use crate::recovery::SkippedIds;
use crate::reserve::AllAsked;
use alloc::vec::Vec;
use base::{ClusterId, DeviceId, GroupId, SdcId, SdsId, VolumeId};
use core::ops::Range;

/// The changes of a command. Epochs are final; `commit` sets `changed_at`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Edits {
    pub(super) cluster: Option<ClusterId>,
    pub(super) level: Option<u32>,
    pub(super) devices: Vec<(DeviceId, Device)>,
    pub(super) server: Option<(SdsId, Server)>,
    pub(super) objects: Option<Objects>,
    pub(super) sdc: Option<(SdcId, Option<Sdc>)>,
    pub(super) groups: Vec<(GroupId, Group)>,
    pub(super) volume: Option<(VolumeId, Option<Volume>)>,
    /// The last changes that clients have requested of a volume that stays as it is. No map has
    /// them.
    pub(super) asked: Option<(VolumeId, AllAsked)>,
    pub(super) member: Option<(u32, Option<Member>)>,
    /// From a [`command::Reconcile`] or [`command::AcceptLoss`].
    pub(super) volumes: Vec<(VolumeId, Option<Volume>)>,
    pub(super) skipped: Option<SkippedIds>,
    pub(super) forget: Option<command::Forget>,
    pub(super) awaited: Vec<command::Awaited>,
    /// Devices that come back with another content than these.
    pub(super) emptied: Vec<(DeviceId, u64)>,
    /// A device has the newer content that a map of lost MDMs names.
    pub(super) replaced: Option<DeviceId>,
    /// The ids of volumes that are not unknown any more.
    pub(super) known: Vec<Range<VolumeId>>,
    /// The recovery ends, and these volumes stay unknown.
    pub(super) recovered: Option<Vec<u32>>,
}

impl Edits {
    /// Returns true if the command changes nothing, so that it need not be logged.
    pub fn is_empty(&self) -> bool {
        !self.is_map() && self.asked.is_none()
    }

    /// Returns true if the command changes what maps tell.
    pub(super) fn is_map(&self) -> bool {
        self.cluster.is_some()
            || self.level.is_some()
            || !self.devices.is_empty()
            || self.server.is_some()
            || self.sdc.is_some()
            || self.objects.is_some()
            || self.volume.is_some()
            || self.member.is_some()
            || !self.groups.is_empty()
            || !self.volumes.is_empty()
            || self.skipped.is_some()
            || self.forget.is_some()
            || !self.awaited.is_empty()
            || !self.emptied.is_empty()
            || !self.known.is_empty()
            || self.recovered.is_some()
    }
}

/// A command, with its changes of the state that it was made for.
#[derive(Clone, PartialEq, Debug)]
pub struct Change {
    pub(super) command: Command,
    pub(super) edits: Edits,
    /// The index of that state.
    pub(super) at: u64,
}

impl Change {
    /// Returns true if the command changes nothing, so that it need not be logged.
    pub fn is_nothing(&self) -> bool {
        self.edits.is_empty()
    }
}

impl core::ops::Deref for Change {
    type Target = Command;

    fn deref(&self) -> &Command {
        &self.command
    }
}

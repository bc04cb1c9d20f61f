//! The volumes that the program of this client has open. The MDM is told them, and deletes none of
//! them.

use alloc::collections::BTreeMap;
use base::VolumeId;

/// The volumes that the program has open, and how often each of them.
#[derive(Debug, Default)]
pub(super) struct Holds {
    uses: BTreeMap<VolumeId, u32>,
}

impl Holds {
    /// Records one more use. Returns true if it is the first one of this volume.
    pub(super) fn add(&mut self, volume: VolumeId) -> bool {
        let uses = self.uses.entry(volume).or_default();
        *uses += 1;
        *uses == 1
    }

    /// Records the end of one use. Returns true if it was the last one of this volume.
    pub(super) fn remove(&mut self, volume: VolumeId) -> bool {
        let Some(uses) = self.uses.get_mut(&volume) else { return false };
        *uses -= 1;
        let last = *uses == 0;
        if last {
            self.uses.remove(&volume);
        }
        last
    }

    /// Returns the volumes that are in use, each once.
    pub(super) fn volumes(&self) -> impl Iterator<Item = VolumeId> + '_ {
        self.uses.keys().copied()
    }
}

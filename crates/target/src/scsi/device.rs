//! A logical unit as one I_T nexus sees it.

use super::attention::{Attention, Attentions};
use super::unit::Unit;
use crate::reserve::Access;

/// A logical unit and the state that it has for one nexus.
#[derive(Clone, Debug)]
pub struct Device {
    unit: Unit,
    attentions: Attentions,
    access: Access,
}

impl Device {
    /// Creates the device for a nexus that was just established. A nexus that replaces one of the
    /// same initiator port starts with [`Attention::NexusLoss`], any other with
    /// [`Attention::NewNexus`].
    pub fn new(unit: Unit, first: Attention) -> Device {
        let mut attentions = Attentions::default();
        attentions.add(first);
        Device { unit, attentions, access: Access::FULL }
    }

    /// Returns what the host was told of the volume.
    pub fn unit(&self) -> &Unit {
        &self.unit
    }

    /// Sets what the volume's reservations let this nexus do.
    pub fn set_access(&mut self, access: Access) {
        self.access = access;
    }

    /// Adds a unit attention.
    pub fn attention(&mut self, attention: Attention) {
        self.attentions.add(attention);
    }

    /// Takes the present properties of the volume, and adds a unit attention for each that changed.
    pub fn changed(&mut self, unit: Unit) {
        let before = core::mem::replace(&mut self.unit, unit);
        let now = &self.unit;
        if before.blocks() != now.blocks() {
            self.attentions.add(Attention::Capacity);
        }
        if before.read_only != now.read_only {
            self.attentions.add(Attention::Mode);
        }
        if before.path != now.path {
            self.attentions.add(Attention::Path);
        }
        let rest = Unit { size: now.size, read_only: now.read_only, path: now.path, ..before };
        if rest != *now {
            self.attentions.add(Attention::Inquiry);
        }
    }
}

//! Clients: their registration and removal.

use super::{Edits, PAST, Sdc, State, Volume};
use crate::command;
use crate::refused::{MAX_SDCS, Refused};
use alloc::vec::Vec;
use base::{Incarnation, SdcId};

impl State {
    pub(super) fn sdc_up(&self, c: &command::RegisterSdc) -> Option<Edits> {
        let id = SdcId(c.sdc);
        let old = self.sdcs.get(&id);
        let known = match old {
            Some(sdc) => sdc.own == c.name && sdc.incarnation.0 <= c.incarnation,
            None => {
                (id == self.next_sdc() || self.may_be_lost(id))
                    && self.sdcs.len() < MAX_SDCS
                    && !self.sdcs.values().any(|s| s.own == c.name || s.name == c.name)
            }
        };
        if !known || !(1..super::LIVES).contains(&c.incarnation) {
            return None;
        }
        let mut past = old.map_or_else(Vec::new, |s| s.past.clone());
        if let Some(sdc) = old.filter(|s| s.incarnation.0 < c.incarnation && s.nonce != c.nonce) {
            past.push(sdc.nonce);
            past.drain(..past.len().saturating_sub(PAST));
        }
        let entry = Sdc {
            own: c.name.clone(),
            name: old.map_or_else(|| c.name.clone(), |s| s.name.clone()),
            incarnation: Incarnation(c.incarnation),
            nonce: c.nonce,
            past,
            pid: c.pid,
            nbd: c.nbd.clone(),
            changed_at: old.map_or(self.version, |s| s.changed_at),
        };
        let sdc = (old != Some(&entry)).then_some((id, Some(entry)));
        Some(Edits { sdc, ..Edits::default() })
    }

    /// Returns true for an id that MDMs lost in a recovery may have assigned, and that was not
    /// removed since.
    pub(crate) fn may_be_lost(&self, id: SdcId) -> bool {
        let recovery = &self.recovery;
        let may = id.0 > recovery.sdc_known && recovery.may_be_given(id.0, recovery.sdc);
        may && !self.removed_sdcs.contains(id.0)
    }

    /// Removes a client for good. Its id is never used again, and its incarnations have ended.
    pub(super) fn drop_sdc(&self, id: SdcId) -> Result<Edits, Refused> {
        let sdc = self.sdcs.get(&id).ok_or(Refused::Outdated)?;
        let names = |v: &&Volume| v.mapping.clients().any(|(to, _)| to == id);
        let mut mapped = self.volumes.values().filter(names);
        match mapped.next() {
            Some(volume) => Err(Refused::SdcMapped {
                name: sdc.name.clone(),
                volume: volume.name.clone(),
                count: 1 + mapped.count(),
            }),
            None => Ok(Edits { sdc: Some((id, None)), ..Edits::default() }),
        }
    }
}

//! Features (base 5.9, 5.27).

use super::admin::Admin;
use super::command::Command;
use super::notices::MASKS;
use super::proto::*;
use super::status::Status;
use super::step::Step;
use super::subsystem::{Path, Subsystem};
use super::table::{Gather, Work};
use alloc::vec::Vec;
use base::Limits;
use base::time::Duration;
use seam::{Buf, BufPool};

/// "Save", in dword 10 of Set Features.
const SAVE: u32 = 1 << 31;
/// Which value of Get Features, in dword 10.
const SELECT: u32 = 7 << 8;
/// Bytes of the feature "host behavior support" (base 5.21.1.22).
const BEHAVIOR: u32 = 512;
/// "Extended host identifier", in dword 11.
const EXTENDED: u32 = 1;
/// "Persist through power loss", in dword 11 of the reservation persistence.
const PERSISTENT: u32 = 1;

/// Returns the number of I/O queues, as the feature has it: both kinds, one less.
fn queues(most: u32) -> u64 {
    let most = u64::from(most - 1);
    most << 16 | most
}

impl Admin {
    /// Handles Set Features.
    pub(crate) fn set_feature(
        &mut self,
        command: &Command,
        subsystem: &dyn Subsystem,
        limits: &Limits,
    ) -> Result<Step, Status> {
        if command.dword(10) & SAVE != 0 {
            return Err(Status::NOT_SAVEABLE);
        }
        let (feature, value) = (command.dword(10) as u8, command.dword(11));
        match feature {
            FEATURE_EVENTS => {
                self.events.enabled = value;
                Ok(Step::Answer(0))
            }
            FEATURE_KEEP_ALIVE => {
                self.keep_alive = Duration::from_millis(value.into());
                Ok(Step::Answer(0))
            }
            _ if self.controller.discovery => Err(Status::INVALID_FIELD),
            FEATURE_QUEUES => {
                let (submission, completion) = (value & 0xffff, value >> 16);
                if submission == 0xffff || completion == 0xffff {
                    return Err(Status::INVALID_FIELD);
                }
                let asked = submission.max(completion) + 1;
                Ok(Step::Answer(queues(asked.min(limits.nvme_queues))))
            }
            FEATURE_BEHAVIOR => {
                Ok(Step::Begin(Work::Gather(Gather::Behavior, Buf::EMPTY), BEHAVIOR))
            }
            FEATURE_ARBITRATION
            | FEATURE_POWER
            | FEATURE_TEMPERATURE
            | FEATURE_ERROR_RECOVERY
            | FEATURE_ATOMICITY => Err(Status::NOT_CHANGEABLE),
            FEATURE_HOST_ID => Err(Status::SEQUENCE), // Connect has set it
            FEATURE_NOTICES if value & !MASKS == 0 => {
                for id in self.addressed(command.nsid(), subsystem)? {
                    self.notices.set_mask(id, value);
                }
                Ok(Step::Answer(0))
            }
            FEATURE_PERSISTENCE => {
                self.addressed(command.nsid(), subsystem)?;
                // Reservations outlive a loss of power in any case.
                if value & PERSISTENT != 0 {
                    Ok(Step::Answer(0))
                } else {
                    Err(Status::NOT_CHANGEABLE)
                }
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Handles Get Features.
    pub(crate) fn feature(
        &mut self,
        command: &Command,
        subsystem: &dyn Subsystem,
        limits: &Limits,
        pool: &BufPool,
    ) -> Result<Step, Status> {
        if command.dword(10) & SELECT != 0 {
            return Err(Status::INVALID_FIELD); // only the present value
        }
        match command.dword(10) as u8 {
            FEATURE_EVENTS => Ok(Step::Answer(self.events.enabled.into())),
            FEATURE_KEEP_ALIVE => Ok(Step::Answer(self.keep_alive.as_millis() as u64)),
            _ if self.controller.discovery => Err(Status::INVALID_FIELD),
            FEATURE_QUEUES => Ok(Step::Answer(queues(limits.nvme_queues))),
            FEATURE_BEHAVIOR => {
                let mut body = pool.zeroed(BEHAVIOR as usize);
                body.as_mut()[0] = self.controller.delays.into();
                Ok(Step::Send(body))
            }
            FEATURE_ARBITRATION
            | FEATURE_POWER
            | FEATURE_TEMPERATURE
            | FEATURE_ERROR_RECOVERY
            | FEATURE_ATOMICITY => Ok(Step::Answer(0)),
            FEATURE_HOST_ID if command.dword(11) & EXTENDED != 0 => {
                Ok(Step::Send(pool.copy(&self.controller.host_id)))
            }
            feature @ (FEATURE_NOTICES | FEATURE_PERSISTENCE) => {
                if command.nsid() == ALL {
                    return Err(Status::NO_NAMESPACE); // each has values of its own
                }
                self.addressed(command.nsid(), subsystem)?;
                let mask = self.notices.mask(command.nsid());
                let value = if feature == FEATURE_NOTICES { mask } else { PERSISTENT };
                Ok(Step::Answer(value.into()))
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Returns the ids of the namespaces that a feature with this id is about. The features of a
    /// namespace are not available on a path that does not serve it (base 8.20.4).
    fn addressed(&mut self, nsid: u32, subsystem: &dyn Subsystem) -> Result<Vec<u32>, Status> {
        self.review(subsystem);
        let mut ids = Vec::new();
        for namespace in self.namespaces().iter().filter(|ns| nsid == ALL || ns.volume.0 == nsid) {
            match namespace.path {
                Path::Optimized => ids.push(namespace.volume.0),
                Path::Inaccessible => return Err(Status::INACCESSIBLE),
            }
        }
        if ids.is_empty() && nsid != ALL { Err(Status::NO_NAMESPACE) } else { Ok(ids) }
    }
}

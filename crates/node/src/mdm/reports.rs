//! Reports of devices to an MDM that continues alone ([`mdm::recovery`] has the rules), and the
//! times at which they are evaluated.
//!
//! Invariant: a report counts from the registration of the device that sent it, until that device
//! registers again without a report.

use super::links::Link;
use base::{DeviceId, Duration, Time};
use mdm::command::Command;
use mdm::recovery::{self, DeviceReport, DeviceReports};
use mdm::{Refused, State};
use seam::{Effects, Note};
use wire::control::{Ask, ObjectKind, RecoveryStatus, Report};

/// Interval at which the reports are evaluated.
const EVERY: Duration = Duration::from_millis(200);

/// The reports of devices in their current incarnations, while groups are in doubt.
#[derive(Default)]
pub(super) struct Reports {
    reports: DeviceReports,
    /// When the reports are evaluated next.
    due: Time,
    /// The time until which the recovery waits for devices that have not reported.
    patient_until: Time,
    /// The state's index, and whether the recovery was patient, when the reports last led to no
    /// command.
    nothing_follows: Option<(u64, bool)>,
}

impl Reports {
    /// Starts to wait for devices, as this MDM begins to lead.
    pub(super) fn begin(&mut self, now: Time, patience: Duration) {
        (self.due, self.patient_until) = (now, now + patience);
        self.nothing_follows = None;
    }

    /// Forgets all reports.
    pub(super) fn clear(&mut self) {
        self.reports.clear();
    }

    /// Returns the number of devices that have reported.
    pub(super) fn len(&self) -> usize {
        self.reports.len()
    }

    /// Returns all reports.
    pub(super) fn all(&self) -> &DeviceReports {
        &self.reports
    }

    /// Takes the report of a device that has registered. If maps are handed out, the report is
    /// evaluated at once: what it tells of groups in doubt has to be decided before the server gets
    /// another map.
    pub(super) fn heed(&mut self, device: DeviceId, report: Option<DeviceReport>, state: &State) {
        self.nothing_follows = None;
        if !state.recovery.open {
            self.due = Time::ZERO;
        }
        match report {
            Some(report) => state.heed(&mut self.reports, device, report),
            None => drop(self.reports.remove(&device)),
        }
    }

    /// Returns when the reports are evaluated next.
    pub(super) fn due(&self) -> Time {
        self.due
    }

    /// Returns true while devices that nothing has named may still register.
    pub(super) fn is_patient(&self, now: Time) -> bool {
        now < self.patient_until
    }

    /// Returns the progress of the recovery.
    pub(super) fn status(&self, now: Time, state: &State) -> Option<RecoveryStatus> {
        state.recovery_status(&self.reports, self.is_patient(now))
    }

    /// Returns the command that follows from the reports, if it is time to evaluate them.
    pub(super) fn evaluate(
        &mut self,
        now: Time,
        state: &State,
        out: &mut Effects,
    ) -> Option<Command> {
        if self.due > now {
            return None;
        }
        self.due = now + EVERY;
        if !state.wants_reports() {
            self.reports.clear();
            return None;
        }
        let (patient, at) = (self.is_patient(now), state.index);
        if self.nothing_follows == Some((at, patient)) {
            return None;
        }
        let Some(command) = recovery::plan(state, &self.reports, patient) else {
            self.nothing_follows = Some((at, patient));
            return None;
        };
        if let Command::Reconcile(c) = &command {
            out.note(match c.close {
                true => Note::Recovered { number: state.recovery.number },
                false => Note::Reconciled { groups: c.groups.len() as u32 },
            });
            if !c.close {
                self.due = now; // there may be more commands
            }
        }
        Some(command)
    }

    /// Returns the result of an order that concerns a recovery (to end it with the reports so far,
    /// or to delete volumes that no device knows), or an error for an order that has to wait until
    /// it ends. `more`: devices wait to be registered, and their reports have arrived. `None`: the
    /// recovery does not concern the order.
    pub(super) fn order(
        &self,
        now: Time,
        ask: Option<&Ask>,
        state: &State,
        more: bool,
    ) -> Option<Result<Option<Command>, Refused>> {
        let open = state.recovery.open;
        match ask {
            Some(Ask::RecoverMdm(m)) if !m.delete.is_empty() => {
                Some(state.forget_command(m).map(Some))
            }
            Some(Ask::RecoverMdm(m)) if m.finish && open => {
                // Reports that just arrived come first: the next evaluation takes them in.
                let (reports, patient) = (&self.reports, self.is_patient(now));
                let news = more
                    || matches!(recovery::plan(state, reports, patient),
                    Some(Command::Reconcile(c)) if !c.close);
                Some(match news {
                    true => Err(Refused::Recovering),
                    false => Ok(Some(recovery::close(state, reports, patient))),
                })
            }
            Some(Ask::RecoverMdm(m)) if m.finish => Some(Err(Refused::NotRecovering)),
            Some(Ask::RecoverMdm(_)) => Some(Err(Refused::MajorityWorks)),
            Some(Ask::Status(_) | Ask::Backup(_) | Ask::Damage(_)) => None,
            // Devices that were added since then belong to such objects. Without the objects, they
            // could not register and report.
            Some(Ask::CreateObject(_)) => None,
            Some(Ask::Rename(m)) if is_home(m.kind()) => None,
            _ => open.then_some(Err(Refused::Recovering)),
        }
    }
}

/// Adds a part of a device's report to its link. Returns false if the report names more than a
/// cluster can have.
pub(super) fn add_part(link: Option<&mut Link>, part: Report, state: &State) -> bool {
    match link.filter(|_| state.wants_reports()) {
        Some(link) => link.report.get_or_insert_default().add(part),
        None => true,
    }
}

/// Returns true for a kind of object that servers name as the place of their devices.
fn is_home(kind: ObjectKind) -> bool {
    matches!(kind, ObjectKind::Domain | ObjectKind::FaultSet | ObjectKind::Pool)
}

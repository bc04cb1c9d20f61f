//! A logical unit as one I_T nexus sees it: checks a command, and dispatches it to its handler.
//!
//! Order of checks (section numbers of SPC-4): operation code, logical unit, fields of the CDB
//! (4.3.1), task attribute, unit attention (SAM-5 5.14), state of the path (5.15.2), reservation
//! (5.13.1), write protection, and then what the command itself checks: range, limits, lengths.

use super::answer::{Answer, Status};
use super::attention::{Attention, Attentions};
use super::checked::Checked;
use super::command::{Attribute, Cdb, Command, Residual};
use super::opcode::{self, Entry, Name, Needs};
use super::plan::Plan;
use super::sense::Sense;
use super::step::{Gather, Report, Step, Then};
use super::unit::{Path, Unit};
use super::{about, capacity, data, inquiry, mode, persist, supported};
use crate::reserve::{Access, Refusal, Table};
use seam::{Buf, BufPool};

/// A logical unit and the state that it has for one nexus.
#[derive(Clone, Debug)]
pub struct Device {
    unit: Unit,
    attentions: Attentions,
    access: Access,
    /// The volume is not served any more.
    gone: bool,
}

impl Device {
    /// Creates the device for a nexus that was just established. A nexus that replaces one of the
    /// same initiator port starts with [`Attention::NexusLoss`], any other with
    /// [`Attention::NewNexus`].
    pub fn new(unit: Unit, first: Attention) -> Device {
        let mut attentions = Attentions::default();
        attentions.add(first);
        Device { unit, attentions, access: Access::FULL, gone: false }
    }

    /// Returns the properties of the volume that the host was told.
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

    /// Takes back the unit attention of an answer that is not sent: its command was aborted.
    pub fn take_back(&mut self, answer: &Answer) {
        if let Some(attention) = answer.sense.as_ref().and_then(Attention::of) {
            self.attentions.put_back(attention);
        }
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
        if before.path != now.path || before.others != now.others {
            self.attentions.add(Attention::Path);
        }
        let (read_only, others) = (now.read_only, now.others.clone());
        let rest = Unit { size: now.size, read_only, path: now.path, others, ..before };
        if rest != *now {
            self.attentions.add(Attention::Inquiry);
        }
    }

    /// Adds the unit attentions that the host missed when it lost its `former` nexus: those of the
    /// volume that were pending, and one for each property that has changed since.
    pub fn succeed(&mut self, former: &Device) {
        former.attentions.all().filter(|a| a.is_of_unit()).for_each(|a| self.attentions.add(a));
        let now = core::mem::replace(&mut self.unit, former.unit.clone());
        self.changed(now);
    }

    /// Removes the logical unit, because its volume was deleted or unmapped.
    pub fn remove(&mut self) {
        self.gone = true;
    }

    /// Returns true after [`Device::remove`].
    pub fn is_removed(&self) -> bool {
        self.gone
    }

    /// Begins a command.
    pub fn start(&mut self, command: &Command<'_>, pool: &BufPool) -> Step {
        let step = opcode::find(command.cdb, &self.unit)
            .map_err(Answer::from)
            .and_then(|entry| self.enter(entry, command, pool));
        step.unwrap_or_else(|answer| {
            let nothing_moved = answer.residual == Residual::None && command.sends == 0;
            let residual = Residual::of(command.reads, 0);
            Step::Answer(if nothing_moved { answer.with(residual) } else { answer })
        })
    }

    fn enter(&mut self, entry: &Entry, c: &Command<'_>, pool: &BufPool) -> Result<Step, Answer> {
        let told_anyway =
            matches!(entry.name, Name::Inquiry | Name::ReportLuns | Name::RequestSense);
        let exists = is_unit(c.lun) && !self.gone;
        if !exists && !told_anyway {
            return Err(Sense::NO_UNIT.into());
        }
        entry.check(c.cdb)?;
        if c.attribute == Attribute::Aca {
            return Err(Sense::ATTRIBUTE.into());
        }
        if !told_anyway && let Some(attention) = self.attentions.take() {
            return Err(attention.sense().into());
        }
        if self.unit.path == Path::Standby && !entry.standby {
            return Err(Sense::STANDBY.into());
        }
        let cdb = Cdb(c.cdb);
        let admitted = match entry.needs {
            Needs::Nothing => true,
            Needs::Read => self.access.read,
            Needs::Control => self.access.write || about::is_harmless(entry.name, cdb),
            Needs::Write => self.access.write,
        };
        if !admitted {
            return Err(Answer::bare(Status::ReservationConflict));
        }
        if entry.needs == Needs::Write && self.unit.read_only {
            return Err(Sense::WRITE_PROTECTED.into());
        }
        let tells = exists && entry.name == Name::RequestSense;
        let pending = match tells {
            true if about::tells_code(cdb, c.reads) => self.attentions.take(),
            true => self.attentions.first(),
            false => None,
        };
        let (reads, sends, unit) = (c.reads, c.sends, &self.unit);
        handle(entry.name, &Checked { cdb, reads, sends, unit, exists, pending, pool })
    }

    /// Continues with the data of [`Step::Gather`].
    pub fn gathered(&mut self, gather: Gather, data: Buf, pool: &BufPool) -> Step {
        if data.len() != gather.len as usize {
            return Step::Answer(Sense::WRONG_LENGTH.into());
        }
        let step = match gather.then {
            Then::ModeSelect { ten } => mode::select(&self.unit, &data, ten),
            Then::PersistOut { action, kind } => persist::change(action, kind, &data),
            Then::SetPortGroups => about::set_port_groups(&self.unit, &data),
            Then::Unmap => data::unmap(&self.unit, data),
            Then::WriteSame { at, len, hole } => {
                Ok(Step::Run(Plan::write_same(&self.unit, at, len, hole, &data, pool)))
            }
            Then::CompareWrite { at, len } => {
                Ok(Step::Run(Plan::compare_write(&self.unit, at, len, data)))
            }
        };
        step.unwrap_or_else(|sense| Step::Answer(sense.into()))
    }

    /// Returns the answer to a PERSISTENT RESERVE OUT, from that of the MDM to [`Step::Reserve`].
    pub fn reserved(&self, result: Result<(), Refusal>) -> Answer {
        match result {
            Ok(()) => Answer::good(),
            Err(Refusal::Conflict) => Answer::bare(Status::ReservationConflict),
            Err(Refusal::NoVictim) => Sense::list(8).into(),
            Err(Refusal::WrongKind) => Sense::INVALID_RELEASE.into(),
            Err(Refusal::Full) => Sense::REGISTRATIONS_FULL.into(),
        }
    }

    /// Returns the answer to a PERSISTENT RESERVE IN, from the present table.
    pub fn report(&self, report: Report, table: &Table, pool: &BufPool) -> Answer {
        let data = persist::report(&report, table);
        Answer::copy(&data, report.allocation as usize, report.room, pool)
    }
}

/// Returns true for the number of the only logical unit: 0, by the peripheral or the flat method of
/// addressing (SAM-5 4.7.7).
pub(crate) fn is_unit(lun: u64) -> bool {
    matches!(lun, 0 | FLAT_0)
}

const FLAT_0: u64 = 0x4000 << 48;

/// Dispatches a command.
fn handle(name: Name, checked: &Checked<'_>) -> Result<Step, Answer> {
    match name {
        // Writes are durable when they are answered (rule R7), there is no medium to eject, and no
        // self-test.
        Name::TestUnitReady | Name::StartStop | Name::SendDiagnostic | Name::PreventAllow => {
            Ok(checked.good())
        }
        Name::Inquiry => inquiry::inquiry(checked),
        Name::RequestSense => Ok(about::request_sense(checked)),
        Name::Read => data::read(checked),
        Name::Write | Name::WriteVerify => data::write(checked),
        Name::Verify => data::verify(checked),
        Name::Prefetch | Name::Synchronize => data::nothing_to_do(checked),
        Name::WriteSame => data::write_same(checked),
        Name::CompareWrite => data::compare_write(checked),
        Name::Unmap => data::unmap_begin(checked),
        Name::ModeSense => mode::sense(checked),
        Name::ModeSelect => mode::select_begin(checked),
        Name::ReadCapacity => Ok(capacity::read_capacity(checked)),
        Name::LbaStatus => capacity::lba_status(checked),
        Name::ReadDefects => Ok(about::read_defects(checked)),
        Name::ReportLuns => about::report_luns(checked),
        Name::PortGroups => Ok(about::port_groups(checked)),
        Name::SetPortGroups => about::set_port_groups_begin(checked),
        Name::SupportedOpcodes => supported::opcodes(checked),
        Name::SupportedTasks => supported::tasks(checked),
        Name::PersistIn => persist::persist_in(checked),
        Name::PersistOut => persist::persist_out(checked),
    }
}

//! The SCSI command set of one logical unit: a CDB comes in, a [`Step`] comes out.
//!
//! The specifications are SAM-5, SPC-4 and SBC-3 of T10. The transport (sequence numbers, R2T,
//! digests, task management) is in its session, which drives a [`Device`] like this:
//!
//! 1. [`Device::start`] checks a [`Command`] and returns its first [`Step`].
//! 2. The session does what the step says. Each step names the call that follows it.
//! 3. In the end there is an [`Answer`]: status, sense data, data, and the residual.
//!
//! | file | content |
//! |---|---|
//! | `command` | a command as a transport delivers it, its fields, and residuals |
//! | `step`, `answer` | what a session does for a command, and its end |
//! | `plan` | block requests that one command needs one after another |
//! | `unit` | the properties of a volume that a host is told |
//! | `device`, `checked` | the checks of a command, and the command that its handler gets |
//! | `opcode` | the table of commands |
//! | `sense`, `attention`, `failure` | sense data, unit attentions, and the table of outcomes |
//! | `data`, `ranges` | commands that transfer, change or compare data, and lists of ranges |
//! | `inquiry`, `capacity`, `mode`, `about` | commands that report properties of the unit |
//! | `supported` | commands that report the supported commands |
//! | `persist` | PERSISTENT RESERVE IN and OUT; their table is [`crate::reserve`] |
//!
//! The device does no I/O, and keeps no state of a command: the step has all state that is needed
//! for the next call. Reads and writes allocate nothing.

mod about;
mod answer;
mod attention;
mod capacity;
mod checked;
mod command;
mod data;
mod device;
mod failure;
mod inquiry;
mod mode;
mod opcode;
mod persist;
mod plan;
mod ranges;
mod sense;
mod step;
mod supported;
mod unit;

pub use answer::{Answer, Status};
pub use attention::Attention;
pub use command::{Attribute, Command, Residual};
pub use device::Device;
pub(crate) use device::is_unit;
pub use failure::Failure;
pub use plan::{Plan, Request};
pub use sense::Sense;
pub use step::{Gather, Report, Step, Transfer};
pub use unit::{Format, Path, PortGroup, Unit, UnknownFormat};

//! The persistent reservations of one volume: one table for SCSI (SPC-4 5.13) and NVMe.
//!
//! | file | content |
//! |---|---|
//! | `table` | who is registered, who holds the reservation, and what each may do |
//! | `change` | the service actions that change a table, and their notices for other hosts |
//!
//! Everything here is a function of its arguments, so that all replicas of the MDM agree. The MDM
//! keeps the table, and applies changes in the order of its log. Sessions check [`Access`], and
//! translate a [`Notice`] to their protocol.

mod change;
mod table;

pub use change::{Change, Notice, Refusal, fences, notice, step};
pub use table::{Access, Identity, Kind, Registrant, Table};

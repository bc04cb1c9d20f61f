//! Decides which device holds which group, and which groups a volume is striped over.
//!
//! Pure arithmetic on explicit tables: nothing here knows about liveness, epochs or a log. The MDM
//! calls it when a volume is created and when devices have come or gone, and records the results,
//! so a later build may choose better. Only [`slot_of`] is part of the format.
//!
//! "Server" in this crate means a fault unit: a server, or all servers of a fault set.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod balance;
mod groups;
mod lead;
mod orient;
mod slots;
mod spread;

pub use balance::{Move, PlacedGroup, Plan, TOLERANCE, balance, place_homeless};
pub use groups::{Device, Pair, TooFewServers, parts, plan, top_up};
pub use slots::{Choice, choose_slots};
pub use spread::PARTNERS;

/// Returns which of a volume's `slots` the unit `unit` belongs to.
///
/// Each run of `slots` consecutive units uses every slot once, in an order that differs from run to
/// run, so that neither a sequential stream nor a stride keeps hitting the same group. Part of the
/// format: it may never change for existing volumes. Panics if `slots` is 0.
#[inline]
pub fn slot_of(unit: u32, slots: usize) -> usize {
    let slots = slots as u64;
    let (run, place) = (u64::from(unit) / slots, u64::from(unit) % slots);
    ((place + base::prng::mix(run) % slots) % slots) as usize
}

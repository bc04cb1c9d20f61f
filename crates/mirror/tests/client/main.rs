//! The client core against hand-driven and random primaries, in virtual time.

mod any_order;
mod replies;
mod rig;
mod scenes;

//! The client against primaries driven by hand and at random, in virtual time.

mod any_order;
pub(crate) mod replies;
mod rig;
mod scenes;

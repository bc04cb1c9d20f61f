//! Tests of the stores from the outside.

mod common;
mod crash;
mod damage;
mod filling;
mod flips;
mod format;
mod golden;
mod grow;
mod held;
mod holes;
mod large;
mod overlap;
mod ram;
mod records;
mod space;
mod sparse;

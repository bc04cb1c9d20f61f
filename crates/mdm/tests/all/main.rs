//! Tests of the MDM from the outside: its state, its log, its controller.

mod again;
mod apply;
mod balance;
mod common;
mod damage;
mod golden;
mod healer;
mod hosts;
mod log;
mod losses;
mod objects;
mod random;
mod recovery;
mod reserve;
mod reshape;
mod scale;
mod seating;
mod seats;
mod slowness;

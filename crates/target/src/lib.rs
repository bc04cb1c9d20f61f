//! Sans-I/O sessions of the standard block protocols: what a client of a volume speaks to an SDC.
//!
//! A session is a state machine that one link owns. It takes frames and completions, and yields
//! actions; it knows no link, no cluster and no volume's data. Today there is [`nbd`].
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod nbd;

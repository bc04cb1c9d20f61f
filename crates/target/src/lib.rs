//! Sans-I/O sessions of the standard block protocols that clients of a volume use with an SDC.
//!
//! A session is a state machine for one link. It takes frames and completions, and returns actions.
//! It does not know about links, clusters or the data of volumes. At present there is [`nbd`].
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod nbd;

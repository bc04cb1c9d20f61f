//! The server side of NBD, according to the specification's `doc/proto.md` ("the spec" below).
//!
//! | file | content |
//! |---|---|
//! | `proto` | the constants of the spec under their names |
//! | `framer` | splits the client's stream into frames |
//! | `export` | the interface through which a session learns about volumes |
//! | `options` | the data of options, and their answers |
//! | `request` | validates requests, and translates them for the volume |
//! | `reply` | replies of the transmission phase |
//! | `session` | the phases, requests in flight, flow control |
//! | `negotiate` | option haggling of the session |
//!
//! The owner of a link creates an [`NbdFramer`] and a [`Session`], calls [`Session::greet`], then
//! feeds frames and completions and executes the [`Action`](crate::Action)s in order.
//!
//! Not supported: TLS, the experimental extended headers and resize extensions (all refused), and
//! the oldstyle handshake, which the spec has retired.

mod export;
mod framer;
mod negotiate;
mod options;
pub mod proto;
mod reply;
mod request;
mod session;

pub use export::{Export, Exports};
pub use framer::{NbdFramer, OPTION_MAX};
pub use session::{Session, WAITING};

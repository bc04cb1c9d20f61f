//! The server side of NBD, after the specification's `doc/proto.md` ("the spec" below).
//!
//! | file | what |
//! |---|---|
//! | `proto` | the spec's numbers under the spec's names |
//! | `framer` | cuts the client's stream into frames |
//! | `export` | what the session wants to know about volumes |
//! | `options` | the data of options, and the answers to them |
//! | `request` | what is wrong with a request, or what it asks of the volume |
//! | `extents` | a bitmap of blocks as runs |
//! | `reply` | replies of the transmission phase |
//! | `session` | the phases, what is in flight, flow control |
//! | `negotiate` | the session's option haggling |
//!
//! The owner of a link makes an [`NbdFramer`] and a [`Session`], calls [`Session::greet`], then
//! feeds frames and completions and executes the [`Action`]s, in order.
//!
//! Not here: TLS (refused), the experimental extended headers and resize extensions (refused), and
//! the oldstyle handshake, which the spec has retired.

mod export;
mod extents;
mod framer;
mod negotiate;
mod options;
pub mod proto;
mod reply;
mod request;
mod session;

pub use export::{Export, Exports};
pub use framer::{NbdFramer, OPTION_MAX};
pub use session::{Action, Session, WAITING};

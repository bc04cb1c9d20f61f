//! The processes of a cluster: starts them on this machine (`up`) and on other hosts (`deploy`),
//! finds them again, and changes the devices of a server.
//!
//! `target` is the cluster that a command is about. `statedir` and `cluster` are the directory and
//! the processes of a cluster that `up` runs here. `output`, `table`, `progress` and `lines` are
//! how commands talk to people; other crates take `print!`, `println!` and `eprintln!` from here,
//! because those of the standard library panic when stdout is closed.
//!
//! This crate runs no role in its own process: it starts the binary that calls it again. It does
//! not measure anything: `bench` does.
#![forbid(unsafe_code)]

#[macro_use]
pub mod output;

pub mod cgroup;
pub mod cluster;
pub mod deploy;
pub mod device;
pub mod lines;
mod live;
pub mod maintenance;
mod mdm_cluster;
pub mod pool;
pub mod ports;
pub mod progress;
pub mod removal;
mod room;
mod salvage;
pub mod statedir;
pub mod table;
pub mod target;
pub mod up;

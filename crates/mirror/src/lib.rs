//! The replication protocol: how the replicas of a group stay equal, and how clients reach them.
//!
//! A group has one **primary**, as a rule one **secondary**, and while it is resynced or moved also
//! a **joiner**. The MDM decides a group's configuration (primary, in-sync set, joiners) and
//! numbers each one with an **epoch**. Data doesn't pass through the MDM:
//!
//! 1. A client sends a write to the primary. When the write has its range lock it gets the next
//!    **lsn**, and the primary sends it to the other replicas in the group's ordered stream.
//! 2. The primary acknowledges the write when every in-sync replica has it durably (R1).
//! 3. The primary serves a read from its own copy while it holds a lease from every other in-sync
//!    replica (R3).
//! 4. When a configuration ends, each replica adds to its **dirty set** D the blocks in which other
//!    replicas may differ. The next primary settles: it makes the in-sync replicas equal in the
//!    blocks of all their dirty sets, and only then serves (R6).
//! 5. A replica that is not in sync joins in the same way, while clients continue to write (R11).
//!
//! `docs/internals/protocol.md` describes the protocol and why it is safe, and
//! `docs/internals/rules.md` the rules R1 to R16. The state machines here know neither connections
//! nor disk formats: the owner of a [`Mirror`] tells it which link leads to which device, and gives
//! it a [`seam::UnitStore`], the unit store.
//!
//! | file | contents | rules |
//! |---|---|---|
//! | `mirror` | a shard: the loop for all work, media jobs | |
//! | `known` | what this device knows of the cluster | R4, R9 |
//! | `configuration` | the change of a group from one configuration to the next | R2, R4 |
//! | `members` | the configuration of a group, and sets of its replicas | |
//! | `replica`, `replicas` | one replica: its record, its role; all of them | R2, R5 |
//! | `primary` | operations of clients, from arrival to answer | R1, R3, R8 |
//! | `secondary`, `stream` | a secondary or joiner; its primary's frames | R2, R6 |
//! | `sync`, `resync` | settle and join: the machine, and how a shard carries it out | R6, R11 |
//! | `lease` | leases: those that this device holds, and those that it grants | R3, R4 |
//! | `watch`, `timers` | beacons, grants, and what groups wait for; suspects | R3, R4, R12 |
//! | `executed`, `history` | executed writes in frames, and what was forgotten of them | R8 |
//! | `marks`, `jobs`, `untold` | metadata for the unit store, and its unfinished work | R5 |
//! | `op`, `ops` | one operation, and all of them | |
//! | `lock`, `load` | range locks, the limit for clients' operations | R3 |
//! | `window`, `flow` | flow control: what is in flight to a replica, and what waits | R11 |
//! | `stall` | joiners that stall | R11 |
//! | `copies`, `arrival`, `pace` | copies at both ends, and their speed | |
//! | `stopwatch` | how long jobs take | |
//! | `repair`, `repairs`, `scrub` | damaged blocks | R13 |
//! | `full` | no space, and the spare | R15 |
//! | `gap` | data whose loss was accepted as errors | R10 |
//! | `discard`, `volumes` | deleting replicas that left, and volumes | R11, R9 |
//! | `failures` | devices that have failed | R12 |
//! | `evidence`, `standing` | what a device knows, for a recovery and for the simulator | |
//! | `client` | the client's side | R8, R15, R16 |
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod arrival;
pub mod client;
mod configuration;
mod copies;
mod discard;
mod evidence;
mod executed;
mod failures;
mod flow;
mod full;
mod gap;
mod history;
mod jobs;
mod known;
mod lease;
mod load;
mod lock;
mod marks;
mod members;
mod mirror;
mod op;
mod ops;
mod pace;
mod primary;
mod repair;
mod repairs;
mod replica;
mod replicas;
mod resync;
mod scrub;
mod secondary;
mod stall;
mod standing;
mod stopwatch;
mod stream;
mod sync;
mod timers;
mod untold;
mod volumes;
mod watch;
mod window;

pub use evidence::Evidence;
pub use gap::Gaps;
pub use lease::{Leases, PeerState};
pub use lock::{Locks, Range};
pub use marks::ListLengths;
pub use members::GroupConfig;
pub use mirror::{Mirror, Stats};
pub use replicas::{GroupView, Replicas, Resync};
pub use scrub::ScrubStats;
pub use seam::record::{Dirty, ExecutedList};
pub use standing::Standing;
pub use stream::GAP;
pub use volumes::Volumes;

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
//! `docs/internals/rules.md` the rules R1 to R19. The state machines here know neither connections
//! nor disk formats: the owner of a [`Mirror`] tells it which link leads to which device, and gives
//! it a [`seam::UnitStore`], the unit store.
//!
//! A [`Mirror`] is all replicas of a shard: the `Shard`, which holds what is shared, and the flows,
//! which change it. Its methods are its outer interface.
//!
//! | file | contents | rules |
//! |---|---|---|
//! | `mirror`, `watch` | the outer interface; what depends on the clock | R3, R4, R9, R12 |
//! | `flows` | the flows, and the loop for all work | |
//! | `shard` | what flows share: operations, their media jobs and answers | |
//! | `known` | what this device knows of the cluster | R4, R9 |
//! | `configuration` | flow: the way of a group from one configuration to the next | R2, R4, R6 |
//! | `members` | the configuration of a group, and sets of its replicas | |
//! | `replica`, `replicas` | one replica: its record, its role; all of them | R2, R5 |
//! | `primary` | flow: operations of clients | R3, R8 |
//! | `compare` | compare-and-write at a primary | R17 |
//! | `progress` | when a write is acknowledged and leaves the stream | R1 |
//! | `peers` | flow: the other replicas of groups that this device leads | R11 |
//! | `sync`, `resync` | settle and join: the machine, and how a primary carries it out | R6, R11 |
//! | `copies`, `pace` | copies to peers, and the speed of copies | R11 |
//! | `stall`, `timers` | joiners that stall; questions to be repeated | R11 |
//! | `secondaries`, `stream` | flow: this device as a secondary; its primary's frames | R2, R6 |
//! | `secondary`, `arrival` | the state of a secondary; copies that arrive there | R2, R6 |
//! | `damage` | operations that meet damage | R13 |
//! | `repair`, `repairs` | flow: damaged blocks that another replica has | R13 |
//! | `resend`, `fetch` | blocks for a replica, or for a primary, that has damaged ones | R13 |
//! | `scrub` | flow: the scrubber | R13 |
//! | `lease` | leases: those that this device holds, and those that it grants | R3, R4 |
//! | `executed`, `history` | executed writes in frames, and what was forgotten of them | R8 |
//! | `marks`, `jobs`, `unsent` | metadata for the unit store, and its unfinished work | R5 |
//! | `op`, `ops` | one operation, and all of them | |
//! | `lock`, `load` | range locks, the limit for clients' operations | R3 |
//! | `window`, `flow` | flow control: what is in flight to a replica, and what waits | R11 |
//! | `stopwatch` | how long jobs take | |
//! | `no_space`, `usable` | no space, and the spare | R15 |
//! | `lost_blocks` | data whose loss was accepted as errors | R10 |
//! | `discard`, `volumes` | deleting replicas that left, and volumes | R11, R9 |
//! | `failures` | devices that have failed | R12 |
//! | `evidence`, `standing`, `lengths` | reports: for a recovery; for the simulator | |
//! | `client` | the client's side | R8, R15, R16 |
//! | `testing` | for tests of the flows: a device with one replica | |
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod arrival;
pub mod client;
mod compare;
mod configuration;
mod copies;
mod damage;
mod discard;
mod evidence;
mod executed;
mod failures;
mod fetch;
mod flow;
mod flows;
mod history;
mod jobs;
mod known;
mod lease;
mod lengths;
mod load;
mod lock;
mod lost_blocks;
mod marks;
mod members;
mod mirror;
mod no_space;
mod op;
mod ops;
mod pace;
mod peers;
mod primary;
mod progress;
mod repair;
mod repairs;
mod replica;
mod replicas;
mod resend;
mod resync;
mod scrub;
mod secondaries;
mod secondary;
mod shard;
mod stall;
mod standing;
mod stopwatch;
mod stream;
mod sync;
#[cfg(test)]
mod testing;
mod timers;
mod unsent;
mod usable;
mod volumes;
mod watch;
mod window;

pub use evidence::Evidence;
pub use lease::{Leases, PeerState};
pub use lengths::ListLengths;
pub use lock::{Locks, Range};
pub use lost_blocks::LostUnits;
pub use members::GroupConfig;
pub use mirror::Mirror;
pub use replicas::{GroupView, Replicas, Resync};
pub use scrub::ScrubStats;
pub use seam::record::{Dirty, ExecutedList};
pub use shard::Stats;
pub use standing::Standing;
pub use stream::GAP;
pub use volumes::Volumes;

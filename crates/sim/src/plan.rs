//! A plan defines a run completely: the shape of the cluster, its limits, the weather, and a list
//! of timed actions.
//!
//! Faults and requests are explicit actions, so that shrinking can remove them. All other random
//! choices at run time (delays, ties, batches) come from the plan's seed.

mod addresses;
pub mod clocks;
mod conditions;
mod copies;
mod crowd;
mod elsewhere;
mod episode;
mod forgeries;
mod generate;
mod holes;
mod hosts;
mod idle;
mod lies;
mod nbd;
mod orders;
mod overlong;
mod patience;
mod permissions;
mod policies;
pub mod pools;
mod queues;
mod rejects;
mod rescue;
mod seals;
mod shipped;
mod slow;
mod swaps;
mod text;
mod together;
mod totals;
mod twins;
mod versions;
mod withdrawals;
mod workload;

use crate::disk::Damage;
use crate::forge::Forgery;
use crate::lies::Lie;
use crate::tamper::Tamper;
use crate::weather::Weather;
use base::{Limits, Policy};
use std::fmt;
use std::time::Duration;

pub use hosts::{HostKind, HostPlan, PathFault};
pub use totals::Totals;

/// A process, named by its role and number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Who {
    /// A metadata manager.
    Mdm(u8),
    /// A data server.
    Sds(u8),
    /// A client.
    Sdc(u8),
    /// The administrator, which creates and deletes volumes.
    Admin,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Mdm(0) => f.write_str("mdm"),
            Who::Mdm(i) => write!(f, "mdm{i}"),
            Who::Sds(i) => write!(f, "sds{i}"),
            Who::Sdc(i) => write!(f, "sdc{i}"),
            Who::Admin => f.write_str("admin"),
        }
    }
}

/// Kind of a client operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoKind {
    /// Read.
    Read,
    /// Write sectors with a stamp in each (`crate::stamp`).
    Write,
    /// Zero the range, and keep its space allocated.
    Zero,
    /// Zero the range, and free its space.
    Discard,
    /// Query which blocks hold data.
    Extents,
    /// Compare sectors of one block with their last known values, and write a stamp to each if they
    /// are equal.
    Swap,
}

/// How a process dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Death {
    /// For an SDS: its content survives. (The log of an MDM always does.)
    pub keep: bool,
    /// The host loses power as well.
    pub power: bool,
    /// The process dies while it carries out the effects of a batch, and not between two batches.
    pub midway: bool,
    /// The process survives if it might hold the last copy of some data.
    pub careful: bool,
    /// For an SDS: the processes of all devices of its server die together.
    pub server: bool,
}

/// One action of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A client issues an operation on a volume, in sectors.
    Io {
        /// Index of the client.
        client: u8,
        /// Index of the volume in the plan.
        volume: u8,
        /// Kind of operation.
        kind: IoKind,
        /// First sector.
        sector: u32,
        /// Number of sectors.
        sectors: u32,
    },
    /// Kill a process.
    Crash(Who, Death),
    /// Start a process again.
    Start(Who),
    /// Stop a process for a while; true: while it carries out the effects of a batch.
    Pause(Who, bool),
    /// Let a stopped process run again.
    Resume(Who),
    /// Block the path from the first process to the second.
    Block(Who, Who),
    /// Open that path again.
    Open(Who, Who),
    /// Hold back everything that travels from the first to the second process, for this many ms.
    Clog(Who, Who, u32),
    /// Break all connections between two processes.
    Reset(Who, Who),
    /// Create a volume of this many units, or create it again after its deletion.
    Create(u8, u32),
    /// Grow a volume to this many units.
    Resize(u8, u32),
    /// Delete a volume.
    Delete(u8),
    /// Map a volume to these clients only, one bit each. All bits set: to all clients.
    Map(u8, u8),
    /// Map a volume to these hosts only, one bit each. All bits set: to all hosts.
    Hosts(u8, u8),
    /// Unmap the volume of this host from the host, if it is mapped to hosts by name.
    UnmapHost(u8),
    /// Order that the gateway of this path serves the host: (host, path).
    MovePath(u8, u8),
    /// Make another MDM the leader.
    Switch,
    /// Remove this MDM from the cluster, if the others can do without it, delete its file, and then
    /// add it as a new member.
    Replace(u8),
    /// Let the leading MDM write a backup.
    Backup,
    /// Kill all MDMs and delete their logs, except the log of this one if there are several.
    Lose(Option<u8>),
    /// Let the MDM that still has its log continue alone, and add the others as new members.
    Recover,
    /// Start this MDM from the newest backup, if no log is left.
    Restore(u8),
    /// Start this MDM from the first backup, if no log is left.
    RestoreFirst(u8),
    /// End the open recovery: the operator declares that no other server will report.
    Finish,
    /// Accept the losses of all volumes: lost blocks read as zeros.
    Accept,
    /// Scrub all devices.
    Scrub,
    /// Damage a random block of this server's device, if all copies are intact.
    Damage(u8, Damage),
    /// Stop this server, tamper with its device in this way, and start the server again.
    Tamper(u8, Tamper),
    /// Copy this server's device while the server runs.
    Snapshot(u8),
    /// Grow this server's device by this many MiB. The server sees it at its next start.
    Grow(u8, u32),
    /// Remove the server of this device. When it is empty, another server with an empty device
    /// takes its place.
    Remove(u8),
    /// Remove only this device. Another device takes its place.
    RemoveDevice(u8),
    /// Cancel the removal of the server of this device.
    Keep(u8),
    /// Close this NBD connection of this client: (client, connection).
    CloseNbd(u8, u8),
    /// Stop reading this NBD connection of this client, for this many ms.
    Deaf(u8, u8, u32),
    /// Kill the programs that use a volume through a client, and start them again: (client,
    /// volume). The requests of the former ones are withdrawn.
    Withdraw(u8, u8),
    /// A fault of a path of a host: (host, path, fault).
    Path(u8, u8, PathFault),
    /// Put the server of this device into maintenance; true: protected, so its
    /// data moves away first.
    Maintain(u8, bool),
    /// End the maintenance of the server of this device.
    Return(u8),
    /// Wait for a primary of a group with three or more in-sync replicas to hear that the first of
    /// them is sealed. Kill it this many µs later, and start it again this many ms after that.
    Ambush(u32, u32),
    /// Set the storage pool's policies for rebuilds and for moves.
    Policies(Policy, Policy),
    /// This process is of the next release (true) or of this one from its next start on.
    Become(Who, bool),
    /// Raise the level of the cluster to that of the next release, if everybody can follow.
    Level,
    /// A stranger sends this server a hello in the name of another process.
    Forge(u8, Forgery),
    /// A stranger sends an MDM or a server messages that only accepted peers may send.
    Lie(Who, Lie),
    /// This many strangers dial an MDM or a server, and send nothing.
    Idle(Who, u32),
    /// Send a process a frame head that announces a longer body than the process accepts; true: on
    /// the connection of an accepted peer, else from a stranger.
    Overlong(Who, bool),
    /// Stop two servers, and exchange their addresses; if both are the same one, give it a new
    /// address. Their devices keep their content.
    Readdress(u8, u8),
    /// The host of this server refuses dials for this many ms, whether the server runs or not.
    Reject(u8, u32),
    /// Stop the virtual machine of a process. Its clock stands still for this many µs.
    Halt(Who, u32),
    /// Advance the clock of a process by this many ms.
    Leap(Who, u32),
    /// Set the drift of the clock of a process, in ppm.
    Drift(Who, i32),
    /// Freeze the process of a client, and start another process under its name elsewhere.
    Elsewhere(u8),
    /// Let the client process that was frozen by `Elsewhere` run beside the new one.
    Thaw(u8),
    /// Freeze the process of a server with RAM devices, and start another process under its name at
    /// another address.
    Double(u8),
    /// Let the server process that was frozen by `Double` run beside the new one.
    Wake(u8),
    /// Replace a server's disk with an empty one, if all copies are intact, and
    /// keep the older disk.
    NewDisk(u8),
    /// While the logs of all MDMs are lost: put the older disk back into the server.
    OlderDisk(u8),
    /// Put the disk back that had replaced the older one.
    NewerDisk(u8),
}

impl Action {
    /// Returns true for actions that disturb the cluster.
    pub fn is_fault(&self) -> bool {
        !matches!(
            self,
            Action::Io { .. }
                | Action::Start(_)
                | Action::Resume(_)
                | Action::Open(..)
                | Action::Create(..)
                | Action::Resize(..)
                | Action::Delete(_)
                | Action::Map(..)
                | Action::Hosts(..)
                | Action::UnmapHost(_)
                | Action::MovePath(..)
                | Action::Scrub
                | Action::Switch
                | Action::Replace(_)
                | Action::Backup
                | Action::Recover
                | Action::Restore(_)
                | Action::RestoreFirst(_)
                | Action::Finish
                | Action::Accept
                | Action::Maintain(..)
                | Action::Return(_)
                | Action::Policies(..)
                | Action::Become(..)
                | Action::Level
                | Action::Damage(..)
                | Action::Grow(..)
                | Action::Remove(_)
                | Action::RemoveDevice(_)
                | Action::Keep(_)
                | Action::Elsewhere(_)
                | Action::Thaw(_)
                | Action::Wake(_)
                | Action::Snapshot(_)
                | Action::Lie(..)
                | Action::Idle(..)
                | Action::Withdraw(..)
                | Action::Path(..)
        )
    }
}

/// An action and its time, counted from the moment at which the cluster is set up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timed {
    /// Time of the action.
    pub at: Duration,
    /// The action.
    pub action: Action,
}

/// Fault of one server after phase 1, when everything is healthy. It lasts until the run ends it;
/// the other servers must serve everything meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FinalFault {
    /// The process is dead; its content survives.
    Dead,
    /// No other process reaches it.
    Cut,
    /// The MDMs do not reach it; all others do.
    Unheard,
    /// Only the MDMs reach it.
    Heard,
    /// Its host has lost power; its content survives.
    Dark,
    /// Its process is frozen.
    Frozen,
    /// Nobody hears it, and it hears all others.
    Mute,
    /// It hears nobody, and all others hear it.
    Deaf,
    /// Every operation of its disk fails with EIO, also after each restart; its content survives.
    FailedDisk,
    /// Every frame that it sends or receives is delayed.
    SlowLinks,
    /// Every operation of its disk is delayed.
    SlowDisk,
    /// Its disk hangs once the first resync copies have reached it, and no operation that begins
    /// later ends. Its process lives.
    HungDisk,
}

/// Everything that defines a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Seed of the random choices at run time.
    pub seed: u64,
    /// Number of MDMs: 1, 3 or 5. The last ones are tie-breakers.
    pub mdms: u8,
    /// Number of data server processes, each with one device.
    pub sds: u8,
    /// The last processes are second devices: the server that each of them belongs to.
    pub mates: Vec<u8>,
    /// Devices in the second storage pool, one bit each; 0: there is one pool.
    pub second_pool: u16,
    /// Volumes in the second storage pool, one bit each.
    pub second_pool_volumes: u8,
    /// Number of fault sets: server i is in set i % `fault_sets`; 0: there are none.
    pub fault_sets: u8,
    /// Number of clients.
    pub clients: u8,
    /// Initial sizes of the volumes, in units.
    pub volumes: Vec<u32>,
    /// The servers' devices are files, which survive the death of the process;
    /// else they are memory.
    pub durable: bool,
    /// Servers whose devices are memory although `durable` is set, one bit each.
    pub memory: u16,
    /// Damage may strike any copy, also the last intact one. The loss must be reported as an error.
    pub allow_loss: bool,
    /// Units that one server has space for.
    pub capacity: u32,
    /// MiB by which each device grows in phase 2 while writes wait for space; 0: devices do not
    /// grow, and clients discard data instead.
    pub growth: u32,
    /// Highest number of operations that the workload keeps outstanding at one client.
    pub depth: u32,
    /// Number of NBD connections to each client.
    pub nbd: u8,
    /// Hosts that use iSCSI or NVMe.
    pub hosts: Vec<HostPlan>,
    /// The limits and the tuning of devices are the shipped ones; else they are minimal.
    pub shipped: bool,
    /// Limits of all processes.
    pub limits: Limits,
    /// Behaviour of the simulated hardware.
    pub weather: Weather,
    /// The server that fails after phase 1, named by its first device, and its fault; or a second
    /// device that fails alone.
    pub outcast: Option<(u8, FinalFault)>,
    /// Clients keep sending requests while the copies of that server are rebuilt.
    pub busy: bool,
    /// Processes that are of the next release at the start, one bit each ([`Who::build_bit`]).
    pub newer: u64,
    /// Length of phase 1.
    pub length: Duration,
    /// Actions of phase 1, in order of time.
    pub steps: Vec<Timed>,
}

impl Plan {
    /// Returns the same plan with damage that may strike every copy.
    pub fn with_loss(mut self, seed: u64) -> Plan {
        let mut r = base::Prng::new(seed).fork("loss");
        self.allow_loss = true;
        self.outcast = None; // it might have the last copy
        (self.durable, self.memory) = (true, 0);
        // Twin processes need servers with memory.
        let twin = |a: &Action| matches!(a, Action::Double(_) | Action::Wake(_));
        self.steps.retain(|s| !twin(&s.action));
        for _ in 0..r.range(5, 60) {
            let at = Duration::from_micros(r.below(self.length.as_micros() as u64));
            let i = r.below(u64::from(self.sds)) as u8;
            let damage = *r.pick(&[Damage::Rot, Damage::Sector]);
            self.steps.push(Timed { at, action: Action::Damage(i, damage) });
        }
        self.steps.sort_by_key(|s| s.at);
        self
    }

    /// Returns true when a client's name has two processes at some time.
    pub fn has_doubles(&self) -> bool {
        self.steps.iter().any(|s| matches!(s.action, Action::Elsewhere(_)))
    }

    /// Returns true when a server's name has two processes at some time.
    pub fn has_twins(&self) -> bool {
        self.steps.iter().any(|s| matches!(s.action, Action::Double(_)))
    }

    /// Returns true when the plan is about a recovery or about a server that refuses dials. Such a
    /// plan has no other faults.
    pub fn is_one_story(&self) -> bool {
        let story = |a: &Action| matches!(a, Action::Reject(..) | Action::Lose(..));
        self.steps.iter().any(|s| story(&s.action))
    }

    /// Returns true when copies of devices are started. Such a plan has no other
    /// faults but strangers.
    pub fn copies_devices(&self) -> bool {
        use Tamper::{CopyOf, SetBack};
        let copy = |a: &Action| matches!(a, Action::Tamper(_, CopyOf(_) | SetBack));
        self.steps.iter().any(|s| copy(&s.action))
    }

    /// Returns true when a stranger sends forged messages at some time.
    pub fn has_lies(&self) -> bool {
        self.steps.iter().any(|s| matches!(s.action, Action::Lie(..)))
    }

    /// Returns true when a process's data survives its death.
    pub fn keeps(&self, who: Who) -> bool {
        match who {
            Who::Sds(i) => self.durable && u32::from(self.memory) >> i & 1 == 0,
            Who::Mdm(_) => true,
            Who::Sdc(_) | Who::Admin => false,
        }
    }

    /// Returns true for an MDM that leads only while no other one can.
    pub fn is_tie_breaker(&self, mdm: u8) -> bool {
        self.mdms > 1 && mdm > self.mdms / 2
    }
}

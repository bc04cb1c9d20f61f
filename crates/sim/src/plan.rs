//! A run, before it runs: the cluster's shape, its limits, the weather, and a list of timed actions.
//!
//! Everything that shrinking may want to remove is an explicit action, faults and workload alike.
//! What remains random at run time (delays, ties, batches) comes from the plan's seed.

mod addresses;
pub mod clocks;
mod conditions;
mod copies;
mod crowd;
mod elsewhere;
mod episode;
mod forgeries;
mod generate;
mod idle;
mod lies;
mod nbd;
mod orders;
mod overlong;
mod patience;
mod policies;
pub mod pools;
mod rejects;
mod rescue;
mod seals;
mod shipped;
mod slow;
mod text;
mod together;
mod twins;
mod workload;

use crate::disk::Damage;
use crate::forge::Forgery;
use crate::lies::Lie;
use crate::tamper::Tamper;
use crate::weather::Weather;
use base::{Limits, Policy};
use std::fmt;
use std::time::Duration;

/// A process, by its part in the play.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Who {
    /// A metadata manager.
    Mdm(u8),
    /// A data server.
    Sds(u8),
    /// A client.
    Sdc(u8),
    /// The one who makes and deletes volumes.
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

/// What a client asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoKind {
    /// Read.
    Read,
    /// Write stamped sectors.
    Write,
    /// Zero, and keep the space.
    Zero,
    /// Zero, and give the space back.
    Discard,
    /// Ask which blocks hold data.
    Extents,
}

/// How a process dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Death {
    /// An SDS: its store survives (a MDM's always does).
    pub keep: bool,
    /// Its host loses power, too.
    pub power: bool,
    /// In the middle of a batch's effects, not between two batches.
    pub midway: bool,
    /// Not at all, when a copy could be the last one.
    pub careful: bool,
    /// A data server: with all its devices' processes.
    pub server: bool,
}

/// One thing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A client issues an operation on a volume, in sectors.
    Io {
        /// Which client.
        client: u8,
        /// Which of the plan's volumes.
        volume: u8,
        /// What.
        kind: IoKind,
        /// From this sector.
        sector: u32,
        /// So many.
        sectors: u32,
    },
    /// Kill a process.
    Crash(Who, Death),
    /// Start it again.
    Start(Who),
    /// Stop it for a while; true: with the effects of a batch in hand.
    Pause(Who, bool),
    /// Let it go on.
    Resume(Who),
    /// Block the path from one to the other.
    Block(Who, Who),
    /// Open it again.
    Open(Who, Who),
    /// Hold back what travels from one to the other for so many milliseconds.
    Clog(Who, Who, u32),
    /// Break the connections between two.
    Reset(Who, Who),
    /// Make a volume of so many units; again after it was deleted.
    Create(u8, u32),
    /// Grow it to so many units.
    Resize(u8, u32),
    /// Delete it.
    Delete(u8),
    /// Map it to these clients alone, a bit each; with all of them: to all.
    Map(u8, u8),
    /// Have another metadata manager lead.
    Switch,
    /// Take this metadata manager out of the cluster, if the others can do without it, and its file away;
    /// then take it in anew.
    Replace(u8),
    /// Have the MDM that leads write a backup.
    Backup,
    /// The metadata managers die and lose their logs; but for this one, if there are several.
    Lose(Option<u8>),
    /// The one that has its log yet is told to go on alone, and the others are taken in anew.
    Recover,
    /// This one begins with the backup, if no log is left.
    Restore(u8),
    /// Whoever recovers is told that nobody else comes.
    Finish,
    /// What is lost of all volumes is accepted: it reads as zeros.
    Accept,
    /// Have all devices scrubbed.
    Scrub,
    /// Damage a block of this server's device, if all copies are whole; which one is drawn.
    Damage(u8, Damage),
    /// Turn this server off, do this to its device, and turn it on again.
    Tamper(u8, Tamper),
    /// Copy this server's device while it serves.
    Snapshot(u8),
    /// Make this server's device so many MiB larger, as its next life will find.
    Grow(u8, u32),
    /// Remove the server of this device; when it is empty, another one is added in its place, with an empty device.
    Remove(u8),
    /// Remove this device alone; another one comes in its place.
    RemoveDevice(u8),
    /// Or not: the server and its devices stay.
    Keep(u8),
    /// Close this NBD connection of this client.
    Hang(u8, u8),
    /// Don't read it for so many milliseconds.
    Deaf(u8, u8, u32),
    /// Put the server of this device into maintenance; true: with its data moved away first.
    Maintain(u8, bool),
    /// Its maintenance is over.
    Return(u8),
    /// Wait for a leader of three or more members in sync that hears of the first one that is equal, kill it so many
    /// microseconds later, and start it again after so many milliseconds.
    Ambush(u32, u32),
    /// Tell the storage pool how copies give way to clients: those that replace a lost one, and those that move.
    Policies(Policy, Policy),
    /// Somebody sends this server a hello in the name of another process.
    Forge(u8, Forgery),
    /// A stranger says to an MDM or a server what only members may say.
    Lie(Who, Lie),
    /// So many strangers dial an MDM or a server, and say nothing.
    Idle(Who, u32),
    /// A frame comes to a process whose head announces a body that is longer than it takes: from a stranger; true: on a
    /// connection of a member.
    Overlong(Who, bool),
    /// Two servers end, and exchange their addresses; one alone gets a new one. Their devices keep
    /// their content.
    Readdress(u8, u8),
    /// The host of this server refuses dials for so many milliseconds, whether it runs or not.
    Reject(u8, u32),
    /// Stop the virtual machine of a process; its clock stands still for so many microseconds.
    Halt(Who, u32),
    /// A process's clock jumps ahead by so many milliseconds.
    Leap(Who, u32),
    /// A process's clock gains so many millionths from now on.
    Drift(Who, i32),
    /// A client's process stands still, and another one is started in its name elsewhere.
    Elsewhere(u8),
    /// The process that was frozen at that goes on, beside the other one.
    Thaw(u8),
    /// The process of a server with memory stands still, and another one is started in its name at another address.
    Double(u8),
    /// The process that was frozen at that goes on, beside the other one.
    Wake(u8),
    /// A server's disk is exchanged for an empty one, if all copies are whole, and kept.
    NewDisk(u8),
    /// While all MDMs' logs are lost: that older disk stands in its place again.
    OlderDisk(u8),
    /// The disk that had replaced it does.
    NewerDisk(u8),
}

impl Action {
    /// True for what makes life hard.
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
                | Action::Scrub
                | Action::Switch
                | Action::Replace(_)
                | Action::Backup
                | Action::Recover
                | Action::Restore(_)
                | Action::Finish
                | Action::Accept
                | Action::Maintain(..)
                | Action::Return(_)
                | Action::Policies(..)
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
        )
    }
}

/// An action and when it is due, counted from the moment at which the cluster is whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timed {
    /// When.
    pub at: Duration,
    /// What.
    pub action: Action,
}

/// What becomes of one server after the storm, once everything is whole: the others must serve
/// everything without it, however long it stays so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcast {
    /// It is dead; its store survives.
    Dead,
    /// Nobody reaches it.
    Cut,
    /// Only the MDM does not reach it.
    Unheard,
    /// Nobody but the MDMs reaches it.
    Heard,
    /// Its host has lost power; its store survives.
    Dark,
    /// Its process stands still.
    Frozen,
    /// Every frame to it and from it takes long.
    SlowLinks,
    /// Every operation of its disk takes long.
    SlowDisk,
    /// No operation of its disk ends that begins after the first copies have come to it; its process lives.
    HungDisk,
}

/// A run, before it runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// What random choices at run time start from.
    pub seed: u64,
    /// Metadata managers: 1, 3 or 5, with the last ones as tie-breakers.
    pub mdms: u8,
    /// Data servers' processes, with a device each.
    pub sds: u8,
    /// The last ones of them are second devices of these servers.
    pub mates: Vec<u8>,
    /// These devices, a bit each, are in a second storage pool; 0: there is one pool.
    pub second_pool: u16,
    /// So are these volumes.
    pub second_pool_volumes: u8,
    /// Fault sets: server i is in set i % this; 0: there are none.
    pub fault_sets: u8,
    /// Clients.
    pub clients: u8,
    /// Sizes of the volumes that are there at the start, in units.
    pub volumes: Vec<u32>,
    /// The servers' devices are files, and survive their processes' deaths; else they are memory.
    pub durable: bool,
    /// Of these servers, a bit each, they are memory all the same.
    pub memory: u16,
    /// Damage strikes anywhere, also the last good copy: what is lost must be told, and nothing else shown.
    pub allow_loss: bool,
    /// Units that one server has space for.
    pub capacity: u32,
    /// MiB by which devices grow when writes wait for space at last; 0: not at all, and data is given back.
    pub growth: u32,
    /// Operations that a client of the workload has outstanding at most.
    pub depth: u32,
    /// NBD connections to each client.
    pub nbd: u8,
    /// The bounds are those that ship, and so is the tuning of devices; else they are as small as may be.
    pub shipped: bool,
    /// The processes' bounds.
    pub limits: Limits,
    /// How the hardware behaves.
    pub weather: Weather,
    /// A server without which the others have to get along at last, named by its first device; or a second device alone.
    pub outcast: Option<(u8, Outcast)>,
    /// Clients go on asking while that server's copies are made anew.
    pub busy: bool,
    /// How long phase 1 takes.
    pub length: Duration,
    /// What happens in it, in order of time.
    pub steps: Vec<Timed>,
}

impl Plan {
    /// The same plan, with damage that may ruin every copy.
    pub fn with_loss(mut self, seed: u64) -> Plan {
        let mut r = base::Prng::new(seed).fork("loss");
        self.allow_loss = true;
        self.outcast = None; // it may have the last copy
        (self.durable, self.memory) = (true, 0);
        // Only servers with memory have two processes.
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

    /// True when a client's name has two processes at some time.
    pub fn has_doubles(&self) -> bool {
        self.steps.iter().any(|s| matches!(s.action, Action::Elsewhere(_)))
    }

    /// True when a server's name has two processes at some time.
    pub fn has_twins(&self) -> bool {
        self.steps.iter().any(|s| matches!(s.action, Action::Double(_)))
    }

    /// True when it is the story of a recovery, or of a server that refuses dials: such a plan has no
    /// other faults.
    pub fn is_one_story(&self) -> bool {
        let story = |a: &Action| matches!(a, Action::Reject(..) | Action::Lose(..));
        self.steps.iter().any(|s| story(&s.action))
    }

    /// True when copies of devices are started: such a plan has no other faults but strangers.
    pub fn copies_devices(&self) -> bool {
        use Tamper::{CopyOf, SetBack};
        let copy = |a: &Action| matches!(a, Action::Tamper(_, CopyOf(_) | SetBack));
        self.steps.iter().any(|s| copy(&s.action))
    }

    /// True when a stranger lies at some time.
    pub fn has_lies(&self) -> bool {
        self.steps.iter().any(|s| matches!(s.action, Action::Lie(..)))
    }

    /// True when a process's data survives its death.
    pub fn keeps(&self, who: Who) -> bool {
        match who {
            Who::Sds(i) => self.durable && u32::from(self.memory) >> i & 1 == 0,
            Who::Mdm(_) => true,
            Who::Sdc(_) | Who::Admin => false,
        }
    }

    /// True for a metadata manager that is to lead only while no other one can.
    pub fn is_tie_breaker(&self, mdm: u8) -> bool {
        self.mdms > 1 && mdm > self.mdms / 2
    }

    /// True when blocks may be damaged, or can't be read for a while.
    pub fn damages(&self) -> bool {
        let damage = |s: &Timed| matches!(s.action, Action::Damage(..));
        self.weather.disk_read_ppm > 0 || self.steps.iter().any(damage)
    }
}

//! Why the order of a person or program is refused, and what to do about it.

use crate::mapping::NAMED_HOSTS;
use alloc::string::String;
use base::name::{PEER_NAME_MAX, is_peer_name};
use base::policy::NoPolicy;
use base::{MAX_VOLUME_BYTES, MIB};
use thiserror::Error;
use wire::control::{AdminError, ObjectKind};

/// The longest name of a volume.
pub const NAME_MAX: usize = 31;
/// Maximum number of volumes: every map answer and snapshot lists all of them.
pub const MAX_VOLUMES: usize = 16 << 10;
/// Maximum number of devices: every server has all of them in its map, with their groups.
pub const MAX_DEVICES: usize = 2048;
/// Maximum number of new devices that wait for an order: strangers leave room for the devices that
/// belong to the cluster.
pub const MAX_WAITING: usize = 64;
/// Maximum number of groups that one command makes: it has to fit into an entry. The next volume
/// makes the others.
pub const MAX_NEW_GROUPS: usize = 180_000;
/// Maximum number of known clients.
pub const MAX_SDCS: usize = 4096;
/// The most MDMs of one cluster, including those that have no vote yet.
pub const MAX_MEMBERS: usize = 7;
/// Maximum number of objects of one kind.
pub const MAX_OBJECTS: usize = 1024;

/// A refusal.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Refused {
    /// The name is empty, too long, or has a character that it may not have.
    #[error(
        "`{0}` can't be a volume's name: use 1 to {NAME_MAX} of the characters a-z, A-Z, 0-9, `.`, `_`, `-`"
    )]
    Name(String),
    /// The name of a new volume can't be a file's, or looks like an option.
    #[error("`{0}` can't be a volume's name: it begins with `-`, or means a folder")]
    OddName(String),
    /// The name is taken.
    #[error("there is a volume `{0}` already: choose another name, or delete that one first")]
    Taken(String),
    /// No volume has this name.
    #[error("there is no volume `{0}`: `gabion volume list` shows those that exist")]
    NotFound(String),
    /// Size 0.
    #[error("a volume needs a size above 0, for example `10GiB`")]
    Empty,
    /// Larger than a volume can be.
    #[error("{0} bytes are more than a volume can have: the limit is {MAX_VOLUME_BYTES}")]
    TooBig(u64),
    /// The new size is below the present one.
    #[error(
        "`{name}` has {size} bytes and can't shrink to {asked}: make a smaller volume and copy the data"
    )]
    Shrink {
        /// The volume.
        name: String,
        /// Its size.
        size: u64,
        /// The size asked for.
        asked: u64,
    },
    /// Two copies need two servers.
    #[error(
        "two copies need two servers that are up; {up} of {known} known ones are: \
         start another SDS (`gabion status` lists them)"
    )]
    TooFewServers {
        /// Servers with a device that is up.
        up: usize,
        /// Servers in all.
        known: usize,
    },
    /// There is no group that could take data.
    #[error("every group has lost its copies: bring a server back, or start another one")]
    NoGroup,
    /// The list of volumes is full.
    #[error("there are {MAX_VOLUMES} volumes, and there can't be more: delete one")]
    TooManyVolumes,
    /// The numbers that fence clients are used up.
    #[error(
        "access to `{0}` was taken away 2^32 times, and can't be again: copy its data to a new volume"
    )]
    LastGeneration(String),
    /// No device has this id.
    #[error("there is no device {0}: `gabion status` shows those that exist")]
    NoDevice(u32),
    /// None of the devices that the order means waits.
    #[error("none of these devices waits for an order: `gabion device list` shows those that do")]
    NotWaiting,
    /// No server has this name.
    #[error("there is no server `{0}`: `gabion status` shows those that exist")]
    NoServer(String),
    /// Two copies would have too few servers.
    #[error(
        "two copies need two servers, and {left} of those that are up would be left: start another SDS first"
    )]
    TooFewLeft {
        /// Servers that are up and stay.
        left: usize,
    },
    /// Two copies would have too few fault units.
    #[error(
        "two copies need two fault units, and the storage pool `{pool}` would have {left} left of those that are up: \
         start another SDS with a device of that pool first"
    )]
    LastUnit {
        /// The pool.
        pool: String,
        /// Units that are up and stay.
        left: usize,
    },
    /// The other devices are too small.
    #[error(
        "{} MiB would have to move, and the others have room for {} MiB beside their spare: add a device, \
         or delete volumes, first",
        needed.div_ceil(MIB), room / MIB
    )]
    NoRoom {
        /// Bytes that would move.
        needed: u64,
        /// Bytes that the others can take.
        room: u64,
    },
    /// The device is down, and has copies that no other device has.
    #[error(
        "dev{device} is down, and has the only good copy of {groups} groups: bring it back first"
    )]
    LastCopies {
        /// The device.
        device: u32,
        /// Groups that a volume uses.
        groups: usize,
    },
    /// Another server is in maintenance.
    #[error(
        "`{0}` is in maintenance already, and both copies of some data may be on these two: end its maintenance first, \
         or use --protected"
    )]
    Maintained(String),
    /// It is not in maintenance.
    #[error("`{0}` is not in maintenance")]
    NotMaintained(String),
    /// Another server is being emptied.
    #[error(
        "`{0}` is being emptied, and its data needs room on other servers: wait until `gabion status` shows that it is \
         empty, or cancel that first"
    )]
    Empties(String),
    /// It is being removed.
    #[error("`{0}` is being removed: `gabion sds remove {0} --keep` ends that")]
    Leaves(String),
    /// The server has copies that no other server has.
    #[error(
        "{groups} groups have their only good copy on `{server}`: wait until `gabion status` shows everything as \
         protected"
    )]
    OnlyHere {
        /// The server.
        server: String,
        /// Groups that a volume uses.
        groups: usize,
    },
    /// No MDM has this name.
    #[error("there is no MDM `{0}`: `gabion mdm list` shows those that exist")]
    NoMdm(String),
    /// The name can't be an MDM's.
    #[error(
        "`{0}` can't be an MDM's name: use 1 to 31 of the characters a-z, A-Z, 0-9, `.`, `_`, `-`"
    )]
    MdmName(String),
    /// The address can't be an MDM's.
    #[error("`{0}` is no address: say where the MDM listens, as `ip:port`")]
    MdmAddress(String),
    /// The name or the address is taken.
    #[error(
        "there is an MDM `{0}` at {1} already: choose another name and address, or remove that one first"
    )]
    MdmTaken(String, String),
    /// The list of MDMs is full.
    #[error("there are {} MDMs, and more make nothing safer: remove one first", MAX_MEMBERS)]
    TooManyMdms,
    /// No MDM could lead.
    #[error(
        "`{0}` is the last manager, and tie-breakers don't lead for long: add another manager first"
    )]
    LastManager(String),
    /// The number of managers would be even, with no tie-breaker.
    #[error(
        "without the tie-breaker `{0}` the managers are an even number: when one half is lost, the other \
         can't go on. Remove a manager first, or add another tie-breaker"
    )]
    LastTieBreaker(String),
    /// The MDMs that remain, or that have to agree to the change, are too few.
    #[error(
        "without `{name}` only {left} of {of} MDMs would work: bring back the others first, or remove one \
         that does not work"
    )]
    Majority {
        /// The MDM that was to go.
        name: String,
        /// Number of MDMs that work without it.
        left: usize,
        /// Number of MDMs without it.
        of: usize,
    },
    /// The leader has led for too short a time to know which MDMs work.
    #[error(
        "this MDM has just begun to lead, and has not heard all the others yet: try again in a second"
    )]
    NotHeardYet,
    /// Another MDM is being removed.
    #[error("another MDM is being removed: try again in a moment")]
    MdmLeaves,
    /// It leads already.
    #[error("`{0}` leads already")]
    Leads(String),
    /// It can't lead now, for this reason.
    #[error("`{0}` can't lead now: {1}")]
    CantLead(String, &'static str),
    /// The name can't be that of an object of this kind.
    #[error(
        "`{1}` can't be the name of a {what}: use 1 to {PEER_NAME_MAX} bytes without control characters",
        what = words(*.0)
    )]
    ObjectName(ObjectKind, String),
    /// The name is taken.
    #[error("there is a {what} `{1}` already: choose another name", what = words(*.0))]
    ObjectTaken(ObjectKind, String),
    /// No object has this name.
    #[error(
        "there is no {what} `{1}`: `gabion {command} list` shows those that exist",
        what = words(*.0), command = command(*.0)
    )]
    NoObject(ObjectKind, String),
    /// There are several objects of this kind, and the order names none.
    #[error(
        "there are several {what}s: say which one with --{command} (`gabion {command} list` shows them)",
        what = words(*.0), command = command(*.0)
    )]
    Which(ObjectKind),
    /// A client that is to be removed is connected.
    #[error("the SDC `{0}` runs: stop its process first, then remove it")]
    SdcHere(String),
    /// A client that is to be removed may use volumes.
    #[error(
        "{count} volumes are mapped to the SDC `{name}`, `{volume}` is the first: \
         `gabion volume unmap {volume} --sdc {name}` ends that"
    )]
    SdcMapped {
        /// The client's name.
        name: String,
        /// The first volume's.
        volume: String,
        /// How many there are.
        count: usize,
    },
    /// Something still belongs to the object.
    #[error(
        "the {what} `{name}` still has {count} {of}: remove or move those first",
        what = words(*.kind), of = .what
    )]
    NotEmpty {
        /// What it is.
        kind: ObjectKind,
        /// Its name.
        name: String,
        /// The number of things that belong to it.
        count: usize,
        /// Their kind.
        what: &'static str,
    },
    /// The last object of its kind can't be removed.
    #[error("`{1}` is the last {what}, and there has to be one: rename it, or make another one first", what = words(*.0))]
    LastObject(ObjectKind, String),
    /// The list of objects of this kind is full.
    #[error("there are {} {what}s, and there can't be more: remove one", MAX_OBJECTS, what = words(*.0))]
    TooManyObjects(ObjectKind),
    /// A larger spare than a pool may have.
    #[error("{0} % of a pool can't be kept for rebuilds: use 0 to 90")]
    Spare(u32),
    /// The policy is not valid.
    #[error("{0}")]
    Policy(NoPolicy),
    /// Too few fault units of a pool are up.
    #[error(
        "two copies need two fault units (fault sets, or servers in none), and the storage pool `{pool}` has \
         {up} that are up: start another SDS with a device of that pool"
    )]
    TooFewUnits {
        /// The pool.
        pool: String,
        /// Units that are up.
        up: usize,
    },
    /// A pool has too little space.
    #[error(
        "a thick volume of {} MiB needs {} MiB, with both copies, and the storage pool `{pool}` has {} MiB \
         left beside its spare and what is reserved: add a device, remove volumes, or make it thin (--thin)",
        size.div_ceil(MIB), needed.div_ceil(MIB), room / MIB
    )]
    NoSpace {
        /// The pool.
        pool: String,
        /// The volume's size.
        size: u64,
        /// The bytes that it needs.
        needed: u64,
        /// The bytes that are left.
        room: u64,
    },
    /// Clients may use the volume.
    #[error(
        "`{volume}` is mapped to {sdcs}: unmap it first (`gabion volume unmap {volume} --all`), or say --unmap"
    )]
    StillMapped {
        /// The volume.
        volume: String,
        /// The clients.
        sdcs: String,
    },
    /// Hosts may use the volume.
    #[error(
        "`{volume}` is mapped to {count} hosts by name, {host} is the first: unmap it first (`gabion volume unmap \
         {volume} --host {host}`), or say --unmap"
    )]
    StillMappedToHosts {
        /// The volume.
        volume: String,
        /// The first host.
        host: String,
        /// Number of hosts.
        count: usize,
    },
    /// Clients use the volume.
    #[error(
        "`{volume}` is in use by {sdcs}: detach it there first, or unmap it (`gabion volume unmap {volume} --all`), \
         or say --unmap"
    )]
    InUse {
        /// The volume.
        volume: String,
        /// The clients.
        sdcs: String,
    },
    /// The volume is mapped to all clients.
    #[error(
        "`{volume}` is mapped to all SDCs: `gabion volume map {volume} --sdc NAME --only` leaves it to those that \
         you name"
    )]
    MappedToAll {
        /// The volume.
        volume: String,
    },
    /// The volume was not mapped to this client.
    #[error("`{volume}` is not mapped to {sdc}: `gabion volume list` shows its clients")]
    NotMapped {
        /// The volume.
        volume: String,
        /// The client.
        sdc: String,
    },
    /// The volume is mapped to all hosts.
    #[error(
        "`{volume}` is mapped to all hosts: `gabion volume map {volume} --host NAME --only` leaves it to those that \
         you name"
    )]
    MappedToAllHosts {
        /// The volume.
        volume: String,
    },
    /// The volume was not mapped to this host.
    #[error("`{volume}` is not mapped to {host}: `gabion volume show {volume}` shows its hosts")]
    HostNotMapped {
        /// The volume.
        volume: String,
        /// The host.
        host: String,
    },
    /// The name can't be that of a host.
    #[error(
        "`{0}` is no name of a host: it begins with iqn., eui., naa. or nqn., as in \
         /etc/iscsi/initiatorname.iscsi or /etc/nvme/hostnqn of the host"
    )]
    HostName(String),
    /// The list of hosts is full.
    #[error("a volume can be mapped to {NAMED_HOSTS} hosts by name: unmap it from others first")]
    TooManyHosts,
    /// The client has no iSCSI or NVMe address.
    #[error(
        "the SDC `{0}` is no gateway: it has no iSCSI or NVMe/TCP address (`gabion status` shows those that have)"
    )]
    NoGateway(String),
    /// No host is registered.
    #[error("no host is registered with `{0}`, so there is no reservation either")]
    NoReservations(String),
    /// The host has no seat.
    #[error(
        "no SDC serves {host} with `{volume}`: `gabion volume show {volume}` shows the hosts and their SDCs"
    )]
    NoSeat {
        /// The volume.
        volume: String,
        /// The host.
        host: String,
    },
    /// The host has no path through the gateway.
    #[error(
        "{host} can't use `{volume}` through {gateway}: let it connect there first. Nothing was moved"
    )]
    NotConnected {
        /// The volume.
        volume: String,
        /// The host.
        host: String,
        /// The gateway.
        gateway: String,
    },
    /// The order names no client.
    #[error("name the clients or hosts: --sdc NAME, --host NAME, --all or --all-hosts")]
    Nobody,
    /// No part of these volumes can be given up in this way.
    #[error(
        "these volumes have no data that can be given up in this way: `gabion volume damage` shows what is not served, \
         and why. --read-as is for lost data; --use-stale for data that waits for a device while an older copy is there"
    )]
    NothingLost,
    /// Other volumes have data in the same groups.
    #[error(
        "other volumes have data in the same groups, and would lose it, too: {0}. Name all of them, or delete those \
         that are not needed any more"
    )]
    SharesLoss(String),
    /// No device could begin the group with nothing.
    #[error(
        "no device of the pool can start a lost group again: that takes a device that is up and does not belong to the \
         group. Start or add a server"
    )]
    NobodyEmpty,
    /// A recovery collects the servers' reports.
    #[error(
        "a recovery is under way, and the MDM collects the reports of servers: `gabion status` shows which ones are \
         missing; `gabion mdm recover --finish` ends it"
    )]
    Recovering,
    /// There is no recovery to end.
    #[error("no recovery is under way: there is nothing to finish")]
    NotRecovering,
    /// The order would delete a volume that is known, or that is deleted already.
    #[error(
        "volume {0} is not one of the unknown volumes: `gabion status` shows those; `gabion volume delete` deletes a known one"
    )]
    NotUnknown(u32),
    /// There is nothing to recover from.
    #[error(
        "most MDMs work: there is nothing to recover from. `gabion mdm remove` takes out one that is lost"
    )]
    MajorityWorks,
    /// The level is in force already.
    #[error("the cluster has level {0} already")]
    LevelIsThere(u32),
    /// The level is below the present one.
    #[error(
        "the cluster has level {level}, and a level never falls: what was written since needs it. There is no way back \
         to level {asked}"
    )]
    LevelFalls {
        /// The present level.
        level: u32,
        /// The level asked for.
        asked: u32,
    },
    /// The leader does not know the level.
    #[error("the leading MDM knows levels up to {known}, not level {asked}: update the MDMs first")]
    LevelUnknown {
        /// The level asked for.
        asked: u32,
        /// The highest one that it knows.
        known: u32,
    },
    /// There are processes that do not know the level, or that are down and may not know it.
    #[error(
        "every MDM, server and client has to know level {level}, and these don't, or are down and may not: {who}. Update \
         and start them. `--without NAME` goes without an MDM or a server that is down: it is refused until it is updated"
    )]
    LevelLacks {
        /// The level asked for.
        level: u32,
        /// Their names.
        who: String,
    },
    /// A process that is up can't be left out.
    #[error(
        "`{0}` is up, and --without is for MDMs and servers that are down: update it, or stop it"
    )]
    WithoutUp(String),
    /// No MDM or server has this name.
    #[error("there is no MDM or server `{0}`: `gabion status` shows those that exist")]
    WithoutNobody(String),
    /// The request has no order that this build knows.
    #[error("this MDM doesn't know that order: update it")]
    Unknown,
    /// The order was made for an older state.
    #[error("the cluster has changed meanwhile: try again")]
    Outdated,
}

impl Refused {
    /// Returns the code of the refusal, for programs.
    // Long: one match over all refusals.
    pub fn code(&self) -> AdminError {
        match self {
            Refused::Name(_)
            | Refused::OddName(_)
            | Refused::Empty
            | Refused::TooBig(_)
            | Refused::Shrink { .. } => AdminError::Invalid,
            Refused::Taken(_) => AdminError::NameTaken,
            Refused::NotFound(_) | Refused::NoDevice(_) | Refused::NoServer(_) => {
                AdminError::NotFound
            }
            Refused::NoMdm(_) => AdminError::NotFound,
            Refused::MdmTaken(..) => AdminError::NameTaken,
            Refused::MdmName(_) | Refused::MdmAddress(_) => AdminError::Invalid,
            Refused::NoRoom { .. }
            | Refused::LastCopies { .. }
            | Refused::Maintained(_)
            | Refused::Leaves(_)
            | Refused::Empties(_)
            | Refused::OnlyHere { .. } => AdminError::Invalid,
            Refused::Leads(_) | Refused::NotMaintained(_) | Refused::NotWaiting => {
                AdminError::Already
            }
            Refused::TooManyMdms
            | Refused::LastManager(_)
            | Refused::LastTieBreaker(_)
            | Refused::Majority { .. }
            | Refused::CantLead(..) => AdminError::TooFewMdms,
            Refused::ObjectName(..)
            | Refused::Spare(_)
            | Refused::Policy(_)
            | Refused::Which(_)
            | Refused::HostName(_)
            | Refused::NoGateway(_)
            | Refused::Nobody => AdminError::Invalid,
            Refused::ObjectTaken(..) => AdminError::NameTaken,
            Refused::NoObject(..)
            | Refused::NotMapped { .. }
            | Refused::HostNotMapped { .. }
            | Refused::NoSeat { .. } => AdminError::NotFound,
            Refused::NoReservations(_) => AdminError::Already,
            Refused::NotEmpty { .. }
            | Refused::LastObject(..)
            | Refused::StillMapped { .. }
            | Refused::StillMappedToHosts { .. }
            | Refused::SdcHere(_)
            | Refused::SdcMapped { .. }
            | Refused::InUse { .. }
            | Refused::MappedToAll { .. }
            | Refused::MappedToAllHosts { .. } => AdminError::InUse,
            Refused::NoSpace { .. } => AdminError::NoSpace,
            Refused::TooFewUnits { .. } | Refused::LastUnit { .. } => AdminError::TooFewServers,
            Refused::TooFewServers { .. } | Refused::TooFewLeft { .. } => AdminError::TooFewServers,
            Refused::NotUnknown(_) | Refused::WithoutNobody(_) => AdminError::NotFound,
            Refused::LevelIsThere(_) => AdminError::Already,
            Refused::LevelFalls { .. }
            | Refused::LevelUnknown { .. }
            | Refused::LevelLacks { .. }
            | Refused::WithoutUp(_) => AdminError::Invalid,
            Refused::NotRecovering | Refused::MajorityWorks | Refused::NothingLost => {
                AdminError::Already
            }
            Refused::SharesLoss(_) => AdminError::InUse,
            Refused::NobodyEmpty => AdminError::TooFewServers,
            Refused::Recovering
            | Refused::MdmLeaves
            | Refused::NotHeardYet
            | Refused::NoGroup
            | Refused::TooManyVolumes
            | Refused::TooManyHosts
            | Refused::NotConnected { .. }
            | Refused::LastGeneration(_)
            | Refused::TooManyObjects(_)
            | Refused::Unknown
            | Refused::Outdated => AdminError::Other,
        }
    }
}

/// Checks a volume's name. The refusal shows at most the first 64 characters of what was given.
pub fn check_name(name: &str) -> Result<(), Refused> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if (1..=NAME_MAX).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(());
    }
    Err(Refused::Name(name.chars().take(64).collect()))
}

/// Checks the name of a volume that is to be created, or that is to have this name. Volumes of
/// older clusters may be called otherwise: as files, or on a command line, they are hard to use.
pub fn check_new_name(name: &str) -> Result<(), Refused> {
    check_name(name)?;
    if name.starts_with('-') || matches!(name, "." | "..") {
        return Err(Refused::OddName(name.into()));
    }
    Ok(())
}

/// Checks the name of another object than a volume.
pub fn check_object_name(kind: ObjectKind, name: &str) -> Result<(), Refused> {
    if is_peer_name(name) {
        return Ok(());
    }
    Err(Refused::ObjectName(kind, name.chars().take(64).collect()))
}

/// Returns what people call an object of this kind.
fn words(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Unknown => "thing",
        ObjectKind::Volume => "volume",
        ObjectKind::Sdc => "SDC",
        ObjectKind::Sds => "server",
        ObjectKind::Domain => "protection domain",
        ObjectKind::FaultSet => "fault set",
        ObjectKind::Pool => "storage pool",
        ObjectKind::System => "system",
    }
}

/// Returns the object's word on the command line.
fn command(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Volume => "volume",
        ObjectKind::Sdc => "sdc",
        ObjectKind::Sds => "sds",
        ObjectKind::Domain => "domain",
        ObjectKind::FaultSet => "fault-set",
        ObjectKind::Pool => "pool",
        ObjectKind::System | ObjectKind::Unknown => "system",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_1_to_31_plain_characters() {
        for good in ["a", "vm-1.disk_0", "0123456789012345678901234567890"] {
            assert_eq!(check_name(good), Ok(()));
        }
        for bad in ["", "01234567890123456789012345678901", "a b", "ä", "a/b", "a\n"] {
            assert!(matches!(check_new_name(bad), Err(Refused::Name(_))), "{bad:?}");
        }
        for odd in ["-", "--yes", ".", ".."] {
            assert_eq!(check_name(odd), Ok(()), "as it may exist");
            assert_eq!(check_new_name(odd), Err(Refused::OddName(odd.into())));
        }
        assert_eq!((check_new_name("..."), check_new_name("a-")), (Ok(()), Ok(())));
    }
}

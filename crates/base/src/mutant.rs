//! Switches that take one protocol rule out, so that the simulator can show that it would notice.
//!
//! Compiled in with the feature `mutants` only (the simulator's builds); elsewhere [`on`] is a
//! constant `false` and leaves no trace in the code.

/// One removed rule of `docs/internals/protocol.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
#[repr(u32)]
pub enum Mutant {
    /// R1: the primary acks when its own copy is durable and the peer merely seems down.
    AckAlone = 1,
    /// R1: the primary acks before its own copy is durable.
    AckBeforeLocal,
    /// R2: the secondary does not check the epoch of replicated writes.
    ReplicaEpoch,
    /// R2: a restarted replica acts again in the epoch that it acted in before.
    ResumeSameEpoch,
    /// R3: reads are served without a lease.
    NoLease,
    /// R3: reads are not held back behind an overlapping write in flight.
    ReadInFlight,
    /// R3: the primary counts the lease from the grant's arrival, not from the beacon's send.
    LeaseFromGrant,
    /// R3: a restarted secondary does not wait out the leases that it granted before.
    NoRestartGrace,
    /// R4: a promoted secondary acts at once, while its grants to the old primary still run.
    NoGiveUp,
    /// R4: a grant counts although the granter knows a newer map than the primary.
    GrantOldMap,
    /// R4: the MDM promotes a replica outside the in-sync set.
    PromoteAny,
    /// R4: the MDM changes a group without comparing the epoch.
    NoCompareAndSwap,
    /// R5: the mark of an uncertain write is lost in a restart.
    VolatileDirty,
    /// R5: what the survivor wrote alone is not recorded.
    NoSoloDirty,
    /// R5: a write's marks are not in its record.
    NoMarks,
    /// R5: a write is called clean before every member has it.
    EagerClean,
    /// R6: a new epoch starts active, without settling.
    NoSettle,
    /// R6: settling forgets the secondary's own uncertain writes.
    IgnorePeerDirty,
    /// R6: of several members one is told that it is equal before the next one is asked.
    SealOneByOne,
    /// R7: the target answers a flush or a FUA write before the write is durable.
    AckBeforeReply,
    /// R8: an I/O of an older session is executed.
    NoSession,
    /// R8: an I/O of an older epoch is executed.
    NoClientEpoch,
    /// R8: a retry of an executed write is executed again.
    NoDedupe,
    /// R9: units of a deleted volume stay on a node that was away.
    NoLiveList,
    /// R9: a discard is not replicated.
    LocalTrim,
    /// R10: when no in-sync replica is left, the group starts again empty.
    ReviveEmpty,
    /// R10: who loses one of its two copies in sync is taken for lost.
    LoseWhole,
    /// R11: the joiner's own uncertain writes are not overwritten.
    IgnoreJoinerDirty,
    /// R11: the primary acks without the joiner although it has asked for its admission.
    NoLimbo,
    /// R11: admission is asked for although a copy or a write has not reached the joiner.
    NoDrain,
    /// R11: a copy does not hold back the writes of its range.
    CopyUnlocked,
    /// R11: a returning replica that was away for more than the survivor remembers gets only the delta.
    IgnoreBase,
    /// R13: damaged blocks are read from another copy and not written anew.
    NoRewrite,
    /// R13: a write that was damaged before all have it is mended with what was there before it, and not done over.
    NoWriteOver,
    /// R13: blocks that nobody can read are copied to a joiner as zeros.
    LossAsZeros,
    /// R13: two reads that met the same damage mend it at once.
    MendShared,
    /// R15: the first write to a place does not wait until the other copy has space for it.
    ActBeforeReserve,
    /// Not a rule: a frame's body is not checked.
    NoBodyCheck,
    /// R13: the scrubber of a secondary does not tell of damage.
    ScrubLeaders,
    /// R15: a write for which there is no space is never asked again.
    ForgetHeld,
    /// R15: a write for which there is no space is answered as if it were done.
    AckFull,
    /// R15: what is kept for copies that replace lost ones is given to thin volumes.
    SpendSpare,
    /// Store: a job is answered before its record is durable.
    LogUnflushed,
    /// Store: a job is answered before its data is durable.
    DataUnflushed,
    /// Store: a flush that failed counts as done.
    BelieveFlush,
    /// Store: a superblock is written before what it points to is durable.
    EagerSuperblock,
    /// Store: log space is used again before the checkpoint that covers it is durable.
    EagerTail,
    /// Store: a checkpoint keeps its pace although there is no room in the log.
    NoHurry,
    /// Store: a checkpoint begins while the map still has what an older record gave back.
    MidSweep,
    /// Store: recovery forgets that blocks were zeroed.
    StaleValid,
    /// Store: a body is written whatever its own checksum says.
    BlessBody,
    /// Store: what is read is not compared with its checksum.
    NoSumCheck,
    /// Store: recovery takes a batch of the log without looking at its checksum and its chain.
    TornTail,
    /// Store: a slot is used again before the record that frees it is durable.
    EagerReuse,
    /// Store: recovery takes a write to fresh space without looking at the data.
    NoDataCheck,
    /// Store: a superblock counts whatever its checksum says.
    NoSuperblockCheck,
    /// Store: a device that is shorter than it was is mounted.
    MountShrunk,
    /// Store: superblocks count where they would be if the device had always had its present size.
    PresentSize,
    /// Store: the numbers between two extents of a device that grew are given away as slots.
    GrownGap,
    /// Not a rule: the MDM takes a device for the one that was in its place, whatever is written on it.
    StrangeDevice,
    /// R8: a client that a volume is not mapped to is served.
    ServeUnmapped,
    /// R8: I/O of an earlier mapping is done as if it were of the present one.
    ReuseGeneration,
    /// Placement: a fault set counts as so many fault units as it has servers.
    IgnoreFaultSets,
    /// Placement: each device of a server counts as a fault unit.
    DeviceIsUnit,
    /// Placement: a new volume gets groups on devices of any pool.
    PlaceAnywhere,
    /// Placement: the healer takes devices of any pool.
    HealAnywhere,
    /// Placement: only the first pool is levelled.
    LevelFirstPool,
    /// R11: who may be removed is judged by the fault units of all pools together.
    CountAllPools,
    /// R8: unmapping is answered before every primary knows of it.
    UnmapBlindly,
    /// R4: the MDM gives a group other replicas without comparing the epoch. (In the MDM's own tests.)
    MoveBlindly,
    /// R11: a replica that leaves is dropped before the one in its place is in sync.
    DropEarly,
    /// R4: a replica is dropped while it may still serve by an older map.
    PartAtOnce,
    /// R11: a newcomer counts as in sync without a copy.
    AdmitUncopied,
    /// R11: a device wipes what it has of a group while it is a replica out of sync.
    WipeReplica,
    /// R11: a device that is no replica any more keeps what it had.
    KeepForeign,
    /// R11: the two copies of a group may come to lie on one server.
    OneFaultUnit,
    /// R12: what a server in maintenance misses is made anew elsewhere.
    RebuildMaintained,
    /// R11: who is in sync takes copies that go to a joiner alone for a gap in its stream.
    OneStream,
    /// R11: clients wait for a joiner whose device hangs.
    AwaitJoiner,
    /// R11: a joiner takes a new stream although it has not written what it got before.
    AnswerAtOnce,
    /// R4: a refused dial proves a death also where it has refused dials while it was heard.
    RefusalProves,
    /// R12: who is silent for `suspect_after` is gone, whether its host answers or not. (In a test of the simulator's.)
    StopIsLoss,
    /// R12: one who finds another one slow is believed, whoever it is.
    TrustOneWord,
    /// R12: who reaches nobody but the MDM is believed when it says that others are gone.
    BelieveAccuser,
    /// R12: nobody is too slow.
    BearSlow,
    /// R12: who was held out once is never let in again.
    HoldForEver,
    /// Mdm: a vote is sent before it is durable.
    MdmVoteUnwritten,
    /// Mdm: entries are said to be there before they are durable.
    MdmEntryUnwritten,
    /// Mdm: an answer leaves before what it tells is committed.
    MdmAnswerEarly,
    /// Mdm: a leader that has lost its office goes on with what it had begun.
    MdmStaleState,
    /// Mdm: a leader answers questions without asking the others whether it still leads.
    MdmStaleAnswer,
    /// R4: servers don't tell each other of newer maps. (In a test of the simulator's.)
    HoardMaps,
    /// Mdm: what a start reads is taken for durable, though it may be in the page cache only.
    MdmTrustCache,
    /// R16: what was asked for an NBD connection that is gone is asked again.
    OrphansLive,
    /// Pace: copies that give way to clients wait until no client asks for anything.
    NoFloor,
    /// Pace: a copy that has to wait where it comes to is forgotten.
    ForgetArrival,
    /// R8: the list of executed writes grows for ever.
    EndlessList,
    /// R8: what was dropped from a full list of executed writes is taken for never executed.
    ForgetSilently,
    /// R5: a secondary remembers what every member has as uncertain.
    KeepUncertain,
    /// R8: an SDS that has restarted lets in a life of a client that a newer one has replaced, whatever map and data say.
    OldLife,
    /// Placement: groups are levelled by their number, whatever they hold. (In the MDM's own tests.)
    LevelByNumber,
    /// Placement: what has to move goes where there is room, and is levelled afterwards. (In the MDM's own tests.)
    HouseAnywhere,
    /// Mdm: verdicts on a server's devices don't wait for each other. (In the simulator's scale test.)
    JudgeAlone,
    /// R8: a hello is believed whose life no map has named, and the map that it says to have.
    BelieveHello,
    /// R8: blocks that a sync has overwritten stay in the list of executed writes.
    KeepList,
    /// Recovery: it ends when it begins, before anybody was heard.
    CloseUnheard,
    /// Recovery: what devices tell of epochs in which they took part is not looked at.
    IgnoreActed,
    /// Recovery: the map doesn't tell of ids that lost MDMs may have given to volumes.
    DropUnknown,
    /// Recovery: what was lost is settled as lost, before anybody is heard.
    SettleLost,
    /// R8: what was forgotten in one group counts as forgotten in all groups of the device.
    ForgetEverywhere,
    /// R6: a leader that mends itself in a settle doesn't remember that others may lack what it
    /// got. (In the mirror's own tests.)
    MendUnmarked,
    /// Links: a hello that names another cluster is believed.
    AnyCluster,
    /// Links: a hello that means another device is believed.
    AnyDevice,
    /// Mdm: a device counts as what it says it is, although it had more in its log before.
    BelieveSetBack,
    /// Recovery: a group waits for a person although it is known who has everything.
    StayStuck,
    /// Recovery: which clients may use a volume is not taken from the newest map of a server.
    ForgetMapping,
    /// R8: an unmapping is answered before any server can have confirmed it.
    ConfirmNothing,
    /// R11: lost copies are made anew much later than `rebuild_after` says.
    RebuildLate,
    /// R11: nothing moves off servers that are to be removed while any group is lost.
    ClearUnlost,
    /// Links: a body of any length is taken.
    NoFrameLimit,
    /// Links: any number of strangers may be there.
    EndlessStrangers,
    /// R8: what waits at an NBD connection when the volume is mapped otherwise is asked for under the new leave.
    KeepLeave,
    /// R4: what a newer life of a server knows is taken for what the older one knows.
    OneLife,
    /// R4: a newer life of a server proves that the older one is dead, wherever it was started.
    NewerIsDead,
    /// A recovery takes an older disk for the one that replaced it.
    OldDisk,
    /// A recovery drops what a server's map said when the server restarts. (In the MDM's tests.)
    ForgetMaps,
    /// A recovery does not store which disks it waits for.
    ForgetDisks,
    /// A group left in doubt by an earlier recovery hides older disks. (In the MDM's tests.)
    DoubtHidesDisks,
    /// After a recovery an older process takes the place of a newer one.
    EarlierLife,
    /// Links: a far end that takes a connection and never answers is waited for for ever.
    AwaitMute,
    /// Mirror: what is under way to a member has no bound.
    NoWindow,
    /// Mirror: operations of clients have no bound.
    EndlessLoad,
    /// R12: any number of servers is declared lost by silence. (In the simulator's `cut_off` test.)
    NoLossLimit,
    /// R3: who grants a lease keeps its promise for no longer than the lease. (In the simulator's test of clocks.)
    NoMargin,
    /// Mdm: a write of the log that failed counts as done.
    MdmBelieveDisk,
}

impl Mutant {
    /// Those that `store`'s own tests hunt (crates/store/tests).
    pub const STORE: &[Mutant] = &[
        Mutant::LogUnflushed,
        Mutant::DataUnflushed,
        Mutant::EagerSuperblock,
        Mutant::EagerTail,
        Mutant::NoHurry,
        Mutant::MidSweep,
        Mutant::StaleValid,
        Mutant::BlessBody,
        Mutant::NoSumCheck,
        Mutant::TornTail,
        Mutant::EagerReuse,
        Mutant::NoDataCheck,
        Mutant::PresentSize,
        Mutant::GrownGap,
    ];

    /// Those that `mirror`'s own tests hunt (crates/mirror/tests): no plan meets all that they
    /// need.
    pub const MIRROR: &[Mutant] = &[Mutant::MendUnmarked, Mutant::AnswerAtOnce];

    /// Those that the simulator hunts. Of the store's, a run is too short for two.
    pub const ALL: &[Mutant] = &[
        Mutant::AckAlone,
        Mutant::AckBeforeLocal,
        Mutant::ReplicaEpoch,
        Mutant::ResumeSameEpoch,
        Mutant::NoLease,
        Mutant::ReadInFlight,
        Mutant::LeaseFromGrant,
        Mutant::NoRestartGrace,
        Mutant::NoGiveUp,
        Mutant::GrantOldMap,
        Mutant::PromoteAny,
        Mutant::NoCompareAndSwap,
        Mutant::VolatileDirty,
        Mutant::NoSoloDirty,
        Mutant::NoMarks,
        Mutant::EagerClean,
        Mutant::NoSettle,
        Mutant::IgnorePeerDirty,
        Mutant::SealOneByOne,
        Mutant::AckBeforeReply,
        Mutant::NoSession,
        Mutant::NoClientEpoch,
        Mutant::NoDedupe,
        Mutant::NoLiveList,
        Mutant::LocalTrim,
        Mutant::ReviveEmpty,
        Mutant::LoseWhole,
        Mutant::IgnoreJoinerDirty,
        Mutant::NoLimbo,
        Mutant::NoDrain,
        Mutant::CopyUnlocked,
        Mutant::IgnoreBase,
        Mutant::NoRewrite,
        Mutant::NoWriteOver,
        Mutant::LossAsZeros,
        Mutant::MendShared,
        Mutant::ActBeforeReserve,
        Mutant::LogUnflushed,
        Mutant::DataUnflushed,
        Mutant::BelieveFlush,
        Mutant::EagerSuperblock,
        Mutant::StaleValid,
        Mutant::NoSumCheck,
        Mutant::TornTail,
        Mutant::NoDataCheck,
        Mutant::NoSuperblockCheck,
        Mutant::MountShrunk,
        Mutant::GrownGap,
        Mutant::StrangeDevice,
        Mutant::NoBodyCheck,
        Mutant::ScrubLeaders,
        Mutant::ForgetHeld,
        Mutant::AckFull,
        Mutant::SpendSpare,
        Mutant::DropEarly,
        Mutant::PartAtOnce,
        Mutant::AdmitUncopied,
        Mutant::WipeReplica,
        Mutant::KeepForeign,
        Mutant::RebuildMaintained,
        Mutant::OneStream,
        Mutant::AwaitJoiner,
        Mutant::TrustOneWord,
        Mutant::BelieveAccuser,
        Mutant::BearSlow,
        Mutant::HoldForEver,
        Mutant::MdmVoteUnwritten,
        Mutant::MdmEntryUnwritten,
        Mutant::MdmAnswerEarly,
        Mutant::MdmStaleState,
        Mutant::MdmStaleAnswer,
        Mutant::MdmTrustCache,
        Mutant::ServeUnmapped,
        Mutant::ReuseGeneration,
        Mutant::UnmapBlindly,
        Mutant::IgnoreFaultSets,
        Mutant::DeviceIsUnit,
        Mutant::PlaceAnywhere,
        Mutant::HealAnywhere,
        Mutant::LevelFirstPool,
        Mutant::CountAllPools,
        Mutant::OneFaultUnit,
        Mutant::OrphansLive,
        Mutant::NoFloor,
        Mutant::ForgetArrival,
        Mutant::BelieveHello,
        Mutant::EndlessList,
        Mutant::ForgetSilently,
        Mutant::ForgetEverywhere,
        Mutant::KeepList,
        Mutant::KeepUncertain,
        Mutant::OldLife,
        Mutant::RefusalProves,
        Mutant::CloseUnheard,
        Mutant::IgnoreActed,
        Mutant::DropUnknown,
        Mutant::SettleLost,
        Mutant::AnyCluster,
        Mutant::AnyDevice,
        Mutant::BelieveSetBack,
        Mutant::StayStuck,
        Mutant::ForgetMapping,
        Mutant::ConfirmNothing,
        Mutant::RebuildLate,
        Mutant::ClearUnlost,
        Mutant::NoFrameLimit,
        Mutant::EndlessStrangers,
        Mutant::KeepLeave,
        Mutant::OneLife,
        Mutant::NewerIsDead,
        Mutant::OldDisk,
        Mutant::ForgetDisks,
        Mutant::EarlierLife,
        Mutant::AwaitMute,
        Mutant::NoWindow,
        Mutant::EndlessLoad,
        Mutant::MdmBelieveDisk,
    ];
}

/// True when this mutant is switched on. A constant `false` without the feature `mutants`.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn on(_: Mutant) -> bool {
    false
}

#[cfg(feature = "mutants")]
static CHOSEN: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// True when this mutant is switched on.
#[cfg(feature = "mutants")]
pub fn on(m: Mutant) -> bool {
    CHOSEN.load(core::sync::atomic::Ordering::Relaxed) == m as u32
}

/// Switches one mutant on, for the whole process; `None` switches all off.
#[cfg(feature = "mutants")]
pub fn choose(m: Option<Mutant>) {
    CHOSEN.store(m.map_or(0, |m| m as u32), core::sync::atomic::Ordering::Relaxed);
}

//! Switches that each remove one protocol rule, to prove that the simulator would notice.
//!
//! They are compiled in only with the feature `mutants` (the simulator's builds). Otherwise [`on`]
//! is a constant `false` and leaves no trace in the code.

/// One removed rule of `docs/internals/rules.md`, or one safeguard that is no rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
#[repr(u32)]
pub enum Mutant {
    /// R1: the primary acknowledges after its own write alone when the peer merely seems down.
    AckAlone = 1,
    /// R1: the primary acknowledges before its own copy is durable.
    AckBeforeLocal,
    /// R2: the secondary does not check the epoch of replicated writes.
    ReplicaEpoch,
    /// R2: a restarted replica acts again in the epoch that it acted in before the restart.
    ResumeSameEpoch,
    /// R3: reads are served without a lease.
    NoLease,
    /// R3: reads do not wait for an overlapping write in flight.
    ReadInFlight,
    /// R3: the primary counts the lease from the grant's arrival, not from the beacon's sending.
    LeaseFromGrant,
    /// R3: a restarted secondary does not wait out the leases that it granted before.
    NoRestartGrace,
    /// R4: a promoted secondary acts at once, while its grants to the old primary still run.
    NoGiveUp,
    /// R4: a grant counts even if the granter knows a newer map than the primary.
    GrantOldMap,
    /// R4: the MDM promotes a replica outside the in-sync set.
    PromoteAny,
    /// R4: the MDM changes a group without comparing the epoch.
    NoCompareAndSwap,
    /// R5: the dirty set is lost in a restart.
    VolatileDirty,
    /// R5: the survivor does not record what it writes alone.
    NoSoloDirty,
    /// R5: the record of a write does not include the write's metadata.
    NoMarks,
    /// R5: a write is reported clean before every replica has it.
    EagerClean,
    /// R6: a settle leaves out the blocks that the primary itself knows to be dirty.
    IgnoreOwnDirty,
    /// R6: settling forgets the secondary's own uncertain writes.
    IgnorePeerDirty,
    /// R6: the secondaries are sealed before each of them has told its state.
    SealEarly,
    /// R6: a secondary is sealed as soon as it has everything, although another one lacks copies.
    SealOneByOne,
    /// R7: a client answers a write, also one with FUA, before any server has answered it.
    AckBeforeReply,
    /// R8: an I/O of an older session is executed.
    NoSession,
    /// R8: an I/O of an older epoch is executed.
    NoClientEpoch,
    /// R8: a retry of an executed write is executed a second time.
    NoDedupe,
    /// R9: units of a deleted volume stay on a node that was away.
    NoLiveList,
    /// R9: a discard has no effect at a secondary.
    LocalTrim,
    /// R10: when no in-sync replica is left, the group starts again with empty replicas.
    ReviveEmpty,
    /// R10: a group that loses one of its two copies in sync is given up as lost.
    LoseWhole,
    /// R11: the joiner's own uncertain writes are not overwritten.
    IgnoreJoinerDirty,
    /// R11: the primary acknowledges without the joiner after it has requested its admission.
    NoLimbo,
    /// R11: admission is requested although a copy or a write has not reached the joiner.
    NoDrain,
    /// R11: a copy does not hold back writes to its range.
    CopyUnlocked,
    /// R11: a replica that was away for longer than the survivor remembers gets only the delta.
    IgnoreBase,
    /// R13: damaged blocks are read from another copy and not rewritten.
    NoRewrite,
    /// R13: a write damaged before all replicas have it is repaired with older content, not redone.
    NoWriteOver,
    /// R13: blocks without any readable copy are copied to a joiner as zeros.
    LossAsZeros,
    /// R13: two reads that find the same damage repair it at the same time.
    MendShared,
    /// R15: the first write to a unit does not wait until the other replica has space for it.
    ActBeforeReserve,
    /// Not a rule: a frame's body is not checked.
    NoBodyCheck,
    /// R13: the scrubber of a secondary does not report damage.
    ScrubLeaders,
    /// R15: a write that found no space is never retried.
    ForgetHeld,
    /// R15: a write that found no space is acknowledged.
    AckFull,
    /// R15: thin volumes may use the space that is reserved for rebuilding lost copies.
    SpendSpare,
    /// Store: a job is answered before its record is durable.
    LogUnflushed,
    /// Store: a job is answered before its data is durable.
    DataUnflushed,
    /// Store: a failed flush counts as done.
    BelieveFlush,
    /// Store: log space is reused before the checkpoint that covers it is durable.
    EagerTail,
    /// Store: a checkpoint does not speed up when the log runs out of space.
    NoHurry,
    /// Store: a checkpoint begins before the map has freed slots that an older record released.
    MidSweep,
    /// Store: recovery forgets that blocks were zeroed.
    StaleValid,
    /// Store: a body is written even if it does not match its own checksum.
    BlessBody,
    /// Store: data that is read is not compared with its checksum.
    NoSumCheck,
    /// Store: recovery accepts a batch of the log without checking its checksum and its chain.
    TornTail,
    /// Store: recovery accepts a write to fresh space without checking the data.
    NoDataCheck,
    /// Store: a superblock counts even if its checksum does not match.
    NoSuperblockCheck,
    /// Store: a device that has become shorter is mounted.
    MountShrunk,
    /// Store: superblocks are expected where they would be if the device had never grown.
    PresentSize,
    /// Store: slot numbers in the gap between two extents of a grown device are allocated.
    GrownGap,
    /// Not a rule: the MDM identifies a device by its place and ignores the id written on it.
    StrangeDevice,
    /// R8: a client is served although the volume is not mapped to it.
    ServeUnmapped,
    /// R8: I/O of an earlier mapping is executed as if it belonged to the present one.
    ReuseGeneration,
    /// Placement: a fault set counts as one fault unit per server.
    IgnoreFaultSets,
    /// Placement: each device of a server counts as a fault unit of its own.
    DeviceIsUnit,
    /// Placement: groups of a new volume are placed on devices of any pool.
    PlaceAnywhere,
    /// Placement: the healer uses devices of any pool.
    HealAnywhere,
    /// Placement: only the first pool is rebalanced.
    LevelFirstPool,
    /// R11: a removal is allowed by the number of fault units in all pools together.
    CountAllPools,
    /// R8: an unmap is answered before every primary knows of it.
    UnmapBlindly,
    /// R8: what the newer process of a device confirms counts for the older one as well. (The
    /// tests of `node`.)
    NewerConfirms,
    /// R4: the MDM changes a group's replicas without comparing the epoch. (The MDM's tests.)
    MoveBlindly,
    /// R11: a leaving replica is dropped before its replacement is in sync.
    DropEarly,
    /// R4: a replica is dropped while it may still serve under an older map.
    DropAtOnce,
    /// R11: a new replica counts as in sync without a copy.
    AdmitUncopied,
    /// R11: a device wipes its data of a group while it is a replica out of sync.
    WipeReplica,
    /// R11: a device keeps its data of a group after it left the group.
    KeepForeign,
    /// R11: both copies of a group may be placed on one server.
    OneFaultUnit,
    /// R12: data of a server in maintenance is rebuilt elsewhere.
    RebuildMaintained,
    /// R11: a secondary takes operations that go only to a joiner for a gap in its own stream.
    OneStream,
    /// R11: clients wait without limit for a joiner whose device hangs.
    AwaitJoiner,
    /// R11: a joiner whose device hangs is cut off in one group after the other.
    StallInTurn,
    /// R11: a joiner accepts a new stream before it has written everything that it got earlier.
    AnswerAtOnce,
    /// R11: a joiner accepts a new stream before its earlier seal is durable.
    AnswerInSeal,
    /// R4: a refused dial proves a death even at an address that refuses dials of a live server.
    RefusalProves,
    /// R12: silence means loss after `suspect_after` even if the host answers. (A test of `sim`.)
    StopIsLoss,
    /// R12: one device's report is enough to treat another device as slow.
    TrustOneWord,
    /// R12: a server that reaches only the MDM is believed when it reports others as unreachable.
    BelieveAccuser,
    /// R12: no device counts as slow.
    KeepSlow,
    /// R12: a device that was quarantined once is never admitted again.
    QuarantineForever,
    /// Mdm: a vote is sent before it is durable.
    MdmVoteUnwritten,
    /// Mdm: log entries are acknowledged before they are durable.
    MdmEntryUnwritten,
    /// Mdm: an answer is sent before the state that it reports is committed.
    MdmAnswerEarly,
    /// Mdm: a leader that lost the leadership finishes what it had begun.
    MdmStaleState,
    /// Mdm: a leader answers queries without confirming with the others that it still leads.
    MdmStaleAnswer,
    /// R4: servers do not pass newer maps on to each other. (A test of `sim`.)
    HoardMaps,
    /// Mdm: data read at a start counts as durable, though it may only be in the page cache.
    MdmTrustCache,
    /// R16: requests of an NBD connection that is gone are sent again.
    OrphansLive,
    /// Pace: copies that yield to clients wait until no client is active.
    NoFloor,
    /// Pace: copies that arrive at their target device are forgotten before they begin.
    ForgetArrival,
    /// R8: the list of executed writes grows without limit.
    EndlessList,
    /// R8: a retry of a write that was dropped from a full executed list is executed again.
    ForgetSilently,
    /// R5: a secondary keeps writes below the commit point as uncertain.
    KeepUncertain,
    /// R8: a restarted SDS admits a client's incarnation that a newer one has replaced.
    OldIncarnation,
    /// Placement: groups are balanced by their number, not by their size. (The MDM's tests.)
    LevelByNumber,
    /// Placement: a group that has to move goes anywhere, and is balanced later. (The MDM's tests.)
    HouseAnywhere,
    /// Mdm: verdicts on the devices of one server are not batched. (The scale test of `sim`.)
    JudgeAlone,
    /// R8: a hello is believed although no map has named its incarnation.
    BelieveHello,
    /// R8: blocks that a sync has overwritten stay in the list of executed writes.
    KeepList,
    /// Recovery: it ends at once, before any server has reported.
    CloseUnheard,
    /// Recovery: the map of an MDM in doubt counts as evidence that a device was not emptied.
    BelieveDoubtful,
    /// Recovery: the epochs in which devices took part are ignored.
    IgnoreActed,
    /// Recovery: the map does not list the ids that lost MDMs may have assigned to volumes.
    DropUnknown,
    /// Recovery: a lost group is settled as lost before any server has reported.
    SettleLost,
    /// R8: writes forgotten in one group count as forgotten in all groups of the device.
    ForgetEverywhere,
    /// R6: a primary that repairs itself in a settle marks no block dirty. (The mirror's tests.)
    MendUnmarked,
    /// R8: a retry of which only parts are missing is executed whole.
    RetryWhole,
    /// Links: a hello that names another cluster is believed.
    AnyCluster,
    /// Links: a hello that is meant for another device is believed.
    AnyDevice,
    /// Mdm: a device is accepted although its log has fewer records than before.
    BelieveSetBack,
    /// Recovery: a group waits for the operator although it is known which replica has every write.
    IgnoreReports,
    /// Recovery: mappings of volumes are not taken from the newest map of a server.
    ForgetMapping,
    /// R8: an unmap is answered before any server can have confirmed it.
    ConfirmNothing,
    /// R11: lost copies are rebuilt much later than `rebuild_after`.
    RebuildLate,
    /// R11: nothing moves off servers that are to be removed while any group is lost.
    ClearUnlost,
    /// Links: a frame body of any length is accepted.
    NoFrameLimit,
    /// Links: the number of strangers has no limit.
    EndlessStrangers,
    /// R8: a request waiting at an NBD connection is sent under a mapping newer than its own.
    KeepPermission,
    /// R4: the map version of a newer incarnation of a server also counts for the older one.
    OneIncarnation,
    /// R4: a newer incarnation of a server proves that the older one is dead, wherever it started.
    NewerIsDead,
    /// Recovery: an older disk is taken for the one that replaced it.
    OldDisk,
    /// Recovery: a server's restart drops the report of its map. (The MDM's tests.)
    ForgetMaps,
    /// Recovery: the disks that a recovery waits for are not stored. (The MDM's tests.)
    ForgetDisks,
    /// Recovery: a group left in doubt by an earlier recovery hides older disks. (The MDM's tests.)
    DoubtHidesDisks,
    /// Recovery: afterwards an older process takes the place of a newer one.
    EarlierLife,
    /// Links: a peer that accepts a connection and never answers is waited for without limit.
    AwaitMute,
    /// Mirror: the data in flight to a replica has no limit.
    NoWindow,
    /// Mirror: the operations of clients have no limit.
    EndlessLoad,
    /// R12: silence alone declares any number of servers lost. (The `cut_off` test of `sim`.)
    NoLossLimit,
    /// R3: a granter is bound for no longer than the lease. (The `clocks` test of `sim`.)
    NoMargin,
    /// Mdm: a failed write of the log counts as done.
    MdmBelieveDisk,
    /// R12: silence means loss only after four times `suspect_after`.
    SuspectLate,
    /// R4: a refused dial proves nothing, so that a crash is noticed by its silence.
    IgnoreRefusal,
    /// Links: a client serves nothing while it has no link to an MDM.
    NeedMdm,
    /// Versions: a hello goes out in a frame of the newest version that its sender speaks.
    NewestHello,
    /// Versions: the dialling side speaks its newest version, whatever the welcome says.
    IgnoreWelcome,
    /// Versions: a field is used in a cluster of a lower level than the field's. I15 notices the
    /// first state that has the field. Without I15, an MDM would end later, as no build reads the
    /// state again.
    UseEarly,
    /// Versions: a snapshot of a higher level, or with unknown fields, is read.
    AnySnapshot,
    /// Versions: the level rises although a server that is up does not know it.
    RaiseOver,
    /// Versions: the level that lost MDMs had raised stays forgotten after a recovery.
    ForgetLevel,
    /// Links: a header is accepted with any unused bytes, flags and version, and with a body that
    /// its kind does not have.
    AnyHeader,
    /// R12: a primary never proposes to drop a replica that leaves its beacons unanswered.
    SuspectNobody,
    /// R12: a primary that was paused counts answers that it has not read yet as silence.
    ForgetPause,
    /// R4: a refused dial proves the death of the incarnation that is registered now, which may be
    /// at another address. (The MDM's tests.)
    BelieveAddress,
    /// Not a rule: a device is admitted although it also serves elsewhere, so that one of the two
    /// is a copy.
    TakeCopy,
    /// Mdm: the record of another MDM, with its secret, stays when that one is removed.
    KeepContacts,
    /// Mdm: a dial that ended while the MDM began anew with an empty log is waited for.
    AwaitDial,
    /// Links: a server counts as refusing dials until it is connected.
    KeepRefusal,
    /// R12: a broken path counts only as long as a primary reports it.
    ForgetBrokenPath,
    /// R11: the healer levels over paths that are known to be broken.
    LevelBlindly,
    /// R13: blocks that another copy can't read either are not read from a third one.
    IgnoreThird,
    /// R8: a read that waits holds back the floor of its client.
    ReadsHoldFloor,
    /// R8: a client goes on although the MDM says that a newer process has its name.
    IgnoreSuccessor,
    /// Links: an MDM that knows less than this process is followed.
    FollowSetBack,
    /// Store: a failed write counts as done.
    BelieveWrite,
    /// R17: others may use the range between a comparison and its write. (The mirror's tests.)
    CompareUnlocked,
    /// R17: a comparison needs no lease.
    CompareUnleased,
    /// R17: a retry of a compare-and-write that was executed compares again.
    CompareAgain,
    /// R17: a retry of a compare-and-write that was not executed writes without a comparison.
    CompareOnce,
    /// R18: slots are taken again while their space is being given back.
    HoleUnawaited,
    /// R8: a request of a permission that has ended gets the generation of the present one. (The
    /// mirror's tests.)
    RenewEnded,
    /// R8: a change of reservations that is known by its number is done again. (The MDM's tests.)
    ReserveAgain,
    /// R8: a change of reservations is answered before every primary knows of it.
    ReserveBlindly,
    /// R8: a request of a host that has lost its access gets the generation of the new map. (The
    /// tests of `node`.)
    RenewReserved,
    /// R8: a request of a host that lost its access, and has it again by the first map that its
    /// client sees, gets the generation of that map. (The tests of `node`.)
    RenewPreempted,
    /// R16: requests that a program has withdrawn are carried out nevertheless.
    KeepWithdrawn,
    /// R7: a device that fails its probe is not refused. (A test of `fleet`.)
    TrustLiars,
    /// R10: an accepted loss is carried out on a group that is served, or has another epoch. (The
    /// MDM's tests.)
    AcceptServed,
    /// R10: data whose loss was accepted as errors is served as zeros. (The MDM's tests.)
    ErrorsAsZeros,
    /// I7: a slot that holds no data any more stays taken. (The store's tests.)
    KeepEmpty,
    /// Recovery: what servers' maps tell of groups that stay in doubt does not become part of the
    /// state. (The MDM's tests.)
    ForgetDoubts,
    /// Recovery: maps name an older disk that came back instead of the content that groups in doubt
    /// wait for. (The MDM's tests.)
    NameOlderDisk,
    /// Recovery: a device is removed although it may have the newest copy of a group in doubt. (The
    /// MDM's tests.)
    RemoveWitness,
    /// Recovery: a server that has reported to the MDM takes the map of an earlier recovery from
    /// another server. (The tests of `node`.)
    TakeEarlier,
    /// Recovery: the state's configuration of a group counts although a replica has a newer content
    /// by now, and this content took no part in the group.
    BelieveNewer,
    /// Recovery: which volumes the lost MDMs have deleted is not stored.
    ForgetDeletions,
    /// A client that has heard of a loss never asks whether the group is served again.
    KeepLost,
    /// Store: recovery takes damage for a write that was torn although a later batch of the log
    /// names its record.
    ForgetNamed,
    /// R19: a seat moves, and servers still accept what the host has sent through its former
    /// gateway.
    MoveUnfenced,
    /// R19: a seat is confirmed before every primary knows that it has moved. (The tests of
    /// `node`.)
    SeatBlindly,
    /// R19: a gateway executes requests of a host without a confirmed seat. (The tests of `node`.)
    ServeUnseated,
    /// R19: a request of a host that has lost its seat gets the generation of the new map. (The
    /// tests of `node`.)
    RenewUnseated,
    /// R19: a host that loses its permission keeps its seat.
    KeepSeats,
    /// R19: a gateway serves hosts to which the volume is not mapped.
    ServeStrangers,
    /// R16: the I/O queues of an NVMe controller stay when the link of its admin queue is gone.
    QueuesLive,
}

impl Mutant {
    /// The mutants that the tests of `store` have to catch (`crates/store/tests`).
    pub const STORE: &[Mutant] = &[
        Mutant::LogUnflushed,
        Mutant::DataUnflushed,
        Mutant::EagerTail,
        Mutant::NoHurry,
        Mutant::MidSweep,
        Mutant::StaleValid,
        Mutant::BlessBody,
        Mutant::NoSumCheck,
        Mutant::TornTail,
        Mutant::NoDataCheck,
        Mutant::PresentSize,
        Mutant::GrownGap,
        Mutant::BelieveWrite,
        Mutant::HoleUnawaited,
        Mutant::KeepEmpty,
        Mutant::ForgetNamed,
    ];

    /// The mutants that the tests of `mirror` have to catch (`crates/mirror/tests`): no plan of the
    /// simulator creates the situations in which they matter, or too few do.
    pub const MIRROR: &[Mutant] = &[
        Mutant::MendUnmarked,
        Mutant::AnswerAtOnce,
        Mutant::AnswerInSeal,
        Mutant::RetryWhole,
        Mutant::NewerIsDead,
        Mutant::ForgetPause,
        Mutant::IgnoreThird,
        Mutant::SealOneByOne,
        Mutant::ReadsHoldFloor,
        Mutant::CompareUnlocked,
        Mutant::CompareUnleased,
        Mutant::CompareAgain,
        Mutant::CompareOnce,
        Mutant::RenewEnded,
    ];

    /// The mutants that the tests of `node` have to catch (`crates/node/tests`): the simulator does
    /// not create the situations in which they matter, or no judge of it sees their effect. (Plans
    /// of the simulator catch `ReserveBlindly` and `ServeStrangers`, too.)
    pub const NODE: &[Mutant] = &[
        Mutant::AnyHeader,
        Mutant::NewerConfirms,
        Mutant::KeepContacts,
        Mutant::AwaitDial,
        Mutant::KeepRefusal,
        Mutant::IgnoreSuccessor,
        Mutant::FollowSetBack,
        Mutant::ReserveBlindly,
        Mutant::RenewReserved,
        Mutant::RenewPreempted,
        Mutant::TakeEarlier,
        Mutant::SeatBlindly,
        Mutant::ServeUnseated,
        Mutant::RenewUnseated,
        Mutant::ServeStrangers,
    ];

    /// The mutants that the simulator has to catch by seeds or plans. Eight of `STORE` are not
    /// among them, nor those that only a test of `crates/sim/tests` catches.
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
        Mutant::IgnoreOwnDirty,
        Mutant::IgnorePeerDirty,
        Mutant::SealEarly,
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
        Mutant::DropAtOnce,
        Mutant::AdmitUncopied,
        Mutant::WipeReplica,
        Mutant::KeepForeign,
        Mutant::RebuildMaintained,
        Mutant::OneStream,
        Mutant::AwaitJoiner,
        Mutant::StallInTurn,
        Mutant::TrustOneWord,
        Mutant::BelieveAccuser,
        Mutant::KeepSlow,
        Mutant::QuarantineForever,
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
        Mutant::OldIncarnation,
        Mutant::RefusalProves,
        Mutant::CloseUnheard,
        Mutant::BelieveDoubtful,
        Mutant::IgnoreActed,
        Mutant::DropUnknown,
        Mutant::SettleLost,
        Mutant::SuspectLate,
        Mutant::IgnoreRefusal,
        Mutant::NeedMdm,
        Mutant::AnyCluster,
        Mutant::AnyDevice,
        Mutant::BelieveSetBack,
        Mutant::IgnoreReports,
        Mutant::ForgetMapping,
        Mutant::ConfirmNothing,
        Mutant::RebuildLate,
        Mutant::ClearUnlost,
        Mutant::NoFrameLimit,
        Mutant::EndlessStrangers,
        Mutant::KeepPermission,
        Mutant::OneIncarnation,
        Mutant::OldDisk,
        Mutant::EarlierLife,
        Mutant::NoWindow,
        Mutant::EndlessLoad,
        Mutant::MdmBelieveDisk,
        Mutant::NewestHello,
        Mutant::IgnoreWelcome,
        Mutant::UseEarly,
        Mutant::RaiseOver,
        Mutant::ForgetLevel,
        Mutant::SuspectNobody,
        Mutant::TakeCopy,
        Mutant::ForgetBrokenPath,
        Mutant::LevelBlindly,
        Mutant::HoleUnawaited,
        Mutant::KeepWithdrawn,
        Mutant::ReserveBlindly,
        Mutant::KeepLost,
        Mutant::ForgetDeletions,
        Mutant::BelieveNewer,
        Mutant::ForgetNamed,
        Mutant::QueuesLive,
        Mutant::KeepSeats,
        Mutant::ServeStrangers,
        Mutant::MoveUnfenced,
    ];
}

/// True if this build contains the mutants (feature `mutants`).
pub const PRESENT: bool = cfg!(feature = "mutants");

/// Returns true if this mutant is switched on. A constant `false` without the feature `mutants`.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn on(_: Mutant) -> bool {
    false
}

#[cfg(feature = "mutants")]
static CHOSEN: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// Returns true if this mutant is switched on.
#[cfg(feature = "mutants")]
pub fn on(m: Mutant) -> bool {
    CHOSEN.load(core::sync::atomic::Ordering::Relaxed) == m as u32
}

/// Switches one mutant on for the whole process; `None` switches all off.
///
/// # Panics
/// This build does not contain the mutants.
pub fn choose(m: Option<Mutant>) {
    assert!(PRESENT || m.is_none(), "this build contains no mutants (feature `mutants`)");
    #[cfg(feature = "mutants")]
    CHOSEN.store(m.map_or(0, |m| m as u32), core::sync::atomic::Ordering::Relaxed);
}

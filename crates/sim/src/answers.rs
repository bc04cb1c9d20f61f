//! Judges each answer to a client when it arrives.

use crate::admin::{ALL, Order};
use crate::check::errors::{self, Case, User};
use crate::check::{Failure, i05_content};
use crate::history::{Answer, Record};
use crate::plan::{IoKind, Who};
use crate::stage::{Stage, Volume};
use crate::world::{ProcId, Reply};
use base::{BLOCK, BLOCKS_PER_UNIT, GroupId, SECTOR, UNIT, UnitKey, VolumeId};
use node::sdc::Sdc;
use node::sds::Sds;
use seam::BlockError;
use std::collections::BTreeSet;
use std::ops::Range;
use store::durable::Durable;

const BLOCK_SECTORS: u32 = BLOCK / SECTOR;

impl Stage {
    pub(crate) fn reply(&mut self, reply: Reply) -> Result<(), Failure> {
        let index = reply.id.0 as usize;
        let Some(record) = self.history.ops.get(index) else {
            return Err(Failure::new("requests", format!("{:?} was never asked", reply.id)));
        };
        if record.answer.is_some() {
            return Err(Failure::new("requests", format!("answered twice: {record}")));
        }
        let former = self.is_former(record.client, reply.proc);
        let place = self.proc(Who::Sdc(record.client));
        if record.life != reply.life || !former && place != reply.proc {
            return Err(Failure::new("requests", format!("answered by somebody else: {record}")));
        }
        if !former && !self.programs[record.client as usize].answered(index) {
            self.outstanding[record.client as usize] -= 1;
        }
        self.answered(index, reply.result.as_deref().map_err(|e| *e))
    }

    /// Gives back the place of a host's operation that has ended. The places of a client's former
    /// incarnation are free already.
    pub(crate) fn free_place(&mut self, index: usize) {
        let Record { client, life, .. } = self.history.ops[index];
        if life == self.world.life(self.proc(Who::Sdc(client))) {
            self.outstanding[usize::from(client)] -= 1;
        }
    }

    /// Processes the answer to an operation.
    pub(crate) fn answered(
        &mut self,
        index: usize,
        result: Result<&[u8], BlockError>,
    ) -> Result<(), Failure> {
        let moment = self.history.tick();
        let at = self.world.now();
        let seen = match result {
            Ok(data) => i05_content::seen(&self.history, index, data)?,
            Err(_) => Vec::new(),
        };
        let result = result.map(|_| ());
        // A recovery may bring back a deleted volume, which is empty, and is deleted again.
        let op = &self.history.ops[index];
        if op.answer.is_none() && self.rescue.deleted.contains(&op.volume) {
            self.history.ops[index].left = true;
        }
        if result.is_ok() {
            self.may_use(index)?;
            if self.history.ops[index].kind == IoKind::Swap {
                self.marks.meet("sim: data was compared and written");
            }
        }
        self.error_is_in_order(index, result)?;
        let record = &mut self.history.ops[index];
        record.seen = seen;
        record.answer = Some(Answer { moment, at, result });
        Ok(())
    }

    fn error_is_in_order(
        &mut self,
        index: usize,
        result: Result<(), BlockError>,
    ) -> Result<(), Failure> {
        let Err(error) = result else { return Ok(()) };
        let op = &self.history.ops[index];
        let fine = self.is_in_order(index, error);
        let record = op;
        let text = format!("{error:?} is out of order here: {record}");
        if error == BlockError::Lost {
            self.lost += 1;
        }
        if error == BlockError::Media && self.scanning {
            let blocks = self.blocks(op).into_iter();
            self.unread.extend(blocks.map(|(_, unit, block)| (unit, block)));
        }
        if fine {
            self.marks.meet(match error {
                BlockError::Lost => "sim: a loss was reported",
                BlockError::NoSuchVolume => "sim: no such volume",
                BlockError::OutOfRange => "sim: out of range",
                BlockError::Busy => "sim: busy",
                BlockError::Media => "sim: damage was reported",
                BlockError::Forgotten => "sim: a write was forgotten",
                BlockError::TimedOut => "sim: no answer in time",
                BlockError::Reserved => "sim: a reservation was in the way",
                BlockError::Miscompare(_) => "sim: other data than expected",
                _ => "sim: too big",
            });
            return Ok(());
        }
        let name = if error == BlockError::Lost { "I1" } else { "errors" };
        Err(Failure::new(name, text))
    }

    /// Returns true when the operation may end in this error now.
    pub(crate) fn is_in_order(&self, index: usize, error: BlockError) -> bool {
        let op = &self.history.ops[index];
        let volume = self.volumes.iter().find(|v| v.id == Some(op.volume));
        // A copy was damaged while the other one was away: the error is right where no copy of the
        // block was always whole.
        let excused = self.plan.allow_loss || self.exposure.excuse.is_some();
        let case = Case {
            op,
            lives: volume.is_some_and(|v| !v.doomed),
            scan: self.scanning,
            transfer: self.plan.limits.nbd_payload,
            timed: !self.plan.limits.answer_within.is_zero() || self.is_hosts(index),
            barred: self.is_barred(op),
            reserved: self.may_be_reserved(op.volume),
            elsewhere: self.may_be_elsewhere(index),
            lost: self.exposure.excuse.is_some() && self.is_in_loss(op),
            damaged: self.may_be_damaged(op)
                && (!self.scanning
                    || self.is_lost_twice(op)
                    || excused && self.is_harmed_everywhere(op)),
            superseded: op.life < self.world.life(self.proc(Who::Sdc(op.client))),
            repeated: match op.kind {
                IoKind::Read | IoKind::Extents => false,
                IoKind::Write | IoKind::Swap => self.world.writes.may_be_done(index as u32 + 1),
                IoKind::Zero | IoKind::Discard => true,
            },
        };
        errors::in_order(error, case, &self.denials)
    }

    /// Returns the blocks that an operation touches, with their groups as far as its
    /// client knows them.
    fn blocks(&self, op: &Record) -> Vec<(Option<GroupId>, UnitKey, u32)> {
        let map = self.sdc(op.client).map(Sdc::map);
        let (first, end) = (op.sector / BLOCK_SECTORS, op.sector + op.sectors);
        let block = |b: u32| {
            let unit = UnitKey { volume: op.volume, index: b / BLOCKS_PER_UNIT };
            (map.and_then(|map| map.group_of(unit)), unit, b % BLOCKS_PER_UNIT)
        };
        (first..end.div_ceil(BLOCK_SECTORS)).map(block).collect()
    }

    /// Returns true when the operation touches a group that was lost. In the final scan the group
    /// must be lost still, as all clients know by then whether it is served again.
    fn is_in_loss(&self, op: &Record) -> bool {
        let is_lost = |id: GroupId| self.observer.groups.get(&id).is_none_or(|g| g.lost);
        let counts = |id: GroupId| self.losses.has(id) && (!self.scanning || is_lost(id));
        self.blocks(op).iter().any(|(group, ..)| group.is_none_or(counts))
    }

    /// Records which of these blocks are damaged on a server that can't read them. By the time a
    /// client hears of it, the blocks may have been rewritten elsewhere on the device.
    pub(crate) fn met_damage(
        &mut self,
        id: ProcId,
        group: GroupId,
        unit: UnitKey,
        blocks: Range<u16>,
    ) {
        let Who::Sds(i) = self.who(id) else { return };
        let Some(durable) = self.sds(i).and_then(Sds::device).and_then(|d| d.durable()) else {
            // The server died in the same step, and can't be asked where the blocks are.
            self.harmed.extend(blocks.map(|b| (i, unit, b.into())));
            return;
        };
        let met = |b: &u32| self.is_harmed_at(i, durable, Some(group), unit, *b);
        let met: Vec<u32> = blocks.map(u32::from).filter(met).collect();
        self.harmed.extend(met.into_iter().map(|b| (i, unit, b)));
    }

    /// Returns true when this server can't read a block, or could not at some time.
    fn is_harmed_at(
        &self,
        i: u8,
        durable: &Durable,
        group: Option<GroupId>,
        unit: UnitKey,
        block: u32,
    ) -> bool {
        let disk = self.world.disk_at(self.proc(Who::Sds(i)), seam::DiskId(0));
        let place = group.and_then(|group| durable.place(group, unit, block));
        let data = durable.layout().extents.iter().map(|e| e.slots.at..e.end);
        self.harmed.contains(&(i, unit, block))
            || place.is_some_and(|place| disk.is_or_was_damaged(place))
            || disk.has_failed_outside(&data.collect::<Vec<_>>())
    }

    /// Returns true when a block was damaged on any server, or any server was told that it is lost.
    pub(crate) fn is_harmed(&self, unit: UnitKey, block: u32) -> bool {
        (0..self.plan.sds).any(|i| self.harmed.contains(&(i, unit, block)))
    }

    /// Returns true when the operation touches a block that may be unreadable on some server: the
    /// plan damaged it, its copy was made from a damaged one, or the server's device failed to read
    /// it or to read metadata. (A process notes what it can't read before it answers. So a server
    /// that is down excuses only what it noted.)
    fn may_be_damaged(&self, op: &Record) -> bool {
        if !self.totals.damages {
            return false;
        }
        self.blocks(op).iter().any(|(group, unit, b)| {
            self.is_harmed(*unit, *b)
                || (0..self.plan.sds)
                    .filter_map(|i| Some((i, self.durable(i)?)))
                    .any(|(i, durable)| self.is_harmed_at(i, durable, *group, *unit, *b))
        })
    }

    /// Returns true when the operation touches a block of which no in-sync copy was always whole:
    /// each was damaged at some time, or made from a damaged one.
    fn is_harmed_everywhere(&self, op: &Record) -> bool {
        let harmed = |i: u8, group, unit, b| match self.durable(i) {
            Some(durable) => self.is_harmed_at(i, durable, group, unit, b),
            None => self.harmed.contains(&(i, unit, b)),
        };
        self.blocks(op).into_iter().any(|(group, unit, b)| {
            let copies = group.and_then(|group| self.observer.groups.get(&group));
            let has = |i: &u8| {
                let device = self.sds(*i).map(Sds::id);
                copies.is_some_and(|g| device.is_some_and(|d| g.in_sync.contains(&d.0)))
            };
            (0..self.plan.sds).filter(has).all(|i| harmed(i, group, unit, b))
        })
    }

    /// Returns true when the operation touches a block that two servers were told is lost. The last
    /// server that had it may have got a full copy from one that had lost it.
    fn is_lost_twice(&self, record: &Record) -> bool {
        let sectors = record.sector..record.sector + record.sectors;
        let touched = |(_, unit, block): &(u8, UnitKey, u32)| {
            let first = unit.index * (UNIT / SECTOR) + block * (BLOCK / SECTOR);
            let own = first..first + BLOCK / SECTOR;
            unit.volume == record.volume && own.start < sectors.end && sectors.start < own.end
        };
        self.lost_copies.iter().any(|copy| touched(copy) && self.has_twin(copy))
    }

    /// Returns true when another server was also told that this block is lost.
    pub(crate) fn has_twin(&self, (i, unit, block): &(u8, UnitKey, u32)) -> bool {
        let told = |other: u8| self.lost_copies.contains(&(other, *unit, *block));
        (0..self.plan.sds).any(|other| other != *i && told(other))
    }

    /// Processes the answer to a mapping order. If it is confirmed, unfinished operations of all
    /// other clients never take effect.
    pub(crate) fn mapped(&mut self, v: u8, clients: u8, confirmed: bool) {
        self.given_back(v, clients);
        self.unconfirmed += u32::from(!confirmed);
        self.marks.meet(match confirmed {
            true => "sim: a mapping was confirmed",
            false => "sim: a mapping was not confirmed",
        });
        let Some(id) = self.volumes[v as usize].id.filter(|_| confirmed) else { return };
        let moment = self.history.tick();
        let out = |client: u8| clients >> client & 1 == 0;
        // A client to which a waiting order gives the volume back may have it any time from now on.
        let back = |client: u8| {
            self.is_ordered(v, |o| matches!(o, Order::Map(_, to) if to >> client & 1 == 1))
        };
        let cut: Vec<u8> = (0..self.plan.clients).filter(|c| out(*c) && !back(*c)).collect();
        let cut = cut.into_iter().map(User::Client);
        self.cuts.extend(cut.map(|user| ((user, id), moment)));
        // A client without a map has sent nothing: its waiting requests may be done
        // under a later mapping.
        let waits = |i: &u8| self.sdc(*i).is_some_and(|s| s.map().version.0 == 0);
        let waiting: BTreeSet<u8> = (0..self.plan.clients).filter(waits).collect();
        let cut =
            |op: &&mut Record| op.volume == id && out(op.client) && !waiting.contains(&op.client);
        for op in self.history.ops.iter_mut().filter(cut) {
            if !op.is_ok() && op.cut.is_none() {
                op.cut = Some(moment);
                self.marks.meet("sim: an operation was cut off by unmapping");
            }
        }
    }

    /// Records that a volume exists, and lets all clients use it.
    pub(crate) fn created(&mut self, v: u8, id: VolumeId, units: u32) {
        let mapped = self.is_ordered(v, |o| matches!(o, Order::Map(..)));
        self.volumes[v as usize] = Volume { id: Some(id), units, doomed: false, mapped };
        // A backup may have brought it back with other permissions.
        self.heed_mapping(v);
        if !mapped && !self.is_for_all(id) {
            self.order(Order::Map(v, ALL));
        }
    }

    /// Records that these clients may use a volume, by the newest map of any MDM, unless a waiting
    /// order takes it from them.
    pub(crate) fn given_back(&mut self, v: u8, clients: u8) {
        let Some(id) = self.volumes[v as usize].id else { return };
        let version = self.mdm().map(|m| m.state().version);
        let Some(version) = version else { return };
        let moment = self.history.tick();
        for client in (0..self.plan.clients).filter(|c| clients >> c & 1 == 1) {
            let goes = |o: &Order| matches!(o, Order::Map(_, to) if to >> client & 1 == 0);
            if !self.is_ordered(v, goes) {
                self.denials.give(User::Client(client), id, moment, version);
            }
        }
    }

    /// Fails if the volume was surely not mapped to the client of this operation, or to its host.
    fn may_use(&self, index: usize) -> Result<(), Failure> {
        let record = &self.history.ops[index];
        let cut = |user: &User| self.cuts.get(&(*user, record.volume));
        let since = |user: &User| cut(user).is_some_and(|cut| *cut < record.invoked);
        match record.users().find(since) {
            Some(user) => {
                Err(Failure::new("I9", format!("it is not mapped to this {user:?}: {record}")))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Damage;
    use crate::plan::{Death, Plan};
    use crate::run;
    use crate::trace::Sink;
    use base::Prng;
    use seam::DiskId;
    use std::time::Duration;
    use target::nbd::proto::NBD_EIO;

    /// First sector of the block that is damaged, and of a block that is not.
    const STRUCK: u32 = 0;
    const OTHER: u32 = 8 * 100;
    /// A plan in which blocks may be damaged. The tests cause the damage themselves.
    const DAMAGES: &str = "at 0.5 damage 0 rot";
    /// Token of the tests' own alarms.
    const OVER: u64 = 77;

    /// Returns a stage with two servers, and one volume with data in two blocks.
    fn stage(step: &str) -> Stage {
        let text = format!(
            "gabion-plan 1\nsds 2\nclients 1\nvolume 1\ndurable 1\ncapacity 8\ndepth 4\nlength 1.0\n{step}"
        );
        let plan: Plan = text.parse().unwrap();
        let mut stage = Stage::new(&plan, Sink::Off);
        run::set_up(&mut stage).unwrap();
        let volume = stage.volumes[0].id.unwrap();
        for sector in [STRUCK, OTHER] {
            stage.issue(0, volume, IoKind::Write, sector, 8);
        }
        stage.world.alarm(stage.world.now() + Duration::from_secs(5), OVER);
        while stage.step().unwrap() != Some(OVER) {}
        assert!(stage.history.ops.iter().all(Record::is_ok), "both are written");
        stage
    }

    /// Returns the group, unit and byte offset of a block on a server.
    fn place(stage: &Stage, i: u8, sector: u32) -> (GroupId, UnitKey, u64) {
        let unit = UnitKey { volume: stage.volumes[0].id.unwrap(), index: 0 };
        let group = stage.sdc(0).unwrap().map().group_of(unit).unwrap();
        let device = stage.sds(i).and_then(Sds::device).unwrap();
        let at = device.durable().unwrap().place(group, unit, sector / BLOCK_SECTORS);
        (group, unit, at.expect("it was written"))
    }

    fn damage(stage: &mut Stage, i: u8, sector: u32) {
        let (at, id) = (place(stage, i, sector).2, stage.proc(Who::Sds(i)));
        let disk = stage.world.disk(id, DiskId(0));
        assert!(disk.damage(Damage::Rot, at, Vec::new(), &mut Prng::new(1)), "it is at rest");
    }

    fn is_damaged(stage: &Stage, i: u8, sector: u32) -> bool {
        let disk = stage.world.disk_at(stage.proc(Who::Sds(i)), DiskId(0));
        disk.is_damaged(place(stage, i, sector).2)
    }

    /// Returns whether reads of the two blocks may end in `Media`.
    fn may_fail(stage: &mut Stage) -> [bool; 2] {
        let volume = stage.volumes[0].id.unwrap();
        [STRUCK, OTHER].map(|sector| {
            let (index, _) = stage.record(0, volume, IoKind::Read, sector, 8);
            stage.is_in_order(index, BlockError::Media)
        })
    }

    #[test]
    fn a_block_is_unreadable_only_where_it_is_or_was_damaged() {
        let mut stage = stage(DAMAGES);
        assert_eq!(may_fail(&mut stage), [false, false], "nothing is damaged yet");
        damage(&mut stage, 1, STRUCK);
        assert_eq!(may_fail(&mut stage), [true, false]);
        stage.scanning = true;
        assert_eq!(may_fail(&mut stage), [false, false], "the other copy is whole");
        let unit = place(&stage, 0, STRUCK).1;
        stage.lost_copies.insert((1, unit, 0));
        assert_eq!(may_fail(&mut stage), [false, false], "one was told that it is lost");
        stage.lost_copies.insert((0, unit, 0));
        assert_eq!(may_fail(&mut stage), [true, false], "both were told that it is lost");
        stage.lost_copies.clear();
        stage.scanning = false;
        stage.heal();
        assert_eq!(may_fail(&mut stage), [true, false], "the answer may be on its way");
    }

    #[test]
    fn an_excuse_reaches_no_block_of_which_a_copy_is_whole() {
        let mut stage = stage(DAMAGES);
        damage(&mut stage, 1, STRUCK);
        stage.scanning = true;
        stage.exposure.excuse = Some("sds1 was wiped in rough weather".into());
        assert_eq!(may_fail(&mut stage), [false, false], "the other copy is whole");
        damage(&mut stage, 0, STRUCK);
        assert_eq!(may_fail(&mut stage), [true, false]);
        stage.exposure.excuse = None;
        assert_eq!(may_fail(&mut stage), [false, false], "nothing may strike both copies");
        stage.plan.allow_loss = true;
        assert_eq!(may_fail(&mut stage), [true, false]);
    }

    #[test]
    fn a_server_that_is_down_excuses_only_blocks_that_it_could_not_read() {
        let mut stage = stage(DAMAGES);
        damage(&mut stage, 1, STRUCK);
        stage.kill(Who::Sds(1), crate::plan::Death { keep: true, ..Default::default() });
        assert_eq!(may_fail(&mut stage), [false, false], "it has not met the damage");
        let mut stage = self::stage(DAMAGES);
        damage(&mut stage, 1, STRUCK);
        let ((group, unit, _), id) = (place(&stage, 1, STRUCK), stage.proc(Who::Sds(1)));
        stage.met_damage(id, group, unit, 0..1);
        stage.kill(Who::Sds(1), crate::plan::Death { keep: true, ..Default::default() });
        assert_eq!(may_fail(&mut stage), [true, false], "its answer may be on the way");
    }

    #[test]
    fn an_error_of_nbd_is_damage_for_sure_only_before_the_time_limit() {
        let mut stage = stage(&format!("limit answer_within 500000\n{DAMAGES}"));
        let volume = stage.volumes[0].id.unwrap();
        damage(&mut stage, 1, STRUCK);
        let mut told_after = |ms: u64| {
            let (index, _) = stage.record(0, volume, IoKind::Write, STRUCK, 8);
            stage.world.alarm(stage.world.now() + Duration::from_millis(ms), OVER);
            while stage.step().unwrap() != Some(OVER) {}
            stage.nbd_answered(index, NBD_EIO, &[]).unwrap();
            stage.history.ops[index].answer.unwrap().result
        };
        assert_eq!(told_after(490), Err(BlockError::Media));
        assert_eq!(told_after(510), Err(BlockError::TimedOut), "it may still land");
    }

    #[test]
    fn a_read_that_fails_excuses_what_it_read_and_one_of_checksums_everything() {
        let mut stage = stage(DAMAGES);
        let (at, id) = (place(&stage, 0, STRUCK).2, stage.proc(Who::Sds(0)));
        stage.world.disk(id, DiskId(0)).fail(at, BLOCK as usize);
        assert_eq!(may_fail(&mut stage), [true, false]);
        stage.world.disk(id, DiskId(0)).fail(0, BLOCK as usize);
        assert_eq!(may_fail(&mut stage), [true, true]);
    }

    #[test]
    fn damage_that_a_server_meets_in_the_step_of_its_death_excuses_what_it_read() {
        let mut stage = stage(DAMAGES);
        let (group, unit, _) = place(&stage, 0, STRUCK);
        let id = stage.proc(Who::Sds(0));
        stage.kill(Who::Sds(0), Death { keep: true, ..Death::default() });
        assert_eq!(may_fail(&mut stage), [false, false]);
        stage.met_damage(id, group, unit, 0..1);
        assert_eq!(may_fail(&mut stage), [true, false]);
    }

    #[test]
    fn where_nothing_is_damaged_no_block_is_unreadable() {
        let mut stage = stage("");
        damage(&mut stage, 1, STRUCK);
        assert_eq!(may_fail(&mut stage), [false, false], "no plan has done that");
    }

    #[test]
    fn only_blocks_reported_lost_to_a_joiner_become_readable_again() {
        let mut stage = stage(DAMAGES);
        [STRUCK, OTHER].into_iter().for_each(|sector| damage(&mut stage, 0, sector));
        let (group, unit, _) = place(&stage, 0, STRUCK);
        let joiner = stage.proc(Who::Sds(1));
        stage.copied_loss(joiner, group, unit, 0..1);
        assert_eq!([STRUCK, OTHER].map(|s| is_damaged(&stage, 0, s)), [false, true]);
        assert!(stage.lost_copies.contains(&(1, unit, 0)) && stage.has_to_mend());
        // Where losses are allowed, damage is not undone.
        stage.plan.allow_loss = true;
        stage.copied_loss(joiner, group, unit, 100..101);
        assert!(is_damaged(&stage, 0, OTHER));
    }
}

//! The operator accepts losses: the lost groups are served again, as zeros. In the history, zero
//! operations of nobody stand for that.

use crate::admin::Order;
use crate::history::{Answer, Record};
use crate::plan::IoKind;
use crate::stage::Stage;
use base::{GroupId, PoolId, SECTOR, Time, UNIT, UnitKey};
use mdm::State;
use mdm::group::Group;
use placement::slot_of;
use std::collections::BTreeSet;

/// Client number of the operations that write zeros for an accepted loss; no client has it.
const NOBODY: u8 = 7;

impl Stage {
    /// Orders lost groups to be served again, as zeros. The losses of some pools stay: each device
    /// there belonged to a lost group, and the operator has no server to add.
    pub(crate) fn accept_loss(&mut self) {
        let Some(mdm) = self.mdm().filter(|m| m.is_decided()) else { return };
        let state = mdm.state();
        let is_lost = |g: &GroupId| state.groups.get(g).is_some_and(|g| g.lost);
        let lost = state.groups.values().filter(|g| g.lost);
        let stuck: BTreeSet<PoolId> = lost.filter_map(|g| pool_without_others(state, g)).collect();
        let there = |v: &usize| {
            let volume = self.volumes[*v].id.and_then(|id| state.volumes.get(&id));
            volume.is_some_and(|v| !stuck.contains(&v.pool))
        };
        let there: Vec<usize> = (0..self.volumes.len().min(8)).filter(there).collect();
        let group = |unit: UnitKey| {
            let mut servers = (0..self.plan.sds).filter_map(|i| self.sds(i));
            servers.find_map(|s| s.map().group_of(unit))
        };
        let mut units: Vec<UnitKey> = Vec::new();
        for volume in there.iter().filter_map(|v| self.volumes[*v].id) {
            let all = 0..(state.volumes[&volume].size / u64::from(UNIT)) as u32;
            let all = all.map(|index| UnitKey { volume, index });
            units.extend(all.filter(|unit| group(*unit).is_some_and(|g| is_lost(&g))));
        }
        if units.is_empty() || !self.rescue.accepting.is_empty() {
            return;
        }
        self.marks.meet("sim: a loss was accepted");
        for unit in units {
            self.rescue.accepting.push(self.history.ops.len());
            let (invoked, at) = (self.history.tick(), self.world.now());
            self.history.ops.push(zeroed(unit, invoked, at));
        }
        self.order(Order::Accept(there.iter().fold(0, |bits, v| bits | 1 << v)));
    }

    /// Processes the answer to an order that accepts losses.
    pub(crate) fn loss_accepted(&mut self) {
        let at = self.world.now();
        self.accept_later_losses();
        for index in std::mem::take(&mut self.rescue.accepting) {
            let moment = self.history.tick();
            self.history.ops[index].answer = Some(Answer { moment, at, result: Ok(()) });
        }
    }

    /// Adds zero operations for groups that were lost between the order to accept losses and its
    /// execution: they are accepted, too.
    fn accept_later_losses(&mut self) {
        let Some(first) = self.rescue.accepting.first().map(|first| &self.history.ops[*first])
        else {
            return;
        };
        let (invoked, at) = (first.invoked, first.at);
        let covered: BTreeSet<UnitKey> = self
            .rescue
            .accepting
            .iter()
            .map(|op| {
                let op = &self.history.ops[*op];
                UnitKey { volume: op.volume, index: op.sector / (UNIT / SECTOR) }
            })
            .collect();
        let Some(state) = self.mdm().map(|m| m.state()) else { return };
        let mut later: Vec<UnitKey> = Vec::new();
        for (volume, v) in &state.volumes {
            let accepted = v.losses.last().map_or(&[][..], |loss| &loss.groups);
            let all = 0..(v.size / u64::from(UNIT)) as u32;
            let is_in = |index: &u32| accepted.contains(&v.slots[slot_of(*index, v.slots.len())].0);
            later.extend(all.filter(is_in).map(|index| UnitKey { volume: *volume, index }));
        }
        for unit in later.into_iter().filter(|unit| !covered.contains(unit)) {
            self.rescue.accepting.push(self.history.ops.len());
            self.history.ops.push(zeroed(unit, invoked, at));
        }
    }
}

/// Returns the operation that stands for the acceptance of a unit's loss.
fn zeroed(UnitKey { volume, index }: UnitKey, invoked: u64, at: Time) -> Record {
    let sectors = UNIT / SECTOR;
    let sectors = index * sectors..(index + 1) * sectors;
    Record { client: NOBODY, ..Record::asked(volume, IoKind::Zero, sectors, invoked, at) }
}

/// Returns the pool of a group if each of its devices belongs to the group. Then none of them can
/// begin anew with the group, however long the operator waits.
fn pool_without_others(state: &State, group: &Group) -> Option<PoolId> {
    let pool = state.pool_of(group)?;
    let mut devices = state.devices.iter().filter(|(_, d)| d.pool == pool);
    devices.all(|(id, _)| group.replicas.contains(id)).then_some(pool)
}

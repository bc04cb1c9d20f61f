//! Computes which replicas move, so that every device has its share again.
//!
//! One algorithm serves all causes: a device failed, has to be emptied, is new, or has grown. A
//! device's share is its part of the total weight, by capacity; a server larger than all others
//! together counts only as much as those. Homeless replicas move first, then replicas on devices
//! with too much move to devices with too little. Groups without data are balanced separately, by
//! their number: otherwise a device could have its share of groups and none of the data.
//!
//! Invariants of a plan: a group moves at most one replica, and never onto the server of its other
//! one. Each move goes from a device that has more than its share, or that is no longer a home, to
//! a device that has less. So hardly more moves than necessary. (There is one exception: a chain of
//! two moves, where no single move keeps replicas on different servers.) Nothing moves for balance
//! while all devices are within [`TOLERANCE`] of their shares.
//!
//! This module does not know which devices are up, or what a move costs the network. The caller
//! decides how many replicas move at a time, and asks again after the cluster has changed.

use crate::groups::{Device, Pair, TooFewServers, parts, places};
use crate::lead;
use crate::spread::{PARTNERS, Spread};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use base::{DeviceId, GroupId, SdsId};

/// Deviation from its share, as a fraction of the share, up to which a device counts as balanced.
pub const TOLERANCE: f64 = 0.02;

/// A group in its present state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlacedGroup {
    /// The group.
    pub group: GroupId,
    /// Its replicas, preferred primary first.
    pub replicas: Pair,
    /// Bytes that it holds or may come to hold. Groups of weight 0 are balanced by number.
    pub weight: u64,
}

/// A replica that changes its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// The group.
    pub group: GroupId,
    /// The present device.
    pub from: DeviceId,
    /// The new device.
    pub to: DeviceId,
}

/// The result of balancing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Replicas that move, homeless ones first. No two of them belong to the same group.
    pub moves: Vec<Move>,
    /// Groups whose preferred primary becomes the other replica after the moves.
    pub swaps: Vec<GroupId>,
}

/// Plans the moves after which each of `devices` has its share. A device of capacity 0 takes
/// nothing and gives everything away; a replica on a device that is not listed is homeless, too. A
/// group whose replicas are both homeless gets a new home for the first now, and for the second in
/// the next plan.
pub fn balance(devices: &[Device], held: &[PlacedGroup]) -> Result<Plan, TooFewServers> {
    plan(devices, held, true)
}

/// Plans moves of homeless replicas only. All others stay where they are, and the new homes are the
/// best under this condition. Preferred primaries do not change.
pub fn place_homeless(
    devices: &[Device],
    held: &[PlacedGroup],
) -> Result<Vec<Move>, TooFewServers> {
    plan(devices, held, false).map(|plan| plan.moves)
}

fn plan(devices: &[Device], held: &[PlacedGroup], level: bool) -> Result<Plan, TooFewServers> {
    let homes: Vec<Device> = devices.iter().copied().filter(|d| d.capacity > 0).collect();
    let (parts, place) = (parts(&homes)?, places(&homes));
    let mut spread = Spread::new(homes.len());
    for [a, b] in held.iter().map(|h| h.replicas.each_ref().map(|d| place.get(d))) {
        a.zip(b).into_iter().for_each(|(a, b)| spread.join(*a, *b));
    }
    let (full, empty): (Vec<PlacedGroup>, Vec<PlacedGroup>) =
        held.iter().copied().partition(|h| h.weight > 0);
    let empty: Vec<PlacedGroup> =
        empty.into_iter().map(|h| PlacedGroup { weight: 1, ..h }).collect();
    let mut plan = Plan::default();
    for held in [full, empty].iter().filter(|held| !held.is_empty()) {
        let mut scales = Scales::new(devices, &homes, &parts, held, core::mem::take(&mut spread));
        scales.place_homeless();
        while scales.level() {}
        if level {
            scales.housed_only = false;
            scales.stuck.fill(false);
            while scales.level() {}
            let pairs: Vec<(usize, usize)> = scales.at.iter().map(|at| (at[0], at[1])).collect();
            let weights: Vec<u64> = held.iter().map(|h| h.weight).collect();
            let swaps = lead::swaps(homes.len(), &pairs, &weights);
            plan.swaps.extend(swaps.into_iter().map(|g| held[g].group));
        }
        plan.moves.append(&mut scales.moves);
        spread = scales.spread;
    }
    Ok(plan)
}

/// No home: the device has to be emptied, or is gone.
const HOMELESS: usize = usize::MAX;

struct Scales<'a> {
    held: &'a [PlacedGroup],
    homes: &'a [Device],
    /// The places of each group's replicas, as indices in `homes`.
    at: Vec<[usize; 2]>,
    /// The index in `moves` of the move of each group that has one.
    moved: Vec<Option<usize>>,
    /// For each group, the replica (0 or 1) that was homeless and has a new home in this plan. It
    /// moves anyway, so it may still get another home. `housed_on` counts these replicas per home.
    housed: Vec<Option<usize>>,
    housed_on: Vec<u32>,
    /// True if no other replica may move.
    housed_only: bool,
    /// The servers of all known devices.
    server: BTreeMap<DeviceId, SdsId>,
    /// The share of each home, and how much it has beyond that.
    share: Vec<f64>,
    excess: Vec<f64>,
    /// The groups that have a replica on each home.
    on: Vec<Vec<usize>>,
    spread: Spread,
    /// True for a home for which no further move is possible.
    stuck: Vec<bool>,
    moves: Vec<Move>,
}

impl<'a> Scales<'a> {
    fn new(
        devices: &[Device],
        homes: &'a [Device],
        parts: &[f64],
        held: &'a [PlacedGroup],
        spread: Spread,
    ) -> Scales<'a> {
        let all: f64 = held.iter().map(|h| 2.0 * h.weight as f64).sum();
        let share: Vec<f64> = parts.iter().map(|part| part * all).collect();
        let place = places(homes);
        let home = |d: &DeviceId| place.get(d).copied().unwrap_or(HOMELESS);
        let mut scales = Scales {
            held,
            at: held.iter().map(|h| h.replicas.each_ref().map(home)).collect(),
            moved: vec![None; held.len()],
            housed: vec![None; held.len()],
            housed_on: vec![0; homes.len()],
            housed_only: true,
            server: devices.iter().map(|d| (d.id, d.sds)).collect(),
            excess: share.iter().map(|s| -s).collect(),
            share,
            on: vec![Vec::new(); homes.len()],
            spread,
            stuck: vec![false; homes.len()],
            homes,
            moves: Vec::new(),
        };
        for (group, one) in held.iter().enumerate() {
            for home in scales.at[group].into_iter().filter(|h| *h != HOMELESS) {
                scales.on[home].push(group);
                scales.excess[home] += one.weight as f64;
            }
        }
        scales
    }

    /// Finds homes for homeless replicas, the heaviest group first.
    fn place_homeless(&mut self) {
        let homeless = |g: &usize| self.at[*g].contains(&HOMELESS);
        let mut groups: Vec<usize> = (0..self.held.len()).filter(homeless).collect();
        groups.sort_by_key(|g| (core::cmp::Reverse(self.held[*g].weight), *g));
        for group in groups {
            let side = usize::from(self.at[group][0] != HOMELESS);
            if let Some(to) = self.home_for(group, side) {
                self.go(group, side, to);
                self.housed[group] = Some(side);
                self.housed_on[to] += 1;
            }
        }
    }

    /// Returns the best home for a replica: of the homes where the group fits under the share, the
    /// one that shares fewest groups with the other replica's home. If the group fits nowhere,
    /// returns the home that lacks most.
    fn home_for(&self, group: usize, side: usize) -> Option<usize> {
        let may = |to: &usize| self.fits(group, side, *to);
        let least = |a: &usize, b: &usize| self.relative(*a).total_cmp(&self.relative(*b));
        let half = self.held[group].weight as f64 / 2.0;
        let open = (0..self.homes.len()).filter(may).filter(|to| self.excess[*to] + half <= 0.0);
        let best = open.min_by(|a, b| {
            let key = |to: usize| self.pairing_cost(group, side, to);
            key(*a).cmp(&key(*b)).then_with(|| least(a, b))
        });
        best.or_else(|| (0..self.homes.len()).filter(may).min_by(least))
    }

    /// Moves one or two replicas away from the fullest home, or to the emptiest one. Returns false
    /// if nothing can be done.
    fn level(&mut self) -> bool {
        let open = |h: &usize| !self.stuck[*h];
        let order = |a: &usize, b: &usize| self.relative(*a).total_cmp(&self.relative(*b));
        let Some(least) = (0..self.homes.len()).filter(open).min_by(order) else { return false };
        let Some(most) = (0..self.homes.len()).filter(open).max_by(order) else { return false };
        let (lack, much) = (-self.relative(least), self.relative(most));
        if lack.max(much) <= TOLERANCE {
            return false;
        }
        let (worst, gives) = if much > lack { (most, true) } else { (least, false) };
        if !self.relieve(worst, gives) {
            self.stuck[worst] = true;
        }
        true
    }

    /// Moves a replica from this home if it has too much (`gives`), or else to it. Tries the other
    /// homes in order of their load.
    fn relieve(&mut self, worst: usize, gives: bool) -> bool {
        if self.relieve_nearby(worst, gives) {
            return true;
        }
        let mut others: Vec<usize> = (0..self.homes.len()).filter(|h| *h != worst).collect();
        let sign = if gives { 1.0 } else { -1.0 };
        let key = |scales: &Scales, h: usize| sign * scales.relative(h);
        let way = |other: usize| if gives { (worst, other) } else { (other, worst) };
        // The first home usually works.
        let best = others.iter().copied().min_by(|a, b| key(self, *a).total_cmp(&key(self, *b)));
        if best.map(way).is_some_and(|(from, to)| self.gain(from, to) > 0.0 && self.shift(from, to))
        {
            return true;
        }
        others.sort_by(|a, b| key(self, *a).total_cmp(&key(self, *b)));
        for chain in [false, true] {
            for (from, to) in others.iter().copied().map(way) {
                if self.gain(from, to) <= 0.0 {
                    break; // later homes gain even less
                }
                if chain && self.shift_by_two(from, to) || !chain && self.shift(from, to) {
                    return true;
                }
            }
        }
        false
    }

    /// Does the same without new partners, in domains where not every home can be a partner of
    /// every other one.
    fn relieve_nearby(&mut self, worst: usize, gives: bool) -> bool {
        if self.homes.len() <= PARTNERS as usize + 1 || !gives && !self.spread.has_enough(worst) {
            return false;
        }
        let mut best: Option<(f64, usize, usize, usize)> = None;
        let mut offer = |scales: &Scales, group: usize, side: usize, to: usize| {
            let from = scales.at[group][side];
            let other = if gives { scales.relative(to) } else { -scales.relative(from) };
            let better = best.is_none_or(|(least, ..)| other < least);
            let may = better && from != to && scales.may_move(group, from);
            if may && scales.fits(group, side, to) && scales.helps(group, from, to) {
                best = Some((other, group, side, to));
            }
        };
        if gives {
            for group in self.on[worst].iter().copied() {
                let side = self.side(group, worst);
                let partner = self.at[group][1 - side];
                let near = if partner == HOMELESS { &[] } else { self.spread.partners(partner) };
                near.iter().for_each(|to| offer(self, group, side, *to));
            }
        } else {
            for partner in self.spread.partners(worst).iter().copied() {
                for group in self.on[partner].iter().copied() {
                    let side = 1 - self.side(group, partner);
                    if self.at[group][side] != HOMELESS {
                        offer(self, group, side, worst);
                    }
                }
            }
        }
        let Some((_, group, side, to)) = best else { return false };
        self.go(group, side, to);
        true
    }

    /// Moves the best replica of one home to another one. Prefers replicas that move anyway.
    fn shift(&mut self, from: usize, to: usize) -> bool {
        if self.housed_only && self.housed_on[from] == 0 {
            return false;
        }
        let may = |g: &&usize| {
            let side = self.side(**g, from);
            self.may_move(**g, from) && self.fits(**g, side, to) && self.helps(**g, from, to)
        };
        let best = self.on[from].iter().filter(may).min_by_key(|g| {
            let side = self.side(**g, from);
            let weight = core::cmp::Reverse(self.held[**g].weight);
            (self.housed[**g].is_none(), self.pairing_cost(**g, side, to), weight, **g)
        });
        let Some(group) = best.copied() else { return false };
        let side = self.side(group, from);
        self.go(group, side, to);
        true
    }

    /// Handles the case that all movable groups of `from` have their other replica on the server of
    /// `to`: one of them moves to a third home, which gives another one to `to`.
    fn shift_by_two(&mut self, from: usize, to: usize) -> bool {
        if self.housed_only && self.housed_on[from] == 0 {
            return false;
        }
        let first = |g: &&usize| self.may_move(**g, from) && self.helps(**g, from, to);
        for one in self.on[from].iter().filter(first).copied() {
            let side = self.side(one, from);
            let third = |h: &usize| *h != from && *h != to && self.fits(one, side, *h);
            let third = |h: &usize| third(h) && !(self.housed_only && self.housed_on[*h] == 0);
            for via in (0..self.homes.len()).filter(third) {
                let second = |g: &&usize| {
                    let light = self.held[**g].weight <= self.held[one].weight;
                    self.may_move(**g, via)
                        && light
                        && **g != one
                        && self.fits(**g, self.side(**g, via), to)
                };
                let mut others = self.on[via].iter().copied().filter(|g| second(&g));
                let way = others.find_map(|other| {
                    let both = [(other, via, to), (one, from, via)];
                    match () {
                        () if self.helps(other, via, to) => Some(both),
                        () if self.helps(one, from, via) => Some([both[1], both[0]]),
                        () => None,
                    }
                });
                // The first move helps even alone. A caller may do only that one before it asks
                // again, and the next plan must not undo it, or this would never end.
                if let Some([first, next]) = way {
                    for (group, from, to) in [first, next] {
                        if self.helps(group, from, to) {
                            self.go(group, self.side(group, from), to);
                        }
                    }
                    return true;
                }
            }
        }
        false
    }

    /// Returns true if the replica has not moved yet, or moves anyway and may get another home.
    fn may_move(&self, group: usize, from: usize) -> bool {
        match self.housed[group] {
            Some(side) => self.at[group][side] == from,
            None => !self.housed_only && self.moved[group].is_none(),
        }
    }

    /// Returns which replica of the group (0 or 1) is on this home.
    fn side(&self, group: usize, home: usize) -> usize {
        usize::from(self.at[group][1] == home)
    }

    /// Returns true if the group's other replica is on another server.
    fn fits(&self, group: usize, side: usize, to: usize) -> bool {
        self.partner_server(group, side) != Some(self.homes[to].sds)
    }

    /// Returns the server of the group's other replica.
    fn partner_server(&self, group: usize, side: usize) -> Option<SdsId> {
        match self.at[group][1 - side] {
            HOMELESS => self.server.get(&self.held[group].replicas[1 - side]).copied(),
            home => Some(self.homes[home].sds),
        }
    }

    /// Returns the difference in load of two homes, positive if the first one has more.
    fn gain(&self, from: usize, to: usize) -> f64 {
        self.relative(from) - self.relative(to)
    }

    /// Returns true if the move reduces the sum of squared deviations of the two homes.
    fn helps(&self, group: usize, from: usize, to: usize) -> bool {
        let weight = self.held[group].weight as f64;
        let step = weight / 2.0 * (1.0 / self.share[from] + 1.0 / self.share[to]);
        self.gain(from, to) > step * 1.000_001
    }

    /// Returns how much a home has beyond its share, as a fraction of the share.
    fn relative(&self, home: usize) -> f64 {
        self.excess[home] / self.share[home]
    }

    /// Returns what speaks against this home beside the other replica's home: that they would be
    /// new partners although one has enough, and how many groups they share. Less is better.
    fn pairing_cost(&self, group: usize, side: usize, to: usize) -> (bool, u32) {
        match self.at[group][1 - side] {
            HOMELESS => (false, 0),
            partner => (self.spread.widens(to, partner), self.spread.pairs(to, partner)),
        }
    }

    fn go(&mut self, group: usize, side: usize, to: usize) {
        let (held, from) = (self.held[group], self.at[group][side]);
        let partner = self.at[group][1 - side];
        if from != HOMELESS {
            self.excess[from] -= held.weight as f64;
            self.on[from].retain(|g| *g != group);
            if partner != HOMELESS {
                self.spread.part(from, partner);
            }
        }
        self.excess[to] += held.weight as f64;
        self.on[to].push(group);
        if partner != HOMELESS {
            self.spread.join(to, partner);
        }
        self.at[group][side] = to;
        let target = self.homes[to].id;
        match self.moved[group] {
            Some(number) => {
                self.housed_on[from] -= 1;
                self.housed_on[to] += 1;
                self.moves[number].to = target;
            }
            None => {
                self.moved[group] = Some(self.moves.len());
                self.moves.push(Move { group: held.group, from: held.replicas[side], to: target });
            }
        }
    }
}

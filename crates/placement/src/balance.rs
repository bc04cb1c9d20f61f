//! Which replicas move, so that every device has its share again.
//!
//! One question for all causes: a device failed, is to go, is new, or has grown. What a device should have is its
//! part of all weight, by capacity; a server that has more than all others together counts for as much as those.
//! What is homeless moves first, then what lies on devices with too much goes to those with too little. Groups that
//! hold nothing are levelled among themselves, by their number: else a device could have its share of groups and none
//! of the data.
//!
//! Invariants of an answer: a group moves one replica at most, and never onto the server of its other one; each
//! move goes from who has more than its share, or is no home any more, to who has less, so hardly more moves
//! than must (the exception is a chain of two, where servers stand in the way); nothing moves for balance while
//! all are within [`TOLERANCE`] of their shares.
//!
//! It doesn't know who is up, nor what a move costs the network: who follows the plan decides how many
//! replicas move at a time, and asks again when the cluster has changed.

use crate::groups::{Device, Pair, TooFewServers, parts, places};
use crate::lead;
use crate::spread::{PARTNERS, Spread};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use base::{DeviceId, GroupId, SdsId};

/// How far from its share a device may be without anything being moved, as a part of the share.
pub const TOLERANCE: f64 = 0.02;

/// A group as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Which.
    pub group: GroupId,
    /// Its replicas, the preferred primary first.
    pub replicas: Pair,
    /// What it counts for: bytes that it holds, or may come to hold. Those with 0 are levelled by their number.
    pub weight: u64,
}

/// A replica that changes its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// Of which group.
    pub group: GroupId,
    /// Where it is.
    pub from: DeviceId,
    /// Where it goes.
    pub to: DeviceId,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Replicas that move, those without a home first. No two are of one group.
    pub moves: Vec<Move>,
    /// Groups whose preferred primary becomes the other replica, once the moves are done.
    pub swaps: Vec<GroupId>,
}

/// How replicas should move until each of `devices` has its share. One with capacity 0 takes nothing and gives
/// all; a replica on a device that isn't there is homeless, too. A group of which neither replica has a home
/// gets one for the first now, and one for the second in the next answer.
pub fn balance(devices: &[Device], held: &[Held]) -> Result<Plan, TooFewServers> {
    plan(devices, held, true)
}

/// The same for homeless replicas only: what has a home stays there, and the homes that are found are the best ones
/// under this condition. Nothing is said of who leads.
pub fn house(devices: &[Device], held: &[Held]) -> Result<Vec<Move>, TooFewServers> {
    plan(devices, held, false).map(|plan| plan.moves)
}

fn plan(devices: &[Device], held: &[Held], level: bool) -> Result<Plan, TooFewServers> {
    let homes: Vec<Device> = devices.iter().copied().filter(|d| d.capacity > 0).collect();
    let (parts, place) = (parts(&homes)?, places(&homes));
    let mut spread = Spread::new(homes.len());
    for [a, b] in held.iter().map(|h| h.replicas.each_ref().map(|d| place.get(d))) {
        a.zip(b).into_iter().for_each(|(a, b)| spread.join(*a, *b));
    }
    let (full, empty): (Vec<Held>, Vec<Held>) = held.iter().copied().partition(|h| h.weight > 0);
    let empty: Vec<Held> = empty.into_iter().map(|h| Held { weight: 1, ..h }).collect();
    let mut plan = Plan::default();
    for held in [full, empty].iter().filter(|held| !held.is_empty()) {
        let mut scales = Scales::new(devices, &homes, &parts, held, core::mem::take(&mut spread));
        scales.house();
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

/// No home: the device is to be left, or gone.
const HOMELESS: usize = usize::MAX;

struct Scales<'a> {
    held: &'a [Held],
    homes: &'a [Device],
    /// Where each group's replicas are, as places in `homes`.
    at: Vec<[usize; 2]>,
    /// The move of each group that has one.
    moved: Vec<Option<usize>>,
    /// The side of each group that was homeless, and has a home by now: it may as well get another one, as it moves
    /// anyway. And how many such ones each home has.
    housed: Vec<Option<usize>>,
    housed_on: Vec<u32>,
    /// Nothing else moves.
    housed_only: bool,
    /// The servers of all devices that are known.
    server: BTreeMap<DeviceId, SdsId>,
    /// What each home should have, and how much more than that it has.
    share: Vec<f64>,
    excess: Vec<f64>,
    /// Groups that have a replica on each home.
    on: Vec<Vec<usize>>,
    spread: Spread,
    /// Nothing can be done for this home any more.
    stuck: Vec<bool>,
    moves: Vec<Move>,
}

impl<'a> Scales<'a> {
    fn new(
        devices: &[Device],
        homes: &'a [Device],
        parts: &[f64],
        held: &'a [Held],
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

    /// Finds homes for what has none, the heaviest first.
    fn house(&mut self) {
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

    /// The best home for a replica: one that lacks this much and is rarely this one's partner, or the one that
    /// lacks most.
    fn home_for(&self, group: usize, side: usize) -> Option<usize> {
        let may = |to: &usize| self.fits(group, side, *to);
        let least = |a: &usize, b: &usize| self.relative(*a).total_cmp(&self.relative(*b));
        let half = self.held[group].weight as f64 / 2.0;
        let open = (0..self.homes.len()).filter(may).filter(|to| self.excess[*to] + half <= 0.0);
        let best = open.min_by(|a, b| {
            let key = |to: usize| self.rarity(group, side, to);
            key(*a).cmp(&key(*b)).then_with(|| least(a, b))
        });
        best.or_else(|| (0..self.homes.len()).filter(may).min_by(least))
    }

    /// Moves one replica, or two, from who has most, or to who has least; false: there is nothing to be done.
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

    /// Moves something from this home, which has too much, or to it; with the others in order of how much they have.
    fn relieve(&mut self, worst: usize, gives: bool) -> bool {
        if self.relieve_nearby(worst, gives) {
            return true;
        }
        let mut others: Vec<usize> = (0..self.homes.len()).filter(|h| *h != worst).collect();
        let sign = if gives { 1.0 } else { -1.0 };
        let key = |scales: &Scales, h: usize| sign * scales.relative(h);
        let way = |other: usize| if gives { (worst, other) } else { (other, worst) };
        // Most often the first one will do.
        let best = others.iter().copied().min_by(|a, b| key(self, *a).total_cmp(&key(self, *b)));
        if best.map(way).is_some_and(|(from, to)| self.gain(from, to) > 0.0 && self.shift(from, to))
        {
            return true;
        }
        others.sort_by(|a, b| key(self, *a).total_cmp(&key(self, *b)));
        for chain in [false, true] {
            for (from, to) in others.iter().copied().map(way) {
                if self.gain(from, to) <= 0.0 {
                    break; // nor will anybody's who comes after
                }
                if chain && self.shift_by_two(from, to) || !chain && self.shift(from, to) {
                    return true;
                }
            }
        }
        false
    }

    /// The same without two more that share groups, where not all can share some with all others.
    fn relieve_nearby(&mut self, worst: usize, gives: bool) -> bool {
        if self.homes.len() <= PARTNERS as usize + 1 || !gives && !self.spread.has_enough(worst) {
            return false;
        }
        let mut best: Option<(f64, usize, usize, usize)> = None;
        let mut offer = |scales: &Scales, group: usize, side: usize, to: usize| {
            let from = scales.at[group][side];
            let other = if gives { scales.relative(to) } else { -scales.relative(from) };
            let better = best.is_none_or(|(least, ..)| other < least);
            let may = better && from != to && scales.may_go(group, from);
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

    /// The best replica that may leave this home; those that move anyway first.
    fn shift(&mut self, from: usize, to: usize) -> bool {
        if self.housed_only && self.housed_on[from] == 0 {
            return false;
        }
        let may = |g: &&usize| {
            let side = self.side(**g, from);
            self.may_go(**g, from) && self.fits(**g, side, to) && self.helps(**g, from, to)
        };
        let best = self.on[from].iter().filter(may).min_by_key(|g| {
            let side = self.side(**g, from);
            let weight = core::cmp::Reverse(self.held[**g].weight);
            (self.housed[**g].is_none(), self.rarity(**g, side, to), weight, **g)
        });
        let Some(group) = best.copied() else { return false };
        let side = self.side(group, from);
        self.go(group, side, to);
        true
    }

    /// All that `from` could give has its other replica on the server of `to`: it gives one to a third home,
    /// which gives another one to `to`.
    fn shift_by_two(&mut self, from: usize, to: usize) -> bool {
        if self.housed_only && self.housed_on[from] == 0 {
            return false;
        }
        let first = |g: &&usize| self.may_go(**g, from) && self.helps(**g, from, to);
        for one in self.on[from].iter().filter(first).copied() {
            let side = self.side(one, from);
            let third = |h: &usize| *h != from && *h != to && self.fits(one, side, *h);
            let third = |h: &usize| third(h) && !(self.housed_only && self.housed_on[*h] == 0);
            for via in (0..self.homes.len()).filter(third) {
                let second = |g: &&usize| {
                    let light = self.held[**g].weight <= self.held[one].weight;
                    self.may_go(**g, via)
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
                // The first one helps by itself: who follows the plan may do only that before he asks again, and must not take
                // it back then, for ever.
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

    /// It has not moved yet; or it moves anyway, and may as well move elsewhere.
    fn may_go(&self, group: usize, from: usize) -> bool {
        match self.housed[group] {
            Some(side) => self.at[group][side] == from,
            None => !self.housed_only && self.moved[group].is_none(),
        }
    }

    /// Which replica of the group is on this home.
    fn side(&self, group: usize, home: usize) -> usize {
        usize::from(self.at[group][1] == home)
    }

    /// Its other replica is on another server.
    fn fits(&self, group: usize, side: usize, to: usize) -> bool {
        self.partner_server(group, side) != Some(self.homes[to].sds)
    }

    /// Where the group's other replica is.
    fn partner_server(&self, group: usize, side: usize) -> Option<SdsId> {
        match self.at[group][1 - side] {
            HOMELESS => self.server.get(&self.held[group].replicas[1 - side]).copied(),
            home => Some(self.homes[home].sds),
        }
    }

    /// How far two homes are apart: positive when the first one has more.
    fn gain(&self, from: usize, to: usize) -> f64 {
        self.relative(from) - self.relative(to)
    }

    /// The two are nearer to their shares afterwards (the sum of squares is less).
    fn helps(&self, group: usize, from: usize, to: usize) -> bool {
        let weight = self.held[group].weight as f64;
        let step = weight / 2.0 * (1.0 / self.share[from] + 1.0 / self.share[to]);
        self.gain(from, to) > step * 1.000_001
    }

    /// How much a home has beyond its share, as a part of it.
    fn relative(&self, home: usize) -> f64 {
        self.excess[home] / self.share[home]
    }

    /// How often the replica's partner would be this home's: the less, the better.
    fn rarity(&self, group: usize, side: usize, to: usize) -> (bool, u32) {
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

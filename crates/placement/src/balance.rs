//! Which replicas move, so that every device has its share again.
//!
//! One question for all causes: a device failed, is to go, is new, or has grown. What a device should have is its
//! part of all weight, by capacity; a server that has more than all others together counts for as much as those.
//! What is homeless moves first, then what lies on devices with too much goes to those with too little.
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
use crate::spread::Spread;
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
    /// What it counts for: bytes that it holds, or may come to hold. Never 0.
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
    let mut scales = Scales::new(devices, held)?;
    scales.house();
    while scales.level() {}
    let (homes, moves) = (scales.homes.len(), scales.moves);
    let pairs: Vec<(usize, usize)> = scales.at.iter().map(|at| (at[0], at[1])).collect();
    let weights: Vec<u64> = held.iter().map(|h| h.weight).collect();
    let swaps = lead::swaps(homes, &pairs, &weights);
    Ok(Plan { moves, swaps: swaps.into_iter().map(|g| held[g].group).collect() })
}

/// No home: the device is to be left, or gone.
const HOMELESS: usize = usize::MAX;

struct Scales<'a> {
    held: &'a [Held],
    homes: Vec<Device>,
    /// Where each group's replicas are, as places in `homes`.
    at: Vec<[usize; 2]>,
    moved: Vec<bool>,
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
    fn new(devices: &[Device], held: &'a [Held]) -> Result<Scales<'a>, TooFewServers> {
        let homes: Vec<Device> = devices.iter().copied().filter(|d| d.capacity > 0).collect();
        let all: f64 = held.iter().map(|h| 2.0 * h.weight as f64).sum();
        let share: Vec<f64> = parts(&homes)?.into_iter().map(|part| part * all).collect();
        let place = places(&homes);
        let home = |d: &DeviceId| place.get(d).copied().unwrap_or(HOMELESS);
        let mut scales = Scales {
            held,
            at: held.iter().map(|h| h.replicas.each_ref().map(home)).collect(),
            moved: vec![false; held.len()],
            server: devices.iter().map(|d| (d.id, d.sds)).collect(),
            excess: share.iter().map(|s| -s).collect(),
            share,
            on: vec![Vec::new(); homes.len()],
            spread: Spread::new(homes.len()),
            stuck: vec![false; homes.len()],
            homes,
            moves: Vec::new(),
        };
        for (group, one) in held.iter().enumerate() {
            let [a, b] = scales.at[group];
            for home in [a, b].into_iter().filter(|h| *h != HOMELESS) {
                scales.on[home].push(group);
                scales.excess[home] += one.weight as f64;
            }
            if a != HOMELESS && b != HOMELESS {
                scales.spread.join(a, b);
            }
        }
        Ok(scales)
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
        let mut others: Vec<usize> = (0..self.homes.len()).filter(|h| *h != worst).collect();
        for chain in [false, true] {
            let mut left = others.len();
            while left > 0 {
                // The best of those that are left comes last; most often the first one will do.
                let order = |a: &usize, b: &usize| self.relative(*a).total_cmp(&self.relative(*b));
                let rest = 0..left;
                let best = match gives {
                    true => rest.min_by(|a, b| order(&others[*a], &others[*b])),
                    false => rest.max_by(|a, b| order(&others[*a], &others[*b])),
                };
                left -= 1;
                others.swap(best.expect("some are left"), left);
                let (from, to) = if gives { (worst, others[left]) } else { (others[left], worst) };
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

    /// Moves the best replica of those that may go this way.
    fn shift(&mut self, from: usize, to: usize) -> bool {
        let may = |g: &&usize| {
            let side = self.side(**g, from);
            !self.moved[**g] && self.fits(**g, side, to) && self.helps(**g, from, to)
        };
        let best = self.on[from].iter().filter(may).min_by_key(|g| {
            let side = self.side(**g, from);
            (self.rarity(**g, side, to), core::cmp::Reverse(self.held[**g].weight), **g)
        });
        let Some(group) = best.copied() else { return false };
        let side = self.side(group, from);
        self.go(group, side, to);
        true
    }

    /// All that `from` could give has its other replica on the server of `to`: it gives one to a third home,
    /// which gives another one to `to`.
    fn shift_by_two(&mut self, from: usize, to: usize) -> bool {
        let first = |g: &&usize| !self.moved[**g] && self.helps(**g, from, to);
        for one in self.on[from].iter().filter(first).copied() {
            let side = self.side(one, from);
            let third = |h: &usize| *h != from && *h != to && self.fits(one, side, *h);
            for via in (0..self.homes.len()).filter(third) {
                let second = |g: &&usize| {
                    let light = self.held[**g].weight <= self.held[one].weight;
                    !self.moved[**g]
                        && light
                        && **g != one
                        && self.fits(**g, self.side(**g, via), to)
                };
                if let Some(other) = self.on[via].iter().find(second).copied() {
                    self.go(one, side, via);
                    self.go(other, self.side(other, via), to);
                    return true;
                }
            }
        }
        false
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
        let (held, from) = (&self.held[group], self.at[group][side]);
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
        self.moved[group] = true;
        let (from, to) = (held.replicas[side], self.homes[to].id);
        self.moves.push(Move { group: held.group, from, to });
    }
}

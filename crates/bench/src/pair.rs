//! Measures the floor, Gabion, the floor, Gabion, ... the floor, so that other work on the machine
//! affects both.

use crate::drive::Work;
use crate::figures::Figures;
use crate::floor::Floor;
use crate::test_cluster::TestCluster;
use anyhow::Result;
use std::time::Duration;

/// A load, and the floor to compare it with.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pair {
    /// The floor.
    pub floor: Floor,
    /// The load.
    pub work: Work,
}

/// The measurements: one more of the floor than of Gabion. `T` is the result of one measurement.
#[derive(Clone, Debug)]
pub struct Rounds<T> {
    floors: Vec<T>,
    ours: Vec<T>,
}

/// The spread of ratios of Gabion to the floor, or of any figure that was measured several times.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl Pair {
    /// Measures both sides in turn.
    pub fn run(
        &self,
        title: &str,
        cluster: &TestCluster,
        rounds: usize,
        window: Duration,
    ) -> Result<Rounds<Figures>> {
        Rounds::take(
            rounds,
            |at| self.floor.measure(&format!("{title}, floor, {at}"), window),
            |at| {
                let title = format!("{title}, Gabion, {at}");
                cluster.volume.measure(&title, &self.work, &cluster.processes, window)
            },
        )
    }
}

impl<T> Rounds<T> {
    /// Measures both sides in turn, beginning and ending with the floor.
    pub fn take(
        rounds: usize,
        mut floor: impl FnMut(&str) -> Result<T>,
        mut ours: impl FnMut(&str) -> Result<T>,
    ) -> Result<Rounds<T>> {
        let at = |i: usize| format!("round {i} of {rounds}");
        let mut taken = Rounds { floors: vec![floor(&at(1))?], ours: Vec::new() };
        for i in 1..=rounds {
            taken.ours.push(ours(&at(i))?);
            taken.floors.push(floor(&at(i))?);
        }
        Ok(taken)
    }

    /// Returns the median of a figure of the floor.
    pub fn floor(&self, of: impl Fn(&T) -> f64) -> f64 {
        Spread::of(self.floors.iter().map(of)).median
    }

    /// Returns the median of a figure of Gabion.
    pub fn ours(&self, of: impl Fn(&T) -> f64) -> f64 {
        Spread::of(self.ours.iter().map(of)).median
    }

    /// Returns the spread of a figure of Gabion.
    pub fn spread(&self, of: impl Fn(&T) -> f64) -> Spread {
        Spread::of(self.ours.iter().map(of))
    }

    /// Returns the last measurement of Gabion.
    pub fn last(&self) -> Option<&T> {
        self.ours.last()
    }

    /// Subtracts from each figure of Gabion the mean of the floors before and after it.
    pub fn difference(&self, of: impl Fn(&T) -> f64) -> Spread {
        let beside = self.floors.windows(2).map(|f| (of(&f[0]) + of(&f[1])) / 2.0);
        Spread::of(self.ours.iter().zip(beside).map(|(ours, floor)| of(ours) - floor))
    }

    /// Divides each figure of Gabion by the mean of the floors before and after it.
    pub fn ratio(&self, of: impl Fn(&T) -> f64) -> Spread {
        let beside = self.floors.windows(2).map(|f| (of(&f[0]) + of(&f[1])) / 2.0);
        Spread::of(self.ours.iter().zip(beside).map(|(ours, floor)| of(ours) / floor))
    }
}

impl Spread {
    /// Returns the spread of at least one value.
    pub fn of(values: impl Iterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
        Spread {
            median: at(values.len() / 2),
            low: at(0),
            high: at(values.len().saturating_sub(1)),
        }
    }

    /// Returns the growth from `start` to this spread, with its lowest and highest possible values.
    pub fn over(&self, start: &Spread) -> Spread {
        Spread {
            median: self.median / start.median,
            low: self.low / start.high,
            high: self.high / start.low,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_is_divided_by_the_floors_beside_it() {
        // The machine becomes twice as slow halfway through: the ratio stays.
        let (mut floors, mut ours) = ([1.0, 1.0, 2.0, 2.0].iter(), [2.0, 3.0, 4.0].iter());
        let next = |of: &mut std::slice::Iter<'_, f64>| Ok(*of.next().unwrap());
        let rounds = Rounds::take(3, |_| next(&mut floors), |_| next(&mut ours)).unwrap();
        assert_eq!(rounds.ratio(|n| *n), Spread { median: 2.0, low: 2.0, high: 2.0 });
        assert_eq!((rounds.floor(|n| *n), rounds.ours(|n| *n)), (2.0, 3.0));
        assert_eq!(rounds.difference(|n| *n), Spread { median: 1.5, low: 1.0, high: 2.0 });
    }

    #[test]
    fn growth_takes_the_widest_spread() {
        let (start, end) = (Spread::of([1.0, 2.0, 4.0].into_iter()), Spread::of([4.0].into_iter()));
        assert_eq!(end.over(&start), Spread { median: 2.0, low: 1.0, high: 4.0 });
    }
}

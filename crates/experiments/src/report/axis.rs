//! An axis of a plot: its scale, the range that surrounds its values, and its ticks.

use super::number::tick;

/// The scale of an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scale {
    /// Equal differences have equal distances; it begins at 0.
    Linear,
    /// Equal ratios have equal distances; values of 0 and less are not shown.
    Log,
    /// Seconds since the beginning, in equal distances, labelled in minutes and seconds.
    Time,
}

/// An axis, before its range is known.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Axis {
    /// What it shows, with the unit.
    pub title: String,
    pub scale: Scale,
}

/// Maps the values of a range to coordinates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// Creates a linear axis.
    pub(crate) fn linear(title: &str) -> Axis {
        Axis { title: title.to_owned(), scale: Scale::Linear }
    }

    /// Creates a logarithmic axis.
    pub(crate) fn log(title: &str) -> Axis {
        Axis { title: title.to_owned(), scale: Scale::Log }
    }

    /// Creates an axis of time in seconds.
    pub(crate) fn time(title: &str) -> Axis {
        Axis { title: title.to_owned(), scale: Scale::Time }
    }

    /// Returns the range that surrounds these values, between two coordinates.
    pub(crate) fn range(&self, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Range {
        let shown = values.filter(|v| self.scale.shows(*v));
        let (low, high) =
            shown.fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = match self.scale {
            Scale::Log if low <= high => (step_below(low), step_above(high)),
            Scale::Log => (1.0, 10.0),
            Scale::Time => (0.0, high.max(1.0)),
            Scale::Linear if high > 0.0 => (0.0, high * 1.05),
            Scale::Linear => (0.0, 1.0),
        };
        Range { scale: self.scale, low, high, from, to }
    }
}

impl Scale {
    /// Returns true for values that have a place on the axis.
    pub(crate) fn shows(self, value: f64) -> bool {
        value.is_finite() && (value > 0.0 || (value == 0.0 && self != Scale::Log))
    }

    /// Formats a value of the axis.
    pub(crate) fn text(self, value: f64) -> String {
        match self {
            Scale::Time => format!("{}:{:02}", value as u64 / 60, value as u64 % 60),
            _ => tick(value),
        }
    }
}

impl Range {
    /// Returns the coordinate of a value.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
            _ => (value - self.low) / (self.high - self.low),
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Returns round values within the range.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Log => powers(self.low, self.high),
            Scale::Linear => multiples(round_step(self.high / 5.0), self.high),
            Scale::Time => multiples(time_step(self.high / 8.0), self.high),
        }
    }
}

/// Returns the multiples of a step up to an end, beginning with 0.
fn multiples(step: f64, end: f64) -> Vec<f64> {
    (0..).map(|i| f64::from(i) * step).take_while(|v| *v <= end).collect()
}

/// Returns the smallest of 1, 2 and 5 times a power of ten that is not below `n`.
fn round_step(n: f64) -> f64 {
    let power = 10f64.powi(n.log10().floor() as i32);
    [1.0, 2.0, 5.0].into_iter().map(|f| f * power).find(|s| *s >= n).unwrap_or(10.0 * power)
}

/// Returns the smallest round number of seconds, minutes or hours that is not below `n`.
fn time_step(n: f64) -> f64 {
    let steps = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0];
    steps.into_iter().find(|s| *s >= n).unwrap_or_else(|| (n / 3600.0).ceil() * 3600.0)
}

/// Returns 1, 2 and 5 times powers of ten in a range; only powers of ten if these are many.
fn powers(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let factors: &[f64] = if last - first > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let all = (first..=last).flat_map(|e| factors.iter().map(move |f| f * 10f64.powi(e)));
    all.filter(|n| (low * 0.999..=high * 1.001).contains(n)).collect()
}

/// Returns the largest of 1, 2 and 5 times a power of ten that is not above `n`.
fn step_below(n: f64) -> f64 {
    let power = 10f64.powi(n.log10().floor() as i32);
    [5.0, 2.0].into_iter().map(|f| f * power).find(|s| *s <= n).unwrap_or(power)
}

/// Returns the smallest such number that is above `n`.
fn step_above(n: f64) -> f64 {
    let power = 10f64.powi(n.log10().floor() as i32);
    [2.0, 5.0].into_iter().map(|f| f * power).find(|s| *s > n).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_surround_the_values() {
        let (low, high) = (step_below(1.7), step_above(83.0));
        assert_eq!(powers(low, high), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!((step_below(300.0), step_above(500.0)), (200.0, 1000.0));
        assert_eq!(powers(1e2, 1e7).len(), 6);
        let range = Axis::linear("").range([3.0, 9.0].into_iter(), 0.0, 100.0);
        assert_eq!(range.ticks(), [0.0, 2.0, 4.0, 6.0, 8.0]);
        let range = Axis::time("").range([200.0].into_iter(), 0.0, 100.0);
        assert_eq!(range.ticks(), [0.0, 30.0, 60.0, 90.0, 120.0, 150.0, 180.0]);
        assert_eq!(Scale::Time.text(90.0), "1:30");
    }

    #[test]
    fn a_value_has_its_place_between_the_ends() {
        let range = Axis::log("").range([1.0, 80.0].into_iter(), 0.0, 100.0);
        assert_eq!((range.at(1.0), range.at(10.0).round(), range.at(100.0)), (0.0, 50.0, 100.0));
        let range = Axis::linear("").range([0.0, 10.0].into_iter(), 100.0, 0.0);
        assert_eq!((range.at(0.0), range.at(10.5)), (100.0, 0.0));
        for axis in [Axis::linear(""), Axis::log(""), Axis::time("")] {
            let range = axis.range([0.0, f64::NAN].into_iter(), 0.0, 100.0);
            assert!(range.at(1.0).is_finite() && !range.ticks().is_empty(), "{axis:?}");
        }
    }
}

//! Policies that throttle background copies in favour of clients. A storage pool has one policy for
//! rebuilds and one for moves.
//!
//! There are four named kinds of policy. Each is a setting of the same few numbers, and a shard
//! uses only these numbers. As text: `unlimited`, `concurrent:N`, `favour[:TIMES[:FLOOR]]`,
//! `latency:BOUND[:FLOOR]`. A BOUND is a percentage of the latency without copies (`200%`), or a
//! time (`20ms`, `500us`). A FLOOR is bytes per second (`64KiB` to `1GiB`), or the time in which a
//! whole device is copied (`10m` to `7d`).

use crate::{GIB, KIB, MIB};
use core::fmt;
use core::str::FromStr;

/// How copies yield to clients on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Copies at a time, 1 to 16. 0: as many as [`crate::Limits::copies`] allows.
    pub copies: u32,
    /// The bound on the number of copies also applies while no client is active.
    pub always: bool,
    /// While clients are active: each copy is followed by a rest of this many times (1 to 100) its
    /// duration. 0: no rest.
    pub rest: u32,
    /// While clients are active: copies rest long enough that the 99th percentile of client latency
    /// stays below this percentage (110 to 1000) of the value without copies. 0: no bound.
    pub percent: u32,
    /// The same with a bound in microseconds (50 to 10,000,000). 0: no bound.
    pub micros: u32,
    /// The floor, in bytes per second (64 KiB to 1 GiB). No rest makes copies slower than that, so
    /// every copy completes. 0: copies never rest, or the floor is a time.
    pub floor: u64,
    /// The floor as a time: minutes (10 to 10,080) in which a device's capacity is copied. 0: the
    /// floor is not a time.
    pub within: u32,
}

/// The error for a policy with an unknown name, or a number out of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoPolicy;

impl fmt::Display for NoPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a policy is `unlimited`, `concurrent:N` with N from 1 to 16, `favour:TIMES:FLOOR` with TIMES from 1 to \
             100, or `latency:BOUND:FLOOR` with a BOUND from 110% to 1000% or from 50us to 10000ms; a FLOOR is \
             bytes per second, from 64KiB to 1GiB, or the time in which a whole device is copied, from 10m to 7d, \
             and may be left out",
        )
    }
}

impl core::error::Error for NoPolicy {}

/// The default floor, in bytes per second.
const FLOOR: u64 = 2 * MIB;
/// A day in minutes.
const DAY: u32 = 24 * 60;

/// Units of a floor in bytes per second. The first one has the scale 1.
const BYTES: &[(&str, u64)] = &[("", 1), ("KiB", KIB), ("MiB", MIB), ("GiB", GIB)];
/// Units of a floor that is a time, with their scale in minutes.
const MINUTES: &[(&str, u64)] = &[("m", 1), ("h", 60), ("d", DAY as u64)];

impl Policy {
    /// Copies as fast as possible.
    pub const UNLIMITED: Policy =
        Policy { copies: 0, always: false, rest: 0, percent: 0, micros: 0, floor: 0, within: 0 };

    /// Runs this many copies at a time, whatever clients do.
    pub const fn concurrent(copies: u32) -> Policy {
        Policy { copies, always: true, ..Policy::UNLIMITED }
    }

    /// Prefers clients: one copy at a time, then a rest of `rest` times its duration.
    pub const fn favour(rest: u32, floor: u64) -> Policy {
        Policy { copies: 1, rest, floor, ..Policy::UNLIMITED }
    }

    /// Runs two copies at a time, which rest while the 99th percentile of client latency exceeds
    /// `percent` of its value without copies.
    pub const fn latency_percent(percent: u32, floor: u64) -> Policy {
        Policy { copies: 2, percent, floor, ..Policy::UNLIMITED }
    }

    /// The same with a bound in microseconds.
    pub const fn latency_micros(micros: u32, floor: u64) -> Policy {
        Policy { copies: 2, micros, floor, ..Policy::UNLIMITED }
    }

    /// Returns the same policy with a floor that is a time in minutes.
    pub const fn finished_within(self, minutes: u32) -> Policy {
        Policy { floor: 0, within: minutes, ..self }
    }

    /// Returns the policy for a device of this many bytes, with its floor in bytes per second.
    pub fn on(self, capacity: u64) -> Policy {
        match u64::from(self.within) * 60 {
            0 => self,
            seconds => {
                Policy { floor: (capacity / seconds).clamp(64 * KIB, GIB), within: 0, ..self }
            }
        }
    }

    /// Returns true if the policy needs the latency of client requests.
    pub fn is_by_latency(&self) -> bool {
        self.percent > 0 || self.micros > 0
    }

    /// Returns true if copies rest while clients are active.
    pub fn rests(&self) -> bool {
        self.rest > 0 || self.is_by_latency()
    }

    /// Checks that the policy is one of the named kinds and that all numbers are in range.
    pub fn check(&self) -> Result<(), NoPolicy> {
        let floor = match self.within {
            0 => (64 * KIB..=GIB).contains(&self.floor),
            minutes => self.floor == 0 && (10..=7 * DAY).contains(&minutes),
        };
        let plain = Policy { floor: self.floor, within: 0, ..*self };
        let named = match plain {
            Policy { copies, always: true, .. } => {
                (1..=16).contains(&copies) && *self == Policy::concurrent(copies)
            }
            Policy { percent: 1.., .. } => {
                let ranges = (110..=1000).contains(&self.percent) && floor;
                ranges && plain == Policy::latency_percent(self.percent, self.floor)
            }
            Policy { micros: 1.., .. } => {
                let ranges = (50..=10_000_000).contains(&self.micros) && floor;
                ranges && plain == Policy::latency_micros(self.micros, self.floor)
            }
            Policy { rest: 1.., .. } => {
                self.rest <= 100 && floor && plain == Policy::favour(self.rest, self.floor)
            }
            _ => *self == Policy::UNLIMITED,
        };
        if named { Ok(()) } else { Err(NoPolicy) }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Policy { always: true, copies, .. } => return write!(f, "concurrent:{copies}"),
            Policy { percent: percent @ 1.., .. } => write!(f, "latency:{percent}%")?,
            Policy { micros: us @ 1.., .. } if us.is_multiple_of(1000) => {
                write!(f, "latency:{}ms", us / 1000)?;
            }
            Policy { micros: us @ 1.., .. } => write!(f, "latency:{us}us")?,
            Policy { rest: rest @ 1.., .. } => write!(f, "favour:{rest}")?,
            _ => return f.write_str("unlimited"),
        }
        let (floor, units) = match self.within {
            0 => (self.floor, BYTES),
            minutes => (minutes.into(), MINUTES),
        };
        let largest = units.iter().rev().find(|(_, scale)| floor.is_multiple_of(*scale));
        let (unit, scale) = largest.expect("the first unit is one");
        write!(f, ":{}{unit}", floor / scale)
    }
}

impl FromStr for Policy {
    type Err = NoPolicy;

    fn from_str(text: &str) -> Result<Policy, NoPolicy> {
        let mut words = text.split(':');
        let (name, number, floor) = (words.next(), words.next(), words.next());
        let minutes = floor.and_then(|text| scaled(text, MINUTES));
        let bytes = match floor.filter(|_| minutes.is_none()) {
            Some(text) => scaled(text, BYTES).ok_or(NoPolicy)?,
            None => FLOOR,
        };
        let policy = match (name, number, floor) {
            (Some("unlimited"), None, None) => Policy::UNLIMITED,
            (Some("concurrent"), Some(n), None) => Policy::concurrent(number_of(n)?),
            (Some("favour"), n, _) => Policy::favour(n.map_or(Ok(3), number_of)?, bytes),
            (Some("latency"), Some(n), _) => match n.strip_suffix('%') {
                Some(percent) => Policy::latency_percent(number_of(percent)?, bytes),
                None => Policy::latency_micros(micros_of(n)?, bytes),
            },
            _ => return Err(NoPolicy),
        };
        let policy = match minutes.map(u32::try_from) {
            Some(minutes) => policy.finished_within(minutes.map_err(|_| NoPolicy)?),
            None => policy,
        };
        let over = words.next().is_some();
        policy.check().and(if over { Err(NoPolicy) } else { Ok(policy) })
    }
}

fn number_of(text: &str) -> Result<u32, NoPolicy> {
    text.parse().map_err(|_| NoPolicy)
}

fn micros_of(text: &str) -> Result<u32, NoPolicy> {
    match (text.strip_suffix("us"), text.strip_suffix("ms")) {
        (Some(us), _) => number_of(us),
        (_, Some(ms)) => number_of(ms)?.checked_mul(1000).ok_or(NoPolicy),
        _ => Err(NoPolicy),
    }
}

/// Parses a number with one of these units.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let number = |(unit, scale): &(&str, u64)| Some((text.strip_suffix(unit)?, *scale));
    let (number, scale) = units.iter().rev().find_map(number)?;
    number.parse::<u64>().ok()?.checked_mul(scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn policies_are_written_as_they_are_read() {
        for text in [
            "unlimited",
            "concurrent:1",
            "concurrent:16",
            "favour:1:1MiB",
            "favour:100:64KiB",
            "latency:200%:1GiB",
            "latency:20ms:1MiB",
            "latency:50us:65537",
            "latency:150%:4h",
            "latency:20ms:90m",
            "favour:3:7d",
        ] {
            assert_eq!(text.parse::<Policy>().unwrap().to_string(), text);
        }
        assert_eq!("favour".parse(), Ok(Policy::favour(3, FLOOR)));
        assert_eq!("favour:5".parse(), Ok(Policy::favour(5, FLOOR)));
        assert_eq!("latency:150%".parse(), Ok(Policy::latency_percent(150, FLOOR)));
    }

    #[test]
    fn a_policy_out_of_range_is_none() {
        for text in [
            "",
            "fast",
            "unlimited:1",
            "concurrent",
            "concurrent:0",
            "concurrent:17",
            "concurrent:1:1MiB",
            "favour:0",
            "favour:101",
            "favour:1:63KiB",
            "favour:1:2GiB",
            "favour:1:1MiB:1",
            "latency",
            "latency:20",
            "latency:100%",
            "latency:1001%",
            "latency:49us",
            "latency:10001ms",
            "latency:99999999999ms",
            "latency:200%:0",
            "latency:200%:9m",
            "favour:3:8d",
            "favour:3:99999999999d",
            "concurrent:1:4h",
            "latency:200%:18446744073709551615GiB",
        ] {
            assert_eq!(text.parse::<Policy>(), Err(NoPolicy), "{text}");
        }
        // Numbers of several kinds together, or a rest without a floor, make no named policy.
        let both = Policy { rest: 1, ..Policy::latency_percent(200, MIB) };
        let endless = Policy::favour(1, 0);
        let many = Policy { copies: 2, ..Policy::favour(1, MIB) };
        let held = Policy { always: true, ..Policy::favour(1, MIB) };
        let some = Policy { copies: 3, ..Policy::UNLIMITED };
        let twice = Policy { within: 60, ..Policy::favour(1, MIB) };
        let timed = Policy::UNLIMITED.finished_within(60);
        for policy in [both, endless, many, held, some, twice, timed] {
            assert_eq!(policy.check(), Err(NoPolicy), "{policy:?}");
        }
    }

    #[test]
    fn a_time_is_a_floor_of_the_device() {
        let policy: Policy = "latency:150%:4h".parse().unwrap();
        let tib = 1 << 40;
        assert_eq!(policy.on(4 * tib), Policy::latency_percent(150, tib / 3600));
        assert_eq!(policy.on(MIB), Policy::latency_percent(150, 64 * KIB));
        assert_eq!(policy.on(u64::MAX), Policy::latency_percent(150, GIB));
        assert_eq!(Policy::favour(3, MIB).on(tib), Policy::favour(3, MIB));
    }
}

//! Clock faults that break leases, and proof that the simulator notices them.
//! `docs/operate/hosts.md` allows all smaller ones.
//!
//! In each run, a server loses the paths to all but one client, which reads from it without a
//! pause, while another client writes the same blocks at the servers that took over.

use crate::common::alone;
use base::Limits;
use sim::plan::clocks::{MOST_DRIFT_PPM, may_stand};
use sim::plan::{Plan, Who};
use sim::run::run;
use sim::trace::Sink;
use std::fmt::Write;
use std::time::Duration;

const SEEDS: u64 = 12;
/// Time at which the paths break, in ms.
const CUT: u64 = 1500;

/// Returns the plan in which server `alone` is cut off, with this clock fault.
fn story(seed: u64, alone: u8, fault: &str) -> Plan {
    let other = 1 - alone;
    let mut text = format!("gabion-plan 1\nseed {seed}\nsds 2\nclients 2\nvolume 4\ncapacity 16\n");
    // Others take over soon, so that only the leases order the reads.
    text += "depth 8\nlength 6.0\nlimit suspect_after 500000\nweather tcp_ms 30000\n";
    let mut steps: Vec<(u64, String)> = Vec::new();
    let pairs = [
        ("mdm".to_string(), format!("sds{alone}")),
        (format!("sds{other}"), format!("sds{alone}")),
        ("sdc1".to_string(), format!("sds{alone}")),
        ("mdm".to_string(), "sdc0".to_string()),
        (format!("sds{other}"), "sdc0".to_string()),
    ];
    for (a, b) in pairs {
        steps.push((CUT, format!("block {a} {b}")));
        steps.push((CUT, format!("block {b} {a}")));
    }
    for ms in (0..5900).step_by(20) {
        for unit in 0..4 {
            let sector = unit * 2048;
            steps.push((ms, format!("write 1 0 {sector} 8")));
            steps.push((ms, format!("read 0 0 {sector} 8")));
        }
    }
    for line in fault.lines() {
        let (ms, action) = line.split_once(' ').expect("a time in ms and an action");
        steps.push((ms.parse().expect("a time in ms"), action.to_string()));
    }
    steps.sort_by_key(|s| s.0);
    for (ms, action) in steps {
        writeln!(text, "at {}.{:03} {action}", ms / 1000, ms % 1000)
            .expect("strings can be written");
    }
    text.parse().expect("the story can be read")
}

/// Returns the failures of the runs with a fault. `fault` gets the server that is cut off,
/// and the other one.
fn verdicts(fault: impl Fn(Who, Who) -> String) -> Vec<String> {
    let stories = (0..SEEDS).flat_map(|seed| [(seed, 0), (seed, 1)]);
    let outcomes = stories.map(|(seed, alone)| {
        let fault = fault(Who::Sds(alone), Who::Sds(1 - alone));
        run(&story(seed, alone, &fault), Sink::Off)
    });
    outcomes.filter_map(|o| o.failure).map(|f| f.to_string()).collect()
}

/// Lets both clocks drift as far as allowed, from before the beacons on whose
/// leases the reads depend.
fn most_drift(alone: Who, other: Who) -> String {
    format!("100 drift {alone} -{MOST_DRIFT_PPM}\n100 drift {other} {MOST_DRIFT_PPM}\n")
}

fn halt(ms: u64, who: Who, time: Duration) -> String {
    let end = ms + time.as_millis() as u64;
    format!("{ms} halt {who} {}\n{end} resume {who}\n", time.as_micros())
}

#[test]
fn leases_hold_whatever_clocks_do_within_the_bounds() {
    let _alone = alone();
    let none = verdicts(|_, _| String::new());
    assert!(none.is_empty(), "{none:?}");
    // A suspended host: its clock runs on.
    let suspend = verdicts(|alone, _| format!("1600 pause {alone}\n4000 resume {alone}\n"));
    assert!(suspend.is_empty(), "{suspend:?}");
    let drift = verdicts(|alone, other| {
        format!("1000 drift {alone} -{MOST_DRIFT_PPM}\n1700 drift {other} {MOST_DRIFT_PPM}\n")
    });
    assert!(drift.is_empty(), "{drift:?}");
    let apart = verdicts(most_drift);
    assert!(apart.is_empty(), "{apart:?}");
    // A stop as long as an operator may allow, at several moments of the lease.
    for ms in [1400, 1700, 2000, 2300] {
        let short = may_stand(&Limits::TEST_MIN, 0);
        let stop = verdicts(|alone, _| halt(ms, alone, short));
        assert!(stop.is_empty(), "at {ms}: {stop:?}");
    }
    // Processes that hold no leases may have any clock.
    let others = verdicts(|_, other| {
        let stop = halt(1600, other, Duration::from_secs(2));
        format!(
            "{stop}1600 leap mdm 5000\n2500 leap sdc0 5000\n2500 halt sdc1 500000\n3000 resume sdc1\n"
        )
    });
    assert!(others.is_empty(), "{others:?}");
}

#[test]
#[cfg(feature = "mutants")]
fn a_promise_without_its_margin_is_noticed_by_drift_alone() {
    let alone = alone();
    let both = || (verdicts(|_, _| String::new()), verdicts(most_drift));
    let (exact, apart) =
        alone.without_rule(base::Mutant::NoMargin, both).expect("they are built in");
    assert!(exact.is_empty(), "while clocks are exact: {exact:?}");
    assert!(!apart.is_empty() && apart.iter().all(|v| v.starts_with("I2")), "{apart:?}");
}

#[test]
fn a_stop_of_a_server_beyond_the_bound_is_noticed() {
    let _alone = alone();
    let stopped = verdicts(|alone, _| halt(1600, alone, Duration::from_secs(2)));
    assert!(!stopped.is_empty() && stopped.iter().all(|v| v.starts_with("I2")), "{stopped:?}");
}

#[test]
fn clocks_that_drift_further_apart_are_noticed() {
    let _alone = alone();
    let apart =
        verdicts(|alone, other| format!("1000 drift {alone} -300000\n1000 drift {other} 300000\n"));
    assert!(!apart.is_empty() && apart.iter().all(|v| v.starts_with("I2")), "{apart:?}");
}

#[test]
fn a_server_s_clock_that_jumps_ahead_of_time_is_noticed() {
    let _alone = alone();
    let ahead = verdicts(|_, other| format!("1600 leap {other} 3000\n"));
    assert!(!ahead.is_empty() && ahead.iter().all(|v| v.starts_with("I2")), "{ahead:?}");
}

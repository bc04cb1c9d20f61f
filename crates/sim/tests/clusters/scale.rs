//! Small clusters of the kinds that `gabion-sim scale` runs: what holds for three
//! servers holds for many.

use crate::common::alone;
use base::Mutant;
use sim::scale::Shape;

#[test]
fn a_lost_server_is_rebuilt_in_large_domains() {
    let alone = alone();
    let shapes = [(20, 10, 1), (160, 1, 8)];
    for (servers, devices, domains) in shapes {
        let shape = Shape { servers, devices, domains };
        println!("{}", shape.run().unwrap());
    }
    let small = Shape { servers: 8, devices: 10, domains: 1 };
    if let Some(caught) = alone.without_rule(Mutant::JudgeAlone, || small.run()) {
        let why = format!("{:#}", caught.expect_err("each device is an entry by itself"));
        assert!(why.contains("entries"), "{why}");
    }
}

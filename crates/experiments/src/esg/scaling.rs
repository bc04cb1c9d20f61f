//! Step `scaling`: 3 to 128 nodes with NULL devices, in two layouts, each figure between two
//! floors. A size that can't be measured becomes a row with the reason; the others are measured.

use super::bed::{self, Bed, Medium, Setup};
use super::point::{APART, Measured, PACKED, Point};
use super::published::Kind;
use crate::log::Log;
use anyhow::Result;
use bench::interrupt;
use bench::pair::Rounds;
use bench::test_cluster::Layout;
use std::cell::RefCell;

/// Returns the layouts to measure, in order, with their names.
pub(crate) fn plan(
    setup: &Setup,
    nodes: &[u32],
    per_process: Option<u32>,
    descriptors: u64,
) -> Vec<(Layout, String)> {
    let mut sizes = nodes.to_vec();
    sizes.sort_unstable();
    sizes.dedup();
    let named = |size: u32| match per_process {
        Some(1) => vec![(Layout::apart(size), APART.to_owned())],
        Some(per_process) => {
            vec![(Layout { servers: size, per_process }, format!("{per_process} per process"))]
        }
        None => vec![
            (setup.packed(size, descriptors), PACKED.to_owned()),
            (Layout::apart(size), APART.to_owned()),
        ],
    };
    sizes.into_iter().flat_map(named).collect()
}

/// Measures both workloads on one cluster.
pub(crate) fn measure(
    setup: &Setup,
    (layout, name): &(Layout, String),
    step: &str,
    log: &mut Log,
) -> Result<Vec<Point>> {
    let bed = Bed::start(setup, Medium::Null, *layout, log);
    interrupt::check()?;
    let mut points = Vec::new();
    for kind in Kind::ALL {
        let depth = setup.pair(*layout, kind).0.depth;
        let mut point = Point::new(*layout, name, kind, depth);
        let title = format!("{step}: {} SDSs, {name}, {}", layout.servers, kind.name());
        let shared = RefCell::new(&mut *log);
        let taken = match &bed {
            Err(why) => Err(format!("{why:#}")),
            Ok(bed) => Rounds::take(
                setup.rounds,
                |at| {
                    let title = format!("{title}, {at}");
                    bed::floor(setup, *layout, kind, &title, &mut shared.borrow_mut())
                },
                |at| bed.ours(setup, kind, &format!("{title}, {at}"), &mut shared.borrow_mut()),
            )
            .map_err(|why| format!("{why:#}")),
        };
        interrupt::check()?;
        match taken {
            Ok(taken) => point.measured = Some(Measured::of(&taken, layout.servers)),
            Err(why) => point.note = Some(why),
        }
        points.push(point);
    }
    if let Ok(bed) = &bed {
        bed.end(log)?;
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn sizes_run_in_order_in_both_layouts_or_in_the_one_that_was_asked_for() {
        let setup = Setup {
            devices_per_sds: 2,
            clients: 1,
            rounds: 1,
            window: Duration::from_secs(1),
            volume_min: 1,
            backend: rt::Backend::Auto,
            folder: ".".into(),
        };
        let layouts = |plan: &[(Layout, String)]| plan.iter().map(|p| p.0).collect::<Vec<_>>();
        let both = plan(&setup, &[32, 3, 32], None, 20_000);
        let expected = [Layout::packed(3), Layout::apart(3), Layout::packed(32), Layout::apart(32)];
        assert_eq!(layouts(&both), expected);
        let one = plan(&setup, &[16], Some(8), 20_000);
        assert_eq!((one[0].0.processes(), one[0].1.as_str(), one.len()), (2, "8 per process", 1));
    }
}

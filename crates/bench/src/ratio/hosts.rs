//! iSCSI against NBD, both over TCP: the same hosts, volume and data client.

use super::outcome::Outcome;
use super::rows::{BLOCK, HostRow};
use crate::cpu::Kind;
use crate::figures::Figures;
use crate::hosts::{self, Iscsi, Nbd, Work};
use crate::pair::Rounds;
use crate::test_cluster::TestCluster;
use anyhow::Result;
use std::net::SocketAddr;
use std::time::Duration;

/// Measures NBD and iSCSI in turn, at these addresses of the data client.
pub(crate) fn measure(
    row: &HostRow,
    cluster: &TestCluster,
    (nbd, iscsi): (SocketAddr, SocketAddr),
    rounds: usize,
    window: Duration,
) -> Result<Outcome> {
    let work = Work { mix: row.mix, block: BLOCK, depth: row.depth };
    let (processes, size) = (&cluster.processes, cluster.volume.size);
    let target = cluster.iscsi_target()?;
    let taken = Rounds::take(
        rounds,
        |at| {
            let title = format!("{}, NBD, {at}", row.title);
            let host = Nbd::new(&cluster.volume.name, BLOCK);
            hosts::load(&title, host, (nbd, size), work, processes, window)
        },
        |at| {
            let title = format!("{}, iSCSI, {at}", row.title);
            let host = Iscsi::new(&target, row.digests);
            hosts::load(&title, host, (iscsi, size), work, processes, window)
        },
    )?;
    let figure = |f: &Figures| if row.depth == 1 { f.latency_us.p50 } else { client_us(f) };
    let unit = if row.depth == 1 { "us median latency" } else { "us of the SDC" };
    let (us, ours_us) = (taken.floor(figure), taken.ours(figure));
    Ok(Outcome {
        note: Some(format!(
            "IOPS: NBD {:.0}, iSCSI {:.0}",
            taken.floor(|f| f.iops),
            taken.ours(|f| f.iops)
        )),
        process_ratio: Some(taken.ratio(|f| f.process_us_per_io).median),
        machine_ratio: Some(taken.ratio(|f| f.machine_us_per_io).median),
        ..Outcome::new(row.name, row.title, unit, row.target)
            .with_figures([us, ours_us], [us, ours_us])
            .with_ratio(taken.ratio(figure))
    })
}

/// Returns the processor time of the data client per request.
fn client_us(figures: &Figures) -> f64 {
    figures.cpu.iter().filter(|k| k.kind == Kind::Sdc).map(|k| k.us_per_io).sum()
}

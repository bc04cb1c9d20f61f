//! iSCSI and NVMe/TCP against NBD, all over TCP: the same hosts, volume and data client.

use super::outcome::Outcome;
use super::rows::{BLOCK, HostProtocol, HostRow};
use crate::cpu::Kind;
use crate::figures::Figures;
use crate::hosts::{self, Iscsi, Nbd, Nvme, Work};
use crate::pair::Rounds;
use crate::test_cluster::{Ports, TestCluster};
use anyhow::Result;
use std::time::Duration;

/// Measures NBD and the row's protocol in turn.
pub(crate) fn measure(
    row: &HostRow,
    cluster: &TestCluster,
    ports: Ports,
    rounds: usize,
    window: Duration,
) -> Result<Outcome> {
    let work = Work { mix: row.mix, block: BLOCK, depth: row.depth };
    let (processes, size) = (&cluster.processes, cluster.volume.size);
    let volume = cluster.published()?;
    let (name, title) = (row.protocol.name(), row.title());
    let taken = Rounds::take(
        rounds,
        |at| {
            let title = format!("{title}, NBD, {at}");
            let host = Nbd::new(&volume.name, BLOCK);
            hosts::load(&title, host, (ports.nbd, size), work, processes, window)
        },
        |at| {
            let title = format!("{title}, {name}, {at}");
            match row.protocol {
                HostProtocol::Iscsi => {
                    let host = Iscsi::new(&volume.iscsi_target, row.digests);
                    hosts::load(&title, host, (ports.iscsi, size), work, processes, window)
                }
                HostProtocol::Nvme => {
                    let host = Nvme::new(&volume.nvme_subsystem, volume.id, row.digests);
                    hosts::load(&title, host, (ports.nvme, size), work, processes, window)
                }
            }
        },
    )?;
    let figure = |f: &Figures| if row.depth == 1 { f.latency_us.p50 } else { client_us(f) };
    let unit = if row.depth == 1 { "us median latency" } else { "us of the SDC" };
    let (us, ours_us) = (taken.floor(figure), taken.ours(figure));
    Ok(Outcome {
        note: Some(format!(
            "IOPS: NBD {:.0}, {name} {:.0}",
            taken.floor(|f| f.iops),
            taken.ours(|f| f.iops)
        )),
        process_ratio: Some(taken.ratio(|f| f.process_us_per_io).median),
        machine_ratio: Some(taken.ratio(|f| f.machine_us_per_io).median),
        ..Outcome::new(row.name, &title, unit, row.target)
            .with_figures([us, ours_us], [us, ours_us])
            .with_ratio(taken.ratio(figure))
    })
}

/// Returns the processor time of the data client per request.
fn client_us(figures: &Figures) -> f64 {
    figures.cpu.iter().filter(|k| k.kind == Kind::Sdc).map(|k| k.us_per_io).sum()
}

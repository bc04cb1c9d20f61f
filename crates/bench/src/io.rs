//! `gabion bench io`: measures Gabion under load, from inside an SDC.

use crate::drive::Work;
use crate::figures::Figures;
use crate::load::Data;
use crate::test_cluster::{self, Layout, Temporary, TestCluster};
use crate::workload::Workload;
use anyhow::{Context, Result, bail};
use clap::Args;
use daemon::size::Size;
use daemon::spec;
use fleet::target::Target;
use serde::Serialize;
use std::time::Duration;

/// Data servers of a temporary cluster, by default.
const SDS_DEFAULT: u32 = 3;

/// Options of `bench io`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Which cluster: the one that --mdm or --dir names; else, with --sds, a temporary one of NULL devices on \
this machine; else the one that `gabion up` runs in the default directory; else a temporary one of 3 \
SDSs. In a temporary cluster, and without --volume, a temporary volume is made, filled and deleted.

Examples:
  gabion bench io --sds 3                              4 KiB random reads, on NULL devices
  gabion bench io --sds 16 --sds-per-process 8 --workload randrw --depth 256
  gabion bench io --workload read --bs 1MiB --depth 8  sequential reads of the cluster that runs here
  gabion bench io --mdm 192.168.1.10:7001 --volume scratch --workload randwrite --jobs 2")]
pub struct IoArgs {
    /// The workload of each job
    #[arg(long, value_enum, default_value_t = Workload::Randread)]
    workload: Workload,
    /// Percentage of reads in randrw
    #[arg(long, default_value_t = 70, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    mix: u32,
    /// Size of a request, a multiple of 512
    #[arg(long, default_value = "4KiB", value_name = "SIZE", value_parser = block)]
    bs: Size,
    /// Requests in flight per job
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16384))]
    depth: u32,
    /// Requests per second and job, within --depth [default: as many as possible]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Jobs; each is a thread with its own SDC
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
    /// Seconds to measure, after a warm-up
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    seconds: f64,
    /// Load this existing volume. Workloads that write OVERWRITE its data
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
    /// Load a temporary cluster of N SDSs with one NULL device each
    #[arg(long, value_name = "N", conflicts_with = "volume", value_parser = clap::value_parser!(u32).range(1..=512))]
    sds: Option<u32>,
    /// SDSs per process in the temporary cluster
    #[arg(long, default_value_t = 1, value_name = "P", value_parser = clap::value_parser!(u32).range(1..=512))]
    sds_per_process: u32,
    /// How the temporary cluster and the load talk to the kernel: auto, uring or epoll
    #[arg(long, default_value = "auto")]
    backend: rt::Backend,
    /// Use TCP even between processes on this machine, as between hosts
    #[arg(long)]
    tcp_only: bool,
    /// Copy the data of each request from and to separate memory, as programs that call libgabion
    /// do
    #[arg(long)]
    copy: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    workload: String,
    mix_read_percent: Option<u32>,
    block_bytes: u32,
    depth: u32,
    jobs: u32,
    /// Data servers of the temporary cluster.
    sds: Option<u32>,
    sds_per_process: Option<u32>,
    #[serde(flatten)]
    figures: &'a Figures,
}

/// Parses `--bs`.
pub fn block(text: &str) -> Result<Size, String> {
    let size: Size = text.parse()?;
    if size.0 == 0 || !size.0.is_multiple_of(512) || size.0 > 32 << 20 {
        return Err(format!("`{text}` must be a multiple of 512, from 512 to 32MiB"));
    }
    Ok(size)
}

/// Parses `--seconds`.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if (0.1..=86_400.0).contains(&n) => Ok(n),
        _ => Err(format!("`{text}` must be a number of seconds, from 0.1 to 86400")),
    }
}

/// Runs `gabion bench io`.
pub fn run(target: &Target, args: &IoArgs) -> Result<()> {
    let work = Work {
        workload: args.workload,
        mix: args.mix,
        block: u32::try_from(args.bs.0).context("a request has less than 4 GiB")?,
        depth: args.depth,
        rate: args.rate,
        jobs: args.jobs,
        data: if args.copy { Data::Copied } else { Data::Shared },
    };
    let window = Duration::from_secs_f64(args.seconds);
    let title = format!("{} of {}, depth {} x {}", args.workload, args.bs, args.depth, args.jobs);
    let temporary = temporary(target, args)?;
    let figures = match temporary {
        Some(layout) => {
            let cluster = TestCluster::start(layout, args.backend, args.tcp_only)?;
            cluster.volume.measure(&title, &work, &cluster.processes, window)?
        }
        None => running(target, args, &work, &title, window)?,
    };
    if args.json {
        let document = Document {
            workload: args.workload.to_string(),
            mix_read_percent: (args.workload == Workload::Randrw).then_some(args.mix),
            block_bytes: work.block,
            depth: args.depth,
            jobs: args.jobs,
            sds: temporary.map(|l| l.servers),
            sds_per_process: temporary.map(|l| l.per_process),
            figures: &figures,
        };
        println!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        println!("{title}: {}", figures.page());
    }
    Ok(())
}

/// Returns the layout of the temporary cluster, if one is to be started.
fn temporary(target: &Target, args: &IoArgs) -> Result<Option<Layout>> {
    let layout = |servers| Layout { servers, per_process: args.sds_per_process };
    match args.sds {
        Some(_) if target.is_named() => {
            bail!("--sds starts a cluster of its own: leave out --dir and --mdm, or --sds")
        }
        Some(servers) => Ok(Some(layout(servers))),
        None if target.is_named() || target.connect().is_ok() => Ok(None),
        None if args.volume.is_some() => {
            bail!("no cluster runs in {}: name one with --dir or --mdm", target.dir.display())
        }
        None => Ok(Some(layout(SDS_DEFAULT))),
    }
}

/// Loads a running cluster.
fn running(
    target: &Target,
    args: &IoArgs,
    work: &Work,
    title: &str,
    window: Duration,
) -> Result<Figures> {
    let report = target.report()?;
    let processes = test_cluster::processes(&report);
    let Some(name) = &args.volume else {
        let (_made, volume) = Temporary::create(target, args.backend, args.tcp_only)?;
        return volume.measure(title, work, &processes, window);
    };
    let name = spec::volume_name(name).map_err(anyhow::Error::msg)?;
    let Some(volume) = report.volumes.iter().find(|v| v.name == name) else {
        bail!("there is no volume {name}: `gabion volume list` names them");
    };
    let (mdm, size) = (target.mdms()?, volume.size_bytes);
    let volume =
        crate::drive::Volume { mdm, name, size, backend: args.backend, tcp_only: args.tcp_only };
    volume.measure(title, work, &processes, window)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_whole_sectors() {
        assert_eq!(block("512"), Ok(Size(512)));
        assert_eq!(block("1MiB"), Ok(Size(1 << 20)));
        for bad in ["0", "100", "513", "33MiB", "x"] {
            assert!(block(bad).is_err(), "{bad}");
        }
        assert!(seconds("0.3").is_ok() && seconds("0").is_err() && seconds("NaN").is_err());
    }
}

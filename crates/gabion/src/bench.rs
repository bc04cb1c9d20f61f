//! `gabion bench`: measures what the kernel costs, and what Gabion costs on top of it.
//!
//! The benchmarks themselves are in the crate `bench`. `esg` is another name of an experiment.

use admin::exit::Exit;
use anyhow::Result;
use bench::{device, disk, floor, interrupt, io, ratio, rebuild};
use clap::Subcommand;
use experiments::{command as experiment, esg};
use fleet::target::Target;

/// The benchmarks.
#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {
    /// Load a cluster from inside an SDC: IOPS, latency, processor time per I/O
    Io(io::IoArgs),
    /// Bare TCP frames between processes, without any product logic
    Floor(floor::FloorArgs),
    /// The durable store on one device, without a cluster, compared with fio on the same device
    Device(device::DeviceArgs),
    /// A cluster of file devices on one disk, compared with fio on that disk and with the promises
    Disk(disk::DiskArgs),
    /// Ratios of Gabion's figures to the floor's in one run, compared with the promises
    Ratio(ratio::RatioArgs),
    /// Rebuild time after the loss of a server by cluster size, and its effect on clients
    Rebuild(rebuild::RebuildArgs),
    /// The same as `experiment esg`
    Esg(esg::EsgArgs),
    /// One server process of `floor`
    #[command(hide = true)]
    FloorServer(floor::ServerArgs),
}

/// Runs `gabion bench`.
pub(crate) fn run(target: &Target, command: &BenchCommand) -> Result<Exit> {
    if !matches!(command, BenchCommand::FloorServer(_) | BenchCommand::Esg(_)) {
        interrupt::watch()?;
    }
    match command {
        BenchCommand::Io(args) => io::run(target, args)?,
        BenchCommand::Device(args) => device::run(args)?,
        BenchCommand::Disk(args) => return disk::run(args),
        BenchCommand::Floor(args) => floor::run(args)?,
        BenchCommand::Rebuild(args) => return rebuild::run(args),
        BenchCommand::Ratio(args) => return ratio::run(args),
        BenchCommand::Esg(args) => return experiment::esg(args),
        BenchCommand::FloorServer(args) => floor::serve(args)?,
    }
    Ok(Exit::Ok)
}

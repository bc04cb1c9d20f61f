//! `gabion bench`: measures what the kernel costs, and what Gabion costs on top of it.
//!
//! `floor` exchanges bare frames between processes: no product logic, only heads and payloads of
//! the same sizes as Gabion's. `io` loads a cluster from inside an SDC, on the shard's own thread.
//! Both count requests and processor time over the same period, and print processor time per I/O
//! next to the rate: that of the participating processes, and that of the whole machine, because
//! the kernel's network work may be charged to any process. Only the ratio of the two, taken in one
//! run, is meaningful: `ratio` measures it. `esg` re-enacts a published experiment and writes a
//! report. `rebuild` kills servers and measures the time until all data has two copies again.
//! `disk` compares a durable cluster with `fio` on the same disk; `device` does so without cluster
//! and network.

mod cpu;
mod device;
mod disk;
pub mod drive;
mod esg;
mod figures;
mod floor;
pub mod interrupt;
pub mod io;
pub mod load;
mod name;
mod pair;
mod ratio;
mod rebuild;
mod rig;
pub mod tally;
pub mod workload;

use admin::exit::Exit;
use anyhow::Result;
use clap::Subcommand;
use fleet::target::Target;

/// The benchmarks.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
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
    /// ESG Lab's test of ScaleIO (2015) on this machine, 3 to 128 nodes, with plots and tables
    Esg(esg::EsgArgs),
    /// One server process of `floor`
    #[command(hide = true)]
    FloorServer(floor::ServerArgs),
}

/// Runs `gabion bench`.
pub fn run(target: &Target, command: &BenchCommand) -> Result<Exit> {
    if !matches!(command, BenchCommand::FloorServer(_)) {
        interrupt::watch()?;
    }
    match command {
        BenchCommand::Io(args) => io::run(target, args)?,
        BenchCommand::Device(args) => device::run(args)?,
        BenchCommand::Disk(args) => return disk::run(args),
        BenchCommand::Floor(args) => floor::run(args)?,
        BenchCommand::Rebuild(args) => return rebuild::run(args),
        BenchCommand::Ratio(args) => return ratio::run(args),
        BenchCommand::Esg(args) => return esg::run(args),
        BenchCommand::FloorServer(args) => floor::serve(args)?,
    }
    Ok(Exit::Ok)
}

//! `gabion bench`: what the kernel costs, and what Gabion costs on top of it.
//!
//! `floor` exchanges bare frames between processes: no product logic, only heads and payloads of the
//! same sizes. `io` loads a cluster from inside an SDC, on the shard's own thread. Both measure over
//! the same stretch, and print processor time per I/O beside the rate: of the processes that take
//! part, and of the whole machine, since the kernel's network work lands anywhere. Only the ratio of
//! both, in one run, says something: `ratio` takes it. `esg` re-enacts a published experiment and writes a
//! report. `rebuild` kills servers, and times until all is whole again. `disk` compares a durable cluster with `fio` on the same disk, `device` leaves cluster and network
//! out of that.

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
pub mod progress;
mod ratio;
mod rebuild;
mod rig;
pub mod tally;
pub mod workload;

use crate::exit::Exit;
use crate::target::Target;
use anyhow::Result;
use clap::Subcommand;

/// What to measure.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Load a cluster from inside an SDC: IOPS, latency, processor time per I/O
    Io(io::IoArgs),
    /// Bare TCP between processes, without any product logic
    Floor(floor::FloorArgs),
    /// The durable store on one device, without a cluster, beside fio on the same device
    Device(device::DeviceArgs),
    /// A cluster of file devices on one disk, beside fio on the same one, against what is promised
    Disk(disk::DiskArgs),
    /// Ratios of Gabion's figures to the floor's, in one run, against what is promised
    Ratio(ratio::RatioArgs),
    /// How much faster more servers make a lost one's copies anew, and what clients notice of it
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

//! `gabion bench floor|io`: what the kernel costs, and what Gabion costs on top of it.
//!
//! `floor` exchanges bare frames between processes: no product logic, only heads and payloads of the
//! same sizes. `io` runs a cluster of NULL devices and loads it from inside an SDC, on the shard's
//! own thread. Both measure over the same stretch, and print processor time per I/O beside the rate:
//! of all processes, and of the whole machine, since the kernel's network work lands anywhere.
//! Only the ratio of both, in one run, says something; `cargo xtask bench` takes it.

mod floor;
mod io;
mod load;
mod measure;
mod stream;

use crate::exit::Exit;
use crate::size::Size;
use crate::spec::volume_size;
use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use measure::Figures;
use std::time::Duration;

/// What to measure.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Bare TCP between processes, without any product logic
    #[command(after_help = "\
Examples:
  gabion bench floor --pattern read --servers 3 --depth 64
  gabion bench floor --pattern write --servers 3 --depth 64   client -> A -> B -> A -> client")]
    Floor(BenchArgs),
    /// A cluster of NULL devices on this machine, loaded from inside an SDC
    #[command(after_help = "Example:\n  gabion bench io --pattern write --servers 3 --depth 64")]
    Io(IoArgs),
    /// One server of `floor`
    #[command(hide = true)]
    FloorServer(floor::ServerArgs),
}

/// What `floor` and `io` have in common.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// What the client does
    #[arg(long, value_enum, default_value_t = Pattern::Read)]
    pattern: Pattern,
    /// Server processes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=256))]
    servers: u32,
    /// Requests that are under way at any time, at all servers together
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=8192))]
    depth: u32,
    /// Bytes of a request
    #[arg(long, default_value = "4KiB", value_parser = volume_size)]
    block: Size,
    /// How long to measure, after a warm-up
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Options of `bench io`.
#[derive(Args, Clone, Debug)]
pub struct IoArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// How the processes talk to the kernel: auto, uring or epoll
    #[arg(long, default_value = "auto")]
    backend: rt::Backend,
}

/// What the client does, at random places.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Pattern {
    /// Read: one server answers
    Read,
    /// Write two copies: one server passes the data on to another one
    Write,
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Pattern::Read { "read" } else { "write" })
    }
}

impl BenchArgs {
    fn window(&self) -> Duration {
        Duration::from_secs_f64(self.seconds.clamp(0.1, 3600.0))
    }
}

/// Runs `gabion bench`.
pub fn run(command: &BenchCommand) -> Result<Exit> {
    match command {
        BenchCommand::Floor(args) => print("floor", args, &floor::run(args)?)?,
        BenchCommand::Io(args) => print("gabion", &args.common, &io::run(args)?)?,
        BenchCommand::FloorServer(args) => floor::serve(args)?,
    }
    Ok(Exit::Ok)
}

fn print(what: &str, args: &BenchArgs, figures: &Figures) -> Result<()> {
    if args.json {
        println!("{}", serde_json::to_string(figures)?);
        return Ok(());
    }
    println!(
        "{what}: {} of {}, {} servers, depth {}: {:.0} per second; {:.2} us of processor time each \
         in our processes, {:.2} us on the whole machine; latency {:.1} us mean, {:.1} us at 99 %",
        args.pattern,
        args.block,
        args.servers,
        args.depth,
        figures.iops,
        figures.process_us_per_op,
        figures.machine_us_per_op,
        figures.latency_mean_us,
        figures.latency_p99_us
    );
    Ok(())
}

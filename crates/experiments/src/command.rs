//! The commands: what an experiment prints, and its exit code.

use crate::options::Options;
use crate::report::Report;
use crate::{all, esg, exaforge};
use admin::exit::Exit;
use anyhow::Result;
use bench::interrupt;
use clap::Subcommand;
use fleet::target::Target;

/// The experiments.
#[derive(Subcommand, Debug)]
pub enum ExperimentCommand {
    /// ESG Lab's test of ScaleIO (2015): 3 to 128 nodes, media, plots and tables
    Esg(esg::EsgArgs),
    /// ExaForge Labs' test of ScaleIO (2013): removal, return, loss and rebuild of small servers
    Exaforge(exaforge::ExaforgeArgs),
    /// All of them, one after the other, with a page that has all verdicts
    All(all::AllArgs),
}

/// Runs `gabion experiment`.
pub fn run(target: &Target, command: &ExperimentCommand) -> Result<Exit> {
    match command {
        ExperimentCommand::Esg(args) => esg(args),
        ExperimentCommand::Exaforge(args) => exaforge(target, args),
        ExperimentCommand::All(args) => {
            interrupt::watch()?;
            all::run(target, args)
        }
    }
}

/// Runs `gabion experiment esg`.
pub fn esg(args: &esg::EsgArgs) -> Result<Exit> {
    if args.options.plan {
        println!("{}", args.plan().text());
        return Ok(Exit::Ok);
    }
    interrupt::watch()?;
    Ok(tell(&esg::run(args, !args.options.json)?, &args.options))
}

/// Runs `gabion experiment exaforge`.
pub fn exaforge(target: &Target, args: &exaforge::ExaforgeArgs) -> Result<Exit> {
    if args.options.plan {
        println!("{}", args.plan().text());
        return Ok(Exit::Ok);
    }
    interrupt::watch()?;
    Ok(tell(&exaforge::run(target, args)?, &args.options))
}

/// Says how an experiment ended, and returns the exit code.
pub(crate) fn tell(report: &Report, options: &Options) -> Exit {
    if !options.json {
        println!("\n{}", report.sentences());
        println!("The report is {}", options.out(report.name).join("report.html").display());
    }
    if let Some(complaint) = report.complaint() {
        eprintln!("{complaint}");
    }
    report.exit()
}

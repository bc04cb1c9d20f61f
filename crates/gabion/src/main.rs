//! The one binary `gabion`: every role, and the command line for all of them.
//!
//! These subcommands have one file each here: `down`, `status`, `top`, `volume`, `host`, `mdm`,
//! `sds`, `sdc`, `device`, `inspect`, `demo`, `bench`. `objects` has those of the system, domains,
//! fault sets and pools. The others are in libraries: `up` and `deploy` in `fleet`; `attach`,
//! `detach`, `mount`, `nbd` and `vhost` in `attach`; `experiment` in `experiments`. `admin` talks
//! to the MDM, and `daemon` runs a role.
#![forbid(unsafe_code)]

#[macro_use(print, println, eprintln)]
extern crate fleet;

mod bench;
mod damage;
mod decision;
mod demo;
mod device;
mod down;
mod host;
mod inspect;
mod mdm;
mod objects;
mod reservations;
mod runopts;
mod sdc;
mod sds;
mod show;
mod status;
mod top;
mod volume;

use admin::exit::{self, Exit};
use anyhow::Result;
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use fleet::{deploy, output, target, up};
use std::process::ExitCode;

/// The release and, if it is known, the commit from which this binary was built: see `build.rs`.
const VERSION: &str = env!("GABION_VERSION");

/// Turns the disks of ordinary servers into one mirrored, self-healing block store.
#[derive(Parser, Debug)]
#[command(name = "gabion", version = VERSION, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  gabion up                a cluster of three servers on this machine, in the foreground
  gabion status            how it does, from another terminal
  gabion sds kill 2        take a server away; I/O goes on
  gabion sds start 2       give it back; it is filled from the other copies

Exit codes: 0 done (status: healthy), 1 failed or refused, 2 wrong usage, 3 status: degraded, \
4 status: failed, 5 no MDM answers, 6 an address or the directory is in use, 7 bench, experiment: a must is \
missed, or a figure could not be measured.")]
struct Cli {
    #[command(flatten)]
    target: target::Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Start a whole cluster on this machine
    Up(up::UpArgs),
    /// Stop the cluster that `up` started, even if it is detached or has crashed
    #[command(after_help = "Example:\n  gabion down")]
    Down,
    /// Create a cluster on several hosts over SSH, or in network namespaces of this machine
    Deploy(deploy::DeployArgs),
    /// Show the cluster's state, servers, volumes, capacity and resync
    Status(status::StatusArgs),
    /// Watch the cluster live: traffic of every server, space, and resync progress
    Top(top::TopArgs),
    /// Create, list, grow, map and delete volumes
    #[command(subcommand)]
    Volume(volume::VolumeCommand),
    /// List the hosts of iSCSI and NVMe/TCP
    #[command(subcommand)]
    Host(host::HostCommand),
    /// Run a data server; list, kill and start those of a cluster on this machine
    #[command(subcommand)]
    Sds(sds::SdsCommand),
    /// Run a data client, which serves volumes over NBD, iSCSI and NVMe/TCP
    #[command(subcommand)]
    Sdc(sdc::SdcCommand),
    /// List, add, remove, back up and recover metadata managers (MDMs); run one
    #[command(subcommand)]
    Mdm(mdm::MdmCommand),
    /// List, add, import and remove devices; probe whether one can be trusted with data
    #[command(subcommand)]
    Device(device::DeviceCommand),
    /// Make a volume a block device of this machine, and mount its file system
    Attach(attach::AttachArgs),
    /// Unmount a volume that was attached, and remove its device
    Detach(attach::DetachArgs),
    /// Show volumes as files, for programs that take images
    Mount(attach::MountArgs),
    /// Keep a device of the kernel's NBD client connected; `attach` starts it
    #[command(hide = true)]
    Nbd(attach::NbdArgs),
    /// Serve a volume as a disk (`gabion attach` starts this)
    #[command(hide = true)]
    Ublk(attach::UblkArgs),
    /// Give a volume to virtual machines as a disk (vhost-user-blk)
    Vhost(attach::VhostArgs),
    /// Inspect one device without a cluster: show its content, verify it, export a volume
    Inspect(inspect::InspectArgs),
    /// Create, list, rename and remove protection domains
    #[command(subcommand)]
    Domain(objects::DomainCommand),
    /// Create, list, rename and remove fault sets: servers that fail together
    #[command(subcommand)]
    FaultSet(objects::FaultSetCommand),
    /// Create, list, set, rename and remove storage pools
    #[command(subcommand)]
    Pool(objects::PoolCommand),
    /// Name the cluster; show or raise its level
    #[command(subcommand)]
    System(objects::SystemCommand),
    /// Re-enact published experiments on this machine, with a report and verdicts
    #[command(subcommand)]
    Experiment(experiments::command::ExperimentCommand),
    /// Another name of `experiment exaforge`
    #[command(subcommand)]
    Demo(demo::DemoCommand),
    /// Measure what the kernel costs, and what Gabion costs on top of it
    #[command(subcommand)]
    Bench(bench::BenchCommand),
}

fn main() -> ExitCode {
    let cli = parse();
    match output::run(|| run(&cli)) {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("error: {error:#}");
            exit_of(&error).into()
        }
    }
}

/// Returns the exit code for an error.
fn exit_of(error: &anyhow::Error) -> Exit {
    match error.chain().any(|cause| cause.is::<daemon::InUse>()) {
        true => Exit::InUse,
        false => exit::of(error),
    }
}

/// Parses the command line.
///
/// MDM addresses from the environment are ignored for commands that work on this machine's
/// processes, and when the command line names a directory.
fn parse() -> Cli {
    let matches = Cli::command().get_matches();
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let said = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
    if !said("mdm") && (said("dir") || cli.command.is_local()) {
        cli.target.mdm.clear();
    }
    cli
}

impl Command {
    /// Returns true for commands about processes and files of this machine.
    fn is_local(&self) -> bool {
        match self {
            Command::Up(_) | Command::Down | Command::Deploy(_) | Command::Demo(_) => true,
            Command::Experiment(_) | Command::Detach(_) => true,
            Command::Sds(command) => {
                matches!(command, sds::SdsCommand::Kill { .. } | sds::SdsCommand::Start { .. })
            }
            Command::Sdc(command) => {
                matches!(command, sdc::SdcCommand::Kill | sdc::SdcCommand::Start)
            }
            Command::Mdm(command) => {
                use mdm::MdmCommand::{Kill, Restore, Start};
                matches!(command, Kill { .. } | Start { .. } | Restore { config: None, .. })
            }
            Command::Device(command) => command.is_local(),
            _ => false,
        }
    }
}

fn run(cli: &Cli) -> Result<Exit> {
    let target = &cli.target;
    match &cli.command {
        Command::Up(args) => up::run(target, args),
        Command::Down => down::run(target),
        Command::Deploy(args) => deploy::run(target, args),
        Command::Status(args) => status::run(target, args),
        Command::Top(args) => top::run(target, args),
        Command::Volume(command) => volume::run(target, command),
        Command::Host(command) => host::run(target, command),
        Command::Sds(command) => sds::run(target, command),
        Command::Sdc(command) => sdc::run(target, command),
        Command::Mdm(command) => mdm::run(target, command),
        Command::Device(command) => device::run(target, command),
        Command::Attach(args) => attach::attach(target, args),
        Command::Detach(args) => attach::detach(args),
        Command::Mount(args) => attach::mount(target, args),
        Command::Nbd(args) => attach::nbd(args),
        Command::Ublk(args) => attach::ublk(target, args),
        Command::Vhost(args) => attach::vhost(target, args),
        Command::Inspect(args) => inspect::run(target, args),
        Command::Domain(command) => objects::domain(target, command),
        Command::FaultSet(command) => objects::fault_set(target, command),
        Command::Pool(command) => objects::pool(target, command),
        Command::System(command) => objects::system(target, command),
        Command::Experiment(command) => experiments::command::run(target, command),
        Command::Demo(command) => demo::run(target, command),
        Command::Bench(command) => bench::run(target, command),
    }
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::{CommandFactory, Parser};
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    #[test]
    fn the_version_begins_with_the_release_and_may_name_a_commit() {
        let rest = super::VERSION.strip_prefix(env!("CARGO_PKG_VERSION")).expect("the release");
        let commit = rest.strip_prefix(" (").and_then(|rest| rest.strip_suffix(')'));
        assert!(rest.is_empty() || commit.is_some_and(|commit| !commit.is_empty()), "{rest}");
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Collects every command without subcommands, with its path.
    fn all_commands(of: &clap::Command, path: &str, all: &mut Vec<(String, clap::Command)>) {
        let own: Vec<_> =
            of.get_subcommands().filter(|c| c.get_name() != "help" && !c.is_hide_set()).collect();
        if own.is_empty() {
            all.push((path.to_owned(), of.clone()));
        }
        for command in own {
            all_commands(command, &format!("{path} {}", command.get_name()), all);
        }
    }

    /// Returns the words of the first example in a help text that is for this command, as the
    /// shell would pass them.
    fn example(path: &str, help: &str) -> Option<Vec<String>> {
        // An argument may stand between the words of the command, as in `inspect DEVICE verify`.
        let own = |line: &&str| {
            let mut words = line.split_whitespace();
            path.split(' ').all(|part| words.any(|word| word == part))
        };
        let (_, examples) = help.split_once("Example")?;
        let line = examples.lines().find(own)?;
        // Text after two spaces is an explanation; text after these characters is for the shell.
        let line = line.trim_start().split("  ").next()?;
        let mut line = line.split(['|', '>', '#', ';', '&']).next()?.to_owned();
        while let Some((before, (_, after))) =
            line.split_once("$(").and_then(|(b, rest)| Some((b, rest.split_once(')')?)))
        {
            line = format!("{before}said{after}");
        }
        Some(line.split_whitespace().map(|w| w.trim_matches('\'').to_owned()).collect())
    }

    #[test]
    fn the_help_of_every_command_has_an_example_that_it_takes() {
        let mut all = Vec::new();
        all_commands(&Cli::command(), "gabion", &mut all);
        assert!(all.len() > 30, "{}", all.len());
        let mut wrong = Vec::new();
        for (path, mut command) in all {
            // The long help is the same as the short one.
            match example(&path, &command.render_long_help().to_string()) {
                None => wrong.push(format!("{path}: no example of its own")),
                Some(words) => wrong.extend(
                    Cli::try_parse_from(&words).err().map(|e| format!("{}: {e}", words.join(" "))),
                ),
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    /// Collects the text of the files below a folder, without comments, and with strings that go on
    /// in the next line joined.
    fn code_below(folder: &Path, into: &mut String) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                code_below(&path, into);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
                    into.push_str(line.strip_suffix('\\').unwrap_or(line));
                    into.push_str(if line.ends_with('\\') { "" } else { "\n" });
                }
            }
        }
    }

    /// Returns the words of a command in a text. Values that the program puts in, or that the
    /// reader chooses, become a number.
    fn advised(text: &str) -> Vec<String> {
        let value = |word: &str| {
            let chosen = word.starts_with(|c: char| c == '{' || c.is_ascii_uppercase());
            if chosen { "7".to_owned() } else { word.split('{').next().unwrap_or_default().into() }
        };
        text.split_whitespace().map(value).collect()
    }

    /// An example may lack values, but not name what no command has, or what excludes each other.
    #[test]
    fn the_commands_that_texts_advise_are_taken() {
        let mut code = String::new();
        for crate_of in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap() {
            let folder = crate_of.unwrap().path().join("src");
            if folder.is_dir() {
                code_below(&folder, &mut code);
            }
        }
        let texts: BTreeSet<&str> = code.lines().flat_map(|l| l.split('`').skip(1)).collect();
        let commands = texts.into_iter().filter(|t| t.starts_with("gabion ") && !t.contains('"'));
        let all: Vec<_> = commands.map(advised).filter(|words| words[1] != "7").collect();
        assert!(all.len() > 60, "{}", all.len());
        let wrong = |words: &Vec<String>| {
            let error = Cli::try_parse_from(words).err()?;
            use clap::error::ErrorKind::{ArgumentConflict, InvalidSubcommand, UnknownArgument};
            let kinds = [ArgumentConflict, InvalidSubcommand, UnknownArgument];
            kinds.contains(&error.kind()).then(|| format!("{}: {error}", words.join(" ")))
        };
        let wrong: Vec<String> = all.iter().filter_map(wrong).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn commands_about_local_processes_and_about_any_cluster_are_distinguished() {
        let local = |line: &str| {
            let words = std::iter::once("gabion").chain(line.split(' '));
            Cli::try_parse_from(words).expect(line).command.is_local()
        };
        for line in ["up", "sds kill 2", "device remove 7 --sds 2 --now", "mdm restore b"] {
            assert!(local(line), "{line}");
        }
        let any =
            ["status", "device list", "device remove 7 --config a", "mdm restore b --config c"];
        assert!(!any.into_iter().any(local));
    }
}

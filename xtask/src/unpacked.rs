//! Debian packages for the virtual machines of the system tests, which are unpacked below the
//! target folder, and not installed:
//!
//! - a newer Linux, where the installed one lacks what they test: Debian 12's has neither ublk nor
//!   NVMe authentication, and the kernel for clouds has no handler of ALUA;
//! - initiators of iSCSI with multipath. Nobody wants their services on the machine that tests.
//!
//! apt checks the signatures. It has lists and a cache of its own here, so it takes no root.

use crate::steps::Steps;
use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package whose dependency is the newest kernel.
const NEWEST: &str = "linux-image-amd64";
/// How the packages with kernels are called.
const KERNEL: (&str, &str) = ("linux-image-", "-amd64");
/// Where the newest kernel for Debian 12 is.
const BACKPORTS: &str = "deb http://deb.debian.org/debian bookworm-backports main\n";
/// The packages of an iSCSI host. What they need comes with them, unless it is installed.
const INITIATORS: [&str; 2] = ["open-iscsi", "multipath-tools"];

/// What was unpacked: variables for the system tests, with the folders.
pub(crate) type Unpacked = Vec<(&'static str, PathBuf)>;

/// Returns everything that this system can get. A message says what it can't.
pub(crate) fn all(steps: &mut Steps) -> Unpacked {
    let mut unpacked = Unpacked::new();
    let mut add = |variable, name: &str, fetch: fn(&Path) -> Result<()>| {
        let folder = crate::target_dir().join(name);
        match if folder.exists() { Ok(()) } else { fetch(&folder) } {
            Ok(()) => unpacked.push((variable, folder)),
            Err(why) => steps.print(&format!("No {name} for virtual machines: {why:#}")),
        }
    };
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    // Later systems have such a kernel themselves.
    if system.lines().any(|line| line == "VERSION_CODENAME=bookworm") {
        add("GABION_KERNEL", "linux", kernel);
    }
    add("GABION_PACKAGES", "initiators", initiators);
    unpacked
}

fn kernel(folder: &Path) -> Result<()> {
    let apt = Apt::new(folder, Some(BACKPORTS))?;
    let needs = apt.run("apt-cache", &["depends", NEWEST])?;
    let is_kernel = |name: &&str| name.starts_with(KERNEL.0) && name.ends_with(KERNEL.1);
    let mut names = needs.split_whitespace().filter(|name| is_kernel(name) && *name != NEWEST);
    let name = names.next().with_context(|| format!("{NEWEST} needs no kernel: {needs}"))?;
    apt.run("apt-get", &["download", name])?;
    let root = apt.unpack(&apt.work)?;
    let release = name.strip_prefix(KERNEL.0).context("its release")?;
    run(Command::new("/sbin/depmod").arg("-b").arg(&root).arg(release))?;
    apt.finish(folder)
}

fn initiators(folder: &Path) -> Result<()> {
    let apt = Apt::new(folder, None)?;
    let install = ["install", "--download-only", "--no-install-recommends", "-y"];
    apt.run("apt-get", &[&install, &INITIATORS[..]].concat())?;
    apt.unpack(&apt.work.join("cache/archives"))?;
    apt.finish(folder)
}

/// apt with a folder of its own for lists and packages.
struct Apt {
    work: PathBuf,
    /// The list of sources, if it is not that of the system.
    sources: Option<PathBuf>,
}

impl Apt {
    /// Creates it beside `folder`, with new lists of packages.
    fn new(folder: &Path, sources: Option<&str>) -> Result<Apt> {
        let work = folder.with_extension("new");
        let _ = fs::remove_dir_all(&work);
        for name in ["lists/partial", "cache/archives/partial", "root"] {
            fs::create_dir_all(work.join(name)).context("a folder for apt")?;
        }
        let list = work.join("sources");
        fs::write(&list, sources.unwrap_or_default()).context("the list of sources")?;
        let apt = Apt { work, sources: sources.map(|_| list) };
        apt.run("apt-get", &["update"])?;
        Ok(apt)
    }

    /// Runs a program of apt, and returns its output. It does not lock the system's packages, as it
    /// changes none.
    fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        let at = |name: &str| self.work.join(name).display().to_string();
        let mut options = vec![
            format!("Dir::State::Lists={}", at("lists")),
            format!("Dir::Cache={}", at("cache")),
            "APT::Sandbox::User=root".into(),
            "Debug::NoLocking=1".into(),
        ];
        if let Some(list) = &self.sources {
            options.push(format!("Dir::Etc::SourceList={}", list.display()));
            options.push("Dir::Etc::SourceParts=/dev/null".into());
        }
        let mut command = Command::new(program);
        options.iter().for_each(|option| _ = command.args(["-o", option]));
        run(command.arg("-q").args(args).current_dir(&self.work))
    }

    /// Unpacks all packages of this folder. Returns the folder that their files are below.
    fn unpack(&self, packages: &Path) -> Result<PathBuf> {
        let root = self.work.join("root");
        for file in fs::read_dir(packages).context("the downloaded files")?.flatten() {
            let (option, package) = (OsStr::new("-x"), file.path());
            if package.extension() == Some("deb".as_ref()) {
                run(Command::new("dpkg-deb").args([
                    option,
                    package.as_os_str(),
                    root.as_os_str(),
                ]))?;
            }
        }
        Ok(root)
    }

    /// Gives the unpacked files their place.
    fn finish(self, folder: &Path) -> Result<()> {
        fs::rename(self.work.join("root"), folder).context("the folder of unpacked files")?;
        fs::remove_dir_all(&self.work).context("apt's folder")
    }
}

fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let out = command.output().with_context(|| format!("can't run {name}"))?;
    ensure!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr).trim());
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

//! A newer Linux for the virtual machines of the system tests, where the installed one lacks what
//! they test: Debian 12's has neither ublk nor NVMe authentication.
//!
//! The kernel is a package of Debian's backports. It is unpacked below the target folder, and not
//! installed. apt checks its signature, with lists and settings of its own.

use crate::steps::Steps;
use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package whose dependency is the newest kernel.
const PACKAGE: &str = "linux-image-cloud-amd64";
/// How the packages with kernels are called.
const KERNEL: (&str, &str) = ("linux-image-", "-cloud-amd64");

/// Returns the folder that the kernel's files are below. `None`, after a message: this system has
/// no such package, or can't get it.
pub(crate) fn newer(steps: &mut Steps) -> Option<PathBuf> {
    let folder = crate::target_dir().join("kernel");
    if folder.join("boot").exists() {
        return Some(folder);
    }
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    if !system.lines().any(|line| line == "VERSION_CODENAME=bookworm") {
        return None; // later systems have such a kernel themselves
    }
    let made = unpack(&folder);
    if let Err(why) = &made {
        steps.print(&format!("No newer kernel for virtual machines: {why:#}"));
    }
    made.ok().map(|()| folder)
}

fn unpack(folder: &Path) -> Result<()> {
    let work = folder.with_extension("new");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(work.join("lists/partial")).context("the folder of package lists")?;
    let source = "deb http://deb.debian.org/debian bookworm-backports main\n";
    fs::write(work.join("sources"), source).context("the list of sources")?;
    let apt = |program: &str, args: &[&str]| -> Result<String> {
        let mut command = Command::new(program);
        let at = |name: &str| work.join(name).display().to_string();
        for option in [
            format!("Dir::Etc::SourceList={}", at("sources")),
            "Dir::Etc::SourceParts=/dev/null".into(),
            format!("Dir::State::Lists={}", at("lists")),
            format!("Dir::Cache={}", at("cache")),
            "APT::Sandbox::User=root".into(),
        ] {
            command.args(["-o", &option]);
        }
        run(command.arg("-q").args(args).current_dir(&work))
    };
    apt("apt-get", &["update"])?;
    let needs = apt("apt-cache", &["depends", PACKAGE])?;
    let is_kernel = |name: &&str| name.starts_with(KERNEL.0) && name.ends_with(KERNEL.1);
    let mut names = needs.split_whitespace().filter(|name| is_kernel(name) && *name != PACKAGE);
    let name = names.next().with_context(|| format!("{PACKAGE} needs no kernel: {needs}"))?;
    apt("apt-get", &["download", name])?;
    let files = fs::read_dir(&work).context("the downloaded file")?.flatten();
    let mut packages =
        files.map(|file| file.path()).filter(|p| p.extension() == Some("deb".as_ref()));
    let package = packages.next().context("nothing was downloaded")?;
    let root = work.join("root");
    run(Command::new("dpkg-deb").args([OsStr::new("-x"), package.as_os_str(), root.as_os_str()]))?;
    let release = name.strip_prefix(KERNEL.0).context("its release")?;
    run(Command::new("/sbin/depmod").arg("-b").arg(&root).arg(release))?;
    fs::rename(&root, folder).context("the kernel's folder")?;
    fs::remove_dir_all(&work).context("the folder of package lists")
}

fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let out = command.output().with_context(|| format!("can't run {name}"))?;
    ensure!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr).trim());
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

//! The methods that make a volume a block device of this machine.

use anyhow::{Result, bail};
use clap::ValueEnum;
use std::path::Path;

/// A method, the best one first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(crate) enum Via {
    /// The kernel's user-space block driver; not built yet
    Ublk,
    /// NVMe/TCP to the data client of this machine; not built yet
    Nvme,
    /// The kernel's NBD client; not built yet
    Nbd,
    /// A file by FUSE, and a loop device on it: works with any kernel
    Fuse,
}

/// A method that is not used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NotTaken {
    /// The method.
    pub(crate) via: Via,
    /// The reason.
    pub(crate) why: String,
}

impl Via {
    /// Returns its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Via::Ublk => "ublk",
            Via::Nvme => "nvme",
            Via::Nbd => "nbd",
            Via::Fuse => "fuse",
        }
    }

    /// Returns the kernel modules that it needs.
    fn modules(self) -> &'static [&'static str] {
        match self {
            Via::Ublk => &["ublk_drv"],
            Via::Nvme => &["nvme_tcp"],
            Via::Nbd => &["nbd"],
            Via::Fuse => &["fuse", "loop"],
        }
    }

    /// Returns true if this version of the program supports it.
    fn is_built(self) -> bool {
        self == Via::Fuse
    }

    /// Returns the reason why it can't be used, if there is one. `has`: whether the kernel has a
    /// module.
    fn obstacle(self, has: impl Fn(&str) -> bool) -> Option<String> {
        let missing: Vec<&str> = self.modules().iter().copied().filter(|m| !has(m)).collect();
        let kernel = match missing[..] {
            [] => None,
            [one] => Some(format!("the kernel has no module {one}")),
            _ => Some(format!("the kernel has no modules {}", missing.join(" and "))),
        };
        match (self.is_built(), kernel) {
            (true, kernel) => kernel,
            (false, None) => Some("this version of gabion can't do it".into()),
            (false, Some(kernel)) => {
                Some(format!("{kernel}, and this version of gabion can't do it"))
            }
        }
    }
}

/// Chooses the best method that works, or `wanted`. Also returns why better ones are not used.
pub(crate) fn choose(wanted: Option<Via>) -> Result<(Via, Vec<NotTaken>)> {
    choose_of(wanted, has_module)
}

fn choose_of(
    wanted: Option<Via>,
    has: impl Fn(&str) -> bool + Copy,
) -> Result<(Via, Vec<NotTaken>)> {
    if let Some(via) = wanted {
        return match via.obstacle(has) {
            None => Ok((via, Vec::new())),
            Some(why) => bail!(
                "can't attach by {}: {why}. Without --via, the best method that works is used",
                via.name()
            ),
        };
    }
    let mut not_taken = Vec::new();
    for via in [Via::Ublk, Via::Nvme, Via::Nbd, Via::Fuse] {
        match via.obstacle(has) {
            None => return Ok((via, not_taken)),
            Some(why) => not_taken.push(NotTaken { via, why }),
        }
    }
    let all: Vec<String> =
        not_taken.iter().map(|not| format!("{}: {}", not.via.name(), not.why)).collect();
    bail!("none of the methods to attach a volume works here. {}", all.join("; "))
}

/// Returns true if the kernel has a module: loaded, built in, or as a file that is loaded on
/// demand.
fn has_module(name: &str) -> bool {
    let loaded = Path::new("/sys/module").join(name).exists();
    let device = match name {
        "fuse" => "/dev/fuse",
        "loop" => "/dev/loop-control",
        "ublk_drv" => "/dev/ublk-control",
        _ => "",
    };
    loaded || Path::new(device).exists() || has_file(name)
}

fn has_file(name: &str) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let folder = Path::new("/lib/modules").join(release.trim());
    let named = |path: &str| {
        let file = path.rsplit('/').next().unwrap_or_default();
        file.split('.').next().is_some_and(|stem| stem.replace('-', "_") == name)
    };
    ["modules.dep", "modules.builtin"].iter().any(|list| {
        let text = std::fs::read_to_string(folder.join(list)).unwrap_or_default();
        text.lines().any(|line| named(line.split(':').next().unwrap_or_default()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_way_that_works_is_taken_and_it_is_said_why_no_better_one() {
        let (via, not) = choose_of(None, |m| m == "fuse" || m == "loop" || m == "nbd").unwrap();
        assert_eq!(via, Via::Fuse);
        let why = |via| not.iter().find(|n| n.via == via).unwrap().why.as_str();
        assert!(why(Via::Ublk).contains("the kernel has no module ublk_drv"));
        assert_eq!(why(Via::Nbd), "this version of gabion can't do it");
    }

    #[test]
    fn a_way_that_is_asked_for_is_taken_or_refused() {
        assert_eq!(choose_of(Some(Via::Fuse), |_| true).unwrap(), (Via::Fuse, Vec::new()));
        let refused = choose_of(Some(Via::Nbd), |_| false).unwrap_err().to_string();
        assert!(refused.contains("no module nbd"), "{refused}");
        let none = choose_of(None, |_| false).unwrap_err().to_string();
        assert!(none.contains("fuse: the kernel has no modules fuse and loop"), "{none}");
    }
}

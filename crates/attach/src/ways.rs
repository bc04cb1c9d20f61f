//! The methods that make a volume a block device of this machine.

use crate::block;
use anyhow::{Result, bail};
use clap::ValueEnum;
use std::path::Path;

/// A method, the best one first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(crate) enum Via {
    /// The kernel's user-space block driver, and a process that serves this volume
    Ublk,
    /// NVMe/TCP to the data client of this machine
    Nvme,
    /// The kernel's NBD client, and the data client of this machine
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
    /// The methods that are tried, the best one first. ublk is used only if it is asked for: it is
    /// new, and not proven as long as the others.
    const TRIED: [Via; 3] = [Via::Nvme, Via::Nbd, Via::Fuse];

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

    /// Returns the reason why it can't be used, if there is one. `load` loads a kernel module, or
    /// says why it can't.
    fn obstacle(self, load: impl Fn(&str) -> Result<(), String>) -> Option<String> {
        let missing: Vec<String> = self.modules().iter().filter_map(|m| load(m).err()).collect();
        (!missing.is_empty()).then(|| missing.join(", and "))
    }
}

/// The methods that may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted<'a> {
    /// Only this one.
    Via(Via),
    /// Those that use the data client of this machine with this name. The name of a data client
    /// that runs is no name for a client that fuse makes.
    Through(&'a str),
    /// Any.
    Best,
}

/// Calls `make` with the best method that works, of those that are wanted. Returns its result, and
/// why better methods were not used. `make` leaves nothing behind if it fails.
pub(crate) fn take<T>(
    wanted: Wanted<'_>,
    make: impl FnMut(Via) -> Result<T>,
) -> Result<(T, Vec<NotTaken>)> {
    take_of(wanted, load, make)
}

fn take_of<T>(
    wanted: Wanted<'_>,
    load: impl Fn(&str) -> Result<(), String>,
    mut make: impl FnMut(Via) -> Result<T>,
) -> Result<(T, Vec<NotTaken>)> {
    if let Wanted::Via(via) = wanted {
        return match via.obstacle(load) {
            None => Ok((make(via)?, Vec::new())),
            Some(why) => bail!(
                "can't attach by {}: {why}. Without --via and --nvme-secret, the best \
                 method that works is used",
                via.name()
            ),
        };
    }
    let mut not_taken = Vec::new();
    let through = |via: &Via| wanted == Wanted::Best || *via != Via::Fuse;
    for via in Via::TRIED.into_iter().filter(through) {
        let why = match via.obstacle(&load) {
            Some(why) => why,
            None => match make(via) {
                Ok(made) => return Ok((made, not_taken)),
                // The last method needs least, so its error is about the volume or the cluster.
                Err(error) if via == Via::Fuse => return Err(error),
                Err(error) => format!("{error:#}"),
            },
        };
        not_taken.push(NotTaken { via, why });
    }
    let all: Vec<String> =
        not_taken.iter().map(|not| format!("{}: {}", not.via.name(), not.why)).collect();
    if let Wanted::Through(client) = wanted {
        bail!(
            "can't attach through a data client (SDC) of this machine with the name {client}. {}. \
             Without --client, any one is used; with --via fuse, --client names a new client",
            all.join("; ")
        );
    }
    bail!("none of the methods to attach a volume works here. {}", all.join("; "))
}

/// Loads a kernel module, unless it is loaded or built in. Returns the reason why it can't.
fn load(name: &str) -> Result<(), String> {
    let device = match name {
        "fuse" => "/dev/fuse",
        "loop" => "/dev/loop-control",
        _ => "",
    };
    let loaded = Path::new("/sys/module").join(name).exists();
    if loaded || Path::new(device).exists() || is_listed(name, "modules.builtin") {
        return Ok(());
    }
    if !is_listed(name, "modules.dep") {
        return Err(format!("the kernel has no module {name}"));
    }
    match block::tool("modprobe", "kmod", [name]) {
        Ok(_) => Ok(()),
        Err(why) => Err(format!("the kernel's module {name} can't be loaded: {why:#}")),
    }
}

/// Returns true if a list of the kernel's modules has this one.
fn is_listed(name: &str, list: &str) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let list = Path::new("/lib/modules").join(release.trim()).join(list);
    let named = |path: &str| {
        let file = path.rsplit('/').next().unwrap_or_default();
        file.split('.').next().is_some_and(|stem| stem.replace('-', "_") == name)
    };
    let text = std::fs::read_to_string(list).unwrap_or_default();
    text.lines().any(|line| named(line.split(':').next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has these modules.
    fn only<'a>(all: &'a [&'a str]) -> impl Fn(&str) -> Result<(), String> + 'a {
        move |m| all.contains(&m).then_some(()).ok_or(format!("the kernel has no module {m}"))
    }

    fn made(via: Via) -> Result<Via> {
        Ok(via)
    }

    #[test]
    fn the_best_way_that_works_is_taken_and_it_is_said_why_no_better_one() {
        let all = ["ublk_drv", "nvme_tcp", "nbd", "fuse", "loop"];
        let (via, not) = take_of(Wanted::Best, only(&all), made).unwrap();
        assert_eq!((via, not.len()), (Via::Nvme, 0));

        let without = take_of(Wanted::Best, only(&["nbd", "fuse", "loop"]), made).unwrap();
        assert_eq!(without.0, Via::Nbd);
        assert_eq!(without.1[0].why, "the kernel has no module nvme_tcp");

        let locked = |m: &str| match m {
            "nbd" => Err("the kernel's module nbd can't be loaded: no right".to_owned()),
            _ => only(&["fuse", "loop"])(m),
        };
        let (via, not) = take_of(Wanted::Best, locked, made).unwrap();
        assert_eq!((via, not.len()), (Via::Fuse, 2));
        assert!(not[1].why.ends_with("no right"), "{}", not[1].why);
    }

    #[test]
    fn a_way_that_fails_gives_way_to_the_next_one() {
        let make = |via| match via {
            Via::Nvme => bail!("no data client serves NVMe/TCP"),
            via => Ok(via),
        };
        let all = ["nvme_tcp", "nbd", "fuse", "loop"];
        let (via, not) = take_of(Wanted::Best, only(&all), make).unwrap();
        assert_eq!(via, Via::Nbd);
        assert_eq!(not[0].why, "no data client serves NVMe/TCP");
        let failing = |via: Via| -> Result<()> { bail!("{} fails", via.name()) };
        let error = take_of(Wanted::Best, only(&all), failing).unwrap_err().to_string();
        assert_eq!(error, "fuse fails");
    }

    #[test]
    fn the_name_of_a_data_client_is_never_taken_for_a_new_one() {
        let through = Wanted::Through("sdc");
        let all = ["nvme_tcp", "nbd", "fuse", "loop"];
        assert_eq!(take_of(through, only(&all), made).unwrap().0, Via::Nvme);
        let make = |via| match via {
            Via::Nvme | Via::Nbd => bail!("no data client serves it"),
            via => Ok(via),
        };
        let error = take_of(through, only(&all), make).unwrap_err().to_string();
        assert!(error.contains("with the name sdc. nvme: no data client serves it"), "{error}");
        assert!(error.contains("with --via fuse, --client names a new client"), "{error}");
    }

    #[test]
    fn a_way_that_is_asked_for_is_taken_or_refused() {
        let fuse = take_of(Wanted::Via(Via::Fuse), only(&["fuse", "loop"]), made).unwrap();
        assert_eq!(fuse, (Via::Fuse, Vec::new()));
        let refused = take_of(Wanted::Via(Via::Nbd), only(&[]), made).unwrap_err().to_string();
        assert!(refused.contains("no module nbd"), "{refused}");
        let none = take_of(Wanted::Best, only(&[]), made).unwrap_err().to_string();
        assert!(none.contains("fuse: the kernel has no module fuse, and the"), "{none}");
    }

    #[test]
    fn a_module_that_no_kernel_has_is_not_loaded() {
        let why = load("gabion_no_such_module").unwrap_err();
        assert_eq!(why, "the kernel has no module gabion_no_such_module");
    }
}

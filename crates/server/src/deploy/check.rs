//! What a host has to be before anything is changed on it.

use super::host::Remote;
use super::topology::{MDM_PORT, SDS_PORT};
use crate::size::Size;
use crate::spec::DeviceSpec;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

/// Clocks may differ by so much: logs of several hosts couldn't be compared any more. (Nothing that Gabion
/// decides depends on the time of day.)
const CLOCKS_APART: Duration = Duration::from_secs(60);

/// What a host said about itself, and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub kernel: String,
    pub arch: String,
    pub cores: String,
    pub memory: u64,
    /// Services are kept by systemd.
    pub systemd: bool,
    /// Each one ends the deployment.
    pub wrong: Vec<String>,
}

/// Looks at one host.
pub fn check(remote: &Remote<'_>) -> Findings {
    let before = SystemTime::now();
    match remote.run(&script(remote)) {
        Ok(said) => read(&said, before, SystemTime::now()),
        Err(why) => Findings { wrong: vec![format!("{why:#}")], ..Findings::default() },
    }
}

/// Prints `word=value` lines; several lines may have the same word.
fn script(remote: &Remote<'_>) -> String {
    let host = remote.host;
    let mut script = String::from(
        "echo kernel=$(uname -r); echo arch=$(uname -m); echo uid=$(id -u); echo now=$(date +%s)\n\
         echo cores=$(nproc); echo kib=$(awk '/MemTotal/ {print $2}' /proc/meminfo)\n\
         if [ -d /run/systemd/system ]; then echo systemd=1; fi\n",
    );
    let mut ports: Vec<u16> = host.mdm.then_some(MDM_PORT).into_iter().collect();
    ports.extend((0..host.devices.len()).map(|shard| SDS_PORT + shard as u16));
    ports.extend(host.sdc.map(|at| at.port()));
    for role in ["mdm", "sds", "sdc"] {
        let pid = host.path(&format!("run/gabion/{role}.pid"));
        // The process that the file names, not a later one with its number: its start time is in the file, too.
        let _ = writeln!(
            script,
            "if read -r pid start _ 2>/dev/null <'{0}' && stat=$(cat \"/proc/$pid/stat\" 2>/dev/null); then\n\
             set -- ${{stat##*) }}; if [ \"$1\" != Z ] && [ \"${{20}}\" = \"$start\" ]; then echo runs={role}; fi; fi",
            pid.display()
        );
    }
    for port in ports {
        // Listening sockets, by the kernel's own list: state 0A.
        let _ = writeln!(
            script,
            "if cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '$4 == \"0A\" {{print $2}}' | grep -qi ':{port:04X}$'; \
             then echo busy={port}; fi"
        );
    }
    for device in &host.devices {
        script += &device_script(&device.0);
    }
    script
}

fn device_script(device: &DeviceSpec) -> String {
    match device {
        DeviceSpec::Block(path) => {
            let path = path.display();
            format!(
                "if [ ! -b '{path}' ]; then echo 'missing={path}'; \
                 elif grep -q \"^$(readlink -f '{path}')[0-9p]* \" /proc/mounts; then echo 'mounted={path}'; fi\n"
            )
        }
        DeviceSpec::File(path, Some(size)) => {
            let (folder, bytes) = (path.parent().unwrap_or(path).display(), size.0);
            format!(
                "at='{folder}'; while [ ! -d \"$at\" ]; do at=$(dirname \"$at\"); done\n\
                 free=$(($(df -Pk \"$at\" | awk 'NR == 2 {{print $4}}') * 1024))\n\
                 if [ ! -e '{0}' ] && [ \"$free\" -lt {bytes} ]; then echo \"small={0} $free {bytes}\"; fi\n",
                path.display()
            )
        }
        DeviceSpec::File(path, None) => {
            format!("if [ ! -f '{0}' ]; then echo 'missing={0}'; fi\n", path.display())
        }
        DeviceSpec::Ram(_) | DeviceSpec::Null(_) => String::new(),
    }
}

/// What the script printed between two moments of this machine.
fn read(said: &str, before: SystemTime, after: SystemTime) -> Findings {
    let mut words: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (word, value) in said.lines().filter_map(|l| l.split_once('=')) {
        words.entry(word).or_default().push(value);
    }
    let all = |word: &str| words.get(word).cloned().unwrap_or_default();
    let one = |word: &str| all(word).first().copied().unwrap_or_default().to_owned();
    let mut wrong = Vec::new();
    if one("uid") != "0" {
        wrong.push("needs root there: set `user`".to_owned());
    }
    if one("arch") != std::env::consts::ARCH {
        wrong.push(format!(
            "is {}, and this binary is for {}",
            one("arch"),
            std::env::consts::ARCH
        ));
    }
    let seconds = |t: SystemTime| t.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (before, after) = (seconds(before), seconds(after));
    let theirs = Duration::from_secs(one("now").parse().unwrap_or_default());
    if theirs + CLOCKS_APART < before || theirs > after + CLOCKS_APART {
        let apart = if theirs < before { before - theirs } else { theirs - after };
        wrong.push(format!(
            "its clock is {} s off: start chrony or another NTP client",
            apart.as_secs()
        ));
    }
    for role in all("runs") {
        wrong.push(format!("a Gabion {role} runs there: stop it, or leave the host out"));
    }
    if all("runs").is_empty() {
        wrong.extend(all("busy").iter().map(|p| format!("port {p} is in use")));
    }
    wrong.extend(all("missing").iter().map(|d| format!("there is no {d}")));
    wrong.extend(all("mounted").iter().map(|d| format!("{d} is mounted: a device is used whole")));
    for small in all("small") {
        let mut parts = small.rsplitn(3, ' ').map(|n| n.parse().map(Size));
        let (Some(Ok(want)), Some(Ok(free))) = (parts.next(), parts.next()) else { continue };
        let path = small.split(' ').next().unwrap_or_default();
        wrong.push(format!("{path} is to have {want}, and {free} are free"));
    }
    Findings {
        kernel: one("kernel"),
        arch: one("arch"),
        cores: one("cores"),
        memory: one("kib").parse::<u64>().unwrap_or_default().saturating_mul(1024),
        systemd: !all("systemd").is_empty(),
        wrong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(said: &str) -> Vec<String> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        read(&format!("uid=0\narch={}\n{said}", std::env::consts::ARCH), now, now).wrong
    }

    #[test]
    fn what_is_wrong_with_a_host_is_told() {
        assert_eq!(wrong("now=1000030"), [""; 0]);
        assert!(wrong("now=1000100")[0].contains("100 s off"));
        assert!(wrong("now=1000000\nbusy=7001")[0].contains("port 7001"));
        assert!(wrong("now=1000000\nruns=sds\nbusy=7072")[0].contains("a Gabion sds runs"));
        assert!(wrong("now=1000000\nmounted=/dev/sdb")[0].contains("mounted"));
        let small = wrong("now=1000000\nsmall=/d/x 1073741824 2147483648");
        assert_eq!(small, ["/d/x is to have 2 GiB, and 1 GiB are free"]);
    }
}

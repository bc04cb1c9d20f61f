//! Checks of a single host before anything is changed on it. `compare` checks across hosts.

use super::host::Remote;
use super::topology::{MDM_PORT, SDS_PORT};
use daemon::size::Size;
use daemon::spec::DeviceSpec;
use seam::DiskError;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::SystemTime;
use store::durable::Identity;
use store::durable::survey::Search;

/// Length of a device's superblock.
const PAGE: usize = store::durable::layout::PAGE as usize;

/// The facts about a host, and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    pub kernel: String,
    pub arch: String,
    pub cores: String,
    pub memory: u64,
    /// The host runs systemd.
    pub systemd: bool,
    /// Identifies the machine: two hosts with the same value are one machine.
    pub machine: String,
    /// Seconds by which its clock is certainly ahead of this machine's; negative if it is behind.
    pub ahead: i64,
    /// The host has an MDM's log.
    pub has_log: bool,
    /// Devices that hold data of a cluster.
    pub held: Vec<Held>,
    /// Problems; any of them prevents the deployment.
    pub wrong: Vec<String>,
}

/// A device that belongs to a cluster already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub path: String,
    pub identity: Identity,
}

/// Checks one host.
pub(crate) fn check(remote: &Remote<'_>) -> Findings {
    let before = SystemTime::now();
    match remote.run(&script(remote)) {
        Ok(said) => {
            let mut found = read(&said, before, SystemTime::now());
            let served =
                [remote.host.sdc, remote.host.iscsi, remote.host.nvme].into_iter().flatten();
            let asked: BTreeSet<IpAddr> = served.map(|at| at.ip()).collect();
            found.wrong.extend(asked.into_iter().filter_map(|ip| absent(ip, &said)));
            found
        }
        Err(why) => Findings { wrong: vec![format!("{why:#}")], ..Findings::default() },
    }
}

/// Returns the script for the host. It prints `word=value` lines; a word may occur several times.
fn script(remote: &Remote<'_>) -> String {
    let host = remote.host;
    let mut script = String::from(
        "echo kernel=$(uname -r); echo arch=$(uname -m); echo uid=$(id -u); echo now=$(date +%s)\n\
         echo cores=$(nproc); echo kib=$(awk '/MemTotal/ {print $2}' /proc/meminfo)\n\
         if [ -d /run/systemd/system ]; then echo systemd=1; fi\n",
    );
    let _ = writeln!(
        script,
        "echo \"machine=$(cat /proc/sys/kernel/random/boot_id) $(stat -c %d:%i /) {}\"",
        host.root.display()
    );
    // The addresses of its interfaces, as the kernel lists them.
    script +=
        "awk '/32 host LOCAL/ {print \"has=\" f} {f=$2}' /proc/net/fib_trie 2>/dev/null || true\n";
    if host.mdm.is_some() {
        let log = host.path("var/lib/gabion/mdm.log");
        let _ = writeln!(script, "if [ -s '{}' ]; then echo log=1; fi", log.display());
    }
    let mut ports: Vec<u16> = host.mdm.map(|_| MDM_PORT).into_iter().collect();
    ports.extend((0..host.devices.len()).map(|shard| SDS_PORT + shard as u16));
    ports.extend([host.sdc, host.iscsi, host.nvme].into_iter().flatten().map(|at| at.port()));
    for role in ["mdm", "sds", "sdc"] {
        let pid = host.path(&format!("run/gabion/{role}.pid"));
        // The start time in the file shows that the pid still belongs to the same process.
        let _ = writeln!(
            script,
            "if read -r pid start _ 2>/dev/null <'{0}' && \
             stat=$(cat \"/proc/$pid/stat\" 2>/dev/null); then\n\
             set -- ${{stat##*) }}; if [ \"$1\" != Z ] && [ \"${{20}}\" = \"$start\" ]; \
             then echo runs={role}; fi; fi",
            pid.display()
        );
    }
    for port in ports {
        // Listening sockets, as the kernel lists them: state 0A.
        let _ = writeln!(
            script,
            "if cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '$4 == \"0A\" {{print $2}}' | \
             grep -qi ':{port:04X}$'; then echo busy={port}; fi"
        );
    }
    for device in &host.devices {
        script += &device_script(&device.spec);
        if let Some(path) = device.spec.path() {
            let _ = writeln!(
                script,
                "if [ -r '{0}' ]; then echo \"held=$(dd if='{0}' bs={PAGE} count=1 2>/dev/null | \
                 od -An -v -tx1 | tr -d ' \\n') {0}\"; fi",
                path.display()
            );
        }
    }
    script
}

/// Returns a problem if the SDC's address belongs to none of the host's interfaces.
fn absent(ip: IpAddr, said: &str) -> Option<String> {
    let mut has = said.lines().filter_map(|l| l.strip_prefix("has=")).peekable();
    // A host without such a list passes.
    has.peek()?;
    let local = ip.is_unspecified() || ip.is_loopback() || ip.is_ipv6();
    let there = has.any(|at| at.parse() == Ok(ip));
    (!local && !there).then(|| format!("none of its interfaces has the address {ip} of its SDC"))
}

fn device_script(device: &DeviceSpec) -> String {
    match device {
        DeviceSpec::Block(path) => {
            let path = path.display();
            format!(
                "if [ ! -b '{path}' ]; then echo 'missing={path}'; \
                 elif grep -q \"^$(readlink -f '{path}')[0-9p]* \" /proc/mounts; \
                 then echo 'mounted={path}'; fi\n"
            )
        }
        DeviceSpec::File(path, Some(size)) => {
            let (folder, bytes) = (path.parent().unwrap_or(path).display(), size.0);
            format!(
                "at='{folder}'; while [ ! -d \"$at\" ]; do at=$(dirname \"$at\"); done\n\
                 free=$(($(df -Pk \"$at\" | awk 'NR == 2 {{print $4}}') * 1024))\n\
                 if [ ! -e '{0}' ] && [ \"$free\" -lt {bytes} ]; \
                 then echo \"small={0} $free {bytes}\"; fi\n",
                path.display()
            )
        }
        DeviceSpec::File(path, None) => {
            format!("if [ ! -f '{0}' ]; then echo 'missing={0}'; fi\n", path.display())
        }
        DeviceSpec::Ram(_) | DeviceSpec::Null(_) => String::new(),
    }
}

/// Parses the script's output. It ran between two moments of this machine's clock.
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
    let (before, after) = (seconds(before).as_secs() as i64, seconds(after).as_secs() as i64);
    let theirs: i64 = one("now").parse().unwrap_or_default();
    let ahead = (theirs - before).min(0) + (theirs - after).max(0);
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
        machine: one("machine"),
        ahead,
        has_log: !all("log").is_empty(),
        held: all("held").into_iter().filter_map(held).collect(),
        wrong,
    }
}

/// Parses a device's path and the superblock in its first bytes.
fn held(line: &str) -> Option<Held> {
    let (bytes, path) = line.split_once(' ')?;
    let digits = bytes.as_bytes().chunks(2);
    let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok();
    let page: Vec<u8> = digits.map(byte).collect::<Option<_>>()?;
    let mut search = Search::new(base::GIB);
    while let Some(at) = search.next() {
        search.take(if at == 0 && page.len() == PAGE { Ok(&page) } else { Err(DiskError::Io) });
    }
    Some(Held { path: path.to_owned(), identity: search.newest()?.identity })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(said: &str) -> Findings {
        let at = |s| SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(s);
        let said = format!("uid=0\narch={}\n{said}", std::env::consts::ARCH);
        read(&said, at(1_000_000), at(1_000_002))
    }

    fn wrong(said: &str) -> Vec<String> {
        look(said).wrong
    }

    #[test]
    fn an_address_that_no_interface_has_is_found() {
        let said = "kernel=6\nhas=127.0.0.1\nhas=10.0.0.7\n";
        let absent = |ip: &str, said| absent(ip.parse().unwrap(), said).is_some();
        assert!(absent("10.0.0.8", said));
        for fine in ["10.0.0.7", "0.0.0.0", "127.0.0.5", "::1"] {
            assert!(!absent(fine, said), "{fine}");
        }
        assert!(!absent("10.0.0.8", "kernel=6\n"), "it can't tell");
    }

    #[test]
    fn a_clock_is_off_by_more_than_the_time_of_the_request() {
        for (now, ahead) in [(1_000_001, 0), (1_000_030, 28), (999_990, -10)] {
            assert_eq!(look(&format!("now={now}")).ahead, ahead);
        }
    }

    #[test]
    fn the_content_of_a_device_is_recognised_by_its_first_page() {
        let folder = std::env::temp_dir().join(format!("gabion-held-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("disk 0");
        let spec = rt::DiskSpec::file(&path, Some(16 << 20));
        let mut drive = rt::OfflineDevice::open(&spec, rt::Backend::Auto).unwrap();
        let cluster = base::ClusterId(0xab);
        let identity = Identity { cluster, device: base::DeviceId(7), uuid: [1, 2] };
        daemon::offline::format(&mut drive, identity, false).unwrap();
        drop(drive);
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let page = hex(&std::fs::read(&path).unwrap()[..PAGE]);
        let found = look(&format!("held={page} {}", path.display()));
        assert_eq!(found.held, [Held { path: path.display().to_string(), identity }]);
        assert_eq!(look(&format!("held={} /x", hex(&[0; PAGE]))).held, []);
        assert_eq!(look("held= /x").held, []);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn problems_of_a_host_are_reported() {
        assert_eq!(wrong("now=1000001"), [""; 0]);
        assert!(wrong("now=1000000\nbusy=7001")[0].contains("port 7001"));
        assert!(wrong("now=1000000\nruns=sds\nbusy=7072")[0].contains("a Gabion sds runs"));
        assert!(wrong("now=1000000\nmounted=/dev/sdb")[0].contains("mounted"));
        let small = wrong("now=1000000\nsmall=/d/x 1073741824 2147483648");
        assert_eq!(small, ["/d/x is to have 2 GiB, and 1 GiB are free"]);
    }
}

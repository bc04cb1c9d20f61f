//! The output of a foreground `gabion up`: how to use the cluster, then its state, until Ctrl-C.

use crate::lines;
use crate::target::Target;
use admin::report::{Report, UpDown};
use anyhow::Result;
use daemon::size::Size;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write, stdout};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const REFRESH: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(50);
/// Servers and volumes that the view lists, so that it fits on a screen.
const LISTED: usize = 8;

/// Describes how to attach the volumes. Every command in it works as printed.
pub(crate) fn how_to_use(report: &Report, dir: &str, detached: bool) -> String {
    let gabion = own_name();
    let mut text = format!("\n{}\n", lines::headline(report));
    let used = |v: &&admin::report::Volume| !v.nbd_uris.is_empty();
    for volume in report.volumes.iter().filter(used) {
        let _ = writeln!(
            text,
            "  {:<10} {:>10}  {}",
            volume.name,
            Size(volume.size_bytes).to_string(),
            volume.nbd_uris[0]
        );
        let others = volume.nbd_uris.iter().skip(1);
        for uri in others.chain(&volume.iscsi_uris).chain(&volume.nvme_portals) {
            let _ = writeln!(text, "  {:<10} {:>10}  {uri}", "", "");
        }
    }
    if let Some(first) = report.volumes.iter().find(used) {
        let (volume, uri) = (&first.name, &first.nbd_uris[0]);
        let _ = write!(
            text,
            "\nUse it with any NBD client:\n\
             \x20 nbdinfo '{uri}'\n\
             \x20 qemu-img info '{uri}'\n\
             \x20 fio --name=try --ioengine=nbd --uri='{uri}' --rw=randread --bs=4k --iodepth=32 \
             --runtime=10 --time_based\n\
             {}\
             \nOr as a block device of this machine, or a mounted file system (as root):\n\
             \x20 {gabion} attach {volume}{dir}\n\
             \x20 {gabion} attach {volume} --fs ext4 --at /mnt/{volume}{dir}\n\
             \nTry a failure while it runs:\n\
             \x20 {gabion} sds kill 2{dir}\n\
             \x20 {gabion} status{dir}\n\
             \x20 {gabion} sds start 2{dir}\n",
            by_iscsi(report) + &by_nvme(report)
        );
    }
    if detached {
        let _ = writeln!(text, "\nStop it with:\n  {gabion} down{dir}");
    }
    text.push('\n');
    text
}

/// Describes how to attach a volume by iSCSI, if that is served.
fn by_iscsi(report: &Report) -> String {
    let uri = |v: &admin::report::Volume| {
        v.iscsi_uris.first().map(|uri| (v.iscsi_target.clone(), uri.clone()))
    };
    let Some((target, uri)) = report.volumes.iter().find_map(uri) else { return String::new() };
    let portal = uri.trim_start_matches("iscsi://").split('/').next().unwrap_or_default();
    format!(
        "\nOr with any iSCSI initiator, here libiscsi, QEMU and Linux:\n\
         \x20 iscsi-ls -s iscsi://{portal}\n\
         \x20 qemu-img info '{uri}'\n\
         \x20 iscsiadm -m discovery -t sendtargets -p {portal}\n\
         \x20 iscsiadm -m node -T {target} -p {portal} --login\n"
    )
}

/// Describes how to attach the volumes by NVMe/TCP, if that is served.
fn by_nvme(report: &Report) -> String {
    let Some(portal) = report.sdc.iter().find_map(|sdc| sdc.nvme_portals.first()) else {
        return String::new();
    };
    let Some((ip, port)) = portal.trim_start_matches("nvme-tcp://").rsplit_once(':') else {
        return String::new();
    };
    let ip = ip.trim_matches(['[', ']']);
    format!(
        "\nOr with NVMe/TCP, all volumes at once, here Linux:\n\
         \x20 nvme connect-all -t tcp -a {ip} -s {port}\n\
         \x20 ls -l /dev/disk/by-id/nvme-uuid.*\n"
    )
}

/// Returns how to call this binary from here: `gabion` if it is in the search path.
fn own_name() -> String {
    let Ok(binary) = std::env::current_exe() else { return "gabion".into() };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|p| p.join("gabion")).find(|p| p.exists());
    if found.and_then(|p| p.canonicalize().ok()).is_some_and(|p| p == binary) {
        return "gabion".into();
    }
    let here = std::env::current_dir().ok();
    let near = here.and_then(|here| binary.strip_prefix(here).ok().map(ToOwned::to_owned));
    near.unwrap_or(binary).display().to_string()
}

/// Shows the cluster until interrupted, or until its processes are gone.
pub(crate) fn show(
    target: &Target,
    children: &mut [(String, Child)],
    stop: &AtomicBool,
) -> Result<()> {
    let screen = stdout().is_terminal();
    let (mut last, mut drawn) = (String::new(), 0);
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let mut running = 0;
        for (_, child) in children.iter_mut() {
            // This also reaps it. A process restarted by `sds start` is not our child.
            running += usize::from(child.try_wait()?.is_none());
        }
        if running == 0 && target.local()?.live()?.is_empty() {
            println!("All processes of the cluster have ended.");
            return Ok(());
        }
        if Instant::now() >= next {
            next = Instant::now() + REFRESH;
            let view = match target.report() {
                Ok(report) if screen => view(&report),
                Ok(report) => format!("{}\n", changes(&report)),
                Err(error) => format!("{error:#}\n"),
            };
            if screen {
                draw(&view, &mut drawn)?;
            } else if view != last {
                print!("{view}");
            }
            last = view;
        }
        std::thread::sleep(POLL);
    }
    println!("\nStopping.");
    Ok(())
}

/// Replaces the view on the screen.
fn draw(view: &str, drawn: &mut usize) -> Result<()> {
    let mut out = stdout().lock();
    if *drawn > 0 {
        write!(out, "\x1b[{drawn}A\x1b[J")?;
    }
    out.write_all(view.as_bytes())?;
    out.flush()?;
    *drawn = view.lines().count();
    Ok(())
}

/// Formats the state for a log: without the figures that change all the time.
fn changes(report: &Report) -> String {
    let down: Vec<&str> =
        report.sds.iter().filter(|s| s.state == UpDown::Down).map(|s| s.name.as_str()).collect();
    let mut line = lines::headline(report);
    if !down.is_empty() {
        let _ = write!(line, "; down: {}", down.join(" "));
    }
    if report.resync.remaining_bytes > 0 {
        line.push_str("; resync runs");
    }
    if report.full.is_some() {
        line.push_str("; FULL: writes wait for space");
    }
    line
}

fn view(report: &Report) -> String {
    let mut view = format!("{}\n", lines::headline(report));
    let down = || report.sds.iter().filter(|s| s.state == UpDown::Down);
    for sds in down().take(LISTED) {
        let _ = writeln!(view, "  {} is down (pid {})", sds.name, sds.pid);
    }
    if down().count() > LISTED {
        let _ = writeln!(view, "  and {} more are down", down().count() - LISTED);
    }
    for volume in report.volumes.iter().take(LISTED) {
        let size = Size(volume.size_bytes).to_string();
        let _ = writeln!(view, "  {:<31} {size:>10}  {}", volume.name, volume.state);
    }
    if report.volumes.len() > LISTED {
        let _ = writeln!(view, "  and {} more volumes", report.volumes.len() - LISTED);
    }
    let _ = writeln!(view, "{}", lines::capacity(report));
    let _ = writeln!(view, "{}", lines::resync(&report.resync));
    if let Some(line) = lines::space(report) {
        let _ = writeln!(view, "{line}");
    }
    let _ = writeln!(view, "Ctrl-C stops the cluster.");
    view
}

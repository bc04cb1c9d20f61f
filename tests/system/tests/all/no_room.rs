//! The file system below a whole cluster becomes full: servers wait, status answers, and everything
//! recovers when there is space.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Instant;
use system::bytes::Random;
use system::nbd::cmd;
use system::{Cluster, Folder, MIB, Options, case, leave_out, secs, tool, wait};

/// A small file system in memory. It is unmounted with its test.
struct Small(PathBuf);

impl Small {
    fn new(folder: &Folder, bytes: u64) -> Result<Option<Small>> {
        let at = folder.join("small");
        fs::create_dir_all(&at)?;
        let size = format!("size={bytes}");
        let place = at.to_str().context("text")?;
        let ran = tool("mount", ["-t", "tmpfs", "-o", &size, "gabion-test", place])?;
        Ok((ran.code == 0).then_some(Small(at)))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = tool("umount", ["--lazy", self.0.to_str().unwrap_or_default()]);
    }
}

#[test]
fn a_full_file_system_holds_a_cluster_and_room_heals_it() {
    case(|| {
        let folder = Folder::new()?;
        let Some(small) = Small::new(&folder, 480 * MIB)? else {
            return leave_out("a full file system, because mounting is not permitted");
        };
        // The whole cluster lies in it.
        let options = Options {
            device: "file:256MiB",
            volumes: &["vol1:128MiB"],
            more: &["--quarantine", "0"],
            ..Options::default()
        };
        symlink(&small.0, folder.join("c"))?;
        let cluster = Cluster::start_in(folder.clone(), &options)?;
        ensure!(cluster.printed.contains("WARNING: devices"), "{}", cluster.printed);
        let data = Random::new(8).bytes(16 * MIB as usize);
        cluster.fill("vol1", &data)?;
        // A file takes most of the remaining space.
        let filler = small.0.join("filler");
        let free = rustix::fs::statvfs(&small.0)?;
        let free = free.f_bavail * free.f_frsize;
        fs::write(&filler, vec![1; (free - 4 * MIB) as usize])?;
        let mut nbd = cluster.nbd("vol1")?;
        let writer = std::thread::spawn(move || {
            let mebi = vec![7; MIB as usize];
            (16..120)
                .try_for_each(|at| nbd.request(cmd::WRITE, at * MIB, MIB as u32, &mebi).map(drop))
        });
        let starved = wait("servers wait for room", secs(60), || {
            let begun = Instant::now();
            let status = cluster.status()?;
            ensure!(begun.elapsed() < secs(3), "status took {:?}", begun.elapsed());
            let sds = status["sds"].as_array().context("a list")?;
            Ok(sds.iter().any(|s| s["state"] == "down").then_some(status))
        })?;
        ensure!(starved["state"] != "healthy", "{starved:#}");
        // The MDM's space was reserved.
        for n in 0..3 {
            cluster.gabion(&["fault-set", "create", &format!("rack{n}")])?.ok()?;
        }
        for name in ["mdm", "sds1", "sds2", "sds3", "sdc"] {
            ensure!(system::cluster::is_running(cluster.pid(name)?), "{name} has ended");
        }
        fs::remove_file(&filler)?;
        cluster.wait_state("healthy", secs(60))?;
        writer.join().expect("it doesn't panic").context("what was held is done")?;
        cluster.verify("vol1", &[&data[..], &vec![7; 104 * MIB as usize]].concat())?;
        drop(cluster);
        drop(small);
        Ok(())
    });
}

#[test]
fn a_warning_comes_before_sparse_devices_exceed_the_disk() {
    case(|| {
        let cluster = Cluster::start(&Options { device: "file:256MiB", ..Options::default() })?;
        ensure!(!cluster.printed.contains("WARNING"), "{}", cluster.printed);
        let huge = format!("file:{}:4TiB", cluster.file("devices/huge").display());
        let said = cluster.gabion(&["device", "add", &huge, "--sds", "1"])?;
        ensure!(said.stdout.contains("WARNING: devices"), "{} {}", said.stdout, said.stderr);
        Ok(())
    });
}

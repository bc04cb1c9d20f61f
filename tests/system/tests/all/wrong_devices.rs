//! A server finds something other than its device, or a device that fails: it says what to do, the
//! other copies serve, and no data is lost.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use system::bytes::Random;
use system::cluster::signal;
use system::rot::Rot;
use system::run::run;
use system::{Cluster, MIB, Options, case, gabion, leave_out, replicas, secs, tool, wait};

const SIZE: u64 = 64 * MIB;
const OPTIONS: Options =
    Options { sds: 3, device: "file:64MiB", volumes: &["vol1:24MiB"], more: &[] };

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary path is text")
}

fn fill(cluster: &Cluster, volume: &str, seed: u64, bytes: u64) -> Result<Vec<u8>> {
    let data = Random::new(seed).bytes(bytes as usize);
    cluster.fill(volume, &data)?;
    Ok(data)
}

/// Places of the superblocks on a device of this size.
const SUPERBLOCKS: [u64; 4] = [0, MIB, SIZE / 2, SIZE - (64 << 10)];

fn overwrite(path: &Path, offset: u64, bytes: &[u8]) -> Result<()> {
    let file = File::options().write(true).open(path)?;
    SUPERBLOCKS.iter().try_for_each(|at| file.write_all_at(bytes, at + offset))?;
    Ok(())
}

fn resize(path: &Path, bytes: u64) -> Result<()> {
    Ok(File::options().write(true).open(path)?.set_len(bytes)?)
}

/// Something else in place of a device.
struct Wrong {
    what: &'static str,
    /// Puts it in place. Gets the path of the device, which is there, and the path of another
    /// server's device.
    harm: fn(&Path, &Path) -> Result<()>,
    /// Messages of a server's start, and below those of `inspect`.
    start: &'static [&'static str],
    inspect: &'static [&'static str],
}

const WRONG: &[Wrong] = &[
    Wrong {
        what: "nothing",
        harm: |path, _| Ok(fs::remove_file(path)?),
        start: &["it is empty", "Is its disk mounted?", "--replace"],
        inspect: &["not formatted"],
    },
    Wrong {
        what: "an empty file",
        harm: |path, _| resize(path, 0),
        start: &["it is empty", "Is its disk mounted?", "--replace"],
        inspect: &["not formatted"],
    },
    Wrong {
        what: "a photo",
        harm: |path, _| Ok(fs::write(path, Random::new(1).bytes(SIZE as usize))?),
        start: &["not formatted", "add it as a new device"],
        inspect: &["not formatted", "add it as a new device"],
    },
    Wrong {
        what: "a small file",
        harm: |path, _| resize(path, MIB),
        start: &["1048576 bytes", "at least 16777216"],
        inspect: &["1048576 bytes", "at least 16777216"],
    },
    Wrong {
        what: "a device that has shrunk",
        harm: |path, _| resize(path, SIZE / 2),
        start: &["had 67108864 bytes and has 33554432", "give it back its size"],
        inspect: &["had 67108864 bytes and has 33554432", "give it back its size"],
    },
    Wrong {
        what: "a device of a newer format",
        harm: |path, _| overwrite(path, 8, &[99]),
        start: &["format 99", "update"],
        inspect: &["format 99", "update"],
    },
    Wrong {
        what: "a device whose superblocks are damaged",
        harm: |path, _| overwrite(path, 100, b"rot"),
        start: &["every superblock", "damaged", "replace it"],
        inspect: &["every superblock", "damaged", "replace it"],
    },
    Wrong {
        what: "a copy of another server's device",
        harm: |path, other| Ok(fs::copy(other, path).map(drop)?),
        start: &["`sds3`", "if this is a copy, remove it"],
        inspect: &[],
    },
    Wrong {
        what: "a folder",
        harm: |path, _| Ok(fs::remove_file(path).and_then(|()| fs::create_dir(path))?),
        start: &["is a folder", "name a file in it"],
        inspect: &["is a folder", "name a file in it"],
    },
];

#[test]
fn unusable_content_in_a_device_s_place_is_reported_and_never_served() {
    case(|| {
        let cluster = Cluster::start(&OPTIONS)?;
        let data = fill(&cluster, "vol1", 1, 24 * MIB)?;
        let (path, other) = (cluster.device(2), cluster.device(3));
        cluster.kill("sds2")?;
        cluster.wait_down("sds2")?;
        let kept = cluster.folder.join("kept");
        fs::rename(&path, &kept)?;
        for wrong in WRONG {
            fs::copy(&kept, &path)?;
            (wrong.harm)(&path, &other)?;
            let checks = || -> Result<()> {
                cluster.gabion(&["sds", "start", "2"])?.fails(1, wrong.start)?;
                let code = i32::from(!wrong.inspect.is_empty());
                gabion(["inspect", text(&path)])?.fails(code, wrong.inspect)?;
                gabion(["inspect", text(&path), "verify"])?.fails(code, wrong.inspect)
            };
            checks().with_context(|| wrong.what)?;
            cluster.verify("vol1", &data)?;
            let _ = fs::remove_dir(&path).or_else(|_| fs::remove_file(&path));
        }
        // The device's folder is not mounted; afterwards everything is as before.
        let (folder, away) = (cluster.file("devices"), cluster.file("away"));
        fs::rename(&folder, &away)?;
        let refused = cluster.gabion(&["sds", "start", "2"])?;
        fs::rename(&away, &folder)?;
        refused.fails(1, &["No such file", "make the folder first"])?;
        fs::rename(&kept, &path)?;
        cluster.start_sds(2)?;
        cluster.wait_state("healthy", secs(30))?;
        cluster.verify("vol1", &data)
    });
}

#[test]
fn devices_that_two_servers_have_exchanged_serve_where_they_are() {
    case(|| {
        let cluster = Cluster::start(&OPTIONS)?;
        let data = fill(&cluster, "vol1", 3, 24 * MIB)?;
        cluster.gabion(&["down"])?.ok()?;
        let (one, two) = (cluster.device(1), cluster.device(2));
        let aside = cluster.folder.join("aside");
        fs::rename(&one, &aside)?;
        fs::rename(&two, &one)?;
        fs::rename(&aside, &two)?;
        cluster.start_again()?;
        cluster.wait_state("healthy", secs(30))?;
        cluster.verify("vol1", &data)
    });
}

#[test]
fn a_device_of_another_cluster_is_refused_and_stays_as_it_was() {
    case(|| {
        let (cluster, other) = (Cluster::start(&OPTIONS)?, Cluster::start(&OPTIONS)?);
        let theirs = fill(&other, "vol1", 7, 24 * MIB)?;
        other.gabion(&["down"])?.ok()?;
        cluster.kill("sds2")?;
        cluster.wait_down("sds2")?;
        let (path, kept) = (cluster.device(2), cluster.folder.join("kept"));
        fs::rename(&path, &kept)?;
        fs::rename(other.device(2), &path)?;
        let words = ["belongs to cluster", "paths of devices", "configuration"];
        cluster.gabion(&["sds", "start", "2"])?.fails(1, &words)?;
        gabion(["inspect", text(&path), "verify"])?.ok()?;
        fs::rename(&path, other.device(2))?;
        fs::rename(&kept, &path)?;
        cluster.start_sds(2)?;
        cluster.wait_state("healthy", secs(30))?;
        other.start_again()?;
        other.verify("vol1", &theirs)?;
        compare(&other, &[1, 2, 3].map(|n| other.device(n)), "vol1", &theirs)
    });
}

#[test]
fn a_device_that_may_not_be_written_or_is_in_use_is_refused() {
    case(|| {
        let cluster = Cluster::start(&OPTIONS)?;
        let data = fill(&cluster, "vol1", 2, 8 * MIB)?;
        // Two servers with one device: the second one ends, and the first one does not notice.
        let (file, path) = (cluster.file("config/sds3.toml"), cluster.device(2));
        let before = fs::read_to_string(&file)?;
        cluster.kill("sds3")?;
        fs::write(&file, before.replace("devices/sds3.0", "devices/sds2.0"))?;
        cluster
            .gabion(&["sds", "start", "3"])?
            .fails(1, &["sds2.0", "in use by another process"])?;
        gabion(["sds", "run", "--config", text(&file)])?
            .fails(6, &["in use by another process"])?;
        for what in [&["inspect", text(&path)][..], &["inspect", text(&path), "verify"]] {
            gabion(what)?.fails(1, &["in use", "gabion sds kill"])?;
        }
        fs::write(&file, before)?;
        // A file that even root can't write, if the file system supports that.
        let own = cluster.device(3);
        if tool("chattr", ["+i", text(&own)])?.code == 0 {
            let refused = cluster.gabion(&["sds", "start", "3"])?;
            let looked = gabion(["inspect", text(&own), "verify"]);
            tool("chattr", ["-i", text(&own)])?.ok()?;
            refused.fails(1, &["sds3.0", "may read and write it"])?;
            looked?.ok()?;
        } else {
            leave_out("a file that may not be written, because chattr +i is not permitted")?;
        }
        cluster.start_sds(3)?;
        cluster.wait_state("healthy", secs(30))?;
        cluster.verify("vol1", &data)
    });
}

#[test]
fn a_device_that_shrinks_while_it_serves_is_mended_from_the_other_copies() {
    case(|| {
        let cluster = Cluster::start(&OPTIONS)?;
        let data = fill(&cluster, "vol1", 3, 24 * MIB)?;
        // Reads beyond its end fail from now on, as on a bad disk.
        resize(&cluster.device(2), 12 * MIB)?;
        cluster.verify("vol1", &data)?;
        cluster.gabion(&["device", "scrub"])?.ok()?;
        cluster.verify("vol1", &data)?;
        let status = cluster.status()?;
        let repaired = status.pointer("/sds/1/devices/0/repaired_bytes").and_then(|n| n.as_u64());
        ensure!(repaired > Some(0), "{status:#}");
        // Its server can't use it like this, and says so.
        cluster.kill("sds2")?;
        cluster.wait_down("sds2")?;
        if fs::metadata(cluster.device(2))?.len() < SIZE {
            cluster.gabion(&["sds", "start", "2"])?.fails(1, &["give it back its size"])?;
            resize(&cluster.device(2), SIZE)?;
        }
        cluster.start_sds(2)?;
        cluster.wait_state("healthy", secs(30))?;
        cluster.verify("vol1", &data)?;
        cluster.gabion(&["device", "scrub"])?.ok()?;
        compare(&cluster, &[1, 2, 3].map(|n| cluster.device(n)), "vol1", &data)
    });
}

/// Stops the cluster when nothing moves any more, and compares all copies of a volume.
fn compare(cluster: &Cluster, devices: &[PathBuf], volume: &str, data: &[u8]) -> Result<()> {
    wait("nothing moves", secs(60), || {
        let moves = &cluster.status()?["moves"];
        let still = ["groups", "waiting_groups"].iter().all(|what| moves[what] == 0);
        Ok(still.then_some(()))
    })?;
    let status = cluster.status()?;
    let volumes = status["volumes"].as_array().context("volumes")?;
    let found = volumes.iter().find(|v| v["name"] == volume).context("the volume")?;
    let id = found["id"].as_u64().context("an id")?;
    cluster.gabion(&["down"])?.ok()?;
    let devices: Vec<String> = devices.iter().map(|d| text(d).to_owned()).collect();
    replicas::compare(&cluster.folder, &devices, id, data).map(drop)
}

/// A file system in memory. It is unmounted when the value is dropped.
struct Mounted(PathBuf);

impl Mounted {
    /// Returns `None` if mounting is not permitted.
    fn new(at: PathBuf, bytes: u64) -> Result<Option<Mounted>> {
        fs::create_dir_all(&at)?;
        let size = format!("size={bytes}");
        let ran = tool("mount", ["-t", "tmpfs", "-o", &size, "gabion-test", text(&at)])?;
        Ok((ran.code == 0).then_some(Mounted(at)))
    }

    fn resize(&self, bytes: u64) -> Result<()> {
        let size = format!("remount,size={bytes}");
        tool("mount", ["-o", &size, text(&self.0)])?.ok().map(drop)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = tool("umount", ["--lazy", text(&self.0)]);
    }
}

#[test]
fn when_the_file_system_beneath_a_device_is_full_the_other_copies_serve() {
    case(|| {
        let cluster = Cluster::start(&Options { volumes: &[], ..OPTIONS })?;
        let Some(mounted) = Mounted::new(cluster.folder.join("small"), 20 * MIB)? else {
            return leave_out("a full file system, because mounting is not permitted");
        };
        let path = mounted.0.join("device");
        let spec = format!("file:{}:64MiB", path.display());
        // `--force` is needed because the file system is memory.
        cluster.gabion(&["device", "add", &spec, "--sds", "1", "--force"])?.ok()?;
        cluster.gabion(&["volume", "create", "late", "64MiB"])?.ok()?;
        let data = fill(&cluster, "late", 4, 64 * MIB)?;
        cluster.wait_state("degraded", secs(30))?;
        let log = fs::read_to_string(cluster.file("logs/sds1.log"))?;
        ensure!(log.contains("is full: make room"), "{log}");
        cluster.verify("late", &data)?;
        // With more space the device comes back, and all copies are equal.
        mounted.resize(80 * MIB)?;
        signal(cluster.pid("sds1")?, Signal::HUP)?;
        cluster.wait_state("healthy", secs(30))?;
        cluster.verify("late", &data)?;
        let mut devices = [1, 2, 3].map(|n| cluster.device(n)).to_vec();
        devices.push(path);
        compare(&cluster, &devices, "late", &data)?;
        drop(mounted);
        Ok(())
    });
}

#[test]
fn inspect_distinguishes_damaged_devices_from_whole_ones() {
    case(|| {
        let cluster = Cluster::start(&OPTIONS)?;
        let data = fill(&cluster, "vol1", 5, 24 * MIB)?;
        // By then each replica has heard which blocks are equal everywhere. Other blocks would be
        // copied from the damaged device, as damaged ones, if a server came late at the next start.
        std::thread::sleep(secs(1));
        cluster.gabion(&["down"])?.ok()?;
        let path = cluster.device(1);
        let inspect = |more: &[&str]| {
            let arguments = [&["inspect", text(&path)], more].concat();
            run(std::process::Command::new(system::run::binary()).args(arguments))
        };
        let out = cluster.folder.join("out");
        let export = ["export", "--volume", "1", "--json", "--out", text(&out)];
        inspect(&[])?.ok()?;
        inspect(&["verify"])?.ok()?;
        inspect(&export)?.ok()?;
        let whole = fs::read(&out)?;
        inspect(&export)?.fails(1, &["is there already"])?;
        inspect(&["export", "--volume", "77", "--out", "/nowhere/x"])?
            .fails(1, &["nothing of vol77", "it has 1"])?;
        fs::remove_file(&out)?;
        let flipped = Rot::learn(text(&path))?.flip(text(&path), 3, None, &mut Random::new(6))?;
        ensure!(flipped == 3);
        inspect(&[])?.ok()?;
        let said: serde_json::Value =
            serde_json::from_str(&inspect(&["verify", "--json"])?.code(1)?)?;
        ensure!(said["damaged"].as_array().map(Vec::len) == Some(3), "{said:#}");
        ensure!(said["damaged_bytes"] == 3 * 4096, "{said:#}");
        inspect(&export)?.code(1)?;
        let (less, zeros) = (fs::read(&out)?, vec![0; 4096]);
        let pairs = whole.chunks(4096).zip(less.chunks(4096));
        let differ: Vec<_> = pairs.filter(|(whole, less)| whole != less).collect();
        ensure!(differ.len() == 3 && differ.iter().all(|(_, less)| *less == zeros));
        // A running cluster repairs it.
        cluster.start_again()?;
        cluster.wait_state("healthy", secs(20))?;
        cluster.gabion(&["device", "scrub"])?.ok()?;
        cluster.verify("vol1", &data)?;
        cluster.gabion(&["down"])?.ok()?;
        inspect(&["verify"])?.ok()?;
        Ok(())
    });
}

#[test]
fn devices_that_can_not_be_added_or_imported_are_refused_at_once() {
    case(|| {
        let cluster = Cluster::start(&OPTIONS)?;
        let path = |name: &str| cluster.folder.join(name);
        let device =
            |how: &str, spec: String| cluster.gabion(&["device", how, &spec, "--sds", "1"]);
        let add = |name: &str| device("add", format!("file:{}", path(name).display()));
        let import = |name: &str| device("import", format!("file:{}", path(name).display()));
        add("tiny:1MiB")?.fails(1, &["too small", "16 MiB"])?;
        ensure!(!path("tiny").exists(), "what is refused is not made");
        add("unsized")?.fails(1, &["give it a size"])?;
        add("nowhere/device:64MiB")?.fails(1, &["no folder", "mount"])?;
        add("c:64MiB")?.fails(1, &["is a folder"])?;
        import("none")?.fails(1, &["there is no", "none"])?;
        import("c")?.fails(1, &["is a folder"])?;
        // Devices of this cluster that can't be used in their present state.
        let spec = format!("{}:64MiB", path("moved").display());
        device("add", format!("file:{spec}"))?.ok()?;
        let list = cluster.gabion(&["device", "list", "--json"])?.ok()?;
        let list: serde_json::Value = serde_json::from_str(&list)?;
        let added = list.as_array().context("a list")?.iter().find(|d| d["shard"] == 1);
        let id = added.context("the new device")?["id"].to_string();
        cluster.gabion(&["device", "remove", &id, "--sds", "1", "--now"])?.ok()?;
        fs::copy(path("moved"), path("shrunk"))?;
        resize(&path("shrunk"), SIZE / 2)?;
        import("shrunk")?.fails(1, &["shrunk", "give it back its size"])?;
        fs::copy(path("moved"), path("newer"))?;
        overwrite(&path("newer"), 8, &[99])?;
        import("newer")?.fails(1, &["newer", "format 99", "update"])?;
        add("newer")?.fails(1, &["can't be read", "--force"])?;
        // And one that can be used. Then it is in use, and its copy is refused.
        fs::copy(path("moved"), path("copy"))?;
        import("moved")?.ok()?;
        import("moved")?.fails(1, &["already"])?;
        import("copy")?.fails(1, &["if this is a copy, remove it"])?;
        wait(
            "all is well",
            secs(30),
            || Ok((cluster.status()?["state"] == "healthy").then_some(())),
        )
    });
}

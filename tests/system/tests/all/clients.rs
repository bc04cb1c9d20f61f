//! Common block clients work with a volume, and every byte comes back.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use system::bytes::Random;
use system::{Cluster, MIB, Options, case, free_port, secs, shell, tool};

fn path(path: &Path) -> &str {
    path.to_str().expect("a temporary path is text")
}

#[test]
fn the_commands_that_up_prints_work() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let line = |what: &str| -> Result<String> {
            let mut lines = cluster.printed.lines().map(str::trim);
            let found = lines.find(|l| l.contains(what) && !l.ends_with(':'));
            let line = found.with_context(|| format!("no `{what}` in {}", cluster.printed))?;
            Ok(line.replace("--runtime=10", "--runtime=1"))
        };
        for what in ["nbdinfo", "qemu-img", "fio --name"] {
            shell(&line(what)?)?.ok()?;
        }
        shell(&line("sds kill 2")?)?.ok()?;
        cluster.wait_down("sds2")?;
        shell(&line(" status")?)?.code(3)?;
        shell(&line("sds start 2")?)?.ok()?;
        cluster.wait_state("healthy", secs(30))?;
        shell(&line(" down")?)?.ok()?;
        ensure!(cluster.running().is_empty());
        Ok(())
    });
}

#[test]
fn nbdinfo_sees_sizes_and_features() {
    case(|| {
        let volumes = &["vol1:512MiB", "logs:3MiB"];
        let cluster = Cluster::start(&Options { volumes, ..Options::default() })?;
        let json = tool("nbdinfo", ["--json", &cluster.uri("logs")])?.ok()?;
        let info: serde_json::Value = serde_json::from_str(&json)?;
        let export = &info["exports"][0];
        ensure!(export["export-size"] == 3 * MIB, "{json}");
        for feature in ["can_multi_conn", "can_flush", "can_fua", "can_trim", "can_zero"] {
            ensure!(export[feature] == true, "{feature} is missing: {json}");
        }
        ensure!(export["is_read_only"] == false, "{json}");
        let list = tool("nbdinfo", ["--list", &cluster.uri("")])?.ok()?;
        ensure!(list.contains("vol1") && list.contains("logs"), "{list}");
        let map = tool("nbdinfo", ["--map", "--totals", &cluster.uri("vol1")])?.ok()?;
        ensure!(map.contains("hole"), "an empty volume is all hole: {map}");
        Ok(())
    });
}

#[test]
fn nbdcopy_and_nbdkit_bring_back_every_byte() {
    case(|| {
        let cluster = Cluster::start(&Options { volumes: &["vol1:96MiB"], ..Options::default() })?;
        let (input, output) = (cluster.folder.join("in"), cluster.folder.join("out"));
        // Some data, a hole, and data that ends in the middle of a unit and of a block.
        let mut content = Random::new(1).bytes(40 * MIB as usize + 1234);
        content.resize(70 * MIB as usize, 0);
        content.extend(Random::new(2).bytes(26 * MIB as usize));
        fs::write(&input, &content)?;
        tool("nbdcopy", ["--connections=4", path(&input), &cluster.uri("vol1")])?.ok()?;
        tool("nbdcopy", [&cluster.uri("vol1"), path(&output)])?.ok()?;
        ensure!(fs::read(&output)? == content, "nbdcopy brought back something else");
        cluster.verify("vol1", &content)?;
        // nbdkit as a client of Gabion and a server for nbdcopy.
        let line = format!(
            "nbdkit -U - nbd export=vol1 socket={} --run 'nbdcopy \"$uri\" {}'",
            cluster.socket().display(),
            output.display()
        );
        fs::remove_file(&output)?;
        shell(&line)?.ok()?;
        ensure!(fs::read(&output)? == content, "through nbdkit something else came back");
        Ok(())
    });
}

#[test]
fn qemu_converts_compares_writes_and_discards() {
    case(|| {
        let cluster = Cluster::start(&Options { volumes: &["vol1:64MiB"], ..Options::default() })?;
        let (uri, image) = (cluster.uri("vol1"), cluster.folder.join("image"));
        fs::write(&image, Random::new(3).bytes(64 * MIB as usize))?;
        let image = path(&image);
        tool("qemu-img", ["convert", "-n", "-f", "raw", "-O", "raw", image, &uri])?.ok()?;
        tool("qemu-img", ["compare", "-f", "raw", "-F", "raw", image, &uri])?.ok()?;
        let io = |command: &str| tool("qemu-io", ["-f", "raw", "-c", command, &uri])?.ok();
        let check = |command: &str| -> Result<()> {
            let said = io(command)?;
            ensure!(!said.to_lowercase().contains("fail"), "{command}: {said}");
            Ok(())
        };
        check("write -P 0x5a 1048000 9000")?;
        check("read -P 0x5a 1048000 9000")?;
        check("write -f -P 0x11 4096 512")?;
        check("read -P 0x11 4096 512")?;
        check("write -z 2M 3M")?;
        check("read -P 0 2M 3M")?;
        check("write -z -u 8M 1M")?;
        check("read -P 0 8M 1M")?;
        check("discard 16M 4M")?;
        check("read -P 0 16M 4M")?;
        check("flush")?;
        Ok(())
    });
}

#[test]
fn a_real_ext4_image_survives_the_round_trip() {
    case(|| {
        let cluster = Cluster::start(&Options { volumes: &["vol1:400MiB"], ..Options::default() })?;
        let (tree, image) = (cluster.folder.join("tree"), cluster.folder.join("image"));
        let mut random = Random::new(4);
        for i in 0..60 {
            let folder = tree.join(format!("folder{}", i % 7));
            fs::create_dir_all(&folder)?;
            let len = 1000 + random.below(10 * MIB) as usize;
            fs::write(folder.join(format!("file{i}")), random.bytes(len))?;
        }
        let back = cluster.folder.join("back");
        tool("mkfs.ext4", ["-q", "-d", path(&tree), path(&image), "400M"])?.ok()?;
        tool("nbdcopy", ["--flush", path(&image), &cluster.uri("vol1")])?.ok()?;
        tool("nbdcopy", [&cluster.uri("vol1"), path(&back)])?.ok()?;
        tool("cmp", [path(&image), path(&back)])?.ok()?;
        tool("e2fsck", ["-fn", path(&back)])?.ok()?;
        Ok(())
    });
}

#[test]
fn an_xfs_image_is_read_back_through_tcp() {
    case(|| {
        let port = free_port()?;
        let address: &'static str = format!("127.0.0.1:{port}").leak();
        let cluster = Cluster::start(&Options {
            volumes: &["vol1:320MiB"],
            more: vec!["--nbd-tcp", address].leak(),
            ..Options::default()
        })?;
        let (image, back) = (cluster.folder.join("image"), cluster.folder.join("back"));
        let uri = format!("nbd://{address}/vol1");
        let status = cluster.status()?;
        let uris = status.pointer("/volumes/0/nbd_uris").context("a volume has URIs")?;
        ensure!(uris.as_array().is_some_and(|u| u.iter().any(|u| *u == uri)), "{uris}");
        tool("truncate", ["-s", "320M", path(&image)])?.ok()?;
        tool("mkfs.xfs", ["-q", path(&image)])?.ok()?;
        tool("qemu-img", ["convert", "-n", "-f", "raw", "-O", "raw", path(&image), &uri])?.ok()?;
        tool("nbdcopy", [&uri, path(&back)])?.ok()?;
        tool("cmp", [path(&image), path(&back)])?.ok()?;
        tool("xfs_repair", ["-n", path(&back)])?.ok()?;
        Ok(())
    });
}

//! Devices are added, listed and removed at run time; unusable ones are refused with a message.

use anyhow::{Context, ensure};
use std::fs;
use system::{Cluster, MIB, Options, case, secs};

const OPTIONS: Options =
    Options { sds: 3, device: "file:128MiB", volumes: &["vol1:64MiB"], more: &[] };

#[test]
fn a_server_gets_one_more_device_and_gives_it_back() {
    case(|| {
        let cluster = Cluster::start(&OPTIONS)?;
        let pid = cluster.pid("sds2")?;
        let mut nbd = cluster.nbd("vol1")?;
        nbd.write(0, &[7; 4096])?;
        let spec = format!("file:{}:128MiB", cluster.file("more").display());
        cluster.gabion(&["device", "add", &spec, "--sds", "2"])?.ok()?;
        let list = cluster.gabion(&["device", "list", "--json"])?.ok()?;
        let list: serde_json::Value = serde_json::from_str(&list)?;
        let device = list.as_array().context("a list")?.iter().find(|d| d["shard"] == 1);
        let id = device.context("the new device")?["id"].to_string();
        ensure!(cluster.pid("sds2")? == pid, "the server was not restarted");
        cluster.gabion(&["device", "add", &spec, "--sds", "2"])?.fails(1, &["already"])?;
        cluster.gabion(&["device", "remove", &id, "--sds", "2", "--now"])?.ok()?;
        cluster.gabion(&["device", "import", &spec, "--sds", "3"])?.ok()?;
        ensure!(nbd.read(0, 4096)? == [7; 4096]);
        // The next start finds it again.
        cluster.gabion(&["down"])?.ok()?;
        cluster.start_again()?;
        let list = cluster.gabion(&["device", "list"])?.ok()?;
        ensure!(list.contains("sds3.1"), "{list}");
        Ok(())
    });
}

#[test]
fn a_cluster_starts_again_without_what_was_removed_or_lost() {
    case(|| {
        let cluster = Cluster::start(&Options { sds: 4, ..OPTIONS })?;
        let content: Vec<u8> = (0..64 << 20).map(|i: u32| (i >> 9) as u8).collect();
        cluster.fill("vol1", &content)?;
        cluster.gabion(&["sds", "remove", "4"])?.ok()?;
        cluster.gabion(&["down"])?.ok()?;
        let said = cluster.gabion(&["up", "--detach"])?.ok()?;
        ensure!(said.contains("sds4 ended") && said.contains("was removed"), "{said}");
        cluster.gabion(&["down"])?.ok()?;
        // The only device of a server is lost.
        fs::remove_file(cluster.device(2))?;
        let said = cluster.gabion(&["up", "--detach"])?.ok()?;
        ensure!(said.contains("sds2 ended") && said.contains("--sds sds2 --replace"), "{said}");
        cluster.verify("vol1", &content)?;
        let id = said.split("--replace ").nth(1).and_then(|rest| rest.split('`').next());
        let id = id.context("the device's number")?;
        let spec = format!("file:{}:128MiB", cluster.file("fresh").display());
        let replace = ["device", "add", &spec, "--sds", "2", "--replace", id];
        let said = cluster.gabion(&replace)?.ok()?;
        ensure!(said.contains("sds start sds2"), "{said}");
        cluster.gabion(&["sds", "start", "sds2"])?.ok()?;
        cluster.wait_state("healthy", secs(60))?;
        cluster.verify("vol1", &content)?;
        // A device that replaced another one must not be lost silently either.
        cluster.gabion(&["sds", "kill", "2"])?.ok()?;
        fs::remove_file(cluster.file("fresh"))?;
        cluster.gabion(&["sds", "start", "2"])?.fails(1, &["it is empty"])?;
        Ok(())
    });
}

#[test]
fn unusable_devices_are_refused() {
    case(|| {
        let cluster = Cluster::start(&OPTIONS)?;
        let path = |name: &str| cluster.file(name).display().to_string();
        let add = |spec: String| cluster.gabion(&["device", "add", &spec, "--sds", "1"]);
        fs::write(path("photo"), vec![9; 64 << 20])?;
        add(format!("file:{}", path("photo")))?.fails(1, &["not Gabion's", "--force"])?;
        ensure!(fs::read(path("photo"))? == vec![9; 64 << 20], "it was touched");
        add(format!("file:{}:1MiB", path("tiny")))?.fails(1, &["too small"])?;
        add(format!("file:{}:64XB", path("odd")))?.fails(1, &["`64XB` is not a size", "MiB"])?;
        add(format!("file:{}:64MiB", path("devices/sds2.0")))?.fails(1, &["in use"])?;
        add(format!("file:{}/x:64MiB", path("nowhere")))?.fails(1, &["nowhere"])?;
        add("block:/dev/nowhere".into())?.fails(1, &["there is no /dev/nowhere"])?;
        add("block:/dev/null".into())?.fails(1, &["/dev/null"])?;
        let import = |path: String| cluster.gabion(&["device", "import", &path, "--sds", "1"]);
        import(format!("file:{}", path("photo")))?.fails(1, &["device add"])?;
        // A device of another cluster is refused.
        let other = Cluster::start(&OPTIONS)?;
        other.gabion(&["down"])?.ok()?;
        let foreign = other.file("devices/sds1.0").display().to_string();
        import(format!("file:{foreign}"))?.fails(1, &["belongs to cluster"])?;
        add(format!("file:{foreign}"))?.fails(1, &["of cluster"])?;
        cluster.wait_state("healthy", secs(10))?;
        ensure!(cluster.nbd("vol1")?.read(0, MIB as usize)?.len() == MIB as usize);
        Ok(())
    });
}

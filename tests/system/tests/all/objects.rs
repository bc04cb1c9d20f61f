//! Objects as users see them: mappings, domains, fault sets, pools, and all refusals.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use system::bytes::Random;
use system::nbd::{Nbd, Refused, cmd, errno};
use system::{Cluster, Extra, MIB, Options, case, secs, setting, wait};

/// The export flag of a read-only volume.
const READ_ONLY: u16 = 2;

/// Checks that its first I/O is refused, and that its connection is closed.
fn is_cut_off(mut nbd: Nbd) -> Result<()> {
    let refused = nbd.read(0, 4096).expect_err("it is not mapped any more");
    let code = refused.downcast_ref::<Refused>().map(|r| r.0);
    ensure!(code.is_none_or(|code| code == errno::EIO), "{refused:?}");
    ensure!(system::nbd::closes(&mut nbd.stream, secs(5)), "its connection stays");
    Ok(())
}

fn mapped(cluster: &Cluster, volume: &str) -> Result<Vec<(String, String)>> {
    let status = cluster.status()?;
    let mut all = status["volumes"].as_array().context("a list")?.iter();
    let found = all.find(|v| v["name"] == volume).context("the volume")?;
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let list = found["mapped"].as_array().context("a list")?.iter();
    Ok(list.map(|m| (text(&m["sdc"]), text(&m["access"]))).collect())
}

#[test]
fn a_volume_serves_those_that_it_is_mapped_to_and_as_it_says() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let volume = |args: &[&str]| cluster.gabion(&[&["volume"], args].concat());
        let (_other, socket) = Extra::sdc(&cluster, "other")?;
        ensure!(mapped(&cluster, "vol1")? == [("all".into(), "read-write".into())]);
        let mut first = cluster.nbd("vol1")?;
        let second = Nbd::connect(&socket, "vol1")?;
        first.write(0, &[1; 4096])?;

        volume(&["map", "vol1", "--sdc", "other"])?.fails(1, &["mapped to all SDCs", "--only"])?;
        volume(&["unmap", "vol1", "--sdc", "other"])?
            .fails(1, &["mapped to all SDCs", "--only"])?;
        volume(&["map", "vol1"])?.fails(2, &["--sdc"])?;
        volume(&["map", "vol1", "--sdc", "nobody", "--only"])?
            .fails(1, &["no SDC `nobody`", "gabion sdc list"])?;
        let said = volume(&["map", "vol1", "--sdc", "sdc", "--only"])?.ok()?;
        ensure!(said.contains("mapped to sdc."), "{said}");
        is_cut_off(second)?;
        ensure!(Nbd::connect(&socket, "vol1").is_err(), "it may not attach it");
        first.write(0, &[2; 4096])?;
        ensure!(first.read(0, 4096)? == [2; 4096], "who keeps it notices nothing");

        volume(&["map", "vol1", "--sdc", "other", "--access", "read-only"])?.ok()?;
        let mut reader = Nbd::connect(&socket, "vol1")?;
        ensure!(reader.flags & READ_ONLY != 0 && first.flags & READ_ONLY == 0);
        ensure!(reader.read(0, 4096)? == [2; 4096]);
        for command in [cmd::WRITE, cmd::TRIM, cmd::WRITE_ZEROES] {
            let data: &[u8] = if command == cmd::WRITE { &[9; 4096] } else { &[] };
            let refused = reader.request(command, 0, 4096, data).expect_err("it may only read");
            let code = refused.downcast_ref::<Refused>().map(|r| r.0);
            ensure!(code == Some(errno::EPERM), "{command}: {refused:?}");
        }
        ensure!(first.read(0, 4096)? == [2; 4096]);

        volume(&["unmap", "vol1", "--sdc", "sdc"])?.ok()?;
        is_cut_off(first)?;
        volume(&["unmap", "vol1", "--sdc", "sdc"])?.fails(1, &["not mapped to sdc"])?;
        volume(&["delete", "vol1", "--yes"])?
            .fails(1, &["mapped to other", "unmap vol1 --all", "--unmap"])?;
        volume(&["unmap", "vol1", "--all"])?.ok()?;
        is_cut_off(reader)?;
        ensure!(mapped(&cluster, "vol1")?.is_empty());
        let list = volume(&["list"])?.ok()?;
        ensure!(list.contains("nobody") && list.contains("no SDC serves it"), "{list}");
        volume(&["map", "vol1", "--all"])?.ok()?;
        cluster.verify("vol1", &[2; 4096])?;

        volume(&["create", "v", "8MiB", "--map", "sdc", "--map", "other:read-only"])?.ok()?;
        ensure!(Nbd::connect(&socket, "v")?.flags & READ_ONLY != 0);
        volume(&["create", "w", "8MiB", "--map", "other:sometimes"])?
            .fails(1, &["no SDC `other:s"])?;
        volume(&["create", "w", "8MiB", "--map", "sdc:read-most"])?.fails(2, &["no access"])?;
        volume(&["create", "n", "8MiB", "--unmapped"])?.ok()?;
        ensure!(mapped(&cluster, "n")?.is_empty());

        volume(&["rename", "v", "vol1"])?.fails(1, &["`vol1` already"])?;
        volume(&["rename", "v", "data"])?.ok()?;
        ensure!(Nbd::connect(&socket, "data").is_ok() && Nbd::connect(&socket, "v").is_err());
        let sdc = |args: &[&str]| cluster.gabion(&[&["sdc"], args].concat());
        sdc(&["rename", "other", "sdc"])?.fails(1, &["SDC `sdc` already"])?;
        sdc(&["rename", "other", "backup"])?.ok()?;
        let list = sdc(&["list"])?.ok()?;
        ensure!(list.contains("│ backup") && !list.contains("│ other"), "{list}");
        volume(&["unmap", "data", "--sdc", "backup"])?.ok()?;
        Ok(())
    });
}

#[test]
fn unmap_names_the_servers_that_can_not_confirm_it() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let mut nbd = cluster.nbd("vol1")?;
        nbd.write(0, &[1; 4096])?;
        for sds in ["sds1", "sds2", "sds3"] {
            cluster.freeze(sds)?;
        }
        let unmapped = cluster.gabion(&["volume", "unmap", "vol1", "--all"])?;
        unmapped.fails(1, &["has not confirmed it", "may serve", "Ask again"])?;
        for sds in ["sds1", "sds2", "sds3"] {
            cluster.thaw(sds)?;
        }
        cluster.wait_state("healthy", secs(30))?;
        cluster.gabion(&["volume", "unmap", "vol1", "--all"])?.ok()?;
        is_cut_off(nbd)
    });
}

/// Returns the number of groups of each of these servers.
fn groups(cluster: &Cluster, names: &[&str]) -> Result<Vec<u64>> {
    let status = cluster.status()?;
    let all = status["sds"].as_array().context("a list")?;
    let of = |name: &&str| {
        let found =
            all.iter().find(|s| s["name"] == *name).with_context(|| format!("no {name}"))?;
        found["devices"][0]["groups"].as_u64().context("a number")
    };
    names.iter().map(of).collect()
}

#[test]
// Long: one story, in the order of its orders.
fn copies_are_kept_apart_by_fault_sets_and_pools_have_devices_of_their_own() {
    case(|| {
        let options =
            Options { device: "ram:256MiB", volumes: &["old:64MiB"], ..Options::default() };
        let cluster = Cluster::start(&options)?;
        let say = |line: &str| cluster.say(line);
        let before = groups(&cluster, &["sds1", "sds2", "sds3"])?;
        say("pool create fast --media ssd --spare 20")?.ok()?;
        say("pool create fast")?.fails(1, &["storage pool `fast` already"])?;
        say("pool create slow --domain west")?.fails(1, &["no protection domain `west`"])?;
        say("pool set fast --spare 91")?.fails(1, &["0 to 90"])?;
        say("pool set fast")?.fails(1, &["--spare"])?;
        say("fault-set create r1")?.ok()?;
        say("domain create east")?.ok()?;
        say("fault-set create r2")?.fails(1, &["several protection domains", "--domain"])?;
        say("fault-set create r2 --domain default")?.ok()?;
        say("domain remove east")?.ok()?;
        say("domain remove default")?.fails(1, &["still has 3 servers"])?;
        say("volume create v 64MiB")?.fails(1, &["several storage pools", "--pool"])?;
        say("volume create v 64MiB --pool fast")?.fails(1, &["two fault units", "`fast` has 0"])?;
        say("device add ram:64MiB --sds 1")?.fails(1, &["pools (default, fast)", "--pool"])?;

        let mut servers = Vec::new();
        for (name, set) in [("f1", "r1"), ("f2", "r1"), ("f3", "r2"), ("f4", "r2")] {
            let home = format!("fault_set = \"{set}\"");
            servers.push(Extra::sds(&cluster, name, &home, "fast")?);
        }
        let lost = Extra::sds(&cluster, "f5", "fault_set = \"r9\"", "fast")?;
        wait("the pool has four devices", secs(20), || {
            let pools: Value = serde_json::from_str(&say("pool list --json")?.ok()?)?;
            let all = pools.as_array().context("a list")?;
            let fast = all.iter().find(|p| p["name"] == "fast").context("fast")?;
            ensure!(fast["zero_padding"] == true && fast["spare_percent"] == 20, "{fast:#}");
            Ok((fast["devices"] == 4).then_some(()))
        })?;
        let log = || fs::read_to_string(cluster.folder.join("f5.log"));
        wait("the fifth one says why it is refused", secs(20), || {
            Ok(log()?.contains("compare `domain`, `fault_set` and `pool`").then_some(()))
        })?;
        ensure!(log()?.lines().count() < 30, "{}", log()?);
        drop(lost);
        say("volume create v 64MiB --pool fast")?.ok()?;
        let by_name = groups(&cluster, &["f1", "f2", "f3", "f4"])?;
        ensure!(by_name[0] + by_name[1] == by_name[2] + by_name[3], "{by_name:?}");
        ensure!(by_name.iter().all(|n| *n > 0), "{by_name:?}");
        ensure!(groups(&cluster, &["sds1", "sds2", "sds3"])? == before, "not of that pool");

        say("pool remove fast")?.fails(1, &["storage pool `fast` still has 1 volumes"])?;
        say("fault-set remove r1")?.fails(1, &["fault set `r1` still has 2 servers"])?;
        say("volume create t 600MiB --pool fast --thick")?
            .fails(1, &["thick volume", "`fast`", "add a device"])?;
        say("volume create t 64MiB --pool fast --thick")?.ok()?;
        let list = say("pool list")?.ok()?;
        ensure!(
            list.contains("ssd") && list.contains("20 %") && list.contains("128 MiB"),
            "{list}"
        );
        // `fast` has only two fault sets, so it can't rebuild anything and gets no advice on its
        // spare; `default` has three servers.
        let short = list.contains("`gabion pool set default --spare 34`");
        ensure!(short && !list.contains("pool set fast"), "{list}");
        say("pool rename fast gold")?.ok()?;
        say("sds rename f1 node1")?.ok()?;
        say("sds rename f2 node1")?.fails(1, &["server `node1` already"])?;
        let devices = say("device list")?.ok()?;
        ensure!(devices.contains("gold") && devices.contains("default, r1"), "{devices}");
        say("system rename lab")?.ok()?;
        ensure!(cluster.status()?["name"] == "lab");

        // A whole fault set dies, and no data is missing.
        let content = Random::new(5).bytes(32 * MIB as usize);
        cluster.fill("v", &content)?;
        servers[0].kill()?;
        servers[1].kill()?;
        cluster.verify("v", &content)?;
        say("sds remove f3")?.fails(1, &["two fault units", "would have 1 left"])?;
        Ok(())
    });
}

#[test]
fn a_new_server_waits_where_a_pool_says_so_and_gets_copies_when_it_is_admitted() {
    case(|| {
        let options =
            Options { device: "ram:256MiB", volumes: &["old:64MiB"], ..Options::default() };
        let cluster = Cluster::start(&options)?;
        let say = |line: &str| cluster.say(line);
        say("pool set default --new-devices wait")?.ok()?;
        let total = cluster.status()?["capacity"]["total_bytes"].clone();
        let _new = Extra::sds(&cluster, "new", "", "default")?;
        wait("the new server is in the list", secs(20), || {
            Ok(say("sds list")?.ok()?.contains("waits for `gabion device admit 4`").then_some(()))
        })?;
        say("volume create v 64MiB")?.ok()?;
        ensure!(groups(&cluster, &["new"])? == [0]);
        ensure!(cluster.status()?["capacity"]["total_bytes"] == total);
        say("device admit 9")?.fails(1, &["no device 9"])?;
        say("device admit 1")?.fails(1, &["waits for an order", "gabion device list"])?;
        say("sds admit new")?.ok()?;
        wait("the new server gets copies", secs(60), || {
            Ok((groups(&cluster, &["new"])?[0] > 0).then_some(()))
        })
    });
}

/// Units of the volume that clients write: one of each group.
const UNITS: u64 = 384;
/// Clients with different names, and how many of them run at once. 30 clients were enough to break
/// a device of 256 MiB for good. The long form is `GABION_NAMES=100`.
const NAMES: u64 = 36;
const CONCURRENT: usize = 6;
/// Most names: each writes its own block of each unit.
const MOST_NAMES: u64 = MIB / 4096;

/// Writes a client's block of each unit, by a client with this name.
fn write_as(cluster: &Cluster, name: u64) -> Result<()> {
    let (mut client, socket) = Extra::sdc(cluster, &format!("c{name}"))?;
    let mut nbd = Nbd::connect(&socket, "vol1")?;
    let block = name * 4096;
    (0..UNITS).try_for_each(|unit| nbd.write(unit * MIB + block, &[name as u8; 4096]))?;
    client.kill()
}

/// Checks the blocks that the clients with the first `names` names have written.
fn check_blocks(cluster: &Cluster, names: u64) -> Result<()> {
    let expected: Vec<u8> = (0..names).flat_map(|name| [name as u8; 4096]).collect();
    let mut nbd = cluster.nbd("vol1")?;
    (0..UNITS).try_for_each(|unit| {
        ensure!(nbd.read(unit * MIB, expected.len())? == expected, "unit {unit} differs");
        Ok(())
    })
}

/// Restarts each server in turn.
fn restart_servers(cluster: &Cluster) -> Result<()> {
    (1..=3).try_for_each(|n| {
        cluster.kill(&format!("sds{n}"))?;
        cluster.wait_down(&format!("sds{n}"))?;
        cluster.start_sds(n)?;
        cluster.wait_state("healthy", secs(120)).map(drop)
    })
}

#[test]
fn clients_that_come_and_go_fill_no_device_with_what_is_remembered_of_them() {
    case(|| {
        let names = setting("GABION_NAMES", NAMES).min(MOST_NAMES);
        let long = names > NAMES;
        let (device, volumes) = (if long { "file:1GiB" } else { "file:256MiB" }, &["vol1:384MiB"]);
        let cluster = Cluster::start(&Options { device, volumes, ..Options::default() })?;
        let all: Vec<u64> = (0..names).collect();
        for (turn, some) in (0..).zip(all.chunks(CONCURRENT)) {
            std::thread::scope(|threads| {
                let cluster = &cluster;
                let clients: Vec<_> =
                    some.iter().map(|n| threads.spawn(move || write_as(cluster, *n))).collect();
                clients.into_iter().try_for_each(|t| t.join().expect("it doesn't panic"))
            })
            .with_context(|| format!("after {} names", turn * CONCURRENT))?;
            if long && turn % 3 == 2 {
                restart_servers(&cluster)
                    .with_context(|| format!("after {} names", (turn + 1) * CONCURRENT))?;
            }
        }
        cluster.kill_all()?;
        cluster.start_again()?;
        check_blocks(&cluster, names)?;
        cluster.wait_state("healthy", secs(60))?;
        if long {
            restart_servers(&cluster)?;
            check_blocks(&cluster, names)?;
        }
        println!("{names} names: {} blocks are right", names * UNITS);
        cluster.stop_and_inspect(3)
    });
}

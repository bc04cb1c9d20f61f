//! File devices: answered writes survive every crash, and a damaged block is never served.

use anyhow::{Context, Result, ensure};
use std::os::unix::fs::FileExt;
use std::path::Path;
use system::bytes::Random;
use system::ledger::{Ledger, Writers};
use system::rot::{Room, past_the_cache};
use system::{Cluster, MIB, Options, case, secs, setting, wait};

const OPTIONS: Options =
    Options { sds: 3, device: "file:320MiB", volumes: &["vol1:128MiB"], more: &[] };

/// Rounds of the crash loop: each kind of crash twice. `GABION_ROUNDS=50` is the long form.
fn rounds() -> u32 {
    setting("GABION_ROUNDS", 6) as u32
}

#[test]
fn acknowledged_writes_survive_crashes_of_a_server_of_the_mdm_and_of_all_processes() {
    case(|| {
        let cluster = Cluster::start(&OPTIONS)?;
        let mut ledgers: Vec<Ledger> = (0..3).map(|n| Ledger::new(n, 3, 120 * MIB)).collect();
        let mut random = Random::new(5);
        for round in 0..rounds() {
            let mut writers = Writers::start(&cluster, "vol1", ledgers)?;
            writers.wait(100 + random.below(400))?;
            match round % 3 {
                0 => {
                    cluster.kill_all()?;
                    ledgers = writers.finish();
                    cluster.start_again()?;
                }
                1 => {
                    let n = 1 + random.below(3) as u32;
                    cluster.kill(&format!("sds{n}"))?;
                    writers.wait(200)?;
                    cluster.start_sds(n)?;
                    writers.wait(200)?;
                    ledgers = writers.finish();
                }
                _ => {
                    cluster.kill("mdm")?;
                    writers.wait(200)?;
                    cluster.gabion(&["mdm", "start"])?.ok()?;
                    ledgers = writers.finish();
                }
            }
            let mut nbd = cluster.nbd("vol1")?;
            for ledger in &mut ledgers {
                ledger.verify(&mut nbd).with_context(|| format!("after round {round}"))?;
            }
        }
        cluster.wait_state("healthy", secs(60))?;
        // Each device alone is consistent.
        cluster.stop_and_inspect(3)
    });
}

#[test]
fn the_same_command_finds_the_same_cluster() {
    case(|| {
        let cluster = Cluster::start(&OPTIONS)?;
        let data = Random::new(9).bytes(8 * MIB as usize);
        cluster.nbd("vol1")?.write(0, &data)?;
        let before = cluster.status()?;
        cluster.gabion(&["volume", "create", "later", "16MiB"])?.ok()?;
        cluster.gabion(&["down"])?.ok()?;
        cluster.start_again()?;
        let after = cluster.status()?;
        for same in ["/cluster", "/mdm/0/address", "/sds/2/address"] {
            ensure!(before.pointer(same) == after.pointer(same), "{before:#}\n{after:#}");
        }
        ensure!(after["volumes"].as_array().map(Vec::len) == Some(2), "{after:#}");
        cluster.verify("vol1", &data)?;
        // Options that contradict the cluster are refused, and nothing is lost.
        cluster.gabion(&["down"])?.ok()?;
        cluster.gabion(&["up", "--detach", "--sds", "2"])?.fails(1, &["3 servers"])?;
        cluster.gabion(&["up", "--detach", "--device", "ram:64MiB"])?.fails(1, &["--device"])?;
        // More servers are added to the cluster.
        cluster.gabion(&["up", "--detach", "--sds", "4"])?.ok()?;
        ensure!(cluster.status()?["sds"].as_array().map(Vec::len) == Some(4));
        cluster.verify("vol1", &data)?;
        Ok(())
    });
}

/// Flips a bit in up to `count` places of the file that contain one of these blocks.
fn flip(file: &Path, blocks: &[&[u8]], count: usize) -> Result<usize> {
    let device = past_the_cache(file)?;
    let content = std::fs::read(file)?;
    let (mut room, mut flipped) = (Room::new(), 0);
    for block in blocks {
        // Data lies at multiples of a block, or after a record's head in the log.
        let places = content.chunks_exact(4096).enumerate().filter(|(_, found)| found == block);
        for (place, found) in places {
            let data = room.block();
            data.copy_from_slice(found);
            data[1000] ^= 4;
            device.write_all_at(data, place as u64 * 4096)?;
            flipped += 1;
        }
        if flipped >= count {
            break;
        }
    }
    device.sync_all()?;
    Ok(flipped)
}

#[test]
fn flipped_bits_are_found_repaired_and_counted_and_never_served() {
    case(|| {
        let cluster = Cluster::start(&OPTIONS)?;
        let data = Random::new(3).bytes(32 * MIB as usize);
        cluster.fill("vol1", &data)?;
        let blocks: Vec<&[u8]> = data.chunks(4096).step_by(97).collect();
        let mut all = 0;
        for n in 1..=3 {
            let flipped = flip(&cluster.device(n), &blocks, 20)?;
            ensure!(flipped > 5, "sds{n} has only {flipped} of {} blocks", blocks.len());
            all += flipped as u64;
            // Clients read one half of the damage, only the scrubber reads the other half.
            cluster.verify("vol1", &data)?;
            cluster.gabion(&["device", "scrub"])?.ok()?;
            cluster.verify("vol1", &data)?;
        }
        let status = cluster.wait_state("healthy", secs(30))?;
        let servers = status["sds"].as_array().context("servers")?.iter();
        let devices = servers.filter_map(|s| s["devices"].as_array()).flatten();
        let repaired: u64 = devices.filter_map(|d| d["repaired_bytes"].as_u64()).sum();
        println!("{all} blocks were damaged, {repaired} bytes repaired");
        // A block may also be in the log, where damage no longer matters.
        ensure!(
            (5 * 3 * 4096..=all * 4096).contains(&repaired),
            "{repaired} bytes of {all} blocks"
        );
        // Each copy alone is good now.
        cluster.stop_and_inspect(3)
    });
}

#[test]
fn a_lost_region_is_repaired_however_many_clients_read_it_at_once() {
    case(|| {
        let cluster = Cluster::start(&Options { sds: 2, ..OPTIONS })?;
        let data = Random::new(4).bytes(4 * MIB as usize);
        cluster.fill("vol1", &data)?;
        let blocks: Vec<&[u8]> = data.chunks(4096).collect();
        let flipped = flip(&cluster.device(1), &blocks, usize::MAX)?;
        ensure!(flipped >= blocks.len(), "sds1 has only {flipped} of {} blocks", blocks.len());
        std::thread::scope(|scope| {
            let readers = [(); 8].map(|()| scope.spawn(|| cluster.verify("vol1", &data)));
            readers.into_iter().try_for_each(|r| r.join().expect("a reader doesn't panic"))
        })?;
        cluster.gabion(&["device", "scrub"])?.ok()?;
        ensure!(cluster.status()?["state"] == "healthy", "nobody has died of it");
        cluster.verify("vol1", &data)?;
        cluster.stop_and_inspect(2)
    });
}

#[test]
fn every_scrub_reports_blocks_without_a_good_copy_until_they_are_rewritten() {
    case(|| {
        let cluster = Cluster::start(&OPTIONS)?;
        let data = Random::new(4).bytes(32 * MIB as usize);
        cluster.fill("vol1", &data)?;
        let block = &data[5 * MIB as usize..][..4096];
        for n in 1..=3 {
            flip(&cluster.device(n), &[block], usize::MAX)?;
        }
        for _ in 0..2 {
            cluster.gabion(&["device", "scrub"])?.fails(1, &["8 KiB stay damaged"])?;
        }
        cluster.nbd("vol1")?.write(5 * MIB, block)?;
        let said = cluster.gabion(&["device", "scrub"])?.ok()?;
        ensure!(said.contains(": 0 B damaged, 0 B repaired."), "{said}");
        cluster.verify("vol1", &data)
    });
}

#[test]
fn a_scrub_is_followed_to_its_end_by_an_mdm_that_knows_of_no_pass_before() {
    case(|| {
        let cluster = Cluster::start(&OPTIONS)?;
        let data = Random::new(6).bytes(64 * MIB as usize);
        cluster.fill("vol1", &data)?;
        cluster.gabion(&["device", "scrub"])?.ok()?;
        let blocks: Vec<&[u8]> = data.chunks(4096).step_by(97).collect();
        ensure!(flip(&cluster.device(1), &blocks, 20)? > 0);
        cluster.kill("mdm")?;
        cluster.gabion(&["mdm", "start"])?.ok()?;
        cluster.gabion(&["device", "scrub"])?.ok()?;
        // The scrub has ended: each copy alone is good.
        cluster.stop_and_inspect(3)
    });
}

#[test]
fn a_moved_device_counts_again() {
    case(|| {
        let cluster = Cluster::start(&OPTIONS)?;
        let data = Random::new(4).bytes(16 * MIB as usize);
        let mut nbd = cluster.nbd("vol1")?;
        cluster.fill("vol1", &data)?;
        let ids = |status: &serde_json::Value, sds: &str| -> Vec<u64> {
            let mut all = status["sds"].as_array().cloned().unwrap_or_default().into_iter();
            let server = all.find(|s| s["name"] == sds).unwrap_or_default();
            let devices = server["devices"].as_array().cloned().unwrap_or_default();
            devices.iter().filter_map(|d| d["id"].as_u64()).collect()
        };
        let before = *ids(&cluster.status()?, "sds3").first().context("sds3 has a device")?;
        // The last writes are uncertain until the next beacon, which may be late on a busy machine.
        std::thread::sleep(secs(2));
        cluster.kill("sds3")?;
        cluster.wait_down("sds3")?;
        nbd.write(0, &data[MIB as usize..2 * MIB as usize])?;
        let moved = cluster.file("moved");
        std::fs::rename(cluster.device(3), &moved)?;
        let spec = format!("file:{}", moved.display());
        cluster
            .gabion(&["device", "add", &format!("{spec}:320MiB"), "--sds", "1"])?
            .fails(1, &["device import"])?;
        cluster.gabion(&["device", "import", &spec, "--sds", "1"])?.ok()?;
        let status = cluster.wait_state("healthy", secs(60))?;
        ensure!(ids(&status, "sds1").contains(&before), "{status:#}");
        let moved_bytes = cluster.number("/resync/moved_bytes")?;
        ensure!(moved_bytes <= 8 * MIB, "{moved_bytes} bytes were copied, and 1 MiB had changed");
        // The device counts again: without the other servers' copies it serves its data alone.
        cluster.kill("sds2")?;
        cluster.wait_down("sds2")?;
        wait("everything can be read", secs(20), || {
            ensure!(nbd.read(MIB, MIB as usize)? == data[MIB as usize..2 * MIB as usize]);
            Ok(Some(()))
        })?;
        for (i, unit) in data.chunks(MIB as usize).enumerate().skip(1) {
            ensure!(nbd.read(i as u64 * MIB, unit.len())? == unit, "unit {i}");
        }
        Ok(())
    });
}

//! A server dies or becomes silent: I/O stalls for a moment at most, without errors or wrong bytes.

use anyhow::{Context, Result, ensure};
use std::thread;
use std::time::Duration;
use system::nbd::{Nbd, cmd};
use system::probe::Probe;
use system::{Cluster, Fio, MIB, Options, case, secs, wait};

const VOLUME: u64 = 256 << 20;

fn cluster() -> Result<Cluster> {
    Cluster::start(&Options { volumes: &["vol1:512MiB"], ..Options::default() })
}

#[test]
fn a_killed_server_stalls_io_for_a_second_at_most() {
    case(|| {
        let cluster = cluster()?;
        let probe = Probe::start(&cluster, "vol1", 4, VOLUME)?;
        probe.wait_ops(4000)?;
        let mut stalls = Vec::new();
        // Each server in turn, so that primaries and secondaries of all groups are hit.
        for n in 1..=3 {
            probe.lap();
            cluster.kill(&format!("sds{n}"))?;
            cluster.wait_down(&format!("sds{n}"))?;
            probe.wait_ops(1000)?;
            let dead = probe.lap();
            cluster.start_sds(n)?;
            cluster.wait_state("healthy", secs(60))?;
            stalls.push((dead.worst, probe.lap().worst));
        }
        probe.finish()?;
        println!("longest request after kill -9, and during the return: {stalls:?}");
        let limit = Duration::from_secs(1);
        ensure!(stalls.iter().all(|(dead, back)| dead.max(back) <= &limit), "{stalls:?}");
        Ok(())
    });
}

#[test]
fn a_silent_server_stalls_io_for_three_seconds_at_most() {
    case(|| {
        let cluster = cluster()?;
        let probe = Probe::start(&cluster, "vol1", 4, VOLUME)?;
        probe.wait_ops(4000)?;
        let mut stalls = Vec::new();
        for n in 1..=3 {
            let name = format!("sds{n}");
            probe.lap();
            cluster.freeze(&name)?;
            cluster.wait_down(&name)?;
            probe.wait_ops(1000)?;
            let silent = probe.lap();
            cluster.thaw(&name)?;
            cluster.wait_state("healthy", secs(60))?;
            stalls.push((silent.worst, probe.lap().worst));
        }
        probe.finish()?;
        println!("longest request after SIGSTOP, and during the return: {stalls:?}");
        let limit = Duration::from_secs(3);
        ensure!(stalls.iter().all(|(silent, back)| silent.max(back) <= &limit), "{stalls:?}");
        Ok(())
    });
}

/// Parts of the volume in different groups. Each server leads some of them.
const PARTS: u64 = 48;

fn all_parts_have(nbd: &mut Nbd, mark: u8) -> Result<()> {
    for part in 0..PARTS {
        let found = nbd.read(part * MIB, 4096)?;
        ensure!(found == [mark; 4096], "part {part} has {}, and {mark} came last", found[0]);
    }
    Ok(())
}

/// Programs that disconnect write the same blocks one after the other, while the server that leads
/// some of these blocks is stopped. The last one's data must stay when the server continues.
#[test]
fn requests_of_a_closed_connection_never_land_after_writes_of_a_later_one() {
    case(|| {
        let cluster = cluster()?;
        let mut mark = 0;
        for name in ["sds1", "sds2", "sds3"] {
            cluster.freeze(name)?;
            for _ in 0..40 {
                mark += 1;
                let mut gone = cluster.nbd("vol1")?;
                for part in 0..PARTS {
                    gone.ask(cmd::WRITE, part * MIB, 4096, &[mark; 4096])?;
                }
                thread::sleep(Duration::from_millis(50));
            }
            mark += 1;
            let mut last = cluster.nbd("vol1")?;
            for part in 0..PARTS {
                last.write(part * MIB, &[mark; 4096])?;
            }
            last.request(cmd::FLUSH, 0, 0, &[])?;
            cluster.thaw(name)?;
            all_parts_have(&mut last, mark).context("at once")?;
            cluster.wait_state("healthy", secs(60))?;
            all_parts_have(&mut last, mark).context("when the server was back")?;
        }
        Ok(())
    });
}

/// A program writes while no server is there, and is gone before one comes back. Nobody may know
/// then that it has ever written.
#[test]
fn requests_of_a_closed_connection_are_not_executed_when_servers_come_back() {
    case(|| {
        let device = "file:320MiB";
        let cluster =
            Cluster::start(&Options { device, volumes: &["vol1:64MiB"], ..Options::default() })?;
        let mut stays = cluster.nbd("vol1")?;
        for part in 0..PARTS {
            stays.write(part * MIB, &[1; 4096])?;
        }
        for n in 1..=3 {
            cluster.kill(&format!("sds{n}"))?;
        }
        let mut gone = cluster.nbd("vol1")?;
        for part in 0..PARTS {
            gone.ask(cmd::WRITE, part * MIB, 4096, &[2; 4096])?;
        }
        thread::sleep(secs(1));
        drop(gone);
        for n in 1..=3 {
            cluster.start_sds(n)?;
        }
        cluster.wait_state("healthy", secs(60))?;
        all_parts_have(&mut stays, 1)
    });
}

#[test]
fn fio_verifies_through_kill_return_and_another_kill() {
    case(|| {
        let cluster = cluster()?;
        let job = "--ioengine=nbd --rw=randwrite --numjobs=2 --bsrange=4k-1m --iodepth=32 --size=200m \
                   --offset_increment=200m --verify=crc32c --do_verify=1 --verify_backlog=64 --verify_fatal=1 \
                   --time_based --runtime=25";
        let mut args: Vec<String> = job.split_whitespace().map(str::to_owned).collect();
        args.push(format!("--uri={}", cluster.uri("vol1")));
        let fio = Fio::start(&cluster.folder, "verify", &args)?;
        let mut written = cluster.number("/capacity/protected_bytes")?;
        let mut wait_written = |what: &str| {
            wait(what, secs(60), || {
                let now = cluster.number("/capacity/protected_bytes")?
                    + cluster.number("/capacity/degraded_bytes")?;
                let grown = now > written;
                written = now;
                Ok(grown.then_some(()))
            })
        };
        wait_written("fio writes")?;
        cluster.kill("sds2")?;
        cluster.wait_down("sds2")?;
        cluster.start_sds(2)?;
        cluster.wait_state("healthy", secs(90))?;
        cluster.kill("sds3")?;
        cluster.wait_down("sds3")?;
        let did = fio.finish()?;
        ensure!(did.written > 0 && did.verified > 0, "{did:?}");
        let status = cluster.wait_state("degraded", secs(1))?;
        ensure!(status["groups"]["failed"] == 0, "{status:#}");
        Ok(())
    });
}

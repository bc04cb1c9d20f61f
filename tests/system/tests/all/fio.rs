//! fio verifies durable devices: while it writes and compares, over NBD and over the engine of
//! `libgabion`, servers, the MDM and everything are killed.
//!
//! How a round verifies: fio records the answers that it got, and its job does not end with the
//! crash. The library holds unanswered requests, and so does nbdkit, which reconnects when the SDC
//! is back. At its end fio reads its data, so everything that was answered before, during and after
//! the crash is compared. A round writes to one part of each volume; the other parts must still
//! have the content of earlier rounds.

use anyhow::{Context, Result, ensure};
use std::process::{Child, Command, Stdio};
use system::bytes::Random;
use system::fio::{Did, engine};
use system::{Cluster, Fio, MIB, Options, case, secs, setting, wait};

const OPTIONS: Options =
    Options { sds: 3, device: "file:320MiB", volumes: &["nbd:48MiB", "lib:48MiB"], more: &[] };

/// Number of parts of a volume; rounds use them in turn.
const PARTS: u64 = 3;
const PART: u64 = 16 * MIB;

/// Mixed sizes and overlapping places, but concurrent requests never overlap. Slow enough that it
/// writes for some seconds.
const JOB: &str = "--rw=randwrite --norandommap --bsrange=4k-128k --numjobs=2 --size=8m --io_size=32m \
                   --offset_increment=8m --iodepth=16 --serialize_overlap=1 --rate=,20m --verify=crc32c \
                   --do_verify=1 --verify_backlog=64 --verify_fatal=1";

/// Number of rounds, enough for each kind of crash once. `GABION_ROUNDS=50` is the long form.
fn rounds() -> u64 {
    setting("GABION_ROUNDS", 3)
}

/// nbdkit between fio and the SDC: it reconnects, and repeats unanswered requests.
struct Bridge {
    child: Child,
    uri: String,
}

impl Bridge {
    fn start(cluster: &Cluster, volume: &str) -> Result<Bridge> {
        let socket = cluster.folder.join("bridge");
        let child = Command::new("nbdkit")
            .args(["--foreground", "--filter=retry", "--unix"])
            .arg(&socket)
            .args(["nbd", &format!("socket={}", cluster.socket().display())])
            .args([&format!("export={volume}"), "retries=60", "retry-delay=1"])
            .arg("retry-exponential=no")
            .stdin(Stdio::null())
            .spawn()
            .context("can't run nbdkit")?;
        let bridge =
            Bridge { child, uri: format!("nbd+unix:///{volume}?socket={}", socket.display()) };
        wait("nbdkit listens", secs(10), || Ok(socket.exists().then_some(())))?;
        Ok(bridge)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts fio on a part of a volume.
fn start(cluster: &Cluster, volume: &str, round: u64, how: &[String]) -> Result<Fio> {
    let mut args: Vec<String> = JOB.split_whitespace().map(str::to_owned).collect();
    args.push(format!("--offset={}", round % PARTS * PART));
    args.push(format!("--randseed={}", round + 1));
    args.extend_from_slice(how);
    Fio::start(&cluster.folder, volume, &args)
}

/// Returns the number of operations that the servers have done since their start.
fn operations(cluster: &Cluster) -> Result<u64> {
    let status = cluster.status()?;
    let devices = status["sds"].as_array().context("servers")?.iter();
    let devices = devices.filter_map(|s| s["devices"].as_array()).flatten();
    Ok(devices.filter_map(|d| d["ops"].as_u64()).sum())
}

/// Kills one or all processes, and starts them again.
fn crash(cluster: &Cluster, round: u64, random: &mut Random) -> Result<()> {
    match round % 3 {
        0 => {
            cluster.kill_all()?;
            cluster.start_again()
        }
        1 => {
            let n = 1 + random.below(3) as u32;
            cluster.kill(&format!("sds{n}"))?;
            cluster.wait_down(&format!("sds{n}"))?;
            cluster.start_sds(n)
        }
        _ => {
            cluster.kill("mdm")?;
            cluster.gabion(&["mdm", "start"])?.ok().map(drop)
        }
    }
}

/// Checks after a round that the parts of a volume that it did not write to are unchanged.
fn keep(cluster: &Cluster, volume: &str, round: u64, kept: &mut [u8]) -> Result<()> {
    let mut nbd = cluster.nbd(volume)?;
    for (part, before) in kept.chunks_mut(PART as usize).enumerate() {
        for (i, unit) in before.chunks_mut(MIB as usize).enumerate() {
            let at = part as u64 * PART + i as u64 * MIB;
            let now = nbd.read(at, unit.len())?;
            if part as u64 == round % PARTS {
                unit.copy_from_slice(&now);
            }
            ensure!(now == *unit, "{volume}: the MiB at byte {at} has changed in round {round}");
        }
    }
    Ok(())
}

#[test]
fn fio_finds_every_acknowledged_block_whichever_process_is_killed() {
    case(|| {
        let engine = engine()?;
        let cluster = Cluster::start(&OPTIONS)?;
        let bridge = Bridge::start(&cluster, "nbd")?;
        let nbd = ["--ioengine=nbd".to_owned(), format!("--uri={}", bridge.uri)];
        let lib = [
            format!("--ioengine=external:{engine}"),
            format!("--cluster=dir:{}", cluster.dir()),
            "--volume=lib".to_owned(),
        ];
        let mut random = Random::new(8);
        let mut kept = [vec![0; (PARTS * PART) as usize], vec![0; (PARTS * PART) as usize]];
        let mut all = Did::default();
        for round in 0..rounds() {
            let before = operations(&cluster)?;
            let mut both =
                [start(&cluster, "nbd", round, &nbd)?, start(&cluster, "lib", round, &lib)?];
            let some = before + 200 + random.below(600);
            wait("fio writes", secs(60), || Ok((operations(&cluster)? > some).then_some(())))?;
            for fio in &mut both {
                ensure!(fio.is_running()?, "{fio:?} has ended before the crash of round {round}");
            }
            crash(&cluster, round, &mut random)?;
            for (fio, kept) in both.into_iter().zip(&mut kept) {
                let name = fio.name().to_owned();
                let did = fio.finish().with_context(|| format!("round {round}"))?;
                // Overlapping data is only compared where it was written last.
                ensure!(did.verified > MIB, "round {round} compared too little: {did:?}");
                all.written += did.written;
                all.verified += did.verified;
                keep(&cluster, &name, round, kept)?;
            }
        }
        println!("{} rounds: {all:?}", rounds());
        cluster.wait_state("healthy", secs(60))?;
        cluster.stop_and_inspect(3)
    });
}

//! What is copied when a server comes back: the changes after a silence, everything after a death.

use anyhow::{Result, ensure};
use std::time::{Duration, Instant};
use system::bytes::Random;
use system::{Cluster, MIB, Options, case, secs, wait};

const VOLUME: usize = 512 << 20;
const CHANGED: usize = 100 << 20;
const SILENCE: Duration = Duration::from_secs(10);

fn filled() -> Result<(Cluster, Vec<u8>)> {
    let cluster = Cluster::start(&Options { volumes: &["vol1:512MiB"], ..Options::default() })?;
    let content = Random::new(7).bytes(VOLUME);
    cluster.fill("vol1", &content)?;
    Ok((cluster, content))
}

/// Returns the counter after the last heartbeats have arrived.
fn moved_at_least(cluster: &Cluster, before: u64, least: u64) -> Result<u64> {
    let mut last = 0;
    wait(&format!("the counter of moved bytes rests above {least}"), secs(10), || {
        let moved = cluster.number("/resync/moved_bytes")? - before;
        let rests = moved == last;
        last = moved;
        ensure!(moved >= least, "{moved}");
        // Servers send five heartbeats per second.
        std::thread::sleep(Duration::from_millis(500));
        Ok(rests.then_some(moved))
    })
}

#[test]
fn after_a_silence_only_the_changes_are_copied() {
    case(|| {
        let (cluster, mut content) = filled()?;
        let before = cluster.number("/resync/moved_bytes")?;
        cluster.freeze("sds2")?;
        let silent_since = Instant::now();
        cluster.wait_down("sds2")?;
        // 100 MiB of changes in pieces of 256 KiB, all over the volume.
        let (mut random, mut nbd) = (Random::new(8), cluster.nbd("vol1")?);
        let piece = 256 << 10;
        let stride = VOLUME / (CHANGED / piece) / piece * piece;
        for at in (0..CHANGED / piece).map(|i| i * stride) {
            let new = random.bytes(piece);
            nbd.write(at as u64, &new)?;
            content[at..at + piece].copy_from_slice(&new);
        }
        wait("the silence is long enough", secs(15), || {
            Ok((silent_since.elapsed() >= SILENCE).then_some(()))
        })?;
        cluster.thaw("sds2")?;
        cluster.wait_state("healthy", secs(60))?;
        // Two of three servers hold each block, so this one lacks about two thirds of the changes.
        let moved = moved_at_least(&cluster, before, CHANGED as u64 / 3)?;
        println!("{} MiB changed, {} MiB moved", CHANGED as u64 / MIB, moved / MIB);
        ensure!(moved <= CHANGED as u64 * 3 / 2, "{moved} bytes moved for {CHANGED} changed");
        // Now the copied data has to serve alone.
        cluster.kill("sds1")?;
        cluster.wait_down("sds1")?;
        cluster.verify("vol1", &content)
    });
}

#[test]
fn a_server_that_died_comes_back_empty_and_is_filled() {
    case(|| {
        let (cluster, content) = filled()?;
        let before = cluster.number("/resync/moved_bytes")?;
        cluster.kill("sds2")?;
        cluster.wait_down("sds2")?;
        cluster.start_sds(2)?;
        // While it is being filled it does not count as a copy: all data is right.
        cluster.verify("vol1", &content)?;
        cluster.wait_state("healthy", secs(90))?;
        let moved = moved_at_least(&cluster, before, VOLUME as u64 / 2)?;
        println!("{} MiB on two of three servers, {} MiB moved", VOLUME as u64 / MIB, moved / MIB);
        ensure!(moved <= VOLUME as u64, "{moved} bytes moved, more than the device held");
        cluster.kill("sds1")?;
        cluster.wait_down("sds1")?;
        cluster.verify("vol1", &content)
    });
}

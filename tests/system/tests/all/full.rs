//! A full RAM device: an error that says so, nothing lost, and space that comes back.

use anyhow::{Context, ensure};
use system::bytes::Random;
use system::nbd::{Refused, cmd, errno};
use system::{Cluster, MIB, Options, case, secs, wait};

#[test]
fn a_full_pool_refuses_new_data_and_keeps_the_old() {
    case(|| {
        let cluster = Cluster::start(&Options {
            device: "ram:32MiB",
            volumes: &["big:256MiB", "other:4MiB"],
            ..Options::default()
        })?;
        let mut other = cluster.nbd("other")?;
        other.write(0, &[5; 4096])?;
        let mut nbd = cluster.nbd("big")?;
        let (mut random, mut written) = (Random::new(12), Vec::new());
        let error = loop {
            let (at, data) = (written.len() as u64 * MIB, random.bytes(MIB as usize));
            match nbd.write(at, &data) {
                Ok(()) => written.push(data),
                Err(error) => break error,
            }
            ensure!(at < 255 * MIB, "96 MiB of devices took 256 MiB of data twice");
        };
        ensure!(error.downcast_ref() == Some(&Refused(errno::ENOSPC)), "{error:?}");
        ensure!(written.len() > 10, "full after {} MiB", written.len());
        // What was written is there and can be overwritten; others are served.
        written[0] = random.bytes(MIB as usize);
        nbd.write(0, &written[0])?;
        for (i, data) in written.iter().enumerate() {
            ensure!(nbd.read(i as u64 * MIB, data.len())? == *data, "unit {i}");
        }
        other.write(4096, &[6; 4096])?;
        ensure!(other.read(0, 4096)? == [5; 4096]);
        // A discard gives space back.
        nbd.request(cmd::TRIM, 0, (written.len() as u64 * MIB) as u32, &[])?;
        wait("there is space again", secs(10), || {
            Ok(nbd.write(200 * MIB, &written[1]).is_ok().then_some(()))
        })?;
        ensure!(nbd.read(200 * MIB, MIB as usize)? == written[1]);
        let status = cluster.status()?;
        let state = status["state"].as_str().context("a state")?;
        ensure!(state == "healthy", "a full device is no failure: {status:#}");
        Ok(())
    });
}

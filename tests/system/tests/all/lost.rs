//! When every copy of something is gone, that is said: errors, never zeros, never old data.

use anyhow::{Result, bail, ensure};
use system::bytes::Random;
use system::nbd::{Refused, cmd, errno};
use system::{Cluster, MIB, Options, case, secs, wait};

const UNITS: u64 = 64;

/// How many units read as written, and how many as errors; anything else is an error here.
fn count(cluster: &Cluster, content: &[u8]) -> Result<(u64, u64)> {
    let mut nbd = cluster.nbd("vol1")?;
    let (mut right, mut errors) = (0, 0);
    for (i, unit) in content.chunks(MIB as usize).enumerate() {
        match nbd.read(i as u64 * MIB, unit.len()) {
            Ok(got) if got == unit => right += 1,
            Ok(_) => bail!("unit {i} reads as something that was never written"),
            Err(e) if e.downcast_ref() == Some(&Refused(errno::EIO)) => errors += 1,
            Err(e) => return Err(e),
        }
    }
    Ok((right, errors))
}

#[test]
fn lost_groups_are_errors_and_stay_errors() {
    case(|| {
        let cluster = Cluster::start(&Options { volumes: &["vol1:64MiB"], ..Options::default() })?;
        let content = Random::new(9).bytes((UNITS * MIB) as usize);
        let mut nbd = cluster.nbd("vol1")?;
        cluster.fill("vol1", &content)?;
        // The MDM knows from heartbeats how much there is.
        wait("all is told", secs(10), || {
            Ok((cluster.number("/capacity/protected_bytes")? >= 2 * UNITS * MIB).then_some(()))
        })?;
        for name in ["sds2", "sds3"] {
            cluster.kill(name)?;
            cluster.wait_down(name)?;
        }
        let status = cluster.wait_state("failed", secs(10))?;
        ensure!(status["capacity"]["failed_bytes"].as_u64() > Some(0), "{status:#}");
        cluster.gabion(&["status"])?.code(4)?;
        let (right, errors) = count(&cluster, &content)?;
        println!("{right} units right, {errors} lost");
        ensure!(right > 0 && errors > 0 && right + errors == UNITS);
        // Their return changes nothing: RAM came back empty.
        cluster.start_sds(2)?;
        cluster.start_sds(3)?;
        ensure!(count(&cluster, &content)? == (right, errors));
        cluster.wait_state("failed", secs(10))?;
        // Writing into a lost group is an error, too: half a unit of new data would look whole.
        let mut refused = 0;
        for unit in 0..UNITS {
            match nbd.request(cmd::WRITE, unit * MIB, 512, &[1; 512]) {
                Ok(_) => {}
                Err(e) if e.downcast_ref() == Some(&Refused(errno::EIO)) => refused += 1,
                Err(e) => return Err(e),
            }
        }
        ensure!(refused == errors, "{refused} writes refused, {errors} units lost");
        Ok(())
    });
}

#[test]
fn after_a_loss_a_new_volume_is_whole() {
    case(|| {
        let cluster = Cluster::start(&Options { volumes: &["vol1:64MiB"], ..Options::default() })?;
        cluster.nbd("vol1")?.write(0, &[7; 4096])?;
        for name in ["sds1", "sds2"] {
            cluster.kill(name)?;
            cluster.wait_down(name)?;
        }
        cluster.start_sds(1)?;
        cluster.start_sds(2)?;
        cluster.wait_state("failed", secs(10))?;
        cluster.gabion(&["volume", "delete", "vol1", "--yes"])?.ok()?;
        cluster.gabion(&["volume", "create", "vol2", "64MiB"])?.ok()?;
        cluster.wait_state("healthy", secs(30))?;
        let content = Random::new(10).bytes((UNITS * MIB) as usize);
        cluster.verify("vol2", &vec![0; (UNITS * MIB) as usize])?;
        cluster.fill("vol2", &content)?;
        cluster.verify("vol2", &content)
    });
}

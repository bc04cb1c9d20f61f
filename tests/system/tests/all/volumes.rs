//! Volumes are created, grown and deleted while others are in use.

use anyhow::{Context, ensure};
use system::bytes::Random;
use system::nbd::{Refused, errno};
use system::probe::Probe;
use system::{Cluster, MIB, Options, case, secs};

#[test]
fn volumes_come_grow_and_go_beside_running_io() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let probe = Probe::start(&cluster, "vol1", 1, 64 << 20)?;
        cluster.gabion(&["volume", "create", "a", "2MiB"])?.ok()?;
        let mut old = cluster.nbd("a")?;
        let content = Random::new(11).bytes(2 * MIB as usize);
        old.write(0, &content)?;
        cluster.gabion(&["volume", "resize", "a", "9MiB"])?.ok()?;
        let mut new = cluster.nbd("a")?;
        ensure!(new.size == 9 * MIB, "{}", new.size);
        ensure!(new.read(0, 2 * MIB as usize)? == content);
        ensure!(new.read(2 * MIB, MIB as usize)?.iter().all(|b| *b == 0));
        new.write(8 * MIB, &content[..4096])?;
        // The client that negotiated 2 MiB continues with that size.
        ensure!(old.read(MIB, 4096)? == content[MIB as usize..][..4096]);
        let refused = cluster.gabion(&["volume", "delete", "a", "--yes"])?;
        refused.fails(1, &["`a` is in use by sdc", "--unmap"])?;
        cluster.gabion(&["volume", "delete", "a", "--yes", "--unmap"])?.ok()?;
        let gone = system::wait("I/O on a deleted volume is an error", secs(5), || {
            Ok(new.read(0, 4096).err())
        })?;
        ensure!(gone.downcast_ref::<Refused>().is_some(), "{gone:?}");
        ensure!(cluster.nbd("a").is_err(), "a deleted volume can't be attached");
        // The name may be used again; the data must not come back.
        cluster.gabion(&["volume", "create", "a", "2MiB"])?.ok()?;
        cluster.verify("a", &vec![0; 2 * MIB as usize])?;
        probe.finish()?;
        Ok(())
    });
}

#[test]
fn orders_that_make_no_sense_are_refused_with_the_reason() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let volume = |args: &[&str]| cluster.gabion(&[&["volume"], args].concat());
        volume(&["create", "vol1", "1MiB"])?.fails(1, &["vol1"])?;
        volume(&["resize", "vol1", "1MiB"])?.fails(1, &[])?;
        volume(&["resize", "nobody", "1GiB"])?.fails(1, &["nobody"])?;
        volume(&["delete", "nobody", "--yes"])?.fails(1, &["nobody"])?;
        volume(&["delete", "vol1"])?.fails(1, &["--yes"])?;
        volume(&["create", "a b", "1MiB"])?.fails(2, &["1 to 31"])?;
        volume(&["create", "b", "1 parsec"])?.fails(2, &["not a size"])?;
        let list = volume(&["list", "--json"])?.ok()?;
        let list: serde_json::Value = serde_json::from_str(&list)?;
        let only = list.as_array().context("a list")?;
        ensure!(only.len() == 1 && only[0]["name"] == "vol1", "{list:#}");
        Ok(())
    });
}

#[test]
fn a_request_beyond_the_end_is_refused_and_its_connection_stays_open() {
    case(|| {
        let cluster = Cluster::start(&Options { volumes: &["v:3MiB"], ..Options::default() })?;
        let mut nbd = cluster.nbd("v")?;
        for (at, len) in [(3 * MIB, 512), (3 * MIB - 512, 1024), (u64::MAX - 511, 512)] {
            let error = nbd.read(at, len).err().context("beyond the end is an error")?;
            ensure!(error.downcast_ref() == Some(&Refused(errno::EINVAL)), "{at}: {error:?}");
            let error = nbd.write(at, &vec![1; len]).err().context("beyond the end is an error")?;
            let code = error.downcast_ref::<Refused>().map(|r| r.0);
            ensure!(matches!(code, Some(errno::EINVAL | errno::ENOSPC)), "{at}: {error:?}");
        }
        nbd.write(3 * MIB - 512, &[9; 512])?;
        ensure!(nbd.read(3 * MIB - 512, 512)? == [9; 512]);
        Ok(())
    });
}

//! Silent connections keep nothing out, neither members of the cluster nor status requests.

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use system::{Cluster, Options, case, secs, setting, wait};

/// Connections to each port, or as many as this process may have open.
const CROWD: u64 = 8300;

/// Returns the number of connections to each of `ports` ports.
fn crowd(ports: u64) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let most = limit.maximum.unwrap_or(u64::MAX).saturating_sub(200) / ports;
    setting("GABION_CROWD", CROWD).min(most) as usize
}

fn silent(address: &str, many: usize) -> Result<Vec<TcpStream>> {
    let one = |_| TcpStream::connect(address).with_context(|| address.to_owned());
    (0..many).map(one).collect()
}

fn status_within(cluster: &Cluster, limit: Duration) -> Result<()> {
    let begin = Instant::now();
    cluster.status()?;
    let took = begin.elapsed();
    println!("the status came after {} ms", took.as_millis());
    ensure!(took <= limit, "the status took {took:?}");
    Ok(())
}

#[test]
fn thousands_of_silent_connections_keep_nobody_out() {
    case(|| {
        let options = Options { volumes: &["vol1:64MiB"], ..Options::default() };
        let cluster = Cluster::start(&options)?;
        let content = vec![7; 64 << 20];
        cluster.fill("vol1", &content)?;
        let status = cluster.status()?;
        let pointers = ["/mdm/0/address", "/sds/0/address", "/sds/1/address"];
        let many = crowd(pointers.len() as u64);
        let mut held = Vec::new();
        for pointer in pointers {
            let address = status.pointer(pointer).and_then(|a| a.as_str()).context("an address")?;
            held.push(silent(address, many)?);
            println!("{many} connections to {address}");
            status_within(&cluster, secs(1))?;
        }
        // A server comes back beside them, and so does its client.
        cluster.kill("sds3")?;
        cluster.wait_down("sds3")?;
        cluster.start_sds(3)?;
        cluster.wait_state("healthy", secs(60))?;
        status_within(&cluster, secs(1))?;
        cluster.verify("vol1", &content)?;
        // Silent connections are closed in the end.
        for streams in &mut held {
            let last = streams.last_mut().context("some")?;
            last.set_read_timeout(Some(secs(1)))?;
            wait("the newest silent connection is closed", secs(10), || {
                Ok(last.read(&mut [0]).is_ok_and(|n| n == 0).then_some(()))
            })?;
        }
        Ok(())
    });
}

//! Silent connections keep nothing out, neither members of the cluster nor status requests.

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use system::nbd::closes;
use system::{Cluster, Options, case, free_port, leave_out, secs, setting, wait};

/// Connections to each port, many more than may stay silent there. The long form is
/// `GABION_CONNECTIONS=8300`.
const CONNECTIONS: u64 = 2500;
/// Descriptors of this process for everything else.
const OTHERS: u64 = 200;

/// Returns the number of connections to each of `ports` ports: those that are wanted, or as many as
/// this process may have open.
fn crowd(ports: u64) -> Result<usize> {
    let wanted = setting("GABION_CONNECTIONS", CONNECTIONS);
    let (now, all) = (getrlimit(Resource::Nofile), wanted * ports + OTHERS);
    let most = now.maximum.map(|most| most.max(all));
    // Only root may raise the maximum.
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(all), maximum: most });
    if raised.is_err() {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, ..now });
    }
    let open = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = open.saturating_sub(OTHERS) / ports;
    if most < wanted {
        leave_out(&format!("{wanted} connections to each port: only {most} may be open"))?;
    }
    Ok(wanted.min(most) as usize)
}

fn silent(address: &str, many: usize) -> Result<Vec<TcpStream>> {
    let one = |n| {
        TcpStream::connect(address).with_context(|| format!("{address}, after {n} connections"))
    };
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

/// Returns the addresses of all MDMs and servers.
fn ports(status: &Value) -> Vec<String> {
    let all = ["mdm", "sds"].iter().filter_map(|role| status[role].as_array()).flatten();
    all.filter_map(|one| one["address"].as_str().map(str::to_owned)).collect()
}

#[test]
fn thousands_of_silent_connections_keep_nobody_out() {
    case(|| {
        let nbd = format!("127.0.0.1:{}", free_port()?);
        // The options are constants elsewhere.
        let more = ["--mdms", "3", "--nbd-tcp", nbd.clone().leak()];
        let more: &[&str] = more.to_vec().leak();
        let cluster = Cluster::start(&Options {
            volumes: &["vol1:64MiB"],
            more,
            sds: 3,
            device: "ram:1GiB",
        })?;
        let content = vec![7; 64 << 20];
        cluster.fill("vol1", &content)?;
        let mut ports = ports(&cluster.status()?);
        ports.push(nbd);
        ensure!(ports.len() == 7, "3 MDMs, 3 servers and NBD: {ports:?}");
        let many = crowd(ports.len() as u64)?;
        let mut held = Vec::new();
        for address in &ports {
            held.push(silent(address, many)?);
            println!("{many} connections to {address}");
            status_within(&cluster, secs(1))?;
        }
        cluster.nbd("vol1")?.read(0, 4096)?;
        // A server comes back beside them, and so does its client.
        let begin = Instant::now();
        cluster.kill("sds3")?;
        cluster.wait_down("sds3")?;
        cluster.start_sds(3)?;
        cluster.wait_state("healthy", secs(60))?;
        println!("a killed server was back after {} ms", begin.elapsed().as_millis());
        status_within(&cluster, secs(1))?;
        cluster.verify("vol1", &content)?;
        // Silent connections are closed in the end.
        for (address, streams) in ports.iter().zip(&mut held) {
            let last = streams.last_mut().context("some")?;
            last.set_read_timeout(Some(secs(1)))?;
            wait(&format!("the newest connection to {address} is closed"), secs(10), || {
                Ok(closes(last, secs(1)).then_some(()))
            })?;
        }
        Ok(())
    });
}

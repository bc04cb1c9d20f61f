//! Silent connections keep nothing out, neither members of the cluster nor status requests.

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use system::nbd::closes;
use system::{Cluster, Options, case, free_port, leave_out, secs, setting, wait};

/// Connections to each port, many more than may stay silent there. The long form is
/// `GABION_CONNECTIONS=8300`.
const CONNECTIONS: u64 = 2500;
/// Descriptors of a crowd's process for everything else.
const OTHERS: u64 = 200;
/// Environment variable with the port and the size of a crowd: the task of this program when it
/// runs as one.
const CROWD: &str = "GABION_CROWD";

/// Silent connections to a port. They belong to a process of their own, because one process may not
/// have enough descriptors for those to all ports.
struct Crowd {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Crowd {
    fn start(address: &str, many: u64) -> Result<Crowd> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--exact", "strangers::in_a_crowd", "--ignored", "--nocapture"]);
        command.env(CROWD, format!("{address} {many}"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let said = BufReader::new(child.stdout.take().context("stdout is piped")?);
        let mut crowd = Crowd { child, said };
        crowd.wait("=== there")?;
        Ok(crowd)
    }

    fn wait(&mut self, line: &str) -> Result<()> {
        let mut said = String::new();
        while !said.ends_with(&format!("{line}\n")) {
            ensure!(self.said.read_line(&mut said)? > 0, "no `{line}` in {said}");
        }
        Ok(())
    }

    /// Waits until its newest connection is closed by the other side.
    fn end(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        self.wait("=== closed")
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Connects, waits for the end of its input, and then until the newest connection is closed.
#[test]
#[ignore = "the test below runs it in processes of their own"]
fn in_a_crowd() {
    case(|| {
        let crowd = std::env::var(CROWD).context("the test below sets it")?;
        let (address, many) = crowd.split_once(' ').context("where, and how many")?;
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
        let mut all = Vec::new();
        for n in 0..many.parse()? {
            let one = TcpStream::connect(address);
            all.push(one.with_context(|| format!("{address}, after {n} connections"))?);
        }
        println!("\n=== there");
        std::io::stdin().read_line(&mut String::new())?;
        let newest = all.last_mut().context("some")?;
        newest.set_read_timeout(Some(secs(1)))?;
        wait(&format!("the newest connection to {address} is closed"), secs(10), || {
            Ok(closes(newest, secs(1)).then_some(()))
        })?;
        println!("\n=== closed");
        Ok(())
    });
}

/// Returns the number of connections to each port: those that are wanted, or as many as a process
/// may have open.
fn crowd() -> Result<u64> {
    let wanted = setting("GABION_CONNECTIONS", CONNECTIONS);
    let open = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let most = open.saturating_sub(OTHERS);
    if most < wanted {
        leave_out(&format!("{wanted} connections to each port: only {most} may be open"))?;
    }
    Ok(wanted.min(most))
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
fn thousands_of_silent_connections_keep_no_peer_out() {
    case(|| {
        let nbd = format!("127.0.0.1:{}", free_port()?);
        // The options are constants elsewhere.
        let more: &[&str] = vec!["--mdms", "3", "--nbd-tcp", nbd.clone().leak()].leak();
        let options = Options { volumes: &["vol1:64MiB"], more, ..Options::default() };
        let cluster = Cluster::start(&options)?;
        let content = vec![7; 64 << 20];
        cluster.fill("vol1", &content)?;
        let mut ports = ports(&cluster.status()?);
        ports.push(nbd);
        ensure!(ports.len() == 7, "3 MDMs, 3 servers and NBD: {ports:?}");
        let many = crowd()?;
        let mut crowds = Vec::new();
        for address in &ports {
            crowds.push(Crowd::start(address, many)?);
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
        crowds.into_iter().try_for_each(Crowd::end)
    });
}

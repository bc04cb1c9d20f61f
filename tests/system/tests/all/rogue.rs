//! An attacker on the network speaks the protocol and sends forged frames: they are refused, and
//! nothing changes.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::io::Write;
use std::net::TcpStream;
use system::nbd::closes;
use system::probe::Probe;
use system::{Cluster, Options, case, secs, wire};

const RAFT: u8 = 50;
/// Kinds of consensus messages: entries, answer, vote, state, heartbeat.
const KINDS: [u8; 5] = [3, 4, 5, 7, 8];

/// Returns a hello as an MDM of this cluster.
fn hello_as(id: u64, to: u64, address: &str) -> Vec<u8> {
    let mut body = [wire::number(2, 1), wire::number(6, 1), wire::number(7, 1)].concat();
    body.extend([wire::number(3, id), wire::number(21, to), wire::number(22, 1 << 20)].concat());
    body.extend(wire::text(20, address));
    [wire::header(wire::HELLO, 1, &body), body].concat()
}

/// Returns a frame with a consensus message.
fn raft(kind: u8, from: u64, to: u64, term: u64, commit: u64) -> Vec<u8> {
    let numbers = [(1, u64::from(kind)), (2, to), (3, from), (4, term), (8, commit)];
    let body: Vec<u8> = numbers.iter().flat_map(|(tag, n)| wire::number(*tag, *n)).collect();
    let mut head = wire::header(RAFT, 1, &body);
    // The field `len`: the length of the whole message.
    head[88..92].copy_from_slice(&(body.len() as u32).to_le_bytes());
    wire::seal(&mut head);
    [head, body].concat()
}

/// Returns a hello of a server (role 2) or a client (role 3) with this incarnation.
fn hello_of_life(role: u8, id: u64, incarnation: u64) -> Vec<u8> {
    let mut body = [wire::number(2, role.into()), wire::number(3, id)].concat();
    body.extend([wire::number(4, incarnation), wire::number(5, 1 << 20)].concat());
    body.extend([wire::number(6, 1), wire::number(7, 1)].concat());
    // A map version that does not exist: leases would depend on it.
    body.extend(wire::number(8, u64::MAX));
    [wire::header(wire::HELLO, 1, &body), body].concat()
}

fn mdms(cluster: &Cluster) -> Result<Vec<Value>> {
    let text = cluster.gabion(&["mdm", "list", "--json"])?.ok()?;
    let all: Value = serde_json::from_str(&text)?;
    Ok(all.as_array().context("a list")?.clone())
}

#[test]
fn forged_messages_of_an_mdm_are_refused_and_nothing_changes() {
    case(|| {
        let cluster = Cluster::start(&Options { more: &["--mdms", "3"], ..Options::default() })?;
        let (before, running) = (mdms(&cluster)?, cluster.running());
        let addresses: Vec<&str> = before.iter().filter_map(|m| m["address"].as_str()).collect();
        ensure!(addresses.len() == 3, "{before:?}");
        for to in 0..3 {
            let from = (to + 1) % 3;
            for kind in KINDS {
                for (term, commit) in [(u64::MAX, 0), (u64::MAX / 2, 0), (1000, 0), (3, u64::MAX)] {
                    let mut link = TcpStream::connect(addresses[to])?;
                    link.set_read_timeout(Some(secs(5)))?;
                    let (id, you) = (from as u64 + 1, to as u64 + 1);
                    link.write_all(&hello_as(id, you, addresses[from]))?;
                    let (welcome, text) = wire::answer(&mut link)?;
                    ensure!(welcome == wire::WELCOME, "as MDM {id} to {you}: {text}");
                    link.write_all(&raft(kind, id, you, term, commit))?;
                    loop {
                        let (answer, text) = wire::answer(&mut link)?;
                        if answer == wire::REFUSAL {
                            ensure!(text.contains("from elsewhere"), "{text}");
                            break;
                        }
                    }
                    ensure!(closes(&mut link, secs(5)), "the link stays after kind {kind}");
                }
            }
            // An unknown MDM is refused.
            let mut link = TcpStream::connect(addresses[to])?;
            link.set_read_timeout(Some(secs(5)))?;
            link.write_all(&hello_as(9, to as u64 + 1, "127.0.0.1:9"))?;
            let (answer, text) = wire::answer(&mut link)?;
            ensure!(answer == wire::REFUSAL && text.contains("knows of no MDM 9"), "{text}");
        }
        ensure!(cluster.running() == running, "an MDM has died");
        let after = mdms(&cluster)?;
        let leads = |list: &[Value]| list.iter().position(|m| m["leads"] == true);
        ensure!(leads(&after) == leads(&before), "another one leads: {after:?}");
        ensure!(after.iter().all(|m| m["state"] == "up"), "{after:?}");
        for name in ["mdm", "mdm2", "mdm3"] {
            cluster.kill(name)?;
            cluster.gabion(&["mdm", "start", name])?.ok()?;
        }
        cluster.wait_state("healthy", secs(20))?;
        Ok(())
    });
}

#[test]
fn forged_lives_of_clients_and_servers_are_refused_and_nothing_changes() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let probe = Probe::start(&cluster, "vol1", 2, 64 << 20)?;
        let running = cluster.running();
        let status = cluster.status()?;
        let servers = status["sds"].as_array().context("a list")?.iter();
        let addresses: Vec<&str> = servers.filter_map(|s| s["address"].as_str()).collect();
        ensure!(addresses.len() == 3, "{status:#}");
        // Each hello waits for a map that names its incarnation.
        let mut links = Vec::new();
        for address in addresses {
            for (role, ids) in [(2, 1..=4), (3, 1..=3)] {
                for (id, life) in ids.flat_map(|id| [(id, 1 << 40), (id, u64::MAX)]) {
                    let mut link = TcpStream::connect(address)?;
                    link.set_read_timeout(Some(secs(60)))?;
                    link.write_all(&hello_of_life(role, id, life))?;
                    links.push((format!("role {role}, id {id} at {address}"), link));
                }
            }
        }
        probe.wait_ops(500)?;
        for (who, link) in &mut links {
            let (answer, text) = wire::answer(link)?;
            ensure!(answer == wire::REFUSAL, "{who}: {text}");
            ensure!(closes(link, secs(5)), "the link of {who} stays");
        }
        // The real processes continue, even if they have to reconnect.
        probe.wait_ops(500)?;
        let after = cluster.status()?;
        ensure!(after["state"] == "healthy", "{after:#}");
        ensure!(cluster.running() == running, "a process has died");
        cluster.kill("sds2")?;
        cluster.start_sds(2)?;
        cluster.wait_state("healthy", secs(60))?;
        cluster.nbd("vol1")?.read(0, 4096)?;
        probe.wait_ops(100)?;
        probe.finish().map(drop)
    });
}

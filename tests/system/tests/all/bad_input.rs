//! Strangers, forged input and vanishing clients: each gets an answer or is disconnected, and no
//! other client suffers.

use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use system::nbd::{self, closes, cmd};
use system::probe::Probe;
use system::{Cluster, Options, case, secs, tool, wire};

/// First bytes that a listener of the peer protocol must survive, and end by closing the link.
fn openings() -> Vec<(&'static str, Vec<u8>)> {
    let garbage = b"GET / HTTP/1.1\r\nHost: gabion\r\n\r\n".repeat(8);
    let mut damaged = wire::hello();
    damaged[60] ^= 1;
    let mut damaged_body = wire::hello();
    *damaged_body.last_mut().expect("a hello has a body") ^= 1;
    let mut giant = wire::header(wire::HELLO, 1, &[]);
    giant[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    wire::seal(&mut giant);
    vec![
        ("another protocol", garbage),
        ("a header with a wrong checksum", damaged),
        ("a body with a wrong checksum", damaged_body),
        ("a length beyond the limit", giant),
        ("an unknown version", wire::header(wire::HELLO, 77, &[])),
        ("no hello first", wire::header(10, 1, &[])),
        ("an unknown kind", wire::header(250, 1, &[])),
        (
            "a hello that is no message",
            [wire::header(wire::HELLO, 1, &[0xff; 9]), vec![0xff; 9]].concat(),
        ),
    ]
}

#[test]
fn strangers_on_our_ports_are_turned_away_and_io_goes_on() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let probe = Probe::start(&cluster, "vol1", 2, 64 << 20)?;
        let (running, status) = (cluster.running(), cluster.status()?);
        let addresses = ["/mdm/0/address", "/sds/0/address", "/sds/2/address"];
        for pointer in addresses {
            let address = status.pointer(pointer).and_then(|a| a.as_str()).context("an address")?;
            for (what, bytes) in openings() {
                let mut stream = TcpStream::connect(address)?;
                stream.set_read_timeout(Some(secs(5)))?;
                // The server may close the link while this side still sends.
                let _ = stream.write_all(&bytes);
                ensure!(closes(&mut stream, secs(5)), "{address} keeps the link after {what}");
            }
            // Half a header and then a close; and a link that stays open without a frame.
            TcpStream::connect(address)?.write_all(&wire::hello()[..50])?;
            let silent = TcpStream::connect(address)?;
            probe.wait_ops(300)?;
            drop(silent);
        }
        ensure!(cluster.running() == running, "a process has died");
        ensure!(cluster.status()?["state"] == "healthy");
        let saw = probe.finish()?;
        ensure!(saw.worst < Duration::from_secs(1), "{saw:?}");
        Ok(())
    });
}

#[test]
fn other_versions_and_other_clusters_are_refused_with_the_reason() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let status = cluster.status()?;
        for pointer in ["/mdm/0/address", "/sds/1/address"] {
            let address = status.pointer(pointer).and_then(|a| a.as_str()).context("an address")?;
            for (hello, words) in [
                (wire::hello_of(0, 77), ["version", "update the older one"]),
                (wire::hello_of(5, 1), ["cluster", "configuration"]),
            ] {
                let mut stream = TcpStream::connect(address)?;
                stream.set_read_timeout(Some(secs(5)))?;
                stream.write_all(&hello)?;
                let (kind, text) = wire::answer(&mut stream)?;
                ensure!(kind == wire::REFUSAL, "{address} answers with kind {kind}: {text}");
                ensure!(words.iter().all(|w| text.contains(w)), "{address}: {text}");
                ensure!(closes(&mut stream, secs(5)), "{address} keeps the link");
            }
        }
        Ok(())
    });
}

#[test]
fn broken_nbd_clients_harm_no_other() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let probe = Probe::start(&cluster, "vol1", 2, 64 << 20)?;
        let running = cluster.running();

        let error = format!("{:#}", cluster.nbd("nobody").err().context("no such export")?);
        ensure!(error.contains("nobody"), "{error}");

        let mut unknown = nbd::greet(&cluster.socket())?;
        nbd::option(&mut unknown, 4711, b"what?")?;
        let (kind, _) = nbd::option_reply(&mut unknown)?;
        ensure!(kind == (1 << 31) + 1, "an unknown option is unsupported, not {kind:#x}");

        let mut huge_option = nbd::greet(&cluster.socket())?;
        let _ = huge_option.write_all(&[&b"IHAVEOPT"[..], &[0, 0, 0, 7], &[0xff; 4]].concat());
        ensure!(closes(&mut huge_option, secs(5)), "an option of 4 GiB");

        let mut garbage = UnixStream::connect(cluster.socket())?;
        garbage.set_read_timeout(Some(secs(5)))?;
        let _ = garbage.write_all(&[0x55; 4096]);
        ensure!(closes(&mut garbage, secs(5)), "garbage instead of options");

        let mut bad_magic = cluster.nbd("vol1")?;
        bad_magic.stream.set_read_timeout(Some(secs(5)))?;
        let _ = bad_magic.stream.write_all(&[0x66; 28]);
        ensure!(closes(&mut bad_magic.stream, secs(5)), "a request without its magic");

        oversized(&cluster)?;

        // Disconnects in the middle of a request, and in the middle of many.
        let mut vanishing = cluster.nbd("vol1")?;
        vanishing.send(cmd::WRITE, 0, 100 << 20, 1 << 20, &[1; 1000])?;
        drop(vanishing);
        let mut busy = cluster.nbd("vol1")?;
        for i in 0..64 {
            busy.send(cmd::WRITE, 0, (200 << 20) + i * 4096, 4096, &[2; 4096])?;
            busy.send(cmd::READ, 0, (200 << 20) + i * 4096, 4096, &[])?;
        }
        drop(busy);

        probe.wait_ops(500)?;
        ensure!(cluster.running() == running, "a process has died");
        let untouched = cluster.nbd("vol1")?.read(100 << 20, 4096)?;
        ensure!(untouched.iter().all(|b| *b == 0), "half a write was executed");
        tool("nbdinfo", ["--size", &cluster.uri("vol1")])?.ok()?;
        probe.finish()?;
        Ok(())
    });
}

/// A request beyond the server's limit is refused. Its connection may close, but no other one.
fn oversized(cluster: &Cluster) -> Result<()> {
    let mut nbd = cluster.nbd("vol1")?;
    ensure!(nbd.read(0, 64 << 20).is_err(), "64 MiB in one read");
    let mut nbd = cluster.nbd("vol1")?;
    nbd.stream.set_read_timeout(Some(secs(5)))?;
    ensure!(nbd.write(0, &vec![1; 64 << 20]).is_err(), "64 MiB in one write");
    Ok(())
}

//! Hosts of iSCSI by name: which of them may use a volume, and through which of two data clients.
//! The initiator is a small one of this test, which knows what it has sent and when.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};
use system::cluster::signal;
use system::{Cluster, Extra, Options, case, free_port, secs, shell, wait};

const HOST: &str = "iqn.2026-11.test:host";
const OTHER: &str = "iqn.2026-11.test:other";
/// Login: the initiator is not authorized.
const FORBIDDEN: u16 = 0x0202;
/// The first octet of a response, and of the answer to a login.
const RESPONSE: u8 = 0x21;
const LOGGED_IN: u8 = 0x23;
const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;

/// A session of a host with the volume.
struct Session {
    stream: TcpStream,
    cmd_sn: u32,
}

impl Session {
    /// Logs in. The error is the status of the refusal.
    fn log_in(at: &str, host: &str, target: &str) -> Result<Result<Session, u16>> {
        let stream = TcpStream::connect(at)?;
        stream.set_read_timeout(Some(secs(25)))?;
        let mut session = Session { stream, cmd_sn: 1 };
        let text = format!(
            "InitiatorName={host}\0TargetName={target}\0SessionType=Normal\0InitialR2T=No\0\
             ImmediateData=Yes\0"
        );
        let mut bhs = [0; 48];
        (bhs[0], bhs[1], bhs[8]) = (0x43, 0x87, 0x80);
        bhs[13] = u8::from(host == OTHER);
        session.send(bhs, text.as_bytes())?;
        let answer = session.receive()?;
        ensure!(answer[0] == LOGGED_IN, "not the answer to a login: {answer:?}");
        let status = u16::from_be_bytes([answer[36], answer[37]]);
        if status == 0 {
            session.command(&[0; 6], &[])?; // takes the unit attention of a new session
        }
        Ok(if status == 0 { Ok(session) } else { Err(status) })
    }

    fn send(&mut self, mut bhs: [u8; 48], data: &[u8]) -> Result<()> {
        bhs[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        bhs[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        let mut pdu = bhs.to_vec();
        pdu.extend(data);
        pdu.resize(pdu.len().next_multiple_of(4), 0);
        Ok(self.stream.write_all(&pdu)?)
    }

    /// Returns the head of the next PDU that is not a ping.
    fn receive(&mut self) -> Result<[u8; 48]> {
        let mut bhs = [0; 48];
        self.stream.read_exact(&mut bhs)?;
        let len = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize;
        self.stream.read_exact(&mut vec![0; len.next_multiple_of(4)])?;
        Ok(bhs)
    }

    /// Executes a command, and returns its status.
    fn command(&mut self, cdb: &[u8], data: &[u8]) -> Result<u8> {
        let mut bhs = [0; 48];
        (bhs[0], bhs[1]) = (0x01, if data.is_empty() { 0x80 } else { 0xa0 });
        bhs[16..20].copy_from_slice(&self.cmd_sn.to_be_bytes());
        bhs[20..24].copy_from_slice(&(data.len() as u32).to_be_bytes());
        bhs[32..32 + cdb.len()].copy_from_slice(cdb);
        self.send(bhs, data)?;
        self.cmd_sn += 1;
        let answer = self.receive()?;
        ensure!(answer[0] == RESPONSE, "not a response: {answer:?}");
        Ok(answer[3])
    }

    /// Writes the first block of the volume (WRITE(10)), and returns the status. The first attempt
    /// may be answered with a notice about the paths.
    fn write(&mut self, byte: u8) -> Result<u8> {
        let cdb = [0x2a, 0, 0, 0, 0, 0, 0, 0, 8, 0];
        match self.command(&cdb, &[byte; 4096])? {
            CHECK_CONDITION => self.command(&cdb, &[byte; 4096]),
            status => Ok(status),
        }
    }

    /// Returns true if the other side has closed the connection.
    fn is_closed(&mut self) -> bool {
        loop {
            match self.receive() {
                Ok(_) => {} // it is asked to log out
                Err(error) => {
                    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
                    return kind != Some(std::io::ErrorKind::WouldBlock);
                }
            }
        }
    }
}

/// Writes until the volume has taken a write. Returns the time that it took.
fn pause(by: &mut Session, byte: u8) -> Result<Duration> {
    let begun = Instant::now();
    while by.write(byte)? != GOOD {
        ensure!(begun.elapsed() < secs(30), "no other path is served after 30 s");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(begun.elapsed())
}

/// A cluster with a volume and two gateways.
struct Gateways {
    cluster: Cluster,
    second: Extra,
    /// Their portals.
    at: [String; 2],
    target: String,
}

impl Gateways {
    fn start() -> Result<Gateways> {
        let at = [free_port()?, free_port()?].map(|port| format!("127.0.0.1:{port}"));
        // Options live as long as the test.
        let more: &'static [&'static str] =
            Box::leak(Box::new(["--iscsi", &*String::leak(at[0].clone())]));
        let cluster = Cluster::start(&Options { more, ..Options::default() })?;
        let iscsi = format!("iscsi = [\"{}\"]\n", at[1]);
        let (second, _) = Extra::sdc_with(&cluster, "second", &iscsi)?;
        let target = cluster.status()?["volumes"][0]["iscsi_target"].as_str().map(str::to_owned);
        let target = target.context("its target")?;
        Ok(Gateways { cluster, second, at, target })
    }

    fn log_in(&self, gateway: usize, host: &str) -> Result<Session> {
        let session = Session::log_in(&self.at[gateway], host, &self.target)?;
        session.map_err(|status| anyhow::anyhow!("{host} is refused with {status:04x}"))
    }

    fn volume(&self, line: &str) -> Result<String> {
        self.cluster.say(&format!("volume {line}"))?.ok()
    }

    /// The gateway that serves the host.
    fn seat(&self, host: &str) -> Result<Option<String>> {
        let status = self.cluster.status()?;
        let seats = status["volumes"][0]["seats"].as_array().context("a list")?.clone();
        let seat = seats.iter().find(|seat| seat["host"] == host);
        Ok(seat.and_then(|seat| seat["gateway"].as_str()).map(str::to_owned))
    }

    /// The targets that a host finds at the first gateway.
    fn discovered(&self, host: &str) -> Result<String> {
        shell(&format!("iscsi-ls -i {host} iscsi://{}", self.at[0]))?.ok()
    }
}

#[test]
fn a_volume_is_mapped_to_hosts_and_one_that_is_unmapped_is_cut_off() {
    case(|| {
        let c = Gateways::start()?;
        let (mut host, mut other) = (c.log_in(0, HOST)?, c.log_in(1, OTHER)?);
        ensure!(host.write(1)? == GOOD && other.write(2)? == GOOD, "all hosts may write");
        let said = c.volume(&format!("map vol1 --host {HOST} --only"))?;
        ensure!(said.contains(&format!("of the hosts, to {HOST}.")), "{said}");
        ensure!(other.is_closed(), "the other host was cut off");
        ensure!(host.write(3)? == GOOD, "a host that keeps its access notices nothing");
        for gateway in 0..2 {
            let refused = Session::log_in(&c.at[gateway], OTHER, &c.target)?.err();
            ensure!(refused == Some(FORBIDDEN), "{refused:?}");
        }
        ensure!(c.discovered(HOST)?.contains(&c.target), "it finds the volume");
        ensure!(!c.discovered(OTHER)?.contains(&c.target), "it finds no volume");
        let status = c.cluster.status()?;
        let mapped = &status["volumes"][0]["mapped_hosts"];
        ensure!(mapped[0]["host"] == HOST && mapped[0]["all"] == false, "{mapped}");

        c.volume(&format!("map vol1 --host {OTHER} --access read-only"))?;
        let mut reader = c.log_in(1, OTHER)?;
        ensure!(reader.write(4)? == CHECK_CONDITION, "it may not write");
        let refused = c.cluster.say("volume delete vol1 --yes")?;
        ensure!(refused.code == 1 && refused.stderr.contains("2 hosts by name"), "{refused:?}");
        c.volume(&format!("unmap vol1 --host {OTHER}"))?;
        let twice = c.cluster.say(&format!("volume unmap vol1 --host {OTHER}"))?;
        ensure!(twice.code == 1 && twice.stderr.contains("is not mapped to"), "{twice:?}");
        c.volume("map vol1 --all-hosts")?;
        ensure!(c.log_in(1, OTHER)?.write(5)? == GOOD, "all hosts may write again");
        Ok(())
    });
}

#[test]
fn an_order_moves_a_host_to_a_gateway_to_which_it_is_connected() {
    case(|| {
        let c = Gateways::start()?;
        let mut first = c.log_in(0, HOST)?;
        ensure!(first.write(1)? == GOOD, "it writes");
        let from = c.seat(HOST)?.context("its gateway")?;
        let refused = c.cluster.say("volume move-path vol1 --to second")?;
        ensure!(
            refused.code == 1 && refused.stderr.contains("let it connect there"),
            "{refused:?}"
        );
        let mut second = c.log_in(1, HOST)?;
        wait("the MDM knows of the second path", secs(10), || {
            let moved = c.cluster.say("volume move-path vol1 --to second")?;
            Ok((moved.code == 0).then_some(()))
        })?;
        ensure!(c.seat(HOST)?.as_deref() == Some("second"), "it has moved");
        ensure!(first.is_closed(), "the former gateway has ended the session");
        ensure!(second.write(2)? == GOOD, "the host goes on by the other path");
        // It comes back to the former gateway, and stays where it is.
        let mut first = c.log_in(0, HOST)?;
        wait("both paths are listed", secs(10), || {
            let hosts = c.cluster.say("host list --json")?.ok()?;
            let hosts: serde_json::Value = serde_json::from_str(&hosts)?;
            let of = |sdc: &str, field: &str| {
                let all = hosts[0]["connections"].as_array().into_iter().flatten();
                all.filter(|at| at["sdc"] == sdc).any(|at| at[field][0] == "vol1")
            };
            ensure!(hosts[0]["name"] == HOST && hosts.as_array().map(Vec::len) == Some(1));
            Ok((of("second", "optimized") && of(&from, "standby")).then_some(()))
        })?;
        let list = c.cluster.say("host list")?.ok()?;
        let lines = list.lines().filter(|line| line.contains(HOST) && line.contains("127.0.0.1"));
        ensure!(lines.count() == 2, "{list}");
        ensure!(first.write(3)? == CHECK_CONDITION, "that path is in standby");
        ensure!(second.write(4)? == GOOD, "and this one is not");
        let unknown = c.cluster.say("volume move-path vol1 --to second --host iqn.x")?;
        ensure!(unknown.code == 1 && unknown.stderr.contains("no SDC serves"), "{unknown:?}");
        c.volume(&format!("move-path vol1 --to {from} --host {HOST}"))?;
        ensure!(first.write(5)? == GOOD, "it is back");
        Ok(())
    });
}

/// `-- --nocapture` shows the pauses. docs/design/0012-seats.md has figures of them.
#[test]
fn a_host_goes_on_by_its_other_path_when_a_gateway_hangs_or_is_killed() {
    case(|| {
        let mut c = Gateways::start()?;
        let (mut second, mut first) = (c.log_in(1, HOST)?, c.log_in(0, HOST)?);
        ensure!(
            second.write(1)? == GOOD && c.seat(HOST)?.as_deref() == Some("second"),
            "it serves"
        );
        ensure!(first.write(2)? == CHECK_CONDITION, "the other path is in standby");
        c.second.freeze()?;
        let hung = pause(&mut first, 3)?;
        c.second.thaw()?;
        ensure!(second.is_closed(), "the gateway that hung has ended the session");
        let mut second = c.log_in(1, HOST)?;
        wait("the MDM knows of the second path", secs(10), || {
            let moved = c.cluster.say("volume move-path vol1 --to second")?;
            Ok((moved.code == 0).then_some(()))
        })?;
        ensure!(second.write(4)? == GOOD, "it serves again");
        let mut first = c.log_in(0, HOST)?;
        ensure!(first.write(5)? == CHECK_CONDITION, "the other path is in standby again");
        c.second.kill()?;
        let killed = pause(&mut first, 6)?;
        println!("pause when a gateway hangs: {hung:?}, and when it is killed: {killed:?}");
        Ok(())
    });
}

/// Sends PERSISTENT RESERVE OUT with this service action and type, and returns the status.
fn reserve_out(by: &mut Session, action: u8, kind: u8, keys: [u64; 2]) -> Result<u8> {
    let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    let mut list = [0; 24];
    list[..8].copy_from_slice(&keys[0].to_be_bytes());
    list[8..16].copy_from_slice(&keys[1].to_be_bytes());
    by.command(&cdb, &list)
}

#[test]
fn an_operator_sees_and_ends_the_reservation_of_a_host_that_is_gone() {
    case(|| {
        const CONFLICT: u8 = 0x18;
        let c = Gateways::start()?;
        let (mut host, mut other) = (c.log_in(0, HOST)?, c.log_in(1, OTHER)?);
        ensure!(reserve_out(&mut host, 0, 0, [0, 7])? == GOOD, "it registers");
        ensure!(reserve_out(&mut host, 1, 5, [7, 0])? == GOOD, "it reserves the volume");
        drop(host);
        wait("the other host is shut out", secs(10), || {
            Ok((other.write(1)? == CONFLICT).then_some(()))
        })?;
        let shown = c.volume("reservations vol1")?;
        ensure!(shown.contains("reserved: write-exclusive-registrants-only"), "{shown}");
        ensure!(shown.contains(HOST) && shown.contains("0x7"), "{shown}");
        let unasked = c.cluster.say("volume reservations vol1 --clear")?;
        ensure!(unasked.code == 1 && unasked.stderr.contains("--yes"), "{unasked:?}");
        c.volume("reservations vol1 --clear --yes")?;
        wait("the other host may write", secs(10), || Ok((other.write(2)? == GOOD).then_some(())))?;
        let again = c.cluster.say("volume reservations vol1 --clear --yes")?;
        ensure!(again.code == 1 && again.stderr.contains("no host is registered"), "{again:?}");
        let shown = c.volume("reservations vol1")?;
        ensure!(shown.contains("No host is registered"), "{shown}");
        Ok(())
    });
}

#[test]
fn a_gateway_that_stops_hands_its_hosts_over_and_one_that_hangs_is_shown_as_down() {
    case(|| {
        let c = Gateways::start()?;
        let mut first = c.log_in(0, HOST)?;
        ensure!(first.write(1)? == GOOD, "it writes");
        let mut second = c.log_in(1, HOST)?;
        let of = |name: &str| -> Result<(u32, String)> {
            let status = c.cluster.status()?;
            let mut all = status["sdc"].as_array().context("a list")?.iter();
            let sdc = all.find(|sdc| sdc["name"] == name).context("a data client")?;
            let state = sdc["state"].as_str().context("its state")?.to_owned();
            Ok((sdc["pid"].as_u64().context("its pid")? as u32, state))
        };
        // The host does not log out when it is asked to.
        signal(of("sdc")?.0, Signal::TERM)?;
        ensure!(first.is_closed(), "it was asked, and cut off in the end");
        let closed = Instant::now();
        while second.write(2)? != GOOD {
            ensure!(closed.elapsed() < secs(10), "the other gateway does not serve it");
            thread::sleep(Duration::from_millis(10));
        }
        println!("pause after a gateway has stopped: {:?}", closed.elapsed());

        let (pid, state) = of("second")?;
        ensure!(state == "up", "{state}");
        signal(pid, Signal::STOP)?;
        let down =
            wait("it is shown as down", secs(10), || Ok((of("second")?.1 == "down").then_some(())));
        signal(pid, Signal::CONT)?;
        down?;
        wait("it is up again", secs(10), || Ok((of("second")?.1 == "up").then_some(())))
    });
}

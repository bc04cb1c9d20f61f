//! Clusters on several hosts: namespaces of this machine, and hosts that are reached over SSH.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use system::bytes::Random;
use system::cluster::signal;
use system::nbd::Nbd;
use system::run::binary;
use system::{Folder, MIB, Ran, case, free_port, gabion, secs, tool, wait};

/// A topology of three hosts; each has this, besides its name and its device.
fn topology(each: impl Fn(u32) -> String) -> String {
    let host = |n: u32| {
        let roles = if n == 1 { "mdm = true\nsdc = \"127.0.0.1:10809\"\n" } else { "" };
        let device = "devices = [\"file:/var/lib/gabion/disk0:128MiB\"]\n";
        format!("[[host]]\nname = \"h{n}\"\n{roles}{}\n{}", each(n), device)
    };
    format!("volumes = [\"v:32MiB\"]\n{}{}{}", host(1), host(2), host(3))
}

/// A cluster in namespaces, taken away with its test.
struct Spaces {
    folder: Folder,
    mdm: String,
    prefix: String,
}

impl Drop for Spaces {
    fn drop(&mut self) {
        let _ = self.deploy(&["--down"]);
    }
}

impl Spaces {
    fn new() -> Result<Spaces> {
        let folder = Folder::new()?;
        fs::write(folder.join("c.toml"), topology(|_| String::new()))?;
        let mut spaces = Spaces { folder, mdm: String::new(), prefix: String::new() };
        spaces.up()?;
        Ok(spaces)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join("data").join(name)
    }

    fn deploy(&self, arguments: &[&str]) -> Result<Ran> {
        let dir = self.folder.join("data").display().to_string();
        gabion([&["deploy", "--dir", &dir], arguments].concat())
    }

    fn up(&mut self) -> Result<()> {
        let topology = self.folder.join("c.toml").display().to_string();
        let said = self.deploy(&[&topology, "--local"])?.ok()?;
        let mdm = said.lines().find_map(|l| l.trim().strip_prefix("export GABION_MDM="));
        self.mdm = mdm.with_context(|| said.clone())?.to_owned();
        let network = self.mdm.split('.').nth(2).context("an address")?;
        self.prefix = format!("gabion{network}-");
        Ok(())
    }

    fn nbd(&self) -> Result<Nbd> {
        let socket = self.file("h1/run/gabion/nbd.sock");
        wait("the volume is served", secs(10), || Ok(Nbd::connect(&socket, "v").ok()))
    }

    fn pid(&self, host: &str, role: &str) -> Result<u32> {
        let text = fs::read_to_string(self.file(&format!("{host}/run/gabion/{role}.pid")))?;
        Ok(text.split_whitespace().next().context("a pid")?.parse()?)
    }

    fn cable(&self, host: &str, state: &str) -> Result<()> {
        let space = format!("{}{host}", self.prefix);
        tool("ip", ["-n", &space, "link", "set", "eth0", state])?.ok().map(drop)
    }

    fn wait_state(&self, state: &str) -> Result<()> {
        wait(state, secs(30), || {
            let status = gabion(["status", "--json", "--mdm", &self.mdm])?;
            let status: Value = serde_json::from_str(&status.stdout)?;
            Ok((status["state"] == state).then_some(()))
        })
    }
}

fn fill(nbd: &mut Nbd, content: &[u8]) -> Result<()> {
    (0..).zip(content.chunks(MIB as usize)).try_for_each(|(i, c)| nbd.write(i * MIB, c))
}

fn verify(nbd: &mut Nbd, content: &[u8]) -> Result<()> {
    for (i, unit) in (0..).zip(content.chunks(MIB as usize)) {
        ensure!(nbd.read(i * MIB, unit.len())? == unit, "unit {i}");
    }
    Ok(())
}

#[test]
fn hosts_in_namespaces_lose_their_cable_and_their_server_and_nothing_else() {
    case(|| {
        let mut spaces = Spaces::new()?;
        spaces.deploy(&["--local", "x.toml"])?.fails(1, &["x.toml"])?;
        let topology = spaces.folder.join("c.toml").display().to_string();
        spaces.deploy(&[&topology, "--local"])?.fails(1, &["--down"])?;
        let mut random = Random::new(77);
        let mut content = random.bytes(32 * MIB as usize);
        let mut nbd = spaces.nbd()?;
        fill(&mut nbd, &content)?;
        spaces.cable("h2", "down")?;
        content = random.bytes(32 * MIB as usize);
        fill(&mut nbd, &content)?;
        spaces.wait_state("degraded")?;
        spaces.cable("h2", "up")?;
        spaces.wait_state("healthy")?;
        signal(spaces.pid("h3", "sds")?, Signal::KILL)?;
        verify(&mut nbd, &content)?;
        drop(nbd);
        spaces.deploy(&["--down"])?.ok()?;
        spaces.deploy(&["--down"])?.fails(1, &["no cluster"])?;
        let left = tool("ip", ["netns"])?.ok()?;
        ensure!(!left.contains(&spaces.prefix), "{left}");
        // The same files, the same cluster.
        spaces.up()?;
        spaces.wait_state("healthy")?;
        verify(&mut spaces.nbd()?, &content)
    });
}

/// An SSH server that lets this test in, and an `ssh` that knows it.
struct Sshd {
    server: Child,
    program: PathBuf,
    port: u16,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Sshd {
    fn start(folder: &Folder) -> Result<Sshd> {
        let file = |name: &str| folder.join(name).display().to_string();
        for key in ["host", "user"] {
            tool("ssh-keygen", ["-q", "-t", "ed25519", "-N", "", "-f", &file(key)])?.ok()?;
        }
        let port = free_port()?;
        let config = format!(
            "Port {port}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nPidFile none\nUsePAM no\n\
             PermitRootLogin yes\nPasswordAuthentication no\n",
            file("host"),
            file("user.pub")
        );
        fs::write(folder.join("sshd_config"), config)?;
        fs::create_dir_all("/run/sshd")?; // where it shuts itself in; some systems make it at boot only
        let log = fs::File::create(folder.join("sshd.log"))?;
        let mut server = Command::new("/usr/sbin/sshd");
        server.args(["-D", "-e", "-f", &file("sshd_config")]).stdin(Stdio::null()).stderr(log);
        let ssh = format!(
            "#!/bin/sh\nexec ssh -F none -i '{}' -o UserKnownHostsFile='{}' \
             -o StrictHostKeyChecking=accept-new \"$@\"\n",
            file("user"),
            file("known_hosts")
        );
        let program = folder.join("ssh");
        fs::write(&program, ssh)?;
        tool("chmod", ["755", &file("ssh")])?.ok()?;
        let sshd = Sshd { server: server.spawn()?, program, port };
        wait("sshd listens", secs(10), || {
            Ok(std::net::TcpStream::connect(("127.0.0.1", port)).ok())
        })?;
        Ok(sshd)
    }

    fn gabion(&self, arguments: &[&str]) -> Result<Ran> {
        let mut command = Command::new(binary());
        system::run::run(command.args(arguments).env("GABION_SSH", &self.program))
    }
}

/// Ends what was started on hosts whose folders are below this one.
struct Started(PathBuf);

impl Drop for Started {
    fn drop(&mut self) {
        for (host, role) in
            ["h1", "h2", "h3"].iter().flat_map(|h| ["sdc", "sds", "mdm"].map(|r| (h, r)))
        {
            let file = self.0.join(host).join(format!("run/gabion/{role}.pid"));
            let text = fs::read_to_string(file).unwrap_or_default();
            if let Some(pid) = text.split_whitespace().next().and_then(|p| p.parse().ok()) {
                let _ = signal(pid, Signal::KILL);
            }
        }
    }
}

#[test]
fn hosts_are_checked_installed_and_started_over_ssh() {
    case(|| {
        let folder = Folder::new()?;
        let sshd = Sshd::start(&folder)?;
        let root = folder.join("hosts");
        let host = |n: u32| {
            let (root, port) = (root.join(format!("h{n}")).display().to_string(), sshd.port);
            format!("address = \"127.0.0.{}\"\nssh_port = {port}\nroot = \"{root}\"\n", n + 1)
        };
        let text = topology(host);
        let text = text.replace("/var/lib", &format!("{}/disks-of", root.display()));
        let devices = |text: &str| {
            // Hosts that share a file system have devices of their own.
            (1..=3)
                .fold(text.to_owned(), |t, n| t.replacen("gabion/disk0", &format!("h{n}/disk"), 1))
        };
        let file = folder.join("c.toml").display().to_string();
        fs::write(&file, devices(&text))?;
        let _started = Started(root.clone());
        // Mistakes first: nothing is changed.
        let wrong = folder.join("wrong.toml").display().to_string();
        fs::write(&wrong, devices(&text).replace("127.0.0.4", "127.0.0.3"))?;
        sshd.gabion(&["deploy", &wrong])?.fails(1, &["two hosts have the address"])?;
        fs::write(
            &wrong,
            devices(&text).replacen(&format!("ssh_port = {}", sshd.port), "ssh_port = 1", 1),
        )?;
        let said = sshd.gabion(&["deploy", &wrong])?;
        ensure!(said.code == 1 && said.stdout.contains("without a password"), "{said:?}");
        fs::write(
            &wrong,
            devices(&text).replacen("file:", "block:/nowhere/", 1).replacen(":128MiB", "", 1),
        )?;
        let said = sshd.gabion(&["deploy", &wrong])?;
        ensure!(said.code == 1 && said.stdout.contains("there is no /nowhere"), "{said:?}");
        sshd.gabion(&["deploy", &file, "--check"])?.ok()?;
        ensure!(!root.exists(), "a check changes nothing");
        sshd.gabion(&["deploy", &file])?.ok()?;
        ensure!(root.join("h2/usr/local/bin/gabion").exists());
        let socket = root.join("h1/run/gabion/nbd.sock");
        used(&socket)?;
        let said = sshd.gabion(&["deploy", &file])?;
        ensure!(said.code == 1 && said.stdout.contains("a Gabion sds runs there"), "{said:?}");
        Ok(())
    });
}

fn used(socket: &Path) -> Result<()> {
    let content = Random::new(78).bytes(32 * MIB as usize);
    let mut nbd = wait("the volume is served", secs(10), || Ok(Nbd::connect(socket, "v").ok()))?;
    fill(&mut nbd, &content)?;
    verify(&mut nbd, &content)
}

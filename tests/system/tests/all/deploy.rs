//! Clusters on several hosts: namespaces on this machine, and hosts that are reached over SSH.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use system::bytes::Random;
use system::cluster::{is_running, signal};
use system::nbd::Nbd;
use system::run::binary;
use system::spaces::{self, DISK};
use system::{Folder, MIB, Ran, Spaces, case, free_port, gabion, secs, tool, wait};

#[test]
fn hosts_in_namespaces_lose_their_cable_and_their_server_and_nothing_else() {
    case(|| {
        let mut spaces = Spaces::new(3, "128MiB", "\"v:32MiB\"")?;
        spaces.deploy(&["--local", "x.toml"])?.fails(1, &["x.toml"])?;
        let topology = spaces.folder.join("c.toml").display().to_string();
        spaces.deploy(&[&topology, "--local"])?.fails(1, &["--down"])?;
        let mut random = Random::new(77);
        let mut content = random.bytes(32 * MIB as usize);
        let mut nbd = spaces.nbd("v")?;
        nbd.fill(&content)?;
        spaces.cable("h2", "down")?;
        content = random.bytes(32 * MIB as usize);
        nbd.fill(&content)?;
        spaces.wait_state("degraded")?;
        spaces.cable("h2", "up")?;
        spaces.wait_state("healthy")?;
        spaces.signal("h3", "sds", Signal::KILL)?;
        nbd.verify(&content)?;
        drop(nbd);
        spaces.deploy(&["--down"])?.ok()?;
        spaces.deploy(&["--down"])?.fails(1, &["no cluster"])?;
        ensure!(!spaces.is_there()?, "a namespace or a cable is left");
        // The same files give the same cluster.
        spaces.up()?;
        spaces.wait_state("healthy")?;
        spaces.nbd("v")?.verify(&content)
    });
}

#[test]
fn hosts_of_one_rack_never_have_both_copies() {
    case(|| {
        let rack = |n: u32| format!("fault_set = \"rack{}\"\n", n % 2);
        let mut spaces = Spaces::of(&spaces::topology(4, "128MiB", "\"v:32MiB\"", rack))?;
        let content = Random::new(78).bytes(32 * MIB as usize);
        spaces.nbd("v")?.fill(&content)?;
        // The whole rack without an MDM fails.
        spaces.signal("h2", "sds", Signal::KILL)?;
        spaces.signal("h4", "sds", Signal::KILL)?;
        spaces.nbd("v")?.verify(&content)?;
        // The same topology again: the cluster remembers the fault sets.
        spaces.deploy(&["--down"])?.ok()?;
        spaces.up()?;
        spaces.wait_state("healthy")?;
        spaces.nbd("v")?.verify(&content)
    });
}

#[test]
fn volumes_lie_in_the_pools_that_a_topology_names() {
    case(|| {
        let home = |n: u32| match n {
            1 | 2 => "pool = \"fast\"\n",
            _ => "domain = \"east\"\npool = \"far\"\n",
        };
        let volumes =
            "{ spec = \"v:32MiB\", pool = \"fast\" }, { spec = \"w:32MiB\", pool = \"far\" }";
        let hosts = spaces::topology(4, "128MiB", volumes, |n| home(n).to_owned());
        let pool = "[[pool]]\nname = \"fast\"\nmedia = \"ssd\"\nspare_percent = 34\n";
        let mut spaces = Spaces::of(&format!("{hosts}{pool}"))?;
        let list = spaces.gabion(&["pool", "list", "--json"])?.ok()?;
        let list: serde_json::Value = serde_json::from_str(&list)?;
        let pools: Vec<_> = list.as_array().into_iter().flatten().collect();
        let fast = pools.iter().find(|p| p["name"] == "fast").context("fast")?;
        let far = pools.iter().find(|p| p["name"] == "far").context("far")?;
        ensure!(fast["spare_percent"] == 34 && fast["media_type"] == "ssd", "{fast:#}");
        ensure!(far["protection_domain"] == "east" && far["devices"] == 2, "{far:#}");
        let content = [79, 80].map(|seed| Random::new(seed).bytes(32 * MIB as usize));
        spaces.nbd("v")?.fill(&content[0])?;
        spaces.nbd("w")?.fill(&content[1])?;
        // One server of each domain fails. A single domain of four could survive only one failure.
        spaces.signal("h2", "sds", Signal::KILL)?;
        spaces.signal("h4", "sds", Signal::KILL)?;
        spaces.nbd("v")?.verify(&content[0])?;
        spaces.nbd("w")?.verify(&content[1])?;
        // The same topology again: the cluster remembers pools and domains.
        spaces.deploy(&["--down"])?.ok()?;
        spaces.up()?;
        spaces.wait_state("healthy")?;
        spaces.nbd("w")?.verify(&content[1])
    });
}

/// Returns a topology with two managers and a tie-breaker.
fn three_mdms(topology: &str) -> String {
    let also = |text: &str, host: &str, role: &str| {
        let name = format!("name = \"{host}\"\n");
        text.replace(&name, &format!("{name}mdm = \"{role}\"\n"))
    };
    also(&also(topology, "h2", "manager"), "h3", "tie-breaker")
}

#[test]
fn three_mdms_are_one_cluster_and_a_lost_log_begins_no_other_one() {
    case(|| {
        let topology = spaces::topology(3, "128MiB", "\"v:32MiB\"", |_| String::new());
        let mut spaces = Spaces::of(&three_mdms(&topology))?;
        let roles = || -> Result<Vec<String>> {
            let list = spaces.gabion(&["mdm", "list", "--json"])?.ok()?;
            let list: serde_json::Value = serde_json::from_str(&list)?;
            let votes = list.as_array().into_iter().flatten().filter(|m| m["votes"] == true);
            Ok(votes.filter_map(|m| m["role"].as_str().map(str::to_owned)).collect())
        };
        ensure!(roles()? == ["manager", "manager", "tie-breaker"], "{:?}", roles()?);
        let first = spaces.mdm_of("h1")?;
        spaces.signal("h1", "mdm", Signal::KILL)?;
        fs::remove_file(spaces.file("h1/var/lib/gabion/mdm.log"))?;
        spaces.start("h1", "mdm")?;
        wait("the others have another leader", secs(20), || {
            Ok(spaces.gabion(&["volume", "create", "w", "1MiB"])?.ok().ok())
        })?;
        // The MDM is empty and waits: it began the cluster once, and does not begin another one.
        let ran = gabion(["status", "--mdm", &first])?;
        ensure!(ran.code == 5, "{ran:?}");
        spaces.gabion(&["mdm", "remove", "h1"])?.ok()?;
        spaces.gabion(&["mdm", "add", "h1", &first])?.ok()?;
        wait("all vote", secs(20), || Ok((roles()?.len() == 3).then_some(())))?;
        // The whole cluster starts again from its files.
        spaces.deploy(&["--down"])?.ok()?;
        let (log, aside) =
            (spaces.file("h3/var/lib/gabion/mdm.log"), spaces.folder.join("aside.log"));
        fs::rename(&log, &aside)?;
        let file = spaces.folder.join("c.toml").display().to_string();
        let said = spaces.deploy(&[&file, "--local"])?;
        ensure!(said.code == 1 && said.stdout.contains("h3 has none"), "{said:?}");
        fs::rename(&aside, &log)?;
        // A cloned disk, as in cloned virtual machines.
        let (kept, disk) = (spaces.folder.join("aside.disk"), spaces.device("h2"));
        fs::rename(&disk, &kept)?;
        tool("cp", ["--sparse=always", &spaces.device("h1"), &disk])?.ok()?;
        let said = spaces.deploy(&[&file, "--local"])?;
        ensure!(said.code == 1 && said.stdout.contains("is the same device as"), "{said:?}");
        fs::rename(&kept, &disk)?;
        spaces.up()?;
        spaces.wait_state("healthy")
    });
}

/// The host of the only MDM has no device, so nothing but its configuration tells that a cluster
/// has begun there.
#[test]
fn an_only_mdm_without_its_log_begins_no_other_cluster_and_a_backup_brings_it_back() {
    case(|| {
        let text = spaces::topology(3, "128MiB", "\"v:32MiB\"", |_| String::new());
        let without = text.replacen(&format!("devices = [\"file:/{DISK}:128MiB\"]\n"), "", 1);
        let spaces = Spaces::of(&without)?;
        let content = Random::new(81).bytes(32 * MIB as usize);
        let mut nbd = spaces.nbd("v")?;
        nbd.fill(&content)?;
        let file = |name: &str| spaces.file(name).display().to_string();
        let backup = spaces.folder.join("backup").display().to_string();
        spaces.gabion(&["mdm", "backup", &backup])?.ok()?;
        spaces.signal("h1", "mdm", Signal::KILL)?;
        fs::remove_file(spaces.file("h1/var/lib/gabion/mdm.log"))?;
        spaces.start("h1", "mdm")?;
        wait("it says what it waits for", secs(10), || {
            Ok(spaces.log("h1", "mdm")?.contains("gabion mdm restore").then_some(()))
        })?;
        let ran = spaces.gabion(&["status"])?;
        ensure!(ran.code == 5, "{ran:?}");
        nbd.verify(&content)?;
        spaces.signal("h1", "mdm", Signal::KILL)?;
        wait("it has ended", secs(10), || Ok((!spaces.runs("h1", "mdm")).then_some(())))?;
        let config = file("h1/etc/gabion/mdm.toml");
        gabion(["mdm", "restore", &backup, "--config", &config, "--yes"])?.ok()?;
        spaces.start("h1", "mdm")?;
        spaces.wait_state("healthy")?;
        nbd.verify(&content)
    });
}

/// An SSH server that accepts this test, and an `ssh` that knows the server.
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
        fs::create_dir_all("/run/sshd")?; // sshd needs it; some systems only create it at boot
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

/// Ends the processes on hosts whose folders are below this one.
struct Started(PathBuf);

impl Drop for Started {
    fn drop(&mut self) {
        for pid in self.pids() {
            let _ = signal(pid, Signal::KILL);
        }
    }
}

impl Started {
    fn pids(&self) -> Vec<u32> {
        let all = ["h1", "h2", "h3"].iter().flat_map(|h| ["sdc", "sds", "mdm"].map(|r| (h, r)));
        let files =
            all.map(|(host, role)| self.0.join(host).join(format!("run/gabion/{role}.pid")));
        let text = files.map(|file| fs::read_to_string(file).unwrap_or_default());
        text.filter_map(|text| text.split_whitespace().next()?.parse().ok()).collect()
    }

    /// Ends all roles in an orderly way.
    fn end(&self) -> Result<()> {
        let pids = self.pids();
        pids.iter().for_each(|pid| drop(signal(*pid, Signal::TERM)));
        wait("all roles end", secs(20), || {
            Ok((!pids.iter().any(|pid| is_running(*pid))).then_some(()))
        })
    }
}

/// A file with secrets of iSCSI hosts, in the folder of the topology.
struct Secrets {
    /// The file that the topology names.
    here: PathBuf,
    /// Its copy on the host.
    there: PathBuf,
}

impl Secrets {
    /// Writes the file with this secret and mode.
    fn write(&self, secret: &str, mode: u32) -> Result<()> {
        fs::write(&self.here, format!("host = {{ user = \"db1\", secret = \"{secret}\" }}\n"))?;
        Ok(fs::set_permissions(&self.here, Permissions::from_mode(mode))?)
    }

    /// Checks that the host has this secret, and that nobody else can read it or was told it.
    fn check(&self, secret: &str, said: &str) -> Result<()> {
        let (copy, about) = (fs::read_to_string(&self.there)?, fs::metadata(&self.there)?);
        ensure!(copy.contains(secret), "the host has another secret");
        ensure!((about.mode() & 0o7777, about.uid()) == (0o600, 0), "{about:?}");
        let folder = self.there.parent().context("its folder")?;
        ensure!(!folder.join("iscsi-secrets.toml.new").exists(), "a draft is left");
        let role = fs::read_to_string(folder.join("sdc.toml"))?;
        ensure!(role.contains(&format!("iscsi_secrets = {:?}", self.there)), "{role}");
        ensure!(role.contains("protect_memory = true"), "{role}");
        ensure!(!role.contains(secret) && !said.contains(secret), "the secret is shown: {said}");
        Ok(())
    }
}

/// A copy of the secrets is made when they are new or have changed, and only then.
fn secrets_change(sshd: &Sshd, topology: &str, started: &Started, secrets: &Secrets) -> Result<()> {
    let path = secrets.there.display().to_string();
    started.end()?;
    secrets.write("the second secret", 0o600)?;
    let said = sshd.gabion(&["deploy", topology])?.ok()?;
    ensure!(said.contains(&format!("h1: {path} has changed")), "{said}");
    secrets.check("the second secret", &said)?;
    let before = fs::metadata(&secrets.there)?;
    started.end()?;
    let said = sshd.gabion(&["deploy", topology])?.ok()?;
    ensure!(!said.contains(&path), "{said}");
    ensure!(fs::metadata(&secrets.there)?.ino() == before.ino(), "it was copied again");
    secrets.check("the second secret", &said)
}

#[test]
fn hosts_are_checked_installed_and_started_over_ssh() {
    case(|| {
        let folder = Folder::new()?;
        let sshd = Sshd::start(&folder)?;
        let root = folder.join("hosts");
        let secrets = Secrets {
            here: folder.join("secrets.toml"),
            there: root.join("h1/etc/gabion/iscsi-secrets.toml"),
        };
        let client = format!(
            "iscsi = \"127.0.0.1:{}\"\niscsi_secrets = \"secrets.toml\"\nprotect_memory = true\n",
            free_port()?
        );
        let host = |n: u32| {
            let (root, port) = (root.join(format!("h{n}")).display().to_string(), sshd.port);
            let client = if n == 1 { client.as_str() } else { "" };
            let at = format!("address = \"127.0.0.{}\"\nssh_port = {port}\n", n + 1);
            format!("{at}root = \"{root}\"\n{client}")
        };
        let text = three_mdms(&spaces::topology(3, "128MiB", "\"v:32MiB\"", host));
        let text = text.replace("10809", &free_port()?.to_string());
        let devices = |text: &str| {
            // Hosts that share a file system need different device files.
            let disk = |n| format!("{}/disks/{n}", root.display());
            (1..=3).fold(text.to_owned(), |t, n| t.replacen(&format!("/{DISK}"), &disk(n), 1))
        };
        let file = folder.join("c.toml").display().to_string();
        fs::write(&file, devices(&text))?;
        let started = Started(root.clone());
        // Mistakes first: they change nothing.
        secrets.write("the first secret", 0o640)?;
        let mend = format!("chmod 600 {}", secrets.here.display());
        sshd.gabion(&["deploy", &file])?.fails(1, &["`iscsi_secrets` of h1", &mend])?;
        secrets.write("the first secret", 0o600)?;
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
        fs::write(&wrong, devices(&text).replace("hosts/h3", "hosts/h2"))?;
        let said = sshd.gabion(&["deploy", &wrong])?;
        ensure!(said.code == 1 && said.stdout.contains("the same machine as h2"), "{said:?}");
        sshd.gabion(&["deploy", &file, "--check"])?.ok()?;
        ensure!(!root.exists(), "a check changes nothing");
        let said = sshd.gabion(&["deploy", &file])?.ok()?;
        ensure!(said.contains(&format!("h1: {} is new", secrets.there.display())), "{said}");
        secrets.check("the first secret", &said)?;
        ensure!(root.join("h2/usr/local/bin/gabion").exists());
        let socket = root.join("h1/run/gabion/nbd.sock");
        used(&socket)?;
        let said = sshd.gabion(&["deploy", &file])?;
        ensure!(said.code == 1 && said.stdout.contains("a Gabion sds runs there"), "{said:?}");
        secrets_change(&sshd, &file, &started, &secrets)
    });
}

fn used(socket: &Path) -> Result<()> {
    let content = Random::new(78).bytes(32 * MIB as usize);
    let mut nbd = wait("the volume is served", secs(10), || Ok(Nbd::connect(socket, "v").ok()))?;
    nbd.fill(&content)?;
    nbd.verify(&content)
}

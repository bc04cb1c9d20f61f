//! Volumes over iSCSI, with stock initiators: libiscsi's programs and QEMU.

use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use system::bytes::Random;
use system::{Cluster, MIB, Options, case, free_port, gabion, secs, shell, tool, wait};

/// A cluster that serves iSCSI.
struct Portal {
    cluster: Cluster,
    /// `IP:PORT`.
    at: String,
}

impl Portal {
    fn start(volumes: &'static [&'static str], device: &'static str) -> Result<Portal> {
        Portal::with(volumes, device, &[])
    }

    /// Starts one with more arguments of `up`.
    fn with(
        volumes: &'static [&'static str],
        device: &'static str,
        arguments: &[&'static str],
    ) -> Result<Portal> {
        let at = format!("127.0.0.1:{}", free_port()?);
        // Options live as long as the test.
        let all = [&["--iscsi", &*String::leak(at.clone())], arguments].concat();
        let more: &'static [&'static str] = Box::leak(all.into_boxed_slice());
        let options = Options { volumes, device, more, ..Options::default() };
        Ok(Portal { cluster: Cluster::start(&options)?, at })
    }

    /// Returns a volume's URI as `status --json` has it.
    fn uri(&self, volume: &str) -> Result<String> {
        let status = self.cluster.status()?;
        let volumes = status["volumes"].as_array().context("volumes are a list")?;
        let volume = volumes.iter().find(|v| v["name"] == volume).context("the volume")?;
        Ok(volume["iscsi_uris"][0].as_str().context("it has a URI of iSCSI")?.to_owned())
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a temporary path is text")
}

/// Data, a hole, and data that ends in the middle of a unit and of a block.
fn content(len: usize) -> Vec<u8> {
    let mut content = Random::new(1).bytes(len / 2 + 1536);
    content.resize(len * 3 / 4, 0);
    content.extend(Random::new(2).bytes(len - content.len()));
    content
}

#[test]
fn the_iscsi_commands_that_up_prints_work() {
    case(|| {
        let portal = Portal::start(&["vol1:512MiB"], "ram:1GiB")?;
        let printed = &portal.cluster.printed;
        let line = |what: &str| -> Result<String> {
            let mut lines = printed.lines().map(str::trim).filter(|line| line.starts_with(what));
            let found = lines.find(|line| line.contains("iscsi:"));
            Ok(found.with_context(|| format!("no `{what}` in {printed}"))?.to_owned())
        };
        let listed = shell(&line("iscsi-ls")?)?.ok()?;
        ensure!(listed.contains("Target:iqn.2026-11.io.github.gabion:"), "{listed}");
        ensure!(listed.contains(&portal.at) && listed.contains("Lun:0"), "{listed}");
        let info = shell(&line("qemu-img info")?)?.ok()?;
        ensure!(info.contains("512 MiB"), "{info}");
        let list = portal.cluster.say("volume list")?.ok()?;
        ensure!(list.contains(&portal.uri("vol1")?), "{list}");
        let status = portal.cluster.say("status")?.ok()?;
        ensure!(status.contains(&format!("iscsi://{}", portal.at)), "{status}");
        Ok(())
    });
}

#[test]
fn initiators_see_sizes_and_identifiers() {
    case(|| {
        let portal = Portal::start(&["vol1:512MiB", "logs:3MiB"], "ram:1GiB")?;
        let uri = portal.uri("logs")?;
        let size = tool("iscsi-readcapacity16", ["-s", &uri])?.ok()?;
        ensure!(size.trim() == (3 * MIB).to_string(), "{size}");
        let inquiry = tool("iscsi-inq", [&uri])?.ok()?;
        ensure!(inquiry.contains("GABION"), "{inquiry}");
        let target = uri.split('/').nth(3).context("a target")?;
        let page = tool("iscsi-inq", ["-e", "1", "-c", "131", &uri])?.ok()?;
        ensure!(page.contains(&format!("{target},L,0x0000000000000000")), "{page}");
        let listed = tool("iscsi-ls", [&format!("iscsi://{}", portal.at)])?.ok()?;
        ensure!(listed.matches("Target:").count() == 2, "{listed}");
        Ok(())
    });
}

#[test]
fn qemu_img_brings_back_every_byte_while_a_server_dies() {
    case(|| {
        let portal = Portal::start(&["vol1:64MiB"], "file:1GiB")?;
        let cluster = &portal.cluster;
        let (uri, input) = (portal.uri("vol1")?, cluster.folder.join("in"));
        let content = content(64 * MIB as usize);
        fs::write(&input, &content)?;
        let done = AtomicBool::new(false);
        thread::scope(|scope| -> Result<()> {
            let faults = scope.spawn(|| -> Result<u32> {
                let mut faults = 0;
                while !done.load(Ordering::Relaxed) {
                    let n = 1 + faults % 3;
                    cluster.kill(&format!("sds{n}"))?;
                    thread::sleep(secs(1));
                    cluster.start_sds(n)?;
                    cluster.wait_state("healthy", secs(60))?;
                    faults += 1;
                }
                Ok(faults)
            });
            let rounds = || -> Result<()> {
                for _ in 0..3 {
                    let to = ["convert", "-n", "-f", "raw", "-O", "raw", path(&input), &uri];
                    tool("qemu-img", to)?.ok()?;
                    let same = ["compare", "-f", "raw", "-F", "raw", path(&input), &uri];
                    tool("qemu-img", same)?.ok()?;
                }
                Ok(())
            };
            let outcome = rounds();
            done.store(true, Ordering::Relaxed);
            let faults = faults.join().expect("no panic")?;
            ensure!(faults > 0, "nothing was killed");
            outcome
        })?;
        cluster.verify("vol1", &content)?;
        let output = cluster.folder.join("out");
        tool("qemu-img", ["convert", "-f", "raw", "-O", "raw", &uri, path(&output)])?.ok()?;
        ensure!(fs::read(&output)? == content, "qemu-img read something else");
        Ok(())
    });
}

#[test]
fn a_volume_is_seen_alike_over_iscsi_and_nbd_and_ends_when_it_is_unmapped() {
    case(|| {
        let portal = Portal::start(&["vol1:32MiB"], "ram:1GiB")?;
        let (uri, input) = (portal.uri("vol1")?, portal.cluster.folder.join("in"));
        let content = content(32 * MIB as usize);
        portal.cluster.fill("vol1", &content)?;
        fs::write(&input, &content)?;
        let compare = ["compare", "-f", "raw", "-F", "raw", path(&input), &uri];
        tool("qemu-img", compare)?.ok()?;
        portal.cluster.say("volume map vol1 --sdc sdc --only")?.ok()?;
        portal.cluster.say("volume unmap vol1 --sdc sdc")?.ok()?;
        let gone = tool("iscsi-readcapacity16", ["-s", &uri])?;
        ensure!(gone.code != 0, "an unmapped volume was served: {}", gone.stdout);
        portal.cluster.say("volume map vol1 --sdc sdc")?.ok()?;
        tool("qemu-img", compare)?.ok()?;
        Ok(())
    });
}

#[test]
fn hosts_without_the_right_secret_are_refused() {
    case(|| {
        let portal = Portal::start(&["vol1:32MiB"], "file:1GiB")?;
        let (cluster, uri) = (&portal.cluster, portal.uri("vol1")?);
        let secrets = cluster.folder.join("secrets.toml");
        let host = "host = { user = \"db1\", secret = \"secretsecret\" }\n";
        fs::write(
            &secrets,
            format!("{host}target = {{ user = \"t\", secret = \"othersecret1\" }}"),
        )?;
        fs::set_permissions(&secrets, fs::Permissions::from_mode(0o640))?;
        let config = cluster.file("config/sdc.toml");
        let text = fs::read_to_string(&config)?;
        fs::write(&config, format!("{text}iscsi_secrets = {:?}\n", path(&secrets)))?;
        let run =
            |code: i32| gabion(["sdc", "run", "--config", path(&config)])?.fails(code, &["0600"]);
        cluster.kill("sdc")?;
        run(1)?;
        fs::set_permissions(&secrets, fs::Permissions::from_mode(0o600))?;
        cluster.say("sdc start")?.ok()?;
        let with = |who: &str, more: &str| -> Result<i32> {
            let uri = uri.replace("iscsi://", &format!("iscsi://{who}")) + more;
            Ok(tool("iscsi-readcapacity16", ["-s", &uri])?.code)
        };
        wait("the SDC serves", secs(20), || {
            Ok((with("db1%secretsecret@", "")? == 0).then_some(()))
        })?;
        ensure!(with("", "")? != 0, "a host without a secret was let in");
        ensure!(with("db1%secretsecreT@", "")? != 0, "a wrong secret was taken");
        ensure!(with("db2%secretsecret@", "")? != 0, "a wrong name was taken");
        let own = |secret: &str| format!("?target_user=t&target_password={secret}");
        ensure!(with("db1%secretsecret@", &own("othersecret1"))? == 0, "mutual CHAP failed");
        ensure!(with("db1%secretsecret@", &own("othersecret2"))? != 0, "libiscsi took a wrong one");
        // A host with a secret of its own has to show that one.
        let hosts =
            "[hosts]\n\"iqn.2026-11.test:b\" = { user = \"b\", secret = \"b's own secret\" }\n";
        fs::write(&secrets, format!("{host}{hosts}"))?;
        cluster.kill("sdc")?;
        cluster.say("sdc start")?.ok()?;
        let as_host = |name: &str, who: &str| -> Result<i32> {
            let uri = uri.replace("iscsi://", &format!("iscsi://{who}"));
            Ok(tool("iscsi-readcapacity16", ["-s", "-i", name, &uri])?.code)
        };
        let (a, b) = ("iqn.2026-11.test:a", "iqn.2026-11.test:b");
        wait("the SDC serves", secs(20), || {
            Ok((as_host(a, "db1%secretsecret@")? == 0).then_some(()))
        })?;
        ensure!(as_host(b, "b%b's own secret@")? == 0, "its own secret was not taken");
        ensure!(as_host(b, "db1%secretsecret@")? != 0, "the secret of the others was taken");
        ensure!(as_host(a, "b%b's own secret@")? != 0, "the secret of another host was taken");
        Ok(())
    });
}

/// One outcome of a test of `iscsi-test-cu`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Passed,
    Skipped,
    Failed,
}

/// Reads the outcomes of `iscsi-test-cu -v`: `Suite: S` and `Test: T` begin a test, and `passed`
/// or `FAILED` ends it. What is said after that, until the next test, belongs to none.
fn outcomes(printed: &str) -> Vec<(String, Outcome)> {
    let (mut suite, mut found) = ("", Vec::<(String, Outcome)>::new());
    let mut runs = false;
    for line in printed.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("Suite: ") {
            suite = name;
        } else if let Some(name) = line.strip_prefix("Test: ") {
            let name = name.split(' ').next().unwrap_or_default();
            found.push((format!("{suite}.{name}"), Outcome::Passed));
            runs = true;
        }
        let Some((_, outcome)) = found.last_mut().filter(|_| runs) else { continue };
        let (said, passed) = line.split_once("passed").map_or((line, false), |(a, _)| (a, true));
        if said.contains("[SKIPPED]") {
            *outcome = Outcome::Skipped;
        }
        if said.ends_with("FAILED") {
            *outcome = Outcome::Failed;
        }
        runs = !passed && !said.ends_with("FAILED");
    }
    found
}

/// The least number of tests that pass. The others test what a target may leave out.
const PASSED: usize = 170;

/// Tests that can't pass where a physical block has several sectors, each with the reason.
const IMPOSSIBLE: &[(&str, &str)] = &[(
    "GetLBAStatus.UnmapSingle",
    "it asks for the state of sector i + 1, and wants an answer that begins at the next block",
)];

/// Suites run one by one, so that one which leaves a session in a bad state does not harm the next.
fn run_suite(sectors: &'static str, impossible: &[(&str, &str)]) {
    case(|| {
        let arguments = ["--iscsi-sectors", sectors];
        let portal = Portal::with(&["vol1:512MiB"], "ram:1GiB", &arguments)?;
        let uri = portal.uri("vol1")?;
        let listed = tool("iscsi-test-cu", ["-l"])?.stdout;
        let suites = listed.lines().map(str::trim).filter_map(|line| line.strip_prefix("ALL."));
        let mut all = Vec::new();
        for suite in suites.filter(|suite| !suite.contains('.')) {
            let ran = tool("iscsi-test-cu", ["-d", "-v", "-t", &format!("ALL.{suite}"), &uri])?;
            let found = outcomes(&ran.stdout);
            let possible = |name: &str| impossible.iter().all(|(other, _)| *other != name);
            let failed = |(name, outcome): &&(String, Outcome)| {
                *outcome == Outcome::Failed && possible(name)
            };
            if let Some((name, _)) = found.iter().find(failed) {
                bail!("{name} failed\n{}\n{}", ran.stdout, ran.stderr);
            }
            all.extend(found);
        }
        let passed = all.iter().filter(|(_, outcome)| *outcome == Outcome::Passed).count();
        ensure!(passed >= PASSED, "only {passed} of {} passed: {all:?}", all.len());
        let status = portal.cluster.status()?;
        ensure!(status["state"] == "healthy", "{status:#}");
        Ok(())
    });
}

#[test]
fn the_suite_of_libiscsi_passes() {
    run_suite("512e", IMPOSSIBLE);
}

#[test]
fn the_suite_of_libiscsi_passes_with_physical_blocks_of_512_bytes() {
    run_suite("512n", &[]);
}

#[test]
fn sectors_have_the_size_that_was_chosen() {
    case(|| {
        let portal = Portal::with(&["vol1:32MiB"], "file:1GiB", &["--iscsi-sectors", "4kn"])?;
        let size = || -> Result<String> {
            let ran = tool("iscsi-readcapacity16", [portal.uri("vol1")?])?.ok()?;
            let line = ran.lines().find(|line| line.starts_with("LOGICAL BLOCK LENGTH"));
            Ok(line.with_context(|| format!("no size in {ran}"))?.trim().to_owned())
        };
        ensure!(size()?.ends_with(":4096"), "{}", size()?);
        let (input, uri) = (portal.cluster.folder.join("in"), portal.uri("vol1")?);
        let content = content(32 * MIB as usize);
        fs::write(&input, &content)?;
        tool("qemu-img", ["convert", "-n", "-f", "raw", "-O", "raw", path(&input), &uri])?.ok()?;
        portal.cluster.verify("vol1", &content)?;
        Ok(())
    });
}

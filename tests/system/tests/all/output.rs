//! Output without a reader: commands end normally and silently, and the cluster continues.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use system::run::binary;
use system::{Cluster, Options, case};

/// Runs a command that prints to `stdout`, and returns the result.
fn prints_to(stdout: impl Into<Stdio>, cluster: &Cluster, args: &str) -> Result<Output> {
    let mut command = Command::new(binary());
    command.args(args.split(' ')).args(["--dir", cluster.dir()]);
    Ok(command
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(Stdio::piped())
        .spawn()?
        .wait_with_output()?)
}

#[test]
fn a_closed_pipe_ends_a_command_without_a_word_and_a_full_disk_is_told() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let running = cluster.running();
        for args in ["status", "status --json", "device list --json", "volume list", "top --json"] {
            let (reader, writer) = std::io::pipe()?;
            drop(reader);
            let ran = prints_to(writer, &cluster, args)?;
            let said = String::from_utf8_lossy(&ran.stderr);
            ensure!(ran.status.signal() == Some(Signal::PIPE.as_raw()), "{args}: {}", ran.status);
            ensure!(said.is_empty(), "{args}: {said}");
        }
        let ran = prints_to(File::create("/dev/full")?, &cluster, "status")?;
        let said = String::from_utf8_lossy(&ran.stderr);
        ensure!(ran.status.code() == Some(1) && said.contains("No space left"), "{said}");
        ensure!(cluster.running() == running, "a process has died");
        Ok(())
    });
}

#[test]
fn an_order_prints_the_object_that_it_changed_and_show_prints_the_same() {
    case(|| {
        let cluster = Cluster::start(&Options::default())?;
        let said = |args: &str| -> Result<String> {
            let ran = prints_to(Stdio::piped(), &cluster, args)?;
            ensure!(ran.status.success(), "{args}: {}", String::from_utf8_lossy(&ran.stderr));
            Ok(String::from_utf8(ran.stdout)?)
        };
        let json = |args: &str| -> Result<Value> {
            serde_json::from_str(&said(args)?).with_context(|| args.to_owned())
        };
        let made = json("volume create db1 64MiB --json")?;
        ensure!(made["name"] == "db1" && made["size_bytes"] == 64 << 20, "{made:#}");
        ensure!(made["id"] == json("volume show db1 --json")?["id"], "{made:#}");
        let grown = json("volume resize db1 128MiB --json")?;
        ensure!(grown["size_bytes"] == 128 << 20, "{grown:#}");
        let mapped = json("volume map db1 --sdc sdc --only --json")?;
        ensure!(mapped["mapped"][0]["sdc"] == "sdc", "{mapped:#}");
        ensure!(json("volume rename db1 db2 --json")?["name"] == "db2", "no new name");
        let gone = json("volume delete db2 --yes --unmap --json")?;
        ensure!(gone["removed"] == "db2" && gone["kind"] == "volume", "{gone:#}");

        let pool = json("pool set default --spare 21 --json")?;
        ensure!(
            pool["spare_percent"] == 21 && pool == json("pool show default --json")?,
            "{pool:#}"
        );
        ensure!(json("domain create east --json")?["name"] == "east", "no domain");
        ensure!(json("domain remove east --json")?["removed"] == "east", "the domain stays");
        ensure!(json("system rename lab --json")?["name"] == "lab", "no name");
        ensure!(json("sds show 2 --json")?["name"] == "sds2", "another server");
        ensure!(json("sdc show sdc --json")?["state"] == "up", "another client");
        ensure!(json("mdm show mdm --json")?["leads"] == true, "another MDM");
        let device = json("device show 1 --json")?;
        ensure!(device["id"] == 1 && device["sds"].is_string(), "{device:#}");
        ensure!(said("sds show sds1")?.contains("127.0.0.1:"), "no address for people");

        let ran = prints_to(Stdio::piped(), &cluster, "volume show other")?;
        let error = String::from_utf8_lossy(&ran.stderr);
        ensure!(error.contains("no volume `other`: `gabion volume list` lists them"), "{error}");
        Ok(())
    });
}

//! Output without a reader: commands end normally and silently, and the cluster continues.

use anyhow::{Result, ensure};
use rustix::process::Signal;
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

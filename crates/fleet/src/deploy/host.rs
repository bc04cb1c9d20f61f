//! A host that runs commands: over SSH, or in a network namespace of this machine.
//!
//! A command is a shell script on standard input, so that nothing has to be quoted twice. The
//! content of a file comes on standard input, too.

use super::topology::Host;
use anyhow::{Context, Result, bail};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Connect timeout of SSH in seconds.
const SSH_PATIENCE: u32 = 10;

/// Returns a command that makes a folder and its parents durable. An old `sync` takes no arguments,
/// and then everything is flushed.
pub(crate) fn flush_above(folder: &Path) -> String {
    let all: Vec<String> = folder.ancestors().map(|f| format!("'{}'", f.display())).collect();
    format!("(sync {} || sync)", all.join(" "))
}

/// How to reach a host.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// Log in as this user.
    Ssh { user: String },
    /// Run in one of this cluster's namespaces, whose names begin with this prefix.
    Namespace { prefix: String },
}

/// A host, and how to reach it.
#[derive(Debug)]
pub(crate) struct Remote<'a> {
    pub host: &'a Host,
    pub way: &'a Way,
}

impl Remote<'_> {
    /// Runs a script and returns its output. An error has the last line of its stderr.
    pub(crate) fn run(&self, script: &str) -> Result<String> {
        self.pipe("sh -eu -s", script.as_bytes())
    }

    /// Writes a file atomically, and makes its folder. The file survives a power cut of the host
    /// when this returns. While it is being written, only its owner can read it.
    pub(crate) fn put(&self, path: &Path, content: &[u8], mode: u32) -> Result<()> {
        let (folder, path) = (path.parent().unwrap_or(Path::new("/")), path.display());
        let command = format!(
            "mkdir -p '{}' && rm -f '{path}.new' && (umask 077 && cat > '{path}.new') && \
             chmod {mode:o} '{path}.new' && (sync '{path}.new' || sync) && \
             mv '{path}.new' '{path}' && {}",
            folder.display(),
            flush_above(folder),
        );
        self.pipe(&command, content).map(drop)
    }

    fn pipe(&self, line: &str, input: &[u8]) -> Result<String> {
        let mut command = self.command(line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().with_context(|| format!("can't start `{program}`"))?;
        // A failed write means that the command has ended early; its stderr says why.
        let _ = child.stdin.take().context("it has a standard input")?.write_all(input);
        let ended = child.wait_with_output()?;
        if !ended.status.success() {
            let said = String::from_utf8_lossy(&ended.stderr);
            let said = said.trim().lines().last().unwrap_or("it says nothing").to_owned();
            bail!("{}: {said}{}", self.host.name, self.hint(ended.status.code()));
        }
        Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
    }

    fn command(&self, line: &str) -> Command {
        match self.way {
            Way::Ssh { user } => {
                let program = std::env::var_os("GABION_SSH").unwrap_or_else(|| "ssh".into());
                let mut ssh = Command::new(program);
                ssh.args(["-o", "BatchMode=yes", "-o", &format!("ConnectTimeout={SSH_PATIENCE}")]);
                ssh.args(["-p", &self.host.ssh_port.to_string()]);
                ssh.arg(format!("{user}@{}", self.host.address)).arg(line);
                ssh
            }
            Way::Namespace { prefix } => {
                let mut inside = Command::new("ip");
                let name = format!("{prefix}{}", self.host.name);
                inside.args(["netns", "exec", &name, "sh", "-c", line]);
                inside
            }
        }
    }

    /// Returns advice for a host that could not be reached.
    fn hint(&self, code: Option<i32>) -> String {
        match self.way {
            Way::Ssh { user } if code == Some(255) => format!(
                ". Try `ssh -p {} {user}@{}`: it has to work without a password",
                self.host.ssh_port, self.host.address
            ),
            _ => String::new(),
        }
    }
}

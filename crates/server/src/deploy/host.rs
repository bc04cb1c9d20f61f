//! A host that commands run on: over SSH, or in a network namespace of this machine.
//!
//! A command is a shell script on standard input, so that nothing has to be quoted twice; a file is what comes there.

use super::topology::Host;
use anyhow::{Context, Result, bail};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// How long a host may take to answer at all, in seconds.
const SSH_PATIENCE: u32 = 10;

/// A command that makes a folder durable, and all that it lies in. An old `sync` takes no names, and flushes everything.
pub fn flush_above(folder: &Path) -> String {
    let all: Vec<String> = folder.ancestors().map(|f| format!("'{}'", f.display())).collect();
    format!("(sync {} || sync)", all.join(" "))
}

/// How a host is reached.
#[derive(Clone, Debug)]
pub enum Way {
    /// Logs in as this user.
    Ssh { user: String },
    /// Runs in a namespace of this cluster's, which begins with this.
    Namespace { prefix: String },
}

/// A host, and how it is reached.
#[derive(Debug)]
pub struct Remote<'a> {
    pub host: &'a Host,
    pub way: &'a Way,
}

impl Remote<'_> {
    /// Runs a script; what it printed. An error has what it complained about.
    pub fn run(&self, script: &str) -> Result<String> {
        self.pipe("sh -eu -s", script.as_bytes())
    }

    /// Writes a file, at once and whole, with its folder. It survives a power cut of the host when this returns.
    pub fn put(&self, path: &Path, content: &[u8], mode: u32) -> Result<()> {
        let (folder, path) = (path.parent().unwrap_or(Path::new("/")), path.display());
        let command = format!(
            "mkdir -p '{}' && cat > '{path}.new' && chmod {mode:o} '{path}.new' && \
             (sync '{path}.new' || sync) && mv '{path}.new' '{path}' && {}",
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
        // Who does not read on has failed, and says why.
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

    /// What to try when it could not be reached.
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

//! QEMU's monitor (QMP): what a test tells a virtual machine from the outside.

use crate::{secs, wait};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A connection to a monitor.
#[derive(Debug)]
pub struct Monitor(BufReader<UnixStream>);

impl Monitor {
    /// Connects, as soon as QEMU listens.
    pub fn connect(to: &Path) -> Result<Monitor> {
        let stream = wait("QEMU has a monitor", secs(20), || Ok(UnixStream::connect(to).ok()))?;
        stream.set_read_timeout(Some(secs(60)))?;
        let mut monitor = Monitor(BufReader::new(stream));
        ensure!(monitor.message()?.get("QMP").is_some(), "no greeting");
        monitor.ask("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    fn message(&mut self) -> Result<Value> {
        let mut line = String::new();
        ensure!(self.0.read_line(&mut line)? > 0, "QEMU has ended");
        serde_json::from_str(&line).with_context(|| line)
    }

    /// Executes a command, and returns its result.
    pub fn ask(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let order = json!({ "execute": command, "arguments": arguments });
        self.0.get_mut().write_all(format!("{order}\n").as_bytes())?;
        loop {
            // Others are events.
            match self.message()? {
                Value::Object(mut answer) if answer.contains_key("return") => {
                    return Ok(answer.remove("return").expect("it was just seen"));
                }
                answer if answer.get("error").is_some() => bail!("{command}: {answer}"),
                _ => {}
            }
        }
    }

    /// Begins a migration. Returns when all of the memory has been copied once: from now on, only
    /// what changes is copied. The machine has to write to its memory all the time until then,
    /// because QEMU ends the migration when hardly anything is left. After that, the migration is
    /// so slow that it does not end before [`Monitor::may_stop`].
    pub fn migrate(&mut self, to: &Path) -> Result<()> {
        let limits = json!({ "downtime-limit": 1, "max-bandwidth": 128 << 20 });
        self.ask("migrate-set-parameters", limits)?;
        self.ask("migrate", json!({ "uri": format!("unix:{}", to.display()) }))?;
        wait("the memory is copied once", secs(60), || {
            let now = self.ask("query-migrate", json!({}))?;
            let passes = now.pointer("/ram/dirty-sync-count").and_then(Value::as_u64);
            ensure!(now["status"] == "active" || now["status"] == "setup", "{now}");
            Ok((passes.unwrap_or(0) >= 3).then_some(()))
        })?;
        self.ask("migrate-set-parameters", json!({ "max-bandwidth": 1 << 20 })).map(drop)
    }

    /// Lets a migration end, however long the machine stands still for that.
    pub fn may_stop(&mut self) -> Result<()> {
        let limits = json!({ "downtime-limit": 20_000, "max-bandwidth": 1 << 30 });
        self.ask("migrate-set-parameters", limits).map(drop)
    }

    /// Waits for a state of the migration.
    pub fn wait_migration(&mut self, state: &str, limit: Duration) -> Result<()> {
        wait(&format!("the migration is {state}"), limit, || {
            let now = self.ask("query-migrate", json!({}))?;
            ensure!(now["status"] == state, "{now}");
            Ok(Some(()))
        })
    }
}

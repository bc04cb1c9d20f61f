//! Costs of a scale run, and their bounds.

use anyhow::{Result, ensure};
use base::Limits;
use std::fmt;
use std::time::Duration;

/// Longest time from a new map at the MDM until the last server has it.
const CONVERGENCE: Duration = Duration::from_millis(100);
/// Highest number of bytes of the MDM's state per device, and per group.
const DEVICE_BYTES: usize = 160;
const GROUP_BYTES: usize = 36;

/// Cost of one server's failure. Times are virtual.
#[derive(Clone, Debug, Default)]
pub struct Failure {
    /// From the failure until the MDM has declared all devices of the server down.
    pub noticed: Duration,
    /// Entries of the log in that time.
    pub entries: u64,
    /// Commands in these entries.
    pub commands: u64,
    /// Devices that share groups with the failed ones. Each may report the failure by itself
    /// at the same moment.
    pub partners: usize,
    /// From the notice until the last server has that map.
    pub converged: Duration,
    /// Number of device processes that are left.
    pub nodes: usize,
    /// Frames that the MDM sent to all of these, from the failure until all had the map.
    pub frames: u64,
    /// Bytes of these frames.
    pub bytes: u64,
    /// Groups that lost a copy.
    pub groups: usize,
    /// From the failure until all copies are complete again.
    pub rebuilt: Duration,
    /// Entries of the log from the notice until then.
    pub rebuild_entries: u64,
}

/// Costs of a run. Times are virtual.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Time until all devices were registered.
    pub registered: Duration,
    /// Entries of the log in that time.
    pub registered_entries: u64,
    /// From the order of the first volume to the answer.
    pub created: Duration,
    /// From that order until every server had the map.
    pub known: Duration,
    /// Number of devices.
    pub devices: usize,
    /// Number of groups in all domains.
    pub groups: usize,
    /// Bytes of the MDM's state with the devices only.
    pub empty_bytes: usize,
    /// Bytes of the MDM's state with groups and volumes.
    pub bytes: usize,
    /// Highest number of groups in the map of one device's process.
    pub map_groups: usize,
    /// Cost of the death of a server with all its devices.
    pub crash: Failure,
    /// Cost of cutting off another server.
    pub silence: Failure,
    /// Steps of the world.
    pub steps: u64,
}

impl Failure {
    fn check(&self, what: &str) -> Result<()> {
        let (nodes, groups) = (self.nodes as u64, self.groups as u64);
        let one = self.entries == 1 && (1..=1 + self.partners as u64).contains(&self.commands);
        ensure!(one, "{what}: {} entries, {} commands", self.entries, self.commands);
        ensure!(self.converged <= CONVERGENCE, "{what}: known after {:?}", self.converged);
        // Each process gets each new map once; two frames each are allowed.
        let frames = nodes * 2;
        ensure!(self.frames <= frames, "{what}: {} frames for {nodes}", self.frames);
        let bytes = frames * 200 + nodes * groups * 2 * GROUP_BYTES as u64;
        ensure!(self.bytes <= bytes, "{what}: {} bytes for {nodes}", self.bytes);
        let few = 64 + groups / 8;
        ensure!(self.rebuild_entries <= few, "{what}: {} entries to rebuild", self.rebuild_entries);
        Ok(())
    }
}

impl Figures {
    /// Fails if a cost is above its bound.
    pub(super) fn check(&self) -> Result<()> {
        let each = self.empty_bytes / self.devices;
        ensure!(each <= DEVICE_BYTES, "{each} bytes of state for a device");
        let each = (self.bytes - self.empty_bytes) / self.groups;
        ensure!(each <= GROUP_BYTES, "{each} bytes of state for a group");
        let (few, entries) = (20 + self.devices as u64 / 10, self.registered_entries);
        ensure!(entries <= few, "{entries} entries to register {}", self.devices);
        let own = 2 * Limits::SHIPPED.groups_per_device as usize;
        ensure!(self.map_groups <= own, "a server knows {} groups", self.map_groups);
        self.crash.check("a server dies")?;
        self.silence.check("a server is cut off")
    }

    fn rows(&self) -> Vec<(&'static str, f64)> {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let mut rows = vec![
            ("devices", self.devices as f64),
            ("groups", self.groups as f64),
            ("registered_ms", ms(self.registered)),
            ("registered_entries", self.registered_entries as f64),
            ("state_bytes", self.bytes as f64),
            ("state_bytes_per_device", self.empty_bytes as f64 / self.devices as f64),
            ("state_bytes_per_group", (self.bytes - self.empty_bytes) as f64 / self.groups as f64),
            ("volume_known_ms", ms(self.known)),
            ("map_groups_of_one_device", self.map_groups as f64),
        ];
        let crash = [
            "crash_noticed_ms",
            "crash_entries",
            "crash_commands",
            "crash_known_ms",
            "crash_frames",
            "crash_bytes",
            "crash_groups",
            "crash_rebuilt_ms",
            "crash_rebuild_entries",
        ];
        let silence = [
            "silence_noticed_ms",
            "silence_entries",
            "silence_commands",
            "silence_known_ms",
            "silence_frames",
            "silence_bytes",
            "silence_groups",
            "silence_rebuilt_ms",
            "silence_rebuild_entries",
        ];
        for (names, f) in [(crash, &self.crash), (silence, &self.silence)] {
            let values = [
                ms(f.noticed),
                f.entries as f64,
                f.commands as f64,
                ms(f.converged),
                f.frames as f64,
                f.bytes as f64,
                f.groups as f64,
                ms(f.rebuilt),
                f.rebuild_entries as f64,
            ];
            rows.extend(names.into_iter().zip(values));
        }
        rows
    }

    /// Formats the figures as a JSON object.
    pub fn json(&self) -> String {
        let rows = self.rows().into_iter().map(|(name, value)| format!("  \"{name}\": {value:.3}"));
        format!("{{\n{}\n}}", rows.collect::<Vec<String>>().join(",\n"))
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.rows() {
            writeln!(f, "{:<26}{value:>14.1}", name.replace('_', " "))?;
        }
        Ok(())
    }
}

//! What a scale run took, and what it may take.

use anyhow::{Result, ensure};
use base::Limits;
use std::fmt;
use std::time::Duration;

/// From a new map at the MDM to the last server that has it.
const CONVERGENCE: Duration = Duration::from_millis(100);
/// Bytes of the MDM's state, at most, for a device and for a group.
const DEVICE_BYTES: usize = 160;
const GROUP_BYTES: usize = 36;

/// What one server's failure took. Times are virtual.
#[derive(Clone, Debug, Default)]
pub struct Failure {
    /// From the failure until the MDM had taken all devices of the server out.
    pub noticed: Duration,
    /// Entries of the log in that time.
    pub entries: u64,
    /// Commands in them.
    pub commands: u64,
    /// Devices that share groups with what failed: each may notice by itself, in the same moment, that nobody answers there.
    pub partners: usize,
    /// From then on until the last server had that map.
    pub converged: Duration,
    /// Devices' processes that are left.
    pub nodes: usize,
    /// Frames that the MDM sent from the failure until then, to all of these.
    pub frames: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Groups that lost a copy.
    pub groups: usize,
    /// From the failure until all copies were there again.
    pub rebuilt: Duration,
    /// Entries of the log from the notice until then.
    pub rebuild_entries: u64,
}

/// What a run took. Times are virtual.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Until all devices were registered.
    pub registered: Duration,
    /// Entries of the log that this took.
    pub registered_entries: u64,
    /// From the order of the first volume to its answer.
    pub created: Duration,
    /// From that order until every server had the map.
    pub known: Duration,
    /// Devices.
    pub devices: usize,
    /// Groups, of all domains.
    pub groups: usize,
    /// Bytes of the MDM's state with the devices only.
    pub empty_bytes: usize,
    /// Bytes of it with groups and volumes.
    pub bytes: usize,
    /// Groups that the map of one device's process has, at most.
    pub map_groups: usize,
    /// A server with all its devices dies.
    pub crash: Failure,
    /// Another one is cut off.
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
        // Each server gets each new map once.
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
    /// Whether it took no more than it may.
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

    /// The figures as a JSON object.
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

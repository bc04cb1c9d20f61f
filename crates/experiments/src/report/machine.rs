//! The machine of a run.

use serde::Serialize;
use std::fs;

/// What is written down about the machine.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub cores: usize,
    pub processor: String,
    pub virtual_machine: bool,
    pub memory_bytes: u64,
    pub kernel: String,
    /// Load average over 1, 5 and 15 minutes when the run began.
    pub load_average: String,
    /// How Gabion talks to the kernel.
    pub backend: String,
}

impl Machine {
    /// Describes this machine. Values that the kernel does not report are empty.
    pub(crate) fn this(backend: rt::Backend) -> Machine {
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default().trim().to_owned();
        let cpu = read("/proc/cpuinfo");
        let field = |name: &str| {
            let line = cpu.lines().find(|l| l.starts_with(name));
            line.and_then(|l| l.split_once(':')).map_or("", |(_, value)| value.trim())
        };
        let memory = read("/proc/meminfo");
        let kib = memory.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok());
        Machine {
            cores: std::thread::available_parallelism().map_or(0, Into::into),
            processor: field("model name").to_owned(),
            virtual_machine: field("flags").split(' ').any(|f| f == "hypervisor"),
            memory_bytes: kib.unwrap_or(0) << 10,
            kernel: read("/proc/sys/kernel/osrelease"),
            load_average: read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
            backend: backend.to_string(),
        }
    }

    /// Returns the description as one sentence.
    pub(crate) fn sentence(&self) -> String {
        let kind = if self.virtual_machine { "a virtual machine with" } else { "a machine with" };
        format!(
            "Gabion {} on {kind} {} cores ({}, {:.1} GiB of memory, Linux {}, {}), load average {} at \
             the beginning.",
            env!("CARGO_PKG_VERSION"),
            self.cores,
            self.processor,
            self.memory_bytes as f64 / base::GIB as f64,
            self.kernel,
            self.backend,
            self.load_average
        )
    }
}

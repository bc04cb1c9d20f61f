//! Behaviour of the simulated hardware: delays, batch sizes, and faults that need no action of
//! their own because they may strike any frame or operation. Part of a plan.

use base::Prng;
use seam::DiskError;
use std::time::Duration;

/// Parameters of the hardware. The suffix is the unit; ppm are chances in millionths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weather {
    /// Lowest travel time of a frame.
    pub net_us: u32,
    /// Largest random addition to the travel time.
    pub net_jitter_us: u32,
    /// Share of frames with an extra delay.
    pub net_tail_ppm: u32,
    /// Largest extra delay of these frames.
    pub net_tail_ms: u32,
    /// Lowest duration of a device operation.
    pub disk_us: u32,
    /// Largest random addition to that duration.
    pub disk_jitter_us: u32,
    /// Share of device operations with an extra delay.
    pub disk_tail_ppm: u32,
    /// Largest extra delay of these operations.
    pub disk_tail_ms: u32,
    /// Share of operations on data servers' files that hang for 2 to 6 s.
    pub disk_stuck_ppm: u32,
    /// Share of reads from data servers' files that fail.
    pub disk_read_ppm: u32,
    /// Share of writes and flushes of data servers' files that fail.
    pub disk_write_ppm: u32,
    /// Number of heartbeats for which free space of a file has to be left over before a data server
    /// gives it back (`Tuning::holes`); 0: it gives nothing back.
    pub holes: u32,
    /// Largest extra duration of such an operation.
    pub hole_ms: u32,
    /// Share of such operations that fail, or that the file system does not support.
    pub hole_fail_ppm: u32,
    /// Share of operations on MDMs' logs that hang for 0.2 to 3 s.
    pub log_stuck_ppm: u32,
    /// Share of writes and flushes of MDMs' logs that fail.
    pub log_fail_ppm: u32,
    /// Longest delay of a wake-up of a process.
    pub run_us: u32,
    /// Share of wake-ups with an extra delay.
    pub run_tail_ppm: u32,
    /// Largest extra delay of these wake-ups.
    pub run_tail_ms: u32,
    /// Highest number of events in a batch.
    pub batch: u32,
    /// Share of frames that arrive in pieces.
    pub split_ppm: u32,
    /// Share of frames that arrive damaged.
    pub flip_ppm: u32,
    /// Share of frames after which their connection breaks.
    pub reset_ppm: u32,
    /// Highest initial drift of clocks, fast or slow.
    pub drift_ppm: u32,
    /// Shortest time after which TCP gives up a peer that does not acknowledge; at
    /// most three times this.
    pub tcp_ms: u32,
    /// 1: the nodes' own fault sites are active.
    pub chaos: u32,
}

macro_rules! fields {
    ($($field:ident),*) => {
        /// Returns names and values, for plan files.
        pub fn fields(&self) -> Vec<(&'static str, u32)> {
            vec![$((stringify!($field), self.$field)),*]
        }
        /// Sets a field by name; returns false when there is no such field.
        pub fn set(&mut self, name: &str, value: u32) -> bool {
            match name {
                $(stringify!($field) => self.$field = value,)*
                _ => return false,
            }
            true
        }
    };
}

impl Weather {
    fields!(
        net_us,
        net_jitter_us,
        net_tail_ppm,
        net_tail_ms,
        disk_us,
        disk_jitter_us,
        disk_tail_ppm,
        disk_tail_ms,
        disk_stuck_ppm,
        disk_read_ppm,
        disk_write_ppm,
        holes,
        hole_ms,
        hole_fail_ppm,
        log_stuck_ppm,
        log_fail_ppm,
        run_us,
        run_tail_ppm,
        run_tail_ms,
        batch,
        split_ppm,
        flip_ppm,
        reset_ppm,
        drift_ppm,
        tcp_ms,
        chaos
    );

    /// Fair weather: no faults, short delays, exact clocks.
    pub const FAIR: Weather = Weather {
        net_us: 30,
        net_jitter_us: 50,
        net_tail_ppm: 0,
        net_tail_ms: 0,
        disk_us: 20,
        disk_jitter_us: 60,
        disk_tail_ppm: 0,
        disk_tail_ms: 0,
        disk_stuck_ppm: 0,
        disk_read_ppm: 0,
        disk_write_ppm: 0,
        holes: 0,
        hole_ms: 0,
        hole_fail_ppm: 0,
        log_stuck_ppm: 0,
        log_fail_ppm: 0,
        run_us: 20,
        run_tail_ppm: 0,
        run_tail_ms: 0,
        batch: 8,
        split_ppm: 0,
        flip_ppm: 0,
        reset_ppm: 0,
        drift_ppm: 0,
        tcp_ms: 3000,
        chaos: 0,
    };

    /// Returns the weather of phase 2: no faults, and delays that let the cluster settle.
    pub fn calmed(&self) -> Weather {
        Weather {
            net_tail_ppm: self.net_tail_ppm.min(1000),
            net_tail_ms: self.net_tail_ms.min(20),
            disk_tail_ppm: self.disk_tail_ppm.min(1000),
            disk_tail_ms: self.disk_tail_ms.min(20),
            run_tail_ppm: self.run_tail_ppm.min(1000),
            run_tail_ms: self.run_tail_ms.min(20),
            disk_stuck_ppm: 0,
            disk_read_ppm: 0,
            disk_write_ppm: 0,
            hole_ms: self.hole_ms.min(20),
            hole_fail_ppm: 0,
            log_stuck_ppm: 0,
            log_fail_ppm: 0,
            flip_ppm: 0,
            reset_ppm: 0,
            ..self.clone()
        }
    }

    /// Draws the travel time of a frame.
    pub fn net(&self, prng: &mut Prng) -> Duration {
        delay(prng, self.net_us, self.net_jitter_us, self.net_tail_ppm, self.net_tail_ms)
    }

    /// Draws the duration of a device operation.
    pub fn disk(&self, prng: &mut Prng) -> Duration {
        delay(prng, self.disk_us, self.disk_jitter_us, self.disk_tail_ppm, self.disk_tail_ms)
    }

    /// Draws the time that an operation on a data server's file hangs in addition.
    pub fn stuck(&self, prng: &mut Prng) -> Duration {
        let ms = if hit(prng, self.disk_stuck_ppm) { prng.range(2000, 6000) } else { 0 };
        Duration::from_millis(ms)
    }

    /// Draws whether and how a read of a data server's file fails.
    pub fn read_fails(&self, prng: &mut Prng) -> Option<DiskError> {
        hit(prng, self.disk_read_ppm).then_some(DiskError::Io)
    }

    /// Draws whether and how a write or flush of a data server's file fails.
    pub fn write_fails(&self, prng: &mut Prng) -> Option<DiskError> {
        let error =
            |prng: &mut Prng| *prng.pick(&[DiskError::Io, DiskError::Io, DiskError::NoSpace]);
        hit(prng, self.disk_write_ppm).then(|| error(prng))
    }

    /// Draws the time by which giving space back takes longer.
    pub fn hole(&self, prng: &mut Prng) -> Duration {
        Duration::from_micros(prng.below(u64::from(self.hole_ms) * 1000 + 1))
    }

    /// Draws whether and how that fails.
    pub fn hole_fails(&self, prng: &mut Prng) -> Option<DiskError> {
        let error = |prng: &mut Prng| *prng.pick(&[DiskError::Io, DiskError::Unsupported]);
        hit(prng, self.hole_fail_ppm).then(|| error(prng))
    }

    /// Draws the time that an operation on an MDM's log hangs in addition.
    pub fn log_stuck(&self, prng: &mut Prng) -> Duration {
        let ms = if hit(prng, self.log_stuck_ppm) { prng.range(200, 3000) } else { 0 };
        Duration::from_millis(ms)
    }

    /// Draws whether and how a write or flush of an MDM's log fails.
    pub fn log_fails(&self, prng: &mut Prng) -> Option<DiskError> {
        hit(prng, self.log_fail_ppm).then_some(DiskError::Io)
    }

    /// Draws the delay of a wake-up of a process.
    pub fn run(&self, prng: &mut Prng) -> Duration {
        delay(prng, 0, self.run_us, self.run_tail_ppm, self.run_tail_ms)
    }
}

fn delay(prng: &mut Prng, base_us: u32, jitter_us: u32, tail_ppm: u32, tail_ms: u32) -> Duration {
    let mut ns = u64::from(base_us) * 1000 + prng.below(u64::from(jitter_us) * 1000 + 1);
    if hit(prng, tail_ppm) {
        ns += prng.below(u64::from(tail_ms) * 1_000_000 + 1);
    }
    Duration::from_nanos(ns)
}

/// Returns true with a chance of `ppm` millionths. Draws nothing when `ppm` is 0.
pub fn hit(prng: &mut Prng, ppm: u32) -> bool {
    ppm > 0 && prng.below(1_000_000) < u64::from(ppm)
}

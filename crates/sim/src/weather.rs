//! How the simulated hardware behaves: delays, batches, and the faults that need no action of their
//! own because they may strike at any frame. Part of a plan.

use base::Prng;
use seam::DiskError;
use std::time::Duration;

/// The knobs. Times are in the named unit, chances in millionths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weather {
    /// Every frame travels at least this long.
    pub net_us: u32,
    /// More, up to this.
    pub net_jitter_us: u32,
    /// How many frames take a slow way,
    pub net_tail_ppm: u32,
    /// of up to this.
    pub net_tail_ms: u32,
    /// Every device operation takes at least this long.
    pub disk_us: u32,
    /// More, up to this.
    pub disk_jitter_us: u32,
    /// How many device operations are slow,
    pub disk_tail_ppm: u32,
    /// up to this.
    pub disk_tail_ms: u32,
    /// How many operations of a data server's file get stuck: for 2 to 6 seconds.
    pub disk_stuck_ppm: u32,
    /// How many reads of a data server's file fail.
    pub disk_read_ppm: u32,
    /// How many writes and flushes of a data server's file fail.
    pub disk_write_ppm: u32,
    /// How many operations of an MDM's log get stuck: for 0.2 to 3 seconds.
    pub log_stuck_ppm: u32,
    /// How many writes and flushes of an MDM's log fail.
    pub log_fail_ppm: u32,
    /// How long a process takes to wake up, at most.
    pub run_us: u32,
    /// How many wake-ups are slow,
    pub run_tail_ppm: u32,
    /// up to this.
    pub run_tail_ms: u32,
    /// Events per batch, at most.
    pub batch: u32,
    /// How many frames arrive in pieces.
    pub split_ppm: u32,
    /// How many frames arrive damaged.
    pub flip_ppm: u32,
    /// How many frames are the last ones of their connection.
    pub reset_ppm: u32,
    /// How far clocks run fast or slow, at most.
    pub drift_ppm: u32,
    /// How long TCP waits for a peer that does not acknowledge, at least; at most three times that.
    pub tcp_ms: u32,
    /// 1: the nodes' own fault sites are live.
    pub chaos: u32,
}

macro_rules! fields {
    ($($field:ident),*) => {
        /// Names and values, for plan files.
        pub fn fields(&self) -> Vec<(&'static str, u32)> {
            vec![$((stringify!($field), self.$field)),*]
        }
        /// Sets a field by its name; false when there is none.
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

    /// A good day.
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

    /// The same place after the storm: no faults, and delays that let things settle.
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
            log_stuck_ppm: 0,
            log_fail_ppm: 0,
            flip_ppm: 0,
            reset_ppm: 0,
            ..self.clone()
        }
    }

    /// How long a frame travels.
    pub fn net(&self, prng: &mut Prng) -> Duration {
        delay(prng, self.net_us, self.net_jitter_us, self.net_tail_ppm, self.net_tail_ms)
    }

    /// How long a device operation takes.
    pub fn disk(&self, prng: &mut Prng) -> Duration {
        delay(prng, self.disk_us, self.disk_jitter_us, self.disk_tail_ppm, self.disk_tail_ms)
    }

    /// How long an operation of a data server's file is stuck besides.
    pub fn stuck(&self, prng: &mut Prng) -> Duration {
        let ms = if hit(prng, self.disk_stuck_ppm) { prng.range(2000, 6000) } else { 0 };
        Duration::from_millis(ms)
    }

    /// How a read of a data server's file fails, if it does.
    pub fn read_fails(&self, prng: &mut Prng) -> Option<DiskError> {
        hit(prng, self.disk_read_ppm).then_some(DiskError::Io)
    }

    /// How a write or flush of a data server's file fails, if it does.
    pub fn write_fails(&self, prng: &mut Prng) -> Option<DiskError> {
        let error =
            |prng: &mut Prng| *prng.pick(&[DiskError::Io, DiskError::Io, DiskError::NoSpace]);
        hit(prng, self.disk_write_ppm).then(|| error(prng))
    }

    /// How long an operation of an MDM's log is stuck besides.
    pub fn log_stuck(&self, prng: &mut Prng) -> Duration {
        let ms = if hit(prng, self.log_stuck_ppm) { prng.range(200, 3000) } else { 0 };
        Duration::from_millis(ms)
    }

    /// How a write or flush of an MDM's log fails, if it does.
    pub fn log_fails(&self, prng: &mut Prng) -> Option<DiskError> {
        hit(prng, self.log_fail_ppm).then_some(DiskError::Io)
    }

    /// How long a process takes to wake up.
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

/// True with a chance of `ppm` millionths. Draws nothing when that is 0.
pub fn hit(prng: &mut Prng, ppm: u32) -> bool {
    ppm > 0 && prng.below(1_000_000) < u64::from(ppm)
}

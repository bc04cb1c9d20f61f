//! Random limits and weather for a plan.

use crate::weather::Weather;
use base::{Limits, Prng};
use std::time::Duration;

/// Draws the limits of the processes.
pub(super) fn limits(r: &mut Prng) -> Limits {
    let mut l = Limits::TEST_MIN;
    if r.chance(0.5) {
        let lease = r.range(150, 1000);
        let ms = Duration::from_millis;
        l.lease = ms(lease);
        l.grace = ms(lease * 5 / 4);
        l.beacon_every = ms(lease * r.range(20, 41) / 100);
        l.heartbeat_every = ms(lease / 5);
        l.suspect_after = ms(lease * r.range(80, 300) / 100);
        l.stuck_after = ms(r.range(20, 200));
        l.redial_max = ms(r.range(20, 500));
    }
    l.client_ops = r.range(1, 8) as u32;
    l.sdc_requests = r.range(12, 24) as u32;
    l.shard_ops = r.range(16, 64) as u32;
    l.groups_per_device = r.range(1, 4) as u32;
    l.stripe_width = r.range(1, 4) as u32;
    l.copies = r.range(1, 4) as u32;
    l.copy_bytes = *r.pick(&[4 << 10, 8 << 10, 64 << 10, 256 << 10]);
    l.mdm_log = *r.pick(&[4 << 10, 16 << 10, 64 << 10]);
    // Often about as long as a server is away; sometimes so long that no copy is ever rebuilt.
    let soon = Duration::from_millis(r.range(100, 3000));
    l.rebuild_after = if r.chance(0.8) { soon } else { Limits::SHIPPED.rebuild_after * 60 };
    l.moves = r.range(1, 16) as u32;
    l.moves_per_device = r.range(1, 4) as u32;
    l.moving_bytes = r.below(5) << 20;
    // These three draws belonged to limits that were removed. They keep later draws unchanged.
    let _ = [r.next_u64(), r.next_u64(), r.next_u64()];
    l.quarantine = Duration::from_millis(*r.pick(&[0, 0, 10, 30]));
    l
}

/// Draws the behaviour of the hardware.
pub(super) fn weather(r: &mut Prng) -> Weather {
    let mut w = Weather::FAIR;
    let mut sometimes = |p: f64, f: &mut dyn FnMut(&mut Weather, &mut Prng)| {
        if r.chance(p) {
            f(&mut w, r);
        }
    };
    sometimes(0.5, &mut |w, r| {
        w.net_us = r.range(5, 500) as u32;
        w.net_jitter_us = r.range(0, 2000) as u32;
    });
    sometimes(0.4, &mut |w, r| {
        w.net_tail_ppm = r.range(100, 50_000) as u32;
        w.net_tail_ms = r.range(1, 300) as u32;
    });
    sometimes(0.5, &mut |w, r| {
        w.disk_us = r.range(1, 300) as u32;
        w.disk_jitter_us = r.range(0, 5000) as u32;
    });
    sometimes(0.4, &mut |w, r| {
        w.disk_tail_ppm = r.range(100, 50_000) as u32;
        w.disk_tail_ms = r.range(1, 300) as u32;
    });
    sometimes(0.1, &mut |w, r| w.disk_stuck_ppm = r.range(10, 500) as u32);
    sometimes(0.15, &mut |w, r| w.disk_read_ppm = r.range(10, 3000) as u32);
    sometimes(0.1, &mut |w, r| w.disk_write_ppm = r.range(10, 300) as u32);
    sometimes(0.3, &mut |w, r| {
        w.run_tail_ppm = r.range(100, 20_000) as u32;
        w.run_tail_ms = r.range(1, 100) as u32;
    });
    sometimes(0.5, &mut |w, r| w.batch = r.range(1, 40) as u32);
    sometimes(0.3, &mut |w, r| w.split_ppm = r.range(1000, 300_000) as u32);
    sometimes(0.3, &mut |w, r| w.flip_ppm = r.range(50, 2000) as u32);
    sometimes(0.3, &mut |w, r| w.reset_ppm = r.range(50, 2000) as u32);
    sometimes(0.7, &mut |w, r| w.drift_ppm = r.range(1, 100_000) as u32);
    sometimes(0.5, &mut |w, r| w.tcp_ms = r.range(300, 6000) as u32);
    sometimes(0.5, &mut |w, _| w.chaos = 1);
    w
}

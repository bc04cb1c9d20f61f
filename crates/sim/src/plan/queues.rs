//! Plans in which the queue of a link fills up: a client requests more data than the link of a
//! server may hold, and the network delivers none of it for a while. The server closes the link,
//! and still has to serve the client over a new one.

use super::{Action, IoKind, Plan, Timed, Who};
use base::Prng;
use std::time::Duration;

/// Limit of a link's queue in these plans, and of the bytes of a client at a shard, in bytes.
const QUEUE: u64 = 2 << 20;
const CLIENT: u32 = 8 << 20;
/// Bytes and sectors of one read.
const READ: u32 = 1 << 20;
const SECTORS: u32 = READ / 512;

impl Plan {
    /// Returns the size of a client's link queues, in bytes. The queues of the last client take the
    /// whole credit that a server grants, so its reads can fill the queue of a server. The others
    /// have the limit of all processes, and use less than the credit where that is smaller.
    pub(crate) fn client_queue(&self, client: u8) -> u64 {
        let credit = 2 * u64::from(self.limits.client_bytes);
        match client + 1 == self.clients {
            true => self.limits.link_queue.max(credit),
            false => self.limits.link_queue,
        }
    }
}

/// Adds such periods to some plans, with a small queue.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("queues");
    if plan.is_one_story() || plan.copies_devices() || plan.shipped || !r.chance(0.03) {
        return;
    }
    let limits = &mut plan.limits;
    (limits.link_queue, limits.client_bytes) = (QUEUE, CLIENT);
    limits.client_ops = limits.client_ops.max(8);
    limits.shard_bytes = limits.shard_bytes.max(u64::from(CLIENT) * 4);
    limits.nbd_payload = limits.nbd_payload.max(READ);
    plan.depth = plan.depth.max(64);
    for _ in 0..r.range(1, 3) {
        let at = plan.moment(&mut r);
        let client = plan.clients - 1;
        clog(plan, at, client, &mut r);
    }
}

/// Holds back the servers' frames to the client while the client keeps reading.
fn clog(plan: &mut Plan, at: Duration, client: u8, r: &mut Prng) {
    let units = (0..).zip(&plan.volumes).flat_map(|(v, n)| (0..*n).map(move |unit| (v, unit)));
    let units: Vec<(u8, u32)> = units.collect();
    let time = r.range(500, 2500);
    for i in 0..plan.sds {
        let action = Action::Clog(Who::Sds(i), Who::Sdc(client), time as u32);
        plan.steps.push(Timed { at, action });
    }
    for ms in (0..time).step_by(25) {
        let (volume, unit) = *r.pick(&units);
        let (kind, sector) = (IoKind::Read, unit * SECTORS);
        let action = Action::Io { client, volume, kind, sector, sectors: SECTORS };
        plan.steps.push(Timed { at: at + Duration::from_millis(ms), action });
    }
}

//! The driver contract in virtual time: in fair weather, and with random delays,
//! batches and frame splits.

use base::Time;
use seam::DiskId;
use seam::contract::{DEADLINE, Harness, Place, Probe, SCENARIOS, Setup};
use sim::clock::Clock;
use sim::disk::{Disk, DiskKind};
use sim::trace::Sink;
use sim::weather::Weather;
use sim::world::{ProcId, Step, World};
use std::net::SocketAddr;

const DISK_BYTES: u64 = 64 << 20;

struct Simulated {
    seed: u64,
    weather: Weather,
    disks: Vec<Disk>,
}

fn address(i: usize) -> SocketAddr {
    format!("10.0.0.{}:7000", i + 1).parse().unwrap()
}

impl Harness for Simulated {
    fn run(&mut self, setup: &Setup, probes: Vec<Probe>) -> Vec<Probe> {
        let mut world = World::new(self.seed, self.weather.clone(), setup.link_queue, Sink::Off);
        let n = probes.len();
        if !setup.keep_disks {
            self.disks = (0..n).map(|_| Disk::new(DiskKind::Log, DISK_BYTES)).collect();
        }
        let mut disks = std::mem::take(&mut self.disks).into_iter();
        let place = Place {
            peers: (0..n).map(address).collect(),
            nobody: address(n),
            disk_bytes: Some(DISK_BYTES),
            disk_block: 1,
            punches: true,
            same_clock: true,
        };
        let ids: Vec<ProcId> = (0..n)
            .map(|i| {
                world.add(&format!("probe{i}"), Some(address(i)), disks.by_ref().take(1).collect())
            })
            .collect();
        world.add("nobody", Some(address(n)), Vec::new());
        for (id, mut probe) in ids.iter().zip(probes) {
            world.set_clock(*id, Clock::new(77, 0));
            probe.meet(place.clone());
            world.boot(*id, Box::new(probe));
        }
        let all_done = |w: &World| ids.iter().all(|id| w.actor::<Probe>(*id).unwrap().is_done());
        world.alarm(Time::ZERO + DEADLINE, 0);
        while !all_done(&world) {
            match world.step() {
                Step::Ran => {}
                _ => break,
            }
        }
        let mut take =
            |id: &ProcId| *world.crash(*id, true).unwrap().into_any().downcast::<Probe>().unwrap();
        let probes = ids.iter().map(&mut take).collect();
        self.disks = ids.iter().map(|id| world.take_disk(*id, DiskId(0))).collect();
        probes
    }

    fn keeps_disks(&self) -> bool {
        true
    }
}

#[test]
fn fair_weather() {
    for scenario in SCENARIOS {
        for seed in 0..3 {
            let weather = Weather::FAIR;
            scenario.check(&mut Simulated { seed, weather, disks: Vec::new() });
        }
    }
}

#[test]
fn changing_weather() {
    let weather = Weather {
        net_jitter_us: 3000,
        net_tail_ppm: 20_000,
        net_tail_ms: 20,
        disk_jitter_us: 3000,
        run_us: 500,
        run_tail_ppm: 10_000,
        run_tail_ms: 20,
        batch: 40,
        split_ppm: 300_000,
        ..Weather::FAIR
    };
    for scenario in SCENARIOS {
        for seed in 0..3 {
            let weather = weather.clone();
            scenario.check(&mut Simulated { seed, weather, disks: Vec::new() });
        }
    }
}

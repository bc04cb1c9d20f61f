//! Seats in any order of events: an MDM moves them, and tells and answers late, while hosts write,
//! and links break. A server gets only requests of hosts that had a confirmed seat at that
//! generation. The gateway closes the connections of hosts that have lost their seat, and no
//! others. Each command of the others has one answer.

use super::cluster::{Cluster, ME, Who};
use super::iscsi_host::Host;
use super::nvme_host::Queue;
use super::seats::{HOST, NVME_HOST, OTHER, give, hosts_of, ms, nvme, silent};
use base::Prng;
use std::collections::BTreeMap;
use wire::control::SeatsTaken;
use wire::{Header, Kind};

/// What the MDM has decided, for a host: who had the seat from which generation on.
#[derive(Default)]
struct History {
    owners: Vec<(u32, u32)>,
    confirmed: Vec<u32>,
}

impl History {
    /// Returns true if a request of this generation may be executed here.
    fn allows(&self, generation: u32) -> bool {
        let seat = self.owners.iter().rfind(|(since, _)| *since <= generation);
        seat.is_some_and(|(since, sdc)| *sdc == ME && self.confirmed.contains(since))
    }
}

/// A gateway, two hosts, and an MDM that moves their seats in any order, and tells and answers
/// late.
struct Play {
    c: Cluster,
    prng: Prng,
    a: Host,
    admin: Queue,
    io: Queue,
    /// Those of the iSCSI host and of the NVMe host.
    histories: [History; 2],
    /// Questions that were looked at.
    asked: usize,
    sent: usize,
    itt: u32,
    unanswered: [usize; 2],
    /// For each version of the map, the seats that this gateway has by it.
    maps: BTreeMap<u64, [Option<u32>; 2]>,
    /// Those of the map that it had last.
    had: [Option<u32>; 2],
    /// Hosts that are connected, and those that have just come.
    up: [bool; 2],
    fresh: [bool; 2],
    /// How often a host was closed.
    closed: [usize; 2],
}

impl Play {
    fn new(seed: u64) -> Play {
        let mut c = silent();
        c.fences = true;
        let a = Host::attached(&mut c, 1);
        let (admin, io) = nvme(&mut c);
        let prng = Prng::new(seed);
        let maps = [(c.map.version, [None; 2])].into();
        Play {
            c,
            prng,
            a,
            admin,
            io,
            histories: Default::default(),
            asked: 0,
            sent: 0,
            itt: 2,
            unanswered: [0; 2],
            maps,
            had: [None; 2],
            up: [true; 2],
            fresh: [false; 2],
            closed: [0; 2],
        }
    }

    fn give(&mut self, of: usize, sdc: u32) {
        give(&mut self.c, [HOST, NVME_HOST][of], sdc);
        let generation = self.c.map.volumes[0].generation;
        self.histories[of].owners.push((generation, sdc));
        let seats = &self.c.map.volumes[0].seats;
        let seat = |host: &str| seats.iter().find(|s| s.host == host && s.sdc == ME);
        let now = [HOST, NVME_HOST].map(|host| seat(host).map(|seat| seat.since));
        self.maps.insert(self.c.map.version, now);
    }

    /// Looks at what the gateway has closed: all connections of a host that has lost its seat.
    fn see(&mut self) {
        let now = self.maps[&self.c.map_version().0];
        let links = [vec![self.a.link], vec![self.admin.link, self.io.link]];
        for (of, links) in links.into_iter().enumerate() {
            let lost = self.had[of].is_some() && self.had[of] != now[of];
            let gone = links.iter().filter(|link| !self.c.sdc.serves(**link)).count();
            if !self.up[of] {
                continue;
            }
            // A host that has just come may have done so by the older map, or by the newer one.
            let closed = lost && (gone > 0 || !self.fresh[of]);
            assert_eq!(gone, if closed { links.len() } else { 0 }, "{:?} {now:?}", self.had);
            self.up[of] = !closed;
            self.closed[of] += usize::from(closed);
        }
        (self.had, self.fresh) = (now, [false; 2]);
    }

    /// A host connects, and knows of no command.
    fn connect(&mut self, of: usize) {
        match of {
            0 => self.a = Host::attached(&mut self.c, 1),
            _ => (self.admin, self.io) = nvme(&mut self.c),
        }
        (self.unanswered[of], self.up[of], self.fresh[of]) = (0, true, true);
    }

    /// Answers the newest question, without telling the map.
    fn answer(&mut self) {
        let (Some(m), Some(link)) = (self.c.log.wished.last().cloned(), self.c.link_of(Who::Mdm))
        else {
            return;
        };
        let mut since = Vec::new();
        for (_, host) in hosts_of(&m) {
            let seat = self.c.map.volumes[0].seats.iter().find(|seat| seat.host == host);
            let mine = seat.filter(|seat| seat.sdc == ME).map_or(0, |seat| seat.since);
            self.histories[usize::from(host == NVME_HOST)].confirmed.push(mine);
            since.push(mine);
        }
        let (number, map, volume) = (m.number, self.c.map.version, 1);
        let taken = SeatsTaken { number, map, since, volume };
        self.c.send(link, Header::new(Kind::SeatsTaken), &taken);
    }

    fn write(&mut self, of: usize) {
        if !self.up[of] {
            self.hear();
            self.connect(of);
        }
        self.unanswered[of] += 1;
        match of {
            0 => {
                self.itt += 1;
                self.a.write(&mut self.c, self.itt, 0xaa);
            }
            _ => self.io.write(&mut self.c, 8, &[0xbb; 512]),
        }
    }

    fn reconnect(&mut self) {
        let of = self.prng.below(3);
        self.hear();
        match of {
            0 => {
                self.c.cut(Who::Mdm);
                self.c.pass(ms(1000)); // it connects again
            }
            1 => {
                self.c.cut_link(self.a.link);
                self.connect(0);
            }
            _ => {
                self.c.cut_link(self.admin.link);
                self.connect(1);
            }
        }
    }

    /// Counts answers.
    fn hear(&mut self) {
        let answers = [self.a.answers(&mut self.c).len(), self.io.answers(&mut self.c).len()];
        for (unanswered, answers) in self.unanswered.iter_mut().zip(answers) {
            *unanswered = unanswered.checked_sub(answers).expect("one answer for each command");
        }
    }

    fn step(&mut self) {
        let of = self.prng.below(2) as usize;
        match self.prng.below(16) {
            0 => self.give(of, ME),
            1 => self.give(of, OTHER),
            2..5 => self.c.tell(),
            5..7 => self.answer(),
            7 => self.c.hold = true,
            8 => {
                self.c.hold = false;
                self.c.release();
            }
            9 => {
                let time = ms(self.prng.below(1500));
                self.c.pass(time);
            }
            10 if self.prng.below(4) == 0 => self.reconnect(),
            _ => self.write(of),
        }
        self.check();
    }

    fn check(&mut self) {
        self.see();
        for (_, io) in &self.c.log.ios[self.sent..] {
            let (at, generation) = (io.request().range.at, io.request().generation);
            let history = &self.histories[usize::from(at > 0)];
            assert!(history.allows(generation), "{generation}: {:?}", history.owners);
        }
        self.sent = self.c.log.ios.len();
        assert!(self.c.log.wished.len() - self.asked <= 4, "it asks again and again");
        self.asked = self.c.log.wished.len();
    }
}

#[test]
pub(crate) fn in_any_order_of_events_only_requests_with_a_confirmed_seat_go_to_servers() {
    let (mut went, mut closed) = (0, [0; 2]);
    for seed in 0..200 {
        let mut play = Play::new(seed);
        for _ in 0..60 {
            play.step();
        }
        // In the end all is as it should be, and each command of who is connected is answered.
        (play.c.hold, play.c.keeps_seats) = (false, false);
        play.c.release();
        play.check();
        for of in 0..2 {
            if play.histories[of].owners.is_empty() {
                play.give(of, OTHER);
            }
            let history = &mut play.histories[of];
            history.confirmed.extend(history.owners.last().map(|(since, _)| *since));
        }
        play.c.tell();
        play.check();
        play.c.pass(ms(5000));
        play.check();
        play.hear();
        for of in 0..2 {
            assert!(play.unanswered[of] == 0 || !play.up[of], "seed {seed}");
        }
        (0..2).for_each(|of| play.give(of, ME));
        let last = play.c.map.volumes[0].generation;
        play.histories.iter_mut().for_each(|h| h.confirmed.extend([last, last - 1]));
        play.c.tell();
        play.check();
        let before = play.sent;
        // Hosts are told what is new with the first ones.
        for _ in 0..4 {
            (0..2).for_each(|of| play.write(of));
        }
        play.check();
        play.c.pass(ms(3000));
        play.check();
        play.hear();
        assert_eq!(play.unanswered, [0, 0], "seed {seed}");
        let ios = &play.c.log.ios[before..];
        let by = |of: usize| ios.iter().any(|(_, io)| (io.request().range.at > 0) == (of == 1));
        assert!(by(0) && by(1), "both are served, seed {seed}");
        went += play.sent;
        closed = [closed[0] + play.closed[0], closed[1] + play.closed[1]];
    }
    assert!(went > 1000, "{went}");
    assert!(closed[0] > 100 && closed[1] > 100, "{closed:?}");
}

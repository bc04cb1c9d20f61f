//! Seats: when a gateway's question is answered, and when the leader moves a seat.

use super::*;
use base::{SdcId, VolumeId};

pub(super) const HOST: &str = "iqn.2026-11.a:b";
pub(super) const V: VolumeId = VolumeId(1);

/// A gateway with this name, and its link.
pub(super) struct Gateway {
    name: &'static str,
    link: LinkId,
}

impl Gateway {
    fn new(b: &mut Bench, name: &'static str, nonce: u64) -> Gateway {
        let link = b.say_hello(Role::Sdc);
        let uris = vec![format!("iscsi://10.0.9.{}:3260", name.len())];
        let m = RegisterSdc { name: name.into(), nonce, pid: 5, uris, ..RegisterSdc::default() };
        b.send(link, Header::new(Kind::RegisterSdc), &m);
        Gateway { name, link }
    }

    /// Tells which hosts can use the volume here.
    pub(super) fn tell(&self, b: &mut Bench, hosts: &[&str]) {
        let wish = |host: &&str| SeatWish { volume: V.0, host: (*host).into(), moves: false };
        let sessions = hosts.iter().map(wish).collect();
        let hosts = Some(HostNames { sessions, ..HostNames::default() });
        b.send(
            self.link,
            Header::new(Kind::Heartbeat),
            &Heartbeat { hosts, ..Heartbeat::default() },
        );
    }

    fn ask(&self, b: &mut Bench, number: u64, seats: &[(u32, &str)]) {
        self.ask_as(b, number, seats, false);
    }

    fn ask_as(&self, b: &mut Bench, number: u64, seats: &[(u32, &str)], moves: bool) {
        let wish = |(volume, host): &(u32, &str)| SeatWish {
            volume: *volume,
            host: (*host).into(),
            moves,
        };
        let m = TakeSeats { number, seats: seats.iter().map(wish).collect() };
        b.send(self.link, Header::new(Kind::TakeSeats), &m);
    }

    /// Returns the answers that have come since: one for each volume.
    fn answers(&self, b: &mut Bench) -> Vec<SeatsTaken> {
        b.take(self.link, Kind::SeatsTaken)
    }

    /// Returns the only answer that has come since; `None` if there is none.
    fn answer(&self, b: &mut Bench) -> Option<(u64, Vec<u32>)> {
        let mut all = self.answers(b);
        assert!(all.len() <= 1, "{all:?}");
        let m = all.pop()?;
        assert!((1..=b.mdm.state().version.0).contains(&m.map));
        Some((m.number, m.since))
    }

    /// Returns the seats of the volume that the newest map which it was told has.
    fn told(&self, b: &mut Bench) -> Option<Vec<(String, u32, u32)>> {
        let pages: Vec<MapPage> = b.take(self.link, Kind::MapPage);
        let volume = pages.into_iter().flat_map(|page| page.volumes).next_back()?;
        Some(volume.seats.into_iter().map(|seat| (seat.host, seat.sdc, seat.since)).collect())
    }

    pub(super) fn id(&self, b: &Bench) -> u32 {
        b.mdm.state().sdc_named(self.name).unwrap().0.0
    }
}

/// Two servers that have the newest map, and two gateways that are connected to the host.
pub(super) struct Cluster {
    pub(super) b: Bench,
    servers: [LinkId; 2],
    pub(super) g: [Gateway; 2],
}

impl Cluster {
    fn new() -> Cluster {
        let (mut b, one, two) = Bench::with_volume(DeviceKind::Ram);
        let g = [Gateway::new(&mut b, "g", 1), Gateway::new(&mut b, "gg", 2)];
        for gateway in &g {
            b.pull(gateway.link, MapVersion(0), false);
            gateway.tell(&mut b, &[HOST]);
        }
        let mut c = Cluster { b, servers: [one, two], g };
        c.confirm();
        c.pass(1500, &[0, 1]);
        c
    }

    /// Both servers get the newest map.
    pub(super) fn confirm(&mut self) {
        for link in self.servers {
            self.b.pull(link, self.b.mdm.state().version, true);
        }
    }

    /// Lets time pass, in which the servers and these gateways send heartbeats.
    pub(super) fn pass(&mut self, ms: u64, alive: &[usize]) {
        let mut links = self.servers.to_vec();
        links.extend(alive.iter().map(|g| self.g[*g].link));
        self.b.pass(ms, &links);
    }

    pub(super) fn ask(&mut self, g: usize, number: u64) {
        self.g[g].ask(&mut self.b, number, &[(V.0, HOST)]);
    }

    pub(super) fn answer(&mut self, g: usize) -> Option<(u64, Vec<u32>)> {
        self.g[g].answer(&mut self.b)
    }

    /// The client that has the seat, and the generation at which it got it.
    pub(super) fn seat(&self) -> Option<(SdcId, u32)> {
        self.b.mdm.state().volumes[&V].seats.get(HOST).map(|seat| (seat.sdc, seat.since))
    }

    /// The first gateway has the seat, and it is confirmed.
    pub(super) fn seated() -> Cluster {
        let mut c = Cluster::new();
        c.ask(0, 1);
        c.confirm();
        let since = c.seat().unwrap().1;
        assert_eq!(c.answer(0), Some((1, vec![since])));
        c
    }
}

#[test]
pub(crate) fn a_seat_is_confirmed_when_all_who_lead_know_of_it() {
    let mut c = Cluster::new();
    let before = c.b.mdm.state().volumes[&V].generation;
    c.ask(0, 1);
    let (version, [one, two]) = (c.b.mdm.state().version, c.servers);
    assert_eq!(c.seat(), Some((SdcId(c.g[0].id(&c.b)), before)));
    assert_eq!(c.answer(0), None, "nobody has the map");
    c.b.pull(one, version, true);
    c.b.pull(two, MapVersion(version.0 - 1), true);
    assert_eq!(c.answer(0), None, "one has an older one");
    c.b.pull(two, version, true);
    assert_eq!(c.answer(0), Some((1, vec![before])));
    // A question that comes again is answered again, and changes nothing.
    let index = c.b.mdm.state().index;
    c.ask(0, 1);
    assert_eq!((c.answer(0), c.b.mdm.state().index), (Some((1, vec![before])), index));
    // Another gateway does not get it. That needs no fence.
    c.ask(1, 9);
    assert_eq!((c.answer(1), c.b.mdm.state().index), (Some((9, vec![0])), index));
    let told = (HOST.to_string(), c.g[0].id(&c.b), before);
    assert_eq!(c.g[1].told(&mut c.b), Some(vec![told]), "the map says why");
}

#[test]
fn a_seat_is_not_confirmed_before_every_device_has_its_map() {
    let mut c = Cluster::new();
    c.ask(0, 1);
    let (version, [one, two]) = (c.b.mdm.state().version, c.servers);
    c.b.pull(one, version, true);
    for _ in 0..3 {
        c.pass(2500, &[0, 1]);
        assert_eq!(c.answer(0), None, "it may serve by the older map");
        c.ask(0, 1);
    }
    c.b.pull(two, version, true);
    let answers: Vec<SeatsTaken> = c.b.take(c.g[0].link, Kind::SeatsTaken);
    assert!(!answers.is_empty() && answers.iter().all(|m| m.number == 1));
}

#[test]
fn the_seats_of_a_silent_gateway_move_after_a_second_and_not_before() {
    let mut c = Cluster::seated();
    let before = c.b.mdm.state().volumes[&V].generation;
    c.g.iter().for_each(|g| drop(g.told(&mut c.b)));
    c.pass(3000, &[0, 1]);
    assert_eq!(c.seat(), Some((SdcId(c.g[0].id(&c.b)), before)));
    c.b.drop_link(c.g[0].link);
    c.pass(700, &[1]);
    assert_eq!(c.seat(), Some((SdcId(c.g[0].id(&c.b)), before)), "its process may live");
    c.pass(700, &[1]);
    let to = c.g[1].id(&c.b);
    let after = before + 1;
    assert_eq!(c.seat(), Some((SdcId(to), after)));
    assert_eq!(c.b.mdm.state().volumes[&V].generation, after);
    // The gateway that gets the seat is told, and asks for its confirmation, which has to wait.
    assert_eq!(c.g[1].told(&mut c.b), Some(vec![(HOST.into(), to, after)]));
    c.ask(1, 1);
    let (version, [one, two]) = (c.b.mdm.state().version, c.servers);
    c.b.pull(one, version, true);
    assert_eq!(c.answer(1), None);
    c.b.pull(two, version, true);
    assert_eq!(c.answer(1), Some((1, vec![after])));
    // The former gateway comes back. It has lost the seat.
    c.g[0] = Gateway::new(&mut c.b, "g", 1);
    c.g[0].tell(&mut c.b, &[HOST]);
    c.ask(0, 2);
    assert_eq!(c.answer(0), Some((2, vec![0])));
    c.pass(5000, &[0, 1]);
    assert_eq!(c.seat(), Some((SdcId(to), after)), "it stays where it is");
}

#[test]
fn a_seat_whose_host_is_at_no_other_gateway_waits_for_its_gateway() {
    let mut c = Cluster::seated();
    let seat = c.seat();
    c.g[1].tell(&mut c.b, &["iqn.2026-11.a:other"]);
    c.b.drop_link(c.g[0].link);
    c.pass(5000, &[1]);
    assert_eq!(c.seat(), seat);
    // Its process starts again. Its former one is fenced by its incarnation.
    c.g[0] = Gateway::new(&mut c.b, "g", 7);
    c.g[0].tell(&mut c.b, &[HOST]);
    c.ask(0, 1);
    assert_eq!(c.answer(0), None, "not all know of the new incarnation");
    c.confirm();
    assert_eq!(c.answer(0), Some((1, vec![seat.unwrap().1])));
    // It moves as soon as the host is at the other one, too, and leaves this one.
    c.g[1].tell(&mut c.b, &[HOST]);
    c.pass(5000, &[0, 1]);
    assert_eq!(c.seat(), seat);
    c.g[0].tell(&mut c.b, &[]);
    c.pass(300, &[0, 1]);
    assert_eq!(c.seat().map(|seat| seat.0), Some(SdcId(c.g[1].id(&c.b))));
}

/// It reaches only the second one, which has not named it yet.
#[test]
fn a_host_that_leaves_a_gateway_gets_its_seat_where_it_comes_next_without_a_pause() {
    let mut c = Cluster::seated();
    let (first, since) = c.seat().unwrap();
    c.g[1].tell(&mut c.b, &[]);
    c.ask(1, 1);
    assert_eq!((c.answer(1), c.seat()), (Some((1, vec![0])), Some((first, since))));
    c.g[0].tell(&mut c.b, &[]);
    c.ask(1, 2);
    let second = SdcId(c.g[1].id(&c.b));
    assert_eq!(c.seat(), Some((second, since + 1)));
    assert_eq!(c.answer(1), None, "it has to be confirmed");
    c.confirm();
    assert_eq!(c.answer(1), Some((2, vec![since + 1])));
    // It has two seconds to name the host, which comes back to the first one, too.
    c.g[0].tell(&mut c.b, &[HOST]);
    c.pass(1700, &[0, 1]);
    assert_eq!(c.seat(), Some((second, since + 1)));
    c.g[1].tell(&mut c.b, &[HOST]);
    c.pass(5000, &[0, 1]);
    assert_eq!(c.seat(), Some((second, since + 1)));
}

/// SET TARGET PORT GROUPS. The former gateway is there, and has the host.
#[test]
fn a_seat_moves_to_the_gateway_that_its_host_wants_behind_the_fence() {
    let mut c = Cluster::seated();
    let (_, since) = c.seat().unwrap();
    drop(c.g[0].told(&mut c.b));
    c.g[1].ask_as(&mut c.b, 1, &[(V.0, HOST)], true);
    let second = c.g[1].id(&c.b);
    let seat = (HOST.to_string(), second, since + 1);
    assert_eq!(c.seat(), Some((SdcId(second), since + 1)));
    assert_eq!(c.g[0].told(&mut c.b), Some(vec![seat]), "it has lost it");
    let (version, [one, two]) = (c.b.mdm.state().version, c.servers);
    c.b.pull(one, version, true);
    assert_eq!(c.answer(1), None);
    c.b.pull(two, version, true);
    assert_eq!(c.answer(1), Some((1, vec![since + 1])));
    // The same question again changes nothing.
    let index = c.b.mdm.state().index;
    c.g[1].ask_as(&mut c.b, 1, &[(V.0, HOST)], true);
    assert_eq!((c.answer(1), c.b.mdm.state().index), (Some((1, vec![since + 1])), index));
    c.pass(5000, &[0, 1]);
    assert_eq!(c.seat(), Some((SdcId(second), since + 1)));
}

#[test]
fn an_incarnation_that_has_ended_gets_no_seat_and_no_answer() {
    let mut c = Cluster::new();
    let new = Gateway::new(&mut c.b, "g", 7);
    c.ask(0, 1);
    c.confirm();
    assert_eq!((c.answer(0), c.seat()), (None, None));
    new.ask(&mut c.b, 1, &[(V.0, HOST)]);
    c.confirm();
    assert!(new.answer(&mut c.b).is_some());
}

/// Its link may wait for the commit of what it asked for.
#[test]
fn nobody_gets_a_seat_that_is_not_durable() {
    let mut c = Cluster::new();
    c.b.held = true;
    c.ask(0, 1);
    let version = c.b.mdm.state().version;
    assert!(c.seat().is_some(), "applied");
    for link in c.servers {
        c.b.pull(link, version, true);
    }
    assert_eq!((c.answer(0), c.g[1].told(&mut c.b)), (None, None), "but not durable");
    c.b.held = false;
    c.b.settle();
    c.confirm();
    assert!(c.answer(0).is_some());
}

#[test]
fn questions_of_many_seats_are_answered_in_their_order() {
    let mut c = Cluster::new();
    assert_eq!(c.b.create("w").error, 0);
    let hosts: Vec<String> = (0..100).map(|n| format!("iqn.2026-11.a:{n}")).collect();
    let pairs = hosts.iter().flat_map(|host| [(9, &host[..]), (1, &host[..])]);
    let pairs: Vec<(u32, &str)> = pairs.chain([(2, HOST), (2, HOST), (1, HOST)]).collect();
    c.g[0].ask(&mut c.b, 5, &pairs);
    c.confirm();
    let mut answers = c.g[0].answers(&mut c.b);
    answers.sort_by_key(|m| m.volume);
    let of = |m: &SeatsTaken| (m.number, m.volume, m.since.len());
    assert_eq!(answers.iter().map(of).collect::<Vec<_>>(), [(5, 1, 101), (5, 2, 2), (5, 9, 100)]);
    for m in answers {
        assert!(m.since.iter().all(|since| (*since > 0) == (m.volume != 9)), "no volume 9");
    }
    c.g[0].ask(&mut c.b, 6, &[]);
    assert_eq!(c.answer(0), None);
}

#[test]
fn a_question_without_meaning_ends_the_link() {
    let mut c = Cluster::new();
    let long = "x".repeat(224);
    let many = vec![(1, HOST); SEATS_PER_MESSAGE + 1];
    let cases: [&[(u32, &str)]; 3] = [&many, &[(1, "")], &[(1, &long)]];
    for (n, seats) in cases.into_iter().enumerate() {
        let g = Gateway::new(&mut c.b, "ggg", 3);
        g.ask(&mut c.b, 1, seats);
        assert_eq!(c.b.refusal(g.link).0, RefusalCode::Unexpected, "{n}");
    }
    let m = TakeSeats { number: 1, seats: Vec::new() };
    let guest = c.b.say_hello(Role::Sdc);
    c.b.send(guest, Header::new(Kind::TakeSeats), &m);
    assert!(c.b.take::<SeatsTaken>(guest, Kind::SeatsTaken).is_empty(), "it has not registered");
    for role in [Role::Admin, Role::Sds] {
        let link = c.b.say_hello(role);
        c.b.send(link, Header::new(Kind::TakeSeats), &m);
        assert_eq!(c.b.refusal(link).0, RefusalCode::Unexpected);
    }
    assert_eq!(c.seat(), None);
}

/// A new leader, which has heard of no gateway.
#[test]
fn a_restarted_mdm_moves_no_seat_before_gateways_had_time_to_come() {
    let mut c = Cluster::seated();
    let seat = c.seat();
    let mut b = Bench::on_disk(std::mem::take(&mut c.b.disk), config(Limits::TEST_MIN));
    b.settle();
    let (one, _) = b.sds("a", 1, 11, DeviceKind::Ram);
    let (two, _) = b.sds("bb", 2, 12, DeviceKind::Ram);
    let other = Gateway::new(&mut b, "gg", 2);
    other.tell(&mut b, &[HOST]);
    let gone = Gateway { name: "g", link: LinkId(999) };
    let mut c = Cluster { b, servers: [one, two], g: [gone, other] };
    c.pass(2800, &[1]);
    assert_eq!(c.seat(), seat);
    c.pass(500, &[1]);
    assert_eq!(c.seat().map(|seat| seat.0), Some(SdcId(c.g[1].id(&c.b))));
}

/// The lost MDMs may have moved seats, and what they gave is not known yet.
#[test]
fn a_recovery_gives_no_seat_before_it_is_closed() {
    let c = Cluster::seated();
    let mut b = super::recovery::begun_as(c.b.mdm.state(), wire::DIALECT);
    assert!(b.mdm.state().recovery.open);
    assert!(b.mdm.state().volumes[&V].seats.is_empty());
    let g = Gateway::new(&mut b, "g", 1);
    g.tell(&mut b, &[HOST]);
    g.ask(&mut b, 1, &[(V.0, HOST)]);
    b.pass(3000, &[g.link]);
    assert_eq!(g.answer(&mut b), None);
    assert!(b.mdm.state().volumes[&V].seats.is_empty());
}

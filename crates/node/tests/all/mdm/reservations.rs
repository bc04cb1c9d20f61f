//! Reservations: when a change is answered, and what is answered when it comes again.

use super::*;
use mdm::reserve::{change_info, host_info};
use target::reserve::{Change, Identity, Kind as Type};

fn host(n: u8) -> Identity {
    Identity::Nvme { host: [n; 16] }
}

/// A client that asks for its hosts.
struct Client {
    link: LinkId,
}

impl Client {
    fn new(b: &mut Bench, nonce: u64) -> Client {
        let link = b.say_hello(Role::Sdc);
        let m = RegisterSdc { name: "c".into(), nonce, pid: 5, ..RegisterSdc::default() };
        b.send(link, Header::new(Kind::RegisterSdc), &m);
        Client { link }
    }

    fn ask(&self, b: &mut Bench, number: u64, who: u8, change: &Change) {
        let (who, change) = (host_info(&host(who)), change_info(change));
        let m = Reserve { volume: 1, number, who, change };
        b.send(self.link, Header::new(Kind::Reserve), &m);
    }

    /// Returns the only answer that has come since; `None` if there is none.
    fn answer(&self, b: &mut Bench) -> Option<(u64, ReserveOutcome)> {
        let mut all: Vec<Reserved> = b.take(self.link, Kind::Reserved);
        assert!(all.len() <= 1, "{all:?}");
        let m = all.pop()?;
        assert!((1..=b.mdm.state().version.0).contains(&m.map) && m.volume == 1);
        Some((m.number, m.outcome()))
    }
}

/// Hosts 1 and 2 are registered by changes 1 and 2, with their numbers as keys. Both servers have
/// the newest map.
fn registered() -> (Bench, [LinkId; 2], Client) {
    let (mut b, one, two) = Bench::with_volume(DeviceKind::Ram);
    let c = Client::new(&mut b, 1);
    for who in [1, 2] {
        let register =
            Change::Register { key: 0, new: u64::from(who), ignore: false, all_ports: false };
        c.ask(&mut b, u64::from(who), who, &register);
        let done = Some((u64::from(who), ReserveOutcome::Done));
        assert_eq!(c.answer(&mut b), done, "it takes access from nobody");
    }
    for link in [one, two] {
        b.pull(link, b.mdm.state().version, true);
    }
    b.pass(1500, &[one, two]);
    (b, [one, two], c)
}

const RESERVE: Change = Change::Reserve { key: 1, kind: Type::ExclusiveAccessRegistrants };
const PREEMPT: Change =
    Change::Preempt { key: 1, victim: 2, kind: Type::ExclusiveAccessRegistrants };

#[test]
pub(crate) fn what_takes_access_is_answered_when_all_who_lead_know_of_it() {
    let (mut b, [one, two], c) = registered();
    c.ask(&mut b, 3, 1, &RESERVE);
    let version = b.mdm.state().version;
    assert_eq!(c.answer(&mut b), None, "nobody has the map");
    b.pull(one, version, true);
    assert_eq!(c.answer(&mut b), None, "one has an older one");
    b.pull(two, version, true);
    assert_eq!(c.answer(&mut b), Some((3, ReserveOutcome::Done)));
    // What is refused takes nothing, and needs no fence.
    c.ask(&mut b, 4, 2, &Change::Release { key: 1, kind: Type::WriteExclusive });
    assert_eq!(c.answer(&mut b), Some((4, ReserveOutcome::Conflict)));
    // A client that asks again, because its link broke, waits for the fence as well.
    c.ask(&mut b, 5, 1, &PREEMPT);
    b.drop_link(c.link);
    let c = Client::new(&mut b, 1);
    let (version, index) = (b.mdm.state().version, b.mdm.state().index);
    c.ask(&mut b, 5, 1, &PREEMPT);
    assert_eq!((c.answer(&mut b), b.mdm.state().index), (None, index), "it is done already");
    b.pull(one, version, true);
    b.pull(two, version, true);
    assert_eq!(c.answer(&mut b), Some((5, ReserveOutcome::Done)));
    c.ask(&mut b, 5, 1, &PREEMPT);
    assert_eq!(c.answer(&mut b), Some((5, ReserveOutcome::Done)), "all know of it");
    c.ask(&mut b, 4, 1, &Change::Clear { key: 1 });
    assert_eq!(c.answer(&mut b), None, "a frame that comes late changes nothing");
    assert_eq!(b.mdm.state().volumes[&base::VolumeId(1)].reservations.registrants.len(), 1);
}

/// A host that asks again and again for what it can't get would push the volume to every client.
#[test]
fn a_refused_change_makes_no_map() {
    let (mut b, [one, _], c) = registered();
    let version = b.mdm.state().version;
    assert!(b.pull(one, version, true).is_empty(), "it waits");
    for number in 3..6 {
        c.ask(&mut b, number, 2, &RESERVE);
        assert_eq!(c.answer(&mut b), Some((number, ReserveOutcome::Conflict)));
    }
    assert_eq!(b.mdm.state().version, version);
    assert!(b.take::<wire::control::MapPage>(one, Kind::MapPage).is_empty());
    assert!(b.take::<wire::control::MapPage>(c.link, Kind::MapPage).is_empty());
}

/// The host was told that its first try has failed, and it may have been done.
#[test]
fn a_repeated_change_is_answered_behind_the_fence_of_its_first_attempt() {
    let (mut b, [one, two], c) = registered();
    c.ask(&mut b, 3, 1, &RESERVE);
    let version = b.mdm.state().version;
    b.pull(one, version, true);
    c.ask(&mut b, 4, 1, &RESERVE);
    assert_eq!((c.answer(&mut b), b.mdm.state().version), (None, version));
    b.pull(two, version, true);
    let both: Vec<Reserved> = b.take(c.link, Kind::Reserved);
    let both: Vec<_> = both.iter().map(|m| (m.number, m.outcome())).collect();
    assert_eq!(both, [(3, ReserveOutcome::Done), (4, ReserveOutcome::Done)]);
}

#[test]
fn a_change_is_not_answered_before_every_device_has_confirmed_it() {
    let (mut b, [one, two], c) = registered();
    c.ask(&mut b, 3, 1, &RESERVE);
    let version = b.mdm.state().version;
    b.pull(one, version, true);
    b.pass(7000, &[one, two]);
    assert_eq!(c.answer(&mut b), None, "it may serve by the older map");
    c.ask(&mut b, 3, 1, &RESERVE);
    assert_eq!(c.answer(&mut b), None);
    b.pull(two, version, true);
    assert_eq!(c.answer(&mut b), Some((3, ReserveOutcome::Done)));
}

#[test]
fn a_change_survives_a_restart_and_is_answered_after_it() {
    let (mut b, _, c) = registered();
    c.ask(&mut b, 3, 1, &RESERVE);
    assert_eq!(c.answer(&mut b), None);
    let before = b.mdm.state().clone();
    let mut b = Bench::on_disk(std::mem::take(&mut b.disk), config(Limits::TEST_MIN));
    b.settle();
    assert_eq!(b.mdm.state(), &before);
    let c = Client::new(&mut b, 1);
    c.ask(&mut b, 3, 1, &RESERVE);
    assert_eq!((c.answer(&mut b), b.mdm.state().index), (None, before.index));
    let (one, _) = b.sds("a", 1, 11, DeviceKind::Ram);
    let (two, _) = b.sds("bb", 2, 12, DeviceKind::Ram);
    b.pull(one, b.mdm.state().version, true);
    b.pull(two, b.mdm.state().version, true);
    b.pass(1500, &[one, two]);
    assert_eq!(c.answer(&mut b), Some((3, ReserveOutcome::Done)));
}

#[test]
fn a_change_without_meaning_ends_the_link_and_one_of_no_volume_is_answered() {
    let (mut b, _, c) = registered();
    let good =
        Reserve { volume: 9, number: 3, who: host_info(&host(1)), change: change_info(&RESERVE) };
    b.send(c.link, Header::new(Kind::Reserve), &good);
    let answer: Reserved = b.take(c.link, Kind::Reserved).pop().unwrap();
    assert_eq!((answer.volume, answer.outcome()), (9, ReserveOutcome::NoVolume));
    let wrong: [fn(&mut Reserve); 4] =
        [|m| m.change.action = 6, |m| m.change.kind = 0, |m| m.who.id.clear(), |m| m.who.port = 1];
    for (i, change) in wrong.into_iter().enumerate() {
        let c = Client::new(&mut b, 1);
        let mut m = good.clone();
        change(&mut m);
        b.send(c.link, Header::new(Kind::Reserve), &m);
        assert_eq!(b.refusal(c.link).0, RefusalCode::Unexpected, "{i}");
    }
    let guest = b.say_hello(Role::Sdc);
    b.send(guest, Header::new(Kind::Reserve), &good);
    assert!(b.take::<Reserved>(guest, Kind::Reserved).is_empty(), "it has not registered");
    let admin = b.say_hello(Role::Admin);
    b.send(admin, Header::new(Kind::Reserve), &good);
    assert_eq!(b.refusal(admin).0, RefusalCode::Unexpected);
}

//! The report of a shard to a recovering MDM, and whose maps it takes afterwards.

use super::*;

impl Bench {
    /// Lets a recovering MDM, the next incarnation of the present one, ask this shard for its
    /// report. Maps of its recovery begin with version `recovered` (0: it does not say so).
    fn is_asked_to_report(&mut self, recovered: u64) -> LinkId {
        self.is_asked(7, 2, MDM);
        let at = self.dials.iter().position(|(_, to)| to == MDM).expect("it is dialled");
        let (dial, _) = self.dials.remove(at);
        let link = self.link(Some(dial));
        self.asked.clear();
        let role = Role::Mdm as i32;
        let welcome = Welcome {
            cluster: 7,
            role,
            incarnation: 2,
            map: recovered.max(1 << 32),
            recovers: true,
            recovered,
            version: 1,
            ..Welcome::default()
        };
        self.frame(link, Kind::Welcome, &welcome);
        link
    }

    /// Registers the shard, whose map has this version, at the recovering MDM, which has no map
    /// yet.
    fn is_registered(&mut self, mdm: LinkId, map: u64) {
        let registered =
            Registered { cluster: 7, id: 3, incarnation: 9, map, ..Registered::default() };
        self.frame(mdm, Kind::Registered, &registered);
        self.frame(mdm, Kind::MapPage, &MapPage { last: true, ..MapPage::default() });
    }

    /// Sends a beacon of a server with this map. Returns the number of the question, if the shard
    /// asks for the map.
    fn beacon(&mut self, peer: LinkId, version: u64) -> Option<u64> {
        self.pass(Limits::TEST_MIN.beacon_every);
        let head = beacon(0, version, 0);
        let event = Event::Frame { link: peer, head: head.as_slice(), body: Buf::EMPTY };
        self.sds.on(self.now, event, &mut self.out);
        self.settle();
        let pull = self.asked[0];
        let is_pull = pull.kind() == Some(Kind::MapPull);
        is_pull.then(|| message::MapPull::try_from(&pull).unwrap().op)
    }

    /// Sends the map of a server as the answer to this question.
    fn answer(&mut self, peer: LinkId, op: u64, version: u64) {
        let device = |(id, incarnation): (u32, u64)| {
            let address = format!("10.0.1.{id}:7000");
            DeviceInfo { id, incarnation, address, up: true, ..DeviceInfo::default() }
        };
        let devices = [(3, 9), (4, 2)].map(device).into();
        let page = MapPage { version, last: true, cluster: 7, devices, ..Default::default() };
        let answer = message::MapPage { op, map: MapVersion(0) };
        let (head, body) = control_frame(HANDSHAKE_VERSION, answer, &page, self.out.pool());
        let event = Event::Frame { link: peer, head: head.as_slice(), body };
        self.sds.on(self.now, event, &mut self.out);
        self.settle();
    }

    /// Sends beacons of a server with this map for a while, and its map as soon as it is asked for
    /// it. Returns the version of the map that the shard has then.
    fn offers(&mut self, peer: LinkId, version: u64) -> u64 {
        for _ in 0..10 {
            if let Some(op) = self.beacon(peer, version) {
                self.answer(peer, op, version);
            }
        }
        let grant = self.asked.iter().find(|h| h.kind() == Some(Kind::Grant));
        self.map = map_of(grant.expect("it answers beacons"));
        self.map
    }
}

#[test]
fn reports_fit_the_limit_of_strangers_and_only_an_mdm_is_believed_afterwards() {
    let mut b = Bench::new();
    let mdm = b.join_mdm(1);
    let volume = |id: u32| VolumeInfo {
        id,
        name: format!("v{id}"),
        size: 1 << 40,
        slots: (0..384).map(|slot| 1000 + slot).collect(),
        ..VolumeInfo::default()
    };
    let device = |id, incarnation| {
        let address = format!("10.0.1.{id}:7000");
        DeviceInfo { id, incarnation, address, up: true, ..DeviceInfo::default() }
    };
    let group = |id| GroupInfo {
        id,
        epoch: 5 << 32,
        primary: 4,
        replicas: vec![4, 3],
        in_sync: vec![4, 3],
        ..GroupInfo::default()
    };
    let unknown: Vec<IdRange> =
        (40..2000).map(|i| IdRange { from: i * 9, to: i * 9 + 4 }).collect();
    let page = MapPage {
        version: 32,
        last: true,
        cluster: 7,
        devices: vec![device(3, 9), device(4, 2)],
        groups: (1000..1384).map(group).collect(),
        volumes: (1..40).map(volume).collect(),
        live: (1..40).collect(),
        next_volume: 20_000,
        unknown: unknown.clone(),
        ..MapPage::default()
    };
    b.map_of(mdm, 30, &[(3, 9), (4, 2)], &[]);
    let peer = b.says(Role::Sds, 4, 2, 1);
    assert_eq!(b.offers(peer, 31), 31, "news of another server are welcome");
    b.frame(mdm, Kind::MapPage, &page);
    let mdm = b.is_asked_to_report(0);
    let reports = b.asked.iter().filter(|h| h.kind() == Some(Kind::Report));
    let lengths: Vec<u32> = reports.map(|h| h.body_len()).collect();
    assert!(lengths.iter().all(|len| *len <= Limits::TEST_MIN.stranger_body), "{lengths:?}");
    assert!(lengths.iter().sum::<u32>() > 20_000, "all of it is told: {lengths:?}");
    assert!(b.reports.iter().all(|p| p.next_volume == 20_000));
    let told: Vec<IdRange> = b.reports.iter().flat_map(|p| p.unknown.clone()).collect();
    assert_eq!(told, unknown);
    b.is_registered(mdm, 32);
    assert_eq!(b.offers(peer, 33), 32, "the MDM relies on what was told");
    assert_eq!(b.offers(peer, 1 << 32), 1 << 32, "but for what it decided then");
}

/// The other server has not heard of the second recovery, and has the map of the first one. A
/// configuration of that map in which the shard leads would contradict its report.
#[test]
pub(crate) fn who_has_reported_takes_no_map_of_an_earlier_recovery() {
    let (first, second) = (3 << 32, (5 << 32) + 100);
    let mut b = Bench::new();
    let mdm = b.join_mdm(1);
    b.map_of(mdm, 30, &[(3, 9), (4, 2)], &[]);
    let peer = b.says(Role::Sds, 4, 2, 1);
    let asked = |b: &mut Bench, version| {
        let mut many = core::iter::repeat_with(|| b.beacon(peer, version)).take(10);
        many.find_map(|op| op)
    };
    b.offers(peer, 31);
    let op = asked(&mut b, 32).expect("its map is newer");
    let mdm = b.is_asked_to_report(second);
    b.answer(peer, op, first);
    b.is_registered(mdm, 31);
    assert_eq!(b.offers(peer, first), 31);
    assert_eq!(b.offers(peer, second - 1), 31);
    assert_eq!(asked(&mut b, first), None, "it would not take the answer");
    assert_eq!(b.offers(peer, second), second, "it is of the second recovery");
    // The MDM sends a map of its own: what servers have is news again.
    assert_eq!(b.offers(peer, second + 5), second + 5);
    b.map_of(mdm, second + 9, &[(3, 9), (4, 2)], &[]);
    assert_eq!(b.offers(peer, second + 10), second + 10);
}

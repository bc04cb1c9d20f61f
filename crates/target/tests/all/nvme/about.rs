//! Information for a host about the controller and its namespaces: Identify, and features.

use super::host::*;
use super::rig::*;
use base::{Limits, VolumeId};
use target::ident;
use target::nvme::Path;

fn admin() -> Rig {
    Rig::admin(&Limits::SHIPPED, Options::default())
}

fn discovery() -> Rig {
    let mut rig = Rig::set_up(&Limits::SHIPPED, Options::default());
    assert_eq!(rig.connect(0, 0xffff, DISCOVERY, Options::default()), (0, CNTLID.into()));
    assert_eq!(rig.result(&Command::property_set(2, 0x14, 0x0046_0001)).0, 0);
    rig
}

fn le(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// A field: its offset, its length, its value.
type Field = (usize, usize, u64);

fn check(page: &[u8], fields: &[Field]) {
    for (at, len, value) in fields {
        assert_eq!(le(page, *at, *len), *value, "bytes {at} to {}", at + len - 1);
    }
}

#[test]
fn the_controller_has_the_fields_that_hosts_check() {
    let page = admin().fetch(&Command::identify(1, 0x01, 0));
    assert_eq!(&page[4..24], b"0123456789abcdef    ");
    assert_eq!(&page[24..64], format!("{:40}", "Gabion").as_bytes());
    let name = ident::nqn(CLUSTER);
    assert_eq!(&page[768..768 + name.len()], name.as_bytes());
    assert_eq!(page[768 + name.len()], 0);
    check(
        &page,
        &[
            (0, 4, 0),           // no PCI vendor
            (73, 3, 0),          // no OUI
            (76, 1, 0x0b),       // CMIC
            (77, 1, 8),          // MDTS: 1 MiB
            (78, 2, 0x205),      // CNTLID
            (80, 4, 0x10400),    // VER
            (92, 4, 0x900),      // OAES
            (96, 4, 1),          // CTRATT
            (111, 1, 1),         // CNTRLTYPE
            (128, 2, 10),        // CRDT1
            (130, 2, 50),        // CRDT2
            (132, 2, 100),       // CRDT3
            (256, 2, 0),         // OACS
            (259, 1, 3),         // AERL
            (261, 1, 6),         // LPA
            (320, 2, 10),        // KAS
            (342, 1, 10),        // ANATT
            (343, 1, 0x45),      // ANACAP
            (344, 4, 0x10_0000), // ANAGRPMAX
            (348, 4, 1024),      // NANAGRPID
            (512, 1, 0x66),      // SQES
            (513, 1, 0x44),      // CQES
            (514, 2, 128),       // MAXCMD
            (516, 4, 0x10_0000), // NN
            (520, 2, 0x2d),      // ONCS
            (522, 2, 1),         // FUSES
            (525, 1, 0),         // VWC
            (532, 2, 0),         // ACWU
            (536, 4, 0x10_0001), // SGLS
            (540, 4, 1024),      // MNAN
            (1792, 4, 1028),     // IOCCSZ
            (1796, 4, 1),        // IORCSZ
            (1800, 2, 0),        // ICDOFF
            (1802, 1, 0),        // FCATT
            (1803, 1, 1),        // MSDBD
            (1804, 2, 1),        // OFCS
        ],
    );
}

#[test]
fn the_discovery_controller_is_one() {
    let mut rig = discovery();
    let page = rig.fetch(&Command::identify(1, 0x01, 0));
    assert_eq!(&page[768..768 + DISCOVERY.len()], DISCOVERY.as_bytes());
    let fields = [
        (111, 1, 2),
        (261, 1, 4),
        (92, 4, 1 << 31),
        (320, 2, 10),
        (514, 2, 128),
        (536, 4, 0x10_0001),
    ];
    check(&page, &fields);
    check(&page, &[(516, 4, 0), (520, 2, 0), (1792, 4, 1028), (1796, 4, 1)]);
    for cns in [0, 2, 3, 5, 6] {
        assert_eq!(rig.result(&Command::identify(1, cns, 7)).0, 0x4002, "{cns}");
    }
    assert_eq!(rig.result(&Command::new(0x08, 1)).0, 0x4001, "nothing to abort");
    assert_eq!(rig.result(&Command::new(0x18, 1)).0, 0, "keep alive");
    assert_eq!(rig.result(&Command::get_feature(1, 0x07)).0, 0x4002);
    assert_eq!(rig.result(&Command::get_feature(1, 0x0f)), (0, 5000));
    assert_eq!(rig.result(&Command::log(1, 2, 0, 0, 512)).0, 0x4109);
}

/// Base 8.20.4.
#[test]
fn a_path_that_does_not_serve_tells_what_a_namespace_is() {
    let mut rig = admin();
    let namespace = Command::identify(1, 0x00, 7);
    let served = rig.fetch(&namespace);
    let descriptors = rig.fetch(&Command::identify(1, 0x03, 7));
    rig.hosts.seven().path = Path::Inaccessible;
    let mut other = rig.fetch(&namespace);
    check(&other, &[(16, 4, 0)]); // NUSE
    other[16..24].copy_from_slice(&served[16..24]);
    assert_eq!(other, served, "all else is the same");
    assert_eq!(rig.fetch(&Command::identify(1, 0x03, 7)), descriptors);
    assert_eq!(rig.fetch(&Command::identify(1, 0x02, 0))[..4], [7, 0, 0, 0], "it is active");
    // Features of the namespace are not available, and those of the controller are.
    for nsid in [7, u32::MAX] {
        assert_eq!(rig.result(&Command::set_feature(1, 0x82, 2).nsid(nsid)).0, 0x0302);
        assert_eq!(rig.result(&Command::set_feature(1, 0x83, 1).nsid(nsid)).0, 0x0302);
    }
    assert_eq!(rig.result(&Command::get_feature(1, 0x82).nsid(7)).0, 0x0302);
    assert_eq!(rig.result(&Command::get_feature(1, 0x83).nsid(7)).0, 0x0302);
    assert_eq!(rig.result(&Command::set_feature(1, 0x0b, 0x900)).0, 0);
    assert_eq!(rig.result(&Command::get_feature(1, 0x0b)), (0, 0x900));
}

#[test]
fn a_namespace_has_its_size_and_its_ids() {
    let mut rig = admin();
    rig.hosts.seven().size = (5 << 30) + 513;
    let page = rig.fetch(&Command::identify(1, 0x00, 7));
    let blocks = (5 << 30) / 512 + 1;
    check(
        &page,
        &[
            (0, 8, blocks),
            (8, 8, blocks),
            (16, 8, blocks),
            (24, 1, 0x10),            // NSFEAT
            (25, 2, 0),               // one format
            (30, 1, 1),               // NMIC
            (31, 1, 0xff),            // RESCAP
            (33, 1, 9),               // DLFEAT
            (48, 8, (5 << 30) + 513), // NVMCAP
            (64, 2, 7),               // NPWG
            (66, 2, 7),               // NPWA
            (68, 2, 7),               // NPDG
            (70, 2, 7),               // NPDA
            (72, 2, 2047),            // NOWS
            (92, 4, 7),               // ANAGRPID
            (99, 1, 0),               // NSATTR
            (120, 8, 0),              // EUI64
            (128, 4, 9 << 16),        // blocks of 512 bytes, no metadata
        ],
    );
    assert_eq!(page[104..120], ident::nguid(CLUSTER, VolumeId(7)));
    rig.hosts.seven().read_only = true;
    assert_eq!(rig.fetch(&Command::identify(1, 0x00, 7))[99], 1);
    assert!(rig.fetch(&Command::identify(1, 0x00, 8)).iter().all(|byte| *byte == 0), "not there");
    for nsid in [0, u32::MAX] {
        assert_eq!(rig.result(&Command::identify(1, 0x00, nsid)).0, 0x400b);
    }
}

#[test]
fn a_namespace_is_described_by_ids_that_never_change() {
    let mut rig = admin();
    let page = rig.fetch(&Command::identify(1, 0x03, 7));
    assert_eq!(page[..4], [2, 16, 0, 0]);
    assert_eq!(page[4..20], ident::nguid(CLUSTER, VolumeId(7)));
    assert_eq!(page[20..24], [3, 16, 0, 0]);
    assert_eq!(page[24..40], ident::uuid(CLUSTER, VolumeId(7)));
    assert!(page[40..].iter().all(|byte| *byte == 0));
    assert_eq!(rig.result(&Command::identify(1, 0x03, 8)).0, 0x400b);
}

#[test]
fn the_list_of_namespaces_goes_on_where_it_ended() {
    let mut rig = admin();
    for id in (10..4000).step_by(2) {
        rig.hosts.add(id, 4096);
    }
    rig.hosts.add(0x10_0001, 4096); // beyond NN
    let list = |rig: &mut Rig, after| -> Vec<u32> {
        let page = rig.fetch(&Command::identify(1, 0x02, after));
        page.chunks(4).map(|id| le(id, 0, 4) as u32).take_while(|id| *id > 0).collect()
    };
    let first = list(&mut rig, 0);
    assert_eq!((first.len(), &first[..3]), (1024, &[7, 10, 12][..]));
    let second = list(&mut rig, *first.last().unwrap());
    assert_eq!((second.len(), second.last()), (1995 + 1 - 1024, Some(&3998)));
    assert!(list(&mut rig, 0xffff_fffd).is_empty());
    assert_eq!(rig.result(&Command::identify(1, 0x02, 0xffff_fffe)).0, 0x400b);
}

#[test]
fn other_structures_are_refused_or_empty() {
    let mut rig = admin();
    assert!(rig.fetch(&Command::identify(1, 0x05, 7)).iter().all(|byte| *byte == 0));
    assert!(rig.fetch(&Command::identify(1, 0x06, 0)).iter().all(|byte| *byte == 0));
    for (cns, nsid) in [(0x04, 0), (0x08, 7), (0x10, 0), (0x1c, 0), (0xff, 0)] {
        assert_eq!(rig.result(&Command::identify(1, cns, nsid)).0, 0x4002, "{cns}");
    }
    let zoned = Command::identify(1, 0x06, 0).dword(11, 2 << 24);
    assert_eq!(rig.result(&zoned).0, 0x4002);
    assert_eq!(rig.result(&Command::identify(1, 0x01, 0).at_host(4092)).0, 0x400f);
}

#[test]
fn features_are_those_of_the_table() {
    let mut rig = admin();
    // Each feature, and what it returns.
    for (feature, value) in
        [(0x01, 0), (0x02, 0), (0x04, 0), (0x05, 0), (0x07, 15 << 16 | 15), (0x0a, 0), (0x0b, 0)]
    {
        assert_eq!(rig.result(&Command::get_feature(1, feature)), (0, value), "{feature}");
    }
    for feature in [0x00, 0x03, 0x06, 0x08, 0x0c, 0x0e, 0x80, 0x84] {
        assert_eq!(rig.result(&Command::get_feature(1, feature)).0, 0x4002, "{feature}");
        assert_eq!(rig.result(&Command::set_feature(1, feature, 0)).0, 0x4002, "{feature}");
    }
    for feature in [0x01, 0x02, 0x04, 0x05, 0x0a] {
        assert_eq!(rig.result(&Command::set_feature(1, feature, 1)).0, 0x410e, "{feature}");
    }
    let save = Command::set_feature(1, 0x0b, 1).dword(10, 1 << 31 | 0x0b);
    assert_eq!(rig.result(&save).0, 0x410d);
    assert_eq!(rig.result(&Command::get_feature(1, 0x0b).dword(10, 0x30b)).0, 0x4002);
    assert_eq!(rig.result(&Command::set_feature(1, 0x0f, 1500)), (0, 0));
    assert_eq!(rig.result(&Command::get_feature(1, 0x0f)), (0, 1500));
    assert_eq!(rig.result(&Command::set_feature(1, 0x0b, 0x900)), (0, 0));
    assert_eq!(rig.result(&Command::get_feature(1, 0x0b)), (0, 0x900));
    assert_eq!(rig.result(&Command::new(0x08, 1)), (0, 1), "nothing is aborted");
    assert_eq!(rig.result(&Command::new(0x01, 1)).0, 0x4001, "queues of PCI");
}

#[test]
fn a_host_gets_as_many_queues_as_it_asks_for_up_to_the_limit() {
    let mut rig = admin();
    for (asked, given) in [(0, 0), (3, 3), (15, 15), (16, 15), (0xfffe, 15)] {
        let command = Command::set_feature(1, 0x07, asked << 16 | asked);
        assert_eq!(rig.result(&command), (0, given << 16 | given));
    }
    for asked in [0xffff, 0xffff_0000] {
        assert_eq!(rig.result(&Command::set_feature(1, 0x07, asked)).0, 0x4002);
    }
}

#[test]
fn the_host_identifier_is_that_of_connect() {
    let mut rig = admin();
    let get = Command::get_feature(1, 0x81).dword(11, 1).at_host(16);
    assert_eq!(rig.fetch(&get), [HOST_ID; 16]);
    assert_eq!(rig.result(&Command::get_feature(1, 0x81).at_host(16)).0, 0x4002, "of 8 bytes");
    assert_eq!(rig.result(&Command::set_feature(1, 0x81, 1)).0, 0x400c);
}

#[test]
fn a_host_says_whether_it_understands_delays() {
    let mut rig = admin();
    assert!(!rig.session.controller().unwrap().delays);
    let mut behavior = vec![0; 512];
    behavior[0] = 1;
    assert_eq!(rig.result(&Command::set_feature(1, 0x16, 0).carries(&behavior)), (0, 0));
    assert!(rig.session.controller().unwrap().delays);
    assert_eq!(rig.fetch(&Command::get_feature(1, 0x16).at_host(512)), behavior);
    rig.ask(&Command::set_feature(1, 0x16, 0).at_host(512));
    let r2t = rig.answer();
    rig.give(&r2t, &[0; 512], 512);
    assert_eq!(rig.answer().answer(), (1, 0, 0));
    assert!(!rig.session.controller().unwrap().delays);
}

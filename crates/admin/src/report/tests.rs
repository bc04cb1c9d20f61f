//! What the report says of a status.

use super::servers::natural;
use super::*;
use wire::control::{
    ClientCounts, DeviceInfo, DeviceStatus, Heartbeat, IoCounts, MapTo, MapToHost, MdmInfo,
    ObjectStatus, PathCounts, ReservationInfo, SdcStatus, SeatStatus, TimeCounts, VolumeCounts,
    VolumeStatus,
};

fn path() -> PathCounts {
    let counts = Some(IoCounts {
        reads: 2,
        read_bytes: 8192,
        outstanding: 1,
        read_times: Some(TimeCounts { total_us: 300, ranges: vec![5, 2] }),
        ..IoCounts::default()
    });
    PathCounts {
        id: 7,
        volume: 1,
        protocol: "iscsi".into(),
        host: "iqn.host".into(),
        from: "10.0.0.9:1000".into(),
        counts,
        ..PathCounts::default()
    }
}

fn counts() -> ClientCounts {
    let path = path();
    ClientCounts {
        at_ms: 5000,
        volumes: vec![VolumeCounts { volume: 1, counts: path.counts.clone() }],
        paths: vec![path.clone(), PathCounts { volume: 2, ..path }],
        left_out: 3,
    }
}

fn sample() -> StatusInfo {
    let device = |id: u32, sds: u32, up: bool| DeviceStatus {
        info: Some(DeviceInfo { id, sds, up, kind: 1, capacity: 100, ..DeviceInfo::default() }),
        sds: format!("sds{sds}"),
        pid: 1000 + sds,
        connected: up,
        heartbeat: Some(Heartbeat::default()),
        ..DeviceStatus::default()
    };
    StatusInfo {
        cluster: 0xabc,
        refused_servers: vec![Default::default()],
        groups: 4,
        devices: vec![device(1, 1, true), device(2, 1, true), device(3, 2, true)],
        volumes: vec![VolumeStatus {
            id: 1,
            name: "v".into(),
            groups: 4,
            mapped: vec![MapTo::default()],
            hosts: vec![MapToHost::default()],
            seats: vec![Default::default()],
            reservations: Some(ReservationInfo {
                registrants: vec![Default::default()],
                ..Default::default()
            }),
            ..Default::default()
        }],
        sdcs: vec![SdcStatus {
            name: "host1".into(),
            counts: Some(counts()),
            connected: true,
            uris: vec![
                "nbd+unix:///?socket=/x".into(),
                "iscsi://10.0.0.1:3260".into(),
                "nvme-tcp://10.0.0.1:4420".into(),
            ],
            ..Default::default()
        }],
        objects: [ObjectKind::Domain, ObjectKind::FaultSet, ObjectKind::Pool]
            .map(|kind| ObjectStatus { kind: kind as i32, ..Default::default() })
            .into(),
        ..StatusInfo::default()
    }
}

fn report(info: &StatusInfo) -> Report {
    Report::new(info, "127.0.0.1:1".parse().unwrap())
}

#[test]
fn devices_of_a_server_are_summed_and_volumes_get_uris() {
    let report = report(&sample());
    assert_eq!((report.state, report.exit()), (State::Healthy, Exit::Ok));
    let caps: Vec<u64> = report.sds.iter().map(|s| s.capacity_bytes).collect();
    assert_eq!(caps, [200, 100]);
    assert_eq!(report.volumes[0].nbd_uris, ["nbd+unix:///v?socket=/x"]);
    let target = "iqn.2026-11.io.github.gabion:0000000000000abc.1";
    assert_eq!(report.volumes[0].iscsi_target, target);
    assert_eq!(report.volumes[0].iscsi_uris, [format!("iscsi://10.0.0.1:3260/{target}/0")]);
    assert_eq!(report.sdc[0].iscsi_portals, ["iscsi://10.0.0.1:3260"]);
    let volume = &report.volumes[0];
    assert_eq!(volume.nvme_portals, ["nvme-tcp://10.0.0.1:4420"]);
    assert_eq!(volume.nvme_uuid, "00000000-0000-80ab-b000-000000000001");
    let subsystem = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-80ab-b000-000000000000";
    assert_eq!(volume.nvme_subsystem, subsystem);
}

#[test]
fn uris_name_the_volume() {
    assert_eq!(
        volume_uri("nbd+unix:///?socket=/tmp/a%20b/nbd.sock", "vol1"),
        "nbd+unix:///vol1?socket=/tmp/a%20b/nbd.sock"
    );
    assert_eq!(volume_uri("nbd://127.0.0.1:10809/", "vol1"), "nbd://127.0.0.1:10809/vol1");
}

#[test]
fn servers_are_listed_as_people_count() {
    let mut names = ["sds10", "sds2", "b", "sds1", "a7"];
    names.sort_by_cached_key(|n| natural(n));
    assert_eq!(names, ["a7", "b", "sds1", "sds2", "sds10"]);
}

#[test]
fn a_missing_server_degrades_and_a_group_without_copies_fails() {
    let mut info = sample();
    info.devices[1].info.as_mut().unwrap().up = false;
    assert_eq!(report(&info).exit(), Exit::Degraded);
    assert_eq!(report(&info).sds_up(), 1);
    info.groups_failed = 1;
    assert_eq!(report(&info).exit(), Exit::Unserved);
}

#[test]
fn nothing_is_healthy_before_the_mdm_has_heard_of_every_server() {
    let mut info = sample();
    assert_eq!(report(&info).exit(), Exit::Ok);
    info.devices[1].connected = false;
    assert_eq!((report(&info).exit(), report(&info).sds_up()), (Exit::Degraded, 2));
}

#[test]
fn nothing_is_healthy_before_every_server_has_reported_its_content() {
    let mut info = sample();
    info.devices[1].heartbeat = None;
    assert_eq!(report(&info).exit(), Exit::Degraded);
    assert!(!report(&info).sds[0].devices[1].told);
    info.devices[1].info.as_mut().unwrap().up = false;
    assert_eq!(report(&info).exit(), Exit::Degraded);
}

#[test]
fn every_mdm_is_shown_and_a_lost_one_degrades() {
    let mut info = sample();
    let mdm = |id, leader, heard| MdmStatus {
        info: Some(MdmInfo { id, address: format!("127.0.0.1:{id}"), ..MdmInfo::default() }),
        leader,
        heard,
        voter: true,
        ..MdmStatus::default()
    };
    info.mdms = vec![mdm(1, false, true), mdm(2, true, false), mdm(3, false, true)];
    let told = report(&info);
    let ids: Vec<u32> = told.mdm.iter().map(|m| m.id).collect();
    assert_eq!((ids, told.state), (vec![2, 1, 3], State::Healthy));
    info.mdms[2].heard = false;
    let told = report(&info);
    assert_eq!((told.mdm[2].state, told.exit()), (UpDown::Down, Exit::Degraded));
}

#[test]
fn volumes_that_no_client_serves_any_more_degrade() {
    let mut info = sample();
    info.sdcs[0].connected = false;
    let told = report(&info);
    assert_eq!((told.volumes[0].unserved, told.exit()), (true, Exit::Degraded));
    // Programs that link the library come and go, so their absence is not a fault.
    info.sdcs[0].uris.clear();
    assert_eq!(report(&info).exit(), Exit::Ok);
    info.sdcs.push(SdcStatus {
        connected: true,
        uris: vec!["nbd://x/".into()],
        ..Default::default()
    });
    info.sdcs[0].uris.push("nbd://y/".into());
    assert_eq!(report(&info).exit(), Exit::Ok, "another one serves it");
}

#[test]
fn counts_of_a_volume_are_those_of_the_clients_that_are_up() {
    let mut info = sample();
    info.sdcs.push(SdcStatus { id: 2, ..info.sdcs[0].clone() });
    let volume = &report(&info).volumes[0];
    assert_eq!((volume.io.reads, volume.io.read_bytes, volume.io.outstanding), (4, 16384, 2));
    assert_eq!(volume.io.read_latency.mean_us, Some(150.0));
    assert_eq!((volume.clients.len(), volume.paths.len()), (2, 2));
    assert_eq!(volume.paths[0].host.as_deref(), Some("iqn.host"));
    assert_eq!((&volume.paths[0].portal, volume.paths[0].id), (&None, 7));
    info.sdcs[0].connected = false;
    assert_eq!(report(&info).volumes[0].io.reads, 2);
}

#[test]
fn a_host_is_shown_with_each_of_its_paths_and_what_serves_it() {
    let (iqn, nqn, idle) = ("iqn.host", "nqn.host", "iqn.idle");
    let mut info = sample();
    let seat =
        |host: &str, gateway: &str| SeatStatus { host: host.into(), gateway: gateway.into() };
    info.volumes[0].seats = vec![seat(iqn, "host1"), seat(nqn, "host2")];
    info.volumes[0].hosts = vec![MapToHost { host: idle.into(), access: 2 }];
    // A path of NVMe on which no volume was used yet.
    let unused = PathCounts { volume: 0, protocol: "nvme".into(), host: nqn.into(), ..path() };
    let mut second = SdcStatus { name: "host2".into(), id: 2, ..info.sdcs[0].clone() };
    second.counts.as_mut().unwrap().paths.push(unused.clone());
    info.sdcs[0].counts.as_mut().unwrap().paths.push(unused);
    info.sdcs.push(second);
    let told = report(&info);
    let names: Vec<_> = told.hosts.iter().map(|h| (h.name.as_str(), h.protocol)).collect();
    assert_eq!(names, [(iqn, "iscsi"), (idle, "iscsi"), (nqn, "nvme")]);
    let paths = |n: usize| -> Vec<_> {
        let all = told.hosts[n].connections.iter();
        all.map(|c| (c.sdc.as_str(), c.optimized.len(), c.standby.len())).collect()
    };
    assert_eq!(paths(0), [("host1", 1, 0), ("host2", 0, 1)]);
    assert_eq!(paths(2), [("host1", 0, 1), ("host2", 1, 0)]);
    assert_eq!(told.hosts[0].connections[0].host_addresses, ["10.0.0.9"]);
    assert_eq!((paths(1).len(), told.hosts[1].mapped[0].volume.as_str()), (0, "v"));
    assert_eq!((told.sdc[0].nvme_hosts, told.volumes[0].paths.len()), (1, 2));
    // A client that is down has no connections.
    info.sdcs[1].connected = false;
    assert_eq!(report(&info).hosts[2].connections.len(), 1);
}

/// The published fields. This test may only get additions.
#[test]
// Long: a table of all fields.
fn the_published_fields_are_all_there() {
    let json = serde_json::to_value(report(&sample())).unwrap();
    for path in [
        "/schema",
        "/cluster",
        "/state",
        "/map_version",
        "/mdm/0/address",
        "/mdm/0/pid",
        "/mdm/0/state",
        "/mdm/0/name",
        "/mdm/0/id",
        "/mdm/0/role",
        "/mdm/0/leads",
        "/mdm/0/votes",
        "/mdm/0/entries_behind",
        "/level",
        "/mdm/0/build",
        "/sds/0/build",
        "/sdc/0/build",
        "/turned_away/0/name",
        "/turned_away/0/shard",
        "/turned_away/0/address",
        "/turned_away/0/why",
        "/turned_away/0/seconds_ago",
        "/sds/0/devices/0/told",
        "/volumes/0/unserved",
        "/sds/0/name",
        "/sds/0/id",
        "/sds/0/state",
        "/sds/0/pid",
        "/sds/0/address",
        "/sds/0/capacity_bytes",
        "/sds/0/used_bytes",
        "/sds/0/devices/0/id",
        "/sds/0/devices/0/shard",
        "/sds/0/devices/0/kind",
        "/sds/0/devices/0/state",
        "/sds/0/devices/0/dead",
        "/sds/0/devices/0/connected",
        "/sds/0/devices/0/address",
        "/sds/0/devices/0/incarnation",
        "/sds/0/devices/0/capacity_bytes",
        "/sds/0/devices/0/used_bytes",
        "/sds/0/devices/0/groups",
        "/sds/0/devices/0/groups_led",
        "/sds/0/devices/0/resync_remaining_bytes",
        "/sds/0/devices/0/resync_moved_bytes",
        "/sds/0/devices/0/ops",
        "/sds/0/devices/0/full",
        "/sds/0/devices/0/leaving",
        "/sds/0/devices/0/waiting",
        "/sds/0/devices/0/groups_coming",
        "/sds/0/devices/0/groups_going",
        "/sds/0/process_name",
        "/sds/0/protection_domain",
        "/sds/0/fault_set",
        "/sds/0/devices/0/storage_pool",
        "/name",
        "/protection_domains/0/name",
        "/fault_sets/0/protection_domain",
        "/storage_pools/0/media_type",
        "/storage_pools/0/spare_percent",
        "/storage_pools/0/zero_padding",
        "/storage_pools/0/reserved_bytes",
        "/volumes/0/storage_pool",
        "/volumes/0/thick",
        "/volumes/0/mapped/0/sdc",
        "/volumes/0/mapped/0/all",
        "/volumes/0/mapped/0/access",
        "/volumes/0/mapped_hosts/0/host",
        "/volumes/0/mapped_hosts/0/all",
        "/volumes/0/mapped_hosts/0/access",
        "/volumes/0/reservations/kind",
        "/volumes/0/reservations/generation",
        "/volumes/0/reservations/registrants/0/host",
        "/volumes/0/reservations/registrants/0/isid",
        "/volumes/0/reservations/registrants/0/key",
        "/volumes/0/reservations/registrants/0/holds",
        "/volumes/0/seats/0/host",
        "/volumes/0/seats/0/gateway",
        "/hosts/0/name",
        "/hosts/0/protocol",
        "/hosts/0/connections",
        "/hosts/0/seats/0/volume",
        "/hosts/0/seats/0/gateway",
        "/hosts/0/mapped",
        "/hosts/1/connections/0/sdc",
        "/hosts/1/connections/0/host_addresses/0",
        "/hosts/1/connections/0/portals",
        "/hosts/1/connections/0/optimized",
        "/hosts/1/connections/0/standby/0",
        "/moves/groups",
        "/moves/waiting_groups",
        "/moves/remaining_bytes",
        "/moves/eta_seconds",
        "/moves/held_back",
        "/sdc/0/name",
        "/sdc/0/id",
        "/sdc/0/state",
        "/sdc/0/pid",
        "/sdc/0/nbd_uris/0",
        "/sdc/0/iscsi_portals/0",
        "/sdc/0/nvme_portals/0",
        "/sdc/0/process_name",
        "/sdc/0/gateway",
        "/sdc/0/nbd_connections",
        "/sdc/0/iscsi_sessions",
        "/sdc/0/nvme_hosts",
        "/volumes/0/name",
        "/volumes/0/id",
        "/volumes/0/size_bytes",
        "/volumes/0/state",
        "/volumes/0/nbd_uris/0",
        "/volumes/0/iscsi_uris/0",
        "/volumes/0/iscsi_target",
        "/volumes/0/nvme_portals/0",
        "/volumes/0/nvme_subsystem",
        "/volumes/0/nvme_uuid",
        "/volumes/0/groups/total",
        "/volumes/0/io/reads",
        "/volumes/0/io/read_bytes",
        "/volumes/0/io/writes",
        "/volumes/0/io/written_bytes",
        "/volumes/0/io/zeroes",
        "/volumes/0/io/zeroed_bytes",
        "/volumes/0/io/flushes",
        "/volumes/0/io/extents",
        "/volumes/0/io/failed",
        "/volumes/0/io/outstanding",
        "/volumes/0/io/read_latency/mean_us",
        "/volumes/0/io/read_latency/p50_us",
        "/volumes/0/io/read_latency/p99_us",
        "/volumes/0/io/read_latency/total_us",
        "/volumes/0/io/read_latency/histogram/0/from_us",
        "/volumes/0/io/read_latency/histogram/0/below_us",
        "/volumes/0/io/read_latency/histogram/0/count",
        "/volumes/0/io/write_latency/mean_us",
        "/volumes/0/clients/0/sdc",
        "/volumes/0/clients/0/counted_ms",
        "/volumes/0/clients/0/reads",
        "/volumes/0/paths/0/sdc",
        "/volumes/0/paths/0/id",
        "/volumes/0/paths/0/protocol",
        "/volumes/0/paths/0/host",
        "/volumes/0/paths/0/host_address",
        "/volumes/0/paths/0/portal",
        "/volumes/0/paths/0/reads",
        "/volumes/0/paths/0/read_latency/p99_us",
        "/sdc/0/counts_left_out",
        "/sdc/0/hosts_left_out",
        "/groups/total",
        "/groups/degraded",
        "/groups/failed",
        "/capacity/total_bytes",
        "/capacity/protected_bytes",
        "/capacity/degraded_bytes",
        "/capacity/failed_bytes",
        "/resync/remaining_bytes",
        "/resync/rate_bytes_per_second",
        "/resync/moved_bytes",
    ] {
        assert!(json.pointer(path).is_some(), "{path} is missing");
    }
    assert_eq!(json["state"], "healthy");
}

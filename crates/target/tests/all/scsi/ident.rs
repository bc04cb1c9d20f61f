//! Identifiers: fixed vectors, and the ids that can be read from them. The vectors never change:
//! hosts remember them.

use super::rig::{CLUSTER, VOLUME, cases, hex};
use base::{ClusterId, VolumeId};
use proptest::prelude::*;
use target::ident::*;

#[test]
fn identifiers_are_what_they_always_were() {
    assert_eq!(uuid_text(&uuid(CLUSTER, VOLUME)), "01234567-89ab-8cde-bc00-000000000007");
    assert_eq!(uuid(CLUSTER, VOLUME)[..], hex("01234567 89ab 8cde bc00 000000000007"));
    assert_eq!(nguid(CLUSTER, VOLUME)[..], hex("00000007 01234567 024742 6789abcdef"));
    assert_eq!(naa(CLUSTER, VOLUME)[..], hex("39abcdef 00000007"));
    assert_eq!(t10(CLUSTER, VOLUME), "0123456789abcdef-00000007");
    assert_eq!(serial(CLUSTER, VOLUME), "89abcdef00000007");
    assert_eq!(nvme_serial(CLUSTER), "0123456789abcdef");
    assert_eq!(
        nqn(CLUSTER),
        "nqn.2014-08.org.nvmexpress:uuid:01234567-89ab-8cde-bc00-000000000000"
    );
    let target = iqn(AUTHORITY, CLUSTER, VOLUME);
    assert_eq!(target, "iqn.2026-11.io.github.gabion:0123456789abcdef.7");
    assert_eq!(target_port(&target, 3), format!("{target},t,0x0003"));
    assert_eq!(unit_name(&target), format!("{target},L,0x0000000000000000"));
    assert_eq!(initiator_port("iqn.a", [0x40, 1, 2, 3, 0xab, 5]), "iqn.a,i,0x40010203ab05");
    assert_eq!((port(0), port(126)), (1, 127));
}

#[test]
fn names_that_were_not_made_here_are_not_read() {
    let own = |name: &str| ids_of_iqn(AUTHORITY, name);
    let at = |rest: &str| format!("{AUTHORITY}:{rest}");
    assert_eq!(own(&at("0123456789abcdef.7")), Some((CLUSTER, VOLUME)));
    for wrong in [
        "",
        "0123456789abcdef",
        "123456789abcdef.7",
        "0123456789abcdef.07",
        "0123456789ABCDEF.7",
        "0123456789abcdef.+7",
        "0123456789abcdef.4294967296",
    ] {
        assert_eq!(own(&at(wrong)), None, "{wrong}");
    }
    assert_eq!(own("iqn.2026-11.io.github.gabio:0123456789abcdef.7"), None);
    let longest = iqn(AUTHORITY, ClusterId(u64::MAX), VolumeId(u32::MAX));
    assert!(longest.len() <= ISCSI_NAME_MAX);
}

/// Returns the ids that a UUID has.
fn in_uuid(bytes: [u8; 16]) -> (ClusterId, VolumeId) {
    let all = u128::from_be_bytes(bytes);
    let cluster = all >> 80 << 16 | (all >> 64 & 0xfff) << 4 | all >> 58 & 0xf;
    (ClusterId(cluster as u64), VolumeId(all as u32))
}

/// Returns the ids that an NGUID has.
fn in_nguid(bytes: [u8; 16]) -> (ClusterId, VolumeId) {
    let all = u128::from_be_bytes(bytes);
    let cluster = (all >> 64 & 0xffff_ffff) << 32 | all & 0xffff_ffff;
    // The 40 bits at the end are those of the cluster from its fourth byte on.
    assert_eq!(all >> 32 & 0xff, cluster >> 32 & 0xff);
    (ClusterId(cluster as u64), VolumeId((all >> 96) as u32))
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn ids_are_read_back(cluster in any::<u64>(), volume in any::<u32>()) {
        let (cluster, volume) = (ClusterId(cluster), VolumeId(volume));
        let ids = Some((cluster, volume));
        prop_assert_eq!(in_uuid(uuid(cluster, volume)), (cluster, volume));
        prop_assert_eq!(in_nguid(nguid(cluster, volume)), (cluster, volume));
        prop_assert_eq!(ids_of_iqn(AUTHORITY, &iqn(AUTHORITY, cluster, volume)), ids);
        let uuid = uuid(cluster, volume);
        prop_assert_eq!((uuid[6] >> 4, uuid[8] >> 6), (8, 2), "version and variant");
        prop_assert_eq!(naa(cluster, volume)[0] >> 4, 3);
    }
}

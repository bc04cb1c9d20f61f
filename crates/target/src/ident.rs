//! The identifiers by which hosts know volumes. They depend only on the ids of the cluster and the
//! volume. Names can change, but ids can't, and are never reused. So every gateway gives the same
//! identifiers forever.
//!
//! Invariant: no two pairs of ids have the same UUID, NGUID, or iSCSI name. Parsing an iSCSI name
//! returns the ids from which it was made, and names that were not made here are refused.

use alloc::format;
use alloc::string::String;
use base::{ClusterId, VolumeId};
use core::fmt::Write;
use core::ops::RangeInclusive;

/// The naming authority of iSCSI names, unless the configuration has another one.
pub const AUTHORITY: &str = "iqn.2026-11.io.github.gabion";

/// The start of the NVMe names that are made of a UUID (NVMe base 1.4, 7.9).
const NQN_UUID: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// The part of an NGUID where an OUI would be: locally administered, `GB`.
const LOCAL: [u8; 3] = [0x02, 0x47, 0x42];

/// The longest iSCSI name in bytes (RFC 7143 4.2.7.1).
pub const ISCSI_NAME_MAX: usize = 223;

/// Returns true if an iSCSI node may have this name.
///
/// No name is one of both protocols. A host is its name, whatever it speaks: with the name of a
/// host of the other protocol it could take that host's seats, without its secret.
pub(crate) fn is_iscsi_name(name: &str) -> bool {
    is_visible(name) && name.len() <= ISCSI_NAME_MAX && !name.starts_with("nqn.")
}

/// Returns true if an NVMe host or subsystem may have this name. It is not one of iSCSI.
pub(crate) fn is_nvme_name(name: &str) -> bool {
    is_visible(name) && !["iqn.", "eui.", "naa."].iter().any(|of| name.starts_with(of))
}

/// Characters that people do not see, or that change how they see others: Unicode's category Cf,
/// and characters that are ignored where a font does not have them.
const UNSEEN: [RangeInclusive<char>; 25] = [
    '\u{ad}'..='\u{ad}',
    '\u{34f}'..='\u{34f}',
    '\u{600}'..='\u{605}',
    '\u{61c}'..='\u{61c}',
    '\u{6dd}'..='\u{6dd}',
    '\u{70f}'..='\u{70f}',
    '\u{890}'..='\u{891}',
    '\u{8e2}'..='\u{8e2}',
    '\u{115f}'..='\u{1160}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    '\u{200b}'..='\u{200f}',
    '\u{202a}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{3164}'..='\u{3164}',
    '\u{fe00}'..='\u{fe0f}',
    '\u{feff}'..='\u{feff}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{fff0}'..='\u{fffb}',
    '\u{110bd}'..='\u{110bd}',
    '\u{110cd}'..='\u{110cd}',
    '\u{13430}'..='\u{1343f}',
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0000}'..='\u{e0fff}',
];

/// Returns true if people see each character of a name, in its place: it is not empty, and has no
/// spaces, control characters, or characters that change how others are shown. A host chooses its
/// name, and operators see it in tables and logs. No host needs another name (RFC 3722 6).
pub fn is_visible(name: &str) -> bool {
    let unseen = |c: char| UNSEEN.iter().any(|range| range.contains(&c));
    !name.is_empty() && !name.chars().any(|c| c.is_control() || c.is_whitespace() || unseen(c))
}

/// Returns the UUID of a volume; with volume 0, that of the cluster. Version 8 (RFC 9562 5.8): the
/// cluster in custom_a, custom_b and the high four bits of custom_c, the volume in the last 32
/// bits.
pub fn uuid(cluster: ClusterId, volume: VolumeId) -> [u8; 16] {
    let c = cluster.0;
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&c.to_be_bytes()[..6]);
    bytes[6] = 0x80 | (c >> 12 & 0x0f) as u8;
    bytes[7] = (c >> 4) as u8;
    bytes[8] = 0x80 | ((c & 0x0f) as u8) << 2;
    bytes[12..].copy_from_slice(&volume.0.to_be_bytes());
    bytes
}

/// Returns a UUID in its text form.
pub fn uuid_text(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (i, byte) in bytes.iter().enumerate() {
        let dash = if matches!(i, 4 | 6 | 8 | 10) { "-" } else { "" };
        let _ = write!(text, "{dash}{byte:02x}");
    }
    text
}

/// Returns the NGUID of a namespace (NVMe base 1.4, 7.11).
pub fn nguid(cluster: ClusterId, volume: VolumeId) -> [u8; 16] {
    let c = cluster.0.to_be_bytes();
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&volume.0.to_be_bytes());
    bytes[4..8].copy_from_slice(&c[..4]);
    bytes[8..11].copy_from_slice(&LOCAL);
    bytes[11..].copy_from_slice(&c[3..]);
    bytes
}

/// Returns the NAA identifier of a logical unit, locally assigned (SPC-4 7.8.6.6.4): 28 bits of the
/// cluster, and the volume.
pub fn naa(cluster: ClusterId, volume: VolumeId) -> [u8; 8] {
    let cluster = cluster.0 & 0x0fff_ffff;
    (0x3 << 60 | cluster << 32 | u64::from(volume.0)).to_be_bytes()
}

/// Returns what follows the vendor in the T10 vendor identifier of a logical unit.
pub fn t10(cluster: ClusterId, volume: VolumeId) -> String {
    format!("{:016x}-{:08x}", cluster.0, volume.0)
}

/// Returns the serial number of a logical unit.
pub fn serial(cluster: ClusterId, volume: VolumeId) -> String {
    format!("{:08x}{:08x}", cluster.0 as u32, volume.0)
}

/// Returns the serial number of the NVMe subsystem.
pub fn nvme_serial(cluster: ClusterId) -> String {
    format!("{:016x}", cluster.0)
}

/// Returns the name of the NVMe subsystem, which has all volumes of the cluster.
pub fn nqn(cluster: ClusterId) -> String {
    format!("{NQN_UUID}{}", uuid_text(&uuid(cluster, VolumeId(0))))
}

/// Returns the name of the iSCSI target of a volume.
pub fn iqn(authority: &str, cluster: ClusterId, volume: VolumeId) -> String {
    format!("{authority}:{:016x}.{}", cluster.0, volume.0)
}

/// Returns the ids from which the name of an iSCSI target was made.
pub fn ids_of_iqn(authority: &str, name: &str) -> Option<(ClusterId, VolumeId)> {
    let (cluster, volume) = name.strip_prefix(authority)?.strip_prefix(':')?.split_once('.')?;
    let cluster = ClusterId(u64::from_str_radix(cluster, 16).ok()?);
    let volume = VolumeId(volume.parse().ok()?);
    (iqn(authority, cluster, volume) == name).then_some((cluster, volume))
}

/// Returns the SCSI name of an iSCSI target port (RFC 7143 4.4.2): the target, and its portal
/// group.
pub fn target_port(target: &str, group: u16) -> String {
    format!("{target},t,0x{group:04x}")
}

/// Returns the SCSI name of an iSCSI initiator port (RFC 7143 4.4.2): the initiator, and its
/// session id.
pub fn initiator_port(name: &str, isid: [u8; 6]) -> String {
    let [a, b, c, d, e, f] = isid;
    format!("{name},i,0x{a:02x}{b:02x}{c:02x}{d:02x}{e:02x}{f:02x}")
}

/// Returns the SCSI name of the only logical unit of a target.
pub fn unit_name(target: &str) -> String {
    format!("{target},L,0x0000000000000000")
}

/// Returns the group of ports, the relative port and the portal group of a gateway.
pub fn port(gateway: u8) -> u16 {
    u16::from(gateway) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_people_would_see_in_another_way_are_found() {
        for name in ["iqn.2026-11.test:a", "nqn.2026-11.test:z\u{fc}rich", "iqn.a:\u{4e3b}\u{673a}"]
        {
            assert!(is_visible(name), "{name}");
        }
        let hidden = "\0\n\x1b \u{a0}\u{ad}\u{9b}\u{200b}\u{202e}\u{2028}\u{2066}\u{feff}\u{e0041}";
        for c in hidden.chars() {
            assert!(!is_visible(&format!("iqn.a{c}b")), "{c:?}");
        }
        assert!(!is_visible(""));
    }
}

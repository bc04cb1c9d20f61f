//! Seats: the one gateway that serves a host of a volume (docs/design/0012-seats.md).

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use base::SdcId;
use target::ident::is_visible;
use wire::control::SeatInfo;

/// The most seats of one volume. Not a field of `Limits`, because all MDMs must apply the same
/// number.
pub const SEATS: usize = 128;
/// The most bytes of the name of a host: those of an iSCSI or NVMe name.
pub const HOST_NAME: usize = 223;
/// The number of numbers for gateways. Ids of NVMe controllers have room for this many.
pub const GATEWAYS: u8 = 127;

/// The gateway that serves a host of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seat {
    /// The gateway.
    pub sdc: SdcId,
    /// The generation of the volume at which it got the seat.
    pub since: u32,
}

/// The seats of a volume, by the names of its hosts.
pub type Seats = BTreeMap<String, Seat>;

/// Encodes the seats of a volume for the map and snapshots.
pub fn seat_infos(seats: &Seats) -> Vec<SeatInfo> {
    let info = |(host, seat): (&String, &Seat)| SeatInfo {
        host: host.clone(),
        sdc: seat.sdc.0,
        since: seat.since,
    };
    seats.iter().map(info).collect()
}

/// Decodes the seats of a volume's entry in the map.
pub fn seats(infos: Vec<SeatInfo>) -> Seats {
    let seat = |s: SeatInfo| (s.host, Seat { sdc: SdcId(s.sdc), since: s.since });
    infos.into_iter().map(seat).collect()
}

/// Returns true if a host may have this name.
pub fn is_host_name(name: &str) -> bool {
    (1..=HOST_NAME).contains(&name.len())
}

/// Returns true if this has the form of a name of an iSCSI initiator or an NVMe host.
pub(crate) fn is_iscsi_or_nvme_name(name: &str) -> bool {
    let known = ["iqn.", "eui.", "naa.", "nqn."].iter().any(|kind| name.starts_with(kind));
    known && is_host_name(name) && is_visible(name)
}

/// Returns true if a volume of this generation may have these seats.
pub(crate) fn are_sound(seats: &Seats, generation: u32) -> bool {
    let sound = |(host, seat): (&String, &Seat)| is_host_name(host) && seat.since <= generation;
    seats.len() <= SEATS && seats.iter().all(sound)
}

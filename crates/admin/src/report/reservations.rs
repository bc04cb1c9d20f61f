//! Reservations of volumes, as `status --json` publishes them.

use serde::Serialize;
use wire::control::{RegistrantInfo, ReservationInfo, ReservationKind};

/// The hosts that are registered with a volume, and the reservation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Reservations {
    /// The type of the reservation; `None` if there is none.
    pub kind: Option<&'static str>,
    /// The number of changes to registrations (PRgeneration).
    pub generation: u32,
    /// The registered hosts; the one that registered last is the last.
    pub registrants: Vec<Registrant>,
}

/// A registered host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Registrant {
    /// The name of the iSCSI initiator, or the identifier of the NVMe host in hex.
    pub host: String,
    /// The ISID of the initiator in hex; `None` for an NVMe host.
    pub isid: Option<String>,
    /// Its key in hex.
    pub key: String,
    /// It holds the reservation.
    pub holds: bool,
}

impl Reservations {
    /// Converts the table for the report; `None` if no host is registered.
    pub(super) fn of(info: &ReservationInfo) -> Option<Reservations> {
        let kind = match info.kind() {
            ReservationKind::None => None,
            ReservationKind::WriteExclusive => Some("write-exclusive"),
            ReservationKind::ExclusiveAccess => Some("exclusive-access"),
            ReservationKind::WriteExclusiveRegistrants => Some("write-exclusive-registrants-only"),
            ReservationKind::ExclusiveAccessRegistrants => {
                Some("exclusive-access-registrants-only")
            }
            ReservationKind::WriteExclusiveAll => Some("write-exclusive-all-registrants"),
            ReservationKind::ExclusiveAccessAll => Some("exclusive-access-all-registrants"),
        };
        let all = kind.is_some_and(|kind| kind.ends_with("all-registrants"));
        let registrants: Vec<Registrant> =
            info.registrants.iter().map(|r| Registrant::of(r, all)).collect();
        let generation = info.generation;
        (!registrants.is_empty()).then_some(Reservations { kind, generation, registrants })
    }
}

impl Registrant {
    fn of(info: &RegistrantInfo, all: bool) -> Registrant {
        let id: String = info.who.id.iter().map(|byte| format!("{byte:02x}")).collect();
        let (key, holds) = (format!("{:#x}", info.key), info.holds || all);
        match info.who.name.is_empty() {
            true => Registrant { host: id, isid: None, key, holds },
            false => Registrant { host: info.who.name.clone(), isid: Some(id), key, holds },
        }
    }
}

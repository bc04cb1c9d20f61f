//! Reserved bytes and flags for features that are not built yet. A later protocol version gives
//! them a meaning. Until then they are zero, and receivers check that.
//!
//! | what | bytes | in |
//! |---|---|---|
//! | class of service | 22 | all kinds below, `Fetch`, `Fetched`, `Damage` |
//! | generation of a snapshot | 112 to 119 | the same |
//! | stages of a slow request, 4 bytes each | 48 to 63 | clients' operations |
//! | | 64 to 79 | `Reply`, `Replicated` |
//! | | 104 to 111, 120 to 123 | `Replicate`: three, as its fourth ends at the receiver |
//!
//! Unused otherwise: byte 23 of all kinds, and
//!
//! | kind | bytes |
//! |---|---|
//! | `Read`, `Write`, `Zero`, `Extents`, `CompareWrite` | 20 and 21, 124 to 127 |
//! | `Reply` | 36 to 39, 48 to 63, 80 to 87, 92 to 103, 120 to 127 |
//! | `Replicate` | 20 and 21 |
//! | `Replicated` | 36 to 39, 56 to 63, 80 to 95, 120 to 127 |
//!
//! Flags that are free are in [`FREE_FLAGS`].

use super::layout::{Mask, both, flags, span};
use super::{
    CompareWrite, Damage, Extents, Fetch, Fetched, Read, Replicate, Replicated, Reply, Write, Zero,
};

/// The class of service, and the generation of a snapshot.
const CLASS_AND_SNAPSHOT: Mask = both(span(22, 1), span(112, 8));

/// The bytes that each kind has to keep free.
const ROOM: [(Mask, Mask); 11] = [
    (Read::USED, both(CLASS_AND_SNAPSHOT, span(48, 16))),
    (Write::USED, both(CLASS_AND_SNAPSHOT, span(48, 16))),
    (Zero::USED, both(CLASS_AND_SNAPSHOT, span(48, 16))),
    (Extents::USED, both(CLASS_AND_SNAPSHOT, span(48, 16))),
    (CompareWrite::USED, both(CLASS_AND_SNAPSHOT, span(48, 16))),
    (Fetch::USED, CLASS_AND_SNAPSHOT),
    (Fetched::USED, CLASS_AND_SNAPSHOT),
    (Damage::USED, CLASS_AND_SNAPSHOT),
    (Replicate::USED, both(CLASS_AND_SNAPSHOT, both(span(104, 8), span(120, 4)))),
    (Reply::USED, both(CLASS_AND_SNAPSHOT, span(64, 16))),
    (Replicated::USED, both(CLASS_AND_SNAPSHOT, span(64, 16))),
];

/// The flags of each kind that have no meaning yet. 64 is left out: it is `NO_BODY_CRC` where a
/// body may have no checksum.
const FREE_FLAGS: [(Mask, u8); 11] = [
    (Read::USED, 1 | 2 | 8 | 16 | 32 | 128),
    (Write::USED, 1 | 2 | 8 | 16 | 32 | 128),
    (Zero::USED, 2 | 8 | 16 | 32 | 128),
    (Extents::USED, 1 | 2 | 8 | 16 | 32 | 128),
    (CompareWrite::USED, 1 | 2 | 8 | 16 | 32 | 128),
    (Fetch::USED, 1 | 2 | 4 | 8 | 16 | 32 | 128),
    (Fetched::USED, 1 | 2 | 4 | 8 | 16 | 32 | 128),
    (Damage::USED, 1 | 2 | 4 | 8 | 16 | 32 | 128),
    (Replicate::USED, 4 | 32),
    (Reply::USED, 2 | 4 | 8 | 16 | 32 | 128),
    (Replicated::USED, 1 | 2 | 4 | 8 | 16 | 32 | 128),
];

const _: () = {
    let mut kind = 0;
    while kind < ROOM.len() {
        both(ROOM[kind].0, ROOM[kind].1); // fails to compile if a field is there
        both(FREE_FLAGS[kind].0, flags(FREE_FLAGS[kind].1)); // or a flag
        kind += 1;
    }
};

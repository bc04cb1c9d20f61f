//! Properties for any bytes: no panic, no request outside the volume, and every answer fits.

use super::rig::*;
use proptest::collection::vec;
use proptest::prelude::*;
use seam::BlockError;
use target::reserve::Access;
use target::scsi::*;

/// Operation codes that exist, more often than those that do not.
fn opcode() -> impl Strategy<Value = u8> {
    let known = vec![
        0x00u8, 0x03, 0x08, 0x0a, 0x12, 0x15, 0x1a, 0x1b, 0x1d, 0x1e, 0x25, 0x28, 0x2a, 0x2e, 0x2f,
        0x34, 0x35, 0x37, 0x41, 0x42, 0x55, 0x5a, 0x5e, 0x5f, 0x88, 0x89, 0x8a, 0x8e, 0x8f, 0x90,
        0x91, 0x93, 0x9e, 0xa0, 0xa3, 0xa8, 0xaa, 0xae, 0xaf, 0xb7,
    ];
    prop_oneof![9 => proptest::sample::select(known), 1 => any::<u8>()]
}

/// A CDB whose bytes are mostly small, so that it is often valid.
fn cdb() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![6 => Just(0u8), 2 => 0u8..16, 1 => any::<u8>()];
    (opcode(), vec(byte, 0..32)).prop_map(|(opcode, mut rest)| {
        rest.insert(0, opcode);
        rest
    })
}

fn format() -> impl Strategy<Value = Format> {
    prop_oneof![Just(Format::Native512), Just(Format::Emulated512), Just(Format::Native4k)]
}

/// Returns the allocation length of a command that has one and announces data for the host.
fn allocation(cdb: &[u8]) -> Option<usize> {
    let number = |at: usize, len: usize| {
        cdb[at..at + len].iter().fold(0, |n, byte| n << 8 | usize::from(*byte))
    };
    Some(match cdb[0] {
        0x03 | 0x1a => number(4, 1),
        0x12 => number(3, 2),
        0x37 | 0x5a | 0x5e => number(7, 2),
        0x9e => number(10, 4),
        0xa0 | 0xa3 | 0xb7 => number(6, 4),
        _ => return None,
    })
}

proptest! {
    #![proptest_config(cases(4096))]

    /// The rig checks that requests are within the volume, and what a session may rely on.
    #[test]
    fn any_commands_end_and_fit(
        format in format(),
        commands in vec(
            (cdb(), vec(any::<u8>(), 0..64), 0u32..10_000, 0usize..3, any::<u8>()),
            1..8,
        ),
    ) {
        let mut rig = Rig::fresh(unit(format));
        for (cdb, seed, reads, shape, more) in commands {
            // Data of a plausible length: none, one block, or anything.
            let sends = match shape {
                0 => 0,
                1 => format.block() as usize,
                _ => seed.len() * usize::from(more),
            };
            let data: Vec<u8> = seed.iter().chain(&[0]).cycle().take(sends).copied().collect();
            rig.fails = (more == 255).then_some(BlockError::Media.into());
            rig.hosts[0].1.set_access(Access { read: more & 8 == 0, write: more & 16 == 0 });
            let told = rig.run(usize::from(more & 1), &cdb, reads, &data);
            prop_assert!(told.data.len() <= reads as usize);
            if told.is_good() && let Some(allocation) = allocation(&cdb) {
                prop_assert!(told.data.len() <= allocation, "{:x?}", cdb);
                let moved = told.data.len() as u64;
                match told.residual {
                    Residual::None => prop_assert_eq!(moved, u64::from(reads)),
                    Residual::Under(n) => prop_assert_eq!(moved + u64::from(n), u64::from(reads)),
                    Residual::Over(n) => {
                        prop_assert_eq!(moved, u64::from(reads));
                        prop_assert!(moved as usize + n as usize <= allocation);
                    }
                }
            }
        }
        prop_assert_eq!(rig.pool.used(), 0, "nothing keeps a buffer");
    }

    #[test]
    fn any_bytes_have_an_answer(
        cdb in vec(any::<u8>(), 0..300),
        lun in any::<u64>(),
        reads in any::<u32>(),
        list in vec(any::<u8>(), 0..300),
    ) {
        let mut rig = Rig::new(Format::Native512);
        let sends = list.len() as u32;
        let command = Command { lun, cdb: &cdb, attribute: Attribute::Simple, reads, sends };
        rig.command(0, &command, &list);
    }

    /// A parameter list that is broken anywhere changes nothing, or is valid.
    #[test]
    fn any_parameter_lists_have_an_answer(
        opcode in proptest::sample::select(vec![0x15u8, 0x55, 0x42, 0x5f]),
        action in 0u8..8,
        list in vec(prop_oneof![3 => Just(0u8), 2 => 0u8..32, 1 => any::<u8>()], 0..200),
    ) {
        let mut rig = Rig::new(Format::Emulated512);
        let len = list.len() as u8;
        let cdb = match opcode {
            0x15 => vec![0x15, 0x10, 0, 0, len, 0],
            0x5f => vec![0x5f, action, 1, 0, 0, 0, 0, 0, len, 0],
            _ => vec![opcode, if opcode == 0x55 { 0x10 } else { 0 }, 0, 0, 0, 0, 0, 0, len, 0],
        };
        let told = rig.write(&cdb, &list);
        let valid = told.is_good() || told.status == Status::ReservationConflict;
        prop_assert!(valid || told.sense.0 == 5, "{:?}", told);
        prop_assert!(told.is_good() || rig.did.is_empty());
    }
}

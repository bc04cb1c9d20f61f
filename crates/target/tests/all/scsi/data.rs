//! Commands that move, compare or change data. Where libiscsi's `iscsi-test-cu` looks at the same
//! thing, its test is named.

use super::rig::*;
use seam::BlockError;
use target::scsi::*;

const OPCODES: [(u8, u8, u8, u8); 3] =
    [(0x28, 0x2a, 0x2e, 0x2f), (0xa8, 0xaa, 0xae, 0xaf), (0x88, 0x8a, 0x8e, 0x8f)];

/// Returns a CDB with a range, in the form that its operation code has.
fn cdb(opcode: u8, flags: u8, lba: u64, count: u32) -> Vec<u8> {
    match opcode >> 5 {
        1 | 2 => cdb10(opcode, flags, lba as u32, count as u16).to_vec(),
        5 => cdb12(opcode, flags, lba as u32, count).to_vec(),
        _ => cdb16(opcode, flags, lba, count).to_vec(),
    }
}

fn formats() -> [Format; 3] {
    [Format::Native512, Format::Emulated512, Format::Native4k]
}

#[test]
fn what_is_written_is_read() {
    for format in formats() {
        let (mut rig, block) = (Rig::new(format), format.block() as usize);
        for (round, (read, write, write_verify, verify)) in OPCODES.into_iter().enumerate() {
            let data: Vec<u8> = (0..3 * block).map(|i| (i / 7 + round) as u8).collect();
            assert_eq!(rig.write(&cdb(write, 0x18, 5, 3), &data), Told::good());
            assert_eq!(rig.disk[5 * block..][..3 * block], data);
            let told = rig.read(&cdb(read, 0x1a, 5, 3), 3 * block as u32);
            assert_eq!(told, Told { data: data.clone(), ..Told::good() });
            assert_eq!(rig.write(&cdb(verify, 0x02, 5, 3), &data), Told::good());
            let other = vec![round as u8; block];
            assert_eq!(rig.write(&cdb(write_verify, 0x02, 6, 1), &other), Told::good());
            let told = rig.write(&cdb(verify, 0x12, 5, 3), &data);
            assert_eq!(told.sense, says::MISCOMPARE);
            assert_eq!(rig.write(&cdb(verify, 0x10, 5, 3), &[]), Told::good(), "BYTCHK 0");
        }
    }
}

#[test]
fn six_byte_commands_move_data() {
    let mut rig = Rig::new(Format::Native512);
    let data = vec![7; 256 * 512];
    assert_eq!(rig.write(&[0x0a, 0, 0, 9, 0, 0], &data), Told::good());
    assert_eq!(rig.read(&[0x08, 0, 0, 9, 0, 0], 256 * 512).data, data);
    assert_eq!(rig.read(&[0x08, 0x01, 0, 0, 1, 0], 512).sense, says::OUT_OF_RANGE);
}

/// `Read10.BeyondEol`, `Read16.ZeroBlocks`, and their like.
#[test]
fn ranges_end_with_the_unit() {
    for format in formats() {
        let mut rig = Rig::new(format);
        let (block, end) = (format.block(), rig.hosts[0].1.unit().blocks());
        for (read, write, write_verify, verify) in OPCODES {
            let rest = [0x34, 0x35, 0x90, 0x91];
            for opcode in [read, write, write_verify, verify].into_iter().chain(rest) {
                let wide = opcode >> 5 == 4;
                let far = if wide { u64::MAX } else { u64::from(u32::MAX) };
                for (lba, count) in [(end, 1), (end - 1, 2), (end + 1, 0), (far, 0), (far, 1)] {
                    let told = rig.run(0, &cdb(opcode, 0, lba, count), 4096, &[]);
                    assert_eq!(told.sense, says::OUT_OF_RANGE, "{opcode:#x} {lba} {count}");
                }
                for lba in [0, end - 1, end] {
                    assert_eq!(rig.run(0, &cdb(opcode, 0, lba, 0), 0, &[]), Told::good());
                }
            }
            assert!(rig.did.is_empty());
            assert!(rig.read(&cdb(read, 0, end - 1, 1), block).is_good());
            rig.did.clear();
        }
    }
}

#[test]
fn transfers_have_a_limit() {
    for format in formats() {
        let mut rig = Rig::new(format);
        let most = (4 << 20) / format.block();
        for (read, write, write_verify, verify) in OPCODES {
            for opcode in [read, write, write_verify, verify] {
                let told = rig.read(&cdb(opcode, 0, 0, most + 1), 512);
                assert_eq!(told.sense, says::IN_CDB, "{opcode:#x}");
            }
            rig.piece = 1 << 20;
            assert!(rig.read(&cdb(read, 0, 0, most), 4 << 20).is_good());
        }
    }
}

/// `Read10.Residuals`, `Read10.Invalid`.
#[test]
fn reads_move_what_the_host_has_room_for() {
    for format in formats() {
        let (mut rig, block) = (Rig::new(format), format.block());
        let length = block as usize;
        for (read, ..) in OPCODES {
            let told = rig.read(&cdb(read, 0, 0, 1), 0);
            assert_eq!(told, Told { residual: Residual::Over(block), ..Told::good() });
            let told = rig.read(&cdb(read, 0, 0, 1), 10_000);
            assert_eq!((told.data.len(), told.residual), (length, Residual::Under(10_000 - block)));
            let told = rig.read(&cdb(read, 0, 0, 1), 200);
            assert_eq!((told.data.len(), told.residual), (200, Residual::Over(block - 200)));
            assert_eq!(rig.did.last(), Some(&Did::Read(0, 512)), "whole sectors only");
            let told = rig.read(&cdb(read, 0, 0, 2), block);
            assert_eq!((told.data.len(), told.residual), (length, Residual::Over(block)));
            let told = rig.write(&cdb(read, 0, 0, 1), &vec![0xa6; length]);
            assert_eq!(told, Told { residual: Residual::Over(block), ..Told::good() }, "a write?");
        }
    }
}

/// `Write10.Residuals`, `WriteVerify10.Residuals`.
#[test]
fn writes_move_whole_blocks_of_what_the_host_sends() {
    for format in formats() {
        let (mut rig, block) = (Rig::new(format), format.block());
        let length = block as usize;
        for opcode in OPCODES.into_iter().flat_map(|(_, write, verified, _)| [write, verified]) {
            let over = |n| Told { residual: Residual::Over(n), ..Told::good() };
            let under = |n| Told { residual: Residual::Under(n), ..Told::good() };
            assert_eq!(rig.write(&cdb(opcode, 0, 0, 1), &[]), over(block));
            let told = rig.write(&cdb(opcode, 0, 0, 1), &[1; 10_000]);
            assert_eq!(told, under(10_000 - block));
            let told = rig.write(&cdb(opcode, 0, 0, 1), &[2; 200]);
            assert_eq!(
                (told.sense, told.residual),
                (says::WRONG_LENGTH, Residual::Over(block - 200))
            );
            assert_eq!(rig.disk[0], 1, "nothing moved");
            rig.disk.fill(b'a');
            assert_eq!(rig.write(&cdb(opcode, 0, 0, 1), &vec![b'b'; 2 * length]), under(block));
            assert_eq!((rig.disk[length - 1], rig.disk[length]), (b'b', b'a'));
            rig.disk.fill(b'a');
            assert_eq!(rig.write(&cdb(opcode, 0, 0, 2), &vec![b'b'; length]), over(block));
            assert_eq!((rig.disk[length - 1], rig.disk[length]), (b'b', b'a'));
        }
    }
}

/// `Verify10.Mismatch`, `Verify10.MismatchNoCmp`.
#[test]
fn verify_finds_the_first_byte_that_differs() {
    for format in formats() {
        let (mut rig, block) = (Rig::new(format), format.block() as usize);
        for (wrong, verify) in [(0, 0x2f), (block, 0xaf), (2 * block - 1, 0x8f)] {
            let mut data = vec![0; 2 * block];
            data[wrong] = 1;
            let told = rig.write(&cdb(verify, 0x02, 3, 2), &data);
            assert_eq!((told.sense, told.information), (says::MISCOMPARE, Some(wrong as u64)));
            let told = rig.run(0, &cdb(verify, 0x00, 3, 2), 0, &data);
            assert!(told.is_good(), "BYTCHK 0 takes no data: {told:?}");
        }
        assert!(rig.did.iter().all(|did| matches!(did, Did::Read(..))));
    }
}

/// `WriteSame10.*`, `WriteSame16.*`.
#[test]
fn write_same_fills_and_frees() {
    for format in formats() {
        let (mut rig, block) = (Rig::new(format), format.block());
        let (pattern, zeros) = (vec![0xa6; block as usize], vec![0; block as usize]);
        let bytes = |rig: &Rig, count: u32| rig.disk[..(count * block) as usize].to_vec();
        for opcode in [0x41, 0x93] {
            for count in [1, 8, 1000] {
                assert_eq!(rig.write(&cdb(opcode, 0, 0, count), &pattern), Told::good());
                assert!(bytes(&rig, count).iter().all(|byte| *byte == 0xa6));
                rig.did.clear();
                assert_eq!(rig.write(&cdb(opcode, 8, 0, count), &zeros), Told::good());
                assert_eq!(rig.did, [Did::Zero(0, count * block, true)]);
                assert_eq!(rig.write(&cdb(opcode, 0, 0, count), &zeros), Told::good());
                assert_eq!(rig.did[1..], [Did::Zero(0, count * block, false)], "no hole");
                assert_eq!(rig.write(&cdb(opcode, 8, 0, count), &pattern), Told::good());
                assert!(bytes(&rig, count).iter().all(|byte| *byte == 0xa6), "no zeros");
            }
            for data in [&pattern[..block as usize / 2], &[0; 8192 + 1]] {
                let told = rig.write(&cdb(opcode, 8, 0, 1), data);
                assert_eq!(told.sense, says::WRONG_LENGTH, "{}", data.len());
            }
            let most = (16 << 20) / block;
            assert_eq!(rig.write(&cdb(opcode, 0, 0, 0), &zeros).sense, says::IN_CDB, "WSNZ");
            assert_eq!(rig.write(&cdb(opcode, 0, 0, most), &zeros), Told::good());
            assert_eq!(rig.write(&cdb(opcode, 0, 0, most + 1), &zeros).sense, says::IN_CDB);
            let end = rig.hosts[0].1.unit().blocks();
            for (lba, count) in [(end, 1), (end - 1, 2), (end + 1, 0)] {
                let told = rig.write(&cdb(opcode, 8, lba, count), &zeros);
                assert_eq!(told.sense, says::OUT_OF_RANGE);
            }
            for flags in [0x10, 0x18, 0x20] {
                let told = rig.write(&cdb(opcode, flags, 0, 1), &zeros);
                assert_eq!(told.sense, says::IN_CDB, "anchor, protection");
            }
        }
        rig.did.clear();
        assert_eq!(rig.write(&cdb(0x93, 0x09, 1, 7), &[]), Told::good(), "NDOB");
        assert_eq!(rig.write(&cdb(0x93, 0x01, 1, 7), &[]), Told::good(), "NDOB");
        let (at, len) = (u64::from(block), 7 * block);
        assert_eq!(rig.did, [Did::Zero(at, len, true), Did::Zero(at, len, false)]);
        assert_eq!(rig.write(&cdb(0x93, 0x09, 1, 7), &zeros).sense, says::WRONG_LENGTH);
    }
}

/// Returns UNMAP with its parameter list.
fn unmap(ranges: &[(u64, u32)]) -> (Vec<u8>, Vec<u8>) {
    let len = 16 * ranges.len() as u16;
    let mut list = [(len + 6).to_be_bytes(), len.to_be_bytes(), [0; 2], [0; 2]].concat();
    for (lba, count) in ranges {
        list.extend([&lba.to_be_bytes()[..], &count.to_be_bytes(), &[0; 4]].concat());
    }
    (cdb10(0x42, 0, 0, list.len() as u16).to_vec(), list)
}

/// `Unmap.*`.
#[test]
fn unmap_frees_its_ranges() {
    for format in formats() {
        let (mut rig, block) = (Rig::new(format), format.block());
        let end = rig.hosts[0].1.unit().blocks();
        let mut told = |ranges: &[(u64, u32)]| {
            let (cdb, list) = unmap(ranges);
            rig.did.clear();
            (rig.write(&cdb, &list), rig.did.clone())
        };
        let at = |lba: u64, count: u32| Did::Zero(lba * u64::from(block), count * block, true);
        assert_eq!(told(&[]), (Told::good(), vec![]));
        assert_eq!(told(&[(3, 0), (end, 0)]), (Told::good(), vec![]));
        let (good, did) = told(&[(0, 0), (8, 16), (end, 0), (end - 1, 1), (9, 0)]);
        assert_eq!((good, did), (Told::good(), vec![at(8, 16), at(end - 1, 1)]));
        for wrong in [(end + 1, 0), (end, 1), (end - 1, 2), (u64::MAX, 1)] {
            let (told, did) = told(&[(0, 1), wrong]);
            assert_eq!((told.sense, did), (says::OUT_OF_RANGE, vec![]), "all or nothing");
        }
        assert!(told(&[(5, 0); 256]).0.is_good());
        assert_eq!(told(&[(5, 0); 257]).0.sense, says::IN_LIST);
        let most = (512 << 20) / block;
        assert_eq!(told(&[(0, most + 1)]).0.sense, says::IN_LIST);
    }
}

#[test]
fn lists_of_unmap_may_be_short_but_not_cut() {
    let mut rig = Rig::new(Format::Native512);
    let (_, list) = unmap(&[(0, 8), (16, 8)]);
    assert_eq!(rig.write(&cdb10(0x42, 0, 0, 0), &[]), Told::good());
    assert_eq!(rig.write(&cdb10(0x42, 0, 0, 7), &list[..7]).sense, says::LIST_LENGTH);
    assert_eq!(rig.write(&cdb10(0x42, 0, 0, 24), &list[..24]).sense, says::LIST_LENGTH);
    assert_eq!(rig.write(&cdb10(0x42, 0, 0, 40), &list[..24]).sense, says::WRONG_LENGTH);
    assert_eq!(rig.write(&cdb10(0x42, 0, 0, 9000), &[0; 9000]).sense, says::LIST_LENGTH);
    let mut odd = list.clone();
    odd[3] = 24; // One descriptor and a half: the half does not count.
    assert_eq!(rig.write(&cdb10(0x42, 0, 0, 40), &odd), Told::good());
    assert_eq!(rig.did, [Did::Zero(0, 4096, true)]);
}

/// `CompareAndWrite.*`.
#[test]
fn compare_and_write_is_one_step_in_one_block() {
    for format in formats() {
        let (mut rig, block) = (Rig::new(format), format.block() as usize);
        let most = 4096 / block;
        let end = rig.hosts[0].1.unit().blocks();
        for count in 1..=most {
            for lba in [0, end - count as u64] {
                let size = count * block;
                let at = lba as usize * block;
                rig.disk[at..at + size].fill(b'A');
                let mut data = [vec![b'A'; size], vec![b'B'; size]].concat();
                let cdb = compare_and_write(lba, count as u8);
                assert_eq!(rig.write(&cdb, &data), Told::good());
                assert!(rig.disk[at..at + size].iter().all(|byte| *byte == b'B'));
                data[..size].fill(b'B');
                data[size - 27] = b'C';
                let told = rig.write(&cdb, &data);
                let wrong = Some(size as u64 - 27);
                assert_eq!((told.sense, told.information), (says::MISCOMPARE, wrong));
                assert!(rig.disk[at..at + size].iter().all(|byte| *byte == b'B'));
            }
        }
        rig.did.clear();
        let data = vec![0; 2 * (most + 1) * block];
        let told = rig.write(&compare_and_write(0, most as u8 + 1), &data);
        assert_eq!(told.sense, says::IN_CDB, "too long");
        if most > 1 {
            let told = rig.write(&compare_and_write(7, 2), &vec![0; 4 * block]);
            assert_eq!(told.sense, says::IN_CDB, "crosses a block of the store");
        }
        assert_eq!(rig.write(&compare_and_write(end, 1), &[]).sense, says::OUT_OF_RANGE);
        let told = rig.write(&compare_and_write(0, 1), &vec![0; block]);
        assert_eq!(told.sense, says::WRONG_LENGTH);
        let told = rig.write(&compare_and_write(0, 1), &vec![0; 4 * block]);
        assert_eq!(told.sense, says::WRONG_LENGTH);
        assert_eq!(rig.write(&compare_and_write(0, 0), &[]), Told::good());
        let told = rig.write(&compare_and_write(0, 0), &vec![0; 2 * 256 * block]);
        assert_eq!(told.sense, says::IN_CDB, "256 blocks");
        assert!(rig.did.is_empty());
    }
}

/// `GetLBAStatus.*`.
#[test]
fn the_status_of_blocks_is_told_from_the_first_one_on() {
    for format in formats() {
        let (mut rig, block) = (Rig::new(format), format.block());
        let per = u64::from(4096 / block);
        let end = rig.hosts[0].1.unit().blocks();
        rig.mapped[1..3].fill(true);
        let mut status = |lba: u64, allocation: u32| {
            let mut cdb = cdb16(0x9e, 0x12, lba, allocation);
            cdb[1] = 0x12;
            let told = rig.read(&cdb, allocation);
            assert!(told.is_good());
            let runs: Vec<(u64, u32, u8)> = told.data[8..]
                .chunks_exact(16)
                .map(|d| {
                    let lba = u64::from_be_bytes(d[..8].try_into().unwrap());
                    (lba, u32::from_be_bytes(d[8..12].try_into().unwrap()), d[12])
                })
                .collect();
            let len = u32::from_be_bytes(told.data[..4].try_into().unwrap());
            assert_eq!(len as usize, told.data.len() - 4);
            runs
        };
        let blocks = |n: u64| (n * per) as u32;
        assert_eq!(status(0, 24), [(0, blocks(1), 1)]);
        let rest = (3 * per, (end - 3 * per) as u32, 1);
        assert_eq!(status(0, 1000), [(0, blocks(1), 1), (per, blocks(2), 0), rest]);
        assert_eq!(status(2 * per - 1, 24)[0].0, 2 * per - 1, "begins where it is asked");
        assert_eq!(status(end - 1, 1000), [(end - 1, 1, 1)]);
        for lba in [end, end + 1, 1 << 63, u64::MAX] {
            assert_eq!(rig.read(&cdb16(0x9e, 0x12, lba, 24), 24).sense, says::OUT_OF_RANGE);
        }
        let cut = rig.read(&cdb16(0x9e, 0x12, 0, 10), 24);
        assert_eq!((cut.data.len(), cut.data[3]), (10, 20), "one descriptor, cut");
    }
}

/// A host may have announced data for a command that has none. It must not take what its buffer
/// contains for data of the volume.
#[test]
fn commands_without_data_say_that_nothing_moves() {
    let good = Told { residual: Residual::Under(1024), ..Told::good() };
    let mut rig = Rig::new(Format::Emulated512);
    for opcode in [0x2f, 0xaf, 0x8f] {
        assert_eq!(rig.read(&cdb(opcode, 0, 8, 2), 1024), good, "{opcode:x} without BYTCHK");
        assert_eq!(rig.write(&cdb(opcode, 0, 8, 2), &[1; 1024]), good, "{opcode:x}");
    }
    assert_eq!(rig.read(&cdb(0x93, 0x01, 8, 2), 1024), good, "NDOB");
    for command in [cdb(0x2f, 0, 8, 2), cdb(0x93, 0x01, 8, 2), cdb(0x9e, 0x12, 8, 2)] {
        rig.fails = Some(BlockError::Lost.into());
        let told = rig.read(&command, 1024);
        assert_eq!((told.status, told.residual), (Status::CheckCondition, Residual::Under(1024)));
    }
}

#[test]
fn flushes_and_prefetches_have_nothing_to_do() {
    let mut rig = Rig::new(Format::Native512);
    for (opcode, flags) in [(0x35, 6), (0x91, 6), (0x34, 2), (0x90, 2)] {
        assert_eq!(rig.read(&cdb(opcode, flags, 0, 0), 0), Told::good());
        assert_eq!(rig.read(&cdb(opcode, 0, 10, 65_000), 0), Told::good());
    }
    assert!(rig.did.is_empty());
}

//! Sense data: its two formats, and the table of outcomes.

use super::rig::*;
use seam::BlockError;
use target::scsi::*;

#[test]
fn the_fixed_format() {
    assert_eq!(
        Sense::OUT_OF_RANGE.fixed()[..],
        hex("70 00 05 00000000 0a 00000000 21 00 00 000000")
    );
    let miscompare = Sense::MISCOMPARE.about(0x0102_0304);
    assert_eq!(miscompare.fixed()[..], hex("f0 00 0e 01020304 0a 00000000 1d 00 00 000000"));
    assert_eq!(Sense::cdb(7, 4).fixed()[..], hex("70 00 05 00000000 0a 00000000 24 00 00 cc0007"));
    assert_eq!(Sense::list(258).fixed()[..], hex("70 00 05 00000000 0a 00000000 26 00 00 800102"));
    let far = Sense::READ_ERROR.about(1 << 32).fixed();
    assert_eq!((far[0], &far[3..7]), (0x70, &[0; 4][..]), "more than 32 bits is not valid");
}

#[test]
fn the_descriptor_format() {
    let bytes = |sense: Sense| {
        let (bytes, len) = sense.descriptor();
        bytes[..len].to_vec()
    };
    assert_eq!(bytes(Sense::NO_PRIMARY), hex("72 02 04 01 00 00 00 00"));
    let far = Sense::READ_ERROR.about(1 << 32);
    assert_eq!(bytes(far), hex("72 03 11 00 00 00 00 0c 00 0a 80 00 0000000100000000"));
    assert_eq!(bytes(Sense::cdb(1, 7)), hex("72 05 24 00 00 00 00 08 02 06 00 00 cf0001 00"));
    let (_, len) = Sense::cdb(1, 7).about(1).descriptor();
    assert_eq!(len, Sense::DESCRIPTOR);
}

#[test]
fn outcomes_are_called_as_the_table_says() {
    let answer = |failure: Failure, writes| {
        let answer = failure.answer(writes, 1234);
        let sense = answer.sense.map(|s| (s.key, s.asc, s.ascq, s.information));
        (answer.status, sense)
    };
    let check =
        |key, asc, ascq, information| (Status::CheckCondition, Some((key, asc, ascq, information)));
    for writes in [false, true] {
        let block = |error: BlockError| answer(error.into(), writes);
        assert_eq!(block(BlockError::OutOfRange), check(5, 0x21, 0, None));
        assert_eq!(block(BlockError::Misaligned), check(5, 0x24, 0, None));
        assert_eq!(block(BlockError::TooBig), check(5, 0x24, 0, None));
        assert_eq!(block(BlockError::ReadOnly), check(7, 0x27, 0, None));
        assert_eq!(block(BlockError::NoSuchVolume), check(5, 0x25, 0, None));
        assert_eq!(block(BlockError::Full), check(2, 0x04, 0x14, None));
        assert_eq!(block(BlockError::Superseded), check(2, 0x04, 0x0b, None));
        assert_eq!(block(BlockError::Elsewhere), check(2, 0x04, 0x0b, None));
        assert_eq!(block(BlockError::TimedOut), check(2, 0x04, 0x01, None));
        assert_eq!(block(BlockError::Busy), (Status::TaskSetFull, None));
        assert_eq!(block(BlockError::Forgotten), (Status::Busy, None));
        assert_eq!(answer(Failure::Fenced, writes), (Status::Busy, None));
        assert_eq!(
            answer(Failure::Block(BlockError::Miscompare(9)), writes),
            check(0xe, 0x1d, 0, Some(9))
        );
    }
    let at = Some(1234);
    assert_eq!(answer(BlockError::Lost.into(), false), check(3, 0x11, 0, at));
    assert_eq!(answer(BlockError::Lost.into(), true), check(3, 0x0c, 2, at));
    assert_eq!(answer(BlockError::Media.into(), false), check(3, 0x11, 0, at));
    assert_eq!(answer(BlockError::Media.into(), true), check(3, 0x0c, 0, at));
}

/// These are for a session that waits for the volume: hosts repeat the command on each of them.
#[test]
fn temporary_failures_are_reported_as_not_ready() {
    let waits = [Sense::NO_PRIMARY, Sense::NO_SPACE_YET, Sense::STANDBY];
    let told = waits.map(|sense| (sense.key, sense.asc, sense.ascq));
    assert_eq!(told, [(2, 4, 0x01), (2, 4, 0x14), (2, 4, 0x0b)]);
}

#[test]
fn a_failed_piece_names_its_first_block() {
    for (format, lba) in [(Format::Native512, 10), (Format::Native4k, 3)] {
        let mut rig = Rig::new(format);
        let block = format.block();
        rig.piece = block as usize;
        rig.fails = Some(BlockError::Media.into());
        let told = rig.read(&cdb10(0x28, 0, lba, 2), 2 * block);
        assert_eq!((told.sense, told.information), ((3, 0x11, 0), Some(u64::from(lba))));
        rig.fails = Some(BlockError::Lost.into());
        let told = rig.write(&cdb10(0x2a, 0, lba, 1), &vec![1; block as usize]);
        assert_eq!((told.sense, told.information), ((3, 0x0c, 2), Some(u64::from(lba))));
        rig.fails = Some(BlockError::Lost.into());
        let same = rig.write(&cdb10(0x41, 0, lba, 4), &vec![0; block as usize]);
        assert_eq!((same.sense, same.information), ((3, 0x0c, 2), Some(u64::from(lba))));
    }
}

#[test]
fn an_answer_of_the_volume_that_is_too_short_is_an_error() {
    let pool = seam::BufPool::new(0);
    let mut rig = Rig::new(Format::Native512);
    for (cdb, reads) in [(cdb16(0x8f, 0, 0, 1), 0), (cdb16(0x9e, 0x12, 0, 24), 24)] {
        let attribute = Attribute::Simple;
        let command = Command { lun: 0, cdb: &cdb, attribute, reads, sends: 0 };
        let Step::Run(mut plan) = rig.hosts[0].1.start(&command, &rig.pool) else {
            panic!("{cdb:x?} needs the volume");
        };
        let answer = plan.done(Ok(pool.copy(&[0])), &pool).expect("it is over");
        let sense = answer.sense.expect("sense data");
        assert_eq!((sense.key, sense.asc, sense.information), (3, 0x11, Some(0)));
    }
    let (len, residual) = (512, Residual::None);
    let transfer = Transfer { at: 0, len, moves: len, residual, block: 512, writes: false };
    assert!(transfer.compare(0, &[0; 512], &[0; 512]).is_none());
    let answer = transfer.compare(0, &[0; 512], &[0; 511]).expect("it is over");
    assert_eq!(answer.status, Status::CheckCondition);
}

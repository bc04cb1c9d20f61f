//! The meaning of requests, and the requests that are refused.

use super::rig::{DATA, DISK, Driver};
use target::virtio::config::{TRANSFER, ZEROS};
use target::virtio::{Ask, Broken, Chain, Disk, Request, Status};

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

fn range(driver: &Driver, sector: u64, sectors: u32, flags: u32) {
    driver.ram.put(DATA, &sector.to_le_bytes());
    driver.ram.put(DATA + 8, &sectors.to_le_bytes());
    driver.ram.put(DATA + 12, &flags.to_le_bytes());
}

#[test]
fn reads_and_writes_name_their_range_and_the_place_of_their_status() {
    let mut driver = Driver::new(8);
    let read = driver.ask(IN, 8, 0, 4096);
    assert_eq!(read, Request { ask: Ask::Read { at: 4096, len: 4096 }, status: 0x3f80 });
    let (write, chain) = driver.ask_of(DISK, OUT, 2047, 512, 0);
    assert_eq!(
        write,
        Request { ask: Ask::Write { at: (1 << 20) - 512, len: 512 }, status: 0x3f80 }
    );
    assert_eq!((chain.readable(), chain.writable()), (512, 0));
    assert_eq!(driver.ask(GET_ID, 0, 0, 20).ask, Ask::Id);
    assert_eq!(driver.ask(FLUSH, 0, 0, 0).ask, Ask::Answered(Status::Ok));
}

#[test]
fn ranges_that_are_freed_or_zeroed_are_told_apart() {
    let mut driver = Driver::new(8);
    let mut zero = |kind, sectors, flags| {
        range(&driver, 16, sectors, flags);
        driver.ask(kind, 0, 16, 0).ask
    };
    let of = |hole| Ask::Zero { at: 8192, len: 4096, hole };
    assert_eq!(zero(DISCARD, 8, 0), of(true));
    assert_eq!((zero(WRITE_ZEROES, 8, 0), zero(WRITE_ZEROES, 8, 1)), (of(false), of(true)));
    let (failed, unsupported) =
        (Ask::Answered(Status::IoError), Ask::Answered(Status::Unsupported));
    assert_eq!((zero(DISCARD, 8, 1), zero(WRITE_ZEROES, 8, 2)), (unsupported, unsupported));
    assert_eq!((zero(DISCARD, 0, 0), zero(DISCARD, 2040, 0)), (failed, failed));
    assert_eq!(zero(WRITE_ZEROES, ZEROS / 512 + 1, 0), failed);
    for len in [0, 8, 32] {
        assert_eq!(driver.ask(DISCARD, 0, len, 0).ask, failed, "more than one range, or none");
    }
}

#[test]
fn requests_beyond_the_disk_fail_with_a_status() {
    let mut driver = Driver::new(8);
    let failed = Ask::Answered(Status::IoError);
    let cases = [
        (IN, 2048, 0, 512),
        (IN, 2047, 0, 1024),
        (IN, 0, 0, 0),
        (IN, 0, 0, 511),
        (IN, u64::MAX, 0, 512),
        (IN, u64::MAX / 512, 0, 512),
        (OUT, 2048, 512, 0),
        (OUT, 1 << 55, 512, 0),
        (OUT, 0, 513, 0),
        (OUT, 0, 0, 512),
    ];
    for (kind, sector, out, into) in cases {
        assert_eq!(driver.ask(kind, sector, out, into).ask, failed, "{kind} {sector}");
    }
    for kind in [2, 3, 5, 7, 9, 10, 12, 14, 16, u32::MAX] {
        assert_eq!(driver.ask(kind, 0, 512, 512).ask, Ask::Answered(Status::Unsupported));
    }
}

#[test]
fn a_disk_that_is_read_only_is_not_changed() {
    let mut driver = Driver::new(8);
    let disk = Disk { read_only: true, ..DISK };
    range(&driver, 0, 8, 0);
    for kind in [OUT, DISCARD, WRITE_ZEROES] {
        let len = if kind == OUT { 512 } else { 16 };
        let ask = driver.ask_of(disk, kind, 0, len, 0).0.ask;
        assert_eq!(ask, Ask::Answered(Status::IoError));
    }
    assert_eq!(driver.ask_of(disk, IN, 0, 0, 512).0.ask, Ask::Read { at: 0, len: 512 });
}

/// Parts may name the same memory, so a request can be longer than memory is.
#[test]
fn a_transfer_is_at_most_as_long_as_the_driver_was_told() {
    const PART: u32 = 0x1_0000;
    let large = Disk { size: 1 << 40, read_only: false };
    for (parts, fits) in [(TRANSFER / PART, true), (TRANSFER / PART + 1, false)] {
        let mut driver = Driver::new(1024);
        (driver.rings.available, driver.rings.used) = (0x6000, 0x7000);
        driver.head(0xa000, IN, 0);
        let data = (0..parts).map(|_| (0x1_1000, PART, true));
        let head = std::iter::once((0xa000, 16, false));
        let chain: Vec<_> = head.chain(data).chain([(0xa010, 1, true)]).collect();
        driver.chain(driver.rings.descriptors, 0, &chain);
        driver.offer(0);
        let (mut queue, mut chain) = (driver.queue(false), Chain::default());
        assert_eq!(queue.pop(&driver.ram, &mut chain), Ok(Some(0)));
        let ask = Request::parse(&driver.ram, &mut chain, large).unwrap().ask;
        assert_eq!(matches!(ask, Ask::Read { len: TRANSFER, .. }), fits, "{parts}");
    }
}

#[test]
fn a_request_without_a_head_or_a_status_breaks_its_queue() {
    for parts in [
        vec![(0x3f00, 15, false), (0x3f80, 1, true)],
        vec![(0x3f80, 1, true)],
        vec![(0x3f00, 16, false)],
        vec![(0x3f00, 16, false), (0x3f80, 0, true)],
    ] {
        let mut driver = Driver::new(8);
        driver.chain(driver.rings.descriptors, 0, &parts);
        driver.offer(0);
        let (mut queue, mut chain) = (driver.queue(false), Chain::default());
        assert_eq!(queue.pop(&driver.ram, &mut chain), Ok(Some(0)));
        let parsed = Request::parse(&driver.ram, &mut chain, DISK);
        assert_eq!(parsed, Err(Broken::Short), "{parts:?}");
    }
}

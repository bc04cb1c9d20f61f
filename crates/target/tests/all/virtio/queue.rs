//! Queues and chains, and how a driver can break them.

use super::rig::{DATA, DISK, Driver, INDIRECT, NEXT, Part, Ram, TABLE, WRITE};
use target::virtio::{Ask, Broken, Chain, QUEUE_MAX, Queue, Request, Rings, SEGMENTS};

fn pop(driver: &Driver, queue: &mut Queue) -> Result<Option<u16>, Broken> {
    queue.pop(&driver.ram, &mut Chain::default())
}

#[test]
fn buffers_are_taken_once_and_returned_in_any_order() {
    let mut driver = Driver::new(4);
    let mut queue = driver.queue(false);
    for head in 0..4 {
        driver.chain(0x1000, head, &[(DATA, 16, false)]);
    }
    let mut given = 0u16;
    for round in 0..40_000u32 {
        assert_eq!(pop(&driver, &mut queue), Ok(None));
        let (a, b) = ((round % 4) as u16, ((round + 1) % 4) as u16);
        driver.offer(a);
        driver.offer(b);
        assert_eq!(pop(&driver, &mut queue), Ok(Some(a)));
        assert_eq!(pop(&driver, &mut queue), Ok(Some(b)));
        assert_eq!((pop(&driver, &mut queue), queue.in_flight()), (Ok(None), 2));
        for (head, len) in [(b, round), (a, 1)] {
            assert_eq!(queue.push(&driver.ram, head, len), Ok(()));
            assert_eq!(driver.used(given), (head.into(), len));
            given = given.wrapping_add(1);
            assert_eq!((driver.used_index(), queue.used()), (given, given));
        }
    }
    assert_eq!(queue.in_flight(), 0);
}

#[test]
fn a_driver_without_event_indices_is_signalled_unless_its_flag_is_set() {
    let mut driver = Driver::new(4);
    let mut queue = driver.queue(false);
    driver.chain(0x1000, 0, &[(DATA, 16, false)]);
    for quiet in [false, true] {
        driver.ram.put16(driver.rings.available, quiet.into());
        assert_eq!(queue.signals(&driver.ram), Ok(false), "nothing was given back");
        driver.offer(0);
        assert_eq!(queue.listen(&driver.ram), Ok(true));
        pop(&driver, &mut queue).unwrap();
        assert_eq!(queue.listen(&driver.ram), Ok(false));
        queue.push(&driver.ram, 0, 1).unwrap();
        assert_eq!(queue.signals(&driver.ram), Ok(!quiet));
        assert_eq!(queue.signals(&driver.ram), Ok(false));
    }
}

#[test]
fn event_indices_say_when_either_side_is_woken() {
    let mut driver = Driver::new(4);
    let mut queue = driver.queue(true);
    let (event, kick) = (driver.rings.available + 4 + 8, driver.rings.used + 4 + 32);
    for head in 0..3 {
        driver.chain(0x1000, head, &[(DATA, 16, false)]);
        driver.offer(head);
    }
    assert_eq!(queue.listen(&driver.ram), Ok(true));
    assert_eq!(driver.ram.get16(kick), 0);
    (0..3).for_each(|head| assert_eq!(pop(&driver, &mut queue), Ok(Some(head))));
    assert_eq!((queue.listen(&driver.ram), driver.ram.get16(kick)), (Ok(false), 3));
    // Woken when the second one is used, and not before.
    driver.ram.put16(event, 1);
    queue.push(&driver.ram, 0, 1).unwrap();
    assert_eq!(queue.signals(&driver.ram), Ok(false));
    queue.push(&driver.ram, 1, 1).unwrap();
    queue.push(&driver.ram, 2, 1).unwrap();
    assert_eq!(queue.signals(&driver.ram), Ok(true));
}

#[test]
fn rings_have_to_lie_in_memory_where_the_standard_wants_them() {
    let (ram, fine) = (Ram::new(), Driver::new(8).rings);
    let check = |rings: Rings| Queue::new(rings, false, 0, &ram).map(drop);
    assert_eq!(check(fine), Ok(()));
    for size in [0, 3, QUEUE_MAX + 1, 2 * QUEUE_MAX, 0x8000] {
        assert_eq!(check(Rings { size, ..fine }), Err(Broken::Size(size)));
    }
    let wrong = [
        Rings { descriptors: 0x1008, ..fine },
        Rings { available: 0x2001, ..fine },
        Rings { used: 0x2802, ..fine },
        Rings { descriptors: 0, ..fine },
        // From one region into the next.
        Rings { descriptors: 0x1_0ff0, ..fine },
        Rings { available: u64::MAX - 1, ..fine },
        Rings { used: 0x2_1000 - 69, ..fine },
        Rings { used: 0x2_1000 - 68, ..fine },
    ];
    wrong.into_iter().for_each(|rings| assert_eq!(check(rings), Err(Broken::Rings), "{rings:?}"));
}

#[test]
fn a_driver_that_offers_too_much_or_the_same_twice_breaks_the_queue() {
    let mut driver = Driver::new(4);
    driver.chain(0x1000, 0, &[(DATA, 16, false)]);
    let mut queue = driver.queue(false);
    driver.ram.put16(driver.rings.available + 2, 5);
    assert_eq!(pop(&driver, &mut queue), Err(Broken::TooMany));
    driver.ram.put16(driver.rings.available + 2, u16::MAX);
    assert_eq!(pop(&driver, &mut queue), Err(Broken::TooMany));
    driver.ram.put16(driver.rings.available + 2, 0);
    driver.offer(0);
    driver.offer(0);
    assert_eq!(pop(&driver, &mut queue), Ok(Some(0)));
    assert_eq!(pop(&driver, &mut queue), Err(Broken::Twice(0)));
    assert_eq!((queue.in_flight(), queue.next()), (1, 1));
    let mut other = Driver::new(4);
    other.offer(4);
    assert_eq!(pop(&other, &mut other.queue(false)), Err(Broken::Index(4)));
}

fn broken(parts: &[(u16, Part)], table: &[(u16, Part)]) -> Result<(), Broken> {
    let mut driver = Driver::new(8);
    parts.iter().for_each(|(index, part)| driver.descriptor(0x1000, *index, *part));
    table.iter().for_each(|(index, part)| driver.descriptor(TABLE, *index, *part));
    driver.offer(0);
    pop(&driver, &mut driver.queue(false)).map(drop)
}

fn part(at: u64, len: u32, flags: u16, next: u16) -> Part {
    Part { at, len, flags, next }
}

#[test]
fn chains_that_break_the_rules_are_found() {
    let plain = part(DATA, 16, 0, 0);
    assert_eq!(broken(&[(0, plain)], &[]), Ok(()));
    let circle = [(0, part(DATA, 16, NEXT, 1)), (1, part(DATA, 16, NEXT, 0))];
    assert_eq!(broken(&circle, &[]), Err(Broken::Long));
    let empty = [(0, part(DATA, 0, NEXT, 0))];
    assert_eq!(broken(&empty, &[]), Err(Broken::Long), "a circle of nothing");
    assert_eq!(broken(&[(0, part(DATA, 16, NEXT, 8))], &[]), Err(Broken::Index(8)));
    let order = [(0, part(DATA, 1, WRITE | NEXT, 1)), (1, part(DATA, 16, 0, 0))];
    assert_eq!(broken(&order, &[]), Err(Broken::Order));
    for (at, len) in [(0x2_0ff0, 17), (0xfff, 1), (0x2_1000, 1), (u64::MAX, 2), (DATA, u32::MAX)] {
        let outside = [(0, part(at, len, 0, 0))];
        assert_eq!(broken(&outside, &[]), Err(Broken::Outside), "{at:#x} {len}");
    }
}

#[test]
fn an_indirect_table_is_one_table_at_the_end_of_its_chain() {
    let table = [(0, part(DATA, 16, NEXT, 1)), (1, part(DATA, 1, WRITE, 0))];
    let to = |len, flags| [(0, part(DATA, 16, NEXT, 1)), (1, part(TABLE, len, flags, 0))];
    assert_eq!(broken(&to(32, INDIRECT), &table), Ok(()));
    for (len, flags) in
        [(0, INDIRECT), (33, INDIRECT), (32, INDIRECT | NEXT), (16 * 1025, INDIRECT)]
    {
        assert_eq!(broken(&to(len, flags), &table), Err(Broken::Indirect), "{len} {flags}");
    }
    let nested = [(0, part(TABLE, 32, INDIRECT, 0))];
    assert_eq!(broken(&to(32, INDIRECT), &nested), Err(Broken::Indirect));
    let beyond = [(0, part(DATA, 16, NEXT, 2))];
    assert_eq!(broken(&to(32, INDIRECT), &beyond), Err(Broken::Index(2)));
    let outside = [(0, part(0x1_0ff0, 32, INDIRECT, 0))];
    assert_eq!(broken(&outside, &[]), Err(Broken::Outside));
}

/// Linux makes tables for as many parts as the device takes, however small the queue is.
#[test]
fn an_indirect_table_may_have_all_parts_of_a_request_also_in_a_small_queue() {
    let mut driver = Driver::new(4);
    let mut parts = vec![(0x3f00, 16, false)];
    parts.extend((0..126).map(|_| (DATA, 512, true)));
    parts.push((0x3f80, 1, true));
    driver.chain(TABLE, 0, &parts);
    let whole = Part { at: TABLE, len: 16 * 128, flags: INDIRECT, next: 0 };
    driver.descriptor(0x1000, 0, whole);
    driver.offer(0);
    let (mut queue, mut chain) = (driver.queue(false), Chain::default());
    assert_eq!(queue.pop(&driver.ram, &mut chain), Ok(Some(0)));
    assert_eq!((chain.readable(), chain.writable()), (16, 126 * 512 + 1));
}

/// The first address of the second region, whose neighbour is the first region.
const BORDER: u64 = 0x1_1000;

/// One range of the guest may be two regions of its monitor.
#[test]
fn a_part_may_reach_from_one_region_into_the_next() {
    let mut driver = Driver::new(4);
    driver.head(BORDER - 8, 1, 3);
    let data: Vec<u8> = (0..1024).map(|n| (n * 7 % 251) as u8).collect();
    driver.ram.put(BORDER + 8, &data[..504]);
    driver.ram.put(BORDER - 8 - 520, &data[504..]);
    // The head and the first half of the data are one part. The other half lies before it.
    let parts = [
        (BORDER - 8, 16 + 504, false),
        (BORDER - 8 - 520, 520, false),
        (BORDER - 600, 1000, true),
        (BORDER - 3, 4, true),
    ];
    driver.chain(0x1000, 0, &parts);
    driver.offer(0);
    let (mut queue, mut chain) = (driver.queue(false), Chain::default());
    assert_eq!(queue.pop(&driver.ram, &mut chain), Ok(Some(0)));
    let request = Request::parse(&driver.ram, &mut chain, DISK).unwrap();
    assert_eq!(request, Request { ask: Ask::Write { at: 1536, len: 1024 }, status: BORDER });
    let mut read = vec![0; 1024];
    assert!(chain.read(&driver.ram, &mut read) && read == data);
    assert_eq!(chain.writable(), 1003);
    assert!(chain.write(&driver.ram, &data[..1003]));
    assert_eq!(driver.ram.get(BORDER - 600, 597), data[..597]);
    assert_eq!(driver.ram.get(BORDER, 400), data[600..1000]);
    assert_eq!(driver.ram.get(BORDER - 3, 3), data[1000..1003]);
}

/// A chain in an indirect table whose parts, and its head and status, all reach into two regions.
fn cut(driver: &mut Driver, parts: u16, len: u32) -> Result<Option<u16>, Broken> {
    let mut all = vec![(BORDER - 8, 16, false)];
    all.extend((0..parts).map(|_| (BORDER - u64::from(len / 2), len, true)));
    all.push((BORDER - 1, 2, true));
    driver.chain(TABLE, 0, &all);
    let whole = Part { at: TABLE, len: 16 * all.len() as u32, flags: INDIRECT, next: 0 };
    driver.descriptor(0x1000, 0, whole);
    driver.offer(0);
    pop(driver, &mut driver.queue(false))
}

#[test]
fn the_longest_request_may_cross_a_region_in_every_part_and_no_chain_has_more_segments() {
    let mut small = Driver::new(4);
    assert_eq!(cut(&mut small, SEGMENTS, 512), Ok(Some(0)));
    // In a larger queue a chain may have as many segments as the queue has descriptors.
    for (parts, taken) in [(254, Ok(Some(0))), (255, Err(Broken::Long)), (510, Err(Broken::Long))] {
        let mut large = Driver::new(512);
        (large.rings.available, large.rings.used) = (0x5000, 0x6000);
        assert_eq!(cut(&mut large, parts, 512), taken, "{parts} parts");
    }
}

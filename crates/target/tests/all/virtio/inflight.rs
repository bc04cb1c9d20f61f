//! Requests survive a process: they are found again, in their order.

use super::rig::{DATA, Driver, Ram};
use target::virtio::{Chain, Inflight, Memory, Queue};

const SIZE: u16 = 4;
/// Where the notes are: in the same memory, for simplicity.
const NOTES: u64 = 0x8000;

/// A process that serves the queue. `None`: it has died.
struct Device {
    queue: Queue,
    inflight: Inflight,
    begun: Vec<u16>,
}

impl Device {
    fn start(driver: &Driver) -> Option<(Device, Vec<u16>)> {
        let mut queue = driver.queue(false);
        let (inflight, redo) = Inflight::open(&driver.ram, NOTES, SIZE, queue.used())?;
        queue.repeats(redo.len() as u16);
        let mut device = Device { queue, inflight, begun: Vec::new() };
        for head in &redo {
            device.queue.take(&driver.ram, *head, &mut Chain::default()).unwrap();
            device.begun.push(*head);
        }
        Some((device, redo))
    }

    fn take(&mut self, ram: &Ram) -> Option<bool> {
        let Some(head) = self.queue.pop(ram, &mut Chain::default()).unwrap() else {
            return Some(false);
        };
        self.inflight.begins(ram, head)?;
        self.begun.push(head);
        Some(true)
    }

    /// Gives back the request at this place of those that it has begun.
    fn give(&mut self, ram: &Ram, at: usize) -> Option<()> {
        let head = self.begun.remove(at);
        self.inflight.ends(ram, head)?;
        self.queue.push(ram, head, 1).ok()?;
        self.inflight.ended(ram, head, self.queue.used())
    }
}

fn driver() -> Driver {
    let driver = Driver::new(SIZE);
    for head in 0..SIZE {
        driver.chain(0x1000, head, &[(DATA, 16, false)]);
    }
    driver
}

#[test]
fn requests_under_way_are_found_in_their_order() {
    let mut driver = driver();
    let (mut device, redo) = Device::start(&driver).unwrap();
    assert_eq!(redo, []);
    for head in [2, 0, 3] {
        driver.offer(head);
        assert_eq!(device.take(&driver.ram), Some(true));
    }
    device.give(&driver.ram, 0).unwrap();
    let (mut next, redo) = Device::start(&driver).unwrap();
    assert_eq!(redo, [0, 3]);
    assert_eq!(next.take(&driver.ram), Some(false), "all others are known");
    driver.offer(2);
    assert_eq!(next.take(&driver.ram), Some(true));
    let (_, redo) = Device::start(&driver).unwrap();
    assert_eq!(redo, [0, 3, 2], "the newest one is the last");
}

/// The process dies before each of its writes in turn. Whatever it had begun is begun again by the
/// next one, which gives back exactly what was not given back before.
#[test]
fn a_crash_at_any_write_loses_no_request_and_repeats_none_that_was_given_back() {
    let mut crashes = 0;
    for writes in 0.. {
        let mut driver = driver();
        let (mut device, _) = Device::start(&driver).unwrap();
        driver.ram.left.set(writes);
        (0..SIZE).for_each(|head| driver.offer(head));
        // Out of order, with new requests in between.
        let lived = (|| {
            for _ in 0..3 {
                device.take(&driver.ram)?;
            }
            device.give(&driver.ram, 1)?;
            device.take(&driver.ram)?;
            device.give(&driver.ram, 2)?;
            device.give(&driver.ram, 0)
        })();
        driver.ram.left.set(u32::MAX);
        let mut given: Vec<u32> =
            (0..driver.used_index()).map(|index| driver.used(index).0).collect();
        let (mut next, redo) = Device::start(&driver).unwrap();
        assert!(redo.iter().all(|head| !given.contains(&u32::from(*head))), "{given:?} {redo:?}");
        while next.take(&driver.ram).unwrap() {}
        for _ in 0..next.begun.len() {
            next.give(&driver.ram, 0).unwrap();
        }
        given = (0..driver.used_index()).map(|index| driver.used(index).0).collect();
        given.sort_unstable();
        assert_eq!(given, [0, 1, 2, 3], "after {writes} writes");
        if lived.is_some() {
            break;
        }
        crashes += 1;
    }
    assert!(crashes > 15, "{crashes}");
}

#[test]
fn records_of_another_size_are_reset_and_hostile_ones_are_harmless() {
    let driver = driver();
    let (mut device, _) = Device::start(&driver).unwrap();
    device.inflight.begins(&driver.ram, 1).unwrap();
    let open = |size, used| Inflight::open(&driver.ram, NOTES, size, used).map(|(_, redo)| redo);
    assert_eq!(open(2 * SIZE, 0), Some(vec![]));
    // All bytes are set: each request is under way, and the last one has no place.
    driver.ram.put(NOTES, &[0xff; 512]);
    driver.ram.put16(NOTES + 8, 1);
    driver.ram.put16(NOTES + 10, SIZE);
    assert_eq!(open(SIZE, 7), Some(vec![0, 1, 2, 3]));
    assert_eq!((open(0, 0), open(u16::MAX, 0)), (None, None));
    let beyond = Inflight::open(&driver.ram, 0x2_1000 - 64, SIZE, 0);
    assert!(beyond.is_none() && !driver.ram.has(0x2_1000, 1));
}

#[test]
fn requests_that_the_driver_has_reset_are_not_found() {
    let mut driver = driver();
    let (mut device, _) = Device::start(&driver).unwrap();
    for head in [1, 3] {
        driver.offer(head);
        assert_eq!(device.take(&driver.ram), Some(true));
    }
    assert_eq!(Device::start(&driver).unwrap().1, [1, 3]);
    Inflight::forget(&driver.ram, NOTES).unwrap();
    let (mut next, redo) = Device::start(&driver).unwrap();
    assert_eq!(redo, []);
    // The notes begin anew: only what is begun from now on is in them.
    assert_eq!(next.take(&driver.ram), Some(true));
    assert_eq!(Device::start(&driver).unwrap().1, [1]);
    assert_eq!(Inflight::forget(&driver.ram, 0x2_1000), None);
}

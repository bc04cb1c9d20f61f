//! Properties over requests of any shape, and over hostile memory.

use super::rig::{DATA, DISK, Driver, INDIRECT, Part, Ram, TABLE};
use proptest::prelude::*;
use target::virtio::{Ask, Chain, Inflight, Memory, QUEUE_MAX, Request};

/// Cuts a range into parts whose lengths follow from `cuts`.
fn cut(at: u64, len: u32, cuts: &[u32], written: bool) -> Vec<(u64, u32, bool)> {
    let (mut parts, mut done) = (Vec::new(), 0);
    for cut in cuts {
        let part = (cut % (len + 1)).min(len - done);
        parts.push((at + u64::from(done), part, written));
        done += part;
    }
    parts.push((at + u64::from(done), len - done, written));
    parts
}

proptest! {
    /// Wherever a driver cuts a request, and whether its parts are in a table of their own, the
    /// device reads the same.
    #[test]
    fn a_request_is_the_same_however_it_is_cut(
        out in proptest::collection::vec(any::<u32>(), 0..6),
        into in proptest::collection::vec(any::<u32>(), 0..6),
        direct in 0usize..4,
        writes: bool,
        content: [u8; 32],
    ) {
        let mut driver = Driver::new(16);
        driver.head(DATA, writes.into(), 8);
        let data: Vec<u8> = content.iter().cycle().take(1024).copied().collect();
        driver.ram.put(DATA + 16, &data);
        let (reads, written) = if writes { (16 + 1024, 1) } else { (16, 1024 + 1) };
        let mut parts = cut(DATA, reads, &out, false);
        parts.extend(cut(DATA + 0x1000, written, &into, true));
        let direct = direct.min(parts.len() - 1);
        if direct == 0 && parts.len() <= 16 {
            driver.chain(0x1000, 0, &parts);
        } else {
            // Some parts, and then a table with the others.
            driver.chain(0x1000, 0, &parts[..direct]);
            if direct > 0 {
                let last = driver.rings.descriptors + 16 * (direct as u64 - 1);
                let flags = driver.ram.get16(last + 12);
                driver.ram.put16(last + 12, flags | 1);
            }
            let len = 16 * (parts.len() - direct) as u32;
            let table = Part { at: TABLE, len, flags: INDIRECT, next: 0 };
            driver.descriptor(0x1000, direct as u16, table);
            driver.chain(TABLE, 0, &parts[direct..]);
        }
        driver.offer(0);
        let (mut queue, mut chain) = (driver.queue(false), Chain::default());
        prop_assert_eq!(queue.pop(&driver.ram, &mut chain), Ok(Some(0)));
        let request = Request::parse(&driver.ram, &mut chain, DISK).unwrap();
        prop_assert_eq!(request.status, DATA + 0x1000 + u64::from(written) - 1);
        let mut room = vec![0; 1024];
        if writes {
            prop_assert_eq!(request.ask, Ask::Write { at: 4096, len: 1024 });
            prop_assert!(chain.read(&driver.ram, &mut room) && room == data);
            prop_assert!(!chain.read(&driver.ram, &mut [0; 1025]));
        } else {
            prop_assert_eq!(request.ask, Ask::Read { at: 4096, len: 1024 });
            prop_assert!(chain.write(&driver.ram, &data));
            prop_assert_eq!(driver.ram.get(DATA + 0x1000, 1024), data);
            prop_assert!(!chain.write(&driver.ram, &[0; 1025]));
        }
    }

    /// With any content of the memory: nothing panics, nothing outside of the regions is reached,
    /// and no more is under way than a queue holds.
    #[test]
    fn hostile_memory_is_harmless(
        bytes in proptest::collection::vec(any::<u8>(), 1..2000),
        next: u16,
        event_idx: bool,
        size in 0u32..11,
        pick in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let driver = Driver::over(Ram::of(&bytes), 1 << size);
        let Ok(mut queue) = target::virtio::Queue::new(driver.rings, event_idx, next, &driver.ram)
        else {
            return Ok(());
        };
        let found = Inflight::open(&driver.ram, 0x8000, 1 << size, queue.used());
        let mut busy = Vec::new();
        let mut chain = Chain::default();
        if let Some((_, redo)) = found {
            queue.repeats(redo.len() as u16);
            for head in redo {
                if queue.take(&driver.ram, head, &mut chain).is_ok() {
                    busy.push(head);
                }
            }
        }
        for pick in pick {
            if pick.is_multiple_of(4) && !busy.is_empty() {
                let head = busy.swap_remove(usize::from(pick) % busy.len());
                let _ = queue.push(&driver.ram, head, 1);
                let _ = queue.signals(&driver.ram);
            } else if let Ok(Some(head)) = queue.pop(&driver.ram, &mut chain) {
                busy.push(head);
                if let Ok(request) = Request::parse(&driver.ram, &mut chain, DISK) {
                    prop_assert!(driver.ram.has(request.status, 1));
                }
            }
            let _ = queue.listen(&driver.ram);
            prop_assert_eq!(usize::from(queue.in_flight()), busy.len());
            prop_assert!(busy.len() <= 1 << size && 1 << size <= QUEUE_MAX);
        }
    }
}

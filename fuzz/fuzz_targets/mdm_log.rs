//! The MDM's log with arbitrary entries on a damaged disk: recovery succeeds or fails with a
//! reason, and a recovered log can be used further.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mdm::log::{AREAS, Batch, Found, Io, Log, Progress};

/// The disk: a prefix of each area, including the one that older builds used; the rest is zeros.
struct Disk([Vec<u8>; AREAS.len()]);

/// Returns the area of a byte on the disk, and the offset within the area.
fn place(at: u64) -> (usize, usize) {
    let area = AREAS.iter().rposition(|begin| at >= *begin).expect("the first one begins at 0");
    (area, (at - AREAS[area]) as usize)
}

impl Disk {
    fn run(&mut self, io: &Io) -> Vec<u8> {
        match io {
            Io::Read { at, len } => {
                let (area, at) = place(*at);
                let mut data = vec![0; *len as usize];
                let there = self.0[area].get(at..).unwrap_or(&[]);
                let n = there.len().min(data.len());
                data[..n].copy_from_slice(&there[..n]);
                data
            }
            Io::Write { at, data } => {
                let (area, at) = place(*at);
                let end = at + data.len();
                let area = &mut self.0[area];
                area.resize(area.len().max(end), 0);
                area[at..end].copy_from_slice(data);
                Vec::new()
            }
            Io::Flush => Vec::new(),
        }
    }
}

fn recover(disk: &mut Disk) -> Option<(Log, Found)> {
    let mut log = Log::new(64 << 10);
    while let Some(io) = log.next() {
        let data = disk.run(&io);
        if let Progress::Recovered(found) = log.done(Ok(&data)) {
            return Some((log, *found));
        }
    }
    assert!(log.failed().is_some_and(|why| !why.to_string().is_empty()));
    None
}

/// Carries out the log's I/O until it has no more.
fn drain(log: &mut Log, disk: &mut Disk) {
    while let Some(io) = log.next() {
        let data = disk.run(&io);
        log.done(Ok(&data));
    }
}

// Entries with arbitrary content and valid checksums, then bytes that are changed on the disk.
fuzz_target!(|input: (Vec<Vec<u8>>, Vec<(bool, u16, u8)>)| {
    let mut disk = Disk([const { Vec::new() }; AREAS.len()]);
    let (mut log, _) = recover(&mut disk).expect("an empty disk is an empty log");
    log.switch(b"image");
    drain(&mut log, &mut disk);
    for entry in &input.0 {
        let mut batch = Batch::default();
        batch.push(entry);
        if !log.wants_switch() {
            log.append(batch);
            drain(&mut log, &mut disk);
        }
    }
    for (area, at, byte) in &input.1 {
        let area = &mut disk.0[usize::from(*area)];
        area.resize(area.len().max(usize::from(*at) + 1), 0);
        area[usize::from(*at)] ^= byte;
    }
    let Some((mut log, found)) = recover(&mut disk) else { return };
    let image = found.records.concat();
    log.switch(&image);
    drain(&mut log, &mut disk);
    let found = recover(&mut disk).map(|(_, found)| found);
    assert_eq!(found, Some(Found { image: Some(image), records: Vec::new() }));
});

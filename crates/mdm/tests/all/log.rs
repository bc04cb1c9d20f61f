//! The log under crashes. Whatever is cut, torn or damaged: either everything acknowledged is there
//! again, or the log refuses to start.

use crate::common::{self, *};
use base::Prng;
use mdm::State;
use mdm::command::{Command, FormCluster};
use mdm::controller;
use mdm::log::{AREAS, BLOCK, Batch, Io, Log, LogError, Progress};
use seam::DiskError;
use std::collections::BTreeMap;
use wire::control::DeviceKind::Durable;

/// A sparse disk. Writes that were not flushed yet are kept apart.
#[derive(Clone, Default)]
struct Disk {
    sectors: BTreeMap<u64, [u8; 512]>,
    pending: Vec<(u64, Vec<u8>)>,
    /// Pages of writes whose flush failed: they read well, and are on no disk.
    clean: Vec<(u64, Vec<u8>)>,
}

impl Disk {
    fn put(&mut self, at: u64, data: &[u8]) {
        for (i, byte) in data.iter().enumerate() {
            let at = at + i as u64;
            self.sectors.entry(at / 512).or_insert([0; 512])[at as usize % 512] = *byte;
        }
    }

    fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        for (i, part) in data.chunks_mut(512).enumerate() {
            if let Some(sector) = self.sectors.get(&(at / 512 + i as u64)) {
                part.copy_from_slice(&sector[..part.len()]);
            }
        }
        data
    }

    fn flush(&mut self) {
        for (at, data) in std::mem::take(&mut self.pending) {
            self.put(at, &data);
        }
    }

    fn run(&mut self, io: &Io) -> Vec<u8> {
        match io {
            Io::Read { at, len } => {
                let mut all = self.clone();
                for (at, data) in self.clean.iter().chain(&self.pending) {
                    all.put(*at, data);
                }
                return all.get(*at, *len as usize);
            }
            Io::Write { at, data } => {
                assert!(at % BLOCK as u64 == 0 && data.len() % BLOCK == 0, "aligned");
                self.pending.push((*at, data.clone()));
            }
            Io::Flush => self.flush(),
        }
        Vec::new()
    }

    /// Makes a flush fail: the kernel has given up, and takes the pages for clean.
    fn flush_fails(&mut self) {
        self.clean.append(&mut self.pending);
    }

    /// Cuts the power: each sector that was not flushed is new, old or noise.
    fn crash(&mut self, prng: &mut Prng) {
        self.clean.clear();
        for (at, data) in std::mem::take(&mut self.pending) {
            for (i, part) in data.chunks(512).enumerate() {
                let at = at + i as u64 * 512;
                match prng.below(8) {
                    0 => self.put(at, &[prng.next_u64() as u8; 512]),
                    1..4 => self.put(at, part),
                    _ => {}
                }
            }
        }
    }
}

fn recover(disk: &mut Disk, limit: u64) -> Result<(Log, State), LogError> {
    let mut log = Log::new(limit);
    while let Some(io) = log.next() {
        let data = disk.run(&io);
        match log.done(Ok(&data)) {
            Progress::More => {}
            Progress::Recovered(found) => {
                let image = |bytes: Vec<u8>| State::from_bytes(&bytes).unwrap();
                let mut state = found.image.map_or_else(State::new, image);
                for record in found.records {
                    state.apply(state.index + 1, &Command::from_bytes(&record).unwrap());
                }
                return Ok((log, state));
            }
            Progress::Failed => break,
            other => panic!("{other:?}"),
        }
    }
    Err(log.failed().cloned().expect("a reason"))
}

/// Returns command `i` of a history in which every command is valid.
fn history(state: &State, i: u64) -> Command {
    match i {
        1 => Command::FormCluster(FormCluster { cluster: 7 }),
        2 => up(1, 1, 11, Durable),
        3 => up(2, 2, 12, Durable),
        _ if i % 7 == 4 => common::create(state, &format!("v{i}"), 1, &limits()).unwrap(),
        _ if i % 7 == 6 => {
            let name = state.volumes.values().next().unwrap().name.clone();
            let delete = controller::delete_volume_command(state, &name, false, |_| Vec::new());
            (*delete.unwrap()).clone()
        }
        _ => up(1 + (i % 2) as u32, state.next_incarnation.0, 11 + i % 2, Durable),
    }
}

/// Returns all states of the history, by index.
fn states(upto: u64) -> Vec<State> {
    let mut states = vec![State::new()];
    for i in 1..=upto {
        let mut state = states.last().unwrap().clone();
        let command = history(&state, i);
        apply(&mut state, &command);
        states.push(state);
    }
    states
}

/// Runs until `ops` operations are done or `upto` commands are durable. Returns the number of
/// durable ones.
fn run(
    disk: &mut Disk,
    log: &mut Log,
    state: &mut State,
    upto: u64,
    batch_of: u64,
    mut ops: u64,
) -> u64 {
    let mut durable = state.index;
    loop {
        if log.is_idle() {
            durable = state.index;
            if log.wants_switch() {
                log.switch(&state.to_bytes());
            } else if state.index >= upto {
                return durable;
            } else {
                let mut batch = Batch::default();
                for _ in 0..batch_of {
                    let command = history(state, state.index + 1);
                    assert!(batch.push(&command.to_bytes()));
                    state.apply(state.index + 1, &command);
                }
                log.append(batch);
            }
        }
        while let Some(io) = log.next() {
            if ops == 0 {
                if !matches!(io, Io::Flush) {
                    disk.run(&io); // under way when the power fails
                }
                return durable;
            }
            ops -= 1;
            let data = disk.run(&io);
            log.done(Ok(&data));
        }
    }
}

#[test]
fn an_empty_disk_begins_and_everything_comes_back() {
    let all = states(60);
    for (limit, batch_of) in [(1 << 20, 1), (4096, 1), (3 * 4096, 3), (1 << 20, 60)] {
        let mut disk = Disk::default();
        let (mut log, mut state) = recover(&mut disk, limit).unwrap();
        assert_eq!(state, State::new());
        assert_eq!(run(&mut disk, &mut log, &mut state, 60, batch_of, u64::MAX), 60);
        let (_, back) = recover(&mut disk, limit).unwrap();
        assert_eq!(back, all[60]);
        // Another build may have another limit.
        assert_eq!(recover(&mut disk, 1).unwrap().1, all[60]);
    }
}

/// Power fails after a few operations, again and again; each time everything acknowledged is there.
#[test]
fn power_failures_at_every_operation_lose_nothing_acknowledged() {
    let all = states(400);
    for seed in 0..25 {
        let mut prng = Prng::new(seed);
        let (mut disk, mut acknowledged) = (Disk::default(), 0);
        let limit = *prng.pick(&[1, 4096, 5 * 4096, 1 << 20]);
        for round in 0..60 {
            let (mut log, mut state) = match recover(&mut disk, limit) {
                Ok(found) => found,
                Err(why) => panic!("seed {seed}, round {round}: {why}"),
            };
            let what = format!("seed {seed}, round {round}: {} of {acknowledged}", state.index);
            assert!(state.index >= acknowledged, "{what}");
            assert_eq!(state, all[state.index as usize], "{what}");
            let (batch, ops) = (prng.range(1, 3), prng.below(12));
            acknowledged = run(&mut disk, &mut log, &mut state, 380, batch, ops);
            disk.crash(&mut prng);
        }
        assert!(acknowledged > 20, "the runs get somewhere: {acknowledged}");
    }
}

#[test]
fn the_tail_cut_at_every_byte_is_the_state_before_or_after() {
    let all = states(9);
    let mut disk = Disk::default();
    let (mut log, mut state) = recover(&mut disk, 1 << 20).unwrap();
    run(&mut disk, &mut log, &mut state, 6, 1, u64::MAX);
    let mut batch = Batch::default();
    for i in 7..=9 {
        let command = history(&state, i);
        batch.push(&command.to_bytes());
        state.apply(i, &command);
    }
    log.append(batch);
    let Some(Io::Write { at, data }) = log.next() else { panic!("a write") };
    let used = data.iter().rposition(|b| *b != 0).unwrap() + 1;
    for cut in 0..=data.len() {
        let mut torn = disk.clone();
        torn.put(at, &data[..cut]);
        let (mut log, mut back) = recover(&mut torn, 1 << 20).unwrap();
        assert_eq!(back, all[if cut >= used { 9 } else { 6 }], "cut at {cut} of {used}");
        if cut % 97 == 0 {
            run(&mut torn, &mut log, &mut back, 12, 1, u64::MAX);
            assert_eq!(recover(&mut torn, 1 << 20).unwrap().1.index, 12, "it goes on after {cut}");
        }
    }
}

#[test]
fn damage_of_what_was_acknowledged_is_refused_not_forgotten() {
    let mut disk = Disk::default();
    let (mut log, mut state) = recover(&mut disk, 1 << 20).unwrap();
    run(&mut disk, &mut log, &mut state, 8, 1, u64::MAX);
    let damaged = |at: u64| {
        let mut disk = disk.clone();
        let byte = disk.get(at, 1)[0];
        disk.put(at, &[byte ^ 1]);
        recover(&mut disk, 1 << 20).map(|(_, state)| state.index)
    };
    // Area 0: two headers, the image of an empty state in one block, eight batches of one block
    // each.
    let block = |n: u64| n * BLOCK as u64;
    assert!(matches!(damaged(block(2)), Err(LogError::Damaged { .. })), "the snapshot");
    for batch in 3..10 {
        for byte in [0, 4, 9, 13, 17, 25, 33, 44, 46] {
            let result = damaged(block(batch) + byte);
            assert!(matches!(result, Err(LogError::Damaged { .. })), "{batch}, {byte}: {result:?}");
        }
    }
    assert_eq!(damaged(block(10) + 46), Ok(7), "the last one can't be told from a torn write");
    assert_eq!(damaged(0), Ok(8), "one header is enough");
    assert_eq!(damaged(block(1)), Ok(8), "either of them");
    let mut both = disk.clone();
    both.put(20, &[1]);
    both.put(block(1) + 20, &[1]);
    assert_eq!(recover(&mut both, 1 << 20).err(), Some(LogError::Foreign));
    both.put(AREAS[1] + 20, &[1]);
    both.put(AREAS[1] + block(1) + 20, &[1]);
    assert!(matches!(recover(&mut both, 1 << 20), Err(LogError::Damaged { .. })));
    for why in [LogError::Foreign, LogError::Version(9), LogError::Damaged { at: 1, what: "x" }] {
        assert!(why.to_string().len() > 40, "it says what to do: {why}");
    }
}

#[test]
fn a_damaged_header_of_the_newest_area_is_not_taken_for_an_unfinished_switch() {
    let mut disk = Disk::default();
    let (mut log, mut state) = recover(&mut disk, 1).unwrap();
    run(&mut disk, &mut log, &mut state, 6, 1, u64::MAX);
    for area in [AREAS[0], AREAS[1]] {
        let mut disk = disk.clone();
        disk.put(area + 20, &[9]);
        assert!(recover(&mut disk.clone(), 1).is_ok());
        disk.put(area + BLOCK as u64 + 20, &[9]);
        assert!(matches!(recover(&mut disk, 1), Err(LogError::Damaged { .. })));
    }
}

#[test]
fn another_format_and_strangers_are_refused() {
    let mut disk = Disk::default();
    disk.put(0, &[b'x'; 3 * BLOCK]);
    assert_eq!(recover(&mut disk, 1 << 20).err(), Some(LogError::Foreign));
    let mut disk = Disk::default();
    let (mut log, mut state) = recover(&mut disk, 1 << 20).unwrap();
    run(&mut disk, &mut log, &mut state, 3, 1, u64::MAX);
    let mut header = disk.get(0, BLOCK);
    header[12..16].copy_from_slice(&4u32.to_le_bytes());
    let crc = base::crc::crc32c(&header[12..]);
    header[8..12].copy_from_slice(&crc.to_le_bytes());
    disk.put(0, &header);
    assert_eq!(recover(&mut disk, 1 << 20).err(), Some(LogError::Version(4)));
}

/// Returns the disk as a build of format 2 would have left it.
fn of_format_2(disk: &Disk) -> Disk {
    let mut old = Disk::default();
    let near = |sector: &u64| sector * 512 >= AREAS[1];
    for (sector, bytes) in &disk.sectors {
        let moved = if near(sector) { sector + (AREAS[2] - AREAS[1]) / 512 } else { *sector };
        old.sectors.insert(moved, *bytes);
    }
    for at in [AREAS[0], AREAS[2]].into_iter().flat_map(|area| [area, area + BLOCK as u64]) {
        let mut header = old.get(at, BLOCK);
        if header.iter().any(|b| *b != 0) {
            header[12..16].copy_from_slice(&2u32.to_le_bytes());
            let crc = base::crc::crc32c(&header[12..]);
            header[8..12].copy_from_slice(&crc.to_le_bytes());
            old.put(at, &header);
        }
    }
    old
}

#[test]
fn a_log_whose_second_area_is_a_tebibyte_away_is_read_and_written_near() {
    // With few and with many earlier switches: the newest area is the first one or the other one.
    for entries in 1..12 {
        let mut disk = Disk::default();
        let (mut log, mut state) = recover(&mut disk, 1).unwrap();
        run(&mut disk, &mut log, &mut state, entries, 1, u64::MAX);
        let mut old = of_format_2(&disk);
        let (mut log, mut back) = recover(&mut old, 1).unwrap();
        assert_eq!(back, state, "{entries} entries");
        let far = |disk: &Disk| disk.sectors.range((AREAS[2] + 2 * BLOCK as u64) / 512..).count();
        let (there, first) = (far(&old), back.index + 1);
        run(&mut old, &mut log, &mut back, first + 20, 1, u64::MAX);
        assert_eq!(far(&old), there, "nothing more is written there");
        assert_eq!(recover(&mut old, 1).unwrap().1, back, "{entries} entries");
    }
}

#[test]
fn after_a_disk_error_nothing_is_accepted() {
    let mut disk = Disk::default();
    let (mut log, mut state) = recover(&mut disk, 1 << 20).unwrap();
    run(&mut disk, &mut log, &mut state, 3, 1, u64::MAX);
    let mut batch = Batch::default();
    batch.push(&history(&state, 4).to_bytes());
    log.append(batch);
    assert!(log.next().is_some() && log.next().is_none(), "one at a time");
    assert!(matches!(log.done(Err(DiskError::NoSpace)), Progress::Failed));
    assert!(log.next().is_none() && !log.is_idle());
    assert!(log.failed().unwrap().to_string().contains("no space left"));
    assert!(Log::new(1).next().is_some());
}

#[test]
fn batches_are_bounded() {
    let mut batch = Batch::default();
    assert!(batch.push(&[1; 1 << 20]) && batch.push(&[1; 1000]));
    assert!(!batch.push(&[1; 1 << 20]));
    assert_eq!((batch.count(), batch.bytes()), (2, (1 << 20) + 1008));
}

/// Runs operations until `log` is idle or the `n`th flush, which fails. Returns false if it failed.
fn until_flush_fails(disk: &mut Disk, log: &mut Log, n: &mut u32) -> bool {
    while let Some(io) = log.next() {
        let fails = io == Io::Flush && core::mem::replace(n, n.saturating_sub(1)) == 1;
        if fails {
            disk.flush_fails();
            assert!(matches!(log.done(Err(DiskError::Io)), Progress::Failed));
            return false;
        }
        let data = disk.run(&io);
        if let Progress::Failed = log.done(Ok(&data)) {
            panic!("{}", log.failed().unwrap());
        }
    }
    true
}

/// Flushes fail: of a batch, of a switch, and of the restart that follows. What a restart relies on
/// is there when the power fails after it.
#[test]
fn data_that_a_restart_relies_on_is_on_the_disk_and_not_only_in_the_page_cache() {
    let all = states(60);
    for (limit, first, second) in [1, 4096, 1 << 20]
        .into_iter()
        .flat_map(|l| (1..9).map(move |f| (l, f)))
        .flat_map(|(limit, first)| (0..9).map(move |second| (limit, first, second)))
    {
        let what = format!("limit {limit}, flush {first} fails, then flush {second}");
        let mut disk = Disk::default();
        let (mut log, mut state) = recover(&mut disk, limit).unwrap();
        let sure = run(&mut disk, &mut log, &mut state, 8, 1, u64::MAX);
        // Batches and switches go on until a flush fails.
        let mut n = first;
        loop {
            if log.wants_switch() {
                log.switch(&state.to_bytes());
            } else {
                let mut batch = Batch::default();
                let command = history(&state, state.index + 1);
                batch.push(&command.to_bytes());
                state.apply(state.index + 1, &command);
                log.append(batch);
            }
            if !until_flush_fails(&mut disk, &mut log, &mut n) {
                break;
            }
        }
        // The restart fails, too, or not.
        let mut n = second;
        let mut log = Log::new(limit);
        let _ = until_flush_fails(&mut disk, &mut log, &mut n);
        let (mut log, found) = recover(&mut disk, limit).unwrap();
        assert!(found.index >= sure && log.wants_switch(), "{what}");
        // From now on the owner relies on what was read.
        log.switch(&found.to_bytes());
        for power in [0, 3, 6] {
            let (mut disk, mut ops) = (disk.clone(), power);
            let mut half = Log::new(limit);
            while let Some(io) = half.next().filter(|_| ops > 0) {
                ops -= 1;
                let data = disk.run(&io);
                half.done(Ok(&data));
            }
            disk.crash(&mut Prng::new(u64::from(first)));
            let (_, back) = recover(&mut disk, limit).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(back.index >= sure, "{what}: nothing that was acknowledged before is lost");
        }
        assert!(until_flush_fails(&mut disk, &mut log, &mut 0));
        disk.crash(&mut Prng::new(u64::from(second)));
        let (_, back) = recover(&mut disk, limit).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(back.index, found.index, "{what}");
        assert_eq!(back, all[back.index as usize], "{what}");
    }
}

//! Hosts on one side, a disk and a table of reservations on the other: runs each command to its
//! end, as a session of a transport would.

use base::{ClusterId, VolumeId};
use proptest::prelude::ProptestConfig;
use seam::{BlockError, BlockKind, Buf, BufPool};
use target::reserve::{self, Identity, Table};
use target::scsi::*;

pub(crate) const CLUSTER: ClusterId = ClusterId(0x0123_4567_89ab_cdef);
pub(crate) const VOLUME: VolumeId = VolumeId(7);

/// A volume of 32 MiB in this format.
pub(crate) fn unit(format: Format) -> Unit {
    Unit {
        cluster: CLUSTER,
        volume: VOLUME,
        size: 32 << 20,
        read_only: false,
        format,
        transfer: 4 << 20,
        target: target::ident::iqn(target::ident::AUTHORITY, CLUSTER, VOLUME),
        port: 1,
        path: Path::Optimized,
        others: Vec::new(),
        asks: true,
    }
}

/// Port groups: the number and the state of each.
pub(crate) type Groups<'a> = &'a [(u16, Path)];

/// Returns the port groups of other gateways.
pub(crate) fn others(groups: Groups<'_>) -> Vec<PortGroup> {
    groups.iter().map(|&(port, path)| PortGroup { port, path }).collect()
}

/// The answer that a host gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    pub status: Status,
    /// Key, additional sense code, and qualifier; zeros without sense data.
    pub sense: (u8, u8, u8),
    pub information: Option<u64>,
    pub data: Vec<u8>,
    pub residual: Residual,
}

impl Told {
    /// The command succeeded without data, and moved what was announced.
    pub(crate) fn good() -> Told {
        Told {
            status: Status::Good,
            sense: (0, 0, 0),
            information: None,
            data: Vec::new(),
            residual: Residual::None,
        }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.status == Status::Good
    }
}

/// A request that the disk has executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Did {
    Read(u64, u32),
    Write(u64, u32),
    Zero(u64, u32, bool),
    CompareWrite(u64, u32),
    Extents(u64, u32),
}

pub(crate) struct Rig {
    pub hosts: Vec<(Identity, Device)>,
    pub table: Table,
    pub pool: BufPool,
    pub disk: Vec<u8>,
    /// Which 4 KiB blocks hold data.
    pub mapped: Vec<bool>,
    pub did: Vec<Did>,
    /// The error of the next request.
    pub fails: Option<Failure>,
    /// Bytes of one piece of a transfer.
    pub piece: usize,
    /// How often a host has made its path the active one.
    pub activated: u32,
}

impl Rig {
    /// Creates two hosts that have been told that they are new.
    pub(crate) fn new(format: Format) -> Rig {
        let mut rig = Rig::fresh(unit(format));
        for (_, device) in &mut rig.hosts {
            let ready =
                Command { lun: 0, cdb: &[0; 6], attribute: Attribute::Simple, reads: 0, sends: 0 };
            device.start(&ready, &rig.pool);
        }
        rig
    }

    /// Creates two hosts that have just logged in.
    pub(crate) fn fresh(unit: Unit) -> Rig {
        let host = |n: u8| {
            let name = format!("iqn.2007-10.com.example:host{n}");
            let who = Identity::Scsi { name, isid: [0x40, 0, 0, 0, 0, n], port: unit.port };
            (who, Device::new(unit.clone(), Attention::NewNexus))
        };
        Rig {
            hosts: vec![host(0), host(1)],
            table: Table::default(),
            pool: BufPool::new(1 << 20),
            disk: vec![0; unit.size as usize],
            mapped: vec![false; (unit.size / 4096) as usize],
            did: Vec::new(),
            fails: None,
            piece: 512,
            activated: 0,
        }
    }

    /// Runs a command of host 0 that reads.
    pub(crate) fn read(&mut self, cdb: &[u8], reads: u32) -> Told {
        self.run(0, cdb, reads, &[])
    }

    /// Runs a command of host 0 that writes.
    pub(crate) fn write(&mut self, cdb: &[u8], sends: &[u8]) -> Told {
        self.run(0, cdb, 0, sends)
    }

    pub(crate) fn run(&mut self, host: usize, cdb: &[u8], reads: u32, sends: &[u8]) -> Told {
        let attribute = Attribute::Simple;
        let command = Command { lun: 0, cdb, attribute, reads, sends: sends.len() as u32 };
        self.command(host, &command, sends)
    }

    /// Runs a command to its end.
    pub(crate) fn command(&mut self, host: usize, command: &Command<'_>, sends: &[u8]) -> Told {
        let mut step = self.hosts[host].1.start(command, &self.pool);
        let mut data = None;
        let answer = loop {
            step = match step {
                Step::Answer(answer) => break answer,
                Step::Gather(gather) => {
                    assert!((1..=Gather::MAX).contains(&gather.len), "{gather:?}");
                    let list = self.pool.copy(&sends[..gather.len as usize]);
                    self.hosts[host].1.gathered(gather, list, &self.pool)
                }
                Step::Read(transfer) => {
                    break self.moves(transfer, |rig, at, len, _| {
                        match rig.execute(BlockKind::Read, at, len, Buf::EMPTY) {
                            Ok(bytes) => data.get_or_insert_with(Vec::new).extend(&bytes[..]),
                            Err(failure) => return Ok(Some(transfer.unread(failure))),
                        }
                        Ok(None)
                    });
                }
                Step::Write(transfer) => {
                    break self.moves(transfer, |rig, at, len, offset| {
                        let body = rig.pool.copy(&sends[offset..][..len as usize]);
                        rig.execute(BlockKind::Write, at, len, body)?;
                        Ok(None)
                    });
                }
                Step::Verify(transfer) => {
                    break self.moves(transfer, |rig, at, len, offset| {
                        let stored = rig.execute(BlockKind::Read, at, len, Buf::EMPTY)?;
                        let sent = &sends[offset..][..len as usize];
                        Ok(transfer.compare(offset as u32, sent, &stored))
                    });
                }
                Step::Run(mut plan) => {
                    break loop {
                        let Request { kind, at, len, body } = plan.request();
                        let result = self.execute(kind, at, len, body);
                        if let Some(answer) = plan.done(result, &self.pool) {
                            break answer;
                        }
                    };
                }
                Step::Activate => {
                    self.activated += 1;
                    break Answer::good();
                }
                Step::Reserve(change) => break self.reserve(host, &change),
                Step::Report(report) => {
                    break self.hosts[host].1.report(report, &self.table, &self.pool);
                }
            };
        };
        let mut data = data.unwrap_or_else(|| answer.data.to_vec());
        data.truncate(command.reads as usize);
        assert_eq!(answer.sense.is_some(), answer.status == Status::CheckCondition);
        Told {
            status: answer.status,
            sense: answer.sense.map_or((0, 0, 0), |s| (s.key, s.asc, s.ascq)),
            information: answer.sense.and_then(|s| s.information),
            data,
            residual: answer.residual,
        }
    }

    /// Moves a range piece by piece.
    fn moves(
        &mut self,
        transfer: Transfer,
        mut piece: impl FnMut(&mut Rig, u64, u32, usize) -> Result<Option<Answer>, Failure>,
    ) -> Answer {
        let Transfer { at, len, moves, .. } = transfer;
        assert!(len > 0 && len.is_multiple_of(512) && moves <= len && len - moves < 512);
        for offset in (0..len as usize).step_by(self.piece) {
            let size = (len as usize - offset).min(self.piece) as u32;
            match piece(self, at + offset as u64, size, offset) {
                Ok(None) => {}
                Ok(Some(answer)) => return answer,
                Err(failure) => return transfer.failed(failure, offset as u32),
            }
        }
        transfer.done()
    }

    fn reserve(&mut self, host: usize, change: &reserve::Change) -> Answer {
        let before = self.table.clone();
        let result = reserve::step(&mut self.table, &self.hosts[host].0, change, 128);
        for (i, (who, device)) in self.hosts.iter_mut().enumerate() {
            device.set_access(self.table.access(who));
            let notice = reserve::notice(&before, &self.table, who);
            if let Some(notice) = notice.filter(|_| i != host) {
                device.attention(notice.into());
            }
        }
        self.hosts[host].1.reserved(result)
    }

    /// Executes one request on the disk.
    fn execute(&mut self, kind: BlockKind, at: u64, len: u32, body: Buf) -> Result<Buf, Failure> {
        if let Some(failure) = self.fails.take() {
            return Err(failure);
        }
        let range = at as usize..at as usize + len as usize;
        assert!(len > 0 && at.is_multiple_of(512) && len.is_multiple_of(512));
        assert!(range.end <= self.disk.len(), "the range leaves the volume");
        let blocks = range.start / 4096..range.end.div_ceil(4096);
        match kind {
            BlockKind::Read => {
                self.did.push(Did::Read(at, len));
                return Ok(self.pool.copy(&self.disk[range]));
            }
            BlockKind::Write => {
                self.did.push(Did::Write(at, len));
                self.disk[range].copy_from_slice(&body);
                self.mapped[blocks].fill(true);
            }
            BlockKind::Zero { hole } => {
                self.did.push(Did::Zero(at, len, hole));
                self.disk[range].fill(0);
                for block in blocks {
                    let whole = &self.disk[block * 4096..][..4096];
                    self.mapped[block] &= !hole || whole.iter().any(|byte| *byte != 0);
                }
            }
            BlockKind::CompareWrite => {
                self.did.push(Did::CompareWrite(at, len));
                assert!(at % 4096 + u64::from(len) <= 4096, "crosses a block");
                let (compare, new) = body.split_at(len as usize);
                let stored = &mut self.disk[range];
                if let Some(wrong) = stored.iter().zip(compare).position(|(a, b)| a != b) {
                    return Err(BlockError::Miscompare(wrong as u32).into());
                }
                stored.copy_from_slice(new);
                self.mapped[blocks].fill(true);
            }
            BlockKind::Extents => {
                self.did.push(Did::Extents(at, len));
                let mut bits = vec![0; blocks.len().div_ceil(8)];
                for (i, block) in blocks.enumerate() {
                    bits[i / 8] |= u8::from(self.mapped[block]) << (i % 8);
                }
                return Ok(self.pool.copy(&bits));
            }
            BlockKind::Flush => return Err(BlockError::Misaligned.into()),
        }
        Ok(Buf::EMPTY)
    }
}

/// Returns a CDB of ten bytes with a range.
pub(crate) fn cdb10(opcode: u8, flags: u8, lba: u32, count: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    (cdb[0], cdb[1]) = (opcode, flags);
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&count.to_be_bytes());
    cdb
}

/// Returns a CDB of twelve bytes with a range.
pub(crate) fn cdb12(opcode: u8, flags: u8, lba: u32, count: u32) -> [u8; 12] {
    let mut cdb = [0; 12];
    (cdb[0], cdb[1]) = (opcode, flags);
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[6..10].copy_from_slice(&count.to_be_bytes());
    cdb
}

/// Returns a CDB of sixteen bytes with a range.
pub(crate) fn cdb16(opcode: u8, flags: u8, lba: u64, count: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (opcode, flags);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&count.to_be_bytes());
    cdb
}

/// Returns COMPARE AND WRITE.
pub(crate) fn compare_and_write(lba: u64, count: u8) -> [u8; 16] {
    let mut cdb = cdb16(0x89, 0, lba, 0);
    cdb[13] = count;
    cdb
}

/// Returns the configuration of a property with this many cases.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..Default::default() }
}

/// Returns the bytes of hexadecimal digits; spaces are ignored.
pub(crate) fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let digit = |d: u8| (d as char).to_digit(16).expect("a hexadecimal digit") as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// The sense data that tests expect by name.
pub(crate) mod says {
    pub(crate) const LIST_LENGTH: (u8, u8, u8) = (5, 0x1a, 0);
    pub(crate) const OPCODE: (u8, u8, u8) = (5, 0x20, 0);
    pub(crate) const OUT_OF_RANGE: (u8, u8, u8) = (5, 0x21, 0);
    pub(crate) const IN_CDB: (u8, u8, u8) = (5, 0x24, 0);
    pub(crate) const NO_UNIT: (u8, u8, u8) = (5, 0x25, 0);
    pub(crate) const IN_LIST: (u8, u8, u8) = (5, 0x26, 0);
    pub(crate) const WRONG_LENGTH: (u8, u8, u8) = (5, 0x0e, 3);
    pub(crate) const WRITE_PROTECTED: (u8, u8, u8) = (7, 0x27, 0);
    pub(crate) const STANDBY: (u8, u8, u8) = (2, 0x04, 0x0b);
    pub(crate) const MISCOMPARE: (u8, u8, u8) = (0xe, 0x1d, 0);
}

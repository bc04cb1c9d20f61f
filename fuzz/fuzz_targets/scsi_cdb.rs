//! Arbitrary commands for the SCSI device server: any CDB of any length, with any announced lengths
//! and parameter lists, in any state of the path, with any access, and with any failures.
//!
//! Checked: no panic; every command ends; no request leaves the volume, or does more than the path,
//! the access of the host, the limits and the CDB allow; data fits into the allocation length and
//! into the room of the host; residuals account for what was announced; sense data comes with CHECK
//! CONDITION, and only then; bytes behind the CDB count for nothing; all memory is freed.
//!
//! Input: one byte for the unit, then a script. Each of its records begins with a control byte. The
//! content of answers is not checked here (`crates/target/tests/all/scsi` does that).
#![no_main]

use base::{ClusterId, Limits, VolumeId};
use libfuzzer_sys::fuzz_target;
use seam::{BlockError, BlockKind, Buf, BufPool};
use target::reserve::{self, Access, Identity, Table};
use target::scsi::{
    Answer, Attention, Attribute, Command, Device, Failure, Format, Gather, Path, PortGroup,
    Request, Residual, Status, Step, Transfer, Unit,
};

const SIZE: u64 = 16 << 20;
/// Registrants of the volume.
const MOST: usize = 4;
/// The most bytes that a command may change without data of its own: UNMAP frees 512 MiB.
const FREED: u64 = 512 << 20;
/// The most bytes that a host sends with a command here.
const LONGEST: u64 = 256 << 10;
/// LUN 0 by the flat method of addressing.
const FLAT_0: u64 = 0x4000 << 48;

/// The operation codes of the table of commands.
const KNOWN: [u8; 42] = [
    0x00, 0x03, 0x08, 0x0a, 0x12, 0x15, 0x1a, 0x1b, 0x1d, 0x1e, 0x25, 0x28, 0x2a, 0x2e, 0x2f, 0x34,
    0x35, 0x37, 0x41, 0x42, 0x55, 0x5a, 0x5e, 0x5f, 0x88, 0x89, 0x8a, 0x8e, 0x8f, 0x90, 0x91, 0x93,
    0x9e, 0xa0, 0xa3, 0xa4, 0xa8, 0xaa, 0xae, 0xaf, 0xb7, 0x7f,
];

/// The rest of the input.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    /// The next bytes, at most `len`: as many as there are.
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes.to_vec()
    }

    fn number(&mut self, len: usize) -> u32 {
        self.bytes(len).iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
    }
}

fn number(cdb: &[u8], at: usize, len: usize) -> u64 {
    let byte = |i| cdb.get(i).copied().unwrap_or(0);
    (at..at + len).fold(0, |number, i| number << 8 | u64::from(byte(i)))
}

/// Returns the allocation length of a command that has one.
fn allocation(cdb: &[u8]) -> Option<u64> {
    Some(match cdb.first()? {
        0x03 | 0x1a => number(cdb, 4, 1),
        0x12 => number(cdb, 3, 2),
        0x37 | 0x5a | 0x5e => number(cdb, 7, 2),
        0x9e => number(cdb, 10, 4),
        0xa0 | 0xa3 | 0xb7 => number(cdb, 6, 4),
        _ => return None,
    })
}

/// Returns how many bytes a host sends with this command, as a rule.
fn usual(cdb: &[u8], block: u32) -> u64 {
    let block = u64::from(block);
    match cdb.first().copied().unwrap_or(0) {
        0x15 | 0x0a => number(cdb, 4, 1) * if cdb[0] == 0x0a { block } else { 1 },
        0x42 | 0x55 => number(cdb, 7, 2),
        0x2a | 0x2e | 0x2f => number(cdb, 7, 2) * block,
        0x41 | 0x93 => block,
        0x5f => number(cdb, 5, 4),
        0x89 => 2 * number(cdb, 13, 1) * block,
        0x8a | 0x8e | 0x8f => number(cdb, 10, 4) * block,
        0xa4 => number(cdb, 6, 4),
        0xaa | 0xae | 0xaf => number(cdb, 6, 4) * block,
        _ => 0,
    }
}

/// A host, its volume, and the table of reservations.
struct Host {
    device: Device,
    who: Identity,
    access: Access,
    table: Table,
    pool: BufPool,
    /// How requests end.
    fails: u8,
    /// Bytes that the present command has changed without data.
    freed: u64,
}

/// One command, as its host sends it.
struct Order {
    cdb: Vec<u8>,
    lun: u64,
    attribute: Attribute,
    reads: u32,
    list: Vec<u8>,
}

impl Host {
    /// Checks a request, and returns its result.
    fn execute(&mut self, order: &Order, request: Request) -> Result<Buf, Failure> {
        let Request { kind, at, len, body } = request;
        let end = at.checked_add(len.into()).expect("no overflow");
        assert!(len > 0 && end <= SIZE && at % 512 == 0 && len % 512 == 0);
        assert_eq!(body.len(), kind.body_len(len));
        let (unit, needs) = (self.device.unit(), Access::of(kind));
        assert!(matches!(order.lun, 0 | FLAT_0) && !self.device.is_removed());
        assert!(unit.path == Path::Optimized && order.attribute != Attribute::Aca);
        assert!(self.access.read || !needs.read);
        assert!((self.access.write && !unit.read_only) || !needs.write);
        match kind {
            BlockKind::Zero { .. } => self.freed += u64::from(len),
            BlockKind::CompareWrite => assert!(at % 4096 + u64::from(len) <= 4096),
            _ => {}
        }
        assert!(self.freed <= FREED);
        match (self.fails % 16, kind) {
            (15, _) => Err(BlockError::Lost.into()),
            (14, _) => Err(BlockError::Elsewhere.into()),
            (13, _) => Err(BlockError::NoSuchVolume.into()),
            (12, BlockKind::Read | BlockKind::Extents) => Ok(self.pool.zeroed(3)),
            (11, BlockKind::CompareWrite) => Err(BlockError::Miscompare(len - 1).into()),
            (_, BlockKind::Read) => Ok(self.pool.zeroed(len as usize)),
            (bits, BlockKind::Extents) => {
                Ok(self.pool.copy(&vec![bits * 17; len as usize / 4096 / 8 + 2]))
            }
            _ => Ok(Buf::EMPTY),
        }
    }

    /// Moves the range of a transfer in two pieces, as a session does.
    fn transfer(&mut self, order: &Order, transfer: Transfer, kind: BlockKind) -> Answer {
        let Transfer { at, len, moves, .. } = transfer;
        assert!(len > 0 && len % 512 == 0 && moves <= len && len - moves < 512);
        assert!(
            len <= self.device.unit().transfer && transfer.writes == (kind == BlockKind::Write)
        );
        let reads = !transfer.writes && order.list.is_empty();
        assert!(moves as usize <= if reads { order.reads as usize } else { order.list.len() });
        let half = (len / 2).next_multiple_of(512);
        for (offset, len) in [(0, half), (half, len - half)] {
            if len == 0 {
                continue;
            }
            let body = self.pool.zeroed(kind.body_len(len));
            let at = at + u64::from(offset);
            match self.execute(order, Request { kind, at, len, body }) {
                Err(failure) if reads => return transfer.unread(failure),
                Err(failure) => return transfer.failed(failure, offset),
                Ok(stored) if !transfer.writes && !reads => {
                    let sent = &order.list[offset as usize..][..len as usize];
                    if let Some(answer) = transfer.compare(offset, sent, &stored) {
                        return answer;
                    }
                }
                Ok(data) if reads && data.len() != len as usize => {
                    return transfer.unread(BlockError::Media.into());
                }
                Ok(_) => {}
            }
        }
        let mut answer = transfer.done();
        if reads {
            answer.data = self.pool.zeroed(moves as usize);
        }
        answer
    }

    /// Runs a command to its end. Returns the answer, and how many bytes the host has sent for it.
    fn command(&mut self, order: &Order) -> (Answer, u32) {
        let Order { cdb, lun, attribute, reads, list } = order;
        let (lun, attribute, reads, sends) = (*lun, *attribute, *reads, list.len() as u32);
        let command = Command { lun, cdb, attribute, reads, sends };
        self.freed = 0;
        let padded = [cdb, &[0xa5; 16][..]].concat();
        let twin = self.device.clone().start(&Command { cdb: &padded, ..command }, &self.pool);
        let mut step = self.device.start(&command, &self.pool);
        if let Step::Answer(answer) = &twin
            && answer.status != Status::Good
        {
            // The padding may have completed a CDB that was too short.
            assert!(matches!(&step, Step::Answer(a) if a.status != Status::Good));
        }
        let mut sent = 0;
        loop {
            step = match step {
                Step::Answer(answer) => return (answer, sent),
                Step::Gather(gather) => {
                    assert!((1..=Gather::MAX).contains(&gather.len) && gather.len == sends);
                    sent = gather.len;
                    self.device.gathered(gather, self.pool.copy(list), &self.pool)
                }
                Step::Read(transfer) => {
                    return (self.transfer(order, transfer, BlockKind::Read), sent);
                }
                Step::Write(transfer) => {
                    return (self.transfer(order, transfer, BlockKind::Write), transfer.moves);
                }
                Step::Verify(transfer) => {
                    return (self.transfer(order, transfer, BlockKind::Read), transfer.moves);
                }
                Step::Run(mut plan) => loop {
                    let request = plan.request();
                    let result = self.execute(order, request);
                    if let Some(answer) = plan.done(result, &self.pool) {
                        return (answer, sent);
                    }
                },
                Step::Activate => return (Answer::good(), sent),
                Step::Reserve(change) => {
                    let result = reserve::step(&mut self.table, &self.who, &change, MOST);
                    self.access = self.table.access(&self.who);
                    self.device.set_access(self.access);
                    return (self.device.reserved(result), sent);
                }
                Step::Report(report) => {
                    return (self.device.report(report, &self.table, &self.pool), sent);
                }
            };
        }
    }

    /// Checks the answer to a command.
    fn check(&self, order: &Order, (answer, sent): (&Answer, u32)) {
        let (reads, sends) = (u64::from(order.reads), order.list.len() as u64);
        let data = answer.data.len() as u64;
        assert_eq!(answer.sense.is_some(), answer.status == Status::CheckCondition);
        assert!(data <= reads && (data == 0 || answer.status == Status::Good));
        assert!(allocation(&order.cdb).is_none_or(|allocation| data <= allocation));
        if let Some(sense) = &answer.sense {
            let (_, len) = sense.descriptor();
            assert!(len >= 8 && sense.fixed()[2] & 0xf == sense.key);
        }
        // Of hosts that announce data in the direction that the command has, as all do.
        let (announced, moved) = match (reads, sends) {
            (_, 0) => (reads, data),
            (0, _) if answer.status == Status::Good && sent > 0 => (sends, sent.into()),
            _ => return,
        };
        match answer.residual {
            Residual::Under(rest) => assert_eq!(announced, moved + u64::from(rest)),
            Residual::Over(_) if answer.status != Status::Good => {}
            // A command that gets data, of which the host announced that it returns some.
            Residual::Over(_) if sends == 0 && usual(&order.cdb, 512) > 0 => {}
            Residual::None | Residual::Over(_) => assert_eq!(announced, moved, "{answer:?}"),
        }
    }

    /// Something that is not a command happens.
    fn happen(&mut self, script: &mut Script<'_>) -> Option<()> {
        let what = script.byte()?;
        let mut unit = self.device.unit().clone();
        match what % 8 {
            0 => self.fails = what / 8,
            1 => {
                self.access = Access { read: what & 8 == 0, write: what & 16 == 0 };
                self.device.set_access(self.access);
            }
            2 => unit.path = if what & 8 == 0 { Path::Optimized } else { Path::Standby },
            3 => unit.read_only = what & 8 == 0,
            4 => {
                let path = if what & 8 == 0 { Path::Optimized } else { Path::Standby };
                let groups = 2..2 + u16::from(what / 16) * 10;
                unit.others = groups.map(|port| PortGroup { port, path }).collect();
            }
            5 => self.device.attention(Attention::Reset),
            6 => {
                let before = self.device.clone();
                self.device = Device::new(unit.clone(), Attention::NexusLoss);
                self.device.set_access(self.access);
                self.device.succeed(&before);
            }
            _ if what == 0xff => self.device.remove(),
            _ => {
                let who = Identity::Nvme { host: [what; 16] };
                let change = reserve::Change::Register {
                    key: 0,
                    new: 1 + script.number(1) as u64,
                    ignore: true,
                    all_ports: false,
                };
                let _ = reserve::step(&mut self.table, &who, &change, MOST);
                let kind = reserve::Kind::from_scsi(script.number(1) as u8 & 0xf);
                if let (Some(kind), Some(one)) = (kind, self.table.registrants.last()) {
                    let change = reserve::Change::Reserve { key: one.key, kind };
                    let who = one.who.clone();
                    let _ = reserve::step(&mut self.table, &who, &change, MOST);
                }
                self.access = self.table.access(&self.who);
                self.device.set_access(self.access);
            }
        }
        self.device.changed(unit);
        Some(())
    }

    /// Reads a command from the script.
    fn next(&self, control: u8, script: &mut Script<'_>) -> Option<Order> {
        let block = self.device.unit().format.block();
        let mut cdb = match control & 3 {
            0 => script.bytes(control as usize >> 2),
            _ => {
                let mut cdb = vec![KNOWN[script.byte()? as usize % KNOWN.len()]];
                // Few bytes of a CDB are not zero, as a rule.
                cdb.resize(16, 0);
                for _ in 0..control >> 2 & 7 {
                    let at = script.byte()?;
                    cdb[1 + at as usize % 15] = script.byte()?;
                }
                cdb
            }
        };
        let shape = script.byte()?;
        if shape & 0x80 != 0 {
            cdb.truncate(script.number(1) as usize);
        }
        let lun = match shape >> 4 & 7 {
            7 => u64::from(script.number(2)) << 48,
            6 => FLAT_0,
            _ => 0,
        };
        let attribute = match shape & 15 {
            15 => Attribute::Aca,
            14 => Attribute::Ordered,
            _ => Attribute::Simple,
        };
        let (mut reads, mut sends) = match shape & 3 {
            0 => (script.number(4), 0),
            1 => (script.number(2), 0),
            2 => (0, usual(&cdb, block).min(LONGEST) as usize),
            _ => (0, script.number(2) as usize),
        };
        if shape & 15 == 13 {
            (reads, sends) = (script.number(2), usual(&cdb, block).min(LONGEST) as usize);
        }
        let mut list = script.bytes(sends.min(128));
        list.resize(sends, 0);
        Some(Order { cdb, lun, attribute, reads, list })
    }
}

/// Returns the unit of an input.
fn unit(mode: u8) -> Unit {
    let path = if mode & 4 == 0 { Path::Optimized } else { Path::Standby };
    Unit {
        cluster: ClusterId(1),
        volume: VolumeId(7),
        size: SIZE,
        read_only: mode & 8 != 0,
        format: match mode & 3 {
            0 => Format::Native512,
            1 => Format::Native4k,
            _ => Format::Emulated512,
        },
        transfer: Limits::TEST_MIN.scsi_transfer,
        target: "t".repeat(1 + mode as usize % 223),
        port: 1,
        path,
        others: (2..5).map(|port| PortGroup { port, path: Path::Standby }).collect(),
        asks: mode & 16 == 0,
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&mode, script)) = input.split_first() else { return };
    let pool = BufPool::new(1 << 20);
    let mut host = Host {
        device: Device::new(unit(mode), Attention::NewNexus),
        who: Identity::Scsi { name: "i".into(), isid: [0; 6], port: 1 },
        access: Access::FULL,
        table: Table::default(),
        pool: pool.clone(),
        fails: 0,
        freed: 0,
    };
    let mut script = Script(script);
    while let Some(control) = script.byte() {
        let over = if control & 3 == 3 && control & 32 != 0 {
            host.happen(&mut script)
        } else {
            host.next(control, &mut script).map(|order| {
                let (answer, sent) = host.command(&order);
                host.check(&order, (&answer, sent));
            })
        };
        if over.is_none() {
            break;
        }
    }
    drop(host);
    assert_eq!(pool.used(), 0);
});

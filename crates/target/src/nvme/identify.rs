//! Identify: the data structures that describe the controller and the namespaces (base 5.15).

use super::command::Command;
use super::controller::Controller;
use super::events::{Event, WAITING};
use super::proto::*;
use super::ranges::RANGE;
use super::status::Status;
use super::subsystem::{Namespace, Path, Subsystem, active};
use crate::ident;
use base::{BLOCK as STORED, Limits};

/// The command set of namespaces that are blocks, in dword 11.
const NVM: u32 = 0;
/// Command retry delays 1, 2 and 3 (CRDT1 to CRDT3), in units of 100 ms.
const DELAYS: [u16; 3] = [10, 50, 100];
/// Blocks of 512 bytes in a block of the store, minus one: the granularity of writes and frees.
const GRANULARITY: u16 = (STORED / BLOCK - 1) as u16;
/// The optimal length of a write in blocks, minus one: 1 MiB.
const BEST_WRITE: u16 = 2047;
/// ANACAP: the controller reports the states optimized and inaccessible, and the ANA group of a
/// namespace does not change.
const ANACAP: u8 = 0x45;
/// Longest time for a change of ANA states, in seconds (ANATT). Zero is not allowed.
const ANATT: u8 = 10;

/// A structure that is filled in.
struct Fields<'a>(&'a mut [u8]);

impl Fields<'_> {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn u8(&mut self, at: usize, value: u8) {
        self.put(at, &[value]);
    }

    fn u16(&mut self, at: usize, value: u16) {
        self.put(at, &value.to_le_bytes());
    }

    fn u32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_le_bytes());
    }

    fn u64(&mut self, at: usize, value: u64) {
        self.put(at, &value.to_le_bytes());
    }

    /// A text of a fixed length, which ends with spaces.
    fn text(&mut self, at: usize, len: usize, text: &str) {
        self.0[at..at + len].fill(b' ');
        let text = text.as_bytes();
        self.put(at, &text[..text.len().min(len)]);
    }
}

/// Returns the revision of the firmware.
pub(crate) fn revision() -> [u8; 8] {
    let mut revision = [b' '; 8];
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    let len = version.len().min(8);
    revision[..len].copy_from_slice(&version[..len]);
    revision
}

/// Fills in what the command asks for. `to` has 4096 zeros.
pub(crate) fn fill(
    command: &Command,
    of: &Controller,
    subsystem: &dyn Subsystem,
    limits: &Limits,
    to: &mut [u8],
) -> Result<(), Status> {
    let (cns, nsid) = (command.dword(10) as u8, command.nsid());
    let mut fields = Fields(to);
    if cns == CNS_CONTROLLER {
        controller(of, subsystem, limits, &mut fields);
        return Ok(());
    }
    if of.discovery {
        return Err(Status::INVALID_FIELD);
    }
    let set = command.dword(11) >> 24;
    match cns {
        CNS_ACTIVE => {
            if nsid >= ALL - 1 {
                return Err(Status::NO_NAMESPACE);
            }
            for (i, namespace) in active(subsystem, nsid).enumerate() {
                fields.u32(i * 4, namespace.volume.0);
            }
            Ok(())
        }
        CNS_SET_CONTROLLER if set == NVM => Ok(()), // no limits but those of CNS 01
        CNS_NAMESPACE | CNS_DESCRIPTORS | CNS_SET_NAMESPACE if nsid == 0 || nsid > NAMESPACES => {
            Err(Status::NO_NAMESPACE)
        }
        CNS_NAMESPACE => {
            if let Some(found) = subsystem.namespace(nsid) {
                namespace(&found, subsystem, &mut fields);
            }
            Ok(()) // zeros: no such namespace is there
        }
        CNS_DESCRIPTORS => {
            let found = subsystem.namespace(nsid).ok_or(Status::NO_NAMESPACE)?;
            descriptors(&found, subsystem, &mut fields);
            Ok(())
        }
        CNS_SET_NAMESPACE if set == NVM => Ok(()),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// The controller (base figure 249).
fn controller(
    of: &Controller,
    subsystem: &dyn Subsystem,
    limits: &Limits,
    fields: &mut Fields<'_>,
) {
    fields.text(4, 20, &ident::nvme_serial(subsystem.cluster()));
    fields.text(24, 40, "Gabion");
    fields.put(64, &revision());
    fields.u8(77, (limits.nvme_mdts / STORED).ilog2() as u8); // MDTS
    fields.u16(78, of.cntlid);
    fields.u32(80, VERSION);
    fields.u32(96, 1); // CTRATT: host identifiers of 128 bits
    fields.u8(111, if of.discovery { 2 } else { 1 }); // CNTRLTYPE
    fields.u8(259, WAITING as u8 - 1); // AERL
    fields.u8(261, 0x04); // LPA: offsets of log pages
    fields.u16(320, 10); // KAS: keep alive to 1 s
    fields.u16(514, limits.nvme_entries as u16); // MAXCMD
    fields.u32(536, 0x10_0001); // SGLS: offsets in a capsule
    let name = ident::nqn(subsystem.cluster());
    fields.put(768, if of.discovery { DISCOVERY_NQN.as_bytes() } else { name.as_bytes() });
    let capsule = (CAPSULE as u32 - COMMON as u32 + limits.nvme_capsule) / 16;
    fields.u32(1792, capsule); // IOCCSZ
    fields.u32(1796, 1); // IORCSZ
    fields.u8(1803, 1); // MSDBD
    if of.discovery {
        return fields.u32(92, Event::Discovery.bit()); // OAES
    }
    fields.u8(76, 0x0b); // CMIC: several ports and controllers, asymmetric access
    fields.u32(92, Event::Namespaces.bit() | Event::Paths.bit()); // OAES
    for (i, delay) in DELAYS.into_iter().enumerate() {
        fields.u16(128 + i * 2, delay); // CRDT1 to CRDT3
    }
    fields.u8(258, 3); // ACL
    fields.u8(261, 0x06); // LPA: the page of commands, too
    fields.u8(260, 0x03); // FRMW: one slot, which is read-only
    fields.u8(342, ANATT);
    fields.u8(343, ANACAP);
    fields.u32(344, NAMESPACES); // ANAGRPMAX
    fields.u32(348, ACTIVE); // NANAGRPID
    fields.u8(512, 0x66); // SQES
    fields.u8(513, 0x44); // CQES
    fields.u32(516, NAMESPACES); // NN
    fields.u16(520, 0x2d); // ONCS: compare, dataset management, write zeroes, reservations
    fields.u16(522, 1); // FUSES: Compare and Write
    fields.u32(540, ACTIVE); // MNAN
    fields.u16(1804, 1); // OFCS: Disconnect
}

/// A namespace (base figure 247).
fn namespace(of: &Namespace, subsystem: &dyn Subsystem, fields: &mut Fields<'_>) {
    let blocks = of.size / u64::from(BLOCK);
    for at in [0, 8] {
        fields.u64(at, blocks); // NSZE, NCAP
    }
    if of.path == Path::Optimized {
        fields.u64(16, blocks); // NUSE, which is 0 in the state inaccessible
    }
    fields.u8(24, 0x10); // NSFEAT: the fields from NPWG on
    fields.u8(30, 1); // NMIC: shared
    fields.u8(31, 0xff); // RESCAP: persistent, all types, and the key may be ignored
    fields.u8(33, 0x09); // DLFEAT: reads zeros; Write Zeroes deallocates
    fields.put(48, &(of.size as u128).to_le_bytes()); // NVMCAP
    for at in [64, 66, 68, 70] {
        fields.u16(at, GRANULARITY); // NPWG, NPWA, NPDG, NPDA
    }
    fields.u16(72, BEST_WRITE); // NOWS
    fields.u32(92, of.volume.0); // ANAGRPID
    fields.u8(99, of.read_only.into()); // NSATTR
    fields.put(104, &ident::nguid(subsystem.cluster(), of.volume));
    fields.u8(130, BLOCK.ilog2() as u8); // LBADS
}

/// The identifiers of a namespace (base figure 251).
fn descriptors(of: &Namespace, subsystem: &dyn Subsystem, fields: &mut Fields<'_>) {
    let cluster = subsystem.cluster();
    let all = [(2, ident::nguid(cluster, of.volume)), (3, ident::uuid(cluster, of.volume))];
    for (i, (kind, id)) in all.into_iter().enumerate() {
        let at = i * 20;
        fields.put(at, &[kind, 16]);
        fields.put(at + 4, &id);
    }
}

const _: () = assert!(RANGE * 256 <= ADMIN_CAPSULE, "all ranges fit into a capsule");

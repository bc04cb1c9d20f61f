//! A host that uses NVMe/TCP: one I/O queue with flow control, as Linux asks for it.

use super::{Protocol, SIZE, Turn, VOLUME};
use base::{BLOCK, ClusterId, Limits, SECTOR};
use seam::{BlockKind, Buf, Head};
use target::ident;
use target::nvme::{
    Controller, Keys, Namespace, NvmeFramer, Opening, Path, Portal, Seed, Session, Subsystem,
};
use target::reserve::Access;

const SETUP: usize = 128;
const CAPSULE: usize = 72;
/// Where the command begins in a capsule.
const ENTRY: usize = 8;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const FABRICS: u8 = 0x7f;
const IN_CAPSULE: u8 = 0x01;
const TRANSPORT: u8 = 0x5a;
const CLUSTER: ClusterId = ClusterId(7);
const CONTROLLER: u16 = 1;
const HOST: &str = "host";

/// The one namespace, and the controller that the queue belongs to.
struct Gateway(Controller);

impl Subsystem for Gateway {
    fn cluster(&self) -> ClusterId {
        CLUSTER
    }

    fn version(&self) -> u64 {
        1
    }

    fn namespace(&self, nsid: u32) -> Option<Namespace> {
        let (volume, size, access) = (VOLUME, SIZE, Access::FULL);
        let path = Path::Optimized;
        (nsid == VOLUME.0).then_some(Namespace { volume, size, read_only: false, access, path })
    }

    fn next(&self, after: u32) -> Option<Namespace> {
        if after < VOLUME.0 { self.namespace(VOLUME.0) } else { None }
    }

    fn portals(&self, _: &mut dyn FnMut(Portal)) {}

    fn admits(&self, _: &str, _: &[u8; 16]) -> bool {
        true
    }

    fn keys(&self, _: &str) -> Option<Keys<'_>> {
        None
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn controller(&self, cntlid: u16) -> Option<&Controller> {
        (cntlid == CONTROLLER).then_some(&self.0)
    }

    fn has_queue(&self, _: u16, _: u16) -> bool {
        false
    }
}

/// NVMe/TCP.
pub struct Nvme {
    session: Session,
    gateway: Gateway,
}

/// Returns the head of a command with this id, and `len` bytes of data.
fn capsule(opcode: u8, cid: u16, (place, len): (u8, u32)) -> [u8; CAPSULE] {
    let mut head = [0; CAPSULE];
    let carried = if place == IN_CAPSULE { len } else { 0 };
    (head[0], head[2]) = (4, CAPSULE as u8);
    head[3] = if carried > 0 { CAPSULE as u8 } else { 0 };
    head[4..8].copy_from_slice(&(CAPSULE as u32 + carried).to_le_bytes());
    let entry = &mut head[ENTRY..];
    // The second byte: data is described by an SGL.
    (entry[0], entry[1]) = (opcode, 0x40);
    entry[2..4].copy_from_slice(&cid.to_le_bytes());
    entry[32..36].copy_from_slice(&len.to_le_bytes());
    entry[39] = place;
    head
}

impl Protocol for Nvme {
    type Framer = NvmeFramer;

    fn accept(limits: &Limits) -> (NvmeFramer, Nvme) {
        let gateway = Gateway(Controller {
            cntlid: CONTROLLER,
            host: HOST.into(),
            host_id: [1; 16],
            discovery: false,
            ready: true,
            delays: false,
        });
        let session = Session::new(limits, Opening { cntlid: CONTROLLER + 1, seed: Seed([0; 32]) });
        (NvmeFramer::new(limits), Nvme { session, gateway })
    }

    fn enter() -> Vec<(Head, Vec<u8>)> {
        let mut set_up = [0; SETUP];
        (set_up[2], set_up[4]) = (SETUP as u8, SETUP as u8);
        let mut data = vec![0; 1024];
        data[..16].fill(1);
        data[16..18].copy_from_slice(&CONTROLLER.to_le_bytes());
        for (at, name) in [(256, ident::nqn(CLUSTER).as_str()), (512, HOST)] {
            data[at..at + name.len()].copy_from_slice(name.as_bytes());
        }
        let mut connect = capsule(FABRICS, 0, (IN_CAPSULE, data.len() as u32));
        // Connect, to queue 1, with the most entries.
        let entry = &mut connect[ENTRY..];
        (entry[4], entry[42], entry[44]) = (1, 1, Limits::SHIPPED.nvme_entries as u8 - 1);
        vec![(Head::new(&set_up), Vec::new()), (Head::new(&connect), data)]
    }

    fn request(number: u16, kind: BlockKind, at: u64) -> Head {
        let (opcode, place) = match kind {
            BlockKind::Write => (WRITE, IN_CAPSULE),
            _ => (READ, TRANSPORT),
        };
        let mut head = capsule(opcode, number, (place, BLOCK));
        let entry = &mut head[ENTRY..];
        entry[4..8].copy_from_slice(&VOLUME.0.to_le_bytes());
        entry[40..48].copy_from_slice(&(at / u64::from(SECTOR)).to_le_bytes());
        entry[48] = (BLOCK / SECTOR - 1) as u8;
        Head::new(&head)
    }

    fn frame(&mut self, head: &[u8], body: Buf, turn: Turn<'_>) {
        self.session.frame(head, body, &self.gateway, turn.pool, turn.out);
    }

    fn refreshed(&mut self, _: Turn<'_>) {
        unreachable!("an NVMe session does not ask for fresh volumes");
    }

    fn done(&mut self, tag: u64, data: Buf, turn: Turn<'_>) {
        self.session.done(tag, Ok(data), turn.pool, turn.out);
    }
}

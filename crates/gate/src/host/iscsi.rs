//! A host that uses iSCSI.

use super::{Protocol, SIZE, Turn, VOLUME};
use base::{BLOCK, ClusterId, Limits, SECTOR};
use seam::{BlockKind, Buf, Head};
use target::iscsi::{
    Closed, Credentials, IscsiFramer, Nexus, Opening, Portal, Session, Stranger, Target, Targets,
};
use target::scsi::{Format, Path, Unit};

const BHS: usize = 48;
const LOGIN: u8 = 0x43;
const COMMAND: u8 = 0x01;
const READ_16: u8 = 0x88;
const WRITE_16: u8 = 0x8a;
const NAME: &str = "target";

/// The one target.
struct Gateway;

impl Targets for Gateway {
    fn find(&self, _: &str, name: &str) -> Option<Target> {
        let unit = Unit {
            cluster: ClusterId(7),
            volume: VOLUME,
            size: SIZE,
            read_only: false,
            format: Format::default(),
            transfer: Limits::SHIPPED.scsi_transfer,
            target: NAME.into(),
            port: 1,
            path: Path::Optimized,
            others: Vec::new(),
            asks: true,
        };
        (name == NAME).then(|| Target { unit, alias: String::new() })
    }

    fn each(&self, _: &str, visit: &mut dyn FnMut(&str)) {
        visit(NAME);
    }

    fn portals(&self, _: &str, _: &mut dyn FnMut(Portal)) {}

    fn admits(&self, _: &str, _: &str) -> bool {
        true
    }

    fn credentials(&self, _: &str, _: Option<&str>) -> Result<Option<Credentials<'_>>, Stranger> {
        Ok(None)
    }

    fn sessions(&self, _: &mut dyn FnMut(&Nexus)) {}

    fn closed(&self, _: &str, _: Option<&str>) -> Option<Closed> {
        None
    }
}

/// iSCSI.
pub struct Iscsi(Session);

/// Returns the head of a command, which is the `number`th of the session.
fn command(number: u32, flags: u8, len: u32, cdb: [u8; 16]) -> [u8; BHS] {
    let mut bhs = [0; BHS];
    (bhs[0], bhs[1]) = (COMMAND, flags);
    bhs[16..20].copy_from_slice(&number.to_be_bytes());
    bhs[20..24].copy_from_slice(&len.to_be_bytes());
    bhs[24..28].copy_from_slice(&number.to_be_bytes());
    bhs[32..].copy_from_slice(&cdb);
    bhs
}

impl Protocol for Iscsi {
    type Framer = IscsiFramer;

    fn accept(limits: &Limits) -> (IscsiFramer, Iscsi) {
        let session = Session::new(limits, Opening { tsih: 1, secret: [7; 33] });
        (IscsiFramer::new(limits), Iscsi(session))
    }

    fn enter() -> Vec<(Head, Vec<u8>)> {
        let mut text = format!("InitiatorName=host\0TargetName={NAME}\0InitialR2T=No\0");
        text.extend(std::iter::repeat_n('\0', text.len().next_multiple_of(4) - text.len()));
        let mut login = [0; BHS];
        // From operational negotiation to the full feature phase, in one step.
        (login[0], login[1], login[7]) = (LOGIN, 0x87, text.len() as u8);
        // TEST UNIT READY fetches the unit attention of a new session.
        let ready = command(0, 0x80, 0, [0; 16]);
        vec![(Head::new(&login), text.into_bytes()), (Head::new(&ready), Vec::new())]
    }

    fn request(number: u16, kind: BlockKind, at: u64) -> Head {
        let writes = kind == BlockKind::Write;
        let (code, flags) = if writes { (WRITE_16, 0xa0) } else { (READ_16, 0xc0) };
        let mut cdb = [0; 16];
        cdb[0] = code;
        cdb[2..10].copy_from_slice(&(at / u64::from(SECTOR)).to_be_bytes());
        cdb[10..14].copy_from_slice(&(BLOCK / SECTOR).to_be_bytes());
        let mut bhs = command(u32::from(number) + 1, flags, BLOCK, cdb);
        if writes {
            bhs[4..8].copy_from_slice(&BLOCK.to_be_bytes());
        }
        Head::new(&bhs)
    }

    fn frame(&mut self, head: &[u8], body: Buf, turn: Turn<'_>) {
        self.0.frame(head, body, &Gateway, turn.pool, turn.out);
    }

    fn refreshed(&mut self, turn: Turn<'_>) {
        self.0.refreshed(&Gateway, turn.pool, turn.out);
    }

    fn done(&mut self, tag: u64, data: Buf, turn: Turn<'_>) {
        self.0.done(tag, Ok(data), turn.pool, turn.out);
    }
}

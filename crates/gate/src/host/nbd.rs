//! A host that uses NBD, with simple replies.

use super::{Protocol, SIZE, Turn, VOLUME};
use base::{BLOCK, ClusterId, Limits};
use seam::{BlockKind, Buf, Head};
use target::nbd::proto::*;
use target::nbd::{Export, Exports, NbdFramer, Session};
use target::reserve::Access;

const NAME: &str = "data";

/// The one volume.
struct Volumes;

impl Exports for Volumes {
    fn find(&self, name: &[u8]) -> Option<Export<'_>> {
        (name == NAME.as_bytes()).then_some(Export {
            cluster: ClusterId(7),
            volume: VOLUME,
            size: SIZE,
            read_only: false,
            access: Access::FULL,
            name: NAME,
        })
    }

    fn each<'a>(&'a self, visit: &mut dyn FnMut(Export<'a>)) {
        self.find(NAME.as_bytes()).into_iter().for_each(visit);
    }
}

/// NBD.
pub struct Nbd(Session);

impl Protocol for Nbd {
    type Framer = NbdFramer;

    fn accept(limits: &Limits) -> (NbdFramer, Nbd) {
        (NbdFramer::new(limits), Nbd(Session::new(limits)))
    }

    fn enter() -> Vec<(Head, Vec<u8>)> {
        let flags = NBD_FLAG_C_FIXED_NEWSTYLE | NBD_FLAG_C_NO_ZEROES;
        let name = NAME.as_bytes();
        // The length of the name, the name, and no further questions.
        let data = [&(name.len() as u32).to_be_bytes(), name, &[0; 2]].concat();
        let mut option = [0; OPTION_HEAD];
        option[..8].copy_from_slice(&IHAVEOPT.to_be_bytes());
        option[8..12].copy_from_slice(&NBD_OPT_GO.to_be_bytes());
        option[12..].copy_from_slice(&(data.len() as u32).to_be_bytes());
        vec![(Head::new(&flags.to_be_bytes()), Vec::new()), (Head::new(&option), data)]
    }

    fn request(number: u16, kind: BlockKind, at: u64) -> Head {
        let command = if kind == BlockKind::Write { NBD_CMD_WRITE } else { NBD_CMD_READ };
        let mut head = [0; REQUEST_HEAD];
        head[..4].copy_from_slice(&NBD_REQUEST_MAGIC.to_be_bytes());
        head[6..8].copy_from_slice(&command.to_be_bytes());
        head[8..16].copy_from_slice(&u64::from(number).to_be_bytes());
        head[16..24].copy_from_slice(&at.to_be_bytes());
        head[24..].copy_from_slice(&BLOCK.to_be_bytes());
        Head::new(&head)
    }

    fn frame(&mut self, head: &[u8], body: Buf, turn: Turn<'_>) {
        self.0.frame(head, body, turn.pool, turn.out);
    }

    fn refreshed(&mut self, turn: Turn<'_>) {
        self.0.refreshed(&Volumes, turn.pool, turn.out);
    }

    fn done(&mut self, tag: u64, data: Buf, turn: Turn<'_>) {
        self.0.done(tag, Ok(data), turn.pool, turn.out);
    }
}

//! Parts that the rigs of several protocols share: the stream of a client, and a volume in memory.

use seam::{BlockError, BlockKind, BlockRequest, Buf, BufPool, FrameError, Framer, Framing};

/// The stream of a client on its way to the session.
pub(crate) struct Input<F> {
    pub framer: F,
    /// Why the framer has refused the stream.
    pub garbage: Option<FrameError>,
    bytes: Vec<u8>,
}

impl<F: Framer> Input<F> {
    pub(crate) fn new(framer: F) -> Input<F> {
        Input { framer, garbage: None, bytes: Vec::new() }
    }

    /// Adds bytes that the client sends.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes head and body of the next frame out of the stream.
    pub(crate) fn frame(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        if self.garbage.is_some() {
            return None;
        }
        match self.framer.frame(&self.bytes) {
            Ok(Framing::Frame { head, body }) => {
                // The framer counts the frame as delivered, so the rest has to be there.
                assert!(self.bytes.len() >= head + body, "tests feed whole frames");
                let mut frames = self.bytes.drain(..head + body);
                Some((frames.by_ref().take(head).collect(), frames.collect()))
            }
            Ok(Framing::Need(n)) => {
                assert!(n > self.bytes.len() && n <= 128);
                None
            }
            Err(why) => {
                self.garbage = Some(why);
                None
            }
        }
    }
}

/// Size of a volume.
pub(crate) const SIZE: usize = 3 << 20;

/// Returns the content of a volume before its first write: no sector is like its neighbours.
pub(crate) fn disk() -> Vec<u8> {
    (0..SIZE).map(|i| (i / 512 * 7 + i) as u8).collect()
}

/// Asserts that a volume can execute this request.
pub(crate) fn check(request: &BlockRequest) {
    let end = request.at + u64::from(request.len);
    assert!(end.is_multiple_of(512) && request.at.is_multiple_of(512), "{request:?}");
    assert!(end <= SIZE as u64, "{request:?}");
    assert_eq!(request.body.len(), request.kind.body_len(request.len), "{request:?}");
}

/// Executes a request on a volume, all of whose blocks hold data.
pub(crate) fn execute(
    disk: &mut [u8],
    request: &BlockRequest,
    pool: &BufPool,
) -> Result<Buf, BlockError> {
    let stored = &mut disk[request.at as usize..][..request.len as usize];
    match request.kind {
        BlockKind::Read => return Ok(pool.copy(stored)),
        BlockKind::Write => stored.copy_from_slice(&request.body),
        BlockKind::CompareWrite => {
            let (expected, new) = request.body.split_at(request.len as usize);
            if let Some(at) = stored.iter().zip(expected).position(|(a, b)| a != b) {
                return Err(BlockError::Miscompare(at as u32));
            }
            stored.copy_from_slice(new);
        }
        BlockKind::Zero { .. } => stored.fill(0),
        BlockKind::Extents => return Ok(pool.copy(&vec![0xff; stored.len() / 4096 / 8 + 2])),
        BlockKind::Flush => {}
    }
    Ok(Buf::EMPTY)
}

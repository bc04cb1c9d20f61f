//! The input of a session's fuzz target: a script of control bytes, each followed by bytes of a
//! client's stream, which the session's framer cuts in pieces of any size.

use seam::{Framer, Framing};

/// What happens next.
pub enum Step<'a> {
    /// Something that is not a frame: the control byte says what.
    Event(u8),
    /// A frame comes: its head and its body.
    Frame(&'a [u8], &'a [u8]),
}

/// The rest of a script.
pub struct Script<'a>(pub &'a [u8]);

impl<'a> Script<'a> {
    /// Returns the next step; `None` at the end of the script, or of the stream: the framer refuses
    /// it, or the client leaves within a frame. `is_event` says whether a control byte is an event.
    /// Of others, the low 6 bits say in what pieces the stream comes.
    pub fn next<F: Framer + Clone>(
        &mut self,
        framer: &mut F,
        longest: usize,
        is_event: impl FnOnce(u8) -> bool,
    ) -> Option<Step<'a>> {
        let (&control, stream) = self.0.split_first()?;
        if is_event(control) {
            self.0 = stream;
            return Some(Step::Event(control));
        }
        let piece = 1 + (control & 63) as usize;
        let (head, body) = cut(framer, stream, piece, longest)?;
        let (frame, behind) = stream.split_at_checked(head + body)?;
        self.0 = behind;
        let (head, body) = frame.split_at(head);
        Some(Step::Frame(head, body))
    }
}

/// Returns the next frame's lengths. Feeds the framer ever more bytes: its answer must not depend
/// on how many. No body is longer than `longest`.
pub fn cut<F: Framer + Clone>(
    framer: &mut F,
    stream: &[u8],
    piece: usize,
    longest: usize,
) -> Option<(usize, usize)> {
    let whole = framer.clone().frame(stream);
    let mut there = 0;
    loop {
        match framer.frame(&stream[..there]) {
            Ok(Framing::Need(n)) => {
                assert!(n > there && n <= 128);
                if there == stream.len() {
                    assert!(matches!(whole, Ok(Framing::Need(_))));
                    return None;
                }
                there = (there + piece).min(stream.len());
            }
            Ok(Framing::Frame { head, body }) => {
                assert_eq!(whole, Ok(Framing::Frame { head, body }));
                assert!(head <= there && (1..=128).contains(&head) && body <= longest);
                return Some((head, body));
            }
            Err(why) => {
                assert_eq!(whole, Err(why));
                return None;
            }
        }
    }
}

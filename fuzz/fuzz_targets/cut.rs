//! Cuts a stream with the framer of a session, in pieces of any size.

use seam::{Framer, Framing};

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

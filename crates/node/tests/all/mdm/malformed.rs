//! Frames whose headers are not what their kinds say: they are refused with the reason, and nothing
//! of them is believed.

use super::*;

#[test]
fn a_malformed_header_is_refused() {
    // Another version; a flag and a byte that no such kind uses; and a body.
    for (kind, at, value) in [
        (Kind::MapPull, 16, 2),
        (Kind::MapPull, 19, 128),
        (Kind::MapPull, 22, 1),
        (Kind::MapPull, 12, 1),
        (Kind::Heartbeat, 22, 1),
        (Kind::Hello, 16, 2),
    ] {
        let mut b = Bench::new();
        let (link, _) = b.sds("a", 1, 1, DeviceKind::Ram);
        let link = if kind == Kind::Hello { b.connect() } else { link };
        let mut header = Header::new(kind);
        header.forge(at, &[value]);
        let head = wire::frame::seal(header);
        let event = Event::Frame { link, head: head.as_slice(), body: Buf::EMPTY };
        b.mdm.on(b.now, event, &mut b.out);
        b.settle();
        let (code, text) = b.refusal(link);
        assert_eq!(code, RefusalCode::Unexpected, "{kind:?} {at}: {text}");
        let place = format!("(kind {}, byte {at})", kind as u8);
        assert!(kind == Kind::Hello || text.contains(&place), "{text}");
    }
}

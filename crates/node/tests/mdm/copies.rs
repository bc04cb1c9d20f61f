//! Older copies of devices: whoever had more in its log when it was heard is not taken in without
//! that.

use super::Bench;
use base::LinkId;
use wire::control::{DeviceKind, Heartbeat, RefusalCode, Register, Registered, Role};
use wire::{Header, Kind};

impl Bench {
    /// The first server's device is started again, with so many records in its log.
    fn comes_with(&mut self, device: u32, store: u64, nonce: u64, records: u64) -> LinkId {
        let link = self.say_hello(Role::Sds);
        let m = Register {
            sds: "a".into(),
            device,
            nonce,
            store,
            records,
            address: "10.0.0.1:7000".into(),
            capacity: 1 << 30,
            kind: DeviceKind::Durable as i32,
            ..Register::default()
        };
        self.send(link, Header::new(Kind::Register), &m);
        link
    }

    fn has_settled(&mut self, link: LinkId, settled: u64) {
        let beat = Heartbeat { settled, ..Heartbeat::default() };
        self.send(link, Header::new(Kind::Heartbeat), &beat);
    }
}

#[test]
fn a_device_that_lacks_what_it_had_is_refused() {
    let mut b = Bench::new();
    let (first, named) = b.sds("a", 1, 11, DeviceKind::Durable);
    b.has_settled(first, 100);
    b.has_settled(first, 90);
    let older = b.comes_with(named.id, 11, 2, 99);
    let (code, text) = b.refusal(older);
    assert!(code == RefusalCode::WrongDevice && text.contains("older copy"), "{code:?}: {text}");
    let newest = b.comes_with(named.id, 11, 3, 100);
    let again = b.take::<Registered>(newest, Kind::Registered).pop().expect("taken in");
    assert_eq!(again.id, named.id);
    assert!(again.incarnation > named.incarnation);
}

/// A device that was replaced by an empty one has another log.
#[test]
fn another_content_begins_anew() {
    let mut b = Bench::new();
    let (first, named) = b.sds("a", 1, 11, DeviceKind::Durable);
    b.has_settled(first, 100);
    let (second, renamed) = b.sds("a", 2, 12, DeviceKind::Durable);
    assert_eq!(named.id, renamed.id);
    b.has_settled(second, 5);
    let again = b.comes_with(named.id, 12, 3, 5);
    assert_eq!(b.take::<Registered>(again, Kind::Registered).len(), 1);
}

//! Older copies of devices: a device that had more in its log when it was last heard is not
//! accepted without that. And devices in each other's places.

use super::Bench;
use base::LinkId;
use seam::DialError;
use wire::control::{DeviceKind, Heartbeat, RefusalCode, Register, Registered, Role};
use wire::{Header, Kind};

impl Bench {
    /// Starts the first server's device again, with this many records in its log.
    fn comes_with(&mut self, device: u32, store: u64, nonce: u64, records: u64) -> LinkId {
        self.comes_to("a", device, store, nonce, records)
    }

    /// Starts a device in this server, with this many records in its log.
    fn comes_to(&mut self, sds: &str, device: u32, store: u64, nonce: u64, records: u64) -> LinkId {
        let link = self.say_hello(Role::Sds);
        let m = Register {
            sds: sds.into(),
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

/// Two servers exchange their devices while both are off, and start at new addresses: no dial to
/// their former addresses is refused. The MDM hears neither device, and each is in the other's way.
#[test]
fn exchanged_devices_are_taken_in_where_they_are_although_no_address_refuses() {
    let (mut b, one, two) = Bench::with_volume(DeviceKind::Durable);
    b.pass(500, &[one, two]);
    [one, two].into_iter().for_each(|link| b.drop_link(link));
    let swap = |b: &mut Bench, nonce: u64| {
        [b.comes_to("a", 2, 12, nonce, 0), b.comes_to("bb", 1, 11, nonce + 1, 0)]
    };
    for nonce in [10, 20] {
        for link in swap(&mut b, nonce) {
            assert_eq!(b.refusal(link).0, RefusalCode::Occupied);
        }
        while !b.dials.is_empty() {
            b.dial_failed(DialError::Unreachable);
        }
        b.pass(400, &[]);
        assert!(b.device(1).0 && b.device(2).0, "they may be there and hang");
    }
    b.pass(2000, &[]);
    assert!(b.device(1).0 && b.device(2).0, "who hears nobody suspects itself");
    let asks = b.comes_to("a", 2, 12, 30, 0);
    assert_eq!(b.refusal(asks).0, RefusalCode::Occupied);
    for device in [1, 2] {
        let (up, dead, _) = b.device(device);
        assert!(!up && !dead, "dev{device} is silent, and that proves no death");
    }
    for link in swap(&mut b, 40) {
        assert_eq!(b.take::<Registered>(link, Kind::Registered).len(), 1);
    }
    assert!(b.device(1).0 && b.device(2).0);
}

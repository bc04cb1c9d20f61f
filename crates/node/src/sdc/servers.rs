//! The links to devices. A link is dialled when the client core first needs it, and then kept.

use super::{Link, Sdc};
use crate::link::handshake::{Answer, Wrong, hello};
use crate::link::{Callee, Directory};
use crate::refusals::{MUTE, Reason, Writer};
use alloc::vec::Vec;
use base::{DeviceId, Incarnation, LinkId, MapVersion, Time};
use seam::{Buf, Effect, Effects};
use wire::control::{Hello, RefusalCode, Role};
use wire::message::Reply;
use wire::{Frame, Header, Kind};

/// The client's knowledge about the process that serves a device.
#[derive(Debug, Default)]
pub(super) struct Server {
    /// The incarnation that welcomed us.
    life: Incarnation,
    /// The device refused the last hello.
    refused: bool,
}

/// The links to all devices.
pub(super) type Servers = Directory<DeviceId, Server>;

/// Returns the devices that refuse this client.
pub(super) fn refusing(servers: &Servers) -> Vec<u32> {
    servers.iter().filter(|(_, s)| s.about.refused).map(|(device, _)| device.0).collect()
}

/// Dials a device if there is no link to it, because the client core has something to send.
pub(super) fn want(sdc: &mut Sdc, now: Time, device: DeviceId, out: &mut Effects) {
    sdc.servers.want(device, Server::default);
    sdc.servers_changed(now, &[device], out);
}

/// Closes the links to all devices for good, as this client is over.
pub(super) fn end(sdc: &mut Sdc, now: Time, out: &mut Effects) {
    let all: Vec<DeviceId> = sdc.servers.iter().map(|(device, _)| device).collect();
    for device in all {
        sdc.drop_server(now, device, out);
    }
}

/// Dials the devices that are due. A client that is over needs none.
fn dial(sdc: &mut Sdc, now: Time, out: &mut Effects) {
    let may = sdc.me.is_some() && !sdc.mdm.is_over();
    sdc.servers.dial(now, &mut sdc.next_dial, |_, _| may, out);
}

/// Compares the link to a device with the map: the device may have moved, or have a new
/// incarnation.
fn locate(sdc: &mut Sdc, now: Time, device: DeviceId, out: &mut Effects) {
    let Some(entry) = sdc.map.devices.get(&device) else { return };
    let (address, up) = (entry.address.filter(|_| !entry.removed), entry.up);
    let Some(server) = sdc.servers.get(device) else { return };
    let moved = server.address() != address;
    let life = server.about.life;
    let known = life != Incarnation(0) && server.up().is_some();
    let over = entry.incarnation > life || (entry.dead && entry.incarnation == life);
    if moved || (known && over) {
        sdc.drop_server(now, device, out);
    }
    if moved {
        let callee = Callee::Device(device);
        sdc.servers.locate(device, callee, address, &sdc.config.limits);
    } else if let Some(server) = sdc.servers.change(device).filter(|_| up) {
        server.hurry();
    }
}

impl Sdc {
    /// Compares the links to these devices with the map, which has changed.
    pub(super) fn servers_changed(&mut self, now: Time, devices: &[DeviceId], out: &mut Effects) {
        for device in devices {
            locate(self, now, *device, out);
        }
        self.dial_servers(now, out);
    }

    /// Dials the devices that are due, and closes links to devices that do not answer. Without an
    /// identity there is nothing to say in a hello: registration calls this again.
    pub(super) fn dial_servers(&mut self, now: Time, out: &mut Effects) {
        for link in self.servers.mute(now) {
            self.refuse(now, link, MUTE, out);
        }
        dial(self, now, out);
    }

    /// Greets a device, unless the device has moved since the dial.
    pub(super) fn greet_server(
        &mut self,
        now: Time,
        (device, counts): (DeviceId, bool),
        link: LinkId,
        out: &mut Effects,
    ) {
        let counts = counts && !self.mdm.is_over();
        let server = self.servers.change(device).filter(|_| counts);
        let Some((server, (sdc, incarnation))) = server.zip(self.me) else {
            return out.push(Effect::Close { link });
        };
        let hello = Hello {
            id: sdc.0,
            incarnation: incarnation.0,
            map: self.map.version.0,
            to: device.0,
            ..hello(&self.config.dialect, self.cluster, Role::Sdc, &self.config.name)
        };
        server.link_up(now, link, hello, out);
        self.links.insert(link, Link::Server(device));
        dial(self, now, out);
    }

    /// Handles the end of the link to a device, or of a dial that failed.
    pub(super) fn server_lost(&mut self, now: Time, device: DeviceId, out: &mut Effects) {
        if let Some(server) = self.servers.change(device) {
            server.lost(now, out.prng());
        }
        dial(self, now, out);
        self.client(now, out, |client, turn| client.link_down(device, turn));
    }

    /// Closes the link to a device, if there is one. It will be dialled again.
    pub(super) fn drop_server(&mut self, now: Time, device: DeviceId, out: &mut Effects) {
        let Some(link) = self.servers.get(device).and_then(|s| s.link()) else { return };
        out.push(Effect::Close { link });
        self.links.remove(&link);
        self.server_lost(now, device, out);
    }

    /// Handles a frame from a device. An error is the reason for closing the link.
    pub(super) fn server_frame(
        &mut self,
        now: Time,
        device: DeviceId,
        link: LinkId,
        header: &Header,
        body: Buf,
        out: &mut Effects,
    ) -> Result<(), Reason> {
        let up = self.servers.up(device).filter(|up| up.id == link);
        wire::check_link(header, up.map(|up| up.version))?;
        if up.is_none() {
            return self.server_answer(now, device, header, &body, out);
        }
        match header.kind() {
            Some(Kind::Reply) => {
                let reply = Reply::try_from(header)?;
                let sound = wire::body_ok(header, &body);
                self.client(now, out, |client, turn| match sound {
                    true => client.reply(device, &reply, body, turn),
                    false => client.bad_reply(device, turn),
                });
                Ok(())
            }
            _ => Err("a frame that no server sends to a client".into()),
        }
    }

    /// Handles the answer of a device to a hello.
    fn server_answer(
        &mut self,
        now: Time,
        device: DeviceId,
        header: &Header,
        body: &[u8],
        out: &mut Effects,
    ) -> Result<(), Reason> {
        let frame = Frame::try_from(header)?;
        let (dialect, cluster) = (&self.config.dialect, self.cluster);
        let dialer = self.servers.get(device).and_then(|server| server.dialer());
        let answer = dialer.and_then(|dialer| dialer.answer(dialect, cluster, &frame, body));
        let Some(answer) = answer.filter(|_| wire::body_ok(header, body)) else {
            return Err("a frame that no server sends to a client".into());
        };
        // Another process listens there: the device has moved, and a newer map says where. An idle
        // client asks, too, because the MDM may be away when the client has work.
        let newer = MapVersion(self.map.version.0 + 1);
        let server = self.servers.change(device).expect("it has answered");
        match &answer {
            Answer::Welcome(welcomed) => {
                server.welcomed(welcomed.version)?;
                server.about =
                    Server { life: Incarnation(welcomed.message.incarnation), refused: false };
                let welcome = &welcomed.message;
                let ops = if out.chaos("sdc.credit") { 1 } else { welcome.credit_ops };
                let bytes = welcome.credit_bytes;
                self.client(now, out, |client, turn| client.link_up(device, ops, bytes, turn));
            }
            Answer::Refusal(refusal) => {
                server.about.refused = true;
                match refusal.code() {
                    RefusalCode::Superseded => server.superseded(refusal),
                    RefusalCode::NotMe => self.mdm.want(newer),
                    _ => {}
                }
            }
            Answer::Wrong(Wrong::Other) => self.mdm.want(newer),
            Answer::Wrong(_) => {}
        }
        dial(self, now, out);
        answer.why(Writer::Sdc).map_or(Ok(()), |why| Err(why.into()))
    }
}

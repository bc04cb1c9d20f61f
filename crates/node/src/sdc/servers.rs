//! The links to devices. A link is dialled when the client core first needs it, and then kept.

use super::{Peer, Sdc, decode, links, refusal_note};
use crate::links::Dialer;
use crate::refusals::{MUTE, NOT_OFFERED};
use alloc::vec::Vec;
use base::{ClusterId, DeviceId, IdMap, Incarnation, LinkId, MapVersion, Time};
use seam::{Buf, DialId, Effect, Effects};
use wire::control::{Refusal, RefusalCode, Role, Welcome};
use wire::message::Reply;
use wire::{Header, Kind, PeerLink};

/// The link to one device.
#[derive(Debug)]
struct Server {
    /// `None` while the map has no address for the device, and after the device was removed.
    dialer: Option<Dialer>,
    /// The newest dial. Older ones are ignored.
    dial: Option<DialId>,
    /// The incarnation that welcomed us.
    life: Incarnation,
    /// The device refused the last hello.
    refused: bool,
    /// The number of the last session with the device.
    session: u64,
}

/// The links to all devices.
#[derive(Debug, Default)]
pub(super) struct Servers {
    servers: IdMap<DeviceId, Server>,
    /// When `dial_servers` has something to do.
    pub(super) dial_at: Option<Time>,
}

impl Servers {
    /// Returns the link to this device, if the device has welcomed us on it.
    #[inline]
    pub(super) fn up(&self, device: DeviceId) -> Option<PeerLink> {
        self.servers.get(device)?.dialer.as_ref()?.up()
    }

    /// Records whether the device refused a hello.
    fn refused(&mut self, device: DeviceId, refused: bool) {
        if let Some(server) = self.servers.get_mut(device) {
            server.refused = refused;
        }
    }

    /// Returns the links to devices that do not answer.
    fn mute(&self, now: Time) -> Vec<LinkId> {
        let mute = |server: &Server| server.dialer.as_ref()?.mute(now);
        match self.dial_at.is_some_and(|at| at <= now) {
            true => self.servers.iter().filter_map(|(_, server)| mute(server)).collect(),
            false => Vec::new(),
        }
    }

    /// Returns the devices that refuse this client.
    pub(super) fn refusing(&self) -> Vec<u32> {
        self.servers.iter().filter(|(_, s)| s.refused).map(|(device, _)| device.0).collect()
    }

    fn dialer(&mut self, device: DeviceId) -> Option<&mut Dialer> {
        self.servers.get_mut(device)?.dialer.as_mut()
    }
}

impl Sdc {
    /// Dials a device if there is no link to it, because the client core has something to send.
    pub(super) fn want_server(&mut self, now: Time, device: DeviceId, out: &mut Effects) {
        let life = Incarnation(0);
        let server = || Server { dialer: None, dial: None, life, refused: false, session: 0 };
        self.servers.servers.get_or_insert_with(device, server);
        self.locate_server(now, device, out);
        self.dial_servers(now, out);
    }

    /// Compares the link to a device with the map: the device may have moved, or have a new
    /// incarnation.
    fn locate_server(&mut self, now: Time, device: DeviceId, out: &mut Effects) {
        let Some(entry) = self.map.devices.get(&device) else { return };
        let (address, up) = (entry.address.filter(|_| !entry.removed), entry.up);
        let Some(server) = self.servers.servers.get(device) else { return };
        let moved = server.dialer.as_ref().map(Dialer::address) != address;
        let known = server.life != Incarnation(0) && self.servers.up(device).is_some();
        let over =
            entry.incarnation > server.life || (entry.dead && entry.incarnation == server.life);
        if moved || (known && over) {
            self.drop_server(now, device, out);
        }
        let Some(server) = self.servers.servers.get_mut(device) else { return };
        if moved {
            server.dial = None;
            server.dialer = address.map(|to| Dialer::new(to, &self.config.limits));
        } else if let Some(dialer) = server.dialer.as_mut().filter(|_| up) {
            dialer.hurry();
        }
    }

    /// Compares the links to these devices with the map, which has changed.
    pub(super) fn servers_changed(&mut self, now: Time, devices: &[DeviceId], out: &mut Effects) {
        for device in devices {
            self.locate_server(now, *device, out);
        }
        self.dial_servers(now, out);
    }

    /// Dials the devices that are due, and closes links to devices that do not answer.
    pub(super) fn dial_servers(&mut self, now: Time, out: &mut Effects) {
        for link in self.servers.mute(now) {
            self.refuse(now, link, MUTE, out);
        }
        self.servers.dial_at = None;
        if self.me.is_none() {
            return; // There is no identity for a hello yet. Registration calls this again.
        }
        for (device, server) in self.servers.servers.iter_mut() {
            let Some(dialer) = server.dialer.as_mut() else { continue };
            let dial = DialId(self.next_dial + 1);
            if dialer.poll(now, dial, out) {
                self.next_dial = dial.0;
                self.dials.insert(dial, Peer::Server(device));
                server.dial = Some(dial);
            }
            self.servers.dial_at = Time::earliest(self.servers.dial_at, dialer.wake_at());
        }
    }

    pub(super) fn greet_server(
        &mut self,
        now: Time,
        device: DeviceId,
        dial: DialId,
        link: LinkId,
        out: &mut Effects,
    ) {
        let server = self.servers.servers.get_mut(device).filter(|s| s.dial == Some(dial));
        let Some((server, (sdc, incarnation))) = server.zip(self.me) else {
            return out.push(Effect::Close { link }); // The device has moved meanwhile.
        };
        let Some(dialer) = server.dialer.as_mut() else { return out.push(Effect::Close { link }) };
        server.session = server.session.saturating_add(1);
        let mut hello =
            links::hello(&self.config.dialect, self.cluster, Role::Sdc, &self.config.name);
        (hello.id, hello.incarnation) = (sdc.0, incarnation.0);
        (hello.session, hello.map) = (server.session, self.map.version.0);
        hello.to = device.0;
        dialer.link_up(now, link, &hello, out);
        self.servers.dial_at = Time::earliest(self.servers.dial_at, dialer.wake_at());
        self.links.insert(link, Peer::Server(device));
    }

    pub(super) fn dial_failed(
        &mut self,
        now: Time,
        device: DeviceId,
        dial: DialId,
        out: &mut Effects,
    ) {
        if self.servers.servers.get(device).is_some_and(|s| s.dial == Some(dial)) {
            self.server_lost(now, device, out);
        }
    }

    /// Handles the end of the link to a device, or of a dial that failed.
    pub(super) fn server_lost(&mut self, now: Time, device: DeviceId, out: &mut Effects) {
        if let Some(dialer) = self.servers.dialer(device) {
            dialer.lost(now, out.prng());
            self.servers.dial_at =
                Time::earliest(self.servers.dial_at, dialer_due(&self.servers, device));
        }
        self.client(now, out, |client, turn| client.link_down(device, turn));
    }

    /// Closes the link to a device, if there is one. It will be dialled again.
    pub(super) fn drop_server(&mut self, now: Time, device: DeviceId, out: &mut Effects) {
        let Some(link) = self.servers.dialer(device).and_then(|d| d.link()) else { return };
        out.push(Effect::Close { link });
        self.links.remove(&link);
        self.server_lost(now, device, out);
    }

    pub(super) fn server_frame(
        &mut self,
        now: Time,
        device: DeviceId,
        link: LinkId,
        header: &Header,
        body: Buf,
        out: &mut Effects,
    ) {
        let up = self.servers.up(device).filter(|up| up.id == link);
        if let Err(why) = wire::check_version(header, up.map(|up| up.version)) {
            return self.refuse_frame(now, link, why, out);
        }
        let up = up.is_some();
        match header.kind() {
            Some(Kind::Reply) if up => match Reply::try_from(header) {
                Ok(reply) if wire::body_ok(header, &body) => {
                    self.client(now, out, |client, turn| client.reply(device, &reply, body, turn));
                }
                Ok(_) => self.client(now, out, |client, turn| client.bad_reply(device, turn)),
                Err(why) => self.refuse_frame(now, link, why, out),
            },
            Some(Kind::Welcome) if !up => match decode::<Welcome>(header, &body) {
                Some(welcome) => self.server_welcome(now, device, link, &welcome, out),
                None => self.refuse(now, link, "a welcome that can't be read", out),
            },
            Some(Kind::Refusal) if !up => {
                match decode::<Refusal>(header, &body).map(|r| (r.code(), r.session)) {
                    Some((RefusalCode::Superseded, session)) => {
                        if let Some(server) = self.servers.servers.get_mut(device) {
                            server.session = links::session_after(server.session, session);
                        }
                    }
                    Some((RefusalCode::NotMe, _)) => self.want_newer_map(),
                    _ => {}
                }
                self.servers.refused(device, true);
                self.refuse(now, link, refusal_note(header, &body), out)
            }
            _ => self.refuse(now, link, "a frame that no server sends to a client", out),
        }
    }

    /// Asks for a newer map, because another process listens at a device's address: the device has
    /// moved, and a newer map says where. An idle client asks, too, because the MDM may be away
    /// when the client has work.
    fn want_newer_map(&mut self) {
        self.mdm.want(MapVersion(self.map.version.0 + 1));
    }

    fn server_welcome(
        &mut self,
        now: Time,
        device: DeviceId,
        link: LinkId,
        welcome: &Welcome,
        out: &mut Effects,
    ) {
        let meant = welcome.role() == Role::Sds && welcome.id == device.0;
        if !meant || (welcome.cluster != 0 && ClusterId(welcome.cluster) != self.cluster) {
            self.want_newer_map();
            return self.refuse(now, link, "welcomed by somebody else than was dialled", out);
        }
        let Some(version) = links::agreed(&self.config.dialect, welcome) else {
            return self.refuse(now, link, NOT_OFFERED, out);
        };
        let Some(server) = self.servers.servers.get_mut(device) else { return };
        server.refused = false;
        server.life = Incarnation(welcome.incarnation);
        if let Some(dialer) = server.dialer.as_mut() {
            dialer.welcomed(version);
        }
        let ops = if out.chaos("sdc.credit") { 1 } else { welcome.credit_ops };
        let bytes = welcome.credit_bytes;
        self.client(now, out, |client, turn| client.link_up(device, ops, bytes, turn));
    }
}

fn dialer_due(servers: &Servers, device: DeviceId) -> Option<Time> {
    servers.servers.get(device)?.dialer.as_ref()?.wake_at()
}

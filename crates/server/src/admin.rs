//! The command line's side of the wire: one question at a time to the MDM, over a blocking socket.

use crate::exit::{Exit, coded};
use anyhow::{Context, Result, anyhow, bail};
use prost::Message;
use seam::{BufPool, Framer, Framing};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use wire::control::{
    AdminReply, AdminRequest, Ask, CreateVolume, DeleteVolume, Hello, Refusal, RemoveAsk,
    ResizeVolume, Role, ScrubAsk, StatusAsk, StatusInfo, VolumeStatus, Welcome,
};
use wire::header::HEADER;
use wire::{Header, Kind, PeerFramer};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// A status of a large cluster fits; nothing larger is believed.
const MAX_ANSWER: u32 = 64 << 20;

/// A connection to an MDM that has welcomed us.
#[derive(Debug)]
pub struct Admin {
    stream: TcpStream,
    mdm: SocketAddr,
    next_op: u64,
}

impl Admin {
    /// Connects and greets.
    pub fn connect(mdm: SocketAddr) -> Result<Admin> {
        let unreachable = |why: String| {
            coded(
                Exit::Unreachable,
                format!(
                    "no MDM answers at {mdm} ({why}). Volumes are served without it; to change or \
                     see the cluster, start it again, or name another one with --mdm or --dir"
                ),
            )
        };
        let stream = TcpStream::connect_timeout(&mdm, CONNECT_TIMEOUT)
            .map_err(|e| unreachable(e.to_string()))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        let mut admin = Admin { stream, mdm, next_op: 1 };
        let hello = Hello {
            role: Role::Admin as i32,
            version_min: wire::VERSION_MIN.into(),
            version_max: wire::VERSION.into(),
            name: format!("gabion, pid {}", std::process::id()),
            ..Hello::default()
        };
        let (header, body) = admin
            .send(Header::new(Kind::Hello), &hello)
            .and_then(|()| admin.receive())
            .map_err(|e| unreachable(format!("{e:#}")))?;
        match header.kind() {
            Some(Kind::Welcome) if Welcome::decode(&body[..])?.role() == Role::Mdm => Ok(admin),
            Some(Kind::Welcome) => bail!("{mdm} belongs to Gabion, but is no MDM"),
            Some(Kind::Refusal) => bail!("{mdm} refused us: {}", Refusal::decode(&body[..])?.text),
            _ => bail!("{mdm} does not greet as an MDM does: is it the right address?"),
        }
    }

    /// How everything is.
    pub fn status(&mut self) -> Result<StatusInfo> {
        let reply = self.ask(Ask::Status(StatusAsk {}))?;
        reply.status.ok_or_else(|| anyhow!("the MDM at {} sent a status without content", self.mdm))
    }

    /// Makes a volume.
    pub fn create_volume(&mut self, name: &str, size: u64) -> Result<VolumeStatus> {
        let reply = self.ask(Ask::CreateVolume(CreateVolume { name: name.into(), size }))?;
        reply.volume.ok_or_else(|| anyhow!("the MDM at {} did not say what it made", self.mdm))
    }

    /// Grows a volume.
    pub fn resize_volume(&mut self, name: &str, size: u64) -> Result<VolumeStatus> {
        let reply = self.ask(Ask::ResizeVolume(ResizeVolume { name: name.into(), size }))?;
        reply.volume.ok_or_else(|| anyhow!("the MDM at {} did not say what it grew", self.mdm))
    }

    /// Deletes a volume.
    pub fn delete_volume(&mut self, name: &str) -> Result<()> {
        self.ask(Ask::DeleteVolume(DeleteVolume { name: name.into() })).map(drop)
    }

    /// Begins to scrub a device, or all.
    pub fn scrub(&mut self, device: Option<u32>) -> Result<()> {
        self.ask(Ask::Scrub(ScrubAsk { device: device.unwrap_or(0) })).map(drop)
    }

    /// Has a device (or, 0, all of a server) removed; with `keep`, not any more.
    pub fn remove(&mut self, device: u32, server: &str, keep: bool) -> Result<()> {
        self.ask(Ask::Remove(RemoveAsk { device, server: server.into(), keep })).map(drop)
    }

    fn ask(&mut self, ask: Ask) -> Result<AdminReply> {
        let op = self.next_op;
        self.next_op += 1;
        let mut header = Header::new(Kind::Admin);
        header.op = op.into();
        self.send(header, &AdminRequest { ask: Some(ask) })?;
        let (header, body) = self.receive().map_err(|e| {
            coded(Exit::Unreachable, format!("the MDM at {} gave no answer: {e:#}", self.mdm))
        })?;
        if header.kind() != Some(Kind::AdminReply) || header.op.get() != op {
            bail!("the MDM at {} answered something else than was asked", self.mdm);
        }
        let reply = AdminReply::decode(&body[..]).context("the MDM's answer can't be read")?;
        if reply.error != 0 {
            bail!("{}", reply.text);
        }
        Ok(reply)
    }

    fn send(&mut self, header: Header, message: &impl Message) -> Result<()> {
        let (head, body) = wire::control_frame(header, message, &BufPool::new(0));
        self.stream.write_all(&[head.as_slice(), &body].concat())?;
        Ok(())
    }

    fn receive(&mut self) -> Result<(Header, Vec<u8>)> {
        let mut head = [0; HEADER];
        self.stream.read_exact(&mut head)?;
        let Framing::Frame { body, .. } = PeerFramer::new(MAX_ANSWER).frame(&head)? else {
            bail!("half a header");
        };
        let mut bytes = vec![0; body];
        self.stream.read_exact(&mut bytes)?;
        let header = wire::parse(&head);
        if !wire::body_ok(&header, &bytes) {
            bail!("its answer arrived damaged");
        }
        Ok((header, bytes))
    }
}

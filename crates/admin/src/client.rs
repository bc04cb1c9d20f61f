//! The command line's side of the protocol: sends one request at a time over a blocking socket.

use crate::exit::{Exit, coded};
use anyhow::{Context, Result, anyhow, bail};
use base::ClusterId;
use node::link::handshake::Wrong;
use node::link::{Answer, Callee, hello};
use prost::Message;
use seam::{BufPool, Framer, Framing};
use std::collections::{BTreeSet, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use wire::control::{
    AddMdm, AdminReply, AdminRequest, AdmitRequest, Ask, BackupRequest, CreateVolume,
    DamageRequest, DeleteVolume, Hello, MaintainRequest, ObjectKind, RecoverMdm, Refusal,
    RefusalCode, RemoveMdm, RemoveRequest, RenameRequest, ResizeVolume, Role, ScrubRequest,
    StatusInfo, StatusRequest, SwitchMdm, VolumeDamage, VolumeStatus, Welcome,
};
use wire::header::HEADER;
use wire::{Control, Frame, Header, PeerFramer, message};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Connect timeout when there are other MDMs to ask instead.
const CONNECT_OTHERS: Duration = Duration::from_millis(500);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// A status of a large cluster fits in this many bytes; a larger answer is refused.
const MAX_ANSWER: u32 = 64 << 20;

/// Time that an MDM gets to answer before the next one is asked in parallel.
const HEAD_START: Duration = Duration::from_millis(300);
const BETWEEN_ROUNDS: Duration = Duration::from_millis(50);

/// Time that several MDMs get to elect a leader.
const ELECTION: Duration = Duration::from_secs(5);

/// The error of an MDM that does not lead.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct NotLeader {
    leader: Option<SocketAddr>,
    text: String,
}

fn refused(mdm: SocketAddr, why: &Refusal) -> anyhow::Error {
    match why.code() {
        RefusalCode::NotLeader => {
            let leader = why.leader.parse().ok();
            NotLeader { leader, text: format!("{mdm}: {}", why.text) }.into()
        }
        _ => anyhow!("{mdm} refused us: {}", why.text),
    }
}

/// Explains why no MDM leads, although some of them answer.
fn none_leads(answered: usize, asked: usize, error: &anyhow::Error) -> String {
    if asked == 1 {
        return format!("{error:#}");
    }
    let what = match answered * 2 > asked {
        true => {
            "they have to reach each other and belong to one cluster. Their logs say what is wrong"
        }
        false => {
            "more than half of all have to run. Start the others, or, if these are lost for good: \
             `gabion mdm recover --help`"
        }
    };
    format!(
        "{answered} of the {asked} MDMs that were asked answer, and none of them leads: {what}. \
         Volumes are served meanwhile"
    )
}

/// Searches for the leader by asking MDMs in parallel.
struct Search {
    mdms: Vec<SocketAddr>,
    report: Sender<(SocketAddr, Result<Admin>)>,
    inbox: Receiver<(SocketAddr, Result<Admin>)>,
    /// MDMs that were asked and have not answered yet.
    asked: BTreeSet<SocketAddr>,
}

impl Search {
    fn new(mdms: &[SocketAddr]) -> Search {
        let (report, inbox) = channel();
        Search { mdms: mdms.to_vec(), report, inbox, asked: BTreeSet::new() }
    }

    fn ask(&mut self, mdm: SocketAddr) {
        if !self.asked.insert(mdm) {
            return;
        }
        let report = self.report.clone();
        let patience = if self.mdms.len() > 1 { CONNECT_OTHERS } else { CONNECT_TIMEOUT };
        // After the search has found a leader, nobody receives the other answers.
        std::thread::spawn(move || drop(report.send((mdm, Admin::within(mdm, patience)))));
    }

    /// Asks each MDM, and also the leader that a follower names. The first good answer wins. The
    /// error is that of the last answer, with the number of MDMs that said they don't lead.
    fn round(&mut self, deadline: Instant) -> std::result::Result<Admin, (anyhow::Error, usize)> {
        let mut next: VecDeque<SocketAddr> = self.mdms.iter().copied().collect();
        let (mut followers, mut last) = (BTreeSet::new(), None);
        loop {
            next.pop_front().into_iter().for_each(|mdm| self.ask(mdm));
            let patience = match next.is_empty() {
                false => HEAD_START,
                // A single MDM gets the full timeouts; several get the time of an election.
                true if self.mdms.len() == 1 => ANSWER_TIMEOUT + CONNECT_TIMEOUT,
                true => deadline.saturating_duration_since(Instant::now()),
            };
            match self.inbox.recv_timeout(patience) {
                Ok((_, Ok(admin))) => return Ok(admin),
                Ok((mdm, Err(error))) => {
                    self.asked.remove(&mdm);
                    if let Some(follower) = error.downcast_ref::<NotLeader>() {
                        followers.insert(mdm);
                        let leader = follower.leader.filter(|leader| !followers.contains(leader));
                        leader.into_iter().for_each(|leader| self.ask(leader));
                    }
                    last = Some(error);
                }
                Err(_) if next.is_empty() => {
                    let silent = || anyhow!("none of {} MDMs answers", self.mdms.len());
                    let error =
                        last.unwrap_or_else(|| coded(Exit::Unreachable, silent().to_string()));
                    return Err((error, followers.len()));
                }
                Err(_) => {}
            }
            if next.is_empty() && self.asked.is_empty() {
                return Err((last.expect("an MDM has answered"), followers.len()));
            }
        }
    }
}

/// A connection to an MDM that has welcomed this client.
#[derive(Debug)]
pub struct Admin {
    stream: TcpStream,
    mdm: SocketAddr,
    next_op: u64,
    /// The protocol version of the link.
    version: u16,
}

impl Admin {
    /// Connects to the leader: one of these MDMs, or the one that they name. This waits while they
    /// elect a leader. A frozen MDM does not delay it, because the next one is asked in parallel.
    pub fn find(mdms: &[SocketAddr]) -> Result<Admin> {
        let deadline = Instant::now() + ELECTION;
        let mut search = Search::new(mdms);
        loop {
            let (error, answered) = match search.round(deadline) {
                Ok(admin) => return Ok(admin),
                Err(none) => none,
            };
            if mdms.len() == 1 && answered == 0 {
                return Err(error);
            }
            if Instant::now() > deadline {
                return Err(match answered {
                    0 => error,
                    _ => coded(Exit::Unreachable, none_leads(answered, mdms.len(), &error)),
                });
            }
            std::thread::sleep(BETWEEN_ROUNDS);
        }
    }

    /// Returns true when an MDM answers at this address, whether it leads or not.
    pub fn answers(mdm: SocketAddr) -> bool {
        match Admin::within(mdm, CONNECT_OTHERS) {
            Ok(_) => true,
            Err(error) => error.is::<NotLeader>(),
        }
    }

    /// Returns true if [`Admin::direct`] failed because the MDM runs but belongs to no cluster.
    pub fn is_of_none(error: &anyhow::Error) -> bool {
        error.is::<NotLeader>()
    }

    /// Returns the MDM's address.
    pub fn mdm(&self) -> SocketAddr {
        self.mdm
    }

    /// Connects to this MDM and sends the hello. Fails if the MDM does not lead.
    pub fn connect(mdm: SocketAddr) -> Result<Admin> {
        Admin::within(mdm, CONNECT_TIMEOUT)
    }

    /// Connects to this MDM, even if it does not lead. Its welcome has the last entry of its log.
    pub fn direct(mdm: SocketAddr) -> Result<(Admin, Welcome)> {
        Admin::greet(mdm, CONNECT_OTHERS, true)
    }

    fn within(mdm: SocketAddr, patience: Duration) -> Result<Admin> {
        Admin::greet(mdm, patience, false).map(|(admin, _)| admin)
    }

    fn greet(mdm: SocketAddr, patience: Duration, direct: bool) -> Result<(Admin, Welcome)> {
        let unreachable = |why: String| {
            coded(
                Exit::Unreachable,
                format!(
                    "no MDM answers at {mdm} ({why}). Running servers and clients serve volumes \
                     without it; to change or see the cluster, start it again, or name another one \
                     with --mdm or --dir"
                ),
            )
        };
        let stream =
            TcpStream::connect_timeout(&mdm, patience).map_err(|e| unreachable(e.to_string()))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        let mut admin = Admin { stream, mdm, next_op: 1, version: wire::HANDSHAKE_VERSION };
        let name = format!("gabion, pid {}", std::process::id());
        let hello = Hello { direct, ..hello(&wire::DIALECT, ClusterId(0), Role::Admin, &name) };
        let (frame, body) = admin
            .send(message::Hello {}, &hello)
            .and_then(|()| admin.receive())
            .map_err(|e| unreachable(format!("{e:#}")))?;
        match Callee::Mdm.answer(&wire::DIALECT, ClusterId(0), &frame, &body) {
            Some(Answer::Welcome(welcomed)) => {
                admin.version = welcomed.version;
                Ok((admin, welcomed.message))
            }
            Some(Answer::Refusal(why)) => Err(refused(mdm, &why)),
            Some(Answer::Wrong(Wrong::Other)) => {
                bail!("{mdm} belongs to Gabion, but is not an MDM")
            }
            Some(Answer::Wrong(wrong)) => bail!("the MDM at {mdm}: {}", wrong.why()),
            None => bail!("{mdm} does not greet as an MDM does: is it the right address?"),
        }
    }

    /// Returns the cluster's status.
    pub fn status(&mut self) -> Result<StatusInfo> {
        let reply = self.ask(Ask::Status(StatusRequest {}))?;
        reply.status.ok_or_else(|| anyhow!("the MDM at {} sent a status without content", self.mdm))
    }

    /// Creates a volume with default options.
    pub fn create_volume(&mut self, name: &str, size: u64) -> Result<VolumeStatus> {
        let plain = CreateVolume { name: name.into(), size, ..CreateVolume::default() };
        self.make_volume(plain)
    }

    /// Creates a volume from its description.
    pub fn make_volume(&mut self, volume: CreateVolume) -> Result<VolumeStatus> {
        let reply = self.ask(Ask::CreateVolume(volume))?;
        reply.volume.ok_or_else(|| anyhow!("the MDM at {} did not say what it made", self.mdm))
    }

    /// Grows a volume.
    pub fn resize_volume(&mut self, name: &str, size: u64) -> Result<VolumeStatus> {
        let reply = self.ask(Ask::ResizeVolume(ResizeVolume { name: name.into(), size }))?;
        reply.volume.ok_or_else(|| anyhow!("the MDM at {} did not say what it grew", self.mdm))
    }

    /// Deletes a volume. With `unmap`, also if it is in use or mapped to a client by name.
    pub fn delete_volume(&mut self, name: &str, unmap: bool) -> Result<()> {
        self.ask(Ask::DeleteVolume(DeleteVolume { name: name.into(), unmap })).map(drop)
    }

    /// Maps or unmaps a volume. The answer has its mappings afterwards.
    pub fn map_volume(&mut self, ask: Ask) -> Result<VolumeStatus> {
        let reply = self.ask(ask)?;
        reply.volume.ok_or_else(|| anyhow!("the MDM at {} did not say what it did", self.mdm))
    }

    /// Renames an object.
    pub fn rename(&mut self, kind: ObjectKind, name: &str, to: &str) -> Result<()> {
        let (name, to) = (name.to_owned(), to.to_owned());
        self.ask(Ask::Rename(RenameRequest { kind: kind as i32, name, to })).map(drop)
    }

    /// Sends an order about a protection domain, a fault set or a storage pool.
    pub fn order(&mut self, ask: Ask) -> Result<()> {
        self.ask(ask).map(drop)
    }

    /// Starts a scrub of a device, or of all devices.
    pub fn scrub(&mut self, device: Option<u32>) -> Result<()> {
        self.ask(Ask::Scrub(ScrubRequest { device: device.unwrap_or(0) })).map(drop)
    }

    /// Removes a device, or all devices of a server if `device` is 0. With `keep`, cancels that.
    pub fn remove(&mut self, device: u32, server: &str, keep: bool) -> Result<()> {
        self.ask(Ask::Remove(RemoveRequest { device, server: server.into(), keep })).map(drop)
    }

    /// Admits a waiting device, or those of a server if `device` is 0, so that it gets copies.
    pub fn admit(&mut self, device: u32, server: &str) -> Result<()> {
        self.ask(Ask::Admit(AdmitRequest { device, server: server.into() })).map(drop)
    }

    /// Puts a server into maintenance; with `end`, takes it out.
    pub fn maintain(&mut self, server: &str, protected: bool, end: bool) -> Result<()> {
        let server = server.to_owned();
        self.ask(Ask::Maintain(MaintainRequest { server, protected, end })).map(drop)
    }

    /// Adds an MDM to the cluster.
    pub fn add_mdm(&mut self, name: &str, address: SocketAddr, tie_breaker: bool) -> Result<()> {
        let (name, address) = (name.to_owned(), address.to_string());
        self.ask(Ask::AddMdm(AddMdm { name, address, tie_breaker })).map(drop)
    }

    /// Removes an MDM from the cluster. Returns when the others don't need it any more.
    pub fn remove_mdm(&mut self, name: &str) -> Result<()> {
        self.ask(Ask::RemoveMdm(RemoveMdm { name: name.into() })).map(drop)
    }

    /// Transfers leadership to the named MDM, or to the best candidate.
    pub fn switch_mdm(&mut self, name: Option<&str>) -> Result<()> {
        let name = name.unwrap_or_default().to_owned();
        self.ask(Ask::SwitchMdm(SwitchMdm { name })).map(drop)
    }

    /// Orders this MDM to recover without the others; with `finish`, ends the recovery.
    pub fn recover_mdm(&mut self, order: RecoverMdm) -> Result<()> {
        self.ask_this(Ask::RecoverMdm(order)).map(drop)
    }

    /// Returns which parts of a volume can't be served.
    pub fn damage(&mut self, volume: &str) -> Result<VolumeDamage> {
        let reply = self.ask(Ask::Damage(DamageRequest { volume: volume.into() }))?;
        reply.damage.ok_or_else(|| anyhow!("the MDM at {} did not say what is damaged", self.mdm))
    }

    /// Returns a backup of everything that the MDMs know.
    pub fn backup(&mut self) -> Result<Vec<u8>> {
        Ok(self.ask(Ask::Backup(BackupRequest {}))?.backup)
    }

    /// Sends a request to the leader. If this MDM stops leading meanwhile, finds the new leader and
    /// asks again. The first request may have taken effect all the same; the second one's error
    /// says so.
    fn ask(&mut self, ask: Ask) -> Result<AdminReply> {
        let deadline = Instant::now() + ELECTION;
        let mut again = false;
        loop {
            let error = match self.ask_this(ask.clone()) {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            match error.downcast_ref::<NotLeader>() {
                Some(follower) if Instant::now() < deadline => {
                    *self = Admin::find(&[follower.leader.unwrap_or(self.mdm)])?;
                    again = true;
                }
                _ if again => {
                    return Err(error.context(
                        "asked again, because another MDM leads now; the first request may have \
                         taken effect already",
                    ));
                }
                _ => return Err(error),
            }
        }
    }

    fn ask_this(&mut self, ask: Ask) -> Result<AdminReply> {
        let op = self.next_op;
        self.next_op += 1;
        self.send(message::Admin { op }, &AdminRequest::of(ask))?;
        let (frame, body) = self.receive().map_err(|e| {
            coded(Exit::Unreachable, format!("the MDM at {} gave no answer: {e:#}", self.mdm))
        })?;
        match frame {
            Frame::Refusal(_) => return Err(refused(self.mdm, &Refusal::decode(&body[..])?)),
            Frame::AdminReply(reply) if reply.op == op => {}
            _ => bail!("the MDM at {} answered something else than was asked", self.mdm),
        }
        let reply = AdminReply::decode(&body[..]).context("the MDM's answer can't be read")?;
        if reply.error != 0 {
            bail!("{}", reply.text);
        }
        Ok(reply)
    }

    fn send(&mut self, frame: impl Into<Header>, message: &impl Control) -> Result<()> {
        let (head, body) = wire::control_frame(self.version, frame, message, &BufPool::new(0));
        self.stream.write_all(&[head.as_slice(), &body].concat())?;
        Ok(())
    }

    fn receive(&mut self) -> Result<(Frame, Vec<u8>)> {
        let mut head = [0; HEADER];
        self.stream.read_exact(&mut head)?;
        let Framing::Frame { body, .. } = PeerFramer::new(MAX_ANSWER).frame(&head)? else {
            bail!("half a header");
        };
        let mut bytes = vec![0; body];
        self.stream.read_exact(&mut bytes)?;
        let header = wire::parse(&head);
        if !wire::body_ok(header, &bytes) {
            bail!("its answer arrived damaged");
        }
        wire::check_link(header, Some(self.version))?;
        Ok((Frame::try_from(header)?, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread::{JoinHandle, spawn};

    /// Starts an MDM that welcomes one client and answers its first request with `answer`.
    fn mdm(
        answer: impl FnOnce(Frame) -> (Header, Vec<u8>) + Send + 'static,
    ) -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serve = move || {
            let stream = listener.accept().unwrap().0;
            let mut side = Admin { stream, mdm: address, next_op: 1, version: 1 };
            side.receive().unwrap();
            let (role, version) = (Role::Mdm as i32, 1);
            let welcome = Welcome { role, version, ..Welcome::default() };
            side.send(message::Welcome {}, &welcome).unwrap();
            let (header, body) = answer(side.receive().unwrap().0);
            let head = wire::frame(header, &body);
            side.stream.write_all(&[head.as_slice(), &body].concat()).unwrap();
        };
        (address, spawn(serve))
    }

    /// Returns the header of the answer to an order.
    fn reply_to(asked: Frame) -> Header {
        let Frame::Admin(message::Admin { op }) = asked else { panic!("{asked:?} is no order") };
        message::AdminReply { op }.into()
    }

    /// A frozen MDM: the kernel accepts the connection, but nothing answers.
    fn frozen() -> (SocketAddr, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        (listener.local_addr().unwrap(), listener)
    }

    #[test]
    fn a_frozen_mdm_delays_no_command() {
        let ((first, _a), (second, _b)) = (frozen(), frozen());
        let (leader, serves) =
            mdm(|asked| (reply_to(asked), AdminReply::default().encode_to_vec()));
        let begun = Instant::now();
        let mut admin = Admin::find(&[first, second, leader]).unwrap();
        admin.scrub(None).unwrap();
        assert_eq!(admin.mdm(), leader);
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        serves.join().unwrap();
    }

    #[test]
    fn without_a_leader_the_error_says_how_many_mdms_must_run() {
        let (alone, serves) = follower();
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = Admin::find(&[alone, gone, gone]).unwrap_err();
        assert_eq!(crate::exit::of(&error), Exit::Unreachable);
        assert!(error.to_string().contains("1 of the 3 MDMs"), "{error}");
        drop(serves);
    }

    /// Starts an MDM that answers and knows no leader.
    fn follower() -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serve = move || {
            for stream in listener.incoming() {
                let mut side =
                    Admin { stream: stream.unwrap(), mdm: address, next_op: 1, version: 1 };
                side.receive().unwrap();
                let code = RefusalCode::NotLeader as i32;
                let refusal = Refusal { code, ..Refusal::default() };
                side.send(message::Refusal {}, &refusal).unwrap();
            }
        };
        (address, spawn(serve))
    }

    #[test]
    fn an_mdm_that_stops_leading_redirects_to_the_new_leader() {
        let (leader, second) =
            mdm(|asked| (reply_to(asked), AdminReply::default().encode_to_vec()));
        let (old, first) = mdm(move |_| {
            let code = RefusalCode::NotLeader as i32;
            let refusal = Refusal { code, leader: leader.to_string(), ..Refusal::default() };
            (message::Refusal {}.into(), refusal.encode_to_vec())
        });
        let mut admin = Admin::connect(old).unwrap();
        admin.scrub(None).unwrap();
        assert_eq!(admin.mdm(), leader);
        first.join().unwrap();
        second.join().unwrap();
    }
}

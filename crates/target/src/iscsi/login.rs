//! The login phase of a connection (RFC 7143 6.3): authentication, access to the target, and the
//! negotiation of the operational keys.
//!
//! Invariants:
//! - An initiator must wait for each answer before it sends the next request. One that does not
//!   loses its connection.
//! - An initiator that is not authenticated learns nothing about volumes, not even whether the
//!   volume that it names exists, and causes no request to the MDM. Session reinstatement is the
//!   last step, so a session can be ended only by its own host.
//! - The login ends with [`Outcome::Full`], or with a nonzero status and the end of the connection.
//!   All text of a login together is at most `Limits::login_text` long.
//!
//! The session numbers the answers and sets the framer's mode.

use super::chap::{CHALLENGE, Chap};
use super::keys::Negotiation;
use super::pdu;
use super::proto::*;
use super::reply::LoginAnswer;
use super::targets::{Closed, Nexus, Target, Targets};
use super::text::{Incoming, Outgoing, pairs};
use crate::ident::is_iscsi_name;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base::Limits;

/// Class and detail of a status (11.13.5).
pub(crate) mod status {
    #![allow(missing_docs)] // The RFC defines the names.
    pub(crate) const SUCCESS: u16 = 0x0000;
    pub(crate) const MOVED_TEMPORARILY: u16 = 0x0101;
    pub(crate) const INITIATOR_ERROR: u16 = 0x0200;
    pub(crate) const AUTHENTICATION_FAILURE: u16 = 0x0201;
    pub(crate) const AUTHORIZATION_FAILURE: u16 = 0x0202;
    pub(crate) const NOT_FOUND: u16 = 0x0203;
    pub(crate) const UNSUPPORTED_VERSION: u16 = 0x0205;
    pub(crate) const TOO_MANY_CONNECTIONS: u16 = 0x0206;
    pub(crate) const MISSING_PARAMETER: u16 = 0x0207;
    pub(crate) const TYPE_NOT_SUPPORTED: u16 = 0x0209;
    pub(crate) const NO_SUCH_SESSION: u16 = 0x020a;
    pub(crate) const INVALID_DURING_LOGIN: u16 = 0x020b;
    pub(crate) const SERVICE_UNAVAILABLE: u16 = 0x0301;
    pub(crate) const OUT_OF_RESOURCES: u16 = 0x0302;

    /// Returns what the status means, for people.
    pub(crate) fn why(status: u16) -> &'static str {
        match status {
            MOVED_TEMPORARILY => "login: another gateway serves this host",
            AUTHENTICATION_FAILURE => "login: has not shown its secret",
            AUTHORIZATION_FAILURE => "login: this host may not use the volume",
            NOT_FOUND => "login: no such target is served here",
            UNSUPPORTED_VERSION => "login: does not speak version 0 of iSCSI",
            TOO_MANY_CONNECTIONS => "login: a second connection of a session",
            MISSING_PARAMETER => "login: the name of the initiator or of the target is missing",
            TYPE_NOT_SUPPORTED => "login: wants an unknown type of session",
            NO_SUCH_SESSION => "login: wants to continue a session that does not exist",
            INVALID_DURING_LOGIN => "login: sent something else in the login phase",
            SERVICE_UNAVAILABLE => "login: this gateway stops",
            OUT_OF_RESOURCES => "login: there are too many sessions",
            _ => "login: breaks the protocol",
        }
    }
}

/// The name of an initiator, and that of its target.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Names {
    initiator: String,
    /// `None` in a discovery session.
    target: Option<String>,
}

/// The owner's data for a login.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// A handle that no other session has. Not 0.
    pub tsih: u16,
    /// Fresh random bytes, which are secret.
    pub secret: [u8; CHALLENGE + 1],
}

/// The session's next step after a login request.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The answer depends on which volumes exist: fetch them, then call [`Login::refreshed`].
    Refresh,
    /// Send this answer; the login goes on, or has failed if the status is not success.
    Answer(LoginAnswer, Vec<u8>),
    /// Send this answer. It is the last one, and the session begins.
    Full(LoginAnswer, Vec<u8>, Box<Entry>),
}

/// The result of a login.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The host that has logged in.
    pub(crate) nexus: Nexus,
    /// The target; `None` in a discovery session.
    pub(crate) target: Option<Target>,
    /// This login replaces a session of the same host with the same id.
    pub(crate) reinstates: bool,
    /// The negotiated settings.
    pub(crate) params: super::keys::Params,
}

/// The authentication of an initiator.
#[derive(Debug)]
enum Security {
    /// No method was chosen yet.
    Open,
    /// CHAP was chosen.
    Chap,
    /// The initiator is authenticated, or needs no authentication.
    Done,
}

/// The state of one login.
#[derive(Debug)]
pub(crate) struct Login {
    opening: Opening,
    text_max: usize,
    segment: u32,
    text: Incoming,
    answer: Outgoing,
    /// The next stage, after an answer that takes several PDUs.
    then: Option<u8>,
    stage: Option<u8>,
    names: Option<Names>,
    security: Security,
    chap: Chap,
    negotiation: Negotiation,
    /// We have declared the longest data segment that we accept.
    declared: bool,
    /// The target exists, and the initiator may use it.
    admitted: bool,
    /// The request that waits for [`Login::refreshed`].
    waiting: Option<pdu::Login>,
    isid: [u8; 6],
    tsih: u16,
}

impl Login {
    /// Creates the state before the first request.
    pub(crate) fn new(limits: &Limits, opening: Opening) -> Login {
        let text_max = limits.login_text as usize;
        Login {
            opening,
            text_max,
            segment: limits.iscsi_segment,
            text: Incoming::new(text_max),
            answer: Outgoing::default(),
            then: None,
            stage: None,
            names: None,
            security: Security::Open,
            chap: Chap::new(&opening.secret),
            negotiation: Negotiation::new(limits),
            declared: false,
            admitted: false,
            waiting: None,
            isid: [0; 6],
            tsih: 0,
        }
    }

    /// Returns true while an answer waits for the volumes: the initiator may not send anything.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Returns true if the initiator is known to want a discovery session.
    fn discovers(&self) -> bool {
        self.names.as_ref().is_some_and(|names| names.target.is_none())
    }

    /// Handles a request.
    pub(crate) fn request(
        &mut self,
        request: &pdu::Login,
        data: &[u8],
        targets: &dyn Targets,
    ) -> Outcome {
        let first = self.stage.is_none();
        if first {
            (self.isid, self.tsih) = (request.isid, request.tsih);
        }
        if request.version_min > 0 {
            return self.refuse(request, status::UNSUPPORTED_VERSION);
        }
        let stage = *self.stage.get_or_insert(request.stage);
        if stage != request.stage || (self.isid, self.tsih) != (request.isid, request.tsih) {
            return self.refuse(request, status::INVALID_DURING_LOGIN);
        }
        if !self.answer.is_sent() {
            // The initiator fetches the rest of the answer.
            return if data.is_empty() {
                self.part(request, targets)
            } else {
                self.refuse(request, status::INITIATOR_ERROR)
            };
        }
        if self.text.add(data).is_err() {
            return self.refuse(request, status::INITIATOR_ERROR);
        }
        if request.more {
            return Outcome::Answer(self.header(request, status::SUCCESS), Vec::new());
        }
        if let Err(status) = self.negotiate(request, targets) {
            return self.refuse(request, status);
        }
        if self.admitted || !matches!(self.security, Security::Done) {
            return self.finish(request, targets);
        }
        self.waiting = Some(*request);
        Outcome::Refresh
    }

    /// Continues with the volumes that exist now.
    pub(crate) fn refreshed(&mut self, targets: &dyn Targets) -> Option<Outcome> {
        let request = self.waiting.take()?;
        Some(match self.admit(targets) {
            Ok(()) => self.finish(&request, targets),
            Err(status) => self.refuse(&request, status),
        })
    }

    /// Reads the initiator's name, the type of the session, and the target.
    fn introduce(&mut self, pairs: &[(&str, &str)], targets: &dyn Targets) -> Result<(), u16> {
        let value = |key| pairs.iter().find(|pair| pair.0 == key).map(|pair| pair.1);
        let is_name = |name: &&str| is_iscsi_name(name);
        let named = |key| value(key).filter(is_name).ok_or(status::MISSING_PARAMETER);
        let initiator = named("InitiatorName")?.into();
        let target = match value("SessionType") {
            None | Some("Normal") => Some(named("TargetName")?.into()),
            Some("Discovery") => None,
            Some(_) => return Err(status::TYPE_NOT_SUPPORTED),
        };
        if target.is_some() {
            self.answer.pair("TargetPortalGroupTag", &format!("{}", targets.group()));
        }
        self.names = Some(Names { initiator, target });
        Ok(())
    }

    /// Checks whether the initiator may use its target, now that it is known.
    fn admit(&mut self, targets: &dyn Targets) -> Result<(), u16> {
        let names = self.names.as_ref().expect("the names come first");
        let (initiator, target) = (names.initiator.as_str(), names.target.as_deref());
        if let Some(Closed::NotReady) = targets.closed(initiator, target) {
            return Err(status::SERVICE_UNAVAILABLE);
        }
        if let Some(name) = target {
            let found = targets.find(initiator, name).ok_or(status::NOT_FOUND)?;
            if !targets.admits(initiator, name) {
                return Err(status::AUTHORIZATION_FAILURE);
            }
            if !found.alias.is_empty() {
                self.answer.pair("TargetAlias", &found.alias);
            }
        }
        self.admitted = true;
        Ok(())
    }

    /// Handles a complete text.
    fn negotiate(&mut self, request: &pdu::Login, targets: &dyn Targets) -> Result<(), u16> {
        let text = self.text.take();
        let pairs = pairs(&text).map_err(|_| status::INITIATOR_ERROR)?;
        if self.names.is_none() {
            self.introduce(&pairs, targets)?;
        }
        if request.stage == STAGE_SECURITY {
            self.secure(&pairs, targets)
        } else {
            self.operate(&pairs, targets)
        }
    }

    /// Answers a text. The stage ends if the initiator asks for that and is authenticated.
    fn finish(&mut self, request: &pdu::Login, targets: &dyn Targets) -> Outcome {
        let ready = matches!(self.security, Security::Done);
        self.then = (request.transit && ready).then_some(request.next);
        if self.then == Some(STAGE_FULL) && !self.negotiation.params.are_sound() {
            return self.refuse(request, status::INITIATOR_ERROR);
        }
        self.part(request, targets)
    }

    /// Handles a text of the security stage.
    fn secure(&mut self, pairs: &[(&str, &str)], targets: &dyn Targets) -> Result<(), u16> {
        const FAILURE: u16 = status::AUTHENTICATION_FAILURE;
        let names = self.names.as_ref().expect("the names come first");
        let credentials = targets.credentials(&names.initiator, names.target.as_deref());
        let credentials = credentials.map_err(|_| FAILURE)?;
        if let Some((_, methods)) = pairs.iter().find(|pair| pair.0 == "AuthMethod") {
            if !matches!(self.security, Security::Open) {
                return Err(status::INITIATOR_ERROR);
            }
            let method = if credentials.is_some() { "CHAP" } else { "None" };
            if !methods.split(',').any(|offered| offered == method) {
                return Err(FAILURE);
            }
            self.answer.pair("AuthMethod", method);
            self.security = if credentials.is_some() { Security::Chap } else { Security::Done };
        }
        let is_chap = |key: &str| matches!(key, "CHAP_A" | "CHAP_N" | "CHAP_R");
        match (&self.security, credentials) {
            (Security::Open, None) => self.security = Security::Done,
            (Security::Open, Some(_)) => return Err(FAILURE),
            (Security::Chap, Some(credentials)) if pairs.iter().any(|pair| is_chap(pair.0)) => {
                let (answer, shown) =
                    self.chap.message(pairs, &credentials).map_err(|_| FAILURE)?;
                answer.iter().for_each(|(key, value)| self.answer.pair(key, value));
                if shown {
                    self.security = Security::Done;
                }
            }
            (Security::Chap, None) => return Err(FAILURE), // the secret was taken away meanwhile
            (Security::Chap, Some(_)) | (Security::Done, _) => {}
        }
        self.offers(pairs)
    }

    /// Handles a text of the operational stage.
    fn operate(&mut self, pairs: &[(&str, &str)], targets: &dyn Targets) -> Result<(), u16> {
        let names = self.names.as_ref().expect("the names come first");
        if !matches!(self.security, Security::Done) {
            // The initiator has skipped the security stage.
            if targets.credentials(&names.initiator, names.target.as_deref()) != Ok(None) {
                return Err(status::AUTHENTICATION_FAILURE);
            }
            self.security = Security::Done;
        }
        self.offers(pairs)?;
        if !core::mem::replace(&mut self.declared, true) {
            self.answer.pair("MaxRecvDataSegmentLength", &format!("{}", self.segment));
        }
        Ok(())
    }

    /// Answers the operational keys of a text.
    fn offers(&mut self, pairs: &[(&str, &str)]) -> Result<(), u16> {
        const SECURITY: &[&str] = &["AuthMethod", "CHAP_A", "CHAP_C", "CHAP_I", "CHAP_N", "CHAP_R"];
        let discovers = self.discovers();
        for pair in pairs.iter().filter(|pair| !SECURITY.contains(&pair.0)) {
            let offered = self.negotiation.offer(*pair, discovers, &mut self.answer);
            offered.map_err(|_| status::INITIATOR_ERROR)?;
        }
        // One text can name many keys, and the answers to all of them can fill several PDUs.
        if self.answer.len() > 4 * self.text_max { Err(status::INITIATOR_ERROR) } else { Ok(()) }
    }

    /// Sends the next part of the answer, and after the last one goes to the next stage.
    fn part(&mut self, request: &pdu::Login, targets: &dyn Targets) -> Outcome {
        let (data, more) = self.answer.part(LOGIN_SEGMENT as usize);
        let data = data.to_vec();
        if more {
            let answer = LoginAnswer { more, ..self.header(request, status::SUCCESS) };
            return Outcome::Answer(answer, data);
        }
        self.answer.clear();
        let mut answer = self.header(request, status::SUCCESS);
        let Some(next) = self.then.take() else {
            return Outcome::Answer(answer, data);
        };
        (answer.transit, answer.stages.1) = (true, next);
        self.stage = Some(next);
        if next != STAGE_FULL {
            return Outcome::Answer(answer, data);
        }
        match self.enter(request.cid, targets) {
            Ok(entry) => {
                answer.tsih = entry.nexus.tsih;
                Outcome::Full(answer, data, Box::new(entry))
            }
            Err((status, address)) => {
                let mut text = Outgoing::default();
                if let Some(address) = address {
                    text.pair("TargetAddress", &format!("{address}"));
                }
                let data = text.part(usize::MAX).0.to_vec();
                Outcome::Answer(self.header(request, status), data)
            }
        }
    }

    /// Checks whether the session may begin, now that the initiator is known.
    fn enter(
        &self,
        cid: u16,
        targets: &dyn Targets,
    ) -> Result<Entry, (u16, Option<core::net::SocketAddr>)> {
        let Names { initiator, target: name } = self.names.clone().expect("the names come first");
        let find = |name| targets.find(&initiator, name).ok_or((status::NOT_FOUND, None));
        let target = name.as_deref().map(find).transpose()?;
        let volume = target.as_ref().map(|target| target.unit.volume);
        let (isid, mut tsih) = (self.isid, self.opening.tsih);
        let (mut reinstates, mut same_cid) = (false, false);
        targets.sessions(&mut |other| {
            let same = other.initiator == initiator && other.isid == isid;
            if !same || other.volume != volume || volume.is_none() {
                return;
            }
            if self.tsih == 0 || other.tsih == self.tsih {
                (reinstates, same_cid) = (true, other.cid == cid);
            }
        });
        if self.tsih != 0 {
            if !reinstates {
                return Err((status::NO_SUCH_SESSION, None));
            }
            if !same_cid {
                return Err((status::TOO_MANY_CONNECTIONS, None));
            }
            tsih = self.tsih;
        }
        match targets.closed(&initiator, name.as_deref()) {
            Some(Closed::NotReady | Closed::Stopping) => {
                return Err((status::SERVICE_UNAVAILABLE, None));
            }
            Some(Closed::Full) if !reinstates => {
                return Err((status::OUT_OF_RESOURCES, None));
            }
            Some(Closed::Elsewhere(address)) => {
                return Err((status::MOVED_TEMPORARILY, Some(address)));
            }
            // The session that is replaced frees its memory.
            Some(Closed::Full) | None => {}
        }
        let nexus = Nexus { initiator, isid, tsih, volume, cid };
        Ok(Entry { nexus, target, reinstates, params: self.negotiation.params })
    }

    /// Creates the answer that ends the login.
    pub(crate) fn refuse(&self, request: &pdu::Login, status: u16) -> Outcome {
        Outcome::Answer(self.header(request, status), Vec::new())
    }

    fn header(&self, request: &pdu::Login, status: u16) -> LoginAnswer {
        LoginAnswer {
            transit: false,
            more: false,
            stages: (request.stage, 0),
            isid: request.isid,
            tsih: request.tsih,
            status,
        }
    }
}

//! Registers devices and clients: which ones are accepted, and which are refused and why.

use super::{Work, check_build};
use crate::mdm::answers::Answer;
use crate::mdm::inputs::Input;
use crate::mdm::links::Peer;
use crate::refusals::refusal;
use alloc::string::String;
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{DeviceId, Incarnation, LinkId};
use mdm::controller::Registration;
use mdm::detector::Verdict;
use mdm::recovery;
use seam::Effect;
use wire::control::{Intent, Refusal, RefusalCode, Register, RegisterSdc, Registered};
use wire::message;

impl Work<'_> {
    /// Registers a device.
    // Long: one match over all outcomes of a registration.
    pub(super) fn register(&mut self, link: LinkId, m: &Register) {
        if let Err(why) = self.check_first(link) {
            return self.refuse(link, &why);
        }
        if let Err(why) = self.check_device(m) {
            return self.refuse_server(link, m, why);
        }
        if self.comes_too_early(m) {
            let text = alloc::format!(
                "the MDMs are being recovered, and `{}` is another server than the one that had this device: \
                 wait until that one has had time to register",
                m.sds
            );
            return self.refuse_server(link, m, refusal(RefusalCode::Unexpected, text));
        }
        if let Some(command) = self.level_of_before(m) {
            self.execute(command);
        }
        let from = self.links.open(link);
        let (opened, report) = (from.opened, from.report.as_ref());
        let session = self.state().reporter(m).and_then(|(id, _)| self.links.device(id));
        let before = session.map_or(0, |s| s.began);
        let registration = self.state().register(m, before > opened, report);
        let (device, began) = match registration {
            Registration::Known(_) | Registration::New(..) if self.is_set_back(m) => {
                let text = self.set_back(m);
                self.note_refused(m, &text);
                return self.expel(link, refusal(RefusalCode::WrongDevice, text));
            }
            Registration::Known(id) => (id, before),
            Registration::New(id, mut command) => {
                let emptied = recovery::emptied_command(self.state(), self.reports.all(), &command);
                if let Some(emptied) = emptied {
                    self.execute(emptied);
                }
                self.tell_release(&mut command, m);
                self.execute(command);
                self.watch.born(id);
                (id, began(m.incarnation, self.state().devices[&id].incarnation, opened))
            }
            Registration::Superseded(text) => {
                return self.refuse(link, &refusal(RefusalCode::Superseded, text));
            }
            Registration::Bad(text) => {
                return self.refuse_server(link, m, refusal(RefusalCode::Unexpected, text));
            }
            Registration::Full(text) => {
                return self.refuse_server(link, m, refusal(RefusalCode::Full, text));
            }
            Registration::WrongPlace(text) => {
                return self.refuse_server(link, m, refusal(RefusalCode::WrongPlace, text));
            }
            Registration::WrongDevice(text) => {
                self.note_refused(m, &text);
                if !self.ask_after(m) {
                    return self.expel(link, refusal(RefusalCode::WrongDevice, text));
                }
                let text = alloc::format!(
                    "{text}. It was not heard lately: if it is off, start this one again"
                );
                return self.refuse(link, &refusal(RefusalCode::Occupied, text));
            }
        };
        self.refused_servers.remove(&m.sds, m.shard);
        let incarnation = self.state().devices[&device].incarnation;
        self.watch.device_came(self.now, (device, incarnation), m.build.clone());
        let report = self.links.open_mut(link).report.take();
        self.reports.heed(device, report, self.journal.state());
        self.start_session(link, Peer::Device(device, incarnation), began);
        let scrub = self.state().devices[&device].scrub;
        self.registered(link, device.0, incarnation.0, scrub);
    }

    /// Returns true for a device at another place than the state knows, while a recovery has just
    /// begun. It may be a copy of a disk that is in use. No device counts as up yet, so the former
    /// place gets some time to register. A process that the lost MDMs have accepted there is no
    /// copy.
    fn comes_too_early(&self, m: &Register) -> bool {
        let state = self.state();
        let accepted = state.reporter(m).is_some_and(|(_, d)| m.incarnation > d.incarnation.0);
        let early = state.recovery.open && self.reports.is_patient(self.now);
        early && state.is_elsewhere(m) && !accepted
    }

    /// Registers a client.
    pub(super) fn register_sdc(&mut self, link: LinkId, m: &RegisterSdc) {
        let checked = self.check_first(link);
        let checked = checked.and_then(|()| check_build(self.state(), &m.name, m.build.as_ref()));
        if let Err(why) = checked {
            return self.refuse(link, &why);
        }
        let opened = self.links.open(link).opened;
        let session = self.state().sdc_of(&m.name).and_then(|(id, _)| self.links.sdc(id));
        let before = session.map_or(0, |s| s.began);
        let (sdc, began) = match self.state().register_sdc(m, before > opened) {
            Registration::Known(id) => (id, before),
            Registration::New(id, command) => {
                self.execute(command);
                (id, began(m.incarnation, self.state().sdcs[&id].incarnation, opened))
            }
            Registration::Superseded(text) => {
                return self.refuse(link, &refusal(RefusalCode::Superseded, text));
            }
            Registration::Full(text) => {
                return self.refuse(link, &refusal(RefusalCode::Full, text));
            }
            Registration::Bad(text)
            | Registration::WrongPlace(text)
            | Registration::WrongDevice(text) => {
                return self.refuse(link, &refusal(RefusalCode::Unexpected, text));
            }
        };
        let incarnation = self.state().sdcs[&sdc].incarnation;
        self.watch.sdc_came(self.now, sdc, m.build.clone());
        self.start_session(link, Peer::Sdc(sdc, incarnation), began);
        self.registered(link, sdc.0, incarnation.0, 0);
    }

    /// Refuses a second registration on a link: the first one has its session there.
    fn check_first(&self, link: LinkId) -> Result<(), Refusal> {
        match self.links.open(link).peer {
            Peer::Device(..) | Peer::Sdc(..) => {
                let text = "a process has registered on this link already";
                Err(refusal(RefusalCode::Unexpected, text))
            }
            Peer::Stranger | Peer::Guest(_) | Peer::Mdm(_) => Ok(()),
        }
    }

    /// Starts a session of this incarnation on the link. The incarnation's earlier link is closed.
    fn start_session(&mut self, link: LinkId, peer: Peer, began: u64) {
        let old = self.links.register(link, peer, began);
        self.out.push(Effect::Welcome { link });
        if let Some(link) = old {
            self.out.push(Effect::Close { link });
        }
    }

    fn registered(&mut self, link: LinkId, id: u32, incarnation: u64, scrub: u32) {
        let state = self.journal.state();
        let client = matches!(self.links.open(link).peer, Peer::Sdc(..));
        let map = match state.recovery.open && client {
            true => 0, // it continues with the map that it has
            false => state.version.0,
        };
        let registered = Registered { cluster: state.cluster.0, id, incarnation, map, scrub };
        let frame = message::Registered {};
        let (head, body) = self.links.peer_link(link).control(frame, &registered, self.out.pool());
        self.answers.push(Answer::frame(link, head, body));
    }

    /// Refuses a server, and records that for `gabion status`.
    fn refuse_server(&mut self, link: LinkId, m: &Register, why: Refusal) {
        self.note_refused(m, &why.text);
        self.refuse(link, &why);
    }

    fn note_refused(&mut self, m: &Register, why: &str) {
        self.refused_servers.put(self.now, &m.sds, m.shard, &m.address, why);
    }

    /// Ends a link with a refusal that also makes the server's process end. It is sent only when
    /// the state that it depends on is committed, and if this MDM still leads then.
    fn expel(&mut self, link: LinkId, why: Refusal) {
        match mutant::on(Mutant::MdmAnswerEarly) {
            true => self.refuse(link, &why),
            false => self.answers.refuse(link, why),
        }
    }

    /// Returns true for an older copy of a device: it lacks writes that were acknowledged since.
    fn is_set_back(&self, m: &Register) -> bool {
        let settled = self.watch.settled(m);
        m.device != 0 && settled > m.records && !mutant::on(Mutant::BelieveSetBack)
    }

    /// Returns the text that refuses an older copy of a device.
    fn set_back(&self, m: &Register) -> String {
        alloc::format!(
            "it is dev{} as it was before: its log ends with record {}, and it had {}. An older copy of \
             a device lacks what was written since. Use the newest one. If that is gone: remove this one \
             (`gabion device remove`), and add it anew, empty",
            m.device,
            m.records,
            self.watch.settled(m)
        )
    }

    /// Probes the devices without a link that hold this one's place. Returns false if there are
    /// none. They may have died unnoticed, because another process may have begun at once to listen
    /// at their address. A device that was silent for too long is declared down, even if no other
    /// device is heard: this MDM hears the process that asks for its place, so this MDM is not cut
    /// off.
    fn ask_after(&mut self, m: &Register) -> bool {
        let mut silent = self.state().in_the_way(m);
        silent.retain(|device| !self.links.has_device(*device));
        silent.iter().for_each(|device| self.probe(*device));
        // Any other reason to refuse this device does not depend on the others.
        let known = self.state().devices.get(&DeviceId(m.device));
        let right = known.is_some_and(|d| d.store == m.store && d.intent != Intent::Removed);
        let late = silent.iter().filter(|_| right);
        let late = late.filter_map(|device| self.watch.overdue(self.now, *device));
        let late: Vec<Verdict> = late.collect();
        if !late.is_empty() {
            self.inputs.push(Input::Verdicts(late));
        }
        !silent.is_empty()
    }
}

/// Returns the `began` of a process ([`Session`](crate::mdm::links::Session)) that was given this
/// incarnation. If it had told the same one, MDMs that are lost have registered it before.
fn began(told: u64, incarnation: Incarnation, opened: u64) -> u64 {
    if told == incarnation.0 { 0 } else { opened }
}

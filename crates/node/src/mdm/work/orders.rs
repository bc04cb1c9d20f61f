//! Carries out orders, and prepares their answers.

use super::Work;
use crate::mdm::answers::Answer;
use crate::mdm::fence::Fence;
use alloc::string::ToString;
use base::{LinkId, SdcId, VolumeId};
use mdm::command::Command;
use mdm::controller;
use mdm::maintenance;
use mdm::mapping_orders;
use mdm::object_orders;
use mdm::removal;
use mdm::state::Change;
use mdm::{Refused, status};
use wire::control::{AdminReply, Ask, BuildInfo, StatusInfo};
use wire::message;

impl Work<'_> {
    /// Carries out an order. `op` is its sender's number for it.
    pub(super) fn obey(&mut self, link: LinkId, op: u64, ask: Option<Ask>) {
        if let Some(Ask::Scrub(m)) = &ask {
            return self.obey_scrub(link, op, m.device);
        }
        let mut reply = AdminReply::default();
        let (mut gone, mut fence, mut changed) = (None, None, false);
        let done = match self.change(ask.as_ref()) {
            Err(why) => Err(why),
            Ok(None) => self.tell(ask.as_ref(), &mut reply),
            Ok(Some(change)) => {
                if let Command::RemoveMdm(c) = &*change {
                    gone = Some(u64::from(c.id));
                }
                let mapped = match &*change {
                    Command::MapVolume(c) => Some(VolumeId(c.volume)),
                    _ => self.moved_path(ask.as_ref()),
                };
                changed = self.make(change);
                // The answer gets a fence even if the order changed nothing: the answer to an
                // earlier one may be lost.
                fence = mapped.map(|volume| Fence::new(self.now, volume, self.state().version));
                let name = match &ask {
                    Some(Ask::Map(m)) => &m.volume,
                    Some(Ask::Unmap(m)) => &m.volume,
                    Some(Ask::MovePath(m)) => &m.volume,
                    Some(Ask::ClearReservations(m)) => &m.volume,
                    Some(Ask::CreateVolume(m)) => &m.name,
                    Some(Ask::ResizeVolume(m)) => &m.name,
                    _ => "",
                };
                let (state, unheard) = (self.state(), self.watch.unheard(self.now));
                let volume = state.volume_named(name);
                reply.volume = volume.map(|(id, v)| status::volume(state, &unheard, id, v));
                Ok(())
            }
        };
        if let Err(why) = done {
            (reply.error, reply.text) = (why.code() as i32, why.to_string());
        }
        let mut answer = self.answer(link, op, changed, reply);
        (answer.gone, answer.fence) = (gone, fence);
        self.answers.push(match ask {
            Some(Ask::SwitchMdm(_)) => answer.unconfirmed(),
            _ => answer,
        });
    }

    /// Returns the change that an order makes; `None` if it asks for information.
    // Long: one match over all orders.
    fn change(&mut self, ask: Option<&Ask>) -> Result<Option<Change>, Refused> {
        let (limits, seen, reports) =
            (&self.config.limits, self.watch.observed(), self.reports.all());
        let state = self.journal.state();
        if let Some(made) = self.reports.order(self.now, ask, state, self.inputs.has_device()) {
            return made?.map(|command| state.change(command)).transpose();
        }
        let made = match ask {
            None | Some(Ask::Scrub(_) | Ask::RecoverMdm(_)) => Err(Refused::Unknown),
            Some(ask) if ask.check().is_err() => Err(Refused::Unknown),
            Some(Ask::Status(_) | Ask::Backup(_) | Ask::Damage(_)) => return Ok(None),
            Some(Ask::SwitchMdm(m)) => return self.journal.switch(m).map(|()| None),
            Some(Ask::SetLevel(m)) => self.raise_level(m),
            Some(Ask::AcceptLoss(m)) => state.accept_loss_command(m, seen, reports),
            Some(Ask::AddMdm(_) | Ask::RemoveMdm(_)) if self.journal.is_one_leaving() => {
                Err(Refused::MdmLeaves)
            }
            Some(Ask::AddMdm(m)) => state.members.add_command(m).map(Command::AddMdm),
            Some(Ask::RemoveMdm(m)) => {
                let made = state.members.remove_command(&m.name, |id| self.journal.vote(id));
                made.map(Command::RemoveMdm)
            }
            Some(Ask::CreateVolume(m)) => {
                return controller::create_volume_command(state, m, limits, &|d| seen.used(d))
                    .map(Some);
            }
            Some(Ask::ResizeVolume(m)) => {
                let used = |d| seen.used(d);
                return controller::resize_volume_command(state, &m.name, m.size, limits, &used)
                    .map(Some);
            }
            Some(Ask::DeleteVolume(m)) => {
                let attached = |volume| seen.attached(volume);
                return controller::delete_volume_command(state, &m.name, m.unmap, attached)
                    .map(Some);
            }
            Some(Ask::Map(m)) => return mapping_orders::map_command(state, m).map(Some),
            Some(Ask::Unmap(m)) => return mapping_orders::unmap_command(state, m).map(Some),
            Some(Ask::ClearReservations(m)) => mapping_orders::clear_reservations_command(state, m),
            Some(Ask::MovePath(m)) => {
                let seating = &self.watch.seating;
                mapping_orders::move_path_command(state, m, |id, volume, sdc, host| {
                    seating.serves(self.now, (id, volume), (sdc, host), limits)
                })
            }
            Some(Ask::Rename(m)) => return object_orders::rename_command(state, m).map(Some),
            Some(Ask::CreateObject(m)) => {
                return object_orders::create_object_command(state, m).map(Some);
            }
            Some(Ask::RemoveObject(m)) => {
                let is_here = |sdc: SdcId| self.links.sdc(sdc).is_some();
                return object_orders::remove_object_command(state, m, is_here).map(Some);
            }
            Some(Ask::SetPool(m)) => return object_orders::set_pool_command(state, m).map(Some),
            Some(Ask::Remove(m)) => removal::removal_command(state, m, seen, limits),
            Some(Ask::Admit(m)) => removal::admission_command(state, m),
            Some(Ask::Maintain(m)) => maintenance::maintenance_command(state, m, seen, limits),
        };
        state.change(made?).map(Some)
    }

    /// Returns the volume whose hosts an order has moved to another gateway.
    fn moved_path(&self, ask: Option<&Ask>) -> Option<VolumeId> {
        let Some(Ask::MovePath(m)) = ask else { return None };
        self.state().volume_named(&m.volume).map(|(id, _)| id)
    }

    /// Answers an order that asks for information.
    fn tell(&self, ask: Option<&Ask>, reply: &mut AdminReply) -> Result<(), Refused> {
        let (seen, reports) = (self.watch.observed(), self.reports.all());
        match ask {
            Some(Ask::Damage(m)) => {
                reply.damage = Some(self.state().damage(&m.volume, seen, reports)?);
            }
            Some(Ask::Backup(_)) => reply.backup = self.state().to_bytes(),
            _ => reply.status = Some(self.status()),
        }
        Ok(())
    }

    fn status(&self) -> StatusInfo {
        let unheard = self.watch.unheard(self.now);
        let (state, limits) = (self.state(), &self.config.limits);
        let mut info = status::status(state, self.watch.observed(), &unheard, self.now, limits);
        info.mdm_pid = self.config.pid;
        let me = self.journal.id();
        info.mdms = self.journal.member_status(|id| match id == me {
            true => Some(BuildInfo::of(&self.config.dialect)),
            false => self.links.build_of(id),
        });
        info.recovery = self.reports.status(self.now, state);
        info.refused_servers = self.refused_servers.lately(self.now);
        if self.watch.holds_rebuilds() {
            info.moves.get_or_insert_default().held_back = true;
        }
        info
    }

    /// Orders a scrub of one device or of all.
    fn obey_scrub(&mut self, link: LinkId, op: u64, device: u32) {
        let (mut reply, mut changed) = (AdminReply::default(), false);
        match controller::scrub_commands(self.state(), device) {
            Err(why) => (reply.error, reply.text) = (why.code() as i32, why.to_string()),
            Ok(commands) => {
                for command in commands {
                    changed |= self.execute(command);
                }
            }
        }
        let answer = self.answer(link, op, changed, reply);
        self.answers.push(answer);
    }

    fn answer(&self, link: LinkId, op: u64, changed: bool, mut reply: AdminReply) -> Answer {
        reply.applied = self.state().index;
        reply.term = self.journal.term();
        let frame = message::AdminReply { op };
        let (head, body) = self.links.peer_link(link).control(frame, &reply, self.out.pool());
        Answer::to_order(op, changed, Answer::frame(link, head, body))
    }
}

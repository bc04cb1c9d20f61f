//! Two processes under one server's name: the first one is frozen while another one is started
//! elsewhere with empty memory, and then resumes beside it until it is told of the newer one. In
//! plans that need it, each server has a second place for that.

use crate::disk::{Disk, DiskKind};
use crate::plan::{Death, Who};
use crate::stage::{MDM_PORT, Stage};
use crate::world::{ProcId, ProcState};
use base::MIB;
use node::sds::Sds;
use seam::DiskId;
use std::net::SocketAddr;

/// Places of the servers' incarnations.
#[derive(Debug, Default)]
pub(crate) struct Twins {
    /// By server: whether its newest incarnation is at its second place. Empty: no server
    /// has a second place.
    moved: Vec<bool>,
    /// Process number of the first server's second place.
    first: usize,
}

impl Stage {
    /// Adds the second places. They come after all other processes, so that these are the
    /// same in other plans.
    pub(crate) fn add_twins(&mut self) {
        if !self.plan.has_twins() {
            return;
        }
        self.twins =
            Twins { moved: vec![false; self.plan.sds.into()], first: self.world.processes() };
        for i in 0..self.plan.sds {
            let disk = Disk::new(DiskKind::Memory, u64::from(self.plan.capacity) * MIB);
            let address = SocketAddr::from(([10, 0, 5, i + 1], MDM_PORT));
            self.world.add(&format!("sds{i}-elsewhere"), Some(address), vec![disk]);
        }
    }

    /// Returns the server's first and second place.
    fn server_places(&self, i: u8) -> [ProcId; 2] {
        [ProcId(1 + usize::from(i)), ProcId(self.twins.first + usize::from(i))]
    }

    /// Returns the place of the server's newest incarnation.
    pub(crate) fn server_place(&self, i: u8) -> ProcId {
        let moved = self.twins.moved.get(usize::from(i)).copied().unwrap_or(false);
        self.server_places(i)[usize::from(moved)]
    }

    /// Returns the place at which a former incarnation may still be.
    fn former_server(&self, i: u8) -> Option<ProcId> {
        let moved = *self.twins.moved.get(usize::from(i))?;
        Some(self.server_places(i)[usize::from(!moved)])
    }

    /// Returns the server whose second place this is.
    pub(crate) fn twin_at(&self, id: ProcId) -> Option<u8> {
        let i = id.0.checked_sub(self.twins.first)?;
        (i < self.twins.moved.len()).then_some(i as u8)
    }

    /// Returns the server whose former place this is.
    pub(crate) fn former_of(&self, id: ProcId) -> Option<u8> {
        (0..self.twins.moved.len() as u8).find(|i| self.former_server(*i) == Some(id))
    }

    /// Returns the nodes of all running incarnations of a server.
    pub(crate) fn lives_of(&self, i: u8) -> impl Iterator<Item = &Sds> {
        let former = self.former_server(i).and_then(|id| self.world.actor::<Sds>(id));
        self.sds(i).into_iter().chain(former)
    }

    /// Freezes the server's process, and starts another one under its name. The content of the
    /// first one is lost, so all copies have to be intact.
    pub(crate) fn double(&mut self, i: u8) {
        let (who, old) = (Who::Sds(i), self.server_place(i));
        let Some(new) = self.former_server(i) else { return };
        let registered = self.sds(i).is_some_and(|sds| sds.incarnation().0 != 0 && !sds.ended());
        let runs = self.world.state(old) == ProcState::Running && self.dying[old.0].is_none();
        let death = Death { careful: true, ..Death::default() };
        if !registered || !runs || !self.may_empty(&[who], death) {
            return;
        }
        self.marks.meet("sim: a server was started elsewhere");
        self.end_former(i);
        self.world.pause(old, false);
        self.world.begin_after(new, old);
        self.losses.emptied(self.id_of(i), self.world.steps());
        let moved = &mut self.twins.moved[usize::from(i)];
        *moved = !*moved;
        self.start(who);
    }

    /// Lets the frozen process run again.
    pub(crate) fn wake(&mut self, i: u8) {
        if let Some(id) = self.former_server(i) {
            self.world.resume(id);
        }
    }

    /// Ends former incarnations that were told of a newer one, as their processes would end.
    pub(crate) fn end_told(&mut self) {
        for i in 0..self.twins.moved.len() as u8 {
            let former = self.former_server(i).and_then(|id| self.world.actor::<Sds>(id));
            if former.is_some_and(Sds::ended) {
                self.marks.meet("sim: a former life of a server was told");
                self.end_former(i);
            }
        }
    }

    /// Ends a former incarnation in any state.
    pub(crate) fn end_former(&mut self, i: u8) {
        if let Some(id) = self.former_server(i) {
            self.world.resume(id);
            self.world.crash(id, false);
            self.world.disk(id, DiskId(0)).wipe();
        }
    }
}

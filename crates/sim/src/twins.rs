//! Two processes of one server's name: the first one stands still while another one is started elsewhere with an empty
//! memory, and goes on beside it until it is told. Each server has a second place for that, in plans that need it.

use crate::disk::{Disk, DiskKind};
use crate::plan::{Death, Who};
use crate::stage::{MDM_PORT, Stage};
use crate::world::{ProcId, ProcState};
use base::MIB;
use node::sds::Sds;
use seam::DiskId;
use std::net::SocketAddr;

/// Where the lives of servers are.
#[derive(Debug, Default)]
pub struct Twins {
    /// Servers whose newest life is at their second place; empty: no server has one.
    moved: Vec<bool>,
    /// The first one's second place.
    first: usize,
}

impl Stage {
    /// Makes the second places. They come behind all others, so that those are the same without them.
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

    /// The server's first place, and its second one.
    fn server_places(&self, i: u8) -> [ProcId; 2] {
        [ProcId(1 + usize::from(i)), ProcId(self.twins.first + usize::from(i))]
    }

    /// The place at which the server's newest life is.
    pub(crate) fn server_place(&self, i: u8) -> ProcId {
        let moved = self.twins.moved.get(usize::from(i)).copied().unwrap_or(false);
        self.server_places(i)[usize::from(moved)]
    }

    /// The place at which a former life may still be.
    fn former_server(&self, i: u8) -> Option<ProcId> {
        let moved = *self.twins.moved.get(usize::from(i))?;
        Some(self.server_places(i)[usize::from(!moved)])
    }

    /// Whose second place this is.
    pub(crate) fn twin_at(&self, id: ProcId) -> Option<u8> {
        let i = id.0.checked_sub(self.twins.first)?;
        (i < self.twins.moved.len()).then_some(i as u8)
    }

    /// Whose former place this is.
    pub(crate) fn former_of(&self, id: ProcId) -> Option<u8> {
        (0..self.twins.moved.len() as u8).find(|i| self.former_server(*i) == Some(id))
    }

    /// All lives of a server that run.
    pub(crate) fn lives_of(&self, i: u8) -> impl Iterator<Item = &Sds> {
        let former = self.former_server(i).and_then(|id| self.world.actor::<Sds>(id));
        self.sds(i).into_iter().chain(former)
    }

    /// The server's process stands still from now on, and another one is started in its name. What the first one has is lost,
    /// so all copies have to be whole.
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

    /// The process that stands still goes on.
    pub(crate) fn wake(&mut self, i: u8) {
        if let Some(id) = self.former_server(i) {
            self.world.resume(id);
        }
    }

    /// Former lives that were told that there is a newer one end, as their processes do.
    pub(crate) fn end_told(&mut self) {
        for i in 0..self.twins.moved.len() as u8 {
            let former = self.former_server(i).and_then(|id| self.world.actor::<Sds>(id));
            if former.is_some_and(Sds::ended) {
                self.marks.meet("sim: a former life of a server was told");
                self.end_former(i);
            }
        }
    }

    /// A former life ends, whatever it does.
    pub(crate) fn end_former(&mut self, i: u8) {
        if let Some(id) = self.former_server(i) {
            self.world.resume(id);
            self.world.crash(id, false);
            self.world.disk(id, DiskId(0)).wipe();
        }
    }
}

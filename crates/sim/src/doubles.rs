//! Two processes under one client's name: the first one is frozen while another one is
//! started elsewhere, and then resumes beside it. In plans that need it, each client has a
//! second place for that.

use crate::plan::Who;
use crate::stage::Stage;
use crate::world::ProcId;
use node::sdc::Sdc;

impl Stage {
    /// Adds the second places. They come after all other processes, so that these are the
    /// same in other plans.
    pub(crate) fn add_doubles(&mut self) {
        if self.plan.has_doubles() {
            for i in 0..self.plan.clients {
                self.world.add(&format!("sdc{i}-elsewhere"), None, Vec::new());
            }
        }
    }

    /// Returns the client's first and second place.
    fn places(&self, client: u8) -> [ProcId; 2] {
        let (sds, clients) = (usize::from(self.plan.sds), usize::from(self.plan.clients));
        let behind = 1 + sds + clients + usize::from(self.plan.mdms);
        [ProcId(1 + sds + usize::from(client)), ProcId(behind + usize::from(client))]
    }

    /// Returns the processes of the client: the newest one, and the former one in plans with both.
    pub(crate) fn clients_of(&self, client: u8) -> impl Iterator<Item = &Sdc> {
        let all = self.places(client).into_iter();
        let there = all.take(1 + usize::from(self.plan.has_doubles()));
        there.filter_map(|place| self.world.actor::<Sdc>(place))
    }

    /// Returns the place of the client's newest incarnation.
    pub(crate) fn place(&self, client: u8) -> ProcId {
        self.places(client)[usize::from(self.elsewhere[usize::from(client)])]
    }

    /// Returns the place at which a former incarnation may still be.
    fn former_place(&self, client: u8) -> ProcId {
        self.places(client)[usize::from(!self.elsewhere[usize::from(client)])]
    }

    /// Returns true if this process is the place of a former incarnation of the client.
    pub(crate) fn is_former(&self, client: u8, proc: ProcId) -> bool {
        self.former_place(client) == proc && self.plan.has_doubles()
    }

    /// Freezes the client's process, and starts another one under its name.
    pub(crate) fn start_elsewhere(&mut self, client: u8) {
        let (who, old, new) = (Who::Sdc(client), self.place(client), self.former_place(client));
        // Only a registered process is followed: incarnations count in the order in which the MDM
        // hears of them.
        let registered = self.sdc(client).is_some_and(Sdc::is_ready);
        if !registered || self.dying[old.0].is_some() {
            return;
        }
        self.marks.meet("sim: a client was started elsewhere");
        self.world.crash(new, false);
        self.world.pause(old, false);
        self.world.begin_after(new, old);
        let here = &mut self.elsewhere[usize::from(client)];
        *here = !*here;
        self.outstanding[usize::from(client)] = 0;
        self.programs[usize::from(client)] = Default::default();
        self.start(who);
    }

    /// Lets the frozen process run again. After a recovery, incarnations count in the order in
    /// which the MDM hears of them, so the frozen process ends if the newer one has not registered
    /// yet.
    pub(crate) fn thaw(&mut self, client: u8) {
        if !self.plan.has_doubles() {
            return;
        }
        let former = self.former_place(client);
        match self.has_lost_logs() && !self.sdc(client).is_some_and(Sdc::is_ready) {
            true => drop(self.world.crash(former, false)),
            false => self.world.resume(former),
        }
    }
}

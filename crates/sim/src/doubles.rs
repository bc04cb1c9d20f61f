//! Two processes of one client's name: the first one stands still while another one is started elsewhere, and goes on
//! beside it. Each client has a second place for that, in plans that need it.

use crate::plan::Who;
use crate::stage::Stage;
use crate::world::ProcId;
use node::sdc::Sdc;

impl Stage {
    /// Makes the second places. They come behind all others, so that those are the same without them.
    pub(crate) fn add_doubles(&mut self) {
        if self.plan.has_doubles() {
            for i in 0..self.plan.clients {
                self.world.add(&format!("sdc{i}-elsewhere"), None, Vec::new());
            }
        }
    }

    /// The client's first place, and its second one.
    fn places(&self, client: u8) -> [ProcId; 2] {
        let (sds, clients) = (usize::from(self.plan.sds), usize::from(self.plan.clients));
        let behind = 1 + sds + clients + usize::from(self.plan.mdms);
        [ProcId(1 + sds + usize::from(client)), ProcId(behind + usize::from(client))]
    }

    /// The place at which the client's newest life is.
    pub(crate) fn place(&self, client: u8) -> ProcId {
        self.places(client)[usize::from(self.elsewhere[usize::from(client)])]
    }

    /// The place at which a former life may still be.
    fn former_place(&self, client: u8) -> ProcId {
        self.places(client)[usize::from(!self.elsewhere[usize::from(client)])]
    }

    /// True for an answer to a former life of the client.
    pub(crate) fn is_former(&self, client: u8, proc: ProcId) -> bool {
        self.plan.has_doubles() && self.former_place(client) == proc
    }

    /// The client's process stands still from now on, and another one is started in its name.
    pub(crate) fn start_elsewhere(&mut self, client: u8) {
        let (who, old, new) = (Who::Sdc(client), self.place(client), self.former_place(client));
        // Lives follow each other in the order in which the MDM hears of them.
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
        self.start(who);
    }

    /// The process that stands still goes on.
    pub(crate) fn thaw(&mut self, client: u8) {
        if self.plan.has_doubles() {
            self.world.resume(self.former_place(client));
        }
    }
}

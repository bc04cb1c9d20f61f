//! Mapping between roles, processes, addresses and nodes.

use crate::plan::Who;
use crate::stage::{MDM_PORT, Stage};
use crate::world::ProcId;
use base::LinkId;
use node::mdm::Mdm;
use node::sdc::Sdc;
use node::sds::Sds;
use std::net::{Ipv4Addr, SocketAddr};

impl Stage {
    /// Returns the address of a role.
    pub fn address(who: Who) -> SocketAddr {
        let ip = match who {
            Who::Mdm(i) => Ipv4Addr::new(10, 0, 0, i + 1),
            Who::Sds(i) => Ipv4Addr::new(10, 0, 1, i + 1),
            Who::Sdc(i) => Ipv4Addr::new(10, 0, 2, i + 1),
            Who::Admin => Ipv4Addr::new(10, 0, 3, 1),
        };
        (ip, MDM_PORT).into()
    }

    /// Returns the process of a role.
    pub fn proc(&self, who: Who) -> ProcId {
        let sds = self.plan.sds as usize;
        ProcId(match who {
            Who::Mdm(0) => 0,
            Who::Mdm(i) => 1 + sds + self.plan.clients as usize + i as usize,
            Who::Sds(i) => return self.server_place(i),
            Who::Sdc(i) => return self.place(i),
            Who::Admin => 1 + sds + self.plan.clients as usize,
        })
    }

    /// Returns the role of a process.
    pub fn who(&self, id: ProcId) -> Who {
        if let Some(twin) = self.twin_at(id) {
            return Who::Sds(twin);
        }
        let sds = self.plan.sds as usize;
        match id.0 {
            0 => Who::Mdm(0),
            i if i <= sds => Who::Sds((i - 1) as u8),
            i if i <= sds + self.plan.clients as usize => Who::Sdc((i - 1 - sds) as u8),
            i if i == 1 + sds + self.plan.clients as usize => Who::Admin,
            i => match (i - 1 - sds - self.plan.clients as usize) as u8 {
                mdm if mdm < self.plan.mdms => Who::Mdm(mdm),
                double => Who::Sdc(double - self.plan.mdms),
            },
        }
    }

    /// Returns all roles but the administrator.
    pub fn everybody(&self) -> Vec<Who> {
        let sds = (0..self.plan.sds).map(Who::Sds);
        let clients = (0..self.plan.clients).map(Who::Sdc);
        (0..self.plan.mdms).map(Who::Mdm).chain(sds).chain(clients).collect()
    }

    /// Returns the node of a data server.
    pub fn sds(&self, i: u8) -> Option<&Sds> {
        self.world.actor(self.proc(Who::Sds(i)))
    }

    /// Returns the node of a client.
    pub fn sdc(&self, i: u8) -> Option<&Sdc> {
        self.world.actor(self.proc(Who::Sdc(i)))
    }

    /// Returns true while this incarnation of a client serves a host's link.
    pub(crate) fn serves(&self, client: u8, life: u32, link: LinkId) -> bool {
        let same = life == self.world.life(self.proc(Who::Sdc(client)));
        same && self.sdc(client).is_some_and(|sdc| sdc.serves(link))
    }

    /// Returns the node of an MDM.
    pub fn mdm_at(&self, i: u8) -> Option<&Mdm> {
        self.world.actor(self.proc(Who::Mdm(i)))
    }

    /// Returns the node of the MDM that leads in the newest term.
    pub fn mdm(&self) -> Option<&Mdm> {
        self.leading_mdm().map(|(_, mdm)| mdm)
    }

    /// The same, with its role.
    pub(crate) fn leading_mdm(&self) -> Option<(Who, &Mdm)> {
        let all = (0..self.plan.mdms).filter_map(|i| Some((Who::Mdm(i), self.mdm_at(i)?)));
        let leaders = all.filter(|(_, m)| m.is_ready());
        leaders.max_by_key(|(_, m)| m.consensus().map_or(0, |c| c.role().term))
    }
}

//! The choice of a host with two gateways between its paths, as Linux' multipath drivers make it.
//!
//! A host that *moves* repeats the commands of a lost path at once over the other one, and relies
//! on the seat (rule R19): when the first command over a gateway is done, nothing that is over for
//! the host, and that it had sent through the other gateway before, appears any more. A host that
//! does not move excludes the former gateway with reservations ([`super::fence`]). Both kinds
//! activate an iSCSI path whose gateway does not serve them.

use super::Command;

/// First id of commands that activate a path.
pub(super) const FIRST: u32 = 3 << 29;

/// The state of a host with two gateways.
#[derive(Debug, Default)]
pub(super) struct Multipath {
    /// The path that it uses, if that path is up.
    active: u8,
    /// The command that activates a path, and that path.
    activating: Option<(u32, u8)>,
    asked: u32,
    /// Commands that are over and not done, with their paths.
    over: Vec<(u32, u8)>,
}

impl Multipath {
    /// Returns the path of its commands.
    pub(super) fn path(&self, up: [bool; 2]) -> Option<u8> {
        [self.active, 1 - self.active].into_iter().find(|path| up[usize::from(*path)])
    }

    /// Uses this path from now on.
    pub(super) fn use_path(&mut self, path: u8) {
        self.active = path;
    }

    /// A path is gone.
    pub(super) fn gone(&mut self, path: u8) {
        self.activating.take_if(|(_, of)| *of == path);
        if self.active == path {
            self.active = 1 - path;
        }
    }

    /// Returns the command that activates a path of this port group, unless one is under way.
    pub(super) fn activate(&mut self, path: u8, group: u16) -> Option<Command> {
        if self.activating.is_some() {
            return None;
        }
        let id = FIRST + self.asked;
        self.asked += 1;
        self.activating = Some((id, path));
        Some(Command::activate(id, group))
    }

    /// A command that activates a path has ended.
    pub(super) fn activated(&mut self, id: u32) {
        self.activating.take_if(|(asked, _)| *asked == id);
    }

    /// Records that a command over this path is over for the host, and was not done.
    pub(super) fn is_over(&mut self, id: u32, path: u8) {
        self.over.push((id, path));
    }

    /// Removes and returns those commands over the other path for which `earlier` is true.
    pub(super) fn take_over(&mut self, path: u8, earlier: impl Fn(u32) -> bool) -> Vec<u32> {
        let taken = self.over.extract_if(.., |(id, of)| *of != path && earlier(*id));
        taken.map(|(id, _)| id).collect()
    }
}

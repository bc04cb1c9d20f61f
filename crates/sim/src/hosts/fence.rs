//! How a host moves from one gateway to another one. Two gateways do not order the writes of one
//! host, so what it has asked at the first one could land after what it asks at the second one. It
//! excludes the first one before it goes on, with persistent reservations: both of its paths are
//! registered, the volume is reserved for registrants (write exclusive), and the new path preempts
//! the registration of the former one. When that is answered, nothing that was asked over the
//! former path appears any more (rule R8, invariant I9).
//!
//! Invariants: one request of a host is under way at a time. A host sends I/O over a path only
//! while it believes that this path is registered and that the volume is reserved. It never gives
//! the reservation up before the end, so that belief is only wrong if the path was preempted.

use super::{Command, Told};

/// First id of these commands.
pub(super) const FIRST: u32 = 1 << 30;
/// The type of the reservation: write exclusive, registrants only.
const KIND: u8 = 5;

/// A request to the reservations of the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    /// Register this path, whatever its key was before.
    Register,
    /// Reserve the volume.
    Reserve,
    /// Remove the registration of the other path.
    Preempt,
    /// Remove the reservation and all registrations.
    Clear,
}

/// The consequence of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Nothing of this path appears any more.
    Excluded(u8),
    /// Go on at once.
    Go,
    /// Try again later.
    Later,
}

/// The state of a host with two gateways.
#[derive(Clone, Default, Debug)]
pub(super) struct Fence {
    /// The key of the first path; the key of the second one is the next number.
    key: u64,
    registered: [bool; 2],
    /// Paths with a registration whose outcome is unknown: it may be done until the gateway answers
    /// a later request, as a gateway has one request of a volume under way.
    unsettled: [bool; 2],
    reserved: bool,
    /// The last request to reserve the volume was refused.
    refused: bool,
    /// The path of its I/O.
    active: u8,
    /// It wants to use the other path.
    moves: bool,
    asking: Option<(u32, u8, Ask)>,
    asked: u32,
    /// The run ends: the reservation has to go.
    ending: bool,
    cleared: bool,
}

impl Fence {
    /// Creates the state of host `i`.
    pub(super) fn new(i: u8) -> Fence {
        Fence { key: 2 * u64::from(i) + 1, ..Fence::default() }
    }

    /// Returns the path of its I/O, if it may send any.
    pub(super) fn path(&self) -> Option<u8> {
        let may = self.registered[usize::from(self.active)] && self.reserved && !self.ending;
        may.then_some(self.active)
    }

    /// Moves to the other path.
    pub(super) fn go_over(&mut self) {
        self.moves = true;
    }

    /// Gives the reservation up.
    pub(super) fn end(&mut self) {
        self.ending = true;
    }

    /// A path was told that its host has lost its registration, or may not write.
    pub(super) fn lost_access(&mut self, path: u8) {
        self.registered[usize::from(path)] = false;
    }

    /// A session is gone: the outcome of what was asked over it is unknown.
    pub(super) fn gone(&mut self, path: u8) {
        if let Some((_, _, ask)) = self.asking.take_if(|(_, of, _)| *of == path) {
            self.unknown(path, ask);
        }
    }

    /// An outcome is unknown. A preemption that may be done later would leave no trace by which it
    /// could be known, so the host stays where it is.
    fn unknown(&mut self, path: u8, ask: Ask) {
        match ask {
            Ask::Register => {
                let path = usize::from(path);
                (self.registered[path], self.unsettled[path]) = (false, true);
            }
            Ask::Preempt => {
                self.registered[usize::from(1 - path)] = false;
                self.moves = false;
            }
            Ask::Reserve | Ask::Clear => {}
        }
    }

    /// Returns the next request over the paths that are up, if there is one.
    pub(super) fn next(&mut self, up: [bool; 2]) -> Option<(u8, Command)> {
        if self.asking.is_some() {
            return None;
        }
        let (path, ask) = self.choose(up)?;
        let id = FIRST + self.asked;
        self.asked += 1;
        self.asking = Some((id, path, ask));
        let [own, other] = [path, 1 - path].map(|p| self.key + u64::from(p));
        let command = match ask {
            Ask::Register => Command::reserve(id, 6, 0, [0, own]),
            Ask::Reserve => Command::reserve(id, 1, KIND, [own, 0]),
            Ask::Preempt => Command::reserve(id, 4, KIND, [own, other]),
            Ask::Clear => Command::reserve(id, 3, 0, [own, 0]),
        };
        Some((path, command))
    }

    fn choose(&self, up: [bool; 2]) -> Option<(u8, Ask)> {
        let paths = || [0u8, 1].into_iter().filter(|p| up[usize::from(*p)]);
        let registered = |p: &u8| self.registered[usize::from(*p)];
        if self.ending {
            if let Some(p) = paths().find(|p| self.unsettled[usize::from(*p)]) {
                return Some((p, Ask::Register));
            }
            if self.cleared {
                return None;
            }
            let known = paths().find(registered).map(|p| (p, Ask::Clear));
            return known.or_else(|| paths().next().map(|p| (p, Ask::Register)));
        }
        let target = 1 - self.active;
        if self.moves && self.reserved && registered(&target) && up[usize::from(target)] {
            return Some((target, Ask::Preempt));
        }
        if let Some(p) = paths().find(|p| !registered(p)) {
            return Some((p, Ask::Register));
        }
        let reserves = paths().next().filter(|_| !self.reserved);
        reserves.map(|p| (p, Ask::Reserve))
    }

    /// Handles an answer to one of these commands.
    pub(super) fn answered(&mut self, id: u32, told: &Told) -> Next {
        let Some((_, path, ask)) = self.asking.take_if(|(asked, ..)| *asked == id) else {
            return Next::Later; // over a session that was given up
        };
        let (here, there) = (usize::from(path), usize::from(1 - path));
        self.unsettled[here] &= !matches!(told, Told::Done(_) | Told::Conflict);
        match told {
            Told::Done(_) => match ask {
                Ask::Register => (self.registered[here], self.cleared) = (true, false),
                Ask::Reserve => self.reserved = true,
                Ask::Clear => (self.registered, self.cleared) = ([false; 2], true),
                Ask::Preempt => {
                    (self.registered[there], self.active, self.moves) = (false, path, false);
                    return Next::Excluded(1 - path);
                }
            },
            Told::Attention => return Next::Go,
            Told::Conflict => match ask {
                // Another host's reservation is of the same type. Before the host believes that,
                // it makes sure that its own registration was not in the way.
                Ask::Reserve if self.refused => self.reserved = true,
                Ask::Reserve => (self.refused, self.registered[here]) = (true, false),
                Ask::Preempt => {
                    (self.registered, self.moves) = ([false; 2], false);
                }
                Ask::Clear => self.registered[here] = false,
                Ask::Register => return Next::Later,
            },
            _ => {
                self.unknown(path, ask);
                return if self.ending { Next::Go } else { Next::Later };
            }
        }
        Next::Go
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::What;

    const DONE: Told = Told::Done(Vec::new());

    /// Returns the service action of a request.
    fn action_of(command: &Command) -> u8 {
        let What::Reserve(reserve) = command.what else { panic!("{command:?}") };
        reserve.action
    }

    /// Takes the next request, which has this action and goes over this path, and answers it.
    fn ask(fence: &mut Fence, path: u8, action: u8, told: Told) -> Next {
        let (over, command) = fence.next([true; 2]).expect("it has a request");
        assert_eq!((over, action_of(&command)), (path, action));
        assert_eq!(fence.next([true; 2]), None, "one at a time");
        fence.answered(command.id, &told)
    }

    fn ready() -> Fence {
        let mut fence = Fence::new(3);
        for (path, action) in [(0, 6), (1, 6), (0, 1)] {
            assert_eq!((fence.path(), ask(&mut fence, path, action, DONE)), (None, Next::Go));
        }
        assert_eq!((fence.path(), fence.next([true; 2])), (Some(0), None));
        fence
    }

    #[test]
    fn a_host_moves_when_its_former_path_is_excluded_and_back_when_that_is_registered_again() {
        let mut fence = ready();
        fence.go_over();
        assert_eq!(ask(&mut fence, 1, 4, DONE), Next::Excluded(0));
        assert_eq!(fence.path(), Some(1));
        fence.go_over();
        assert_eq!(ask(&mut fence, 0, 6, DONE), Next::Go, "before it could preempt");
        assert_eq!(ask(&mut fence, 0, 4, DONE), Next::Excluded(1));
    }

    #[test]
    fn a_host_whose_preemption_has_an_unknown_outcome_stays_where_it_is() {
        let mut fence = ready();
        fence.go_over();
        fence.next([true; 2]).unwrap();
        fence.gone(1);
        assert_eq!(fence.path(), None, "it may be done");
        assert_eq!(ask(&mut fence, 0, 6, DONE), Next::Go);
        assert_eq!((fence.path(), fence.next([true; 2])), (Some(0), None));
        fence.go_over();
        assert_eq!(
            ask(&mut fence, 1, 4, Told::Conflict),
            Next::Go,
            "who knows since when it is gone"
        );
        assert_eq!(fence.path(), None);
        assert_eq!(ask(&mut fence, 0, 6, DONE), Next::Go);
        assert_eq!(fence.path(), Some(0));
    }

    #[test]
    fn a_reservation_of_another_host_is_as_good_if_the_own_registration_is_there() {
        let mut fence = Fence::new(0);
        for (path, action, told) in
            [(0, 6, DONE), (1, 6, DONE), (0, 1, Told::Conflict), (0, 6, DONE)]
        {
            ask(&mut fence, path, action, told);
        }
        assert_eq!(fence.path(), None);
        assert_eq!(ask(&mut fence, 0, 1, Told::Conflict), Next::Go);
        assert_eq!(fence.path(), Some(0));
    }

    #[test]
    fn at_the_end_the_reservation_goes() {
        let mut fence = ready();
        fence.end();
        assert_eq!(fence.path(), None);
        assert_eq!(ask(&mut fence, 0, 3, Told::Conflict), Next::Go, "another host has cleared it");
        assert_eq!(ask(&mut fence, 1, 3, Told::Conflict), Next::Go);
        assert_eq!(ask(&mut fence, 0, 6, DONE), Next::Go);
        assert_eq!(ask(&mut fence, 0, 3, DONE), Next::Go);
        assert_eq!(fence.next([true; 2]), None);
    }

    #[test]
    fn a_registration_that_may_come_late_is_awaited_at_the_end() {
        let mut fence = ready();
        fence.lost_access(1);
        let (path, register) = fence.next([true; 2]).unwrap();
        assert_eq!((path, action_of(&register)), (1, 6));
        fence.gone(1);
        fence.end();
        let (path, clear) = fence.next([true, false]).unwrap();
        assert_eq!((path, action_of(&clear)), (0, 3));
        assert_eq!(fence.answered(clear.id, &DONE), Next::Go);
        assert_eq!(fence.next([true, false]), None, "the other path is down");
        assert_eq!(ask(&mut fence, 1, 6, DONE), Next::Go, "nothing of before comes after this");
        assert_eq!(ask(&mut fence, 1, 3, DONE), Next::Go);
        assert_eq!(fence.next([true; 2]), None);
    }
}

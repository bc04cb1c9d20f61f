//! Sessions: the connections from one process to another, numbered by the process that dials. Only
//! the newest one counts (rule R8).

use crate::refusals::refusal;
use base::{Incarnation, LinkId, Mutant, mutant};
use wire::control::{Hello, Refusal, RefusalCode};

/// A session number may be at most this far above the last one that the server knows. So a made-up
/// number leaves room for the next ones.
const LEAP: u64 = 1 << 32;

/// The newest session with a peer that dialled.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// The peer's incarnation.
    pub incarnation: Incarnation,
    /// Its number among those of this incarnation.
    number: u64,
    /// Its link, until that is down.
    pub link: Option<LinkId>,
}

impl Session {
    /// Returns the session that this hello opens, if it is newer than the known one.
    pub fn newer(old: Option<Session>, hello: &Hello, link: LinkId) -> Result<Session, Refusal> {
        let incarnation = Incarnation(hello.incarnation);
        let last = old.filter(|s| s.incarnation == incarnation).map_or(0, |s| s.number);
        let stale = old.is_some_and(|s| (incarnation, hello.session) <= (s.incarnation, s.number));
        let wild = hello.session > last.saturating_add(LEAP);
        if hello.id == 0 || incarnation.0 == 0 || (stale && !mutant::on(Mutant::NoSession)) || wild
        {
            let text = "a newer connection of the same process is here, or it has no id yet";
            let refusal = refusal(RefusalCode::Superseded, text);
            return Err(Refusal { session: if stale { last } else { 0 }, ..refusal });
        }
        Ok(Session { incarnation, number: hello.session, link: Some(link) })
    }

    /// Records that a link is down. Returns true if it was the session's.
    pub fn lost(&mut self, link: LinkId) -> bool {
        self.link.take_if(|own| *own == link).is_some()
    }
}

/// Returns the number above which the next session with a server has to be, after the server
/// refused session `own` and named `told` as the newest one.
///
/// If someone used a higher number in this process's name, sessions continue above that. 0, or a
/// much lower number, comes from a server that was restarted: then the numbers continue from there.
/// A number counts for that server only, and `told` is believed only up to `LEAP` above `own`: no
/// peer can use up the numbers.
pub fn session_after(own: u64, told: u64) -> u64 {
    told.min(own.saturating_add(LEAP))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Incarnation = Incarnation(5);

    fn hello_of(session: u64) -> Hello {
        Hello { id: 1, incarnation: LIFE.0, session, ..Hello::default() }
    }

    /// Dials until the hello is accepted, and returns the number of dials.
    fn dials(server: &mut Option<Session>, own: &mut u64) -> usize {
        for dial in 1..100 {
            *own += 1;
            match Session::newer(*server, &hello_of(*own), LinkId(1)) {
                Ok(session) => {
                    *server = Some(session);
                    return dial;
                }
                Err(refusal) => *own = session_after(*own, refusal.session),
            }
        }
        panic!("it never gets in, and says {own}");
    }

    /// The rightful process is soon accepted again, no matter which session numbers a stranger has
    /// used in its name, and also after a restart of the server.
    #[test]
    fn a_forged_session_number_keeps_the_real_process_out_of_no_server() {
        let (mut a, mut b) = (None, None);
        let (mut own_a, mut own_b) = (0, 0);
        assert_eq!((dials(&mut a, &mut own_a), dials(&mut b, &mut own_b)), (1, 1));
        for _ in 0..3 {
            let forged = a.map_or(0, |s: Session| s.number) + LEAP;
            a = Some(Session::newer(a, &hello_of(forged), LinkId(2)).expect("a leap is let in"));
        }
        assert!(dials(&mut a, &mut own_a) < 6);
        // The other server hears nothing of that, and the numbers of each may start again.
        b = None;
        assert_eq!(dials(&mut b, &mut own_b), 1);
        a = None;
        assert!(dials(&mut a, &mut own_a) <= 2);
        assert_eq!(session_after(7, u64::MAX), 7 + LEAP, "no far end uses up the numbers");
        assert!(session_after(u64::MAX, u64::MAX) == u64::MAX);
    }
}

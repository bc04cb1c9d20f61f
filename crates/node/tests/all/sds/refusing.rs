//! A primary's reports about a secondary whose address refuses its dials.

use super::*;
use seam::DialError;

const SECONDARY: &str = "10.0.1.4:7000";

impl Bench {
    /// Lets time pass until the secondary is dialled.
    fn dial_of_secondary(&mut self) -> DialId {
        loop {
            if let Some(at) = self.dials.iter().position(|(_, to)| to == SECONDARY) {
                return self.dials.remove(at).0;
            }
            self.pass(Duration::from_millis(10));
        }
    }

    /// Lets time pass until the secondary is dialled, and lets that dial succeed.
    pub(super) fn dials_secondary(&mut self) -> LinkId {
        let dial = self.dial_of_secondary();
        self.link(Some(dial))
    }

    /// Lets time pass until the secondary is dialled, and lets that dial fail. Returns the next
    /// report.
    fn reports_after(&mut self, why: DialError) -> Proposal {
        let dial = self.dial_of_secondary();
        self.sds.on(self.now, Event::DialFailed { dial, why }, &mut self.out);
        self.proposal = None;
        self.settle();
        for _ in 0..100 {
            if let Some(proposal) = self.proposal.take() {
                return proposal;
            }
            self.pass(Duration::from_millis(10));
        }
        panic!("it reports nothing");
    }
}

#[test]
pub(crate) fn a_server_that_no_longer_refuses_is_not_reported_as_refusing() {
    let mut b = Bench::new();
    let mdm = b.join_mdm(1);
    b.map(mdm, 1, &[3, 4]);
    // The secondary is silent for so long that there is something to report in any case.
    b.pass(Limits::TEST_MIN.suspect_after * 2);
    let report = b.reports_after(DialError::Refused);
    assert_eq!((report.suspects, report.refused), (vec![4], vec![4]));
    let report = b.reports_after(DialError::Unreachable);
    assert_eq!((report.suspects, report.refused), (vec![4], vec![]));
    let report = b.reports_after(DialError::Refused);
    assert_eq!(report.refused, [4]);
}

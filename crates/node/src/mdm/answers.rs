//! Answers that wait to be sent: answers to orders, registrations and reservations, and refusals.
//!
//! Invariants:
//! - No answer is sent before the state that it depends on is committed.
//! - An answer to an order or a reservation that changed nothing is sent after a majority has
//!   confirmed that this MDM still leads. The consensus is asked for that, and each question has a
//!   higher number than the one before.

use super::fence::{Fence, is_everywhere};
use super::links::Links;
use super::replaced::ReplacedProcesses;
use alloc::vec::Vec;
use base::{Duration, LinkId, MapVersion, Mutant, Time, mutant};
use mdm::state::State;
use seam::{Buf, Head};
use wire::control::Refusal;

/// The number of a question that was not asked yet.
const NEW: u64 = u64::MAX;

/// A frame that waits to be sent.
pub(super) struct Answer {
    /// The refusal that ends the link, sent in place of the frame.
    pub refusal: Option<Refusal>,
    pub link: LinkId,
    /// The order that it answers, if it answers one. Other senders repeat what is not answered.
    pub order: Option<u64>,
    /// The progress of the change that was asked for.
    pub progress: Progress,
    /// The question to the consensus that must be answered before this is sent.
    question: u64,
    /// The removed MDM that must no longer count before this is sent: until then the others may
    /// need it.
    pub gone: Option<u64>,
    /// The fence that must be over before this is sent: then no device still serves what is
    /// forbidden.
    pub fence: Option<Fence>,
    pub head: Head,
    pub body: Buf,
}

/// The progress of the change that an order or a client makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// There is no change: the order asks for information, or the state already was as ordered.
    None,
    /// The change is proposed.
    Proposed,
    /// The change is committed.
    Committed,
}

impl Answer {
    /// Returns an answer that waits only until everything before it is committed.
    pub(super) fn frame(link: LinkId, head: Head, body: Buf) -> Answer {
        Answer {
            refusal: None,
            link,
            order: None,
            progress: Progress::None,
            question: 0,
            gone: None,
            fence: None,
            head,
            body,
        }
    }

    /// Returns the answer to order `op`, which waits until this MDM is known to lead.
    pub(super) fn to_order(op: u64, changed: bool, frame: Answer) -> Answer {
        Answer { order: Some(op), ..Answer::to_client(changed, frame) }
    }

    /// Returns the answer to a client's question, which waits until this MDM is known to lead. A
    /// client that gets no answer asks again.
    pub(super) fn to_client(changed: bool, frame: Answer) -> Answer {
        let progress = if changed { Progress::Proposed } else { Progress::None };
        Answer { progress, question: NEW, ..frame }
    }

    /// Makes the answer independent of a confirmation. This MDM is about to give up its leadership,
    /// and could not get one.
    pub(super) fn unconfirmed(self) -> Answer {
        Answer { question: 0, ..self }
    }
}

/// All answers that wait, the oldest first.
#[derive(Default)]
pub(super) struct Answers {
    list: Vec<Answer>,
    /// The number of the last question to the consensus whether this MDM still leads.
    asked: u64,
    /// The number of the last question that was answered.
    known: u64,
    /// When the next answer that waits for a fence is sent.
    due: Option<Time>,
    /// Tells when replaced processes can't serve any more.
    replaced: ReplacedProcesses,
}

impl Answers {
    pub(super) fn push(&mut self, answer: Answer) {
        self.list.push(answer);
    }

    /// Adds a refusal, which ends a link. It is sent when the state that it depends on is
    /// committed, if this MDM still leads then.
    pub(super) fn refuse(&mut self, link: LinkId, why: Refusal) {
        if !self.list.iter().any(|a| a.link == link && a.refusal.is_some()) {
            let nothing = Answer::frame(link, Head::EMPTY, Buf::EMPTY);
            self.list.push(Answer { refusal: Some(why), question: NEW, ..nothing });
        }
    }

    /// Records that everything that the answers depend on is committed, which proves that this MDM
    /// led then.
    pub(super) fn committed(&mut self) {
        for answer in &mut self.list {
            answer.question = 0;
            if answer.progress == Progress::Proposed {
                answer.progress = Progress::Committed;
            }
        }
    }

    /// Returns the number of the question to ask the consensus, if there are new answers that need
    /// one.
    pub(super) fn ask(&mut self) -> Option<u64> {
        if !self.list.iter().any(|a| a.question == NEW) {
            return None;
        }
        self.asked += 1;
        let question = if mutant::on(Mutant::MdmStaleAnswer) { 0 } else { self.asked };
        self.list.iter_mut().filter(|a| a.question == NEW).for_each(|a| a.question = question);
        Some(self.asked)
    }

    /// Records that the consensus has answered these questions.
    pub(super) fn confirmed(&mut self, questions: Vec<u64>) {
        self.known = questions.into_iter().fold(self.known, u64::max);
    }

    /// Records that a process may have replaced another one. The map of this version names it.
    pub(super) fn replaced(&mut self, map: MapVersion) {
        self.replaced.add(map);
    }

    /// Returns when the next answer that waits for a fence is sent.
    pub(super) fn wake_at(&self) -> Option<Time> {
        self.due
    }

    /// Clears the time to wake at, because no answer may be sent now.
    pub(super) fn rest(&mut self) {
        self.due = None;
    }

    /// Removes and returns the answers that may be sent. `counts` returns true for a removed MDM
    /// that may still be needed.
    pub(super) fn take_due(
        &mut self,
        now: Time,
        (state, links, grace): (&State, &Links, Duration),
        counts: impl Fn(u64) -> bool,
    ) -> Vec<Answer> {
        if let Some(map) = self.replaced.awaited(now)
            && is_everywhere(map, state, links)
        {
            self.replaced.known_to_all(now);
        }
        let fences = self.list.iter_mut().filter_map(|a| a.fence.as_mut());
        fences.for_each(|fence| fence.look(now, state, links));
        let ended = self.replaced.ended_at(grace);
        let over_at = |fence: &Fence| fence.over_at((state, links), grace, ended);
        let fences = self.list.iter().filter_map(|a| a.fence.as_ref());
        self.due = fences.map(over_at).filter(|at| *at > now).min();
        let known = self.known;
        let waits = |a: &Answer| {
            let fenced = a.fence.as_ref().is_some_and(|fence| now < over_at(fence));
            a.question > known || fenced || a.gone.is_some_and(&counts)
        };
        self.list.extract_if(.., |a| !waits(a)).collect()
    }

    /// Removes and returns all answers.
    pub(super) fn take(&mut self) -> Vec<Answer> {
        core::mem::take(&mut self.list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leave(answers: &mut Answers, counts: bool) -> Vec<u64> {
        let (state, links) = (State::new(), Links::default());
        let due = answers.take_due(Time(1), (&state, &links, Duration::ZERO), |_| counts);
        due.into_iter().filter_map(|a| a.order).collect()
    }

    fn order(op: u64, changed: bool) -> Answer {
        Answer::to_order(op, changed, Answer::frame(LinkId(1), Head::EMPTY, Buf::EMPTY))
    }

    #[test]
    fn an_answer_waits_for_its_own_question() {
        let mut answers = Answers::default();
        answers.push(order(1, false));
        assert_eq!(answers.ask(), Some(1));
        answers.push(order(2, false));
        assert_eq!((answers.ask(), answers.ask()), (Some(2), None));
        answers.confirmed(Vec::from([1]));
        assert_eq!(leave(&mut answers, false), [1]);
        answers.push(order(3, false));
        answers.confirmed(Vec::from([2]));
        assert_eq!(leave(&mut answers, false), [2], "the third was not asked yet");
        answers.push(order(4, false).unconfirmed());
        assert_eq!(leave(&mut answers, false), [4]);
    }

    #[test]
    fn a_commit_confirms_all_and_a_removed_mdm_is_waited_for() {
        let mut answers = Answers::default();
        answers.push(order(1, true));
        answers.push(Answer { gone: Some(3), ..order(2, true) });
        answers.refuse(LinkId(1), Refusal::default());
        answers.refuse(LinkId(1), Refusal::default());
        assert_eq!(leave(&mut answers, true), []);
        answers.committed();
        assert!(
            answers.list.iter().all(|a| a.refusal.is_some() || a.progress == Progress::Committed)
        );
        assert_eq!(answers.list.len(), 3, "one refusal for each link");
        assert_eq!(leave(&mut answers, true), [1]);
        assert_eq!(leave(&mut answers, false), [2]);
        assert!(answers.take().is_empty());
    }
}

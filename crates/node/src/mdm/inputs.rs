//! Inputs: requests and findings that may change the state. They wait while an entry is in flight
//! or the log is being written.
//!
//! Invariants: at most [`INPUTS`] inputs of links wait, and no more of each link than it may have
//! ([`Links::queue`]). If an input does not fit, its sender repeats it (proposals, heartbeats,
//! registrations, reservations) or is told to try again (orders). This MDM's own inputs are few,
//! and are never dropped.

use super::links::Links;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::{ClusterId, LinkId};
use mdm::detector::Verdict;
use wire::control::{Ask, Proposal, Register, RegisterSdc, Reserve, TakeSeats};

/// The most inputs of links that may wait.
pub(super) const INPUTS: usize = 4096;

/// Something that may change the state.
pub(super) enum Input {
    /// The cluster is to be formed.
    Form(ClusterId),
    /// A new leader checks that the state has its own name and address.
    Here,
    /// An SDS registers a device.
    Register(LinkId, Register),
    /// An SDC registers.
    RegisterSdc(LinkId, RegisterSdc),
    /// The detector considers devices of a server gone.
    Verdicts(Vec<Verdict>),
    /// A primary proposes changes.
    Proposal(LinkId, Proposal),
    /// Suspicions of a primary that were deferred.
    Doubts(Proposal),
    /// An SDC asks for a change of reservations.
    Reserve(LinkId, Reserve),
    /// A gateway asks for seats.
    TakeSeats(LinkId, TakeSeats),
    /// An order; the second field is the sender's number for it.
    Order(LinkId, u64, Option<Ask>),
}

impl Input {
    fn link(&self) -> Option<LinkId> {
        match self {
            Input::Form(_) | Input::Here | Input::Verdicts(_) | Input::Doubts(_) => None,
            Input::Register(link, _)
            | Input::RegisterSdc(link, _)
            | Input::Proposal(link, _)
            | Input::Reserve(link, _)
            | Input::TakeSeats(link, _)
            | Input::Order(link, ..) => Some(*link),
        }
    }
}

/// The inputs that wait, the oldest first.
#[derive(Default)]
pub(super) struct Inputs {
    list: VecDeque<Input>,
}

impl Inputs {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds an input of this MDM itself.
    pub(super) fn push(&mut self, input: Input) {
        self.list.push_back(input);
    }

    /// Adds an input of a link. Returns false if there is no room.
    pub(super) fn offer(&mut self, input: Input, links: &mut Links) -> bool {
        let link = input.link().expect("it is one of a link");
        let fits = self.list.len() < INPUTS && links.queue(link);
        if fits {
            self.list.push_back(input);
        }
        fits
    }

    /// Removes and returns the oldest input. Those of links that are gone are dropped.
    pub(super) fn next(&mut self, links: &mut Links) -> Option<Input> {
        loop {
            let input = self.list.pop_front()?;
            if input.link().is_none_or(|link| links.unqueue(link)) {
                return Some(input);
            }
        }
    }

    /// Returns true if a device waits to be registered.
    pub(super) fn has_device(&self) -> bool {
        self.list.iter().any(|input| matches!(input, Input::Register(..)))
    }

    /// Drops all inputs, and returns the orders among them: the link, and the sender's number.
    pub(super) fn end(&mut self) -> Vec<(LinkId, u64)> {
        let order = |input| match input {
            Input::Order(link, op, _) => Some((link, op)),
            _ => None,
        };
        self.list.drain(..).filter_map(order).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_come_in_order_and_none_of_a_link_that_is_gone() {
        let (mut links, mut inputs) = (Links::default(), Inputs::default());
        (1..3).for_each(|link| links.add(LinkId(link)));
        let order = |link, op| Input::Order(LinkId(link), op, None);
        for (link, op) in [(1, 1), (2, 2), (1, 3)] {
            assert!(inputs.offer(order(link, op), &mut links));
        }
        inputs.push(Input::Here);
        links.remove(LinkId(1));
        assert!(!inputs.offer(order(1, 4), &mut links));
        assert!(matches!(inputs.next(&mut links), Some(Input::Order(LinkId(2), 2, None))));
        assert!(matches!(inputs.next(&mut links), Some(Input::Here)));
        assert!(inputs.next(&mut links).is_none() && inputs.is_empty());
    }

    #[test]
    fn the_inputs_of_links_are_bounded_and_own_ones_are_not() {
        let (mut links, mut inputs) = (Links::default(), Inputs::default());
        (0..1000).for_each(|link| links.add(LinkId(link)));
        let all = (0..1000).flat_map(|link| (0..16).map(move |op| (link, op)));
        let fits = all
            .filter(|(link, op)| inputs.offer(Input::Order(LinkId(*link), *op, None), &mut links));
        assert_eq!(fits.count(), INPUTS);
        inputs.push(Input::Here);
        assert_eq!(inputs.end().len(), INPUTS);
        assert!(inputs.is_empty());
    }
}

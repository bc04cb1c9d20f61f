//! Maps that servers pass on to each other.
//!
//! The MDM may be unable to reach a server that all other servers reach. Leases from servers with a
//! newer map are useless to that server (rule R4), and clients that know a newer configuration of
//! its groups are told to wait. So its groups would stand still as long as the MDM neither hears it
//! nor takes it for lost, because too many servers are silent. Therefore each server keeps what the
//! MDM has sent lately, and a server that hears of a newer map, by a grant or a beacon, asks the
//! sender for it.
//!
//! Invariants: servers pass on complete answers of the MDM, so everything in them was decided. A
//! server applies an answer only as a whole, and only if its own map is the one that the answer
//! begins with, or a newer one. The kept pages take at most [`BYTES`] of memory.

use crate::mapview::is_of_before;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::{DeviceId, Duration, MapVersion, Mutant, Time, mutant};
use wire::control::MapPage;

/// Limit of the pages that are kept, in bytes.
pub(super) const BYTES: usize = 256 << 10;
/// A server that did not help is asked again after this many times `beacon_every`, if no other one
/// could be asked in the meantime.
const AGAIN: u32 = 3;

/// One answer of the MDM: everything that changed between two maps.
struct Step {
    from: MapVersion,
    to: MapVersion,
    pages: Vec<Vec<u8>>,
}

/// See the head of this file.
#[derive(Default)]
pub(super) struct News {
    steps: VecDeque<Step>,
    bytes: usize,
    /// The pages of an answer whose last page has not come.
    coming: Vec<Vec<u8>>,
    /// Some pages of that answer were not kept, so none is.
    torn: bool,
    /// The time since which another server has had a newer map than this one, and the newest known
    /// version. Servers with a map as old as this one's do not reset it.
    behind: Option<(Time, MapVersion)>,
    asked: Option<Question>,
    /// Number of questions so far.
    questions: u64,
    /// Set while a recovering MDM relies on this shard's report. It ends when an MDM sends a map.
    pub(super) told: Option<Told>,
}

/// This shard has reported to a recovering MDM what it knows. Maps from before the recovery must
/// not make it a primary any more, so it takes none of them from other servers. That includes maps
/// of an earlier recovery: a server that has not heard of this one may have them.
#[derive(Clone, Copy)]
pub(super) struct Told {
    /// The version of its map at that time.
    pub at: MapVersion,
    /// Maps from this version on are from after the recovery. 0: the MDM has not said so. Then a
    /// map counts if it is from after some recovery that this shard's map does not know.
    pub recovered: MapVersion,
}

/// A question to another server.
struct Question {
    whom: DeviceId,
    at: Time,
    /// The pages of the answer carry this number, so that pages of two answers are not mixed.
    question: u64,
    /// The pages that have come so far, and their size in bytes.
    pages: Vec<MapPage>,
    bytes: usize,
}

impl News {
    /// Keeps a page from the MDM. `last` is given with the last page of an answer: the versions of
    /// this server's map before and after the answer.
    pub(super) fn keep(&mut self, page: Vec<u8>, last: Option<(MapVersion, MapVersion)>) {
        if !self.torn {
            self.coming.push(page);
        }
        let coming = self.coming_bytes();
        if coming > BYTES {
            // Nothing of this answer is kept. What was kept before would be followed by a gap.
            self.coming.clear();
            self.steps.clear();
            (self.bytes, self.torn) = (0, true);
        }
        let Some((from, to)) = last else { return };
        let pages = core::mem::take(&mut self.coming);
        if core::mem::take(&mut self.torn) || to <= from {
            return;
        }
        if self.steps.back().is_some_and(|s| s.to != from) {
            self.steps.clear();
            self.bytes = 0;
        }
        self.steps.push_back(Step { from, to, pages });
        self.bytes += coming;
        while self.bytes > BYTES {
            let gone = self.steps.pop_front().expect("bytes of something");
            self.bytes -= gone.pages.iter().map(Vec::len).sum::<usize>();
        }
        assert!(!self.steps.is_empty() || self.bytes == 0, "the sum has the bytes of each step");
    }

    /// True if map `theirs` is from after a recovery of which no MDM has told this server. Its own
    /// map is `mine`.
    pub(super) fn is_unheard_of(&self, mine: MapVersion, theirs: MapVersion) -> bool {
        self.told.is_none() && is_of_before(theirs, mine.0)
    }

    /// True if a recovering MDM relies on the report of this shard, and map `theirs` is from before
    /// that recovery.
    pub(super) fn is_contradicted(&self, theirs: MapVersion) -> bool {
        self.told.is_some_and(|told| match told.recovered.0 {
            0 => !is_of_before(theirs, told.at.0),
            _ => theirs < told.recovered && !mutant::on(Mutant::TakeEarlier),
        })
    }

    /// Drops the pages of an unfinished answer, because the link to the MDM broke.
    pub(super) fn forget_pages(&mut self) {
        self.coming.clear();
        self.torn = false;
    }

    /// Returns the pages that bring a server with map `have` to newer ones, each with the version
    /// that it leads to. Empty if they are no longer kept.
    pub(super) fn since(&self, have: MapVersion) -> impl Iterator<Item = (MapVersion, &Vec<u8>)> {
        let known = self.steps.iter().position(|s| s.from <= have && have < s.to);
        let steps = self.steps.iter().skip(known.unwrap_or(usize::MAX));
        steps.flat_map(|s| s.pages.iter().map(|p| (s.to, p)))
    }

    /// Returns the bytes of the pages that are kept, of those of an unfinished answer of the MDM,
    /// and of those of an unfinished answer of another server.
    pub(super) fn bytes(&self) -> (usize, usize, usize) {
        let asked = self.asked.as_ref().filter(|asked| !asked.pages.is_empty());
        (self.bytes, self.coming_bytes(), asked.map_or(0, |asked| asked.bytes))
    }

    fn coming_bytes(&self) -> usize {
        self.coming.iter().map(Vec::len).sum()
    }

    /// Records that another server has map `theirs`. Returns the number of the question, if that
    /// server has to be asked for it. The MDM gets one beacon period to send it first; a lease
    /// lasts longer.
    pub(super) fn is_due(
        &mut self,
        now: Time,
        from: DeviceId,
        (theirs, mine): (MapVersion, MapVersion),
        every: Duration,
    ) -> Option<u64> {
        self.behind = self.behind.filter(|(_, newest)| *newest > mine);
        if theirs <= mine {
            return None;
        }
        let (since, newest) = self.behind.get_or_insert((now, theirs));
        *newest = theirs.max(*newest);
        let since = *since;
        let wait = |whom: DeviceId| if whom == from { every * AGAIN } else { every };
        let may = |asked: &Question| now.since(asked.at) >= wait(asked.whom);
        if now.since(since) < every || !self.asked.as_ref().is_none_or(may) {
            return None;
        }
        self.questions += 1;
        let question = self.questions;
        self.asked = Some(Question { whom: from, at: now, question, pages: Vec::new(), bytes: 0 });
        Some(question)
    }

    /// Adds a page of `bytes` bytes from a server, which answers this question. Returns all pages
    /// with the last one, if this was the last question.
    pub(super) fn add_page(
        &mut self,
        from: DeviceId,
        question: u64,
        page: MapPage,
        bytes: usize,
    ) -> Vec<MapPage> {
        let asked = self.asked.as_mut().filter(|a| (a.whom, a.question) == (from, question));
        let Some(asked) = asked else { return Vec::new() };
        asked.bytes += bytes;
        if asked.bytes > BYTES {
            // No server keeps that much. This counts as no answer, so that another server is asked.
            asked.question = 0;
            asked.pages = Vec::new();
            return Vec::new();
        }
        let last = page.last;
        asked.pages.push(page);
        match last {
            true => core::mem::take(&mut asked.pages),
            false => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_pages_are_bounded_and_without_gaps() {
        let mut news = News::default();
        let v = MapVersion;
        let body = |n: usize| alloc::vec![1; n];
        let since = |news: &News, have| news.since(v(have)).map(|(to, _)| to.0).collect::<Vec<_>>();
        news.keep(body(10), None);
        news.keep(body(10), Some((v(0), v(5))));
        news.keep(body(10), Some((v(5), v(7))));
        assert_eq!(since(&news, 0), [5, 5, 7]);
        assert_eq!(since(&news, 3), [5, 5, 7]);
        assert_eq!(since(&news, 5), [7]);
        assert!(since(&news, 7).is_empty() && since(&news, 9).is_empty());
        news.keep(body(10), Some((v(8), v(9))));
        assert_eq!((since(&news, 5), since(&news, 8)), (Vec::new(), Vec::from([9])), "a gap");
        for i in 9..1000 {
            news.keep(body(1000), Some((v(i), v(i + 1))));
        }
        let kept = since(&news, 998).len() + since(&news, 800).len();
        assert!(kept > 200 && since(&news, 700).is_empty());
        news.keep(body(BYTES + 1), Some((v(1000), v(1001))));
        assert!(since(&news, 1000).is_empty() && news.bytes == 0);
    }

    #[test]
    fn an_answer_that_is_too_large_is_not_kept_at_all() {
        let v = MapVersion;
        let body = |n: usize| alloc::vec![1; n];
        let whole = Some((v(0), v(5)));
        for parts in [[BYTES + 1, 1, 10], [BYTES - 1, BYTES - 1, 10], [1, BYTES, 10]] {
            let mut news = News::default();
            news.keep(body(parts[0]), None);
            news.keep(body(parts[1]), None);
            news.keep(body(parts[2]), whole);
            assert_eq!(news.since(v(0)).count(), 0, "{parts:?}");
            assert!(news.bytes == 0 && news.coming.is_empty());
            news.keep(body(10), Some((v(5), v(6))));
            assert_eq!(news.since(v(5)).count(), 1, "the next answer is kept");
            // The rest of an answer does not come. That must not affect the next one.
            news.keep(body(BYTES + 1), None);
            news.forget_pages();
            news.keep(body(10), Some((v(6), v(7))));
            assert_eq!(news.since(v(6)).count(), 1);
        }
    }

    #[test]
    fn a_leader_waits_for_the_mdm_before_it_asks_and_takes_only_what_it_asked_for() {
        let mut news = News::default();
        let (ms, every) = (|n: u64| Time(n * 1_000_000), Duration::from_millis(100));
        let maps = (MapVersion(5), MapVersion(4));
        let page = |last| MapPage { last, ..MapPage::default() };
        assert_eq!(news.is_due(ms(1000), DeviceId(2), maps, every), None);
        assert_eq!(news.is_due(ms(1100), DeviceId(2), maps, every), Some(1));
        assert_eq!(news.is_due(ms(1150), DeviceId(3), maps, every), None, "one at a time");
        assert_eq!(news.is_due(ms(1200), DeviceId(2), maps, every), None, "others come first");
        assert!(news.add_page(DeviceId(3), 1, page(true), 10).is_empty());
        assert!(news.add_page(DeviceId(2), 1, page(false), 10).is_empty());
        assert_eq!(news.add_page(DeviceId(2), 1, page(true), 10).len(), 2);
        assert_eq!(news.is_due(ms(1500), DeviceId(4), (maps.1, maps.1), every), None);
        let asked = news.is_due(ms(1510), DeviceId(2), maps, every);
        assert_eq!(asked, Some(2), "who is as old says nothing");
        assert_eq!(news.is_due(ms(1600), DeviceId(2), (maps.0, maps.0), every), None, "it came");
        let newer = (MapVersion(9), maps.0);
        assert_eq!(news.is_due(ms(2000), DeviceId(2), newer, every), None, "it begins anew");
    }

    #[test]
    fn pages_of_two_answers_do_not_become_one_and_too_many_are_dropped() {
        let mut news = News::default();
        let (ms, every) = (|n: u64| Time(n * 1_000_000), Duration::from_millis(100));
        let maps = (MapVersion(5), MapVersion(4));
        let page = |last| MapPage { last, ..MapPage::default() };
        let server = DeviceId(2);
        assert_eq!(news.is_due(ms(1000), server, maps, every), None);
        assert_eq!(news.is_due(ms(1100), server, maps, every), Some(1));
        assert!(news.add_page(server, 1, page(false), 10).is_empty());
        assert_eq!(news.is_due(ms(1400), server, maps, every), Some(2), "no answer for long");
        assert!(
            news.add_page(server, 1, page(true), 10).is_empty(),
            "the rest of the first answer"
        );
        assert!(news.add_page(server, 2, page(false), 10).is_empty());
        assert_eq!(news.add_page(server, 2, page(true), 10).len(), 2, "whole");
        assert_eq!(news.is_due(ms(1800), server, maps, every), Some(3));
        assert!(news.add_page(server, 3, page(false), BYTES + 1).is_empty());
        assert!(news.add_page(server, 3, page(true), 10).is_empty(), "more than anybody keeps");
    }
}

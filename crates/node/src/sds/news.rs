//! Maps that servers pass on to each other.
//!
//! The MDM may be out of reach of a server that everybody else reaches. A lease from a server with a newer map is of no
//! use to it (rule R4), and clients that know a newer configuration of its groups are told to wait: so its groups would
//! stand still for as long as the MDM doesn't hear it and believes that too many are silent to be lost. So each server
//! keeps what the MDM has sent it lately, and one that hears of a newer map, by a grant or a beacon, asks its sender.
//!
//! Invariants: what is passed on is what the MDM has sent, complete, and so it was decided; it is taken over only as a
//! whole, and only by who has the map that it begins with, or a newer one. It takes at most [`BYTES`] of memory.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::{DeviceId, Duration, MapVersion, Time};
use wire::control::MapPage;

/// Bytes of pages that are kept.
const BYTES: usize = 256 << 10;
/// Who didn't help is asked again after so many times `beacon_every`, if nobody else could be asked meanwhile.
const AGAIN: u32 = 3;

/// One answer of the MDM: everything that changed between two maps.
struct Step {
    from: MapVersion,
    to: MapVersion,
    pages: Vec<Vec<u8>>,
}

/// See the file's head.
#[derive(Default)]
pub(super) struct News {
    steps: VecDeque<Step>,
    bytes: usize,
    /// The pages of an answer that has not ended.
    coming: Vec<Vec<u8>>,
    /// The newest map that another server is known to have, and since when one is newer than this one's. Others that
    /// are as old say nothing about that.
    behind: Option<(Time, MapVersion)>,
    /// Who was asked, when, and what came so far.
    asked: Option<(DeviceId, Time, Vec<MapPage>)>,
}

impl News {
    /// A page came; `last`: it took this server from one map to another one.
    pub fn keep(&mut self, page: Vec<u8>, last: Option<(MapVersion, MapVersion)>) {
        self.coming.push(page);
        let coming: usize = self.coming.iter().map(Vec::len).sum();
        if coming > BYTES {
            // What comes is not kept, and what was kept would have a gap behind it.
            *self = News { behind: self.behind, asked: self.asked.take(), ..News::default() };
            return;
        }
        let Some((from, to)) = last else { return };
        let pages = core::mem::take(&mut self.coming);
        if to <= from {
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
    }

    /// The link to the MDM broke: the rest of an answer does not come.
    pub fn forget_pages(&mut self) {
        self.coming.clear();
    }

    /// The pages that bring who has this map to a newer one, and which; none if that is not known here any more.
    pub fn since(&self, have: MapVersion) -> impl Iterator<Item = (MapVersion, &Vec<u8>)> {
        let known = self.steps.iter().position(|s| s.from <= have && have < s.to);
        let steps = self.steps.iter().skip(known.unwrap_or(usize::MAX));
        steps.flat_map(|s| s.pages.iter().map(|p| (s.to, p)))
    }

    /// Another server has this map: true when it is to be asked for it. The MDM comes first: for the time of one beacon, after
    /// which a lease still holds.
    pub fn is_due(
        &mut self,
        now: Time,
        from: DeviceId,
        (theirs, mine): (MapVersion, MapVersion),
        every: Duration,
    ) -> bool {
        self.behind = self.behind.filter(|(_, newest)| *newest > mine);
        if theirs <= mine {
            return false;
        }
        let (since, newest) = self.behind.get_or_insert((now, theirs));
        *newest = theirs.max(*newest);
        let since = *since;
        let wait = |whom: DeviceId| if whom == from { every * AGAIN } else { every };
        let may = |(whom, at, _): &(DeviceId, Time, _)| now.since(*at) >= wait(*whom);
        let due = now.since(since) >= every && self.asked.as_ref().is_none_or(may);
        if due {
            self.asked = Some((from, now, Vec::new()));
        }
        due
    }

    /// A page came from a server: all of them, when it is the last one and that server was asked.
    pub fn came(&mut self, from: DeviceId, page: MapPage) -> Vec<MapPage> {
        let asked = self.asked.as_mut().filter(|(whom, ..)| *whom == from);
        let Some((_, _, pages)) = asked else { return Vec::new() };
        let last = page.last;
        pages.push(page);
        match last {
            true => core::mem::take(pages),
            false => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_and_has_no_gaps() {
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
    fn a_leader_waits_for_the_mdm_before_it_asks_and_takes_only_what_it_asked_for() {
        let mut news = News::default();
        let (ms, every) = (|n: u64| Time(n * 1_000_000), Duration::from_millis(100));
        let maps = (MapVersion(5), MapVersion(4));
        let page = |last| MapPage { last, ..MapPage::default() };
        assert!(!news.is_due(ms(1000), DeviceId(2), maps, every));
        assert!(news.is_due(ms(1100), DeviceId(2), maps, every));
        assert!(!news.is_due(ms(1150), DeviceId(3), maps, every), "one at a time");
        assert!(!news.is_due(ms(1200), DeviceId(2), maps, every), "others come first");
        assert!(news.came(DeviceId(3), page(true)).is_empty());
        assert!(news.came(DeviceId(2), page(false)).is_empty());
        assert_eq!(news.came(DeviceId(2), page(true)).len(), 2);
        assert!(!news.is_due(ms(1500), DeviceId(4), (maps.1, maps.1), every));
        assert!(news.is_due(ms(1510), DeviceId(2), maps, every), "who is as old says nothing");
        assert!(!news.is_due(ms(1600), DeviceId(2), (maps.0, maps.0), every), "it came");
        let newer = (MapVersion(9), maps.0);
        assert!(!news.is_due(ms(2000), DeviceId(2), newer, every), "it begins anew");
    }
}

//! The claims of the publication, judged by what was measured.

use super::bed::Medium;
use super::media::{MediaPoint, NODES};
use super::point::{APART, PACKED, Point};
use super::published::{self, CPU_US_PER_READ, Kind};
use super::slope::slope;
use crate::report::claim::{Bound, Claim, Source};

/// The host took more of the cores' time than this, in percent: no verdict.
const STEAL: f64 = 5.0;
/// The rounds of a figure differ by more than this part of it: no verdict.
const SPREAD: f64 = 0.15;
/// How much flatter than the floor's our growth may be.
const FLATTER: f64 = 0.03;

/// What the claims are judged by.
pub(crate) struct Evidence<'a> {
    pub scaling: &'a [Point],
    pub media: &'a [MediaPoint],
    /// Why no speed is judged; `None` if it is.
    pub doubt: Option<String>,
}

/// A figure with its lowest and highest value, and the steal beside it.
struct Figure {
    value: f64,
    ends: [f64; 2],
    steal: f64,
}

impl Evidence<'_> {
    /// Returns all claims of the publication.
    pub(crate) fn claims(&self) -> Vec<Claim> {
        let mut claims = vec![self.growth(Kind::Read), self.growth(Kind::Mixed)];
        claims.push(self.flash("000-35", Kind::Read));
        claims.push(self.flash("000-36", Kind::Mixed));
        claims.push(self.consistent());
        claims.push(self.disk());
        claims.push(self.cost());
        claims.extend(not_built());
        claims
    }

    /// Returns why a claim can't be judged by these figures.
    fn doubt(&self, figures: &[Figure]) -> Option<String> {
        if self.doubt.is_some() {
            return self.doubt.clone();
        }
        let steal = figures.iter().map(|f| f.steal).fold(0.0, f64::max);
        if steal > STEAL {
            return Some(format!("the host gave {steal:.0} % of the cores' time to others"));
        }
        let wide = |f: &Figure| (f.ends[1] - f.ends[0]) / f.value;
        let spread = figures.iter().map(wide).fold(0.0, f64::max);
        (spread > SPREAD).then(|| format!("the rounds differ by {:.0} %", spread * 100.0))
    }

    fn growth(&self, kind: Kind) -> Claim {
        let (id, text) = match kind {
            Kind::Read => ("000-44", "reads grow linearly with the nodes"),
            Kind::Mixed => ("000-47", "70/30 grows almost linearly with the nodes"),
        };
        let here = |layout: &str| {
            let with = self.scaling.iter().filter(move |p| p.workload == kind);
            let with = with.filter(|p| p.layout == layout);
            with.filter_map(|p| Some((f64::from(p.nodes), p.measured.as_ref()?)))
                .collect::<Vec<_>>()
        };
        let mut points = here(PACKED);
        if points.is_empty() {
            points = here(APART);
        }
        let of = |us: fn(&super::point::Measured) -> f64| {
            slope(&points.iter().map(|(n, m)| (*n, n / us(m))).collect::<Vec<_>>())
        };
        let (ours, floor) = (of(|m| m.cpu_us_per_io), of(|m| m.floor_us_per_io));
        let figure = |(_, m): &(f64, &super::point::Measured)| Figure {
            value: m.ratio,
            ends: m.ratio_spread,
            steal: m.steal_percent,
        };
        let doubt = self.doubt(&points.iter().map(figure).collect::<Vec<_>>());
        let claim = Claim::new(id, text)
            .published(published::published_slope(kind), "", Source::Derived)
            .by("slope of ln(nodes / processor time per I/O) over ln(nodes), least squares", "")
            .limit(floor)
            .must();
        claim.judge(ours, Bound::AtLeast(floor.unwrap_or(1.0) - FLATTER), doubt)
    }

    fn medium(&self, nodes: u32, kind: Kind, medium: Medium) -> Option<&MediaPoint> {
        let is = |p: &&MediaPoint| (p.nodes, p.workload, p.medium) == (nodes, kind, medium);
        self.media.iter().find(is)
    }

    /// Returns the IOPS of memory over those of NULL devices.
    fn share(&self, nodes: u32, kind: Kind) -> Option<Figure> {
        let point = self.medium(nodes, kind, Medium::Ram)?;
        let (value, ends) = (point.over_null?, point.over_null_spread?);
        Some(Figure { value, ends, steal: point.steal_percent })
    }

    fn flash(&self, id: &'static str, kind: Kind) -> Claim {
        let share = self.share(NODES[0], kind);
        let published = published::flash_share(kind);
        let text = format!(
            "NULL devices stand for a very fast device, {}: memory reaches what flash did of them",
            kind.title()
        );
        let claim = Claim::new(id, text)
            .published(published, "", Source::Stated)
            .by("IOPS of RAM devices over those of NULL devices in the same round, 3 nodes", "");
        let doubt = share.as_ref().and_then(|f| self.doubt(std::slice::from_ref(f)));
        claim.judge(share.map(|f| f.value), Bound::AtLeast(published), doubt)
    }

    fn consistent(&self) -> Claim {
        let pairs = Kind::ALL.map(|kind| NODES.map(|nodes| self.share(nodes, kind)));
        let figures: Vec<Figure> = pairs.into_iter().flatten().flatten().collect();
        let apart = |pair: &[Figure]| (pair[0].value - pair[1].value).abs() * 100.0;
        let all = figures.len() == Kind::ALL.len() * NODES.len();
        let most = all.then(|| figures.chunks(2).map(apart).fold(0.0, f64::max));
        let doubt = self.doubt(&figures);
        let claim = Claim::new("000-32", "six nodes show the same of the media as three")
            .by("largest difference of the shares at 3 and 6 nodes", "points")
            .must();
        claim.judge(most, Bound::AtMost(3.0), doubt)
    }

    fn disk(&self) -> Claim {
        let point = self.medium(NODES[0], Kind::Read, Medium::File);
        let figure = point.map(|p| Figure {
            value: p.over_limit,
            ends: p.over_limit_spread,
            steal: p.steal_percent,
        });
        let text = "a real device gives its speed to the cluster (this disk is the limit)";
        let doubt = figure.as_ref().and_then(|f| self.doubt(std::slice::from_ref(f)));
        let claim = Claim::new("000-23", text)
            .by("IOPS of file devices over fio's on the same disk, reads, 3 nodes", "")
            .must();
        claim.judge(figure.map(|f| f.value), Bound::AtLeast(0.8), doubt)
    }

    fn cost(&self) -> Claim {
        let reads = self.scaling.iter().filter(|p| p.workload == Kind::Read);
        let found = reads.filter_map(|p| Some((p.nodes, p.measured.as_ref()?)));
        let smallest = found.min_by_key(|(nodes, _)| *nodes).map(|(_, m)| m);
        let ours = smallest.map(|m| m.cpu_us_per_io / CPU_US_PER_READ);
        // The spread doesn't matter here: the bound is far away.
        let doubt = self.doubt.clone();
        let claim = Claim::new("000-39", "a read costs a small part of the published 83 us")
            .published(1.0, "", Source::Derived)
            .by("processor time per read over 20 cores / 240 K", "")
            .limit(smallest.map(|m| m.floor_us_per_io / CPU_US_PER_READ))
            .must();
        claim.judge(ours, Bound::AtMost(0.1), doubt)
    }
}

/// Returns the claims for which the product lacks something.
fn not_built() -> Vec<Claim> {
    let elastic = "a running cluster of `up` takes no further servers: it has to be stopped first";
    vec![
        Claim::new("000-40", "tuning of interrupts brings 25 to 30 % per node")
            .published(25.0, "percent", Source::Stated)
            .not_judged("there is no command that tunes interrupts"),
        Claim::new("000-13", "storage is added and removed without downtime").not_judged(elastic),
        Claim::new("000-16", "adding and removing has little impact on applications")
            .not_judged(elastic),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::{media, point};
    use super::*;
    use crate::report::claim::Verdict;

    fn claims(doubt: Option<&str>) -> Vec<Claim> {
        let (scaling, media) = (point::tests::example(), media::tests::example());
        let doubt = doubt.map(str::to_owned);
        Evidence { scaling: &scaling, media: &media, doubt }.claims()
    }

    fn named<'a>(claims: &'a [Claim], id: &str) -> &'a Claim {
        claims.iter().find(|c| c.id == id).unwrap()
    }

    #[test]
    fn growth_is_judged_by_the_floors_growth() {
        let claims = claims(None);
        let reads = named(&claims, "000-44");
        // Both grow by the same tenth from 3 to 32 nodes.
        assert_eq!(reads.verdict, Verdict::Holds, "{}", reads.sentence());
        assert!((reads.ours.unwrap() - reads.limit.unwrap()).abs() < 1e-9);
        assert!((reads.ours.unwrap() - 0.96).abs() < 0.001);
    }

    #[test]
    fn media_are_judged_by_their_shares() {
        let claims = claims(None);
        for (id, verdict) in [
            // Memory has 0.90 of the IOPS of NULL devices: less than 0.91, more than 0.85.
            ("000-35", Verdict::Differs),
            ("000-36", Verdict::Holds),
            ("000-32", Verdict::Holds),
            ("000-23", Verdict::Holds),
            ("000-39", Verdict::Holds),
        ] {
            assert_eq!(named(&claims, id).verdict, verdict, "{}", named(&claims, id).sentence());
        }
        assert!(claims.iter().all(|c| !c.is_missed()));
    }

    #[test]
    fn a_short_run_or_one_without_figures_judges_nothing() {
        let is_open = |c: &Claim| matches!(c.verdict, Verdict::NotJudged(_));
        assert!(claims(Some("it was short")).iter().all(is_open));
        let none = Evidence { scaling: &[], media: &[], doubt: None }.claims();
        assert!(none.iter().all(is_open));
    }

    #[test]
    fn noise_is_no_verdict() {
        let mut scaling = point::tests::example();
        for point in &mut scaling {
            point.measured.iter_mut().for_each(|m| m.steal_percent = 9.0);
        }
        let mut media = media::tests::example();
        media.iter_mut().for_each(|p| p.over_null_spread = Some([0.5, 1.0]));
        let claims = Evidence { scaling: &scaling, media: &media, doubt: None }.claims();
        for (id, why) in [("000-44", "9 % of the cores"), ("000-35", "differ by 56 %")] {
            let Verdict::NotJudged(reason) = &named(&claims, id).verdict else { panic!("{id}") };
            assert!(reason.contains(why), "{reason}");
        }
    }
}

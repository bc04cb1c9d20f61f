//! A plot as SVG, and the same figures as a table, for a self-contained HTML page. Colours come
//! from the page's style sheet by class, so they suit light and dark.

use super::number::{escape, short, tick};
use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 52.0;
/// Labels of the horizontal axis that are closer than this would overlap.
const LABEL_GAP: f64 = 30.0;

/// A line of the plot.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Series {
    pub name: String,
    /// Number of its colour in the style sheet; also selects the shape of its markers.
    pub colour: usize,
    /// Drawn dashed: a line that is not Gabion's.
    pub dashed: bool,
    /// From left to right; points that were not measured are missing.
    pub points: Vec<(f64, f64)>,
}

/// A plot with logarithmic axes: equal ratios have equal distances.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Plot {
    pub title: String,
    /// Titles of the axes, with units.
    pub x: String,
    pub y: String,
    pub series: Vec<Series>,
}

/// Maps values to coordinates.
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn at(&self, value: f64) -> f64 {
        let share = (value / self.low).ln() / (self.high / self.low).ln();
        self.from + share * (self.to - self.from)
    }
}

impl Plot {
    /// Returns all positions on the horizontal axis, each once.
    fn columns(&self) -> Vec<f64> {
        let mut all: Vec<f64> = self.all().map(|p| p.0).collect();
        all.sort_by(f64::total_cmp);
        all.dedup();
        all
    }

    /// Returns the points that a logarithmic axis can show.
    fn all(&self) -> impl Iterator<Item = (f64, f64)> {
        self.series.iter().flat_map(|s| &s.points).copied().filter(|p| p.0 > 0.0 && p.1 > 0.0)
    }

    fn scales(&self) -> (Scale, Scale) {
        let range = |of: fn((f64, f64)) -> f64| {
            let (low, high) = self
                .all()
                .map(of)
                .fold((f64::INFINITY, 0.0f64), |(low, high), n| (low.min(n), high.max(n)));
            if low <= high { (low, high) } else { (1.0, 10.0) }
        };
        let ((left, right), (low, high)) = (range(|p| p.0), range(|p| p.1));
        let x = Scale { low: left / 1.15, high: right * 1.15, from: LEFT, to: WIDTH - RIGHT };
        let (low, high) = (step_below(low), step_above(high));
        (x, Scale { low, high, from: HEIGHT - BOTTOM, to: TOP })
    }

    /// Returns the drawing.
    pub(crate) fn svg(&self) -> String {
        let (x, y) = self.scales();
        let mut out = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n<title>{}</title>\n",
            escape(&self.title)
        );
        for value in steps(y.low, y.high) {
            let at = y.at(value);
            let _ = writeln!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                at + 4.0,
                tick(value)
            );
        }
        let floor = HEIGHT - BOTTOM;
        let mut last = f64::NEG_INFINITY;
        for column in self.columns() {
            let at = x.at(column);
            let _ = writeln!(
                out,
                "<line class=\"axis\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{floor}\" y2=\"{}\"/>",
                floor + 5.0
            );
            if at - last >= LABEL_GAP {
                let (low, text) = (floor + 19.0, short(column));
                let _ =
                    writeln!(out, "<text class=\"mid\" x=\"{at:.1}\" y=\"{low}\">{text}</text>");
                last = at;
            }
        }
        let _ = writeln!(
            out,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{floor}\" y2=\"{floor}\"/>\n\
             <text class=\"mid\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n\
             <text class=\"mid\" transform=\"translate(14 {:.1}) rotate(-90)\">{}</text>",
            WIDTH - RIGHT,
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 8.0,
            escape(&self.x),
            (TOP + floor) / 2.0,
            escape(&self.y)
        );
        for series in &self.series {
            out += &series.svg(&x, &y, &self.x);
        }
        out + "</svg>\n"
    }

    /// Returns the legend.
    pub(crate) fn legend(&self) -> String {
        let mut out = "<p class=\"legend\">".to_owned();
        for series in &self.series {
            let _ = write!(
                out,
                "<span><svg viewBox=\"0 0 34 12\" class=\"key\" aria-hidden=\"true\"><path class=\"{}\" \
                 d=\"M1 6H33\"/>{}</svg>{}</span> ",
                series.class(),
                mark(series.colour, series.dashed, (17.0, 6.0), ""),
                escape(&series.name)
            );
        }
        out + "</p>\n"
    }

    /// Returns the plotted figures as a table, with one row for each position on the horizontal
    /// axis.
    pub(crate) fn table(&self) -> String {
        let mut out = format!("<table>\n<tr><th>{}</th>", escape(&self.x));
        for series in &self.series {
            let _ = write!(out, "<th>{}</th>", escape(&series.name));
        }
        out += "</tr>\n";
        for column in self.columns() {
            let _ = write!(out, "<tr><td>{}</td>", short(column));
            for series in &self.series {
                let found = series.points.iter().find(|p| p.0 == column);
                let text = found.map_or("-".to_owned(), |p| short(p.1));
                let _ = write!(out, "<td>{text}</td>");
            }
            out += "</tr>\n";
        }
        let _ = writeln!(out, "</table>\n<p class=\"unit\">{}</p>", escape(&self.y));
        out
    }
}

impl Series {
    fn class(&self) -> String {
        format!("line c{}{}", self.colour, if self.dashed { " dashed" } else { "" })
    }

    fn svg(&self, x: &Scale, y: &Scale, of: &str) -> String {
        let shown: Vec<&(f64, f64)> =
            self.points.iter().filter(|p| p.0 > 0.0 && p.1 > 0.0).collect();
        let mut path = String::new();
        for (i, p) in shown.iter().enumerate() {
            let step = if i == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{step}{:.1} {:.1}", x.at(p.0), y.at(p.1));
        }
        let mut out = String::new();
        if shown.len() > 1 {
            let _ = writeln!(out, "<path class=\"{}\" d=\"{path}\"/>", self.class());
        }
        for p in shown {
            let tip = format!("{}; {of}: {}; {}", self.name, short(p.0), short(p.1));
            out += &mark(self.colour, self.dashed, (x.at(p.0), y.at(p.1)), &tip);
            out.push('\n');
        }
        out
    }
}

/// Draws a marker. Its shape also tells the colours apart; that of a dashed line is hollow.
fn mark(colour: usize, hollow: bool, (x, y): (f64, f64), tip: &str) -> String {
    let shape = match colour % 3 {
        0 => format!("M{:.1} {:.1}h8v8h-8z", x - 4.0, y - 4.0),
        1 => format!("M{:.1} {y:.1}a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z", x - 4.5),
        _ => format!("M{x:.1} {:.1}l5 9h-10z", y - 5.5),
    };
    let title =
        if tip.is_empty() { String::new() } else { format!("<title>{}</title>", escape(tip)) };
    let hollow = if hollow { " hollow" } else { "" };
    format!("<path class=\"mark c{colour}{hollow}\" d=\"{shape}\">{title}</path>")
}

/// Returns 1, 2 and 5 times powers of ten in a range; only powers of ten if these are many.
fn steps(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let factors: &[f64] = if last - first > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let all = (first..=last).flat_map(|e| factors.iter().map(move |f| f * 10f64.powi(e)));
    all.filter(|n| (low * 0.999..=high * 1.001).contains(n)).collect()
}

/// Returns the largest of 1, 2 and 5 times a power of ten that is not above `n`.
fn step_below(n: f64) -> f64 {
    let power = 10f64.powi(n.log10().floor() as i32);
    [5.0, 2.0].into_iter().map(|f| f * power).find(|s| *s <= n).unwrap_or(power)
}

/// Returns the smallest such number that is above `n`.
fn step_above(n: f64) -> f64 {
    let power = 10f64.powi(n.log10().floor() as i32);
    [2.0, 5.0].into_iter().map(|f| f * power).find(|s| *s > n).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: &[(f64, f64)]) -> Plot {
        let line = |name: &str, colour, dashed| Series {
            name: name.into(),
            colour,
            dashed,
            points: points.to_vec(),
        };
        Plot {
            title: "a < b".into(),
            x: "nodes".into(),
            y: "IOPS".into(),
            series: vec![line("ours", 1, false), line("floor & more", 2, true)],
        }
    }

    /// Returns the values of an attribute that positions elements.
    fn places(svg: &str, attribute: &str) -> Vec<f64> {
        let key = format!(" {attribute}=\"");
        let texts = svg.split(&key).skip(1).filter_map(|rest| rest.split('"').next());
        texts.map(|t| t.parse().unwrap()).collect()
    }

    #[test]
    fn everything_is_inside_and_escaped() {
        let plot = plot(&[(3.0, 720e3), (32.0, 300e3), (128.0, 31e6)]);
        let svg = plot.svg() + &plot.legend() + &plot.table();
        assert!(
            svg.contains("a &lt; b") && svg.contains("floor &amp; more") && !svg.contains("NaN")
        );
        assert!(svg.contains("<td>31.0 M</td>") && svg.contains(">128</text>"), "{svg}");
        for (attribute, end) in [("x1", WIDTH), ("x2", WIDTH), ("y1", HEIGHT), ("x", WIDTH)] {
            let found = places(&plot.svg(), attribute);
            assert!(
                !found.is_empty() && found.iter().all(|n| (0.0..=end).contains(n)),
                "{found:?}"
            );
        }
        assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
    }

    #[test]
    fn one_point_none_and_zero_are_drawn_too() {
        for points in [&[][..], &[(3.0, 5.0)], &[(3.0, 0.0), (6.0, 1.0)]] {
            let plot = plot(points);
            let text = plot.svg() + &plot.table();
            assert!(!text.contains("NaN") && !text.contains("inf"), "{points:?}: {text}");
        }
    }

    #[test]
    fn ticks_are_round_and_surround_the_values() {
        assert_eq!(
            steps(step_below(1.7), step_above(83.0)),
            [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
        );
        assert_eq!((step_below(300.0), step_above(500.0)), (200.0, 1000.0));
        assert_eq!(steps(1e2, 1e7).len(), 6);
    }
}

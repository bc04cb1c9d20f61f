//! A plot as SVG: up to eight series of points with lines, over linear, logarithmic or time axes,
//! and bands behind them. Colours come from the page's style sheet by class, so they suit light and
//! dark; each colour has a mark of its own shape, so they can be told apart without colours, too.

use super::axis::{Axis, Range, Scale};
use super::number::{escape, short};
use std::fmt::Write;

/// The size of a drawing, and its margins.
pub(crate) const WIDTH: f64 = 720.0;
pub(crate) const HEIGHT: f64 = 360.0;
pub(crate) const LEFT: f64 = 76.0;
pub(crate) const RIGHT: f64 = 20.0;
pub(crate) const TOP: f64 = 16.0;
pub(crate) const BOTTOM: f64 = 52.0;
/// Labels of the horizontal axis that are closer than this would overlap.
const LABEL_GAP: f64 = 30.0;
/// Series with more points than this are drawn as a line without marks.
const MARKS: usize = 40;
/// The most series of one plot: so many colours and marks exist.
pub(crate) const SERIES: usize = 8;

/// A measured or published value, with the lowest and the highest that were seen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Spot {
    pub x: f64,
    pub y: f64,
    pub low: f64,
    pub high: f64,
}

impl Spot {
    /// Creates a spot without a spread.
    pub(crate) fn new(x: f64, y: f64) -> Spot {
        Spot { x, y, low: y, high: y }
    }
}

/// A line of the plot.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Series {
    pub name: String,
    /// Number of its colour in the style sheet, below [`SERIES`].
    pub colour: usize,
    /// Drawn dashed: a line that is not Gabion's.
    pub dashed: bool,
    /// From left to right; points that were not measured are missing.
    pub points: Vec<Spot>,
}

/// A stripe behind the lines, such as a phase of an experiment.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Band {
    pub name: String,
    pub from: f64,
    pub to: f64,
}

/// A plot.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Plot {
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
    pub bands: Vec<Band>,
}

impl Plot {
    /// Returns the points that the axes can show.
    fn all(&self) -> impl Iterator<Item = &Spot> {
        self.series.iter().flat_map(|s| &s.points).filter(|p| self.shows(p))
    }

    fn shows(&self, spot: &Spot) -> bool {
        self.x.scale.shows(spot.x) && self.y.scale.shows(spot.y)
    }

    /// Returns the labelled places of the horizontal axis: the points' own where they are few.
    fn columns(&self, range: &Range) -> Vec<f64> {
        let mut all: Vec<f64> = self.all().map(|p| p.x).collect();
        all.sort_by(f64::total_cmp);
        all.dedup();
        if self.x.scale == Scale::Log && all.len() <= 12 { all } else { range.ticks() }
    }

    fn ranges(&self) -> (Range, Range) {
        let ends = self.all().map(|p| p.x).chain(self.bands.iter().map(|b| b.to));
        let x = match self.x.scale {
            // Room to the left of the first mark and to the right of the last one.
            Scale::Log => {
                let wide = self.all().flat_map(|p| [p.x / 1.15, p.x * 1.15]);
                self.x.range(wide, LEFT, WIDTH - RIGHT)
            }
            _ => self.x.range(ends, LEFT, WIDTH - RIGHT),
        };
        let values = self.all().flat_map(|p| [p.y, p.low, p.high]);
        (x, self.y.range(values, HEIGHT - BOTTOM, TOP))
    }

    /// Returns the drawing.
    pub(crate) fn svg(&self, title: &str) -> String {
        let (x, y) = self.ranges();
        let mut out = open(title);
        for (i, band) in self.bands.iter().enumerate() {
            out += &band.svg(i, &x);
        }
        out += &rulers(&y, self.y.scale);
        out += &self.columns_svg(&x);
        out += &titles(&self.x.title, &self.y.title);
        for series in &self.series {
            out += &self.line(series, &x, &y);
        }
        out + "</svg>\n"
    }

    fn columns_svg(&self, x: &Range) -> String {
        let (mut out, floor, mut last) = (String::new(), HEIGHT - BOTTOM, f64::NEG_INFINITY);
        for column in self.columns(x) {
            let at = x.at(column);
            let _ = writeln!(
                out,
                "<line class=\"axis\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{floor}\" y2=\"{}\"/>",
                floor + 5.0
            );
            if at - last >= LABEL_GAP {
                let (low, text) = (floor + 19.0, self.x.scale.text(column));
                let _ =
                    writeln!(out, "<text class=\"mid\" x=\"{at:.1}\" y=\"{low}\">{text}</text>");
                last = at;
            }
        }
        out
    }

    fn line(&self, series: &Series, x: &Range, y: &Range) -> String {
        let shown: Vec<&Spot> = series.points.iter().filter(|p| self.shows(p)).collect();
        let mut path = String::new();
        for (i, p) in shown.iter().enumerate() {
            let step = if i == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{step}{:.1} {:.1}", x.at(p.x), y.at(p.y));
        }
        let mut out = String::new();
        if shown.len() > 1 {
            let _ = writeln!(out, "<path class=\"{}\" d=\"{path}\"/>", series.class());
        }
        if shown.len() > MARKS {
            return out;
        }
        for p in shown {
            let place = (x.at(p.x), y.at(p.y));
            if p.low < p.high && self.y.scale.shows(p.low) {
                let (low, high, c) = (y.at(p.low), y.at(p.high), series.colour);
                let _ = writeln!(
                    out,
                    "<line class=\"spread c{c}\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\"/>",
                    place.0
                );
            }
            let tip = format!(
                "{}; {}: {}; {}",
                series.name,
                self.x.title,
                self.x.scale.text(p.x),
                short(p.y)
            );
            out += &mark(series.colour, series.dashed, place, &tip);
            out.push('\n');
        }
        out
    }

    /// Returns the legend, and the names of the bands.
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
        out += "</p>\n";
        if !self.bands.is_empty() {
            let names = self.bands.iter().enumerate();
            let names: Vec<String> =
                names.map(|(i, b)| format!("{} {}", i + 1, escape(&b.name))).collect();
            let _ = writeln!(out, "<p class=\"soft\">{}</p>", names.join(" · "));
        }
        out
    }
}

impl Series {
    fn class(&self) -> String {
        format!("line c{}{}", self.colour, if self.dashed { " dashed" } else { "" })
    }
}

impl Band {
    fn svg(&self, place: usize, x: &Range) -> String {
        let (from, to) = (x.at(self.from), x.at(self.to));
        let stripe = if place.is_multiple_of(2) { "even" } else { "odd" };
        format!(
            "<rect class=\"band {stripe}\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{}\">\
             <title>{}</title></rect><text class=\"note\" x=\"{:.1}\" y=\"{}\">{}</text>\n",
            to - from,
            HEIGHT - BOTTOM - TOP,
            escape(&self.name),
            from + 2.0,
            TOP + 11.0,
            place + 1
        )
    }
}

/// Opens a drawing.
pub(crate) fn open(title: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n<title>{}</title>\n",
        escape(title)
    )
}

/// Draws the horizontal lines of the vertical axis, with their labels.
pub(crate) fn rulers(y: &Range, scale: Scale) -> String {
    let mut out = String::new();
    for value in y.ticks() {
        let at = y.at(value);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            scale.text(value)
        );
    }
    out
}

/// Draws the horizontal axis, and the titles of both axes.
pub(crate) fn titles(x: &str, y: &str) -> String {
    let floor = HEIGHT - BOTTOM;
    format!(
        "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{floor}\" y2=\"{floor}\"/>\n\
         <text class=\"mid\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n\
         <text class=\"mid\" transform=\"translate(14 {:.1}) rotate(-90)\">{}</text>\n",
        WIDTH - RIGHT,
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 8.0,
        escape(x),
        (TOP + floor) / 2.0,
        escape(y)
    )
}

/// Draws a marker. Its shape also tells the colours apart; that of a dashed line is hollow.
pub(crate) fn mark(colour: usize, hollow: bool, (x, y): (f64, f64), tip: &str) -> String {
    let shape = match colour % SERIES {
        0 => format!("M{:.1} {:.1}h8v8h-8z", x - 4.0, y - 4.0),
        1 => format!("M{:.1} {y:.1}a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z", x - 4.5),
        2 => format!("M{x:.1} {:.1}l5 9h-10z", y - 5.5),
        3 => format!("M{x:.1} {:.1}l5.5 5.5l-5.5 5.5l-5.5 -5.5z", y - 5.5),
        4 => format!("M{x:.1} {:.1}l5 -9h-10z", y + 5.5),
        5 => format!("M{:.1} {:.1}h11v4h-11z", x - 5.5, y - 2.0),
        6 => format!("M{:.1} {:.1}h4v11h-4z", x - 2.0, y - 5.5),
        _ => format!("M{:.1} {y:.1}l5 -5v10zM{:.1} {y:.1}l-5 -5v10z", x - 5.0, x + 5.0),
    };
    let title =
        if tip.is_empty() { String::new() } else { format!("<title>{}</title>", escape(tip)) };
    let hollow = if hollow { " hollow" } else { "" };
    format!("<path class=\"mark c{colour}{hollow}\" d=\"{shape}\">{title}</path>")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: &[(f64, f64)], x: Axis, y: Axis) -> Plot {
        let line = |name: &str, colour, dashed| Series {
            name: name.into(),
            colour,
            dashed,
            points: points.iter().map(|p| Spot::new(p.0, p.1)).collect(),
        };
        let bands = vec![Band { name: "rest & more".into(), from: 0.0, to: 2.0 }];
        Plot { x, y, series: vec![line("ours", 1, false), line("floor & more", 2, true)], bands }
    }

    /// Returns the values of an attribute that positions elements.
    fn places(svg: &str, attribute: &str) -> Vec<f64> {
        let key = format!(" {attribute}=\"");
        let texts = svg.split(&key).skip(1).filter_map(|rest| rest.split('"').next());
        texts.map(|t| t.parse().unwrap()).collect()
    }

    #[test]
    fn everything_is_inside_and_escaped() {
        let points = [(3.0, 720e3), (32.0, 300e3), (128.0, 31e6)];
        for x in [Axis::log("nodes"), Axis::linear("nodes"), Axis::time("nodes")] {
            for y in [Axis::log("IOPS"), Axis::linear("IOPS")] {
                let plot = plot(&points, x.clone(), y);
                let svg = plot.svg("a < b") + &plot.legend();
                assert!(svg.contains("a &lt; b") && svg.contains("floor &amp; more"), "{svg}");
                assert!(svg.contains("1 rest &amp; more") && !svg.contains("NaN"), "{svg}");
                for (key, end) in [("x1", WIDTH), ("x2", WIDTH), ("y1", HEIGHT), ("x", WIDTH)] {
                    let found = places(&plot.svg(""), key);
                    let inside = found.iter().all(|n| (0.0..=end).contains(n));
                    assert!(!found.is_empty() && inside, "{key}: {found:?}");
                }
                assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
            }
        }
    }

    #[test]
    fn one_point_none_and_zero_are_drawn_too() {
        for points in [&[][..], &[(3.0, 5.0)], &[(3.0, 0.0), (6.0, 1.0)]] {
            let text = plot(points, Axis::log("x"), Axis::log("y")).svg("");
            assert!(!text.contains("NaN") && !text.contains("inf"), "{points:?}: {text}");
        }
    }

    #[test]
    fn many_points_are_a_line_without_marks_and_a_spread_is_drawn() {
        let many: Vec<(f64, f64)> = (0..500).map(|i| (f64::from(i), 1.0)).collect();
        let svg = plot(&many, Axis::time("s"), Axis::linear("y")).svg("");
        assert!(!svg.contains("class=\"mark") && svg.contains("class=\"line c1\""));
        let mut few = plot(&[(1.0, 2.0)], Axis::linear("s"), Axis::linear("y"));
        few.series[0].points[0].high = 3.0;
        assert_eq!(few.svg("").matches("class=\"spread c1\"").count(), 1);
    }

    #[test]
    fn each_of_eight_series_has_a_mark_of_its_own() {
        let mut all: Vec<String> =
            (0..SERIES).map(|i| mark(i, false, (10.0, 10.0), "")).map(|m| m[20..].into()).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), SERIES);
    }
}

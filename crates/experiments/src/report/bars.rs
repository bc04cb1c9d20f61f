//! Bars as SVG: groups of bars side by side, one bar per series.

use super::axis::Axis;
use super::number::{escape, short};
use super::plot::{BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, open, rulers, titles};
use std::fmt::Write;

/// Share of a group's width that its bars take.
const FILLED: f64 = 0.75;

/// Groups of bars.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Bars {
    /// What the groups are.
    pub x: String,
    /// The vertical axis; a linear one, because a bar begins at 0.
    pub y: Axis,
    pub groups: Vec<String>,
    pub series: Vec<BarSeries>,
}

/// One bar per group.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct BarSeries {
    pub name: String,
    /// Number of its colour in the style sheet.
    pub colour: usize,
    /// As long as the groups; `None` where nothing was measured or published.
    pub values: Vec<Option<f64>>,
}

impl Bars {
    /// Returns the drawing.
    pub(crate) fn svg(&self, title: &str) -> String {
        let values = self.series.iter().flat_map(|s| s.values.iter().flatten().copied());
        let y = self.y.range(values, HEIGHT - BOTTOM, super::plot::TOP);
        let mut out = open(title) + &rulers(&y, self.y.scale) + &titles(&self.x, &self.y.title);
        let floor = HEIGHT - BOTTOM;
        let group = (WIDTH - RIGHT - LEFT) / self.groups.len().max(1) as f64;
        let width = group * FILLED / self.series.len().max(1) as f64;
        for (g, name) in self.groups.iter().enumerate() {
            let middle = LEFT + group * (g as f64 + 0.5);
            let _ = writeln!(
                out,
                "<text class=\"mid\" x=\"{middle:.1}\" y=\"{}\">{}</text>",
                floor + 19.0,
                escape(name)
            );
            for (s, series) in self.series.iter().enumerate() {
                let Some(value) = series.values.get(g).copied().flatten() else { continue };
                let left = middle - group * FILLED / 2.0 + width * s as f64;
                let top = y.at(value);
                let _ = writeln!(
                    out,
                    "<rect class=\"bar c{}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\">\
                     <title>{}; {}: {}</title></rect><text class=\"mid\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                    series.colour,
                    width * 0.92,
                    floor - top,
                    escape(&series.name),
                    escape(name),
                    short(value),
                    left + width / 2.0,
                    top - 4.0,
                    short(value)
                );
            }
        }
        out + "</svg>\n"
    }

    /// Returns the legend.
    pub(crate) fn legend(&self) -> String {
        let mut out = "<p class=\"legend\">".to_owned();
        for series in &self.series {
            let _ = write!(
                out,
                "<span><svg viewBox=\"0 0 14 12\" class=\"key small\" aria-hidden=\"true\"><rect class=\"bar c{}\" \
                 x=\"1\" y=\"1\" width=\"12\" height=\"10\"/></svg>{}</span> ",
                series.colour,
                escape(&series.name)
            );
        }
        out + "</p>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_high_as_its_value_and_a_missing_one_is_not_drawn() {
        let series = |name: &str, values: &[Option<f64>]| BarSeries {
            name: name.into(),
            colour: 1,
            values: values.to_vec(),
        };
        let bars = Bars {
            x: "medium".into(),
            y: Axis::linear("IOPS"),
            groups: vec!["null".into(), "ram <1>".into()],
            series: vec![series("ours", &[Some(10.0), None]), series("theirs", &[Some(5.0)])],
        };
        let svg = bars.svg("t") + &bars.legend();
        assert_eq!(svg.matches("<rect class=\"bar c1\"").count(), 4, "two bars, two keys: {svg}");
        assert!(svg.contains("ram &lt;1&gt;") && !svg.contains("NaN"));
        let height = |part: &str| {
            let text = part.split("height=\"").nth(1).unwrap().split('"').next().unwrap();
            text.parse::<f64>().unwrap()
        };
        let heights: Vec<f64> = svg.split("<rect").skip(1).take(2).map(height).collect();
        assert!((heights[0] - 2.0 * heights[1]).abs() < 0.2, "{heights:?}");
    }
}

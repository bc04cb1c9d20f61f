//! A drawing of the stand: a box per host with its parts, joined by a network.

use super::number::escape;
use super::plot::WIDTH;
use std::fmt::Write;

/// Hosts that fit beside each other; more are shown as a number.
const SHOWN: usize = 4;
const GAP: f64 = 12.0;
const PART: f64 = 22.0;

/// The stand.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Stand {
    pub hosts: Vec<Host>,
    /// What joins the hosts.
    pub network: String,
}

/// A host.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Host {
    pub name: String,
    /// Its roles and devices.
    pub parts: Vec<String>,
}

impl Stand {
    /// Returns the hosts that are drawn: all, or the first ones and one that stands for the others.
    fn shown(&self) -> Vec<Host> {
        if self.hosts.len() <= SHOWN {
            return self.hosts.clone();
        }
        let mut shown = self.hosts[..SHOWN - 1].to_vec();
        let name = format!("{} more such nodes", self.hosts.len() - shown.len());
        shown.push(Host { name, parts: Vec::new() });
        shown
    }

    /// Returns the drawing.
    pub(crate) fn svg(&self, title: &str) -> String {
        let shown = self.shown();
        let most = shown.iter().map(|h| h.parts.len()).max().unwrap_or(0) as f64;
        let (tall, count) = (30.0 + PART * most, shown.len().max(1) as f64);
        let wide = (WIDTH - GAP * (count + 1.0)) / count;
        let wire = tall + 34.0;
        let mut out = format!(
            "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\">\n<title>{}</title>\n",
            wire + 26.0,
            escape(title)
        );
        for (i, host) in shown.iter().enumerate() {
            let left = GAP + (wide + GAP) * i as f64;
            let middle = left + wide / 2.0;
            let _ = writeln!(
                out,
                "<rect class=\"box\" x=\"{left:.1}\" y=\"8\" width=\"{wide:.1}\" height=\"{tall}\"/>\
                 <text class=\"mid\" x=\"{middle:.1}\" y=\"26\">{}</text>\
                 <line class=\"axis\" x1=\"{middle:.1}\" x2=\"{middle:.1}\" y1=\"{}\" y2=\"{wire}\"/>",
                escape(&host.name),
                8.0 + tall
            );
            for (p, part) in host.parts.iter().enumerate() {
                let top = 32.0 + PART * p as f64;
                let _ = writeln!(
                    out,
                    "<rect class=\"part\" x=\"{:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{}\"/>\
                     <text class=\"mid\" x=\"{middle:.1}\" y=\"{}\">{}</text>",
                    left + 8.0,
                    wide - 16.0,
                    PART - 4.0,
                    top + 13.0,
                    escape(part)
                );
            }
        }
        let _ = writeln!(
            out,
            "<line class=\"wire\" x1=\"{GAP}\" x2=\"{:.1}\" y1=\"{wire}\" y2=\"{wire}\"/>\
             <text class=\"mid\" x=\"{:.1}\" y=\"{}\">{}</text>",
            WIDTH - GAP,
            WIDTH / 2.0,
            wire + 18.0,
            escape(&self.network)
        );
        out + "</svg>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_hosts_are_drawn_as_a_number() {
        let host = |i: u32| Host { name: format!("node{i}"), parts: vec!["SDS <1>".into()] };
        let stand = |n: u32| Stand { hosts: (1..=n).map(host).collect(), network: "TCP".into() };
        assert_eq!(stand(4).svg("").matches("class=\"box\"").count(), 4);
        let svg = stand(128).svg("t");
        assert!(svg.contains("125 more such nodes") && svg.contains("SDS &lt;1&gt;"), "{svg}");
        assert_eq!(svg.matches("class=\"box\"").count(), 4);
    }
}

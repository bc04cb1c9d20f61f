//! The screen of `gabion top`.

use super::rates::{History, Sample, Seen, Server};
use super::volumes::VolumeRates;
use admin::report::{State, UpDown};
use daemon::size::Size;
use fleet::lines;
use ratatui::Frame;
use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, Paragraph, RenderDirection, Row, Sparkline, Table};

/// The effect of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    /// Go on.
    Stay,
    /// End.
    Leave,
}

/// The state of the screen.
#[derive(Default)]
pub(crate) struct View {
    /// The user has halted it: it takes no new samples.
    pub halted: bool,
    /// The list is that of volumes; else of servers.
    volumes: bool,
    /// Index of the first server or volume in the list.
    first: usize,
}

impl View {
    /// Handles a key, or a change of the window.
    pub(crate) fn takes(&mut self, event: &Event) -> Wish {
        let Some(key) = event.as_key_event().filter(|k| k.kind != KeyEventKind::Release) else {
            return Wish::Stay;
        };
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Leave,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Wish::Leave;
            }
            KeyCode::Char(' ') => self.halted = !self.halted,
            KeyCode::Char('v') => (self.volumes, self.first) = (!self.volumes, 0),
            KeyCode::Down => self.first += 1,
            KeyCode::Up => self.first = self.first.saturating_sub(1),
            KeyCode::PageDown => self.first += 10,
            KeyCode::PageUp => self.first = self.first.saturating_sub(10),
            KeyCode::Home => self.first = 0,
            _ => {}
        }
        Wish::Stay
    }

    /// Draws the whole screen.
    pub(crate) fn draw(&mut self, frame: &mut Frame<'_>, history: &History) {
        let heights = [1, 1, 6, 1, 1].map(Constraint::Length);
        let [head, warning, curves, resync, space, list, keys] = Layout::vertical([
            heights[0],
            heights[1],
            heights[2],
            heights[3],
            heights[4],
            Constraint::Min(3),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let report = &history.last.1;
        frame.render_widget(Line::from(lines::headline(report)).style(color(report.state)), head);
        let last = history.samples.back();
        if let Some(error) = last.and_then(|s| s.error.as_deref()) {
            let text = format!("No MDM answers, what follows is older; I/O goes on: {error}");
            frame.render_widget(Line::from(text).red(), warning);
        } else if let Some(text) = lines::space(report) {
            frame.render_widget(Line::from(text).yellow(), warning);
        }
        draw_curves(frame, curves, history);
        let Some(seen) = history.samples.iter().rev().find_map(|s| s.seen.as_ref()) else {
            let text = "The first rates come with the second answer.";
            return frame.render_widget(Paragraph::new(text), list);
        };
        draw_resync(frame, resync, seen);
        draw_space(frame, space, seen);
        let rows = if self.volumes { seen.volumes.len() } else { seen.servers.len() };
        self.first = self.first.min(rows.saturating_sub(1));
        match self.volumes {
            true => draw_volumes(frame, list, &seen.volumes[self.first..]),
            false => draw_servers(frame, list, &seen.servers[self.first..]),
        }
        let halted = if self.halted { "HALTED, space goes on" } else { "space halts" };
        let other = if self.volumes { "servers" } else { "volumes" };
        let text = format!("q leaves, arrows scroll, {halted}, v shows {other}");
        frame.render_widget(Line::from(text).dim(), keys);
    }
}

fn color(state: State) -> Style {
    match state {
        State::Healthy => Style::new().fg(Color::Green),
        State::Degraded => Style::new().fg(Color::Yellow),
        State::Failed => Style::new().fg(Color::Red).bold(),
    }
}

/// Draws reads and writes of the whole cluster, the latest on the right.
fn draw_curves(frame: &mut Frame<'_>, area: Rect, history: &History) {
    let sides = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas::<2>(area);
    let value = |of: fn(&Seen) -> f64| {
        let width = usize::from(sides[0].width.saturating_sub(2));
        let get = move |s: &Sample| s.seen.as_ref().map(|s| of(s) as u64);
        history.samples.iter().rev().take(width).map(get).collect::<Vec<Option<u64>>>()
    };
    let last = history.samples.back().and_then(|s| s.seen.as_ref());
    let title = |what: &str, of: Option<(f64, f64)>| match of {
        Some((ops, bytes)) => format!(" {what} {ops:.0}/s, {}/s ", Size(bytes as u64)),
        None => format!(" {what} "),
    };
    let reads = title("Reads", last.map(|s| (s.rates.reads, s.rates.read_bytes)));
    let writes = title("Writes", last.map(|s| (s.rates.writes, s.rates.written_bytes)));
    let curve = |title: String, data: Vec<Option<u64>>, color: Color| {
        let curve = Sparkline::default().direction(RenderDirection::RightToLeft);
        curve.block(Block::bordered().title(title)).data(data).style(color)
    };
    frame.render_widget(curve(reads, value(|s| s.rates.reads), Color::Cyan), sides[0]);
    frame.render_widget(curve(writes, value(|s| s.rates.writes), Color::Magenta), sides[1]);
}

fn draw_resync(frame: &mut Frame<'_>, area: Rect, seen: &Seen) {
    let text = match seen.resync.remaining_bytes {
        0 => "Resync    nothing to do".to_owned(),
        _ => format!("Resync    {}", seen.resync),
    };
    frame.render_widget(Line::from(text), area);
}

fn draw_space(frame: &mut Frame<'_>, area: Rect, seen: &Seen) {
    let used: u64 = seen.servers.iter().map(|s| s.used_bytes).sum();
    let ratio = (used as f64 / seen.capacity_bytes.max(1) as f64).clamp(0.0, 1.0);
    let label = format!("{} of {} used", Size(used), Size(seen.capacity_bytes));
    let color = if ratio > 0.9 { Color::Red } else { Color::Blue };
    frame.render_widget(Gauge::default().ratio(ratio).label(label).gauge_style(color), area);
}

fn draw_servers(frame: &mut Frame<'_>, area: Rect, servers: &[Server]) {
    let titles = [
        "SDS",
        "STATE",
        "READS/S",
        "READ/S",
        "WRITES/S",
        "WRITTEN/S",
        "USED",
        "OF",
        "LEADS",
        "RESYNC",
    ];
    let row = |s: &Server| {
        let resync = match s.resync_remaining_bytes {
            0 => String::new(),
            left => Size(left).to_string(),
        };
        let cells = [
            s.name.clone(),
            s.state.to_string(),
            format!("{:.0}", s.rates.reads),
            Size(s.rates.read_bytes as u64).to_string(),
            format!("{:.0}", s.rates.writes),
            Size(s.rates.written_bytes as u64).to_string(),
            Size(s.used_bytes).to_string(),
            Size(s.capacity_bytes).to_string(),
            format!("{} of {}", s.groups_led, s.groups),
            resync,
        ];
        let style = if s.state == UpDown::Up { Style::new() } else { Style::new().red() };
        let aligned = cells.into_iter().enumerate().map(|(i, text)| align(i, text));
        Row::new(aligned).style(style)
    };
    let widths = [12, 6, 9, 11, 9, 11, 11, 11, 12, 11].map(Constraint::Length);
    let table = Table::new(servers.iter().map(row), widths);
    let titles = titles.into_iter().enumerate().map(|(i, text)| align(i, text.to_owned()));
    frame.render_widget(table.header(Row::new(titles).bold()), area);
}

fn draw_volumes(frame: &mut Frame<'_>, area: Rect, volumes: &[VolumeRates]) {
    let titles = [
        "VOLUME",
        "READS/S",
        "READ/S",
        "MEAN",
        "P99",
        "WRITES/S",
        "WRITTEN/S",
        "MEAN",
        "P99",
        "OPEN",
    ];
    let row = |v: &VolumeRates| {
        Row::new([
            Line::from(v.name.clone()),
            Line::from(format!("{:.0}", v.rates.reads)).right_aligned(),
            Line::from(Size(v.rates.read_bytes as u64).to_string()).right_aligned(),
            Line::from(time(v.read_mean_us)).right_aligned(),
            Line::from(time(v.read_p99_us)).right_aligned(),
            Line::from(format!("{:.0}", v.rates.writes)).right_aligned(),
            Line::from(Size(v.rates.written_bytes as u64).to_string()).right_aligned(),
            Line::from(time(v.write_mean_us)).right_aligned(),
            Line::from(time(v.write_p99_us)).right_aligned(),
            Line::from(v.outstanding.to_string()).right_aligned(),
        ])
    };
    let widths = [16, 9, 11, 9, 9, 9, 11, 9, 9, 6].map(Constraint::Length);
    let table = Table::new(volumes.iter().map(row), widths);
    let title = |(i, text): (usize, &'static str)| match i {
        0 => Line::from(text),
        _ => Line::from(text).right_aligned(),
    };
    let titles = titles.into_iter().enumerate().map(title);
    frame.render_widget(table.header(Row::new(titles).bold()), area);
}

/// Formats a latency in three digits, more or less.
fn time(us: Option<f64>) -> String {
    match us {
        None => "-".into(),
        Some(us) if us < 1000.0 => format!("{us:.0} µs"),
        Some(us) if us < 100_000.0 => format!("{:.1} ms", us / 1000.0),
        Some(us) if us < 10_000_000.0 => format!("{:.0} ms", us / 1000.0),
        Some(us) => format!("{:.0} s", us / 1_000_000.0),
    }
}

/// Aligns numbers to the right of their column.
fn align(column: usize, text: String) -> Line<'static> {
    let line = Line::from(text);
    if column < 2 { line } else { line.right_aligned() }
}

#[cfg(test)]
mod tests {
    use super::super::rates::tests::{report, report_of};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::{Duration, Instant};

    fn drawn(history: &History, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let mut view = View::default();
        terminal.draw(|frame| view.draw(frame, history)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_screen_shows_volumes_when_asked_to() {
        let begin = Instant::now();
        let mut history = History::new(begin, report_of(0, 1000));
        let _ = history.take(begin + Duration::from_secs(1), Ok(report_of(1000, 2000)));
        let mut terminal = Terminal::new(TestBackend::new(110, 20)).unwrap();
        let mut view = View::default();
        view.takes(&Event::Key(KeyCode::Char('v').into()));
        terminal.draw(|frame| view.draw(frame, &history)).unwrap();
        let screen = terminal.backend().to_string();
        for text in ["VOLUME", "vol1", "3.91 MiB", "50 µs", "52 µs", "v shows servers"] {
            assert!(screen.contains(text), "{text} is not in\n{screen}");
        }
        assert!(!screen.contains("sds3"), "{screen}");
    }

    #[test]
    fn latencies_are_short() {
        let times = [None, Some(0.4), Some(999.4), Some(1500.0), Some(123_456.0), Some(2e7)];
        assert_eq!(times.map(time), ["-", "0 µs", "999 µs", "1.5 ms", "123 ms", "20 s"]);
    }

    #[test]
    fn the_screen_shows_rates_resync_space_and_servers() {
        let begin = Instant::now();
        let mut history = History::new(begin, report(0));
        assert!(drawn(&history, 110, 20).contains("second answer"));
        let _ = history.take(begin + Duration::from_secs(1), Ok(report(1000)));
        let screen = drawn(&history, 110, 20);
        for text in [
            "Reads 3000/s, 11.72 MiB/s",
            "Writes 1500/s",
            "1.50 GiB of 3 GiB used",
            "600 MiB left at 60 MiB/s, 10s",
        ] {
            assert!(screen.contains(text), "{text} is not in\n{screen}");
        }
        assert!(screen.contains("sds3"), "{screen}");
        let _ = history.take(begin + Duration::from_secs(2), Err(anyhow::anyhow!("it is away")));
        assert!(drawn(&history, 110, 20).contains("No MDM answers"));
        // A window that is too small must not cause a panic.
        (1..12).for_each(|n| drop(drawn(&history, n * 3, n)));
    }
}

//! `gabion top`: the cluster live, for an operator's screen, or as lines for a log or a program.
//!
//! It asks the MDM for its status repeatedly, and shows the differences: `rates` and `volumes`
//! compute them, and `screen` draws them. If no MDM answers, it shows that and asks again; I/O goes
//! on meanwhile.

mod rates;
mod screen;
mod volumes;

use admin::exit::Exit;
use admin::report::Report;
use anyhow::{Context, Result, bail};
use clap::Args;
use daemon::size::Size;
use fleet::target::Target;
use ratatui::crossterm::event;
use rates::{History, Sample};
use std::io::{IsTerminal, stdout};
use std::time::{Duration, Instant};

/// Options of `gabion top`.
#[derive(Args, Debug)]
#[command(after_help = "\
Keys: q leaves, arrows scroll, space halts, v shows volumes in place of servers.

Examples:
  gabion top                      the cluster that `gabion up` runs here, every second
  gabion top --every 5s           less often
  gabion top --json --count 60    one line per second for a minute, for a program or a plot
  gabion top --plain | tee log    lines for a log")]
pub(crate) struct TopArgs {
    /// Time between two samples
    #[arg(long, value_name = "TIME", default_value = "1s")]
    every: humantime::Duration,
    /// Stop after this many samples
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Print one line of text per sample instead of a screen; the default without a terminal
    #[arg(long)]
    plain: bool,
    /// Print one JSON object per line and sample; docs/reference/top.md describes it
    #[arg(long, conflicts_with = "plain")]
    json: bool,
}

/// Runs `gabion top`.
pub(crate) fn run(target: &Target, args: &TopArgs) -> Result<Exit> {
    let every: Duration = *args.every;
    if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&every) {
        bail!("--every takes 100ms to 1h: the servers report five times a second");
    }
    // Fail now if the address is wrong, instead of showing an error for ever.
    let first = target.report()?;
    let watch = Watch { target, every, left: args.count };
    if args.json || args.plain || !stdout().is_terminal() {
        return watch.lines(first, args.json);
    }
    let mut terminal = ratatui::try_init().context("can't draw on this terminal: try --plain")?;
    let end = watch.screen(first, &mut terminal);
    ratatui::restore();
    end
}

struct Watch<'a> {
    target: &'a Target,
    every: Duration,
    left: Option<u64>,
}

impl Watch<'_> {
    /// Prints one line per sample.
    fn lines(mut self, first: Report, json: bool) -> Result<Exit> {
        let mut history = History::new(Instant::now(), first);
        while goes_on(&mut self.left) {
            std::thread::sleep(self.every);
            let sample = history.take(Instant::now(), self.target.report());
            match json {
                true => println!("{}", serde_json::to_string(&sample)?),
                false => println!("{}", line(&sample)),
            }
        }
        Ok(Exit::Ok)
    }

    /// Shows a screen until the user leaves.
    fn screen(mut self, first: Report, terminal: &mut ratatui::DefaultTerminal) -> Result<Exit> {
        let mut history = History::new(Instant::now(), first);
        let mut view = screen::View::default();
        while goes_on(&mut self.left) {
            let due = Instant::now() + self.every;
            loop {
                terminal.draw(|frame| view.draw(frame, &history)).context("can't draw")?;
                if !event::poll(due.saturating_duration_since(Instant::now()))? {
                    break;
                }
                if view.takes(&event::read()?) == screen::Wish::Leave {
                    return Ok(Exit::Ok);
                }
            }
            if !view.halted {
                history.take(Instant::now(), self.target.report());
            }
        }
        Ok(Exit::Ok)
    }
}

/// Counts down the samples, if their number is limited. Returns true if another one is due.
fn goes_on(left: &mut Option<u64>) -> bool {
    let due = *left != Some(0);
    *left = left.map(|n| n.saturating_sub(1));
    due
}

/// Formats a sample as one line.
fn line(sample: &Sample) -> String {
    let at = format!("{:>7.1}s", sample.seconds);
    let Some(seen) = &sample.seen else {
        return format!("{at}  no MDM answers: {}", sample.error.as_deref().unwrap_or("?"));
    };
    let rates = &seen.rates;
    let mut line = format!(
        "{at}  {:<8}  read {:>7.0}/s {:>10}/s  write {:>7.0}/s {:>10}/s",
        seen.state.to_string(),
        rates.reads,
        Size(rates.read_bytes as u64).to_string(),
        rates.writes,
        Size(rates.written_bytes as u64).to_string(),
    );
    if seen.resync.remaining_bytes > 0 {
        line += &format!("  resync {}", seen.resync);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_rounds_is_respected() {
        let count = |mut left| (0..5).take_while(|_| goes_on(&mut left)).count();
        assert_eq!([count(Some(0)), count(Some(3)), count(None)], [0, 3, 5]);
    }
}

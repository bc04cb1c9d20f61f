//! `gabion experiment all`: every experiment, one after the other, and a page with all verdicts.

use crate::options::Options;
use crate::report::number::escape;
use crate::report::{Folder, Report, page};
use crate::{command, esg, exaforge};
use admin::exit::Exit;
use anyhow::Result;
use bench::interrupt;
use clap::Args;
use fleet::target::Target;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;

/// Options of `experiment all`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Each experiment leaves its report in a directory of its own; index.html has all verdicts. One that can't \
start, because it lacks root or a program, is named there, and the exit code is 1; the others run.

Example:
  gabion experiment all --short --out reports")]
pub struct AllArgs {
    /// Run everything in its smallest form; no speed is judged
    #[arg(long, conflicts_with = "full")]
    short: bool,
    /// Run at the size of the publications, as far as this machine can
    #[arg(long)]
    full: bool,
    /// Directory for the reports, created if it is missing
    #[arg(long, value_name = "DIR", default_value = "gabion-experiments")]
    out: PathBuf,
    /// Print the plans of all, and end
    #[arg(long)]
    plan: bool,
}

/// An experiment that was run, or why it could not start.
type Outcome = (&'static str, Result<Report>);

/// Runs all experiments.
pub(crate) fn run(target: &Target, args: &AllArgs) -> Result<Exit> {
    let esg: esg::EsgArgs = args.of(esg::NAME)?;
    let exaforge: exaforge::ExaforgeArgs = args.of(exaforge::NAME)?;
    if args.plan {
        for (name, plan) in [(esg::NAME, esg.plan()), (exaforge::NAME, exaforge.plan())] {
            println!("{name}\n{}\n", plan.text());
        }
        return Ok(Exit::Ok);
    }
    let mut folder = Folder::make(&args.out)?;
    let mut outcomes: Vec<Outcome> = Vec::new();
    outcomes.push((esg::NAME, esg::run(&esg, true)));
    interrupt::check()?;
    outcomes.push((exaforge::NAME, exaforge::run(target, &exaforge)));
    interrupt::check()?;
    let mut exit = Exit::Ok;
    for (name, outcome) in &outcomes {
        match outcome {
            Ok(report) if command::tell(report, &args.options(name)) == Exit::Ok => {}
            Ok(_) => exit = Exit::Missed,
            Err(why) => eprintln!("{name} did not run: {why:#}"),
        }
    }
    folder.write("index.html", &index(&outcomes))?;
    println!("All verdicts are in {}", args.out.join("index.html").display());
    let failed = outcomes.iter().any(|(_, outcome)| outcome.is_err());
    Ok(if failed && exit == Exit::Ok { Exit::Failed } else { exit })
}

impl AllArgs {
    fn out(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }

    /// Returns the options that all experiments share.
    fn options(&self, name: &str) -> Options {
        let (out, only) = (Some(self.out(name)), Vec::new());
        Options { short: self.short, full: self.full, out, json: false, only, plan: false }
    }

    /// Returns the options of one experiment: its own at their defaults.
    fn of<T: Args>(&self, name: &'static str) -> Result<T> {
        let mut words = vec![OsString::from("--out"), self.out(name).into()];
        words.extend(self.short.then(|| "--short".into()));
        words.extend(self.full.then(|| "--full".into()));
        let command = T::augment_args(clap::Command::new(name)).no_binary_name(true);
        Ok(T::from_arg_matches(&command.try_get_matches_from(words)?)?)
    }
}

/// Returns `index.html`.
fn index(outcomes: &[Outcome]) -> String {
    let mut out = page::head("The experiments");
    for (name, outcome) in outcomes {
        match outcome {
            Ok(report) => {
                let [holds, differs, open] = report.counts();
                let _ = writeln!(
                    out,
                    "<h2>{}</h2>\n<p>{holds} claims hold, {differs} differ, {open} are not judged. The \
                     page is {name}/report.html.</p>\n<ul>",
                    escape(&report.title)
                );
                report.claims.iter().for_each(|claim| out += &claim.html());
                out += "</ul>\n";
                if let Some(complaint) = report.complaint() {
                    let _ = writeln!(out, "<p class=\"bad\">{}</p>", escape(&complaint));
                }
            }
            Err(why) => {
                let why = escape(&format!("{why:#}"));
                let _ =
                    writeln!(out, "<h2>{name}</h2>\n<p class=\"bad\">It did not run: {why}</p>");
            }
        }
    }
    out + "</body>\n</html>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::check_page;

    fn args() -> AllArgs {
        AllArgs { short: true, full: false, out: "o".into(), plan: false }
    }

    #[test]
    fn each_experiment_gets_the_common_options_and_a_directory_of_its_own() {
        let esg: esg::EsgArgs = args().of(esg::NAME).unwrap();
        let exaforge: exaforge::ExaforgeArgs = args().of(exaforge::NAME).unwrap();
        assert!(esg.options.short && exaforge.options.short && !esg.options.full);
        assert_eq!(esg.options.out("x"), PathBuf::from("o/esg"));
        assert_eq!(args().options("esg").out("x"), esg.options.out("x"));
    }

    #[test]
    fn an_experiment_that_did_not_run_is_named_with_the_reason() {
        let page = index(&[("esg", Err(anyhow::anyhow!("this takes <root>")))]);
        check_page(&page);
        assert!(page.contains("It did not run: this takes &lt;root&gt;"));
    }
}

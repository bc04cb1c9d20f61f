//! Runs commands one after the other, measures their time, and counts results.
//!
//! Steps can also run in the background, at the lowest priority. Their output is kept and printed
//! as a whole.

use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

/// Start of the line that a system test prints when it leaves something out.
const LEFT_OUT: &str = "LEFT OUT: ";
/// The environment variable with which nothing may be left out. The system tests read it, too.
const ALL: &str = "GABION_ALL";

/// The results so far.
#[derive(Default)]
pub(crate) struct Steps {
    passed: u32,
    failed: u32,
    broken: Vec<String>,
    /// What was not tested, and why.
    left_out: Vec<String>,
    /// What the steps printed, if they run in the background.
    kept: Option<String>,
}

impl Steps {
    /// Runs the steps of `behind` in the background of those of `before`.
    pub(crate) fn beside(
        &mut self,
        before: impl FnOnce(&mut Steps) -> Result<()>,
        behind: impl FnOnce(&mut Steps) -> Result<()> + Send,
    ) -> Result<()> {
        let mut background = Steps { kept: Some(String::new()), ..Steps::default() };
        let (front, back) = thread::scope(|scope| {
            let back = scope.spawn(|| behind(&mut background));
            (before(self), back.join())
        });
        let told = background.kept.take().unwrap_or_default();
        match &mut self.kept {
            Some(kept) => *kept += &told,
            None => print!("{told}"),
        }
        self.passed += background.passed;
        self.failed += background.failed;
        self.broken.append(&mut background.broken);
        background.left_out.into_iter().for_each(|what| self.leave_out(what));
        front?;
        back.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Prints a line, or keeps it.
    pub(crate) fn print(&mut self, text: &str) {
        match &mut self.kept {
            Some(kept) => *kept += &format!("{text}\n"),
            None => println!("{text}"),
        }
    }

    /// Runs one command as a step. If it is a test binary, each of its tests counts.
    pub(crate) fn command(&mut self, title: &str, command: &mut Command) -> Result<bool> {
        self.step(title, &line(command), |steps| {
            let background = steps.kept.is_some();
            let started = if background { start_behind(command) } else { start(command) };
            let (mut child, out) = started
                .with_context(|| format!("can't run {}", command.get_program().display()))?;
            let (mut passed, mut failed) = (0, 0);
            for text in out.lines() {
                let text = text?;
                steps.print(&text);
                if let Some(what) = text.strip_prefix(LEFT_OUT) {
                    steps.leave_out(what.into());
                }
                if let Some((p, f)) = test_result(&text) {
                    passed += p;
                    failed += f;
                }
            }
            let ok = child.wait()?.success();
            if passed + failed == 0 {
                return Ok(ok);
            }
            steps.passed += passed;
            steps.failed += failed;
            // A binary that crashed did not count its failure.
            if !ok && failed == 0 {
                steps.failed += 1;
            }
            Ok(ok)
        })
    }

    /// Runs one check as a step.
    pub(crate) fn check(
        &mut self,
        title: &str,
        check: impl FnOnce(&mut Steps) -> Result<bool>,
    ) -> Result<bool> {
        self.step(title, "", check)
    }

    fn step(
        &mut self,
        title: &str,
        what: &str,
        run: impl FnOnce(&mut Steps) -> Result<bool>,
    ) -> Result<bool> {
        self.print(&format!("\n=== {title}{}{what}", if what.is_empty() { "" } else { ": " }));
        let (start, before) = (Instant::now(), self.passed + self.failed);
        let ok = run(self)?;
        if self.passed + self.failed == before {
            *if ok { &mut self.passed } else { &mut self.failed } += 1;
        }
        if !ok {
            self.broken.push(title.to_owned());
        }
        let verdict = if ok { "ok" } else { "FAILED" };
        let seconds = start.elapsed().as_secs_f64();
        self.print(&format!("--- {title}: {verdict}, {seconds:.1} s"));
        Ok(ok)
    }

    /// Prints that a step was skipped, and why. With `GABION_ALL=1` that is a failure.
    pub(crate) fn skip(&mut self, title: &str, why: &str) {
        self.print(&format!("\n=== {title}: left out: {why}"));
        self.leave_out(format!("{title}: {why}"));
        if std::env::var(ALL).is_ok_and(|all| !all.is_empty() && all != "0") {
            self.failed += 1;
            self.broken.push(title.to_owned());
        }
    }

    /// Remembers what was not tested. A test may say so several times.
    fn leave_out(&mut self, what: String) {
        if !self.left_out.contains(&what) {
            self.left_out.push(what);
        }
    }

    /// Prints what was left out and the counts; returns true if nothing failed.
    pub(crate) fn finish(self) -> bool {
        if !self.left_out.is_empty() {
            println!("\nLeft out ({ALL}=1 makes it a failure):");
            self.left_out.iter().for_each(|what| println!("  {what}"));
        }
        if !self.broken.is_empty() {
            println!("\nFailed: {}", self.broken.join(", "));
        }
        println!("\n{} passed, {} failed", self.passed, self.failed);
        self.failed == 0
    }
}

/// Starts a command. Returns it with its standard output.
fn start(command: &mut Command) -> io::Result<(Child, Box<dyn BufRead>)> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let out = child.stdout.take().expect("stdout is piped");
    Ok((child, Box::new(BufReader::new(out))))
}

/// Starts a command at the lowest priority. Returns it with its standard output and error.
fn start_behind(command: &Command) -> io::Result<(Child, Box<dyn BufRead>)> {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    nice.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    let (out, writer) = io::pipe()?;
    let child = nice.stdout(writer.try_clone()?).stderr(writer).spawn()?;
    Ok((child, Box::new(BufReader::new(out))))
}

/// Returns a command line as a person would type it.
fn line(command: &Command) -> String {
    let mut words: Vec<String> = command
        .get_envs()
        .filter_map(|(k, v)| Some(format!("{}={}", k.to_string_lossy(), quote(v?))))
        .collect();
    words.push(quote(command.get_program()));
    words.extend(command.get_args().map(quote));
    words.join(" ")
}

fn quote(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    if word.is_empty() || word.contains([' ', '\'', '"', '*', '$', ';', '&', '|']) {
        format!("'{}'", word.replace('\'', r"'\''"))
    } else {
        word.into_owned()
    }
}

/// Returns the counts in a line such as `test result: ok. 17 passed; 0 failed; ...` of a test
/// binary, or `300 passed, 0 failed` of the simulator.
fn test_result(text: &str) -> Option<(u32, u32)> {
    let counts = match text.strip_prefix("test result: ") {
        Some(rest) => rest.split_once(". ")?.1,
        None => text,
    };
    let (passed, rest) = counts.split_once(" passed")?;
    let failed = rest.get(2..)?.split_once(" failed")?.0;
    Some((passed.parse().ok()?, failed.parse().ok()?))
}

/// Returns a command that runs the `cargo` that runs us.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(args);
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read() {
        let line =
            "test result: FAILED. 17 passed; 2 failed; 1 ignored; 0 measured; 3 filtered out";
        assert_eq!(test_result(line), Some((17, 2)));
        assert_eq!(test_result("300 passed, 4 failed"), Some((300, 4)));
        assert_eq!(test_result("test a ... ok"), None);
        assert_eq!(test_result("test has passed"), None);
    }

    #[test]
    fn tests_that_are_left_out_are_listed_once() {
        let mut steps = Steps::default();
        let said = "LEFT OUT: a: no mount\nLEFT OUT: a: no mount\nLEFT OUT: b: no mount\nok\n";
        assert!(steps.command("told", Command::new("printf").arg(said)).unwrap());
        assert_eq!(steps.left_out, ["a: no mount", "b: no mount"]);
    }

    #[test]
    fn steps_in_the_background_count_as_well() {
        let result = |text: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("echo 'test result: {text}'; echo error >&2; $CODE")]);
            shell
        };
        let mut steps = Steps::default();
        let front = |steps: &mut Steps| {
            let mut shell = result("ok. 17 passed; 0 failed; 0 ignored");
            assert!(steps.command("front", shell.env("CODE", "exit 0"))?);
            Ok(())
        };
        let back = |steps: &mut Steps| {
            let mut shell = result("FAILED. 1 passed; 2 failed; 0 ignored");
            assert!(!steps.command("back", shell.env("CODE", "exit 1"))?);
            let kept = steps.kept.as_deref().unwrap_or_default();
            assert!(kept.contains("2 failed") && kept.contains("\nerror\n"), "{kept}");
            steps.skip("another", "no reason");
            Ok(())
        };
        steps.beside(front, back).unwrap();
        assert_eq!((steps.passed, steps.failed), (18, 2));
        assert_eq!(steps.broken, ["back"]);
        assert_eq!(steps.left_out, ["another: no reason"]);
    }

    #[test]
    fn steps_in_the_background_have_a_background_too() {
        let mut steps = Steps { kept: Some(String::new()), ..Steps::default() };
        let passes = |steps: &mut Steps| {
            let mut result = Command::new("echo");
            steps.command("tests", result.arg("test result: ok. 2 passed; 0 failed;")).map(|_| ())
        };
        steps.beside(passes, passes).unwrap();
        assert_eq!(steps.passed, 4);
        // The heads of the steps have the words, too.
        let kept = steps.kept.unwrap_or_default();
        assert_eq!(kept.lines().filter(|line| line.starts_with("test result")).count(), 2);
    }

    #[test]
    fn commands_print_as_they_can_be_typed() {
        let mut command = Command::new("a b");
        command.args(["-x", "it's"]);
        assert_eq!(line(&command), r"'a b' -x 'it'\''s'");
    }
}

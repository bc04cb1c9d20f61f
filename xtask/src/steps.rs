//! Runs commands one after the other, measures their time, and counts results.

use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Start of the line that a system test prints when it leaves something out.
const LEFT_OUT: &str = "LEFT OUT: ";
/// The environment variable with which nothing may be left out. The system tests read it, too.
const ALL: &str = "GABION_ALL";

/// The results so far.
#[derive(Default)]
pub struct Steps {
    passed: u32,
    failed: u32,
    broken: Vec<String>,
    /// What was not tested, and why.
    left_out: Vec<String>,
}

impl Steps {
    /// Runs one command as a step. If it is a test binary, each of its tests counts.
    pub fn command(&mut self, title: &str, command: &mut Command) -> Result<bool> {
        self.step(title, &line(command), |steps| {
            let mut child = command
                .stdout(Stdio::piped())
                .spawn()
                .with_context(|| format!("can't run {}", command.get_program().display()))?;
            let out = child.stdout.take().context("stdout is piped")?;
            let (mut passed, mut failed) = (0, 0);
            let mut test = String::new();
            for text in BufReader::new(out).lines() {
                let text = text?;
                println!("{text}");
                if let Some(name) = running_test(&text) {
                    test = name.map(|name| format!("{name}: ")).unwrap_or_default();
                }
                if let Some(why) = text.strip_prefix(LEFT_OUT) {
                    steps.leave_out(format!("{test}{why}"));
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
    pub fn check(&mut self, title: &str, check: impl FnOnce() -> Result<bool>) -> Result<bool> {
        self.step(title, "", |_| check())
    }

    fn step(
        &mut self,
        title: &str,
        what: &str,
        run: impl FnOnce(&mut Steps) -> Result<bool>,
    ) -> Result<bool> {
        println!("\n=== {title}{}{what}", if what.is_empty() { "" } else { ": " });
        let (start, before) = (Instant::now(), self.passed + self.failed);
        let ok = run(self)?;
        if self.passed + self.failed == before {
            *if ok { &mut self.passed } else { &mut self.failed } += 1;
        }
        if !ok {
            self.broken.push(title.to_owned());
        }
        let verdict = if ok { "ok" } else { "FAILED" };
        println!("--- {title}: {verdict}, {:.1} s", start.elapsed().as_secs_f64());
        Ok(ok)
    }

    /// Prints that a step was skipped, and why. With `GABION_ALL=1` that is a failure.
    pub fn skip(&mut self, title: &str, why: &str) {
        println!("\n=== {title}: left out: {why}");
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
    pub fn finish(self) -> bool {
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

/// Reads a line about a test. Returns `Some(Some(name))` if the test goes on after the line, as
/// with `--nocapture`, and `Some(None)` if it has ended.
fn running_test(text: &str) -> Option<Option<&str>> {
    let (name, rest) = text.strip_prefix("test ")?.split_once(" ... ")?;
    let ended = ["ok", "FAILED", "ignored"].iter().any(|end| rest.starts_with(end));
    Some((!ended).then_some(name))
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
pub fn cargo(args: &[&str]) -> Command {
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
    fn what_tests_leave_out_is_listed_once_with_their_names() {
        assert_eq!(running_test("test power::cut ... "), Some(Some("power::cut")));
        assert_eq!(running_test("test power::cut ... ok"), Some(None));
        assert_eq!(running_test("test result: ok. 17 passed; 2 failed"), None);
        let mut steps = Steps::default();
        let said = "test a ... \nLEFT OUT: no mount\nLEFT OUT: no mount\nok\n\
                    test b ... \nLEFT OUT: no mount\nok\n\
                    test c ... ok\nLEFT OUT: no loop device\n";
        assert!(steps.command("told", Command::new("printf").arg(said)).unwrap());
        assert_eq!(steps.left_out, ["a: no mount", "b: no mount", "no loop device"]);
    }

    #[test]
    fn commands_print_as_they_can_be_typed() {
        let mut command = Command::new("a b");
        command.args(["-x", "it's"]);
        assert_eq!(line(&command), r"'a b' -x 'it'\''s'");
    }
}

//! What an experiment is going to do and what it needs. The needs are looked at before anything is
//! changed on the machine.

use anyhow::{Result, bail};
use daemon::files;
use daemon::size::Size;
use std::path::{Path, PathBuf};

/// The plan of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub steps: Vec<Step>,
    /// Bytes that are written to the disk of `folder`.
    pub disk_bytes: u64,
    /// Where the devices are.
    pub folder: PathBuf,
    /// What root is needed for; `None` if it is not needed.
    pub root: Option<&'static str>,
    pub programs: Vec<Program>,
}

/// A step.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// Its name for `--only`.
    pub name: &'static str,
    /// What it does, with its sizes.
    pub what: String,
    /// How long it takes, roughly.
    pub seconds: f64,
}

/// A program that has to be there, and the Debian package that has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub name: &'static str,
    pub package: &'static str,
}

impl Plan {
    /// Refuses names of steps that don't exist.
    pub(crate) fn check_names(names: &[&str], only: &[String]) -> Result<()> {
        if let Some(name) = only.iter().find(|name| !names.contains(&name.as_str())) {
            bail!("there is no step {name}. The steps are: {}", names.join(", "));
        }
        Ok(())
    }

    /// Returns an error if the machine lacks something.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(what) = self.root.filter(|_| !rustix::process::geteuid().is_root()) {
            bail!("this takes root, for {what}: run it with sudo");
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let packages = self.lacking(|program| is_there(program, &path));
        if !packages.is_empty() {
            bail!("programs are missing: apt-get install {}", packages.join(" "));
        }
        let free = files::free(&self.folder).unwrap_or(u64::MAX);
        if free < self.disk_bytes {
            bail!(
                "{} has {} of free space, and the run needs {}: choose another directory with --out",
                self.folder.display(),
                Size(free),
                Size(self.disk_bytes)
            );
        }
        Ok(())
    }

    fn lacking(&self, is_there: impl Fn(&str) -> bool) -> Vec<&'static str> {
        let mut lacking: Vec<&str> =
            self.programs.iter().filter(|p| !is_there(p.name)).map(|p| p.package).collect();
        lacking.sort_unstable();
        lacking.dedup();
        lacking
    }

    /// Returns the plan as text for people.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        for step in &self.steps {
            out += &format!("{:<10} {:>8}  {}\n", step.name, minutes(step.seconds), step.what);
        }
        let packages: Vec<&str> = self.lacking(|_| false);
        let or_none = |text: String| if text.is_empty() { "none".to_owned() } else { text };
        out += &format!(
            "\ntime       {} in all\ndisk       {}, below {}\nroot       {}\npackages   {}",
            minutes(self.steps.iter().map(|s| s.seconds).sum()),
            Size(self.disk_bytes),
            self.folder.display(),
            self.root.map_or("not needed".to_owned(), |what| format!("needed, for {what}")),
            or_none(packages.join(" "))
        );
        out
    }
}

fn minutes(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

/// Returns true if a program is in one of the folders of `path`, or in those of the system.
fn is_there(program: &str, path: &str) -> bool {
    let folders = path.split(':').chain(["/usr/sbin", "/sbin"]);
    folders.into_iter().any(|folder| Path::new(folder).join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let step = |name, seconds| Step { name, what: "3 nodes".into(), seconds };
        let program = |name, package| Program { name, package };
        Plan {
            steps: vec![step("media", 20.0), step("scaling", 600.0)],
            disk_bytes: 1 << 30,
            folder: std::env::temp_dir(),
            root: None,
            programs: vec![program("sh", "dash"), program("no-such-program", "nothing")],
        }
    }

    #[test]
    fn a_plan_says_what_it_takes() {
        let text = plan().text();
        for part in ["media", "20 s", "10 min in all", "1 GiB", "not needed", "dash nothing"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn what_is_missing_is_said_in_one_sentence() {
        let why = plan().check().unwrap_err().to_string();
        assert_eq!(why, "programs are missing: apt-get install nothing");
        let large = Plan { programs: Vec::new(), disk_bytes: u64::MAX, ..plan() };
        let why = large.check().unwrap_err().to_string();
        assert!(why.contains("free space") && why.contains("--out"), "{why}");
        Plan { programs: Vec::new(), ..plan() }.check().unwrap();
        let why = Plan::check_names(&["media"], &["x".into()]).unwrap_err().to_string();
        assert_eq!(why, "there is no step x. The steps are: media");
    }
}

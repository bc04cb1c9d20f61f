//! The processes that keep a mount or a device busy, because they have it or a file of it open.

use std::fmt::Write;
use std::fs::{self, Metadata};
use std::path::Path;

/// Most processes that are named.
const NAMED: usize = 8;

/// Names the processes with an open file or a working folder for which `is_it` is true. Returns an
/// empty string if no such process is visible.
pub(crate) fn names(is_it: impl Fn(&Metadata) -> bool) -> String {
    let mut found = Vec::new();
    let Ok(processes) = fs::read_dir("/proc") else { return String::new() };
    for entry in processes.flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        if pid != std::process::id() && holds(&entry.path(), &is_it) {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            found.push((pid, name.trim().to_owned()));
        }
    }
    listed(&found)
}

fn holds(process: &Path, is_it: &impl Fn(&Metadata) -> bool) -> bool {
    let is = |link: &Path| fs::metadata(link).is_ok_and(|found| is_it(&found));
    if ["cwd", "root", "exe"].iter().any(|link| is(&process.join(link))) {
        return true;
    }
    let Ok(open) = fs::read_dir(process.join("fd")) else { return false };
    open.flatten().any(|entry| is(&entry.path()))
}

fn listed(found: &[(u32, String)]) -> String {
    let mut text = String::new();
    for (pid, name) in found.iter().take(NAMED) {
        let comma = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{comma}process {pid} ({name})");
    }
    if found.len() > NAMED {
        let _ = write!(text, " and {} more", found.len() - NAMED);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_that_works_in_a_folder_is_named() {
        let folder = std::env::temp_dir().join(format!("gabion-holders-{}", std::process::id()));
        daemon::files::make_folder(&folder).unwrap();
        let inode = fs::metadata(&folder).unwrap().ino();
        let is_it = |found: &Metadata| found.is_dir() && found.ino() == inode;
        assert_eq!(names(is_it), "");
        let mut sleep = Command::new("sleep");
        let mut child = sleep.arg("600").current_dir(&folder).stdin(Stdio::null()).spawn().unwrap();
        let named = names(is_it);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(named, format!("process {} (sleep)", child.id()));
        fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn long_lists_are_cut() {
        let many: Vec<_> = (1..=10).map(|pid| (pid, "fio".to_owned())).collect();
        let text = listed(&many);
        assert!(text.starts_with("process 1 (fio), process 2 (fio)"), "{text}");
        assert!(text.ends_with("process 8 (fio) and 2 more"), "{text}");
    }
}

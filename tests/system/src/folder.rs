//! Temporary folders: removed if their test passes, kept with the processes' logs if it fails.

use anyhow::Result;
use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static COUNT: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static MADE: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
}

/// Number of lines of each log that a failed test shows.
const TAIL: usize = 12;

/// A folder for one test, with a path short enough for unix sockets.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Creates an empty folder.
    pub fn new() -> Result<Folder> {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("gabion-t{}-{n}", std::process::id()));
        fs::create_dir_all(&path)?;
        MADE.with_borrow_mut(|made| made.push(path.clone()));
        Ok(Folder(path))
    }

    /// Returns the path of a file or folder in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// Runs the body of one test. If it passes, its folders are removed. If it fails, the ends of the
/// logs are shown, and everything is kept.
pub fn case(body: impl FnOnce() -> Result<()>) {
    let outcome = body();
    let made = MADE.take();
    if let Err(error) = outcome {
        for folder in &made {
            eprintln!("kept for a look: {}", folder.display());
            show_logs(&folder.join("c/logs"));
        }
        panic!("{error:?}");
    }
    for folder in made {
        let _ = fs::remove_dir_all(folder);
    }
}

fn show_logs(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.filter_map(|e| Some(e.ok()?.path())) {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        eprintln!("--- {}", path.display());
        lines[lines.len().saturating_sub(TAIL)..].iter().for_each(|line| eprintln!("{line}"));
    }
}

//! Checks whether sparse devices have enough space on their file systems.

use daemon::files;
use daemon::size::Size;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Returns a warning for each file system that has less free space than its file devices may still
/// take. A device is its path and its size in bytes.
pub(crate) fn warnings(devices: &[(PathBuf, u64)]) -> Vec<String> {
    let mut systems: BTreeMap<u64, (&Path, u64)> = BTreeMap::new();
    for (file, bytes) in devices {
        let there = file.ancestors().find(|path| path.exists());
        let Some(found) = there.and_then(|path| fs::metadata(path).ok()) else { continue };
        let wanted = &mut systems.entry(found.dev()).or_insert((file, 0)).1;
        *wanted += bytes.saturating_sub(files::allocated(file));
    }
    let lacking = |(file, wanted): &(&Path, u64)| {
        let free = files::free(file).filter(|free| free < wanted)?;
        Some(warning(file, *wanted, free))
    };
    systems.values().filter_map(lacking).collect()
}

fn warning(file: &Path, wanted: u64, free: u64) -> String {
    format!(
        "WARNING: devices on the file system of {} may still take {}, and {} are free there. When \
         it is full, their servers wait until there is space.",
        file.display(),
        Size(wanted),
        Size(free)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_files_need_space() {
        let file = std::env::temp_dir().join(format!("gabion-room-{}", std::process::id()));
        files::write(&file, vec![1; 1 << 20]).unwrap();
        assert_eq!(warnings(&[(file.clone(), 1 << 20)]), Vec::<String>::new());
        let huge = warnings(&[(file.clone(), 1 << 60), (file.with_extension("other"), 1 << 60)]);
        assert_eq!(huge.len(), 1, "one file system, one line: {huge:?}");
        assert!(huge[0].contains("2048.00 PiB"), "{huge:?}");
        files::remove(&file).unwrap();
    }
}

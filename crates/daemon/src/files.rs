//! The only place that creates, replaces and renames files other than devices.
//!
//! A file system may keep a new name in memory alone for half a minute, and content for longer:
//! after a power cut a file can be gone, empty, or in its earlier state. So a file is written
//! aside, flushed, and renamed, and then its folder is flushed. A reader finds the old content or
//! the new one, and what a command has reported as done survives the power cut.

use std::fs::{self, File};
use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};

/// Suffix of a file that is being written. Such a file is meaningless after a power cut.
pub const DRAFT: &str = ".new";

/// Replaces a file as a whole. It is durable when this returns.
pub fn write(file: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let draft = aside(file, content, File::sync_all)?;
    rename(&draft, file)
}

/// Atomically replaces a file that is useless after a power cut, such as a pid file. It is not
/// flushed.
pub fn write_for_this_boot(file: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let draft = aside(file, content, |_| Ok(()))?;
    fs::rename(draft, file)
}

fn aside(
    file: &Path,
    content: impl AsRef<[u8]>,
    flush: impl FnOnce(&File) -> Result<()>,
) -> Result<PathBuf> {
    let mut name = file.file_name().ok_or(ErrorKind::InvalidInput)?.to_owned();
    name.push(DRAFT);
    let draft = file.with_file_name(name);
    let mut to = File::create(&draft)?;
    // A draft left on a full file system would take the space that cleaning up needs.
    if let Err(error) = to.write_all(content.as_ref()).and_then(|()| flush(&to)) {
        let _ = fs::remove_file(&draft);
        return Err(error);
    }
    Ok(draft)
}

/// Creates a file that must not exist. The caller flushes with [`File::sync_all`] and [`settle`].
pub fn create(file: &Path) -> Result<File> {
    File::options().write(true).create_new(true).open(file)
}

/// Opens a file that serves only as a lock.
pub fn lock(file: &Path) -> Result<File> {
    File::options().create(true).truncate(false).write(true).open(file)
}

/// Opens a log to append to. Its lines are not flushed, because nothing depends on them.
pub fn log(file: &Path) -> Result<File> {
    File::options().create(true).append(true).open(file)
}

/// Allocates disk space for ranges of a file, so that writes there can't fail for lack of space.
/// Its length and its content stay the same. An error is harmless: then there is no such guarantee.
pub fn reserve(file: &Path, ranges: &[std::ops::Range<u64>]) -> Result<()> {
    let file = File::options().create(true).truncate(false).write(true).open(file)?;
    for range in ranges {
        let len = range.end - range.start;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, range.start, len)?;
    }
    Ok(())
}

/// Returns the free bytes on the file system of a file, or of the folder where it will lie.
pub fn free(file: &Path) -> Option<u64> {
    let there = file.ancestors().find(|path| path.exists());
    let found = rustix::fs::statvfs(there.unwrap_or(Path::new("."))).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Returns the bytes that a file has allocated on disk; 0 if it does not exist.
pub fn allocated(file: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(&match fs::metadata(file) {
        Ok(found) => found,
        Err(_) => return 0,
    }) * 512
}

/// Renames a file. The new name is durable when this returns.
pub fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to)?;
    settle(to)
}

/// Removes a file, if it exists. It stays removed after a power cut.
pub fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Ok(()) => settle(file),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// Makes a folder and its parents. They are durable when this returns.
pub fn make_folder(folder: &Path) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = above(folder);
    if parent != folder {
        make_folder(parent)?;
    }
    match fs::create_dir(folder) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists || !folder.is_dir() => Err(e),
        _ => settle(folder),
    }
}

/// Makes a folder that must not exist, so of two callers one gets it. It is not flushed.
pub fn make_new_folder(folder: &Path) -> Result<()> {
    fs::create_dir(folder)
}

/// Makes the creation, removal or renaming of this name durable.
pub fn settle(file: &Path) -> Result<()> {
    match File::open(above(file))?.sync_all() {
        // Some file systems can't flush a folder.
        Err(e) if e.kind() == ErrorKind::InvalidInput => Ok(()),
        outcome => outcome,
    }
}

/// Returns the parent folder.
fn above(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => file,
    }
}

/// Returns true when a file exists and is empty or all zeros, as a power cut leaves a file that was
/// never flushed.
pub fn is_emptied(file: &Path) -> bool {
    fs::read(file).is_ok_and(|content| content.iter().all(|byte| *byte == 0))
}

/// Returns the error for reading an emptied file, which tells what to do.
pub fn emptied(file: &Path) -> Error {
    Error::other(format!(
        "{} is empty, as a power cut may leave a file: `gabion up` and `gabion deploy` write \
         theirs again, others have to be written again by hand",
        file.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_leaves_no_draft() {
        let folder = std::env::temp_dir().join(format!("gabion-files-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        make_folder(&folder.join("a/b")).unwrap();
        make_folder(&folder.join("a/b")).unwrap();
        let file = folder.join("a/b/x.toml");
        write(&file, "one").unwrap();
        write(&file, "two").unwrap();
        write_for_this_boot(&file, "three").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "three");
        rename(&file, &file.with_extension("log")).unwrap();
        let names = || fs::read_dir(folder.join("a/b")).unwrap().count();
        assert_eq!(names(), 1, "no draft is left");
        remove(&file).unwrap();
        remove(&file.with_extension("log")).unwrap();
        assert_eq!(names(), 0);
        assert!(write(&folder.join("no/folder"), "x").is_err());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn only_a_file_without_content_counts_as_emptied() {
        let file = std::env::temp_dir().join(format!("gabion-emptied-{}", std::process::id()));
        assert!(!is_emptied(&file), "it is not there");
        for (content, is) in [("", true), ("\0\0\0", true), ("x", false), ("\n", false)] {
            write(&file, content).unwrap();
            assert_eq!(is_emptied(&file), is, "{content:?}");
        }
        remove(&file).unwrap();
    }
}

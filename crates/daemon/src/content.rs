//! The content of a device before it is given to a server, and the enlarging of files.

use crate::inspect::Copies;
use crate::offline;
use crate::size::Size;
use crate::spec::DeviceSpec;
use anyhow::{Context, Result, bail};
use seam::DiskError;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use store::durable::Content as Superblock;
use store::durable::layout::{Layout, PAGE, SMALLEST};
use store::durable::survey::Search;

/// Bytes at the beginning and at the end that are examined, and overwritten by [`erase`].
const EDGE: u64 = 1 << 20;

/// The content at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// Zeros, or no file at all.
    Nothing,
    /// A device of a cluster, intact or not.
    Device {
        /// The cluster, as `gabion status` shows it, if it can be read.
        cluster: Option<String>,
    },
    /// Something else.
    Foreign,
}

/// Finds out what is at a path.
pub fn of(path: &Path) -> Result<Content> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Content::Nothing),
        Err(e) => return Err(e).with_context(|| format!("can't open {}", path.display())),
    };
    let bytes = size(&file)?;
    if bytes == 0 {
        return Ok(Content::Nothing);
    }
    let mut drive = offline::read_only(path)?;
    let copies = Copies::read(&mut drive)?;
    if let Some(content) = copies.newest() {
        let cluster = Some(format!("{:016x}", content.identity.cluster.0));
        return Ok(Content::Device { cluster });
    }
    if !copies.are_missing() {
        return Ok(Content::Device { cluster: None });
    }
    let blank =
        is_blank(&file, 0..bytes.min(EDGE))? && is_blank(&file, bytes.saturating_sub(EDGE)..bytes)?;
    Ok(if blank { Content::Nothing } else { Content::Foreign })
}

/// Refuses a place where no device can be made.
pub fn check_place(spec: &DeviceSpec) -> Result<()> {
    let Some(path) = spec.path() else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.exists()) {
        bail!("there is no folder {}: make it, or mount what belongs there", folder.display());
    }
    let there = match File::open(path) {
        // A folder has no size. Opening it as a device will fail.
        Ok(file) if file.metadata()?.is_dir() => return Ok(()),
        Ok(file) => size(&file)?,
        Err(_) => 0,
    };
    let bytes = match spec {
        _ if there > 0 => there,
        DeviceSpec::File(_, Some(size)) => size.0,
        DeviceSpec::File(path, None) => {
            if let Some(why) = no_size(path) {
                bail!("there is no file {}, and {why}", path.display());
            }
            bail!(
                "there is no file {0}: give it a size, as in file:{0}:100GiB, and it is created",
                path.display()
            )
        }
        _ => return Ok(()),
    };
    if bytes < SMALLEST {
        bail!(
            "{} with {} is too small: a device has at least {}",
            path.display(),
            Size(bytes),
            Size(SMALLEST)
        );
    }
    Ok(())
}

/// Returns why the end of a path, after a colon, is not a size, if it was probably meant as one.
fn no_size(path: &Path) -> Option<String> {
    let (_, size) = path.file_name()?.to_str()?.rsplit_once(':')?;
    size.parse::<Size>().err()
}

/// Returns the superblock of the device at a path, also while a server uses it; `None` if there is
/// no usable device.
pub fn superblock(path: &Path) -> Result<Option<Superblock>> {
    let file = File::open(path).with_context(|| format!("can't open {}", path.display()))?;
    let mut search = Search::new(size(&file)?);
    let mut page = [0; PAGE as usize];
    while let Some(at) = search.next() {
        let read = file.read_exact_at(&mut page, at);
        search.take(read.map(|()| &page[..]).map_err(|_| DiskError::Io));
    }
    Ok(search.choose().ok())
}

/// Returns the size in bytes of what is at a path; 0 if there is nothing.
pub fn bytes(path: &Path) -> Result<u64> {
    match File::open(path) {
        Ok(file) => size(&file),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(0),
        Err(e) => Err(e).with_context(|| format!("can't open {}", path.display())),
    }
}

/// Enlarges a file to at least `to` bytes, sparse, if it holds an intact device, or nothing.
/// Returns its size.
///
/// A device that has shrunk stays as it is: the data behind its end is missing, and opening it
/// reports that. A missing or unreadable file is also left to the code that opens it.
pub fn enlarge(path: &Path, to: u64) -> Result<u64> {
    let now = bytes(path).unwrap_or_default();
    let whole = || matches!(superblock(path), Ok(Some(_)));
    let nothing = || matches!(of(path), Ok(Content::Nothing));
    if now == 0 || now >= to || !path.is_file() || !(whole() || nothing()) {
        return Ok(now);
    }
    let failed = || format!("can't give {} {}", path.display(), Size(to));
    let file = File::options().write(true).open(path).with_context(failed)?;
    file.set_len(to).and_then(|()| file.sync_all()).with_context(failed)?;
    Ok(to)
}

/// Overwrites the beginning, the end and the superblocks with zeros, so that nothing recognises the
/// content any more.
pub fn erase(path: &Path) -> Result<()> {
    let failed = || format!("can't overwrite {}", path.display());
    let known = superblock(path)?.map(|s| s.layout.places());
    let mut file = File::options().write(true).open(path).with_context(failed)?;
    let bytes = size(&file)?;
    let zeros = vec![0; EDGE.min(bytes) as usize];
    let superblocks = Layout::superblocks(bytes).into_iter().chain(known.into_iter().flatten());
    let edges = [0, bytes.saturating_sub(EDGE)];
    for at in superblocks.chain(edges).filter(|at| *at < bytes) {
        let len = (bytes - at).min(EDGE) as usize;
        file.seek(SeekFrom::Start(at)).with_context(failed)?;
        file.write_all(&zeros[..len]).with_context(failed)?;
    }
    file.sync_all().with_context(failed)
}

/// Returns the size in bytes of a file or block device.
fn size(mut file: &File) -> Result<u64> {
    file.seek(SeekFrom::End(0)).context("its size can't be found out")
}

fn is_blank(mut file: &File, range: std::ops::Range<u64>) -> Result<bool> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    file.seek(SeekFrom::Start(range.start))?;
    file.read_exact(&mut bytes).context("it can't be read")?;
    Ok(bytes.iter().all(|b| *b == 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rt::{Backend, OfflineDevice};
    use store::durable::Identity;

    #[test]
    fn devices_blanks_and_strangers_are_told_apart() {
        let dir = std::env::temp_dir().join(format!("gabion-content-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("disk");
        assert_eq!(of(&path).unwrap(), Content::Nothing, "no file");
        let spec = rt::DiskSpec::file(&path, Some(16 << 20));
        let mut drive = OfflineDevice::open(&spec, Backend::Auto).unwrap();
        assert_eq!(of(&dir.join("none")).unwrap(), Content::Nothing);
        let cluster = base::ClusterId(0xab);
        let id = Identity { cluster, device: base::DeviceId(7), uuid: [1, 2] };
        offline::format(&mut drive, id, false).unwrap();
        drop(drive);
        let device = Content::Device { cluster: Some("00000000000000ab".into()) };
        assert_eq!(of(&path).unwrap(), device);
        erase(&path).unwrap();
        assert_eq!(of(&path).unwrap(), Content::Nothing);
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        assert_eq!(of(&path).unwrap(), Content::Foreign);
        std::fs::remove_dir_all(dir).unwrap();
    }
}

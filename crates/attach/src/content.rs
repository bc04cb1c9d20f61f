//! Detects the content of a volume, so that no file system overwrites data.
//!
//! Signatures are in the first and the last bytes. A volume without a signature may still hold
//! data, so a volume is blank only if all of it is a hole or reads as zeros.

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes that are searched for signatures.
const LOOK: usize = 1 << 20;

/// A file system that `attach` makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Fs {
    /// The usual one
    Ext4,
    /// For large files and many writers
    Xfs,
}

impl Fs {
    /// Its name for `mount` and `mkfs`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fs::Ext4 => "ext4",
            Fs::Xfs => "xfs",
        }
    }
}

/// The content of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// Nothing.
    Blank,
    /// A file system, by its name for `mount`.
    Fs(&'static str),
    /// Something other than a file system.
    Other(&'static str),
    /// Data without a known signature.
    Data,
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Content::Blank => "nothing",
            Content::Fs(name) => name,
            Content::Other(what) => what,
            Content::Data => "data of an unknown kind",
        })
    }
}

/// Signatures: offset, bytes, and meaning. Sources: the headers of the Linux kernel and of
/// util-linux.
const SIGNATURES: &[(usize, &[u8], Content)] = &[
    (0, b"XFSB", Content::Fs("xfs")),
    (0x10040, b"_BHRfS_M", Content::Fs("btrfs")),
    (1024, &[0x10, 0x20, 0xf5, 0xf2], Content::Fs("f2fs")),
    (3, b"NTFS    ", Content::Fs("ntfs")),
    (0, b"LUKS\xba\xbe", Content::Other("an encrypted volume (LUKS)")),
    (4096 - 10, b"SWAPSPACE2", Content::Other("swap space")),
    (512, b"LABELONE", Content::Other("a physical volume of LVM")),
    (4096, &[0xfc, 0x4e, 0x2b, 0xa9], Content::Other("a part of a software RAID")),
    (512, b"EFI PART", Content::Other("a partition table")),
    (510, &[0x55, 0xaa], Content::Other("a partition table")),
];

/// Returns the content that the first bytes of a volume indicate.
fn recognised(head: &[u8]) -> Option<Content> {
    let at = |at: usize, what: &[u8]| head.get(at..at + what.len()) == Some(what);
    if at(1080, &[0x53, 0xef]) {
        // A file system of the second or third version has no extents.
        let extents = head.get(1024 + 96).is_some_and(|incompatible| incompatible & 0x40 != 0);
        return Some(Content::Fs(if extents { "ext4" } else { "ext3" }));
    }
    let found = SIGNATURES.iter().find(|(place, what, _)| at(*place, what));
    found.map(|(_, _, content)| *content)
}

/// Detects the content of a file that has holes where nothing was written.
pub(crate) fn look_with_holes(volume: &File) -> Result<Content> {
    look(volume, |from| match rustix::fs::seek(volume, SeekFrom::Data(from)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        Err(why) => bail!("can't look for data in the volume: {why}"),
    })
}

/// Detects the content of a volume. `first_data` returns the first position at or after another one
/// that may hold data, or `None`.
pub(crate) fn look(
    volume: &File,
    mut first_data: impl FnMut(u64) -> Result<Option<u64>>,
) -> Result<Content> {
    // A block device has no length, but an end.
    let size = rustix::fs::seek(volume, SeekFrom::End(0)).context("the volume's size")?;
    let mut head = vec![0; LOOK.min(size as usize)];
    volume.read_exact_at(&mut head, 0).context("can't read the volume's beginning")?;
    if let Some(found) = recognised(&head) {
        return Ok(found);
    }
    let mut from = 0;
    let mut piece = vec![0; LOOK];
    while from < size
        && let Some(data) = first_data(from)?
    {
        let len = LOOK.min((size - data) as usize);
        volume.read_exact_at(&mut piece[..len], data).context("can't read the volume")?;
        if piece[..len].iter().any(|byte| *byte != 0) {
            return Ok(Content::Data);
        }
        from = data + len as u64;
    }
    Ok(Content::Blank)
}

/// The step before a volume is mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Nothing: only the device is wanted.
    Leave,
    /// Make this file system. `over`: the volume is not blank, and its content is destroyed.
    Make { fs: Fs, over: bool },
    /// Use the existing file system.
    Use(&'static str),
}

/// Decides the step for a volume. `mounted`: the volume will be mounted. `destroy`: its content may
/// be destroyed.
pub(crate) fn decide(
    name: &str,
    content: Content,
    fs: Option<Fs>,
    mounted: bool,
    destroy: bool,
) -> Result<Step> {
    match (fs, content) {
        (Some(fs), Content::Blank) => Ok(Step::Make { fs, over: false }),
        (Some(fs), Content::Fs(there)) if there == fs.name() => Ok(Step::Use(there)),
        (Some(fs), _) if destroy => Ok(Step::Make { fs, over: true }),
        (Some(fs), _) => bail!(
            "{name} holds {content}, and is left as it is: leave out --fs to attach it so, or add \
             --yes to destroy that and make {} in its place",
            fs.name()
        ),
        (None, _) if !mounted => Ok(Step::Leave),
        (None, Content::Fs(there)) => Ok(Step::Use(there)),
        (None, Content::Blank) => {
            bail!("{name} holds nothing that could be mounted yet: add --fs ext4 or --fs xfs")
        }
        (None, _) => bail!(
            "{name} holds {content}, which can't be mounted: leave out --at to attach the device \
             alone"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Content::{Blank, Data, Other};

    fn with(at: usize, what: &[u8]) -> Vec<u8> {
        let mut head = vec![0; LOOK];
        head[at..at + what.len()].copy_from_slice(what);
        head
    }

    #[test]
    fn signatures_are_recognised_where_they_belong() {
        assert_eq!(recognised(&with(0, b"XFSB")), Some(Content::Fs("xfs")));
        assert_eq!(recognised(&with(1, b"XFSB")), None);
        let mut ext = with(1080, &[0x53, 0xef]);
        assert_eq!(recognised(&ext), Some(Content::Fs("ext3")));
        ext[1024 + 96] = 0x42;
        assert_eq!(recognised(&ext), Some(Content::Fs("ext4")));
        assert_eq!(recognised(&with(4086, b"SWAPSPACE2")), Some(Other("swap space")));
        assert_eq!(recognised(&[]), None);
    }

    #[test]
    fn all_data_is_looked_at_and_nothing_else() {
        let path = std::env::temp_dir().join(format!("gabion-content-{}", std::process::id()));
        let file = daemon::files::create(&path).unwrap();
        file.set_len(8 << 20).unwrap();
        file.write_all_at(b"x", 5 << 20).unwrap();
        let file = File::open(&path).unwrap();
        assert_eq!(look_with_holes(&file).unwrap(), Data);
        let all = |from: u64| Ok(Some(from));
        assert_eq!(look(&file, all).unwrap(), Data);
        let none = |_: u64| Ok(None);
        assert_eq!(look(&file, none).unwrap(), Blank);
        let last = |from: u64| Ok(Some(from.max((8 << 20) - 100)));
        assert_eq!(look(&file, last).unwrap(), Blank);
        daemon::files::remove(&path).unwrap();
    }

    #[test]
    fn only_what_is_blank_is_formatted_without_leave() {
        let make = |over| Step::Make { fs: Fs::Xfs, over };
        let xfs = Some(Fs::Xfs);
        assert_eq!(decide("v", Blank, xfs, true, false).unwrap(), make(false));
        for content in [Data, Other("swap space"), Content::Fs("ext4")] {
            for mounted in [false, true] {
                let error = decide("v", content, xfs, mounted, false).unwrap_err().to_string();
                assert!(error.contains("--yes") && error.contains(&content.to_string()));
                assert_eq!(decide("v", content, xfs, mounted, true).unwrap(), make(true));
            }
        }
    }

    #[test]
    fn the_file_system_that_is_there_is_never_made_again() {
        for destroy in [false, true] {
            let there = decide("v", Content::Fs("xfs"), Some(Fs::Xfs), true, destroy).unwrap();
            assert_eq!(there, Step::Use("xfs"));
        }
        assert_eq!(decide("v", Content::Fs("ext3"), None, true, false).unwrap(), Step::Use("ext3"));
    }

    #[test]
    fn what_can_not_be_mounted_is_attached_as_a_device() {
        for content in [Blank, Data, Other("swap space")] {
            assert_eq!(decide("v", content, None, false, false).unwrap(), Step::Leave);
            assert!(decide("v", content, None, true, true).is_err());
        }
    }
}

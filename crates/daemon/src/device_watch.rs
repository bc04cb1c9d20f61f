//! Checks that a device in use is still the one at its path.
//!
//! A file may be emptied or deleted, and a disk overwritten. A server that has the device open does
//! not notice that by itself until it is started again.

use crate::content;
use crate::supervised::Verdict;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;
use store::durable::layout::PAGE;

/// Interval of the checks. They read superblocks from the page cache, and don't disturb the disk.
pub(crate) const EVERY: Duration = Duration::from_secs(3);

/// A device in use.
pub(crate) struct DeviceWatch {
    path: PathBuf,
    /// The uuid of the device, once it was seen. A new device is formatted only after the cluster
    /// has accepted it.
    seen: Option<[u64; 2]>,
    /// It was missing at the last check. One check is not enough, because a device that grows
    /// rewrites its superblocks.
    missed: bool,
}

/// The result of a check of the path.
enum Found {
    Device([u64; 2]),
    /// No file.
    Nothing,
    /// Something other than a device, described by these words.
    Other(&'static str),
    /// It can't be read now. The server itself will notice that error of the device.
    Unknown,
}

impl DeviceWatch {
    /// Starts without any knowledge about the device.
    pub(crate) fn new(path: PathBuf) -> DeviceWatch {
        DeviceWatch { path, seen: None, missed: false }
    }

    /// Returns what the server has to do if the device was there, and two checks in a row missed
    /// it.
    pub(crate) fn look(&mut self) -> Option<Verdict> {
        let verdict = self.compare();
        let before = std::mem::replace(&mut self.missed, verdict.is_some());
        verdict.filter(|_| before)
    }

    fn compare(&mut self) -> Option<Verdict> {
        let (seen, found) = (self.seen, self.find());
        if let Found::Device(uuid) = found {
            self.seen.get_or_insert(uuid);
        }
        let path = self.path.display();
        let what = match (seen?, found) {
            (seen, Found::Device(uuid)) if seen != uuid => "is another device now",
            (_, Found::Device(_) | Found::Unknown) => return None,
            (_, Found::Nothing) => {
                return Some(Verdict::Say(format!(
                    "{path} was deleted while it is in use. What it holds is there until this \
                     process ends: have it moved to others first (`gabion device remove`)"
                )));
            }
            (_, Found::Other(what)) => what,
        };
        Some(Verdict::End(format!(
            "{path} {what} by another program: what this server wrote there is lost. It is not \
             used any more, so that nobody relies on it; the other copies serve. Make sure that \
             nothing else writes there, then replace it: `gabion device add --replace`"
        )))
    }

    fn find(&self) -> Found {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Found::Nothing,
            Err(_) => return Found::Unknown,
        };
        if let Ok(Some(superblock)) = content::superblock(&self.path) {
            return Found::Device(superblock.identity.uuid);
        }
        let mut page = [0; PAGE as usize];
        match file.read_exact_at(&mut page, 0) {
            // A file that was emptied becomes longer again with the server's next write.
            Ok(()) if page.iter().all(|byte| *byte == 0) => Found::Other("was emptied"),
            Ok(()) => Found::Other("was overwritten"),
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => Found::Other("was emptied"),
            Err(_) => Found::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{files, offline};
    use rt::{Backend, OfflineDevice};
    use std::fs;
    use store::durable::Identity;

    fn format(path: &std::path::Path, uuid: [u64; 2]) {
        let mut drive =
            OfflineDevice::open(&rt::DiskSpec::file(path, Some(16 << 20)), Backend::Auto).unwrap();
        let (cluster, device) = (base::ClusterId(9), base::DeviceId(7));
        offline::format(&mut drive, Identity { cluster, device, uuid }, true).unwrap();
    }

    /// This holds for any moment between two checks.
    #[test]
    fn an_emptied_device_is_noticed_within_ten_seconds() {
        let dir = std::env::temp_dir().join(format!("gabion-emptied-{}", std::process::id()));
        files::make_folder(&dir).unwrap();
        let path = dir.join("disk");
        for since_a_look in [Duration::from_millis(1), EVERY / 2, EVERY] {
            format(&path, [1, 2]);
            let mut watch = DeviceWatch::new(path.clone());
            assert_eq!(watch.look(), None);
            fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
            let mut gone = EVERY - since_a_look;
            while watch.look().is_none() {
                gone += EVERY;
            }
            let rest = Duration::from_secs(2); // to read the superblocks, and to end the shard
            assert!(gone + rest < Duration::from_secs(10), "{gone:?}");
        }
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn an_emptied_overwritten_or_deleted_device_is_noticed_and_a_new_one_accepted() {
        let dir = std::env::temp_dir().join(format!("gabion-watch-{}", std::process::id()));
        files::make_folder(&dir).unwrap();
        let path = dir.join("disk");
        let mut watch = DeviceWatch::new(path.clone());
        assert_eq!(watch.look(), None, "it was never there");
        format(&path, [1, 2]);
        assert_eq!((watch.look(), watch.look()), (None, None));
        let said = |watch: &mut DeviceWatch| {
            watch.look();
            match watch.look() {
                Some(Verdict::End(text) | Verdict::Say(text)) => text,
                other => panic!("{other:?}"),
            }
        };
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
        assert!(said(&mut watch).contains("was emptied"));
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(16 << 20).unwrap();
        assert!(said(&mut watch).contains("was emptied"), "it is longer, and nothing is there");
        file.write_all_at(&[1; 4096], 0).unwrap();
        assert!(said(&mut watch).contains("was overwritten"));
        format(&path, [3, 4]);
        assert!(said(&mut watch).contains("is another device"));
        format(&path, [1, 2]);
        assert_eq!(watch.look(), None);
        fs::remove_file(&path).unwrap();
        assert_eq!(watch.look(), None, "one look is not enough");
        assert!(matches!(watch.look(), Some(Verdict::Say(text)) if text.contains("deleted")));
        fs::remove_dir_all(dir).unwrap();
    }
}

//! Check before an MDM without a log begins a cluster.
//!
//! Where a cluster ran before, a missing log is a lost log. A new cluster in its place would know
//! nothing of the data on the devices, so it is refused.

use crate::config::{self, MdmConfig, SdsConfig};
use crate::content;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// Refuses to begin a cluster if `ran` says that this MDM has run before, or if configurations of
/// data servers beside `file`, the MDM's own, name devices that hold data of a cluster.
pub fn refuse_another(config: &MdmConfig, file: &Path, ran: bool) -> Result<()> {
    if config.join || fs::metadata(&config.log).is_ok_and(|log| log.len() > 0) {
        return Ok(());
    }
    let device = device_beside(file)?;
    if !ran && device.is_none() {
        return Ok(());
    }
    let why = device.map_or_else(
        || "its cluster ran here before".to_owned(),
        |device| format!("{} holds data of a cluster", device.display()),
    );
    bail!(
        "the MDM's log {} is gone, and {why}: another cluster would begin here, which knows \
         nothing of it. Leave running servers alone, and put the log back, or a backup: `gabion \
         mdm restore`. If other MDMs of the cluster work, write `join = true` into {}, start this \
         one, and add it again (`gabion mdm remove`, `gabion mdm add`)",
        config.log.display(),
        file.display()
    )
}

/// Returns a device with data of a cluster that a server's configuration beside this file names.
fn device_beside(file: &Path) -> Result<Option<PathBuf>> {
    let folder = file.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let unread = || format!("can't read {}", folder.display());
    for entry in fs::read_dir(folder).with_context(unread)? {
        let path = entry.with_context(unread)?.path();
        // The folder may contain other files.
        let server = (path.extension().is_some_and(|e| e == "toml"))
            .then(|| config::read::<SdsConfig>(&path).ok())
            .flatten();
        for device in server.into_iter().flat_map(|server| server.device) {
            let path = device.spec.path();
            let formatted = path.filter(|path| matches!(content::superblock(path), Ok(Some(_))));
            if let Some(path) = formatted {
                return Ok(Some(path.to_owned()));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config, files, offline};
    use base::{ClusterId, DeviceId};
    use rt::{Backend, DiskSpec, OfflineDevice};
    use std::fs;
    use store::durable::Identity;

    #[test]
    fn a_lost_log_is_not_the_beginning_of_another_cluster() {
        let folder = std::env::temp_dir().join(format!("gabion-begin-{}", std::process::id()));
        files::make_folder(&folder).unwrap();
        let (file, log, disk) =
            (folder.join("mdm.toml"), folder.join("mdm.log"), folder.join("disk"));
        let text = format!("listen = \"127.0.0.1:1\"\nlog = \"{}\"\n", log.display());
        files::write(&file, &text).unwrap();
        let config: MdmConfig = config::read(&file).unwrap();
        let begins =
            |config: &MdmConfig, ran| refuse_another(config, &file, ran).map_err(|e| e.to_string());
        assert_eq!(begins(&config, false), Ok(()));
        let why = begins(&config, true).unwrap_err();
        assert!(why.contains("is gone") && why.contains("mdm restore"), "{why}");
        // A server beside it: first its device is new, then it is formatted.
        let server = format!(
            "name = \"s\"\nmdm = [\"127.0.0.1:1\"]\n[[device]]\nspec = \"file:{}:16MiB\"\n\
             listen = \"127.0.0.1:2\"\n",
            disk.display()
        );
        files::write(&folder.join("sds.toml"), server).unwrap();
        assert_eq!(begins(&config, false), Ok(()));
        let spec = DiskSpec::file(&disk, Some(16 << 20));
        let mut drive = OfflineDevice::open(&spec, Backend::Auto).unwrap();
        let identity = Identity { cluster: ClusterId(7), device: DeviceId(1), uuid: [1, 2] };
        offline::format(&mut drive, identity, false).unwrap();
        let why = begins(&config, false).unwrap_err();
        assert!(why.contains(&*disk.to_string_lossy()), "{why}");
        // An MDM that waits to be added begins no cluster, and one with a log has begun already.
        assert_eq!(begins(&MdmConfig { join: true, ..config.clone() }, true), Ok(()));
        files::write(&log, "log").unwrap();
        assert_eq!(begins(&config, true), Ok(()));
        fs::remove_dir_all(folder).unwrap();
    }
}

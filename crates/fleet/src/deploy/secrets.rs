//! The files with secrets of iSCSI and NVMe hosts: read and checked on this machine before anything
//! is changed, then copied to the hosts whose data clients use them.
//!
//! Invariant: a secret is only on standard input and output of the commands on a host, never in
//! their words or in a message.

use super::host::Remote;
use super::topology::{Host, Topology};
use anyhow::{Context, Result};
use daemon::secrets::{self, Hidden, Kind};
use std::path::{Path, PathBuf};

/// Both kinds of files.
const KINDS: [Kind; 2] = [Kind::Iscsi, Kind::Nvme];

/// The mode and the owner of a file on its host: root's, which runs the data client.
const RIGHTS: (u32, &str) = (0o600, "600 0");

/// The files that a topology names, with their content.
#[derive(Debug)]
pub(crate) struct Secrets(Vec<File>);

/// A file for one host.
#[derive(Debug)]
struct File {
    /// The host's name.
    host: String,
    /// Its path on that host.
    there: PathBuf,
    content: Hidden,
}

/// Returns the file of this machine that a topology names, and the key that names it.
fn here(host: &Host, kind: Kind) -> (&'static str, Option<&Path>) {
    match kind {
        Kind::Iscsi => ("iscsi_secrets", host.iscsi_secrets.as_deref()),
        Kind::Nvme => ("nvme_secrets", host.nvme_secrets.as_deref()),
    }
}

/// Returns the path on its host of a file with secrets; `None` if the topology names none.
pub(crate) fn there(host: &Host, kind: Kind) -> Option<PathBuf> {
    let name = match kind {
        Kind::Iscsi => "etc/gabion/iscsi-secrets.toml",
        Kind::Nvme => "etc/gabion/nvme-secrets.toml",
    };
    here(host, kind).1.map(|_| host.path(name))
}

impl Secrets {
    /// Reads and checks all files that a topology names.
    pub(crate) fn read(topology: &Topology) -> Result<Secrets> {
        let each = topology.hosts.iter().flat_map(|host| KINDS.map(|kind| (host, kind)));
        let read = |(host, kind): (&Host, Kind)| {
            let (key, file) = here(host, kind);
            let content = secrets::content(file?, kind);
            let content = content.with_context(|| format!("`{key}` of {}", host.name));
            let there = there(host, kind)?;
            Some(content.map(|content| File { host: host.name.clone(), there, content }))
        };
        each.filter_map(read).collect::<Result<_>>().map(Secrets)
    }

    /// Returns true if no host has any.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Copies the files of a host, unless it has them already. Returns a line for each file that
    /// was copied.
    pub(crate) fn copy(&self, remote: &Remote<'_>) -> Result<Vec<String>> {
        let mine = self.0.iter().filter(|file| file.host == remote.host.name);
        let copy = |file: &File| file.copy(remote).transpose();
        mine.filter_map(copy).collect()
    }
}

impl File {
    fn copy(&self, remote: &Remote<'_>) -> Result<Option<String>> {
        let path = self.there.display();
        let show = format!("if [ -f '{path}' ]; then stat -c '%a %u' '{path}'; cat '{path}'; fi");
        let Some(why) = differs(&remote.run(&show)?, &self.content) else { return Ok(None) };
        remote.put(&self.there, self.content.text().as_bytes(), RIGHTS.0)?;
        Ok(Some(format!("{}: {path} {why}", self.host)))
    }
}

/// Returns why a file has to be copied, as a part of a sentence. `shown`: a line with its mode and
/// its owner, and its content; empty if it is not there.
fn differs(shown: &str, content: &Hidden) -> Option<&'static str> {
    match shown.split_once('\n') {
        None => Some("is new"),
        Some((_, had)) if had != content.text() => Some("has changed"),
        Some((rights, _)) if rights != RIGHTS.1 => Some("had another mode or owner"),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::topology::EXAMPLE;
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    const CHAP: &str = "host = { user = \"db1\", secret = \"twelve bytes\" }\n";

    /// Calls `f` with the path of a file that has this content and mode.
    fn with_file(mode: u32, content: &str, f: impl FnOnce(&Path)) {
        let name = format!("gabion-deploy-secrets-{mode:o}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        f(&path);
        fs::remove_file(&path).unwrap();
    }

    fn naming(file: &Path) -> Topology {
        let mut topology: Topology = toml::from_str(EXAMPLE).unwrap();
        topology.hosts[1].iscsi_secrets = Some(file.to_owned());
        topology
    }

    #[test]
    fn a_file_goes_to_the_host_that_names_it_and_is_never_shown() {
        with_file(0o600, CHAP, |path| {
            let secrets = Secrets::read(&naming(path)).unwrap();
            assert_eq!((secrets.0.len(), secrets.0[0].host.as_str()), (1, "node2"));
            assert_eq!(secrets.0[0].content.text(), CHAP);
            assert!(!format!("{secrets:?}").contains("twelve"));
        });
        assert!(Secrets::read(&toml::from_str(EXAMPLE).unwrap()).unwrap().is_empty());
    }

    #[test]
    fn a_file_that_others_can_read_or_that_is_wrong_is_refused_with_the_key_that_names_it() {
        let error = |path: &Path| format!("{:#}", Secrets::read(&naming(path)).unwrap_err());
        with_file(0o644, CHAP, |path| {
            let (error, mend) = (error(path), format!("chmod 600 {}", path.display()));
            assert!(error.contains("`iscsi_secrets` of node2") && error.contains(&mend), "{error}");
        });
        with_file(0o600, &CHAP.replace("twelve bytes", "twelve"), |path| {
            let error = error(path);
            assert!(error.contains("6 bytes") && !error.contains("twelve"), "{error}");
        });
        assert!(error(Path::new("/nowhere")).contains("/nowhere"));
    }

    #[test]
    fn a_file_is_copied_only_if_it_differs() {
        with_file(0o600, CHAP, |path| {
            let content = secrets::content(path, Kind::Iscsi).unwrap();
            let differs = |shown: &str| differs(shown, &content);
            assert_eq!(differs(""), Some("is new"));
            assert_eq!(differs(&format!("600 0\n{CHAP}")), None);
            assert_eq!(differs(&format!("600 0\n{CHAP}\n")), Some("has changed"));
            assert_eq!(differs("600 0\n"), Some("has changed"));
            for rights in ["644 0", "600 1000"] {
                let why = differs(&format!("{rights}\n{CHAP}"));
                assert_eq!(why, Some("had another mode or owner"));
            }
        });
    }
}

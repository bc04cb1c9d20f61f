//! The keys with which this host and the data client authenticate by NVMe/TCP (DH-HMAC-CHAP).
//!
//! Invariant: only the kernel gets a key. Command lines, units and messages name the key's file.

use crate::ways::Via;
use anyhow::{Context, Result, bail};
use clap::Args;
use daemon::secrets::{self, Hidden};
use std::fs;
use std::path::{Path, PathBuf};

/// The options of `gabion attach` that name keys.
#[derive(Args, Debug, Default)]
pub(crate) struct KeyArgs {
    /// The file with this host's key, which it proves to the data client; for nvme only. It holds
    /// the line that `nvme gen-dhchap-key` prints, and has mode 0600
    #[arg(long, value_name = "FILE")]
    nvme_secret: Option<PathBuf>,
    /// The file with the data client's key, which the data client has to prove, too
    #[arg(long, value_name = "FILE", requires = "nvme_secret")]
    nvme_ctrl_secret: Option<PathBuf>,
}

impl KeyArgs {
    /// Returns the method to use, given the one that was asked for. Only one method uses keys.
    pub(crate) fn via(&self, wanted: Option<Via>) -> Result<Option<Via>> {
        match wanted {
            _ if self.nvme_secret.is_none() => Ok(wanted),
            None | Some(Via::Nvme) => Ok(Some(Via::Nvme)),
            Some(other) => bail!(
                "--nvme-secret goes only with --via nvme, because {} uses no key: leave out one of \
                 the two options",
                other.name()
            ),
        }
    }

    /// Reads the keys.
    pub(crate) fn read(&self) -> Result<Keys> {
        let key = |option: &'static str, kernel: &'static str, file: &Option<PathBuf>| {
            let read = |file: &PathBuf| Key::read(option, kernel, file).context(option);
            file.as_ref().map(read).transpose()
        };
        let host = key("--nvme-secret", HOST_KEY, &self.nvme_secret)?;
        let client = key("--nvme-ctrl-secret", CTRL_KEY, &self.nvme_ctrl_secret)?;
        Ok(Keys(host.into_iter().chain(client).collect()))
    }
}

/// The kernel's name of the host's key: an option of a connection, and a file that describes it.
const HOST_KEY: &str = "dhchap_secret";
/// The same for the key that the host asks for.
const CTRL_KEY: &str = "dhchap_ctrl_secret";

/// The keys of one command: none, the host's, or both.
#[derive(Debug, Default)]
pub(crate) struct Keys(Vec<Key>);

/// A key, and where it comes from.
#[derive(Debug)]
struct Key {
    /// The option that names its file.
    option: &'static str,
    /// The kernel's name of it.
    kernel: &'static str,
    /// Its file's full path.
    file: String,
    key: Hidden,
}

impl Key {
    fn read(option: &'static str, kernel: &'static str, file: &Path) -> Result<Key> {
        let key = secrets::key(file)?;
        // Not the file behind a symbolic link, because the next boot may find another one there.
        let full = std::path::absolute(file).context("the folder of this command is unknown")?;
        let file = full.to_str().context("the path of a key's file is text")?.to_owned();
        Ok(Key { option, kernel, file, key })
    }
}

impl Keys {
    /// Returns true if there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the words of a command line that name the same files.
    pub(crate) fn words(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|key| [key.option, key.file.as_str()])
    }

    /// Appends the keys to the options of a new connection.
    pub(crate) fn append_to(&self, options: &mut String) {
        for key in &self.0 {
            options.extend([",", key.kernel, "=", key.key.text()]);
        }
    }

    /// Fails if the kernel can't use keys. `options`: the options of connections that it knows, as
    /// it lists them. `symbols`: the names in it, as it lists them; empty if it lists none.
    ///
    /// A kernel that does not know an option writes it to its log with its value. So this has to be
    /// known before the kernel gets a key. A kernel may know the option and do nothing with it, so
    /// the list of its options is not enough.
    pub(crate) fn need_kernel(&self, options: &str, symbols: &str) -> Result<()> {
        let knows = |name: &str| options.split(',').any(|o| o.split('=').next() == Some(name));
        let is_built = symbols.is_empty() || symbols.contains(" nvme_auth_");
        match self.0.iter().find(|key| !is_built || !knows(key.kernel)) {
            None => Ok(()),
            Some(key) => bail!(
                "the kernel can't authenticate NVMe hosts, so {} is of no use: take a kernel that \
                 was built with CONFIG_NVME_HOST_AUTH (before Linux 6.7: CONFIG_NVME_AUTH), such \
                 as Debian 13's, or a method without keys, such as --via nbd",
                key.option
            ),
        }
    }

    /// Fails if a connection that exists already was made with other keys. `folder`: where the
    /// kernel describes it.
    pub(crate) fn need_same(&self, folder: &Path) -> Result<()> {
        let is = |key: &Key| {
            fs::read_to_string(folder.join(key.kernel)).is_ok_and(|k| k.trim() == key.key.text())
        };
        match self.0.iter().find(|key| !is(key)) {
            None => Ok(()),
            Some(key) => bail!(
                "this machine is connected to the data client already ({}), without the key of {} \
                 or with another one: detach what uses that connection (`gabion attach --list`), \
                 or leave out the option to use the connection as it is",
                folder.file_name().unwrap_or_default().display(),
                key.option
            ),
        }
    }

    /// Returns advice for a connection that failed, as a sentence.
    pub(crate) fn advice(&self) -> &'static str {
        match self.is_empty() {
            true => "If the data client asks hosts for a key, name its file with --nvme-secret",
            false => {
                "If `dmesg` tells of authentication, compare the keys with those of the data \
                 client (`nvme_secrets` in its configuration)"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    // From `nvme gen-dhchap-key`.
    const KEY: &str = "DHHC-1:01:MzmoFIg+WXbTzgzTWd5JTTdqrlU+fFCQnX5uZSS28lHiDF1A:";
    const OTHER: &str = "DHHC-1:00:dW9p3GAPwpTwM9ZmqrWq0WhM5VoOcL0eeTUfglxerTyUWKfg:";

    /// Calls `f` with a folder that has the keys in the files `host` and `client`.
    fn with_keys(name: &str, f: impl FnOnce(&Path, &KeyArgs)) {
        let folder =
            std::env::temp_dir().join(format!("gabion-keys-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let folder = folder.canonicalize().unwrap();
        let file = |name: &str, key: &str| {
            let path = folder.join(name);
            fs::write(&path, format!("{key}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            Some(path)
        };
        let (host, client) = (file("host", KEY), file("client", OTHER));
        f(&folder, &KeyArgs { nvme_secret: host, nvme_ctrl_secret: client });
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn keys_choose_the_only_method_that_uses_them() {
        let none = KeyArgs::default();
        assert_eq!(none.via(None).unwrap(), None);
        assert_eq!(none.via(Some(Via::Nbd)).unwrap(), Some(Via::Nbd));
        let with = KeyArgs { nvme_secret: Some("k".into()), nvme_ctrl_secret: None };
        assert_eq!(with.via(None).unwrap(), Some(Via::Nvme));
        assert_eq!(with.via(Some(Via::Nvme)).unwrap(), Some(Via::Nvme));
        for other in [Via::Ublk, Via::Nbd, Via::Fuse] {
            let error = with.via(Some(other)).unwrap_err().to_string();
            assert!(error.contains("only with --via nvme") && error.contains(other.name()));
        }
    }

    #[test]
    fn the_kernel_gets_the_keys_and_words_name_their_files() {
        with_keys("words", |folder, args| {
            let keys = args.read().unwrap();
            let mut options = "nqn=x".to_owned();
            keys.append_to(&mut options);
            assert_eq!(options, format!("nqn=x,dhchap_secret={KEY},dhchap_ctrl_secret={OTHER}"));
            let (host, client) = (folder.join("host"), folder.join("client"));
            let [host, client] = [&host, &client].map(|path| path.to_str().unwrap());
            let words: Vec<&str> = keys.words().collect();
            assert_eq!(words, ["--nvme-secret", host, "--nvme-ctrl-secret", client]);
            let shown = format!("{keys:?}");
            assert!(!shown.contains("MzmoF") && !shown.contains("p3GAP"), "{shown}");
        });
        assert!(KeyArgs::default().read().unwrap().is_empty());
    }

    #[test]
    fn a_file_without_a_key_is_refused_with_the_option_that_names_it() {
        with_keys("wrong", |folder, args| {
            fs::write(folder.join("client"), "MzmoF").unwrap();
            let error = format!("{:#}", args.read().unwrap_err());
            assert!(error.contains("--nvme-ctrl-secret") && error.contains("DHHC-1"), "{error}");
            assert!(!error.contains("MzmoF"), "{error}");
        });
    }

    #[test]
    fn a_kernel_that_logs_keys_or_does_not_use_them_gets_none() {
        with_keys("kernel", |_, args| {
            let keys = args.read().unwrap();
            let old = "transport=%s,traddr=%s,hostid=%s,duplicate_connect,disable_sqflow,tos=%d";
            let new = format!("{old},discovery,dhchap_secret=%s,dhchap_ctrl_secret=%s\n");
            let symbols = "0000000000000000 T nvme_tcp_setup_ctrl\t[nvme_tcp]\n";
            let built = format!("{symbols}0000000000000000 T nvme_auth_negotiate\t[nvme_core]\n");
            keys.need_kernel(&new, &built).unwrap();
            keys.need_kernel(&new, "").unwrap();
            let no_ctrl = new.replace("dhchap_ctrl_secret", "x");
            let unable = [("", built.as_str()), (old, &built), (&no_ctrl, &built), (&new, symbols)];
            for (options, symbols) in unable {
                let error = keys.need_kernel(options, symbols).unwrap_err().to_string();
                assert!(error.contains("CONFIG_NVME_HOST_AUTH"), "{error}");
            }
            Keys::default().need_kernel("", symbols).unwrap();
        });
    }

    #[test]
    fn a_connection_with_other_keys_is_not_used() {
        with_keys("same", |folder, args| {
            let keys = args.read().unwrap();
            let controller = folder.join("nvme7");
            fs::create_dir_all(&controller).unwrap();
            let error = keys.need_same(&controller).unwrap_err().to_string();
            assert!(error.contains("nvme7") && error.contains("--nvme-secret"), "{error}");
            fs::write(controller.join(HOST_KEY), format!("{KEY}\n")).unwrap();
            fs::write(controller.join(CTRL_KEY), "none\n").unwrap();
            let error = keys.need_same(&controller).unwrap_err().to_string();
            assert!(error.contains("--nvme-ctrl-secret") && !error.contains("p3GAP"), "{error}");
            fs::write(controller.join(CTRL_KEY), format!("{OTHER}\n")).unwrap();
            keys.need_same(&controller).unwrap();
            Keys::default().need_same(folder).unwrap();
        });
    }
}

//! The files with the secrets of hosts: of iSCSI hosts (CHAP), and of NVMe hosts (DH-HMAC-CHAP).
//!
//! ```toml
//! host = { user = "db1", secret = "at least 12 bytes" }
//! target = { user = "gabion", secret = "another secret" }
//!
//! [hosts]
//! "iqn.1993-08.org.debian:01:db2" = { user = "db2", secret = "one of its own" }
//! ```
//!
//! `hosts` has the credentials of single hosts, by the names of their initiators. `host` has the
//! credentials for all other hosts. One of the two may be left out; without `host`, other hosts
//! can't log in. `target` has the target's own credentials for mutual CHAP, and may be left out.
//!
//! The other file has keys in the text form of NVMe, which `nvme gen-dhchap-key` prints. They have
//! no user:
//!
//! ```toml
//! host = "DHHC-1:01:..."
//! target = "DHHC-1:01:..."
//!
//! [hosts]
//! "nqn.2014-08.org.nvmexpress:uuid:db2" = "DHHC-1:01:..."
//! ```
//!
//! Invariants: no error contains a secret, because errors go to the log. All secrets are different:
//! otherwise one host could authenticate as another.

use anyhow::{Context, Result, bail};
use node::sdc::{Chap, DhChap, Key, Secret};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// The shortest secret in bytes (RFC 7143 9.2.1).
const SHORTEST: usize = 12;
/// The longest secret in bytes that all initiators support.
const LONGEST: usize = 255;
/// The longest name of a host in bytes (RFC 7143 4.2.7.1, NVMe base 4.5).
const NAME_MAX: usize = 223;

/// The hosts that a file of secrets is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Hosts of iSCSI (CHAP).
    Iscsi,
    /// Hosts of NVMe/TCP (DH-HMAC-CHAP).
    Nvme,
}

/// A text that `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct Hidden(String);

impl Hidden {
    /// Returns the text. It must not get into a message, a log or a command line.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden")
    }
}

/// A file of either kind.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "T: Deserialize<'de>"))]
struct File<T> {
    host: Option<T>,
    target: Option<T>,
    #[serde(default = "BTreeMap::new")]
    hosts: BTreeMap<String, T>,
}

/// Reads a file without quoting it in an error.
fn from_toml<T: DeserializeOwned>(text: &str) -> Result<File<T>> {
    toml::from_str(text).map_err(|error| anyhow::anyhow!("{}", error.message()))
}

impl<T> File<T> {
    /// Checks the names of hosts with `check`, and converts each entry. The conversion gets the
    /// name of the entry's owner, and the entry.
    fn map<U>(
        self,
        check: impl Fn(&str) -> Result<()>,
        mut make: impl FnMut(&str, T) -> Result<U>,
    ) -> Result<File<U>> {
        let host = self.host.map(|entry| make("host", entry)).transpose()?;
        let target = self.target.map(|entry| make("target", entry)).transpose()?;
        let mut hosts = BTreeMap::new();
        for (name, entry) in self.hosts {
            check(&name)?;
            let made = make(&name, entry)?;
            hosts.insert(name, made);
        }
        Ok(File { host, target, hosts })
    }

    /// Returns true if it is for no host.
    fn is_for_nobody(&self) -> bool {
        self.host.is_none() && self.hosts.is_empty()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    user: String,
    secret: String,
}

/// Reads the secrets of iSCSI hosts.
pub fn chap(path: &Path) -> Result<Chap> {
    read(path, parse)
}

/// Reads the keys of NVMe hosts.
pub fn dhchap(path: &Path) -> Result<DhChap> {
    read(path, parse_keys)
}

/// Returns the content of a file of secrets, if a data client can use it.
pub fn content(path: &Path, kind: Kind) -> Result<Hidden> {
    read(path, |text| {
        match kind {
            Kind::Iscsi => parse(text).map(drop),
            Kind::Nvme => parse_keys(text).map(drop),
        }?;
        Ok(Hidden(text.to_owned()))
    })
}

/// Reads a file that holds one key of NVMe, and nothing else. Returns the key's text form.
pub fn key(path: &Path) -> Result<Hidden> {
    read(path, |text| {
        let text = text.trim();
        Key::parse(text).map_err(|why| {
            anyhow::anyhow!("it holds no key: {why} (make one: nvme gen-dhchap-key)")
        })?;
        Ok(Hidden(text.to_owned()))
    })
}

fn read<T>(path: &Path, parse: impl FnOnce(&str) -> Result<T>) -> Result<T> {
    let what = || format!("can't use the secrets in {}", path.display());
    let file = fs::File::open(path).with_context(what)?;
    let found = file.metadata().with_context(what)?;
    let (owner, user) = (found.uid(), rustix::process::geteuid().as_raw());
    if owner != user {
        bail!(
            "the secrets in {0} belong to user {owner}, who can read and change them: chown {user} \
             {0}",
            path.display()
        );
    }
    let mode = found.permissions().mode() & 0o777;
    if mode != 0o600 {
        bail!(
            "the secrets in {0} have mode {mode:04o}: make it 0600 (chmod 600 {0}), so that nobody \
             else reads them",
            path.display()
        );
    }
    let text = std::io::read_to_string(file).with_context(what)?;
    parse(&text).with_context(what)
}

fn parse(text: &str) -> Result<Chap> {
    let mut whose = BTreeMap::new();
    let check = |name: &str| {
        if name.is_empty() || name.len() > NAME_MAX || name.to_lowercase() != name {
            bail!(
                "`{name}` is no name of an initiator: write it as the host does, in small letters"
            );
        }
        Ok(())
    };
    let file = from_toml(text)?.map(check, |name, entry| {
        let one = secret(name, entry)?;
        if let Some(other) = whose.insert(one.secret.clone(), name.to_owned()) {
            bail!("`{other}` and `{name}` have the same secret: give one of them another");
        }
        Ok(one)
    })?;
    if file.is_for_nobody() {
        bail!("there is no `host` and no `hosts`: no host could log in");
    }
    Ok(Chap { host: file.host, hosts: file.hosts, own: file.target })
}

fn parse_keys(text: &str) -> Result<DhChap> {
    let mut seen: Vec<(String, Key)> = Vec::new();
    let check = |name: &str| {
        if !name.starts_with("nqn.") || name.len() > NAME_MAX {
            bail!("`{name}` is no name of a host: write it as in /etc/nvme/hostnqn");
        }
        Ok(())
    };
    let file = from_toml(text)?.map(check, |whose, text: String| {
        let key = Key::parse(&text).map_err(|why| {
            anyhow::anyhow!("the key of `{whose}` is none: {why} (make one: nvme gen-dhchap-key)")
        })?;
        if let Some((other, _)) = seen.iter().find(|(_, other)| other.is_like(&key)) {
            bail!("`{other}` and `{whose}` have the same key: give one of them another");
        }
        seen.push((whose.to_owned(), key.clone()));
        Ok(key)
    })?;
    if file.is_for_nobody() {
        bail!("there is no `host` and no `hosts`: no host could connect");
    }
    Ok(DhChap { host: file.host, hosts: file.hosts, own: file.target })
}

fn secret(whose: &str, entry: Entry) -> Result<Secret> {
    let len = entry.secret.len();
    if !(SHORTEST..=LONGEST).contains(&len) {
        bail!("the secret of `{whose}` has {len} bytes: take {SHORTEST} to {LONGEST}");
    }
    if entry.user.is_empty() || entry.user.len() > LONGEST {
        bail!("the user of `{whose}` has {} bytes: take 1 to {LONGEST}", entry.user.len());
    }
    Ok(Secret { user: entry.user, secret: entry.secret.into_bytes() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "host = { user = \"db1\", secret = \"twelve bytes\" }\n";

    #[test]
    fn secrets_that_are_short_or_the_same_are_refused_and_not_shown() {
        let own =
            |secret: &str| format!("{HOST}target = {{ user = \"t\", secret = \"{secret}\" }}");
        let chap = parse(HOST).unwrap();
        assert_eq!((chap.host.unwrap().user.as_str(), chap.own), ("db1", None));
        assert_eq!(parse(&own("other 12 bytes")).unwrap().own.unwrap().secret.len(), 14);
        for (text, word) in [
            (own("twelve bytes"), "same"),
            (own("twelve byte"), "11 bytes"),
            (own(""), "0 bytes"),
            (HOST.replace("db1", ""), "user"),
            (HOST.replace("host", "hots"), "hots"),
            (String::new(), "no host"),
            (HOST.replace("\"twelve bytes\"", "12"), "type"),
        ] {
            let error = format!("{:#}", parse(&text).unwrap_err());
            assert!(error.contains(word) && !error.contains("twelve"), "{error}");
        }
    }

    #[test]
    fn a_host_has_a_secret_of_its_own() {
        let hosts = |name: &str, secret: &str| {
            format!("{HOST}[hosts]\n\"{name}\" = {{ user = \"b\", secret = \"{secret}\" }}")
        };
        let chap = parse(&hosts("iqn.2026-11.b", "b's own secret")).unwrap();
        assert_eq!(chap.hosts["iqn.2026-11.b"].secret, b"b's own secret");
        assert_eq!(parse(&hosts("b", "b's own secret").replace(HOST, "")).unwrap().host, None);
        for (text, word) in [
            (hosts("b", "twelve bytes"), "same"),
            (hosts("b", "b's"), "3 bytes"),
            (hosts("iqn.2026-11.B", "b's own secret"), "small letters"),
        ] {
            let error = format!("{:#}", parse(&text).unwrap_err());
            assert!(error.contains(word) && !error.contains("twelve"), "{error}");
        }
    }

    // From `nvme gen-dhchap-key`.
    const KEY: &str = "DHHC-1:01:MzmoFIg+WXbTzgzTWd5JTTdqrlU+fFCQnX5uZSS28lHiDF1A:";
    const OTHER: &str = "DHHC-1:00:dW9p3GAPwpTwM9ZmqrWq0WhM5VoOcL0eeTUfglxerTyUWKfg:";

    #[test]
    fn keys_that_are_wrong_or_the_same_are_refused_and_not_shown() {
        let host = format!("host = \"{KEY}\"\n");
        let own = |key: &str| format!("{host}target = \"{key}\"\n");
        let hosts = |name: &str| format!("{host}[hosts]\n\"{name}\" = \"{OTHER}\"\n");
        let keys = parse_keys(&own(OTHER)).unwrap();
        assert_eq!((keys.host, keys.own), (Key::parse(KEY).ok(), Key::parse(OTHER).ok()));
        let keys = parse_keys(&hosts("nqn.a").replace(&host, "")).unwrap();
        assert!(keys.host.is_none() && keys.hosts["nqn.a"].is_like(&Key::parse(OTHER).unwrap()));
        for (text, word) in [
            (own(KEY), "same"),
            (own(&OTHER.replace("dW9p", "dW9q")), "checksum"),
            (own(&OTHER.replace("-1:00", "-1:03")), "32 bytes"),
            (own("secret"), "gen-dhchap-key"),
            (hosts("iqn.a"), "hostnqn"),
            (String::new(), "no host"),
            (host.replace("host", "hots"), "hots"),
            (host.replace(&format!("\"{KEY}\""), "12"), "type"),
        ] {
            let error = format!("{:#}", parse_keys(&text).unwrap_err());
            assert!(error.contains(word), "{error}");
            assert!(!error.contains("MzmoF") && !error.contains("p3GAP"), "{error}");
        }
        assert!(!format!("{:?}", parse_keys(&own(OTHER)).unwrap()).contains('5'));
    }

    /// Writes a file with this content that only its owner may read, and calls `f` with its path.
    fn with_file(name: &str, content: &str, f: impl FnOnce(&Path)) {
        let name = format!("gabion-secrets-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        f(&path);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_content_of_a_file_is_returned_only_if_a_data_client_can_use_it() {
        with_file("content", HOST, |path| {
            let content = content(path, Kind::Iscsi).unwrap();
            assert_eq!((content.text(), format!("{content:?}")), (HOST, "Hidden".to_owned()));
            let error = format!("{:#}", super::content(path, Kind::Nvme).unwrap_err());
            assert!(error.contains("type") && !error.contains("twelve"), "{error}");
        });
        let keys = format!("host = \"{KEY}\"\n");
        with_file("keys", &keys, |path| {
            assert_eq!(content(path, Kind::Nvme).unwrap().text(), keys);
            assert!(content(path, Kind::Iscsi).is_err());
        });
    }

    #[test]
    fn a_file_with_one_key_is_that_key() {
        with_file("key", &format!("{KEY}\n"), |path| {
            let key = key(path).unwrap();
            assert_eq!((key.text(), format!("{key:?}")), (KEY, "Hidden".to_owned()));
            fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
            let error = format!("{:#}", super::key(path).unwrap_err());
            assert!(error.contains("chmod 600"), "{error}");
        });
        for wrong in ["", "secret", &KEY[1..], &format!("{KEY}\n{OTHER}"), &format!("{KEY},x=y")] {
            with_file("wrong", wrong, |path| {
                let error = format!("{:#}", key(path).unwrap_err());
                assert!(error.contains("gen-dhchap-key") && !error.contains("MzmoF"), "{error}");
            });
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let path = std::env::temp_dir().join(format!("gabion-secrets-{}", std::process::id()));
        fs::write(&path, HOST).unwrap();
        for (mode, good) in [(0o600, true), (0o640, false), (0o604, false), (0o400, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            match chap(&path) {
                Ok(_) => assert!(good, "{mode:o}"),
                Err(error) => assert!(!good && format!("{error:#}").contains("chmod"), "{error:#}"),
            }
        }
        fs::remove_file(&path).unwrap();
    }
}

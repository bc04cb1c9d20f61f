//! The file with the secrets of iSCSI hosts (CHAP).
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
//! Invariants: no error contains a secret, because errors go to the log. All secrets are different:
//! otherwise one host could authenticate as another.

use anyhow::{Context, Result, bail};
use node::sdc::{Chap, Secret};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The shortest secret in bytes (RFC 7143 9.2.1).
const SHORTEST: usize = 12;
/// The longest secret in bytes that all initiators support.
const LONGEST: usize = 255;
/// The longest name of an initiator in bytes (RFC 7143 4.2.7.1).
const NAME_MAX: usize = 223;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    host: Option<Entry>,
    target: Option<Entry>,
    #[serde(default)]
    hosts: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    user: String,
    secret: String,
}

/// Reads the secrets.
pub fn read(path: &Path) -> Result<Chap> {
    let what = || format!("can't use the secrets in {}", path.display());
    let file = fs::File::open(path).with_context(what)?;
    let mode = file.metadata().with_context(what)?.permissions().mode() & 0o777;
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
    // The whole error would quote the line.
    let file: File =
        toml::from_str(text).map_err(|error| anyhow::anyhow!("{}", error.message()))?;
    let mut whose = BTreeMap::new();
    let mut add = |name: &str, entry: Entry| -> Result<Secret> {
        let one = secret(name, entry)?;
        if let Some(other) = whose.insert(one.secret.clone(), name.to_owned()) {
            bail!("`{other}` and `{name}` have the same secret: give one of them another");
        }
        Ok(one)
    };
    let host = file.host.map(|entry| add("host", entry)).transpose()?;
    let own = file.target.map(|entry| add("target", entry)).transpose()?;
    let mut hosts = BTreeMap::new();
    for (name, entry) in file.hosts {
        if name.is_empty() || name.len() > NAME_MAX || name.to_lowercase() != name {
            bail!(
                "`{name}` is no name of an initiator: write it as the host does, in small letters"
            );
        }
        let one = add(&name, entry)?;
        hosts.insert(name, one);
    }
    if host.is_none() && hosts.is_empty() {
        bail!("there is no `host` and no `hosts`: no host could log in");
    }
    Ok(Chap { host, hosts, own })
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
            (String::new(), "nobody"),
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

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let path = std::env::temp_dir().join(format!("gabion-secrets-{}", std::process::id()));
        fs::write(&path, HOST).unwrap();
        for (mode, good) in [(0o600, true), (0o640, false), (0o604, false), (0o400, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            match read(&path) {
                Ok(_) => assert!(good, "{mode:o}"),
                Err(error) => assert!(!good && format!("{error:#}").contains("chmod"), "{error:#}"),
            }
        }
        fs::remove_file(&path).unwrap();
    }
}

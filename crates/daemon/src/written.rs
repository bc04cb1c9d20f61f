//! `written_by` in configuration files, and what is done about keys that this release does not
//! know.
//!
//! A key that is unknown is a typing error, and the file is refused. But a newer release may have
//! written the file before the operator went back to this one: then `written_by` names a newer
//! release, and its unknown keys are left out with a warning.

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// This release.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// The key that names the release which wrote a file.
pub const KEY: &str = "written_by";

/// True if `release` is newer than this one. A text that is no release is not.
pub fn is_newer(release: &str) -> bool {
    let numbers = |text: &str| -> Option<Vec<u32>> {
        let plain = text.split(['-', '+']).next()?;
        plain.split('.').map(|part| part.parse().ok()).collect()
    };
    match (numbers(release), numbers(RELEASE)) {
        (Some(theirs), Some(ours)) => theirs > ours,
        _ => false,
    }
}

/// Returns a configuration as the text of a file that this release writes.
pub fn text(config: &impl Serialize) -> Result<String, toml::ser::Error> {
    Ok(format!("{KEY} = \"{RELEASE}\"\n{}", toml::to_string(config)?))
}

/// Reads a configuration. Also returns the unknown keys that were left out, and the newer release
/// that wrote the file, if there are any.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<(T, Option<Skipped>), toml::de::Error> {
    let mut table: Table = toml::from_str(text)?;
    let Some(by) = table.remove(KEY) else { return Ok((toml::from_str(text)?, None)) };
    let newer = by.as_str().filter(|by| is_newer(by)).map(str::to_owned);
    let mut keys = Vec::new();
    loop {
        let error = match table.clone().try_into() {
            Ok(config) => {
                let skipped = newer.filter(|_| !keys.is_empty()).map(|by| Skipped { by, keys });
                return Ok((config, skipped));
            }
            Err(error) => error,
        };
        let unknown = unknown_key(&error).filter(|_| newer.is_some());
        let less = unknown.as_ref().and_then(|key| without::<T>(&table, key));
        let (Some(key), Some(less)) = (unknown, less) else { return Err(error) };
        keys.push(key);
        table = less;
    }
}

/// Keys of a newer release that were left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Skipped {
    /// The release that wrote the file.
    pub by: String,
    /// The keys.
    pub keys: Vec<String>,
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keys = self.keys.join("`, `");
        write!(
            f,
            "`{keys}` is ignored: release {} wrote the file, and this is release {RELEASE}",
            self.by
        )
    }
}

/// The deepest tables of a configuration, counted from 0.
const DEPTHS: u32 = 3;

/// Returns the table without a key that is unknown in it or in a nested table. The error does not
/// say in which one. So this removes the key at as few depths as possible, until the error is
/// another one.
fn without<T: DeserializeOwned>(table: &Table, key: &str) -> Option<Table> {
    let mut sets: Vec<u32> = (1..1 << DEPTHS).collect();
    sets.sort_by_key(|set| set.count_ones());
    sets.into_iter().find_map(|set| {
        let mut less = table.clone();
        remove(&mut less, key, set, 0);
        let error = less.clone().try_into::<T>().err();
        let same = |e: &toml::de::Error| {
            unknown_key(e).is_some_and(|k| k == key) || e.message().starts_with("missing field")
        };
        (!error.as_ref().is_some_and(same)).then_some(less)
    })
}

fn remove(table: &mut Table, key: &str, depths: u32, depth: u32) {
    if depths >> depth & 1 == 1 {
        table.remove(key);
    }
    if depth + 1 == DEPTHS {
        return;
    }
    for (_, value) in table.iter_mut() {
        match value {
            Value::Table(inner) => remove(inner, key, depths, depth + 1),
            Value::Array(list) => {
                for inner in list.iter_mut().filter_map(Value::as_table_mut) {
                    remove(inner, key, depths, depth + 1);
                }
            }
            _ => {}
        }
    }
}

/// Returns the key that an error calls unknown.
fn unknown_key(error: &toml::de::Error) -> Option<String> {
    let rest = error.message().strip_prefix("unknown field `")?;
    rest.split('`').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MdmConfig, SdcConfig, SdsConfig};

    const SDS: &str = "name = \"sds1\"\nmdm = [\"10.0.0.1:7001\"]\n[[device]]\n\
                       spec = \"ram:1GiB\"\nlisten = \"10.0.0.2:7072\"\n";

    fn by(release: &str, more: &str) -> String {
        format!("written_by = \"{release}\"\n{more}{SDS}")
    }

    #[test]
    fn releases_are_compared_as_numbers() {
        assert!(is_newer("99.0.0") && is_newer("0.1000.0") && !is_newer(RELEASE));
        assert!(!is_newer("0.0.9") && !is_newer("newest") && !is_newer(""));
        assert!(is_newer("99.1.0-rc1"));
    }

    #[test]
    fn written_files_name_this_release_and_read_back() {
        let (config, skipped) = parse::<SdsConfig>(SDS).unwrap();
        assert_eq!(skipped, None);
        let text = text(&config).unwrap();
        assert!(text.starts_with(&format!("written_by = \"{RELEASE}\"\n")));
        assert_eq!(parse(&text).unwrap(), (config, None));
    }

    #[test]
    fn unknown_keys_are_refused_unless_a_newer_release_wrote_them() {
        let whole = parse::<SdsConfig>(SDS).unwrap().0;
        for more in ["colour = \"red\"\n", "colour = { of = [1, 2] }\n"] {
            for release in [RELEASE, "0.0.1", "?"] {
                let error = parse::<SdsConfig>(&by(release, more)).unwrap_err();
                assert!(error.to_string().contains("colour"), "{error}");
            }
            let (config, skipped) = parse::<SdsConfig>(&by("99.0.0", more)).unwrap();
            assert_eq!(config, whole);
            let skipped = skipped.unwrap();
            assert_eq!((skipped.by.as_str(), skipped.keys.len()), ("99.0.0", 1));
            assert!(skipped.to_string().contains("`colour` is ignored: release 99.0.0"));
        }
        assert!(parse::<SdsConfig>(&format!("colour = 1\n{SDS}")).is_err(), "nobody wrote it");
    }

    #[test]
    fn unknown_keys_are_found_in_nested_tables_and_known_ones_stay() {
        // `pin` is known for a device, and not for the server.
        let text = by("99.0.0", "pin = 7\n") + "pin = 2\ncolour = 1\n";
        let (config, skipped) = parse::<SdsConfig>(&text).unwrap();
        assert_eq!(config.device[0].pin, Some(2));
        assert_eq!(skipped.unwrap().keys.len(), 2);
        // What is wrong otherwise is an error also then.
        assert!(parse::<MdmConfig>(&by("99.0.0", "")).is_err());
        assert!(parse::<SdsConfig>(&by("99.0.0", "spin_us = \"x\"\n")).is_err());
    }

    /// Files of each release so far. They are never changed; a release adds its own.
    #[test]
    fn the_files_of_every_release_are_read() {
        macro_rules! golden {
            ($file:literal) => {
                include_str!(concat!("../tests/golden/0.1.0/", $file))
            };
        }
        let mdm = parse::<MdmConfig>(golden!("mdm.toml")).unwrap();
        assert_eq!((mdm.0.quarantine_seconds, &mdm.1), (Some(5), &None));
        let sds = parse::<SdsConfig>(golden!("sds.toml")).unwrap();
        assert_eq!((sds.0.device.len(), sds.0.device[0].pin, &sds.1), (2, Some(0), &None));
        let sdc = parse::<SdcConfig>(golden!("sdc.toml")).unwrap();
        assert_eq!((sdc.0.mdm.len(), sdc.0.nbd.len(), &sdc.1), (2, 2, &None));
        // What this release writes of them has the same content.
        assert_eq!(parse(&text(&mdm.0).unwrap()).unwrap(), mdm);
        assert_eq!(parse(&text(&sds.0).unwrap()).unwrap(), sds);
        assert_eq!(parse(&text(&sdc.0).unwrap()).unwrap(), sdc);
    }
}

//! What `--device` and `--volume` say, and the files of roles: `ram:1GiB`, `null:1TiB`, `vol1:1GiB`.

use crate::size::Size;
use serde::de::Error as _;
use std::fmt;
use std::str::FromStr;

/// The longest volume name.
pub const NAME_MAX: usize = 31;

/// A device of a data server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceSpec {
    /// Memory: empty once the process has died.
    Ram(Size),
    /// Keeps nothing: for measuring.
    Null(Size),
}

impl FromStr for DeviceSpec {
    type Err = String;
    fn from_str(text: &str) -> Result<DeviceSpec, String> {
        let wrong =
            || format!("`{text}` is not a device: write ram:SIZE or null:SIZE, as in ram:1GiB");
        let (kind, size) = text.split_once(':').ok_or_else(wrong)?;
        let size: Size = size.parse()?;
        if size.0 < base::MIB {
            return Err(format!("`{text}` is too small: a device holds at least 1MiB"));
        }
        match kind {
            "ram" => Ok(DeviceSpec::Ram(size)),
            "null" => Ok(DeviceSpec::Null(size)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceSpec::Ram(size) => write!(f, "ram:{}", size.0),
            DeviceSpec::Null(size) => write!(f, "null:{}", size.0),
        }
    }
}

impl<'de> serde::Deserialize<'de> for DeviceSpec {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<DeviceSpec, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

impl serde::Serialize for DeviceSpec {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// A volume to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeSpec {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size: Size,
}

impl FromStr for VolumeSpec {
    type Err = String;
    fn from_str(text: &str) -> Result<VolumeSpec, String> {
        let (name, size) = text
            .split_once(':')
            .ok_or_else(|| format!("`{text}` is not a volume: write NAME:SIZE, as in vol1:1GiB"))?;
        Ok(VolumeSpec { name: volume_name(name)?, size: volume_size(size)? })
    }
}

/// Checks a volume's name.
pub fn volume_name(name: &str) -> Result<String, String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(fine) {
        return Err(format!(
            "`{name}` is no volume name: 1 to {NAME_MAX} of the characters a-z A-Z 0-9 - _ ."
        ));
    }
    Ok(name.to_owned())
}

/// Reads a volume's size.
pub fn volume_size(text: &str) -> Result<Size, String> {
    let size: Size = text.parse()?;
    match size.0 {
        0 => Err("a volume holds at least one byte (sizes are rounded up to 1MiB)".into()),
        n if n > base::MAX_VOLUME_BYTES => Err(format!(
            "`{text}` is more than the largest volume, {}",
            Size(base::MAX_VOLUME_BYTES)
        )),
        _ => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_volumes_parse() {
        assert_eq!("ram:1GiB".parse(), Ok(DeviceSpec::Ram(Size(1 << 30))));
        assert_eq!("null:1TiB".parse(), Ok(DeviceSpec::Null(Size(1 << 40))));
        for bad in ["ram", "ram:", "ram:1", "disk:1G", "1G", "ram:-1G"] {
            assert!(bad.parse::<DeviceSpec>().is_err(), "{bad}");
        }
        let spec: VolumeSpec = "db-1.log:64M".parse().unwrap();
        assert_eq!((spec.name.as_str(), spec.size), ("db-1.log", Size(64 << 20)));
        for bad in
            ["vol1", ":1G", "a b:1G", "a/b:1G", "v:0", "v:5PiB", &format!("{}:1G", "x".repeat(32))]
        {
            assert!(bad.parse::<VolumeSpec>().is_err(), "{bad}");
        }
    }
}

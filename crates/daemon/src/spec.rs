//! Devices and volumes as text, in `--device`, `--volume` and the files of roles:
//! `file:disk1:1GiB`, `block:/dev/sdb`, `ram:1GiB`, `null:1TiB`, `vol1:1GiB`.

use crate::size::Size;
use base::name::{PEER_NAME_MAX, is_peer_name};
use serde::de::Error as _;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The longest volume name.
pub const NAME_MAX: usize = 31;

/// A device of a data server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceSpec {
    /// A file. If it does not exist and a size is given, it is created as a sparse file.
    File(PathBuf, Option<Size>),
    /// A block device.
    Block(PathBuf),
    /// Memory. It is empty after its process has died.
    Ram(Size),
    /// A device that keeps no data, for measuring.
    Null(Size),
}

/// The smallest RAM or NULL device.
const SMALLEST_MEMORY: u64 = base::MIB;

impl DeviceSpec {
    /// Returns the path of a device that survives its process.
    pub fn path(&self) -> Option<&Path> {
        match self {
            DeviceSpec::File(path, _) | DeviceSpec::Block(path) => Some(path),
            DeviceSpec::Ram(_) | DeviceSpec::Null(_) => None,
        }
    }

    /// Returns the same device with an absolute path.
    pub fn absolute(self) -> std::io::Result<DeviceSpec> {
        Ok(match self {
            DeviceSpec::File(path, size) => DeviceSpec::File(std::path::absolute(path)?, size),
            DeviceSpec::Block(path) => DeviceSpec::Block(std::path::absolute(path)?),
            memory => memory,
        })
    }
}

impl FromStr for DeviceSpec {
    type Err = String;
    fn from_str(text: &str) -> Result<DeviceSpec, String> {
        let wrong = || {
            format!(
                "`{text}` is not a device: write file:PATH:SIZE, block:PATH, ram:SIZE or \
                 null:SIZE, as in file:disk1:100GiB, block:/dev/sdb, ram:1GiB"
            )
        };
        let (kind, rest) = text.split_once(':').filter(|(_, r)| !r.is_empty()).ok_or_else(wrong)?;
        match kind {
            "file" => file(rest).ok_or_else(wrong),
            "block" => Ok(DeviceSpec::Block(rest.into())),
            "ram" => memory(text, rest).map(DeviceSpec::Ram),
            "null" => memory(text, rest).map(DeviceSpec::Null),
            _ => Err(wrong()),
        }
    }
}

/// Parses `PATH` or `PATH:SIZE`. The part after the last colon is a size if it parses as one.
fn file(rest: &str) -> Option<DeviceSpec> {
    let sized = rest.rsplit_once(':').and_then(|(path, size)| Some((path, size.parse().ok()?)));
    match sized {
        Some((path, size)) => (!path.is_empty()).then(|| DeviceSpec::File(path.into(), Some(size))),
        None => Some(DeviceSpec::File(rest.into(), None)),
    }
}

fn memory(text: &str, size: &str) -> Result<Size, String> {
    let size: Size = size.parse()?;
    if size.0 < SMALLEST_MEMORY {
        return Err(format!("`{text}` is too small: a device holds at least 1MiB"));
    }
    Ok(size)
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceSpec::File(path, Some(size)) => {
                write!(f, "file:{}:{}", path.display(), size.word())
            }
            DeviceSpec::File(path, None) => write!(f, "file:{}", path.display()),
            DeviceSpec::Block(path) => write!(f, "block:{}", path.display()),
            DeviceSpec::Ram(size) => write!(f, "ram:{}", size.word()),
            DeviceSpec::Null(size) => write!(f, "null:{}", size.word()),
        }
    }
}

macro_rules! as_text {
    ($name:ident) => {
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                String::deserialize(from)?.parse().map_err(D::Error::custom)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
    };
}

as_text!(DeviceSpec);
as_text!(UpDevice);

/// A device that `up` gives to each data server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UpDevice {
    /// A file of this size in the cluster's directory.
    File(Size),
    /// Memory: [`DeviceSpec::Ram`] or [`DeviceSpec::Null`].
    Memory(DeviceSpec),
}

impl UpDevice {
    /// Returns true if it survives its process.
    pub fn survives(&self) -> bool {
        matches!(self, UpDevice::File(_))
    }
}

impl FromStr for UpDevice {
    type Err = String;
    fn from_str(text: &str) -> Result<UpDevice, String> {
        if let Some(size) = text.strip_prefix("file:") {
            return size.parse().map(UpDevice::File).map_err(|_| {
                format!(
                    "`{text}`: here, write file:SIZE, as in file:10GiB; the file lies in the \
                     cluster's directory. `gabion device add` takes any path"
                )
            });
        }
        match text.parse() {
            Ok(memory @ (DeviceSpec::Ram(_) | DeviceSpec::Null(_))) => Ok(UpDevice::Memory(memory)),
            _ => Err(format!(
                "`{text}` is not a device that each server can have: write file:SIZE, ram:SIZE or \
                 null:SIZE, as in file:10GiB"
            )),
        }
    }
}

impl fmt::Display for UpDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpDevice::File(size) => write!(f, "file:{}", size.word()),
            UpDevice::Memory(memory) => memory.fmt(f),
        }
    }
}

/// A volume to create.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeSpec {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size: Size,
}

impl fmt::Display for VolumeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.size.word())
    }
}

impl FromStr for VolumeSpec {
    type Err = String;
    fn from_str(text: &str) -> Result<VolumeSpec, String> {
        let (name, size) = text
            .split_once(':')
            .ok_or_else(|| format!("`{text}` is not a volume: write NAME:SIZE, as in vol1:1GiB"))?;
        Ok(VolumeSpec { name: new_volume_name(name)?, size: volume_size(size)? })
    }
}

/// Checks a volume's name.
pub fn volume_name(name: &str) -> Result<String, String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(fine) {
        return Err(format!(
            "`{name}` is not a volume name: use 1 to {NAME_MAX} of the characters a-z A-Z 0-9 - _ ."
        ));
    }
    Ok(name.to_owned())
}

/// Checks the name of a volume that is to be created.
pub fn new_volume_name(name: &str) -> Result<String, String> {
    if name.starts_with('-') || matches!(name, "." | "..") {
        return Err(format!(
            "`{name}` is not a volume name: it begins with `-`, or means a folder"
        ));
    }
    volume_name(name)
}

/// Checks the name of a server or client.
pub fn peer_name(name: &str) -> Result<String, String> {
    match is_peer_name(name) {
        true => Ok(name.to_owned()),
        false => Err(format!(
            "{:?} can't be the name of a server or client: use 1 to {PEER_NAME_MAX} bytes without \
             control characters",
            name.chars().take(PEER_NAME_MAX).collect::<String>()
        )),
    }
}

/// Parses and checks a volume's size.
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
        let file = |path: &str, size| Ok(DeviceSpec::File(path.into(), size));
        assert_eq!("file:disk1:1GiB".parse(), file("disk1", Some(Size(1 << 30))));
        assert_eq!("file:/a:b/c".parse(), file("/a:b/c", None));
        assert_eq!("block:/dev/sdb".parse(), Ok(DeviceSpec::Block("/dev/sdb".into())));
        for text in ["file:/a b/c:4097", "file:x", "block:/dev/x", "ram:1536MiB"] {
            assert_eq!(text.parse::<DeviceSpec>().unwrap().to_string(), text);
        }
        assert_eq!("file:1G".parse(), Ok(UpDevice::File(Size(1 << 30))));
        for bad in ["file:x:1G", "file:", "block:/dev/sdb", "ram:1"] {
            assert!(bad.parse::<UpDevice>().is_err(), "{bad}");
        }
        for bad in
            ["ram", "ram:", "ram:1", "disk:1G", "1G", "ram:-1G", "file:", "file::1G", "block:"]
        {
            assert!(bad.parse::<DeviceSpec>().is_err(), "{bad}");
        }
        let spec: VolumeSpec = "db-1.log:64M".parse().unwrap();
        assert_eq!((spec.name.as_str(), spec.size), ("db-1.log", Size(64 << 20)));
        for bad in [".:1G", "..:1G", "-v:1G"] {
            let error = bad.parse::<VolumeSpec>().unwrap_err();
            assert!(error.contains("begins with `-`, or means a folder"), "{error}");
        }
        for bad in
            ["vol1", ":1G", "a b:1G", "a/b:1G", "v:0", "v:5PiB", &format!("{}:1G", "x".repeat(32))]
        {
            assert!(bad.parse::<VolumeSpec>().is_err(), "{bad}");
        }
    }
}

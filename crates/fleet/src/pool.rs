//! The settings of a storage pool, as options of a command and as orders to the MDM.

use base::Policy;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use wire::control::{Ask, CreateObject, Media, ObjectKind, PolicyInfo, SetPool};

/// Settings of a pool.
#[derive(Args, Clone, Copy, PartialEq, Default, Debug)]
pub struct Settings {
    /// Percentage of it that is kept for rebuilds: 0 to 90; by default, 10
    #[arg(long, value_name = "PERCENT")]
    pub spare: Option<u32>,
    /// The medium of its devices
    #[arg(long)]
    pub media: Option<MediaType>,
    /// How copies that replace a lost one give way: unlimited, concurrent:N, favour:TIMES or
    /// latency:BOUND
    #[arg(long, value_name = "POLICY")]
    pub rebuild: Option<Policy>,
    /// The same for copies that only move
    #[arg(long, value_name = "POLICY")]
    pub rebalance: Option<Policy>,
    /// What happens to devices that first register in it; by default, join
    #[arg(long, value_name = "WHAT")]
    pub new_devices: Option<NewDevices>,
}

impl Settings {
    /// Returns true if no setting is given.
    pub fn is_empty(&self) -> bool {
        *self == Settings::default()
    }

    /// Makes the order to create an object. The settings apply only to a pool.
    pub fn create(&self, kind: ObjectKind, name: &str, domain: &str) -> Ask {
        Ask::CreateObject(CreateObject {
            kind: kind as i32,
            name: name.to_owned(),
            domain: domain.to_owned(),
            media: self.media.map_or(0, MediaType::media),
            spare: self.spare,
            rebuild: self.rebuild.map(PolicyInfo::from),
            rebalance: self.rebalance.map(PolicyInfo::from),
            by_order: self.new_devices == Some(NewDevices::Wait),
        })
    }

    /// Makes the order to change an existing pool.
    pub fn set(&self, pool: &str) -> Ask {
        Ask::SetPool(SetPool {
            pool: pool.to_owned(),
            spare: self.spare,
            media: self.media.map(MediaType::media),
            rebuild: self.rebuild.map(PolicyInfo::from),
            rebalance: self.rebalance.map(PolicyInfo::from),
            by_order: self.new_devices.map(|new| new == NewDevices::Wait),
        })
    }
}

/// What happens to devices that first register in a pool.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewDevices {
    /// They get copies at once
    Join,
    /// They get none before `gabion device admit`
    Wait,
}

/// The medium of devices.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MediaType {
    /// Anything
    Any,
    /// Hard disks
    Hdd,
    /// Solid state drives
    Ssd,
}

impl MediaType {
    fn media(self) -> i32 {
        let media = match self {
            MediaType::Any => Media::Any,
            MediaType::Hdd => Media::Hdd,
            MediaType::Ssd => Media::Ssd,
        };
        media as i32
    }
}

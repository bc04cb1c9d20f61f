//! Checks that messages have no value that this build does not know.

use super::{Access, Ask, DeviceInfo, DeviceKind, GroupInfo, Intent, MapPage, MappingInfo, Media};
use super::{
    MapTo, MapToHost, ObjectKind, Report, ReservationInfo, UnknownValue, VolumeInfo, known,
};
use base::level;

impl MappingInfo {
    /// Returns an error if a grant has an access that this build does not know.
    pub fn check(&self) -> Result<(), UnknownValue> {
        let hosts = self.hosts.iter().flat_map(|hosts| hosts.all.iter().chain(&hosts.named));
        let sdcs = self.all.iter().chain(&self.sdcs);
        let mut accesses = sdcs.map(|of| of.access).chain(hosts.map(|of| of.access));
        accesses.try_for_each(|access| known::<Access>("Access", access))
    }
}

impl DeviceInfo {
    /// Returns an error if its kind or its intent is one that this build does not know.
    pub fn check(&self) -> Result<(), UnknownValue> {
        known::<DeviceKind>("DeviceKind", self.kind)?;
        known::<Intent>("Intent", self.intent)
    }
}

impl GroupInfo {
    /// Returns an error if its doubt is one that this build does not know.
    pub fn check(&self) -> Result<(), UnknownValue> {
        let value = i32::try_from(self.doubt).unwrap_or(i32::MAX);
        let known = level::of_value("Doubt", value).is_some();
        known.then_some(()).ok_or(UnknownValue { of: "Doubt", value })
    }
}

impl VolumeInfo {
    /// Returns an error if a grant has an access that this build does not know, or its reservation
    /// a type.
    pub fn check(&self) -> Result<(), UnknownValue> {
        self.mapping.iter().try_for_each(MappingInfo::check)?;
        self.reservations.iter().try_for_each(ReservationInfo::check)
    }
}

impl MapPage {
    /// Returns an error if a device, a group or a volume has a value that this build does not know:
    /// it must not be taken for another one.
    pub fn check(&self) -> Result<(), UnknownValue> {
        self.devices.iter().try_for_each(DeviceInfo::check)?;
        self.groups.iter().try_for_each(GroupInfo::check)?;
        self.volumes.iter().try_for_each(VolumeInfo::check)
    }
}

impl Report {
    /// Returns an error if a group or a volume of the reported map has a value that this build does
    /// not know. The value would get into the log.
    pub fn check(&self) -> Result<(), UnknownValue> {
        self.groups.iter().filter_map(|g| g.config.as_ref()).try_for_each(GroupInfo::check)?;
        self.volumes.iter().try_for_each(VolumeInfo::check)
    }
}

fn accesses(to: &[MapTo], hosts: &[MapToHost]) -> Result<(), UnknownValue> {
    let mut all = to.iter().map(|to| to.access).chain(hosts.iter().map(|to| to.access));
    all.try_for_each(|access| known::<Access>("Access", access))
}

impl Ask {
    /// Returns an error if it has a value that this build does not know.
    pub fn check(&self) -> Result<(), UnknownValue> {
        let kind = |kind: i32| known::<ObjectKind>("ObjectKind", kind);
        match self {
            Ask::Map(m) => accesses(&m.to, &m.hosts),
            Ask::CreateVolume(m) => accesses(&m.to, &m.hosts),
            Ask::Rename(m) => kind(m.kind),
            Ask::RemoveObject(m) => kind(m.kind),
            Ask::CreateObject(m) => kind(m.kind).and(known::<Media>("Media", m.media)),
            Ask::SetPool(m) => m.media.map_or(Ok(()), |media| known::<Media>("Media", media)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::GroupReport;

    #[test]
    fn values_of_a_later_build_are_not_taken_for_others() {
        let device = |kind, intent| DeviceInfo { kind, intent, ..DeviceInfo::default() };
        let page = |device| MapPage { devices: [device].into(), ..MapPage::default() };
        assert_eq!(page(device(3, 5)).check(), Ok(()));
        let unknown = |of, value| Err(UnknownValue { of, value });
        assert_eq!(page(device(3, 6)).check(), unknown("Intent", 6));
        assert_eq!(page(device(4, 0)).check(), unknown("DeviceKind", 4));
        let mut mapping = MappingInfo { all: Some(Default::default()), ..Default::default() };
        mapping.all.as_mut().unwrap().access = 2;
        let reservations = Some(ReservationInfo { kind: 7, ..ReservationInfo::default() });
        let reserved = VolumeInfo { reservations, ..VolumeInfo::default() };
        assert_eq!(reserved.check(), unknown("ReservationKind", 7));
        let volume = VolumeInfo { mapping: Some(mapping), ..VolumeInfo::default() };
        let page = MapPage { volumes: [volume.clone()].into(), ..MapPage::default() };
        assert_eq!(page.check(), unknown("Access", 2));
        let group = |doubt| GroupInfo { doubt, ..GroupInfo::default() };
        let page = |doubt| MapPage { groups: [group(doubt)].into(), ..MapPage::default() };
        assert_eq!(page(2).check(), Ok(()));
        assert_eq!(page(3).check(), unknown("Doubt", 3));
        assert_eq!(page(u32::MAX).check(), unknown("Doubt", i32::MAX));
        // A report has groups and volumes of a map.
        let report = Report { volumes: [volume].into(), ..Report::default() };
        assert_eq!(report.check(), unknown("Access", 2));
        let told = GroupReport { config: Some(group(3)), ..GroupReport::default() };
        let report = Report { groups: [told].into(), ..Report::default() };
        assert_eq!(report.check(), unknown("Doubt", 3));
    }
}

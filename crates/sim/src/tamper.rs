//! Tampering with a data server's device while the server is off: its superblocks are damaged, its
//! end is cut off, or it is put into another server's place.
//!
//! One damaged superblock must not matter. If all four are damaged, or the end is missing, the
//! device must be refused, and the refusal reported; then the device is repaired, and it serves
//! with its former content. A device in another server's place is refused as long as the MDM
//! believes that this device, or the one whose place it took, is up. Then it serves there under the
//! identity that is written on it. A copy of a device that is in service is refused wherever it is
//! started, and so is an older copy of a device in its own place.
//!
//! This file does not damage other metadata. The store's own tests show how a mount handles that
//! (`crates/store/tests/all/damage.rs`).

use crate::check::Failure;
use crate::disk::Disk;
use crate::plan::{Death, Who};
use crate::stage::Stage;
use crate::world::{ProcId, ProcState};
use base::DeviceId;
use node::sds::{Device, Sds, Trouble};
use seam::DiskId;
use store::durable::layout::SLOT;
use store::durable::{Durable, MountError};

/// Kinds of tampering with a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tamper {
    /// Damage one copy of the superblock.
    Superblock,
    /// Damage all copies of the superblock.
    Superblocks,
    /// Cut off its end.
    Shrunk,
    /// Swap it with the device of this server.
    Swapped(u8),
    /// Put a copy of the device of this server, which stays in service, into its place.
    CopyOf(u8),
    /// Put its own last snapshot into its place.
    SetBack,
}

/// A copy of a device at an earlier time.
#[derive(Debug)]
pub(crate) struct Snapshot {
    disk: Disk,
    /// Id and content id of the device.
    of: (DeviceId, u64),
    /// Number of records that its log may have.
    records: u64,
}

/// Tampering that was done to a device.
#[derive(Debug)]
pub(crate) struct Harm {
    how: Tamper,
    /// Size before, in bytes.
    size: u64,
    /// Offsets of the damaged superblocks, if any are damaged.
    places: Vec<u64>,
    /// The device itself, if a copy is in its place.
    aside: Option<Disk>,
}

/// Offset in a superblock of a byte that its checksum covers, and that is not used before the
/// checksum is compared.
const INSIDE: u64 = 100;

impl Stage {
    /// Stops servers, tampers with their devices, and starts the servers again.
    pub(crate) fn tamper(&mut self, i: u8, how: Tamper) {
        let those = match how {
            Tamper::Swapped(j) if j != i => vec![i, j],
            Tamper::CopyOf(j) if j != i && self.can_be_tampered(j) => vec![i],
            Tamper::SetBack if !self.is_older(i) => return,
            Tamper::Swapped(_) | Tamper::CopyOf(_) => return,
            _ => vec![i],
        };
        // A copy is refused only while the original is in service. Without the original, the copy
        // counts as the device itself, which has moved.
        if !those.iter().all(|i| self.can_be_tampered(*i) && !self.is_copied(*i)) {
            return;
        }
        self.marks.meet("sim: a device was tampered with");
        let Some(layout) = self.durable(i).map(|d| d.layout().clone()) else { return };
        let (size, places) = (self.file(i).size(), layout.places().to_vec());
        let mut harm = Harm { how, size, places, aside: None };
        if how == Tamper::Superblock {
            let copy = self.damage_prng.below(4) as usize;
            harm.places = vec![harm.places[copy]];
        }
        if let Tamper::Swapped(j) = how {
            let pair = [(i, self.durable(j)), (j, self.durable(i))];
            let pair = pair.map(|(i, d)| (i, d.expect("it is in use").identity().device));
            self.written.extend(pair);
        }
        for i in &those {
            self.kill(Who::Sds(*i), Death { keep: true, ..Death::default() });
        }
        self.do_to(i, &harm);
        if let Tamper::CopyOf(j) = how {
            let copy = self.file(j).copy();
            harm.aside = Some(std::mem::replace(self.file(i), copy));
        }
        if let (Tamper::SetBack, Some(old)) = (how, self.snapshots.remove(&i)) {
            harm.aside = Some(std::mem::replace(self.file(i), old.disk));
        }
        if how == Tamper::Shrunk {
            self.file(i).resize((layout.size - layout.size / 4) / SLOT * SLOT);
        }
        if !matches!(how, Tamper::Superblock | Tamper::Swapped(_)) {
            self.tampered.insert(i, harm);
        }
        those.iter().for_each(|i| self.start(Who::Sds(*i)));
    }

    /// Copies this server's device while it is in service.
    pub(crate) fn snapshot(&mut self, i: u8) {
        if !self.can_be_tampered(i) {
            return;
        }
        let Some(durable) = self.durable(i) else { return };
        let identity = durable.identity();
        let (of, records) = ((identity.device, identity.uuid[0]), durable.records_written());
        let disk = self.file(i).copy();
        self.snapshots.insert(i, Snapshot { disk, of, records });
    }

    /// Returns true when the snapshot of this server's device is older than what the leading MDM
    /// has heard of the device.
    fn is_older(&self, i: u8) -> bool {
        let Some((old, mdm)) = self.snapshots.get(&i).zip(self.mdm()) else { return false };
        let heard = mdm.observed().devices.get(&old.of.0).map_or(0, |seen| seen.settled(old.of.1));
        heard > old.records
    }

    /// Returns true when the server runs, and its device keeps its content and is in use.
    pub(crate) fn can_be_tampered(&self, i: u8) -> bool {
        let who = Who::Sds(i);
        let id = self.proc(who);
        let used = self.durable(i).is_some();
        let runs = self.world.state(id) == ProcState::Running && self.dying[id.0].is_none();
        self.plan.keeps(who) && runs && used && !self.tampered.contains_key(&i)
    }

    /// Returns true when a copy of this server's device is in another server's place.
    fn is_copied(&self, i: u8) -> bool {
        self.tampered.values().any(|harm| harm.how == Tamper::CopyOf(i))
    }

    pub(crate) fn durable(&self, i: u8) -> Option<&Durable> {
        self.sds(i).and_then(Sds::device).and_then(Device::durable)
    }

    pub(crate) fn file(&mut self, i: u8) -> &mut Disk {
        let id = self.proc(Who::Sds(i));
        self.world.disk(id, DiskId(0))
    }

    /// Applies the tampering. A second call undoes it, except for the size.
    fn do_to(&mut self, i: u8, harm: &Harm) {
        match harm.how {
            Tamper::Superblock | Tamper::Superblocks => {
                harm.places.iter().for_each(|at| self.file(i).flip(at + INSIDE));
            }
            Tamper::Shrunk | Tamper::CopyOf(_) | Tamper::SetBack => {}
            Tamper::Swapped(j) => {
                let empty = Disk::new(self.file(i).kind(), 0);
                let own = std::mem::replace(self.file(i), empty);
                let other = std::mem::replace(self.file(j), own);
                *self.file(i) = other;
                let lost = std::mem::take(&mut self.lost_copies).into_iter();
                let moved =
                    |at: u8| [(i, j), (j, i)].into_iter().find(|m| m.0 == at).map_or(at, |m| m.1);
                self.lost_copies = lost.map(|(at, unit, block)| (moved(at), unit, block)).collect();
                let harmed = std::mem::take(&mut self.harmed).into_iter();
                self.harmed = harmed.map(|(at, unit, block)| (moved(at), unit, block)).collect();
            }
        }
    }

    /// Returns true when a server's reason to give up its device is expected.
    pub(crate) fn is_refused_rightly(&self, i: u8, trouble: &Trouble) -> bool {
        use MountError::{Damaged, Shrunk, TooSmall};
        match (self.tampered.get(&i).map(|harm| harm.how), trouble) {
            (Some(Tamper::Superblocks), Trouble::Device(Damaged { .. })) => true,
            (Some(Tamper::Shrunk), Trouble::Device(Shrunk { .. } | TooSmall { .. })) => true,
            (Some(Tamper::CopyOf(_) | Tamper::SetBack), Trouble::Refused(_)) => true,
            (None, Trouble::Refused(_)) => self.written.contains_key(&i),
            _ => false,
        }
    }

    /// Repairs a device that its server has refused, if it was tampered with. The server is off.
    pub(crate) fn put_right(&mut self, i: u8) {
        let Some(mut harm) = self.tampered.remove(&i) else { return };
        self.do_to(i, &harm);
        if let Some(own) = harm.aside.take() {
            *self.file(i) = own;
        }
        self.file(i).resize(harm.size);
        self.marks.meet("sim: a device was refused and put right");
    }

    /// Fails if a server is primary with a device that it has to refuse, or under another identity
    /// than its device's.
    pub(crate) fn may_lead(&self, id: ProcId) -> Result<(), Failure> {
        let Who::Sds(i) = self.who(id) else { return Ok(()) };
        let text = match (self.tampered.get(&i), self.written.get(&i), self.sds(i).map(Sds::id)) {
            (Some(Harm { how, .. }), ..) => {
                format!("sds{i} serves from a device that was {how:?}")
            }
            (None, Some(is), Some(serves)) if *is != serves => {
                format!("sds{i} serves as {serves}, and its device is {is}")
            }
            _ => return Ok(()),
        };
        Err(Failure::new("device", text))
    }

    /// Returns a server that has not refused its device yet.
    pub(crate) fn unrefused(&self) -> Option<String> {
        let (i, Harm { how, .. }) = self.tampered.iter().next()?;
        Some(format!("sds{i} has not refused a device that was {how:?}"))
    }
}

#[cfg(test)]
mod tests {
    use crate::run;
    use crate::stage::Stage;
    use crate::trace::Sink;
    use base::DeviceId;
    use wire::control::MapPage;

    #[test]
    fn a_false_loss_is_noticed_where_devices_are_exchanged_too() {
        let text = "gabion-plan 1\nsds 3\nclients 1\nvolume 1\ndurable 1\ncapacity 8\ndepth 4\n\
                    length 1.0\nat 0.5 tamper 0 swapped 1\n";
        let mut stage = Stage::new(&text.parse().unwrap(), Sink::Off);
        run::set_up(&mut stage).unwrap();
        let mut lost = stage.observer.groups.values().next().expect("there is a volume").clone();
        (lost.epoch, lost.in_sync, lost.lost) = (lost.epoch + 1, Vec::new(), true);
        let page = MapPage { groups: vec![lost.clone()], ..MapPage::default() };
        let failure = stage.losses(&page).expect_err("nothing was emptied");
        assert_eq!(failure.name, "R10");
        let now = stage.world.steps();
        lost.replicas.iter().for_each(|d| stage.losses.emptied(DeviceId(*d), now));
        stage.losses(&page).unwrap();
    }
}

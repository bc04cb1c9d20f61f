//! A device of 1 TiB: the arithmetic is correct at full size.

use crate::common;
use crate::common::{Disk, World};
use base::{BLOCK, UnitKey, VolumeId};

#[test]
fn a_tebibyte_is_formatted_written_and_mounted_again() {
    let mut world = World::new(1, false);
    world.disk = Disk::new(1 << 40, false);
    world.format(common::world::identity(), false).unwrap();
    world.mount(None).unwrap();
    assert_eq!(world.store.as_ref().unwrap().capacity(), 16_600_005 * (64 << 10));
    for index in [1, 2, u32::MAX - 1] {
        let unit = UnitKey { volume: VolumeId(1), index };
        let group = World::group(unit);
        world.write(group, unit, 0, 100 << 10, false);
        world.settle();
        world.write(group, unit, 512, 2 * BLOCK, false);
    }
    world.crash(common::Fate::Random);
    world.mount(None).unwrap();
    world.compare();
    world.crash(common::Fate::Kept);
    world.mount(None).unwrap();
    world.compare();
}

//! Reads the content of a device, many slots at a time.

use anyhow::{Context, Result, bail};
use base::BLOCK;
use daemon::offline::Offline;
use daemon::size::Size;
use fleet::progress::Line;
use seam::{DiskError, Job, Started};
use store::durable::layout::SLOT;
use store::durable::survey::HeldSlot;

/// Number of slots that are read in parallel.
const DEPTH: usize = 32;

/// Reads the slots for which `wanted` is true. `take` gets runs of blocks that hold data, with the
/// number of the first block in the unit. Slots that can't be read as a whole come last, one block
/// at a time.
pub(crate) fn read(
    device: &mut Offline,
    title: &str,
    wanted: impl Fn(&HeldSlot) -> bool,
    mut take: impl FnMut(&HeldSlot, u32, Result<&[u8], DiskError>) -> Result<()>,
) -> Result<()> {
    let all = Size(device.store().slots().filter(&wanted).count() as u64 * SLOT);
    let count = device.store().layout().slot_count();
    let line = Line::new(title);
    let (mut next, mut busy, mut done) = (0, 0, 0);
    let mut damaged = Vec::new();
    loop {
        while busy < DEPTH && next < count {
            next += 1;
            let Some(held) = device.store().held(next - 1).filter(&wanted) else { continue };
            let job = Job::Read { at: held.first * BLOCK, len: SLOT as u32 };
            match device.start(held.slot.into(), held.group, held.unit, job) {
                Started::Pending => busy += 1,
                Started::Done(data) => take_runs(&held, &data, &mut take)?,
                Started::Full | Started::BadBody => bail!("a read writes nothing"),
            }
        }
        let Some(finished) = device.finished()? else { break };
        (busy, done) = (busy - 1, done + 1);
        let held = device.store().held(finished.token as u32).context("what is read stays")?;
        match finished.result {
            Ok(data) => take_runs(&held, &data, &mut take)?,
            Err(_) => damaged.push(held),
        }
        if done % 256 == 0 {
            line.say(&format!("{} of {all}, {} slots damaged", Size(done * SLOT), damaged.len()));
        }
    }
    for held in damaged {
        for block in held.runs().flat_map(|(first, count)| first..first + count) {
            let data = device.read(held.group, held.unit, block * BLOCK, BLOCK)?;
            take(&held, block, data.as_deref().map_err(|error| *error))?;
        }
    }
    Ok(())
}

fn take_runs(
    held: &HeldSlot,
    data: &[u8],
    take: &mut impl FnMut(&HeldSlot, u32, Result<&[u8], DiskError>) -> Result<()>,
) -> Result<()> {
    for (first, count) in held.runs() {
        let (from, len) = (((first - held.first) * BLOCK) as usize, (count * BLOCK) as usize);
        take(held, first, Ok(&data[from..from + len]))?;
    }
    Ok(())
}

//! The folder of a mount: one file for each volume, with the volume's name.
//!
//! Every request is answered at once, from the newest known map. The inode number of a file is made
//! of the volume's id, which is never reused. So an open file stays the same volume when the volume
//! is renamed.

use crate::client::{Client, Usable};
use crate::fuse::abi::{Attributes, Body, Call, ROOT};
use base::VolumeId;
use rustix::io::Errno;

/// The first inode of a volume.
const FIRST: u64 = ROOT + 1;
/// The permission bits of the folder, of writable files, and of read-only files.
const FOLDER: u32 = 0o555;
const WRITABLE: u32 = 0o600;
const READABLE: u32 = 0o400;

/// Returns the inode of a volume.
fn node(volume: VolumeId) -> u64 {
    FIRST + u64::from(volume.0)
}

/// Returns the volume of an inode.
fn volume(node: u64) -> Option<VolumeId> {
    Some(VolumeId(u32::try_from(node.checked_sub(FIRST)?).ok()?))
}

fn attributes(of: Usable) -> Attributes {
    let permissions = if of.read_only { READABLE } else { WRITABLE };
    Attributes { node: node(of.id), size: of.size, permissions }
}

/// The volumes that the folder shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shown {
    /// All that the client may use.
    All,
    /// Only this one.
    One(VolumeId),
}

impl Shown {
    fn has(self, id: VolumeId) -> bool {
        self == Shown::All || self == Shown::One(id)
    }

    /// Returns the volume behind an inode, if it is shown and exists.
    pub(crate) fn usable(self, client: &mut Client, of: u64) -> Result<Usable, Errno> {
        let id = volume(of).filter(|id| self.has(*id)).ok_or(Errno::STALE)?;
        client.volume(id).ok_or(Errno::NXIO)
    }

    /// Returns the volume behind an open file. A handle from an earlier mapping is refused: others
    /// may have written since then, and its program may rely on the old content.
    pub(crate) fn opened(self, client: &mut Client, of: u64, handle: u64) -> Result<Usable, Errno> {
        let found = self.usable(client, of)?;
        (u64::from(found.since) == handle).then_some(found).ok_or(Errno::STALE)
    }

    /// Answers a request that is not about the content of a file.
    pub(crate) fn answer(
        self,
        client: &mut Client,
        of: u64,
        call: Call<'_>,
    ) -> Result<Body, Errno> {
        match call {
            Call::Lookup { name } => {
                let name = std::str::from_utf8(name).map_err(|_| Errno::NOENT)?;
                let found = client.named(name).filter(|found| self.has(found.id));
                Ok(Body::of_lookup(attributes(found.ok_or(Errno::NOENT)?)))
            }
            Call::Attributes | Call::SetAttributes { .. } => {
                let found = match of {
                    ROOT => Attributes { node: ROOT, size: 0, permissions: FOLDER },
                    _ => attributes(self.usable(client, of)?),
                };
                match call {
                    Call::SetAttributes { size: Some(size) } if size != found.size => {
                        Err(Errno::PERM)
                    }
                    _ => Ok(Body::of_attributes(found)),
                }
            }
            Call::Open { writes } => {
                let found = self.usable(client, of)?;
                match found.read_only && writes {
                    true => Err(Errno::ROFS),
                    false => {
                        client.hold(found.id);
                        Ok(Body::of_open(found.since.into()))
                    }
                }
            }
            Call::Close => {
                volume(of).into_iter().for_each(|id| client.release(id));
                Ok(Body::new())
            }
            Call::OpenFolder => Ok(Body::of_open_folder()),
            Call::List { from, len } => Ok(self.list(client, from, len)),
            Call::Figures => {
                let all = self.all(client);
                let sizes = all.iter().filter_map(|(_, id)| Some(client.volume(*id)?.size));
                Ok(Body::of_figures(sizes.sum::<u64>() / 4096, all.len() as u64))
            }
            Call::Nothing => Ok(Body::new()),
            Call::Change => Err(Errno::PERM),
            _ => Err(Errno::NOSYS),
        }
    }

    /// Returns the names and ids of the shown volumes, by id.
    fn all(self, client: &mut Client) -> Vec<(String, VolumeId)> {
        let mut all = client.list();
        // Every folder has these two entries.
        all.retain(|(name, id)| self.has(*id) && ![".", ".."].contains(&name.as_str()));
        all
    }

    fn list(self, client: &mut Client, from: u64, len: u32) -> Body {
        let mut body = Body::new();
        let all = self.all(client);
        let volumes = all.iter().map(|(name, id)| (name.as_bytes(), node(*id)));
        let entries = [(&b"."[..], ROOT), (&b".."[..], ROOT)].into_iter().chain(volumes);
        for (next, (name, node)) in (1..).zip(entries).skip(from as usize) {
            if !body.entry(len, next, node, name) {
                break;
            }
        }
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_and_volumes_are_told_from_each_other() {
        for id in [0, 1, u32::MAX] {
            assert_eq!(volume(node(VolumeId(id))), Some(VolumeId(id)));
        }
        assert_eq!([volume(0), volume(ROOT), volume(u64::MAX)], [None; 3]);
    }

    #[test]
    fn a_mount_of_one_volume_shows_no_other() {
        assert!(Shown::All.has(VolumeId(3)) && Shown::One(VolumeId(3)).has(VolumeId(3)));
        assert!(!Shown::One(VolumeId(3)).has(VolumeId(4)));
    }
}

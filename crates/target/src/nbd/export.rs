//! The interface through which a session learns about volumes. The session queries it each time an
//! answer depends on it, and stores only what it told the client. It does not assign names or ids.

use crate::ident;
use crate::reserve::Access;
use alloc::string::String;
use base::{ClusterId, VolumeId};

/// One volume as a client sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Export<'a> {
    /// The volume's cluster.
    pub cluster: ClusterId,
    /// The volume.
    pub volume: VolumeId,
    /// Its size in bytes. A last part that does not fill a sector is not exported.
    pub size: u64,
    /// True if writes are refused.
    pub read_only: bool,
    /// The access that reservations of other hosts leave to this client.
    pub access: Access,
    /// Its name: 1 to 4096 bytes.
    pub name: &'a str,
}

impl Export<'_> {
    /// Returns its description: the volume's UUID, by which a client knows the volume again when
    /// its name has changed or its address belongs to another cluster.
    pub(crate) fn description(&self) -> String {
        ident::uuid_text(&ident::uuid(self.cluster, self.volume))
    }
}

/// The volumes that a client may attach.
pub trait Exports {
    /// Returns the volume with this name. Never called with an empty name.
    fn find(&self, name: &[u8]) -> Option<Export<'_>>;

    /// Visits every volume once, in an order that depends only on the state.
    fn each<'a>(&'a self, visit: &mut dyn FnMut(Export<'a>));
}

/// Returns the export for `name`; an empty name means the only volume. If there is none, the error
/// text says why, and what would help.
pub(crate) fn resolve<'a>(exports: &'a dyn Exports, name: &[u8]) -> Result<Export<'a>, String> {
    if !name.is_empty() {
        return exports.find(name).ok_or_else(|| {
            String::from(
                "no volume has this name; the client's list function shows those there are",
            )
        });
    }
    let (mut count, mut only, mut names, mut cut) = (0usize, None, String::new(), false);
    exports.each(&mut |export| {
        count += 1;
        only = Some(export);
        // Leaves room for the text around the names: a message has at most 4096 bytes.
        cut |= names.len() + export.name.len() > 3900;
        if !cut {
            names.push_str(if names.is_empty() { "" } else { ", " });
            names.push_str(export.name);
        }
    });
    let more = if cut { ", …" } else { "" };
    match (count, only) {
        (1, Some(export)) => Ok(export),
        (0, _) => Err(String::from("there is no volume yet: create one, then connect again")),
        _ => Err(alloc::format!(
            "there are {count} volumes, so there is no default: connect to one by its name ({names}{more})"
        )),
    }
}

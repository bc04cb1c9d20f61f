//! The data clients (SDCs) of this machine, and the addresses at which they serve a volume.
//!
//! The MDM reports the addresses of all data clients. Those of this machine are the unix sockets
//! that exist here, and the TCP addresses that this machine has. Another machine may have a data
//! client at the same path or loopback address, and so may another cluster. So whoever dials such
//! an address checks the volume's UUID.

use admin::report::{Report, UpDown, Volume};
use anyhow::{Context, Result, bail};
use fleet::target::Target;
use rt::ListenAddr;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

/// A volume, and where data clients of this machine serve it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Served {
    /// The volume's UUID, as text.
    pub(crate) uuid: String,
    /// The name of the NVMe subsystem of its cluster.
    pub(crate) subsystem: String,
    /// Addresses of NBD, unix sockets first.
    pub(crate) nbd: Vec<ListenAddr>,
    /// Addresses of NVMe/TCP.
    pub(crate) nvme: Vec<SocketAddr>,
}

/// Asks the MDM for a volume, and for the addresses of this machine's data clients, or of the one
/// with the name `client`.
pub(crate) fn find(target: &Target, volume: &str, client: Option<&str>) -> Result<Served> {
    let report = target.report()?;
    let found = volume_of(&report, volume)?;
    let is_up = report.sdc.iter().filter(|sdc| sdc.state == UpDown::Up);
    let mut served = Served {
        uuid: found.nvme_uuid.clone(),
        subsystem: found.nvme_subsystem.clone(),
        nbd: Vec::new(),
        nvme: Vec::new(),
    };
    for sdc in is_up.filter(|sdc| client.is_none_or(|name| name == sdc.name)) {
        served.nbd.extend(sdc.nbd_uris.iter().filter_map(|uri| nbd_address(uri)).filter(is_here));
        served.nvme.extend(sdc.nvme_portals.iter().filter_map(|uri| nvme_address(uri)));
    }
    served.nvme.retain(|at| has_address(*at));
    served.nbd.sort_by_key(|at| at.tcp().is_some());
    served.nbd.dedup();
    served.nvme.dedup();
    Ok(served)
}

fn volume_of<'a>(report: &'a Report, name: &str) -> Result<&'a Volume> {
    report.volumes.iter().find(|volume| volume.name == name).with_context(|| {
        format!("there is no volume `{name}`: `gabion volume list` shows those that exist")
    })
}

/// Returns the ids of the cluster and of a volume, as one text.
///
/// # Errors
/// The cluster does not answer, or has no such volume.
pub(crate) fn ids(target: &Target, name: &str) -> Result<String> {
    let report = target.report()?;
    Ok(format!("{} {}", report.cluster, volume_of(&report, name)?.id))
}

/// Returns these addresses, or an error if there are none. `key`: the key of a data client's
/// configuration that would add some.
pub(crate) fn need<'a, T>(all: &'a [T], protocol: &str, key: &str) -> Result<&'a [T]> {
    if all.is_empty() {
        bail!("no data client (SDC) of this machine serves {protocol} (`{key}` in its file)");
    }
    Ok(all)
}

/// Parses a URI of NBD without the name of an export, as data clients report it.
fn nbd_address(uri: &str) -> Option<ListenAddr> {
    if let Some(path) = uri.strip_prefix("nbd+unix:///?socket=") {
        return Some(ListenAddr::Unix(plain(path)?.into()));
    }
    resolve(uri.strip_prefix("nbd://")?).map(ListenAddr::Tcp)
}

/// Parses a URI of NVMe/TCP.
fn nvme_address(uri: &str) -> Option<SocketAddr> {
    resolve(uri.strip_prefix("nvme-tcp://")?)
}

fn resolve(at: &str) -> Option<SocketAddr> {
    at.trim_end_matches('/').to_socket_addrs().ok()?.next()
}

/// Replaces escapes such as `%20`.
fn plain(text: &str) -> Option<String> {
    let mut pieces = text.split('%');
    let mut out = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let (code, rest) = piece.split_at_checked(2)?;
        out.push(u8::from_str_radix(code, 16).ok()?);
        out.extend(rest.as_bytes());
    }
    String::from_utf8(out).ok()
}

fn is_here(at: &ListenAddr) -> bool {
    match at {
        ListenAddr::Unix(path) => path.exists(),
        ListenAddr::Tcp(at) => has_address(*at),
    }
}

/// Returns true if this machine has the IP address.
fn has_address(at: SocketAddr) -> bool {
    at.ip().is_loopback() || TcpListener::bind((at.ip(), 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use daemon::config::{NbdAddress, nvme_uri};

    #[test]
    fn addresses_are_read_as_data_clients_report_them() {
        for text in ["unix:/tmp/a b%c/nbd.sock", "127.0.0.1:10809", "[::1]:10809"] {
            let at: ListenAddr = text.parse().unwrap();
            assert_eq!(nbd_address(&NbdAddress(at.clone()).uri()), Some(at));
        }
        let at: SocketAddr = "127.0.0.1:4420".parse().unwrap();
        assert_eq!(nvme_address(&nvme_uri(&at)), Some(at));
        for wrong in ["nbd+unix:///?socket=/a%2", "nbd+unix:///?socket=/a%zz", "nbd://", "iscsi:x"]
        {
            assert_eq!(nbd_address(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_address_of_another_machine_is_not_here() {
        assert!(has_address("127.0.0.1:1".parse().unwrap()));
        // Reserved for documentation (RFC 5737).
        assert!(!has_address("192.0.2.1:1".parse().unwrap()));
        assert!(!is_here(&ListenAddr::Unix("/gabion-no-such-socket".into())));
    }
}

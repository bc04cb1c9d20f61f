//! The addresses of the MDMs: `IP:PORT,IP:PORT`, or `dir:PATH` for a cluster that `gabion up` runs
//! on this machine.

use crate::failure::Failure;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// Parses the addresses.
pub(crate) fn parse(text: &str) -> Result<Vec<SocketAddr>, Failure> {
    if let Some(path) = text.strip_prefix("dir:") {
        return of_directory(Path::new(path)).map(|address| vec![address]);
    }
    text.split(',').map(|one| address(one.trim())).collect()
}

fn address(text: &str) -> Result<SocketAddr, Failure> {
    text.parse().map_err(|_| {
        Failure::invalid(format!(
            "`{text}` is no MDM's address: write IP:PORT, several with commas between, or dir:PATH \
             with the directory of a cluster that `gabion up` runs"
        ))
    })
}

fn of_directory(path: &Path) -> Result<SocketAddr, Failure> {
    let file = path.join("config/mdm.toml");
    let text = fs::read_to_string(&file).map_err(|e| {
        let code = e.raw_os_error().unwrap_or(libc::EIO);
        Failure::new(
            code,
            format!(
                "can't read {}: {e}. Start a cluster with `gabion up --dir {}`, or name an MDM by \
                 IP:PORT",
                file.display(),
                path.display()
            ),
        )
    })?;
    let table: toml::Table =
        text.parse().map_err(|e| Failure::invalid(format!("{}: {e}", file.display())))?;
    let listen = table.get("listen").and_then(toml::Value::as_str);
    listen.and_then(|at| at.parse().ok()).ok_or_else(|| {
        Failure::invalid(format!("{} does not say where the MDM listens", file.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_directories_are_read() {
        let two = parse("127.0.0.1:7001, [::1]:7002").unwrap();
        assert_eq!(two.iter().map(SocketAddr::port).collect::<Vec<_>>(), [7001, 7002]);
        for bad in ["", "localhost", "127.0.0.1", "127.0.0.1:7001,", "127.0.0.1:70000"] {
            let failure = parse(bad).unwrap_err();
            assert_eq!(failure.code, libc::EINVAL, "{bad}");
            assert!(failure.text().to_str().unwrap().contains("IP:PORT"));
        }
        let dir = std::env::temp_dir().join(format!("gabion-capi-{}", std::process::id()));
        let text = format!("dir:{}", dir.display());
        assert_eq!(parse(&text).unwrap_err().code, libc::ENOENT);
        fs::create_dir_all(dir.join("config")).unwrap();
        fs::write(dir.join("config/mdm.toml"), "listen = \"127.0.0.1:7001\"\nlog = \"x\"\n")
            .unwrap();
        assert_eq!(parse(&text).unwrap(), ["127.0.0.1:7001".parse().unwrap()]);
        fs::write(dir.join("config/mdm.toml"), "listen = 7\n").unwrap();
        assert_eq!(parse(&text).unwrap_err().code, libc::EINVAL);
        fs::remove_dir_all(dir).unwrap();
    }
}

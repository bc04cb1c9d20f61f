//! Attaches a volume at each boot of the machine: a systemd unit for each volume.
//!
//! The unit also mounts the volume. A line in `/etc/fstab` would wait until udev announces the
//! device, and udev does not know `/dev/gabion`.

use crate::block;
use anyhow::{Context, Result};
use daemon::files;
use std::path::{Path, PathBuf};

/// A volume that is attached at each boot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Lasting<'a> {
    /// The volume.
    pub(crate) volume: &'a str,
    /// The MDMs, as for `--mdm`.
    pub(crate) mdm: String,
    /// The method of attachment. The best one now may not work yet at the next boot.
    pub(crate) via: &'a str,
    /// The client's name, if it has one.
    pub(crate) client: Option<&'a str>,
    /// The options that name the files of keys, which have to be there at the next boot.
    pub(crate) keys: Vec<&'a str>,
    /// The folder to mount over.
    pub(crate) at: Option<&'a Path>,
}

fn unit_name(volume: &str) -> String {
    format!("gabion-attach@{volume}.service")
}

fn unit_file(root: &Path, volume: &str) -> PathBuf {
    root.join("etc/systemd/system").join(unit_name(volume))
}

/// Quotes a word of a command line for systemd (systemd.service(5), "Command lines").
fn word(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '%' | '$' => out.extend([c, c]),
            _ => out.push(c),
        }
    }
    out + "\""
}

/// Returns the unit's text. `binary`: this program.
fn unit(lasting: &Lasting<'_>, binary: &str) -> String {
    let Lasting { volume, mdm, via, client, keys, at } = lasting;
    let at = at.map(|at| at.to_string_lossy());
    let mut start = vec!["attach", volume, "--mdm", mdm, "--via", via];
    start.extend(client.iter().flat_map(|client| ["--client", client]));
    start.extend(keys);
    start.extend(at.iter().flat_map(|at| ["--at", at]));
    let line = |words: &[&str]| {
        let all = std::iter::once(binary).chain(words.iter().copied());
        all.map(word).collect::<Vec<_>>().join(" ")
    };
    format!(
        "# Written by `gabion attach --persist`; `gabion detach {volume} --forget` removes it.\n\
         [Unit]\n\
         Description=Gabion volume {volume}\n\
         Wants=network-online.target\n\
         After=network-online.target gabion-mdm.service gabion-sds.service gabion-sdc.service\n\
         Before=remote-fs.target\n\
         \n\
         [Service]\n\
         Type=oneshot\n\
         RemainAfterExit=yes\n\
         ExecStart={}\n\
         ExecStop={}\n\
         # The cluster may take longer to start than this machine.\n\
         Restart=on-failure\n\
         RestartSec=5\n\
         # What serves a device that is in use is needed until it isn't.\n\
         SendSIGKILL=no\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n",
        line(&start),
        line(&["detach", volume]),
    )
}

/// Runs `systemctl` for the machine whose files are below `root`.
fn systemctl(root: &Path, order: &str, unit: &str) -> Result<()> {
    let mut args = Vec::new();
    if root != Path::new("/") {
        args.push(format!("--root={}", root.display()));
    }
    args.extend([order.to_owned(), unit.to_owned()]);
    block::tool("systemctl", "systemd", args).map(drop)
}

/// Writes and enables the unit. Returns a line for people.
pub(crate) fn install(root: &Path, lasting: &Lasting<'_>) -> Result<String> {
    let binary = std::env::current_exe().context("this binary can't be found")?;
    let binary = binary.to_str().context("this binary's path is text")?;
    let (file, name) = (unit_file(root, lasting.volume), unit_name(lasting.volume));
    let write = || {
        files::make_folder(file.parent().unwrap_or(root))?;
        files::write(&file, unit(lasting, binary))
    };
    write().with_context(|| format!("can't write {}", file.display()))?;
    systemctl(root, "enable", &name).with_context(|| {
        format!("{} is attached now, but will not be at the next boot", lasting.volume)
    })?;
    Ok(format!("{name} attaches it again at each boot."))
}

/// Returns true if a unit attaches the volume at each boot.
pub(crate) fn is_lasting(root: &Path, volume: &str) -> bool {
    unit_file(root, volume).exists()
}

/// Disables and removes the unit. Returns false if there is none.
pub(crate) fn forget(root: &Path, volume: &str) -> Result<bool> {
    let file = unit_file(root, volume);
    if !file.exists() {
        return Ok(false);
    }
    systemctl(root, "disable", &unit_name(volume))?;
    files::remove(&file).with_context(|| format!("can't remove {}", file.display()))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_repeats_the_command_line() {
        let lasting = Lasting {
            volume: "vol-1",
            mdm: "10.0.0.1:7001,10.0.0.2:7001".into(),
            via: "nvme",
            client: None,
            keys: vec!["--nvme-secret", "/etc/nvme/key"],
            at: Some(Path::new("/mnt/a 100%")),
        };
        let text = unit(&lasting, "/usr/bin/gabion");
        let start = "ExecStart=\"/usr/bin/gabion\" \"attach\" \"vol-1\" \"--mdm\" \
                     \"10.0.0.1:7001,10.0.0.2:7001\" \"--via\" \"nvme\" \"--nvme-secret\" \
                     \"/etc/nvme/key\" \"--at\" \"/mnt/a 100%%\"\n";
        assert!(text.contains(start), "{text}");
        assert!(text.contains("ExecStop=\"/usr/bin/gabion\" \"detach\" \"vol-1\"\n"), "{text}");
    }

    #[test]
    fn words_are_quoted_as_systemd_reads_them() {
        assert_eq!(word("a\"b\\c$d%"), "\"a\\\"b\\\\c$$d%%\"");
    }
}

//! Irreversible decisions of operators: the question before one, and the record of it.

use anyhow::{Result, bail};
use std::fs;
use std::io::{IsTerminal, Write, stdin, stdout};
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// A confirmation prompt.
pub(crate) struct Question<'a> {
    /// What the decision costs, as whole lines.
    pub warning: &'a str,
    /// The word to type.
    pub word: &'a str,
    /// The error when there is neither a terminal to ask at nor `--yes`.
    pub unasked: &'a str,
    /// The error when the answer is another word.
    pub refused: &'a str,
}

impl Question<'_> {
    /// Asks. Fails unless the user types the word.
    pub(crate) fn ask(&self) -> Result<()> {
        if !stdin().is_terminal() {
            bail!("{}: confirm with --yes", self.unasked);
        }
        print!("{}Type `{}` to go on: ", self.warning, self.word);
        stdout().flush()?;
        let mut answer = String::new();
        stdin().read_line(&mut answer)?;
        if answer.trim() != self.word {
            bail!("{}", self.refused);
        }
        Ok(())
    }
}

/// Returns `user@host`, for the record of a decision.
pub(crate) fn who() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).ok().or_else(account);
    let user = user.unwrap_or_else(|| "?".to_owned());
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{user}@{}", host.trim())
}

/// Returns the name of the account that this process runs as. A service has no `USER`.
fn account() -> Option<String> {
    let id = fs::metadata("/proc/self").ok()?.uid().to_string();
    let accounts = fs::read_to_string("/etc/passwd").ok()?;
    let mut fields = accounts.lines().map(|line| line.split(':'));
    let name = fields.find_map(|mut f| Some((f.next()?, f.nth(1)?)).filter(|(_, uid)| *uid == id));
    name.map(|(name, _)| name.to_owned())
}

/// Returns the time in seconds since 1970, UTC.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

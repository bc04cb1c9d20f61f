//! The list of the cluster's MDMs, and how to add, remove and switch to one.

use anyhow::{Result, bail};
use fleet::table::{right, table};
use fleet::target::Target;
use serde::Serialize;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use wire::control::{MdmStatus, StatusInfo};

const POLL: Duration = Duration::from_millis(50);
/// Time that a new MDM gets to receive the whole log.
const ADD_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that a change of leader may take.
const SWITCH_TIMEOUT: Duration = Duration::from_secs(10);
/// A complete MDM that does not vote after this long waits for a further MDM.
const PATIENCE: Duration = Duration::from_secs(2);
/// Up to this many missing entries count as in flight.
const CLOSE: u64 = 8;

/// One MDM, as `mdm list --json` shows it.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Mdm {
    id: u32,
    name: String,
    address: String,
    /// `manager` or `tie-breaker`.
    role: &'static str,
    leads: bool,
    /// True if it votes. A newly added MDM does not vote yet.
    votes: bool,
    /// `up`, or `down` when the leader has not heard from it lately.
    state: &'static str,
    entries_behind: u64,
}

impl Mdm {
    fn new(status: &MdmStatus) -> Mdm {
        let info = status.info.clone().unwrap_or_default();
        Mdm {
            id: info.id,
            name: info.name,
            address: info.address,
            role: if info.tie_breaker { "tie-breaker" } else { "manager" },
            leads: status.leader,
            votes: status.voter,
            state: if status.heard { "up" } else { "down" },
            entries_behind: status.behind,
        }
    }
}

fn ask(target: &Target) -> Result<Vec<Mdm>> {
    let info: StatusInfo = target.connect()?.status()?;
    Ok(info.mdms.iter().map(Mdm::new).collect())
}

/// Runs `gabion mdm list`.
pub(crate) fn list(target: &Target, json: bool) -> Result<()> {
    let all = ask(target)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(());
    }
    let mut t = table(&["mdm", "role", "state", "address", "leads", "votes", "behind"]);
    right(&mut t, &[6]);
    let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    for mdm in &all {
        t.add_row([
            mdm.name.clone(),
            mdm.role.to_owned(),
            mdm.state.to_owned(),
            mdm.address.clone(),
            yes(mdm.leads),
            yes(mdm.votes),
            mdm.entries_behind.to_string(),
        ]);
    }
    println!("{t}");
    let voters = all.iter().filter(|m| m.votes).count();
    let up = all.iter().filter(|m| m.votes && m.state == "up").count();
    let spare = up.saturating_sub(voters / 2 + 1);
    println!("{up} of {voters} that vote are up: {spare} more can be lost.");
    Ok(())
}

/// Runs `gabion mdm add`.
pub(crate) fn add(
    target: &Target,
    name: &str,
    address: SocketAddr,
    tie_breaker: bool,
) -> Result<()> {
    // If an earlier command has added it already, only wait for it.
    let same = |m: &Mdm| m.name == name && m.address.parse() == Ok(address);
    if !ask(target)?.iter().any(same) {
        target.connect()?.add_mdm(name, address, tie_breaker)?;
    }
    let (start, mut close) = (Instant::now(), None);
    loop {
        if let Some(mdm) = ask(target)?.into_iter().find(|m| m.name == name) {
            if mdm.votes {
                println!("{name} is a {} of the cluster, and votes.", mdm.role);
                return Ok(());
            }
            let near = mdm.state == "up" && mdm.entries_behind <= CLOSE;
            close = close.filter(|_| near).or(near.then(Instant::now));
        }
        if close.is_some_and(|since| since.elapsed() > PATIENCE) {
            println!(
                "{name} has everything, and votes as soon as another one is there: an even number \
                 of voters survives no more losses than one fewer."
            );
            return Ok(());
        }
        if start.elapsed() > ADD_TIMEOUT {
            bail!(
                "{name} is added, but can't be reached at {address}, or does not get everything: \
                 start it, with `join = true` and an empty log, and repeat this command, which \
                 waits for it. `gabion mdm list` shows it, `gabion mdm remove {name}` removes it"
            );
        }
        std::thread::sleep(POLL);
    }
}

/// Runs `gabion mdm remove`. A leader hands over first, so it need not answer while it is removed.
pub(crate) fn remove(target: &Target, name: &str) -> Result<()> {
    let all = ask(target)?;
    let can_lead = |m: &Mdm| m.name != name && m.votes && m.role == "manager" && m.state == "up";
    if all.iter().any(|m| m.name == name && m.leads) && all.iter().any(can_lead) {
        switch(target, None)?;
    }
    target.connect()?.remove_mdm(name)?;
    println!("{name} is out of the cluster: its process can be stopped, and its log removed.");
    Ok(())
}

/// Runs `gabion mdm switch`.
pub(crate) fn switch(target: &Target, name: Option<&str>) -> Result<()> {
    let leader = |all: Vec<Mdm>| all.into_iter().find(|m| m.leads);
    let before = leader(ask(target)?);
    target.connect()?.switch_mdm(name)?;
    let start = Instant::now();
    loop {
        let now = ask(target)
            .ok()
            .and_then(leader)
            .filter(|now| Some(now.id) != before.as_ref().map(|b| b.id));
        if let Some(now) = now {
            println!("{} leads.", now.name);
            return Ok(());
        }
        if start.elapsed() > SWITCH_TIMEOUT {
            bail!("no other MDM has begun to lead: `gabion mdm list` shows which ones work");
        }
        std::thread::sleep(POLL);
    }
}

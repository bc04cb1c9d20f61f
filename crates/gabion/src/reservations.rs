//! `gabion volume reservations`: which hosts are registered with a volume, and what they may do.

use crate::decision::Question;
use admin::report::Reservations;
use anyhow::{Context, Result};
use fleet::table::table;
use fleet::target::Target;
use wire::control::{Ask, ClearReservations};

/// Shows the reservations of a volume.
pub(crate) fn show(target: &Target, volume: &str, json: bool) -> Result<()> {
    let report = target.report()?;
    let found = report.volumes.iter().find(|v| v.name == volume);
    let found = found.with_context(|| {
        format!("there is no volume `{volume}`: `gabion volume list` shows those that exist")
    })?;
    if json {
        println!("{}", serde_json::to_string_pretty(&found.reservations)?);
        return Ok(());
    }
    match &found.reservations {
        None => println!("No host is registered with {volume}."),
        Some(reservations) => println!("{}", text(volume, reservations)),
    }
    Ok(())
}

fn text(volume: &str, reservations: &Reservations) -> String {
    let mut t = table(&["host", "isid", "key", "holds"]);
    for r in &reservations.registrants {
        let holds = if r.holds { "yes" } else { "" };
        t.add_row([r.host.as_str(), r.isid.as_deref().unwrap_or_default(), &r.key, holds]);
    }
    let kind = reservations.kind.map_or_else(
        || format!("{volume} has no reservation: all hosts may use it."),
        |kind| format!("{volume} is reserved: {kind}."),
    );
    format!("{kind}\n{t}")
}

/// Ends the reservation of a volume and all registrations.
pub(crate) fn clear(target: &Target, volume: &str, yes: bool) -> Result<()> {
    if !yes {
        let warning = format!(
            "All hosts may use {volume} afterwards. If the cluster software on its hosts relies on \
             the reservation, two hosts may write to it at once and destroy its file system.\n"
        );
        let unasked = format!("ending the reservations of {volume} lets all hosts use it");
        let refused = format!("the reservations of {volume} were not ended");
        Question { warning: &warning, word: volume, unasked: &unasked, refused: &refused }.ask()?;
    }
    let ask = Ask::ClearReservations(ClearReservations { volume: volume.to_owned() });
    target.connect()?.map_volume(ask)?;
    println!("No host is registered with {volume} any more, and all hosts may use it.");
    Ok(())
}

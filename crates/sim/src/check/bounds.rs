//! Judges that lists which clients, peers and time make grow stay within the bounds of
//! `docs/internals/limits.md`, also in phase 1: at rest, every list is short.

use super::Failure;
use crate::stage::Stage;
use mirror::Grown;
use node::sds::Device;

/// A list: its name, its length, and its bound.
type Row = (&'static str, usize, usize);

/// Compares the lists of all processes with their bounds.
///
/// # Errors
/// A list is longer than its bound.
pub fn check(stage: &Stage) -> Result<(), Failure> {
    let limits = &stage.plan.limits;
    let longest = ("bytes of a body", stage.world.longest_body, limits.frame_body as usize);
    within("somebody", [longest])?;
    for who in stage.everybody() {
        let strangers = stage.world.strangers(stage.proc(who));
        let row = ("connections of strangers", strangers, limits.strangers as usize);
        within(&who.to_string(), [row])?;
    }
    for i in 0..stage.plan.sds {
        let Some(sds) = stage.sds(i) else { continue };
        let Some(is) = sds.grown() else { continue };
        let records = sds.device().and_then(Device::durable).map(|durable| {
            let (is, may) = (durable.executed_len(), durable.executed_most());
            ("executed writes in the records of the device", is, may)
        });
        within(&format!("sds{i}"), rows(is, sds.may_grow()).into_iter().chain(records))?;
    }
    Ok(())
}

/// Returns all lists of a server by name.
fn rows(is: Grown, may: Grown) -> [Row; 12] {
    // Every field is named here, so that no new list escapes the comparison.
    let Grown {
        executed,
        executed_group,
        executed_client,
        forgotten,
        uncertain,
        uncertain_in_sync,
        stream,
        flying,
        gone,
        client_ops,
        client_bytes,
        copies,
    } = is;
    [
        ("executed writes in all groups", executed, may.executed),
        ("executed writes in a group", executed_group, may.executed_group),
        ("executed writes of a client in a group", executed_client, may.executed_client),
        ("numbers of clients whose writes were forgotten", forgotten, may.forgotten),
        ("uncertain writes of a joiner", uncertain, may.uncertain),
        ("uncertain writes of a member", uncertain_in_sync, may.uncertain_in_sync),
        ("operations in the stream of a group", stream, may.stream),
        ("bytes under way to a member", flying, may.flying),
        ("dirty units of volumes that are gone", gone, may.gone),
        ("operations of clients", client_ops, may.client_ops),
        ("bytes of clients' operations", client_bytes, may.client_bytes),
        ("copies under way", copies, may.copies),
    ]
}

fn within(who: &str, rows: impl IntoIterator<Item = Row>) -> Result<(), Failure> {
    match rows.into_iter().find(|(_, is, may)| is > may) {
        Some((what, is, may)) => {
            Err(Failure::new("bounds", format!("{who} has {is} {what}, and may have {may}")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mirror::Mirror;
    use std::collections::BTreeSet;

    /// Accessor of one list.
    type List = fn(&mut Grown) -> &mut usize;

    /// Each list, and the name that a failure must show.
    const LISTS: [(List, &str); 12] = [
        (|g| &mut g.executed, "executed writes in all groups"),
        (|g| &mut g.executed_group, "executed writes in a group"),
        (|g| &mut g.executed_client, "executed writes of a client in a group"),
        (|g| &mut g.forgotten, "numbers of clients whose writes were forgotten"),
        (|g| &mut g.uncertain, "uncertain writes of a joiner"),
        (|g| &mut g.uncertain_in_sync, "uncertain writes of a member"),
        (|g| &mut g.stream, "operations in the stream of a group"),
        (|g| &mut g.flying, "bytes under way to a member"),
        (|g| &mut g.gone, "dirty units of volumes that are gone"),
        (|g| &mut g.client_ops, "operations of clients"),
        (|g| &mut g.client_bytes, "bytes of clients' operations"),
        (|g| &mut g.copies, "copies under way"),
    ];

    /// Returns bounds that all differ, so that a comparison with the bound of another list shows.
    fn bounds() -> Grown {
        let mut may = Mirror::<Device>::may_grow(&base::Limits::TEST_MIN);
        for (n, (list, _)) in LISTS.iter().enumerate() {
            *list(&mut may) = 1000 + 100 * n;
        }
        may
    }

    #[test]
    fn each_list_is_judged_by_its_own_bound() {
        let may = bounds();
        assert_eq!(within("sds3", rows(may, may)), Ok(()), "as long as they may be");
        for (list, name) in LISTS {
            let mut is = may;
            *list(&mut is) += 1;
            let text = within("sds3", rows(is, may)).expect_err(name).to_string();
            let most = *list(&mut may.clone());
            let told = format!("bounds: sds3 has {} {name}, and may have {most}", most + 1);
            assert_eq!(text, told);
        }
        let names: BTreeSet<&str> = LISTS.iter().map(|(_, name)| *name).collect();
        assert_eq!(names.len(), rows(may, may).len());
    }
}

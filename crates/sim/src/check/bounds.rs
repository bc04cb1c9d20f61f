//! Judges the bounds of `docs/internals/limits.md`, for all lists that clients, peers or time can
//! make grow. Checks them in phase 1, and whenever the run waits for something. At rest, every list
//! is short.

use super::Failure;
use crate::stage::Stage;
use mirror::ListLengths;
use node::mdm;
use node::sdc::{self, NbdLengths};
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
        let Some(is) = sds.mirror().map(|m| m.grown()) else { continue };
        let records = sds.device().and_then(Device::durable).map(|durable| {
            let (is, may) = (durable.executed_len(), durable.executed_most());
            ("executed writes in the records of the device", is, may)
        });
        within(&format!("sds{i}"), rows(is, sds.list_bounds()).into_iter().chain(records))?;
    }
    for i in 0..stage.plan.clients {
        let Some(sdc) = stage.sdc(i) else { continue };
        within(&format!("sdc{i}"), client_rows(sdc.list_lengths(), sdc.list_bounds()))?;
    }
    for i in 0..stage.plan.mdms {
        let Some(mdm) = stage.mdm_at(i) else { continue };
        within(&format!("mdm{i}"), mdm_rows(mdm.list_lengths(), mdm.list_bounds()))?;
    }
    Ok(())
}

/// Returns all lists of a client by name.
fn client_rows(is: sdc::ListLengths, may: sdc::ListLengths) -> [Row; 10] {
    let sdc::ListLengths { requests, writes, ops, nbd } = is;
    let NbdLengths {
        connections,
        strangers,
        requests: in_flight,
        bytes,
        all_bytes,
        waiting,
        waiting_bytes,
    } = nbd;
    [
        ("requests", requests, may.requests),
        ("requests that write", writes, may.writes),
        ("operations", ops, may.ops),
        ("NBD connections", connections, may.nbd.connections),
        ("NBD connections without a volume", strangers, may.nbd.strangers),
        ("requests of a connection", in_flight, may.nbd.requests),
        ("bytes of a connection's requests", bytes, may.nbd.bytes),
        ("bytes of all connections' requests", all_bytes, may.nbd.all_bytes),
        ("writes that wait for space", waiting, may.nbd.waiting),
        ("bytes of writes that wait for space", waiting_bytes, may.nbd.waiting_bytes),
    ]
}

/// Returns all lists of an MDM by name.
fn mdm_rows(is: mdm::ListLengths, may: mdm::ListLengths) -> [Row; 10] {
    let mdm::ListLengths {
        admins,
        inputs,
        link_inputs,
        member_links,
        parts,
        all_parts,
        contacts,
        heard_of,
        device_reports,
        refused_servers,
    } = is;
    [
        ("links for orders", admins, may.admins),
        ("inputs", inputs, may.inputs),
        ("inputs of a link", link_inputs, may.link_inputs),
        ("links in the name of an MDM", member_links, may.member_links),
        ("bytes of a message in parts", parts, may.parts),
        ("bytes of all messages in parts", all_parts, may.all_parts),
        ("MDMs that it dials", contacts, may.contacts),
        ("MDMs that called", heard_of, may.heard_of),
        ("devices that have told what they know", device_reports, may.device_reports),
        ("servers that were refused", refused_servers, may.refused_servers),
    ]
}

/// Returns all lists of a server by name.
fn rows(is: ListLengths, may: ListLengths) -> [Row; 13] {
    // Every field is named here, so that no new list escapes the comparison.
    let ListLengths {
        executed,
        executed_group,
        executed_client,
        forgotten,
        source,
        uncertain,
        uncertain_in_sync,
        stream,
        in_flight,
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
        ("executed writes that came with a question", source, may.source),
        ("uncertain writes of a joiner", uncertain, may.uncertain),
        ("uncertain writes of a member", uncertain_in_sync, may.uncertain_in_sync),
        ("operations in the stream of a group", stream, may.stream),
        ("bytes under way to a member", in_flight, may.in_flight),
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
    use crate::run;
    use crate::trace::Sink;
    use std::collections::BTreeSet;

    /// Accessor of one list.
    type List<G> = fn(&mut G) -> &mut usize;

    /// Each list of a server, and the name that a failure must show.
    const SERVER: [(List<ListLengths>, &str); 13] = [
        (|g| &mut g.executed, "executed writes in all groups"),
        (|g| &mut g.executed_group, "executed writes in a group"),
        (|g| &mut g.executed_client, "executed writes of a client in a group"),
        (|g| &mut g.forgotten, "numbers of clients whose writes were forgotten"),
        (|g| &mut g.source, "executed writes that came with a question"),
        (|g| &mut g.uncertain, "uncertain writes of a joiner"),
        (|g| &mut g.uncertain_in_sync, "uncertain writes of a member"),
        (|g| &mut g.stream, "operations in the stream of a group"),
        (|g| &mut g.in_flight, "bytes under way to a member"),
        (|g| &mut g.gone, "dirty units of volumes that are gone"),
        (|g| &mut g.client_ops, "operations of clients"),
        (|g| &mut g.client_bytes, "bytes of clients' operations"),
        (|g| &mut g.copies, "copies under way"),
    ];
    /// The same of a client.
    const CLIENT: [(List<sdc::ListLengths>, &str); 10] = [
        (|g| &mut g.requests, "requests"),
        (|g| &mut g.writes, "requests that write"),
        (|g| &mut g.ops, "operations"),
        (|g| &mut g.nbd.connections, "NBD connections"),
        (|g| &mut g.nbd.strangers, "NBD connections without a volume"),
        (|g| &mut g.nbd.requests, "requests of a connection"),
        (|g| &mut g.nbd.bytes, "bytes of a connection's requests"),
        (|g| &mut g.nbd.all_bytes, "bytes of all connections' requests"),
        (|g| &mut g.nbd.waiting, "writes that wait for space"),
        (|g| &mut g.nbd.waiting_bytes, "bytes of writes that wait for space"),
    ];
    /// The same of an MDM.
    const MDM: [(List<mdm::ListLengths>, &str); 10] = [
        (|g| &mut g.admins, "links for orders"),
        (|g| &mut g.inputs, "inputs"),
        (|g| &mut g.link_inputs, "inputs of a link"),
        (|g| &mut g.member_links, "links in the name of an MDM"),
        (|g| &mut g.parts, "bytes of a message in parts"),
        (|g| &mut g.all_parts, "bytes of all messages in parts"),
        (|g| &mut g.contacts, "MDMs that it dials"),
        (|g| &mut g.heard_of, "MDMs that called"),
        (|g| &mut g.device_reports, "devices that have told what they know"),
        (|g| &mut g.refused_servers, "servers that were refused"),
    ];

    /// Fails unless each list is compared with its own bound. All bounds are different here.
    fn judge_each<G: Copy, const N: usize>(
        mut may: G,
        lists: [(List<G>, &str); N],
        rows: fn(G, G) -> [Row; N],
    ) {
        for (n, (list, _)) in lists.iter().enumerate() {
            *list(&mut may) = 1000 + 100 * n;
        }
        assert_eq!(within("sds3", rows(may, may)), Ok(()), "as long as they may be");
        for (list, name) in lists {
            let mut is = may;
            *list(&mut is) += 1;
            let text = within("sds3", rows(is, may)).expect_err(name).to_string();
            let most = *list(&mut may.clone());
            let told = format!("bounds: sds3 has {} {name}, and may have {most}", most + 1);
            assert_eq!(text, told);
        }
        let names: BTreeSet<&str> = lists.iter().map(|(_, name)| *name).collect();
        assert_eq!(names.len(), N);
    }

    #[test]
    fn each_list_of_a_server_is_judged_by_its_own_bound() {
        judge_each(mirror::ListLengths::most(&base::Limits::TEST_MIN), SERVER, rows);
    }

    #[test]
    fn each_list_of_a_client_and_an_mdm_is_judged_by_its_own_bound() {
        let text = "gabion-plan 1\nsds 2\nclients 1\nvolume 1\ndurable 1\ncapacity 8\ndepth 4\n\
                    length 1.0\n";
        let mut stage = Stage::new(&text.parse().unwrap(), Sink::Off);
        run::set_up(&mut stage).unwrap();
        judge_each(stage.sdc(0).unwrap().list_bounds(), CLIENT, client_rows);
        judge_each(stage.mdm_at(0).unwrap().list_bounds(), MDM, mdm_rows);
    }
}

//! Judges the bounds of `docs/internals/limits.md`, for all lists that clients, peers or time can
//! make grow. Checks them in phase 1, and whenever the run waits for something. At rest, every list
//! is short.

use super::Failure;
use crate::plan::Who;
use crate::stage::Stage;
use mirror::ListLengths;
use node::mdm;
use node::sdc::{self, IscsiLengths, NbdLengths};
use node::sds::{self, Device};
use std::fmt::Display;

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
        within(who, [row])?;
    }
    for i in 0..stage.plan.sds {
        let Some(sds) = stage.sds(i) else { continue };
        let who = Who::Sds(i);
        within(who, shard_rows(sds.list_lengths(), sds.list_bounds()))?;
        let Some(is) = sds.mirror().map(|m| m.grown()) else { continue };
        let records = sds.device().and_then(Device::durable).map(|durable| {
            let (is, may) = (durable.executed_len(), durable.executed_most());
            let executed = ("executed writes in the records of the device", is, may);
            let (is, may) = (durable.dirty_len(), durable.dirty_most());
            [executed, ("dirty units in the records of the device", is, may)]
        });
        let records = records.into_iter().flatten();
        within(who, rows(is, sds.replica_bounds(stage.totals.units)).into_iter().chain(records))?;
    }
    for i in 0..stage.plan.clients {
        let Some(sdc) = stage.sdc(i) else { continue };
        let (is, may) = (sdc.list_lengths(), sdc.list_bounds());
        let iscsi = iscsi_rows(is.iscsi, may.iscsi);
        within(Who::Sdc(i), client_rows(is, may).into_iter().chain(iscsi))?;
    }
    for i in 0..stage.plan.mdms {
        let Some(mdm) = stage.mdm_at(i) else { continue };
        within(Who::Mdm(i), mdm_rows(mdm.list_lengths(), mdm.list_bounds()))?;
    }
    Ok(())
}

/// Returns all lists of a client by name, except those of iSCSI connections.
fn client_rows(is: sdc::ListLengths, may: sdc::ListLengths) -> [Row; 10] {
    let sdc::ListLengths { requests, writes, ops, nbd, iscsi: _ } = is;
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

/// Returns all lists of a client's iSCSI connections by name.
fn iscsi_rows(is: IscsiLengths, may: IscsiLengths) -> [Row; 16] {
    let IscsiLengths { connections, strangers, session, memory, asking, changes, .. } = is;
    let IscsiLengths { past_sessions, unseated, seats, .. } = is;
    let target::iscsi::ListLengths {
        commands,
        immediate,
        management,
        strays,
        skipped,
        solicited,
        reads,
        requests,
    } = session;
    let most = may.session;
    [
        ("iSCSI connections", connections, may.connections),
        ("iSCSI connections without a volume", strangers, may.strangers),
        ("outstanding commands of a session", commands, most.commands),
        ("immediate commands of a session", immediate, most.immediate),
        ("task management requests of a session", management, most.management),
        ("tags of a session's commands that ended", strays, most.strays),
        ("numbers of a session's commands that will not come", skipped, most.skipped),
        ("bytes that a session has asked its host for", solicited, most.solicited),
        ("bytes that a session reads", reads, most.reads),
        ("requests of a session", requests, most.requests),
        ("bytes of all sessions' commands", memory, may.memory),
        ("commands that wait for changes of reservations", asking, may.asking),
        ("changes of reservations under way", changes, may.changes),
        ("remembered sessions", past_sessions, may.past_sessions),
        ("requests that wait for a seat", unseated, may.unseated),
        ("seats that are known or wanted", seats, may.seats),
    ]
}

/// Returns all lists of an MDM by name.
fn mdm_rows(is: mdm::ListLengths, may: mdm::ListLengths) -> [Row; 12] {
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
        verdicts,
        doubts,
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
        ("verdicts that wait", verdicts, may.verdicts),
        ("proposals that wait for a verdict", doubts, may.doubts),
    ]
}

/// Returns all lists of a server's process by name, except those of its replicas.
fn shard_rows(is: sds::ListLengths, may: sds::ListLengths) -> [Row; 5] {
    let sds::ListLengths { hellos, claimants, kept, coming, passed_on } = is;
    [
        ("hellos that wait for a map", hellos, may.hellos),
        ("MDMs that claim to lead", claimants, may.claimants),
        ("bytes of map pages that it keeps", kept, may.kept),
        ("bytes of map pages from the MDM", coming, may.coming),
        ("bytes of map pages from another server", passed_on, may.passed_on),
    ]
}

/// Returns all lists of a server's replicas by name.
fn rows(is: ListLengths, may: ListLengths) -> [Row; 14] {
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
        dirty,
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
        ("dirty units of volumes that exist", dirty, may.dirty),
        ("dirty units of volumes that are gone", gone, may.gone),
        ("operations of clients", client_ops, may.client_ops),
        ("bytes of clients' operations", client_bytes, may.client_bytes),
        ("copies under way", copies, may.copies),
    ]
}

fn within(who: impl Display, rows: impl IntoIterator<Item = Row>) -> Result<(), Failure> {
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

    /// Each list of a server's replicas, and the name that a failure must show.
    const SERVER: [(List<ListLengths>, &str); 14] = [
        (|g| &mut g.executed, "executed writes in all groups"),
        (|g| &mut g.executed_group, "executed writes in a group"),
        (|g| &mut g.executed_client, "executed writes of a client in a group"),
        (|g| &mut g.forgotten, "numbers of clients whose writes were forgotten"),
        (|g| &mut g.source, "executed writes that came with a question"),
        (|g| &mut g.uncertain, "uncertain writes of a joiner"),
        (|g| &mut g.uncertain_in_sync, "uncertain writes of a member"),
        (|g| &mut g.stream, "operations in the stream of a group"),
        (|g| &mut g.in_flight, "bytes under way to a member"),
        (|g| &mut g.dirty, "dirty units of volumes that exist"),
        (|g| &mut g.gone, "dirty units of volumes that are gone"),
        (|g| &mut g.client_ops, "operations of clients"),
        (|g| &mut g.client_bytes, "bytes of clients' operations"),
        (|g| &mut g.copies, "copies under way"),
    ];
    /// The same of its process.
    const SHARD: [(List<sds::ListLengths>, &str); 5] = [
        (|g| &mut g.hellos, "hellos that wait for a map"),
        (|g| &mut g.claimants, "MDMs that claim to lead"),
        (|g| &mut g.kept, "bytes of map pages that it keeps"),
        (|g| &mut g.coming, "bytes of map pages from the MDM"),
        (|g| &mut g.passed_on, "bytes of map pages from another server"),
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
    /// The same of its iSCSI connections.
    const ISCSI: [(List<IscsiLengths>, &str); 16] = [
        (|g| &mut g.connections, "iSCSI connections"),
        (|g| &mut g.strangers, "iSCSI connections without a volume"),
        (|g| &mut g.session.commands, "outstanding commands of a session"),
        (|g| &mut g.session.immediate, "immediate commands of a session"),
        (|g| &mut g.session.management, "task management requests of a session"),
        (|g| &mut g.session.strays, "tags of a session's commands that ended"),
        (|g| &mut g.session.skipped, "numbers of a session's commands that will not come"),
        (|g| &mut g.session.solicited, "bytes that a session has asked its host for"),
        (|g| &mut g.session.reads, "bytes that a session reads"),
        (|g| &mut g.session.requests, "requests of a session"),
        (|g| &mut g.memory, "bytes of all sessions' commands"),
        (|g| &mut g.asking, "commands that wait for changes of reservations"),
        (|g| &mut g.changes, "changes of reservations under way"),
        (|g| &mut g.past_sessions, "remembered sessions"),
        (|g| &mut g.unseated, "requests that wait for a seat"),
        (|g| &mut g.seats, "seats that are known or wanted"),
    ];
    /// The same of an MDM.
    const MDM: [(List<mdm::ListLengths>, &str); 12] = [
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
        (|g| &mut g.verdicts, "verdicts that wait"),
        (|g| &mut g.doubts, "proposals that wait for a verdict"),
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
        judge_each(mirror::ListLengths::most(&base::Limits::TEST_MIN, 8), SERVER, rows);
    }

    #[test]
    fn each_list_of_a_process_is_judged_by_its_own_bound() {
        let text = "gabion-plan 1\nsds 2\nclients 1\nvolume 1\ndurable 1\ncapacity 8\ndepth 4\n\
                    length 1.0\n";
        let mut stage = Stage::new(&text.parse().unwrap(), Sink::Off);
        run::set_up(&mut stage).unwrap();
        judge_each(stage.sds(0).unwrap().list_bounds(), SHARD, shard_rows);
        judge_each(stage.sdc(0).unwrap().list_bounds(), CLIENT, client_rows);
        judge_each(stage.sdc(0).unwrap().list_bounds().iscsi, ISCSI, iscsi_rows);
        judge_each(stage.mdm_at(0).unwrap().list_bounds(), MDM, mdm_rows);
    }
}

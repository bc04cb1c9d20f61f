//! A shard's side of the protocol with the MDM: registration, heartbeats, the map, and proposals.

use super::news::Told;
use super::opening::Known;
use super::{Device, Follower, Sds, Trouble};
use crate::link::{Answer, Callee, Welcomed, hello, send_control};
use crate::mapview::{Changes, OF_BEFORE, knows_less, read_page};
use crate::refusals::{Reason, Writer};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{
    ClusterId, DeviceId, Duration, GroupId, Incarnation, LinkId, MapVersion, Time, beside_spare,
};
use mirror::{Mirror, PeerState, ScrubStats, Stats};
use prost::Message;
use seam::{Buf, Effects, Note, UnitStore};
use store::durable::layout::Layout;
use store::durable::survey::Growth;
use store::durable::{Durable, Identity, MountError};
use wire::control::{
    Admission, BuildInfo, DeviceKind, Heartbeat, Hello, MapPage, MoveStatus, Proposal, Refusal,
    RefusalCode, Register, Registered, Role, ScrubStatus, SlowDevice,
};
use wire::message::{self, MapPull};
use wire::{Frame, Header, Kind, PeerLink};

/// The device counts as full for this long after a write found no space.
const FULL_FOR: Duration = Duration::from_secs(5);

impl Sds {
    /// Returns this shard's hello.
    pub(super) fn own_hello(&self) -> Hello {
        let hello = hello(&self.config.dialect, self.cluster, Role::Sds, &self.config.name);
        let (id, incarnation, map) = (self.me.0, self.incarnation.0, self.map.version.0);
        Hello { id, incarnation, map, ..hello }
    }

    /// Handles a frame from the MDM. An error is the reason for closing the link.
    pub(super) fn mdm_frame(
        &mut self,
        now: Time,
        link: LinkId,
        h: &Header,
        body: &Buf,
        out: &mut Effects,
    ) -> Result<(), Reason> {
        // A refusal is no sign of life: an MDM that refuses this server is not the followed one.
        if h.kind() != Some(Kind::Refusal) {
            self.mdm_lives(now, out);
        }
        let frame = Frame::try_from(h)?;
        let (dialect, cluster) = (&self.config.dialect, self.cluster);
        if let Some(answer) = self.mdm.finder.dialer().answer(dialect, cluster, &frame, body) {
            match &answer {
                Answer::Welcome(welcomed) => self.welcomed_by_mdm(link, welcomed, now, out)?,
                Answer::Refusal(refusal) => self.refused_by_mdm(now, refusal, out),
                Answer::Wrong(_) => {}
            }
            return answer.why(Writer::Sds).map_or(Ok(()), |why| Err(why.into()));
        }
        match frame {
            Frame::Registered(_) => {
                let registered = Registered::decode(&body[..]);
                let registered = registered.map_err(|_| "a registration that can't be read")?;
                self.registered(now, &registered, out);
            }
            Frame::MapPage(_) => {
                let page = read_page(body, self.config.dialect.level_max)?;
                self.page_of_mdm(now, body, page, out);
            }
            _ => {}
        }
        Ok(())
    }

    /// Handles a refusal by an MDM, whose link is closed then. A shard that serves continues when
    /// the MDM is of another cluster: it has the map, which the MDM may have lost with its log.
    fn refused_by_mdm(&mut self, now: Time, refusal: &Refusal, out: &mut Effects) {
        let trouble = || Trouble::Refused(refusal.text.clone());
        let durable = self.config.device.kind() == DeviceKind::Durable;
        match refusal.code() {
            RefusalCode::Superseded => self.end(Note::Superseded, out),
            RefusalCode::WrongDevice => self.give_up(trouble(), out),
            RefusalCode::Occupied => self.wait_for_place(now, refusal.text.clone(), out),
            RefusalCode::WrongCluster if durable && self.mirror.is_none() => {
                self.give_up(trouble(), out);
            }
            RefusalCode::NotLeader => {
                if let Ok(leader) = refusal.leader.parse() {
                    self.mdm.finder.go_to(leader);
                }
            }
            _ => {}
        }
    }

    /// Waits while the MDM finds out whether the device in this one's place is silent or dead. As
    /// long as this process listens, no other process can see that an earlier one at its address is
    /// dead. So this process ends if that takes too long: then dials are refused until its next
    /// start, which is the proof.
    fn wait_for_place(&mut self, now: Time, text: String, out: &mut Effects) {
        let since = *self.mdm.occupied.get_or_insert(now);
        if now.since(since) > self.config.limits.suspect_after * 3 {
            self.give_up(Trouble::Refused(text), out);
        }
    }

    pub(super) fn welcomed_by_mdm(
        &mut self,
        link: LinkId,
        welcomed: &Welcomed,
        now: Time,
        out: &mut Effects,
    ) -> Result<(), Reason> {
        let Welcomed { version, message: welcome, .. } = welcomed;
        if knows_less(welcome.map, self.map.version) {
            return Err(OF_BEFORE.into());
        }
        self.mdm.finder.dialer_mut().admitted(*version)?;
        let link = PeerLink::new(link, *version);
        self.mdm.life = Incarnation(welcome.incarnation);
        let Some(register) = self.register() else { return Ok(()) };
        if welcome.recovers {
            let recovered = MapVersion(welcome.recovered);
            self.news.told = Some(Told { at: self.map.version, recovered });
            let report = self.report_parts();
            report.iter().for_each(|p| send_control(link, p, out));
        }
        send_control(link, &register, out);
        self.mdm.finder.dialer_mut().asked(now);
        self.heartbeat_due = now + self.config.limits.heartbeat_every;
        Ok(())
    }

    /// Returns the registration, with what is known about the device.
    fn register(&self) -> Option<Register> {
        let config = &self.config;
        let mut register = Register {
            sds: config.name.clone(),
            shard: config.shard,
            address: config.address.to_string(),
            nonce: config.nonce,
            store: config.nonce,
            capacity: 0,
            kind: config.device.kind() as i32,
            pid: config.pid,
            acted: 0,
            device: 0,
            replace: false,
            domain: config.home.domain.clone(),
            fault_set: config.home.fault_set.clone(),
            pool: config.home.pool.clone(),
            incarnation: self.incarnation.0,
            next_volume: 0,
            records: 0,
            build: Some(BuildInfo::of(&config.dialect)),
            level: self.map.level,
        };
        let device = match (&self.mirror, self.opening.known()) {
            (Some(mirror), _) => mirror.store(),
            (None, Some(Known::Ready(device))) => device,
            (None, Some(Known::Fresh(fresh))) => {
                register.capacity = Layout::new(fresh.bytes).map_or(0, |l| l.capacity());
                (register.store, register.replace) = (fresh.uuid[0], fresh.replace);
                // An MDM has named the device, and its identity is not on the disk yet.
                register.device = self.me.0;
                return Some(register);
            }
            (None, None) => return None,
        };
        register.capacity = device.capacity();
        register.next_volume = device.volumes().into_iter().max().map_or(0, |v| v.0 + 1);
        if let Some(durable) = device.durable() {
            let Identity { device, uuid, .. } = durable.identity();
            (register.device, register.store) = (device.0, uuid[0]);
            register.level = register.level.max(durable.level());
            let acted = durable.records().into_iter().map(|(_, r)| r.acted.0).max();
            register.acted = acted.unwrap_or(0);
            register.records = durable.records_written();
        }
        Some(register)
    }

    /// Handles the MDM's answer to the registration, which assigns the incarnation.
    fn registered(&mut self, now: Time, registered: &Registered, out: &mut Effects) {
        self.mdm.finder.dialer_mut().settled();
        self.mdm.occupied = None;
        self.cluster = ClusterId(registered.cluster);
        let (id, incarnation) = (DeviceId(registered.id), Incarnation(registered.incarnation));
        if self.me == DeviceId(0) {
            (self.me, self.incarnation) = (id, incarnation);
            self.opening.named_at = MapVersion(registered.map);
            // A device is scrubbed soon after its start anyway, so earlier orders count as begun.
            self.scrub = registered.scrub;
            if let Err(error) = self.opening.name(self.cluster, id, out) {
                return self.give_up(Trouble::Device(error), out);
            }
        } else if (self.me, self.incarnation) != (id, incarnation) {
            // The MDM has lost this shard's identity, or confuses it with another one. Continuing
            // could only do harm.
            return self.end(Note::Superseded, out);
        }
        match self.mdm.finder.dialer().up().filter(|_| self.mirror.is_some()) {
            Some(link) => self.pull(link, true, out),
            None => self.serve(now, out),
        }
    }

    /// Begins to serve, if the device can be used. The MDM has assigned the incarnation.
    pub(super) fn serve(&mut self, now: Time, out: &mut Effects) {
        let Some(device) = self.opening.take() else { return };
        if let Some(durable) = device.durable().filter(|d| d.identity().device != self.me) {
            let (found, wanted) = (durable.identity().device, self.me);
            return self.give_up(Trouble::Device(MountError::OtherDevice { found, wanted }), out);
        }
        device.durable().and_then(growth).into_iter().for_each(|note| out.note(note));
        let (limits, boot) = (self.config.limits.clone(), self.opening.boot.unwrap_or(now));
        let mut mirror = Mirror::new(self.me, self.incarnation, limits, device, boot);
        mirror.named_at(self.opening.named_at);
        assert!(self.mirror.is_none(), "a process opens its device once");
        self.mirror = Some(mirror);
        if let Some(link) = self.mdm.finder.dialer().up() {
            self.pull(link, true, out);
        }
    }

    /// Asks the MDM for the changes since the newest map that an MDM itself has sent. Without
    /// `wait` the answer comes at once, even if there are none.
    pub(super) fn pull(&mut self, link: PeerLink, wait: bool, out: &mut Effects) {
        self.mdm.pulls += 1;
        let pull = MapPull { op: self.mdm.pulls, have: self.map.from_mdm, wait };
        out.send(link.id, link.frame(pull, &[]), Buf::EMPTY);
    }

    fn page_of_mdm(&mut self, now: Time, body: &Buf, mut page: MapPage, out: &mut Effects) {
        let (last, from) = (page.last, self.map.version);
        if page.version > 0 {
            self.news.told = None;
        }
        self.leave_out_others(&mut page);
        if let Some(changes) = self.map.page(page) {
            self.map_changed(now, changes, true, out);
            self.greet_waiting(now, out);
        }
        self.news.keep(body.to_vec(), last.then_some((from, self.map.version)));
        if let Some(link) = self.mdm.finder.dialer().up().filter(|_| last) {
            self.pull(link, true, out);
        }
    }

    /// Sends a server with an older map what the MDM has sent here since that map.
    pub(super) fn pass_on(&self, link: PeerLink, pull: &MapPull, out: &mut Effects) {
        if mutant::on(Mutant::HoardMaps) {
            return;
        }
        for (version, page) in self.news.since(pull.have) {
            let page_of = message::MapPage { op: pull.op, map: version };
            let body = out.copy(page);
            out.send(link.id, link.frame(page_of, &body), body);
        }
    }

    /// Asks another server for its map, if that has been newer for a while without the MDM sending
    /// it here.
    pub(super) fn look_for_news(
        &mut self,
        now: Time,
        link: PeerLink,
        from: DeviceId,
        theirs: MapVersion,
        out: &mut Effects,
    ) {
        let (mine, every) = (self.map.version, self.config.limits.beacon_every);
        if self.news.is_unheard_of(mine, theirs) || self.news.is_contradicted(theirs) {
            return;
        }
        if let Some(question) = self.news.is_due(now, from, (theirs, mine), every) {
            let pull = MapPull { op: question, have: mine, wait: false };
            out.send(link.id, link.frame(pull, &[]), Buf::EMPTY);
        }
    }

    /// Handles a page of a map that another server passes on. This server will pass the map on,
    /// too.
    pub(super) fn page_of_server(
        &mut self,
        now: Time,
        from: DeviceId,
        m: &message::MapPage,
        body: &Buf,
        out: &mut Effects,
    ) -> Result<(), Reason> {
        let page = read_page(body, self.config.dialect.level_max)?;
        if self.news.is_contradicted(MapVersion(page.version)) {
            return Ok(());
        }
        let mut pages = self.news.add_page(from, m.op, page, body.len());
        let Some(last) = pages.last() else { return Ok(()) };
        let (had, version) = (self.map.version, MapVersion(last.version));
        // Pages of two answers must not become one.
        if !self.map.is_between_pages() || self.news.is_unheard_of(had, version) {
            return Ok(());
        }
        let bodies: Vec<Vec<u8>> = pages.iter().map(MapPage::encode_to_vec).collect();
        pages.iter_mut().for_each(|page| self.leave_out_others(page));
        let Some(changes) = self.map.passed_on(pages) else { return Ok(()) };
        let count = bodies.len();
        for (index, page) in bodies.into_iter().enumerate() {
            self.news.keep(page, (index + 1 == count).then_some((had, version)));
        }
        self.map_changed(now, changes, false, out);
        self.greet_waiting(now, out);
        Ok(())
    }

    /// Drops groups to which this device neither belongs nor did. In a large domain they would fill
    /// the memory of a small server.
    fn leave_out_others(&self, page: &mut MapPage) {
        let mirror = self.mirror.as_ref();
        let own = |g: &wire::control::GroupInfo| {
            let id = GroupId(g.id);
            g.replicas.contains(&self.me.0)
                || mirror.is_some_and(|m| m.replicas().has(id))
                || self.map.group(id).is_some()
        };
        page.groups.retain(own);
        page.groups.shrink_to_fit(); // the page has to wait for the others
    }

    /// Acts on a newer map. `from_mdm`: it came from an MDM, not from another server.
    // Long: one step after the other, each of which relies on those before.
    fn map_changed(&mut self, now: Time, changes: Changes, from_mdm: bool, out: &mut Effects) {
        out.note(Note::Map { version: self.map.version });
        self.mdm.finder.learn(&self.map.mdms);
        self.followers.look_again();
        if changes.lives {
            self.end_lives(now, out);
        }
        let Some(mirror) = &mut self.mirror else { return };
        let peers: BTreeMap<DeviceId, PeerState> = self
            .map
            .devices
            .iter()
            .map(|(id, d)| (*id, PeerState { incarnation: d.incarnation, dead: d.dead && !d.up }))
            .collect();
        let known = self.map.devices.get(&self.me).map_or(Incarnation(0), |d| d.incarnation);
        if known > self.incarnation {
            return self.end(Note::Superseded, out);
        }
        let asked = self.map.devices.get(&self.me).map_or(0, |d| d.scrub);
        if self.scrub < asked {
            self.scrub = asked;
            mirror.begin_scrub(now);
        }
        let (pool, limits) = (self.map.pool_of(self.me), &self.config.limits);
        let rebuild = pool.rebuild.unwrap_or(limits.rebuild);
        let rebalance = pool.rebalance.unwrap_or(limits.rebalance);
        let capacity = mirror.store().capacity();
        mirror.set_policies(now, rebuild.on(capacity), rebalance.on(capacity), out);
        if let Device::Durable(durable) = mirror.store_mut() {
            durable.raise_level(self.map.level);
        }
        mirror.set_map(self.map.version, peers);
        let spare = pool.spare.unwrap_or(limits.spare_percent);
        let usable = beside_spare(mirror.store().capacity(), u64::from(spare));
        let thick = self.map.volumes.iter().filter(|(_, v)| v.thick).map(|(id, _)| *id).collect();
        mirror.keep_spare(usable, thick);
        mirror.set_lost_units(self.map.gaps());
        mirror.set_volumes(now, self.map.volumes_there(), out);
        if known < self.incarnation {
            return; // R2: this map does not have this incarnation yet
        }
        let first = !core::mem::replace(&mut self.named, true);
        // At first this includes groups to which the device no longer belongs: their data is
        // deleted.
        let groups = if first {
            let mut groups = self.map.groups_of(self.me);
            groups.extend(mirror.replicas().groups());
            groups.sort_unstable();
            groups.dedup();
            groups
        } else {
            changes.groups
        };
        let lost = self.lost.len();
        for group in groups {
            let Some(config) = self.map.group(group) else { continue };
            let acted = mirror.replicas().acted(group);
            // After a recovery of the MDMs, there may be groups that no device has reported yet.
            if config.epoch < acted && self.map.version.0 < mdm::recovery::JUMP {
                let epoch = config.epoch;
                let text = alloc::format!(
                    "this device has acted in {acted} of {group}, and the MDM knows none above {epoch}: its log was \
                     set back. Restore its newest log and start both again"
                );
                return self.give_up(Trouble::Refused(text), out);
            }
            mirror.configure(now, group, config, from_mdm, out);
            match config.lost && config.replicas.contains(&self.me) {
                true => self.lost.insert(group),
                false => self.lost.remove(&group),
            };
        }
        if self.lost.len() != lost {
            out.note(Note::GroupsLost { groups: self.lost.len() as u32 });
        }
        let (needed, out_of_sync) = mirror.replicas().wanted();
        let up = |d: &DeviceId| self.map.devices.get(d).is_some_and(|d| d.up);
        let candidates: BTreeSet<DeviceId> = out_of_sync.iter().copied().filter(up).collect();
        mirror.need_leases(now, &needed, &candidates);
        mirror.map_changed(now, out);
        let wanted: Vec<DeviceId> = needed.union(&candidates).copied().collect();
        if candidates.iter().any(|device| !self.wanted.1.contains(device)) {
            // There is a new candidate. Its copy begins only after this shard has proposed it.
            self.proposal_due = self.proposal_due.min(now + self.config.limits.heartbeat_every / 8);
        }
        self.wanted = (needed, out_of_sync);
        self.want_followers(now, &wanted, &changes.devices, out);
    }

    /// Keeps a dialer for each wanted device, with the address in the map.
    fn want_followers(
        &mut self,
        now: Time,
        wanted: &[DeviceId],
        changed: &[DeviceId],
        out: &mut Effects,
    ) {
        for device in wanted {
            let Some(address) = self.map.devices.get(device).and_then(|d| d.address) else {
                continue;
            };
            self.followers.want(*device, Follower::default);
            let moved = self.followers.get(*device).filter(|f| f.address() != Some(address));
            let moved = moved.map(|f| f.link());
            if let Some(link) = moved.flatten() {
                self.drop_link(now, link, out); // its process was replaced
            }
            let callee = Callee::Device(*device);
            self.followers.locate(*device, callee, Some(address), &self.config.limits);
            let follower = self.followers.change(*device).expect("it is wanted");
            if moved.is_some() || changed.contains(device) {
                follower.about.refused = false;
            }
            if changed.contains(device) {
                follower.hurry();
            }
        }
    }

    pub(super) fn heartbeat(&mut self, now: Time, out: &mut Effects) {
        let Some(link) = self.mdm.finder.dialer().up().filter(|_| self.me != DeviceId(0)) else {
            return;
        };
        if self.heartbeat_due > now {
            return;
        }
        self.heartbeat_due = now + self.config.limits.heartbeat_every;
        let floor = self.config.limits.slow / 4;
        let slow = self.mirror.as_mut().map_or(Vec::new(), |m| slow(m, self.me, floor, now));
        let stats = self.mirror.as_ref().map_or(Stats::default(), |m| m.stats());
        let scrubbed = self.mirror.as_ref().and_then(|m| m.scrub_stats());
        let lately = |at: Option<Time>| at.is_some_and(|at| now.since(at) < FULL_FOR);
        let durable = self.device().and_then(Device::durable);
        let resync = self.mirror.as_ref().map(|m| m.replicas().resync()).unwrap_or_default();
        let heartbeat = Heartbeat {
            settled: durable.map_or(0, Durable::records_settled),
            used: self.device().map_or(0, |d| d.used()),
            resync_remaining: resync.remaining,
            resync_moved: stats.moved,
            ops: stats.ops,
            full: lately(stats.full_at),
            only_spare: lately(stats.only_spare_at),
            scrub: scrubbed.map(|s| scrub(&s, self.scrub, now)),
            repaired: stats.repaired,
            unreadable: stats.unreadable,
            reads: stats.reads,
            read_bytes: stats.read_bytes,
            writes: stats.writes,
            written_bytes: stats.written_bytes,
            slow,
            partial: resync.partial.into_iter().map(|group| group.0).collect(),
            moves: self.mirror.iter().flat_map(|m| m.moves()).map(copying).collect(),
            ..Heartbeat::default()
        };
        send_control(link, &heartbeat, out);
    }

    /// Proposes changes of the configuration to the MDM. Repeated until the map shows them.
    pub(super) fn propose(&mut self, now: Time, out: &mut Effects) {
        if self.mirror.is_none() || self.proposal_due > now {
            return;
        }
        self.proposal_due = now + self.config.limits.heartbeat_every;
        if let Some(mirror) = &mut self.mirror {
            mirror.store_mut().rest(out);
        }
        let Some(proposal) = self.proposal(now) else { return };
        if let Some(link) = self.mdm.finder.dialer().up() {
            send_control(link, &proposal, out);
        }
    }

    fn proposal(&self, now: Time) -> Option<Proposal> {
        let mirror = self.mirror.as_ref().filter(|_| self.named)?;
        let (needed, out_of_sync) = &self.wanted;
        let mut refused: Vec<u32> = self
            .followers
            .iter()
            .filter(|(d, f)| f.about.refused && f.link().is_none() && needed.contains(d))
            .map(|(d, _)| d.0)
            .collect();
        refused.sort_unstable();
        let silent = mirror.suspects(now).into_iter().filter(|d| needed.contains(d)).map(|d| d.0);
        let mut suspects: Vec<u32> = silent.chain(refused.iter().copied()).collect();
        suspects.sort_unstable();
        suspects.dedup();
        let mut unreached: Vec<u32> = mirror.leases().silent(now).map(|d| d.0).collect();
        unreached.extend(&refused);
        unreached.sort_unstable();
        unreached.dedup();
        let back = |d: &DeviceId| {
            let linked = self.followers.up(*d).is_some();
            linked
                && mirror.leases().answers(now, *d)
                && self.map.devices.get(d).is_some_and(|d| d.up)
        };
        let admission = |(group, epoch, device): (base::GroupId, base::Epoch, DeviceId)| {
            Admission { group: group.0, epoch: epoch.0, device: device.0 }
        };
        let proposal = Proposal {
            device: self.me.0,
            incarnation: self.incarnation.0,
            suspects,
            join: out_of_sync.iter().filter(|d| back(d)).map(|d| d.0).collect(),
            admit: mirror.admissions().into_iter().map(admission).collect(),
            refused,
            unreached,
        };
        let empty = proposal.suspects.is_empty()
            && proposal.join.is_empty()
            && proposal.admit.is_empty()
            && proposal.unreached.is_empty();
        (!empty).then_some(proposal)
    }
}

/// Returns a note about a device that has grown, or that is larger and could not grow.
fn growth(durable: &Durable) -> Option<Note> {
    let (device, growth) = (durable.identity().device, durable.growth());
    let Growth { from, bytes, refused } = growth;
    growth.is_news().then(|| match refused {
        None => Note::Grown { device, from, to: bytes },
        Some(why) => Note::NotGrown { device, used: from, bytes, why: why.why() },
    })
}

/// Returns devices that take at least `floor`, a quarter of the time that counts as slow. The MDM
/// compares them with each other.
fn slow(mirror: &mut Mirror<Device>, me: DeviceId, floor: Duration, now: Time) -> Vec<SlowDevice> {
    if floor.is_zero() {
        return Vec::new();
    }
    let ms = |took: Duration| took.as_millis().min(u128::from(u32::MAX)) as u32;
    let stalled = ms(mirror.stalled_for(now));
    let slow = mirror.slow(now, floor).into_iter();
    let slow_device = |(device, took): (DeviceId, Duration)| SlowDevice {
        device: device.0,
        ms: ms(took),
        stands_ms: if device == me { stalled } else { 0 },
    };
    slow.map(slow_device).collect()
}

fn copying((group, todo, missed): (base::GroupId, u64, u64)) -> MoveStatus {
    MoveStatus { group: group.0, todo, missed }
}

fn scrub(s: &ScrubStats, asked: u32, now: Time) -> ScrubStatus {
    ScrubStatus {
        running: s.running,
        done: s.done,
        held: s.held,
        passes: s.passes,
        ended_ms_ago: s.ended.map_or(0, |at| now.since(at).as_millis().max(1) as u64),
        damaged: s.damaged,
        repaired: s.repaired,
        unrepairable: s.unrepairable,
        skipped: s.skipped,
        asked,
    }
}

//! Random commands: the invariants hold, and pages and snapshots say what the state is.

use crate::common::{self, *};
use base::{DeviceId, MapVersion};
use mdm::command::*;
use mdm::controller;
use mdm::observed::Observed;
use mdm::status::status;
use mdm::{Command, State};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use wire::control::{DeviceInfo, DeviceKind, GatewayInfo, GroupInfo, MapPage, VolumeInfo};

/// A step, to be made into a command that mostly makes sense in the present state.
#[derive(Clone, Debug)]
enum Step {
    Up { device: u32, new_life: bool, new_store: bool },
    Down { device: u32, stale: bool, dead: bool },
    Suspect { by: u32, device: u32 },
    Join { by: u32, device: u32 },
    Admit { picks: Vec<(usize, u32, bool)> },
    Reshape { picks: Vec<(usize, u32, u8)> },
    Intend { device: u32, intent: i32 },
    Create { name: u8 },
    Resize { name: u8, size: u64 },
    Delete { name: u8 },
    Sdc { name: u8 },
    Seat { changes: Vec<(usize, u8, u32, u32)> },
}

fn steps() -> impl Strategy<Value = Step> {
    let dev = 1..=5u32;
    let (dev2, dev3) = (dev.clone(), dev.clone());
    prop_oneof![
        4 => (dev.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(device, new_life, new_store)| Step::Up { device, new_life, new_store }),
        4 => (dev.clone(), prop::bool::weighted(0.1), any::<bool>())
            .prop_map(|(device, stale, dead)| Step::Down { device, stale, dead }),
        2 => (dev.clone(), dev.clone()).prop_map(|(by, device)| Step::Suspect { by, device }),
        4 => (dev.clone(), dev.clone()).prop_map(|(by, device)| Step::Join { by, device }),
        4 => prop::collection::vec((0..20usize, dev, prop::bool::weighted(0.2)), 1..6)
            .prop_map(|picks| Step::Admit { picks }),
        6 => prop::collection::vec((0..20usize, dev2, 0..8u8), 1..6).prop_map(|picks| Step::Reshape { picks }),
        1 => (dev3, 0..3).prop_map(|(device, intent)| Step::Intend { device, intent }),
        1 => (0..4u8).prop_map(|name| Step::Create { name }),
        1 => (0..4u8, 0..5u64).prop_map(|(name, size)| Step::Resize { name, size: size << 20 }),
        1 => (0..4u8).prop_map(|name| Step::Delete { name }),
        1 => (0..4u8).prop_map(|name| Step::Sdc { name }),
        2 => prop::collection::vec((0..20usize, 0..3u8, 0..4u32, 0..4u32), 1..6)
            .prop_map(|changes| Step::Seat { changes }),
    ]
}

fn life(state: &State, device: u32) -> u64 {
    state.devices.get(&DeviceId(device)).map_or(0, |d| d.incarnation.0)
}

// Long: one match over all steps.
fn command(state: &State, step: &Step) -> Option<Command> {
    Some(match step {
        Step::Up { device, new_life, new_store } => {
            let device = (*device).min(state.next_device().0);
            let old = state.devices.get(&DeviceId(device));
            let kind =
                [DeviceKind::Ram, DeviceKind::Durable, DeviceKind::Null][device as usize % 3];
            let new_life = *new_life || old.is_none();
            let incarnation = if new_life { state.next_incarnation.0 } else { life(state, device) };
            let store = match old {
                Some(d) if !(new_life && *new_store) => d.store,
                _ => incarnation + 1000,
            };
            match up(device, incarnation, store, kind) {
                Command::DeviceUp(c) if !new_life => {
                    Command::DeviceUp(DeviceUp { nonce: old.unwrap().nonce, ..c })
                }
                c => c,
            }
        }
        Step::Down { device, stale, dead } => {
            down(*device, life(state, *device).saturating_sub(u64::from(*stale)), *dead)
        }
        Step::Suspect { by, device } => suspect(*by, life(state, *by), *device),
        Step::Join { by, device } => join(*by, life(state, *by), *device),
        Step::Admit { picks } => {
            let ids: Vec<_> = state.groups.keys().collect();
            let one = |(i, device, stale): &(usize, u32, bool)| {
                let id = ids.get(*i % ids.len().max(1))?;
                let group = &state.groups[id];
                let device = group.joiners.first().map_or(*device, |d| d.0);
                Some(Admission { group: id.0, epoch: group.epoch.0 - u64::from(*stale), device })
            };
            Command::Admit(Admit { list: picks.iter().filter_map(one).collect() })
        }
        Step::Reshape { picks } => {
            let ids: Vec<_> = state.groups.keys().collect();
            let one = |(i, device, how): &(usize, u32, u8)| {
                let id = ids.get(*i % ids.len().max(1))?;
                let group = &state.groups[id];
                let mut list: Vec<u32> = group.replicas.iter().map(|d| d.0).collect();
                let mut leaving = group.leaving.map_or(0, |d| d.0);
                match how {
                    0 | 1 => {
                        // A newcomer, mostly where there is none.
                        let place = usize::from(*how);
                        leaving = std::mem::replace(&mut list[place], *device);
                        list.push(leaving);
                    }
                    2 => leaving = 0,
                    3 | 4 => {
                        leaving = 0;
                        list.pop();
                    }
                    5 => list.swap(0, 1),
                    6 => drop(list.remove(0)),
                    _ => list.push(*device),
                }
                let epoch = group.epoch.0 - u64::from(*how == 7);
                Some(Shape { group: id.0, epoch, replicas: list, leaving, acted: 0 })
            };
            Command::Reshape(Reshape { list: picks.iter().filter_map(one).collect() })
        }
        Step::Intend { device, intent } => {
            Command::Intend(Intend { devices: vec![*device], intent: *intent })
        }
        Step::Create { name } => {
            common::create(state, &format!("v{name}"), 1 << 20, &limits()).ok()?
        }
        Step::Resize { name, size } => {
            let name = format!("v{name}");
            let resize = controller::resize_volume_command(state, &name, *size, &limits(), &|_| 0);
            (*resize.ok()?).clone()
        }
        Step::Delete { name } => {
            let name = format!("v{name}");
            let delete = controller::delete_volume_command(state, &name, false, |_| Vec::new());
            (*delete.ok()?).clone()
        }
        Step::Sdc { name } => {
            let name = format!("c{name}");
            let sdc = state.sdc_named(&name).map_or(state.next_sdc(), |(id, _)| id).0;
            let incarnation = state.next_incarnation.0;
            let uris = vec!["iscsi://10.0.0.1:3260".into()];
            Command::RegisterSdc(RegisterSdc { sdc, name, incarnation, uris, ..Default::default() })
        }
        Step::Seat { changes } => {
            let ids: Vec<_> = state.volumes.keys().collect();
            let one = |(i, host, from, to): &(usize, u8, u32, u32)| {
                let (volume, host) = (ids.get(*i % ids.len().max(1))?.0, format!("h{host}"));
                // Mostly the gateway that has the seat.
                let has = state.volumes[&base::VolumeId(volume)].seats.get(&host);
                let from = if *from == 3 { *from } else { has.map_or(0, |seat| seat.sdc.0) };
                Some(SeatChange { volume, host, from, to: *to })
            };
            Command::Seat(Seat { changes: changes.iter().filter_map(one).collect() })
        }
    })
}

/// A puller's map.
#[derive(Clone, Default, Debug, PartialEq)]
struct View {
    version: u64,
    devices: BTreeMap<u32, DeviceInfo>,
    groups: BTreeMap<u32, GroupInfo>,
    volumes: BTreeMap<u32, VolumeInfo>,
    gateways: Vec<GatewayInfo>,
    next_volume: u32,
}

impl View {
    fn take(&mut self, pages: Vec<MapPage>) {
        let count = pages.len();
        for (i, page) in pages.into_iter().enumerate() {
            assert_eq!(page.last, i + 1 == count);
            self.version = page.version;
            self.devices.extend(page.devices.into_iter().map(|d| (d.id, d)));
            self.groups.extend(page.groups.into_iter().map(|g| (g.id, g)));
            self.volumes.extend(page.volumes.into_iter().map(|v| (v.id, v)));
            if page.gateways_at > 0 {
                self.gateways = page.gateways;
            }
            if page.last {
                self.volumes.retain(|id, _| page.live.contains(id));
                self.next_volume = page.next_volume;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn invariants_hold_and_every_view_of_the_state_agrees(
        steps in prop::collection::vec(steps(), 1..60),
        pulls in prop::collection::vec(any::<prop::sample::Index>(), 3),
    ) {
        let mut state = pair(DeviceKind::Durable);
        let mut twin = state.clone();
        let mut views: Vec<View> = Vec::new();
        for step in &steps {
            let Some(command) = command(&state, step) else { continue };
            let mut view = View::default();
            view.take(state.pages_since(MapVersion(0)));
            views.push(view);
            // `apply` checks the invariants and that epochs rise by one.
            let outcome = apply(&mut state, &command);
            let bytes = command.to_bytes();
            let again = twin.apply(twin.index + 1, &Command::from_bytes(&bytes).unwrap());
            prop_assert_eq!(outcome, again);
            prop_assert_eq!(&state, &twin);
        }
        let back = State::from_bytes(&state.to_bytes());
        prop_assert_eq!(back.as_ref(), Ok(&state));
        let mut full = View::default();
        full.take(state.pages_since(MapVersion(0)));
        for pull in pulls {
            if views.is_empty() { break }
            let mut view = pull.get(&views).clone();
            view.take(state.pages_since(MapVersion(view.version)));
            prop_assert_eq!(&view, &full);
        }
        prop_assert!(state.pages_since(state.version).is_empty());
        let info = status(&state, &Observed::default(), &BTreeSet::new(), base::Time::ZERO, &limits());
        prop_assert!(info.groups_degraded + info.groups_failed <= info.groups);
    }

    #[test]
    fn a_state_with_entries_that_may_not_be_decided_can_be_recovered(
        steps in prop::collection::vec(steps(), 1..60),
        undecided in 0..10usize,
    ) {
        let mut state = pair(DeviceKind::Durable);
        let mut decided = state.clone();
        for (i, step) in steps.iter().enumerate() {
            if i + undecided <= steps.len() {
                decided = state.clone();
            }
            if let Some(command) = command(&state, step) {
                apply(&mut state, &command);
            }
        }
        let me = mdm::members::Member { name: "m".into(), address: "10.0.0.9:1".into(), tie_breaker: false };
        let (given, life) = (state.next_device(), state.next_incarnation);
        state.recover(&decided, 1, me, "me", 6000);
        prop_assert_eq!(state.check(), Ok(()));
        let down = |d: &mdm::state::Device| mdm::state::Device { up: false, ..d.clone() };
        let known = decided.devices.iter().map(|(id, d)| (*id, down(d))).collect();
        prop_assert_eq!(&state.devices, &known);
        prop_assert!(state.next_device() > given && state.next_incarnation > life);
        prop_assert_eq!(State::from_bytes(&state.to_bytes()), Ok(state));
    }

    #[test]
    fn damaged_snapshots_are_errors(mut at in prop::collection::vec(any::<prop::sample::Index>(), 1..4), bit in 0..8u32) {
        let mut bytes = pair(DeviceKind::Ram).to_bytes();
        at.iter_mut().for_each(|i| *i.get_mut(&mut bytes) ^= 1 << bit);
        if let Ok(state) = State::from_bytes(&bytes) {
            prop_assert!(state.check().is_ok());
        }
    }
}

#[test]
fn large_maps_come_in_pages() {
    let mut state = State::new();
    apply(&mut state, &Command::FormCluster(FormCluster { cluster: 7 }));
    for device in 1..=128 {
        state.apply(state.index + 1, &up(device, u64::from(device), 1, DeviceKind::Durable));
    }
    let before = state.version;
    let command = common::create(&state, "v", 1 << 40, &base::Limits::SHIPPED).unwrap();
    assert!(command.to_bytes().len() < mdm::log::BATCH_MAX / 2);
    apply(&mut state, &command);
    assert_eq!(state.groups.len(), 128 * 256 / 2);
    let pages = state.pages_since(MapVersion(0));
    assert_eq!(pages.len(), 4);
    assert!(pages.iter().all(|p| prost::Message::encoded_len(p) < 1 << 20));
    let mut view = View::default();
    view.take(pages);
    assert_eq!((view.devices.len(), view.groups.len()), (128, 128 * 128));
    // A single failure is one command and one page.
    apply(&mut state, &down(3, 3, true));
    let pages = state.pages_since(MapVersion(state.version.0 - 1));
    assert_eq!((pages.len(), pages[0].groups.len(), pages[0].devices.len()), (1, 256, 1));
    assert!(state.pages_since(before).len() > 1);
}

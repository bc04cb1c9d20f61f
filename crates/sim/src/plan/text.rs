//! The text format of plans: one fact per line, `#` for comments.

use super::{Action, Death, FinalFault, IoKind, Plan, Timed, Who};
use crate::disk::Damage;
use crate::forge::Forgery;
use crate::tamper::Tamper;
use crate::weather::Weather;
use anyhow::{Context, Result, bail};
use base::Limits;
use std::fmt::{self, Write};
use std::str::FromStr;
use std::time::Duration;

const DAMAGE: [(Damage, &str); 4] = [
    (Damage::Rot, "rot"),
    (Damage::Sector, "sector"),
    (Damage::Lost, "lost"),
    (Damage::Astray, "astray"),
];

const FINAL_FAULTS: [(FinalFault, &str); 12] = [
    (FinalFault::Dead, "dead"),
    (FinalFault::Cut, "cut"),
    (FinalFault::Unheard, "unheard"),
    (FinalFault::Heard, "heard"),
    (FinalFault::Dark, "dark"),
    (FinalFault::Frozen, "frozen"),
    (FinalFault::Mute, "mute"),
    (FinalFault::Deaf, "deaf"),
    (FinalFault::FailedDisk, "failed-disk"),
    (FinalFault::SlowLinks, "slow-links"),
    (FinalFault::SlowDisk, "slow-disk"),
    (FinalFault::HungDisk, "hung-disk"),
];

const HEADER: &str = "gabion-plan 1";

macro_rules! limits {
    (numbers: $($number:ident),*; times: $($time:ident),*) => {
        fn limit_fields(l: &Limits) -> Vec<(&'static str, u64)> {
            vec![
                $((stringify!($number), l.$number.into()),)*
                $((stringify!($time), l.$time.as_micros() as u64),)*
            ]
        }
        fn set_limit(l: &mut Limits, name: &str, value: u64) -> Result<()> {
            match name {
                $(stringify!($number) => l.$number = value.try_into()?,)*
                $(stringify!($time) => l.$time = Duration::from_micros(value),)*
                _ => bail!("no limit is named {name:?}"),
            }
            Ok(())
        }
    };
}

limits! {
    numbers: frame_body, client_ops, client_bytes, shard_ops, shard_bytes, sdc_requests, link_queue,
        groups_per_device, stripe_width, copies, copy_bytes, mdm_log, nbd_payload, nbd_requests,
        moves, moves_per_device, moving_bytes, spare_percent, executed_window, executed_group,
        executed_device, stream, nbd_flying, nbd_waiting;
    times: beacon_every, lease, grace, heartbeat_every, suspect_after, redial_min, redial_max,
        stuck_after, answer_within, target_patience, rebuild_after, quarantine, slow, slow_for, mdm_tick
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}\nseed {}\nsds {}\nclients {}", self.seed, self.sds, self.clients)?;
        self.mates.iter().try_for_each(|server| writeln!(f, "mate {server}"))?;
        if self.second_pool != 0 {
            writeln!(f, "second_pool {}", self.second_pool)?;
            writeln!(f, "second_pool_volumes {}", self.second_pool_volumes)?;
        }
        if self.mdms != 1 {
            writeln!(f, "mdms {}", self.mdms)?;
        }
        if self.fault_sets != 0 {
            writeln!(f, "fault_sets {}", self.fault_sets)?;
        }
        self.volumes.iter().try_for_each(|v| writeln!(f, "volume {v}"))?;
        writeln!(f, "durable {}", u8::from(self.durable))?;
        if self.memory != 0 {
            writeln!(f, "memory {}", self.memory)?;
        }
        if self.allow_loss {
            writeln!(f, "loss 1")?;
        }
        writeln!(f, "capacity {}\ndepth {}", self.capacity, self.depth)?;
        if self.nbd != 0 {
            writeln!(f, "nbd {}", self.nbd)?;
        }
        self.hosts.iter().try_for_each(|host| writeln!(f, "host {host}"))?;
        if self.growth != 0 {
            writeln!(f, "growth {}", self.growth)?;
        }
        if let Some((sds, fault)) = self.outcast {
            let named = FINAL_FAULTS.iter().find(|(known, _)| *known == fault);
            writeln!(f, "outcast {sds} {}", named.expect("all are there").1)?;
        }
        if self.busy {
            writeln!(f, "busy 1")?;
        }
        if self.newer != 0 {
            writeln!(f, "newer {}", self.newer)?;
        }
        writeln!(f, "length {}", seconds(self.length))?;
        let base = if self.shipped { Limits::SHIPPED } else { Limits::TEST_MIN };
        if self.shipped {
            writeln!(f, "shipped 1")?;
        }
        let (here, there) = (limit_fields(&self.limits), limit_fields(&base));
        for (h, t) in here.iter().zip(there) {
            if *h != t {
                writeln!(f, "limit {} {}", h.0, h.1)?;
            }
        }
        for (h, t) in self.weather.fields().iter().zip(Weather::FAIR.fields()) {
            if *h != t {
                writeln!(f, "weather {} {}", h.0, h.1)?;
            }
        }
        self.steps.iter().try_for_each(|s| writeln!(f, "at {} {}", seconds(s.at), s.action))
    }
}

fn seconds(d: Duration) -> String {
    format!("{}.{:06}", d.as_secs(), d.subsec_micros())
}

fn duration(s: &str) -> Result<Duration> {
    let (whole, part) = s.split_once('.').unwrap_or((s, "0"));
    let micros: u64 = format!("{part:0<6}").parse().with_context(|| format!("{s:?} is no time"))?;
    Ok(Duration::from_secs(whole.parse()?) + Duration::from_micros(micros))
}

impl fmt::Display for Action {
    // Long: one match over all actions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Io { client, volume, kind, sector, sectors } => {
                let kind = match kind {
                    IoKind::Read => "read",
                    IoKind::Write => "write",
                    IoKind::Zero => "zero",
                    IoKind::Discard => "discard",
                    IoKind::Extents => "extents",
                    IoKind::Swap => "swap",
                };
                write!(f, "{kind} {client} {volume} {sector} {sectors}")
            }
            Action::Crash(who, death) => {
                let mut s = format!("crash {who}");
                for (flag, name) in [
                    (death.keep, "keep"),
                    (death.power, "power"),
                    (death.midway, "midway"),
                    (death.careful, "careful"),
                    (death.server, "server"),
                ] {
                    if flag {
                        write!(s, " {name}")?;
                    }
                }
                f.write_str(&s)
            }
            Action::Start(who) => write!(f, "start {who}"),
            Action::Pause(who, false) => write!(f, "pause {who}"),
            Action::Pause(who, true) => write!(f, "pause {who} midway"),
            Action::Resume(who) => write!(f, "resume {who}"),
            Action::Block(a, b) => write!(f, "block {a} {b}"),
            Action::Open(a, b) => write!(f, "open {a} {b}"),
            Action::Clog(a, b, ms) => write!(f, "clog {a} {b} {ms}"),
            Action::Reset(a, b) => write!(f, "reset {a} {b}"),
            Action::Create(v, units) => write!(f, "create {v} {units}"),
            Action::Resize(v, units) => write!(f, "resize {v} {units}"),
            Action::Delete(v) => write!(f, "delete {v}"),
            Action::Map(v, clients) => write!(f, "map {v} {clients}"),
            Action::Hosts(v, hosts) => write!(f, "hosts {v} {hosts}"),
            Action::UnmapHost(host) => write!(f, "unmap-host {host}"),
            Action::MovePath(host, path) => write!(f, "move-path {host} {path}"),
            Action::Switch => f.write_str("switch"),
            Action::NewDisk(i) => write!(f, "new-disk {i}"),
            Action::Backup => f.write_str("backup"),
            Action::Lose(None) => f.write_str("lose all"),
            Action::Lose(Some(i)) => write!(f, "lose but {i}"),
            Action::Recover => f.write_str("recover"),
            Action::Restore(i) => write!(f, "restore {i}"),
            Action::RestoreFirst(i) => write!(f, "restore-first {i}"),
            Action::Finish => f.write_str("finish"),
            Action::Accept => f.write_str("accept"),
            Action::Scrub => f.write_str("scrub"),
            Action::Snapshot(i) => write!(f, "snapshot {i}"),
            Action::Grow(i, mib) => write!(f, "grow {i} {mib}"),
            Action::Remove(i) => write!(f, "remove {i}"),
            Action::RemoveDevice(i) => write!(f, "remove-device {i}"),
            Action::Keep(i) => write!(f, "keep {i}"),
            Action::Maintain(i, false) => write!(f, "maintain {i}"),
            Action::Maintain(i, true) => write!(f, "maintain {i} protected"),
            Action::Return(i) => write!(f, "return {i}"),
            Action::Ambush(after_us, away_ms) => write!(f, "ambush {after_us} {away_ms}"),
            Action::Forge(i, how) => write!(f, "forge {i} {how}"),
            Action::Lie(who, lie) => write!(f, "lie {who} {lie}"),
            Action::Idle(who, count) => write!(f, "idle {who} {count}"),
            Action::Overlong(who, false) => write!(f, "overlong {who}"),
            Action::Overlong(who, true) => write!(f, "overlong {who} member"),
            Action::Readdress(i, j) => write!(f, "readdress {i} {j}"),
            Action::Reject(i, ms) => write!(f, "reject {i} {ms}"),
            Action::Halt(who, us) => write!(f, "halt {who} {us}"),
            Action::Leap(who, ms) => write!(f, "leap {who} {ms}"),
            Action::Drift(who, ppm) => write!(f, "drift {who} {ppm}"),
            Action::Elsewhere(client) => write!(f, "elsewhere {client}"),
            Action::Thaw(client) => write!(f, "thaw {client}"),
            Action::Double(i) => write!(f, "double {i}"),
            Action::Wake(i) => write!(f, "wake {i}"),
            Action::Replace(i) => write!(f, "replace {i}"),
            Action::OlderDisk(i) => write!(f, "older-disk {i}"),
            Action::NewerDisk(i) => write!(f, "newer-disk {i}"),
            Action::CloseNbd(client, c) => write!(f, "close-nbd {client} {c}"),
            Action::Deaf(client, c, ms) => write!(f, "deaf {client} {c} {ms}"),
            Action::Path(host, path, fault) => write!(f, "path {host} {path} {fault}"),
            Action::Withdraw(client, v) => write!(f, "withdraw {client} {v}"),
            Action::Become(who, newer) => write!(f, "become {who} {}", u8::from(*newer)),
            Action::Level => write!(f, "level"),
            Action::Policies(rebuild, rebalance) => write!(f, "policies {rebuild} {rebalance}"),
            Action::Damage(i, damage) => {
                let how = DAMAGE.iter().find(|(d, _)| d == damage).expect("all are there").1;
                write!(f, "damage {i} {how}")
            }
            Action::Tamper(i, how) => match how {
                Tamper::Superblock => write!(f, "tamper {i} superblock"),
                Tamper::Superblocks => write!(f, "tamper {i} superblocks"),
                Tamper::Shrunk => write!(f, "tamper {i} shrunk"),
                Tamper::SetBack => write!(f, "tamper {i} set-back"),
                Tamper::CopyOf(j) => write!(f, "tamper {i} copy-of {j}"),
                Tamper::Swapped(j) => write!(f, "tamper {i} swapped {j}"),
            },
        }
    }
}

impl FromStr for Who {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Who> {
        Ok(match s {
            "mdm" => Who::Mdm(0),
            "admin" => Who::Admin,
            _ => match (s.strip_prefix("sds"), s.strip_prefix("sdc"), s.strip_prefix("mdm")) {
                (Some(i), ..) => Who::Sds(i.parse()?),
                (_, Some(i), _) => Who::Sdc(i.parse()?),
                (.., Some(i)) => Who::Mdm(i.parse()?),
                _ => bail!("nobody is named {s:?}"),
            },
        })
    }
}

impl FromStr for Action {
    type Err = anyhow::Error;
    // Long: one match over all actions.
    fn from_str(s: &str) -> Result<Action> {
        let words: Vec<&str> = s.split_whitespace().collect();
        let io = |kind, w: &[&str]| -> Result<Action> {
            let [client, volume, sector, sectors] = w else { bail!("four numbers are needed") };
            Ok(Action::Io {
                client: client.parse()?,
                volume: volume.parse()?,
                kind,
                sector: sector.parse()?,
                sectors: sectors.parse()?,
            })
        };
        Ok(match words.as_slice() {
            ["read", w @ ..] => io(IoKind::Read, w)?,
            ["write", w @ ..] => io(IoKind::Write, w)?,
            ["zero", w @ ..] => io(IoKind::Zero, w)?,
            ["discard", w @ ..] => io(IoKind::Discard, w)?,
            ["extents", w @ ..] => io(IoKind::Extents, w)?,
            ["swap", w @ ..] => io(IoKind::Swap, w)?,
            ["crash", who, flags @ ..] => {
                let has = |name| flags.contains(&name);
                let death = Death {
                    keep: has("keep"),
                    power: has("power"),
                    midway: has("midway"),
                    careful: has("careful"),
                    server: has("server"),
                };
                Action::Crash(who.parse()?, death)
            }
            ["start", who] => Action::Start(who.parse()?),
            ["pause", who] => Action::Pause(who.parse()?, false),
            ["pause", who, "midway"] => Action::Pause(who.parse()?, true),
            ["resume", who] => Action::Resume(who.parse()?),
            ["block", a, b] => Action::Block(a.parse()?, b.parse()?),
            ["open", a, b] => Action::Open(a.parse()?, b.parse()?),
            ["clog", a, b, ms] => Action::Clog(a.parse()?, b.parse()?, ms.parse()?),
            ["reset", a, b] => Action::Reset(a.parse()?, b.parse()?),
            ["create", v, units] => Action::Create(v.parse()?, units.parse()?),
            ["resize", v, units] => Action::Resize(v.parse()?, units.parse()?),
            ["delete", v] => Action::Delete(v.parse()?),
            ["map", v, clients] => Action::Map(v.parse()?, clients.parse()?),
            ["hosts", v, hosts] => Action::Hosts(v.parse()?, hosts.parse()?),
            ["unmap-host", host] => Action::UnmapHost(host.parse()?),
            ["move-path", host, path] => Action::MovePath(host.parse()?, path.parse()?),
            ["switch"] => Action::Switch,
            ["replace", i] => Action::Replace(i.parse()?),
            ["backup"] => Action::Backup,
            ["lose", "all"] => Action::Lose(None),
            ["lose", "but", i] => Action::Lose(Some(i.parse()?)),
            ["recover"] => Action::Recover,
            ["restore", i] => Action::Restore(i.parse()?),
            ["restore-first", i] => Action::RestoreFirst(i.parse()?),
            ["finish"] => Action::Finish,
            ["accept"] => Action::Accept,
            ["scrub"] => Action::Scrub,
            ["snapshot", i] => Action::Snapshot(i.parse()?),
            ["grow", i, mib] => Action::Grow(i.parse()?, mib.parse()?),
            ["remove", i] => Action::Remove(i.parse()?),
            ["remove-device", i] => Action::RemoveDevice(i.parse()?),
            ["keep", i] => Action::Keep(i.parse()?),
            ["maintain", i] => Action::Maintain(i.parse()?, false),
            ["maintain", i, "protected"] => Action::Maintain(i.parse()?, true),
            ["forge", i, "replay"] => Action::Forge(i.parse()?, Forgery::Replay),
            ["forge", i, "life"] => Action::Forge(i.parse()?, Forgery::Life),
            ["forge", i, "session"] => Action::Forge(i.parse()?, Forgery::Session),
            ["lie", who, lie] => Action::Lie(who.parse()?, lie.parse()?),
            ["idle", who, count] => Action::Idle(who.parse()?, count.parse()?),
            ["overlong", who] => Action::Overlong(who.parse()?, false),
            ["overlong", who, "member"] => Action::Overlong(who.parse()?, true),
            ["readdress", i, j] => Action::Readdress(i.parse()?, j.parse()?),
            ["reject", i, ms] => Action::Reject(i.parse()?, ms.parse()?),
            ["halt", who, us] => Action::Halt(who.parse()?, us.parse()?),
            ["leap", who, ms] => Action::Leap(who.parse()?, ms.parse()?),
            ["drift", who, ppm] => Action::Drift(who.parse()?, ppm.parse()?),
            ["elsewhere", client] => Action::Elsewhere(client.parse()?),
            ["thaw", client] => Action::Thaw(client.parse()?),
            ["double", i] => Action::Double(i.parse()?),
            ["wake", i] => Action::Wake(i.parse()?),
            ["new-disk", i] => Action::NewDisk(i.parse()?),
            ["older-disk", i] => Action::OlderDisk(i.parse()?),
            ["newer-disk", i] => Action::NewerDisk(i.parse()?),
            ["return", i] => Action::Return(i.parse()?),
            ["ambush", after_us, away_ms] => Action::Ambush(after_us.parse()?, away_ms.parse()?),
            ["close-nbd", client, c] => Action::CloseNbd(client.parse()?, c.parse()?),
            ["deaf", client, c, ms] => Action::Deaf(client.parse()?, c.parse()?, ms.parse()?),
            ["path", host, path, fault @ ..] => {
                Action::Path(host.parse()?, path.parse()?, fault.join(" ").parse()?)
            }
            ["withdraw", client, v] => Action::Withdraw(client.parse()?, v.parse()?),
            ["become", who, newer] => Action::Become(who.parse()?, newer.parse::<u8>()? != 0),
            ["level"] => Action::Level,
            ["policies", rebuild, rebalance] => {
                Action::Policies(rebuild.parse()?, rebalance.parse()?)
            }
            ["damage", i, how] => {
                let known = DAMAGE.iter().find(|(_, name)| name == how);
                let damage = known.context("damage is rot, sector, lost or astray")?.0;
                Action::Damage(i.parse()?, damage)
            }
            ["tamper", i, "superblock"] => Action::Tamper(i.parse()?, Tamper::Superblock),
            ["tamper", i, "superblocks"] => Action::Tamper(i.parse()?, Tamper::Superblocks),
            ["tamper", i, "shrunk"] => Action::Tamper(i.parse()?, Tamper::Shrunk),
            ["tamper", i, "set-back"] => Action::Tamper(i.parse()?, Tamper::SetBack),
            ["tamper", i, "copy-of", j] => Action::Tamper(i.parse()?, Tamper::CopyOf(j.parse()?)),
            ["tamper", i, "swapped", j] => Action::Tamper(i.parse()?, Tamper::Swapped(j.parse()?)),
            _ => bail!("no action: {s:?}"),
        })
    }
}

impl FromStr for Plan {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Plan> {
        let mut plan = Plan {
            seed: 0,
            mdms: 1,
            sds: 2,
            mates: Vec::new(),
            second_pool: 0,
            second_pool_volumes: 0,
            clients: 1,
            fault_sets: 0,
            volumes: Vec::new(),
            durable: true,
            memory: 0,
            allow_loss: false,
            capacity: 64,
            growth: 0,
            depth: 4,
            nbd: 0,
            hosts: Vec::new(),
            shipped: false,
            limits: Limits::TEST_MIN,
            weather: Weather::FAIR,
            outcast: None,
            busy: false,
            newer: 0,
            length: Duration::ZERO,
            steps: Vec::new(),
        };
        let mut lines = text.lines().enumerate();
        match lines.next() {
            Some((_, first)) if first.trim() == HEADER => {}
            _ => bail!("a plan starts with the line {HEADER:?}"),
        }
        for (number, line) in lines {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                plan.line(line).with_context(|| format!("line {}: {line}", number + 1))?;
            }
        }
        Ok(plan)
    }
}

impl Plan {
    fn line(&mut self, line: &str) -> Result<()> {
        let (name, rest) = line.split_once(' ').context("a name and a value are needed")?;
        match name {
            "seed" => self.seed = rest.parse()?,
            "mdms" => self.mdms = rest.parse()?,
            "sds" => self.sds = rest.parse()?,
            "mate" => self.mates.push(rest.parse()?),
            "second_pool" => self.second_pool = rest.parse()?,
            "second_pool_volumes" => self.second_pool_volumes = rest.parse()?,
            "clients" => self.clients = rest.parse()?,
            "fault_sets" => self.fault_sets = rest.parse()?,
            "volume" => self.volumes.push(rest.parse()?),
            "durable" => self.durable = rest.parse::<u8>()? != 0,
            "loss" => self.allow_loss = rest.parse::<u8>()? != 0,
            "memory" => self.memory = rest.parse()?,
            "capacity" => self.capacity = rest.parse()?,
            "growth" => self.growth = rest.parse()?,
            "depth" => self.depth = rest.parse()?,
            "nbd" => self.nbd = rest.parse()?,
            "host" => self.hosts.push(rest.parse()?),
            "shipped" => {
                // Lines that change single limits follow this one.
                self.shipped = rest.parse::<u8>()? != 0;
                self.limits = if self.shipped { Limits::SHIPPED } else { Limits::TEST_MIN };
            }
            "outcast" => {
                let (sds, fault) =
                    rest.split_once(' ').context("a server and its fault are needed")?;
                let known = FINAL_FAULTS.iter().find(|(_, name)| *name == fault);
                let known = known.with_context(|| {
                    let names = FINAL_FAULTS.map(|(_, name)| name).join(", ");
                    format!("no final fault is named {fault:?}: there are {names}")
                })?;
                self.outcast = Some((sds.parse()?, known.0));
            }
            "newer" => self.newer = rest.parse()?,
            "busy" => self.busy = rest.parse::<u8>()? != 0,
            "length" => self.length = duration(rest)?,
            "limit" | "weather" => {
                let (field, value) =
                    rest.split_once(' ').context("a name and a number are needed")?;
                if name == "limit" {
                    set_limit(&mut self.limits, field, value.parse()?)?;
                } else if !self.weather.set(field, value.parse()?) {
                    bail!("the weather has no {field:?}");
                }
            }
            "at" => {
                let (at, action) =
                    rest.split_once(' ').context("a time and an action are needed")?;
                self.steps.push(Timed { at: duration(at)?, action: action.parse()? });
            }
            _ => bail!("no such fact"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_survive_being_written_and_read() {
        for seed in 0..200 {
            let plan = Plan::generate(seed);
            let text = plan.to_string();
            assert_eq!(text.parse::<Plan>().unwrap(), plan, "{text}");
        }
    }

    #[test]
    fn mistakes_name_their_line() {
        let error = "gabion-plan 1\nseed 1\nat 0.5 crash sdx".parse::<Plan>().unwrap_err();
        assert!(format!("{error:#}").contains("line 3"), "{error:#}");
        let error = "gabion-plan 1\noutcast 1 gone".parse::<Plan>().unwrap_err();
        assert!(format!("{error:#}").contains("deaf, failed-disk,"), "{error:#}");
    }
}

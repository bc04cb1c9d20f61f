//! MDMs on different hosts whose cables are cut: a manager is cut off from the others, with the
//! tie-breaker on either side, and in one direction only. I/O continues, the side with the majority
//! has a leader, and the other side decides nothing.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use system::ledger::{Ledger, Writers};
use system::{MIB, Spaces, case, secs, setting, wait};

const BYTES: u64 = 32 * MIB;
const WRITERS: u64 = 2;

/// Two servers, and three hosts with only an MDM.
const TOPOLOGY: &str = r#"
volumes = ["v:32MiB"]
[[host]]
name = "h1"
sdc = "127.0.0.1:10809"
devices = ["file:/var/lib/gabion/disk0:128MiB"]
[[host]]
name = "h2"
devices = ["file:/var/lib/gabion/disk0:128MiB"]
[[host]]
name = "h3"
mdm = "manager"
[[host]]
name = "h4"
mdm = "manager"
[[host]]
name = "h5"
mdm = "tie-breaker"
"#;

/// The leader before each cut.
const LEADER: &str = "h3";
const OTHER: &str = "h4";
const TIE_BREAKER: &str = "h5";

/// The leader that is expected after the cut has lasted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leads {
    /// The same MDM all the time.
    Still,
    /// The other manager.
    Other,
    /// Either manager.
    Somebody,
}

/// A cut: the pairs of sender and receiver between which packets are lost.
struct Cut {
    name: &'static str,
    lost: &'static [(&'static str, &'static str)],
    leads: Leads,
    /// True if the former leader hears no other MDM and is heard by none.
    alone: bool,
}

const fn cut(
    name: &'static str,
    lost: &'static [(&'static str, &'static str)],
    leads: Leads,
    alone: bool,
) -> Cut {
    Cut { name, lost, leads, alone }
}

const CUTS: [Cut; 6] = [
    cut(
        "the leader from both others",
        &[(LEADER, OTHER), (OTHER, LEADER), (LEADER, TIE_BREAKER), (TIE_BREAKER, LEADER)],
        Leads::Other,
        true,
    ),
    cut(
        "the other manager from the leader and the tie-breaker",
        &[(OTHER, LEADER), (LEADER, OTHER), (OTHER, TIE_BREAKER), (TIE_BREAKER, OTHER)],
        Leads::Still,
        false,
    ),
    cut(
        "the tie-breaker from both managers",
        &[(TIE_BREAKER, LEADER), (LEADER, TIE_BREAKER), (TIE_BREAKER, OTHER), (OTHER, TIE_BREAKER)],
        Leads::Still,
        false,
    ),
    cut(
        "the managers from each other",
        &[(LEADER, OTHER), (OTHER, LEADER)],
        Leads::Somebody,
        false,
    ),
    cut("nobody hears the leader", &[(LEADER, OTHER), (LEADER, TIE_BREAKER)], Leads::Other, false),
    cut("the leader hears nobody", &[(OTHER, LEADER), (TIE_BREAKER, LEADER)], Leads::Other, false),
];

struct Parted {
    spaces: Spaces,
    /// Volumes whose creation was confirmed.
    made: Vec<String>,
    /// Volumes that were requested from the isolated former leader: refused or not answered.
    refused: Vec<String>,
}

impl Parted {
    fn list(&self) -> Result<Vec<Value>> {
        let text = self.spaces.gabion(&["mdm", "list", "--json"])?.ok()?;
        Ok(serde_json::from_str::<Value>(&text)?.as_array().context("a list")?.clone())
    }

    fn leader(&self) -> Result<String> {
        let leads = |m: &Value| (m["leads"] == true).then(|| m["name"].as_str().map(str::to_owned));
        self.list()?.iter().find_map(leads).flatten().context("one of them leads")
    }

    fn wait_leader(&self, who: impl Fn(&str) -> bool) -> Result<()> {
        wait("a manager leads that should", secs(20), || {
            Ok(self.leader().is_ok_and(|name| who(&name)).then_some(()))
        })
    }

    /// Waits until all three MDMs are up to date, and `LEADER` leads.
    fn prepare(&self) -> Result<()> {
        wait("all MDMs vote and have everything", secs(30), || {
            let all = self.list()?;
            let fine =
                |m: &&Value| m["votes"] == true && m["state"] == "up" && m["entries_behind"] == 0;
            Ok((all.iter().filter(fine).count() == 3).then_some(()))
        })?;
        wait("it leads", secs(20), || {
            if self.leader()? == LEADER {
                return Ok(Some(()));
            }
            self.spaces.gabion(&["mdm", "switch", LEADER])?.ok()?;
            Ok(None)
        })
    }

    /// Changes the configuration, as soon as there is a leader.
    fn make(&mut self, name: String) -> Result<()> {
        wait("a volume is made", secs(30), || {
            let ran = self.spaces.gabion(&["volume", "create", &name, "1MiB"])?;
            // An order without an answer may have been executed.
            Ok((ran.code == 0 || ran.stderr.contains("there is a volume")).then_some(()))
        })?;
        self.made.push(name);
        Ok(())
    }

    fn cut(&mut self, round: u64, cut: &Cut) -> Result<()> {
        self.cables(cut, true)?;
        let outcome = self.while_cut(round, cut);
        self.cables(cut, false)?;
        outcome
    }

    fn cables(&self, cut: &Cut, lost: bool) -> Result<()> {
        cut.lost.iter().try_for_each(|(from, to)| self.spaces.lose(from, to, lost))
    }

    fn while_cut(&mut self, round: u64, cut: &Cut) -> Result<()> {
        self.make(format!("during{round}"))?;
        match cut.leads {
            Leads::Still => ensure!(self.leader()? == LEADER, "another one leads"),
            Leads::Other => self.wait_leader(|name| name == OTHER)?,
            Leads::Somebody => self.wait_leader(|name| name != TIE_BREAKER)?,
        }
        if cut.alone {
            let (name, mdm) = (format!("alone{round}"), self.spaces.mdm_of(LEADER)?);
            let ran = system::gabion(["volume", "create", &name, "1MiB", "--mdm", &mdm])?;
            ensure!(ran.code != 0, "an MDM without a majority has decided something: {ran:?}");
            self.refused.push(name);
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let status = self.spaces.status()?;
        let volumes = status["volumes"].as_array().context("volumes")?;
        let has = |name: &String| volumes.iter().any(|v| v["name"] == name.as_str());
        let lost: Vec<_> = self.made.iter().filter(|name| !has(name)).collect();
        ensure!(lost.is_empty(), "lost: {lost:?}");
        let kept: Vec<_> = self.refused.iter().filter(|name| has(name)).collect();
        ensure!(kept.is_empty(), "refused, and there all the same: {kept:?}");
        Ok(())
    }
}

/// `GABION_ROUNDS=10` repeats all cuts 10 times.
#[test]
fn a_partitioned_manager_decides_nothing_and_the_majority_goes_on() {
    case(|| {
        let spaces = Spaces::of(TOPOLOGY)?;
        let ledgers = (0..WRITERS).map(|n| Ledger::new(n, WRITERS, BYTES)).collect();
        let mut writers = Writers::on(|| spaces.nbd("v"), ledgers)?;
        let mut parted = Parted { spaces, made: Vec::new(), refused: Vec::new() };
        let mut round = 0;
        for _ in 0..setting("GABION_ROUNDS", 1) {
            for cut in &CUTS {
                parted.prepare().with_context(|| format!("before: {}", cut.name))?;
                parted.make(format!("before{round}"))?;
                writers.wait(50)?;
                parted.cut(round, cut).with_context(|| cut.name)?;
                writers.wait(50).with_context(|| format!("after: {}", cut.name))?;
                round += 1;
            }
        }
        parted.prepare()?;
        parted.make("after".into())?;
        parted.check()?;
        let mut ledgers = writers.finish();
        parted.spaces.wait_state("healthy")?;
        let mut nbd = parted.spaces.nbd("v")?;
        ledgers.iter_mut().try_for_each(|ledger| ledger.verify(&mut nbd))
    });
}

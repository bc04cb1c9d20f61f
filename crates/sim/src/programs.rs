//! The programs of a client: their unanswered requests, and what happens when they are killed, as a
//! virtual machine is. Their process withdraws the requests, and nothing of these appears after
//! what is asked later (rule R16). It still answers each of them.

use crate::plan::Who;
use crate::stage::Stage;
use crate::world::ProcState;
use seam::RequestId;
use std::collections::BTreeSet;

/// The unanswered requests of one client's programs, by their indexes in the history. (Requests
/// over NBD are not among them.)
#[derive(Clone, Default, Debug)]
pub struct Programs {
    /// A program waits for the answer.
    asked: BTreeSet<u64>,
    /// The program was killed.
    withdrawn: BTreeSet<u64>,
}

impl Programs {
    /// Adds a request.
    pub(crate) fn ask(&mut self, index: usize) {
        self.asked.insert(index as u64);
    }

    /// Removes a request that is answered. Returns true if it was withdrawn.
    pub(crate) fn answered(&mut self, index: usize) -> bool {
        self.asked.remove(&(index as u64));
        self.withdrawn.remove(&(index as u64))
    }

    /// Returns how many requests were withdrawn and are not answered.
    pub fn withdrawn(&self) -> usize {
        self.withdrawn.len()
    }
}

impl Stage {
    /// Kills the programs that use a volume through a client, and starts them again: the requests
    /// of the former ones are withdrawn, and every second one is repeated.
    pub(crate) fn withdraw(&mut self, client: u8, volume: u8) {
        let proc = self.proc(Who::Sdc(client));
        let id = self.volumes.get(usize::from(volume)).and_then(|v| v.id);
        let (Some(id), Some(programs)) = (id, self.programs.get_mut(usize::from(client))) else {
            return;
        };
        let ops = &mut self.history.ops;
        let of = |index: &&u64| ops[**index as usize].volume == id;
        let those: Vec<u64> = programs.asked.iter().filter(of).copied().collect();
        if those.is_empty() || self.world.state(proc) == ProcState::Dead {
            return;
        }
        self.marks.meet("sim: requests were withdrawn");
        let moment = self.history.tick();
        for index in &those {
            programs.asked.remove(index);
            programs.withdrawn.insert(*index);
            self.history.ops[*index as usize].gone = Some(moment);
        }
        self.outstanding[usize::from(client)] -= those.len() as u32;
        self.world.withdraw(proc, those.iter().copied().map(RequestId).collect());
        for index in those.into_iter().step_by(2) {
            let op = &self.history.ops[index as usize];
            let (kind, sector, sectors) = (op.kind, op.sector, op.sectors);
            self.issue(client, id, kind, sector, sectors);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{IoKind, Plan};
    use crate::run;
    use crate::trace::Sink;
    use seam::BlockError;
    use std::time::Duration;

    /// Token of the test's own alarm.
    const OVER: u64 = 77;

    #[test]
    fn requests_of_a_killed_program_are_withdrawn_and_answered_and_half_are_repeated() {
        let text = "gabion-plan 1\nsds 2\nclients 1\nvolume 1\ncapacity 8\ndepth 4\nlength 1.0\n";
        let plan: Plan = text.parse().unwrap();
        let mut stage = Stage::new(&plan, Sink::Off);
        run::set_up(&mut stage).unwrap();
        let volume = stage.volumes[0].id.unwrap();
        for block in 0..3 {
            stage.issue(0, volume, IoKind::Write, 8 * block, 8);
        }
        assert_eq!((stage.outstanding[0], stage.programs[0].withdrawn()), (3, 0));
        stage.withdraw(0, 0);
        assert_eq!((stage.outstanding[0], stage.programs[0].withdrawn()), (2, 3));
        assert!(stage.answers_unmet().is_some());
        stage.world.alarm(stage.world.now() + Duration::from_secs(5), OVER);
        while stage.step().unwrap() != Some(OVER) {}
        assert_eq!((stage.outstanding[0], stage.programs[0].withdrawn()), (0, 0));
        assert_eq!(stage.answers_unmet(), None);
        let told: Vec<_> = stage.history.ops.iter().map(|op| op.answer.unwrap().result).collect();
        assert_eq!(told[3..], [Ok(()), Ok(())]);
        let busy = Err(BlockError::Busy);
        assert!(told[..3].iter().all(|result| *result == busy), "{told:?}");
        stage.withdraw(0, 0);
        assert_eq!(stage.history.ops.len(), 5, "nothing is under way");
    }
}

//! What all steps of a plan do together. Judges ask for it at every step of a run.

use super::{Action, Plan, Timed};

/// What all steps of a plan do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Units of all volumes that are ever made, counted again whenever one grows.
    pub units: usize,
    /// Blocks may be damaged, or may be unreadable for a while.
    pub damages: bool,
}

impl Plan {
    /// Counts what all steps do together.
    pub fn totals(&self) -> Totals {
        let made = self.steps.iter().map(|step| match step.action {
            Action::Create(_, units) | Action::Resize(_, units) => units,
            _ => 0,
        });
        let damage = |s: &Timed| matches!(s.action, Action::Damage(..));
        Totals {
            units: self.volumes.iter().copied().chain(made).map(|units| units as usize).sum(),
            damages: self.weather.disk_read_ppm > 0 || self.steps.iter().any(damage),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the totals of a plan with these lines.
    fn totals(lines: &str) -> Totals {
        let head = "gabion-plan 1\nsds 2\nclients 1\nvolume 3\nvolume 1\ndurable 1\n\
                    capacity 8\ndepth 4\nlength 1.0\n";
        format!("{head}{lines}").parse::<Plan>().unwrap().totals()
    }

    #[test]
    fn units_of_all_volumes_that_a_plan_makes_count() {
        let steps = "at 0.100000 resize 0 5\nat 0.200000 create 1 2\n";
        assert_eq!(totals(steps), Totals { units: 3 + 1 + 5 + 2, damages: false });
    }

    #[test]
    fn a_damaged_block_is_damage() {
        assert!(totals("at 0.100000 damage 0 rot\n").damages);
    }
}

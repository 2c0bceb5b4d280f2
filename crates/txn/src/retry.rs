//! Retries of undeclared transactions, such that each transaction ends.
//!
//! ```text
//! wait-die ──▶ conflicts ──▶ keys of the runs so far locked in order ──▶ permit of the store
//!    8 runs                     8 runs                                      1 run
//! ```
//! 1. *Wait-die* alone starves behind declared transactions: an undeclared transaction never waits for
//!    a declared one, and its age means nothing to a declared one.
//! 2. The next runs therefore lock the keys of earlier runs before the body runs. As for declared
//!    keys, such runs lock in the order of cells and wait for any holder. A run takes a further key
//!    only if it is free, and never waits for it. No cycle of waits can close.
//! 3. A transaction whose keys differ from run to run may meet a busy key in each run. The last run
//!    takes the permit of the store. While the permit is held no transaction begins. A declared
//!    transaction that would have to wait releases its locks first, and no undeclared transaction
//!    waits for the holder. Every transaction that the holder waits for therefore ends.

use stillpoint_sync::lock_word::Priority;

use crate::discipline::Discipline;

/// Runs under wait-die. A model has one run, so that few steps lead to the next stage.
const RUNS_WAIT_DIE: u32 = if cfg!(shuttle) { 1 } else { 8 };
/// Runs with the keys of the earlier runs locked first.
const RUNS_REMEMBERED: u32 = if cfg!(shuttle) { 1 } else { 8 };

/// Most runs of the body of an undeclared transaction, unless tables are flushed meanwhile.
pub const RUNS_MAX: u32 = RUNS_WAIT_DIE + RUNS_REMEMBERED + 1;

/// One run of an undeclared transaction.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The locking discipline of the run.
    pub discipline: Discipline,
    /// The priority of the run's locks.
    pub priority: Priority,
    /// Whether the transaction waits a moment after a conflict of the run.
    pub backs_off: bool,
}

/// The runs of one undeclared transaction, in their order. The last one has the permit of the store.
#[derive(Clone, Debug)]
pub struct Runs {
    age: u64,
    runs: u32,
}

impl Runs {
    /// The runs of a transaction that began as number `age`.
    #[inline]
    pub fn new(age: u64) -> Self {
        Self { age, runs: 0 }
    }
}

impl Iterator for Runs {
    type Item = Run;

    #[inline]
    fn next(&mut self) -> Option<Run> {
        let number = self.runs;
        self.runs += 1;
        if number < RUNS_WAIT_DIE {
            let priority = Priority::undeclared(self.age);
            let backs_off = number + 1 < RUNS_WAIT_DIE;
            return Some(Run { discipline: Discipline::WaitDie, priority, backs_off });
        }
        let discipline = match number {
            _ if number + 1 < RUNS_MAX => Discipline::Remembered,
            _ if number + 1 == RUNS_MAX => Discipline::Permitted,
            _ => return None,
        };
        Some(Run { discipline, priority: Priority::DECLARED, backs_off: false })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn the_runs_end_with_the_permit() {
        let runs: Vec<Run> = Runs::new(7).collect();
        assert_eq!(runs.len(), RUNS_MAX as usize);
        assert!(runs.iter().rev().skip(1).all(|run| run.discipline != Discipline::Permitted));
        assert_eq!(runs.last().map(|run| run.discipline), Some(Discipline::Permitted));
        assert_eq!(runs[0].discipline, Discipline::WaitDie);
    }
}

//! `calc-fig2`: full checkpoints under the microbenchmark (CALC paper, §5.1.1, Figure 2). The
//! experiment shows throughput over time with two checkpoints, and transactions lost. A second
//! version adds transactions of two seconds.
//!
//! 1. A child process is killed in the middle and its state checked. A figure of an engine that
//!    cannot recover does not count.
//! 2. What each row costs at rest ([`rest`]): instructions per transaction, and many short pairs of
//!    runs in turn with the baseline.
//! 3. Rounds with one checkpoint each, every row in turn with the baseline, saturated. The rows of calc
//!    have further rounds, with long transactions and at half of the baseline's throughput. The first
//!    round of each row is its time line. (The paper's time line has a second checkpoint, which repeats
//!    the first.)
//! 4. The rows that need a journal ([`fuzzy`]), in turn with the baseline under the same journal.
//! 5. Both forms of the point of consistency ([`points`]), as published and ours, with long transactions.

mod fuzzy;
mod points;
mod report;
mod rest;

use serde::Serialize;

use crate::context::Context;
use crate::drivers::transactions::Drive;
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::experiments::calc_figures::{Compared, rate};
use crate::harness::{Harness, Instance};
use crate::report::result::ExperimentResult;
use crate::subjects::records::{
    BASELINE, CALC, CALC_PACED, CALC_UNPACED, NAIVE_PACED, NAIVE_UNPACED, PAPER_PACE_BYTES_PER_S,
    Row, STORED, ZIGZAG_PACED, data_bytes, journal_rows_of, rows_of,
};
use crate::workloads::calc::LongTransactions;

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Records of 8 + 100 bytes.
    pub(crate) records: u64,
    /// Threads that run transactions.
    pub(crate) workers: usize,
    /// Rounds of each kind of the rows that bounds name: calc, naive and zigzag, paced.
    pub(crate) runs: usize,
    /// Rounds of each other row.
    pub(crate) other_runs: usize,
    /// Rounds of each form of the point of consistency.
    pub(crate) point_runs: usize,
    /// Records of the engines that are compared at rest.
    pub(crate) rest_records: u64,
    /// Pairs at rest.
    pub(crate) rest_pairs: usize,
    /// Length of each half of a pair, in seconds.
    pub(crate) rest_s: f64,
    /// Records of the engines with a journal. A log without checkpoints is never cut, so the runs are
    /// short.
    pub(crate) logged_records: u64,
    /// Rounds of each row with a journal.
    pub(crate) logged_runs: usize,
    /// Length of such a round.
    pub(crate) logged_round_s: f64,
    /// Uncounted time before each round.
    pub(crate) warm_up_s: f64,
    /// Length of a round. After a checkpoint of 23 to 27 s, some seconds show the return to normal.
    pub(crate) round_s: f64,
    /// Time at which the checkpoint of a round begins.
    pub(crate) checkpoint_at_s: f64,
    /// Load of the rounds that are not saturated, as a share of the baseline's throughput.
    pub(crate) load_share: f64,
    /// The long transactions.
    pub(crate) long: LongTransactions,
}

impl Plan {
    fn drive(&self, seconds: f64) -> Drive {
        Drive {
            workers: self.workers,
            seconds,
            warm_up_s: self.warm_up_s,
            ..Drive::new(self.records)
        }
    }
}

/// Outcomes of the rounds of one kind, row by row.
type Rounds = Vec<Compared>;

/// All outcomes. Lists of parts that were not asked for are empty.
#[derive(Default)]
struct Findings {
    saturated: Rounds,
    with_long: Rounds,
    half: Rounds,
}

impl Findings {
    /// Adds the outcomes of a further row.
    fn extend(&mut self, row: Findings) {
        self.saturated.extend(row.saturated);
        self.with_long.extend(row.with_long);
        self.half.extend(row.half);
    }
}

/// The experiment.
pub(crate) struct CalcFig2;

impl Experiment for CalcFig2 {
    const ID: &'static str = "calc-fig2";
    const TITLE: &'static str = "Full checkpoints: throughput over time and transactions lost";
    const PAPER: &'static str = "Ren et al., SIGMOD 2016 (CALC), §5.1.1, Figure 2";
    const PARTS: &'static [&'static str] = &["rest", "capture", "fuzzy", "points"];
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            records: 20_000_000,
            workers: 2,
            runs: 3,
            other_runs: 1,
            point_runs: 1,
            rest_records: 10_000_000,
            rest_pairs: 20,
            rest_s: 0.6,
            logged_records: 5_000_000,
            logged_runs: 2,
            logged_round_s: 8.0,
            warm_up_s: 0.5,
            round_s: 36.0,
            checkpoint_at_s: 4.0,
            load_share: 0.5,
            long: LongTransactions::of_the_paper(),
        }
    }

    fn quick() -> Plan {
        Plan {
            records: 100_000,
            runs: 1,
            point_runs: 1,
            rest_records: 100_000,
            rest_pairs: 2,
            rest_s: 0.1,
            logged_records: 50_000,
            logged_runs: 1,
            logged_round_s: 0.5,
            warm_up_s: 0.05,
            round_s: 0.8,
            checkpoint_at_s: 0.2,
            long: LongTransactions {
                seconds: 0.2,
                writes: 100,
                ..LongTransactions::of_the_paper()
            },
            ..Self::full()
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        if let Some(runs) = asked.runs {
            match asked.part.as_deref() {
                Some("rest") => plan.rest_pairs = runs.max(1),
                Some("fuzzy") => plan.logged_runs = runs.max(1),
                Some("points") => plan.point_runs = runs.max(1),
                _ => plan.runs = runs.max(1),
            }
        }
        if let Some(seconds) = asked.seconds {
            plan.checkpoint_at_s *= seconds / plan.round_s;
            plan.round_s = seconds;
        }
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        result.parameter("data_bytes", data_bytes(plan.records));
        result.parameter("data_per_last_level_cache", result.per_cache(data_bytes(plan.records)));
        result.parameter("paced_bytes_per_s", PAPER_PACE_BYTES_PER_S);
        result.parameter("journal", "none");
        let (schemes, quick) = (&bench.context.schemes, bench.context.quick);
        let wants = |part: &&str| bench.context.wants(part);
        let rows = rows_of(schemes, quick);
        if wants(&"rest") {
            result.in_part("rest", |result| rest::run(bench, plan, &rows, result))?;
        }
        if wants(&"capture") {
            let rows = captured(&rows, schemes.is_empty());
            result.in_part("capture", |result| {
                let mut found = Findings::default();
                let of_rows = bench
                    .in_pairs(&rows, plan.records, result, |pair| of_pair(bench, plan, pair))?;
                of_rows.into_iter().for_each(|row| found.extend(row));
                report::add(plan, &found, result);
                Ok(())
            })?;
        }
        if wants(&"fuzzy") {
            let rows = journal_rows_of(schemes);
            result.in_part("fuzzy", |result| fuzzy::run(bench, plan, &rows, result))?;
        }
        if wants(&"points") {
            result.in_part("points", |result| points::run(bench, plan, result))?;
        }
        Ok(())
    }
}

/// The rows of rounds with a checkpoint. If no scheme is asked for, these are the full forms at the pace,
/// and those that claims name without one. Partial forms have an experiment of their own.
fn captured(rows: &[Row], all: bool) -> Vec<Row> {
    let is_named = |row: &Row| {
        let is_full = !row.scheme.ends_with(":partial") && !row.scheme.starts_with(STORED);
        let without_pace = [BASELINE, CALC_UNPACED, NAIVE_UNPACED];
        is_full && (row.is_paced() || without_pace.contains(&row.name))
    };
    rows.iter().copied().filter(|row| !all || is_named(row)).collect()
}

/// The rounds of one row, in turn with the baseline.
fn of_pair(bench: &Harness<'_>, plan: &Plan, pair: [&Instance<'_>; 2]) -> LabResult<Findings> {
    let row = pair[1].row;
    let is_bound = [CALC_PACED, NAIVE_PACED, ZIGZAG_PACED].contains(&row.name);
    let runs = if is_bound { plan.runs } else { plan.other_runs };
    let rounds = |what: &str, drive: Drive| {
        Compared::in_turn(bench, pair, (runs, what), |run, row| Drive {
            seed: run as u64 + 1,
            ..without_checkpoints(row, &drive)
        })
    };
    let mut found = Findings::default();
    let base = plan.drive(plan.round_s);
    let base = Drive { checkpoints_at_s: vec![plan.checkpoint_at_s], ..base };
    found.saturated.push(rounds("saturated", base.clone())?);
    if row.scheme == CALC {
        let long = Drive { long: Some(plan.long), ..base.clone() };
        found.with_long.push(rounds("with long transactions", long)?);
        let capacity = rate(&found.saturated[0].baseline);
        let half = Drive { rate_per_s: Some(capacity * plan.load_share), ..base };
        found.half.push(rounds("at part of the load", half)?);
    }
    Ok(found)
}

fn without_checkpoints(row: Row, drive: &Drive) -> Drive {
    let checkpoints_at_s =
        if row.takes_checkpoints { drive.checkpoints_at_s.clone() } else { Vec::new() };
    Drive { checkpoints_at_s, ..drive.clone() }
}

#[cfg(test)]
mod tests;

//! `calc-fig2`: full checkpoints under the microbenchmark (CALC paper, §5.1.1, Figure 2). The
//! experiment shows throughput over time with two checkpoints, and transactions lost. A second
//! version adds transactions of two seconds.
//!
//! 1. A child process is killed in the middle and its state checked. A figure of an engine that
//!    cannot recover does not count.
//! 2. Instructions per transaction at rest, counted by callgrind.
//! 3. Throughput at rest: many short pairs, baseline and calc in turn.
//! 4. Rounds with one checkpoint each, every row in turn with the baseline: saturated, with long
//!    transactions, and at half of the baseline's throughput.
//! 5. The paper's time line, once per row, in turn with the baseline.

mod report;

use serde::Serialize;

use crate::context::Context;
use crate::crash::records as crash;
use crate::drivers::transactions::{self, Drive};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::experiments::calc_figures::{Compared, rate};
use crate::experiments::instructions;
use crate::harness::{Harness, Instance};
use crate::measure::stats::median;
use crate::report::result::ExperimentResult;
use crate::subjects::records::{
    BASELINE, CALC_UNPACED, PAPER_PACE_BYTES_PER_S, Row, data_bytes, rows_of,
};
use crate::workloads::calc::LongTransactions;

/// The rows that are compared at rest.
const AT_REST: [&str; 2] = [BASELINE, CALC_UNPACED];

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Records of 8 + 100 bytes.
    pub(crate) records: u64,
    /// Threads that run transactions.
    pub(crate) workers: usize,
    /// Rounds of each kind.
    pub(crate) runs: usize,
    /// Pairs at rest.
    pub(crate) rest_pairs: usize,
    /// Length of each half of a pair, in seconds.
    pub(crate) rest_s: f64,
    /// Uncounted time before each round and time line.
    pub(crate) warm_up_s: f64,
    /// Length of a round.
    pub(crate) round_s: f64,
    /// Time at which the checkpoint of a round begins.
    pub(crate) checkpoint_at_s: f64,
    /// Length of the time line.
    pub(crate) timeline_s: f64,
    /// Times at which the checkpoints of the time line begin.
    pub(crate) timeline_checkpoints_s: Vec<f64>,
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
    instructions: Option<instructions::Ratio>,
    /// Calc ÷ baseline, pair by pair.
    rest: Vec<f64>,
    saturated: Rounds,
    with_long: Rounds,
    half: Rounds,
    /// Outcomes of the time line, one run for each row.
    timeline: Rounds,
    timeline_long: Rounds,
}

impl Findings {
    /// Adds the outcomes of a further row.
    fn extend(&mut self, row: Findings) {
        self.rest.extend(row.rest);
        self.saturated.extend(row.saturated);
        self.with_long.extend(row.with_long);
        self.half.extend(row.half);
        self.timeline.extend(row.timeline);
        self.timeline_long.extend(row.timeline_long);
    }
}

/// The experiment.
pub(crate) struct CalcFig2;

impl Experiment for CalcFig2 {
    const ID: &'static str = "calc-fig2";
    const TITLE: &'static str = "Full checkpoints: throughput over time and transactions lost";
    const PAPER: &'static str = "Ren et al., SIGMOD 2016 (CALC), §5.1.1, Figure 2";
    const PARTS: &'static [&'static str] = &["rest", "capture", "long", "timeline"];
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            records: 20_000_000,
            workers: 2,
            runs: 5,
            rest_pairs: 100,
            rest_s: 1.0,
            warm_up_s: 0.5,
            round_s: 30.0,
            checkpoint_at_s: 5.0,
            timeline_s: 200.0,
            timeline_checkpoints_s: vec![30.0, 110.0],
            load_share: 0.5,
            long: LongTransactions::of_the_paper(),
        }
    }

    fn quick() -> Plan {
        Plan {
            records: 100_000,
            runs: 1,
            rest_pairs: 3,
            rest_s: 0.1,
            warm_up_s: 0.05,
            round_s: 0.8,
            checkpoint_at_s: 0.2,
            timeline_s: 1.5,
            timeline_checkpoints_s: vec![0.3, 0.9],
            long: LongTransactions {
                seconds: 0.2,
                writes: 100,
                ..LongTransactions::of_the_paper()
            },
            ..Self::full()
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        if let Some(seconds) = asked.seconds {
            let share = seconds / plan.timeline_s;
            plan.timeline_s = seconds;
            plan.timeline_checkpoints_s.iter_mut().for_each(|at| *at *= share);
        }
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        result.parameter("data_bytes", data_bytes(plan.records));
        result.parameter("data_per_last_level_cache", result.per_cache(data_bytes(plan.records)));
        result.parameter("paced_bytes_per_s", PAPER_PACE_BYTES_PER_S);
        result.parameter("journal", "none");
        let wants = |part: &str| bench.context.wants(part);
        let mut found = Findings::default();
        let rows = rows_of(&bench.context.schemes, bench.context.quick);
        if wants("rest") {
            let killed = rows.iter().copied();
            let killed = killed.filter(|row| row.takes_checkpoints && !row.is_paced());
            let (killed, records) = (killed.collect::<Vec<_>>(), plan.records.min(1_000_000));
            crash::check_rows(bench, &killed, "none", records, result)?;
            found.instructions = instructions::calc_relative_to_none(bench, result)?;
        }
        let has_rounds = Self::PARTS.iter().any(|part| *part != "rest" && wants(part));
        let mut rows = rows;
        rows.retain(|row| has_rounds || AT_REST.contains(&row.name));
        let of_rows =
            bench.in_pairs(&rows, plan.records, result, |pair| of_pair(bench, plan, pair))?;
        of_rows.into_iter().for_each(|row| found.extend(row));
        for part in Self::PARTS.iter().filter(|part| wants(part)) {
            result.in_part(part, |result| {
                report::add(part, plan, &found, result);
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// The rounds of one row, in turn with the baseline.
fn of_pair(bench: &Harness<'_>, plan: &Plan, pair: [&Instance<'_>; 2]) -> LabResult<Findings> {
    let wants = |part: &str| bench.context.wants(part);
    let mut found = Findings::default();
    if wants("rest") && AT_REST == pair.map(|it| it.row.name) {
        found.rest = rest_pairs(bench, plan, pair)?;
    }
    let rounds = |runs: usize, what: &str, drive: Drive| {
        Compared::in_turn(bench, pair, (runs, what), |run, row| Drive {
            seed: run as u64 + 1,
            ..without_checkpoints(row, &drive)
        })
    };
    let base = plan.drive(plan.round_s);
    let base = Drive { checkpoints_at_s: vec![plan.checkpoint_at_s], ..base };
    if wants("capture") || wants("long") {
        found.saturated.push(rounds(plan.runs, "saturated", base.clone())?);
    }
    if wants("long") {
        let long = Drive { long: Some(plan.long), ..base.clone() };
        found.with_long.push(rounds(plan.runs, "with long transactions", long)?);
    }
    if wants("capture") && pair[1].row.stops_nobody {
        let capacity = rate(&found.saturated[0].baseline);
        let half = Drive { rate_per_s: Some(capacity * plan.load_share), ..base };
        found.half.push(rounds(plan.runs, "at part of the load", half)?);
    }
    if wants("timeline") {
        let line = plan.drive(plan.timeline_s);
        let line = Drive { checkpoints_at_s: plan.timeline_checkpoints_s.clone(), ..line };
        found.timeline.push(rounds(1, "time line", line.clone())?);
        let line = Drive { long: Some(plan.long), ..line };
        found.timeline_long.push(rounds(1, "time line with long transactions", line)?);
    }
    Ok(found)
}

/// Baseline and calc in turn, no checkpoint anywhere.
fn rest_pairs(
    bench: &Harness<'_>,
    plan: &Plan,
    [baseline, calc]: [&Instance<'_>; 2],
) -> LabResult<Vec<f64>> {
    let mut ratios = Vec::new();
    for pair in 0..plan.rest_pairs {
        let drive =
            Drive { warm_up_s: plan.rest_s / 10.0, seed: pair as u64, ..plan.drive(plan.rest_s) };
        let (first, second) = if pair % 2 == 0 { (baseline, calc) } else { (calc, baseline) };
        let first = transactions::run(&*first.engine, &drive)?.rate();
        let second = transactions::run(&*second.engine, &drive)?.rate();
        ratios.push(if pair % 2 == 0 { second / first } else { first / second });
    }
    let ratio = median(&ratios);
    bench.context.note(format!("at rest: calc does {ratio:.4} of none, {} pairs", ratios.len()));
    Ok(ratios)
}

fn without_checkpoints(row: Row, drive: &Drive) -> Drive {
    let checkpoints_at_s =
        if row.takes_checkpoints { drive.checkpoints_at_s.clone() } else { Vec::new() };
    Drive { checkpoints_at_s, ..drive.clone() }
}

#[cfg(test)]
mod tests;

//! `paged-read`: uniform point reads of records of 100 bytes in the pool, beside tables in memory.

use serde::Serialize;
use stillpoint::Kind;

use super::{SOURCE, count, table};
use crate::context::Context;
use crate::drivers::transactions::{Drive, run_clients};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::measure::stats::median;
use crate::report::result::{Bound, ClaimRow, ExperimentResult};
use crate::subjects::paged::{How, Points, PoolSize, with_pool};
use crate::sys;

/// The amount of work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Records of 100 bytes.
    pub(crate) records: u64,
    /// Numbers of threads.
    pub(crate) workers: Vec<usize>,
    /// Declared reads of one batch.
    pub(crate) batch: usize,
    /// Runs of each row.
    pub(crate) runs: usize,
    /// Seconds of a run.
    pub(crate) run_s: f64,
    /// The pool, which holds everything.
    pub(crate) pool: PoolSize,
}

/// The experiment.
pub(crate) struct PagedRead;

/// Names of the kinds in figures, the baseline first.
const KINDS: [(&str, Kind); 3] =
    [("memory", Kind::Memory), ("ordered", Kind::Ordered), ("paged", Kind::Paged)];
const WAYS: [(&str, How); 3] = [
    ("one at a time", How::Read),
    ("one in a transaction", How::Transact),
    ("declared in batches", How::Declared),
];
const ONE: ClaimRow =
    ClaimRow::new("point reads one at a time, per core", SOURCE, Bound::AtLeast(0.9))
        .goal(Bound::AtLeast(1.2))
        .unit("M/s");
const BATCHES: ClaimRow =
    ClaimRow::new("point reads declared in batches, per core", SOURCE, Bound::AtLeast(2.0))
        .goal(Bound::AtLeast(3.0))
        .unit("M/s");

impl Experiment for PagedRead {
    const ID: &'static str = "paged-read";
    const TITLE: &'static str = "Point reads of paged tables in the pool";
    const PAPER: &'static str = "LeanStore, ICDE 2018, §5";
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            records: 10_000_000,
            workers: vec![1, 2],
            batch: 64,
            runs: 5,
            run_s: 5.0,
            pool: PoolSize { pool_bytes: 3 << 30, page_bytes: 16 << 10 },
        }
    }

    fn quick() -> Plan {
        Plan {
            records: 5_000,
            workers: vec![1],
            batch: 16,
            runs: 1,
            run_s: 0.3,
            pool: PoolSize { pool_bytes: 8 << 20, page_bytes: 16 << 10 },
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        plan.run_s = asked.seconds.unwrap_or(plan.run_s).max(0.2);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        let mut beds = Vec::new();
        for (name, kind) in KINDS {
            let dir = bench.context.fresh_dir(&format!("paged-read-{name}"))?;
            bench.context.note(format!("loading {} records, {name}", plan.records));
            let subject = Points::open(name, with_pool(&dir, plan.pool), kind, plan.records)?;
            subject.load()?;
            beds.push((subject, dir));
        }
        let mut rates = table(
            "Point reads",
            &["reads", "threads", "table", "M/s per core", "÷ memory", "pages read"],
        );
        for &workers in &plan.workers {
            for (way, how) in WAYS {
                let mut runs = vec![Vec::new(); beds.len()];
                let before: Vec<u64> =
                    beds.iter().map(|(subject, _)| pages_read(subject)).collect();
                for seed in 1..=plan.runs as u64 {
                    for ((subject, _), runs) in beds.iter().zip(&mut runs) {
                        let drive = Drive {
                            workers,
                            seconds: plan.run_s,
                            warm_up_s: plan.run_s / 10.0,
                            batch: plan.batch,
                            ..Drive::new(plan.records)
                        };
                        let reader = |worker| subject.reader(how, worker, seed);
                        let rate = run_clients(subject, &drive, &reader)?.rate();
                        runs.push(rate / workers as f64 / 1e6);
                    }
                }
                let of_memory = median(&runs[0]);
                for (at, (name, _)) in KINDS.iter().enumerate() {
                    let rate = median(&runs[at]);
                    rates.rows.push(vec![
                        way.to_owned(),
                        workers.to_string(),
                        (*name).to_owned(),
                        format!("{rate:.3}"),
                        format!("{:.3}", rate / of_memory),
                        count((pages_read(&beds[at].0) - before[at]) as f64),
                    ]);
                }
                let at = format!("{workers} threads");
                match how {
                    How::Read => result.claims.push(ONE.claim(&at).measured_runs(&runs[2])),
                    How::Declared => result.claims.push(BATCHES.claim(&at).measured_runs(&runs[2])),
                    How::Transact => {}
                }
            }
        }
        result.tables.push(rates);
        for (subject, dir) in beds {
            subject.close()?;
            sys::remove_dir_all(&dir)?;
        }
        Ok(())
    }
}

fn pages_read(subject: &Points) -> u64 {
    subject.engine().stats().pool.map_or(0, |pool| pool.reads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::paged::tests::quick;

    #[test]
    fn a_quick_run_reads_all_kinds_in_all_ways() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let result = quick::<PagedRead>()?;
        assert_eq!((result.tables[0].rows.len(), result.claims.len()), (9, 2));
        assert!(result.claims.iter().all(|claim| claim.measured.is_some()));
        Ok(())
    }
}

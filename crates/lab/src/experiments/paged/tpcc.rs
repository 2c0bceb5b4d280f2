//! `paged-tpcc`: all of TPC-C on paged tables, in the pool and beyond it. The specification's conditions are
//! checked after each run.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use stillpoint::{Durability, Kind};

use super::{
    MEMORY, Measured, OF_FORMULA, SOURCE, count, data_bytes, formula, measure, memory_beyond,
    pool_of_data, table,
};
use crate::context::Context;
use crate::drivers::transactions::Drive;
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::measure::stats::median;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Paper, Table};
use crate::subjects::paged::{PoolSize, with_pool};
use crate::subjects::tpcc_records::full::FullTpcc;
use crate::sys;
use crate::workloads::tpcc::load::Population;
use crate::workloads::tpcc::schema::Scale;

/// The amount of work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Size of the database.
    pub(crate) scale: Scale,
    /// Numbers of threads.
    pub(crate) workers: Vec<usize>,
    /// Runs of each row.
    pub(crate) runs: usize,
    /// Seconds of a run.
    pub(crate) run_s: f64,
    /// Seconds of the bare loop.
    pub(crate) raw_s: f64,
    /// The pool that holds everything.
    pub(crate) pool: PoolSize,
    /// How many times the data are larger than each smaller pool.
    pub(crate) times: Vec<f64>,
}

/// The experiment.
pub(crate) struct PagedTpcc;

const BY_ONE: ClaimRow =
    ClaimRow::new("TPC-C in the pool, 1 thread, redo relaxed", SOURCE, Bound::AtLeast(42.0))
        .goal(Bound::AtLeast(46.0))
        .paper(Paper::words("LeanStore with its log: 21; Silo: 46"))
        .unit("k txn/s");
const BY_TWO: ClaimRow =
    ClaimRow::new("TPC-C in the pool, 2 threads, redo relaxed", SOURCE, Bound::AtLeast(54.0))
        .goal(Bound::AtLeast(65.0))
        .paper(Paper::words("LeanStore with its log: 27; Silo: 65"))
        .unit("k txn/s");
const LOG: ClaimRow = ClaimRow::new("log of a transaction of TPC-C", SOURCE, Bound::AtMost(2.3))
    .goal(Bound::AtMost(1.6))
    .paper(Paper::words("2,230 B"))
    .unit("KB");

const DURABILITIES: [Durability; 2] = [Durability::Relaxed, Durability::Strict];

impl Experiment for PagedTpcc {
    const ID: &'static str = "paged-tpcc";
    const TITLE: &'static str = "TPC-C on paged tables, in the pool and beyond it";
    const PAPER: &'static str = "TPC-C 5.11; LeanStore, ICDE 2018, §5";
    const PARTS: &'static [&'static str] = &["pool", "larger"];
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            scale: Scale::full(4),
            workers: vec![1, 2],
            runs: 3,
            run_s: 20.0,
            raw_s: 3.0,
            pool: PoolSize { pool_bytes: 4 << 30, page_bytes: 16 << 10 },
            times: vec![2.5, 10.0],
        }
    }

    fn quick() -> Plan {
        Plan {
            scale: Scale { items: 300, customers: 20, ..Scale::small(1) },
            workers: vec![1],
            runs: 1,
            run_s: 0.3,
            raw_s: 0.02,
            pool: PoolSize { pool_bytes: 8 << 20, page_bytes: 4 << 10 },
            times: vec![2.5],
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        plan.run_s = asked.seconds.unwrap_or(plan.run_s).max(0.2);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        let population = Arc::new(Population::new(plan.scale.unbounded(), 3));
        let dir = bench.context.fresh_dir("paged-tpcc")?;
        bench.context.note(format!("loading {} warehouses", plan.scale.warehouses));
        let mut bed = Bed { plan, dir: &dir, population, is_loaded: false };
        let mut rows = table(
            "TPC-C, all five transactions",
            &[
                "data ÷ pool",
                "durability",
                "threads",
                "k txn/s",
                "page reads each",
                "page writes/s",
                "R(q, w)",
                "of the formula",
                "log B each",
            ],
        );
        let mut in_memory = vec![f64::NAN; plan.workers.len()];
        if bench.context.wants("pool") {
            result.in_part("pool", |result| bed.in_pool(&mut in_memory, &mut rows, result))?;
        }
        if bench.context.wants("larger") {
            if !bench.context.wants("pool") {
                bed.in_pool(&mut in_memory, &mut Table::default(), &mut result.clone())?;
            }
            result.in_part("larger", |result| bed.larger(&in_memory, &mut rows, result))?;
        }
        result.tables.push(rows);
        sys::remove_dir_all(&dir)
    }
}

/// A database in a directory, which one row after the other goes on with.
struct Bed<'p> {
    plan: &'p Plan,
    dir: &'p Path,
    population: Arc<Population>,
    is_loaded: bool,
}

impl Bed<'_> {
    fn open(&mut self, pool: PoolSize, durability: Durability) -> LabResult<FullTpcc> {
        let mut config = with_pool(self.dir, pool);
        config.durability = durability;
        let subject = FullTpcc::open("paged", config, Kind::Paged, &self.population)?;
        if !self.is_loaded {
            subject.load()?;
            self.is_loaded = true;
        }
        subject.go_on()?;
        subject.check()?;
        Ok(subject)
    }

    fn run(&self, subject: &FullTpcc, workers: usize, seed: u64) -> LabResult<Measured> {
        let drive = Drive {
            workers,
            seconds: self.plan.run_s,
            warm_up_s: self.plan.run_s / 10.0,
            batch: 1,
            ..Drive::new(0)
        };
        let client = |worker| subject.client(workers, worker, seed);
        let measured = measure(subject, &|| subject.pool(), &drive, &client)?;
        subject.check()?;
        Ok(measured)
    }

    fn in_pool(
        &mut self,
        in_memory: &mut [f64],
        rows: &mut Table,
        result: &mut ExperimentResult,
    ) -> LabResult<()> {
        let plan = self.plan;
        for durability in DURABILITIES {
            let subject = self.open(plan.pool, durability)?;
            for (at, &workers) in plan.workers.iter().enumerate() {
                let runs = (1..=plan.runs as u64).map(|seed| self.run(&subject, workers, seed));
                let runs = runs.collect::<LabResult<Vec<Measured>>>()?;
                let rates: Vec<f64> = runs.iter().map(|run| run.rate / 1e3).collect();
                rows.rows.push(row("1, in the pool", durability, workers, &runs, &[], &[]));
                if durability != Durability::Relaxed {
                    continue;
                }
                in_memory[at] = median(&rates) * 1e3;
                let claim = if workers == 1 { BY_ONE } else { BY_TWO };
                result.claims.push(claim.claim("").measured_runs(&rates));
                let logs: Vec<f64> = runs.iter().map(|run| run.log_bytes / 1e3).collect();
                result.claims.push(LOG.claim(&threads(workers)).measured_runs(&logs));
            }
            subject.checkpoint()?;
            subject.close()?;
        }
        Ok(())
    }

    fn larger(
        &mut self,
        in_memory: &[f64],
        rows: &mut Table,
        result: &mut ExperimentResult,
    ) -> LabResult<()> {
        let (plan, dir) = (self.plan, self.dir);
        for &times in &plan.times {
            let data = data_bytes(dir)?;
            let pool = pool_of_data(data, times, plan.pool.page_bytes);
            let subject = self.open(pool, Durability::Relaxed)?;
            let mut beyond = Vec::new();
            for (at, &workers) in plan.workers.iter().enumerate() {
                let (mut runs, mut shares, mut raws) = (Vec::new(), Vec::new(), Vec::new());
                for seed in 1..=plan.runs as u64 {
                    let measured = self.run(&subject, workers, 100 + seed)?;
                    // Each thread waits for one page at a time.
                    let raw = (pool.page_bytes, workers, plan.raw_s);
                    let (limit, raw) = formula(dir, in_memory[at], &measured, raw)?;
                    shares.push(measured.rate / limit);
                    raws.push(raw);
                    beyond.push(memory_beyond(&measured, pool, data));
                    runs.push(measured);
                }
                let name = format!("{times}");
                let at = format!("TPC-C, data {times} × the pool, {}", threads(workers));
                result.claims.push(OF_FORMULA.claim(&at).measured_runs(&shares));
                rows.rows.push(row(&name, Durability::Relaxed, workers, &runs, &raws, &shares));
            }
            let at = format!("TPC-C, data {times} × the pool");
            result.claims.push(MEMORY.claim(&at).measured_runs(&beyond));
            subject.checkpoint()?;
            subject.close()?;
        }
        Ok(())
    }
}

fn threads(workers: usize) -> String {
    if workers == 1 { "1 thread".to_owned() } else { format!("{workers} threads") }
}

fn row(
    times: &str,
    durability: Durability,
    workers: usize,
    runs: &[Measured],
    raws: &[f64],
    shares: &[f64],
) -> Vec<String> {
    let of = |figure: fn(&Measured) -> f64| median(&runs.iter().map(figure).collect::<Vec<f64>>());
    let or_empty = |text: String| if raws.is_empty() { String::new() } else { text };
    vec![
        times.to_owned(),
        durability.as_str().to_owned(),
        workers.to_string(),
        format!("{:.1}", of(|run| run.rate) / 1e3),
        format!("{:.2}", of(|run| run.reads)),
        count(of(|run| run.writes_per_s)),
        or_empty(count(median(raws))),
        or_empty(format!("{:.2}", median(shares))),
        count(of(|run| run.log_bytes)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::paged::tests::quick;

    #[test]
    fn a_quick_run_has_both_parts_and_holds_all_conditions() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let result = quick::<PagedTpcc>()?;
        assert_eq!((result.tables[0].rows.len(), result.claims.len()), (3, 4));
        assert!(result.claims.iter().all(|claim| claim.measured.is_some()), "{:?}", result.claims);
        Ok(())
    }
}

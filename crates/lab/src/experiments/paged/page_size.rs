//! `paged-page-size`: pages of 4, 8 and 16 KiB under the same loads. Decides the default.

use serde::Serialize;
use stillpoint::Kind;

use super::{Measured, count, data_bytes, measure, pool_of_data, table};
use crate::context::Context;
use crate::drivers::transactions::Drive;
use crate::error::{LabError, LabResult};
use crate::experiments::Experiment;
use crate::experiments::calc_figures::bars;
use crate::harness::Harness;
use crate::measure::stats::{median, spread_of};
use crate::report::result::{ExperimentResult, Figure};
use crate::subjects::paged::{PoolSize, pool_of, with_pool};
use crate::subjects::ycsb::YcsbRecords;
use crate::sys;
use crate::workloads::random::KeyLaw;
use crate::workloads::ycsb::{MIXES, Mix, RANGES};

/// The amount of work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Records of 1,000 bytes.
    pub(crate) records: u64,
    /// Sizes of pages, in bytes.
    pub(crate) page_bytes: Vec<usize>,
    /// Threads.
    pub(crate) workers: usize,
    /// Transactions of a batch.
    pub(crate) batch: usize,
    /// Runs of each mix.
    pub(crate) runs: usize,
    /// Seconds of a run.
    pub(crate) run_s: f64,
    /// Bytes of the pool that holds everything.
    pub(crate) pool_bytes: u64,
    /// How many times the data are larger than the smaller pool.
    pub(crate) times: f64,
}

/// The experiment.
pub(crate) struct PagedPageSize;

impl Experiment for PagedPageSize {
    const ID: &'static str = "paged-page-size";
    const TITLE: &'static str = "The size of pages";
    const PAPER: &'static str = "Stillpoint";
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            records: 1_000_000,
            page_bytes: vec![4 << 10, 8 << 10, 16 << 10],
            workers: 2,
            batch: 8,
            runs: 3,
            run_s: 10.0,
            pool_bytes: 3 << 30,
            times: 10.0,
        }
    }

    fn quick() -> Plan {
        let pool_bytes = 16 << 20;
        Plan { records: 1_500, runs: 1, run_s: 0.02, pool_bytes, ..Self::full() }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        plan.run_s = asked.seconds.unwrap_or(plan.run_s).max(0.02);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        let mut rows = table(
            "Pages",
            &[
                "page",
                "mix",
                "in memory",
                "beyond the pool",
                "page reads each",
                "MB written/s",
                "data MB",
                "load s",
            ],
        );
        let mut rates: Vec<(String, Vec<f64>)> = Vec::new();
        for &page_bytes in &plan.page_bytes {
            let size = format!("{} KiB", page_bytes >> 10);
            let dir = bench.context.fresh_dir("paged-page-size")?;
            bench.context.note(format!("loading {} records, pages of {size}", plan.records));
            let open = |pool| {
                YcsbRecords::open_with("paged", with_pool(&dir, pool), Kind::Paged, plan.records)
            };
            let subject = open(PoolSize { pool_bytes: plan.pool_bytes, page_bytes })?;
            let start_ns = sys::now_ns();
            subject.load()?;
            let load_s = (sys::now_ns() - start_ns) as f64 / 1e9;
            let in_memory = loads().map(|mix| runs(&subject, plan, mix));
            let in_memory = in_memory.collect::<LabResult<Vec<_>>>()?;
            let taken = subject.engine().checkpoint();
            taken.map_err(|error| LabError::process("a checkpoint", error))?;
            let inserted = subject.inserted();
            subject.close()?;
            let data = data_bytes(&dir)?;
            let pool = pool_of_data(data, plan.times, page_bytes);
            let subject = open(pool)?;
            subject.go_on(inserted);
            for (mix, in_memory) in loads().zip(in_memory) {
                let beyond = runs(&subject, plan, mix)?;
                let of = |runs: &[Measured], figure: fn(&Measured) -> f64| {
                    median(&runs.iter().map(figure).collect::<Vec<f64>>())
                };
                let writes = of(&beyond, |run| run.writes_per_s) * page_bytes as f64 / 1e6;
                rows.rows.push(vec![
                    size.clone(),
                    mix.name.to_owned(),
                    count(of(&in_memory, |run| run.rate)),
                    count(of(&beyond, |run| run.rate)),
                    format!("{:.2}", of(&beyond, |run| run.reads)),
                    format!("{writes:.1}"),
                    count(data as f64 / 1e6),
                    format!("{load_s:.1}"),
                ]);
                let of_mix = beyond.iter().map(|run| run.rate).collect();
                rates.push((format!("{}, {size}", mix.name), of_mix));
            }
            subject.check()?;
            subject.close()?;
            sys::remove_dir_all(&dir)?;
        }
        rates.sort_by(|one, other| one.0.cmp(&other.0));
        result.tables.push(rows);
        result.figures.push(Figure {
            title: format!("Data {} × the pool", plan.times),
            caption: format!("YCSB, uniform keys but in A; {}.", spread_of(plan.runs)),
            y_label: "operations/s".into(),
            bars: bars(rates),
            ..Figure::default()
        });
        Ok(())
    }
}

/// A with the Zipf law, C and E with uniform keys.
fn loads() -> impl Iterator<Item = Mix> {
    let uniform = |mix: Mix| Mix { law: KeyLaw::Uniform, ..mix };
    [MIXES[0], uniform(MIXES[2]), uniform(RANGES)].into_iter()
}

fn runs(subject: &YcsbRecords, plan: &Plan, mix: Mix) -> LabResult<Vec<Measured>> {
    let drive = Drive {
        workers: plan.workers,
        seconds: plan.run_s,
        warm_up_s: plan.run_s / 5.0,
        batch: plan.batch,
        ..Drive::new(plan.records)
    };
    let run = |seed| {
        let client = |worker| subject.client(mix, plan.workers, worker, seed);
        measure(subject, &|| pool_of("paged", subject.engine()), &drive, &client)
    };
    (1..=plan.runs as u64).map(run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::paged::tests::quick;

    #[test]
    fn a_quick_run_has_all_sizes() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let result = quick::<PagedPageSize>()?;
        assert_eq!((result.tables[0].rows.len(), result.figures.len()), (9, 1));
        Ok(())
    }
}

//! `paged-scan`: scans of a whole table in the pool and from the disk.

use serde::Serialize;
use stillpoint::Kind;

use super::{PAGES, SOURCE, count, data_bytes, pool_of_data, table};
use crate::context::Context;
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::measure::raw_pages::{RawLoad, reads_per_s};
use crate::measure::stats::median;
use crate::report::result::{Bound, ClaimRow, ExperimentResult};
use crate::subjects::paged::{Points, PoolSize, pool_of, with_pool};
use crate::sys;

/// The amount of work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Records of 100 bytes.
    pub(crate) records: u64,
    /// Scans of each row.
    pub(crate) runs: usize,
    /// The pool that holds everything.
    pub(crate) pool: PoolSize,
    /// How many times the data are larger than the smaller pool.
    pub(crate) times: f64,
    /// Reads that a scan has under way at a time.
    pub(crate) depth: usize,
    /// Seconds of the bare loop.
    pub(crate) raw_s: f64,
}

/// The experiment.
pub(crate) struct PagedScan;

const IN_POOL: ClaimRow =
    ClaimRow::new("records scanned in the pool, per core", SOURCE, Bound::AtLeast(20.0))
        .unit("M/s");
const FROM_DISK: ClaimRow =
    ClaimRow::new("pages scanned from the disk ÷ bare reads", SOURCE, Bound::AtLeast(0.7));

impl Experiment for PagedScan {
    const ID: &'static str = "paged-scan";
    const TITLE: &'static str = "Scans of paged tables, in the pool and from the disk";
    const PAPER: &'static str = "LeanStore, ICDE 2018, §5";
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            records: 10_000_000,
            runs: 5,
            pool: PoolSize { pool_bytes: 3 << 30, page_bytes: 16 << 10 },
            times: 10.0,
            depth: 64,
            raw_s: 5.0,
        }
    }

    fn quick() -> Plan {
        Plan {
            records: 20_000,
            runs: 1,
            pool: PoolSize { pool_bytes: 16 << 20, page_bytes: 4 << 10 },
            raw_s: 0.05,
            ..Self::full()
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        plan.raw_s = asked.seconds.unwrap_or(plan.raw_s).max(0.05);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        let dir = bench.context.fresh_dir("paged-scan")?;
        let mut rates = table(
            "Scans of the whole table",
            &["from", "M records/s", "pages/s", "bare reads/s", "÷ bare"],
        );
        bench.context.note(format!("loading {} records", plan.records));
        let subject = Points::open("paged", with_pool(&dir, plan.pool), Kind::Paged, plan.records)?;
        subject.load()?;
        subject.scan()?;
        let in_pool = scans(&subject, plan.runs)?;
        let of_records =
            |runs: &[(f64, f64)]| -> Vec<f64> { runs.iter().map(|run| run.0).collect() };
        result.claims.push(IN_POOL.claim("").measured_runs(&of_records(&in_pool)));
        rates.rows.push(vec![
            "pool".to_owned(),
            format!("{:.2}", median(&of_records(&in_pool))),
            count(median(&in_pool.iter().map(|run| run.1).collect::<Vec<_>>())),
            String::new(),
            String::new(),
        ]);
        subject.close()?;
        let pool = pool_of_data(data_bytes(&dir)?, plan.times, plan.pool.page_bytes);
        let subject = Points::open("paged", with_pool(&dir, pool), Kind::Paged, plan.records)?;
        let load = RawLoad {
            page_bytes: pool.page_bytes,
            depth: plan.depth,
            writes_per_s: 0.0,
            seconds: plan.raw_s,
        };
        let (mut shares, mut runs, mut raws) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..plan.runs {
            let (records, pages) = scans(&subject, 1)?[0];
            let raw = reads_per_s(&dir, PAGES, load)?;
            shares.push(pages / raw);
            runs.push((records, pages));
            raws.push(raw);
        }
        let at = format!("data {} × the pool, depth {}", plan.times, plan.depth);
        result.claims.push(FROM_DISK.claim(&at).measured_runs(&shares));
        rates.rows.push(vec![
            format!("disk, {at}"),
            format!("{:.2}", median(&of_records(&runs))),
            count(median(&runs.iter().map(|run| run.1).collect::<Vec<_>>())),
            count(median(&raws)),
            format!("{:.3}", median(&shares)),
        ]);
        result.tables.push(rates);
        subject.close()?;
        sys::remove_dir_all(&dir)
    }
}

/// Scans the table some times. Returns millions of records, and pages that were read, per second.
fn scans(subject: &Points, runs: usize) -> LabResult<Vec<(f64, f64)>> {
    (0..runs)
        .map(|_| {
            let before = pool_of("paged", subject.engine())?.reads;
            let start_ns = sys::now_ns();
            let records = subject.scan()?;
            let seconds = (sys::now_ns() - start_ns) as f64 / 1e9;
            let pages = pool_of("paged", subject.engine())?.reads - before;
            Ok((records as f64 / seconds / 1e6, pages as f64 / seconds))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::paged::tests::quick;

    #[test]
    fn a_quick_run_scans_from_pool_and_disk() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let result = quick::<PagedScan>()?;
        assert_eq!((result.tables[0].rows.len(), result.claims.len()), (2, 2));
        assert!(result.claims.iter().all(|claim| claim.measured.is_some_and(|it| it > 0.0)));
        Ok(())
    }
}

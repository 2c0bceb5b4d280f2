//! `siren-tab3`: what a SIREN checkpoint of the whole database holds twice, beside uniform updates
//! (Table 3 of the paper).
//!
//! All pages are dirty when the checkpoint begins. The store counts removed tuples whose page is not
//! copied yet, and the tuples on pages that a copy-on-update of whole pages would have copied. The
//! formulas take the rates of updates and of capture that were measured in the run.

use serde::Serialize;
use stillpoint_siren::{Logging, Removes};

use crate::context::Context;
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, Claim, ExperimentResult, Table};
use crate::subjects::siren::{BesideUpdates, PAGE_BYTES, SirenStore, Stored, duplicates_max};
use crate::sys;

const SOURCE: &str = "SIREN §4.1, Table 3";
/// Largest distance of a measured peak from its formula.
const DISTANCE_MAX: f64 = 0.1;
/// The paper's Table 3: updates per second, overhead of copy-on-update of pages and of SIREN.
const TABLE_3: [(f64, &str, &str); 6] = [
    (100e3, "92 %", "26 %"),
    (50e3, "85 %", "15 %"),
    (20e3, "71 %", "6.7 %"),
    (10e3, "57 %", "3.5 %"),
    (5e3, "40 %", "1.8 %"),
    (2e3, "19 %", "0.7 %"),
];

/// The amount of work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Tuples of 300 bytes.
    pub(crate) tuples: u64,
    /// Updates per second.
    pub(crate) rates_per_s: Vec<f64>,
    /// Checkpoints for each rate.
    pub(crate) runs: usize,
    /// The disk's rate. The paper's disk copies 70,000 tuples per second.
    pub(crate) disk_bytes_per_s: u64,
}

/// The experiment.
pub(crate) struct SirenTab3;

impl Experiment for SirenTab3 {
    const ID: &'static str = "siren-tab3";
    const TITLE: &'static str = "Tuples that a SIREN checkpoint holds twice";
    const PAPER: &'static str = "SIREN, ICDE 2006, Table 3";
    type Plan = Plan;

    fn full() -> Plan {
        let rates_per_s = TABLE_3.iter().map(|row| row.0).collect();
        // The share of tuples depends on the ratio of the rates, and not on the database's size.
        Plan { tuples: 700_000, rates_per_s, runs: 3, disk_bytes_per_s: 30_000_000 }
    }

    fn quick() -> Plan {
        Plan { tuples: 20_000, rates_per_s: vec![50e3], runs: 1, disk_bytes_per_s: 30_000_000 }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        result.parameter("page_bytes", PAGE_BYTES);
        result.parameter("data_bytes", plan.tuples * 300);
        let mut table = Table {
            title: "The most tuples held twice, as a share of the database".into(),
            columns: [
                "checkpoint",
                "updates/s",
                "captured/s",
                "seconds",
                "SIREN %",
                "equation 1 %",
                "pages %",
                "equation 2 %",
                "slowed",
            ]
            .map(String::from)
            .to_vec(),
            ..Table::default()
        };
        let removes = [("siren", Removes::Pend), ("siren-semi-fuzzy", Removes::ToPages)];
        for (name, removes) in removes {
            let dir = bench.context.fresh_dir(name)?;
            bench.context.note(format!("loading {} tuples into {name}", plan.tuples));
            let stored = Stored {
                tuples: plan.tuples,
                removes,
                logging: Logging::None,
                disk_bytes_per_s: plan.disk_bytes_per_s,
                checkpoint_log_bytes: u64::MAX,
            };
            let store = SirenStore::load(&dir, stored)?;
            for &rate in &plan.rates_per_s {
                let mut runs = Vec::new();
                for seed in 1..=plan.runs as u64 {
                    let run = store.checkpoint_beside(rate, seed)?;
                    table.rows.push(row(name, plan.tuples, &run));
                    runs.push(run);
                }
                claim(name, plan.tuples, rate, &runs, result);
            }
            drop(store);
            sys::remove_dir_all(&dir)?;
        }
        result.tables.push(table);
        Ok(())
    }
}

fn row(name: &str, tuples: u64, run: &BesideUpdates) -> Vec<String> {
    let of = |count: f64| format!("{:.2}", count / tuples as f64 * 100.0);
    let formula = |per_page| of(duplicates_max(tuples as f64, per_page, run));
    vec![
        name.to_owned(),
        grouped(run.updates_per_s as u64),
        grouped(run.captured_per_s as u64),
        format!("{:.2}", run.seconds),
        of(run.removed_max as f64),
        formula(1.0),
        of(run.touched_max as f64),
        formula(run.tuples_per_page),
        grouped(run.slowed),
    ]
}

/// The claims of a rate.
fn claim(
    name: &str,
    tuples: u64,
    rate: f64,
    runs: &[BesideUpdates],
    result: &mut ExperimentResult,
) {
    let (all, at) = (tuples as f64, format!("{} updates/s", grouped(rate as u64)));
    let paper = TABLE_3.iter().find(|row| row.0 == rate);
    let mut add = |claim: Claim, words: Option<String>, measured: Vec<f64>| {
        let claim = claim.measured_runs(&measured);
        result.claims.push(match words {
            Some(words) => claim.paper(words),
            None => claim,
        });
    };
    if name == "siren-semi-fuzzy" {
        let claim = format!("tuples held twice ÷ database, semi-fuzzy, {at}");
        let shares = runs.iter().map(|run| run.removed_max as f64 / all).collect();
        let words = "a few pages".to_owned();
        return add(Claim::new(claim, "SIREN §3.3", Bound::AtMost(0.005)), Some(words), shares);
    }
    let distance = |measured: f64, formula: f64| (measured / formula - 1.0).abs();
    let of_tuples =
        runs.iter().map(|run| distance(run.removed_max as f64, duplicates_max(all, 1.0, run)));
    let claim = format!("distance of the tuples held twice from equation 1, {at}");
    let words = paper.map(|row| format!("{} of the database", row.2));
    add(Claim::new(claim, SOURCE, Bound::AtMost(DISTANCE_MAX)), words, of_tuples.collect());
    let of_pages = runs
        .iter()
        .map(|run| distance(run.touched_max as f64, duplicates_max(all, run.tuples_per_page, run)));
    let claim = format!("distance of copy-on-update of pages from equation 2, {at}");
    let words = paper.map(|row| format!("{} of the database", row.1));
    add(Claim::new(claim, SOURCE, Bound::AtMost(DISTANCE_MAX)), words, of_pages.collect());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::tests::Toy;
    use crate::error::LabError;
    use crate::experiments::run_plan;

    #[test]
    fn checkpoints_beside_updates_are_measured() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let bench = Harness { context: &context, open: &Toy::open, children: false };
        let plan = Plan { tuples: 5_000, rates_per_s: vec![20e3], ..SirenTab3::quick() };
        let result = run_plan::<SirenTab3>(&bench, &plan)?;
        assert_eq!((result.claims.len(), result.tables[0].rows.len()), (3, 2));
        Ok(())
    }
}

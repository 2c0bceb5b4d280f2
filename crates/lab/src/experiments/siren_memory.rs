//! `siren-memory`: SIREN tables beside the record store while no checkpoint is under way. What a record takes
//! in memory, point reads, and the transaction of the CALC paper.
//!
//! Both have the journal redo and relaxed durability. The engines of a round run one after the other.

use serde::Serialize;
use stillpoint::{CHECKPOINT_SCHEME_DEFAULT, Kind};

use crate::context::Context;
use crate::drivers::transactions::{self, Drive, run_clients};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::measure::process::own_bytes;
use crate::measure::stats::median;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Table};
use crate::subjects::adapter::Checkpointed;
use crate::subjects::paged::{How, Points};
use crate::subjects::records::{BASELINE, of_scheme, row};
use crate::subjects::stillpoint::measured;
use crate::sys;

const SOURCE: &str = "Stillpoint, SIREN tables";
/// Names in figures with the schemes of checkpoints and the kinds of tables, the record store first.
const STORES: [(&str, &str, Kind); 2] =
    [("record store", CHECKPOINT_SCHEME_DEFAULT, Kind::Memory), ("SIREN", "siren", Kind::Siren)];
const JOURNAL: &str = "redo";

const TRANSACTIONS: ClaimRow =
    ClaimRow::new("CALC transactions at rest", SOURCE, Bound::AtLeast(0.4))
        .between(STORES[1].0, STORES[0].0);
const READS: ClaimRow = ClaimRow::new("point reads, one at a time", SOURCE, Bound::AtLeast(0.5))
    .between(STORES[1].0, STORES[0].0);

/// The amount of work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Records with keys of 8 bytes and values of 100.
    pub(crate) records: u64,
    /// Threads.
    pub(crate) workers: usize,
    /// Rounds.
    pub(crate) runs: usize,
    /// Seconds of a run.
    pub(crate) run_s: f64,
}

/// The experiment.
pub(crate) struct SirenMemory;

impl Experiment for SirenMemory {
    const ID: &'static str = "siren-memory";
    const TITLE: &'static str = "SIREN tables in memory, beside the record store";
    const PAPER: &'static str = "Stillpoint, SIREN tables at rest";
    type Plan = Plan;

    fn full() -> Plan {
        Plan { records: 2_000_000, workers: 2, runs: 3, run_s: 2.0 }
    }

    fn quick() -> Plan {
        Plan { records: 5_000, workers: 1, runs: 1, run_s: 0.3 }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        plan.run_s = asked.seconds.unwrap_or(plan.run_s).max(0.2);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        let PointsRun { bytes, reads } = points(bench, plan)?;
        let transactions = transactions(bench, plan)?;
        let mut table = Table {
            title: "At rest".into(),
            columns: [
                "store",
                "bytes of a record",
                "resident",
                "reads M/s",
                "CALC txn/s",
                "÷ record store",
            ]
            .map(String::from)
            .to_vec(),
            ..Table::default()
        };
        for (at, (name, ..)) in STORES.iter().enumerate() {
            let ratio = median(&transactions[at]) / median(&transactions[0]);
            let [counted, resident] = bytes[at];
            table.rows.push(vec![
                (*name).to_owned(),
                format!("{counted:.0}"),
                format!("{resident:.0}"),
                format!("{:.3}", median(&reads[at]) / 1e6),
                format!("{:.0}", median(&transactions[at])),
                format!("{ratio:.3}"),
            ]);
            result.parameter(&format!("bytes_per_record {name}"), counted);
        }
        result.tables.push(table);
        let over = |of: &[Vec<f64>; 2]| -> Vec<f64> {
            of[1].iter().zip(&of[0]).map(|(siren, records)| siren / records).collect()
        };
        result.claims.push(TRANSACTIONS.claim("").measured_runs(&over(&transactions)));
        result.claims.push(READS.claim("").measured_runs(&over(&reads)));
        result
            .note("The bytes are those of the engine's count, and what the process has grown by.");
        Ok(())
    }
}

/// What points have taken and given, for each store.
struct PointsRun {
    /// Bytes of a record, counted and resident.
    bytes: [[f64; 2]; 2],
    /// Reads per second, round by round.
    reads: [Vec<f64>; 2],
}

/// Loads points into each store, and reads them.
fn points(bench: &Harness<'_>, plan: &Plan) -> LabResult<PointsRun> {
    let (mut beds, mut bytes) = (Vec::new(), [[0.0; 2]; 2]);
    for (at, (name, scheme, kind)) in STORES.into_iter().enumerate() {
        let dir = bench.context.fresh_dir(&format!("siren-memory-{at}"))?;
        bench.context.note(format!("loading {} points into the {name}", plan.records));
        let subject = Points::open(name, measured(&dir, scheme, JOURNAL), kind, plan.records)?;
        let held = |subject: &Points| [subject.status().held_bytes, own_bytes()];
        let before = held(&subject);
        subject.load()?;
        let after = held(&subject);
        bytes[at] = std::array::from_fn(|of| {
            after[of].saturating_sub(before[of]) as f64 / plan.records as f64
        });
        beds.push((subject, dir));
    }
    let mut rates = [Vec::new(), Vec::new()];
    let drive = Drive {
        workers: plan.workers,
        seconds: plan.run_s,
        warm_up_s: plan.run_s / 10.0,
        batch: 64,
        ..Drive::new(plan.records)
    };
    for seed in 1..=plan.runs as u64 {
        for ((subject, _), rates) in beds.iter().zip(&mut rates) {
            let reader = |worker| subject.reader(How::Read, worker, seed);
            rates.push(run_clients(subject, &drive, &reader)?.rate());
        }
    }
    for (subject, dir) in beds {
        subject.close()?;
        sys::remove_dir_all(&dir)?;
    }
    Ok(PointsRun { bytes, reads: rates })
}

/// CALC transactions per second of each store, round by round, after a first checkpoint.
fn transactions(bench: &Harness<'_>, plan: &Plan) -> LabResult<[Vec<f64>; 2]> {
    let rows = [row(BASELINE), of_scheme(STORES[1].1)?];
    let open = |row| bench.open_loaded(row, plan.records, JOURNAL);
    let beds = [open(rows[0])?, open(rows[1])?];
    beds[1].take_checkpoint()?;
    let mut rates = [Vec::new(), Vec::new()];
    for seed in 1..=plan.runs as u64 {
        let drive = Drive {
            workers: plan.workers,
            seconds: plan.run_s,
            warm_up_s: plan.run_s / 10.0,
            seed,
            ..Drive::new(plan.records)
        };
        for (bed, rates) in beds.iter().zip(&mut rates) {
            rates.push(transactions::run(&*bed.engine, &drive)?.rate());
        }
        // Frees the log of the round.
        beds[1].take_checkpoint()?;
    }
    for bed in beds {
        bed.clear()?;
    }
    Ok(rates)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::tests::Toy;
    use crate::error::LabError;
    use crate::experiments::run_plan;

    #[test]
    fn both_stores_are_measured() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let bench = Harness { context: &context, open: &Toy::open, children: false };
        let result = run_plan::<SirenMemory>(&bench, &SirenMemory::quick())?;
        assert_eq!((result.claims.len(), result.tables[0].rows.len()), (2, 2));
        assert!(result.claims.iter().all(|claim| claim.measured.is_some_and(|it| it > 0.0)));
        Ok(())
    }
}

//! Throughput, and bytes of log per transaction.

use super::{Plan, SOURCE, compared, table};
use crate::crash::records as crash;
use crate::drivers::transactions::{self, Drive, Outcome};
use crate::error::LabResult;
use crate::harness::{Harness, Instance};
use crate::measure::stats::median;
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, ClaimRow, ExperimentResult};
use crate::subjects::records::data_bytes;
use crate::workloads::calc::{Change, Mix};

/// The journals, in the order of the runs.
const JOURNALS: [&str; 3] = ["none", "command", "redo"];

const THROUGHPUT: ClaimRow =
    ClaimRow::new("throughput", SOURCE, Bound::AtLeast(0.9)).between("command", "no journal");
const READERS: ClaimRow =
    ClaimRow::new("throughput", SOURCE, Bound::AtLeast(0.8)).between("command", "no journal");
const BYTES: ClaimRow = ClaimRow::new("bytes of log per transaction", SOURCE, Bound::AtMost(0.25))
    .between("command", "redo with whole values");

/// A kind of transaction, and the number of workers that run it.
struct Load {
    name: &'static str,
    mix: Mix,
    workers: usize,
    claim: ClaimRow,
}

const LOADS: [Load; 4] = [
    Load { name: "10 updates", mix: Mix::OF_THE_PAPER, workers: 1, claim: THROUGHPUT },
    Load { name: "10 updates", mix: Mix::OF_THE_PAPER, workers: 2, claim: THROUGHPUT },
    Load {
        name: "8 reads, 2 updates",
        mix: Mix { writes: 2, all_read_one: false },
        workers: 2,
        claim: READERS,
    },
    Load {
        name: "8 reads, 2 updates, one record read by all",
        mix: Mix { writes: 2, all_read_one: true },
        workers: 2,
        claim: READERS,
    },
];

/// One run of each journal, in turn.
type Run = [Outcome; 3];

pub(super) fn throughput(
    bench: &Harness<'_>,
    plan: &Plan,
    result: &mut ExperimentResult,
) -> LabResult<()> {
    result.parameter("data_bytes", data_bytes(plan.records));
    result.parameter("data_per_last_level_cache", result.per_cache(data_bytes(plan.records)));
    crash::check_rows(bench, &[compared()], "command", plan.records.min(1_000_000), result)?;
    let columns = [
        "transaction",
        "workers",
        "none txn/s",
        "command txn/s",
        "redo txn/s",
        "command B",
        "redo B",
    ];
    let mut table = table("Throughput and bytes of log by journal", &columns);
    let beds = JOURNALS
        .iter()
        .map(|journal| bench.open_loaded(compared(), plan.records, journal))
        .collect::<LabResult<Vec<_>>>()?;
    let mut shares: Vec<f64> = Vec::new();
    for load in &LOADS {
        let runs = runs(bench, plan, &beds, load)?;
        let workers = if load.workers == 1 { "1 worker" } else { "2 workers" };
        let of = format!("{}, {workers}", load.name);
        let ratios: Vec<f64> =
            runs.iter().map(|[none, command, _]| command.rate() / none.rate()).collect();
        result.claims.push(load.claim.claim(&of).measured_runs(&ratios));
        if load.mix == Mix::OF_THE_PAPER {
            shares
                .extend(runs.iter().map(|[_, command, redo]| log_bytes(command) / log_bytes(redo)));
        }
        table.rows.push(row(load, &runs));
    }
    result.claims.push(BYTES.claim("").measured_runs(&shares));
    result.tables.push(table);
    beds.into_iter().try_for_each(Instance::clear)
}

fn runs(
    bench: &Harness<'_>,
    plan: &Plan,
    beds: &[Instance<'_>],
    load: &Load,
) -> LabResult<Vec<Run>> {
    let (seconds, warm_up_s) = (plan.run_s, plan.run_s / 20.0);
    let (workers, mix) = (load.workers, load.mix);
    let drive = Drive {
        workers,
        mix,
        seconds,
        warm_up_s,
        change: Change::Whole,
        ..Drive::new(plan.records)
    };
    let one = |bed: &Instance<'_>, seed| -> LabResult<Outcome> {
        let outcome = transactions::run(&*bed.engine, &Drive { seed, ..drive.clone() })?;
        bed.take_checkpoint()?;
        Ok(outcome)
    };
    (1..=plan.runs as u64)
        .map(|seed| {
            let run = [one(&beds[0], seed)?, one(&beds[1], seed)?, one(&beds[2], seed)?];
            let [none, command, redo] = &run;
            bench.context.note(format!(
                "{}, {workers} workers: none {:.0} txn/s, command {:.0} txn/s and {:.0} B, redo {:.0} \
                 txn/s and {:.0} B",
                load.name,
                none.rate(),
                command.rate(),
                log_bytes(command),
                redo.rate(),
                log_bytes(redo)
            ));
            Ok(run)
        })
        .collect()
}

/// Bytes that the journal wrote for a transaction.
fn log_bytes(outcome: &Outcome) -> f64 {
    outcome.journal_bytes as f64 / (outcome.rate() * outcome.seconds)
}

fn row(load: &Load, runs: &[Run]) -> Vec<String> {
    let of = |measure: fn(&Outcome) -> f64, which: usize| {
        median(&runs.iter().map(|run| measure(&run[which])).collect::<Vec<_>>())
    };
    let rate = |which| grouped(of(Outcome::rate, which) as u64);
    let bytes = |which| format!("{:.0}", of(log_bytes, which));
    let workers = load.workers.to_string();
    vec![load.name.into(), workers, rate(0), rate(1), rate(2), bytes(1), bytes(2)]
}

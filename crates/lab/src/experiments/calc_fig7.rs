//! `calc-fig7`: TPC-C's NewOrder and Payment in the records of the engine, with declared keys (CALC
//! paper, §5.2, Figure 7).
//!
//! 1. Children are killed in the middle of a checkpoint; the recovered tables must keep all
//!    consistency conditions and hold what was promised.
//! 2. Throughput at rest, with one and with two workers, all rows in turn. The microbenchmark runs at rest
//!    too, with calc and zigzag, since the paper compares the two loads.
//! 3. One checkpoint under saturated workers: throughput over time, and transactions lost. With 20
//!    warehouses, and with the paper's 50 where they fit.
//!
//! The consistency conditions are checked after every run with a checkpoint, before and after a recovery
//! from it.

use std::sync::Arc;

use serde::Serialize;

use crate::context::Context;
use crate::crash::tpcc_records as crash;
use crate::drivers::transactions::{self, Drive, Outcome};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::experiments::calc_figures::{bars, over_baseline, rate, time_line};
use crate::experiments::calc_measures::{
    capture_kept, capture_loss_percent, capture_seconds, checkpoint_cpu_s, lost_share,
    lost_transactions, worst_window_ratio,
};
use crate::harness::Harness;
use crate::measure::machine::available_bytes;
use crate::measure::stats::{loss_ratio, median, spread_of};
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Figure, Paper, Table};
use crate::subjects::records::{
    self, BASELINE, CALC_PACED, CALC_UNPACED, NAIVE_PACED, NAIVE_UNPACED, PAPER_PACE_BYTES_PER_S,
    PING_PONG_PACED, ZIGZAG_PACED,
};
use crate::subjects::tpcc_records::{self, Row, TpccRecords};
use crate::sys;
use crate::workloads::tpcc::load::Population;
use crate::workloads::tpcc::schema::{Scale, data_bytes};

const SOURCE: &str = "CALC paper, §5.2, Figure 7";

/// Silo's throughput with the same mix and 4 warehouses: workers, thousands of transactions/s. [`SILO_NOTE`]
/// says where the figures come from.
const SILO: [(usize, f64); 2] = [(1, 65.0), (2, 114.0)];
const SILO_NOTE: &str = "Silo does not run here. Its 65 and 114 thousand transactions/s are reference figures, \
     measured once on the project's first machine: NewOrder and Payment, 4 warehouses, 1 and 2 threads. On \
     another machine, the ratio says how fast that machine is, too.";

/// The two statements of the paper on the writes of zigzag.
const CONTRADICTION: &str = "The paper contradicts itself on zigzag's writes. By §5.1.1 it \"only has to perform writes \
     once, without any additional copying\". By §5.2 it does worse beside calc on TPC-C, \"since it needs to \
     maintain two copies of the record upon each write\", also at rest.";

/// A row of the checkpoint: a row of the engine, in one writer mode.
#[derive(Clone, Copy, Debug)]
struct Captured {
    name: &'static str,
    row: Row,
    pace_bytes_per_s: Option<u64>,
}

/// The rows of the checkpoint, the baseline first: those of the paper without a journal, at the pace, and
/// calc and naive without one. With the paper's warehouses, these at the pace alone.
fn captures(is_paced: bool) -> Vec<Captured> {
    let rows = [BASELINE, CALC_PACED, NAIVE_PACED, ZIGZAG_PACED, PING_PONG_PACED];
    let without_pace = if is_paced { &[][..] } else { &[CALC_UNPACED, NAIVE_UNPACED] };
    let row = |name: &&str| {
        let mode = records::row(name);
        let row = tpcc_records::row(mode.scheme);
        Captured { name: mode.name, row, pace_bytes_per_s: mode.pace_bytes_per_s }
    };
    rows.iter().chain(without_pace).map(row).collect()
}

/// Rows that are compared at rest, the baseline first.
const AT_REST_ROWS: [&str; 5] = ["none", "calc", "calc:partial", "zigzag", "calc, redo relaxed"];

fn at_rest_rows() -> Vec<Row> {
    AT_REST_ROWS.into_iter().map(tpcc_records::row).collect()
}

/// Row of Zigzag as fast as it can.
const ZIGZAG_UNPACED: &str = "zigzag, unpaced";

/// The rows that are compared with Silo.
const BESIDE_SILO: [&str; 2] = ["calc", "calc, redo relaxed"];

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Whether to use the small database, in a run that measures nothing.
    pub(crate) small: bool,
    /// Seed of the first rows and of the transactions.
    pub(crate) seed: u64,
    /// Transactions that a worker hands over as one batch.
    pub(crate) batch: usize,
    /// Runs of each row at rest.
    pub(crate) runs: usize,
    /// Runs of each row with a checkpoint.
    pub(crate) capture_runs: usize,
    /// Warehouses at rest.
    pub(crate) rest_warehouses: usize,
    /// Numbers of workers at rest.
    pub(crate) rest_workers: Vec<usize>,
    /// Seconds of a run at rest.
    pub(crate) rest_s: f64,
    /// Records of the microbenchmark at rest.
    pub(crate) micro_records: u64,
    /// Warehouses of the runs with a checkpoint.
    pub(crate) warehouses: usize,
    /// Warehouses of the paper, in further such runs.
    pub(crate) large_warehouses: usize,
    /// Seconds of a run with the paper's warehouses.
    pub(crate) large_run_s: f64,
    /// Workers of the runs with a checkpoint.
    pub(crate) workers: usize,
    /// Seconds of a run with a checkpoint.
    pub(crate) run_s: f64,
    /// When the checkpoint begins.
    pub(crate) checkpoint_at_s: f64,
}

impl Plan {
    fn population(&self, warehouses: usize) -> Arc<Population> {
        let scale = if self.small { Scale::small } else { Scale::full }(warehouses);
        Arc::new(Population::new(scale.unbounded(), self.seed))
    }

    fn drive(&self, workers: usize, seconds: f64, run: usize) -> Drive {
        let seed = self.seed + run as u64;
        Drive { workers, seconds, batch: self.batch, seed, ..Drive::new(0) }
    }
}

/// The experiment.
pub(crate) struct CalcFig7;

impl Experiment for CalcFig7 {
    const ID: &'static str = "calc-fig7";
    const TITLE: &'static str = "TPC-C: half NewOrder, half Payment, in records";
    const PAPER: &'static str = "Ren et al., SIGMOD 2016 (CALC), §5.2, Figure 7";
    const PARTS: &'static [&'static str] = &["rest", "capture", "large"];
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            small: false,
            seed: 1,
            batch: 8,
            runs: 3,
            capture_runs: 1,
            rest_warehouses: 4,
            rest_workers: vec![1, 2],
            rest_s: 4.0,
            micro_records: 10_000_000,
            warehouses: 20,
            large_warehouses: 50,
            large_run_s: 50.0,
            workers: 2,
            run_s: 32.0,
            checkpoint_at_s: 5.0,
        }
    }

    fn quick() -> Plan {
        Plan {
            small: true,
            runs: 1,
            rest_warehouses: 2,
            rest_s: 0.2,
            micro_records: 5_000,
            warehouses: 2,
            large_warehouses: 3,
            large_run_s: 0.6,
            run_s: 0.6,
            checkpoint_at_s: 0.2,
            ..Self::full()
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        plan.capture_runs = asked.runs.unwrap_or(plan.capture_runs).max(1);
        if let Some(seconds) = asked.seconds {
            let share = seconds / plan.run_s;
            plan.checkpoint_at_s *= share;
            plan.large_run_s *= share;
            plan.run_s = seconds;
        }
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        let scale = plan.population(plan.warehouses).scale;
        let first = Scale { ring: scale.customers, history: 10 * scale.customers, ..scale };
        result.parameter("data_bytes", data_bytes(&first));
        result.parameter("data_per_last_level_cache", result.per_cache(data_bytes(&first)));
        result.parameter("paced_bytes_per_s", PAPER_PACE_BYTES_PER_S);
        for part in Self::PARTS.iter().filter(|part| bench.context.wants(part)) {
            result.in_part(part, |result| match *part {
                "rest" => at_rest(bench, plan, result),
                "capture" => {
                    let size = Size { warehouses: plan.warehouses, run_s: plan.run_s };
                    with_checkpoint(bench, plan, (&captures(false), size), result)
                }
                _ => {
                    let (warehouses, run_s) = (plan.large_warehouses, plan.large_run_s);
                    let size = Size { warehouses, run_s };
                    with_checkpoint(bench, plan, (&captures(true), size), result)
                }
            })?;
        }
        Ok(())
    }
}

/// Opens a row on a fresh directory and loads it.
fn loaded(
    bench: &Harness<'_>,
    name: &str,
    row: Row,
    pace: Option<u64>,
    population: &Arc<Population>,
) -> LabResult<(TpccRecords, std::path::PathBuf)> {
    let name: String = name.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
    let dir = bench.context.fresh_dir(&format!("tpcc-{name}"))?;
    bench.context.note(format!("loading {} warehouses into {name}", population.scale.warehouses));
    let subject = TpccRecords::open(row, population, &dir, pace)?;
    subject.load()?;
    Ok((subject, dir))
}

fn drive(subject: &TpccRecords, drive: &Drive) -> LabResult<Outcome> {
    let client = |worker| subject.client(drive.workers, worker, drive.seed);
    transactions::run_clients(subject, drive, &client)
}

/// Throughput without checkpoints.
fn at_rest(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    if bench.children {
        crash::check_rows(bench.context, 2, plan.seed, result)?;
    } else {
        result.note("Recovery was not checked in this run.");
    }
    result.note(SILO_NOTE);
    result.note(CONTRADICTION);
    let micro = micro_at_rest(bench, plan)?;
    let population = plan.population(plan.rest_warehouses);
    let rows = at_rest_rows();
    let (mut table_rows, mut figures) = (Vec::new(), Vec::new());
    for (&workers, &micro) in plan.rest_workers.iter().zip(&micro) {
        let mut beds = Vec::new();
        for row in &rows {
            beds.push(loaded(bench, row.name, *row, None, &population)?);
        }
        let mut measured: Vec<Vec<Outcome>> = rows.iter().map(|_| Vec::new()).collect();
        for run in 0..plan.runs {
            for ((subject, _), outcomes) in beds.iter().zip(&mut measured) {
                outcomes.push(drive(subject, &plan.drive(workers, plan.rest_s, run))?);
            }
        }
        for (subject, dir) in beds {
            subject.check()?;
            drop(subject);
            sys::remove_dir_all(&dir)?;
        }
        rest_claims((workers, micro), &rows, &measured, result);
        for (row, runs) in rows.iter().zip(&measured) {
            let (name, per_s) = (format!("{}, {workers} w", row.name), rate(runs));
            bench.context.note(format!("at rest: {name}: {per_s:.0} txn/s"));
            figures.push((name, runs.iter().map(Outcome::rate).collect::<Vec<_>>()));
            table_rows.push(vec![
                row.name.to_owned(),
                workers.to_string(),
                grouped(per_s as u64),
                format!("{:.3}", per_s / rate(&measured[0])),
            ]);
        }
    }
    rest_figures(plan, figures, table_rows, result);
    Ok(())
}

/// Throughput of calc ÷ that of zigzag in the microbenchmark at rest, by the number of workers. As with TPC-C,
/// the tables are fresh.
fn micro_at_rest(bench: &Harness<'_>, plan: &Plan) -> LabResult<Vec<f64>> {
    let records = plan.micro_records;
    let mut beds = Vec::new();
    for name in [CALC_UNPACED, ZIGZAG_UNPACED] {
        beds.push(bench.open_loaded(records::row(name), records, "none")?);
    }
    let mut ratios = Vec::new();
    for &workers in &plan.rest_workers {
        let mut rates = [Vec::new(), Vec::new()];
        for run in 0..plan.runs {
            let seed = plan.seed + run as u64;
            let drive = Drive { workers, seconds: plan.rest_s, seed, ..Drive::new(records) };
            for (bed, rates) in beds.iter().zip(&mut rates) {
                rates.push(transactions::run(&*bed.engine, &drive)?.rate());
            }
        }
        let ratio = median(&rates[0]) / median(&rates[1]);
        bench
            .context
            .note(format!("microbenchmark at rest, {workers} w: calc ÷ zigzag {ratio:.3}"));
        ratios.push(ratio);
    }
    for bed in beds {
        bed.clear()?;
    }
    Ok(ratios)
}

fn rest_figures(
    plan: &Plan,
    figures: Vec<(String, Vec<f64>)>,
    table_rows: Vec<Vec<String>>,
    result: &mut ExperimentResult,
) {
    result.figures.push(Figure {
        title: "Throughput at rest".into(),
        caption: format!(
            "{} warehouses, by row and number of workers (w); {}.",
            plan.rest_warehouses,
            spread_of(plan.runs)
        ),
        y_label: "transactions/s".into(),
        bars: bars(figures),
        ..Figure::default()
    });
    result.tables.push(Table {
        title: "At rest".into(),
        columns: ["row", "workers", "txn/s", "÷ none"].map(String::from).to_vec(),
        rows: table_rows,
        ..Table::default()
    });
}

const AT_REST: ClaimRow = ClaimRow::new("TPC-C throughput at rest", SOURCE, Bound::AtLeast(0.98))
    .between("calc", "none")
    .paper(Paper::words("almost no overhead at rest"));
const LIKE_SILO: ClaimRow = ClaimRow::new("TPC-C throughput", "Stillpoint", Bound::AtLeast(1.5));
const LOST: ClaimRow = ClaimRow::new("TPC-C transactions lost", SOURCE, Bound::AtMost(0.6))
    .paper(Paper::words("CALC loses least of all"))
    .goal(Bound::AtMost(0.25));
/// The microbenchmark's claim has the same bound.
const LOST_BESIDE_ZIGZAG: ClaimRow =
    LOST.paper(Paper::words("more than the microbenchmark's \"almost 40 %\" fewer"));
const ZIGZAG_AT_REST: ClaimRow =
    ClaimRow::new("TPC-C throughput at rest", SOURCE, Bound::AtLeast(1.0))
        .between("calc", "zigzag")
        .paper(Paper::words("very similar to the microbenchmark, where calc is ahead of zigzag"));
/// Zigzag's writes cost at rest too, and a NewOrder has more of them.
const ZIGZAG_BY_LOAD: ClaimRow =
    ClaimRow::new("calc's throughput at rest ÷ zigzag's", SOURCE, Bound::AtLeast(1.0))
        .between("TPC-C", "microbenchmark")
        .paper(Paper::words("zigzag does worse beside CALC than in the microbenchmark"));
const KEPT_IN_CAPTURE: ClaimRow = ClaimRow::new(
    "TPC-C: calc, paced: throughput kept inside the capture window",
    SOURCE,
    Bound::AtLeast(0.88),
)
.paper(Paper::ratio("very similar to the microbenchmark, where 10 % are lost", 0.9));
const WORST_WINDOW: ClaimRow =
    ClaimRow::new("TPC-C: worst 100 ms window", "Stillpoint", Bound::AtLeast(0.55))
        .between("calc, paced", "baseline's worst")
        .goal(Bound::AtLeast(0.70));

fn rest_claims(
    (workers, micro): (usize, f64),
    rows: &[Row],
    measured: &[Vec<Outcome>],
    result: &mut ExperimentResult,
) {
    let rates = |name: &str| {
        let at = rows.iter().position(|row| row.name == name);
        at.map_or(&[][..], |at| &measured[at]).iter().map(Outcome::rate)
    };
    let pairs = rates("calc").zip(measured[0].iter().map(Outcome::rate));
    let of_baseline: Vec<f64> = pairs.map(|(calc, none)| calc / none).collect();
    let at = format!("workers: {workers}");
    result.claims.push(AT_REST.claim(&at).measured_runs(&of_baseline));
    let pairs = rates("calc").zip(rates("zigzag"));
    let beside_zigzag: Vec<f64> = pairs.map(|(calc, zigzag)| calc / zigzag).collect();
    result.claims.push(ZIGZAG_AT_REST.claim(&at).measured_runs(&beside_zigzag));
    let by_load: Vec<f64> = beside_zigzag.iter().map(|ratio| ratio / micro).collect();
    result.claims.push(ZIGZAG_BY_LOAD.claim(&at).measured_runs(&by_load));
    let silo = SILO.iter().find(|silo| silo.0 == workers);
    for name in BESIDE_SILO {
        let Some((_, silo)) = silo else { continue };
        let ratios: Vec<f64> = rates(name).map(|rate| rate / (silo * 1e3)).collect();
        let silo =
            format!("Silo's {silo} k transactions/s, measured once on the project's first machine");
        let claim = LIKE_SILO.claim_of((name, &silo), &at);
        result.claims.push(claim.measured_runs(&ratios));
    }
}

/// The size of a database, and the seconds of a run with a checkpoint on it.
#[derive(Clone, Copy, Debug)]
struct Size {
    warehouses: usize,
    run_s: f64,
}

impl Size {
    /// Estimate of the memory that a row needs: its copies of the data, of which a run adds a half.
    fn memory_bytes(&self, plan: &Plan, row: &Captured) -> u64 {
        let scale = plan.population(self.warehouses).scale;
        let first = Scale { ring: scale.customers, history: 10 * scale.customers, ..scale };
        let copies = records::row(row.name).copies;
        data_bytes(&first) / 2 * (copies + 2)
    }
}

/// One checkpoint under saturated workers.
fn with_checkpoint(
    bench: &Harness<'_>,
    plan: &Plan,
    (captures, size): (&[Captured], Size),
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let population = plan.population(size.warehouses);
    let fits = |row: &&Captured| size.memory_bytes(plan, row) <= available_bytes() / 10 * 9;
    let mut left_out = Vec::new();
    let mut rows: Vec<(&Captured, Vec<Outcome>)> = Vec::new();
    for capture in captures {
        if fits(&capture) {
            rows.push((capture, Vec::new()));
        } else {
            left_out.push(capture.name);
        }
    }
    for run in 0..plan.capture_runs {
        for (capture, outcomes) in &mut rows {
            if left_out.contains(&capture.name) {
                continue;
            }
            match one(bench, plan, (**capture, size, run), &population) {
                // The faster the machine, the more orders.
                Err(error) if error.is_out_of_memory() => left_out.push(capture.name),
                outcome => outcomes.push(outcome?),
            }
        }
    }
    rows.retain(|(capture, _)| !left_out.contains(&capture.name));
    for name in left_out {
        result.note(format!("{name} was left out with {} warehouses: no room.", size.warehouses));
    }
    let rows: Vec<(&str, &[Outcome])> =
        rows.iter().map(|(capture, runs)| (capture.name, runs.as_slice())).collect();
    report(plan, size, &rows, result);
    Ok(())
}

/// Claims and figures, if the baseline is the first row. It adds most orders, so it may be left out.
fn report(plan: &Plan, size: Size, rows: &[(&str, &[Outcome])], result: &mut ExperimentResult) {
    if rows.first().is_some_and(|row| row.0 == BASELINE) {
        capture_claims(size, rows, result);
        capture_figures(plan, size, rows, result);
    } else {
        let warehouses = size.warehouses;
        result.note(format!("Without {BASELINE}, nothing is claimed of {warehouses} warehouses."));
    }
}

/// One run with a checkpoint. Orders make a database grow, so each run begins with a fresh one. What it
/// leaves is recovered from the checkpoint.
fn one(
    bench: &Harness<'_>,
    plan: &Plan,
    (Captured { name, row, pace_bytes_per_s }, size, run): (Captured, Size, usize),
    population: &Arc<Population>,
) -> LabResult<Outcome> {
    let (subject, dir) = loaded(bench, name, row, pace_bytes_per_s, population)?;
    let mut asked = plan.drive(plan.workers, size.run_s, run);
    if row.takes_checkpoints {
        asked.checkpoints_at_s = vec![plan.checkpoint_at_s];
    }
    let outcome = drive(&subject, &asked)?;
    subject.check()?;
    let (rate, retries) = (outcome.rate(), subject.retries());
    drop(subject);
    let mut recovered = String::new();
    if row.takes_checkpoints {
        let again = TpccRecords::open(row, population, &dir, pace_bytes_per_s)?;
        again.check()?;
        recovered = format!(", {} recovered", again.committed()?);
    }
    bench.context.note(format!("{name}: {rate:.0} txn/s, {retries} asked again{recovered}"));
    sys::remove_dir_all(&dir)?;
    Ok(outcome)
}

/// Throughput over time, transactions lost, and the table.
fn capture_figures(
    plan: &Plan,
    size: Size,
    rows: &[(&str, &[Outcome])],
    result: &mut ExperimentResult,
) {
    let of = format!("{} warehouses", size.warehouses);
    time_line(
        &format!("Throughput over time, {of}"),
        "The first run of each row; shaded: its checkpoint. The database grows meanwhile. The paper: as \
         the microbenchmark, and zigzag does worse beside calc.",
        rows,
        result,
    );
    let over = |row: usize, measure| over_baseline(rows[0].1, rows[row].1, measure);
    result.figures.push(Figure {
        title: format!("Transactions lost, {of}"),
        caption: format!(
            "Area of the baseline minus area of the run, {:.0} s with one checkpoint; {}. The paper: \
             calc loses least of all.",
            size.run_s,
            spread_of(plan.capture_runs)
        ),
        y_label: "transactions lost".into(),
        bars: bars(
            (1..rows.len()).map(|row| (rows[row].0.to_owned(), over(row, lost_transactions))),
        ),
        ..Figure::default()
    });
    let table_rows = rows.iter().enumerate().map(|(row, (name, runs))| {
        let figure = |measure, digits: usize| {
            let value = median(&over(row, measure));
            if row == 0 { "—".to_owned() } else { format!("{value:.digits$}") }
        };
        vec![
            (*name).to_owned(),
            grouped(rate(runs) as u64),
            figure(|_, run| capture_seconds(run), 2),
            figure(capture_loss_percent, 1),
            figure(lost_transactions, 0),
            figure(worst_window_ratio, 2),
            figure(checkpoint_cpu_s, 2),
        ]
    });
    result.tables.push(Table {
        title: format!("With one checkpoint, {of}"),
        columns: [
            "row",
            "txn/s",
            "capture s",
            "lost in capture %",
            "lost",
            "worst window ÷ none's",
            "checkpoint CPU s",
        ]
        .map(String::from)
        .to_vec(),
        rows: table_rows.collect(),
        ..Table::default()
    });
}

fn capture_claims(size: Size, rows: &[(&str, &[Outcome])], result: &mut ExperimentResult) {
    let over = |name: &str, measure| {
        let runs = rows.iter().find(|row| row.0 == name).map_or(&[][..], |row| row.1);
        over_baseline(rows[0].1, runs, measure)
    };
    let of = format!("{} warehouses", size.warehouses);
    let is_there = |name: &str| rows.iter().any(|row| row.0 == name);
    for (calc, other, scheme, mode, row) in [
        (CALC_PACED, NAIVE_PACED, "naive", "paced", LOST),
        (CALC_UNPACED, NAIVE_UNPACED, "naive", "unpaced", LOST),
        (CALC_PACED, ZIGZAG_PACED, "zigzag", "paced", LOST_BESIDE_ZIGZAG),
        (CALC_PACED, PING_PONG_PACED, "ping-pong", "paced", LOST),
    ] {
        if !is_there(other) {
            continue;
        }
        let lost = |name| median(&over(name, lost_share));
        let ratio = loss_ratio(lost(calc), lost(other));
        let claim = row.claim_of(("calc", scheme), &format!("{mode}, {of}"));
        result.claims.push(claim.measured(ratio));
    }
    let kept = over(CALC_PACED, capture_kept);
    result.claims.push(KEPT_IN_CAPTURE.claim(&of).measured_runs(&kept));
    let worst = over(CALC_PACED, worst_window_ratio);
    result.claims.push(WORST_WINDOW.claim(&of).measured_runs(&worst));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::Capture;
    use crate::drivers::transactions::tests::Toy;
    use crate::experiments::run_plan;
    use crate::report::result::Agreement;

    #[test]
    fn the_quick_mode_measures_every_claim() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let bench = Harness { context: &context, open: &Toy::open, children: false };
        let result = run_plan::<CalcFig7>(&bench, &CalcFig7::quick())?;
        let unmeasured: Vec<&str> = (result.claims.iter().filter(|c| c.measured.is_none()))
            .map(|c| c.claim.as_str())
            // If naive lost nothing, the claim has no denominator.
            .filter(|claim| !claim.contains("transactions lost: calc ÷"))
            .collect();
        assert_eq!((unmeasured, result.claims.len()), (Vec::new(), 2 * 5 + 6 + 5));
        let of = |text: &str| result.claims.iter().filter(|it| it.claim.contains(text)).count();
        assert_eq!(of("zigzag's: TPC-C ÷ microbenchmark"), 2);
        assert_eq!(of("calc ÷ Silo's 65 k transactions/s, measured once"), 1);
        let notes = |text| result.notes.iter().any(|it| it.part == "rest" && it.text == text);
        assert!(notes(SILO_NOTE) && notes(CONTRADICTION), "{:?}", result.notes);
        assert_eq!((result.figures.len(), result.tables.len()), (5, 3));
        assert_eq!(result.tables[0].rows.len(), 2 * at_rest_rows().len());
        assert_eq!(result.tables[1].rows.len(), captures(false).len());
        assert_eq!(result.tables[2].rows.len(), captures(true).len());
        Ok(())
    }

    const SIZE: Size = Size { warehouses: 2, run_s: 0.1 };

    /// Runs of one window.
    fn runs<const N: usize>(counts: [u64; N]) -> Vec<Outcome> {
        let run = |count| {
            let mut outcome = Outcome { seconds: 0.1, ..Outcome::default() };
            outcome.windows.add(0, count);
            outcome
        };
        counts.map(run).to_vec()
    }

    fn result() -> ExperimentResult {
        let context =
            Context::new("unused".as_ref(), true, "none".into(), Box::new(std::io::sink()));
        context.result("toy", "a toy", "none")
    }

    #[test]
    fn without_the_baseline_nothing_is_claimed() {
        let run = runs([900]);
        let with: [(&str, &[Outcome]); 2] = [(BASELINE, &run), (CALC_PACED, &run)];
        for rows in [&with[1..], &[]] {
            let mut result = result();
            report(&CalcFig7::quick(), SIZE, rows, &mut result);
            assert!(result.claims.is_empty() && result.figures.is_empty(), "{:?}", result.claims);
            assert_eq!(result.notes[0].text, "Without none, nothing is claimed of 2 warehouses.");
        }
        let mut result = result();
        report(&CalcFig7::quick(), SIZE, &with, &mut result);
        assert_eq!((result.claims.len(), result.notes.len(), result.tables.len()), (2, 0, 1));
    }

    #[test]
    fn losses_are_medians_of_shares() {
        let (none, calc, naive) =
            (runs([1000, 1000, 1000]), runs([900, 800, 600]), runs([600, 500, 900]));
        let rows: [(&str, &[Outcome]); 3] =
            [(BASELINE, &none), (CALC_PACED, &calc), (NAIVE_PACED, &naive)];
        let mut result = result();
        capture_claims(SIZE, &rows, &mut result);
        let lost = result.claims.iter().find(|it| it.claim.contains("lost: calc ÷ naive, paced"));
        let measured = lost.and_then(|it| it.measured).expect("a ratio");
        assert!((measured - 0.2 / 0.4).abs() < 1e-9, "{measured}");
    }

    #[test]
    fn zigzag_is_compared_with_its_microbenchmark() {
        let rows = at_rest_rows();
        let measured = [runs([1000]), runs([900]), runs([900]), runs([450]), runs([900])];
        let mut result = result();
        rest_claims((1, 1.6), &rows, &measured, &mut result);
        let by_load = result.claims.iter().find(|it| it.claim.contains("microbenchmark"));
        let measured = by_load.and_then(|it| it.measured).expect("a ratio");
        assert!((measured - 2.0 / 1.6).abs() < 1e-9, "{measured}");
    }

    #[test]
    fn what_a_checkpoint_leaves_is_a_ratio_that_the_report_can_judge() {
        let (none, mut calc) = (runs([1000]), runs([771]));
        calc[0].captures.push(Capture { to_s: 0.1, ..Capture::default() });
        let mut result = result();
        capture_claims(SIZE, &[(BASELINE, &none), (CALC_PACED, &calc)], &mut result);
        let kept = result.claims.iter().find(|it| it.claim.contains("kept")).expect("a claim");
        let measured = kept.measured.expect("a ratio");
        assert!((measured - 0.771).abs() < 1e-9 && kept.met == Some(false), "{kept:?}");
        assert_eq!(Agreement::of(kept), Some(Agreement::Weaker));
    }
}

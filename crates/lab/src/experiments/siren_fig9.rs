//! `siren-fig9`: transactions of five reads or five updates beside checkpoints (Figure 9 of the paper).
//! SIREN with a redo log stands against fuzzy checkpoints with an undo/redo log.
//!
//! Both run on the same store. The rival changes pages in place, also those that a checkpoint copies,
//! and logs the before-image of each update. The paper never built the rival's recovery; neither do we.
//!
//! The part `paced` has a disk of the paper's rate, which log and checkpoints share. The part `unpaced` has
//! the machine's disk as it is.

use serde::Serialize;
use stillpoint_siren::{Logging, Removes};

use crate::context::Context;
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::measure::stats::median;
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, Claim, ExperimentResult, Figure, Series, Table};
use crate::subjects::siren::{ClientRun, SirenStore, Stored};
use crate::sys;

const SOURCE: &str = "SIREN §5, Figure 9";
/// The compared forms, with their names in figures.
const FORMS: [(&str, Removes); 2] =
    [("siren-semi-fuzzy", Removes::ToPages), ("fuzzy, undo/redo", Removes::AtOnce)];

/// The amount of work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Tuples of 300 bytes.
    pub(crate) tuples: u64,
    /// Numbers of clients.
    pub(crate) clients: Vec<usize>,
    /// Length of a run.
    pub(crate) run_s: f64,
    /// Runs of each form, in turn.
    pub(crate) runs: usize,
    /// The rate of the paced disk.
    pub(crate) disk_bytes_per_s: u64,
    /// Log at which the next checkpoint begins.
    pub(crate) checkpoint_log_bytes: u64,
}

/// The experiment.
pub(crate) struct SirenFig9;

impl Experiment for SirenFig9 {
    const ID: &'static str = "siren-fig9";
    const TITLE: &'static str = "SIREN against fuzzy checkpoints with an undo/redo log";
    const PAPER: &'static str = "SIREN, ICDE 2006, Figure 9";
    const PARTS: &'static [&'static str] = &["paced", "unpaced"];
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            tuples: 1_000_000,
            clients: vec![1, 5, 20],
            run_s: 5.0,
            runs: 3,
            disk_bytes_per_s: 30_000_000,
            checkpoint_log_bytes: 16 << 20,
        }
    }

    fn quick() -> Plan {
        Plan {
            tuples: 20_000,
            clients: vec![2],
            run_s: 0.3,
            runs: 1,
            disk_bytes_per_s: 30_000_000,
            checkpoint_log_bytes: 1 << 20,
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        plan.run_s = asked.seconds.unwrap_or(plan.run_s);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        for (part, rate) in [("paced", plan.disk_bytes_per_s), ("unpaced", 0)] {
            if bench.context.wants(part) {
                let disk = TestedDisk { part, rate };
                result.in_part(part, |result| compare(bench, plan, disk, result))?;
            }
        }
        Ok(())
    }
}

/// A disk of the experiment: its part, and its rate in bytes per second, 0 for the machine's own.
#[derive(Clone, Copy)]
struct TestedDisk {
    part: &'static str,
    rate: u64,
}

/// Compares both forms on a disk, under all logs.
fn compare(
    bench: &Harness<'_>,
    plan: &Plan,
    disk: TestedDisk,
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let mut table = Table {
        title: format!("Transactions of five updates, {}", disk.part),
        columns: [
            "log",
            "form",
            "clients",
            "txn/s",
            "log MB",
            "removes MB",
            "removes/update",
            "device MB",
            "checkpoints",
        ]
        .map(String::from)
        .to_vec(),
        ..Table::default()
    };
    for logging in [Logging::None, Logging::Relaxed, Logging::Strict] {
        let mut runs: Vec<(usize, usize, ClientRun)> = Vec::new();
        for (number, (name, removes)) in FORMS.iter().enumerate() {
            // A fuzzy checkpoint is nothing without its log.
            if logging == Logging::None && *removes == Removes::AtOnce {
                continue;
            }
            let store = open(bench, plan, disk, (name, *removes, logging))?;
            for &clients in &plan.clients {
                for seed in 1..=plan.runs as u64 {
                    let run = store.store.run_clients(clients, plan.run_s, true, seed)?;
                    let rate = grouped(run.transactions_per_s as u64);
                    bench.context.note(format!("{clients} clients, {}: {rate} txn/s", disk.part));
                    table.rows.push(row(logging, name, clients, &run));
                    runs.push((number, clients, run));
                }
            }
            let reads_s = plan.run_s.min(1.0);
            let reads = store.store.run_clients(plan.clients[0], reads_s, false, 1)?;
            result.parameter(
                &format!("reads_per_s {name} {} {}", log_name(logging), disk.part),
                reads.transactions_per_s * 5.0,
            );
            drop(store.store);
            sys::remove_dir_all(&store.dir)?;
        }
        draw((logging, disk), plan, &runs, result);
        if logging != Logging::None {
            claims((logging, disk), plan, &runs, result);
        }
    }
    result.tables.push(table);
    result.note("The rival has no recovery, as in the paper: only its work at run time is done.");
    Ok(())
}

/// A store with its directory.
struct Opened {
    store: SirenStore,
    dir: std::path::PathBuf,
}

fn open(
    bench: &Harness<'_>,
    plan: &Plan,
    disk: TestedDisk,
    (name, removes, logging): (&str, Removes, Logging),
) -> LabResult<Opened> {
    let dir = bench.context.fresh_dir(&format!("fig9-{}", log_name(logging)))?;
    bench.context.note(format!(
        "loading {} tuples, {name}, log {}",
        plan.tuples,
        log_name(logging)
    ));
    // The rival logs twice as much. Both take as many checkpoints.
    let checkpoint_log_bytes = match removes {
        Removes::AtOnce => plan.checkpoint_log_bytes * 2,
        _ => plan.checkpoint_log_bytes,
    };
    let (tuples, disk_bytes_per_s) = (plan.tuples, disk.rate);
    let stored = Stored { tuples, removes, logging, disk_bytes_per_s, checkpoint_log_bytes };
    let store = SirenStore::load(&dir, stored)?;
    Ok(Opened { store, dir })
}

fn log_name(logging: Logging) -> &'static str {
    match logging {
        Logging::None => "none",
        Logging::Relaxed => "relaxed",
        Logging::Strict => "strict",
    }
}

fn row(logging: Logging, name: &str, clients: usize, run: &ClientRun) -> Vec<String> {
    let mb = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
    vec![
        log_name(logging).to_owned(),
        name.to_owned(),
        clients.to_string(),
        grouped(run.transactions_per_s as u64),
        mb(run.log_bytes),
        mb(run.removes_bytes),
        format!("{:.2}", run.removes_per_update()),
        mb(run.device_bytes),
        run.checkpoints.to_string(),
    ]
}

/// The median of a figure of all runs of a form with so many clients.
fn of_form(
    runs: &[(usize, usize, ClientRun)],
    (form, clients): (usize, usize),
    figure: impl Fn(&ClientRun) -> f64,
) -> f64 {
    let of = runs.iter().filter(|run| (run.0, run.1) == (form, clients));
    median(&of.map(|run| figure(&run.2)).collect::<Vec<f64>>())
}

fn claims(
    (logging, disk): (Logging, TestedDisk),
    plan: &Plan,
    runs: &[(usize, usize, ClientRun)],
    result: &mut ExperimentResult,
) {
    let clients = plan.clients.last().copied().unwrap_or(1);
    let at = format!("{} log, {clients} clients, {}", log_name(logging), disk.part);
    let ratio = |figure: &dyn Fn(&ClientRun) -> f64| {
        of_form(runs, (0, clients), figure) / of_form(runs, (1, clients), figure)
    };
    let (words, paper) = match logging {
        Logging::Strict => ("30 % more", 1.3),
        _ => ("25 % more", 1.25),
    };
    let claim = format!("transactions per second ÷ fuzzy undo/redo, {at}");
    let claim = Claim::new(claim, SOURCE, Bound::AtLeast(1.2)).paper_ratio(words, paper);
    result.claims.push(claim.measured_runs(&[ratio(&|run| run.transactions_per_s)]));
    // As the paper counts: log, and tuples of pending removes.
    let claim = format!("log and pending removes per transaction ÷ fuzzy undo/redo, {at}");
    let claim = Claim::new(claim, SOURCE, Bound::AtMost(0.7)).paper_ratio("127 % of 200 %", 0.635);
    let bytes = |run: &ClientRun| {
        (run.log_bytes + run.removes_bytes) as f64 / run.transactions.max(1) as f64
    };
    result.claims.push(claim.measured_runs(&[ratio(&bytes)]));
    let log = ratio(&|run| run.log_bytes as f64 / run.transactions.max(1) as f64);
    let removes = of_form(runs, (0, clients), ClientRun::removes_per_update);
    result.note(format!(
        "{at}: the log alone is {log:.3} of the rival's. {removes:.2} pending removes an update add the rest; \
         the paper's run had 0.27. An update adds one if it is the first of its tuple on a page that waits for \
         its copy. So their number grows with the time in which a checkpoint is under way."
    ));
}

fn draw(
    (logging, disk): (Logging, TestedDisk),
    plan: &Plan,
    runs: &[(usize, usize, ClientRun)],
    result: &mut ExperimentResult,
) {
    let mut names = Vec::new();
    for (number, (name, _)) in FORMS.iter().enumerate() {
        if runs.iter().all(|run| run.0 != number) {
            continue;
        }
        let series = format!("{name}, log {}, {}", log_name(logging), disk.part);
        let rate = |clients| of_form(runs, (number, clients), |run| run.transactions_per_s);
        result.series.push(Series {
            name: series.clone(),
            label: (*name).to_owned(),
            x_unit: "clients".into(),
            y_unit: "txn/s".into(),
            points: plan.clients.iter().map(|&at| [at as f64, rate(at)]).collect(),
            ..Series::default()
        });
        names.push(series);
    }
    result.figures.push(Figure {
        title: format!("Transactions of five updates, log {}, {}", log_name(logging), disk.part),
        caption: "Clients run in the process of the store.".into(),
        x_label: "clients".into(),
        y_label: "transactions per second".into(),
        series: names,
        ..Figure::default()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::tests::Toy;
    use crate::error::LabError;
    use crate::experiments::run_plan;

    #[test]
    fn both_forms_run_under_all_logs() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let bench = Harness { context: &context, open: &Toy::open, children: false };
        let plan = Plan { tuples: 3_000, ..SirenFig9::quick() };
        let result = run_plan::<SirenFig9>(&bench, &plan)?;
        assert_eq!((result.claims.len(), result.figures.len()), (8, 6));
        assert!(result.tables.iter().all(|table| table.rows.len() == 5), "{:?}", result.tables);
        assert!(result.claims.iter().all(|claim| claim.measured.is_some_and(|it| it > 0.0)));
        Ok(())
    }
}

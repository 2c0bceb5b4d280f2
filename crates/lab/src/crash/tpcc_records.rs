//! The crash check of TPC-C in the records of the engine. A child runs transactions and takes one
//! checkpoint after the other. The lab kills the child in the middle of a checkpoint. The recovered
//! tables must keep all consistency conditions and hold everything that the engine promised.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use stillpoint::Durability;

use crate::context::Context;
use crate::crash::records::{Reported, checkpoints};
use crate::crash::{Killable, kill_and_check, words};
use crate::error::{LabError, LabResult};
use crate::report::result::ExperimentResult;
use crate::subjects::tpcc_records::{ROWS, Row, TpccRecords};
use crate::workloads::tpcc::load::Population;
use crate::workloads::tpcc::schema::Scale;

/// Workers of a child.
const WORKERS: usize = 2;
/// Transactions that a worker hands over together.
const BATCH: usize = 4;

/// Arguments of the child.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Child {
    /// Name of the row of subjects.
    #[arg(long)]
    pub(crate) row: String,
    /// Warehouses of the small database.
    #[arg(long)]
    pub(crate) warehouses: usize,
    /// Seed of the first rows and of the transactions.
    #[arg(long)]
    pub(crate) seed: u64,
    /// Directory of the database.
    #[arg(long)]
    pub(crate) dir: PathBuf,
}

fn population(warehouses: usize, seed: u64) -> Arc<Population> {
    Arc::new(Population::new(Scale::small(warehouses).unbounded(), seed))
}

/// The child's work until it is killed. The child prints how many orders and payments have
/// committed.
///
/// # Errors
/// When the database refuses, or the output is closed.
pub(crate) fn child(what: &Child, output: &mut (dyn Write + Send)) -> LabResult<()> {
    let row = ROWS.iter().find(|row| row.name == what.row).ok_or_else(|| LabError::Missing {
        what: format!("there is no row {:?}", what.row),
        cure: format!("choose one of {:?}", ROWS.iter().map(|row| row.name).collect::<Vec<_>>()),
    })?;
    let subject =
        TpccRecords::open(*row, &population(what.warehouses, what.seed), &what.dir, None)?;
    subject.load()?;
    let (subject, stop, committed) = (&subject, AtomicBool::new(false), AtomicU64::new(0));
    let (stop, committed) = (&stop, &committed);
    let mut jobs: Vec<Box<dyn FnOnce() -> LabResult<()> + Send + '_>> = Vec::new();
    for worker in 0..WORKERS {
        jobs.push(Box::new(move || {
            let worked = work(subject, worker, what.seed, stop, committed);
            // Release pairs with the Acquire of `work` and `checkpoints`.
            stop.store(true, Ordering::Release);
            worked
        }));
    }
    jobs.push(Box::new(move || {
        let ended = checkpoints(subject, stop, committed, output);
        stop.store(true, Ordering::Release);
        ended
    }));
    let done = stillpoint_io::in_parallel("crash", jobs);
    done.map_err(|e| LabError::process("crash child", e))?.into_iter().collect()
}

fn work(
    subject: &TpccRecords,
    worker: usize,
    seed: u64,
    stop: &AtomicBool,
    committed: &AtomicU64,
) -> LabResult<()> {
    let mut client = subject.client(WORKERS, worker, seed)?;
    // Acquire pairs with the Release of the thread that ends the run.
    while !stop.load(Ordering::Acquire) {
        let done = client.run(BATCH)?;
        // AcqRel pairs with the Acquire of the thread that begins checkpoints: every counted
        // transaction has committed.
        committed.fetch_add(done as u64, Ordering::AcqRel);
    }
    Ok(())
}

/// Kills a child of each row that recovers, and notes the recovered transactions in the result.
///
/// # Errors
/// When a child ends by itself, or its recovered tables are wrong. Then no figure counts.
pub(crate) fn check_rows(
    context: &Context,
    warehouses: usize,
    seed: u64,
    result: &mut ExperimentResult,
) -> LabResult<()> {
    for row in ROWS.iter().copied().filter(|row| row.takes_checkpoints) {
        let killed = Killed { row, warehouses, seed };
        let (committed, promised) = kill_and_check(context, &killed)?;
        let note = format!(
            "{}: killed with a checkpoint under way, recovered {committed} orders and payments \
             ({promised} were promised); all consistency conditions hold.",
            row.name
        );
        context.note(&note);
        result.note(note);
    }
    Ok(())
}

struct Killed {
    row: Row,
    warehouses: usize,
    seed: u64,
}

impl Killable for Killed {
    type Reported = Reported;
    /// Recovered orders and payments, and promised ones.
    type Recovered = (u64, u64);

    fn name(&self) -> String {
        "tpcc-records".to_owned()
    }

    fn arguments(&self) -> Vec<String> {
        words([
            "tpcc-records",
            "--row",
            self.row.name,
            "--warehouses",
            &self.warehouses.to_string(),
            "--seed",
            &self.seed.to_string(),
        ])
    }

    fn hear(&self, heard: &mut Reported, line: &str) -> Option<bool> {
        heard.line(line)?;
        let is_enough = line == "begun" && heard.enough(self.row.journal);
        if is_enough {
            heard.promised = match self.row.durability {
                Durability::Strict => heard.last(),
                _ => heard.promised(self.row.journal),
            };
        }
        Some(is_enough)
    }

    fn linger(&self) -> Duration {
        Duration::from_millis(20)
    }

    fn recover(&self, heard: &Reported, dir: &Path) -> LabResult<(u64, u64)> {
        let population = population(self.warehouses, self.seed);
        let subject = TpccRecords::open(self.row, &population, dir, None)?;
        subject.check()?;
        let committed = subject.committed()?;
        if committed < heard.promised {
            return Err(LabError::Engine {
                engine: self.row.name.to_owned(),
                reason: format!("{committed} commits came back, {} were promised", heard.promised),
            });
        }
        Ok((committed, heard.promised))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::tests::Lines;

    #[test]
    fn what_a_child_leaves_keeps_all_conditions() -> LabResult<()> {
        for row in ROWS.iter().copied().filter(|row| row.takes_checkpoints) {
            let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
            let killed = Killed { row, warehouses: 2, seed: 3 };
            let what =
                Child { row: row.name.into(), warehouses: 2, seed: 3, dir: dir.path().to_owned() };
            let mut output = Lines::before_closing(100);
            let error = child(&what, &mut output).expect_err("nobody listens").to_string();
            assert!(error.contains("crash child"), "{error}");
            let mut heard = Reported::default();
            for line in output.text().lines() {
                killed.hear(&mut heard, line).expect("understood");
            }
            heard.promised = heard.promised("none");
            let (committed, promised) = killed.recover(&heard, dir.path())?;
            assert!(committed >= promised, "{committed} of {promised}");
            heard.promised = u64::MAX;
            let error = killed.recover(&heard, dir.path()).expect_err("too few").to_string();
            assert!(error.contains("were promised"), "{error}");
        }
        Ok(())
    }

    #[test]
    fn strict_durability_promises_all_that_was_told() {
        let promised = |name: &str| {
            let row = *ROWS.iter().find(|row| row.name == name).expect("a row");
            let killed = Killed { row, warehouses: 1, seed: 1 };
            let mut heard = Reported::default();
            for line in ["published 10", "published 20", "committed 70", "begun"] {
                killed.hear(&mut heard, line).expect("understood");
            }
            heard.promised
        };
        assert_eq!(promised("calc"), 20);
        // The child is not killed here, so the log's last second may be missing.
        assert_eq!(promised("calc, redo strict"), 0);
    }

    #[test]
    fn an_unknown_row_is_refused_with_those_that_there_are() {
        let what = Child { row: "zzz".into(), warehouses: 1, seed: 1, dir: PathBuf::new() };
        let error = child(&what, &mut Lines::before_closing(0)).expect_err("unknown").to_string();
        assert!(error.contains("zzz") && error.contains("redo strict"), "{error}");
    }
}

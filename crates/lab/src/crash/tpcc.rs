//! The crash check of TPC-C. A child runs batches and takes one checkpoint after the other. The lab
//! kills the child in the middle of a checkpoint. The recovered database must equal an oracle's,
//! and must hold everything that the child reported as durable.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::context::Context;
use crate::crash::{Killable, kill_and_check, words};
use crate::error::{LabError, LabResult};
use crate::measure::outcome::Recovery;
use crate::report::result::ExperimentResult;
use crate::subjects::tpcc::{Engine, Job, ROWS, Row, recovers, with};
use crate::workloads::tpcc::input::Trace;
use crate::workloads::tpcc::load::Population;
use crate::workloads::tpcc::schema::Scale;

/// The database that a child works on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Database {
    /// Size of the database.
    pub(crate) scale: Scale,
    /// Transactions of the trace.
    pub(crate) trace: usize,
    /// Seed of the first rows and of the trace.
    pub(crate) seed: u64,
}

/// Arguments of the child.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Child {
    /// Name of the row of subjects.
    #[arg(long)]
    pub(crate) row: String,
    /// Number of warehouses.
    #[arg(long)]
    pub(crate) warehouses: usize,
    /// Whether the child uses the small database.
    #[arg(long)]
    pub(crate) small: bool,
    /// Transactions of the trace.
    #[arg(long)]
    pub(crate) trace: usize,
    /// Seed of the first rows and of the trace.
    #[arg(long)]
    pub(crate) seed: u64,
    /// Directory of the database.
    #[arg(long)]
    pub(crate) dir: PathBuf,
}

/// The child's work until it is killed. After each batch it prints `durable BATCHES IMAGES BUSY`.
/// BUSY is 1 while a checkpoint is under way.
///
/// # Errors
/// When the database refuses, or the output is closed.
pub(crate) fn child(what: &Child, output: &mut (dyn Write + Send)) -> LabResult<()> {
    let row = ROWS.iter().find(|row| row.name == what.row).ok_or_else(|| LabError::Missing {
        what: format!("there is no row {:?}", what.row),
        cure: format!("choose one of {:?}", ROWS.iter().map(|row| row.name).collect::<Vec<_>>()),
    })?;
    let scale = if what.small { Scale::small } else { Scale::full }(what.warehouses);
    let population = Population::new(scale, what.seed);
    let trace = Trace::new(&scale, what.seed, what.trace);
    with(*row, &population, &what.dir, &mut Endless { row: *row, trace, output }).map(drop)
}

struct Endless<'a> {
    row: Row,
    trace: Trace,
    output: &'a mut (dyn Write + Send),
}

impl Job for Endless<'_> {
    type Output = ();

    fn with(&mut self, engine: &mut dyn Engine) -> LabResult<()> {
        loop {
            engine.batch(&self.trace)?;
            let status = engine.status()?;
            if self.row.has_images && !status.is_capturing {
                engine.checkpoint()?;
            }
            // The batch before the last one is durable. The last one need not be.
            let (durable, busy) = (engine.batches() - 1, u8::from(status.is_capturing));
            let said = writeln!(self.output, "durable {durable} {} {busy}", status.images);
            said.and_then(|()| self.output.flush())
                .map_err(|e| LabError::process("standard output", e))?;
        }
    }
}

/// The last report of a child.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reported {
    durable: u64,
    images: u64,
    is_busy: bool,
}

impl Reported {
    fn of(line: &str) -> Option<Reported> {
        let mut numbers = line.strip_prefix("durable ")?.split(' ').map(str::parse::<u64>);
        let mut number = || numbers.next()?.ok();
        Some(Reported { durable: number()?, images: number()?, is_busy: number()? == 1 })
    }

    /// Whether the lab may kill the child: in the middle of a later checkpoint, or after some
    /// batches if the row takes no checkpoints.
    fn is_enough(&self, row: Row) -> bool {
        if row.has_images { self.images >= 2 && self.is_busy } else { self.durable >= 20 }
    }
}

/// Kills a child of each row, and notes the recovered batches in the result.
///
/// # Errors
/// When a child ends by itself, or its recovered database is wrong. Then no figure counts.
pub(crate) fn check_rows(
    context: &Context,
    database: &Database,
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let population = Population::new(database.scale, database.seed);
    let trace = Trace::new(&database.scale, database.seed, database.trace);
    for &row in ROWS.iter() {
        let (population, trace) = (&population, &trace);
        let killed = KilledDatabase { row, database, population, trace };
        let (recovery, heard) = kill_and_check(context, &killed)?;
        let note = format!(
            "{}: killed {}, recovered batch {} ({} was promised) in {:.2} s, equal to the oracle.",
            row.name,
            if heard.is_busy { "in the middle of a checkpoint" } else { "while it ran" },
            recovery.tick,
            heard.durable,
            recovery.seconds()
        );
        context.note(&note);
        result.note(note);
    }
    Ok(())
}

/// A database under a row.
struct KilledDatabase<'a> {
    row: Row,
    database: &'a Database,
    population: &'a Population,
    trace: &'a Trace,
}

impl Killable for KilledDatabase<'_> {
    type Reported = Reported;
    /// Recovered batches, and batches that the child reported as durable.
    type Recovered = (Recovery, Reported);

    fn name(&self) -> String {
        "tpcc".to_owned()
    }

    fn arguments(&self) -> Vec<String> {
        let Database { scale, trace, seed } = *self.database;
        let mut arguments = words([
            "tpcc",
            "--row",
            self.row.name,
            "--warehouses",
            &scale.warehouses.to_string(),
            "--trace",
            &trace.to_string(),
            "--seed",
            &seed.to_string(),
        ]);
        if scale == Scale::small(scale.warehouses) {
            arguments.push("--small".into());
        }
        arguments
    }

    fn hear(&self, heard: &mut Reported, line: &str) -> Option<bool> {
        *heard = Reported::of(line)?;
        Some(heard.is_enough(self.row))
    }

    fn linger(&self) -> Duration {
        Duration::ZERO
    }

    fn recover(&self, heard: &Reported, dir: &Path) -> LabResult<(Recovery, Reported)> {
        let KilledDatabase { row, population, trace, .. } = *self;
        Ok((recovers(row, population, trace, dir, heard.durable)?, *heard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::tests::Lines;

    #[test]
    fn what_a_child_leaves_is_recovered_and_compared() -> LabResult<()> {
        let (seed, scale) = (3, Scale::small(1));
        let (population, trace) = (Population::new(scale, seed), Trace::new(&scale, seed, 5_000));
        for name in ["ipp, merge", "aries"] {
            let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
            let what = Child {
                row: name.into(),
                warehouses: 1,
                small: true,
                trace: 5_000,
                seed,
                dir: dir.path().to_owned(),
            };
            let mut output = Lines::before_closing(30);
            let error = child(&what, &mut output).expect_err("nobody listens").to_string();
            assert!(error.contains("standard output"), "{error}");
            let said = output.text();
            let heard = said.lines().last().and_then(Reported::of).expect("lines");
            assert_eq!(heard.durable, 29, "{said}");
            let row = *ROWS.iter().find(|row| row.name == name).expect("a row");
            let recovery = recovers(row, &population, &trace, dir.path(), heard.durable)?;
            assert!(recovery.tick >= heard.durable);
            let error = recovers(row, &population, &trace, dir.path(), 1_000);
            assert!(error.expect_err("too little").to_string().contains("batch 1000 was durable"));
            let other = Population::new(scale, seed + 1);
            let error = recovers(row, &other, &trace, dir.path(), 0);
            assert!(error.expect_err("another load").to_string().contains("differs in table"));
        }
        Ok(())
    }

    #[test]
    fn an_unknown_row_is_refused_with_those_that_there_are() {
        let (row, dir) = ("zzz".to_owned(), PathBuf::new());
        let what = Child { row, warehouses: 1, small: true, trace: 1, seed: 1, dir };
        let error = child(&what, &mut Lines::before_closing(0)).expect_err("unknown").to_string();
        assert!(error.contains("zzz") && error.contains("aries"), "{error}");
    }
}

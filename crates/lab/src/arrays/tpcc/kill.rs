//! The crash check of TPC-C: a child runs batches and takes one checkpoint after the other; it is
//! killed in the middle of one, and what it leaves must be what an oracle has, nothing missing that
//! it had called durable.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::bed::{Engine, ROWS, Row, Use, recovers, with};
use super::experiments::Plan;
use super::input::Trace;
use super::load::Population;
use super::schema::Scale;
use crate::context::Context;
use crate::error::{LabError, LabResult};
use crate::process::kill_when;
use crate::result::ExperimentResult;
use crate::sys;

/// What the child is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Child {
    /// The row's name.
    #[arg(long)]
    pub row: String,
    /// Warehouses.
    #[arg(long)]
    pub warehouses: usize,
    /// The small database.
    #[arg(long)]
    pub small: bool,
    /// Transactions of the trace.
    #[arg(long)]
    pub trace: usize,
    /// Of load and trace.
    #[arg(long)]
    pub seed: u64,
    /// Where the database lies.
    #[arg(long)]
    pub dir: PathBuf,
}

/// What the child does until it is killed: says `durable BATCHES IMAGES BUSY` after each batch, BUSY
/// being 1 while a checkpoint is under way.
///
/// # Errors
/// When the database refuses, or nobody listens.
pub fn child(what: &Child, output: &mut (dyn Write + Send)) -> LabResult<()> {
    let row = ROWS.iter().find(|row| row.name == what.row).ok_or_else(|| LabError::Missing {
        what: format!("there is no row {:?}", what.row),
        cure: format!("choose one of {:?}", ROWS.map(|row| row.name)),
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

impl Use for Endless<'_> {
    type Output = ();

    fn with(&mut self, engine: &mut dyn Engine) -> LabResult<()> {
        loop {
            engine.batch(&self.trace)?;
            let status = engine.status()?;
            if self.row.has_images && !status.is_capturing {
                engine.checkpoint()?;
            }
            // The batch before is durable; the last one need not be.
            let (durable, busy) = (engine.batches() - 1, u8::from(status.is_capturing));
            let said = writeln!(self.output, "durable {durable} {} {busy}", status.images);
            said.and_then(|()| self.output.flush())
                .map_err(|e| LabError::process("standard output", e))?;
        }
    }
}

/// What a child has said last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Heard {
    durable: u64,
    images: u64,
    is_busy: bool,
}

impl Heard {
    fn of(line: &str) -> Option<Heard> {
        let mut numbers = line.strip_prefix("durable ")?.split(' ').map(str::parse::<u64>);
        let mut number = || numbers.next()?.ok();
        Some(Heard { durable: number()?, images: number()?, is_busy: number()? == 1 })
    }

    /// True in the middle of a checkpoint after some others; or after some batches, without any.
    fn is_enough(&self, row: Row) -> bool {
        if row.has_images { self.images >= 2 && self.is_busy } else { self.durable >= 20 }
    }
}

/// Kills a child of each row, and notes in the result what came back.
///
/// # Errors
/// When a child ends by itself, or what it leaves is wrong: then nothing would be a figure.
pub fn check_rows(context: &Context, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    if !plan.children {
        result.note("No process was killed in this run.");
        return Ok(());
    }
    let population = Population::new(plan.killed, plan.seed);
    let trace = Trace::new(&plan.killed, plan.seed, plan.trace);
    for row in ROWS {
        let dir = context.fresh_dir("tpcc-killed")?;
        let heard = run_and_kill(context, plan, row, &dir)?;
        let recovery = recovers(row, &population, &trace, &dir, heard.durable)?;
        sys::remove_dir_all(&dir)?;
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

fn run_and_kill(context: &Context, plan: &Plan, row: Row, dir: &PathBuf) -> LabResult<Heard> {
    let mut command = Command::new(&context.binary);
    command
        .args(["lab", "child", "tpcc", "--row", row.name])
        .args(["--warehouses", &plan.killed.warehouses.to_string()])
        .args(["--trace", &plan.trace.to_string(), "--seed", &plan.seed.to_string(), "--dir"])
        .arg(dir);
    if plan.killed == Scale::small(plan.killed.warehouses) {
        command.arg("--small");
    }
    let mut heard = Heard::default();
    kill_when(&mut command, Duration::ZERO, |text| {
        heard = Heard::of(text)?;
        Some(heard.is_enough(row))
    })?;
    Ok(heard)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::tests::Lines;

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
            let heard = said.lines().last().and_then(Heard::of).expect("lines");
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

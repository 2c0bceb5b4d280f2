//! Instructions of a transaction of TPC-C on the arrays of each scheme, counted by callgrind. A count
//! repeats exactly on any machine, so it shows what the noise of throughput hides.
//!
//! A child process runs some periods on one thread, each with a capture under way whose copier is done.
//! Callgrind counts the transactions alone: no log, no image, and not the first rows.

use std::collections::BTreeMap;
use std::process::Command;

use stillpoint_state::{Arrays, Scheme, registry};

use crate::error::{LabError, LabResult};
use crate::experiments::instructions::collected;
use crate::harness::Harness;
use crate::report::result::ExperimentResult;
use crate::subjects::arrays::failed;
use crate::subjects::tpcc::{Backend, Counted, ROWS};
use crate::workloads::tpcc::input::Trace;
use crate::workloads::tpcc::load::Population;
use crate::workloads::tpcc::memory::InCells;
use crate::workloads::tpcc::schema::{Scale, Tables};

/// Transactions of a period, from one point of consistency to the next.
const TRANSACTIONS: u64 = 500;
/// Counted periods. One more runs before them.
const PERIODS: u64 = 8;

/// Instructions of a transaction.
pub(crate) type PerScheme = BTreeMap<&'static str, f64>;

/// Counts every scheme of the rows, if valgrind is installed. Otherwise adds a note.
///
/// # Errors
/// When a child fails, or its output holds no count.
pub(crate) fn run(
    bench: &Harness<'_>,
    scale: Scale,
    seed: u64,
    result: &mut ExperimentResult,
) -> LabResult<PerScheme> {
    let is_installed = Command::new("valgrind").arg("--version").output().is_ok();
    if !bench.children || !is_installed {
        result.note("Instructions of a transaction were not counted: valgrind is not installed.");
        return Ok(PerScheme::new());
    }
    let mut counts = PerScheme::new();
    for row in ROWS.iter() {
        let Backend::State { scheme, .. } = row.backend else { continue };
        if !counts.contains_key(scheme) {
            let count = count(bench, scheme, scale, seed)?;
            bench.context.note(format!("{scheme}: {count:.0} instructions per transaction"));
            counts.insert(scheme, count);
        }
    }
    Ok(counts)
}

fn count(bench: &Harness<'_>, scheme: &str, scale: Scale, seed: u64) -> LabResult<f64> {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(["--collect-atstart=no", "--toggle-collect=*counted_tpcc*"])
        .arg(&bench.context.binary)
        .args(["lab", "child", "tpcc-instructions", "--scheme", scheme])
        .args(["--warehouses", &scale.warehouses.to_string(), "--seed", &seed.to_string()]);
    if scale == Scale::small(scale.warehouses) {
        command.arg("--small");
    }
    let line = format!("{command:?}");
    let output = command.output().map_err(|e| LabError::process(&line, e))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = collected(&text).filter(|&n| n > 0 && output.status.success());
    collected.map(|n| n as f64 / (PERIODS * TRANSACTIONS) as f64).ok_or_else(|| {
        let tail: Vec<&str> = text.lines().rev().take(8).collect();
        LabError::process(line, format!("{}: {}", output.status, tail.join(" | ")))
    })
}

/// Arguments of the child.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Child {
    /// The scheme's registered name.
    #[arg(long)]
    scheme: String,
    /// Number of warehouses.
    #[arg(long)]
    warehouses: usize,
    /// Whether the child uses the small database.
    #[arg(long)]
    small: bool,
    /// Seed of the first rows and of the trace.
    #[arg(long)]
    seed: u64,
}

/// The child's work: the first rows, and then periods of transactions.
///
/// # Errors
/// An unknown scheme, and no memory.
pub(crate) fn child(what: &Child) -> LabResult<()> {
    registry::run(&what.scheme, Periods(what)).map_err(|e| failed(&what.scheme, e))?
}

struct Periods<'a>(&'a Child);

impl registry::Program for Periods<'_> {
    type Output = LabResult<()>;

    fn run<S: Scheme>(self) -> LabResult<()> {
        let Child { scheme, warehouses, small, seed } = self.0;
        let scale = if *small { Scale::small } else { Scale::full }(*warehouses);
        let population = Population::new(scale, *seed);
        let trace = Trace::new(&scale, *seed, ((PERIODS + 1) * TRANSACTIONS) as usize);
        let mut builder = Arrays::<S>::builder();
        let tables = Tables::declare(&mut builder, &scale);
        let mut arrays = builder.build().map_err(|e| failed(scheme, e))?;
        population.fill(&mut arrays, &tables).map_err(|e| failed(scheme, e))?;
        // The first capture is full.
        if let Some(capture) = arrays.point_of_consistency() {
            capture.durable();
        }
        arrays.end_tick();
        for period in 0..=PERIODS {
            let capture = arrays.point_of_consistency();
            if let Some(capture) = &capture {
                capture.copy_over();
            }
            let actions = (period * TRANSACTIONS..).take(TRANSACTIONS as usize);
            let mut memory = InCells { cells: &mut arrays, tables: &tables };
            if period == 0 {
                Counted::run(&mut memory, &population, actions.map(|number| trace.get(number)));
            } else {
                let actions: Vec<&[u8]> = actions.map(|number| trace.get(number)).collect();
                counted_tpcc(&mut memory, &population, &actions);
            }
            if let Some(capture) = capture {
                capture.durable();
            }
            arrays.end_tick();
        }
        Ok(())
    }
}

/// The region that callgrind counts, found by this function's name.
#[inline(never)]
fn counted_tpcc<S: Scheme>(
    memory: &mut InCells<'_, S>,
    population: &Population,
    actions: &[&[u8]],
) -> Counted {
    Counted::run(memory, population, actions.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_child_runs_every_scheme() -> LabResult<()> {
        for row in ROWS.iter() {
            if let Backend::State { scheme, .. } = row.backend {
                child(&Child { scheme: scheme.into(), warehouses: 1, small: true, seed: 1 })?;
            }
        }
        Ok(())
    }
}

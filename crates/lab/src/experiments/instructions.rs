//! Instructions per transaction at rest, counted by callgrind. Counts repeat exactly, so they show
//! differences that are smaller than the noise of throughput.
//!
//! A child process runs one deterministic thread. Callgrind counts one function only, so loading
//! and background threads do not show.

use std::path::PathBuf;
use std::process::Command;

use crate::error::{LabError, LabResult};
use crate::harness::Harness;
use crate::report::result::ExperimentResult;
use crate::subjects::adapter::{LabSession, OpenEngine};
use crate::subjects::records::{Row, of_scheme, setup};
use crate::workloads::calc::{CalcTransaction, Change, Transactions};

const RECORDS: u64 = 20_000;
const TRANSACTIONS: u64 = 4_000;
const BATCH: usize = 4;

/// Instructions per transaction of each row under a journal, in the rows' order. Nothing, with a note, if
/// valgrind is not installed.
///
/// # Errors
/// When a child fails, or its output holds no count.
pub(crate) fn of_rows(
    bench: &Harness<'_>,
    rows: &[Row],
    journal: &str,
    result: &mut ExperimentResult,
) -> LabResult<Vec<f64>> {
    let installed = Command::new("valgrind").arg("--version").output().is_ok();
    if !bench.children || !installed {
        result.note("Instructions were not counted: valgrind is not installed.");
        return Ok(Vec::new());
    }
    let counted = |row: &Row| {
        let count = count(bench, *row, journal)?;
        let scheme = row.scheme;
        bench.context.note(format!("{scheme}, journal {journal}: {count:.0} instructions"));
        Ok(count)
    };
    rows.iter().map(counted).collect()
}

/// Instructions per transaction of one row.
///
/// # Errors
/// When the child fails, or its output holds no count.
fn count(bench: &Harness<'_>, row: Row, journal: &str) -> LabResult<f64> {
    let dir = bench.context.fresh_dir(&format!("instructions-{}-{journal}", row.scheme))?;
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(["--collect-atstart=no", "--toggle-collect=*counted_transactions*"])
        .arg(&bench.context.binary)
        .args(["lab", "child", "instructions", "--scheme", row.scheme])
        .args(["--journal", journal, "--dir"])
        .arg(&dir);
    let line = format!("{command:?}");
    let output = command.output().map_err(|e| LabError::process(&line, e))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = collected(&text).filter(|&n| n > 0 && output.status.success());
    collected.map(|n| n as f64 / TRANSACTIONS as f64).ok_or_else(|| {
        let tail: Vec<&str> = text.lines().rev().take(8).collect();
        LabError::process(line, format!("{}: {}", output.status, tail.join(" | ")))
    })
}

/// The number in `==7== Collected : 123`.
pub(crate) fn collected(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

/// The child's work: it loads the records, runs the same number of transactions as warm-up, then
/// the counted ones.
///
/// # Errors
/// When the engine refuses.
pub(crate) fn child(open: &OpenEngine, scheme: &str, journal: &str, dir: PathBuf) -> LabResult<()> {
    let engine = open(&setup(of_scheme(scheme)?, RECORDS, journal, dir))?;
    engine.load(RECORDS)?;
    let mut session = engine.session()?;
    let mut transactions = Transactions::new(RECORDS, 1, 0);
    let mut draw =
        || -> Vec<CalcTransaction> { (0..TRANSACTIONS).map(|_| transactions.draw()).collect() };
    let (warm_up, counted) = (draw(), draw());
    for batch in warm_up.chunks(BATCH) {
        session.run(batch, Change::Counter)?;
    }
    counted_transactions(&mut *session, &counted)
}

/// The region that callgrind counts, found by this function's name.
#[inline(never)]
fn counted_transactions(
    session: &mut dyn LabSession,
    transactions: &[CalcTransaction],
) -> LabResult<()> {
    for batch in transactions.chunks(BATCH) {
        session.run(batch, Change::Counter)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::tests::Toy;

    #[test]
    fn the_count_is_found_in_what_callgrind_says() {
        let text = "==1== Events    : Ir\n==1== Collected : 1234567\n==1==\n";
        assert_eq!(collected(text), Some(1_234_567));
        assert_eq!(collected("==1== ERROR SUMMARY: 0"), None);
    }

    #[test]
    fn the_child_runs_any_scheme_and_no_other() -> LabResult<()> {
        for row in crate::subjects::records::ROWS.iter() {
            child(&Toy::open, row.scheme, "none", "unused".into())?;
        }
        let unknown = child(&Toy::open, "magic", "none", "unused".into());
        assert!(unknown.is_err_and(|e| e.to_string().contains("magic")));
        Ok(())
    }
}

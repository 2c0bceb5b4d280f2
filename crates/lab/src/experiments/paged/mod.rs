//! Paged tables: points and scans, YCSB, TPC-C, and the size of pages.
//!
//! **The state formula.** A load on data beyond the pool runs at T = min(T in memory, R(q, w) ÷ m). The
//! load needs m page reads a transaction. R is what a bare loop reads from the same file in the same run. It
//! has q reads under way, and w writes of pages beside.

mod page_size;
mod read;
mod scan;
mod tpcc;
mod ycsb;

use std::path::Path;

use stillpoint::{PoolStats, offline};
use stillpoint_io::return_freed_memory;

use crate::drivers::transactions::{Drive, MakeClient, MemoryAt, Outcome, run_clients};
use crate::error::{LabError, LabResult};
use crate::measure::raw_pages::{RawLoad, reads_per_s};
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, ClaimRow, Table};
use crate::subjects::adapter::Checkpointed;
use crate::subjects::paged::PoolSize;

pub(crate) use page_size::PagedPageSize;
pub(crate) use read::PagedRead;
pub(crate) use scan::PagedScan;
pub(crate) use tpcc::PagedTpcc;
pub(crate) use ycsb::PagedYcsb;

const SOURCE: &str = "Stillpoint, paged tables";
/// The file of pages, in a data directory.
const PAGES: &str = "pages/data";
/// Windows of a second.
const WINDOWS_PER_S: usize = 10;

/// A load beyond the pool reaches this share of the state formula.
const OF_FORMULA: ClaimRow =
    ClaimRow::new("beyond the pool, of min(in memory, R ÷ m)", SOURCE, Bound::AtLeast(0.8));
/// Throughput of seconds varies no more.
const VARIATION: ClaimRow = ClaimRow::new(
    "coefficient of variation of the throughput of seconds",
    SOURCE,
    Bound::AtMost(0.1),
);
/// Memory beyond pool and 8 B a page, in MiB.
const MEMORY: ClaimRow =
    ClaimRow::new("memory beyond the pool", SOURCE, Bound::AtMost(64.0)).unit("MiB");

/// What a run has cost.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// Transactions per second.
    rate: f64,
    /// Pages read per transaction.
    reads: f64,
    /// Pages written per second.
    writes_per_s: f64,
    /// Bytes of log per transaction.
    log_bytes: f64,
    /// Coefficient of variation of the throughput of seconds. Not-a-number for fewer than two.
    variation: f64,
    /// Most memory of the process beside the buffers of the log.
    process_bytes: u64,
}

/// Runs clients, and counts what the pool does meanwhile.
fn measure(
    subject: &dyn Checkpointed,
    pool: &dyn Fn() -> LabResult<PoolStats>,
    drive: &Drive,
    make: &MakeClient<'_>,
) -> LabResult<Measured> {
    // What stores and clients before this run have freed is not memory of the run.
    return_freed_memory();
    let before = pool()?;
    let outcome = run_clients(subject, drive, make)?;
    let after = pool()?;
    let seconds = drive.seconds + drive.warm_up_s;
    let transactions = outcome.transactions.max(1) as f64;
    Ok(Measured {
        rate: outcome.rate(),
        reads: (after.reads - before.reads) as f64 / transactions,
        writes_per_s: (after.writes - before.writes) as f64 / seconds,
        log_bytes: outcome.journal_bytes as f64 / outcome.windows.total().max(1) as f64,
        variation: variation(&outcome),
        process_bytes: outcome.held.iter().map(beside_the_log).max().unwrap_or(0),
    })
}

fn beside_the_log(held: &MemoryAt) -> u64 {
    held.process_bytes.saturating_sub(held.log_buffer_bytes)
}

fn variation(outcome: &Outcome) -> f64 {
    let rates = outcome.windows.rates();
    let seconds: Vec<f64> = rates
        .chunks_exact(WINDOWS_PER_S)
        .map(|second| second.iter().sum::<f64>() / WINDOWS_PER_S as f64)
        .collect();
    let count = seconds.len() as f64;
    if count < 2.0 {
        return f64::NAN;
    }
    let mean = seconds.iter().sum::<f64>() / count;
    let squares = seconds.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>();
    (squares / (count - 1.0)).sqrt() / mean
}

/// The state formula for a load that has `measured` so much, and R.
fn formula(
    dir: &Path,
    in_memory: f64,
    measured: &Measured,
    (page_bytes, depth, seconds): (usize, usize, f64),
) -> LabResult<(f64, f64)> {
    let load = RawLoad { page_bytes, depth, writes_per_s: measured.writes_per_s, seconds };
    let raw = reads_per_s(dir, PAGES, load)?;
    let by_device = if measured.reads > 0.0 { raw / measured.reads } else { f64::INFINITY };
    Ok((in_memory.min(by_device), raw))
}

/// Bytes of the pages of a directory that no process has open, after a checkpoint.
fn data_bytes(dir: &Path) -> LabResult<u64> {
    let failed = |reason: String| LabError::Engine { engine: "paged".to_owned(), reason };
    let inspection = offline::inspect(dir).map_err(|error| failed(error.to_string()))?;
    let pages = inspection.pages.and_then(|pages| Some((pages.pages?, pages.page_bytes)));
    let (pages, page_bytes) = pages.ok_or_else(|| failed("no checkpoint has pages".to_owned()))?;
    Ok(pages * page_bytes as u64)
}

/// A pool of a share of the data, of 16 pages at least.
fn pool_of_data(data_bytes: u64, times: f64, page_bytes: usize) -> PoolSize {
    let least = 32 * page_bytes as u64;
    PoolSize { pool_bytes: ((data_bytes as f64 / times) as u64).max(least), page_bytes }
}

/// Memory beyond the pool, 8 bytes for each page and the buffers of the log, in MiB.
fn memory_beyond(measured: &Measured, pool: PoolSize, data_bytes: u64) -> f64 {
    let pages = data_bytes / pool.page_bytes as u64;
    let allowed = pool.pool_bytes + 8 * pages;
    (measured.process_bytes as f64 - allowed as f64) / f64::from(1 << 20)
}

fn table(title: &str, columns: &[&str]) -> Table {
    let columns = columns.iter().map(|column| (*column).to_owned()).collect();
    Table { title: title.into(), columns, ..Table::default() }
}

fn count(number: f64) -> String {
    if number.is_finite() { grouped(number as u64) } else { "–".to_owned() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::context::Context;
    use crate::drivers::transactions::tests::Toy;
    use crate::experiments::{Experiment, run_plan};
    use crate::harness::Harness;
    use crate::report::result::ExperimentResult;

    /// Runs the quick plan of an experiment.
    pub(super) fn quick<E: Experiment>() -> LabResult<ExperimentResult> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        // Relaxed: names of directories.
        let name = format!("{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let sink = Box::new(std::io::sink());
        let context = Context::new(&dir.path().join(name), true, "none".into(), sink);
        let bench = Harness { context: &context, open: &Toy::open, children: false };
        run_plan::<E>(&bench, &E::quick())
    }

    #[test]
    fn throughput_that_varies_is_seen() {
        let mut outcome = Outcome::default();
        for window in 0..40u64 {
            let events = if window / 10 % 2 == 0 { 90 } else { 110 };
            outcome.windows.add(window * 100_000_000, events);
        }
        let found = variation(&outcome);
        assert!((found - 0.1155).abs() < 0.001, "{found}");
    }
}

//! Advice on records and transactions at a rate, with checkpoints at an interval.
//!
//! Each scheme is opened on a fresh directory and loaded. Its transactions come at the rate, whatever
//! the scheme does, and checkpoints at the interval. Then the engine is closed and opened again, and
//! every record is compared. Among the schemes that keep the rate and the limits, the one that costs
//! the least processor time for a transaction is recommended.

pub(crate) mod check;
mod choice;
#[cfg(test)]
mod tests;

use std::path::Path;

use clap::Args;
use serde::Serialize;
use stillpoint_checkpoint::registry::{REGISTRY, Row};

use super::{Advice, Column, Measurement, refused};
use crate::context::Context;
use crate::drivers::transactions::{self, Drive, Outcome};
use crate::error::{LabError, LabResult};
use crate::measure::durations::LONGEST_S;
use crate::measure::machine::available_bytes;
use crate::measure::stats::median;
use crate::subjects::counters::{COUNTER_BYTES, Choice, Contents, Counters, Shape};
use crate::sys;

use choice::Limits;

/// Bytes of a record beside its values: key, header, index.
const OVERHEAD_BYTES: u64 = 72;
/// Longest value that can be asked for.
const VALUE_BYTES_MAX: usize = 64 << 20;
/// Share of the asked rate that a scheme must keep.
const KEPT_SHARE: f64 = 0.97;
/// Share of the checkpoints that must begin while the run lasts. One that is due while another is under way
/// begins late.
const BEGUN_SHARE: f64 = 0.9;

/// A load on records, and the limits that a scheme must keep under it.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Records")]
pub(crate) struct OfRecords {
    /// Advise on so many records.
    #[arg(long, value_name = "N")]
    records: Option<u64>,
    /// Bytes of a value.
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    value_bytes: usize,
    /// Transactions per second.
    #[arg(long, value_name = "N", required_unless_present = "state")]
    transactions_per_second: Option<u64>,
    /// Records that a transaction touches.
    #[arg(long, value_name = "K", default_value_t = 10)]
    touched: usize,
    /// Records that it updates. [default: all that it touches]
    #[arg(long, value_name = "K")]
    updated: Option<usize>,
    /// Whether an update writes the whole value. Otherwise it writes 8 bytes.
    #[arg(long)]
    whole: bool,
    /// Share of the records that transactions touch, from above 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    hot: f64,
    /// Time from one checkpoint to the next, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    checkpoint_every_ms: u64,
    /// Megabytes per second that a checkpoint may write. [default: as many as it can]
    #[arg(long, value_name = "MB")]
    pace_mb: Option<u64>,
    /// The journal: redo, undo-redo, command or none.
    #[arg(long, value_name = "NAME", default_value = "redo")]
    journal: String,
    /// Wait for each batch of commits until it is durable.
    #[arg(long)]
    strict: bool,
    /// Limit of the latency of a transaction, in milliseconds.
    #[arg(long, value_name = "MS")]
    worst_ms: Option<f64>,
    /// Limit of memory, in MiB.
    #[arg(long, value_name = "MIB")]
    memory_mib: Option<u64>,
    /// Schemes to measure, instead of all.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    schemes: Vec<String>,
}

/// Figures of a scheme under the load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Measured {
    /// The registered name.
    scheme: String,
    /// Whether the scheme takes checkpoints. The one that takes none is measured for comparison.
    takes_checkpoints: bool,
    /// Transactions per second.
    transactions_per_s: f64,
    /// Whether that is the rate that was asked for.
    keeps_rate: bool,
    /// Checkpoints that began.
    checkpoints: usize,
    /// Whether these are as many as the interval asks for. Fewer would cost less.
    keeps_interval: bool,
    /// Processor time of the whole process for one transaction, in microseconds.
    cpu_us: f64,
    p50_ms: f64,
    p999_ms: f64,
    worst_ms: f64,
    /// Median seconds of a checkpoint.
    checkpoint_s: f64,
    /// Longest time in which no commit could begin, in milliseconds.
    stopped_ms: f64,
    /// Bytes of the last checkpoint.
    checkpoint_bytes: u64,
    /// The most memory that the engine held.
    memory_bytes: u64,
    /// Seconds of the start that read the data back.
    recovery_s: f64,
}

impl OfRecords {
    fn updated(&self) -> usize {
        self.updated.unwrap_or(self.touched)
    }

    fn shape(&self) -> Shape {
        Shape {
            records: self.records.unwrap_or(0),
            value_bytes: self.value_bytes,
            touched: self.touched,
            updated: self.updated(),
            hot_share: self.hot,
            is_whole: self.whole,
        }
    }

    fn rate_per_s(&self) -> f64 {
        self.transactions_per_second.unwrap_or(0) as f64
    }

    fn check(&self) -> LabResult<()> {
        let (touched, updated) = (self.touched, self.updated());
        let records = self.records.unwrap_or(0);
        let hot = (records as f64 * self.hot) as usize;
        if !(self.hot > 0.0 && self.hot <= 1.0) {
            return Err(refused(
                format!("--hot {}", self.hot),
                "give a share above 0, and at most 1",
            ));
        }
        if touched == 0 || touched > 1_000 || hot < touched.saturating_mul(2) || records > 1 << 40 {
            let what = format!("--records {records} --hot {} --touched {touched}", self.hot);
            let cure =
                "let transactions touch 1 to 1,000 records, of at least twice as many hot ones";
            return Err(refused(what, cure));
        }
        if updated > touched {
            let cure = "give no more than --touched";
            return Err(refused(format!("--updated {updated}"), cure));
        }
        if !(COUNTER_BYTES..=VALUE_BYTES_MAX).contains(&self.value_bytes) {
            let cure = format!("give {COUNTER_BYTES} to {VALUE_BYTES_MAX}");
            return Err(refused(format!("--value-bytes {}", self.value_bytes), &cure));
        }
        if !(1.0..1e9).contains(&self.rate_per_s()) {
            let what = format!("--transactions-per-second {}", self.rate_per_s());
            return Err(refused(what, "give a number from 1 to 10^9"));
        }
        let longest_ms = (LONGEST_S * 1e3) as u64;
        if !(1..=longest_ms).contains(&self.checkpoint_every_ms) {
            let what = format!("--checkpoint-every-ms {}", self.checkpoint_every_ms);
            return Err(refused(what, &format!("give milliseconds from 1 to {longest_ms}")));
        }
        Ok(())
    }

    /// The schemes to measure: those that the journal allows. The one without checkpoints is the first.
    fn schemes(&self) -> LabResult<Vec<&'static Row>> {
        let journals = &stillpoint_journal::registry::REGISTRY;
        let unknown = |e: stillpoint_format::registry::UnknownName| {
            refused(e.to_string(), "give a name of that list")
        };
        let journal = journals.find(&self.journal).map_err(unknown)?.capabilities;
        let mut asked = Vec::new();
        for name in &self.schemes {
            asked.push(REGISTRY.find(name).map_err(unknown)?.name);
        }
        let is_allowed = |row: &&'static Row| {
            (!row.capabilities.needs_journal() || journal.records_commits)
                && (!row.capabilities.needs_before_images() || journal.logs_before_images)
        };
        let is_asked = |row: &&'static Row| {
            asked.is_empty() || asked.contains(&row.name) || !row.capabilities.takes_checkpoints()
        };
        let rows: Vec<&'static Row> = REGISTRY.iter().filter(is_allowed).filter(is_asked).collect();
        match rows.iter().any(|row| row.capabilities.takes_checkpoints()) {
            true => Ok(rows),
            false => Err(refused(
                format!("no scheme of {:?} works with the journal {}", self.schemes, self.journal),
                "choose another --journal, or other --schemes",
            )),
        }
    }

    fn limits(&self) -> Limits {
        Limits { worst_ms: self.worst_ms, memory_bytes: self.memory_mib.map(|mib| mib << 20) }
    }

    fn drive(&self, seconds: f64, takes_checkpoints: bool) -> Drive {
        let every_s = self.checkpoint_every_ms as f64 / 1e3;
        // The first one begins soon, so that each run has one.
        let at_s = |n: u32| 0.1 * seconds.min(every_s) + f64::from(n) * every_s;
        let checkpoints = (0..).map(at_s).take_while(|&at| takes_checkpoints && at < seconds);
        Drive {
            workers: stillpoint_io::cpu_count(),
            seconds,
            warm_up_s: (seconds / 5.0).min(0.5),
            rate_per_s: Some(self.rate_per_s()),
            checkpoints_at_s: checkpoints.collect(),
            ..Drive::new(self.records.unwrap_or(0))
        }
    }

    /// Estimate of the memory that a scheme needs, in bytes.
    fn memory_bytes(&self, row: &Row) -> u64 {
        let copies = (row.capabilities.cells.copies as u64).max(1);
        // A pool of stable versions, and the pages that a forked child shares, may hold each value again.
        let again = u64::from(row.name.starts_with("calc-stored") || row.name == "fork");
        let values = (copies + again).saturating_mul(self.value_bytes as u64);
        self.records.unwrap_or(0).saturating_mul(values.saturating_add(OVERHEAD_BYTES))
    }
}

/// Measures the schemes under the load, each for so many seconds, and chooses one.
///
/// # Errors
/// When the load makes no sense, no scheme fits into memory, a scheme fails, or a recovered state
/// differs.
pub(super) fn advise(
    question: &OfRecords,
    seconds: f64,
    context: &Context,
) -> LabResult<Advice<Measured>> {
    let measured = measure_all(question, seconds, context)?;
    let choice = choice::choose(&measured, &question.limits())
        .ok_or_else(|| refused("no scheme was measured".into(), "ask for fewer records"))?;
    Ok(Advice { measured, choice })
}

/// Measures the schemes that fit into the memory.
fn measure_all(question: &OfRecords, seconds: f64, context: &Context) -> LabResult<Vec<Measured>> {
    question.check()?;
    let mut measured = Vec::new();
    for row in question.schemes()? {
        let needed = question.memory_bytes(row);
        if needed > available_bytes() / 10 * 9 {
            context.note(format!("{} was left out: no room for {needed} bytes", row.name));
            continue;
        }
        context.note(format!("measuring {} for {seconds} s", row.name));
        let dir = context.fresh_dir("records")?;
        measured.push(measure(question, seconds, row, &dir)?);
        sys::remove_dir_all(&dir)?;
    }
    Ok(measured)
}

fn measure(
    question: &OfRecords,
    seconds: f64,
    row: &'static Row,
    dir: &Path,
) -> LabResult<Measured> {
    let shape = question.shape();
    let choice = Choice {
        scheme: row.name,
        journal: question.journal.clone(),
        is_strict: question.strict,
        pace_bytes_per_s: question.pace_mb.map(|mb| mb.saturating_mul(1_000_000)),
    };
    let takes_checkpoints = row.capabilities.takes_checkpoints();
    let subject = Counters::open(&choice, &shape, dir)?;
    subject.load()?;
    subject.checkpoint()?;
    let drive = question.drive(seconds, takes_checkpoints);
    let cpu_before_ns = stillpoint_io::process_cpu_ns();
    let client = |worker| subject.client(worker, 1);
    let outcome = transactions::run_clients(&subject, &drive, &client)?;
    let cpu_ns = stillpoint_io::process_cpu_ns() - cpu_before_ns;
    let held = Contents { records: shape.records, updates: subject.updates() };
    // What is durable only with a checkpoint needs one more.
    let is_logged = crate::subjects::records::records_commits(&question.journal);
    if is_logged {
        subject.flush()?;
    } else {
        subject.checkpoint()?;
    }
    drop(subject);
    let began_ns = sys::now_ns();
    let recovered = Counters::open(&choice, &shape, dir)?;
    let recovery_s = (sys::now_ns() - began_ns) as f64 / 1e9;
    if is_logged || takes_checkpoints {
        compare(row.name, recovered.check()?, held)?;
    }
    let asked = drive.checkpoints_at_s.len();
    Ok(Measured::of(question, row, (&outcome, cpu_ns, asked), recovery_s))
}

/// Fails if a recovered state is not the one before.
fn compare(scheme: &str, found: Contents, expected: Contents) -> LabResult<()> {
    if found == expected {
        return Ok(());
    }
    let reason = format!("{found:?} came back, and {expected:?} had committed");
    Err(LabError::Engine { engine: scheme.to_owned(), reason })
}

impl Measured {
    fn of(
        question: &OfRecords,
        row: &Row,
        (outcome, cpu_ns, asked): (&Outcome, u64, usize),
        recovery_s: f64,
    ) -> Measured {
        let latencies = outcome.latencies.all();
        let seconds: Vec<f64> = outcome.captures.iter().map(|it| it.seconds()).collect();
        let stopped_ms = outcome.captures.iter().map(|it| it.stopped_s * 1e3);
        Measured {
            scheme: row.name.to_owned(),
            takes_checkpoints: row.capabilities.takes_checkpoints(),
            transactions_per_s: outcome.rate(),
            keeps_rate: outcome.rate() >= question.rate_per_s() * KEPT_SHARE,
            checkpoints: seconds.len(),
            keeps_interval: seconds.len() as f64 >= asked as f64 * BEGUN_SHARE,
            cpu_us: cpu_ns as f64 / 1e3 / outcome.transactions.max(1) as f64,
            p50_ms: latencies.ms(0.5),
            p999_ms: latencies.p999_ms(),
            worst_ms: latencies.max_ms(),
            checkpoint_s: median(&seconds),
            stopped_ms: stopped_ms.fold(0.0, f64::max),
            checkpoint_bytes: outcome.captures.last().map_or(0, |it| it.bytes),
            memory_bytes: outcome.held.iter().map(|at| at.engine_bytes).max().unwrap_or(0),
            recovery_s,
        }
    }
}

impl Measurement for Measured {
    const COLUMNS: &'static [Column<Self>] = &[
        ("scheme", |it| it.scheme.clone()),
        ("txn/s", |it| format!("{:.0}", it.transactions_per_s)),
        ("CPU us/txn", |it| format!("{:.2}", it.cpu_us)),
        ("p50 ms", |it| format!("{:.3}", it.p50_ms)),
        ("p99.9 ms", |it| format!("{:.2}", it.p999_ms)),
        ("worst ms", |it| format!("{:.2}", it.worst_ms)),
        ("stopped ms", |it| format!("{:.3}", it.stopped_ms)),
        ("checkpoints", |it| it.checkpoints.to_string()),
        ("checkpoint s", |it| format!("{:.2}", it.checkpoint_s)),
        ("checkpoint MB", |it| format!("{:.1}", it.checkpoint_bytes as f64 / 1e6)),
        ("MiB", |it| format!("{}", it.memory_bytes >> 20)),
        ("recovery s", |it| format!("{:.2}", it.recovery_s)),
    ];
}

//! The comparison with other embedded stores: the CALC transaction and YCSB, in one process and one run,
//! at equal durability. A program that links the others gives their [`Row`]s to [`run`]; the project has
//! one in the directory `peers`.
//!
//! The bare prefetched hash table stands beside them as the limit: no transactions, no log, no
//! checkpoints. After each run every record is compared with what its transactions have left.

mod bare;
mod client;
mod report;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use stillpoint::Kind;

use crate::context::Context;
use crate::drivers::transactions::{self, Drive};
use crate::error::{LabError, LabResult};
use crate::measure::durations::seconds;
use crate::measure::machine::available_bytes;
use crate::report::result::ExperimentResult;
use crate::subjects::counters::{Choice, Counters, Shape};
use crate::subjects::ycsb::{Row as YcsbRow, YcsbRecords};
use crate::sys;
use crate::workloads::ycsb::{MIXES, Mix, RECORD_BYTES};

use bare::BareTable;
use client::Peer;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Setup {
    /// An empty directory for its files.
    pub dir: PathBuf,
    /// Whether each commit is durable before it returns. Otherwise a crash may take the last commits away.
    pub is_durable: bool,
    /// Bytes that all records take. The store may keep that many, and as many again, in memory.
    pub data_bytes: u64,
}

/// A store of keys and values with transactions, opened in this process.
pub trait Embedded: Sync {
    /// A session for the calling thread.
    ///
    /// # Errors
    /// The store's reason.
    fn session(&self) -> Result<Box<dyn EmbeddedSession + '_>, String>;
}

/// A session of a store, used by one thread. Keys have 8 bytes.
pub trait EmbeddedSession {
    /// Writes records in one transaction.
    ///
    /// # Errors
    /// The store's reason.
    fn load(&mut self, records: &[([u8; 8], Vec<u8>)]) -> Result<(), String>;

    /// Reads the values of all keys and replaces each by what `change` makes of it, in one transaction.
    /// Keys are different. A transaction that conflicts with another is repeated.
    ///
    /// # Errors
    /// A key has no value, or the store's reason.
    fn update(&mut self, keys: &[[u8; 8]], change: &mut dyn FnMut(&mut [u8]))
    -> Result<(), String>;

    /// Reads a value in a transaction.
    ///
    /// # Errors
    /// The key has no value, or the store's reason.
    fn read(&mut self, key: [u8; 8], see: &mut dyn FnMut(&[u8])) -> Result<(), String>;
}

/// A function that opens a store.
pub type Open = fn(&Setup) -> Result<Box<dyn Embedded>, String>;

/// A store beside ours.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name, with its version.
    pub name: String,
    /// Opens it.
    pub open: Open,
}

/// Arguments of the comparison.
#[derive(Args, Clone, Debug)]
pub struct PeersArgs {
    /// Records of 8 + 100 bytes for the CALC transaction. YCSB has a tenth of them, of 1,000 bytes.
    #[arg(long, default_value_t = 2_000_000)]
    records: u64,
    /// Seconds of each run.
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// Runs of each pair.
    #[arg(long, default_value_t = 1)]
    runs: usize,
    /// Few records and short runs, which show that all still works.
    #[arg(long)]
    quick: bool,
    /// Stores to compare, instead of all. Ours and the bare table are measured in any case.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// The folder of results, on the disk in question.
    #[arg(long, value_name = "DIR", default_value = "lab-results")]
    out: PathBuf,
}

/// The amount of work, as parameters of the result.
#[derive(Clone, Debug, Serialize)]
struct Plan {
    records: u64,
    ycsb_records: u64,
    workers: usize,
    run_s: f64,
    runs: usize,
    /// Runs of our store and of the bare table, in turn.
    limit_runs: usize,
}

impl Plan {
    fn of(args: &PeersArgs) -> Plan {
        let records = if args.quick { 2_000 } else { args.records.max(100) };
        Plan {
            records,
            ycsb_records: (records / 10).max(100),
            workers: 2,
            run_s: if args.quick { args.seconds.min(0.2) } else { args.seconds },
            runs: args.runs.max(1),
            limit_runs: if args.quick { 1 } else { args.runs.max(LIMIT_RUNS) },
        }
    }

    fn drive(&self, durability: Durability) -> Drive {
        Drive {
            workers: self.workers,
            seconds: self.run_s,
            warm_up_s: self.run_s / 10.0,
            // A durable commit returns before the next one begins, with all stores alike.
            batch: if durability.is_durable() { 1 } else { 4 },
            ..Drive::new(self.records)
        }
    }
}

/// Least number of runs of our store and of the bare table. Their ratio is near its bound, that of other
/// stores is not.
const LIMIT_RUNS: usize = 5;

/// When a commit is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Durability {
    /// Some time later.
    Relaxed,
    /// Before it returns.
    Strict,
}

impl Durability {
    const ALL: [Durability; 2] = [Durability::Relaxed, Durability::Strict];

    fn is_durable(self) -> bool {
        self == Durability::Strict
    }

    fn name(self) -> &'static str {
        if self.is_durable() { "strict" } else { "relaxed" }
    }
}

/// Name of our store in figures.
const OURS: &str = "stillpoint";
/// Name of the limit.
const BARE: &str = "bare table";

/// The workload of a measurement, at a durability.
#[derive(Clone, Debug, PartialEq)]
struct Measured {
    workload: String,
    durability: Durability,
    name: String,
    /// Transactions per second of each run.
    rates: Vec<f64>,
}

/// The CALC transaction.
const CALC: &str = "CALC";
/// Records of a CALC transaction, and bytes of their values.
const CALC_SHAPE: (usize, usize) = (10, 100);

/// The mixes that all stores can run: they read and update.
fn mixes() -> impl Iterator<Item = Mix> {
    MIXES.into_iter().filter(|mix| mix.reads + mix.updates >= 1.0)
}

/// Measures our store, the bare table and the rows, and writes `OUT/peers.json` with its figures and the
/// report. Results go to `output`, progress to standard error. `commit` names the source of the program.
///
/// # Errors
/// When a store fails, or holds anything but what its transactions have written.
pub fn run(rows: &[Row], args: &PeersArgs, commit: &str, output: &mut dyn Write) -> LabResult<()> {
    let mut context =
        Context::new(&args.out, args.quick, "peers".into(), Box::new(std::io::stderr()));
    commit.clone_into(&mut context.commit);
    let result = compare(rows, args, &context)?;
    let path = result.save(&args.out)?;
    sys::remove_dir_all(&context.work)?;
    crate::report::write(&args.out)?;
    writeln!(output, "written to {}", path.display())
        .map_err(|e| LabError::process("standard output", e))
}

fn compare(rows: &[Row], args: &PeersArgs, context: &Context) -> LabResult<ExperimentResult> {
    let plan = Plan::of(args);
    let mut result = report::head(context, &plan, rows)?;
    let is_asked = |row: &&Row| {
        args.only.is_empty() || args.only.iter().any(|name| row.name.starts_with(name.as_str()))
    };
    let rows: Vec<&Row> = rows.iter().filter(is_asked).collect();
    let began_ns = sys::now_ns();
    let mut measured = Vec::new();
    for durability in Durability::ALL {
        measured.extend(of_ours(&plan, durability, context)?);
        for row in &rows {
            let data_bytes = (plan.records * 108).max(plan.ycsb_records * 1_008);
            if data_bytes.saturating_mul(3) > available_bytes() {
                result.note(format!("{} was left out: no room", row.name));
                continue;
            }
            measured.extend(of_row(&plan, row, durability, context)?);
        }
    }
    result.seconds = (sys::now_ns() - began_ns) as f64 / 1e9;
    report::add(&measured, &mut result);
    Ok(result)
}

fn noted(context: &Context, measured: Measured) -> Measured {
    let Measured { workload, durability, name, rates } = &measured;
    let rates: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
    context.note(format!("{workload}, {}: {name}: {} /s", durability.name(), rates.join(", ")));
    measured
}

/// Our store: calc with the redo log. In relaxed durability, it runs in turn with the limit: a hash table
/// with a lock word for each record.
fn of_ours(plan: &Plan, durability: Durability, context: &Context) -> LabResult<Vec<Measured>> {
    let (touched, value_bytes) = CALC_SHAPE;
    let shape = Shape {
        records: plan.records,
        value_bytes,
        touched,
        updated: touched,
        hot_share: 1.0,
        is_whole: false,
    };
    let choice = Choice {
        scheme: "calc",
        journal: "redo".to_owned(),
        is_strict: durability.is_durable(),
        pace_bytes_per_s: None,
    };
    let dir = context.fresh_dir(OURS)?;
    let subject = Counters::open(&choice, &shape, &dir)?;
    subject.load()?;
    let bare = (!durability.is_durable()).then(|| BareTable::filled(plan.records));
    let (mut rates, mut of_bare) = (Vec::new(), Vec::new());
    let drive = plan.drive(durability);
    for run in 0..if bare.is_some() { plan.limit_runs } else { plan.runs } {
        let seed = run as u64 + 1;
        if let Some(table) = &bare {
            let client = |worker| Ok(table.client(worker, seed));
            of_bare.push(transactions::run_clients(table, &drive, &client)?.rate());
        }
        let client = |worker| subject.client(worker, seed);
        rates.push(transactions::run_clients(&subject, &drive, &client)?.rate());
        // It cuts the log, which five runs would fill with many gigabytes.
        subject.checkpoint()?;
    }
    let (held, updates) = (subject.check()?, subject.updates());
    if held.updates != updates {
        let reason = format!("{} updates are there, {updates} have committed", held.updates);
        return Err(LabError::Engine { engine: OURS.into(), reason });
    }
    drop(subject);
    let mut all = Vec::new();
    let of = |name: &str, rates| {
        let (workload, name) = (CALC.to_owned(), name.to_owned());
        noted(context, Measured { workload, durability, name, rates })
    };
    if let Some(table) = bare {
        table.check()?;
        all.push(of(BARE, of_bare));
    }
    all.push(of(OURS, rates));
    // Strict commits of one record each measure the device's flush; the CALC transaction has done so.
    if !durability.is_durable() {
        all.extend(ycsb_of_ours(plan, context)?);
    }
    Ok(all)
}

fn ycsb_of_ours(plan: &Plan, context: &Context) -> LabResult<Vec<Measured>> {
    let row = YcsbRow { name: OURS, scheme: "calc", journal: "redo" };
    let dir = context.fresh_dir(OURS)?;
    let subject = YcsbRecords::open(row, Kind::Memory, plan.ycsb_records, &dir)?;
    subject.load()?;
    let mut all = Vec::new();
    for mix in mixes() {
        let mut rates = Vec::new();
        for run in 0..plan.runs {
            let client = |worker| subject.client(mix, plan.workers, worker, run as u64 + 1);
            let drive = plan.drive(Durability::Relaxed);
            rates.push(transactions::run_clients(&subject, &drive, &client)?.rate());
        }
        let (workload, name) = (format!("YCSB {}", mix.name), OURS.to_owned());
        let durability = Durability::Relaxed;
        all.push(noted(context, Measured { workload, durability, name, rates }));
    }
    subject.check()?;
    Ok(all)
}

/// Another store.
fn of_row(
    plan: &Plan,
    row: &Row,
    durability: Durability,
    context: &Context,
) -> LabResult<Vec<Measured>> {
    let (touched, value_bytes) = CALC_SHAPE;
    let mut all = Vec::new();
    let setup = |dir: &Path, records: u64, bytes: usize| Setup {
        dir: dir.to_owned(),
        is_durable: durability.is_durable(),
        data_bytes: records * (bytes as u64 + 8),
    };
    let dir = context.fresh_dir("peer")?;
    let peer = Peer::open(row, &setup(&dir, plan.records, value_bytes))?;
    peer.load_counters(plan.records, value_bytes)?;
    let mut rates = Vec::new();
    for run in 0..plan.runs {
        let client = |worker| peer.counting(plan.records, touched, (worker, run as u64 + 1));
        rates.push(transactions::run_clients(&peer, &plan.drive(durability), &client)?.rate());
    }
    peer.check_counters(plan.records)?;
    drop(peer);
    let (workload, name) = (CALC.to_owned(), row.name.clone());
    all.push(noted(context, Measured { workload, durability, name, rates }));
    if durability.is_durable() {
        return Ok(all);
    }
    let dir = context.fresh_dir("peer")?;
    let peer = Peer::open(row, &setup(&dir, plan.ycsb_records, RECORD_BYTES))?;
    peer.load_ycsb(plan.ycsb_records)?;
    for mix in mixes() {
        let mut rates = Vec::new();
        for run in 0..plan.runs {
            let client = |worker| peer.ycsb(mix, plan.ycsb_records, worker, run as u64 + 1);
            rates.push(transactions::run_clients(&peer, &plan.drive(durability), &client)?.rate());
        }
        let (workload, name) = (format!("YCSB {}", mix.name), row.name.clone());
        all.push(noted(context, Measured { workload, durability, name, rates }));
    }
    peer.check_ycsb(plan.ycsb_records)?;
    Ok(all)
}

//! A merge beside strict transactions, at half of their greatest rate.

use stillpoint::{
    Batch, Durability, Engine, KeySet, Mode, Session, Slot, Stamp, TableId, Tx, TxError,
};

use super::bed::{NAME, TABLE};
use super::{Plan, SCHEME, Set, changed, claim, table};
use crate::drivers::transactions::{self, Drive, Outcome};
use crate::error::{LabError, LabResult};
use crate::harness::Harness;
use crate::measure::stats::cost_ratio;
use crate::report::figure::axis::grouped;
use crate::report::result::ExperimentResult;
use crate::subjects::adapter::{Checkpointed, Client, Status};
use crate::subjects::stillpoint::{failed, measured, start_checkpoint, status};
use crate::sys;
use crate::workloads::calc::{VALUE_BYTES, initial_value, key};
use crate::workloads::random::splitmix64;

/// Links of the merged chain.
const LINKS: u64 = 8;
/// Time from the begin of a run to the begin of its merge.
const MERGE_AT_S: f64 = 1.0;

/// An engine whose answers wait until their commits are durable.
struct Strict {
    engine: Engine,
    table: TableId,
    records: u64,
}

impl Checkpointed for Strict {
    fn start_checkpoint(&self) -> LabResult<()> {
        start_checkpoint(NAME, &self.engine)
    }
    fn merge(&self) -> LabResult<bool> {
        let merged = self.engine.merge_checkpoints().map_err(|error| failed(NAME, error))?;
        Ok(merged.is_some())
    }
    fn status(&self) -> Status {
        status(&self.engine)
    }
}

/// Replaces one record in each transaction.
struct Writer {
    table: TableId,
    records: u64,
    random: u64,
    drawn: Vec<u64>,
    failed: Option<String>,
}

impl Batch for Writer {
    fn len(&self) -> usize {
        self.drawn.len()
    }
    fn declare(&mut self, index: usize, keys: &mut KeySet) {
        keys.push(self.table, &key(self.drawn[index]), Mode::Write, VALUE_BYTES);
    }
    fn run(&mut self, index: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        tx.put_slot(Slot(0), &initial_value::<VALUE_BYTES>(self.drawn[index]))
    }
    fn ended(&mut self, _: usize, result: Result<Option<Stamp>, TxError>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error.to_string());
        }
    }
}

/// A client that answers after a flush.
struct Writes {
    session: Session,
    writer: Writer,
}

impl Client for Writes {
    fn run(&mut self, count: usize) -> LabResult<usize> {
        let Self { session, writer } = self;
        let records = writer.records;
        writer.drawn.clear();
        for _ in 0..count {
            writer.drawn.push(splitmix64(&mut writer.random) % records);
        }
        session.execute(writer);
        if let Some(reason) = writer.failed.take() {
            return Err(failed(NAME, reason));
        }
        session.flush().map_err(|error| failed(NAME, error))?;
        Ok(count)
    }
    fn idle(&mut self) {
        self.session.idle();
    }
}

impl Strict {
    fn client(&self, number: usize) -> LabResult<Box<dyn Client + '_>> {
        let session = self.engine.session().map_err(|error| failed(NAME, error))?;
        let writer = Writer {
            table: self.table,
            records: self.records,
            random: number as u64,
            drawn: Vec::new(),
            failed: None,
        };
        Ok(Box::new(Writes { session, writer }))
    }

    /// A run at this rate, and the times of the merge in it, if it `merges`.
    fn run(
        &self,
        seconds: f64,
        rate_per_s: Option<f64>,
        merges: bool,
    ) -> LabResult<(Outcome, [f64; 2])> {
        let drive = Drive { seconds, rate_per_s, ..Drive::new(self.records) };
        let begin_ns = sys::now_ns() + (drive.warm_up_s * 1e9) as u64;
        let since_begin = || (sys::now_ns() as f64 - begin_ns as f64) / 1e9;
        type Job<'a> = Box<dyn FnOnce() -> LabResult<(Outcome, [f64; 2])> + Send + 'a>;
        let run: Job<'_> = Box::new(|| {
            let outcome = transactions::run_clients(self, &drive, &|number| self.client(number))?;
            Ok((outcome, [0.0; 2]))
        });
        let merge: Job<'_> = Box::new(|| {
            sys::sleep_until(begin_ns + (MERGE_AT_S * 1e9) as u64);
            let from_s = since_begin();
            match self.merge()? {
                true => Ok((Outcome::default(), [from_s, since_begin().min(seconds)])),
                false => Err(failed(NAME, "a chain was not merged")),
            }
        });
        let mut jobs = vec![run];
        if merges {
            jobs.push(merge);
        }
        let done = stillpoint_io::in_parallel("merging", jobs);
        let done = done.map_err(|error| LabError::process("threads of a run", error))?;
        let mut both = (Outcome::default(), [0.0; 2]);
        for part in done {
            let (outcome, times) = part?;
            if outcome.transactions > 0 {
                both.0 = outcome;
            }
            if times[1] > 0.0 {
                both.1 = times;
            }
        }
        Ok(both)
    }
}

pub(super) fn merging(
    bench: &Harness<'_>,
    plan: &Plan,
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let wrong = |error: stillpoint::Error| failed(NAME, error);
    let columns = ["run", "txn/s", "p99 ms", "p99.9 ms", "merge s"];
    let mut rows = table("Strict transactions at half load beside a merge", "merging", &columns);
    let (mut commits, mut tails) = (Vec::new(), Vec::new());
    for _ in 0..plan.merging_runs {
        let dir = changed(bench, plan.merge_records, LINKS, Set::Disjoint)?.close();
        let mut config = measured(&dir, SCHEME, "redo");
        config.durability = Durability::Strict;
        let engine = Engine::open(config).map_err(wrong)?;
        let table = engine.table(TABLE).map_err(wrong)?;
        let strict = Strict { engine, table, records: plan.merge_records };
        let (saturated, _) = strict.run(plan.merging_s, None, false)?;
        let half = Some(saturated.rate() / 2.0);
        let (alone, _) = strict.run(plan.merging_s, half, false)?;
        let (beside, [from_s, to_s]) = strict.run(plan.merging_s, half, true)?;
        let within = beside.latencies.within(&[[from_s, to_s]]);
        let rate = beside.windows.mean_rate(from_s, to_s);
        commits.push(cost_ratio(alone.rate(), rate));
        tails.push(cost_ratio(within.p99_ms(), alone.latencies.all().p99_ms()));
        for (name, rate, of, seconds) in [
            ("without a merge", alone.rate(), alone.latencies.all(), String::from("—")),
            ("within the merge", rate, within, format!("{:.2}", to_s - from_s)),
        ] {
            let ms = |ms: f64| format!("{ms:.2}");
            let rate = grouped(rate as u64);
            rows.rows.push(vec![name.into(), rate, ms(of.p99_ms()), ms(of.p999_ms()), seconds]);
        }
        drop(strict);
        sys::remove_dir_all(&dir)?;
    }
    claim("commits: without ÷ within a merge".into(), 1.0 / 0.95, "merging", &commits, result);
    claim("strict p99: within ÷ without a merge".into(), 1.2, "merging", &tails, result);
    result.tables.push(rows);
    Ok(())
}

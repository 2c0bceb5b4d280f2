//! Our own engine, through its public interface.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint::{
    Arguments, Batch, Call, Config, Durability, Engine, KeySet, Mode, Procedure, QuiesceFor,
    RecoverySummary, Session, Slot, Snapshot, Stamp, StoredProcedure, TableId, Tx, TxError,
};
use stillpoint_checkpoint::registry::REGISTRY;
use stillpoint_io::Disk;

use crate::error::{LabError, LabResult};
use crate::subjects::adapter::{Checkpointed, LabEngine, LabSession, Recovered, Setup, Status};
use crate::subjects::metered_disk::{DiskMeter, MeteredDisk};
use crate::workloads::calc::{
    self, CalcTransaction, Change, Check, KEYS_PER_TRANSACTION, LARGE_VALUE_BYTES, LongTransaction,
    VALUE_BYTES,
};

const TABLE: &str = "records";
/// The microbenchmark's transactions as procedures.
const UPDATE: &str = "update";
const UPDATE_RUN: &str = "update-run";
/// Records that one loading transaction writes.
const LOAD_RECORDS: u64 = 16;
/// Loading transactions in a batch.
const LOAD_BATCH: u64 = 16;

/// The engine with values of one length.
struct Stillpoint<const BYTES: usize> {
    name: String,
    engine: Engine,
    table: TableId,
    records: u64,
}

struct StillpointSession<const BYTES: usize> {
    name: String,
    session: Session,
    table: TableId,
    /// Result of the transactions' computing, kept so that the compiler cannot remove the work.
    computed: u64,
}

/// The error of an engine of this name.
pub(crate) fn failed(name: &str, reason: impl ToString) -> LabError {
    LabError::Engine { engine: name.to_owned(), reason: reason.to_string() }
}

/// Settings of an engine for a measurement: relaxed durability, and checkpoints and merges only at
/// the experiment's request.
pub(crate) fn measured(dir: &Path, scheme: &str, journal: &str) -> Config {
    let mut config = Config::new(dir);
    scheme.clone_into(&mut config.checkpoint);
    journal.clone_into(&mut config.journal);
    config.durability = Durability::Relaxed;
    config.checkpoint_every = None;
    config.log_limit_bytes = u64::MAX / 4;
    config.merge_after = None;
    config
}

/// Opens the engine and recovers the data in the directory.
///
/// # Errors
/// When the engine refuses.
pub(crate) fn open(setup: &Setup) -> LabResult<Box<dyn LabEngine>> {
    let mut config = measured(&setup.dir, &setup.scheme, &setup.journal);
    config.checkpoint_pace = setup.pace_bytes_per_s;
    config.environment.disk = disk_of_pace(setup)?;
    config.sessions = setup.sessions;
    config.stable_pool_bytes = setup.stable_pool_bytes;
    if setup.published_points {
        config.quiesce_for = QuiesceFor::Transactions;
    }
    let name = format!("stillpoint, {}", setup.scheme);
    match setup.value_bytes {
        VALUE_BYTES => open_with::<VALUE_BYTES>(config, name, setup.records),
        LARGE_VALUE_BYTES => open_with::<LARGE_VALUE_BYTES>(config, name, setup.records),
        other => Err(failed(&name, format!("values of {other} bytes are not prepared for"))),
    }
}

/// A scheme for whose whole capture commits wait has no pace of its own. Beside schemes at a pace it gets a disk
/// that is as slow, as the paper's was.
fn disk_of_pace(setup: &Setup) -> LabResult<Option<Arc<dyn Disk>>> {
    // The other kinds of tables pace themselves. The engine refuses what is no scheme at all.
    let scheme = REGISTRY.find(&setup.scheme);
    let has_no_pace = scheme.is_ok_and(|row| row.capabilities.stops_throughout());
    let Some(rate) = setup.pace_bytes_per_s.filter(|_| has_no_pace) else { return Ok(None) };
    let meter = Arc::<DiskMeter>::default();
    meter.set_rate(rate);
    let disk = MeteredDisk::new(&setup.dir, meter).map_err(|e| failed(&setup.scheme, e))?;
    Ok(Some(Arc::new(disk)))
}

/// Recovers the data in the directory with so many threads.
///
/// # Errors
/// When the engine refuses.
pub(crate) fn recover(setup: &Setup, threads: usize) -> LabResult<Recovered> {
    let mut config = measured(&setup.dir, &setup.scheme, &setup.journal);
    config.recovery_threads = threads;
    let name = format!("stillpoint, {}", setup.scheme);
    let engine = open_engine::<VALUE_BYTES>(config, &name)?;
    Ok(recovered(&engine.stats().recovered))
}

fn recovered(summary: &RecoverySummary) -> Recovered {
    Recovered {
        commits: summary.commits_replayed,
        log_bytes: summary.log_bytes,
        keys_undone: summary.keys_undone,
        load_s: summary.load_time.as_secs_f64(),
        undo_s: summary.undo_time.as_secs_f64(),
        replay_s: summary.replay_time.as_secs_f64(),
    }
}

/// Opens an engine whose checkpoints are snapshots, each read to its end by a thread. At most so many
/// bytes wait for the reader.
///
/// # Errors
/// When the engine refuses.
pub(crate) fn open_with_snapshots(setup: &Setup, limit_bytes: usize) -> LabResult<WithSnapshots> {
    let mut config = measured(&setup.dir, &setup.scheme, &setup.journal);
    config.snapshot_memory_bytes = limit_bytes;
    config.sessions = setup.sessions;
    let name = format!("stillpoint, {}, snapshots", setup.scheme);
    let engine = open_engine::<VALUE_BYTES>(config, &name)?;
    let table = engine.table(TABLE).map_err(|e| failed(&name, e))?;
    let engine = Stillpoint::<VALUE_BYTES> { name, engine, table, records: setup.records };
    Ok(WithSnapshots { engine, reads: Arc::default() })
}

/// An engine with its snapshots in the place of checkpoints.
pub(crate) struct WithSnapshots {
    engine: Stillpoint<VALUE_BYTES>,
    reads: Arc<Mutex<Reads>>,
}

impl WithSnapshots {
    /// What the reader of the last snapshot has found.
    pub(crate) fn last(&self) -> SnapshotRead {
        self.reads.lock().last.clone()
    }
}

/// What the reader of a snapshot has found.
#[derive(Clone, Debug, Default)]
pub(crate) struct SnapshotRead {
    /// Why the snapshot has ended early, if it has.
    pub(crate) ended: Option<String>,
    /// Records read.
    pub(crate) records: u64,
    /// Bytes of their keys and values.
    pub(crate) bytes: u64,
    /// Most bytes that waited for the reader.
    pub(crate) waiting_bytes_max: u64,
}

/// The snapshots of an engine.
#[derive(Debug, Default)]
struct Reads {
    done: u64,
    is_running: bool,
    last: SnapshotRead,
}

/// Reads a snapshot to its end: its records, and the bytes of keys and values.
fn read_snapshot(mut snapshot: Snapshot) -> SnapshotRead {
    let mut read = SnapshotRead::default();
    loop {
        match snapshot.next_batch() {
            Ok(Some(batch)) => {
                for record in batch.records() {
                    read.records += 1;
                    read.bytes += (record.key.len() + record.value.len()) as u64;
                }
            }
            Ok(None) => break,
            Err(error) => {
                read.ended = Some(error.to_string());
                break;
            }
        }
    }
    SnapshotRead { waiting_bytes_max: snapshot.waiting_bytes_peak() as u64, ..read }
}

impl Checkpointed for WithSnapshots {
    fn start_checkpoint(&self) -> LabResult<()> {
        let name = self.engine.name.clone();
        let snapshot = self.engine.engine.snapshot().map_err(|e| failed(&name, e))?;
        self.reads.lock().is_running = true;
        let reads = self.reads.clone();
        let read = move || {
            stillpoint::go_behind();
            let last = read_snapshot(snapshot);
            let mut reads = reads.lock();
            *reads = Reads { done: reads.done + 1, is_running: false, last };
        };
        stillpoint_io::spawn("reader", read).map(drop).map_err(|e| failed(&name, e))
    }

    /// A snapshot that has ended early counts as done.
    fn status(&self) -> Status {
        let reads = self.reads.lock();
        Status {
            checkpoints: reads.done,
            running: reads.is_running,
            last_records: reads.last.records,
            last_bytes: reads.last.bytes,
            waiting_bytes_max: reads.last.waiting_bytes_max,
            ..self.engine.status()
        }
    }
}

impl LabEngine for WithSnapshots {
    fn load(&self, records: u64) -> LabResult<()> {
        self.engine.load(records)
    }

    fn session(&self) -> LabResult<Box<dyn LabSession + '_>> {
        self.engine.session()
    }

    fn check(&self, change: Change) -> LabResult<Check> {
        self.engine.check(change)
    }
}

fn open_engine<const BYTES: usize>(config: Config, name: &str) -> LabResult<Engine> {
    Engine::builder(config)
        .procedure(UPDATE, |tables| Ok(Update::<BYTES> { table: tables.table(TABLE)? }))
        .procedure(UPDATE_RUN, |tables| Ok(UpdateRun::<BYTES> { table: tables.table(TABLE)? }))
        .open()
        .map_err(|e| failed(name, e))
}

fn open_with<const BYTES: usize>(
    config: Config,
    name: String,
    records: u64,
) -> LabResult<Box<dyn LabEngine>> {
    let engine = open_engine::<BYTES>(config, &name)?;
    let table = engine.table(TABLE).map_err(|e| failed(&name, e))?;
    Ok(Box::new(Stillpoint::<BYTES> { name, engine, table, records }))
}

/// The microbenchmark's transaction, which a log of calls makes again.
struct Update<const BYTES: usize> {
    table: TableId,
}

/// The arguments of [`Update`]: how much of each value changes, how many records change, and the
/// numbers of the records.
struct Updated {
    change: Change,
    writes: u8,
    keys: [u64; KEYS_PER_TRANSACTION],
}

fn encode_change(change: Change, out: &mut Vec<u8>) {
    (change == Change::Whole).encode(out);
}

fn decode_change(bytes: &mut &[u8]) -> Option<Change> {
    Some(if bool::decode(bytes)? { Change::Whole } else { Change::Counter })
}

impl Arguments for Updated {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_change(self.change, out);
        self.writes.encode(out);
        self.keys.iter().for_each(|key| key.encode(out));
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let (change, writes) = (decode_change(bytes)?, u8::decode(bytes)?);
        let mut keys = [0; KEYS_PER_TRANSACTION];
        for key in &mut keys {
            *key = u64::decode(bytes)?;
        }
        Some(Self { change, writes, keys })
    }
}

impl<const BYTES: usize> StoredProcedure for Update<BYTES> {
    type Input = Updated;
    type Output = ();

    fn declare(&self, input: &Updated, keys: &mut KeySet) {
        declare::<BYTES>(self.table, &input.keys, input.writes.into(), keys);
    }

    fn run(&self, input: &Updated, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let writes = input.writes.into();
        run::<BYTES>(tx, &input.keys, writes, input.change, &mut 0)
    }
}

/// The microbenchmark's batch write, over successive records.
struct UpdateRun<const BYTES: usize> {
    table: TableId,
}

/// The arguments of [`UpdateRun`]: how much of each value changes, the first record, and how many there
/// are.
struct UpdatedRun {
    change: Change,
    first: u64,
    count: u64,
}

impl Arguments for UpdatedRun {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_change(self.change, out);
        self.first.encode(out);
        self.count.encode(out);
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let (change, first, count) =
            (decode_change(bytes)?, u64::decode(bytes)?, u64::decode(bytes)?);
        first.checked_add(count)?;
        Some(Self { change, first, count })
    }
}

impl<const BYTES: usize> StoredProcedure for UpdateRun<BYTES> {
    type Input = UpdatedRun;
    type Output = ();

    fn declare(&self, input: &UpdatedRun, keys: &mut KeySet) {
        for record in input.first..input.first + input.count {
            keys.push(self.table, &calc::key(record), Mode::Write, BYTES);
        }
    }

    fn run(&self, input: &UpdatedRun, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let mut computed = 0;
        (0..).zip(input.first..input.first + input.count).try_for_each(|(slot, record)| {
            update::<BYTES>(tx, Slot(slot), record, input.change, &mut computed)
        })
    }
}

/// Declares the records of a transaction, of which the first `writes` are written.
#[inline]
fn declare<const BYTES: usize>(table: TableId, records: &[u64], writes: usize, keys: &mut KeySet) {
    for (number, &record) in records.iter().enumerate() {
        let mode = if number < writes { Mode::Write } else { Mode::Read };
        keys.push(table, &calc::key(record), mode, BYTES);
    }
}

/// Reads the records of a transaction, and updates the first `writes` of them.
#[inline]
fn run<const BYTES: usize>(
    tx: &mut Tx<'_>,
    records: &[u64],
    writes: usize,
    change: Change,
    computed: &mut u64,
) -> Result<(), TxError> {
    for (slot, &record) in (0..).zip(records) {
        if (slot as usize) < writes {
            update::<BYTES>(tx, Slot(slot), record, change, computed)?;
        } else {
            let bytes = read::<BYTES>(tx, Slot(slot), record)?;
            *computed = computed.wrapping_add(calc::compute(&bytes));
        }
    }
    Ok(())
}

/// Begins a checkpoint of an engine.
///
/// # Errors
/// When a checkpoint is under way, or the scheme takes none.
pub(crate) fn start_checkpoint(name: &str, engine: &Engine) -> LabResult<()> {
    if engine.checkpoint_in_background().is_some() {
        return Ok(());
    }
    Err(failed(name, "a checkpoint is already under way"))
}

/// Status of an engine.
pub(crate) fn status(engine: &Engine) -> Status {
    let stats = engine.stats();
    let last = stats.checkpoints.last.as_ref();
    Status {
        checkpoints: stats.checkpoints.published,
        running: stats.checkpoints.running.is_some(),
        failed: stats.checkpoints.last_error.clone(),
        last_records: last.map_or(0, |done| done.records),
        last_bytes: last.map_or(0, |done| done.bytes),
        held_bytes: stats.memory_bytes as u64 + stats.journal.buffer_bytes,
        log_buffer_bytes: stats.journal.buffer_bytes,
        waiting_bytes_max: last.map_or(0, |done| done.pool_bytes_max),
        last_stopped_s: last.map_or(0.0, |done| done.stopped.as_secs_f64()),
        last_scan_s: last.map_or(0.0, |done| done.capture.as_secs_f64()),
        last_ready_s: last
            .and_then(|done| done.until_ready)
            .map_or(f64::NAN, |ready| ready.as_secs_f64()),
        stable_pool_bytes: stats.stable_pool.bytes as u64,
        stable_bytes_max: last.map_or(0, |done| done.stable_peak_bytes as u64),
        last_waits: last.map_or(0, |done| done.waits),
        last_waited_s: last.map_or(0.0, |done| done.waited.as_secs_f64()),
        journal_bytes: stats.journal.written_bytes,
        recovered: recovered(&stats.recovered),
    }
}

impl<const BYTES: usize> Checkpointed for Stillpoint<BYTES> {
    fn start_checkpoint(&self) -> LabResult<()> {
        start_checkpoint(&self.name, &self.engine)
    }

    fn merge(&self) -> LabResult<bool> {
        let merged = self.engine.merge_checkpoints().map_err(|e| failed(&self.name, e))?;
        Ok(merged.is_some())
    }

    fn status(&self) -> Status {
        status(&self.engine)
    }
}

impl<const BYTES: usize> LabEngine for Stillpoint<BYTES> {
    fn load(&self, records: u64) -> LabResult<()> {
        let threads = stillpoint_io::cpu_count() as u64;
        let part = |n: u64| records * n / threads;
        let jobs = (0..threads).map(|n| move || self.load_part(part(n)..part(n + 1))).collect();
        let done = stillpoint_io::in_parallel("load", jobs);
        done.map_err(|e| failed(&self.name, e))?.into_iter().collect()
    }

    fn session(&self) -> LabResult<Box<dyn LabSession + '_>> {
        let session = self.engine.session().map_err(|e| failed(&self.name, e))?;
        let name = self.name.clone();
        let table = self.table;
        Ok(Box::new(StillpointSession::<BYTES> { name, session, table, computed: 0 }))
    }

    fn check(&self, change: Change) -> LabResult<Check> {
        let threads = stillpoint_io::cpu_count() as u64;
        let part = |n: u64| self.records * n / threads;
        let jobs =
            (0..threads).map(|n| move || self.check_part(part(n)..part(n + 1), change)).collect();
        let parts = stillpoint_io::in_parallel("check", jobs).map_err(|e| failed(&self.name, e))?;
        let mut sum = Check::default();
        for part in parts {
            let part = part?;
            sum.records += part.records;
            sum.updates += part.updates;
        }
        // The count shows records that nobody loaded.
        sum.records = sum.records.max(self.engine.len(self.table));
        Ok(sum)
    }
}

impl<const BYTES: usize> Stillpoint<BYTES> {
    fn load_part(&self, records: std::ops::Range<u64>) -> LabResult<()> {
        let mut session = self.engine.session().map_err(|e| failed(&self.name, e))?;
        let mut first = records.start;
        while first < records.end {
            let end = (first + LOAD_RECORDS * LOAD_BATCH).min(records.end);
            let table = self.table;
            let mut batch: LoadBatch<BYTES> = LoadBatch { table, first, end, failed: None };
            session.execute(&mut batch);
            if let Some(reason) = batch.failed {
                return Err(failed(&self.name, reason));
            }
            first = end;
        }
        session.flush().map_err(|e| failed(&self.name, e))
    }

    fn check_part(&self, records: std::ops::Range<u64>, change: Change) -> LabResult<Check> {
        let mut session = self.engine.session().map_err(|e| failed(&self.name, e))?;
        let (mut check, mut value) = (Check::default(), Vec::new());
        for record in records {
            value.clear();
            let seen = session
                .read(self.table, &calc::key(record), &mut value)
                .map_err(|e| failed(&self.name, e))?;
            if seen.is_none() {
                return Err(failed(&self.name, format!("record {record} is gone")));
            }
            let checked = check.record(record, &value, BYTES, change);
            checked.map_err(|e| failed(&self.name, e))?;
        }
        Ok(check)
    }
}

/// Transactions that write records with their initial values.
struct LoadBatch<const BYTES: usize> {
    table: TableId,
    first: u64,
    end: u64,
    failed: Option<String>,
}

impl<const BYTES: usize> LoadBatch<BYTES> {
    fn records(&self, index: usize) -> std::ops::Range<u64> {
        let first = self.first + index as u64 * LOAD_RECORDS;
        first..(first + LOAD_RECORDS).min(self.end)
    }
}

impl<const BYTES: usize> Batch for LoadBatch<BYTES> {
    fn len(&self) -> usize {
        (self.end - self.first).div_ceil(LOAD_RECORDS) as usize
    }

    fn declare(&mut self, index: usize, keys: &mut KeySet) {
        for record in self.records(index) {
            keys.push(self.table, &calc::key(record), Mode::Write, BYTES);
        }
    }

    fn run(&mut self, index: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        for (slot, record) in self.records(index).enumerate() {
            tx.put_slot(Slot(slot as u32), &calc::initial_value::<BYTES>(record))?;
        }
        Ok(())
    }

    fn ended(&mut self, _index: usize, result: Result<Option<Stamp>, TxError>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error.to_string());
        }
    }
}

/// Transactions of the microbenchmark over values of one length.
struct CalcBatch<'a, const BYTES: usize> {
    table: TableId,
    transactions: &'a [CalcTransaction],
    change: Change,
    computed: u64,
    failed: Option<String>,
}

/// Reads one record.
#[inline]
fn read<const BYTES: usize>(
    tx: &mut Tx<'_>,
    slot: Slot,
    record: u64,
) -> Result<[u8; BYTES], TxError> {
    let mut bytes = [0; BYTES];
    match tx.value(slot) {
        Some(value) if value.len() == BYTES => value.read_range(0, &mut bytes),
        _ => {
            return Err(TxError::abandon(format!("record {record} is not as it was loaded")));
        }
    }
    Ok(bytes)
}

/// Reads one record, computes on it and updates it.
#[inline]
fn update<const BYTES: usize>(
    tx: &mut Tx<'_>,
    slot: Slot,
    record: u64,
    change: Change,
    computed: &mut u64,
) -> Result<(), TxError> {
    let mut bytes = read::<BYTES>(tx, slot, record)?;
    *computed = computed.wrapping_add(calc::compute(&bytes));
    match calc::update(record, &mut bytes, change) {
        changed if changed == BYTES => tx.put_slot(slot, &bytes),
        changed => tx.patch_slot(slot, 0, &bytes[..changed]),
    }
}

impl<const BYTES: usize> Batch for CalcBatch<'_, BYTES> {
    fn len(&self) -> usize {
        self.transactions.len()
    }

    #[inline]
    fn declare(&mut self, index: usize, keys: &mut KeySet) {
        let CalcTransaction { keys: records, writes } = &self.transactions[index];
        declare::<BYTES>(self.table, records, *writes, keys);
    }

    fn call(&mut self, index: usize, call: &mut Call) {
        call.set_procedure(UPDATE, <Update<BYTES> as StoredProcedure>::VERSION);
        let CalcTransaction { keys, writes } = self.transactions[index];
        Updated { change: self.change, writes: writes as u8, keys }.encode(&mut call.arguments);
    }

    #[inline]
    fn run(&mut self, index: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let CalcTransaction { keys, writes } = &self.transactions[index];
        run::<BYTES>(tx, keys, *writes, self.change, &mut self.computed)
    }

    #[inline]
    fn ended(&mut self, _index: usize, result: Result<Option<Stamp>, TxError>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error.to_string());
        }
    }
}

/// A batch write as a call, with a pause after each write.
struct LongBatch<'a, const BYTES: usize> {
    table: TableId,
    transaction: &'a LongTransaction,
    change: Change,
    pause: &'a mut dyn FnMut(),
    computed: u64,
    result: Result<(), TxError>,
}

impl<const BYTES: usize> Procedure for LongBatch<'_, BYTES> {
    fn declare(&mut self, keys: &mut KeySet) {
        let records = &self.transaction.keys;
        declare::<BYTES>(self.table, records, records.len(), keys);
    }

    fn call(&mut self, call: &mut Call) {
        call.set_procedure(UPDATE_RUN, <UpdateRun<BYTES> as StoredProcedure>::VERSION);
        let (change, keys) = (self.change, &self.transaction.keys);
        let (first, count) = (keys.first().copied().unwrap_or(0), keys.len() as u64);
        UpdatedRun { change, first, count }.encode(&mut call.arguments);
    }

    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        for (slot, &record) in (0..).zip(&self.transaction.keys) {
            update::<BYTES>(tx, Slot(slot), record, self.change, &mut self.computed)?;
            (self.pause)();
        }
        Ok(())
    }

    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.result = result.map(|_| ());
    }
}

impl<const BYTES: usize> LabSession for StillpointSession<BYTES> {
    fn run(&mut self, transactions: &[CalcTransaction], change: Change) -> LabResult<()> {
        let (table, computed) = (self.table, self.computed);
        let mut batch: CalcBatch<'_, BYTES> =
            CalcBatch { table, transactions, change, computed, failed: None };
        self.session.execute(&mut batch);
        self.computed = batch.computed;
        match batch.failed {
            None => Ok(()),
            Some(reason) => Err(failed(&self.name, reason)),
        }
    }

    fn run_long(
        &mut self,
        transaction: &LongTransaction,
        change: Change,
        pause: &mut dyn FnMut(),
    ) -> LabResult<()> {
        let (table, computed) = (self.table, self.computed);
        let mut batch: LongBatch<'_, BYTES> =
            LongBatch { table, transaction, change, pause, computed, result: Ok(()) };
        self.session.execute(std::slice::from_mut(&mut batch));
        self.computed = batch.computed;
        batch.result.map_err(|e| failed(&self.name, e))
    }

    fn idle(&mut self) {
        self.session.idle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::{self, Drive};
    use crate::subjects::records::{self, JOURNAL_ROWS, ROWS, Row};
    use crate::workloads::calc::LongTransactions;

    fn setup(dir: &Path, scheme: &str, journal: &str) -> Setup {
        Setup {
            dir: dir.to_owned(),
            scheme: scheme.into(),
            journal: journal.into(),
            pace_bytes_per_s: None,
            records: 5_003,
            value_bytes: VALUE_BYTES,
            sessions: 8,
            published_points: false,
            stable_pool_bytes: None,
        }
    }

    #[test]
    fn what_was_driven_is_there_after_reopening() -> LabResult<()> {
        for (scheme, journal) in [("calc", "none"), ("naive", "none"), ("calc", "redo")] {
            let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
            let setup = setup(dir.path(), scheme, journal);
            let engine = open(&setup)?;
            engine.load(setup.records)?;
            let long = LongTransactions { seconds: 0.05, writes: 10, open_max: 1, share: 1.0 };
            let drive = Drive {
                seconds: 0.4,
                warm_up_s: 0.0,
                long: Some(long),
                checkpoints_at_s: vec![0.1],
                ..Drive::new(setup.records)
            };
            let outcome = transactions::run(&*engine, &drive)?;
            assert!(outcome.transactions > 0 && outcome.long_transactions > 0);
            assert!(outcome.captures[0].bytes > setup.records * 108, "{:?}", outcome.captures);
            let check = engine.check(drive.change)?;
            assert_eq!(check.finish(setup.records, outcome.updates, outcome.updates), Ok(()));
            if journal == "none" {
                // Without a log the promise is the last checkpoint, so the test takes one of the
                // final state.
                let before = engine.status().checkpoints;
                engine.start_checkpoint()?;
                while engine.status().checkpoints == before {
                    crate::sys::sleep(std::time::Duration::from_millis(1));
                }
            } else {
                crate::sys::sleep(std::time::Duration::from_millis(1_200));
            }
            drop(engine);
            let again = open(&setup)?.check(drive.change)?;
            assert_eq!(again, check, "{scheme}, journal {journal}");
        }
        Ok(())
    }

    #[test]
    fn whole_values_are_checked_as_such() -> LabResult<()> {
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let setup = setup(dir.path(), "calc", "none");
        let engine = open(&setup)?;
        engine.load(setup.records)?;
        let drive = Drive { seconds: 0.2, change: Change::Whole, ..Drive::new(setup.records) };
        let outcome = transactions::run(&*engine, &drive)?;
        let check = engine.check(Change::Whole)?;
        assert_eq!(check.updates, outcome.updates);
        assert!(engine.check(Change::Counter).is_err(), "another mode's values are not these");
        Ok(())
    }

    /// Some rows have tables of another kind than the memory store.
    #[test]
    fn every_row_opens_at_the_pace_of_the_paper() -> LabResult<()> {
        let is_compared = |row: &&Row| !row.takes_checkpoints || row.is_paced();
        for row in ROWS.iter().chain(JOURNAL_ROWS.iter()).filter(is_compared) {
            let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
            let setup = records::setup(*row, 1_000, row.journal, dir.path().to_owned());
            open(&setup)?.load(10)?;
        }
        Ok(())
    }

    #[test]
    fn an_unknown_scheme_is_refused_by_name() -> LabResult<()> {
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let refused = open(&setup(dir.path(), "magic", "none")).err().map(|e| e.to_string());
        assert!(refused.is_some_and(|text| text.contains("magic")));
        Ok(())
    }
}

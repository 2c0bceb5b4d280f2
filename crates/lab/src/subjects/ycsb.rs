//! YCSB's table in the embedded engine. A record is one value, an update overwrites one of its
//! fields, and every operation is a transaction.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint::{
    Arrival, Batch, Config, Engine, Executed, KeySet, Kind, Mode, Session, Slot, Stamp, TableId,
    Tx, TxError,
};

use crate::error::LabResult;
use crate::subjects::adapter::{Checkpointed, Client, Status};
use crate::subjects::stillpoint::{failed, measured, start_checkpoint, status};
use crate::workloads::ycsb::{
    Action, FIELD_BYTES, Mix, Operation, Operations, RECORD_BYTES, check, first_record, write_field,
};

/// Records that one loading batch writes.
const LOAD_BATCH: u64 = 64;

/// A scheme and a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// The row's name in figures.
    pub(crate) name: &'static str,
    /// The scheme's registered name.
    pub(crate) scheme: &'static str,
    /// The journal's registered name.
    pub(crate) journal: &'static str,
}

/// All rows, the baseline first.
pub(crate) const ROWS: [Row; 3] = [
    Row { name: "none", scheme: "none", journal: "none" },
    Row { name: "calc", scheme: "calc", journal: "none" },
    Row { name: "calc, redo relaxed", scheme: "calc", journal: "redo" },
];

/// The engine with YCSB's table.
pub(crate) struct YcsbRecords {
    name: &'static str,
    engine: Engine,
    table: TableId,
    records: u64,
    /// Inserts of each worker over all runs so far. All runs have the same number of workers.
    inserted: Mutex<Vec<u64>>,
}

fn key(record: u64) -> [u8; 8] {
    record.to_be_bytes()
}

impl YcsbRecords {
    /// Opens the engine for a number of loaded records, in a table of this kind, and recovers the data
    /// in the directory.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) fn open(row: Row, kind: Kind, records: u64, dir: &Path) -> LabResult<Self> {
        Self::open_with(row.name, measured(dir, row.scheme, row.journal), kind, records)
    }

    /// As [`open`](Self::open), with these settings.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) fn open_with(
        name: &'static str,
        config: Config,
        kind: Kind,
        records: u64,
    ) -> LabResult<Self> {
        let opened = |e| failed(name, e);
        let engine = Engine::open(config).map_err(opened)?;
        let table = engine.table_with("usertable", kind).map_err(opened)?;
        Ok(YcsbRecords { name, engine, table, records, inserted: Mutex::default() })
    }

    /// The engine.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Closes the engine.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) fn close(self) -> LabResult<()> {
        self.engine.close().map_err(|e| failed(self.name, e))
    }

    /// Writes all records.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) fn load(&self) -> LabResult<()> {
        let threads = stillpoint_io::cpu_count() as u64;
        let part = |n: u64| self.records * n / threads;
        let jobs = (0..threads).map(|n| {
            move || {
                let mut client = self.new_client(None)?;
                let mut records = part(n)..part(n + 1);
                while !records.is_empty() {
                    let insert = |record| Operation { record, action: Action::Insert };
                    client.batch.clear();
                    client.batch.extend(records.by_ref().take(LOAD_BATCH as usize).map(insert));
                    client.execute()?;
                }
                client.session.flush().map_err(|e| failed(self.name, e))
            }
        });
        let done = stillpoint_io::in_parallel("load", jobs.collect());
        done.map_err(|e| failed(self.name, e))?.into_iter().collect()
    }

    fn new_client(&self, operations: Option<Operations>) -> LabResult<YcsbClient<'_>> {
        let session = self.engine.session().map_err(|e| failed(self.name, e))?;
        let (batch, writes, worker) = (Vec::new(), 0, 0);
        Ok(YcsbClient { subject: self, session, operations, worker, batch, writes })
    }

    /// The client of worker number `worker` out of `workers`.
    ///
    /// # Errors
    /// When there are too many sessions.
    pub(crate) fn client(
        &self,
        mix: Mix,
        workers: usize,
        worker: usize,
        seed: u64,
    ) -> LabResult<Box<dyn Client + '_>> {
        Ok(Box::new(self.ycsb_client(mix, workers, worker, seed)?))
    }

    fn ycsb_client(
        &self,
        mix: Mix,
        workers: usize,
        worker: usize,
        seed: u64,
    ) -> LabResult<YcsbClient<'_>> {
        let inserted = {
            let mut inserted = self.inserted.lock();
            inserted.resize(workers, 0);
            inserted[worker]
        };
        let operations = Operations::new(mix, self.records, workers, worker, inserted, seed);
        let client = self.new_client(Some(operations))?;
        Ok(YcsbClient { worker, writes: seed << 48 | (worker as u64) << 40, ..client })
    }

    /// As [`client`](Self::client) of a mix without ranges, for data larger than memory: the operations of a
    /// batch are those of so many users. A user who waits for a page does not keep the others waiting.
    ///
    /// # Errors
    /// When there are too many sessions.
    pub(crate) fn users(
        &self,
        mix: Mix,
        workers: usize,
        worker: usize,
        seed: u64,
    ) -> LabResult<Box<dyn Client + '_>> {
        let client = self.ycsb_client(mix, workers, worker, seed)?;
        Ok(Box::new(Users { client, waiting: Vec::new() }))
    }

    /// Reads and checks every record. Returns the number of records.
    ///
    /// # Errors
    /// The first record that is wrong, or a loaded record that is missing.
    pub(crate) fn check(&self) -> LabResult<u64> {
        let mut session = self.engine.session().map_err(|e| failed(self.name, e))?;
        let (mut cursor, mut loaded, mut wrong) = (0, 0, None);
        loop {
            let next = session.scan(self.table, cursor, 1_000, &mut |key, value| {
                let record = key.try_into().map_or(u64::MAX, u64::from_be_bytes);
                loaded += u64::from(record < self.records);
                if let Err(reason) = check(record, &value.to_vec()) {
                    wrong.get_or_insert(reason);
                }
            });
            cursor = next.map_err(|e| failed(self.name, e))?;
            if let Some(reason) = wrong {
                return Err(failed(self.name, reason));
            }
            if cursor == 0 {
                break;
            }
        }
        // A scan visits each record at least once, and may visit one twice.
        if loaded < self.records {
            let reason = format!("{loaded} of {} loaded records", self.records);
            return Err(failed(self.name, reason));
        }
        Ok(self.engine.len(self.table))
    }

    /// Inserts of each worker over all runs so far.
    pub(crate) fn inserted(&self) -> Vec<u64> {
        self.inserted.lock().clone()
    }

    /// Goes on behind the inserts of an earlier opening.
    pub(crate) fn go_on(&self, inserted: Vec<u64>) {
        *self.inserted.lock() = inserted;
    }

    /// Records that were loaded and inserted.
    pub(crate) fn written(&self) -> u64 {
        self.records + self.inserted.lock().iter().sum::<u64>()
    }
}

impl Checkpointed for YcsbRecords {
    fn start_checkpoint(&self) -> LabResult<()> {
        start_checkpoint(self.name, &self.engine)
    }

    fn status(&self) -> Status {
        status(&self.engine)
    }
}

struct YcsbClient<'a> {
    subject: &'a YcsbRecords,
    session: Session,
    operations: Option<Operations>,
    worker: usize,
    batch: Vec<Operation>,
    /// Gives each write of all workers and runs a number of its own.
    writes: u64,
}

impl YcsbClient<'_> {
    fn execute(&mut self) -> LabResult<()> {
        for at in 0..self.batch.len() {
            let Operation { record, action } = self.batch[at];
            if let Action::Range(records) = action {
                self.read_range(record, records)?;
            }
        }
        self.batch.retain(|operation| !matches!(operation.action, Action::Range(_)));
        self.running(|session, running| session.execute(running))
    }

    /// Runs the batch, whose operations are no ranges. Ends before the first operation whose page is not in
    /// memory, and returns the page.
    fn execute_here(&mut self) -> LabResult<Option<Arc<dyn Arrival>>> {
        let executed = self.running(|session, running| session.execute_here(running, 0))?;
        Ok(match executed {
            Executed::All => None,
            Executed::Before { arrivals, .. } => arrivals.into_iter().next(),
        })
    }

    fn running<R>(
        &mut self,
        run: impl FnOnce(&mut Session, &mut Running<'_>) -> R,
    ) -> LabResult<R> {
        let YcsbClient { subject, session, batch, writes, .. } = self;
        let table = subject.table;
        let mut running =
            Running { table, batch, writes, computed: 0, failed: None, record: [0; RECORD_BYTES] };
        let done = run(session, &mut running);
        std::hint::black_box(running.computed);
        running.failed.map_or(Ok(done), |reason| Err(failed(subject.name, reason)))
    }
}

impl YcsbClient<'_> {
    /// Reads records in the order of keys, in a transaction of its own, and looks whether they are in
    /// order.
    fn read_range(&mut self, first: u64, records: usize) -> LabResult<()> {
        let table = self.subject.table;
        let read = self.session.transact(|tx| {
            let (mut at, mut computed, mut bytes) = (0, 0u64, [0; RECORD_BYTES]);
            let mut expected = first;
            let mut range = tx.range(table, &key(first)[..]..)?;
            while at < records
                && let Some((found, value)) = range.next_record()?
            {
                let record = found.try_into().map_or(0, u64::from_be_bytes);
                // Loaded records follow each other without a gap.
                let is_next = record == expected || at > 0 && record > expected;
                if !is_next || value.len() != RECORD_BYTES {
                    return Err(TxError::abandon(format!("record {record} follows {first}, {at}")));
                }
                value.read_range(0, &mut bytes);
                computed = computed.wrapping_add(u64::from(bytes[RECORD_BYTES - 1]));
                (at, expected) = (at + 1, record + 1);
            }
            Ok(computed)
        });
        std::hint::black_box(read.map_err(|e| failed(self.subject.name, e))?);
        Ok(())
    }
}

impl YcsbClient<'_> {
    /// Draws the batch and runs it.
    fn run_drawn<R>(
        &mut self,
        count: usize,
        run: impl FnOnce(&mut Self) -> LabResult<R>,
    ) -> LabResult<R> {
        let operations = self.operations.as_mut().expect("a client that draws has a mix");
        let before = operations.inserted();
        self.batch.clear();
        self.batch.extend((0..count).map(|_| operations.draw()));
        let inserted = operations.inserted();
        let done = run(self)?;
        if inserted != before {
            self.subject.inserted.lock()[self.worker] = inserted;
        }
        Ok(done)
    }
}

impl Client for YcsbClient<'_> {
    fn run(&mut self, count: usize) -> LabResult<usize> {
        self.run_drawn(count, Self::execute)?;
        Ok(count)
    }

    fn idle(&mut self) {
        self.session.idle();
    }
}

/// Users of one worker. Each has one operation under way.
struct Users<'a> {
    client: YcsbClient<'a>,
    /// The operations that wait for a page, the oldest first.
    waiting: Vec<(Operation, Arc<dyn Arrival>)>,
}

impl Users<'_> {
    /// Goes on with all operations whose page has come. Returns how many have ended.
    fn go_on(&mut self) -> LabResult<usize> {
        let before = self.waiting.len();
        for (operation, arrival) in std::mem::take(&mut self.waiting) {
            if !arrival.has_arrived() {
                self.waiting.push((operation, arrival));
                continue;
            }
            self.client.batch.clear();
            self.client.batch.push(operation);
            let again = self.client.execute_here()?;
            self.waiting.extend(again.map(|arrival| (operation, arrival)));
        }
        Ok(before - self.waiting.len())
    }

    /// Begins the operation of a user who has none under way. Returns whether it has ended.
    fn begin(&mut self) -> LabResult<bool> {
        let waits_for = self.client.run_drawn(1, |client| {
            // The reads that are drawn next may be of this record.
            let inserts = client.batch[0].action == Action::Insert;
            if inserts { client.execute().map(|()| None) } else { client.execute_here() }
        })?;
        let has_ended = waits_for.is_none();
        let operation = self.client.batch[0];
        self.waiting.extend(waits_for.map(|arrival| (operation, arrival)));
        Ok(has_ended)
    }
}

impl Client for Users<'_> {
    fn run(&mut self, count: usize) -> LabResult<usize> {
        let mut ended = 0;
        while ended < count {
            ended += self.go_on()?;
            while ended < count && self.waiting.len() < count {
                ended += usize::from(self.begin()?);
            }
            if ended < count
                && let Some((_, oldest)) = self.waiting.first()
            {
                oldest.wait().map_err(|e| failed(self.client.subject.name, e))?;
            }
        }
        Ok(ended)
    }

    fn idle(&mut self) {
        self.client.idle();
    }
}

struct Running<'a> {
    table: TableId,
    batch: &'a [Operation],
    writes: &'a mut u64,
    /// Checksum of the reads, kept so that the compiler cannot remove them.
    computed: u64,
    failed: Option<String>,
    record: [u8; RECORD_BYTES],
}

impl Running<'_> {
    #[inline]
    fn read(&mut self, record: u64, tx: &mut Tx<'_>) -> Result<(), TxError> {
        match tx.value(Slot(0)) {
            Some(value) if value.len() == RECORD_BYTES => value.read_range(0, &mut self.record),
            _ => return Err(TxError::abandon(format!("record {record} is not as it was loaded"))),
        }
        self.computed = self.computed.wrapping_add(u64::from(self.record[RECORD_BYTES - 1]));
        Ok(())
    }

    #[inline]
    fn write(&mut self, record: u64, field: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        *self.writes += 1;
        let mut bytes = [0; FIELD_BYTES];
        write_field(&mut bytes, record, field, *self.writes);
        tx.patch_slot(Slot(0), field * FIELD_BYTES, &bytes)
    }
}

impl Batch for Running<'_> {
    fn len(&self) -> usize {
        self.batch.len()
    }

    #[inline]
    fn declare(&mut self, index: usize, keys: &mut KeySet) {
        let Operation { record, action } = self.batch[index];
        let mode = if action == Action::Read { Mode::Read } else { Mode::Write };
        keys.push(self.table, &key(record), mode, RECORD_BYTES);
    }

    #[inline]
    fn run(&mut self, index: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let Operation { record, action } = self.batch[index];
        match action {
            Action::Read => self.read(record, tx),
            Action::Update(field) => self.write(record, field, tx),
            Action::Insert => tx.put_slot(Slot(0), &first_record(record)),
            Action::ReadModifyWrite(field) => {
                self.read(record, tx)?;
                self.write(record, field, tx)
            }
            Action::Range(_) => unreachable!("ranges have run before"),
        }
    }

    fn ended(&mut self, _index: usize, result: Result<Option<Stamp>, TxError>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::{Drive, run_clients};
    use crate::subjects::records::records_commits;
    use crate::workloads::ycsb::{MIXES, RANGES};

    #[test]
    fn every_mix_leaves_sound_records_and_they_come_back() -> LabResult<()> {
        for row in ROWS {
            let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
            let subject = YcsbRecords::open(row, Kind::Ordered, 2_000, dir.path())?;
            subject.load()?;
            for mix in MIXES.into_iter().chain([RANGES]) {
                let drive = Drive { seconds: 0.1, warm_up_s: 0.0, ..Drive::new(0) };
                let client = |worker| subject.client(mix, 2, worker, 3);
                let outcome = run_clients(&subject, &drive, &client)?;
                assert!(outcome.transactions > 0, "{}", mix.name);
            }
            let written = subject.written();
            assert!(written > 2_000, "workloads D and E insert");
            assert_eq!(subject.check()?, written);
            if !records_commits(row.journal) {
                continue;
            }
            crate::sys::sleep(std::time::Duration::from_millis(1_200));
            drop(subject);
            let again = YcsbRecords::open(row, Kind::Ordered, 2_000, dir.path())?;
            assert_eq!(again.check()?, written, "{}", row.name);
        }
        Ok(())
    }
}

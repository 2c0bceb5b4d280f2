//! The kind of paged tables over a backing in memory, with a log in memory.

#[cfg(not(any(loom, shuttle)))]
pub(crate) mod large;
pub(crate) mod memory;
#[cfg(not(any(loom, shuttle)))]
pub(crate) mod protocols;
#[cfg(not(any(loom, shuttle)))]
pub(crate) mod random;
#[cfg(not(any(loom, shuttle)))]
pub(crate) mod scans;
#[cfg(not(any(loom, shuttle)))]
pub(crate) mod threads;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use stillpoint_format::page_log::PageRecord;
use stillpoint_format::{LOG_NONE, Stamp};
pub(crate) use stillpoint_paged::{
    Backing, BackingError, DirtyFrames, NewPage, Paged, PendingRead, Pool, Purpose,
};
use stillpoint_sync::lock_word::Priority;
use stillpoint_sync::{Backoff, Mutex};
use stillpoint_txn::{
    Discipline, KeyList, KindKey, KindPart, KindRange, KindTable, Lane, LogRefused, Mode,
    Operation, OperationLog, Presence, RangeBatch, TableId, TableKind, TxError,
};

use memory::{InMemory, Memory};

pub(crate) type Map = BTreeMap<Vec<u8>, Vec<u8>>;
/// Of each log, a gsn up to which no record is replayed.
pub(crate) type Positions = BTreeMap<u8, u64>;
pub(crate) const TABLE: TableId = TableId(3);

/// A record of the log.
#[derive(Clone, Debug)]
pub(crate) struct Logged {
    pub(crate) stamp: Stamp,
    pub(crate) table: TableId,
    pub(crate) body: Vec<u8>,
}

/// All logs, with records in the order of their appends.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    pub(crate) records: Vec<Logged>,
    pub(crate) last: BTreeMap<u8, u64>,
    /// The last record of each page.
    pub(crate) of_pages: BTreeMap<u64, Stamp>,
}

impl Logs {
    /// Checks that a record depends on the last one of each page that it changes, whichever log has it. A
    /// crash that takes that one away takes this one away, too.
    fn check_order(&mut self, logged: &Logged, touched: &[Stamp]) {
        let record = PageRecord::decode(&logged.body).expect("a record");
        let (changed, new) = match record {
            PageRecord::Change { page, .. }
            | PageRecord::Undo { page, .. }
            | PageRecord::Patch { page, .. }
            | PageRecord::Restore { page, .. }
            | PageRecord::Purge { page, .. } => (vec![page], None),
            PageRecord::Split { left, right, parent, .. }
            | PageRecord::Load { left, right, parent, .. } => (vec![left, parent], Some(right)),
            PageRecord::Raise { root, child, .. } => (vec![root], Some(child)),
            PageRecord::Merge { left, right, parent, .. } => (vec![left, right, parent], None),
            // Pages of large values are written once, and found by no descent.
            PageRecord::Kept | PageRecord::Large { .. } | PageRecord::Freed { .. } => return,
        };
        for page in &changed {
            if let Some(last) = self.of_pages.get(page) {
                assert!(touched.contains(last), "{record:?} does not name {last:?} of page {page}");
            }
        }
        for page in changed.into_iter().chain(new) {
            self.of_pages.insert(page, logged.stamp);
        }
    }
}

/// The log of one session.
pub(crate) struct Log {
    pub(crate) logs: Arc<Mutex<Logs>>,
    pub(crate) number: u8,
    /// The operations of the open transaction.
    pub(crate) done: Vec<Logged>,
    pub(crate) is_undoing: bool,
    /// Whether records are kept and checked. A benchmark does neither.
    pub(crate) is_checked: bool,
    pub(crate) last: Stamp,
    /// Appends that are refused for want of room.
    pub(crate) refusals: u64,
    /// Called by an append that has its record, while the page is still latched.
    pub(crate) on_append: Option<Box<dyn FnMut() + Send>>,
}

impl OperationLog for Log {
    fn append(&mut self, operation: &Operation<'_>) -> Result<Stamp, LogRefused> {
        if self.refusals > 0 {
            self.refusals -= 1;
            return Err(LogRefused::NoRoom);
        }
        let mut logs = self.logs.lock();
        let last = logs.last.get(&self.number).copied().unwrap_or(0);
        let touched = operation.touched.iter().chain([&self.last]).map(|stamp| stamp.gsn());
        let gsn = 1 + touched.fold(last, u64::max);
        let stamp = Stamp::new(gsn, self.number);
        logs.last.insert(self.number, gsn);
        let logged = Logged { stamp, table: operation.table, body: operation.body.to_vec() };
        if self.is_checked {
            logs.check_order(&logged, operation.touched);
            logs.records.push(logged.clone());
        }
        self.last = stamp;
        drop(logs);
        if !self.is_undoing {
            self.done.push(logged);
        }
        if let Some(on_append) = &mut self.on_append {
            on_append();
        }
        Ok(stamp)
    }

    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        Ok(())
    }
}

/// A kind with one table.
pub(crate) struct World {
    pub(crate) kind: Arc<Paged>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) logs: Arc<Mutex<Logs>>,
}

fn disk() -> stillpoint_io::SimDisk {
    stillpoint_io::SimDisk::new(1)
}

impl World {
    pub(crate) fn new(frames: usize, page_bytes: usize, seed: u64) -> Self {
        let memory = Memory::new(page_bytes, seed);
        Self::over(memory, (frames, page_bytes), (1, None), Arc::default())
    }

    /// A kind with a table of this generation and with this section.
    pub(crate) fn over(
        memory: Arc<Memory>,
        (frames, page_bytes): (usize, usize),
        (generation, section): (u32, Option<&str>),
        logs: Arc<Mutex<Logs>>,
    ) -> Self {
        let backing = Arc::new(InMemory(memory.clone()));
        let pool = Pool::new(frames, page_bytes, backing).expect("a small pool");
        let kind = Paged::new(pool, 7);
        let table = KindTable { id: TABLE, generation, section };
        kind.add_table(&table, &disk()).expect("a table");
        Self { kind, memory, logs }
    }

    pub(crate) fn session(&self, number: u8) -> Session {
        let log = Log {
            logs: self.logs.clone(),
            number,
            done: Vec::new(),
            is_undoing: false,
            is_checked: true,
            last: Stamp::NONE,
            refusals: 0,
            on_append: None,
        };
        let part = self.kind.clone().new_part();
        Session { kind: self.kind.clone(), part, log, priority: Priority::undeclared(0) }
    }

    /// Takes a checkpoint; gives the table's section and the positions of the logs before it.
    pub(crate) fn checkpoint(&self, is_published: bool) -> (String, Positions) {
        let positions = self.logs.lock().last.clone();
        let sections = self.kind.checkpoint(&disk()).expect("it writes").expect("it takes part");
        self.kind.checkpoint_ended(&disk(), is_published);
        (sections[0].1.clone(), positions)
    }

    /// Starts again after a crash: the section's pages, and all records above the positions.
    pub(crate) fn restart(
        &self,
        frames: usize,
        page_bytes: usize,
        section: Option<&(String, Positions)>,
        seed: u64,
    ) -> Self {
        let lanes = if cfg!(shuttle) { 1 } else { 1 + seed as usize % 3 };
        self.restart_in(lanes, (frames, page_bytes), section, seed)
    }

    /// As [`restart`](Self::restart), in so many lanes.
    pub(crate) fn restart_in(
        &self,
        lanes: usize,
        (frames, page_bytes): (usize, usize),
        section: Option<&(String, Positions)>,
        seed: u64,
    ) -> Self {
        let text = section.map(|(text, _)| &**text);
        let (memory, logs) = (self.memory.crash(seed), self.logs.clone());
        let after = Self::over(memory, (frames, page_bytes), (1, text), logs);
        let mut records = self.logs.lock().records.clone();
        if let Some((_, positions)) = section {
            records.retain(|record| {
                positions.get(&record.stamp.log()).is_none_or(|&at| record.stamp.gsn() > at)
            });
        }
        records.sort_by_key(|record| record.stamp);
        let redo = |lane| {
            let (kind, records) = (&after.kind, &records);
            move || {
                for Logged { table, stamp, body } in records {
                    kind.redo_in((*table, *stamp), body, lane).expect("it fits");
                }
            }
        };
        stillpoint_io::in_parallel("lane", Lane::all(lanes).map(redo).collect()).expect("no panic");
        after.kind.replay_ended().expect("all pages can be read");
        after
    }

    /// Checks that each page in the backing belongs to the tree, behind a checkpoint.
    pub(crate) fn assert_no_page_is_lost(&self) {
        self.checkpoint(false);
        let summary = self.kind.pool().check_table(TABLE).expect("a sound tree");
        let pages = self.memory.pages();
        let lost: Vec<_> = pages.keys().filter(|page| !summary.pages.contains(page)).collect();
        assert!(lost.is_empty(), "pages that nothing leads to: {lost:?}");
    }

    /// The committed value of a key, read without a lock. `None` if a transaction may be changing it.
    pub(crate) fn read(&self, key: &[u8]) -> Option<Option<Vec<u8>>> {
        let mut out = Vec::new();
        let read = until(|| self.kind.read(TABLE, key, &mut out)).expect("a key of a table");
        read.map(|read| read.tag.map(|_| out))
    }

    /// All records, read by ranges, and a check of the tree.
    pub(crate) fn content(&self) -> Map {
        let summary = self.kind.pool().check_table(TABLE).expect("a sound tree");
        let map = self.session(9).transact(|tx| tx.range(.., usize::MAX)).expect("reads");
        assert_eq!(summary.records as usize, map.len());
        assert_eq!(self.kind.record_count(TABLE) as usize, map.len(), "the counted number");
        map
    }
}

/// A session with one transaction at a time.
pub(crate) struct Session {
    kind: Arc<Paged>,
    pub(crate) part: Box<dyn KindPart>,
    pub(crate) log: Log,
    priority: Priority,
}

/// The locks of a thread that has panicked would keep the others waiting for ever.
impl Drop for Session {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.part.release(None);
        }
    }
}

/// A running transaction.
pub(crate) struct Tx<'s> {
    session: &'s mut Session,
}

fn until<T>(mut step: impl FnMut() -> Result<Presence<T>, TxError>) -> Result<T, TxError> {
    loop {
        match step()? {
            Presence::Here(found) => return Ok(found),
            Presence::NotHere(arrival) => arrival.wait()?,
        }
    }
}

impl Tx<'_> {
    pub(crate) fn lock(&mut self, key: &[u8], mode: Mode) -> Result<u32, TxError> {
        let asked = KindKey { table: TABLE, key, mode };
        until(|| self.session.part.lock(asked, &|| true))
    }

    pub(crate) fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, TxError> {
        let slot = self.lock(key, Mode::Read)?;
        let mut out = Vec::new();
        Ok(self.session.part.value(slot, &mut out).map(|_| out))
    }

    pub(crate) fn put(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), TxError> {
        let slot = self.lock(key, Mode::Write)?;
        let Session { part, log, .. } = &mut *self.session;
        until(|| part.put(slot, value.map(|value| (0, value)), log, &|| true))
    }

    /// The records of a range, up to `most`.
    pub(crate) fn range<'k>(
        &mut self,
        bounds: impl std::ops::RangeBounds<&'k [u8]>,
        most: usize,
    ) -> Result<Map, TxError> {
        self.range_in(bounds, most, false)
    }

    /// The records of a range, up to `most`, from its lower end on or from its upper end down.
    pub(crate) fn range_in<'k>(
        &mut self,
        bounds: impl std::ops::RangeBounds<&'k [u8]>,
        most: usize,
        is_descending: bool,
    ) -> Result<Map, TxError> {
        let (mut map, mut batch) = (Map::new(), RangeBatch::default());
        let mut next: Option<Vec<u8>> = None;
        loop {
            let mut lower = bounds.start_bound().map(|key| *key);
            let mut upper = bounds.end_bound().map(|key| *key);
            match &next {
                Some(key) if is_descending => upper = Bound::Excluded(&key[..]),
                Some(key) => lower = Bound::Included(&key[..]),
                None => {}
            }
            let range = KindRange { table: TABLE, lower, upper, is_descending };
            until(|| self.session.part.range(&range, &|| true, &mut batch))?;
            let records = (0..batch.len()).map(|number| batch.record(number));
            let ordered = records.clone().map(|(key, ..)| key);
            assert!(if is_descending { ordered.rev().is_sorted() } else { ordered.is_sorted() });
            map.extend(records.map(|(key, _, value)| (key.to_vec(), value.to_vec())));
            if batch.is_end || map.len() >= most {
                return Ok(map);
            }
            next = Some(batch.next.clone());
        }
    }
}

impl Session {
    /// Runs a transaction until it commits or gives up. A conflict runs it again.
    pub(crate) fn transact<R>(
        &mut self,
        mut body: impl FnMut(&mut Tx<'_>) -> Result<R, TxError>,
    ) -> Result<R, TxError> {
        use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
        static NEXT: AtomicU64 = AtomicU64::new(1);
        self.priority = Priority::undeclared(NEXT.fetch_add(1, Relaxed));
        let mut backoff = Backoff::new();
        loop {
            self.log.last = Stamp::NONE;
            self.log.done.clear();
            self.part.begin(self.priority, Discipline::WaitDie);
            match body(&mut Tx { session: self }) {
                Ok(result) => {
                    self.end(true);
                    return Ok(result);
                }
                Err(error) => {
                    self.undo();
                    self.end(false);
                    if !matches!(error, TxError::Conflict) {
                        return Err(error);
                    }
                    backoff.wait();
                }
            }
        }
    }

    /// Reads keys as transactions of one key each that share a run. All keys are asked for first. `None` for a
    /// key that has to be locked.
    pub(crate) fn read_alone(&mut self, keys: &[Vec<u8>]) -> Vec<Option<Option<Vec<u8>>>> {
        let (mut asked, mut awaited) = (KeyList::default(), Vec::new());
        for key in keys {
            asked.push(KindKey { table: TABLE, key, mode: Mode::Read });
        }
        self.part.ask(&asked, &mut |_, arrival| awaited.push(arrival));
        awaited.iter().for_each(|arrival| arrival.wait().expect("it arrives"));
        self.part.begin(Priority::DECLARED, Discipline::Declared);
        let read = asked.iter().map(|key| {
            let slot = until(|| self.part.read_alone(key)).expect("a key of a table")?;
            let mut out = Vec::new();
            Some(self.part.value(slot, &mut out).map(|_| out))
        });
        let found = read.collect();
        self.part.release(None);
        found
    }

    /// Begins a transaction that the caller ends.
    pub(crate) fn begin(&mut self, age: u64) {
        self.log.last = Stamp::NONE;
        self.log.done.clear();
        self.part.begin(Priority::undeclared(age), Discipline::WaitDie);
    }

    /// The open transaction.
    pub(crate) fn tx(&mut self) -> Tx<'_> {
        Tx { session: self }
    }

    /// Rolls the open transaction back.
    pub(crate) fn roll_back(&mut self) {
        self.undo();
        self.end(false);
    }

    fn undo(&mut self) {
        self.log.is_undoing = true;
        while let Some(done) = self.log.done.pop() {
            self.kind.undo(done.table, &done.body, &mut self.log).expect("it undoes");
        }
        self.log.is_undoing = false;
    }

    pub(crate) fn end(&mut self, commits: bool) {
        let mut touched = Vec::new();
        self.part.touched(&mut touched);
        let end = (self.log.last != Stamp::NONE).then(|| {
            let mut logs = self.log.logs.lock();
            let last = logs.last.get(&self.log.number).copied().unwrap_or(0);
            let gsn = 1 + touched.iter().map(|stamp| stamp.gsn()).fold(last, u64::max);
            logs.last.insert(self.log.number, gsn);
            Stamp::new(gsn, self.log.number)
        });
        if commits {
            self.part.prepare().expect("nothing fails");
            self.part.install(end.unwrap_or(Stamp::new(0, LOG_NONE)));
        }
        self.part.release(end);
    }
}

//! SIREN as a kind of table, with a log in memory. Random transactions beside a map, some of them open across
//! checkpoints and crashes; and threads that look for phantoms.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use stillpoint_format::ident::StoreId;
use stillpoint_format::{LOG_NONE, Stamp};
use stillpoint_io::{Clock, ManualClock, OpenMode, RealClock, Rng, SeededRng, SimDisk};
use stillpoint_siren::{Config, KindConfig, Removes, Siren};
use stillpoint_sync::lock_word::Priority;
use stillpoint_sync::{Backoff, Mutex};
use stillpoint_txn::{
    Discipline, KeyList, KindKey, KindPart, KindRange, KindTable, LogRefused, Mode, Operation,
    OperationLog, Presence, RangeBatch, TableId, TableKind, TxError,
};

#[path = "declared.rs"]
pub(crate) mod declared;
#[cfg(shuttle)]
#[path = "gaps.rs"]
pub(crate) mod gaps;
#[cfg(not(shuttle))]
#[path = "interactive.rs"]
pub(crate) mod interactive;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
/// Of each log, a gsn up to which no record is replayed.
type Positions = BTreeMap<u8, u64>;
const TABLE: TableId = TableId(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Operation,
    Undo,
    End,
}

/// A record of the log.
#[derive(Clone, Debug)]
struct Logged {
    stamp: Stamp,
    /// Number of the run.
    run: u64,
    sort: Sort,
    body: Vec<u8>,
}

/// All logs, with records in the order of their appends.
#[derive(Debug, Default)]
struct Logs {
    records: Vec<Logged>,
    last: Positions,
}

impl Logs {
    /// For each log, a gsn below which no open run begins.
    fn positions(&self) -> Positions {
        let mut positions = self.last.clone();
        for record in self.records.iter().filter(|record| record.sort == Sort::Operation) {
            let ends = |it: &&Logged| it.run == record.run && it.sort == Sort::End;
            if !self.records.iter().any(|it| ends(&it)) {
                let position = positions.entry(record.stamp.log()).or_default();
                *position = (*position).min(record.stamp.gsn() - 1);
            }
        }
        positions
    }

    fn append(
        &mut self,
        log: u8,
        touched: impl Iterator<Item = u64>,
        of: (u64, Sort, &[u8]),
    ) -> Stamp {
        let gsn = 1 + touched.fold(self.last.get(&log).copied().unwrap_or(0), u64::max);
        let (stamp, (run, sort, body)) = (Stamp::new(gsn, log), of);
        self.last.insert(log, gsn);
        self.records.push(Logged { stamp, run, sort, body: body.to_vec() });
        stamp
    }
}

/// The log of one session.
struct Log {
    logs: Arc<Mutex<Logs>>,
    number: u8,
    run: u64,
    done: Vec<Vec<u8>>,
    is_undoing: bool,
    last: Stamp,
    /// Appends that are refused for want of room.
    refusals: u64,
}

impl OperationLog for Log {
    fn append(&mut self, operation: &Operation<'_>) -> Result<Stamp, LogRefused> {
        if self.refusals > 0 {
            self.refusals -= 1;
            return Err(LogRefused::NoRoom);
        }
        let touched = operation.touched.iter().chain([&self.last]).map(|stamp| stamp.gsn());
        let sort = if self.is_undoing { Sort::Undo } else { Sort::Operation };
        let of = (self.run, sort, operation.body);
        self.last = self.logs.lock().append(self.number, touched, of);
        if !self.is_undoing {
            self.done.push(operation.undo.to_vec());
        }
        Ok(self.last)
    }

    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        Ok(())
    }
}

/// The kind with one table.
struct World {
    kind: Arc<Siren>,
    disk: SimDisk,
    logs: Arc<Mutex<Logs>>,
    removes: Removes,
}

impl World {
    fn new(removes: Removes) -> Self {
        let (disk, logs) = (SimDisk::new(1), Arc::default());
        Self { kind: open(&disk, removes, None), disk, logs, removes }
    }

    fn session(&self, number: u8) -> Session {
        Session {
            kind: self.kind.clone(),
            part: self.kind.clone().new_part(),
            log: self.log(number),
        }
    }

    fn log(&self, number: u8) -> Log {
        let (logs, last) = (self.logs.clone(), Stamp::NONE);
        Log { logs, number, run: 0, done: Vec::new(), is_undoing: false, last, refusals: 0 }
    }

    /// Takes a checkpoint; gives the table's section and the positions of the logs before it.
    fn checkpoint(&self, is_published: bool) -> (String, Positions) {
        let positions = self.logs.lock().positions();
        let sections = self.kind.checkpoint(&self.disk).expect("it writes").expect("it takes part");
        self.kind.checkpoint_ended(&self.disk, is_published);
        (sections[0].1.clone(), positions)
    }

    /// Starts again after a crash: what the section names, and all records above the positions. Runs
    /// without an end are undone.
    fn restart(&self, section: Option<&(String, Positions)>, seed: u64) -> Self {
        let (disk, logs) = (self.disk.crash_image(seed), self.logs.clone());
        let kind = open(&disk, self.removes, section.map(|(text, _)| &**text));
        let after = Self { kind, disk, logs, removes: self.removes };
        let mut records = {
            let logs = &mut *after.logs.lock();
            // The gsns of an incarnation are above all earlier ones.
            let floor = logs.last.values().copied().max().unwrap_or(0);
            logs.last = (0..10).map(|log| (log, floor)).collect();
            logs.records.clone()
        };
        records.sort_by_key(|record| record.stamp);
        let mut open: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
        for Logged { stamp, run, sort, body } in records {
            let position = section.and_then(|(_, positions)| positions.get(&stamp.log()));
            if position.is_some_and(|&position| stamp.gsn() <= position) {
                continue;
            }
            match sort {
                Sort::Operation => open.entry(run).or_default().push(body.clone()),
                Sort::Undo => drop(open.entry(run).or_default().pop()),
                Sort::End => drop(open.remove(&run)),
            }
            if sort != Sort::End {
                after.kind.redo(TABLE, stamp, &body).expect("it fits");
            }
        }
        for (run, done) in open {
            let mut log = after.log(0);
            (log.run, log.is_undoing) = (run, true);
            for body in done.iter().rev() {
                after.kind.undo(TABLE, body, &mut log).expect("it undoes");
            }
            after.logs.lock().append(0, [log.last.gsn()].into_iter(), (run, Sort::End, &[]));
        }
        after
    }

    /// All committed records, while no transaction is open.
    fn content(&self) -> Map {
        let map = self.session(9).transact(|tx| tx.range(.., usize::MAX)).expect("reads");
        let back = self.session(9).transact(|tx| tx.read(.., usize::MAX, true)).expect("reads");
        assert!(back == map, "from the end: {back:?} is not {map:?}");
        self.kind.check().expect("sound pages");
        assert_eq!(self.kind.record_count(TABLE) as usize, map.len(), "the counted number");
        assert_eq!(self.kind.stats().tuples as usize, map.len(), "no version is left");
        map
    }
}

fn open(disk: &SimDisk, removes: Removes, section: Option<&str>) -> Arc<Siren> {
    let config = Config {
        removes,
        page_bytes: 4096,
        page_buffers: 2,
        fill_percent: 15,
        sessions: 8,
        clock: Arc::new(ManualClock::self_advancing(1)),
        ..Config::default()
    };
    let settings = KindConfig { store: StoreId([7; 16]), memory_bytes: 1 << 30, config };
    let table = KindTable { id: TABLE, generation: 1, section };
    let kind = Siren::open(disk, settings, OpenMode::ReadWrite, &[table]).expect("opens");
    kind.add_table(&table, disk).expect("a table");
    kind
}

/// A session with one transaction at a time.
struct Session {
    kind: Arc<Siren>,
    part: Box<dyn KindPart>,
    log: Log,
}

/// A running transaction.
struct Tx<'s> {
    session: &'s mut Session,
    waits: bool,
}

fn here<T>(found: Result<Presence<T>, TxError>) -> Result<T, TxError> {
    match found? {
        Presence::Here(found) => Ok(found),
        Presence::NotHere(_) => panic!("all keys are in memory"),
    }
}

impl Tx<'_> {
    fn lock(&mut self, key: &[u8], mode: Mode) -> Result<u32, TxError> {
        let (asked, waits) = (KindKey { table: TABLE, key, mode }, self.waits);
        here(self.session.part.lock(asked, &|| waits))
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, TxError> {
        let slot = self.lock(key, Mode::Read)?;
        let mut out = Vec::new();
        Ok(self.session.part.value(slot, &mut out).map(|_| out))
    }

    fn put(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), TxError> {
        let slot = self.lock(key, Mode::Write)?;
        let waits = self.waits;
        let Session { part, log, .. } = &mut *self.session;
        here(part.put(slot, value.map(|value| (0, value)), log, &|| waits))
    }

    /// The records of a range, up to `most`.
    fn range<'k>(
        &mut self,
        bounds: impl std::ops::RangeBounds<&'k [u8]>,
        most: usize,
    ) -> Result<Map, TxError> {
        self.read(bounds, most, false)
    }

    /// As [`range`](Self::range), from either end.
    fn read<'k>(
        &mut self,
        bounds: impl std::ops::RangeBounds<&'k [u8]>,
        most: usize,
        is_descending: bool,
    ) -> Result<Map, TxError> {
        let (mut map, mut batch, waits) = (Map::new(), RangeBatch::default(), self.waits);
        let mut next: Option<Vec<u8>> = None;
        loop {
            let (mut lower, mut upper) =
                (bounds.start_bound().map(|key| *key), bounds.end_bound().map(|key| *key));
            match (&next, is_descending) {
                (None, _) => {}
                (Some(next), false) => lower = Bound::Included(next),
                (Some(next), true) => upper = Bound::Excluded(next),
            }
            let range = KindRange { table: TABLE, lower, upper, is_descending };
            here(self.session.part.range(&range, &|| waits, &mut batch))?;
            for number in 0..batch.len() {
                let (key, _, value) = batch.record(number);
                let is_in_order = match is_descending {
                    true => map.first_key_value().is_none_or(|(above, _)| **above > *key),
                    false => map.last_key_value().is_none_or(|(below, _)| **below < *key),
                };
                assert!(is_in_order, "{key:?} is out of order");
                map.insert(key.to_vec(), value.to_vec());
            }
            if batch.is_end || map.len() >= most {
                return Ok(map);
            }
            next = Some(batch.next.clone());
        }
    }
}

fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, SeqCst)
}

impl Session {
    fn new_run(&mut self) {
        self.log.run = next_number();
        self.log.last = Stamp::NONE;
        self.log.done.clear();
    }

    fn begin(&mut self, number: u64) {
        self.new_run();
        self.part.begin(Priority::undeclared(number), Discipline::WaitDie);
    }

    /// Runs a transaction until it commits or gives up. A conflict runs it again.
    fn transact<R>(
        &mut self,
        mut body: impl FnMut(&mut Tx<'_>) -> Result<R, TxError>,
    ) -> Result<R, TxError> {
        let (number, mut backoff) = (next_number(), Backoff::new());
        loop {
            self.begin(number);
            let ended = body(&mut Tx { session: self, waits: true });
            self.end(ended.is_ok());
            match ended {
                Err(TxError::Conflict) => backoff.wait(),
                ended => return ended,
            }
        }
    }

    fn undo_from(&mut self, from: usize) {
        self.log.is_undoing = true;
        while self.log.done.len() > from {
            let body = self.log.done.pop().expect("it was counted");
            self.kind.undo(TABLE, &body, &mut self.log).expect("it undoes");
        }
        self.log.is_undoing = false;
    }

    fn end(&mut self, commits: bool) {
        if commits && self.part.deferred_bytes() > 0 {
            return self.commit_deferred(&|| ());
        }
        if !commits {
            self.undo_from(0);
        }
        let mut touched = Vec::new();
        self.part.touched(&mut touched);
        let end = (self.log.last != Stamp::NONE).then(|| {
            let touched = touched.iter().chain([&self.log.last]).map(|stamp| stamp.gsn());
            self.log.logs.lock().append(self.log.number, touched, (self.log.run, Sort::End, &[]))
        });
        if commits {
            self.part.prepare().expect("nothing fails");
            self.part.install(end.unwrap_or(Stamp::new(0, LOG_NONE)));
        }
        self.part.release(end);
    }
}

fn key(rng: &SeededRng) -> Vec<u8> {
    format!("key {:02}", rng.below(40)).into_bytes()
}

/// A value. A few take more than a page, and are stored on several.
fn value(rng: &SeededRng) -> Vec<u8> {
    let len = if rng.below(20) == 0 { 3000 + rng.below(6000) } else { rng.below(200) };
    vec![rng.below(256) as u8; len as usize]
}

/// Takes a random step; `map` has its effect. `Err` after a conflict.
fn step(tx: &mut Tx<'_>, rng: &SeededRng, map: &mut Map) -> Result<(), TxError> {
    let key = key(rng);
    match rng.below(8) {
        0 => assert_eq!(tx.get(&key)?.as_ref(), map.get(&key)),
        1 | 2 => {
            tx.put(&key, None)?;
            map.remove(&key);
        }
        3 => {
            let to = [&key[..5], b"~"].concat();
            let bounds = (Bound::Excluded(&key[..]), Bound::Included(&to[..]));
            let found = tx.range(bounds, usize::MAX)?;
            assert!(found.iter().eq(map.range::<[u8], _>(bounds)), "a range differs");
        }
        _ => {
            let value = value(rng);
            tx.put(&key, Some(&value))?;
            map.insert(key, value);
        }
    }
    Ok(())
}

/// A transaction that stays open, with the map as it would be.
struct Open {
    session: Session,
    /// What the transaction has written.
    writes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Open {
    fn write(&mut self, rng: &SeededRng) {
        let key = key(rng);
        let value = (rng.below(4) > 0).then(|| value(rng));
        let mut tx = Tx { session: &mut self.session, waits: false };
        match tx.put(&key, value.as_deref()) {
            Ok(()) => drop(self.writes.insert(key, value)),
            Err(error) => assert!(matches!(error, TxError::Conflict), "{error}"),
        }
    }
}

/// Transactions, checkpoints and crashes.
fn life(seed: u64) {
    let rng = SeededRng::new(seed);
    let removes = [Removes::Pend, Removes::ToPages][rng.below(2) as usize];
    let mut world = World::new(removes);
    let (mut map, mut section): (Map, Option<(String, Positions)>) = (Map::new(), None);
    let mut open: Option<Open> = None;
    for turn in 0..300 {
        let mut session = world.session(rng.below(3) as u8);
        session.log.refusals = rng.below(3) / 2;
        let (mut after, gives_up) = (map.clone(), rng.below(4) == 0);
        let ended = if rng.below(3) == 0 {
            session.run_declared(&rng, key, &mut after)
        } else {
            session.begin(next_number());
            let steps = 1 + rng.below(5);
            let mut tx = Tx { session: &mut session, waits: false };
            (0..steps).try_for_each(|_| step(&mut tx, &rng, &mut after))
        };
        let commits = ended.is_ok() && !gives_up;
        assert!(ended.is_ok() || open.is_some(), "seed {seed}: a conflict with nobody");
        session.end(commits);
        drop(session);
        if commits {
            map = after;
        }
        match rng.below(40) {
            0..3 if open.is_none() => {
                let mut session = world.session(rng.below(3) as u8);
                session.begin(next_number());
                open = Some(Open { session, writes: BTreeMap::new() });
            }
            0..14 => open.iter_mut().for_each(|open| open.write(&rng)),
            14..16 => {
                if let Some(Open { mut session, writes }) = open.take() {
                    let commits = rng.below(2) == 0;
                    session.end(commits);
                    for (key, value) in writes.into_iter().filter(|_| commits) {
                        match value {
                            Some(value) => drop(map.insert(key, value)),
                            None => drop(map.remove(&key)),
                        }
                    }
                }
            }
            16..19 => {
                let is_published = rng.below(3) > 0;
                let taken = world.checkpoint(is_published);
                if is_published {
                    // A start may begin to replay anywhere before: open transactions may need it.
                    let earlier = section.map(|(_, positions)| positions).unwrap_or_default();
                    let (text, positions) = taken;
                    section = Some((text, if rng.below(2) == 0 { positions } else { earlier }));
                }
            }
            19 => {
                // What is open is undone by the start.
                std::mem::forget(open.take());
                world = world.restart(section.as_ref(), seed + turn);
                let found = world.content();
                assert!(found == map, "seed {seed}, turn {turn}: {found:?} is not {map:?}");
            }
            _ => {}
        }
    }
    open.iter_mut().for_each(|open| open.session.end(false));
    assert!(world.content() == map, "seed {seed}");
}

pub(crate) fn a_table_is_like_a_map_across_crashes() {
    let seeds = std::env::var("STILLPOINT_SIREN_SEEDS").ok();
    for seed in 1..=seeds.map_or(40, |seeds| seeds.parse().expect("a number")) {
        life(seed);
    }
}

/// Each thread adds a key of its own to a range that it has found empty. The ranges overlap, so one of
/// them is first. A deletion in the range comes before, so keys are purged meanwhile.
pub(crate) fn a_range_that_was_found_empty_stays_empty() {
    for seed in 1..=60 {
        let world = World::new(Removes::ToPages);
        let account = |number: u64| format!("account {number:03}").into_bytes();
        let mut session = world.session(0);
        for number in (85..115).filter(|number| seed % 3 == 0 || !(90..110).contains(number)) {
            session.transact(|tx| tx.put(&account(number), Some(&[7; 30]))).expect("commits");
        }
        for number in 90..110 {
            session.transact(|tx| tx.put(&account(number), None)).expect("commits");
        }
        let added = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for own in [93u64, 97, 104] {
                let (world, added) = (&world, &added);
                scope.spawn(move || {
                    let mut session = world.session((own % 7) as u8);
                    let alone = session.transact(|tx| {
                        let (lower, upper) = (account(90), account(109));
                        let range = &lower[..]..=&upper[..];
                        let is_descending = (own + seed) % 2 == 0;
                        let is_alone = tx.read(range, usize::MAX, is_descending)?.is_empty();
                        if is_alone {
                            RealClock.sleep(std::time::Duration::from_micros(own * seed % 50));
                            tx.put(&account(own), Some(b"mine"))?;
                        }
                        Ok(is_alone)
                    });
                    added.fetch_add(u64::from(alone.expect("it ends")), SeqCst);
                });
            }
        });
        assert_eq!(added.load(SeqCst), 1, "seed {seed}: more than one has found the range empty");
    }
}

/// A range ends at a key beyond it. While that key is deleted, the gap below it stays locked.
pub(crate) fn a_gap_outlives_its_key() {
    for is_descending in [false, true] {
        gap_outlives_its_key(is_descending);
    }
}

fn gap_outlives_its_key(is_descending: bool) {
    let world = World::new(Removes::ToPages);
    let [mut reader, mut other] = [world.session(0), world.session(1)];
    other.transact(|tx| tx.put(b"m", Some(b"end"))).expect("commits");
    reader.begin(next_number());
    let mut tx = Tx { session: &mut reader, waits: false };
    let found = tx.read(&b"a"[..]..&b"f"[..], usize::MAX, is_descending);
    assert!(found.expect("free").is_empty());
    other.transact(|tx| tx.put(b"m", None)).expect("nobody has read the key");
    other.begin(next_number());
    let added = Tx { session: &mut other, waits: false }.put(b"c", Some(b"phantom"));
    assert!(matches!(added, Err(TxError::Conflict)), "{added:?}");
    other.end(false);
    reader.end(true);
    other.transact(|tx| tx.put(b"c", Some(b"later"))).expect("the gap is free");
    assert_eq!(world.content().len(), 1);
}

/// A transaction divides a gap that it has read itself, and keeps both parts.
pub(crate) fn who_has_read_a_gap_keeps_both_parts() {
    for is_descending in [false, true] {
        both_parts_of_a_gap_are_kept(is_descending);
    }
}

fn both_parts_of_a_gap_are_kept(is_descending: bool) {
    let world = World::new(Removes::ToPages);
    let [mut reader, mut other] = [world.session(0), world.session(1)];
    reader.begin(next_number());
    let mut tx = Tx { session: &mut reader, waits: false };
    assert!(tx.read(.., usize::MAX, is_descending).expect("free").is_empty());
    tx.put(b"m", Some(b"own")).expect("its own gap");
    for key in [b"c", b"x"] {
        other.begin(next_number());
        let added = Tx { session: &mut other, waits: false }.put(key, Some(b"phantom"));
        assert!(matches!(added, Err(TxError::Conflict)), "{added:?}");
        other.end(false);
    }
    reader.end(true);
    assert_eq!(world.content().len(), 1);
}

/// While a reader waits for a gap, its holder adds a key to it and commits. The reader sees the key.
pub(crate) fn a_reader_that_has_waited_for_a_gap_looks_again() {
    reader_looks_again(false, [b"d", b"m"]);
    reader_looks_again(true, [b"m", b"d"]);
}

fn reader_looks_again(is_descending: bool, expected: [&[u8]; 2]) {
    let world = World::new(Removes::ToPages);
    let [mut reader, mut other] = [world.session(0), world.session(1)];
    other.transact(|tx| tx.put(b"m", Some(b"end"))).expect("commits");
    reader.begin(next_number());
    other.begin(next_number());
    let mut tx = Tx { session: &mut other, waits: false };
    tx.range(.., usize::MAX).expect("free");
    tx.put(b"c", Some(b"first")).expect("its own gap");
    let holder = std::cell::RefCell::new(Some(other));
    let may_wait = || {
        if let Some(mut other) = holder.borrow_mut().take() {
            let added = Tx { session: &mut other, waits: false }.put(b"d", Some(b"second"));
            added.expect("its own gap");
            other.end(true);
        }
        true
    };
    let (lower, upper) = (Bound::Excluded(&b"c"[..]), Bound::Unbounded);
    let mut batch = RangeBatch::default();
    let range = KindRange { table: TABLE, lower, upper, is_descending };
    here(reader.part.range(&range, &may_wait, &mut batch)).expect("it waits");
    let keys: Vec<&[u8]> = (0..batch.len()).map(|number| batch.record(number).0).collect();
    assert_eq!(keys, expected);
    assert!(holder.borrow().is_none(), "it has waited");
    reader.end(true);
}

/// Whoever reads a value without a lock finds the stamp of its commit, also before the commit has given its
/// locks back. An open transaction and an abort change nothing that is read so.
pub(crate) fn a_read_without_a_lock_finds_value_and_stamp() {
    let world = World::new(Removes::ToPages);
    let mut session = world.session(0);
    let read = |key: &[u8]| {
        let mut out = b"before ".to_vec();
        let found = here(world.kind.read(TABLE, key, &mut out)).expect("reads");
        found.map(|found| (found.tag, found.stamp, out))
    };
    assert_eq!(read(b"m"), None, "a transaction reads a key without a value");
    session.transact(|tx| tx.put(b"m", Some(b"first"))).expect("commits");
    let first = read(b"m").expect("a value");
    assert_eq!((first.0, &*first.2), (Some(0), &b"before first"[..]));
    for commits in [false, true] {
        session.begin(next_number());
        let mut tx = Tx { session: &mut session, waits: false };
        tx.put(b"m", Some(b"second")).expect("free");
        assert_eq!(read(b"m").map(|found| found.2), Some(first.2.clone()), "nothing is committed");
        if !commits {
            session.end(false);
            assert_eq!(read(b"m").map(|found| found.2), Some(first.2.clone()));
            continue;
        }
        let end = Stamp::new(session.log.last.gsn() + 1, 0);
        session.part.install(end);
        assert_eq!(read(b"m"), Some((Some(0), end, b"before second".to_vec())));
        session.part.release(Some(end));
    }
    let mut session = world.session(1);
    session.transact(|tx| tx.put(b"m", None)).expect("commits");
    assert_eq!(read(b"m"), None, "deleted");
}

/// A session that has asked for a key keeps nothing of a table that is emptied then, and finds the new table.
pub(crate) fn an_emptied_table_leaves_no_memory_in_use() {
    let world = World::new(Removes::Pend);
    let (mut session, value, mut slots) = (world.session(0), [7; 50_000], Vec::new());
    session.transact(|tx| tx.put(b"key", Some(&value))).expect("commits");
    let mut asked = KeyList::default();
    asked.push(KindKey { table: TABLE, key: b"key", mode: Mode::Write });
    session.part.ask(&asked, &mut |_, _| {});
    world.kind.lock_tables(&[TABLE], &|| true).expect("nobody uses it").empty(&[2]);
    assert_eq!(world.kind.stats().held_bytes, 0);
    session.part.begin(Priority::DECLARED, Discipline::Declared);
    here(session.part.lock_all(&asked, &|| true, &mut slots)).expect("free");
    assert!(session.part.value(slots[0], &mut Vec::new()).is_none(), "of the emptied table");
    session.part.release(None);
}

/// A steady load over a thousand checkpoints takes no more memory and disk at the end. Some transactions stay
/// open across a checkpoint, and some abort.
pub(crate) fn a_thousand_checkpoints_leave_the_kind_flat() {
    for removes in [Removes::Pend, Removes::ToPages] {
        let world = World::new(removes);
        let rng = SeededRng::new(9);
        let [mut session, mut open_one] = [world.session(0), world.session(1)];
        let mut seen = Vec::new();
        for round in 0..1000u32 {
            open_one.begin(next_number());
            let mut tx = Tx { session: &mut open_one, waits: false };
            tx.put(b"open", Some(&round.to_le_bytes())).expect("free");
            for _ in 0..10 {
                let key = rng.below(60).to_le_bytes();
                let value = (rng.below(3) > 0).then(|| vec![7; rng.below(90) as usize]);
                if round % 2 == 0 {
                    session.transact(|tx| tx.put(&key, value.as_deref())).expect("commits");
                    continue;
                }
                let slots = session.declare(&[&key], false).expect("free");
                session.set(slots[0], value.as_deref()).expect("free");
                session.end(true);
            }
            world.checkpoint(true);
            open_one.end(rng.below(2) == 0);
            world.logs.lock().records.clear();
            seen.push((world.kind.stats(), world.disk.used_bytes()));
        }
        world.kind.check().expect("sound pages");
        let most = |rounds: &[(stillpoint_siren::SirenStats, u64)]| {
            let numbers =
                rounds.iter().map(|(of, disk)| [of.tuples, of.pages, of.held_bytes as u64, *disk]);
            numbers.fold([0; 4], |a, b| std::array::from_fn(|at| a[at].max(b[at])))
        };
        let (early, late) = (most(&seen[50..300]), most(&seen[750..]));
        for (early_one, late_one) in early.into_iter().zip(late) {
            assert!(late_one <= early_one * 5 / 4 + 8, "{removes:?}: {early:?} {late:?}");
        }
    }
}

/// Operations come between the begin of a checkpoint and its end: writes, commits, aborts and rollbacks of two
/// threads. What a start finds afterwards is what was committed.
pub(crate) fn operations_come_amid_checkpoints_of_the_kind() {
    for seed in 0..6 {
        let removes = [Removes::Pend, Removes::ToPages][seed as usize % 2];
        let mut world = World::new(removes);
        let mut maps = [Map::new(), Map::new()];
        let mut named = None;
        for round in 0..3 {
            let is_over = std::sync::atomic::AtomicBool::new(false);
            named = std::thread::scope(|scope| {
                let (world, is_over) = (&world, &is_over);
                let mut writers = Vec::new();
                for (number, map) in (0u8..).zip(&mut maps) {
                    let rng = SeededRng::new(seed * 100 + round * 10 + u64::from(number));
                    writers.push(scope.spawn(move || {
                        let mut session = world.session(number);
                        for _ in 0..60 {
                            match rng.below(2) {
                                0 => statements(&mut session, number, &rng, map),
                                _ => declared_one(&mut session, number, &rng, map),
                            }
                        }
                    }));
                }
                let checkpoints = scope.spawn(move || {
                    let mut last = None;
                    while last.is_none() || !is_over.load(SeqCst) {
                        last = Some(world.checkpoint(true));
                    }
                    last
                });
                let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
                is_over.store(true, SeqCst);
                ended.into_iter().for_each(|ended| ended.expect("no panic"));
                checkpoints.join().expect("no panic")
            });
            world = world.restart(named.as_ref(), seed);
            let expected: Map =
                maps.iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
            assert_eq!(world.content(), expected, "seed {seed}, round {round}");
        }
        assert!(named.is_some());
    }
}

/// A transaction of some statements, each of which may be taken back, on keys that nobody else has.
fn statements(session: &mut Session, number: u8, rng: &SeededRng, map: &mut Map) {
    let mut wanted = map.clone();
    session.begin(next_number());
    for _ in 0..1 + rng.below(5) {
        let (before, from) = (wanted.clone(), session.log.done.len());
        session.part.begin_statement();
        for _ in 0..1 + rng.below(3) {
            // The keys of both threads lie side by side, so their versions share pages.
            let key = [b'k', rng.below(30) as u8, number].to_vec();
            let value = (rng.below(3) > 0).then(|| vec![number; rng.below(200) as usize]);
            let mut tx = Tx { session, waits: true };
            // Nobody else has the key, but the other thread may have its gap for a moment.
            if tx.put(&key, value.as_deref()).is_err() {
                return session.end(false);
            }
            match value {
                Some(value) => drop(wanted.insert(key, value)),
                None => drop(wanted.remove(&key)),
            }
        }
        if rng.below(3) == 0 {
            session.undo_from(from);
            session.part.begin_statement();
            wanted = before;
        }
    }
    let commits = rng.below(4) > 0;
    session.end(commits);
    if commits {
        *map = wanted;
    }
}

/// A declared transaction on such keys.
fn declared_one(session: &mut Session, number: u8, rng: &SeededRng, map: &mut Map) {
    let mut wanted = map.clone();
    let own = |rng: &SeededRng| vec![b'k', rng.below(30) as u8, number];
    let ended = session.run_declared(rng, own, &mut wanted);
    let commits = ended.is_ok() && rng.below(4) > 0;
    session.end(commits);
    if commits {
        *map = wanted;
    }
}

/// A checkpoint at a pace that would last for hours ends at once when the store is being closed.
pub(crate) fn a_slow_checkpoint_hurries_at_the_end() {
    let disk = SimDisk::new(1);
    let config = Config {
        page_bytes: 4096,
        pace: stillpoint_io::Pace::BytesPerSecond(1),
        clock: Arc::new(RealClock),
        ..Config::default()
    };
    let mut world = World::new(Removes::ToPages);
    let settings = KindConfig { store: StoreId([7; 16]), memory_bytes: 1 << 30, config };
    let table = KindTable { id: TABLE, generation: 1, section: None };
    world.kind = Siren::open(&disk, settings, OpenMode::ReadWrite, &[table]).expect("opens");
    world.kind.add_table(&table, &disk).expect("a table");
    let mut session = world.session(0);
    for number in 0..200u8 {
        session.transact(|tx| tx.put(&[number], Some(&[7; 900]))).expect("commits");
    }
    std::thread::scope(|scope| {
        let kind = &world.kind;
        let checkpoint = scope.spawn(|| kind.checkpoint(&disk).expect("it writes"));
        RealClock.sleep(std::time::Duration::from_millis(20));
        assert!(!checkpoint.is_finished(), "a byte a second");
        kind.hurry();
        assert!(checkpoint.join().expect("no panic").is_some());
    });
}

//! The databases of the protocol as tables of the engine: iteration, length, flushing.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicU8, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use stillpoint::{Engine, KeySet, Mode, Session, Slot, TableId, Tables};
use stillpoint_io::Rng;

use super::access::LoopKeys;
use super::counts::Counts;
use super::elements::{Constructions, HEAD_BYTES_MAX, NODES_AT_ONCE, Remains};
use super::eviction::Eviction;
use super::lock::KeyspaceLock;
use super::value::{EXPIRY_BYTES, Entry, nodes_table_name, table_name};
use super::waiters::Waiters;
use super::watch::MissingKeys;
use crate::config::{DATABASES, Db};
use crate::error::{CmdError, ServerError};
use crate::planted::mutant;

/// The table of graves: the collections whose nodes are still to be removed.
pub(super) const GRAVES: &str = "graves";
/// The table that says which table each database has, and its only key.
const PLACES: &str = "databases";
const PLACES_KEY: &[u8] = b"places";
/// Records that one step of a scan over a whole database looks at.
const STEP: usize = 1024;
/// Random places that [`Keyspace::random_key`] tries before it scans the database.
const RANDOM_TRIES: usize = 64;
/// Bytes of a node of a collection, about, if its members are short.
const NODE_BYTES: usize = 1 << 10;
/// Keys at a random place among which one is drawn.
const CANDIDATES_MAX: usize = 64;

/// The engine, and the tables of its databases.
#[derive(Debug)]
pub(crate) struct Keyspace {
    /// `None` while a start makes the commands of its log again.
    engine: Option<Arc<Engine>>,
    /// Whether the log gets commands instead of their writes.
    pub(crate) logs_commands: bool,
    /// Tables by their place, which is the number in the name.
    tables: [TableId; DATABASES as usize],
    /// For each place, the nodes of the collections of its database.
    nodes_tables: [TableId; DATABASES as usize],
    /// The place of each database. Relaxed: a thread that changes a place holds the whole keyspace
    /// lock.
    places: [AtomicU8; DATABASES as usize],
    places_table: TableId,
    /// The table of graves.
    pub(super) graves: TableId,
    /// Graves that cannot be read.
    unreadable_graves: AtomicU64,
    pub(crate) lock: KeyspaceLock,
    /// The collections that are being built, and have graves.
    pub(super) constructions: Arc<Constructions>,
    pub(super) missing_keys: Arc<MissingKeys>,
    pub(crate) waiters: Arc<Waiters>,
    pub(super) counts: Counts,
    pub(crate) eviction: Eviction,
    flushes: Flushes,
}

/// Numbers of flushes of databases that have begun, and that have ended.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Flushes {
    fn count<R>(&self, flush: impl FnOnce() -> R) -> R {
        // Release: a scan that meets an emptied table has seen this count; see `none_since`.
        self.begun.fetch_add(1, Release);
        let result = flush();
        // Release: partner of the Acquire in `now`.
        self.ended.fetch_add(1, Release);
        result
    }

    /// Flushes that have ended.
    pub(crate) fn now(&self) -> u64 {
        // Acquire: partner of the last Release in `count`. The tables of those flushes are empty.
        self.ended.load(Acquire)
    }

    /// True if no flush was under way since [`now`](Self::now) gave this number.
    pub(crate) fn none_since(&self, ended: u64) -> bool {
        // Acquire: partner of the first Release in `count`.
        self.begun.load(Acquire) == ended
    }
}

/// The result of one step of a scan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scanned {
    /// The cursor of the next step; 0 at the end.
    pub(crate) next: u64,
    /// Records looked at, expired ones included.
    pub(crate) records: usize,
}

/// The places of the databases, as the last exchange has left them.
fn stored_places(
    engine: &Arc<Engine>,
    table: TableId,
) -> Result<[u8; DATABASES as usize], stillpoint::Error> {
    let places = std::array::from_fn(|db| db as u8);
    let mut stored = Vec::new();
    engine.session()?.read(table, PLACES_KEY, &mut stored)?;
    let mut sorted = stored.clone();
    sorted.sort_unstable();
    let is_sound = sorted.iter().copied().eq(places.iter().copied());
    Ok(if is_sound { stored.try_into().unwrap_or(places) } else { places })
}

/// The names of all tables: of the databases, of their nodes, of the graves, and of the places.
fn table_names() -> Vec<String> {
    let nodes = (0..DATABASES).map(nodes_table_name);
    let others = [GRAVES.to_owned(), PLACES.to_owned()];
    (0..DATABASES).map(table_name).chain(nodes).chain(others).collect()
}

impl Keyspace {
    /// Finds the tables of the databases, and makes the missing ones. `workers` event loops will
    /// use them.
    ///
    /// # Errors
    /// The engine refuses a table.
    pub(crate) fn open(engine: Arc<Engine>, workers: usize) -> Result<Self, ServerError> {
        let names = table_names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let ids = engine.tables_named(&names).map_err(ServerError::engine)?;
        let mut keyspace = Self::of_tables(&ids, workers);
        let places = stored_places(&engine, keyspace.places_table).map_err(ServerError::engine)?;
        keyspace.places = places.map(AtomicU8::new);
        // Whoever wants the names of commands in the log wants their writes beside them.
        keyspace.logs_commands = engine.logs_calls() && !engine.config().log_calls;
        keyspace.engine = Some(engine);
        Ok(keyspace)
    }

    /// The tables of the databases for commands that a start makes again, before there is an engine.
    /// Each database is at the place of its number.
    ///
    /// # Errors
    /// The store refuses a table.
    pub(crate) fn while_opening(tables: &mut Tables<'_>) -> Result<Self, stillpoint::Error> {
        let ids =
            table_names().iter().map(|name| tables.table(name)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::of_tables(&ids, 1))
    }

    /// A keyspace of tables in the order of [`table_names`].
    fn of_tables(ids: &[TableId], workers: usize) -> Self {
        Self {
            engine: None,
            logs_commands: false,
            places: std::array::from_fn(|db| AtomicU8::new(db as u8)),
            places_table: ids[2 * usize::from(DATABASES) + 1],
            tables: std::array::from_fn(|db| ids[db]),
            nodes_tables: std::array::from_fn(|db| ids[usize::from(DATABASES) + db]),
            graves: ids[2 * usize::from(DATABASES)],
            unreadable_graves: AtomicU64::new(0),
            lock: KeyspaceLock::new(workers),
            constructions: Arc::default(),
            missing_keys: Arc::default(),
            waiters: Arc::new(Waiters::new(workers)),
            counts: Counts::new(workers),
            eviction: Eviction::new(),
            flushes: Flushes::default(),
        }
    }

    /// The engine.
    ///
    /// # Panics
    /// While the engine is being opened. Commands over keys do not ask for it.
    #[inline]
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.engine.as_ref().expect("an open engine serves")
    }

    /// Bytes that the data occupies, and their limit. 0 while the engine is being opened.
    pub(crate) fn memory_bytes(&self) -> (usize, usize) {
        let stats = self.engine.as_ref().map(|engine| engine.stats());
        stats.map_or((0, 0), |stats| (stats.memory_bytes, stats.max_memory_bytes))
    }

    /// The limit of the bytes that the data occupies. 0 while the engine is being opened.
    pub(crate) fn max_memory_bytes(&self) -> usize {
        self.engine.as_ref().map_or(0, |engine| engine.memory_room().limit_bytes)
    }

    /// Whether each database is at the place of its number.
    pub(crate) fn is_in_order(&self) -> bool {
        let is_in_order = (0..DATABASES).all(|db| self.place(db) == usize::from(db));
        mutant!(is_in_order, SwapForgotten => true)
    }

    /// Whether databases were exchanged since all of them were emptied, so that their places are a record.
    pub(crate) fn were_exchanged(&self) -> bool {
        self.engine().len(self.places_table) > 0
    }

    /// The table of a database.
    #[inline]
    pub(super) fn table(&self, db: Db) -> TableId {
        self.tables[self.place(db)]
    }

    #[inline]
    fn place(&self, db: Db) -> usize {
        // Relaxed: see the field.
        usize::from(self.places[usize::from(db)].load(Relaxed))
    }

    /// The table with the nodes of the collections of a database.
    pub(super) fn nodes_table(&self, db: Db) -> TableId {
        self.nodes_tables[self.place(db)]
    }

    /// Exchanges two databases. The caller has the keyspace lock alone.
    ///
    /// # Errors
    /// The engine cannot log it, or cannot make it durable.
    pub(crate) fn swap(&self, session: &mut Session, a: Db, b: Db) -> Result<(), CmdError> {
        let mut places: [u8; DATABASES as usize] =
            std::array::from_fn(|db| self.place(db as Db) as u8);
        places.swap(usize::from(a), usize::from(b));
        session.transact(|tx| {
            tx.use_reserve();
            tx.put(self.places_table, PLACES_KEY, &places)
        })?;
        // Later commits do not read this record, so a crash must not lose it and keep them.
        session.flush()?;
        self.flushes.count(|| {
            for (place, new) in self.places.iter().zip(places) {
                place.store(new, Relaxed);
            }
        });
        self.counts.swap(a, b);
        self.waiters.start_again();
        Ok(())
    }

    /// The tables for the nodes of a database's collections that lose their key.
    pub(super) fn remains(&self, db: Db) -> Remains {
        Remains { place: self.place(db) as Db, nodes: self.nodes_table(db), graves: self.graves }
    }

    /// Whether every record is in memory. A server that serves while it loads has some of them at first.
    pub(crate) fn has_all(&self) -> bool {
        self.engine().has_all()
    }

    /// Whether memory of deleted keys is on its way back.
    pub(crate) fn memory_comes_back(&self) -> bool {
        self.engine().memory_room().returning_bytes > 0
    }

    /// Whether a write that finds no memory may get some. Keys can be given up, or memory of those that were is
    /// on its way back. The policy may have found no further key meanwhile.
    pub(crate) fn may_get_room(&self) -> bool {
        let is_coming =
            || self.eviction.policy().evicts() && self.has_all() && self.memory_comes_back();
        self.eviction.makes_room() || is_coming()
    }

    /// Nodes of all collections, deleted ones included, as a statistic.
    pub(crate) fn nodes(&self) -> u64 {
        self.nodes_tables.iter().map(|&table| self.engine().len(table)).sum()
    }

    /// Whether nodes of deleted collections wait to be removed, and can be.
    pub(crate) fn has_graves(&self) -> bool {
        self.engine().len(self.graves) > self.graves_that_stay()
    }

    /// Bytes of the nodes of deleted collections that wait to be removed, at least.
    pub(crate) fn buried_bytes(&self) -> usize {
        let graves = self.engine().len(self.graves).saturating_sub(self.graves_that_stay());
        graves as usize * NODES_AT_ONCE * NODE_BYTES
    }

    /// Graves that cannot be read, or whose collections are being built.
    fn graves_that_stay(&self) -> u64 {
        // Relaxed: a count, which the event loop that reads graves alone writes.
        self.unreadable_graves.load(Relaxed) + self.constructions.len()
    }

    /// Whether some graves cannot be read.
    pub(super) fn has_unreadable_graves(&self) -> bool {
        // Relaxed: as in `graves_that_stay`.
        self.unreadable_graves.load(Relaxed) > 0
    }

    /// Notes how many graves cannot be read, so that nobody waits for memory of their nodes.
    pub(super) fn note_unreadable_graves(&self, graves: u64) {
        self.unreadable_graves.store(graves, Relaxed);
    }

    /// The table with the nodes of a place, which may not exist.
    pub(super) fn nodes_table_at(&self, place: Db) -> Option<TableId> {
        self.nodes_tables.get(usize::from(place)).copied()
    }

    /// The database of a table.
    pub(super) fn database(&self, table: TableId) -> Option<Db> {
        (0..DATABASES).find(|&db| self.table(db) == table)
    }

    /// Declares a key of a transaction. `value_len` is a guess at its new value's length.
    #[inline]
    pub(crate) fn declare(
        &self,
        keys: &mut KeySet,
        db: Db,
        key: &[u8],
        mode: Mode,
        value_len: usize,
    ) -> Slot {
        keys.push(self.table(db), key, mode, value_len)
    }

    /// The state of event loop `worker` for its accesses to keys.
    pub(crate) fn loop_keys(&self, worker: usize, rng: &dyn Rng) -> LoopKeys {
        LoopKeys::new(Arc::clone(self.counts.of(worker)), rng.next_u64())
    }

    /// The number of keys, expired ones included, as a statistic that waits for nothing.
    pub(crate) fn len(&self, db: Db) -> u64 {
        self.engine().len(self.table(db))
    }

    /// The number of keys, expired ones included, as an answer. In strict durability the answer
    /// waits for a flush.
    ///
    /// # Errors
    /// The engine has no such table any more.
    pub(crate) fn exact_len(&self, session: &mut Session, db: Db) -> Result<u64, CmdError> {
        Ok(session.len(self.table(db))?)
    }

    /// Looks at about `count` records from `cursor` on and visits the keys that have not expired.
    ///
    /// A scan visits every key that exists from its first step to its last, and no key twice unless
    /// the database is [emptied](Self::flushes) meanwhile. An entry shows the key's type and
    /// expiry, not its value.
    ///
    /// # Errors
    /// The engine has no such table any more.
    pub(crate) fn scan(
        &self,
        session: &mut Session,
        (db, cursor): (Db, u64),
        count: usize,
        now_ms: u64,
        visit: &mut dyn FnMut(&[u8], &Entry<'_>),
    ) -> Result<Scanned, CmdError> {
        self.scan_all(session, db, cursor, count, &mut |key, entry| {
            if !entry.is_expired(now_ms) {
                visit(key, entry);
            }
        })
    }

    /// As [`scan`](Self::scan), but visits expired keys, too.
    ///
    /// # Errors
    /// As for [`scan`](Self::scan).
    pub(super) fn scan_all(
        &self,
        session: &mut Session,
        db: Db,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(&[u8], &Entry<'_>),
    ) -> Result<Scanned, CmdError> {
        let mut records = 0;
        let (table, most) = (self.table(db), EXPIRY_BYTES + HEAD_BYTES_MAX);
        let next = session.scan_heads(table, cursor, count, most, &mut |key, value| {
            records += 1;
            visit(key, &Entry::new(value));
        })?;
        Ok(Scanned { next, records })
    }

    /// As [`scan_all`](Self::scan_all), but visits what is in memory, and waits for no load.
    ///
    /// # Errors
    /// As for [`scan`](Self::scan).
    pub(super) fn scan_loaded(
        &self,
        session: &mut Session,
        db: Db,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(&[u8], &Entry<'_>),
    ) -> Result<Scanned, CmdError> {
        let mut records = 0;
        let (table, most) = (self.table(db), EXPIRY_BYTES + HEAD_BYTES_MAX);
        let next = session.scan_uses(table, cursor, count, most, &mut |key, value, _| {
            records += 1;
            visit(key, &Entry::new(value));
        })?;
        Ok(Scanned { next, records })
    }

    /// A key of the database that has not expired, drawn at random.
    ///
    /// # Errors
    /// As for [`scan`](Self::scan).
    pub(crate) fn random_key(
        &self,
        session: &mut Session,
        db: Db,
        now_ms: u64,
        rng: &dyn Rng,
    ) -> Result<Option<Box<[u8]>>, CmdError> {
        for _ in 0..RANDOM_TRIES {
            if self.exact_len(session, db)? == 0 {
                break;
            }
            let mut candidates: Vec<Box<[u8]>> = Vec::new();
            // Every number is a cursor, so a random number is a random place in the index.
            self.scan(session, (db, rng.next_u64()), 1, now_ms, &mut |key, _| {
                if candidates.len() < CANDIDATES_MAX {
                    candidates.push(key.into());
                }
            })?;
            if !candidates.is_empty() {
                let drawn = (rng.next_u64() % candidates.len() as u64) as usize;
                return Ok(Some(candidates.swap_remove(drawn)));
            }
        }
        let (mut cursor, mut found) = (0, None);
        loop {
            cursor = self
                .scan(session, (db, cursor), STEP, now_ms, &mut |key, _| {
                    found.get_or_insert_with(|| key.into());
                })?
                .next;
            if cursor == 0 || found.is_some() {
                return Ok(found);
            }
        }
    }

    /// Deletes all keys of some databases in one step. With all databases, nodes of deleted collections
    /// go, too. So do the places of exchanged databases, if the caller has the keyspace lock alone.
    ///
    /// # Errors
    /// The engine cannot log the step. An open transaction uses one of the databases, and the session leaves
    /// held locks alone.
    pub(crate) fn flush(&self, session: &mut Session, dbs: &[Db]) -> Result<(), CmdError> {
        let mut tables: Vec<TableId> =
            dbs.iter().flat_map(|&db| [self.table(db), self.nodes_table(db)]).collect();
        let are_all = (0..DATABASES).all(|db| dbs.contains(&db));
        if are_all {
            tables.push(self.graves);
        }
        // Without a key in any of them, it does not matter where the databases are. No command runs that
        // has looked for its database.
        let sets_in_order = are_all && self.lock.is_alone();
        let moves_keys = sets_in_order && !self.is_in_order();
        if sets_in_order {
            tables.push(self.places_table);
        }
        self.flushes.count(|| {
            session.flush_tables(&tables)?;
            if sets_in_order {
                for (db, place) in self.places.iter().enumerate() {
                    place.store(db as u8, Relaxed);
                }
            }
            Ok::<(), CmdError>(())
        })?;
        if moves_keys {
            self.waiters.start_again();
        }
        if are_all {
            self.note_unreadable_graves(0);
        }
        for &db in dbs {
            self.counts.restart_expiring(db, 0);
        }
        Ok(())
    }

    /// Tells a scan whether a database was emptied meanwhile.
    pub(crate) fn flushes(&self) -> &Flushes {
        &self.flushes
    }

    /// About how many keys of the database have an expiry.
    pub(crate) fn expiring(&self, db: Db) -> u64 {
        self.counts.expiring(db).min(self.len(db))
    }

    /// Reads of keys that found a value.
    pub(crate) fn hits(&self) -> u64 {
        self.counts.hits()
    }

    /// Reads of keys that found none.
    pub(crate) fn misses(&self) -> u64 {
        self.counts.misses()
    }

    /// Expired keys that were deleted.
    pub(crate) fn expired(&self) -> u64 {
        self.counts.expired()
    }

    /// Keys that were given up because memory was full.
    pub(crate) fn evicted(&self) -> u64 {
        self.counts.evicted()
    }

    /// Fields of hashes that were deleted because they had expired.
    pub(crate) fn expired_fields(&self) -> u64 {
        self.counts.expired_fields()
    }

    /// Sets the counters that `CONFIG RESETSTAT` resets to zero.
    pub(crate) fn reset_counts(&self) {
        self.counts.reset();
    }
}

#[cfg(test)]
mod tests {
    use stillpoint::Config;
    use stillpoint_io::SimDisk;

    use super::super::waiters::{WaiterId, Wanted, Wish};
    use super::*;

    #[test]
    fn a_flush_wakes_only_clients_whose_keys_move() {
        let mut config = Config::new("unused");
        (config.checkpoint, config.journal) = ("none".to_owned(), "none".to_owned());
        config.environment.disk = Some(Arc::new(SimDisk::new(1)));
        config.environment.background = false;
        let engine = Arc::new(Engine::open(config).expect("the engine opens"));
        let mut session = engine.session().expect("a session");
        let keyspace = Keyspace::open(engine, 1).expect("tables");
        let _alone = keyspace.lock.alone();
        let all: Vec<Db> = (0..DATABASES).collect();
        for swaps in [2, 1] {
            for _ in 0..swaps {
                keyspace.swap(&mut session, 0, 1).expect("swaps");
            }
            let wanted = Wanted::Elements { from_right: false, most: None };
            let wish = Wish { keys: vec![(7, Box::from(&b"k"[..]))], wanted, resp3: false };
            let waiting = keyspace.waiters.enter(WaiterId { worker: 0, client: 1 }, wish);
            keyspace.flush(&mut session, &all).expect("flushes");
            assert_eq!(waiting.is_stale(), swaps == 1, "after {swaps} exchanges");
        }
    }
}

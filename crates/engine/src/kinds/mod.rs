//! Tables of other kinds than the memory store. One transaction may use tables of all kinds: there is
//! one clock, one log and one commit. The trait `stillpoint_txn::TableKind` defines a kind of table.
//!
//! | file | what |
//! |---|---|
//! | here | the kinds of an engine, and the kind of each table |
//! | `parts` | the parts of the kinds in one session's transactions, and the slots of a transaction |
//! | `waiting` | the waits for their locks |
//! | `operations` | the log of a transaction's operations: doing, undoing |
//! | `done` | what an abort would undo, in memory and in a file |
//! | `commit` | the steps of the one commit, and of an abort |
//! | `mixed` | batches of declared transactions on several kinds |
//! | `open` | open transactions that have changed a table in place, and waits at the limit of the logs |
//! | `resting` | the parts of a transaction that stays open across calls |
//! | `checkpoint` | the share of the kinds in a checkpoint |
//! | `replay` | replay of operations, and the undo of transactions that a crash has cut off |

pub(crate) mod checkpoint;
mod commit;
mod done;
mod mixed;
mod open;
mod operations;
mod parts;
mod replay;
mod resting;
mod waiting;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use stillpoint_format::manifest::{Manifest, TableEntry, TableKind as KindName};
use stillpoint_io::Disk;
use stillpoint_paged::Paged;
use stillpoint_siren::Siren;
use stillpoint_store::{Store, TableId, Worker};
use stillpoint_sync::atomic::{
    AtomicBool, AtomicU8,
    Ordering::{Acquire, Relaxed, Release},
};
use stillpoint_txn::{KindTable, LockedTables, Presence, TableKind, TxError, UnlockedRead};

use crate::error::Error;
use crate::tx::Tx;

pub(crate) use commit::commit_or_roll_back;
pub(crate) use done::UndoFiles;
pub(crate) use mixed::{Absent, execute};
pub(crate) use open::{Lack, OpenTransactions};
pub(crate) use operations::Operations;
pub use parts::Savepoint;
pub(crate) use parts::{KeyLocation, Parts};
pub(crate) use replay::KindReplay;
pub(crate) use resting::{PartsInUse, PartsOf, Resting};
pub(crate) use waiting::{LongWait, MustNotWait, WaitLimits};

/// The kinds of tables that an engine knows besides the memory store, and the tables of each kind.
#[derive(Debug, Default)]
pub(crate) struct Kinds {
    pub(crate) kinds: Vec<Arc<dyn TableKind>>,
    /// For each table number, 1 + the number of the table's kind. 0 for the memory store. Empty
    /// without other kinds.
    of_table: Box<[AtomicU8]>,
    /// Whether one of the kinds has a table.
    have_tables: AtomicBool,
}

/// Turns of a wait for the locks of whole tables, of a session that leaves held locks alone and of any other.
/// The last ones sleep a tenth of a millisecond.
const FLUSH_TURNS_HERE: u32 = 128 + 10;
const FLUSH_TURNS: u32 = 128 + 50;

/// The names of the kinds that this build has besides the memory store.
pub(crate) const OF_ENGINE: [&str; 2] = [stillpoint_paged::KIND_NAME, stillpoint_siren::KIND_NAME];

/// What a MANIFEST says about the tables of one kind.
#[derive(Debug, Default)]
pub(crate) struct TablesOfKind<'m> {
    /// Names of the tables.
    pub(crate) names: Vec<&'m str>,
    /// The tables, in the order of the names.
    pub(crate) tables: Vec<KindTable<'m>>,
}

impl<'m> TablesOfKind<'m> {
    pub(crate) fn of(manifest: &'m Manifest, kind: &str) -> Self {
        let mut found = Self::default();
        for table in &manifest.tables {
            if matches!(&table.kind, KindName::Other(name) if name == kind) {
                found.names.push(&table.name);
                let (id, generation) = (TableId(table.id), table.generation);
                found.tables.push(KindTable { id, generation, section: table.private.as_deref() });
            }
        }
        found
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(crate) fn sections(&self) -> Vec<&'m str> {
        self.tables.iter().filter_map(|table| table.section).collect()
    }
}

/// The kinds that an engine has by its settings.
#[derive(Debug, Default)]
pub(crate) struct OfEngine {
    /// The kind of paged tables, if there is a pool.
    pub(crate) paged: Option<Arc<Paged>>,
    /// The kind of SIREN tables, if they have memory.
    pub(crate) siren: Option<Arc<Siren>>,
}

impl Kinds {
    /// The kinds of an engine.
    ///
    /// # Errors
    /// Two have one name, or one has the name of the memory store, or they are too many.
    pub(crate) fn new(kinds: Vec<Arc<dyn TableKind>>) -> Result<Self, Error> {
        for (at, kind) in kinds.iter().enumerate() {
            let name = kind.name();
            check_name("table_kind", name)?;
            if KindName::IN_MEMORY.contains(&name)
                || kinds[..at].iter().any(|other| other.name() == name)
            {
                let reason = format!("{name:?} is given twice: kinds differ in their names");
                return Err(Error::Config { setting: "table_kind", reason });
            }
        }
        if kinds.len() >= usize::from(u8::MAX) {
            let reason = format!("{} kinds are too many: at most 254", kinds.len());
            return Err(Error::Config { setting: "table_kind", reason });
        }
        let tables = if kinds.is_empty() { 0 } else { usize::from(u16::MAX) + 1 };
        let of_table = (0..tables).map(|_| AtomicU8::new(0)).collect();
        Ok(Self { kinds, of_table, have_tables: AtomicBool::new(false) })
    }

    /// The kinds of a program, and those of the engine.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn with_those_of_engine(
        mut kinds: Vec<Arc<dyn TableKind>>,
        of_engine: &OfEngine,
    ) -> Result<Arc<Self>, Error> {
        let OfEngine { paged, siren } = of_engine;
        kinds.extend(paged.iter().map(|kind| kind.clone() as Arc<dyn TableKind>));
        kinds.extend(siren.iter().map(|kind| kind.clone() as Arc<dyn TableKind>));
        Ok(Arc::new(Self::new(kinds)?))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Whether one of the kinds has a table.
    pub(crate) fn have_tables(&self) -> bool {
        // Relaxed: as in `add_table`.
        self.have_tables.load(Relaxed)
    }

    /// The names of the kinds.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.kinds.iter().map(|kind| kind.name()).collect()
    }

    /// The number of a table's kind; `None` for the memory store.
    pub(crate) fn of(&self, table: TableId) -> Option<usize> {
        // Acquire: partner of the Release in `add_table`; the kind has the table.
        let number = self.of_table.get(usize::from(table.0))?.load(Acquire);
        usize::from(number).checked_sub(1)
    }

    /// Adds a table of the MANIFEST to its kind; nothing for a table of the memory store.
    pub(crate) fn add_table(&self, entry: &TableEntry, disk: &dyn Disk) -> Result<(), Error> {
        let KindName::Other(name) = &entry.kind else { return Ok(()) };
        let number = self.number_of(name)?;
        let section = entry.private.as_deref();
        let table = KindTable { id: TableId(entry.id), generation: entry.generation, section };
        self.kinds[number].add_table(&table, disk)?;
        // Relaxed: it only makes checkpoints due.
        self.have_tables.store(true, Relaxed);
        // Release: partner of the Acquire in `of`.
        self.of_table[usize::from(entry.id)].store(number as u8 + 1, Release);
        Ok(())
    }

    /// The section of a table of another kind that is emptied.
    pub(crate) fn new_section(&self, table: TableId) -> Option<String> {
        self.kind_of(table).ok()?.new_section()
    }

    /// The number of the kind of that name.
    pub(crate) fn number_of(&self, name: &str) -> Result<usize, Error> {
        self.kinds.iter().position(|kind| kind.name() == name).ok_or_else(|| {
            let known = self.names().join(", ");
            let reason = format!("{name:?} is not known; known: memory, {known}");
            Error::Config { setting: "table_kind", reason }
        })
    }

    /// Locks tables as wholes, in the order of kinds. Leaves out the tables in memory. `None` if a transaction
    /// uses one of them for longer than a moment: then no lock is kept. The same if a transaction has the
    /// permit of the store, since it may wait for these locks.
    pub(crate) fn lock_tables(
        &self,
        tables: &[TableId],
        store: &Store,
        leaves_held: bool,
    ) -> Result<Option<Vec<Locked<'_>>>, TxError> {
        let turns = Cell::new(0u32);
        let most = if leaves_held { FLUSH_TURNS_HERE } else { FLUSH_TURNS };
        let may_wait = || {
            turns.set(turns.get() + 1);
            turns.get() < most && !store.driver().now().is_permitted()
        };
        match self.try_lock_tables(tables, &may_wait) {
            Ok(locked) => Ok(Some(locked)),
            Err(TxError::Conflict) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn try_lock_tables(
        &self,
        tables: &[TableId],
        may_wait: &dyn Fn() -> bool,
    ) -> Result<Vec<Locked<'_>>, TxError> {
        let mut locked = Vec::new();
        for (number, kind) in self.kinds.iter().enumerate() {
            let mine = tables.iter().copied().filter(|&table| self.of(table) == Some(number));
            let mine: Vec<TableId> = BTreeSet::from_iter(mine).into_iter().collect();
            if !mine.is_empty() {
                locked.push(Locked { tables: kind.lock_tables(&mine, may_wait)?, ids: mine });
            }
        }
        Ok(locked)
    }

    /// The kind of a table that is not in memory.
    ///
    /// # Errors
    /// [`TxError::NoSuchTable`].
    pub(crate) fn kind_of(&self, table: TableId) -> Result<&Arc<dyn TableKind>, TxError> {
        let number = self.of(table).ok_or(TxError::NoSuchTable(table))?;
        Ok(&self.kinds[number])
    }
}

/// Checks the name of a procedure or of a kind of tables: the log and the MANIFEST hold it.
pub(crate) fn check_name(setting: &'static str, name: &str) -> Result<(), Error> {
    if (1..=255).contains(&name.len()) {
        return Ok(());
    }
    let (len, shown) = (name.len(), name.chars().take(32).collect::<String>());
    let reason = format!("a name has 1 to 255 bytes, not {len} as {shown:?}");
    Err(Error::Config { setting, reason })
}

/// Tables of one kind that are locked as wholes.
pub(crate) struct Locked<'k> {
    tables: Box<dyn LockedTables + 'k>,
    pub(crate) ids: Vec<TableId>,
}

impl Locked<'_> {
    /// Empties the tables. `generation` returns the new generation of each.
    pub(crate) fn empty(&mut self, generation: impl Fn(TableId) -> u32) {
        let generations: Vec<u32> = self.ids.iter().map(|&id| generation(id)).collect();
        self.tables.empty(&generations);
    }
}

/// Some keys of a table of another kind, with their tags and values.
pub(crate) type Found = Vec<(Vec<u8>, u8, Vec<u8>)>;

/// Reads some keys of a table of another kind, from a cursor on; gives the next cursor. A key that cannot be
/// read without a lock is read in a transaction.
pub(crate) fn scan(
    worker: &mut Worker,
    parts: &mut Parts,
    table: TableId,
    (cursor, count): (u64, usize),
) -> Result<(u64, Found), TxError> {
    let kind = parts.kinds.kind_of(table)?.clone();
    let mut keys = Vec::new();
    let next = loop {
        match kind.keys(table, cursor, count, &mut keys)? {
            Presence::Here(next) => break next,
            Presence::NotHere(arrival) => arrival.wait()?,
        }
        keys.clear();
    };
    let (mut found, mut rest) = (Found::new(), Vec::new());
    for key in keys {
        let mut value = Vec::new();
        match kind.read(table, &key, &mut value)? {
            Presence::Here(Some(UnlockedRead { tag: Some(tag), stamp })) => {
                worker.depend_on(stamp);
                found.push((key, tag, value));
            }
            _ => rest.push(key),
        }
    }
    if !rest.is_empty() {
        found.extend(transact(worker, parts, &mut |tx| {
            let mut found = Found::new();
            for key in &rest {
                if let Some(value) = tx.get(table, key)? {
                    found.push((key.clone(), value.tag(), value.to_vec()));
                }
            }
            Ok(found)
        })?);
    }
    Ok((next, found))
}

/// Runs a transaction that finds its keys on the way.
pub(crate) fn transact<R>(
    worker: &mut Worker,
    parts: &mut Parts,
    body: &mut impl FnMut(&mut Tx<'_>) -> Result<R, TxError>,
) -> Result<R, TxError> {
    let mut wait = LongWait::default();
    loop {
        parts.forget_keys();
        let ended = worker
            .run_until_ended(|open| commit::run(open, parts, Parts::lock_remembered, &mut *body))
            .map(|(result, _)| result);
        parts.give_dependencies(worker);
        if !parts.waits_on(&ended) {
            return ended;
        }
        parts.pause(&mut wait)?;
    }
}

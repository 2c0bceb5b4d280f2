//! Finds, makes and empties tables by name.
//!
//! ```text
//! right to change tables ─▶ prepare (address space) ─▶ publish (MANIFEST) ─▶ commit (memory)
//! ```
//! One lock covers the tables of the MANIFEST and of the store. A change has three steps. Preparing
//! may fail, and has changed nothing then. Publishing may fail, and then either leaves the old
//! MANIFEST or fails the store. Committing cannot fail.

use std::collections::{BTreeSet, HashMap};

use stillpoint_format::manifest::{Manifest, TableEntry, TableKind};
use stillpoint_paged::KIND_NAME;
use stillpoint_store::{NewTable, RegionError, Store, TableId};

use crate::emptying::{Published, empty};
use crate::engine::Engine;
use crate::error::Error;
use crate::guards::Inside;
use crate::kinds::checkpoint::new_entry;
use crate::named::OWN_TABLES;
use crate::shared::Shared;

impl Engine {
    /// The table of that name. Makes the table if there is none. Names are 1 to 255 bytes, and do not
    /// begin with `stillpoint:`.
    ///
    /// # Errors
    /// As [`tables_named`](Self::tables_named).
    pub fn table(&self, name: &str) -> Result<TableId, Error> {
        Ok(self.tables_named(&[name])?[0])
    }

    /// The tables of those names, in their order. Missing tables are made in one step: after a
    /// crash all of them exist or none.
    ///
    /// # Errors
    /// A name cannot be used, address space for another table is missing, or the MANIFEST could not
    /// be written. Then no table is made. [`Error::InsideTransaction`] if a table is missing, where
    /// [`flush_tables`](Self::flush_tables) is refused, too.
    pub fn tables_named(&self, names: &[&str]) -> Result<Vec<TableId>, Error> {
        for name in names {
            check_table_name(name)?;
        }
        self.find_or_make_tables(names)
    }

    /// As [`tables_named`](Self::tables_named), for any names, the engine's own among them.
    pub(crate) fn find_or_make_tables(&self, names: &[&str]) -> Result<Vec<TableId>, Error> {
        if let Some(ids) = self.known_tables(names) {
            return Ok(ids);
        }
        Inside::refuse_changing_tables("making a table", &self.shared.kinds)?;
        let shared = &self.shared;
        let _changing = shared.catalog.change_tables();
        let before = shared.catalog.now().tables;
        let mut after = before.clone();
        let ids = find_or_add(&mut after, names, &shared.config.usual_kind())?;
        let of_kinds = prepare_new(shared, &before, &mut after)?;
        // Every step that can fail comes first. Only after a crash may the MANIFEST name a missing
        // table, and then the next opening makes it.
        let made = after
            .iter()
            .filter(|entry| entry.kind.is_in_memory())
            .filter(|entry| shared.store.generation(TableId(entry.id)).is_none())
            .map(|entry| new_table(&shared.store, entry))
            .collect::<Result<Vec<NewTable>, _>>()
            .map_err(|source| Error::TableSpace { open: before.len(), source })?;
        if made.is_empty() && of_kinds.is_empty() {
            return Ok(ids);
        }
        shared.publish(|manifest| {
            manifest.tables = after;
            name_kinds(manifest, shared.floor);
        })?;
        let published = Published(shared);
        shared.store.add_tables(made).expect("only who holds the right to change tables adds one");
        for entry in &of_kinds {
            shared.kinds.add_table(entry, &*shared.disk)?;
        }
        published.committed();
        shared.heed_log_limit();
        Ok(ids)
    }

    /// The table of that name, of this kind. Makes the table if there is none. The kind of a table is in the MANIFEST, and stays.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// use stillpoint::Kind;
    /// let engine = stillpoint::Engine::open(stillpoint::Config::new(directory.path()))?;
    /// let cities = engine.table_with("cities", Kind::Ordered)?;
    /// let mut session = engine.session()?;
    /// session.transact(|tx| {
    ///     tx.put(cities, b"de:berlin", b"3755")?;
    ///     tx.put(cities, b"de:bonn", b"331")?;
    ///     tx.put(cities, b"fr:paris", b"2103")
    /// })?;
    /// let german = session.transact(|tx| {
    ///     let (mut names, mut range) = (Vec::new(), tx.range(cities, &b"de:"[..]..&b"de;"[..])?);
    ///     while let Some((key, _)) = range.next_record()? {
    ///         names.push(String::from_utf8_lossy(key).into_owned());
    ///     }
    ///     Ok(names)
    /// })?;
    /// assert_eq!(german, ["de:berlin", "de:bonn"]);
    /// # drop(session);
    /// # engine.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A paged table needs a pool, and may be larger than it:
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// use stillpoint::{Config, Engine, Kind};
    /// let mut config = Config::new(directory.path());
    /// config.page_bytes = Some(4096);
    /// config.pool_bytes = Some(32 * 4096);
    /// let engine = Engine::open(config.clone())?;
    /// let orders = engine.table_with("orders", Kind::Paged)?;
    /// let mut session = engine.session()?;
    /// for number in 0u32..2000 {
    ///     session.transact(|tx| tx.put(orders, &number.to_be_bytes(), &[7; 200]))?;
    /// }
    /// # drop(session);
    /// engine.close()?;
    ///
    /// let engine = Engine::open(config)?;
    /// let orders = engine.table_with("orders", Kind::Paged)?;
    /// let mut session = engine.session()?;
    /// let (first, last) = (1000u32.to_be_bytes(), 1009u32.to_be_bytes());
    /// let count = session.transact(|tx| {
    ///     let (mut count, mut range) = (0, tx.range(orders, &first[..]..=&last[..])?);
    ///     while range.next_record()?.is_some() {
    ///         count += 1;
    ///     }
    ///     Ok(count)
    /// })?;
    /// assert_eq!(count, 10);
    /// # drop(session);
    /// # engine.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::TableName`] if the name cannot be used, or belongs to a table of another kind.
    /// [`Error::Config`] for a paged table without a pool, or for a SIREN table without memory. Else as
    /// [`tables_named`](Self::tables_named).
    pub fn table_with(&self, name: &str, kind: Kind) -> Result<TableId, Error> {
        check_table_name(name)?;
        match kind {
            Kind::Memory | Kind::Ordered => {}
            Kind::Paged => return self.paged_table(name),
            Kind::Siren => return self.siren_table(name),
        }
        let shared = &self.shared;
        let find = |tables: &[TableEntry]| {
            let known = tables.iter().find(|table| table.name == name)?;
            let is_it = known.kind == kind.recorded();
            Some(if is_it { Ok(TableId(known.id)) } else { Err(refused_name(name, OTHER_KIND)) })
        };
        match find(&shared.catalog.now().tables) {
            Some(Err(refused)) => return Err(refused),
            // A table of the MANIFEST that a crash has left unmade is made now.
            Some(Ok(id)) if shared.store.generation(id).is_some() => return Ok(id),
            _ => {}
        }
        Inside::refuse_changing_tables("making a table", &shared.kinds)?;
        let _changing = shared.catalog.change_tables();
        let before = shared.catalog.now().tables;
        let mut after = before.clone();
        let found = find(&after).transpose()?;
        if let Some(id) = found.filter(|&id| shared.store.generation(id).is_some()) {
            return Ok(id);
        }
        let id = find_or_add(&mut after, &[name], &kind.recorded())?[0];
        let entry = after.iter().find(|table| table.id == id.0).expect("added");
        let made = new_table(&shared.store, entry)
            .map_err(|source| Error::TableSpace { open: before.len(), source })?;
        shared.publish(|manifest| manifest.tables = after)?;
        let published = Published(shared);
        shared
            .store
            .add_tables(vec![made])
            .expect("only who holds the right to change tables adds one");
        published.committed();
        Ok(id)
    }

    /// The paged table of that name. Makes the table if there is none.
    fn paged_table(&self, name: &str) -> Result<TableId, Error> {
        if self.shared.of_engine.paged.is_none() {
            let reason =
                format!("table {name:?} is to be paged, and there is no pool: set its size");
            return Err(Error::Config { setting: "pool", reason });
        }
        self.table_of_kind(name, KIND_NAME)
    }

    /// The table of that name in SIREN's pages. Makes the table if there is none.
    fn siren_table(&self, name: &str) -> Result<TableId, Error> {
        if self.shared.of_engine.siren.is_none() {
            let reason =
                format!("table {name:?} is to be of kind siren, and has no memory: set its size");
            return Err(Error::Config { setting: "siren_memory", reason });
        }
        self.table_of_kind(name, stillpoint_siren::KIND_NAME)
    }

    /// The table of that name, of a [kind](crate::EngineBuilder::table_kind) that the engine was
    /// opened with. Makes the table if there is none.
    ///
    /// # Errors
    /// [`Error::Config`] if there is no such kind. [`Error::TableName`] if the name cannot be used,
    /// or belongs to a table of another kind. An error of the MANIFEST; then no table is made.
    /// [`Error::InsideTransaction`] if the table is missing, as for [`tables_named`](Self::tables_named).
    pub fn table_of_kind(&self, name: &str, kind: &str) -> Result<TableId, Error> {
        check_table_name(name)?;
        let shared = &self.shared;
        shared.kinds.number_of(kind)?;
        let of_kind = TableKind::Other(kind.to_owned());
        let find = |tables: &[TableEntry]| {
            let known = tables.iter().find(|table| table.name == name)?;
            let is_it = known.kind == of_kind;
            Some(if is_it { Ok(TableId(known.id)) } else { Err(refused_name(name, OTHER_KIND)) })
        };
        if let Some(found) = find(&shared.catalog.now().tables) {
            return found;
        }
        Inside::refuse_changing_tables("making a table", &shared.kinds)?;
        let _changing = shared.catalog.change_tables();
        let mut after = shared.catalog.now().tables;
        if let Some(found) = find(&after) {
            return found;
        }
        let before = after.clone();
        let id = find_or_add(&mut after, &[name], &of_kind)?[0];
        let made = prepare_new(shared, &before, &mut after)?;
        let entry = made.first().expect("a new table of another kind");
        shared.publish(|manifest| {
            manifest.tables = after;
            name_kinds(manifest, shared.floor);
        })?;
        let published = Published(shared);
        let added = shared.kinds.add_table(entry, &*shared.disk);
        if added.is_err() {
            shared.publish(|manifest| manifest.tables.retain(|table| table.id != id.0))?;
        }
        published.committed();
        shared.heed_log_limit();
        added.map(|()| id)
    }

    /// The tables of those names, if the MANIFEST and the store have them all.
    fn known_tables(&self, names: &[&str]) -> Option<Vec<TableId>> {
        let manifest = self.shared.catalog.now();
        let Shared { store, kinds, .. } = &*self.shared;
        let known = |id: &TableId| store.generation(*id).is_some() || kinds.of(*id).is_some();
        names.iter().map(|name| table_of(&manifest.tables, name).filter(known)).collect()
    }

    /// Names and numbers of all tables but the engine's own.
    pub fn tables(&self) -> Vec<(String, TableId)> {
        let mut tables = self.all_tables();
        tables.retain(|(name, _)| !name.starts_with(OWN_TABLES));
        tables
    }

    /// Names and numbers of all tables.
    pub(crate) fn all_tables(&self) -> Vec<(String, TableId)> {
        let manifest = self.shared.catalog.now();
        manifest.tables.into_iter().map(|table| (table.name, TableId(table.id))).collect()
    }

    /// Number of keys of a table, as a statistic that waits for nothing. A crash may undo counted
    /// commits, so answers use [`Session::len`](crate::Session::len). While a store is
    /// [served and loaded](crate::Config::serve_while_loading), keys that are not loaded do not count.
    pub fn len(&self, table: TableId) -> u64 {
        match self.shared.kinds.kind_of(table) {
            Ok(kind) => kind.record_count(table),
            Err(_) => self.shared.store.record_count(table),
        }
    }

    /// Whether the memory of emptied tables is still being freed. Then a write that found no memory
    /// may succeed a little later. Waits for nothing.
    pub fn memory_returns(&self) -> bool {
        self.shared.store.memory_returns()
    }

    /// Empties some tables in one durable step, in time that does not depend on their size. Waits
    /// for commits under way, and holds new ones meanwhile. Numbers without a table are ignored.
    ///
    /// The memory is free soon after, also while a checkpoint is under way. With a journal of writes,
    /// that checkpoint then holds no records of the tables. With one that logs calls, earlier calls may
    /// read the records: the checkpoint captures them, and the memory is free at its end. Without a
    /// journal, the checkpoint is given up and begun anew.
    ///
    /// # Errors
    /// Address space for the empty tables is missing, or the MANIFEST could not be written. Then
    /// nothing is removed. [`Error::InsideTransaction`] from inside a transaction. If the engine has other
    /// [kinds](crate::EngineBuilder::table_kind) of tables, also while the thread has an open transaction.
    /// [`TxError::LockTimeout`](crate::TxError::LockTimeout) if an open transaction uses a table of such a
    /// kind for longer than [`Config::lock_timeout`](crate::Config::lock_timeout).
    pub fn flush_tables(&self, tables: &[TableId]) -> Result<(), Error> {
        empty(&self.shared, tables, &self.shared.wait_limits())
    }
}

/// How the records of a table are stored and found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// By key. [`Engine::table`] makes such tables.
    Memory,
    /// By key, and in the order of keys: [`Tx::range`](crate::Tx::range), [`Tx::count`](crate::Tx::count)
    /// and [`Tx::nth`](crate::Tx::nth) read such a table. Keys have at most 512 bytes. The order costs
    /// memory for each key, and time for each insertion and each deletion. Reads of a record cost as much
    /// as in other tables. A lock for writing also shares one of 16 words of the table. So a count waits
    /// for all changes under way, and they wait for it.
    Ordered,
    /// On the disk, in the order of keys, in pages of which a pool holds those in use
    /// ([`Config::pool_bytes`](crate::Config::pool_bytes)). Such a table may be larger than the memory.
    /// Keys have at most an eighth of a page. Values beyond a quarter of a page have pages of their own, and
    /// may be longer than the pool. What transactions write is in place at once, and an abort undoes it.
    Paged,
    /// In memory, in logical pages in the order of keys, after SIREN (ICDE 2006). A checkpoint holds
    /// consistent pages, those that have changed alone, open transactions included, and takes almost no
    /// memory. [`Config::siren_bytes`](crate::Config::siren_bytes) is the memory of all such tables. The log
    /// of a write has no value from before. [`Tx::range`](crate::Tx::range) reads such a table.
    Siren,
}

impl Kind {
    /// The kind in the MANIFEST.
    fn recorded(self) -> TableKind {
        match self {
            Kind::Memory => TableKind::Memory,
            Kind::Ordered => TableKind::Ordered,
            Kind::Paged => TableKind::Other(KIND_NAME.to_owned()),
            Kind::Siren => TableKind::Other(stillpoint_siren::KIND_NAME.to_owned()),
        }
    }
}

/// Prepares the new tables of other kinds for the MANIFEST. Returns their entries.
fn prepare_new(
    shared: &Shared,
    before: &[TableEntry],
    after: &mut [TableEntry],
) -> Result<Vec<TableEntry>, Error> {
    let is_new = |table: &TableEntry| before.iter().all(|known| known.id != table.id);
    let mut prepared = Vec::new();
    for entry in after.iter_mut().filter(|table| is_new(table)) {
        let TableKind::Other(name) = &entry.kind else { continue };
        let kind = &shared.kinds.kinds[shared.kinds.number_of(name)?];
        kind.admit_table()?;
        entry.private = kind.new_section();
        prepared.push(entry.clone());
    }
    Ok(prepared)
}

/// Names each kind that has a table in the MANIFEST. A kind that gets its first one needs no log of before
/// the incarnation, which begins above `floor`.
pub(crate) fn name_kinds(manifest: &mut Manifest, floor: u64) {
    for table in &manifest.tables {
        if let TableKind::Other(name) = &table.kind
            && manifest.kinds.iter().all(|known| known.name != *name)
        {
            manifest.kinds.push(new_entry(name, floor));
        }
    }
}

/// Makes the store's table for an entry of the MANIFEST.
pub(crate) fn new_table(store: &Store, entry: &TableEntry) -> Result<NewTable, RegionError> {
    let (id, generation) = (TableId(entry.id), entry.generation);
    match entry.kind {
        TableKind::Ordered => store.new_ordered_table(id, generation),
        _ => store.new_table(id, generation),
    }
}

const OTHER_KIND: &str = "a table of another kind has it";

fn refused_name(name: &str, reason: &'static str) -> Error {
    Error::TableName { name: name.to_owned(), reason }
}

/// Checks the length of a table's name.
pub(crate) fn check_name_length(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > 255 {
        return Err(refused_name(name, "it must have 1 to 255 bytes"));
    }
    Ok(())
}

/// Checks the name of a program's table.
pub(crate) fn check_table_name(name: &str) -> Result<(), Error> {
    check_name_length(name)?;
    if name.starts_with(OWN_TABLES) {
        return Err(refused_name(name, "names that begin with stillpoint: are the engine's own"));
    }
    Ok(())
}

fn table_of(tables: &[TableEntry], name: &str) -> Option<TableId> {
    tables.iter().find(|table| table.name == name).map(|table| TableId(table.id))
}

/// Finds the tables of some names, or adds them with free numbers, of this kind. The engine's own tables are
/// always in memory. The tables stay in the order of their numbers.
pub(crate) fn find_or_add(
    tables: &mut Vec<TableEntry>,
    names: &[&str],
    kind: &TableKind,
) -> Result<Vec<TableId>, Error> {
    let mut by_name: HashMap<String, u16> =
        tables.iter().map(|table| (table.name.clone(), table.id)).collect();
    let used: BTreeSet<u16> = tables.iter().map(|table| table.id).collect();
    let mut free = (0..=u16::MAX).filter(|id| !used.contains(id));
    let mut ids = Vec::new();
    for &name in names {
        let id = match by_name.get(name) {
            Some(&id) => id,
            None => {
                let full = || refused_name(name, "there are 65,536 tables already");
                let id = free.next().ok_or_else(full)?;
                let is_own = name.starts_with(OWN_TABLES);
                let kind = if is_own { TableKind::Memory } else { kind.clone() };
                tables.push(TableEntry { kind, ..TableEntry::new(id, name, 1) });
                by_name.insert(name.to_owned(), id);
                id
            }
        };
        ids.push(TableId(id));
    }
    tables.sort_by_key(|table| table.id);
    Ok(ids)
}

//! Loads the pages of a checkpoint: tables, versions, and the transactions that were open.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use stillpoint_format::ident::StoreId;
use stillpoint_format::siren::{Directory, ExtentKind, StoredExtent, TupleImage};
use stillpoint_io::in_parallel;
use stillpoint_mem::HugeHeap;
use stillpoint_sync::atomic::{AtomicBool, AtomicU64};
use stillpoint_sync::{Mutex, ReadSections, RwLock};

use crate::base::{Base, HeldBytes, new_pages};
use crate::config::Config;
use crate::copier::OnDisk;
use crate::disk_pages::DiskPages;
use crate::error::{SirenError, SirenResult};
use crate::proxy::Proxy;
use crate::slab::Slot;
use crate::table::Table;

/// A tuple of a checkpoint.
struct LoadedTuple {
    table: u16,
    key: Vec<u8>,
    value: Option<Arc<[u8]>>,
    open: Option<(u64, u32)>,
}

/// An extent of a checkpoint, with its tuples.
struct LoadedPage {
    stored: StoredExtent,
    tuples: Vec<LoadedTuple>,
}

/// What orders a page among all: its table, its first and last key, and the statement of its first tuple.
type PageOrder<'p> = (u16, Option<&'p [u8]>, Option<&'p [u8]>, Option<u32>);

impl LoadedPage {
    fn order(&self) -> PageOrder<'_> {
        let (first, last) = (self.tuples.first(), self.tuples.last());
        let statement = first.and_then(|tuple| tuple.open).map(|(_, statement)| statement);
        (
            self.stored.table,
            first.map(|tuple| &tuple.key[..]),
            last.map(|tuple| &tuple.key[..]),
            statement,
        )
    }
}

/// A page with its place in the list of pages.
struct PlacedPage {
    table: Arc<Table>,
    slot: Slot,
    tuples: Vec<LoadedTuple>,
}

/// A key that a transaction has written.
pub(crate) type WrittenKey = (Arc<Table>, Arc<Proxy>);

/// What some pages have.
#[derive(Default)]
struct Found {
    /// New proxies of each table, in the order of keys.
    proxies: BTreeMap<u16, Vec<Arc<Proxy>>>,
    /// Keys with versions of open transactions.
    open: Vec<(u64, WrittenKey)>,
    tuples: u64,
    heap: HugeHeap,
}

impl Found {
    /// Makes the proxies of a page, and then its tuples.
    fn load(&mut self, pages: &DiskPages, page: PlacedPage) -> SirenResult<()> {
        let PlacedPage { table, slot, tuples } = page;
        let in_order = self.proxies.entry(table.id).or_default();
        let mut proxies = Vec::with_capacity(tuples.len());
        for tuple in &tuples {
            let (proxy, is_new) = table.index.find_or_insert_by_hash(&tuple.key);
            self.heap.note(&*proxy);
            in_order.extend(is_new.then(|| proxy.clone()));
            proxies.push(proxy);
        }
        let mut of_table = table.pages.lock();
        let load = |(tuple, proxy): (&LoadedTuple, &Arc<Proxy>)| {
            of_table.load_tuple(slot, proxy, tuple.value.clone(), tuple.open)
        };
        let slots: Vec<Slot> = tuples.iter().zip(&proxies).map(load).collect();
        drop(of_table);
        let mut loaded = tuples.into_iter().zip(proxies).zip(slots);
        loaded
            .try_for_each(|((tuple, proxy), at)| self.add_version(pages, &table, &proxy, at, tuple))
    }

    fn add_version(
        &mut self,
        pages: &DiskPages,
        table: &Arc<Table>,
        proxy: &Arc<Proxy>,
        slot: Slot,
        tuple: LoadedTuple,
    ) -> SirenResult<()> {
        let statement = tuple.open.map(|(_, statement)| statement);
        if !table.load_version(proxy, slot, tuple.value, statement) {
            let what = format!("table {} has two tuples of one version of a key", table.id);
            return Err(SirenError::inconsistent(pages.path_of_file(), what));
        }
        if let Some((transaction, _)) = tuple.open {
            self.open.push((transaction, (table.clone(), proxy.clone())));
        }
        self.tuples += 1;
        Ok(())
    }
}

/// The tables and open transactions while they are recovered.
pub(crate) struct Loaded {
    pub(crate) config: Config,
    pub(crate) held: Arc<HeldBytes>,
    pub(crate) tables: Vec<Arc<Table>>,
    /// The keys that each open transaction has written.
    pub(crate) open: BTreeMap<u64, Vec<WrittenKey>>,
    /// The level at which operations are repeated: that of the checkpoint, plus one.
    pub(crate) level: u64,
    pub(crate) next_transaction: u64,
    pub(crate) extents: HashMap<(u16, u64), StoredExtent>,
    /// Tuples of the checkpoint.
    pub(crate) tuples: u64,
}

impl Loaded {
    /// Nothing, on top of a checkpoint of this level.
    pub(crate) fn new(
        store: StoreId,
        config: Config,
        (level, next_transaction): (u64, u64),
    ) -> Self {
        Self {
            config,
            held: HeldBytes::of(store),
            tables: Vec::new(),
            open: BTreeMap::new(),
            level: level + 1,
            next_transaction,
            extents: HashMap::new(),
            tuples: 0,
        }
    }

    /// Adds an empty table, unless it is there.
    pub(crate) fn table(&mut self, id: u16, name: &str, generation: u32) {
        if self.tables.iter().any(|table| table.id == id) {
            return;
        }
        // Nobody works at a lower level, so the level is settled.
        let pages = new_pages(&self.config, &self.held, (id, self.level, 0));
        self.tables.push(Table::new(id, name, generation, pages));
    }

    pub(crate) fn find(&self, id: u16) -> Option<Arc<Table>> {
        self.tables.iter().find(|table| table.id == id).cloned()
    }

    /// Loads the extents of a checkpoint. `may_lack` says that pending removes of tables that are not
    /// there are left out, since a MANIFEST has emptied them.
    pub(crate) fn load(
        &mut self,
        pages: &DiskPages,
        directory: &Directory,
        may_lack: bool,
    ) -> SirenResult<()> {
        let mut loaded = read_pages(pages, directory, self.config.recovery_threads)?;
        // The directory lists pages by their place on the disk. Their order is that of their keys.
        // Versions of one key may begin several pages.
        loaded.sort_by(|a, b| a.order().cmp(&b.order()));
        let (apart, ordinary): (Vec<_>, Vec<_>) =
            loaded.into_iter().partition(|page| page.stored.kind == ExtentKind::Removes);
        self.load_pages(pages, ordinary)?;
        for tuple in apart.into_iter().flat_map(|page| page.tuples) {
            if may_lack && self.find(tuple.table).is_none() {
                continue;
            }
            let table = self.table_of_page(pages, tuple.table)?;
            let proxy = table.index.find_or_insert(&tuple.key);
            let statement = tuple.open.map(|(_, statement)| statement);
            let previous = proxy.versions.lock().before(statement);
            let previous = previous.or_else(|| table.index.predecessor(&tuple.key));
            let slot = table.pages.lock().load_apart(
                self.level,
                previous.unwrap_or(Slot::NONE),
                &proxy,
                tuple.value.clone(),
                tuple.open,
            );
            let mut found = Found::default();
            found.add_version(pages, &table, &proxy, slot, tuple)?;
            self.take(found);
        }
        Ok(())
    }

    /// Loads the ordinary pages, which are in order: makes proxies and tuples in several threads, and then the
    /// orders of keys.
    fn load_pages(&mut self, pages: &DiskPages, ordered: Vec<LoadedPage>) -> SirenResult<()> {
        let mut placed = Vec::with_capacity(ordered.len());
        for page in ordered {
            let table = self.table_of_page(pages, page.stored.table)?;
            let (slot, number) = table.pages.lock().load_page();
            self.extents.insert((table.id, number), page.stored);
            placed.push(PlacedPage { table, slot, tuples: page.tuples });
        }
        let share = placed.len().div_ceil(self.config.recovery_threads.max(1)).max(1);
        let mut jobs = Vec::new();
        while !placed.is_empty() {
            let rest = placed.split_off(share.min(placed.len()));
            let mine = std::mem::replace(&mut placed, rest);
            jobs.push(move || {
                let mut found = Found::default();
                mine.into_iter().try_for_each(|page| found.load(pages, page))?;
                Ok::<Found, SirenError>(found)
            });
        }
        let mut in_order = BTreeMap::<u16, Vec<Arc<Proxy>>>::new();
        for loaded in in_parallel("siren-load", jobs)? {
            let mut found: Found = loaded?;
            for (table, proxies) in std::mem::take(&mut found.proxies) {
                in_order.entry(table).or_default().extend(proxies);
            }
            self.take(found);
        }
        let fill = |(table, proxies)| {
            let table = self.find(table).expect("it has pages");
            move || table.index.fill_order(proxies)
        };
        in_parallel("siren-load", in_order.into_iter().map(fill).collect())?;
        Ok(())
    }

    /// Takes over what was found in some pages.
    fn take(&mut self, found: Found) {
        self.tuples += found.tuples;
        for (transaction, key) in found.open {
            self.next_transaction = self.next_transaction.max(transaction.saturating_add(1));
            self.open.entry(transaction).or_default().push(key);
        }
    }

    fn table_of_page(&self, pages: &DiskPages, id: u16) -> SirenResult<Arc<Table>> {
        self.find(id).ok_or_else(|| {
            let what = format!("a page has tuples of table {id}, which is not there");
            SirenError::inconsistent(pages.path_of_file(), what)
        })
    }

    /// What was loaded, to work on, for so many threads. The tables are left to the caller.
    pub(crate) fn into_base(self, on_disk: OnDisk, threads: usize) -> Base {
        Base {
            // What was repeated at a level must stay in the dirty list of that level.
            level: AtomicU64::new(self.level),
            sections: ReadSections::new(threads),
            tables: RwLock::new(Vec::new()),
            on_disk: Mutex::new(OnDisk { extents: self.extents, ..on_disk }),
            held: self.held,
            slowed: AtomicU64::new(0),
            hurries: AtomicBool::new(false),
            config: self.config,
        }
    }
}

/// Reads the extents of a checkpoint, in several threads.
fn read_pages(
    pages: &DiskPages,
    directory: &Directory,
    threads: usize,
) -> SirenResult<Vec<LoadedPage>> {
    let extents = &directory.extents;
    let share = extents.len().div_ceil(threads.max(1)).max(1);
    let jobs: Vec<_> = extents
        .chunks(share)
        .map(|chunk| {
            move || {
                let read = chunk.iter().map(|stored| {
                    pages
                        .read(stored, |tuples| Ok(load_tuples(tuples)))
                        .map(|tuples| LoadedPage { stored: *stored, tuples })
                });
                read.collect::<SirenResult<Vec<_>>>()
            }
        })
        .collect();
    let mut loaded = Vec::with_capacity(extents.len());
    for result in in_parallel("siren-load", jobs)? {
        loaded.extend(result?);
    }
    Ok(loaded)
}

fn load_tuples(tuples: &[TupleImage<'_>]) -> Vec<LoadedTuple> {
    let load = |tuple: &TupleImage<'_>| LoadedTuple {
        table: tuple.table,
        key: tuple.key.to_vec(),
        value: (!tuple.is_delete_mark).then(|| Arc::from(tuple.value)),
        open: tuple.open,
    };
    tuples.iter().map(load).collect()
}

//! The check of all pages on a disk, while no process writes them, and of all trees.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stillpoint_format::ident::StoreId;
use stillpoint_format::pages::PageId;
use stillpoint_format::{DecodeCause, DecodeError};
use stillpoint_io::Disk;
use stillpoint_node::Node;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_txn::{KindTable, TableId};

use crate::kind::Paged;
use crate::large::check_large;
use crate::pages::{PageStore, PageStoreConfig, PageStoreStats, PagesError};
use crate::pool::{root_page, table_of_root, table_word};
use crate::tables::{NamedPages, Section};
use crate::tree::{TreeError, TreeSummary};

/// Defects that a check keeps.
const SHOWN: usize = 100;

/// What a check of pages has found.
#[derive(Debug, Default)]
pub struct CheckedPages {
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Pages that the map names.
    pub pages: u64,
    /// Slots of the data file.
    pub slots: u64,
    /// The first defects: file, slot, page, table, and what to do.
    pub damage: Vec<PagesError>,
    /// Number of further defects.
    pub damage_more: u64,
    /// Numbers of the pages.
    pub placed: BTreeSet<u64>,
    /// Copies of blocks of the map that cannot be used, and whose other copies are whole. A crash may
    /// leave such copies.
    pub unused_copies: Vec<PagesError>,
}

impl CheckedPages {
    fn add(&mut self, defect: PagesError) {
        match defect {
            PagesError::MapCopy { .. } => self.unused_copies.push(defect),
            _ if self.damage.len() < SHOWN => self.damage.push(defect),
            _ => self.damage_more += 1,
        }
    }
}

/// Opens the pages that the sections of the MANIFEST name, on a disk that is only read. `None` if no
/// section names a state of the pages.
///
/// # Errors
/// As [`PageStore::open`].
pub(crate) fn open_to_read(
    disk: &dyn Disk,
    store: StoreId,
    sections: &[&str],
) -> Result<Option<Arc<PageStore>>, PagesError> {
    let named = NamedPages::of(sections)?;
    let (Some(page_bytes), counts @ Some(_)) = (named.page_bytes, named.map) else {
        return Ok(None);
    };
    let config =
        PageStoreConfig { store, page_bytes, growth_bytes: 0, held_back: 0, rollback: 0, counts };
    PageStore::open_to_read(disk, config).map(Some)
}

/// Counts the pages and slots of the state that the sections of the MANIFEST name. Reads the map alone.
/// `None` if no section names pages.
///
/// # Errors
/// The map is damaged, or the disk refuses.
pub fn count_pages(
    disk: &dyn Disk,
    store: StoreId,
    sections: &[&str],
) -> Result<Option<PageStoreStats>, PagesError> {
    Ok(open_to_read(disk, store, sections)?.map(|pages| pages.stats()))
}

/// Checks the map and all pages that the sections of the tables name. That are checksums, numbers, gsns, each
/// slot once, each node alone, and the owners of roots. Writes nothing. `None` if no section names pages.
///
/// # Errors
/// The disk refuses, or there is no memory. Damage is part of the result.
pub fn check_pages(
    disk: &dyn Disk,
    store: StoreId,
    tables: &[KindTable<'_>],
) -> Result<Option<CheckedPages>, PagesError> {
    let sections: Vec<&str> = tables.iter().filter_map(|table| table.section).collect();
    let mut checked = CheckedPages::default();
    let pages = match open_to_read(disk, store, &sections) {
        Ok(Some(pages)) => pages,
        Ok(None) => return Ok(None),
        Err(error) if error.is_damage() => {
            checked.add(error);
            return Ok(Some(checked));
        }
        Err(error) => return Err(error),
    };
    let owners: BTreeMap<u64, u64> = tables.iter().filter_map(root_and_owner).collect();
    let check_node = |words: &[AtomicU64]| -> Result<(), DecodeError> {
        if let Some(checked) = check_large(words) {
            return checked;
        }
        let node = Node::new(words);
        node.check()?;
        // Relaxed: nobody writes the frame.
        let [page, _, owner] = node.owner_words().each_ref().map(|word| word.load(Relaxed));
        match owners.get(&page).is_none_or(|&expected| expected == owner) {
            true => Ok(()),
            false => {
                let cause = DecodeCause::Inconsistent("the root of another generation, or table");
                Err(DecodeError { what: "page", offset: 24, cause })
            }
        }
    };
    checked.pages = pages.check_pages(check_node, |defect| checked.add(defect))?;
    checked.page_bytes = pages.page_bytes();
    checked.slots = pages.stats().slots;
    let placed: BTreeSet<u64> = pages.placed().collect();
    for root in owners.keys().filter(|root| !placed.contains(root)) {
        checked.add(pages.no_such_page(PageId(*root)));
    }
    checked.placed = placed;
    name_tables(&pages, &mut checked)?;
    Ok(Some(checked))
}

/// The root of a table whose section names pages, and the word of its owner.
fn root_and_owner(table: &KindTable<'_>) -> Option<(u64, u64)> {
    let section = Section::read(table.section?)?;
    let owner = table_word(table.id, table.generation);
    (section.map > 0).then_some((root_page(table.id), owner))
}

/// Names the tables of damaged pages that do not say it themselves. The parents of the pages tell it.
fn name_tables(pages: &Arc<PageStore>, checked: &mut CheckedPages) -> Result<(), PagesError> {
    let mut nameless: Vec<(u64, &mut Option<u16>)> = Vec::new();
    for defect in &mut checked.damage {
        if let PagesError::Page { page, table: table @ None, .. } = defect {
            *table = table_of_root(page.0).map(|table| table.0);
            if table.is_none() {
                nameless.push((page.0, table));
            }
        }
    }
    if nameless.is_empty() {
        return Ok(());
    }
    let children: RefCell<BTreeMap<u64, u16>> = RefCell::default();
    let look = |words: &[AtomicU64]| {
        let node = Node::new(words);
        if node.check().is_ok() && node.level() > 0 {
            // Relaxed: nobody writes the frame.
            let table = node.owner_words()[2].load(Relaxed) as u16;
            let of_node = (0..node.child_count()).map(|position| (node.child(position).at, table));
            children.borrow_mut().extend(of_node);
        }
        Ok(())
    };
    pages.check_pages(look, drop)?;
    let children = children.into_inner();
    for (page, table) in nameless {
        *table = children.get(&page).copied();
    }
    Ok(())
}

/// What a check of all trees has found.
#[derive(Debug, Default)]
pub struct CheckedTrees {
    /// The trees without a defect.
    pub tables: Vec<(TableId, TreeSummary)>,
    /// The first defect of each other tree.
    pub damage: Vec<TreeDamage>,
    /// Numbers of all pages of these trees.
    pub pages: BTreeSet<u64>,
}

/// A defect that only the whole tree shows.
#[derive(Debug, thiserror::Error)]
pub enum TreeDamage {
    /// A page of the tree has a defect, or cannot be read.
    #[error("the tree of table {}: {source}; put a copy of the data directory back", .table.0)]
    Tree {
        /// Table.
        table: TableId,
        /// The defect.
        source: TreeError,
    },
    /// The pages hold another number of records than was counted.
    #[error(
        "the pages of table {} hold {found} records, and MANIFEST and logs count {counted}; put a copy of \
         the data directory back", .table.0
    )]
    Records {
        /// Table.
        table: TableId,
        /// Records in the pages.
        found: u64,
        /// Records that were counted.
        counted: u64,
    },
    /// A page is in two trees.
    #[error(
        "page {page} is in the trees of tables {} and {}; put a copy of the data directory back",
        .tables[0].0, .tables[1].0
    )]
    Shared {
        /// Page.
        page: u64,
        /// Both tables.
        tables: [TableId; 2],
    },
}

impl Paged {
    /// Checks the trees of all tables, while nobody changes them. That are the order of keys, fences,
    /// levels, and numbers of records. Each page must be in one tree once.
    pub fn check_trees(&self) -> CheckedTrees {
        let (mut checked, mut owners) = (CheckedTrees::default(), BTreeMap::new());
        for table in self.tables.ids() {
            let summary = match self.pool.check_table(table) {
                Ok(summary) => summary,
                Err(source) => {
                    checked.damage.push(TreeDamage::Tree { table, source });
                    continue;
                }
            };
            let counted = self.tables.get(table).map_or(0, |table| table.record_count());
            if summary.records != counted {
                let found = summary.records;
                checked.damage.push(TreeDamage::Records { table, found, counted });
            }
            let shared = summary
                .pages
                .iter()
                .find_map(|&page| owners.insert(page, table).map(|other| (page, [other, table])));
            checked.damage.extend(shared.map(|(page, tables)| TreeDamage::Shared { page, tables }));
            checked.tables.push((table, summary));
        }
        checked.pages = owners.into_keys().collect();
        checked
    }
}

//! Looks at the pages that a MANIFEST names, and changes nothing: counts them, or verifies each alone.

use std::collections::BTreeMap;

use stillpoint_format::ident::StoreId;
use stillpoint_format::siren::{Directory, ExtentKind};
use stillpoint_io::{Disk, OpenMode};
use stillpoint_txn::{KindTable, TableId};

use crate::disk_pages::DiskPages;
use crate::error::{SirenError, SirenResult};
use crate::section::Section;

/// Damaged places that are told one by one.
const DAMAGE_MAX: usize = 20;

/// What the sections of a MANIFEST say.
pub(crate) struct Named {
    /// The tables that have a section, with their generations.
    pub(crate) tables: Vec<(TableId, u32)>,
    /// The newest section. All tables of a checkpoint have the same.
    pub(crate) newest: Option<Section>,
}

impl Named {
    /// # Errors
    /// A section that this build cannot read.
    pub(crate) fn of(tables: &[KindTable<'_>]) -> SirenResult<Self> {
        let mut named = Self { tables: Vec::new(), newest: None::<Section> };
        for table in tables {
            let Some(text) = table.section else { continue };
            let unknown = || SirenError::Section { table: table.id.0, text: text.to_owned() };
            let section = Section::read(text).ok_or_else(unknown)?;
            named.tables.push((table.id, table.generation));
            if named.newest.is_none_or(|newest| newest.level < section.level) {
                named.newest = Some(section);
            }
        }
        Ok(named)
    }

    pub(crate) fn has(&self, table: u16) -> bool {
        self.tables.iter().any(|(id, _)| id.0 == table)
    }
}

/// The level of the checkpoint that the sections name: it holds all operations of levels up to this one.
/// `None` if they name none.
///
/// # Errors
/// A section that this build cannot read.
pub fn named_level(tables: &[KindTable<'_>]) -> SirenResult<Option<u64>> {
    Ok(Named::of(tables)?.newest.map(|section| section.level))
}

/// The pages of the newest checkpoint, as its directory counts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Bytes of a disk page.
    pub page_bytes: u32,
    /// The checkpoint holds all operations of levels up to this one.
    pub level: u64,
    /// Logical pages of each table, by its number.
    pub pages: BTreeMap<u16, u64>,
    /// Pages of tuples that were removed while the checkpoint was taken.
    pub removes_pages: u64,
    /// Disk pages of the file up to the last used one, headers included.
    pub file_pages: u64,
}

impl PageCounts {
    fn of(pages: &DiskPages, directory: &Directory) -> Self {
        let mut counts = Self {
            page_bytes: pages.header.page_bytes,
            level: directory.level,
            file_pages: u64::from(pages.len()),
            ..Self::default()
        };
        for stored in &directory.extents {
            match stored.kind {
                ExtentKind::Tuples => *counts.pages.entry(stored.table).or_default() += 1,
                ExtentKind::Removes => counts.removes_pages += 1,
            }
        }
        counts
    }
}

fn open(
    disk: &dyn Disk,
    store: StoreId,
    tables: &[KindTable<'_>],
) -> SirenResult<Option<(DiskPages, Directory)>> {
    let named = Named::of(tables)?;
    let Some(Section { level, directory, bytes, .. }) = named.newest else { return Ok(None) };
    let place = (directory, bytes, level);
    DiskPages::open_named(disk, store, OpenMode::Read, place, |table| named.has(table)).map(Some)
}

/// Counts the pages that the sections name. Reads the header and the page directory, and no page. `None` if
/// the sections name none.
///
/// # Errors
/// A section that this build cannot read, the disk, damage.
pub fn count_pages(
    disk: &dyn Disk,
    store: StoreId,
    tables: &[KindTable<'_>],
) -> SirenResult<Option<PageCounts>> {
    let opened = open(disk, store, tables)?;
    Ok(opened.map(|(pages, directory)| PageCounts::of(&pages, &directory)))
}

/// Pages that were verified, each alone.
#[derive(Debug)]
pub struct CheckedPages {
    /// The pages, counted.
    pub counts: PageCounts,
    /// Tuples in sound pages.
    pub tuples: u64,
    /// The first damaged pages.
    pub damage: Vec<SirenError>,
    /// Number of further ones.
    pub damage_more: u64,
}

/// Verifies the page directory and each page that the sections name: its checksum, its place, and that each
/// tuple can be read. No disk page may be used twice. `None` if the sections name none.
///
/// # Errors
/// A section that this build cannot read, the disk, a damaged header or directory. Damaged pages are part of
/// the result.
pub fn check_pages(
    disk: &dyn Disk,
    store: StoreId,
    tables: &[KindTable<'_>],
) -> SirenResult<Option<CheckedPages>> {
    let Some((pages, directory)) = open(disk, store, tables)? else { return Ok(None) };
    let counts = PageCounts::of(&pages, &directory);
    let mut checked = CheckedPages { counts, tuples: 0, damage: Vec::new(), damage_more: 0 };
    for stored in &directory.extents {
        match pages.read(stored, |tuples| Ok(tuples.len() as u64)) {
            Ok(tuples) => checked.tuples += tuples,
            Err(error) if !error.is_damage() => return Err(error),
            Err(_) if checked.damage.len() == DAMAGE_MAX => checked.damage_more += 1,
            Err(error) => checked.damage.push(error),
        }
    }
    Ok(Some(checked))
}

/// Whether it is unknown, after a failed flush, what the file of pages has. Then no further checkpoint of the
/// kind is taken.
pub fn is_in_doubt(reason: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    matches!(reason.downcast_ref(), Some(SirenError::InDoubt { .. }))
}

/// Whether a transaction was given up because of a damaged file of the kind.
pub fn is_damage(reason: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    reason.downcast_ref::<SirenError>().is_some_and(SirenError::is_damage)
}

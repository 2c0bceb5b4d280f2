//! SIREN tables of a data directory that is examined.

use std::collections::BTreeMap;

use stillpoint_format::manifest::Manifest;
use stillpoint_siren::{CheckedPages, PageCounts, Siren, SirenError};
use stillpoint_txn::TableKind;

use super::Directory;
use super::look::{Checked, Inspection};
use crate::error::Error;
use crate::kinds::TablesOfKind;
use crate::siren::KIND_NAME;

/// The pages of SIREN tables.
#[derive(Clone, Debug)]
pub struct InspectedSiren {
    /// The level of the checkpoint that the MANIFEST names: it holds all operations of levels up to this one.
    pub level: u64,
    /// Bytes of a disk page. `None` if the directory of the pages was not read.
    pub page_bytes: Option<usize>,
    /// Logical pages of each table, by table.
    pub pages: BTreeMap<u16, u64>,
    /// Disk pages of the file up to the last used one. `None` if the directory of the pages was not read.
    pub file_pages: Option<u64>,
}

impl InspectedSiren {
    /// What the sections of the MANIFEST say. `None` if they name no pages, or cannot be read.
    pub(super) fn of(manifest: &Manifest) -> Option<Self> {
        let tables = TablesOfKind::of(manifest, KIND_NAME);
        let level = stillpoint_siren::named_level(&tables.tables).ok()??;
        Some(Self { level, page_bytes: None, pages: BTreeMap::new(), file_pages: None })
    }
}

/// Pages of SIREN tables that were verified, each alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifiedSiren {
    /// Number of logical pages. Those of tuples that were removed while the checkpoint was taken are among
    /// them.
    pub pages: u64,
    /// Tuples in these pages. Some may belong to transactions that were open, or wait for their removal.
    pub tuples: u64,
    /// Bytes of a disk page.
    pub page_bytes: usize,
}

/// A SIREN table that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedSirenTable {
    /// Name of the table.
    pub name: String,
    /// Number of records.
    pub records: u64,
    /// Number of logical pages that a start has in memory.
    pub pages: u64,
}

impl Inspection {
    /// Counts the pages of SIREN tables. Damage is part of the result.
    pub(super) fn add_siren(&mut self, directory: &Directory) -> Result<(), Error> {
        let tables = TablesOfKind::of(&directory.manifest, KIND_NAME);
        let store = directory.manifest.store;
        match stillpoint_siren::count_pages(&*directory.disk, store, &tables.tables) {
            Ok(counted) => {
                for (siren, counts) in self.siren.iter_mut().zip(counted) {
                    let PageCounts { page_bytes, pages, file_pages, .. } = counts;
                    siren.page_bytes = Some(page_bytes as usize);
                    (siren.pages, siren.file_pages) = (pages, Some(file_pages));
                }
                Ok(())
            }
            Err(error) if error.is_damage() => {
                self.damage.get_or_insert(error.to_string());
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Checked {
    /// Verifies the directory of the pages of SIREN tables, and each page alone.
    pub(super) fn add_siren_pages(&mut self, directory: &Directory) -> Result<(), Error> {
        let manifest = &directory.manifest;
        let tables = TablesOfKind::of(manifest, KIND_NAME);
        let checked =
            stillpoint_siren::check_pages(&*directory.disk, manifest.store, &tables.tables);
        let CheckedPages { counts, tuples, damage, damage_more } = match checked {
            Ok(Some(checked)) => checked,
            Ok(None) => return Ok(()),
            Err(error) if error.is_damage() => {
                self.damage.push(with_name(manifest, &error));
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        if damage.is_empty() {
            let pages = counts.pages.values().sum::<u64>() + counts.removes_pages;
            let page_bytes = counts.page_bytes as usize;
            self.siren = Some(VerifiedSiren { pages, tuples, page_bytes });
        }
        self.damage.extend(damage.iter().map(|defect| with_name(manifest, defect)));
        self.damage_more += damage_more;
        Ok(())
    }

    /// Verifies the SIREN tables, which were brought to the end of the logs: their links, their order, and
    /// that each version has its tuple.
    pub(super) fn add_siren_tables(&mut self, manifest: &Manifest, siren: &Siren) {
        if let Err(what) = siren.check() {
            self.damage.push(format!("tables of kind {KIND_NAME}: {what}"));
            return;
        }
        let TablesOfKind { names, tables } = TablesOfKind::of(manifest, KIND_NAME);
        for (name, table) in names.into_iter().zip(tables) {
            let (records, pages) = (siren.record_count(table.id), siren.page_count(table.id));
            let name = name.to_owned();
            self.siren_tables.push(VerifiedSirenTable { name, records, pages });
        }
    }
}

/// A defect, with the name of the table.
fn with_name(manifest: &Manifest, defect: &SirenError) -> String {
    match defect {
        SirenError::DamagedPage { table: Some(table), .. } | SirenError::Section { table, .. } => {
            match manifest.table(*table) {
                Some(known) => format!("{defect} (table {:?})", known.name),
                None => defect.to_string(),
            }
        }
        _ => defect.to_string(),
    }
}

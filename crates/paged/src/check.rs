//! The check of all pages on a disk, while no process writes them.

use stillpoint_format::DecodeError;
use stillpoint_format::ident::StoreId;
use stillpoint_io::Disk;
use stillpoint_node::Node;

use crate::pages::{PageStore, PageStoreConfig, PagesError};
use crate::tables::Section;

/// Defects that are kept as text.
const SHOWN: usize = 20;

/// What a check of pages has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckedPages {
    /// Pages that the map names.
    pub pages: u64,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Slots of the data file.
    pub slots: u64,
    /// The first defects: file, slot, page, table, and what to do.
    pub damage: Vec<String>,
    /// Number of further defects.
    pub damage_more: u64,
}

impl CheckedPages {
    fn add(&mut self, defect: &PagesError) {
        match self.damage.len() < SHOWN {
            true => self.damage.push(defect.to_string()),
            false => self.damage_more += 1,
        }
    }
}

/// Checks the map and all pages that the sections of the MANIFEST name: checksums, numbers, gsns, no
/// slot twice, and each node alone. Writes nothing. `None` if no section names pages.
///
/// # Errors
/// The disk refuses, or there is no memory. Damage is part of the result.
pub fn check_pages(
    disk: &dyn Disk,
    store: StoreId,
    sections: &[&str],
) -> Result<Option<CheckedPages>, PagesError> {
    let sections = sections.iter().filter_map(|text| Section::read(text));
    let Some(section) = sections.max_by_key(|section| section.map) else { return Ok(None) };
    let page_bytes = section.page_bytes;
    let mut checked = CheckedPages { page_bytes, ..CheckedPages::default() };
    let counts = Some(section.map);
    let config = PageStoreConfig { store, page_bytes, growth_bytes: 0, held_back: 0, counts };
    let pages = match PageStore::open_to_read(disk, config) {
        Ok(pages) => pages,
        Err(error) if error.is_damage() => {
            checked.add(&error);
            return Ok(Some(checked));
        }
        Err(error) => return Err(error),
    };
    let check_node = |words: &[_]| -> Result<(), DecodeError> { Node::new(words).check() };
    checked.pages = pages.check_pages(check_node, |defect| checked.add(&defect))?;
    checked.slots = pages.stats().slots;
    Ok(Some(checked))
}

//! The tables of the kind: generations and numbers of records.
//!
//! A number of records is that of all changes in the logs. A checkpoint needs the number that belongs to
//! places in the logs. So a change that adds or removes a record is appended and counted under a shared
//! gate. A checkpoint closes the gate for the moment in which it takes the numbers.

use std::collections::HashMap;
use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_format::pages::{PAGE_BYTES_MAX, PAGE_BYTES_MIN};
use stillpoint_sync::RwLock;
use stillpoint_sync::atomic::{
    AtomicBool, AtomicI64, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use stillpoint_txn::{LogRefused, TableId, TxError};

use crate::pages::PagesError;

/// Logs that a store may have.
const LOGS: usize = 255;

/// A table.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) id: TableId,
    generation: AtomicU32,
    /// Number of records, those of open transactions among them.
    records: AtomicI64,
    /// Records that open transactions have added, minus those that they have removed.
    uncommitted: AtomicI64,
    /// For each log, the last gsn that the section's number of records counts.
    counted: HashMap<u8, u64>,
    /// Whether leaves of the table may refer to large values.
    has_large: AtomicBool,
}

impl Table {
    pub(crate) fn generation(&self) -> u32 {
        // Acquire: partner of the Release in `empty`.
        self.generation.load(Acquire)
    }

    /// Notes that a large value is about to be written.
    pub(crate) fn note_large(&self) {
        // Relaxed: the latch of a leaf, or the gate of a checkpoint, orders this before its use.
        self.has_large.store(true, Relaxed);
    }

    /// Whether leaves of the table may refer to large values.
    pub(crate) fn has_large(&self) -> bool {
        // Relaxed: as in `note_large`.
        self.has_large.load(Relaxed)
    }

    /// Number of committed records.
    pub(crate) fn record_count(&self) -> u64 {
        // Relaxed: exact only while no transaction is open.
        let records = self.records.load(Relaxed) - self.uncommitted.load(Relaxed);
        records.max(0) as u64
    }

    /// Notes that a transaction has committed the records that it added, minus those that it removed.
    pub(crate) fn commit(&self, added: i64) {
        // Relaxed: as in `record_count`.
        self.uncommitted.fetch_sub(added, Relaxed);
    }

    /// Begins a new generation without records.
    pub(crate) fn empty(&self, generation: u32) {
        self.records.store(0, Relaxed);
        self.uncommitted.store(0, Relaxed);
        self.has_large.store(false, Relaxed);
        // Release: partner of the Acquire in `generation`.
        self.generation.store(generation, Release);
    }
}

/// What a section of the MANIFEST says about a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    /// Number of the state of all pages. 0 before the first checkpoint with the table.
    pub(crate) map: u64,
    /// Bytes of a page.
    pub(crate) page_bytes: usize,
    /// Number of records.
    pub(crate) records: i64,
    /// For each log, the last gsn that this number counts.
    pub(crate) counted: Vec<(u8, u64)>,
    /// Whether leaves of the table may refer to large values.
    pub(crate) has_large: bool,
}

impl Section {
    pub(crate) fn write(&self) -> String {
        let Self { map, page_bytes, records, counted, has_large } = self;
        let counted: Vec<_> = counted.iter().map(|(log, gsn)| format!("{log}:{gsn}")).collect();
        let large = if *has_large { " large=1" } else { "" };
        let counted = counted.join(",");
        format!("map={map} page={page_bytes} records={records} counted={counted}{large}")
    }

    /// The section in a text. `None` if the text is no section.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let mut part = |name: &str| parts.next()?.strip_prefix(name)?.strip_prefix('=');
        let (map, page_bytes) = (part("map")?.parse().ok()?, part("page")?.parse().ok()?);
        let records = part("records")?.parse().ok()?;
        let counted = part("counted")?;
        let pair = |pair: &str| {
            let (log, gsn) = pair.split_once(':')?;
            Some((log.parse().ok()?, gsn.parse().ok()?))
        };
        let counted = counted.split(',').filter(|pair| !pair.is_empty()).map(pair);
        let counted = counted.collect::<Option<_>>()?;
        let has_large = match parts.next() {
            None => false,
            Some("large=1") => true,
            Some(_) => return None,
        };
        let section = Self { map, page_bytes, records, counted, has_large };
        parts.next().is_none().then_some(section)
    }
}

/// What the sections of all tables say together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamedPages {
    /// Bytes of a page. `None` without a section.
    pub page_bytes: Option<usize>,
    /// Number of the newest state of the pages. `None` before the first checkpoint.
    pub map: Option<u64>,
}

impl NamedPages {
    /// What these sections of the MANIFEST say. Nothing may be opened, and nothing removed, before all
    /// sections are understood.
    ///
    /// # Errors
    /// [`PagesError::Section`]: a section that this build cannot read, pages of an impossible size, or
    /// pages of two sizes.
    pub fn of(sections: &[&str]) -> Result<Self, PagesError> {
        let mut named = Self::default();
        for &text in sections {
            let fail = |reason| Err(PagesError::Section { text: text.to_owned(), reason });
            let Some(section) = Section::read(text) else {
                return fail("this build cannot read it");
            };
            let page_bytes = section.page_bytes;
            let is_size = (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page_bytes);
            if !is_size || !page_bytes.is_power_of_two() {
                return fail("so many bytes are no page");
            }
            if named.page_bytes.is_some_and(|other| other != page_bytes) {
                return fail("another table has pages of another size");
            }
            named.page_bytes = Some(page_bytes);
            named.map = named.map.max((section.map > 0).then_some(section.map));
        }
        Ok(named)
    }
}

/// All tables of the kind.
#[derive(Debug)]
pub(crate) struct Tables {
    tables: RwLock<HashMap<u16, Arc<Table>>>,
    /// Shared while a change of a number of records is appended and counted.
    gate: RwLock<()>,
    /// For each log, the last gsn of a change that was counted.
    last: Box<[AtomicU64]>,
    /// Whether transactions run. Before that, only recovery changes records.
    is_serving: AtomicBool,
}

impl Tables {
    pub(crate) fn new() -> Self {
        Self {
            tables: RwLock::default(),
            gate: RwLock::default(),
            last: (0..LOGS).map(|_| AtomicU64::new(0)).collect(),
            is_serving: AtomicBool::new(false),
        }
    }

    /// Notes that transactions run from here on.
    pub(crate) fn serve(&self) {
        // Relaxed: the first session's thread orders this before its transactions.
        self.is_serving.store(true, Relaxed);
    }

    pub(crate) fn add(&self, id: TableId, generation: u32, section: Option<&Section>) {
        let has_large = section.is_some_and(|section| section.has_large);
        let table = Table {
            id,
            generation: AtomicU32::new(generation),
            records: AtomicI64::new(section.map_or(0, |section| section.records)),
            uncommitted: AtomicI64::new(0),
            counted: section
                .map_or_else(HashMap::new, |section| section.counted.iter().copied().collect()),
            has_large: AtomicBool::new(has_large),
        };
        self.tables.write().insert(id.0, Arc::new(table));
    }

    pub(crate) fn get(&self, id: TableId) -> Result<Arc<Table>, TxError> {
        self.tables.read().get(&id.0).cloned().ok_or(TxError::NoSuchTable(id))
    }

    /// The numbers of all tables, in order.
    pub(crate) fn ids(&self) -> Vec<TableId> {
        let mut ids: Vec<u16> = self.tables.read().keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().map(TableId).collect()
    }

    /// Appends a change that adds records, or removes them, and counts it.
    ///
    /// # Errors
    /// Nothing was appended.
    pub(crate) fn append_counted(
        &self,
        table: &Table,
        added: i64,
        append: impl FnOnce() -> Result<Stamp, LogRefused>,
    ) -> Result<Stamp, LogRefused> {
        if added == 0 {
            return append();
        }
        let _open = self.gate.read();
        let stamp = append()?;
        table.records.fetch_add(added, Relaxed);
        if self.is_serving.load(Relaxed) {
            table.uncommitted.fetch_add(added, Relaxed);
        }
        if let Some(last) = self.last.get(usize::from(stamp.log())) {
            // Relaxed: the gate orders this before the checkpoint that reads it.
            last.fetch_max(stamp.gsn(), Relaxed);
        }
        Ok(stamp)
    }

    /// Counts a change of a replay that adds or removes records, unless the section of the table has counted
    /// it.
    pub(crate) fn count_replayed(&self, table: &Table, stamp: Stamp, added: i64) {
        if added == 0 {
            return;
        }
        if table.counted.get(&stamp.log()).is_none_or(|&last| stamp.gsn() > last) {
            // Relaxed: all lanes have ended before anybody asks.
            table.records.fetch_add(added, Relaxed);
        }
        if let Some(last) = self.last.get(usize::from(stamp.log())) {
            last.fetch_max(stamp.gsn(), Relaxed);
        }
    }

    /// The sections of all tables for a state of all pages, with numbers of one moment.
    pub(crate) fn sections(&self, page_bytes: usize) -> Vec<(TableId, Section)> {
        let _closed = self.gate.write();
        let counted = (0..=u8::MAX).zip(&self.last).filter_map(|(log, last)| {
            let gsn = last.load(Relaxed);
            (gsn > 0).then_some((log, gsn))
        });
        let counted: Vec<(u8, u64)> = counted.collect();
        let section = |table: &Arc<Table>| {
            let records = table.records.load(Relaxed);
            // Logs that nothing was appended to since the start are as the last section has them.
            let mut all: HashMap<u8, u64> = table.counted.clone();
            all.extend(counted.iter().copied());
            let mut counted: Vec<_> = all.into_iter().collect();
            counted.sort_unstable();
            let has_large = table.has_large();
            (table.id, Section { map: 0, page_bytes, records, counted, has_large })
        };
        self.tables.read().values().map(section).collect()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_the_same_after_writing() {
        for counted in [vec![], vec![(0, 7)], vec![(0, 7), (254, u64::MAX)]] {
            for has_large in [false, true] {
                let counted = counted.clone();
                let section = Section { map: 3, page_bytes: 4096, records: -1, counted, has_large };
                assert_eq!(Section::read(&section.write()), Some(section));
            }
        }
        for text in [
            "",
            "map=1",
            "map=1 page=2 records=3 counted=4",
            "map=1 page=2 records=3 counted= large=0",
            "map=1 page=2 records=3 counted= large=1 x",
            "map=1 page=2 records=3 counted=1:2 x",
        ] {
            assert_eq!(Section::read(text), None, "{text:?}");
        }
    }

    #[test]
    fn all_sections_must_be_understood_and_agree() {
        let [small, large] =
            [4096, 8192].map(|page| format!("map=3 page={page} records=0 counted="));
        let newer = format!("{small} x=1");
        let empty = "map=0 page=4096 records=0 counted=";
        assert_eq!(NamedPages::of(&[]).expect("nothing"), NamedPages::default());
        let named = NamedPages { page_bytes: Some(4096), map: Some(3) };
        assert_eq!(NamedPages::of(&[&small, empty]).expect("they agree"), named);
        assert_eq!(NamedPages::of(&[empty]).expect("one").map, None);
        let odd = "map=3 page=1000 records=0 counted=";
        for sections in [&[&*small, &*newer][..], &[&*small, &*large], &[odd]] {
            let refused = NamedPages::of(sections).expect_err("it is refused");
            assert!(refused.is_damage() && refused.to_string().contains("map=3"), "{refused}");
        }
    }
}

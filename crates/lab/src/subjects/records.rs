//! Engines of records: a row for each checkpoint scheme of the registry, and the settings of each.

use std::sync::LazyLock;

use stillpoint_checkpoint::registry::REGISTRY;

use super::adapter::Setup;
use crate::error::{LabError, LabResult};
use crate::workloads::calc::{KEY_BYTES, VALUE_BYTES};

/// Bytes per second of the paper's disk: 100–150 MB/s (§4).
pub(crate) const PAPER_PACE_BYTES_PER_S: u64 = 125_000_000;

/// Bytes of a record beside its key and values: header, entry of the index, alignment.
const RECORD_OVERHEAD_BYTES: u64 = 56;
/// Bytes of a copy of a value beside the value.
const COPY_OVERHEAD_BYTES: u64 = 8;

/// A scheme and a writer mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// The row's name in figures.
    pub(crate) name: &'static str,
    /// The scheme's registered name.
    pub(crate) scheme: &'static str,
    /// Whether the scheme takes checkpoints.
    pub(crate) takes_checkpoints: bool,
    /// Whether a checkpoint may hold only what has changed since the one before.
    pub(crate) takes_changes: bool,
    /// The journal without which the scheme takes no checkpoints; `none` if it needs none.
    pub(crate) journal: &'static str,
    /// Whether no transaction waits for a point of consistency.
    pub(crate) stops_nobody: bool,
    /// Whether transactions wait for the point of consistency as published.
    pub(crate) stops_as_published: bool,
    /// Copies of a value that a record has.
    pub(crate) copies: u64,
    /// Bytes per second that the row's checkpoints may write.
    pub(crate) pace_bytes_per_s: Option<u64>,
    /// Bytes of every value.
    pub(crate) value_bytes: usize,
}

/// All rows that need no journal, the baseline first. A scheme that takes checkpoints has two rows: at
/// the speed of the paper's disk, and as fast as it can.
pub(crate) static ALL_ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| made(false));

/// The rows whose checkpoints are nothing without a journal.
pub(crate) static JOURNAL_ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| made(true));

/// The rows of the schemes that need a journal, or of those that need none.
fn made(needs_journal: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for scheme in REGISTRY.iter() {
        if scheme.capabilities.needs_journal() != needs_journal {
            continue;
        }
        let takes_checkpoints = scheme.capabilities.takes_checkpoints();
        let checkpointer = scheme.build().checkpointer;
        let row = Row {
            name: scheme.name,
            scheme: scheme.name,
            takes_checkpoints,
            takes_changes: checkpointer.as_ref().is_some_and(|it| it.takes_changes()),
            journal: if needs_journal { journal_for(scheme) } else { "none" },
            stops_nobody: !scheme.capabilities.stops_commits(),
            stops_as_published: checkpointer
                .as_ref()
                .is_some_and(|it| it.published_point().stops_commits()),
            copies: scheme.capabilities.cells.copies as u64,
            pace_bytes_per_s: None,
            value_bytes: VALUE_BYTES,
        };
        if !takes_checkpoints {
            rows.insert(0, row);
            continue;
        }
        // The tables are made once, and their names stay for the whole run.
        let named = |mode: &str| format!("{}, {mode}", scheme.name).leak();
        let pace_bytes_per_s = Some(PAPER_PACE_BYTES_PER_S);
        rows.push(Row { name: named("paced"), pace_bytes_per_s, ..row });
        rows.push(Row { name: named("unpaced"), ..row });
    }
    if needs_journal {
        rows.extend(siren_rows());
    }
    rows
}

/// The forms of SIREN's checkpoint, whose tables are of another kind than the memory store. The journal
/// completes what their pages hold.
fn siren_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for form in stillpoint_siren::ROWS.iter() {
        let scheme = form.name();
        let row = Row {
            name: scheme,
            scheme,
            takes_checkpoints: true,
            takes_changes: true,
            journal: "redo",
            stops_nobody: true,
            stops_as_published: false,
            copies: 1,
            pace_bytes_per_s: None,
            value_bytes: VALUE_BYTES,
        };
        let named = |mode: &str| format!("{scheme}, {mode}").leak();
        let pace_bytes_per_s = Some(PAPER_PACE_BYTES_PER_S);
        rows.push(Row { name: named("paced"), pace_bytes_per_s, ..row });
        rows.push(Row { name: named("unpaced"), ..row });
    }
    rows
}

/// The first journal of the registry that has what the scheme's checkpoints need.
fn journal_for(scheme: &stillpoint_checkpoint::registry::Row) -> &'static str {
    let before_images = scheme.capabilities.needs_before_images();
    let suffices = |row: &&stillpoint_journal::registry::Row| {
        let has = row.capabilities;
        has.records_commits && !has.logs_calls_alone && has.logs_before_images == before_images
    };
    let found = stillpoint_journal::registry::REGISTRY.iter().find(suffices);
    found.expect("a scheme without a journal would never take a checkpoint").name
}

/// The schemes that every experiment compares. The others are rows of some experiments only, since
/// each row doubles the time of a pair.
pub(super) const USUAL: [&str; 5] = ["none", "naive", "calc", "calc:partial", "zigzag"];

/// The rows of [`ALL_ROWS`] that every experiment compares.
pub(crate) static ROWS: LazyLock<Vec<Row>> =
    LazyLock::new(|| ALL_ROWS.iter().copied().filter(|row| USUAL.contains(&row.scheme)).collect());

/// The rows of an experiment over all schemes: the baseline and those of the `asked` schemes. If none is
/// asked for, these are all rows, and in a quick run the usual ones.
pub(crate) fn rows_of(asked: &[String], quick: bool) -> Vec<Row> {
    let rows = if quick && asked.is_empty() { &ROWS } else { &ALL_ROWS };
    let is_asked = |row: &&Row| {
        asked.is_empty() || !row.takes_checkpoints || asked.iter().any(|it| it == row.scheme)
    };
    rows.iter().filter(is_asked).copied().collect()
}

/// The rows that need a journal, of the `asked` schemes or of all.
pub(crate) fn journal_rows_of(asked: &[String]) -> Vec<Row> {
    let is_asked = |row: &&Row| asked.is_empty() || asked.iter().any(|it| it == row.scheme);
    JOURNAL_ROWS.iter().filter(is_asked).copied().collect()
}

/// Schemes whose names begin so keep stable versions in a pool.
pub(crate) const STORED: &str = "calc-stored";
/// Bytes of a slot of the pool, and of the part of a value in it.
const SLOT_BYTES: (usize, usize) = (128, 120);

/// Bytes that a stable version of a value takes in the pool.
pub(crate) fn stable_bytes(value_bytes: usize) -> usize {
    value_bytes.div_ceil(SLOT_BYTES.1) * SLOT_BYTES.0
}

/// Row of CALC with stored stable versions, at the speed of the paper's disk.
pub(crate) const STORED_PACED: &str = "calc-stored, paced";
/// Row of the engine without checkpoints.
pub(crate) const BASELINE: &str = "none";
/// Row of CALC at the speed of the paper's disk, which claims of the paper name.
pub(crate) const CALC_PACED: &str = "calc, paced";
/// Row of CALC as fast as it can.
pub(crate) const CALC_UNPACED: &str = "calc, unpaced";
/// CALC's scheme.
pub(crate) const CALC: &str = "calc";
/// Row of Zigzag at the speed of the paper's disk.
pub(crate) const ZIGZAG_PACED: &str = "zigzag, paced";
/// Row of Interleaved Ping-Pong at the speed of the paper's disk.
pub(crate) const PING_PONG_PACED: &str = "ping-pong, paced";
/// Row of the naive snapshot at the speed of the paper's disk.
pub(crate) const NAIVE_PACED: &str = "naive, paced";
/// Row of the naive snapshot as fast as it can.
pub(crate) const NAIVE_UNPACED: &str = "naive, unpaced";

/// The row of a name that claims and experiments give.
///
/// # Panics
/// If no scheme of the registry has such a row.
pub(crate) fn row(name: &str) -> Row {
    let found = ALL_ROWS.iter().find(|row| row.name == name);
    *found.unwrap_or_else(|| panic!("the registry has no scheme of row {name:?}"))
}

/// The row of a scheme that writes as fast as it can.
///
/// # Errors
/// [`LabError::Missing`] if the registry does not have the scheme.
pub(crate) fn of_scheme(scheme: &str) -> LabResult<Row> {
    let all = ALL_ROWS.iter().chain(JOURNAL_ROWS.iter());
    let row = all.into_iter().find(|row| row.scheme == scheme && !row.is_paced());
    row.copied().ok_or_else(|| LabError::Missing {
        what: format!("there is no checkpoint scheme {scheme:?}"),
        cure: format!("choose one of {:?}", all_names()),
    })
}

fn all_names() -> Vec<&'static str> {
    REGISTRY.names().chain(stillpoint_siren::ROWS.names()).collect()
}

/// The rows that write at the speed of the paper's disk, after the baseline.
pub(crate) fn paced_rows() -> Vec<Row> {
    ROWS.iter().copied().filter(|row| !row.takes_checkpoints || row.is_paced()).collect()
}

impl Row {
    /// Whether the row's checkpoints write at a pace.
    pub(crate) fn is_paced(&self) -> bool {
        self.pace_bytes_per_s.is_some()
    }

    /// Estimate of the memory that so many records need, in bytes.
    pub(crate) fn memory_bytes(&self, records: u64) -> u64 {
        let copies = self.copies * (self.value_bytes as u64 + COPY_OVERHEAD_BYTES);
        records * (RECORD_OVERHEAD_BYTES + KEY_BYTES as u64 + copies)
    }
}

/// Settings with which a row's engine is opened.
pub(crate) fn setup(row: Row, records: u64, journal: &str, dir: std::path::PathBuf) -> Setup {
    Setup {
        dir,
        scheme: row.scheme.to_owned(),
        journal: journal.to_owned(),
        pace_bytes_per_s: row.pace_bytes_per_s,
        records,
        value_bytes: row.value_bytes,
        sessions: 8,
        published_points: false,
        // Room for a version of each record, so that no commit waits.
        stable_pool_bytes: row
            .scheme
            .starts_with(STORED)
            .then(|| records as usize * stable_bytes(row.value_bytes) + (1 << 20)),
    }
}

/// Bytes of the keys and values of this number of records.
pub(crate) fn data_bytes(records: u64) -> u64 {
    records * (KEY_BYTES + VALUE_BYTES) as u64
}

/// Whether the journal of this name keeps commits.
pub(crate) fn records_commits(journal: &str) -> bool {
    let journals = &stillpoint_journal::registry::REGISTRY;
    journals.find(journal).is_ok_and(|row| row.capabilities.records_commits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_has_its_rows() {
        let schemes = REGISTRY.iter().filter(|row| !row.capabilities.needs_journal());
        let takes = schemes.map(|row| row.capabilities.takes_checkpoints());
        assert_eq!(ALL_ROWS.len(), takes.map(|takes| 1 + usize::from(takes)).sum::<usize>());
        assert_eq!((ROWS.len(), paced_rows().len()), (2 * USUAL.len() - 1, USUAL.len()));
        assert!(ROWS[0].name == BASELINE && !ROWS[0].takes_checkpoints && !ROWS[0].is_paced());
        for name in [CALC_PACED, CALC_UNPACED, NAIVE_PACED, NAIVE_UNPACED] {
            assert_eq!(row(name).is_paced(), !name.contains("unpaced"), "{name}");
            assert_eq!(row(name).stops_nobody, name.starts_with("calc"), "{name}");
            assert_eq!(row(name).stops_as_published, name.starts_with("naive"), "{name}");
        }
        let hourglass = row("hourglass, paced");
        assert!(hourglass.stops_nobody && hourglass.stops_as_published);
        for scheme in REGISTRY.iter() {
            let row = of_scheme(scheme.name).expect("every scheme has a row");
            assert!(row.scheme == scheme.name && !row.is_paced());
        }
        let error = of_scheme("magic").expect_err("no such scheme").to_string();
        assert!(error.contains("magic") && error.contains("zigzag"), "{error}");
    }

    #[test]
    fn some_schemes_may_be_chosen() {
        assert_eq!(rows_of(&[], false), *ALL_ROWS);
        assert_eq!(rows_of(&[], true), *ROWS);
        let rows = rows_of(&["hourglass".to_owned(), "cou".to_owned()], true);
        let schemes: Vec<_> = rows.iter().map(|row| row.scheme).collect();
        assert_eq!(schemes, ["none", "cou", "cou", "hourglass", "hourglass"]);
    }

    #[test]
    fn schemes_that_need_a_journal_name_the_least_that_suffices() {
        let journals: Vec<_> = JOURNAL_ROWS.iter().map(|row| (row.scheme, row.journal)).collect();
        assert!(journals.contains(&("fuzzy", "redo")), "{journals:?}");
        assert!(journals.contains(&("fuzzy-undo:partial", "undo-redo")), "{journals:?}");
        assert!(ALL_ROWS.iter().all(|row| row.journal == "none"));
        let asked = journal_rows_of(&["fuzzy".to_owned(), "calc".to_owned()]);
        assert_eq!(asked.len(), 2, "paced and unpaced: {asked:?}");
        assert_eq!(journal_rows_of(&[]), *JOURNAL_ROWS);
        assert!(journals.contains(&("siren-semi-fuzzy", "redo")), "{journals:?}");
    }

    #[test]
    fn two_copies_need_more_memory() {
        let of = |scheme| of_scheme(scheme).expect("a scheme").memory_bytes(1_000);
        assert_eq!((of("calc"), of("zigzag")), (172_000, 280_000));
    }

    #[test]
    fn journals_tell_whether_they_keep_commits() {
        assert!(records_commits("redo") && !records_commits("none"));
    }
}

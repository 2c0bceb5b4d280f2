//! Engines of records: the compared schemes, and the settings of each.

use super::adapter::Setup;
use crate::workloads::calc::{KEY_BYTES, VALUE_BYTES};

/// Bytes per second of the paper's disk: 100–150 MB/s (§4).
pub(crate) const PAPER_PACE_BYTES_PER_S: u64 = 125_000_000;

/// A scheme and a writer mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// The row's name in figures.
    pub(crate) name: &'static str,
    /// The scheme's registered name.
    pub(crate) scheme: &'static str,
    /// Bytes per second that the row's checkpoints may write.
    pub(crate) pace_bytes_per_s: Option<u64>,
    /// Bytes of every value.
    pub(crate) value_bytes: usize,
}

const fn row(name: &'static str, scheme: &'static str, pace_bytes_per_s: Option<u64>) -> Row {
    Row { name, scheme, pace_bytes_per_s, value_bytes: VALUE_BYTES }
}

/// The engine without checkpoints.
pub(crate) const BASELINE: Row = row("none", "none", None);
/// CALC at the speed of the paper's disk.
pub(crate) const CALC_PACED: Row = row("calc, paced", "calc", Some(PAPER_PACE_BYTES_PER_S));
/// CALC as fast as it can.
pub(crate) const CALC_UNPACED: Row = row("calc, unpaced", "calc", None);
/// The naive snapshot at the speed of the paper's disk.
pub(crate) const NAIVE_PACED: Row = row("naive, paced", "naive", Some(PAPER_PACE_BYTES_PER_S));
/// The naive snapshot as fast as it can.
pub(crate) const NAIVE_UNPACED: Row = row("naive, unpaced", "naive", None);

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
    }
}

/// Bytes of the keys and values of this number of records.
pub(crate) fn data_bytes(records: u64) -> u64 {
    records * (KEY_BYTES + VALUE_BYTES) as u64
}

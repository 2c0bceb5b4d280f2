//! Names of files and directories, relative to the data directory. Numbers are padded with zeros,
//! so that a sorted listing is in numeric order. Only the exact form that is written is read back.

use serde::{Deserialize, Serialize};

/// The lock file, locked while a process has the store open.
pub const LOCK: &str = "LOCK";
/// The manifest.
pub const MANIFEST: &str = "MANIFEST";
/// Directory of the checkpoints.
pub const CHECKPOINT_DIR: &str = "checkpoint";
/// Name of the file, in the directory of a checkpoint that `stillpoint merge` has made, that names the
/// merged checkpoints. It has the format of a MANIFEST.
pub const MERGE_INPUTS: &str = "inputs";
/// Directory of the logs.
pub const LOG_DIR: &str = "log";
/// Directory of the pages of paged tables.
pub const PAGES_DIR: &str = "pages";
/// Directory of a SIREN store.
pub const SIREN_DIR: &str = "siren";
/// Directory of the files with which large transactions would be undone. A start removes it.
pub const UNDO_DIR: &str = "undo";
/// The pages of a SIREN store.
pub const SIREN_PAGES: &str = "siren/pages";

/// Whether a checkpoint holds every record, or those changed since its base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum CheckpointKind {
    /// Every record.
    Full = 1,
    /// Records changed since the base checkpoint; tombstones for deleted ones.
    Partial = 2,
}

impl CheckpointKind {
    /// `"full"` or `"partial"`.
    pub fn as_str(self) -> &'static str {
        match self {
            CheckpointKind::Full => "full",
            CheckpointKind::Partial => "partial",
        }
    }
}

/// `checkpoint/0000000007-full`: the directory of the checkpoint with serial 7.
pub fn checkpoint_dir(serial: u64, kind: CheckpointKind) -> String {
    format!("{CHECKPOINT_DIR}/{}", checkpoint_name(serial, kind))
}

/// `0000000007-full`: the last component of [`checkpoint_dir`].
pub fn checkpoint_name(serial: u64, kind: CheckpointKind) -> String {
    format!("{serial:010}-{}", kind.as_str())
}

/// Reads a name of [`checkpoint_name`] as (serial, kind); `None` for any other text.
pub fn parse_checkpoint_name(name: &str) -> Option<(u64, CheckpointKind)> {
    let (serial, kind) = name.split_once('-')?;
    let kind = match kind {
        "full" => CheckpointKind::Full,
        "partial" => CheckpointKind::Partial,
        _ => return None,
    };
    let serial = serial.parse().ok()?;
    (checkpoint_name(serial, kind) == name).then_some((serial, kind))
}

/// `part-003`: a part's file name inside its checkpoint's directory.
pub fn part_name(part: u32) -> String {
    format!("part-{part:03}")
}

/// Reads a name of [`part_name`]; `None` for any other text.
pub fn parse_part_name(name: &str) -> Option<u32> {
    let part = name.strip_prefix("part-")?.parse().ok()?;
    (part_name(part) == name).then_some(part)
}

/// `log/004`: the directory of a log.
pub fn log_dir(log: u8) -> String {
    format!("{LOG_DIR}/{log:03}")
}

/// Reads the last component of [`log_dir`]; `None` for any other text.
pub fn parse_log_name(name: &str) -> Option<u8> {
    let log: u8 = name.parse().ok()?;
    (log != crate::LOG_NONE && format!("{log:03}") == name).then_some(log)
}

/// `0000000002-0000000000004711`: a segment's file name inside its log's directory.
pub fn segment_name(incarnation: u32, first_gsn: u64) -> String {
    format!("{incarnation:010}-{first_gsn:016}")
}

/// Reads a name of [`segment_name`] as (incarnation, first gsn); `None` for any other text.
pub fn parse_segment_name(name: &str) -> Option<(u32, u64)> {
    let (incarnation, first_gsn) = name.split_once('-')?;
    let (incarnation, first_gsn) = (incarnation.parse().ok()?, first_gsn.parse().ok()?);
    (first_gsn <= crate::GSN_MAX && segment_name(incarnation, first_gsn) == name)
        .then_some((incarnation, first_gsn))
}

/// `tail-0000000003-0000000002`: the end of a log of incarnation 2, copied at the start of
/// incarnation 3.
pub fn tail_name(made_by: u32, incarnation: u32) -> String {
    format!("tail-{made_by:010}-{incarnation:010}")
}

/// Reads a name of [`tail_name`] as (made by, incarnation); `None` for any other text.
pub fn parse_tail_name(name: &str) -> Option<(u32, u32)> {
    let (made_by, incarnation) = name.strip_prefix("tail-")?.split_once('-')?;
    let (made_by, incarnation) = (made_by.parse().ok()?, incarnation.parse().ok()?);
    (tail_name(made_by, incarnation) == name).then_some((made_by, incarnation))
}

/// `log-0000000007`: a segment of the log of a SIREN store, inside [`SIREN_DIR`].
pub fn siren_segment_name(number: u64) -> String {
    format!("log-{number:010}")
}

/// Reads a name of [`siren_segment_name`]; `None` for any other text.
pub fn parse_siren_segment_name(name: &str) -> Option<u64> {
    let number = name.strip_prefix("log-")?.parse().ok()?;
    (siren_segment_name(number) == name).then_some(number)
}

/// `0000000007`: a file inside [`UNDO_DIR`].
pub fn undo_name(number: u64) -> String {
    format!("{number:010}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for serial in [0, 7, 12_345_678_901, u64::MAX] {
            for kind in [CheckpointKind::Full, CheckpointKind::Partial] {
                let name = checkpoint_name(serial, kind);
                assert_eq!(parse_checkpoint_name(&name), Some((serial, kind)), "{name}");
                assert_eq!(checkpoint_dir(serial, kind), format!("checkpoint/{name}"));
            }
        }
        for part in [0, 9, 1000, u32::MAX] {
            assert_eq!(parse_part_name(&part_name(part)), Some(part));
        }
        for number in [0, 7, u64::MAX] {
            assert_eq!(parse_siren_segment_name(&siren_segment_name(number)), Some(number));
        }
        assert_eq!(log_dir(4), "log/004");
        assert_eq!(parse_log_name("004"), Some(4));
        for (made_by, incarnation) in [(0, 0), (3, 2), (u32::MAX, 7)] {
            let name = tail_name(made_by, incarnation);
            assert_eq!(parse_tail_name(&name), Some((made_by, incarnation)), "{name}");
            assert_eq!(parse_segment_name(&name), None, "{name} is no segment");
        }
        for (incarnation, gsn) in [(0, 0), (2, 4711), (u32::MAX, crate::GSN_MAX)] {
            let name = segment_name(incarnation, gsn);
            assert_eq!(parse_segment_name(&name), Some((incarnation, gsn)), "{name}");
        }
    }

    #[test]
    fn only_the_exact_form_is_read() {
        for bad in ["7-full", "0000000007-fuller", "+000000007-full", "0000000007", "-full", ""] {
            assert_eq!(parse_checkpoint_name(bad), None, "{bad}");
        }
        for bad in ["part-1", "part-0001", "part-+01", "../part-001", "part-001/", "part--01"] {
            assert_eq!(parse_part_name(bad), None, "{bad}");
        }
        for bad in ["4", "0004", "255", "256", "abc"] {
            assert_eq!(parse_log_name(bad), None, "{bad}");
        }
        for bad in ["2-4711", "0000000002-9999999999999999", "0000000002"] {
            assert_eq!(parse_segment_name(bad), None, "{bad}");
        }
    }

    #[test]
    fn listings_sort_by_number() {
        let mut names: Vec<String> = [10, 9, 1000].map(|n| segment_name(1, n)).into();
        names.sort();
        assert_eq!(names, [9, 10, 1000].map(|n| segment_name(1, n)));
    }
}

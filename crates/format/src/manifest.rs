//! The MANIFEST: the one document that says which files count
//! (`docs/formats.md`, "Manifest").
//!
//! One line that a machine checks, then JSON that a person can read:
//!
//! ```text
//! stillpoint-manifest 2 crc32c=1c291ca3 len=2048
//! { "store": "…", … }
//! ```
//!
//! The file is never changed in place. The next MANIFEST is written beside the file, made durable,
//! and renamed over it. Files that the MANIFEST does not name do not exist.

mod check;

use serde::{Deserialize, Serialize};

use crate::ident::StoreId;
pub use crate::names::CheckpointKind;
pub use crate::part::Codec;
use crate::{FORMAT_VERSION, LogGsn};

/// First word of the document.
const MAGIC: &str = "stillpoint-manifest";
/// The first line is never longer than this.
const FIRST_LINE_MAX: usize = 96;

/// The durable facts of a store, other than its checkpoints and logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Name of the store.
    pub store: StoreId,
    /// Seed of the key hash, as hexadecimal text, since JSON numbers lose bits in many readers.
    #[serde(with = "hex_u64")]
    pub hash_seed: u64,
    /// Wall clock at creation of the store, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// The next epoch. No record of any log has this epoch or a later one.
    pub next_epoch: u64,
    /// The serial of the next checkpoint. No directory of a checkpoint has this serial or a later
    /// one.
    pub next_serial: u64,
    /// The tables, by id.
    pub tables: Vec<TableEntry>,
    /// Where the kinds of tables beside `memory` stand in the logs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<KindEntry>,
    /// The checkpoints that exist, by epoch.
    pub checkpoints: Vec<CheckpointEntry>,
    /// The incarnations whose logs may still matter, oldest first. The last is the present or
    /// latest one.
    pub incarnations: Vec<IncarnationEntry>,
    /// Set when the store was closed in order. Absent while the store is open, and after a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clean_shutdown: Option<CleanShutdown>,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableEntry {
    /// Number of the table in keys, records and blocks.
    pub id: u16,
    /// Unique name of the table, not empty.
    pub name: String,
    /// Present generation of the table. Data of older generations are void.
    pub generation: u32,
    /// How often the table was emptied since the newest checkpoint's point of consistency, oldest
    /// first. Noted while the logs may hold calls, which may read what the table held before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub emptied: Vec<Emptied>,
    /// How the table's records are stored.
    pub kind: TableKind,
    /// The function that says which partition of a checkpoint a key belongs to.
    pub partitioning: Partitioning,
    /// The section of the table's kind, a text; kind `memory` has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private: Option<String>,
}

impl TableEntry {
    /// A table of records in memory, partitioned by key hash.
    pub fn new(id: u16, name: impl Into<String>, generation: u32) -> Self {
        TableEntry {
            id,
            name: name.into(),
            generation,
            emptied: Vec::new(),
            kind: TableKind::Memory,
            partitioning: Partitioning::KeyHash,
            private: None,
        }
    }
}

/// The time at which a table was emptied, among the records of the logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Emptied {
    /// The table's generation since then.
    pub generation: u32,
    /// Every record of the generation before has this gsn or a smaller one, and every record of the
    /// new generation a greater one.
    pub gsn: u64,
}

/// How the records of a table are stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TableKind {
    /// In memory, by key.
    Memory,
    /// In memory, by key, and with an index in the order of keys.
    Ordered,
    /// A kind that this build does not know. Such a manifest is refused.
    #[serde(untagged)]
    Other(String),
}

impl TableKind {
    /// Names of the kinds that keep their records in memory. No other kind has one of these names.
    pub const IN_MEMORY: [&str; 2] = ["memory", "ordered"];

    /// Whether the records are in memory.
    pub fn is_in_memory(&self) -> bool {
        matches!(self, Self::Memory | Self::Ordered)
    }
}

/// Position in the logs of a kind of table other than `memory`. The kind's own files hold the
/// effects of every operation on its tables up to here. No transaction with such an operation is
/// open. So a start replays from here on, and needs no earlier segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindEntry {
    /// Name of the kind.
    pub name: String,
    /// The position in a log that is not listed.
    pub gsn_floor: u64,
    /// The positions, by log.
    pub positions: Vec<LogGsn>,
}

impl KindEntry {
    /// The last gsn of a log that the kind does not need.
    pub fn position(&self, log: u8) -> u64 {
        let listed = self.positions.iter().find(|position| position.log == log);
        listed.map_or(self.gsn_floor, |position| position.gsn)
    }
}

/// The function that says which partition of a checkpoint a key belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Partitioning {
    /// The top bits of the key hash.
    KeyHash,
    /// A function that this build does not know. Such a manifest is refused.
    #[serde(untagged)]
    Other(String),
}

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointEntry {
    /// Epoch of the checkpoint. The checkpoint holds the commits of all earlier epochs.
    pub epoch: u64,
    /// Unique number of the attempt that made the checkpoint, and of its directory
    /// ([`crate::names::checkpoint_dir`]).
    pub serial: u64,
    /// Full or partial.
    pub kind: CheckpointKind,
    /// For a partial checkpoint, the epoch of its base. The checkpoint holds the changes since the
    /// base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<u64>,
    /// Name of the scheme that took the checkpoint.
    pub scheme: String,
    /// The section of the scheme, a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private: Option<String>,
    /// Whether the checkpoint is fuzzy, without a point of consistency. The positions of a fuzzy
    /// checkpoint are those of its begin. The records have stamps, and may hold commits of any
    /// epoch. Replay leaves out changes that are not newer than a record.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fuzzy: bool,
    /// Of each log the last commit that was not closed at the publication and that a recovery may have
    /// to undo. The logs had these commits by then. Empty unless the scheme's checkpoints are undone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub active: Vec<LogGsn>,
    /// Requested codec.
    pub codec: Codec,
    /// The key hash has 2^this partitions.
    pub partitions_log2: u8,
    /// Values and tombstones in the checkpoint.
    pub records: u64,
    /// Records of each table, so that a loader can make room. Tables without records are left out.
    pub table_records: Vec<TableRecords>,
    /// Bytes of the checkpoint's values.
    pub value_bytes: u64,
    /// Part files of the checkpoint.
    pub parts: Vec<PartEntry>,
    /// Generations of the tables at the point of consistency. Tables that were emptied between the
    /// point of consistency and the publication are left out; their records in the parts do not
    /// count.
    pub generations: Vec<TableGeneration>,
    /// Per incarnation and log, the last gsn before the point of consistency. Records up to there
    /// are in the checkpoint, and dependencies on them are met.
    pub positions: Vec<LogPositions>,
    /// Gsns given out after the point of consistency are greater than this.
    pub gsn_floor: u64,
    /// Time of the begin, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// Time at which the last part was durable, in milliseconds since the Unix epoch.
    pub finished_ms: u64,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartEntry {
    /// File name in the checkpoint's directory ([`crate::names::part_name`]).
    pub file: String,
    /// Length of the part file, in bytes.
    pub bytes: u64,
    /// Values and tombstones in the part.
    pub records: u64,
    /// Checksum of the part's index ([`crate::part::PartIndex::crc`]), which covers its content.
    #[serde(with = "hex_u32")]
    pub crc: u32,
}

/// A table's generation at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableGeneration {
    /// The table.
    pub table: u16,
    /// Generation of the table.
    pub generation: u32,
}

/// Number of a table's records in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableRecords {
    /// The table.
    pub table: u16,
    /// Values and tombstones.
    pub records: u64,
}

/// A position in each log of an incarnation. A log that is not listed is at its beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogPositions {
    /// The incarnation.
    pub incarnation: u32,
    /// The positions, by log.
    pub logs: Vec<LogGsn>,
}

/// One opening of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IncarnationEntry {
    /// Number of the incarnation.
    pub number: u32,
    /// Gsns of the incarnation are greater than this. Everything up to this gsn counts as closed.
    pub gsn_floor: u64,
    /// Number of logs, numbered from 0. The first segment of each begins one above the floor. 0 if
    /// the incarnation keeps no log.
    pub logs: u8,
    /// The cut, written by the recovery after this incarnation: per log, the last kept gsn. A log
    /// that is not listed keeps nothing. Absent for the present incarnation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<Vec<LogGsn>>,
    /// Whether the logs of the incarnation may hold calls, which replay makes again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub calls: bool,
    /// The logs whose kept end lies in a file of its own. The recovery that writes the cut writes
    /// these files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tails: Vec<LogTail>,
    /// Name of the checkpoint scheme of the incarnation. Absent in manifests of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
}

/// The end of a log, copied by a recovery that could not know whether it was durable. From the
/// first copied batch on, the segments of the log do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogTail {
    /// The log.
    pub log: u8,
    /// The incarnation whose start made the copy, also part of the file's name
    /// ([`crate::names::tail_name`]).
    pub made_by: u32,
    /// Number of the first batch in the copy.
    pub first_batch: u64,
    /// No record in the copy has a smaller gsn.
    pub first_gsn: u64,
}

/// The store was closed in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CleanShutdown {
    /// The incarnation that was closed.
    pub incarnation: u32,
    /// The last gsn of each of its logs, all durable.
    pub last: Vec<LogGsn>,
}

/// The reason why a document cannot be used, with the cure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The first line is not that of a manifest.
    #[error("the first line is not `{MAGIC} <version> crc32c=<8 hex digits> len=<bytes>`")]
    FirstLine,
    /// Another release wrote the document.
    #[error(
        "manifest format version {found} is unknown (this build reads {FORMAT_VERSION}): dump the \
         store with the release that wrote it, and load the dump with this one"
    )]
    UnknownVersion {
        /// The version that the file claims.
        found: u32,
    },
    /// The document is shorter or longer than its first line says.
    #[error("manifest of {found} bytes after the first line, which announces {announced}")]
    Length {
        /// Bytes that the file has.
        found: u64,
        /// Bytes announced.
        announced: u64,
    },
    /// The document was damaged or edited.
    #[error(
        "manifest checksum mismatch: stored {stored:#010x}, computed {computed:#010x}; it is \
         damaged or was edited by hand"
    )]
    Checksum {
        /// The checksum in the first line.
        stored: u32,
        /// The checksum of the document.
        computed: u32,
    },
    /// The document's JSON does not have the fields of this version.
    #[error("manifest document: {0}")]
    Document(String),
    /// The document needs a feature that this build does not have.
    #[error("{what} is unknown to this build: use the release that made it")]
    Unsupported {
        /// The table, and the defect of its entry.
        what: String,
    },
    /// The document's fields contradict each other.
    #[error("manifest inconsistent: {0}")]
    Inconsistent(String),
}

impl ManifestError {
    /// Whether the file is damaged, as opposed to a file of another release.
    pub fn is_damage(&self) -> bool {
        !matches!(self, Self::UnknownVersion { .. } | Self::Unsupported { .. })
    }
}

impl Manifest {
    /// The bytes of the MANIFEST file.
    ///
    /// # Errors
    /// [`ManifestError::Inconsistent`] for a document that could not be read back.
    pub fn encode(&self) -> Result<Vec<u8>, ManifestError> {
        self.validate()?;
        let mut document = serde_json::to_string_pretty(self)
            .map_err(|error| ManifestError::Document(error.to_string()))?;
        document.push('\n');
        let crc = checksum(FORMAT_VERSION, document.as_bytes());
        let len = document.len();
        let first_line = format!("{MAGIC} {FORMAT_VERSION} crc32c={crc:08x} len={len}\n");
        Ok([first_line.as_bytes(), document.as_bytes()].concat())
    }

    /// Decodes and validates the bytes of a MANIFEST file.
    ///
    /// # Errors
    /// Anything but an intact, consistent document of this format version.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        Self::decode_with_kinds(bytes, &[])
    }

    /// As [`decode`](Self::decode), with these kinds of tables in addition to `memory`.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn decode_with_kinds(bytes: &[u8], kinds: &[&str]) -> Result<Self, ManifestError> {
        let (version, stored, announced, document) = first_line(bytes)?;
        if version != FORMAT_VERSION {
            return Err(ManifestError::UnknownVersion { found: version });
        }
        if announced != document.len() as u64 {
            return Err(ManifestError::Length { found: document.len() as u64, announced });
        }
        let computed = checksum(version, document);
        if stored != computed {
            return Err(ManifestError::Checksum { stored, computed });
        }
        let manifest: Manifest = serde_json::from_slice(document)
            .map_err(|error| ManifestError::Document(error.to_string()))?;
        manifest.validate()?;
        if let Some(what) = manifest.tables.iter().find_map(|table| table.unknown_kind(kinds)) {
            return Err(ManifestError::Unsupported { what });
        }
        Ok(manifest)
    }

    /// Numbers, names and kinds of tables in a MANIFEST that cannot be decoded, as far as its bytes show
    /// them. They are unverified. Each entry has generation 1.
    pub fn tables_of_damaged(bytes: &[u8]) -> Vec<TableEntry> {
        let document =
            bytes.iter().position(|&byte| byte == b'{').map_or(&[][..], |at| &bytes[at..]);
        let document: serde_json::Value = serde_json::from_slice(document).unwrap_or_default();
        let tables = document["tables"].as_array().map_or(&[][..], |tables| tables);
        let entry = |table: &serde_json::Value| {
            let id = table["id"].as_u64().and_then(|id| id.try_into().ok())?;
            let is_ordered = table["kind"].as_str() == Some("ordered");
            let kind = if is_ordered { TableKind::Ordered } else { TableKind::Memory };
            Some(TableEntry { kind, ..TableEntry::new(id, table["name"].as_str()?, 1) })
        };
        tables.iter().filter_map(entry).collect()
    }

    /// The present or latest incarnation.
    pub fn incarnation(&self) -> Option<&IncarnationEntry> {
        self.incarnations.last()
    }

    /// The table with this id.
    pub fn table(&self, id: u16) -> Option<&TableEntry> {
        self.tables.iter().find(|table| table.id == id)
    }

    /// Whether logs that may still matter may hold calls, which replay makes again.
    pub fn may_hold_calls(&self) -> bool {
        self.incarnations.iter().any(|incarnation| incarnation.calls)
    }

    /// The checkpoints to load, base first: the newest chain of one full and the partials on
    /// it. Empty if there is no checkpoint.
    pub fn newest_chain(&self) -> Vec<&CheckpointEntry> {
        let newest = self.checkpoints.iter().map(|checkpoint| checkpoint.epoch).max();
        newest.map_or(Vec::new(), |epoch| self.chain_to(epoch))
    }

    /// The checkpoint of that epoch and those that it goes on from, oldest first: to be loaded
    /// together. If two checkpoints have the epoch, the full one counts. Empty if there is none.
    pub fn chain_to(&self, epoch: u64) -> Vec<&CheckpointEntry> {
        let mut chain = Vec::new();
        // A full checkpoint is preferred to a partial one of the same epoch, since its chain is
        // shorter.
        let mut next = self.at_epoch(epoch);
        while let Some(checkpoint) = next {
            chain.push(checkpoint);
            next = checkpoint.base.and_then(|base| self.at_epoch(base));
        }
        chain.reverse();
        chain
    }

    /// The checkpoint of that epoch, the full one if there are two.
    fn at_epoch(&self, epoch: u64) -> Option<&CheckpointEntry> {
        let same = self.checkpoints.iter().filter(|checkpoint| checkpoint.epoch == epoch);
        same.max_by_key(|checkpoint| checkpoint.rank())
    }
}

impl CheckpointEntry {
    /// Later epochs come first, and full checkpoints before partial ones.
    fn rank(&self) -> (u64, bool) {
        (self.epoch, self.kind == CheckpointKind::Full)
    }

    /// The last gsn of a log of an incarnation before the point of consistency. `None` if the
    /// checkpoint lists none.
    pub fn position(&self, incarnation: u32, log: u8) -> Option<u64> {
        let of_incarnation = self.positions.iter().find(|p| p.incarnation == incarnation)?;
        of_incarnation.logs.iter().find(|position| position.log == log).map(|p| p.gsn)
    }
}

/// CRC32C over the version and the document.
fn checksum(version: u32, document: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&version.to_le_bytes()), document)
}

/// Parses version, checksum, length, and the rest. Accepts only the exact form that is written.
fn first_line(bytes: &[u8]) -> Result<(u32, u32, u64, &[u8]), ManifestError> {
    let head = &bytes[..bytes.len().min(FIRST_LINE_MAX)];
    let end = head.iter().position(|&byte| byte == b'\n').ok_or(ManifestError::FirstLine)?;
    let parse = || {
        let line = std::str::from_utf8(&head[..end]).ok()?;
        let mut words = line.split(' ');
        let (magic, version) = (words.next()?, words.next()?.parse().ok()?);
        let crc = u32::from_str_radix(words.next()?.strip_prefix("crc32c=")?, 16).ok()?;
        let len: u64 = words.next()?.strip_prefix("len=")?.parse().ok()?;
        let canonical = format!("{MAGIC} {version} crc32c={crc:08x} len={len}");
        (magic == MAGIC && canonical == line).then_some((version, crc, len))
    };
    let (version, crc, len) = parse().ok_or(ManifestError::FirstLine)?;
    Ok((version, crc, len, &bytes[end + 1..]))
}

/// A `u64` as 16 hexadecimal digits.
mod hex_u64 {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{value:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        let value = u64::from_str_radix(&text, 16).map_err(serde::de::Error::custom)?;
        if format!("{value:016x}") == text {
            Ok(value)
        } else {
            Err(serde::de::Error::custom("expected 16 lower-case hexadecimal digits"))
        }
    }
}

/// A `u32` as 8 hexadecimal digits.
mod hex_u32 {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &u32, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{value:08x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
        let text = String::deserialize(from)?;
        let value = u32::from_str_radix(&text, 16).map_err(serde::de::Error::custom)?;
        if format!("{value:08x}") == text {
            Ok(value)
        } else {
            Err(serde::de::Error::custom("expected 8 lower-case hexadecimal digits"))
        }
    }
}
